//! When a target's threads are off-CPU, and why (`--sched`): the programs of src/bpf/sched.bpf.c, the threads they
//! follow, and writing the events of either backend to the trace.

use std::fs;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;
use std::path::Path;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject};
use machine::proc::StatFields;

use crate::capture::error::SchedError;
use crate::capture::event::{self, FLAG_CUT, Head, OffCpuEvent, STATE_NEW};
use crate::capture::object::{self, Maps};
use crate::capture::process::share;
use crate::capture::skel::sched::{SchedSkel, SchedSkelBuilder};
use crate::capture::skel::types::{ev_answer, ev_kind, ev_phase};
use crate::capture::source::{CaptureOptions, FeatureStatus, Guard, Sink};
use machine::diagnose::{Act, KernelError};
use machine::kernel::btf::TaskOffsets;
use machine::kernel::kallsyms::{self, KernelFunction};
use machine::kernel::{tracefs, tracepoint};
use machine::usage;
use pfi::record::{Availability, OffCpu, Tristate};
use pfi::{Encoder, WriteError};

/// Its name in the trace.
pub const NAME: &str = "scheduler";
/// Kernel functions: a thread that waits inside the first one waits in a page fault, inside the others for block I/O.
const PLACES: [&str; 3] = ["handle_mm_fault", "io_schedule", "io_schedule_timeout"];

/// The scheduler's tracepoints and the threads that are followed.
pub struct Scheduler {
    skel: SchedSkel<'static>,
    links: Vec<Link>,
    /// When watching stopped, CLOCK_MONOTONIC ns.
    left: u64,
    /// Threads reported as still off-CPU at that time.
    cut: u64,
    /// Why page faults and block I/O are not identified; empty if they are.
    blind: String,
}

/// Offsets of the fields read, in the order of the programs' constants.
fn offsets() -> Result<[u32; 6], SchedError> {
    let field = |category, event, field| {
        tracepoint::field_offset(category, event, field)
            .map_err(|source| SchedError::NoEvent { event, source })
    };
    tracepoint::ensure_mounted().map_err(SchedError::Mount)?;
    let switch = |name| field("sched", "sched_switch", name);
    let task = |name| field("task", "task_newtask", name);
    let pid = field("sched", "sched_wakeup", "pid")?;
    Ok([
        switch("prev_state")?,
        switch("next_pid")?,
        switch("next_comm")?,
        pid,
        task("pid")?,
        task("clone_flags")?,
    ])
}

/// Addresses of [`PLACES`], and the reason if they are unknown; empty if the first two are known.
fn places() -> ([KernelFunction; 3], String) {
    match kallsyms::places(PLACES) {
        Ok(places) if places[0].len > 0 && places[1].len > 0 => (places, String::new()),
        Ok(places) => {
            let why = "/proc/kallsyms hides the addresses of kernel functions (sysctl kernel.kptr_restrict)";
            (places, why.into())
        }
        Err(e) => (Default::default(), format!("/proc/kallsyms: {e}")),
    }
}

/// Whether the kernel has what is needed: Ok says why page faults and block I/O are not identified; empty if they are.
///
/// # Errors
/// What is missing.
pub fn offered() -> Result<String, SchedError> {
    offsets().map(|_| places().1)
}

impl Scheduler {
    /// Loads the programs; they share the maps of the recording. With a `task` they can bridge switches they did
    /// not see.
    ///
    /// # Errors
    /// What is missing.
    pub fn load(
        maps: &Maps,
        options: &CaptureOptions,
        task: Option<TaskOffsets>,
    ) -> Result<Scheduler, SchedError> {
        let failed = |act| move |e| KernelError::libbpf(act, e);
        let at = offsets()?;
        let (places, blind) = places();
        // The skeleton borrows its object's storage, and lives as long as the recording.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = SchedSkelBuilder::default().open(storage).map_err(failed(Act::Load))?;
        if let Some(data) = open.maps.rodata_data.as_deref_mut() {
            let k = &mut data.k;
            (k.pbuf, k.wake_bytes) = (options.pbuf.into(), options.wake());
            k.ran_off = task.and_then(|t| t.ran).unwrap_or(0);
            [
                k.prev_state_off,
                k.next_pid_off,
                k.next_comm_off,
                k.pid_off,
                k.new_pid_off,
                k.clone_flags_off,
            ] = at;
            let [fault, io @ ..] = places;
            (k.fault.at, k.fault.len) = (fault.at, fault.len);
            for (place, io) in k.io.iter_mut().zip(io) {
                (place.at, place.len) = (io.at, io.len);
            }
        }
        share!(open.maps, maps).map_err(failed(Act::Map))?;
        let skel = open.load().map_err(failed(Act::Load))?;
        Ok(Scheduler { skel, links: Vec::new(), left: 0, cut: 0, blind })
    }

    /// Starts watching. Existing threads must be added afterwards ([`Scheduler::follow`]); new ones are seen when
    /// they start.
    pub fn watch(&mut self) -> Result<(), KernelError> {
        let p = &self.skel.progs;
        // Thread starts last: a thread is useless if the rest of its life is not seen.
        for program in [&p.switches, &p.waking, &p.wakes, &p.wakes_new, &p.begins] {
            match program.attach() {
                Ok(link) => self.links.push(link),
                Err(e) => {
                    self.links.clear();
                    return Err(KernelError::libbpf(Act::Probe, e));
                }
            }
        }
        Ok(())
    }

    /// Follows the current threads of a process; threads already followed are not changed.
    pub fn follow(&self, pid: u32) {
        for tid in threads(pid) {
            let head = Head { tgid: pid, tid, kind: ev_kind::EV_OFFCPU.0 as u16, ..Head::default() };
            let fresh =
                OffCpuEvent { h: head, phase: ev_phase::PHASE_UNKNOWN.0 as u8, ..OffCpuEvent::default() };
            let (map, key) = (&self.skel.maps.threads, tid.to_ne_bytes());
            let added = map.update(&key, event::bytes(&fresh), MapFlags::NO_EXIST).is_ok();
            // It may have ended before it was added, and its id will be reused.
            if added && !lives(pid, tid) {
                let _ = map.delete(&key);
            }
        }
    }

    /// Stops watching. Returns what must still be removed, which takes the kernel a while.
    pub fn leave(&mut self) -> Vec<Guard> {
        if !self.links.is_empty() {
            self.left = usage::now();
        }
        // What is left is slow to drop.
        let _ = tracefs::close(&mut self.links);
        self.links.drain(..).map(|link| Box::new(link) as Guard).collect()
    }

    /// Passes on, as cut, what is known about the threads that were off-CPU when watching stopped. Forgets all threads.
    pub fn close(&mut self, sink: &Sink) {
        let map = &self.skel.maps.threads;
        for key in map.keys().collect::<Vec<_>>() {
            if let Ok(Some(value)) = map.lookup(&key, MapFlags::ANY)
                && let Some(offcpu) = cut(&value, self.left)
            {
                self.cut += 1;
                sink.borrow_mut()(event::bytes(&offcpu));
            }
            let _ = map.delete(&key);
        }
    }

    /// Threads that were reported as still off-CPU.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// Its status; `unfollowed` threads did not fit in the table.
    pub fn feature_status(&self, unfollowed: u64) -> FeatureStatus {
        let mut why = "BPF on the tracepoints sched_switch, sched_waking, sched_wakeup".to_owned();
        let mut state = Availability::Whole;
        if !self.blind.is_empty() {
            why.push_str(&format!(
                "; page faults and block I/O cannot be distinguished from other waits: {}",
                self.blind
            ));
            state = Availability::Partly;
        }
        if unfollowed > 0 {
            why.push_str(&format!("; {unfollowed} threads did not fit in the table of followed threads"));
            state = Availability::Partly;
        }
        FeatureStatus { state, why }
    }

    /// Time spent in the programs so far, ns, and their run count; zeros while accounting is off.
    pub fn run_stats(&self) -> (u64, u64) {
        let p = &self.skel.progs;
        let all = [&p.switches, &p.waking, &p.wakes, &p.wakes_new, &p.begins];
        all.iter().map(|p| object::run_stats(p.as_fd())).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }
}

/// Ids of a process's current threads.
pub fn threads(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|t| t.file_name().to_str()?.parse().ok()).collect()
}

/// A thread's name; empty if it has ended.
pub fn comm(tid: u32) -> [u8; 16] {
    let text = fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
    let mut comm = [0; 16];
    comm.iter_mut().zip(text.iter().filter(|b| **b != b'\n')).for_each(|(to, from)| *to = *from);
    comm
}

fn lives(pid: u32, tid: u32) -> bool {
    StatFields::read(Path::new(&format!("/proc/{pid}/task/{tid}/stat"))).is_some_and(|s| s.is_alive())
}

/// The event of a thread that is still off-CPU at `end`, if the table's value says so.
fn cut(value: &[u8], end: u64) -> Option<OffCpuEvent> {
    let mut offcpu: OffCpuEvent = event::read(value)?;
    (offcpu.h.ts, offcpu.h.flags) = (end.max(offcpu.out), FLAG_CUT);
    (u32::from(offcpu.phase) == ev_phase::PHASE_OFFCPU.0).then_some(offcpu)
}

fn answer(a: u8) -> Tristate {
    match ev_answer(a.into()) {
        ev_answer::ANSWER_YES => Tristate::Yes,
        ev_answer::ANSWER_NO => Tristate::No,
        _ => Tristate::Unknown,
    }
}

/// A thread's name, up to the first byte that is not UTF-8.
fn name(comm: &[u8; 16]) -> &str {
    let text = comm.split(|&b| b == 0).next().unwrap_or_default();
    match std::str::from_utf8(text) {
        Ok(name) => name,
        Err(e) => std::str::from_utf8(&text[..e.valid_up_to()]).unwrap_or_default(),
    }
}

/// How long the thread was runnable at the end of its off-CPU time; `None` if it slept and its wakeup was not seen.
fn runnable(e: &OffCpuEvent) -> Option<u64> {
    let cut = e.h.flags & FLAG_CUT != 0;
    match (e.state, e.woken) {
        (0 | STATE_NEW, _) => Some(e.h.ts.saturating_sub(e.out)),
        (_, 0) => cut.then_some(0),
        (_, woken) => Some(e.h.ts.saturating_sub(woken.max(e.out))),
    }
}

/// Writes an off-CPU event to the trace.
pub fn write<W: Write>(enc: &mut Encoder<W>, e: &OffCpuEvent) -> Result<(), WriteError> {
    let cut = e.h.flags & FLAG_CUT != 0;
    // I/O is completed by the device's interrupt, whichever thread it interrupts.
    let waker = if e.io == ev_answer::ANSWER_YES.0 as u8 { 0 } else { e.waker };
    // The idle task has a different name on each CPU; its id, 0, identifies it.
    let others = [(e.by, &e.by_comm), (e.from, &e.from_comm), (waker, &e.waker_comm)];
    for (tid, comm) in others.into_iter().filter(|(tid, _)| *tid != 0) {
        enc.task(tid, name(comm))?;
    }
    enc.off_cpu(&OffCpu {
        pid: e.h.tgid,
        tid: e.h.tid,
        t: e.out as i64,
        dur: e.h.ts.saturating_sub(e.out),
        runnable: runnable(e),
        state: e.state,
        io: answer(e.io),
        fault: answer(e.fault),
        cpu: e.cpu,
        to_cpu: e.to_cpu,
        by: e.by,
        from: e.from,
        waker,
        cut,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offcpu(state: u8, woken: u64, flags: u16) -> OffCpuEvent {
        let h = Head { ts: 1000, flags, ..Head::default() };
        OffCpuEvent {
            h,
            out: 100,
            woken,
            state,
            phase: ev_phase::PHASE_OFFCPU.0 as u8,
            ..OffCpuEvent::default()
        }
    }

    #[test]
    fn a_thread_could_run_from_its_wake_up_on() {
        assert_eq!(runnable(&offcpu(0, 0, 0)), Some(900), "preempted");
        assert_eq!(runnable(&offcpu(STATE_NEW, 100, 0)), Some(900), "new");
        assert_eq!(runnable(&offcpu(1, 700, 0)), Some(300));
        assert_eq!(runnable(&offcpu(1, 0, 0)), None, "its wake-up was not seen");
        assert_eq!(runnable(&offcpu(1, 0, FLAG_CUT)), Some(0), "it still sleeps");
        assert_eq!(runnable(&offcpu(2, 50, 0)), Some(900), "never more than it was away");
    }

    #[test]
    fn only_threads_that_are_away_are_cut() {
        let value = event::bytes(&offcpu(2, 0, 0)).to_vec();
        let cut_at = |end| cut(&value, end).map(|a| (a.h.ts, a.h.flags));
        assert_eq!(cut_at(500), Some((500, FLAG_CUT)));
        assert_eq!(cut_at(50), Some((100, FLAG_CUT)), "it left while the recording ended");
        assert!(cut(&value[..50], 500).is_none());
        let on = OffCpuEvent { phase: ev_phase::PHASE_ON.0 as u8, ..offcpu(2, 0, 0) };
        assert!(cut(event::bytes(&on), 500).is_none());
    }

    #[test]
    fn names_end_where_text_does() {
        let comm = |text: &[u8]| {
            let mut comm = [0; 16];
            comm[..text.len()].copy_from_slice(text);
            comm
        };
        assert_eq!(name(&comm(b"stress-ng")), "stress-ng");
        assert_eq!(name(&comm(b"abcdefghijklmnop")), "abcdefghijklmnop");
        assert_eq!(name(&comm(b"a\xffb")), "a");
        assert_eq!(name(&[0; 16]), "");
    }
}
