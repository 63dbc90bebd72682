//! The end of a recording: the result of each rung, and the event statistics.

use std::io::Write;

use crate::capture::event::{KIND_NAMES, KINDS};
use crate::capture::skel::types::ev_counter;
use crate::capture::source::{Count, EventStats};
use crate::recorder::attached::AttachedEngine;
use crate::recorder::drain::{Drain, Shown};
use crate::recorder::verify;
use engine::probes::Role;
use machine::usage;
use pfi::WriteError;
use pfi::record::{Footer, KindCount, RungRecord};

/// Writes the abandoned rungs and the rungs in use, with what they showed since `base`.
pub fn rungs<W: Write>(
    drain: &mut Drain<W>,
    engines: &[AttachedEngine],
    wanted: &[Role],
    base: &[Shown],
) -> Result<(), WriteError> {
    for (id, a) in engines.iter().enumerate() {
        let engine = id as u32;
        for s in &a.stands {
            let (role, name, why) = (s.role.name(), s.rung, s.why.as_str());
            drain.enc.rung(&RungRecord { engine, role, name, used: s.used, expected: None, seen: 0, why })?;
        }
        let shown = drain.shown.get(id).copied().unwrap_or_default();
        let shown = shown.since(&base.get(id).copied().unwrap_or_default());
        // Phases are independent of the levels: leave them out where nobody asked for them. Only a device has nodes of
        // its own.
        let told = |r: &Role| match r {
            Role::Phase => wanted.contains(r),
            Role::Kernel => a.rung(Role::Kernel).is_some(),
            Role::Dispatch | Role::Batch | Role::Ubatch | Role::Memory | Role::Task => a.rung(*r).is_some(),
            Role::Node => a.own.is_some() || a.rung(Role::Wait).is_some(),
            _ => true,
        };
        for role in Role::ALL.into_iter().rev().filter(told) {
            let v = verify::verdict(a, role, &shown, wanted.contains(&role));
            let (role, name, why) = (role.name(), v.name.as_str(), v.why.as_str());
            drain.enc.rung(&RungRecord {
                engine,
                role,
                name,
                used: v.used,
                expected: v.expected,
                seen: v.seen,
                why,
            })?;
        }
    }
    Ok(())
}

/// The contents of a footer, with its texts.
pub struct Closing {
    end: String,
    footer: Footer<'static>,
}

impl Closing {
    /// As a record.
    pub fn of(&self) -> Footer<'_> {
        Footer { end: &self.end, ..self.footer.clone() }
    }
}

/// The recorder's own use of resources, until now or since an earlier moment.
#[derive(Debug, Clone, Copy, Default)]
pub struct OwnUsage {
    pub wall_ns: u64,
    /// User and system, microseconds.
    pub cpu_us: (u64, u64),
    /// Time in BPF programs, ns, and number of runs.
    pub bpf: (u64, u64),
}

impl OwnUsage {
    fn since(self, then: OwnUsage) -> OwnUsage {
        let less =
            |now: (u64, u64), then: (u64, u64)| (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1));
        OwnUsage {
            wall_ns: self.wall_ns.saturating_sub(then.wall_ns),
            cpu_us: less(self.cpu_us, then.cpu_us),
            bpf: less(self.bpf, then.bpf),
        }
    }
}

/// Event statistics at one moment: those of the source, and what was received by then.
#[derive(Debug, Clone, Default)]
pub struct StatsSnapshot {
    pub event_stats: EventStats,
    pub received: [u64; KINDS],
    pub orphans: u64,
    pub own: OwnUsage,
}

impl StatsSnapshot {
    /// Statistics of the source and of the drain. What arrived and found no room counts as lost.
    pub fn of<W: Write>(mut event_stats: EventStats, drain: &Drain<W>, own: OwnUsage) -> StatsSnapshot {
        let mut received = drain.received;
        for ((count, received), unplaced) in
            event_stats.kinds.iter_mut().zip(&mut received).zip(drain.unplaced())
        {
            count.lost += unplaced;
            *received -= unplaced;
        }
        StatsSnapshot { event_stats, received, orphans: drain.orphans(), own }
    }

    /// The part of these counts that a trace which ended here has covered; events still in flight belong to the
    /// next trace.
    pub fn told(mut self) -> StatsSnapshot {
        for (count, received) in self.event_stats.kinds.iter_mut().zip(self.received) {
            count.seen = received + count.lost;
        }
        self
    }

    /// The footer of a trace that covers the time since `then`. With `last` the counts are final, and either agree
    /// or do not. Without it, some events are still in flight and belong to the next trace, so seen = recorded +
    /// lost.
    pub fn closing(&self, then: &StatsSnapshot, end: &str, last: bool) -> Closing {
        let count = |kind, now: &Count, then: &Count, recorded: u64| {
            let lost = now.lost.saturating_sub(then.lost);
            let seen = if last { now.seen.saturating_sub(then.seen) } else { recorded + lost };
            KindCount { kind, seen, recorded, lost }
        };
        let mut kinds = Vec::new();
        for (i, kind) in KIND_NAMES.iter().enumerate() {
            let recorded = self.received[i].saturating_sub(then.received[i]);
            kinds.push(count(kind, &self.event_stats.kinds[i], &then.event_stats.kinds[i], recorded));
        }
        let (now, before) = (&self.event_stats.barriers, &then.event_stats.barriers);
        let kept = |b: &Count| b.seen.saturating_sub(b.lost);
        kinds.push(count("barrier", now, before, kept(now).saturating_sub(kept(before))));
        let own = self.own.since(then.own);
        let errors = |b: &EventStats| b.counters[ev_counter::CNT_READ_ERROR.0 as usize];
        let lost_cpu = self.event_stats.lost_cpu.iter().enumerate();
        let lost_cpu = lost_cpu
            .map(|(cpu, n)| n.saturating_sub(then.event_stats.lost_cpu.get(cpu).copied().unwrap_or(0)));
        let footer = Footer {
            end: "",
            kinds,
            lost_cpu: lost_cpu.collect(),
            orphans: self.orphans.saturating_sub(then.orphans),
            read_errors: errors(&self.event_stats).saturating_sub(errors(&then.event_stats)),
            agent_user_us: own.cpu_us.0,
            agent_sys_us: own.cpu_us.1,
            agent_peak_rss: usage::resident().peak,
            wall_ns: own.wall_ns,
            bpf_ns: own.bpf.0,
            bpf_runs: own.bpf.1,
        };
        Closing { end: end.into(), footer }
    }
}
