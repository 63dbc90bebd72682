//! The experts of one layer over the tokens: which were chosen, how often each, their time, and how long they were not used.

use super::parts::{NoPicture, time_unit};
use super::reuse;
use crate::chart::{Chart, Look, Mark, Panel, Scale, ScaleKind, Series};
use crate::stat::experts::name;
use crate::units::count;
use analysis::questions::stat::reuse::{Activation, ActiveLayer, ReusePoint, ReuseTimes};

/// The pictures of this layer, or of the first one.
///
/// # Errors
/// The recording has no such layer.
pub fn activation(
    found: &Activation,
    times: Option<&ReuseTimes>,
    layer: Option<u32>,
    most: usize,
) -> Result<Chart, NoPicture> {
    let of = found.layers.iter().find(|l| layer.is_none() || l.layer == layer);
    let Some(of) = of else {
        let known: Vec<String> = found.layers.iter().map(name).collect();
        return Err(NoPicture(format!(
            "no experts of layer {} are in the recording; --layer can be {}",
            layer.unwrap_or(0),
            known.join(", ")
        )));
    };
    let all = times.map_or(&[][..], |t| &t.points);
    let points: Vec<&ReusePoint> = all.iter().filter(|p| Some(p.layer) == of.layer).take(most).collect();
    let mut panels = vec![raster(found, of), density(of)];
    let mut notes = Vec::new();
    if points.is_empty() {
        notes.push("No time of this layer's MUL_MAT_ID is known.".to_owned());
    } else {
        panels.extend([time_over_tokens(&points, found.tokens), distance(&points, found.tokens)]);
        let each = times.map_or(1, |t| t.each);
        let which = if each > 1 { format!(" One of every {each} tokens is drawn.") } else { String::new() };
        notes.push(format!(
            "Time: of the layer's MUL_MAT_ID for a token. Distance: tokens since the layer last used the token's experts, mean.{which}"
        ));
    }
    if found.tokens_a_bin > 1 {
        notes.push(format!("A stroke of the map is {} tokens wide.", found.tokens_a_bin));
    }
    Ok(Chart {
        title: format!("Experts of layer {}, decode", name(of)),
        about: format!("{} of {} over {}.", chosen(of), of.experts, count(found.tokens, "token")),
        panels,
        notes,
    })
}

/// How many experts were chosen at all.
fn chosen(of: &ActiveLayer) -> String {
    count(choices(of).iter().filter(|n| **n > 0).count() as u64, "expert")
}

/// Choices of each expert.
fn choices(of: &ActiveLayer) -> Vec<u64> {
    let mut sums = vec![0u64; usize::try_from(of.experts).unwrap_or(0)];
    for (expert, n) in of.bins.iter().flatten() {
        if let Some(sum) = sums.get_mut(*expert as usize) {
            *sum += u64::from(*n);
        }
    }
    sums
}

/// Expert against token: a stroke where it was chosen.
fn raster(found: &Activation, of: &ActiveLayer) -> Panel {
    let mut strokes: Vec<[f64; 3]> = Vec::new();
    // Of each expert, the stroke that the next bin may continue.
    let mut open: Vec<Option<usize>> = vec![None; usize::try_from(of.experts).unwrap_or(0)];
    for (bin, chosen) in of.bins.iter().enumerate() {
        let (from, to) = (bin as u64 * found.tokens_a_bin, (bin as u64 + 1) * found.tokens_a_bin);
        let (from, to) = (from as f64, to.min(found.tokens) as f64);
        for (expert, _) in chosen {
            let Some(open) = open.get_mut(*expert as usize) else { continue };
            match open.and_then(|i| strokes.get_mut(i)) {
                Some([_, end, _]) if *end == from => *end = to,
                _ => {
                    *open = Some(strokes.len());
                    strokes.push([from, to, f64::from(*expert)]);
                }
            }
        }
    }
    Panel {
        x: Scale::new("token (number)", ScaleKind::Zero),
        y: Scale::new("expert (number)", ScaleKind::Zero),
        series: vec![Series { look: Look::Kind(0), strokes, ..Series::default() }],
        height: 220.0,
    }
}

fn density(of: &ActiveLayer) -> Panel {
    let sums = choices(of);
    let all: u64 = sums.iter().sum::<u64>().max(1);
    let share = |n: u64| n as f64 / all as f64 * 100.0;
    let mark = |(expert, n): (usize, &u64)| Mark {
        x: expert as f64,
        y: share(*n),
        about: format!("expert {expert}: chosen {n} times, {:.2} %", share(*n)),
    };
    let even = 100.0 / of.experts.max(1) as f64;
    let last = of.experts.saturating_sub(1) as f64;
    Panel {
        x: Scale::new("expert (number)", ScaleKind::Zero),
        y: Scale::new("choices (%)", ScaleKind::Zero),
        series: vec![
            Series {
                look: Look::Kind(0),
                points: sums.iter().enumerate().map(mark).collect(),
                ..Series::default()
            },
            Series {
                name: "equally often".into(),
                line: vec![(0.0, even), (last, even)],
                line_about: format!("each expert equally often: {even:.2} %"),
                ..Series::default()
            },
        ],
        height: 110.0,
    }
}

/// Nothing is drawn of it: it lets the axis reach the last token.
fn to_the_end(tokens: u64) -> Series {
    Series { line: vec![(tokens as f64, 0.0)], ..Series::default() }
}

fn time_over_tokens(points: &[&ReusePoint], tokens: u64) -> Panel {
    let (unit, each) = time_unit(points.iter().map(|p| p.ns).fold(0.0, f64::max));
    let marks = points.iter().map(|p| Mark { x: p.token as f64, y: p.ns / each, about: reuse::about(p) });
    Panel {
        x: Scale::new("token (number)", ScaleKind::Zero),
        y: Scale::new(format!("time ({unit})"), ScaleKind::Zero),
        series: vec![
            Series { look: Look::Kind(1), points: marks.collect(), ..Series::default() },
            to_the_end(tokens),
        ],
        height: 120.0,
    }
}

fn distance(points: &[&ReusePoint], tokens: u64) -> Panel {
    let known = points.iter().filter_map(|p| Some((p, p.distance?)));
    let marks = known.map(|(p, d)| Mark { x: p.token as f64, y: d, about: reuse::about(p) });
    Panel {
        x: Scale::new("token (number)", ScaleKind::Zero),
        y: Scale::new("distance (tokens)", ScaleKind::Log),
        series: vec![
            Series { look: Look::Kind(2), points: marks.collect(), ..Series::default() },
            to_the_end(tokens),
        ],
        height: 170.0,
    }
}
