//! Events as sent by the BPF programs (src/bpf/event.h): bytes in, typed views out.

use crate::capture::skel::types::{
    ev_batch, ev_call, ev_content, ev_counted, ev_counter, ev_experts, ev_hdr, ev_kernels, ev_kind,
    ev_memory, ev_nodes, ev_offcpu, ev_op, ev_sampler, ev_task, ev_tensor, ev_tensors, ev_ubatch, ev_waits,
    ev_what,
};
use engine::layout::TENSOR_RAW;
use engine::probes::{PHASES, WAITS};

pub use crate::capture::skel::types::{
    batch_layout as BatchLayout, ev_batch as Batch, ev_call as Call, ev_content as Content,
    ev_counted as Counted, ev_experts as Experts, ev_hdr as Head, ev_kernels as Kernels, ev_memory as Memory,
    ev_nodes as Nodes, ev_offcpu as OffCpuEvent, ev_op as Op, ev_sampler as Sampler, ev_task as Task,
    ev_tensor as Tensor, ev_tensors as Tensors, ev_ubatch as Ubatch, gpu_kernel as GpuKernel,
    memory_what as MemoryWhat,
};

// The tables of probed functions match the enums of the BPF programs.
const _: () = assert!(PHASES.len() == ev_what::DOES_KINDS.0 as usize);
const _: () = assert!(WAITS.len() == ev_waits::WAITS_KINDS.0 as usize);
const _: () = assert!(size_of::<ev_tensor>() == 24 + 8 + TENSOR_RAW);

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
    "thread-end",
    "tensor",
    "nodes",
    "fork",
    "exit",
    "experts",
    "offcpu",
    "phase",
    "counts",
    "wait",
    "tensors",
    "node",
    "kernels",
    "batch",
    "ubatch",
    "memory",
    "task",
    "sampler",
    "content",
];
/// Chunks of a batch in one event, as in src/bpf/event.h.
pub const CHUNKS: usize = 8;
/// Bits of `ev_ubatch.what`, as in src/bpf/event.h.
pub const CHUNKS_OF_BATCH: u32 = 1;
pub const CHUNKS_ODD: u32 = 2;
/// Kernels in one event, as in src/bpf/event.h.
pub const KERNELS_CHUNK: usize = 4;
/// Counters in addition to the events', in the order of `enum ev_counter`.
pub const COUNTERS: usize = ev_counter::CNT_COUNTERS.0 as usize;

/// Parts of `ev_nodes.info`, as in src/bpf/event.h.
pub const NODE_OP: u32 = 0xffff;
pub const NODE_COMPUTE: u32 = 0x10000;
pub const NODE_EMPTY: u32 = 0x20000;
pub const NODE_UNREAD: u32 = 0x40000;

/// What `ev_call.b` of a node says, as in src/bpf/event.h: its index is in `n`, with its graph or its own address in
/// `a`; its address is in `a`; the thread's last node is enqueued.
pub const NODE_AT: u64 = 0;
pub const NODE_TENSOR: u64 = 1;
pub const NODE_DONE: u64 = 2;

/// The same hit computes a second node (`ev_hdr.flags`).
pub const FLAG_FUSED: u16 = 1;
/// The thread was still off-CPU at the end (`ev_hdr.flags`).
pub const FLAG_CUT: u16 = 2;
/// An op that carries the counts of the previous one (`ev_hdr.flags`).
pub const FLAG_COUNTED: u16 = 4;
/// Bits of an op's `ev_hdr.flags` from here on: the CPU on which it started, plus 1; 0: not known.
const CPU_SHIFT: u32 = 3;
/// `ev_offcpu.state` of a thread that has not run before.
pub const STATE_NEW: u8 = 255;

/// A CPU as in the flags of an op. None: not known, or too large for the bits that there are.
pub fn cpu_flags(cpu: Option<u16>) -> u16 {
    let coded = cpu.map_or(0, |cpu| u32::from(cpu) + 1);
    u16::try_from(coded << CPU_SHIFT).unwrap_or(0)
}

/// The CPU on which an op started, if it is known.
pub fn cpu_of(op: &Op) -> Option<u16> {
    (op.h.flags >> CPU_SHIFT).checked_sub(1)
}

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
    /// An op starts, with the counts of the previous one.
    OpCounted(&'a Counted),
    ThreadEnd(&'a Op),
    Tensor(&'a Tensor),
    Nodes(&'a Nodes),
    Fork(&'a Call),
    Exit(&'a Call),
    Experts(&'a Experts),
    OffCpuEvent(&'a OffCpuEvent),
    Phase(&'a Call),
    /// Counts of the thread's last op in a graph.
    Counts(&'a Counted),
    /// The program waited for a device to finish.
    Wait(&'a Call),
    /// Tensors of a split on another backend than the CPU's.
    Tensors(&'a Tensors),
    /// A device backend enqueues a node.
    Node(&'a Call),
    /// Kernels that a device has executed.
    Kernels(&'a Kernels),
    /// A batch was written for an NPU, or its response was read.
    Batch(&'a Batch),
    /// The tokens of a batch or a part of it.
    Ubatch(&'a Ubatch),
    Content(&'a Content),
    /// The program changes a context's memory.
    Memory(&'a Memory),
    Task(&'a Task),
    /// A call of a sampler has ended.
    Sampler(&'a Sampler),
}

/// The event at the start of `bytes`, and the index of its kind. None if the bytes are not an event: too short for
/// the kind, or not aligned to 8 bytes (both transports align their records).
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
        ev_kind::EV_THREAD_END => Event::ThreadEnd(view(bytes)?),
        ev_kind::EV_TENSOR => Event::Tensor(view(bytes)?),
        ev_kind::EV_NODES => Event::Nodes(view(bytes)?),
        ev_kind::EV_FORK => Event::Fork(view(bytes)?),
        ev_kind::EV_EXIT => Event::Exit(view(bytes)?),
        ev_kind::EV_EXPERTS => Event::Experts(view(bytes)?),
        ev_kind::EV_OFFCPU => Event::OffCpuEvent(view(bytes)?),
        ev_kind::EV_PHASE => Event::Phase(view(bytes)?),
        ev_kind::EV_COUNTS => Event::Counts(view(bytes)?),
        ev_kind::EV_WAIT => Event::Wait(view(bytes)?),
        ev_kind::EV_TENSORS => Event::Tensors(view(bytes)?),
        ev_kind::EV_NODE => Event::Node(view(bytes)?),
        ev_kind::EV_KERNELS => Event::Kernels(view(bytes)?),
        ev_kind::EV_BATCH => Event::Batch(view(bytes)?),
        ev_kind::EV_UBATCH => Event::Ubatch(view(bytes)?),
        ev_kind::EV_MEMORY => Event::Memory(view(bytes)?),
        ev_kind::EV_TASK => Event::Task(view(bytes)?),
        ev_kind::EV_SAMPLER => Event::Sampler(view(bytes)?),
        ev_kind::EV_CONTENT => Event::Content(view(bytes)?),
        _ => return None,
    };
    Some((kind, event))
}

/// Time of the event at the start of `bytes`, CLOCK_MONOTONIC ns.
pub fn time(bytes: &[u8]) -> Option<u64> {
    Some(view::<ev_hdr>(bytes)?.ts)
}

/// A type for which every bit pattern is valid.
///
/// # Safety
/// Only plain `repr(C)` structs of integers may implement it.
pub unsafe trait Plain {}
// SAFETY: generated from C structs of integers and integer arrays.
unsafe impl Plain for ev_hdr {}
// SAFETY: as above.
unsafe impl Plain for ev_call {}
// SAFETY: as above.
unsafe impl Plain for ev_kernels {}
// SAFETY: as above.
unsafe impl Plain for ev_batch {}
// SAFETY: as above.
unsafe impl Plain for ev_ubatch {}
// SAFETY: as above.
unsafe impl Plain for ev_content {}
// SAFETY: as above.
unsafe impl Plain for ev_memory {}
// SAFETY: as above.
unsafe impl Plain for ev_task {}
// SAFETY: as above.
unsafe impl Plain for ev_sampler {}
// SAFETY: as above.
unsafe impl Plain for ev_op {}
// SAFETY: as above.
unsafe impl Plain for ev_counted {}
// SAFETY: as above.
unsafe impl Plain for ev_tensor {}
// SAFETY: as above.
unsafe impl Plain for ev_tensors {}
// SAFETY: as above.
unsafe impl Plain for ev_nodes {}
// SAFETY: as above.
unsafe impl Plain for ev_experts {}
// SAFETY: as above.
unsafe impl Plain for ev_offcpu {}

/// The bytes of an event, as the sources pass them on.
pub fn bytes<T: Plain>(event: &T) -> &[u8] {
    // SAFETY: plain structs without padding (the tests check their sizes), and the borrow keeps the bytes alive.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(event).cast(), size_of::<T>()) }
}

/// Reads an event from bytes that may be unaligned; `None` if there are too few.
pub fn read<T: Plain>(bytes: &[u8]) -> Option<T> {
    // SAFETY: long enough as checked; T is plain, so any bytes are a valid T.
    (bytes.len() >= size_of::<T>()).then(|| unsafe { bytes.as_ptr().cast::<T>().read_unaligned() })
}

/// The word at an offset of a tensor's bytes, 0 past their end.
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
        assert_eq!(size_of::<ev_counted>(), 56 + 16 + 8 * crate::capture::pmc::MAX);
        assert_eq!(size_of::<ev_hdr>(), 24);
        // No padding: the size is the sum of the fields.
        assert_eq!(size_of::<ev_call>(), 24 + 6 * 4 + 2 * 8 + 16);
        assert_eq!(size_of::<ev_batch>(), 24 + 2 * 8 + 4 * 4);
        assert_eq!(size_of::<ev_ubatch>(), 24 + 4 * 4 + 24 * CHUNKS);
        assert_eq!(size_of::<ev_content>(), 24 + 4 * 4 + 8 * 64);
        assert_eq!(size_of::<ev_memory>(), 24 + 8 + 6 * 4);
        assert_eq!(size_of::<ev_task>(), 24 + 8 + 2 * 4);
        assert_eq!(size_of::<ev_sampler>(), 24 + 3 * 8 + 2 * 4);
        assert_eq!(size_of::<ev_nodes>(), 24 + 8 + 8 + 48 * 12);
        assert_eq!(size_of::<ev_experts>(), 24 + 3 * 8 + 6 * 4 + 64 * 4);
        assert_eq!(size_of::<ev_offcpu>(), 24 + 3 * 8 + 4 * 4 + 2 * 2 + 4 + 3 * 16);
    }

    #[test]
    fn an_ops_flags_hold_its_cpu() {
        let on =
            |cpu| Op { h: Head { flags: FLAG_FUSED | cpu_flags(cpu), ..Head::default() }, ..Op::default() };
        for cpu in [None, Some(0), Some(1), Some(8190)] {
            assert_eq!((cpu_of(&on(cpu)), on(cpu).h.flags & FLAG_FUSED), (cpu, FLAG_FUSED));
        }
        assert_eq!(cpu_of(&on(Some(8191))), None);
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
