//! What tells this program from others.

/// Marks choices as those of this program's flags; see [`cli::args::Choice`].
pub struct Flags;
