//! Time of a layer's expert multiplications against how long ago it used the token's experts, token by token.

use super::parts::{sampled, time_unit};
use crate::chart::{Chart, Look, Mark, Panel, Scale, ScaleKind, Series};
use crate::units::{count, time};
use analysis::questions::stat::reuse::{ReusePoint, ReuseTimes};

/// If the slowest takes this many times the mean, the axis of time is logarithmic.
const FAR: f64 = 8.0;
/// Least number of major page faults of each colour, and its name.
const FAULTS: [(u64, &str); 3] =
    [(0, "no major page fault"), (1, "1 to 9 major page faults"), (10, "10 or more major page faults")];

pub fn reuse(found: &ReuseTimes, most: usize) -> Chart {
    let drawn = thinned(&found.points, most);
    let counted = drawn.iter().any(|p| p.major_faults.is_some());
    let slowest = drawn.iter().map(|p| p.ns).fold(0.0, f64::max);
    let fastest = drawn.iter().map(|p| p.ns).fold(f64::INFINITY, f64::min);
    let farthest = drawn.iter().filter_map(|p| p.distance).fold(1.0, f64::max);
    let far = slowest > FAR * found.mean_ns;
    let (unit, each) = time_unit(if far { found.mean_ns } else { slowest });
    let group = |p: &ReusePoint| {
        let n = p.major_faults?;
        FAULTS.iter().rposition(|(least, _)| n >= *least)
    };
    let of = |wanted: Option<usize>| -> Vec<Mark> {
        drawn.iter().filter(|p| group(p) == wanted).map(|p| mark(p, each)).collect()
    };
    let unknown = if counted { "page faults not counted" } else { "one layer and token" };
    let kinds = FAULTS.iter().enumerate().map(|(i, (_, name))| (Some(i), *name)).chain([(None, unknown)]);
    let mut series: Vec<Series> = kinds
        .zip([0, 1, 6, 3])
        .map(|((kind, name), colour)| Series {
            name: name.into(),
            look: Look::Kind(if kind.is_none() && !counted { 0 } else { colour }),
            points: of(kind),
            ..Series::default()
        })
        .filter(|s| !s.points.is_empty())
        .collect();
    let mut notes = Vec::new();
    match &found.line {
        Some(l) => {
            // A logarithmic axis would follow a falling line down to nothing.
            let slope = format!("{} per token since the last use", slope(l.ns_per_token));
            let about = format!(
                "{slope} (95 %: {} to {}), R2 {:.3}",
                self::slope(l.interval[0]),
                self::slope(l.interval[1]),
                l.r2
            );
            series.push(Series {
                name: format!("fitted line: {slope}"),
                line: sampled(1.0, farthest, |x| (l.at_zero_ns + l.ns_per_token * x) / each)
                    .into_iter()
                    .filter(|(_, y)| !far || *y >= fastest / each / 2.0)
                    .collect(),
                line_about: about.clone(),
                ..Series::default()
            });
            let rises = if l.rises { "a miss costs time" } else { "no significant cost of a miss" };
            notes.push(format!(
                "The line is fitted within the layers and drawn for their mean: {about}: {rises}."
            ));
        }
        None => notes.push("The distance barely changes, so there is no fitted line.".into()),
    }
    if !counted {
        notes.push("Page faults were not counted (record --faults), so the points have one colour.".into());
    }
    let left_out = found.n.saturating_sub(drawn.len() as u64);
    if left_out > 0 {
        notes.push(format!(
            "{} of {} are drawn: those of evenly chosen tokens.",
            count(drawn.len() as u64, "point"),
            found.n
        ));
    }
    let mut x = Scale::new("time since the layer last used these experts (tokens, mean)", ScaleKind::Log);
    x.beyond = drawn.iter().any(|p| p.distance.is_none()).then_some("first use");
    Chart {
        title: "Expert time by reuse distance, decode".into(),
        about: format!(
            "Each point is one layer and one token: the time of its MUL_MAT_ID against the number of tokens since the layer \
             last used the same experts. {}, mean {}.",
            count(found.layers, "layer"),
            time(found.mean_ns)
        ),
        panels: vec![Panel {
            x,
            y: Scale::new(
                format!("time of a layer's experts ({unit})"),
                if far { ScaleKind::Log } else { ScaleKind::Zero },
            ),
            series,
            height: 340.0,
        }],
        notes,
    }
}

/// All layers of evenly chosen tokens, at most about `most` points.
fn thinned(points: &[ReusePoint], most: usize) -> Vec<&ReusePoint> {
    let mut each = 1u64;
    let kept = |each: u64| points.iter().filter(move |p| p.token.is_multiple_of(each));
    while kept(each).count() > most && each < 1 << 32 {
        each *= 2;
    }
    kept(each).collect()
}

fn slope(ns: f64) -> String {
    if ns.abs() < 1e3 { format!("{ns:+.1} ns") } else { time(ns) }
}

fn mark(p: &ReusePoint, each: f64) -> Mark {
    Mark { x: p.distance.unwrap_or(f64::INFINITY), y: p.ns / each, about: about(p) }
}

/// Tooltip of a token in a layer.
pub fn about(p: &ReusePoint) -> String {
    let since = match p.distance {
        Some(d) => format!("{d:.2} tokens since the last use"),
        None => "an expert that the layer has not used before".into(),
    };
    let faults = p.major_faults.map_or_else(String::new, |n| format!("\n{}", count(n, "major page fault")));
    format!("token {}, layer {}: {}\n{since}{faults}", p.token, p.layer, time(p.ns))
}
