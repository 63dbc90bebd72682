//! What the CPU computes in graphs with work on a device, why, and what the crossing costs, as tables.

use super::{ROWS, more};
use crate::section::Section;
use crate::table::{Table, number, text};
use crate::units::*;
use analysis::sums::offload::{CpuNodes, Crossing, Offload};

/// The tables of one phase. Figures are per scheduler graph.
pub fn sections(work: &Offload, phase: &str, per: &impl Fn(u64) -> f64) -> Vec<Section> {
    let nodes = nodes(&work.on_cpu, phase, per);
    let splits = splits(&work.crossings, phase, per);
    nodes.into_iter().chain(splits).collect()
}

fn nodes(rows: &[CpuNodes], phase: &str, per: &impl Fn(u64) -> f64) -> Option<Section> {
    let mut t = Table::new(vec![
        number("nodes", 0),
        number("us", 0),
        number("KiB in", 0),
        number("KiB out", 0),
        text("op"),
        text("types"),
        text("such as"),
        text("why"),
    ]);
    let kib = |bytes: Option<u64>| or_dash(bytes, |n| format!("{:.2}", per(n) / 1024.0));
    for r in rows.iter().take(ROWS) {
        t.row(vec![
            format!("{:.1}", per(r.nodes)),
            or_dash(r.cpu_ns, |ns| us(per(ns))),
            kib(r.to_cpu_bytes),
            kib(r.from_cpu_bytes),
            r.op.clone(),
            r.types.clone(),
            example(r),
            r.why.clone(),
        ]);
    }
    let title =
        format!("Left to the CPU, {phase} (per graph; in, out: copied for them, and from their results)");
    let notes = more(rows.len()).into_iter().collect();
    (!rows.is_empty()).then_some(Section { title, table: Some(t), notes })
}

/// Name and dimensions of one of the nodes: `kq_soft_max-{L} 256x1x8 of 256x1x8, 256`.
fn example(r: &CpuNodes) -> String {
    let dims = |part: &str| part.split_once(' ').map_or("1", |(_, dims)| dims).to_owned();
    let (result, sources) = r.form.split_once(" of ").unwrap_or((&r.form, ""));
    let sources: Vec<String> = sources.split(", ").filter(|s| !s.is_empty()).map(dims).collect();
    let of = if sources.is_empty() { String::new() } else { format!(" of {}", sources.join(", ")) };
    let others = match r.forms {
        0 | 1 => String::new(),
        n => format!(" ({n} shapes)"),
    };
    format!("{} {}{of}{others}", r.name, dims(result))
}

fn splits(rows: &[Crossing], phase: &str, per: &impl Fn(u64) -> f64) -> Option<Section> {
    let numbers =
        ["splits", "extra", "us waiting", "us before", "us on CPU", "us after", "KiB in", "KiB out"];
    let mut t = Table::new(numbers.into_iter().map(|name| number(name, 0)).chain([text("ops")]).collect());
    let kib = |bytes: Option<u64>| or_dash(bytes, |n| format!("{:.2}", per(n) / 1024.0));
    for r in rows.iter().take(ROWS) {
        let seen = |ns: u64| if r.unseen == r.splits { "-".into() } else { us(per(ns)) };
        t.row(vec![
            format!("{:.1}", per(r.splits)),
            format!("{:.1}", per(r.extra_splits)),
            seen(r.wait_ns),
            seen(r.before_ns),
            us(per(r.cpu_ns)),
            us(per(r.after_ns)),
            kib(r.to_cpu_bytes),
            kib(r.from_cpu_bytes),
            r.ops.clone(),
        ]);
    }
    let unseen: u64 = rows.iter().map(|r| r.unseen).sum();
    let of: u64 = rows.iter().map(|r| r.splits).sum();
    let without = (unseen > 0).then(|| {
        format!("the end of the device's work before {unseen} of {} was not seen", count(of, "CPU split"))
    });
    let notes = more(rows.len()).into_iter().chain(without);
    let notes = notes.chain([
        "waiting: for the device to finish what it had; before, after: copies and the scheduler, while the device has \
         nothing to do"
            .to_owned(),
        "extra: splits that a graph has only because of these nodes".to_owned(),
    ]);
    let title = format!("Splits on the CPU beside a device, {phase} (per graph)");
    let notes = notes.collect();
    (!rows.is_empty()).then_some(Section { title, table: Some(t), notes })
}
