//! Verifies the ladder by its hits: what each role should have shown, what it showed, and whether its rung is
//! abandoned.

use crate::recorder::attached::AttachedEngine;
use crate::recorder::attached::callee::Candidates;
use crate::recorder::drain::Shown;
use common::order;
use engine::backends::NotProbed;
use engine::ladder::RungMethod;
use engine::probes::Role;

/// Hits of thread 0 required before the barrier is judged.
const BARRIER_SAMPLE: u64 = 16;

/// Calls or graphs after which an engine's rungs count as known.
const ENOUGH: u64 = 3;

/// How op ends are found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpEnd {
    /// By barrier if it fires and there is more than one thread to wait for.
    Auto,
    Barrier,
    Interval,
}

/// What is recorded now, of what needs more than attaching.
#[derive(Debug, Clone, Copy)]
pub struct Wanted {
    pub ops: bool,
    /// The nodes of device backends.
    pub nodes: bool,
}

/// Checks one engine's hits and moves its roles on. Returns messages for the user.
pub fn verify(a: &mut AttachedEngine, shown: &mut Shown, op_end: OpEnd, wanted: Wanted) -> Vec<String> {
    let mut told = Vec::new();
    if a.probed(Role::Op) && shown.graphs > 0 && shown.ops == 0 && shown.silent > 0 {
        leave(a, Role::Op, "attached but never hit in a complete graph", &mut told);
        shown.silent = 0;
    }
    if a.probed(Role::Split)
        && shown.scheds > 1
        && shown.splits == 0
        && a.rung(Role::Split).is_some_and(|r| r.how == RungMethod::Symbols)
    {
        leave(
            a,
            Role::Split,
            "attached but never hit in a complete graph (inlined into the scheduler)",
            &mut told,
        );
    }
    if a.wants_vtable()
        && let Some((pid, scheduler)) = shown.scheduler.take()
    {
        match a.attach_vtables(pid, scheduler) {
            Ok((n, refused)) => {
                told.push(format!(
                    "splits: {n} backend function(s) found through the scheduler of process {pid}"
                ));
                told.extend(refused.iter().map(NotProbed::to_string));
            }
            Err(why) => {
                leave(a, Role::Split, &why.to_string(), &mut told);
            }
        }
    }
    if wanted.ops {
        barrier(a, shown, op_end, &mut told);
    }
    if wanted.nodes {
        nodes(a, shown, &mut told);
    }
    shown.barrier_on = a.probed(Role::OpEnd);
    told
}

/// The function for one node of a backend without symbols: found through a live backend, and proved by its hits.
fn nodes(a: &mut AttachedEngine, shown: &Shown, told: &mut Vec<String>) {
    let name = "function for one node";
    if let Some((pid, backend, kind)) = shown.backend.filter(|_| a.wants_callees()) {
        let found = a.find_callees(pid, backend, kind);
        let why = match found {
            Ok(Candidates::Named) => None,
            Ok(Candidates::Some(n)) => Some(format!(
                "no symbol in the {kind} backend; tries {n} function(s) that its graph_compute calls"
            )),
            Ok(Candidates::None) => {
                Some(format!("no symbol in the {kind} backend, and its graph_compute calls no candidate"))
            }
            Err(why) => Some(format!("no symbol in the {kind} backend: {why}")),
        };
        told.extend(why.map(|why| format!("nodes: {name}: {why}")));
    }
    let Some(since) = a.candidate_since().filter(|since| shown.fitted <= *since) else { return };
    if shown.misfit > since {
        leave(a, Role::Node, "its arguments are not a node's", told);
    } else if shown.unhit > since {
        leave(a, Role::Node, "never hit while a graph was enqueued", told);
    }
}

fn barrier(a: &mut AttachedEngine, shown: &mut Shown, op_end: OpEnd, told: &mut Vec<String>) {
    if !on_barrier(a) || shown.graphs == 0 {
        return;
    }
    if shown.barrier_on && shown.inner >= BARRIER_SAMPLE && shown.ended * 10 < shown.inner * 9 {
        let why = format!(
            "showed {} of {} op ends of thread 0 (inlined into the node loop)",
            shown.ended, shown.inner
        );
        leave(a, Role::OpEnd, &why, told);
        return;
    }
    if op_end != OpEnd::Auto {
        return;
    }
    // A single thread never waits: the probe would only cost time.
    match (shown.threads > 1, a.probed(Role::OpEnd)) {
        (true, false) => a.attach(Role::OpEnd, 0),
        (false, true) if !a.stays => a.detach(Role::OpEnd),
        _ => {}
    }
}

/// Whether the hits have shown the rungs to be correct, so that nothing remains to be attached.
pub fn settled(a: &mut AttachedEngine, s: &Shown, ops: bool) -> bool {
    let barrier = ops && on_barrier(a) && !a.probed(Role::OpEnd);
    let op = a.probed(Role::Op) && s.ops == 0;
    let by_symbols = a.rung(Role::Split).is_some_and(|r| r.how == RungMethod::Symbols);
    let split = a.probed(Role::Split) && by_symbols && s.scheds > 0 && s.splits == 0;
    let node = a.candidate_since().is_some_and(|since| s.fitted <= since);
    s.tokens.max(s.graphs) >= ENOUGH && !(barrier || op || split || node || a.wants_vtable() || a.leaving())
}

fn on_barrier(a: &AttachedEngine) -> bool {
    a.rung(Role::OpEnd).is_some_and(|r| r.how == RungMethod::Symbols)
}

fn leave(a: &mut AttachedEngine, role: Role, why: &str, told: &mut Vec<String>) {
    let from = a.rung(role).map_or("", |r| r.name);
    let more = a.leave(role, why);
    let to = a.rung(role).map_or("nothing", |r| r.name);
    told.push(format!(
        "{}: dropped {from}: {why}; {} {to}",
        role.name(),
        if more { "now using" } else { "fallback:" }
    ));
}

/// A role's line in the recording quality block: name of the rung, expected and seen hits, reason.
pub struct RoleVerdict {
    pub name: String,
    pub used: bool,
    pub expected: Option<u64>,
    pub seen: u64,
    pub why: String,
}

/// The result of a role's rung.
pub fn verdict(a: &AttachedEngine, role: Role, s: &Shown, wanted: bool) -> RoleVerdict {
    let name = a.rung(role).map_or_else(|| "none".to_owned(), |r| rung_name(a, role, r.name));
    if role == Role::OpEnd && wanted && a.rung(role).is_some() && s.inner == 0 && s.threads == 1 {
        let why = "one thread: no barrier to wait at, an op lasts until the next one or the graph's end";
        return RoleVerdict {
            name: "interval".into(),
            used: s.ops > 0,
            expected: None,
            seen: s.ops,
            why: why.into(),
        };
    }
    let (expected, seen) = match role {
        Role::Token => (None, s.tokens),
        Role::Graph => (None, s.scheds),
        Role::Split => (None, s.splits),
        Role::CpuGraph => (None, s.graphs),
        Role::Phase => (None, s.phases),
        Role::Wait => (None, s.waits),
        Role::Node => (None, s.enqueued),
        Role::Kernel => (None, s.kernels),
        Role::Dispatch => (None, s.dispatches),
        Role::Batch => (None, s.batches),
        Role::Ubatch => (None, s.ubatches),
        Role::Memory => (None, s.memory_calls),
        Role::Task => (None, s.tasks),
        Role::Op => ((s.unknown == 0 && s.expected > 0).then_some(s.expected), s.ops),
        // Every op has this kind of end, without separate hits.
        Role::OpEnd if a.rung(role).is_some_and(|r| r.how == RungMethod::Interval) => (None, s.ops),
        Role::OpEnd => ((s.inner > 0).then_some(s.inner), s.ended),
    };
    let unproved =
        role == Role::Node && s.fitted == 0 && a.rung(role).is_some_and(|r| r.how == RungMethod::Callee);
    let why = match (role, wanted, a.rung(role)) {
        (_, false, _) => "not recorded at this level".to_owned(),
        (Role::Wait, _, None) => "no device in the engine".to_owned(),
        (Role::Node, _, None) => match a.own {
            Some(own) => {
                format!("no function {} in the engine's libraries, or its symbols are stripped", own.symbol)
            }
            None => "no function of a device backend that enqueues a node is known here".to_owned(),
        },
        (Role::Node, _, Some(_)) if unproved => {
            "a function without a symbol that no hit has proved".to_owned()
        }
        (Role::Dispatch, _, None) => "no graphics runtime in the engine's process".to_owned(),
        (Role::Batch, _, None) => "no NPU runtime in the engine's process".to_owned(),
        (Role::Kernel, _, None) => "no layer in the engine's process".to_owned(),
        (_, _, None) => "no function of this kind in the engine".to_owned(),
        (Role::OpEnd, _, Some(r)) if r.how == RungMethod::Interval => {
            "an op lasts until its thread's next op or the graph's end: wall time, waiting included"
                .to_owned()
        }
        (Role::OpEnd, _, _) if seen == 0 => "attached, but it showed no op's end".to_owned(),
        (Role::OpEnd, _, _) => "ends of thread 0's ops taken from the barrier after them".to_owned(),
        (Role::Op, _, _) if s.unknown > 0 => {
            format!("node list unknown in {} of {} graphs", s.unknown, s.graphs)
        }
        (Role::Node, _, _) if seen == 0 && s.misfit > 0 => {
            "hit, but never with a graph or a node, and its index".to_owned()
        }
        (_, _, _) if seen == 0 => "attached, never hit".to_owned(),
        (_, _, _) => returns(role, s).unwrap_or_else(|| "hit".to_owned()),
    };
    RoleVerdict {
        name,
        used: wanted && seen > 0 && !unproved,
        expected: expected.filter(|_| wanted),
        seen,
        why,
    }
}

/// What is wrong with the returns of a role's calls, if anything: a few may still be running when the recording
/// ends.
fn returns(role: Role, s: &Shown) -> Option<String> {
    const UNDER_WAY: u64 = 8;
    let (entries, returns) = match role {
        Role::Token => (s.tokens, s.returns[0]),
        Role::Graph => (s.scheds, s.returns[1]),
        Role::Split => (s.splits, s.returns[2]),
        Role::CpuGraph => (s.graphs, s.returns[3]),
        Role::Op
        | Role::OpEnd
        | Role::Node
        | Role::Kernel
        | Role::Dispatch
        | Role::Batch
        | Role::Phase
        | Role::Ubatch
        | Role::Memory
        | Role::Task
        | Role::Wait => {
            return None;
        }
    };
    (returns + UNDER_WAY < entries).then(|| {
        format!("hit, but only {returns} of {entries} returns were seen: the other durations are incomplete")
    })
}

/// The functions that a rung probes, joined by `+`, each once.
fn rung_name(a: &AttachedEngine, role: Role, name: &str) -> String {
    let mut symbols: Vec<&str> =
        a.rung(role).map(|r| r.points.iter().map(|p| p.symbol).collect()).unwrap_or_default();
    order::by(&mut symbols, |a, b| a.cmp(b));
    symbols.dedup();
    if symbols.is_empty() { name.to_owned() } else { symbols.join(" + ") }
}
