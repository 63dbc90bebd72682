//! The statistics as pictures. Each is made of the figures of the table of the same view.

mod ops;
mod parts;
mod reuse;
mod roofline;
mod shapes;
pub mod threads;
mod tokens;

pub use self::parts::NoPicture;
use self::parts::none;
use crate::chart::Chart;
use analysis::stat::{Stat, View};

/// Maximum points of a picture: in a file, and on a page, which has many pictures.
pub const IN_FILE: usize = 4000;
pub const ON_PAGE: usize = 300;

/// The views that have a picture.
pub const PICTURES: [View; 6] =
    [View::Tokens, View::Ops, View::Roofline, View::Threads, View::Reuse, View::Shapes];

/// The picture of a view, with at most about `most` points.
///
/// # Errors
/// The recording does not have what it shows, or the view has no picture.
pub fn picture(s: &Stat, view: View, most: usize) -> Result<Chart, NoPicture> {
    let phase = s.phase.name();
    match view {
        View::Tokens => match s.tokens.as_ref().and_then(Option::as_ref) {
            Some(found) => Ok(tokens::tokens(found, phase)),
            None => none(
                "the context length is unknown or barely changes: record a run of more tokens, without --no-str",
            ),
        },
        View::Ops => match s.ops.as_ref().and_then(Option::as_ref) {
            Some(found) => ops::ops(found, phase, most),
            None => none("no matrix multiplication is known: record without --no-str"),
        },
        View::Roofline => match s.roofline.as_ref().and_then(Option::as_ref) {
            Some(found) => roofline::roofline(found, phase, most),
            None => none(
                "no peak of this machine is known: pass one with --peak, or run `profinfer doctor --peaks` and record again",
            ),
        },
        View::Threads => match &s.scaling {
            Some(found) => threads::threads(found, phase),
            None => none(
                "this picture compares recordings: add others of the same work, with other numbers of threads, with --beside",
            ),
        },
        View::Reuse => match s.reuse.as_ref().and_then(Option::as_ref) {
            Some(found) => Ok(reuse::reuse(found, most)),
            None => none(
                "no timed MUL_MAT_ID with known experts: record a mixture-of-experts model with --experts",
            ),
        },
        View::Shapes => match s.shapes.as_ref().and_then(Option::as_ref) {
            Some(found) => shapes::shapes(found, phase, most),
            None => none(
                "no op of this trace ran on two backends: add a recording of the other backend with --beside, or record a \
                 device with --gpu kernel",
            ),
        },
        View::Experts | View::Activation | View::Backends => none("this view has no picture"),
    }
}

#[cfg(test)]
mod tests;
