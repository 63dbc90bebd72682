//! Calls in progress, by thread: tokens, scheduler graphs, splits. Pairs entries with returns and copes with lost
//! ones.

/// Maximum open calls, all threads and kinds together.
pub const OPEN: usize = 1024;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CallKind {
    Token,
    Sched,
    Split,
}

/// Who computes the work of a call.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ComputedBy {
    /// No split of it was seen (yet).
    Unknown,
    Host,
    /// A device, all of it or part of it.
    Device,
}

/// A call that was entered and has not returned.
#[derive(Debug, Clone, Copy)]
pub struct OpenCall {
    pub kind: CallKind,
    pub seq: u64,
    /// seq of the enclosing call of the next outer kind.
    pub parent: Option<u64>,
    /// seq of the enclosing token.
    pub token: Option<u64>,
    pub work: ComputedBy,
    pub tgid: u32,
    pub tid: u32,
    pub start: u64,
    /// Argument that identifies the callee's object: context, scheduler or backend.
    pub object: u64,
    pub cgraph: u64,
    /// Tokens of the batch (-1: unknown), or nodes of the graph.
    pub n: i32,
    pub width: u32,
    /// Token: its entry point. Split: the backend's id.
    pub detail: u32,
    /// Split on a backend other than the CPU's: the plan of its nodes.
    pub plan: Option<u32>,
    /// Split: kernels and graphs of kernels that its thread had given to a device before, if they are counted.
    pub dispatched: Option<(u32, u32)>,
    /// Token: each of its sequences has one token; none: its batch was not read.
    pub single: Option<bool>,
    /// Split on a device: all batches that its thread writes are seen.
    pub batched: bool,
    /// Inner calls of the same kind, counted so that only the outermost return ends the call.
    depth: u32,
}

/// The effect of an entry.
#[derive(Debug, Clone, Copy)]
pub enum Entered {
    Opened,
    /// Inside a call of the same kind, which continues.
    Nested,
    /// The previous call never returned (its return event was lost, or an exception left it).
    Replaced(OpenCall),
    /// Too many calls are open.
    Full,
}

/// The open calls.
pub struct OpenCalls {
    open: heapless::Vec<OpenCall, OPEN>,
}

impl Default for OpenCalls {
    fn default() -> Self {
        OpenCalls { open: heapless::Vec::new() }
    }
}

impl OpenCall {
    #[allow(clippy::too_many_arguments, reason = "a plain constructor for a plain struct")]
    pub fn new(
        kind: CallKind,
        seq: u64,
        tgid: u32,
        tid: u32,
        start: u64,
        object: u64,
        cgraph: u64,
        n: i32,
        width: u32,
    ) -> OpenCall {
        let (parent, token, work) = (None, None, ComputedBy::Unknown);
        OpenCall {
            kind,
            seq,
            parent,
            token,
            work,
            tgid,
            tid,
            start,
            object,
            cgraph,
            n,
            width,
            detail: 0,
            plan: None,
            dispatched: None,
            single: None,
            batched: false,
            depth: 0,
        }
    }
}

impl OpenCalls {
    fn position(&self, kind: CallKind, tid: u32) -> Option<usize> {
        self.open.iter().position(|c| c.kind == kind && c.tid == tid)
    }

    /// The open call of this kind on this thread.
    pub fn current(&mut self, kind: CallKind, tid: u32) -> Option<&mut OpenCall> {
        let i = self.position(kind, tid)?;
        self.open.get_mut(i)
    }

    /// A call begins. A call inside another of its kind on the same thread is nested if it came through another
    /// entry point; the same entry point again means that the first one's return was missed.
    pub fn enter(&mut self, call: OpenCall) -> Entered {
        if let Some(open) = self.current(call.kind, call.tid) {
            if call.kind == CallKind::Token && open.detail != call.detail {
                open.depth += 1;
                return Entered::Nested;
            }
            return Entered::Replaced(std::mem::replace(open, call));
        }
        match self.open.push(call) {
            Ok(()) => Entered::Opened,
            Err(_) => Entered::Full,
        }
    }

    /// A call of this kind returns on this thread.
    pub fn exit(&mut self, kind: CallKind, tid: u32) -> Option<OpenCall> {
        let i = self.position(kind, tid)?;
        let open = &mut self.open[i];
        if open.depth > 0 {
            open.depth -= 1;
            return None;
        }
        Some(self.open.swap_remove(i))
    }

    /// The call that has been open longest.
    pub fn longest(&self) -> Option<&OpenCall> {
        self.open.iter().min_by_key(|c| c.start)
    }

    /// Takes any open call of a process (of any process, with None): it will not return.
    pub fn take(&mut self, tgid: Option<u32>) -> Option<OpenCall> {
        let i = self.open.iter().position(|c| tgid.is_none_or(|t| t == c.tgid))?;
        Some(self.open.swap_remove(i))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token(seq: u64, tid: u32, detail: u32) -> OpenCall {
        OpenCall { detail, ..OpenCall::new(CallKind::Token, seq, 1, tid, seq, 0, 0, 1, 0) }
    }

    #[test]
    fn only_the_outermost_call_counts() {
        let mut calls = OpenCalls::default();
        assert!(matches!(calls.enter(token(0, 7, 0)), Entered::Opened));
        assert!(matches!(calls.enter(token(1, 7, 1)), Entered::Nested));
        assert!(calls.exit(CallKind::Token, 7).is_none());
        assert_eq!(calls.exit(CallKind::Token, 7).map(|c| c.seq), Some(0));
        assert!(calls.exit(CallKind::Token, 7).is_none());
    }

    #[test]
    fn a_missed_return_is_noticed_at_the_next_entry() {
        let mut calls = OpenCalls::default();
        calls.enter(token(0, 7, 1));
        calls.enter(token(1, 8, 1));
        assert!(matches!(calls.enter(token(2, 7, 1)), Entered::Replaced(c) if c.seq == 0));
        assert_eq!(calls.longest().map(|c| c.seq), Some(1));
        assert_eq!(calls.exit(CallKind::Token, 7).map(|c| c.seq), Some(2));
        assert_eq!(calls.take(Some(1)).map(|c| c.seq), Some(1));
        assert!(calls.take(None).is_none());
    }
}
