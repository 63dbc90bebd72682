//! What a device executed, as tables.

use super::{ROWS, more};
use crate::section::Section;
use crate::table::{Table, number, text};
use crate::units::*;
use analysis::kernels::{DeviceTimes, KernelSum};

/// The tables of one backend. Figures are per scheduler graph.
pub fn sections(backend: &str, device: &DeviceTimes, phase: &str, per: &impl Fn(u64) -> f64) -> Vec<Section> {
    let mut ops = Table::new(columns("op"));
    for r in device.ops.iter().take(ROWS) {
        ops.row(row(&r.sum, r.ops.clone(), device, per));
    }
    let mut by_kernel = Table::new(columns("kernel"));
    for r in device.by_kernel.iter().take(ROWS) {
        by_kernel.row(row(&r.sum, r.name.clone(), device, per));
    }
    let title = format!("Executed on {backend}, {phase} (per graph; time on the device, {})", device.source);
    let notes = more(device.ops.len()).into_iter().chain(notes(device, per)).collect();
    let executed = Section { title, table: Some(ops), notes };
    // Timestamps of nodes are not of single kernels.
    if device.by_kernel.is_empty() {
        return vec![executed];
    }
    let title = format!("Kernels on {backend}, {phase} (per graph)");
    let notes = more(device.by_kernel.len()).into_iter().collect();
    vec![executed, Section { title, table: Some(by_kernel), notes }]
}

/// How busy the device was, and what is not known.
fn notes(device: &DeviceTimes, per: &impl Fn(u64) -> f64) -> Vec<String> {
    let busy = us(per(device.busy_ns));
    let busy = match device.idle_ns {
        Some(idle) => {
            let span = device.busy_ns.saturating_add(idle).max(1) as f64;
            let share = pct(idle as f64 / span);
            format!("device busy {busy} us, idle between kernels {} us ({share} %)", us(per(idle)))
        }
        None => format!("device busy {busy} us, with what it waited between nodes, which is not known apart"),
    };
    let without = (device.groups_without > 0).then(|| {
        let (n, all) = (device.groups_without, device.groups);
        format!(
            "{n} of {all} groups of nodes have no kernel here: they are no kernel (a copy), or their times were not \
             handed over"
        )
    });
    let error = us(device.error_ns as f64);
    let clock = format!("the device's clock is known to {error} us; durations are its own");
    [busy].into_iter().chain(without).chain([clock]).collect()
}

fn columns(last: &'static str) -> Vec<crate::table::Column> {
    let numbers = ["%", "us", "kernels", "us/kernel", "idle before us", "queued us"];
    numbers.into_iter().map(|name| number(name, 0)).chain([text(last)]).collect()
}

fn row(sum: &KernelSum, name: String, device: &DeviceTimes, per: &impl Fn(u64) -> f64) -> Vec<String> {
    let all: u64 = device.ops.iter().map(|r| r.sum.device_ns).sum();
    let each = |ns: u64| us(ns as f64 / sum.kernels.max(1) as f64);
    vec![
        pct(sum.device_ns as f64 / all.max(1) as f64),
        us(per(sum.device_ns)),
        format!("{:.1}", per(sum.kernels)),
        each(sum.device_ns),
        or_dash(sum.idle_before_ns, |ns| us(per(ns))),
        or_dash(sum.queued_ns, each),
        name,
    ]
}
