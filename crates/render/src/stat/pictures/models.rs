//! Time of the matrix multiplications of several recordings against their bytes.

use super::super::models::notes;
use super::parts::{NoPicture, none, sampled, tensor, thinned, time_unit};
use crate::chart::{Chart, Look, Mark, Panel, Scale, ScaleKind, Series};
use crate::units::{bytes, count, time};
use analysis::questions::stat::work::{MatmulWork, ModelProducts};

pub fn models(found: &[ModelProducts], phase: &str, most: usize) -> Result<Chart, NoPicture> {
    let known = |r: &&MatmulWork| r.bytes > 0.0 && r.ns > 0.0;
    let all = || found.iter().flat_map(|m| &m.products.rows).filter(known);
    if all().next().is_none() {
        return none("the cost model knows the bytes of no matrix multiplication: record without --no-str");
    }
    let (unit, each) = time_unit(all().map(|r| r.ns).fold(0.0, f64::max));
    let mut series = Vec::new();
    for (kind, m) in found.iter().enumerate() {
        let rows: Vec<&MatmulWork> = m.products.rows.iter().filter(known).collect();
        let drawn: Vec<&MatmulWork> = thinned(&rows, most / found.len().max(1)).copied().collect();
        let name = format!("{}, {}", m.file, count(m.threads.into(), "thread"));
        let ends = |of: fn(f64, f64) -> f64, from| rows.iter().map(|r| r.bytes).fold(from, of);
        let (low, high) = (ends(f64::min, f64::INFINITY), ends(f64::max, 0.0));
        let (line, rate) = match &m.products.bytes {
            Some(f) => (
                sampled(low / 1e6, high / 1e6, |mb| (f.at_zero_ns + f.ns_per_unit * mb * 1e6) / each),
                f.giga_per_s.map_or_else(|| "no slope".into(), |g| format!("{g:.2} GB/s")),
            ),
            None => (Vec::new(), "too few shapes for a line".into()),
        };
        series.push(Series {
            name: format!("{name}: {rate}"),
            look: Look::Kind(kind),
            points: drawn.iter().map(|r| mark(r, &name, each)).collect(),
            line,
            line_about: format!("{name}: {rate}"),
            labels: drawn.iter().map(|r| (r.bytes / 1e6, r.ns / each, tensor(&r.name).to_owned())).collect(),
            ..Series::default()
        });
    }
    Ok(Chart {
        title: format!("Matrix multiplications of {}, {phase}", count(found.len() as u64, "recording")),
        about:
            "Each point is a multiplication: the time of one execution against its bytes by the cost model."
                .into(),
        panels: vec![Panel {
            x: Scale::new("bytes of one execution (MB)", ScaleKind::Log),
            y: Scale::new(format!("time of one execution ({unit})"), ScaleKind::Log),
            series,
            height: 400.0,
        }],
        notes: notes().iter().map(|n| (*n).to_owned()).collect(),
    })
}

fn mark(r: &MatmulWork, file: &str, each: f64) -> Mark {
    let about = format!("{}\n{}\n{file}: {}, {}", r.name, r.form, time(r.ns), bytes(r.bytes));
    Mark { x: r.bytes / 1e6, y: r.ns / each, about }
}
