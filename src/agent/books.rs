//! The end of a recording: what each rung came to, and the books. Uses `attached`, `drain`, `source`, `usage`, `verify`.

use std::io::Write;

use super::attached::{Attached, Role};
use super::drain::{Drain, Shown};
use super::event::{KIND_NAMES, KINDS};
use super::skel::types::ev_counter;
use super::source::{Books, Count};
use super::{usage, verify};
use crate::trace::WriteError;
use crate::trace::record::{Footer, KindCount, Rung};

/// Writes the rungs left and the rungs in use, with what they showed since `base`.
pub fn rungs<W: Write>(
    drain: &mut Drain<W>,
    engines: &[Attached],
    wanted: &[Role],
    base: &[Shown],
) -> Result<(), WriteError> {
    for (id, a) in engines.iter().enumerate() {
        let engine = id as u32;
        for s in &a.stands {
            let (role, name, why) = (s.role.name(), s.rung, s.why.as_str());
            drain.enc.rung(&Rung { engine, role, name, used: s.used, expected: None, seen: 0, why })?;
        }
        let shown = drain.shown.get(id).copied().unwrap_or_default();
        let shown = shown.since(&base.get(id).copied().unwrap_or_default());
        // Phases are beside the levels: nothing is said of them where nobody asked.
        for role in Role::ALL.into_iter().rev().filter(|r| *r != Role::Phase || wanted.contains(r)) {
            let v = verify::verdict(a, role, &shown, wanted.contains(&role));
            let (role, name, why) = (role.name(), v.name.as_str(), v.why.as_str());
            drain.enc.rung(&Rung {
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

/// What a footer tells, and its texts.
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

/// What the recorder itself took, until now or since then.
#[derive(Debug, Clone, Copy, Default)]
pub struct Own {
    pub wall_ns: u64,
    /// User and system, microseconds.
    pub cpu_us: (u64, u64),
    /// Time in BPF programs, ns, and their runs.
    pub bpf: (u64, u64),
}

impl Own {
    fn since(self, then: Own) -> Own {
        let less =
            |now: (u64, u64), then: (u64, u64)| (now.0.saturating_sub(then.0), now.1.saturating_sub(then.1));
        Own {
            wall_ns: self.wall_ns.saturating_sub(then.wall_ns),
            cpu_us: less(self.cpu_us, then.cpu_us),
            bpf: less(self.bpf, then.bpf),
        }
    }
}

/// The books at some moment: those of the source, and what was received by then.
#[derive(Debug, Clone, Default)]
pub struct Standing {
    pub books: Books,
    pub received: [u64; KINDS],
    pub orphans: u64,
    pub own: Own,
}

impl Standing {
    /// The books of the source and of the drain. What came and found no room is lost.
    pub fn of<W: Write>(mut books: Books, drain: &Drain<W>, own: Own) -> Standing {
        let mut received = drain.received;
        for ((count, received), unplaced) in books.kinds.iter_mut().zip(&mut received).zip(drain.unplaced()) {
            count.lost += unplaced;
            *received -= unplaced;
        }
        Standing { books, received, orphans: drain.orphans(), own }
    }

    /// What of `then` a trace that ended there has told; what was still on its way is told by the next.
    pub fn told(mut self) -> Standing {
        for (count, received) in self.books.kinds.iter_mut().zip(self.received) {
            count.seen = received + count.lost;
        }
        self
    }

    /// The footer of a trace that tells what came since `then`. With `last` the books are whole, and close or do not; without,
    /// events are on their way that the next trace tells, and seen is what was recorded and lost.
    pub fn closing(&self, then: &Standing, end: &str, last: bool) -> Closing {
        let count = |kind, now: &Count, then: &Count, recorded: u64| {
            let lost = now.lost.saturating_sub(then.lost);
            let seen = if last { now.seen.saturating_sub(then.seen) } else { recorded + lost };
            KindCount { kind, seen, recorded, lost }
        };
        let mut kinds = Vec::new();
        for (i, kind) in KIND_NAMES.iter().enumerate() {
            let recorded = self.received[i].saturating_sub(then.received[i]);
            kinds.push(count(kind, &self.books.kinds[i], &then.books.kinds[i], recorded));
        }
        let (now, before) = (&self.books.barriers, &then.books.barriers);
        let kept = |b: &Count| b.seen.saturating_sub(b.lost);
        kinds.push(count("barrier", now, before, kept(now).saturating_sub(kept(before))));
        let own = self.own.since(then.own);
        let errors = |b: &Books| b.counters[ev_counter::CNT_READ_ERROR.0 as usize];
        let lost_cpu = self.books.lost_cpu.iter().enumerate();
        let lost_cpu =
            lost_cpu.map(|(cpu, n)| n.saturating_sub(then.books.lost_cpu.get(cpu).copied().unwrap_or(0)));
        let footer = Footer {
            end: "",
            kinds,
            lost_cpu: lost_cpu.collect(),
            orphans: self.orphans.saturating_sub(then.orphans),
            read_errors: errors(&self.books).saturating_sub(errors(&then.books)),
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
