//! When a device has finished the work of a call: the functions in which a program waits for it, and the calls that
//! are held until such a wait is seen.
//!
//! A device backend returns when the work is queued, and so does the engine's call. The work is finished when a
//! wait for that backend has returned: its own wait, one for the scheduler or context that it belongs to, or the
//! blocking read of a result. So a split on a device is held at its return, together with its graph and token.
//! Where the splits are not probed, a token is held until the wait that follows shows whether a device was
//! involved.

use crate::capture::event;
use crate::recorder::calls::{CallKind, ComputedBy, OpenCall};
use engine::probes::WAITS;
use ggml::backend_guid;
use pfi::record::{Availability, Device};

/// Maximum calls held.
const HELD: usize = 64;

fn names() -> String {
    WAITS.map(|w| w.function).join(", ")
}

/// A call that has returned while a device may still be working on it.
#[derive(Clone, Copy)]
struct HeldCall {
    call: OpenCall,
    /// When it returned.
    end: u64,
    /// For a token without seen splits: when a device was last waited for after it, 0: not yet.
    waited: u64,
}

/// A finished call: the call, its end, and the device's part in it.
#[derive(Debug, Clone, Copy)]
pub struct FinishedCall {
    pub call: OpenCall,
    pub end: u64,
    pub device: Device,
    /// The recording ended first.
    pub cut: bool,
}

/// Calls that finish together, the inner ones first.
pub type Overs = heapless::Vec<FinishedCall, HELD>;

/// The held calls.
#[derive(Default)]
pub struct HeldCalls {
    held: heapless::Vec<HeldCall, HELD>,
    /// Waits of each kind so far.
    waits: [u64; WAITS.len()],
    /// Some wait was for a device.
    device: bool,
    /// Calls whose work on a device ended unseen, and calls whose end was seen.
    pub unseen: u64,
    pub seen: u64,
}

impl HeldCall {
    /// The device finished it at `t`.
    fn done(&self, t: u64) -> FinishedCall {
        let end = self.end.max(t);
        FinishedCall { call: self.call, end, device: Device::Busy(end - self.end), cut: false }
    }

    fn with(&self, device: Device, cut: bool) -> FinishedCall {
        FinishedCall { call: self.call, end: self.end, device, cut }
    }
}

impl HeldCalls {
    /// A call returns. `probed`: waits are seen. None: the call is held.
    pub fn returns(&mut self, call: OpenCall, end: u64, probed: bool) -> Option<FinishedCall> {
        let held = HeldCall { call, end, waited: 0 };
        let waits = match (call.kind, call.work) {
            (_, ComputedBy::Host) | (CallKind::Sched | CallKind::Split, ComputedBy::Unknown) => false,
            (CallKind::Token, ComputedBy::Unknown) => probed,
            (CallKind::Split, ComputedBy::Device) => true,
            (_, ComputedBy::Device) if !probed => true,
            (CallKind::Sched, ComputedBy::Device) => {
                self.of(|c| c.kind == CallKind::Split && c.parent == Some(call.seq))
            }
            (CallKind::Token, ComputedBy::Device) => self.of(|c| c.token == Some(call.seq)),
        };
        match (waits, call.work) {
            (false, ComputedBy::Device) => Some(self.count(held.done(end))),
            (false, _) => Some(held.with(Device::Idle, false)),
            (true, ComputedBy::Device) if !probed => Some(self.count(held.with(Device::Unseen, false))),
            (true, _) => match self.held.push(held) {
                Ok(()) => None,
                Err(held) => Some(self.count(held.with(Device::Unseen, false))),
            },
        }
    }

    fn of(&self, is: impl Fn(&OpenCall) -> bool) -> bool {
        self.held.iter().any(|h| is(&h.call))
    }

    /// Whether a call of a process on a batch is held.
    pub fn holds(&self, tgid: u32) -> bool {
        self.of(|c| c.kind == CallKind::Token && c.tgid == tgid)
    }

    fn count(&mut self, over: FinishedCall) -> FinishedCall {
        let token = over.call.kind == CallKind::Token;
        self.unseen += u64::from(token && over.device == Device::Unseen);
        self.seen += u64::from(token && matches!(over.device, Device::Busy(_)));
        over
    }

    /// Takes out the calls that `over` ends.
    fn take(&mut self, mut over: impl FnMut(&HeldCall) -> Option<FinishedCall>, out: &mut Overs) {
        let mut i = 0;
        while let Some(held) = self.held.get(i) {
            match over(held) {
                Some(done) => {
                    self.held.remove(i);
                    let done = self.count(done);
                    // `out` has room for all held calls.
                    let _ = out.push(done);
                }
                None => i += 1,
            }
        }
    }

    /// A wait has returned.
    pub fn wait(&mut self, e: &event::Call) -> Overs {
        let mut out = Overs::new();
        let kind = usize::try_from(e.n).unwrap_or(usize::MAX);
        let Some(seen) = self.waits.get_mut(kind) else { return out };
        *seen += 1;
        let (tgid, tid, t, object) = (e.h.tgid, e.h.tid, e.h.ts, e.b);
        let (backend, sched, context, read) = (kind == 0, kind == 1, kind == 2, kind == 3);
        let device = backend && backend_guid::is_device(&e.guid);
        self.device |= device;
        if self.held.is_empty() {
            return out;
        }
        // Everything that the scheduler, or the context, gave to devices.
        let graph = |held: &[HeldCall], seq: Option<u64>| {
            held.iter()
                .any(|h| h.call.kind == CallKind::Sched && Some(h.call.seq) == seq && h.call.object == object)
        };
        let token = |held: &[HeldCall], seq: Option<u64>| {
            held.iter()
                .any(|h| h.call.kind == CallKind::Token && Some(h.call.seq) == seq && h.call.object == object)
        };
        let mut splits: heapless::Vec<u64, HELD> = heapless::Vec::new();
        for h in self.held.iter().filter(|h| h.call.kind == CallKind::Split && h.call.tgid == tgid) {
            let c = &h.call;
            let ends = (backend && c.object == object)
                || (sched && graph(&self.held, c.parent))
                || (context && token(&self.held, c.token))
                || (read && c.tid == tid);
            if ends {
                let _ = splits.push(c.seq);
            }
        }
        self.take(
            |h| (h.call.kind == CallKind::Split && splits.contains(&h.call.seq)).then(|| h.done(t)),
            &mut out,
        );
        self.cascade(t, &mut out);
        let told = self.waits[0] > 0;
        for h in &mut self.held {
            if device
                && h.call.kind == CallKind::Token
                && h.call.work == ComputedBy::Unknown
                && h.call.tid == tid
            {
                h.waited = t;
            }
        }
        // The backends of a scheduler are waited for one after the other.
        if sched || context {
            let of = |h: &HeldCall| {
                h.call.kind == CallKind::Token
                    && h.call.work == ComputedBy::Unknown
                    && (h.call.tgid, h.call.tid) == (tgid, tid)
            };
            let end = |h: &HeldCall| match (h.waited, told) {
                (0, true) => h.with(Device::Idle, false),
                (0, false) => h.done(t),
                (waited, _) => h.done(waited),
            };
            self.take(|h| of(h).then(|| end(h)), &mut out);
        }
        out
    }

    /// Ends graphs and tokens whose splits are all done.
    fn cascade(&mut self, t: u64, out: &mut Overs) {
        for kind in [CallKind::Sched, CallKind::Token] {
            let inner = self.held.iter().map(|h| &h.call).filter(|c| c.kind != CallKind::Token);
            let outer = inner.filter_map(|c| match (kind, c.kind) {
                (CallKind::Sched, CallKind::Split) => c.parent,
                (CallKind::Sched, _) => None,
                _ => c.token,
            });
            let outer: heapless::Vec<u64, HELD> = outer.collect();
            let over = |h: &HeldCall| {
                let c = &h.call;
                let ends = c.kind == kind && c.work == ComputedBy::Device && !outer.contains(&c.seq);
                ends.then(|| h.done(t))
            };
            self.take(over, out);
        }
    }

    /// Another call begins on a context at `t`: nobody waited for the held calls of the previous one. Their work is
    /// done before the next one's, which begins at `t` at the earliest; so they are taken to last until then, if
    /// waits are seen at all.
    pub fn next(&mut self, tgid: u32, context: u64, t: u64) -> Overs {
        let mut out = Overs::new();
        let before =
            |h: &HeldCall| h.call.kind == CallKind::Token && (h.call.tgid, h.call.object) == (tgid, context);
        let tokens: heapless::Vec<u64, HELD> =
            self.held.iter().filter(|h| before(h)).map(|h| h.call.seq).collect();
        let (device, any) = (self.device, self.waits.iter().any(|n| *n > 0));
        let over = |h: &HeldCall| match (h.call.work, h.waited) {
            (ComputedBy::Unknown, 0) if device => h.done(t),
            (ComputedBy::Unknown, 0) if any => h.with(Device::Idle, false),
            (ComputedBy::Unknown, waited) if waited > 0 => h.done(waited),
            (ComputedBy::Device, _) if device => h.done(t),
            _ => h.with(Device::Unseen, false),
        };
        for kind in [CallKind::Split, CallKind::Sched, CallKind::Token] {
            let of = |h: &HeldCall| match h.call.kind {
                CallKind::Token => tokens.contains(&h.call.seq),
                _ => h.call.token.is_some_and(|seq| tokens.contains(&seq)),
            };
            self.take(|h| (h.call.kind == kind && of(h)).then(|| over(h)), &mut out);
        }
        out
    }

    /// Status of the ends of device work; None: no device had any work. `probed`: probed functions that wait.
    pub fn feature_status(&self, probed: &[&str]) -> Option<(Availability, String)> {
        let told = |state, why: String| Some((state, why));
        match (self.seen, self.unseen) {
            (0, 0) => None,
            (_, 0) => told(
                Availability::Whole,
                format!("calls end when a wait for the device returns: {}", probed.join(", ")),
            ),
            (0, _) if probed.is_empty() => told(
                Availability::None,
                format!("no function that waits for a device is probed ({})", names()),
            ),
            (0, _) => told(
                Availability::None,
                format!("{} were probed but never hit after a call", probed.join(", ")),
            ),
            (seen, n) => told(
                Availability::Partly,
                format!("no wait for the device was seen after {n} of {} calls", seen + n),
            ),
        }
    }

    /// A process (all, with None) or its recording has ended.
    pub fn close(&mut self, tgid: Option<u32>) -> Overs {
        let mut out = Overs::new();
        let (device, any) = (self.device, self.waits.iter().any(|n| *n > 0));
        let over = |h: &HeldCall| match (h.call.work, h.waited) {
            (ComputedBy::Unknown, 0) if any && !device => h.with(Device::Idle, false),
            (ComputedBy::Unknown, waited) if waited > 0 => h.done(waited),
            _ => h.with(Device::Unseen, true),
        };
        for kind in [CallKind::Split, CallKind::Sched, CallKind::Token] {
            let of = |h: &HeldCall| h.call.kind == kind && tgid.is_none_or(|t| t == h.call.tgid);
            self.take(|h| of(h).then(|| over(h)), &mut out);
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::event::Head;

    const VULKAN: [u8; 16] =
        [0xb8, 0xf7, 0x4f, 0x86, 0x40, 0x3c, 0xe1, 0x02, 0x91, 0xc8, 0xdd, 0xe9, 0x02, 0x3f, 0xc0, 0x2b];
    const CPU: [u8; 16] =
        [0xaa, 0x67, 0xc7, 0x43, 0x96, 0xe6, 0xa3, 0x8a, 0xe3, 0xaf, 0xea, 0x92, 0x36, 0xbc, 0xfc, 0x89];
    /// A context, its scheduler, its backend.
    const CONTEXT: u64 = 1;
    const SCHED: u64 = 2;
    const BACKEND: u64 = 3;

    fn call(kind: CallKind, seq: u64, work: ComputedBy) -> OpenCall {
        let object = match kind {
            CallKind::Token => CONTEXT,
            CallKind::Sched => SCHED,
            CallKind::Split => BACKEND,
        };
        let mut c = OpenCall::new(kind, seq, 7, 7, 100 * seq, object, 0, 1, 1);
        // Calls of all kinds have the same numbers, as in a run with one split per token.
        (c.parent, c.token) = match kind {
            CallKind::Token => (None, None),
            _ => (Some(seq), Some(seq)),
        };
        c.work = work;
        c
    }

    fn wait(n: i32, b: u64, guid: [u8; 16], ts: u64) -> event::Call {
        event::Call { h: Head { ts, tgid: 7, tid: 7, ..Head::default() }, n, b, guid, ..Default::default() }
    }

    /// A token with everything inside it, returned at `end`.
    fn decode(w: &mut HeldCalls, seq: u64, end: u64) {
        for kind in [CallKind::Split, CallKind::Sched, CallKind::Token] {
            assert!(w.returns(call(kind, seq, ComputedBy::Device), end, true).is_none(), "held: {kind:?}");
        }
    }

    fn told(overs: &Overs) -> Vec<(CallKind, u64, Device, bool)> {
        overs.iter().map(|o| (o.call.kind, o.end, o.device, o.cut)).collect()
    }

    #[test]
    fn a_call_ends_with_the_first_wait_for_its_device() {
        let mut w = HeldCalls::default();
        decode(&mut w, 3, 310);
        assert!(w.wait(&wait(0, 9, VULKAN, 320)).is_empty(), "another context's");
        let all = [CallKind::Split, CallKind::Sched, CallKind::Token];
        assert_eq!(
            told(&w.wait(&wait(0, BACKEND, VULKAN, 390))),
            all.map(|k| (k, 390, Device::Busy(80), false))
        );
        assert!(w.wait(&wait(1, SCHED, [0; 16], 395)).is_empty(), "only the first");
        // By the scheduler, by the context, and by the blocking read of a result.
        for (n, object) in [(1, SCHED), (2, CONTEXT), (3, 77)] {
            decode(&mut w, 4, 410);
            assert_eq!(w.wait(&wait(n, object, [0; 16], 450)).len(), 3, "{n}");
        }
        assert_eq!((w.seen, w.unseen), (4, 0));
    }

    #[test]
    fn what_was_read_within_the_call_ends_with_its_return() {
        let mut w = HeldCalls::default();
        assert!(w.returns(call(CallKind::Split, 0, ComputedBy::Device), 10, true).is_none());
        assert!(w.returns(call(CallKind::Sched, 0, ComputedBy::Device), 12, true).is_none());
        assert_eq!(w.wait(&wait(3, 77, [0; 16], 90)).len(), 2);
        let over = w.returns(call(CallKind::Token, 0, ComputedBy::Device), 95, true).expect("over");
        assert_eq!((over.end, over.device), (95, Device::Busy(0)));
    }

    #[test]
    fn a_call_that_nobody_waits_for_goes_on_to_the_next() {
        let mut w = HeldCalls::default();
        decode(&mut w, 0, 10);
        assert_eq!(told(&w.next(7, CONTEXT, 50))[2], (CallKind::Token, 10, Device::Unseen, false));
        decode(&mut w, 1, 110);
        w.wait(&wait(0, BACKEND, VULKAN, 150));
        decode(&mut w, 2, 210);
        assert!(w.next(7, CONTEXT + 9, 240).is_empty(), "another context");
        assert_eq!(told(&w.next(7, CONTEXT, 250))[2], (CallKind::Token, 250, Device::Busy(40), false));
        decode(&mut w, 3, 310);
        assert_eq!(told(&w.close(Some(7)))[2], (CallKind::Token, 310, Device::Unseen, true));
    }

    #[test]
    fn without_probes_the_end_is_unseen_and_a_host_s_call_ends_at_its_return() {
        let mut w = HeldCalls::default();
        let split = w.returns(call(CallKind::Split, 0, ComputedBy::Device), 10, false).expect("over");
        assert_eq!((split.end, split.device), (10, Device::Unseen));
        for probed in [false, true] {
            let over = w.returns(call(CallKind::Token, 0, ComputedBy::Host), 10, probed).expect("over");
            assert_eq!((over.end, over.device), (10, Device::Idle));
        }
    }

    #[test]
    fn where_no_split_is_seen_the_wait_tells() {
        let mut w = HeldCalls::default();
        let unknown = |seq| call(CallKind::Token, seq, ComputedBy::Unknown);
        assert!(
            w.returns(unknown(0), 10, false).is_some_and(|o| o.device == Device::Idle),
            "no device at all"
        );
        assert!(w.returns(unknown(1), 110, true).is_none());
        assert!(w.wait(&wait(0, BACKEND, CPU, 111)).is_empty());
        assert_eq!(
            told(&w.wait(&wait(1, SCHED, [0; 16], 112))),
            [(CallKind::Token, 110, Device::Idle, false)]
        );
        assert!(w.returns(unknown(2), 210, true).is_none());
        w.wait(&wait(0, BACKEND, VULKAN, 280));
        w.wait(&wait(0, BACKEND + 1, CPU, 281));
        let over = told(&w.wait(&wait(1, SCHED, [0; 16], 282)));
        assert_eq!(over, [(CallKind::Token, 280, Device::Busy(70), false)]);
    }
}
