//! Draws how often each expert of each layer was chosen, as a map.

use std::io::{self, Write};

use super::markup;
use crate::experts::{layers, name};
use crate::table::clean;
use crate::units::count;
use analysis::sums::attribution::experts::{ExpertLayer, ExpertReport};
use serde::Serialize;

/// Maximum cells per row, and maximum rows; if there are more experts, several share a cell.
const WIDE: usize = 256;
const HIGH: usize = 128;
/// Up to this many rows each have room for a label.
const FEW: usize = 32;
/// Up to this many cells their counts are in the page.
const COUNTED: usize = 8192;
/// Number of colour steps above zero.
const STEPS: u128 = 9;

const WIDTH: f64 = 960.0;
const LEFT: f64 = 40.0;
const TOP: f64 = 22.0;

/// Writes the map and the table of layers.
pub fn write(out: &mut dyn Write, found: &ExpertReport, top: usize) -> io::Result<()> {
    match drawn(found).zip(ExpertGrid::of(found)) {
        None => markup::gap(out, "No expert choices could be read.")?,
        Some(((phase, of), grid)) => map(out, found, &grid, phase, of)?,
    }
    if !found.layers.is_empty() {
        let shown = found.layers.len().min(top);
        let title = format!("Expert use, decode, {}", count(shown as u64, "layer"));
        markup::folded(out, &layers(found, shown), "layer", &title, true)?;
    }
    if found.out_of_range > 0 {
        markup::say(out, &format!("Excluded: {} out of range.", count(found.out_of_range, "expert id")))?;
    }
    for u in found.unread.iter().take(top) {
        let layer = u.layer.map_or("layer unknown".into(), |l| format!("layer {l}"));
        markup::say(out, &format!("Not read: {layer}, {}: {}", count(u.tensors, "id tensor"), u.why))?;
    }
    Ok(())
}

/// Where the cells of the map are, for the script's tooltips.
#[derive(Serialize)]
pub struct ExpertGrid {
    left: f64,
    top: f64,
    cell: f64,
    step: f64,
    /// Experts in a cell.
    each: usize,
    /// Of each row, the layer and the counts of its cells; none if there are too many.
    layers: Vec<String>,
    counts: Vec<Vec<u64>>,
}

/// The counts of a layer in one of the phases.
type CountsOf = fn(&ExpertLayer) -> &[u64];

/// The phase of the map and its counts; `None` without choices.
fn drawn(found: &ExpertReport) -> Option<(&'static str, CountsOf)> {
    let sum = |of: CountsOf| found.layers.iter().flat_map(of).fold(0u64, |a, n| a.saturating_add(*n));
    match (sum(|l| &l.decode), sum(|l| &l.prefill)) {
        (0, 0) => None,
        (0, _) => Some(("prefill", |l| &l.prefill)),
        _ => Some(("decode", |l| &l.decode)),
    }
}

impl ExpertGrid {
    /// The grid of the map that [`write`] draws.
    pub fn of(found: &ExpertReport) -> Option<ExpertGrid> {
        let (_, of) = drawn(found)?;
        let rows: Vec<&ExpertLayer> = found.layers.iter().take(HIGH).collect();
        let experts = rows.iter().map(|l| of(l).len()).max().unwrap_or(0);
        let each = experts.div_ceil(WIDE).max(1);
        let columns = experts.div_ceil(each).max(1);
        let cell = (WIDTH - LEFT - 8.0) / columns as f64;
        let step = if rows.len() <= FEW { 14.0 } else { cell.clamp(6.0, 14.0) };
        let counts: Vec<Vec<u64>> = match rows.len() * columns <= COUNTED {
            true => rows.iter().map(|l| cells(of(l), each)).collect(),
            false => Vec::new(),
        };
        let layers = rows.iter().map(|l| clean(&name(l))).collect();
        Some(ExpertGrid { left: LEFT, top: TOP, cell, step, each, layers, counts })
    }
}

/// Sums of `each` neighbours.
fn cells(counts: &[u64], each: usize) -> Vec<u64> {
    counts.chunks(each).map(|c| c.iter().fold(0u64, |a, n| a.saturating_add(*n))).collect()
}

fn map(
    out: &mut dyn Write,
    found: &ExpertReport,
    grid: &ExpertGrid,
    phase: &str,
    of: CountsOf,
) -> io::Result<()> {
    let rows: Vec<&ExpertLayer> = found.layers.iter().take(HIGH).collect();
    let experts = rows.iter().map(|l| of(l).len()).max().unwrap_or(0);
    let &ExpertGrid { cell, step, each, .. } = grid;
    let height = TOP + rows.len() as f64 * step + 4.0;
    let title = format!("Expert choices by layer, {phase}");
    let told =
        format!("{} of {}", count(found.layers.len() as u64, "layer"), count(experts as u64, "expert"));
    markup::svg(out, "experts-chart", (WIDTH, height), &title, &told)?;
    writeln!(out, "<text x=\"{LEFT}\" y=\"14\">expert 0</text>")?;
    writeln!(
        out,
        "<text class=\"end\" x=\"{:.1}\" y=\"14\">{}</text>",
        WIDTH - 8.0,
        experts.saturating_sub(1)
    )?;
    let mut paths: Vec<String> = vec![String::new(); STEPS as usize + 1];
    for (i, layer) in rows.iter().enumerate() {
        let y = TOP + i as f64 * step;
        let counts = cells(of(layer), each);
        let most = counts.iter().copied().max().unwrap_or(0);
        for (column, n) in counts.iter().enumerate() {
            let x = LEFT + column as f64 * cell;
            if let Some(path) = paths.get_mut(level(*n, most)) {
                path.push_str(&format!("M{x:.1} {y:.1}h{cell:.2}v{step:.1}h-{cell:.2}z"));
            }
        }
    }
    for (level, path) in paths.iter().enumerate().filter(|(_, path)| !path.is_empty()) {
        writeln!(out, "<path class=\"heat h{level}\" d=\"{path}\"/>")?;
    }
    // Label every row if they are high enough, else every other or fewer.
    let every = (12.0 / step).ceil().max(1.0) as usize;
    for (i, layer) in rows.iter().enumerate().step_by(every) {
        let y = TOP + i as f64 * step + step / 2.0 + 4.0;
        let short: String = clean(&name(layer)).chars().take(5).collect();
        writeln!(
            out,
            "<text class=\"end\" x=\"{:.1}\" y=\"{y:.1}\">{}</text>",
            LEFT - 4.0,
            markup::text(&short)
        )?;
    }
    let shared = if each > 1 { format!(" {each} experts share a cell.") } else { String::new() };
    let more = found.layers.len() - rows.len();
    let more = if more > 0 {
        format!(" {} more are not drawn.", count(more as u64, "layer"))
    } else {
        String::new()
    };
    let about = "No colour: never chosen; strongest: most chosen in its layer.";
    markup::svg_end(out, &format!("{title}: {told}. Each row is a layer. {about}{shared}{more}"))
}

/// 0 for never; the maximum of a layer has the deepest colour.
fn level(n: u64, most: u64) -> usize {
    if n == 0 { 0 } else { (1 + u128::from(n) * (STEPS - 1) / u128::from(most.max(1))) as usize }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn never_is_no_colour_and_the_most_is_the_deepest() {
        assert_eq!(
            [level(0, 0), level(0, 9), level(1, 1000), level(9, 9), level(u64::MAX, u64::MAX)],
            [0, 0, 1, 9, 9]
        );
    }
}
