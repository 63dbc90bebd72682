//! The pictures of the statistics on the page, beside their tables.

use std::io::{self, Write};

use crate::chart::figure;
use crate::stat::pictures::{ON_PAGE, picture};
use analysis::questions::stat::{Stat, View};

/// Draws a view if the recording has what it shows; if not, its table says why.
pub fn write(out: &mut dyn Write, s: &Stat, view: View) -> io::Result<()> {
    let id = match view {
        View::Tokens => "growth-chart",
        View::Ops => "products-chart",
        View::Reuse => "reuse-chart",
        View::Shapes => "shapes-chart",
        View::Roofline | View::Threads | View::Experts | View::Activation | View::Backends => return Ok(()),
    };
    picture(s, view, None, ON_PAGE).map_or(Ok(()), |chart| figure(out, &chart, id))
}
