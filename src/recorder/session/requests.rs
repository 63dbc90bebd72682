//! Requests of a managed recording: what may have been missed, and passing on their sums.

use super::Session;
use crate::capture::skel::types::ev_kind;
use crate::recorder::recording::{RecordingProgress, SessionObserver};
use machine::usage;

impl Session {
    /// Passes on what was seen of requests since the last time.
    pub(super) fn tell_requests(&mut self, now: &RecordingProgress, watch: &mut dyn SessionObserver) {
        // The statistics take a system call for each kind of event.
        let lost = (now.lost != self.lost_before).then(|| self.lost_calls());
        self.lost_before = now.lost;
        let requests = &mut self.drain.borrow_mut().process_tree.requests;
        lost.into_iter().for_each(|lost| requests.lost(lost));
        requests.rest(usage::now(), now.call.map(|(begun, _)| begun));
        while let Some((run, tally)) = requests.take() {
            watch.requests(run, &tally);
        }
    }

    /// The recording ends: so do all requests, as far as they can be observed.
    pub(super) fn end_requests(&mut self, watch: &mut dyn SessionObserver) {
        let lost = self.lost_calls();
        let requests = &mut self.drain.borrow_mut().process_tree.requests;
        requests.lost(lost);
        requests.stop(None);
        while let Some((run, tally)) = requests.take() {
            watch.requests(run, &tally);
        }
    }

    /// Lost events of calls on batches, and of what they compute.
    fn lost_calls(&self) -> u64 {
        let kinds = self.source.event_stats().kinds;
        let of_calls =
            [ev_kind::EV_TOKEN_ENTER, ev_kind::EV_TOKEN_EXIT, ev_kind::EV_UBATCH, ev_kind::EV_MEMORY];
        of_calls.iter().map(|kind| kinds[kind.0 as usize].lost).sum()
    }
}
