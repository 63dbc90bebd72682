//! Time off the CPU without BPF: the scheduler's tracepoints as perf events on every CPU, filtered in the kernel by the
//! numbers of the threads followed; src/bpf/sched.bpf.c in user space. Uses `event`, `replay`, `sched` (for what a process's
//! threads are) and `tracepoint`.

use std::collections::HashMap;
use std::fs;
use std::os::fd::OwnedFd;

use super::super::event::{Away, FLAG_CUT, Head, STATE_NEW};
use super::super::skel::types::{ev_answer, ev_kind, ev_phase};
use super::super::tracepoint::{self, field_offset};
use super::super::{sched, usage};
use super::replay::{Out, Sample};
use super::{event, failed};

/// Tracepoints of the scheduler, in the order of [`Sched::ids`].
const POINTS: [&str; 4] = ["sched_switch", "sched_waking", "sched_wakeup", "sched_wakeup_new"];
/// Numbers that the kernel will give next and that the filter passes beforehand: a new thread has one of them.
const AHEAD: u32 = 1024;
/// The first number that the kernel gives again when it has given the last (RESERVED_PIDS of kernel/pid.c).
const FIRST_AGAIN: u32 = 300;
/// Most pieces of a filter: its text must fit into a page.
const PIECES: usize = 24;
/// As src/bpf/sched.bpf.c has them.
const DEAD: u64 = 0x30;
const PREEMPTED: u64 = 0x100;
const UNINTERRUPTIBLE: u8 = 2;
/// TRACE_FLAG_HARDIRQ and TRACE_FLAG_SOFTIRQ of an event's common_flags (include/linux/trace_events.h).
const IN_INTERRUPT: u8 = 0x18;
/// A switch is shown twice while one filter takes another's place, this far apart at most, ns.
const TWICE: u64 = 200_000;
/// Names remembered.
const NAMES: usize = 4096;

/// Offsets of fields in the samples.
struct Places {
    prev_comm: u32,
    prev_pid: u32,
    prev_state: u32,
    next_comm: u32,
    next_pid: u32,
    pid: u32,
}

/// The scheduler's events and the threads followed.
pub struct Sched {
    ids: [u32; POINTS.len()],
    at: Places,
    /// Each CPU's number and the event whose ring takes its samples.
    leaders: Vec<(u32, OwnedFd)>,
    /// By CPU.
    events: Vec<Vec<OwnedFd>>,
    /// By CPU: samples that closed events have made, that came, and that must have been between two others.
    made: Vec<u64>,
    received: Vec<u64>,
    missed: Vec<u64>,
    threads: HashMap<u32, Away>,
    names: HashMap<u32, [u8; 16]>,
    /// What the filter passes.
    ranges: Vec<(u32, u32)>,
    /// When it was left, CLOCK_MONOTONIC ns.
    left: u64,
}

fn take<const N: usize>(raw: &[u8], at: u32) -> Option<[u8; N]> {
    raw.get(at as usize..)?.get(..N)?.try_into().ok()
}

fn number(raw: &[u8], at: u32) -> Option<u32> {
    take(raw, at).map(u32::from_ne_bytes)
}

/// The number that the kernel gave last, to whatever began.
fn last_given() -> u32 {
    let text = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split_ascii_whitespace().last().and_then(|n| n.parse().ok()).unwrap_or(0)
}

/// Ranges that hold all of `tids`, sorted, and the numbers that come next; few, and so with some of others.
fn ranges(mut tids: Vec<u32>, last: u32, most: u32) -> Vec<(u32, u32)> {
    crate::order::by_key(&mut tids, |tid| ((*tid).into(), 0));
    let next = last.saturating_add(1);
    let mut gap = 1;
    loop {
        let mut out: Vec<(u32, u32)> = Vec::new();
        for &tid in &tids {
            match out.last_mut() {
                Some(r) if tid - r.1 <= gap => r.1 = tid,
                _ => out.push((tid, tid)),
            }
        }
        if out.len() <= PIECES {
            out.push((next, next.saturating_add(AHEAD)));
            if next.saturating_add(AHEAD) > most {
                out.push((FIRST_AGAIN, FIRST_AGAIN + AHEAD));
            }
            return out;
        }
        gap = gap.saturating_mul(4);
    }
}

fn filter(fields: &[&str], ranges: &[(u32, u32)]) -> String {
    let one = |field: &&str, r: &(u32, u32)| format!("({field}>={} && {field}<={})", r.0, r.1);
    let all: Vec<String> = fields.iter().flat_map(|f| ranges.iter().map(move |r| one(f, r))).collect();
    all.join(" || ")
}

impl Sched {
    /// # Errors
    /// What is missing, in words.
    pub fn new(leaders: Vec<(u32, OwnedFd)>) -> Result<Sched, String> {
        let told = || {
            let switch = |field| field_offset("sched", POINTS[0], field);
            let at = Places {
                prev_comm: switch("prev_comm")?,
                prev_pid: switch("prev_pid")?,
                prev_state: switch("prev_state")?,
                next_comm: switch("next_comm")?,
                next_pid: switch("next_pid")?,
                pid: field_offset("sched", POINTS[2], "pid")?,
            };
            let mut ids = [0; POINTS.len()];
            for (id, name) in ids.iter_mut().zip(POINTS) {
                *id = tracepoint::id("sched", name)?;
            }
            Ok::<_, std::io::Error>((ids, at))
        };
        let (ids, at) = told().map_err(|e| format!("tracefs does not show the scheduler's events: {e}"))?;
        let none = vec![0; leaders.len()];
        Ok(Sched {
            ids,
            at,
            events: leaders.iter().map(|_| Vec::new()).collect(),
            leaders,
            made: none.clone(),
            received: none.clone(),
            missed: none,
            threads: HashMap::new(),
            names: HashMap::new(),
            ranges: Vec::new(),
            left: 0,
        })
    }

    /// Follows the threads that a process has now, from the next [`Sched::renew`] on.
    pub fn follow(&mut self, pid: u32) {
        for tid in sched::threads(pid) {
            self.threads.entry(tid).or_insert(fresh(pid, tid, ev_phase::PHASE_UNKNOWN));
        }
    }

    /// A thread begins.
    pub fn begins(&mut self, tgid: u32, tid: u32) {
        self.threads.insert(tid, fresh(tgid, tid, ev_phase::PHASE_UNBORN));
    }

    /// Puts a new filter in the old one's place where that will not do any more. A filter cannot be changed, so there are
    /// new events, which begin before the old ones end.
    ///
    /// # Errors
    /// What the kernel refuses, in words.
    pub fn renew(&mut self) -> Result<(), String> {
        let passed = |tid: u32, r: &[(u32, u32)]| r.iter().any(|r| (r.0..=r.1).contains(&tid));
        let last = last_given();
        let soon = last.saturating_add(AHEAD / 2);
        if self.left != 0
            || passed(soon, &self.ranges) && self.threads.keys().all(|&t| passed(t, &self.ranges))
        {
            return Ok(());
        }
        let most = fs::read_to_string("/proc/sys/kernel/pid_max").unwrap_or_default();
        let most = most.trim().parse().unwrap_or(u32::MAX);
        self.ranges = ranges(self.threads.keys().copied().collect(), last, most);
        let (of_switch, of_wake) =
            (filter(&["prev_pid", "next_pid"], &self.ranges), filter(&["pid"], &self.ranges));
        for ((cpu, leader), events) in self.leaders.iter().zip(&mut self.events) {
            let mut new = Vec::new();
            for (i, id) in self.ids.iter().enumerate() {
                let e = event::tracepoint(*id, *cpu, false, false).map_err(|e| failed(&e))?;
                event::filter(&e, if i == 0 { &of_switch } else { &of_wake }).map_err(|e| failed(&e))?;
                event::join(&e, leader).map_err(|e| failed(&e))?;
                event::enable(&e).map_err(|e| failed(&e))?;
                new.push(e);
            }
            let old = std::mem::replace(events, new);
            old.iter().for_each(|e| drop(event::disable(e)));
            self.made[self.leaders.iter().position(|l| l.0 == *cpu).unwrap_or(0)] +=
                old.iter().map(|e| event::count(e).unwrap_or(0)).sum::<u64>();
        }
        Ok(())
    }

    /// Whether a sample is of one of these events. It is counted.
    pub fn received(&mut self, cpu: usize, raw: &[u8]) -> bool {
        let id = take(raw, 0).map(|id| u32::from(u16::from_ne_bytes(id)));
        let ours = id.is_some_and(|id| self.ids.contains(&id));
        if let Some(n) = self.received.get_mut(cpu).filter(|_| ours) {
            *n += 1;
        }
        ours
    }

    /// A sample in its turn; `cpu` counts those that are on.
    pub fn sample(&mut self, cpu: usize, s: &Sample<'_>, out: &mut Out) {
        let id = take(s.raw, 0).map_or(0, |id| u32::from(u16::from_ne_bytes(id)));
        match self.ids.iter().position(|i| *i == id) {
            Some(0) => self.switches(cpu, s, out),
            Some(1) => self.waking(s),
            Some(2) => self.wakes(s),
            Some(_) => self.wakes_new(cpu, s),
            None => {}
        }
    }

    fn switches(&mut self, cpu: usize, s: &Sample<'_>, out: &mut Out) {
        let (Some(prev), Some(next)) = (number(s.raw, self.at.prev_pid), number(s.raw, self.at.next_pid))
        else {
            return;
        };
        let name = |at| take(s.raw, at).unwrap_or_default();
        let (prev_comm, next_comm) = (name(self.at.prev_comm), name(self.at.next_comm));
        let state = take(s.raw, self.at.prev_state).map_or(0, u64::from_ne_bytes);
        let on = self.leaders.get(cpu).map_or(0, |l| l.0 as u16);
        let mut missed = 0;
        let away = |t: &Away| u32::from(t.phase) == ev_phase::PHASE_AWAY.0;
        if state & DEAD != 0 {
            // One that was not seen to come, and never leaves again.
            missed += u64::from(self.threads.remove(&prev).is_some_and(|t| away(&t)));
        }
        if let Some(t) = self.threads.get_mut(&prev) {
            let away = away(t);
            if away && t.by == next && t.cpu == on && s.at.saturating_sub(t.out) < TWICE {
                return;
            }
            missed += u64::from(away);
            (t.out, t.woken, t.by, t.by_comm, t.cpu) = (s.at, 0, next, next_comm, on);
            t.state = if state < PREEMPTED { state as u8 } else { 0 };
            t.phase = ev_phase::PHASE_AWAY.0 as u8;
            let known =
                if t.state == UNINTERRUPTIBLE { ev_answer::ANSWER_UNKNOWN } else { ev_answer::ANSWER_NO };
            (t.io, t.fault) = (known.0 as u8, known.0 as u8);
        }
        if let Some(t) = self.threads.get_mut(&next) {
            match ev_phase(t.phase.into()) {
                ev_phase::PHASE_AWAY => {
                    (t.h.ts, t.from, t.from_comm, t.to_cpu) = (s.at, prev, prev_comm, on);
                    out.send(ev_kind::EV_AWAY, t);
                }
                ev_phase::PHASE_UNBORN => missed += 1,
                ev_phase::PHASE_ON if s.at.saturating_sub(t.h.ts) >= TWICE => missed += 1,
                _ => {}
            }
            t.phase = ev_phase::PHASE_ON.0 as u8;
            t.waker = 0;
        }
        if let Some(all) = self.missed.get_mut(cpu) {
            *all += missed;
        }
    }

    fn waking(&mut self, s: &Sample<'_>) {
        let Some(tid) = number(s.raw, self.at.pid).filter(|t| self.threads.contains_key(t)) else { return };
        let waker = if s.raw.get(2).is_some_and(|flags| flags & IN_INTERRUPT != 0) { 0 } else { s.tid };
        let comm = self.name(waker);
        if let Some(t) = self.threads.get_mut(&tid) {
            (t.waker, t.waker_comm) = (waker, comm);
        }
    }

    fn wakes(&mut self, s: &Sample<'_>) {
        let Some(t) = number(s.raw, self.at.pid).and_then(|t| self.threads.get_mut(&t)) else { return };
        match ev_phase(t.phase.into()) {
            ev_phase::PHASE_AWAY if t.woken == 0 => t.woken = s.at,
            // Woken before it slept.
            ev_phase::PHASE_ON => t.waker = 0,
            _ => {}
        }
    }

    fn wakes_new(&mut self, cpu: usize, s: &Sample<'_>) {
        let comm = self.name(s.tid);
        let on = self.leaders.get(cpu).map_or(0, |l| l.0 as u16);
        let Some(t) = number(s.raw, self.at.pid).and_then(|t| self.threads.get_mut(&t)) else { return };
        if u32::from(t.phase) != ev_phase::PHASE_UNBORN.0 {
            return;
        }
        (t.out, t.woken, t.cpu, t.waker, t.waker_comm) = (s.at, s.at, on, s.tid, comm);
        let no = ev_answer::ANSWER_NO.0 as u8;
        (t.state, t.io, t.fault, t.phase) = (STATE_NEW, no, no, ev_phase::PHASE_AWAY.0 as u8);
    }

    /// A thread's name, which a waking does not tell.
    fn name(&mut self, tid: u32) -> [u8; 16] {
        if self.names.len() >= NAMES {
            self.names.clear();
        }
        let read = || {
            let text = fs::read(format!("/proc/{tid}/comm")).unwrap_or_default();
            let mut comm = [0; 16];
            comm.iter_mut().zip(text.iter().filter(|b| **b != b'\n')).for_each(|(to, from)| *to = *from);
            comm
        };
        if tid == 0 { [0; 16] } else { *self.names.entry(tid).or_insert_with(read) }
    }

    /// Watches no more.
    pub fn leave(&mut self) {
        self.left = usage::now();
        for (events, made) in self.events.iter_mut().zip(&mut self.made) {
            events.iter().for_each(|e| drop(event::disable(e)));
            *made += events.drain(..).map(|e| event::count(&e).unwrap_or(0)).sum::<u64>();
        }
    }

    /// Tells, as cut, of the threads that were away when it was left.
    pub fn close(&mut self, out: &mut Out) {
        for (_, mut t) in self.threads.drain().filter(|(_, t)| u32::from(t.phase) == ev_phase::PHASE_AWAY.0) {
            (t.h.ts, t.h.flags) = (self.left.max(t.out), FLAG_CUT);
            out.send(ev_kind::EV_AWAY, &t);
        }
    }

    /// What was lost, whole only when it was left: samples, each of which may have told of a time away, or times that were
    /// not shown. Adds it to `by_cpu`.
    pub fn lost(&self, by_cpu: &mut [u64]) -> u64 {
        let mut all = 0;
        for (((made, received), missed), cpu) in
            self.made.iter().zip(&self.received).zip(&self.missed).zip(by_cpu)
        {
            let lost = made.saturating_sub(*received).max(*missed);
            *cpu += lost;
            all += lost;
        }
        all
    }
}

fn fresh(tgid: u32, tid: u32, phase: ev_phase) -> Away {
    let h = Head { tgid, tid, kind: ev_kind::EV_AWAY.0 as u16, ..Head::default() };
    Away { h, phase: phase.0 as u8, ..Away::default() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_filter_passes_the_threads_and_those_to_come() {
        assert_eq!(ranges(vec![12, 10, 11, 40], 50, 1 << 22), [(10, 12), (40, 40), (51, 51 + AHEAD)]);
        let near_the_end = ranges(vec![7], 32_000, 32_768);
        assert_eq!(near_the_end.last(), Some(&(FIRST_AGAIN, FIRST_AGAIN + AHEAD)));
        let text = filter(&["pid"], &[(10, 12), (40, 40)]);
        assert_eq!(text, "(pid>=10 && pid<=12) || (pid>=40 && pid<=40)");
    }

    #[test]
    fn a_filter_for_any_threads_fits_into_a_page() {
        for step in [1, 3, 1000, 4_000_000] {
            let tids: Vec<u32> = (0..1000).map(|i: u32| i.saturating_mul(step)).collect();
            let ranges = ranges(tids.clone(), 4_194_000, 4_194_304);
            assert!(tids.iter().all(|t| ranges.iter().any(|r| (r.0..=r.1).contains(t))));
            assert!(filter(&["prev_pid", "next_pid"], &ranges).len() < 4096);
        }
    }
}
