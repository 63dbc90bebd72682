//! Caches of experts as a picture: hit rates over slots for each policy, and the hits and misses of one layer over the tokens.

use super::chart::{Chart, Look, Mark, Panel, Scale, ScaleKind, Series};
use super::units::{count, pct};
use analysis::questions::experts::raster::Raster;
use analysis::questions::experts::{ExpertCacheRow, ExpertCaches};

/// The picture.
pub fn chart(found: &ExpertCaches) -> Chart {
    let mut panels = vec![rates(found)];
    if found.caches.iter().any(|r| r.tokens_per_s.is_some()) {
        panels.push(speeds(found));
    }
    let mut notes = vec![
        "optimum: what no cache exceeds that reads an expert when it is needed; pin: the experts of one half of the recording, \
         kept for the other, or those of a list."
            .to_owned(),
    ];
    if let Some(raster) = &found.raster {
        panels.push(strokes(raster));
        notes.push(format!(
            "Map: the experts of layer {} for each token of decode; {}.",
            raster.layer, raster.of
        ));
    }
    Chart {
        title: "Caches of experts, decode".into(),
        about: format!(
            "{} of {}, {} per token, over {}.",
            count(found.layers, "layer"),
            count(found.experts, "expert"),
            found.used,
            count(found.tokens, "token")
        ),
        panels,
        notes,
    }
}

fn rows<'f>(found: &'f ExpertCaches, policy: &'f str) -> impl Iterator<Item = &'f ExpertCacheRow> {
    found.caches.iter().filter(move |r| r.policy == policy)
}

fn rates(found: &ExpertCaches) -> Panel {
    let mut series: Vec<Series> = (found.policies.iter().enumerate())
        .map(|(kind, policy)| {
            let points = rows(found, policy).filter_map(|r| {
                let rate = r.hit_rate?;
                let about = format!("{policy}, {} per layer: {} %", count(r.slots.into(), "slot"), pct(rate));
                Some(Mark { x: f64::from(r.slots), y: rate * 100.0, about })
            });
            of(policy, kind, points.collect())
        })
        .collect();
    if let Some(rate) = found.reads.as_ref().and_then(|reads| reads.hit_rate) {
        let last = found.caches.iter().map(|r| r.slots).max().unwrap_or(1);
        series.push(Series {
            name: "as it was".into(),
            line: vec![(0.0, rate * 100.0), (f64::from(last), rate * 100.0)],
            line_about: format!("as it was: {} % of the needed experts were in memory", pct(rate)),
            ..Series::default()
        });
    }
    Panel {
        x: Scale::new("slots per layer (number)", ScaleKind::Zero),
        y: Scale::new("hits (%)", ScaleKind::Zero),
        series,
        height: 240.0,
    }
}

fn speeds(found: &ExpertCaches) -> Panel {
    let series = found.policies.iter().enumerate().map(|(kind, policy)| {
        let points = rows(found, policy).filter_map(|r| {
            let [least, most] = r.tokens_per_s?;
            let about = format!(
                "{policy}, {} per layer: {least:.2} to {most:.2} tok/s",
                count(r.slots.into(), "slot")
            );
            Some(Mark { x: f64::from(r.slots), y: least, about })
        });
        of(policy, kind, points.collect())
    });
    Panel {
        x: Scale::new("slots per layer (number)", ScaleKind::Zero),
        y: Scale::new("tok/s, at least", ScaleKind::Zero),
        series: series.collect(),
        height: 160.0,
    }
}

fn of(policy: &str, kind: usize, points: Vec<Mark>) -> Series {
    let line = points.iter().map(|p| (p.x, p.y)).collect();
    Series { name: policy.to_owned(), look: Look::Kind(kind), points, line, ..Series::default() }
}

fn strokes(raster: &Raster) -> Panel {
    let of = |name: &str, look, places: &[(u64, u16)]| Series {
        name: name.to_owned(),
        look,
        strokes: places
            .iter()
            .map(|(token, expert)| [*token as f64, *token as f64 + 1.0, f64::from(*expert)])
            .collect(),
        ..Series::default()
    };
    Panel {
        x: Scale::new("token (number)", ScaleKind::Zero),
        y: Scale::new("expert (number)", ScaleKind::Zero),
        series: vec![
            of("in memory", Look::Reference, &raster.hits),
            of("read", Look::Kind(1), &raster.misses),
        ],
        height: 260.0,
    }
}
