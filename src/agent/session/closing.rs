//! A recording that attaches to nothing more: when that is so, and what becomes of processes for which something would have to
//! be attached. Uses what the session uses.

use std::io::ErrorKind;

use super::{MAX_ENGINES, Session};
use crate::agent::discover::{DiscoverError, Engine};
use crate::agent::pmc::Counters;
use crate::agent::recording::{RecordError, Watch};
use crate::agent::road::Road;
use crate::agent::verify;
use crate::trace::record::Detail;

impl Session {
    /// Says once, where the level is fixed and all engines' probes have shown to be the right ones, that nothing is left to be
    /// attached. Perf events are not looked at: those of the scheduler come and go with threads.
    pub(super) fn close(&mut self, watch: &mut dyn Watch) {
        let fixed = self.fed && self.qos.is_none() && self.road == Road::Bpf;
        if self.closed || !fixed || self.engines.is_empty() {
            return;
        }
        let ops = self.probed() >= Detail::Op;
        let drain = self.drain.borrow();
        let mut engines = self.engines.iter_mut().zip(&drain.shown);
        let settled = engines.all(|(a, shown)| a.prober.enters_freely() && verify::settled(a, shown, ops));
        self.closed = settled && watch.attached(self.counters.as_ref().is_some_and(Counters::follows));
        self.engines.iter_mut().for_each(|a| a.stays = self.closed);
    }

    /// Whether an engine, the one at place `known` where it is not new, would have to be attached to, and is not to be.
    pub(super) fn has_no_room_for(&self, engine: &Engine, known: Option<usize>) -> bool {
        match known.and_then(|i| self.engines.get(i)) {
            Some(a) => self.closed && engine.modules.iter().any(|m| !a.has((m.dev, m.inode))),
            None => self.closed || self.engines.len() == MAX_ENGINES,
        }
    }

    /// What was given up may be what it takes to look at a file that has lost its name.
    pub(super) fn is_beyond(&self, e: &DiscoverError) -> bool {
        let denied = matches!(e, DiscoverError::Process { source, .. } if source.kind() == ErrorKind::PermissionDenied);
        self.closed && denied
    }

    /// Lets a process go that cannot be recorded, with all of its run where another recorder can; others are recorded on.
    pub(super) fn refuse(
        &mut self,
        pid: u32,
        why: RecordError,
        watch: &mut dyn Watch,
    ) -> Result<(), RecordError> {
        if !matches!(why, RecordError::Beyond) {
            watch.tell(&format!("process {pid}: {why}"));
            return self.let_go(pid);
        }
        let (run, all) = {
            let kin = &self.drain.borrow().kin;
            let run = kin.run_of(pid).filter(|&run| run != 0).unwrap_or(pid);
            (run, kin.of(run))
        };
        watch.declined(run, all);
        self.release(run)
    }
}
