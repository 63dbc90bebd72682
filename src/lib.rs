//! profinfer: which operator, layer, thread or expert costs the time, in an unmodified GGML engine.
//!
//! The floors, lowest first; a module uses only modules below it:
//!
//! 1. [`trace`] (the `.pfi` format), [`ggml`] (facts about GGML), [`redact`] (secrets in command lines), [`filesize`] (the limit of a file's size)
//! 2. `agent` (a live target), [`analysis`] (a recorded run), [`runner`] (reference kernels and models)
//! 3. [`views`] (how an answer looks)
//! 4. [`cli`] (one file a subcommand)

pub mod analysis;
pub mod aside;
pub mod cli;
pub mod files;
pub mod filesize;
pub mod ggml;
pub mod order;
pub mod plain;
pub mod redact;
pub mod runner;
pub mod trace;
pub mod views;

#[cfg(feature = "agent")]
pub mod agent;

/// Version and, where it was built from a commit, that commit: `0.1.0 (0123456789ab)`, with `, dirty` behind the commit
/// where the sources differed from it.
pub const VERSION: &str = env!("PROFINFER_VERSION");
