//! The statistics as pictures. Each is made of the figures of the table of the same view.

mod activation;
mod models;
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
use analysis::questions::stat::{Stat, View};

/// Maximum points of a picture: in a file, and on a page, which has many pictures.
pub const IN_FILE: usize = 4000;
pub const ON_PAGE: usize = 300;

/// The views that have a picture.
pub const PICTURES: [View; 7] =
    [View::Tokens, View::Ops, View::Roofline, View::Threads, View::Reuse, View::Activation, View::Shapes];

/// The picture of a view, with at most about `most` points; that of activation is of one layer.
///
/// # Errors
/// The recording does not have what it shows, or the view has no picture.
pub fn picture(s: &Stat, view: View, layer: Option<u32>, most: usize) -> Result<Chart, NoPicture> {
    let phase = s.phase.name();
    match view {
        View::Tokens => match s.tokens.as_ref().and_then(Option::as_ref) {
            Some(found) => Ok(tokens::tokens(found, phase, most)),
            None => none(
                "the context length is unknown or barely changes: record a run of more tokens, without --no-str",
            ),
        },
        View::Ops if s.models.is_some() => {
            models::models(s.models.as_deref().unwrap_or_default(), phase, most)
        }
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
        View::Activation => match s.activation.as_ref().and_then(Option::as_ref) {
            Some(found) => {
                activation::activation(found, s.reuse.as_ref().and_then(Option::as_ref), layer, most)
            }
            None => none("no choices of experts: record a mixture-of-experts model with --experts"),
        },
        View::Experts | View::Backends => none("this view has no picture"),
    }
}

#[cfg(test)]
mod tests;
