//! Time, memory traffic and waiting against the number of threads, one point for each recording.

use super::super::scaling::notes;
use super::parts::{NoPicture, time_unit};
use crate::chart::{Chart, Look, Mark, Panel, Scale, ScaleKind, Series};
use crate::units::{bytes, count, pct, time};
use analysis::questions::stat::scaling::{Scaling, ScalingRow, TrafficSource, WaitSource};
use analysis::questions::stat::work::MatmulWork;

pub fn threads(found: &Scaling, phase: &str) -> Result<Chart, NoPicture> {
    let mut numbers: Vec<u32> = found.runs.iter().map(|r| r.threads).collect();
    numbers.dedup();
    if let [] | [_] = &*numbers {
        let n = count(numbers.first().copied().unwrap_or(0).into(), "thread");
        return Err(NoPicture(format!(
            "all recordings have {n}: record the same work with other numbers of threads (-t) and add them with --beside"
        )));
    }
    let high = found.runs.iter().map(|r| r.call_ns).fold(0.0, f64::max);
    let (unit, each) = time_unit(high);
    let mut panels = vec![panel(found, (format!("time per call ({unit})"), "time of a call", 0), |r| {
        Some((r.call_ns / each, time(r.call_ns)))
    })];
    let rate = |gb: Option<f64>| gb.map(|gb| (gb, format!("{gb:.3} GB/s")));
    let counter = found.runs.first().and_then(|r| r.counter.clone()).unwrap_or_default();
    match found.traffic {
        TrafficSource::Counted => {
            let name = format!("memory traffic, counted by {counter}");
            let told = ("traffic (GB/s), counted".into(), &*name, 1);
            panels.push(panel(found, told, |r| rate(r.counted_gb_per_s)));
        }
        TrafficSource::CostModel => {
            let told =
                ("traffic (GB/s), cost model".into(), "bytes of the cost model over the time of a call", 1);
            panels.push(panel(found, told, |r| rate(r.model_gb_per_s)));
        }
        TrafficSource::None => {}
    }
    let share = |s: Option<f64>| s.map(|s| (s * 100.0, format!("{} %", pct(s))));
    match found.waiting {
        WaitSource::StalledCycles => {
            let told = ("stalled cycles (%)".into(), "cycles in which the back end was stalled", 2);
            panels.push(panel(found, told, |r| share(r.stalled_share)));
        }
        WaitSource::Barriers => {
            let told = ("time at barriers (%)".into(), "threads waiting for one another at barriers", 2);
            panels.push(panel(found, told, |r| share(r.barrier_share)));
        }
        WaitSource::None => {}
    }
    panels.extend(products(found));
    Ok(Chart {
        title: format!("Memory traffic and waiting by number of threads, {phase}"),
        about: format!("Each point is a recording; {} in all.", count(found.runs.len() as u64, "recording")),
        panels,
        notes: notes(found).iter().map(|n| sentence(n)).collect(),
    })
}

/// Time of each multiplication against its bytes: one kind of mark for each number of threads.
fn products(found: &Scaling) -> Option<Panel> {
    let known = |r: &&MatmulWork| r.bytes > 0.0 && r.ns > 0.0;
    let all = found.runs.iter().filter_map(|r| r.products.as_ref()).flat_map(|p| &p.rows);
    let high = all.map(|r| r.ns).fold(0.0, f64::max);
    let (unit, each) = time_unit(high);
    let mark = |r: &MatmulWork, run: &ScalingRow| {
        let about = format!(
            "{}\n{}\n{}, {}: {}, {}",
            r.name,
            r.form,
            run.file,
            count(run.threads.into(), "thread"),
            time(r.ns),
            bytes(r.bytes)
        );
        Mark { x: r.bytes / 1e6, y: r.ns / each, about }
    };
    let series = |(kind, run): (usize, &ScalingRow)| {
        let all = run.products.as_ref()?;
        let points: Vec<Mark> = all.rows.iter().filter(known).map(|r| mark(r, run)).collect();
        let rate = all.bytes.and_then(|f| f.giga_per_s);
        let rate = rate.map_or_else(String::new, |g| format!(": {g:.2} GB/s"));
        let name = format!("multiplications, {}{rate}", count(run.threads.into(), "thread"));
        (!points.is_empty()).then(|| Series { name, look: Look::Kind(kind), points, ..Series::default() })
    };
    let series: Vec<Series> = found.runs.iter().enumerate().filter_map(series).collect();
    (!series.is_empty()).then(|| Panel {
        x: Scale::new("bytes of one execution, cost model (MB)", ScaleKind::Log),
        y: Scale::new(format!("time of one execution ({unit})"), ScaleKind::Log),
        series,
        height: 260.0,
    })
}

fn sentence(note: &str) -> String {
    let mut letters = note.chars();
    let first = letters.next().map(|c| c.to_ascii_uppercase());
    first.into_iter().chain(letters).chain(['.']).collect()
}

fn panel(
    found: &Scaling,
    (axis, name, kind): (String, &str, usize),
    value: impl Fn(&ScalingRow) -> Option<(f64, String)>,
) -> Panel {
    let of = |r: &ScalingRow| {
        let (y, shown) = value(r)?;
        let about =
            format!("{}: {shown}\n{}, {}", count(r.threads.into(), "thread"), r.file, count(r.calls, "call"));
        Some(Mark { x: r.threads.into(), y, about })
    };
    let points: Vec<Mark> = found.runs.iter().filter_map(of).collect();
    // Through the mean of the recordings with the same number of threads.
    let line = points.chunk_by(|a, b| a.x == b.x).filter_map(|same| {
        let x = same.first()?.x;
        Some((x, same.iter().map(|p| p.y).sum::<f64>() / same.len() as f64))
    });
    let line = line.collect();
    Panel {
        x: Scale::new("threads (number)", ScaleKind::Each),
        y: Scale::new(axis, ScaleKind::Zero),
        series: vec![Series {
            name: name.to_owned(),
            look: Look::Kind(kind),
            points,
            line,
            line_about: format!("{name}: mean of the recordings"),
            ..Series::default()
        }],
        height: 150.0,
    }
}
