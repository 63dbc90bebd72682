//! profinfer: shows which operator, layer, thread or expert costs the time in an unmodified GGML engine.
//!
//! Code that needs no live kernel is in crates/: `common`, `pfi` (the trace format), `kernels`, `ggml` (facts about
//! GGML), `runner` (reference engine), `analysis` (of a recorded run), `tune` (which CPUs and threads to try), `render` (presentation of results). The
//! modules here are:
//!
//! 1. `host`: this machine
//! 2. `engine`: a GGML engine in a file or a process
//! 3. `capture`: getting events out of the kernel
//! 4. `recorder`: a recording
//! 5. `daemon`: the service
//! 6. `tuner`: runs of a command with other CPUs, threads and settings
//! 7. [`cli`]: one file per subcommand
//!
//! Each imports only modules above it in this list; `tests/imports.py` checks this.

#[cfg(feature = "agent")]
pub mod capture;
pub mod cli;
#[cfg(feature = "agent")]
pub mod daemon;
#[cfg(feature = "agent")]
pub mod engine;
#[cfg(feature = "agent")]
pub mod host;
#[cfg(feature = "agent")]
pub mod recorder;
#[cfg(all(test, feature = "agent"))]
#[path = "../tests/common/skips.rs"]
#[allow(clippy::expect_used, reason = "shared with the other tests")]
mod skips;
#[cfg(feature = "agent")]
pub mod tuner;

/// Version and, if built from a commit, that commit: `0.1.0 (0123456789ab)`, with `, dirty` after the commit if
/// the sources differed from it.
pub const VERSION: &str = env!("PROFINFER_VERSION");

/// The profiler and its version.
pub const TOOL: &str = concat!("profinfer ", env!("PROFINFER_VERSION"));
