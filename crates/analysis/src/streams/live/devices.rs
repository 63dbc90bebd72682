//! What devices did: their splits, and their kernels or submissions where these are recorded.

use serde::Serialize;

use super::sums::Combine;
use crate::recorded::labels::share;
use ggml::backend_guid;
use pfi::record::{Backend, Device, DeviceKernels, Split, Submissions};
use pfi::{kernel_times, submissions};

/// Maximum number of device backends with separate figures; those of others are not shown.
const DEVICES: usize = 8;
/// Backends whose names are kept.
const BACKENDS: usize = 64;

/// A device backend, over a time range.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct LiveDevice {
    pub backend: String,
    pub splits: u64,
    /// From the splits' start until the device had finished, and the part of it after the engine's call returned; without
    /// splits whose end was not seen.
    pub split_ns: u64,
    pub waited_ns: u64,
    /// The same as shares of the time in calls.
    pub share: f64,
    pub waited_share: f64,
    /// Splits whose end was not seen.
    pub unseen: u64,
    /// Time in which the device worked, as a share of the time in calls, and where it comes from. Null if it was not
    /// recorded, or if there are several devices.
    pub busy_share: Option<f64>,
    pub busy_source: Option<&'static str>,
}

#[derive(Clone, Copy, Default)]
struct DeviceSum {
    splits: u64,
    ns: u64,
    waited: u64,
    unseen: u64,
}

/// Sums of one process.
#[derive(Clone, Default)]
pub struct DeviceSums {
    /// By number of the device.
    splits: Vec<DeviceSum>,
    /// By kernels, and by submissions.
    busy: [u64; 2],
    /// Up to here work is counted; it counts once if it overlaps.
    until: [u64; 2],
}

impl DeviceSums {
    pub fn combine(&mut self, o: &DeviceSums, f: Combine) {
        if self.splits.len() < o.splits.len() {
            self.splits.resize(o.splits.len(), DeviceSum::default());
        }
        for (a, b) in self.splits.iter_mut().zip(&o.splits) {
            *a = DeviceSum {
                splits: f(a.splits, b.splits),
                ns: f(a.ns, b.ns),
                waited: f(a.waited, b.waited),
                unseen: f(a.unseen, b.unseen),
            };
        }
        for (a, b) in self.busy.iter_mut().zip(o.busy) {
            *a = f(*a, b);
        }
    }

    fn work(&mut self, source: usize, from: u64, to: u64) {
        let (Some(until), Some(busy)) = (self.until.get_mut(source), self.busy.get_mut(source)) else {
            return;
        };
        *busy = busy.saturating_add(to.saturating_sub(from.max(*until)));
        *until = to.max(*until);
    }

    pub fn split(&mut self, at: usize, s: &Split) {
        if self.splits.len() <= at {
            self.splits.resize(at + 1, DeviceSum::default());
        }
        let Some(sum) = self.splits.get_mut(at) else { return };
        sum.splits += 1;
        if s.cut || s.device == Device::Unseen {
            sum.unseen += 1;
        } else {
            sum.ns = sum.ns.saturating_add(s.dur);
            sum.waited = sum.waited.saturating_add(s.device.waited());
        }
    }

    pub fn kernels(&mut self, of: &DeviceKernels<'_>) {
        kernel_times(of).for_each(|k| self.work(0, k.started, k.ended));
    }

    pub fn submission(&mut self, from: u64, to: u64) {
        self.work(1, from, to);
    }
}

/// The devices of a recording.
#[derive(Default)]
pub struct Devices {
    /// Of each backend, its number among the devices; `None` for the CPU's.
    backends: Vec<(u32, Option<usize>)>,
    names: Vec<String>,
}

impl Devices {
    pub fn define(&mut self, b: &Backend<'_>) {
        if self.backends.len() >= BACKENDS || self.backends.iter().any(|(id, _)| *id == b.id) {
            return;
        }
        let device = backend_guid::is_device(&b.guid);
        let name = if b.name.is_empty() { backend_guid::name(&b.guid).unwrap_or_default() } else { b.name };
        let at = self.names.iter().position(|n| n == name).or_else(|| {
            (device && self.names.len() < DEVICES).then(|| {
                self.names.push(name.to_owned());
                self.names.len() - 1
            })
        });
        self.backends.push((b.id, at.filter(|_| device)));
    }

    /// The number of a backend among the devices.
    pub fn number(&self, backend: u32) -> Option<usize> {
        self.backends.iter().find(|(id, _)| *id == backend)?.1
    }

    /// Whether this one has the name of a backend that is done when it returns: its time is not that of a device.
    pub fn is_host(&self, number: usize) -> bool {
        self.names.get(number).is_some_and(|name| backend_guid::is_host(name))
    }

    /// The devices with splits, of a process whose calls took so long.
    pub fn rows(&self, sums: &DeviceSums, in_calls: u64) -> Vec<LiveDevice> {
        let there = || self.names.iter().zip(&sums.splits).filter(|(_, s)| s.splits > 0);
        let one = there().count() == 1;
        let sources = ["kernels", "submissions"];
        let busy = sources.iter().zip(sums.busy).find(|(_, ns)| one && *ns > 0);
        let row = |(name, s): (&String, &DeviceSum)| LiveDevice {
            backend: name.clone(),
            splits: s.splits,
            split_ns: s.ns,
            waited_ns: s.waited,
            share: share(s.ns, in_calls),
            waited_share: share(s.waited, in_calls),
            unseen: s.unseen,
            busy_share: busy.map(|(_, ns)| share(ns, in_calls)),
            busy_source: busy.map(|(source, _)| *source),
        };
        there().map(row).collect()
    }
}

/// The submissions of a record, by process: start and end, where both are known.
pub fn submitted(of: &Submissions<'_>) -> impl Iterator<Item = (u32, u64, u64)> {
    submissions(of).filter_map(|s| Some((s.pid, s.started.or(s.run)?, s.end)))
}
