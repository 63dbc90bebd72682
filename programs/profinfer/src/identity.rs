//! What tells this program from others.

/// Version and, if built from a commit, that commit: `0.1.0 (0123456789ab)`, with `, dirty` after the commit if
/// the sources differed from it.
pub const VERSION: &str = env!("PROFINFER_VERSION");

/// The profiler and its version.
pub const TOOL: &str = concat!("profinfer ", env!("PROFINFER_VERSION"));

/// Marks choices as those of this program's flags; see [`cli::args::Choice`].
pub struct Flags;
