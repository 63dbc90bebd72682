//! Times of the same shapes in two places: those of the first against those of the others.

use super::super::shapes::labels;
use super::parts::{NoPicture, none, thinned, time_unit};
use crate::chart::{Chart, Look, Mark, Panel, Scale, ScaleKind, Series};
use crate::units::{count, time};
use analysis::stat::shapes::{ShapedOp, Shapes};

/// Maximum kinds with a colour of their own.
const KINDS: usize = 7;

/// A pair of times: the row, the other place, and both medians, ns.
struct Pair<'s> {
    row: &'s ShapedOp,
    other: usize,
    first_ns: f64,
    other_ns: f64,
}

pub fn shapes(found: &Shapes, phase: &str, most: usize) -> Result<Chart, NoPicture> {
    let names = labels(&found.places);
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    let mut without = 0;
    for row in &found.rows {
        let mut cells = row.cells.iter().enumerate();
        let Some((_, Some(first))) = cells.next() else {
            without += 1;
            continue;
        };
        let pair = |(other, cell): (usize, &Option<analysis::stat::shapes::Ran>)| {
            let other_ns = (*cell)?.median_ns;
            (other_ns > 0.0).then_some(Pair { row, other, first_ns: first.median_ns, other_ns })
        };
        pairs.extend(cells.filter_map(pair));
    }
    let (Some(first), true) = (names.first(), !pairs.is_empty()) else {
        return none("no op ran both in the first place and in another one: name the trace of the CPU first");
    };
    let times = || pairs.iter().flat_map(|p| [p.first_ns, p.other_ns]);
    let (low, high) = (times().fold(f64::INFINITY, f64::min), times().fold(0.0, f64::max));
    let (unit, each) = time_unit(high);
    let drawn: Vec<&Pair<'_>> = thinned(&pairs, most).collect();
    // With one other place the colours are free for the ops.
    let by_place = names.len() > 2;
    let mut kinds: Vec<&str> = Vec::new();
    for p in &drawn {
        let kind = kind(p, by_place, &names);
        if !kinds.contains(&kind) {
            kinds.push(kind);
        }
    }
    let mut series = vec![Series {
        name: "equal times".into(),
        line: vec![(low / each, low / each), (high / each, high / each)],
        line_about: "Equal times: points below it are faster in the other place".into(),
        ..Series::default()
    }];
    for (i, shown) in kinds.iter().take(KINDS + 1).enumerate() {
        let own = |p: &&&Pair<'_>| {
            let at = kinds.iter().position(|k| *k == kind(p, by_place, &names));
            at.unwrap_or(KINDS).min(KINDS) == i
        };
        series.push(Series {
            name: if i < KINDS { (*shown).to_owned() } else { "others".into() },
            look: Look::Kind(i),
            points: drawn.iter().filter(own).map(|p| mark(p, &names, each)).collect(),
            ..Series::default()
        });
    }
    let slower = pairs.iter().filter(|p| p.other_ns > p.first_ns).count();
    let other = match &*names {
        [_, other] => other.as_str(),
        _ => "another place",
    };
    let mut notes = vec![format!(
        "Slower on {other} than on {first}: {slower} of {}. Points below the line are faster there.",
        count(pairs.len() as u64, "shape")
    )];
    if names.iter().any(|n| n.starts_with("B ")) {
        notes.push("A: this trace; B: the --beside trace.".into());
    }
    if without > 0 {
        notes.push(format!("{} did not run on {first} and are not drawn.", count(without, "more shape")));
    }
    if drawn.len() < pairs.len() {
        notes.push(format!("{} are drawn.", count(drawn.len() as u64, "shape")));
    }
    Ok(Chart {
        title: format!("The same shapes on {first} and {other}, {phase}"),
        about: "Each point is an op with its types and dimensions: its median time in both places.".into(),
        panels: vec![Panel {
            x: Scale::new(format!("time on {first} ({unit})"), ScaleKind::Log),
            y: Scale::new(format!("time on {other} ({unit})"), ScaleKind::Log),
            series,
            height: 400.0,
        }],
        notes,
    })
}

fn kind<'s>(p: &Pair<'s>, by_place: bool, names: &'s [String]) -> &'s str {
    if by_place { names.get(p.other).map_or("", |n| n) } else { &p.row.op }
}

fn mark(p: &Pair<'_>, names: &[String], each: f64) -> Mark {
    let name = |i: usize| names.get(i).map_or("", |n| n.as_str());
    let about = format!(
        "{} {}\n{}: {}, {}: {} ({:.2} times)",
        p.row.op,
        p.row.form,
        name(0),
        time(p.first_ns),
        name(p.other),
        time(p.other_ns),
        p.other_ns / p.first_ns
    );
    Mark { x: p.first_ns / each, y: p.other_ns / each, about }
}
