//! Kernels on a timeline by the device's own times: a track for each queue.

use std::collections::{BTreeMap, HashMap};
use std::io;

use super::{ArgValue, DeviceQueue, SPLIT, SliceArgs, TOKEN, TimelineRun, TimelineSink};
use analysis::sums::device_kernels::{self, Group, PlacedKernel};
use analysis::sums::tables::backend_name;
use common::order;

/// Draws the kernels of the selected time and process.
pub fn draw(run: &TimelineRun<'_, '_>, sink: &mut dyn TimelineSink) -> io::Result<()> {
    let select = &run.lanes.select;
    let mut queues: BTreeMap<(u32, u64), Vec<PlacedKernel<'_>>> = BTreeMap::new();
    for k in device_kernels::placed(run.loaded) {
        let t = k.times.started.cast_signed();
        if select.from <= t && t < select.to && select.pid.is_none_or(|pid| pid == k.of.pid) {
            queues.entry((k.of.pid, k.of.queue)).or_default().push(k);
        }
    }
    let calls: HashMap<u64, u64> =
        run.loaded.graphs.iter().filter_map(|graph| Some((graph.seq, graph.token?))).collect();
    for (index, ((pid, _), mut kernels)) in (0..).zip(queues) {
        order::by_key(&mut kernels, |k| (k.times.started, k.times.ended));
        let Some(first) = kernels.first() else { continue };
        let source = first.of.source;
        let name = format!("{} queue {index}", backend_name(run.loaded, first.split.backend));
        sink.queue(&DeviceQueue {
            pid,
            index,
            name: &name,
            times: device_kernels::source_name(source),
            source,
        })?;
        for k in &kernels {
            let time = (k.times.started.cast_signed(), k.times.ended.cast_signed());
            let nodes = k.group.map_or_else(String::new, |group| nodes(run, group));
            let known = run.loaded.kernel_names.get(&k.times.name).copied().filter(|name| !name.is_empty());
            // The nodes' names where the kernel has none.
            let name = known.unwrap_or(if nodes.is_empty() { "?" } else { &nodes });
            sink.kernel(time, name, &values(run, k, &nodes, &calls))?;
        }
    }
    Ok(())
}

/// The positions of a group in the list of ops.
fn members<'r>(run: &TimelineRun<'r, '_>, group: Group) -> impl Iterator<Item = usize> + Clone + use<'r> {
    let plan = run.idents.of_plan(group.plan).get(group.first as usize..).unwrap_or_default();
    plan.iter().take(group.nodes as usize).copied()
}

/// Op and tensor of each node of a group.
fn nodes(run: &TimelineRun<'_, '_>, group: Group) -> String {
    members(run, group).map(|i| run.labels.name(Some(i))).collect::<Vec<_>>().join(", ")
}

/// What is known of a kernel: its times before it started and where they come from, its place on the host, its nodes.
fn values(
    run: &TimelineRun<'_, '_>,
    k: &PlacedKernel<'_>,
    nodes: &str,
    calls: &HashMap<u64, u64>,
) -> SliceArgs {
    let t = k.times;
    let mut values = SliceArgs::from([
        ("after_enqueue_ns", ArgValue::Count(t.started.saturating_sub(t.host))),
        ("after_submit_ns", ArgValue::Count(t.started.saturating_sub(t.submitted))),
        ("clock_error_ns", ArgValue::Count(k.of.error_ns)),
        ("source", ArgValue::Text(device_kernels::source_name(k.of.source).into())),
        (SPLIT, ArgValue::Count(k.split.seq)),
    ]);
    if let Some(graph) = k.split.graph {
        values.push(("graph", ArgValue::Count(graph)));
        values.extend(calls.get(&graph).map(|call| (TOKEN, ArgValue::Count(*call))));
    }
    if let Some(group) = k.group {
        let members = members(run, group);
        let ops: Vec<&str> = members.clone().map(|i| run.idents.op(i)).collect();
        values.push(("op", ArgValue::Text(ops.join("+"))));
        let mut layers = members.map(|i| run.idents.layer(i));
        // None if its nodes are of several layers, or of none.
        let layer = layers.next().flatten().filter(|first| layers.all(|layer| layer == Some(*first)));
        values.extend(layer.map(|layer| ("layer", ArgValue::Count(layer.into()))));
        values.push(("node", ArgValue::Count(group.first.into())));
        values.push(("nodes", ArgValue::Text(nodes.into())));
    }
    values
}
