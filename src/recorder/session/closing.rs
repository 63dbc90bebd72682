//! A recording that attaches to nothing more: when this applies, and what happens to processes for which something
//! would have to be attached.

use std::io::ErrorKind;

use super::{MAX_ENGINES, Session};
use crate::capture::backend::CaptureBackend;
use crate::capture::error::RecordError;
use crate::capture::pmc::Counters;
use crate::recorder::recording::SessionObserver;
use crate::recorder::verify;
use engine::discover::{DiscoverError, DiscoveredEngine};
use pfi::record::Detail;

impl Session {
    /// Reports once, when the level is fixed and the probes of all engines have proved correct, that nothing
    /// remains to be attached. Perf events are not considered: those of the scheduler come and go with threads.
    pub(super) fn close(&mut self, watch: &mut dyn SessionObserver) {
        let fixed = self.managed
            && self.launched.is_none()
            && self.qos.is_none()
            && !self.options.calibrated_later
            && self.backend == CaptureBackend::Bpf;
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

    /// Whether an engine, with position `known` if it is not new, would need attaching when nothing more may be
    /// attached.
    pub(super) fn has_no_room_for(&self, engine: &DiscoveredEngine, known: Option<usize>) -> bool {
        match known.and_then(|i| self.engines.get(i)) {
            Some(a) => self.closed && engine.modules.iter().any(|m| !a.has((m.dev, m.inode))),
            None => self.closed || self.engines.len() == MAX_ENGINES,
        }
    }

    /// Looking at a deleted file may need the privileges that were given up.
    pub(super) fn is_beyond(&self, e: &DiscoverError) -> bool {
        let denied = matches!(e, DiscoverError::Process { source, .. } if source.kind() == ErrorKind::PermissionDenied);
        self.closed && denied
    }

    /// What was done for a process; None: it cannot be recorded, and others, of a service, still are.
    pub(super) fn or_refuse<T>(
        &mut self,
        pid: u32,
        done: Result<T, RecordError>,
        watch: &mut dyn SessionObserver,
    ) -> Result<Option<T>, RecordError> {
        match done {
            Err(e) if self.managed && !matches!(e, RecordError::Write(_)) => {
                self.refuse(pid, e, watch).map(|()| None)
            }
            done => done.map(Some),
        }
    }

    /// Drops a process that cannot be recorded; its complete run, if another recorder can record it. Others are
    /// still recorded.
    pub(super) fn refuse(
        &mut self,
        pid: u32,
        why: RecordError,
        watch: &mut dyn SessionObserver,
    ) -> Result<(), RecordError> {
        if !matches!(why, RecordError::Beyond) {
            watch.tell(&format!("process {pid}: {why}"));
            return self.let_go(pid);
        }
        let (run, all) = {
            let process_tree = &self.drain.borrow().process_tree;
            let run = process_tree.run_of(pid).filter(|&run| run != 0).unwrap_or(pid);
            (run, process_tree.of(run))
        };
        watch.declined(run, all);
        self.release(run)
    }
}
