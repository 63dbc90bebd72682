//! One loaded BPF object: the programs of src/bpf/ops.bpf.c with one engine's layout as constants, sharing the maps
//! of the first object.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{ErrorKind, MapCore, MapFlags, MapHandle, OpenObject, ProgramAttachType, ProgramMut};

use crate::capture::event::{COUNTERS, KINDS};
use crate::capture::pmc::follow::SharedCounters;
use crate::capture::skel::ops::{OpsSkel, OpsSkelBuilder};
use crate::capture::skel::types::{ev_counter, ops_constants};
use crate::capture::source::{CaptureOptions, EventStats, GpuDetail, Structure};
use crate::capture::structure::Reading;
use engine::backends::CPU_GUID;
use engine::probes::Prog;

/// Maps that all objects of a recording share.
pub struct Maps {
    pub events: &'static MapHandle,
    pub perf_events: &'static MapHandle,
    pub counts: MapHandle,
    pub targets: MapHandle,
    pub thread_states: MapHandle,
    known: MapHandle,
    graphs: MapHandle,
    scratches: MapHandle,
}

/// Bytes of `struct proc` (src/bpf/send.h), and the offset of its engines.
const PROC: usize = 24;
const ENGINES: usize = 16;
/// Attempts to load; in each, libbpf tries each program five times.
const TRIES: u32 = 10;

pub struct LoadedObject {
    skel: OpsSkel<'static>,
}

/// A number that nobody can guess.
fn random() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// Sets what the programs need to know of a recording and an engine.
pub fn fill(k: &mut ops_constants, options: &CaptureOptions, reading: &Reading) {
    let l = &reading.layout;
    k.engine = reading.engine.into();
    k.pbuf = options.pbuf.into();
    k.str = match options.structure {
        Structure::Off => 0,
        Structure::Changes => 1,
        Structure::EveryHit => 2,
    };
    k.nodes = u32::from(options.structure == Structure::Changes);
    // Verifying this takes as long as all the rest.
    k.offload = k.nodes & u32::from(reading.devices);
    // This one program takes the verifier a second.
    k.kernels = u32::from(options.gpu >= GpuDetail::Kernel);
    k.wake_bytes = options.wake();
    k.phases = u32::from(options.phases_at_once);
    k.batches = u32::from(reading.batches);
    k.content_key = [random(), random()];
    k.memory_off = reading.memory_off.map_or(0, |o| o + 1);
    k.batch_on_stack = u32::from(cfg!(target_arch = "x86_64"));
    k.tensor_len = l.tensor_bytes();
    k.type_off = l.type_off;
    k.ne_off = l.ne_off;
    k.nb_off = l.nb_off;
    k.op_off = l.op_off;
    k.op_params_off = l.op_params_off;
    k.flags_off = l.flags_off.unwrap_or(0);
    k.src_off = l.src_off;
    k.n_src = l.n_src;
    k.view_src_off = l.view_src_off;
    k.ith_off = l.ith_off;
    k.pool_off = l.pool_off.unwrap_or(0);
    k.n_nodes_off = l.n_nodes_off;
    k.nodes_off = l.nodes_off;
    k.uid_off = l.uid_off.unwrap_or(0);
    k.n_threads_off = l.n_threads_off;
    k.guid_off = l.guid_off.map_or(0, |o| o + 1);
    k.cpu_guid = u64::from_ne_bytes(CPU_GUID);
    k.op_unary = reading.unary;
    k.op_glu = reading.glu;
    k.data_off = l.data_off;
    // No engine has MUL_MAT_ID as number 0, which is NONE.
    (k.op_experts, k.type_i32) = reading.experts.filter(|_| options.experts).unwrap_or((0, 0));
}

impl LoadedObject {
    /// Opens, configures and loads. With `maps` the object shares them; without, it creates its own. With `links` the
    /// programs can be attached by uprobe_multi links. If a signal arrives, the kernel aborts verification (EAGAIN); the
    /// load is then retried from the start.
    ///
    /// # Errors
    /// The kernel refuses, or has aborted every attempt.
    pub fn load(
        options: &CaptureOptions,
        reading: &Reading,
        maps: Option<&Maps>,
        counters: Option<&SharedCounters>,
        links: bool,
    ) -> libbpf_rs::Result<LoadedObject> {
        let mut tries = TRIES;
        loop {
            let loaded = LoadedObject::load_once(options, reading, maps, counters, links);
            tries -= 1;
            match loaded {
                Err(e) if tries > 0 && e.kind() == libbpf_rs::ErrorKind::WouldBlock => {}
                loaded => return loaded,
            }
        }
    }

    fn load_once(
        options: &CaptureOptions,
        reading: &Reading,
        maps: Option<&Maps>,
        counters: Option<&SharedCounters>,
        links: bool,
    ) -> libbpf_rs::Result<LoadedObject> {
        // The skeleton borrows its object's storage; objects live as long as the recording, and there are few.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = OpsSkelBuilder::default().open(storage)?;
        if let Some(data) = open.maps.rodata_data.as_deref_mut() {
            fill(&mut data.k, options, reading);
            if let Some(c) = counters {
                (data.k.n_pmc, data.k.pmc_switches, data.k.pmc_migrations) = (c.n, c.switches, c.migrations);
            }
        }
        if links {
            let programs = open.open_object_mut().progs_mut();
            programs.for_each(|mut p| p.set_attach_type(ProgramAttachType::TraceUprobeMulti));
        }
        // Even an unused ring must be at least one page.
        let entries = if options.pbuf { crate::capture::transport::ring_bytes(0) } else { options.buffer() };
        open.maps.events.set_max_entries(entries)?;
        if let Some(m) = maps {
            open.maps.events.reuse_fd(m.events.as_fd())?;
            open.maps.perf_events.reuse_fd(m.perf_events.as_fd())?;
            open.maps.counts.reuse_fd(m.counts.as_fd())?;
            open.maps.targets.reuse_fd(m.targets.as_fd())?;
            open.maps.thread_states.reuse_fd(m.thread_states.as_fd())?;
            open.maps.known.reuse_fd(m.known.as_fd())?;
            open.maps.graphs.reuse_fd(m.graphs.as_fd())?;
            open.maps.scratches.reuse_fd(m.scratches.as_fd())?;
        }
        if let Some(c) = counters {
            open.maps.pmcs.reuse_fd(c.pmcs.as_fd())?;
            open.maps.accounts.reuse_fd(c.accounts.as_fd())?;
            open.maps.settings.reuse_fd(c.settings.as_fd())?;
        }
        machine::helper::pulse::slow();
        Ok(LoadedObject { skel: open.load()? })
    }

    /// Handles to the maps that this object created.
    pub fn maps(&self) -> libbpf_rs::Result<Maps> {
        let m = &self.skel.maps;
        Ok(Maps {
            events: Box::leak(Box::new(MapHandle::try_from(&m.events)?)),
            perf_events: Box::leak(Box::new(MapHandle::try_from(&m.perf_events)?)),
            counts: MapHandle::try_from(&m.counts)?,
            targets: MapHandle::try_from(&m.targets)?,
            thread_states: MapHandle::try_from(&m.thread_states)?,
            known: MapHandle::try_from(&m.known)?,
            graphs: MapHandle::try_from(&m.graphs)?,
            scratches: MapHandle::try_from(&m.scratches)?,
        })
    }

    fn prog(&self, prog: Prog) -> &ProgramMut<'static> {
        let p = &self.skel.progs;
        match prog {
            Prog::TokenProcess => &p.token_process,
            Prog::TokenDecode => &p.token_decode,
            Prog::TokenEncode => &p.token_encode,
            Prog::TokenExit => &p.token_exit,
            Prog::SchedEnter => &p.sched_enter,
            Prog::SchedExit => &p.sched_exit,
            Prog::SplitEnter => &p.split_enter,
            Prog::SplitExit => &p.split_exit,
            Prog::NodeEnter => &p.node_enter,
            Prog::NodeTensor1 => &p.node_tensor1,
            Prog::NodeTensor2 => &p.node_tensor2,
            Prog::NodeTensor3 => &p.node_tensor3,
            Prog::NodeTensor4 => &p.node_tensor4,
            Prog::NodeExit => &p.node_exit,
            Prog::Kernels => &p.kernels_enter,
            Prog::DispatchKernel => &p.dispatch_kernel,
            Prog::DispatchGraph => &p.dispatch_graph,
            Prog::BatchWrite => &p.batch_write,
            Prog::BatchWritten => &p.batch_written,
            Prog::BatchRead => &p.batch_read,
            Prog::BatchAnswered => &p.batch_answered,
            Prog::GraphEnter => &p.graph_enter,
            Prog::GraphExit => &p.graph_exit,
            Prog::Op => &p.op_enter,
            Prog::Fused => &p.fused_enter,
            Prog::OpExit => &p.op_exit,
            Prog::Barrier => &p.barrier_enter,
            Prog::Tokenize => &p.phase_tokenize,
            Prog::Detokenize => &p.phase_detokenize,
            Prog::Sampling => &p.phase_sampling,
            Prog::SamplerApply => &p.sampler_apply,
            Prog::SamplerAccept => &p.sampler_accept,
            Prog::Load => &p.phase_load,
            Prog::PhaseExit => &p.phase_exit,
            Prog::WaitBackend => &p.wait_backend,
            Prog::WaitSched => &p.wait_sched,
            Prog::WaitContext => &p.wait_context,
            Prog::WaitRead => &p.wait_read,
            Prog::WaitExit => &p.wait_exit,
            Prog::UbatchEnter => &p.ubatch_enter,
            Prog::MemoryClear => &p.memory_clear,
            Prog::MemoryRemove => &p.memory_remove,
            Prog::MemoryCopy => &p.memory_copy,
            Prog::MemoryKeep => &p.memory_keep,
            Prog::MemoryShift => &p.memory_shift,
            Prog::MemoryDivide => &p.memory_divide,
            Prog::TaskPost => &p.task_post,
            Prog::TaskPostAll => &p.task_post_all,
            Prog::TaskResult => &p.task_result,
            Prog::StateSave => &p.state_save,
            Prog::StateLoad => &p.state_load,
            Prog::StateSeqSave => &p.state_seq_save,
            Prog::StateSeqLoad => &p.state_seq_load,
            Prog::StateFileSave => &p.state_file_save,
            Prog::StateFileLoad => &p.state_file_load,
        }
    }

    /// Time spent in our programs so far, ns, and their run count, as accounted by the kernel; zeros while
    /// accounting is off (kernel.bpf_stats_enabled).
    pub fn run_stats(&self) -> (u64, u64) {
        let all = Prog::ALL.iter().map(|&p| run_stats(self.prog(p).as_fd()));
        all.fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }

    /// A program to attach to a probe.
    pub fn program(&self, prog: Prog) -> BorrowedFd<'_> {
        self.prog(prog).as_fd()
    }

    /// The program that does nothing.
    pub fn nothing(&self) -> BorrowedFd<'_> {
        self.skel.progs.nothing.as_fd()
    }
}

/// Time spent in a program, ns, and its run count; zeros while the kernel does not account them.
pub fn run_stats(prog: BorrowedFd<'_>) -> (u64, u64) {
    // SAFETY: an all-zero bpf_prog_info is valid and asks for no arrays; the kernel fills at most `len` bytes.
    let info = unsafe {
        let mut info = std::mem::zeroed::<libbpf_rs::libbpf_sys::bpf_prog_info>();
        let mut len = size_of_val(&info) as u32;
        match libbpf_rs::libbpf_sys::bpf_prog_get_info_by_fd(prog.as_raw_fd(), &raw mut info, &raw mut len) {
            0 => info,
            _ => std::mem::zeroed(),
        }
    };
    (info.run_time_ns, info.run_cnt)
}

impl Maps {
    /// Follows a process from now on. No effect on a process that is already followed.
    pub fn add_target(&self, pid: u32) -> libbpf_rs::Result<()> {
        match self.targets.update(&pid.to_ne_bytes(), &[0; PROC], MapFlags::NO_EXIST) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
            done => done,
        }
    }

    /// Lets the programs of this engine record a process that is followed.
    pub fn admit(&self, pid: u32, engine: u16) -> libbpf_rs::Result<()> {
        let Some(mut proc) = self.targets.lookup(&pid.to_ne_bytes(), MapFlags::ANY)? else { return Ok(()) };
        let Some(engines) = proc.get_mut(ENGINES..ENGINES + 4) else { return Ok(()) };
        let before = u32::from_ne_bytes(engines.try_into().unwrap_or_default());
        let now = before | 1 << (engine & 31);
        if now == before {
            return Ok(());
        }
        engines.copy_from_slice(&now.to_ne_bytes());
        // What the programs learn about the process at this moment is lost and learned again. A process that has
        // ended meanwhile is not added again.
        match self.targets.update(&pid.to_ne_bytes(), &proc, MapFlags::EXIST) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            done => done,
        }
    }

    /// Stops recording a process. It may have ended already.
    pub fn drop_target(&self, pid: u32) {
        let _ = self.targets.delete(&pid.to_ne_bytes());
    }

    /// Treats the graphs seen so far as new, so that their tensors are read again. Entries that cannot be deleted
    /// stay known.
    pub fn forget_graphs(&self) {
        for key in self.graphs.keys().collect::<Vec<_>>() {
            let _ = self.graphs.delete(&key);
        }
    }

    /// Reads the event statistics.
    pub fn event_stats(&self) -> libbpf_rs::Result<EventStats> {
        let mut event_stats = EventStats::default();
        for i in 0..KINDS + COUNTERS {
            let per_cpu =
                self.counts.lookup_percpu(&(i as u32).to_ne_bytes(), MapFlags::ANY)?.unwrap_or_default();
            event_stats.lost_cpu.resize(per_cpu.len(), 0);
            for (cpu, value) in per_cpu.iter().enumerate() {
                let word = |at: usize| {
                    value.get(at..at + 8).map_or(0, |b| u64::from_ne_bytes(b.try_into().unwrap_or_default()))
                };
                let (seen, lost) = (word(0), word(8));
                event_stats.lost_cpu[cpu] += lost;
                match event_stats.kinds.get_mut(i) {
                    Some(k) => {
                        k.seen += seen;
                        k.lost += lost;
                    }
                    None => event_stats.counters[i - KINDS] += seen,
                }
            }
        }
        // Barriers are counted and never sent, so none can be lost.
        event_stats.barriers.seen = event_stats.counters[ev_counter::CNT_BARRIER.0 as usize];
        Ok(event_stats)
    }
}
