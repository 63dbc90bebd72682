//! What the facts of a verdict are read from.

use crate::recorded::calls::Timeline;
use crate::recorded::idents::Idents;
use crate::recorded::load::Loaded;
use crate::sums::attribution::Attribution;
use crate::sums::ops::OpTimes;
use crate::sums::tables::Reasons;

/// A recording, and what was summed of it.
#[derive(Clone, Copy)]
pub struct FactInput<'l, 'a> {
    pub loaded: &'l Loaded<'a>,
    pub line: &'l Timeline,
    pub times: &'l OpTimes,
    pub idents: &'l Idents,
    pub why: Option<&'l Attribution>,
    pub reasons: Reasons<'l>,
}
