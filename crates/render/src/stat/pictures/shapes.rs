//! Times of the same shapes in several places: against the size of the matrix, and those of the first place against those of the
//! others.

use super::super::shapes::{labels, winners};
use super::parts::{NoPicture, none, thinned, time_unit};
use crate::chart::{Chart, Look, Mark, Panel, Scale, ScaleKind, Series};
use crate::units::{count, time};
use analysis::questions::stat::shapes::{ShapedOp, Shapes};

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
    let names = labels(found);
    let mut pairs: Vec<Pair<'_>> = Vec::new();
    let mut without = 0;
    for row in &found.rows {
        let mut cells = row.cells.iter().enumerate();
        let Some((_, Some(first))) = cells.next() else {
            without += 1;
            continue;
        };
        let pair = |(other, cell): (usize, &Option<analysis::questions::stat::shapes::Ran>)| {
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
    let sizes = by_size(found, &names, most);
    if sizes.is_some() {
        notes.extend(winners(found, &names));
    }
    if without > 0 {
        notes.push(format!("{} did not run on {first} and are not drawn.", count(without, "more shape")));
    }
    if drawn.len() < pairs.len() {
        notes.push(format!("{} are drawn.", count(drawn.len() as u64, "shape")));
    }
    Ok(Chart {
        title: format!("The same shapes on {first} and {other}, {phase}"),
        about: "Each point is an op with its types and dimensions: its median time. Above: multiplications by the size of their \
                matrix; below: all ops, one place against another."
            .into(),
        panels: sizes.into_iter().chain([Panel {
            x: Scale::new(format!("time on {first} ({unit})"), ScaleKind::Log),
            y: Scale::new(format!("time on {other} ({unit})"), ScaleKind::Log),
            series,
            height: 300.0,
        }]).collect(),
        notes,
    })
}

/// Time of the multiplications in each place against the elements of their matrix; `None` if no size is known.
fn by_size(found: &Shapes, names: &[String], most: usize) -> Option<Panel> {
    let rows: Vec<(&ShapedOp, f64)> =
        found.products().filter_map(|r| Some((r, r.elements? as f64))).collect();
    let rows: Vec<&(&ShapedOp, f64)> = thinned(&rows, most / names.len().max(1)).collect();
    let slowest =
        rows.iter().flat_map(|(r, _)| r.cells.iter().flatten()).map(|c| c.median_ns).fold(0.0, f64::max);
    let (unit, each) = time_unit(slowest);
    let mut series = Vec::new();
    for (i, name) in names.iter().enumerate() {
        let of = |(r, size): &&(&ShapedOp, f64)| {
            let cell = (*r.cells.get(i)?)?;
            let about = format!("{} {}\n{name}: {}", r.op, r.form, time(cell.median_ns));
            Some(Mark { x: size / 1e6, y: cell.median_ns / each, about })
        };
        let points: Vec<Mark> = rows.iter().copied().filter_map(|row| of(&row)).collect();
        if !points.is_empty() {
            series.push(Series { name: name.clone(), look: Look::Kind(i), points, ..Series::default() });
        }
    }
    (!series.is_empty()).then(|| Panel {
        x: Scale::new("elements of the matrix (million)", ScaleKind::Log),
        y: Scale::new(format!("time ({unit})"), ScaleKind::Log),
        series,
        height: 240.0,
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
