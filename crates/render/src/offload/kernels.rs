//! What a device executed, as tables.

use super::{ROWS, more};
use crate::section::Section;
use crate::table::{Table, number, text};
use crate::units::*;
use analysis::sums::device_kernels::{DeviceTimes, KernelSum};

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
    let title = format!("Kernels on {backend}, {phase} (per graph)");
    let notes = more(device.by_kernel.len()).into_iter().collect();
    vec![executed, Section { title, table: Some(by_kernel), notes }]
}

/// How busy the device was, and what is not known.
fn notes(device: &DeviceTimes, per: &impl Fn(u64) -> f64) -> Vec<String> {
    let (busy, idle) = (device.busy_ns, device.idle_ns);
    let share = pct(idle as f64 / busy.saturating_add(idle).max(1) as f64);
    let busy =
        format!("device busy {} us, idle between kernels {} us ({share} %)", us(per(busy)), us(per(idle)));
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
    let numbers = ["%", "us", "kernels", "us/kernel", "idle before us", "queued us", "submitted us"];
    numbers.into_iter().map(|name| number(name, 0)).chain([text(last)]).collect()
}

fn row(sum: &KernelSum, name: String, device: &DeviceTimes, per: &impl Fn(u64) -> f64) -> Vec<String> {
    let all: u64 = device.ops.iter().map(|r| r.sum.device_ns).sum();
    let each = |ns: u64| us(ns as f64 / sum.kernels.max(1) as f64);
    let known = Some(sum.queued_kernels).filter(|n| *n > 0);
    let of_known = |ns: u64| or_dash(known, |n| us(ns as f64 / n as f64));
    vec![
        pct(sum.device_ns as f64 / all.max(1) as f64),
        us(per(sum.device_ns)),
        format!("{:.1}", per(sum.kernels)),
        each(sum.device_ns),
        us(per(sum.idle_before_ns)),
        of_known(sum.queued_ns),
        of_known(sum.submitted_ns),
        name,
    ]
}
