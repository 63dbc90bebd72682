//! Events as the BPF programs send them (src/bpf/event.h): bytes in, typed views out. Uses `skel` for the types,
//! which libbpf-cargo generates from the object's own BTF, so that both sides cannot drift apart.

use super::skel::types::{
    ev_away, ev_call, ev_counted, ev_counter, ev_experts, ev_hdr, ev_kind, ev_nodes, ev_op, ev_tensor,
};

pub use super::skel::types::{
    ev_away as Away, ev_call as Call, ev_counted as Counted, ev_experts as Experts, ev_hdr as Head,
    ev_nodes as Nodes, ev_op as Op, ev_tensor as Tensor,
};

/// Kinds of event, in the order of `enum ev_kind`.
pub const KINDS: usize = ev_kind::EV_KINDS.0 as usize;
/// Names of the kinds for the trace's footer.
pub const KIND_NAMES: [&str; KINDS] = [
    "token-enter",
    "token-exit",
    "sched-enter",
    "sched-exit",
    "split-enter",
    "split-exit",
    "graph-enter",
    "graph-exit",
    "op",
    "lane-end",
    "tensor",
    "nodes",
    "fork",
    "exit",
    "experts",
    "away",
    "phase",
    "counts",
    "wait",
];
/// Counters beside the events', in the order of `enum ev_counter`.
pub const COUNTERS: usize = ev_counter::CNT_COUNTERS.0 as usize;

/// Bytes of a tensor struct that an event carries (TENSOR_RAW).
pub const TENSOR_RAW: usize = size_of::<ev_tensor>() - size_of::<ev_hdr>() - 8;

/// Parts of `ev_nodes.info`, as in src/bpf/event.h.
pub const NODE_OP: u32 = 0xffff;
pub const NODE_COMPUTE: u32 = 0x10000;
pub const NODE_EMPTY: u32 = 0x20000;
pub const NODE_UNREAD: u32 = 0x40000;

/// Second node computed by the same hit (`ev_hdr.flags`).
pub const FLAG_FUSED: u16 = 1;
/// The thread was away to the end (`ev_hdr.flags`).
pub const FLAG_CUT: u16 = 2;
/// `ev_away.state` of a thread that had not run before.
pub const STATE_NEW: u8 = 255;
/// An op that brings the counts of the one before it (`ev_hdr.flags`).
pub const FLAG_COUNTED: u16 = 2;

/// One event.
#[derive(Debug, Clone, Copy)]
pub enum Event<'a> {
    TokenEnter(&'a Call),
    TokenExit(&'a Call),
    SchedEnter(&'a Call),
    SchedExit(&'a Call),
    SplitEnter(&'a Call),
    SplitExit(&'a Call),
    GraphEnter(&'a Call),
    GraphExit(&'a Call),
    Op(&'a Op),
    /// An op begins, and the one before is counted.
    OpCounted(&'a Counted),
    LaneEnd(&'a Op),
    Tensor(&'a Tensor),
    Nodes(&'a Nodes),
    Fork(&'a Call),
    Exit(&'a Call),
    Experts(&'a Experts),
    Away(&'a Away),
    Phase(&'a Call),
    /// The last op of a thread's graph is counted.
    Counts(&'a Counted),
    /// The program waited until a device had finished.
    Wait(&'a Call),
}

/// The event at the start of `bytes`, and its kind's index. None if the bytes are none: too short for the kind, or not
/// aligned to 8 bytes (both transports align their records).
pub fn parse(bytes: &[u8]) -> Option<(usize, Event<'_>)> {
    let head: &ev_hdr = view(bytes)?;
    let kind = head.kind as usize;
    let event = match ev_kind(head.kind.into()) {
        ev_kind::EV_TOKEN_ENTER => Event::TokenEnter(view(bytes)?),
        ev_kind::EV_TOKEN_EXIT => Event::TokenExit(view(bytes)?),
        ev_kind::EV_SCHED_ENTER => Event::SchedEnter(view(bytes)?),
        ev_kind::EV_SCHED_EXIT => Event::SchedExit(view(bytes)?),
        ev_kind::EV_SPLIT_ENTER => Event::SplitEnter(view(bytes)?),
        ev_kind::EV_SPLIT_EXIT => Event::SplitExit(view(bytes)?),
        ev_kind::EV_GRAPH_ENTER => Event::GraphEnter(view(bytes)?),
        ev_kind::EV_GRAPH_EXIT => Event::GraphExit(view(bytes)?),
        ev_kind::EV_OP if head.flags & FLAG_COUNTED != 0 => Event::OpCounted(view(bytes)?),
        ev_kind::EV_OP => Event::Op(view(bytes)?),
        ev_kind::EV_LANE_END => Event::LaneEnd(view(bytes)?),
        ev_kind::EV_TENSOR => Event::Tensor(view(bytes)?),
        ev_kind::EV_NODES => Event::Nodes(view(bytes)?),
        ev_kind::EV_FORK => Event::Fork(view(bytes)?),
        ev_kind::EV_EXIT => Event::Exit(view(bytes)?),
        ev_kind::EV_EXPERTS => Event::Experts(view(bytes)?),
        ev_kind::EV_AWAY => Event::Away(view(bytes)?),
        ev_kind::EV_PHASE => Event::Phase(view(bytes)?),
        ev_kind::EV_COUNTS => Event::Counts(view(bytes)?),
        ev_kind::EV_WAIT => Event::Wait(view(bytes)?),
        _ => return None,
    };
    Some((kind, event))
}

/// Time of the event at the start of `bytes`, CLOCK_MONOTONIC ns.
pub fn time(bytes: &[u8]) -> Option<u64> {
    Some(view::<ev_hdr>(bytes)?.ts)
}

/// A type of which every bit pattern is a value.
///
/// # Safety
/// Only plain `repr(C)` structs of integers may implement it.
pub unsafe trait Plain {}
// SAFETY: generated from C structs of integers and integer arrays.
unsafe impl Plain for ev_hdr {}
// SAFETY: as above.
unsafe impl Plain for ev_call {}
// SAFETY: as above.
unsafe impl Plain for ev_op {}
// SAFETY: as above.
unsafe impl Plain for ev_counted {}
// SAFETY: as above.
unsafe impl Plain for ev_tensor {}
// SAFETY: as above.
unsafe impl Plain for ev_nodes {}
// SAFETY: as above.
unsafe impl Plain for ev_experts {}
// SAFETY: as above.
unsafe impl Plain for ev_away {}

/// The bytes of an event, as the sources hand them on.
pub fn bytes<T: Plain>(event: &T) -> &[u8] {
    // SAFETY: plain structs without gaps (the tests hold their sizes), and the borrow keeps the bytes alive.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(event).cast(), size_of::<T>()) }
}

/// An event out of bytes that need not be aligned; `None` if they are too few.
pub fn read<T: Plain>(bytes: &[u8]) -> Option<T> {
    // SAFETY: long enough as checked; T is plain, so any bytes are one.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The word at an offset of a tensor's bytes, 0 beyond their end.
pub fn word(raw: &[u8], off: u32) -> u64 {
    let at = off as usize;
    raw.get(at..at.saturating_add(8)).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
}

fn view<T: Plain>(bytes: &[u8]) -> Option<&T> {
    let fits = bytes.len() >= size_of::<T>() && bytes.as_ptr().cast::<T>().is_aligned();
    // SAFETY: long enough and aligned as just checked; T is plain, and the borrow keeps the bytes alive.
    fits.then(|| unsafe { &*bytes.as_ptr().cast::<T>() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(8))]
    struct Aligned([u8; 600]);

    #[test]
    fn names_cover_every_kind() {
        assert_eq!(KIND_NAMES.len(), KINDS);
        assert_eq!(size_of::<ev_op>(), 56);
        assert_eq!(size_of::<ev_counted>(), 56 + 16 + 8 * crate::agent::pmc::MAX);
        assert_eq!(size_of::<ev_hdr>(), 24);
        // Without gaps: the sum of the fields.
        assert_eq!(size_of::<ev_call>(), 24 + 4 * 4 + 2 * 8 + 16);
        assert_eq!(size_of::<ev_tensor>(), 24 + 8 + TENSOR_RAW);
        assert_eq!(size_of::<ev_nodes>(), 24 + 8 + 8 + 48 * 12);
        assert_eq!(size_of::<ev_experts>(), 24 + 3 * 8 + 6 * 4 + 64 * 4);
        assert_eq!(size_of::<ev_away>(), 24 + 3 * 8 + 4 * 4 + 2 * 2 + 4 + 3 * 16);
    }

    #[test]
    fn short_unaligned_or_unknown_bytes_are_no_event() {
        let mut bytes = Aligned([0; 600]);
        bytes.0[16] = ev_kind::EV_OP.0 as u8;
        assert!(matches!(parse(&bytes.0[..56]), Some((8, Event::Op(_)))));
        assert!(parse(&bytes.0[..55]).is_none());
        assert!(parse(&bytes.0[1..]).is_none());
        bytes.0[16] = 200;
        assert!(parse(&bytes.0).is_none());
        assert!(parse(&[]).is_none());
    }
}
