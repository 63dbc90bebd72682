//! Draws the experts that each layer chose, token by token, as a map.

use std::io::{self, Write};

use super::markup;
use crate::stat::experts::name;
use crate::table::clean;
use crate::units::count;
use analysis::questions::stat::reuse::{Activation, ActiveLayer};
use serde::Serialize;

/// Maximum rows per layer; if there are more experts, several share a row.
const HIGH: u64 = 32;
/// Maximum layers drawn, and maximum marks in total, which limits the page size.
const LAYERS: usize = 48;
const MARKS: usize = 30_000;
/// The deepest colour.
const DEEPEST: u64 = 9;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 40.0;
const TOP: f64 = 22.0;
/// Space between layers.
const GAP: f64 = 3.0;
/// Target height of all rows; minimum and maximum height of one.
const TALL: f64 = 560.0;
const ROW: (f64, f64) = (1.5, 6.0);

/// A run of equal colour in a row: row, first bin, number of bins, colour.
type ColourRun = (usize, usize, usize, u64);

/// Where the bands of the map are, for the script's tooltips.
#[derive(Serialize)]
pub struct ActivationGrid {
    left: f64,
    cell: f64,
    step: f64,
    /// Tokens in a column.
    tokens: u64,
    bands: Vec<Band>,
}

/// A layer.
#[derive(Serialize)]
struct Band {
    layer: String,
    top: f64,
    rows: usize,
    /// Experts in a row.
    each: u64,
}

impl ActivationGrid {
    /// The grid of the map that [`write`] draws; `None` if it draws none.
    pub fn of(found: &Activation) -> Option<ActivationGrid> {
        let drawn = layers(found);
        let step = step(&drawn)?;
        let mut top = TOP;
        let mut bands = Vec::new();
        for (layer, rows, _) in &drawn {
            let each = layer.experts.div_ceil(HIGH).max(1);
            bands.push(Band { layer: clean(&name(layer)), top, rows: *rows, each });
            top += *rows as f64 * step + GAP;
        }
        Some(ActivationGrid { left: LEFT, cell: cell(found), step, tokens: found.tokens_a_bin.max(1), bands })
    }
}

/// A drawn layer, its rows and its marks.
type DrawnLayer<'f> = (&'f ActiveLayer, usize, Vec<ColourRun>);

/// The layers that are drawn.
fn layers(found: &Activation) -> Vec<DrawnLayer<'_>> {
    let mut left = MARKS;
    let mut drawn = Vec::new();
    for layer in found.layers.iter().take(LAYERS) {
        let (rows, all) = marks(layer, found);
        if all.len() > left {
            break;
        }
        left -= all.len();
        drawn.push((layer, rows, all));
    }
    drawn
}

/// Height of a row; `None` without rows.
fn step(drawn: &[DrawnLayer<'_>]) -> Option<f64> {
    let rows: usize = drawn.iter().map(|(_, rows, _)| rows).sum();
    (rows > 0).then(|| (TALL / rows as f64).clamp(ROW.0, ROW.1))
}

/// Width of a column.
fn cell(found: &Activation) -> f64 {
    let bins = found.tokens.div_ceil(found.tokens_a_bin.max(1)).max(1);
    (WIDTH - LEFT - 8.0) / bins as f64
}

/// Writes the map.
pub fn write(out: &mut dyn Write, found: &Activation) -> io::Result<()> {
    let drawn = layers(found);
    let Some(step) = step(&drawn) else { return Ok(()) };
    let cell = cell(found);
    let rows: usize = drawn.iter().map(|(_, rows, _)| rows).sum();
    let height = TOP + rows as f64 * step + drawn.len() as f64 * GAP;
    let title = "Experts chosen token by token, decode";
    let told = format!("{} of {}", count(drawn.len() as u64, "layer"), count(found.tokens, "token"));
    markup::svg(out, "activation-chart", (WIDTH, height), title, &told)?;
    writeln!(out, "<text x=\"{LEFT}\" y=\"14\">token 0</text>")?;
    let last = found.tokens.saturating_sub(1);
    writeln!(out, "<text class=\"end\" x=\"{:.1}\" y=\"14\">{last}</text>", WIDTH - 8.0)?;
    let mut y = TOP;
    let mut named = f64::NEG_INFINITY;
    for (layer, rows, all) in &drawn {
        // Lines as wide as a row, in units of columns and rows: a mark is a few bytes.
        let mut paths: Vec<String> = vec![String::new(); DEEPEST as usize + 1];
        for (row, from, n, level) in all {
            if let Some(path) = paths.get_mut(*level as usize) {
                path.push_str(&format!("M{from} {row}h{n}"));
            }
        }
        writeln!(
            out,
            "<g class=\"lines\" transform=\"translate({LEFT} {:.2}) scale({cell:.4} {step:.3})\">",
            y + step / 2.0
        )?;
        for (level, path) in paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
            writeln!(out, "<path class=\"heat h{level}\" d=\"{path}\"/>")?;
        }
        writeln!(out, "</g>")?;
        // Label every layer if they are high enough, else every other or fewer.
        if y - named >= 12.0 {
            named = y;
            let short: String = clean(&name(layer)).chars().take(5).collect();
            let (x, y) = (LEFT - 4.0, y + 9.0);
            writeln!(out, "<text class=\"end\" x=\"{x:.1}\" y=\"{y:.1}\">{}</text>", markup::text(&short))?;
        }
        y += *rows as f64 * step + GAP;
    }
    let mut about = "Each band is a layer, each line in it an expert, the first one on top.".to_owned();
    if found.tokens_a_bin > 1 {
        about += &format!(" {} tokens share a column.", found.tokens_a_bin);
    }
    if found.layers.iter().any(|l| l.experts > HIGH) {
        about += " Several experts share a line.";
    }
    let more = found.layers.len() - drawn.len();
    if more > 0 {
        about += &format!(" {} more are not drawn.", count(more as u64, "layer"));
    }
    markup::svg_end(out, &format!("{title}: {told}. {about}"))
}

/// The rows of a layer, and the marks drawn in them.
fn marks(layer: &ActiveLayer, found: &Activation) -> (usize, Vec<ColourRun>) {
    let each = layer.experts.div_ceil(HIGH).max(1);
    let rows = layer.experts.div_ceil(each) as usize;
    let mut out: Vec<ColourRun> = Vec::new();
    // By row: the mark that the next bin may extend.
    let mut open: Vec<Option<usize>> = vec![None; rows];
    for (bin, chosen) in layer.bins.iter().enumerate() {
        let mut sums = vec![0u64; rows];
        for (expert, n) in chosen {
            if let Some(sum) = sums.get_mut((u64::from(*expert) / each) as usize) {
                *sum += u64::from(*n);
            }
        }
        for ((row, sum), open) in sums.iter().enumerate().zip(&mut open) {
            if *sum == 0 {
                *open = None;
                continue;
            }
            // An expert chosen for every token has the deepest colour.
            let level = (1 + sum * (DEEPEST - 1) / found.tokens_a_bin.max(1)).min(DEEPEST);
            match open.and_then(|i| out.get_mut(i)) {
                Some((_, from, n, of)) if *of == level && *from + *n == bin => *n += 1,
                _ => {
                    *open = Some(out.len());
                    out.push((row, bin, 1, level));
                }
            }
        }
    }
    (rows, out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn choices_that_follow_one_another_are_one_mark() {
        let bins = vec![vec![(0, 1), (3, 1)], vec![(0, 1)], vec![(1, 1)], vec![(0, 1)]];
        let layer = ActiveLayer { layer: Some(0), name: "x".into(), experts: 4, bins };
        let layers = vec![layer.clone()];
        let found = Activation { tokens: 4, tokens_a_bin: 1, layers, layers_left_out: 0 };
        assert_eq!(marks(&layer, &found), (4, vec![(0, 0, 2, 9), (3, 0, 1, 9), (1, 2, 1, 9), (0, 3, 1, 9)]));
        let many = ActiveLayer { experts: 64, ..layer };
        assert_eq!(marks(&many, &found).0, 32);
    }
}
