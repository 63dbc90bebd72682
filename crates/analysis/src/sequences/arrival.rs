//! When a server took in each request: by its own numbers of requests, and the slot that its first result names.

use std::collections::HashMap;

use super::data::SeqRequest;
use common::order;
use pfi::record::ServerTask;

/// Fills in when the requests arrived. That of a result is the last one of its sequence that began before the result, and
/// after the arrival.
pub fn attach(tasks: &[ServerTask], requests: &mut [SeqRequest]) {
    let mut arrived: HashMap<(u32, i64), i64> = HashMap::new();
    let mut by_sequence: HashMap<(u32, i64), Vec<usize>> = HashMap::new();
    for (i, r) in requests.iter().enumerate() {
        by_sequence.entry((r.pid, r.seq)).or_default().push(i);
    }
    let mut sorted: Vec<&ServerTask> = tasks.iter().collect();
    order::by_key(&mut sorted, |t| (order::time(t.t), 0));
    for task in sorted {
        let Some(seq) = task.seq else {
            arrived.insert((task.pid, task.task), task.t);
            continue;
        };
        let Some(from) = arrived.remove(&(task.pid, task.task)) else { continue };
        let of_sequence = by_sequence.get(&(task.pid, seq as i64)).map(Vec::as_slice).unwrap_or_default();
        let within = |r: &SeqRequest| r.start >= from && r.start <= task.t && r.arrived.is_none();
        let found = of_sequence.iter().rev().find(|i| requests.get(**i).is_some_and(within));
        if let Some(request) = found.and_then(|i| requests.get_mut(*i)) {
            request.arrived = Some(from);
        }
    }
}
