//! Which layers' experts a device's memory should hold: those that take most time for their bytes. Each token needs experts of every
//! layer, and engines place the experts of a layer together.

use std::collections::BTreeMap;

use serde::Serialize;

use super::ops_with_experts;
use crate::recorded::load::Loaded;
use crate::sums::attribution::expert_ops::expert_weights;
use crate::sums::ops::OpTimes;
use common::order;
use ggml::names::fold;

/// The layers of a model with experts.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct DeviceLayers {
    /// Whose experts the device holds, and whose the CPU.
    pub on_device: Vec<u32>,
    pub on_cpu: Vec<u32>,
    /// Of the experts on the device.
    pub bytes: u64,
    /// Their share of the time of all multiplications with experts in decode, as recorded.
    pub time_share: Option<f64>,
}

/// The layers that `memory` bytes hold. None: no weights of experts are described.
pub fn of(loaded: &Loaded<'_>, times: &OpTimes, pid: u32, memory: u64) -> Option<DeviceLayers> {
    let mut layers: BTreeMap<u32, (u64, u64)> = BTreeMap::new();
    for w in expert_weights(loaded, pid) {
        let (bytes, _) = layers.entry(w.layer).or_default();
        *bytes = bytes.saturating_add(w.bytes.saturating_mul(w.experts));
    }
    for (tensor, ns) in ops_with_experts(loaded, times) {
        let layer = loaded.tensors.get(&tensor).and_then(|t| fold(&t.name).layer);
        if let Some((_, sum)) = layer.and_then(|layer| layers.get_mut(&layer)) {
            *sum = sum.saturating_add(ns);
        }
    }
    if layers.is_empty() {
        return None;
    }
    let mut by_gain: Vec<(u32, (u64, u64))> = layers.into_iter().collect();
    // Picoseconds a byte: where layers are alike, the later ones, as engines that offload the first layers' experts do.
    let gain = |bytes: u64, ns: u64| ns.saturating_mul(1000) / bytes.max(1);
    order::by_key(&mut by_gain, |(layer, (bytes, ns))| {
        (u64::MAX - gain(*bytes, *ns), u64::MAX - u64::from(*layer))
    });
    let mut found = DeviceLayers { on_device: Vec::new(), on_cpu: Vec::new(), bytes: 0, time_share: None };
    let (mut there, mut all) = (0u64, 0u64);
    for (layer, (bytes, ns)) in by_gain {
        all = all.saturating_add(ns);
        match found.bytes.checked_add(bytes).filter(|sum| *sum <= memory) {
            Some(sum) => {
                found.bytes = sum;
                there = there.saturating_add(ns);
                found.on_device.push(layer);
            }
            None => found.on_cpu.push(layer),
        }
    }
    found.on_device.sort_unstable();
    found.on_cpu.sort_unstable();
    found.time_share = (all > 0).then(|| there as f64 / all as f64);
    Some(found)
}
