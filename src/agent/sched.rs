//! When the threads of a target are off the CPU, and why (`--sched`): the programs of src/bpf/sched.bpf.c and the threads
//! that they follow; and what becomes of the events, whichever road they come by. Uses `btf`, `event`, `kallsyms`, `object` (for
//! maps and knobs), `process` (to share maps), `refusal`, `skel`, `source`, `target` and `tracepoint`; writes with `trace`.

use std::fs;
use std::io::Write;
use std::mem::MaybeUninit;
use std::os::fd::AsFd;

use libbpf_rs::skel::{OpenSkel, SkelBuilder};
use libbpf_rs::{Link, MapCore, MapFlags, OpenObject};

use super::btf::Task;
use super::event::{self, Away, FLAG_CUT, Head, STATE_NEW};
use super::kallsyms::{self, Place};
use super::object::{self, Maps};
use super::process::share;
use super::refusal::{self, Act};
use super::skel::sched::{SchedSkel, SchedSkelBuilder};
use super::skel::types::{ev_answer, ev_kind, ev_phase};
use super::source::{Guard, Knobs, Sink, Standing};
use super::{tracepoint, usage};
use crate::trace::record::{Answer, Availability, OffCpu};
use crate::trace::{Encoder, WriteError};

/// What the trace calls it.
pub const NAME: &str = "scheduler";
/// Functions of the kernel: whoever waits within the first waits in a page fault, within the others for block I/O.
const PLACES: [&str; 3] = ["handle_mm_fault", "io_schedule", "io_schedule_timeout"];

/// The scheduler's tracepoints and the threads that they are watched for.
pub struct Scheduler {
    skel: SchedSkel<'static>,
    links: Vec<Link>,
    /// When it was left, CLOCK_MONOTONIC ns.
    left: u64,
    /// Threads told as still away then.
    cut: u64,
    /// Why page faults and block I/O are not told, empty when they are.
    blind: String,
}

/// Offsets of the fields read, in the order of the programs' knobs.
fn offsets() -> Result<[u32; 6], String> {
    let field = |category, event, field| {
        tracepoint::field_offset(category, event, field)
            .map_err(|e| format!("tracefs does not show the event {event}: {e}"))
    };
    tracepoint::ensure_mounted().map_err(|e| format!("tracefs cannot be mounted: {e}"))?;
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

/// Where [`PLACES`] are; and why not, empty when the first two are known.
fn places() -> ([Place; 3], String) {
    match kallsyms::places(PLACES) {
        Ok(places) if places[0].len > 0 && places[1].len > 0 => (places, String::new()),
        Ok(places) => {
            let why =
                "/proc/kallsyms does not tell where the kernel's functions lie (sysctl kernel.kptr_restrict)";
            (places, why.into())
        }
        Err(e) => (Default::default(), format!("/proc/kallsyms: {e}")),
    }
}

/// Whether the kernel shows what is needed: Ok says why page faults and block I/O are not told apart, empty when they are.
///
/// # Errors
/// What is missing, in words.
pub fn offered() -> Result<String, String> {
    offsets().map(|_| places().1)
}

impl Scheduler {
    /// Loads the programs; they share the maps of the recording. With a `task` they bridge what they were not shown.
    ///
    /// # Errors
    /// What is missing, in words.
    pub fn load(maps: &Maps, knobs: &Knobs, task: Option<Task>) -> Result<Scheduler, String> {
        let failed = |act| move |e: libbpf_rs::Error| refusal::explain(act, &e);
        let at = offsets()?;
        let (places, blind) = places();
        // The skeleton borrows its object's storage, and lives as long as the recording.
        let storage: &'static mut MaybeUninit<OpenObject> = Box::leak(Box::new(MaybeUninit::uninit()));
        let mut open = SchedSkelBuilder::default().open(storage).map_err(failed(Act::Load))?;
        if let Some(data) = open.maps.rodata_data.as_deref_mut() {
            let k = &mut data.k;
            (k.pbuf, k.wake_bytes) = (knobs.pbuf.into(), knobs.wake());
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

    /// Watches. Threads that are there must be told ([`Scheduler::follow`]) after it; new ones are seen as they begin.
    pub fn watch(&mut self) -> Result<(), String> {
        let p = &self.skel.progs;
        // Births last: a thread of whose life the rest is not seen is of no use.
        for program in [&p.switches, &p.waking, &p.wakes, &p.wakes_new, &p.begins] {
            match program.attach() {
                Ok(link) => self.links.push(link),
                Err(e) => {
                    self.links.clear();
                    return Err(refusal::explain(Act::Probe, &e));
                }
            }
        }
        Ok(())
    }

    /// Follows the threads that a process has now; those followed already stay as they are.
    pub fn follow(&self, pid: u32) {
        for tid in threads(pid) {
            let head = Head { tgid: pid, tid, kind: ev_kind::EV_AWAY.0 as u16, ..Head::default() };
            let fresh = Away { h: head, phase: ev_phase::PHASE_UNKNOWN.0 as u8, ..Away::default() };
            let (map, key) = (&self.skel.maps.threads, tid.to_ne_bytes());
            let added = map.update(&key, event::bytes(&fresh), MapFlags::NO_EXIST).is_ok();
            // Its end may have come before it was added, and the number is another's next.
            if added && !lives(pid, tid) {
                let _ = map.delete(&key);
            }
        }
    }

    /// Watches no more. Gives what is still to be removed: the kernel takes its time.
    pub fn leave(&mut self) -> Vec<Guard> {
        if !self.links.is_empty() {
            self.left = usage::now();
        }
        self.links.drain(..).map(|link| Box::new(link) as Guard).collect()
    }

    /// Hands on, as cut, what is known of the threads that were away when it was left; forgets all threads.
    pub fn close(&mut self, sink: &Sink) {
        let map = &self.skel.maps.threads;
        for key in map.keys().collect::<Vec<_>>() {
            if let Ok(Some(value)) = map.lookup(&key, MapFlags::ANY)
                && let Some(away) = cut(&value, self.left)
            {
                self.cut += 1;
                sink.borrow_mut()(event::bytes(&away));
            }
            let _ = map.delete(&key);
        }
    }

    /// Threads that were told as still away.
    pub fn cut(&self) -> u64 {
        self.cut
    }

    /// How it stands; `unfollowed` threads found no room.
    pub fn standing(&self, unfollowed: u64) -> Standing {
        let mut why = "BPF on the tracepoints sched_switch, sched_waking, sched_wakeup".to_owned();
        let mut state = Availability::Whole;
        if !self.blind.is_empty() {
            why.push_str(&format!(
                "; page faults and block I/O are not told apart from other waits: {}",
                self.blind
            ));
            state = Availability::Partly;
        }
        if unfollowed > 0 {
            why.push_str(&format!("; {unfollowed} threads found no room in the table of those followed"));
            state = Availability::Partly;
        }
        Standing { state, why }
    }

    /// Time in the programs so far, ns, and their runs; zeros while nobody counts them.
    pub fn run_stats(&self) -> (u64, u64) {
        let p = &self.skel.progs;
        let all = [&p.switches, &p.waking, &p.wakes, &p.wakes_new, &p.begins];
        all.iter().map(|p| object::run_stats(p.as_fd())).fold((0, 0), |a, b| (a.0 + b.0, a.1 + b.1))
    }
}

/// Numbers of the threads that a process has now.
pub fn threads(pid: u32) -> Vec<u32> {
    let tasks = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    tasks.filter_map(|t| t.file_name().to_str()?.parse().ok()).collect()
}

fn lives(pid: u32, tid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/task/{tid}/stat")).unwrap_or_default();
    stat.rsplit(')')
        .next()
        .is_some_and(|rest| !matches!(rest.trim_start().chars().next(), None | Some('Z' | 'X')))
}

/// The event of a thread that is still away at `end`, if that is what the table's value says.
fn cut(value: &[u8], end: u64) -> Option<Away> {
    let mut away: Away = event::read(value)?;
    (away.h.ts, away.h.flags) = (end.max(away.out), FLAG_CUT);
    (u32::from(away.phase) == ev_phase::PHASE_AWAY.0).then_some(away)
}

fn answer(a: u8) -> Answer {
    match ev_answer(a.into()) {
        ev_answer::ANSWER_YES => Answer::Yes,
        ev_answer::ANSWER_NO => Answer::No,
        _ => Answer::Unknown,
    }
}

/// A thread's name, as far as it is text.
fn name(comm: &[u8; 16]) -> &str {
    let text = comm.split(|&b| b == 0).next().unwrap_or_default();
    match std::str::from_utf8(text) {
        Ok(name) => name,
        Err(e) => std::str::from_utf8(&text[..e.valid_up_to()]).unwrap_or_default(),
    }
}

/// How long the thread could have run at the end of its time away; `None` when it slept and its wake-up was not seen.
fn runnable(e: &Away) -> Option<u64> {
    let cut = e.h.flags & FLAG_CUT != 0;
    match (e.state, e.woken) {
        (0 | STATE_NEW, _) => Some(e.h.ts.saturating_sub(e.out)),
        (_, 0) => cut.then_some(0),
        (_, woken) => Some(e.h.ts.saturating_sub(woken.max(e.out))),
    }
}

/// Writes an event.
pub fn write<W: Write>(enc: &mut Encoder<W>, e: &Away) -> Result<(), WriteError> {
    let cut = e.h.flags & FLAG_CUT != 0;
    // A device is done when its interrupt says so, whatever thread that meets.
    let waker = if e.io == ev_answer::ANSWER_YES.0 as u8 { 0 } else { e.waker };
    // The idle task has a name for each CPU, and 0 tells it.
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

    fn away(state: u8, woken: u64, flags: u16) -> Away {
        let h = Head { ts: 1000, flags, ..Head::default() };
        Away { h, out: 100, woken, state, phase: ev_phase::PHASE_AWAY.0 as u8, ..Away::default() }
    }

    #[test]
    fn a_thread_could_run_from_its_wake_up_on() {
        assert_eq!(runnable(&away(0, 0, 0)), Some(900), "preempted");
        assert_eq!(runnable(&away(STATE_NEW, 100, 0)), Some(900), "new");
        assert_eq!(runnable(&away(1, 700, 0)), Some(300));
        assert_eq!(runnable(&away(1, 0, 0)), None, "its wake-up was not seen");
        assert_eq!(runnable(&away(1, 0, FLAG_CUT)), Some(0), "it still sleeps");
        assert_eq!(runnable(&away(2, 50, 0)), Some(900), "never more than it was away");
    }

    #[test]
    fn only_threads_that_are_away_are_cut() {
        let value = event::bytes(&away(2, 0, 0)).to_vec();
        let cut_at = |end| cut(&value, end).map(|a| (a.h.ts, a.h.flags));
        assert_eq!(cut_at(500), Some((500, FLAG_CUT)));
        assert_eq!(cut_at(50), Some((100, FLAG_CUT)), "it left while the recording ended");
        assert!(cut(&value[..50], 500).is_none());
        let on = Away { phase: ev_phase::PHASE_ON.0 as u8, ..away(2, 0, 0) };
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
