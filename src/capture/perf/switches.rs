//! When the threads of one's own processes are off-CPU, from the kernel's records of their context switches: these need no
//! privilege up to kernel.perf_event_paranoid 2.
//!
//! They say whether a thread was preempted or went to sleep. What had the CPU instead, when it was woken, and what kind of
//! sleep it was, they do not say.

use std::collections::{HashMap, HashSet};
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use super::event;
use super::ring::{self, PerfRecord, Ring, SwitchKind};
use crate::capture::event::{self as events, Call, FLAG_CUT, Head, OffCpuEvent, STATE_NEW};
use crate::capture::sched;
use crate::capture::skel::types::{ev_answer, ev_kind, ev_phase};
use machine::usage;

/// Bytes of each CPU's ring, as long as the kernel locks that much for a user (kernel.perf_event_mlock_kb), and the least.
const RING: u32 = 512 << 10;
const LEAST_RING: u32 = 16 << 10;
/// Of a record on its way through a queue, as an event of a kind that no program sends: what it is, in `a`.
const KIND: u16 = u16::MAX;
const IN: u64 = 0;
const OUT: u64 = 1;
const PREEMPTED: u64 = 2;
/// The thread that made it is in `b`.
const FORK: u64 = 3;
const EXIT: u64 = 4;
/// Asleep, whether or not a signal could wake it: TASK_NORMAL of include/linux/sched.h.
const ASLEEP: u8 = 3;

/// The switches of the threads that are followed.
#[derive(Default)]
pub struct Switches {
    cpus: Vec<u32>,
    /// By CPU.
    rings: Vec<Ring>,
    /// Further events, which share the rings.
    events: Vec<OwnedFd>,
    /// Memory for [`ring::merge`].
    next: Vec<(u64, u64)>,
    /// The threads whose records arrive.
    followed: HashSet<u32>,
    threads: HashMap<u32, OffCpuEvent>,
    /// Processes whose times are passed on, and since when, CLOCK_MONOTONIC ns.
    admitted: HashMap<u32, u64>,
    sent: u64,
    /// By ring: records that the kernel had no room for, and switches that must have been between two others.
    lost: Vec<u64>,
    missed: Vec<u64>,
    /// When watching stopped, CLOCK_MONOTONIC ns; 0: it goes on.
    left: u64,
}

impl Switches {
    /// Whether this kernel tells them to this user.
    ///
    /// # Errors
    /// It refuses.
    pub fn offered() -> io::Result<()> {
        event::switches(0, event::online()[0], u32::MAX).map(drop)
    }

    /// Follows a process's threads, and all threads and processes that they start from now on. Records that have arrived
    /// must have been taken: they tell which are followed already.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn follow(&mut self, pid: u32) -> io::Result<()> {
        for tid in sched::threads(pid) {
            if self.left != 0 || self.followed.contains(&tid) {
                continue;
            }
            if self.rings.is_empty() {
                event::allow_files();
                self.cpus = event::online();
                self.rings = rings(tid, &self.cpus)?;
                (self.lost, self.missed) = (vec![0; self.cpus.len()], vec![0; self.cpus.len()]);
            } else {
                for (&cpu, ring) in self.cpus.iter().zip(&self.rings) {
                    let event = event::switches(tid, cpu, u32::MAX)?;
                    event::join(&event, ring)?;
                    self.events.push(event);
                }
            }
            self.followed.insert(tid);
        }
        Ok(())
    }

    /// The times of a process's threads are passed on, those that begin from now on.
    pub fn admit(&mut self, pid: u32) {
        self.admitted.entry(pid).or_insert_with(usage::now);
    }

    pub fn drop_target(&mut self, pid: u32) {
        self.admitted.remove(&pid);
    }

    /// Reads the rings. What has arrived must be sorted by time with the rings' delay, and come back by
    /// [`Switches::replay`].
    pub fn take(&mut self, push: &mut dyn FnMut(&[u8])) {
        let Switches { rings, next, followed, lost, left, cpus, .. } = self;
        ring::merge(rings, next, &mut |cpu, record| {
            let (ts, tgid, tid, what, maker) = match record {
                PerfRecord::Switch { tgid, tid, time, how } => {
                    let what = match how {
                        SwitchKind::In => IN,
                        SwitchKind::Out => OUT,
                        SwitchKind::Preempted => PREEMPTED,
                    };
                    (time, tgid, tid, what, 0)
                }
                PerfRecord::Fork { tgid, tid, maker, time, .. } => {
                    followed.insert(tid);
                    (time, tgid, tid, FORK, maker)
                }
                PerfRecord::Exit { tgid, tid, time } => {
                    followed.remove(&tid);
                    (time, tgid, tid, EXIT, 0)
                }
                PerfRecord::Lost(n) => {
                    if let Some(lost) = lost.get_mut(cpu) {
                        *lost += n;
                    }
                    return;
                }
                _ => return,
            };
            if *left == 0 || ts < *left {
                let (ith, engine) = (cpus.get(cpu).map_or(0, |cpu| *cpu as u16), cpu as u16);
                let h = Head { ts, tgid, tid, kind: KIND, ith, engine, ..Head::default() };
                push(events::bytes(&Call { h, a: what, b: maker.into(), ..Call::default() }));
            }
        });
    }

    /// Handles a record, in order of time; passes on the time off-CPU that it ends. False: it is not one of these.
    pub fn replay(&mut self, bytes: &[u8], out: &mut dyn FnMut(&[u8])) -> bool {
        if events::read::<Head>(bytes).is_none_or(|head| head.kind != KIND) {
            return false;
        }
        let Some(record) = events::read::<Call>(bytes) else { return true };
        let Head { ts, tgid, tid, ith: cpu, engine: ring, .. } = record.h;
        if record.a == EXIT {
            self.threads.remove(&tid);
            return true;
        }
        let thread = self.threads.entry(tid).or_insert_with(|| fresh(tid));
        thread.h.tgid = tgid;
        let off = u32::from(thread.phase) == ev_phase::PHASE_OFFCPU.0;
        let mut missed = false;
        match record.a {
            IN if off => {
                (thread.h.ts, thread.to_cpu, thread.phase) = (ts, cpu, ev_phase::PHASE_ON.0 as u8);
                if self.admitted.get(&tgid).is_some_and(|since| thread.out >= *since) {
                    self.sent += 1;
                    out(events::bytes(thread));
                }
            }
            IN => {
                missed = u32::from(thread.phase) == ev_phase::PHASE_ON.0;
                thread.phase = ev_phase::PHASE_ON.0 as u8;
            }
            what => {
                missed = off;
                let (state, answer) = match what {
                    OUT => (ASLEEP, ev_answer::ANSWER_UNKNOWN),
                    FORK => (STATE_NEW, ev_answer::ANSWER_NO),
                    _ => (0, ev_answer::ANSWER_NO),
                };
                (thread.out, thread.cpu, thread.state) = (ts, cpu, state);
                (thread.io, thread.fault) = (answer.0 as u8, answer.0 as u8);
                (thread.woken, thread.waker) = (0, 0);
                if what == FORK {
                    thread.woken = ts;
                    thread.waker_comm = sched::comm(record.b as u32);
                    thread.waker = if thread.waker_comm == [0; 16] { 0 } else { record.b as u32 };
                }
                thread.phase = ev_phase::PHASE_OFFCPU.0 as u8;
            }
        }
        if let Some(all) = self.missed.get_mut(usize::from(ring)) {
            *all += u64::from(missed);
        }
        true
    }

    /// Stops watching.
    pub fn leave(&mut self) {
        if self.left == 0 {
            self.left = usage::now();
            self.rings.iter().for_each(|ring| drop(event::disable(ring)));
            self.events.iter().for_each(|event| drop(event::disable(event)));
        }
    }

    /// Passes on, as cut, the times of threads that were off-CPU when watching stopped.
    pub fn close(&mut self, out: &mut dyn FnMut(&[u8])) {
        for (_, mut thread) in self.threads.drain() {
            let off = u32::from(thread.phase) == ev_phase::PHASE_OFFCPU.0;
            if off && self.admitted.get(&thread.h.tgid).is_some_and(|since| thread.out >= *since) {
                (thread.h.ts, thread.h.flags) = (self.left.max(thread.out), FLAG_CUT);
                self.sent += 1;
                out(events::bytes(&thread));
            }
        }
    }

    /// Times passed on, and by CPU the times that were lost: as many as records were, or as ends or beginnings are missing.
    pub fn counts(&self) -> (u64, impl Iterator<Item = (u32, u64)>) {
        let lost = self.lost.iter().zip(&self.missed).map(|(lost, missed)| *lost.max(missed));
        (self.sent, self.cpus.iter().copied().zip(lost))
    }

    /// Readable when a good part of a ring is full.
    pub fn fds(&self) -> impl Iterator<Item = i32> {
        self.rings.iter().map(|ring| ring.as_fd().as_raw_fd())
    }
}

/// A ring for each CPU; smaller ones where the kernel locks no more memory for this user.
fn rings(tid: u32, cpus: &[u32]) -> io::Result<Vec<Ring>> {
    let mut bytes = RING;
    loop {
        let ring = |&cpu: &u32| Ring::of(event::switches(tid, cpu, bytes / 4)?, bytes);
        match cpus.iter().map(ring).collect() {
            Err(e) if refused(&e) && bytes > LEAST_RING => bytes /= 2,
            rings => return rings,
        }
    }
}

fn refused(e: &io::Error) -> bool {
    e.raw_os_error() == Some(libc::EPERM)
}

fn fresh(tid: u32) -> OffCpuEvent {
    let h = Head { tid, kind: ev_kind::EV_OFFCPU.0 as u16, ..Head::default() };
    OffCpuEvent { h, phase: ev_phase::PHASE_UNKNOWN.0 as u8, ..OffCpuEvent::default() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::capture::event::Event;
    use std::process::{Command, Stdio};

    /// Times passed on, and all that were lost.
    fn lost(switches: &Switches) -> (u64, u64) {
        let (sent, lost) = switches.counts();
        (sent, lost.map(|(_, n)| n).sum())
    }

    fn on_one_cpu() -> Switches {
        Switches { cpus: vec![3], lost: vec![0], missed: vec![0], ..Switches::default() }
    }

    /// What comes of these records: time, thread, what.
    fn replayed(switches: &mut Switches, records: &[(u64, u32, u64)]) -> Vec<(u64, u64, u32, u8)> {
        let mut all = Vec::new();
        for &(ts, tid, a) in records {
            let h = Head { ts, tgid: 7, tid, kind: KIND, ith: 3, ..Head::default() };
            let ours = switches.replay(events::bytes(&Call { h, a, ..Call::default() }), &mut |bytes| {
                if let Some((_, Event::OffCpuEvent(e))) = events::parse(bytes) {
                    all.push((e.out, e.h.ts, e.h.tid, e.state));
                }
            });
            assert!(ours);
        }
        all
    }

    #[test]
    fn times_off_cpu_end_with_a_switch_in() {
        let mut switches = on_one_cpu();
        switches.admitted.insert(7, 10);
        let records = [
            (5, 1, OUT),
            (11, 1, IN),
            (12, 1, PREEMPTED),
            (15, 1, IN),
            (16, 1, OUT),
            (20, 2, FORK),
            (21, 1, IN),
            (23, 2, IN),
            (24, 2, EXIT),
            (25, 1, OUT),
        ];
        let all = replayed(&mut switches, &records);
        assert_eq!(
            all,
            [(12, 15, 1, 0), (16, 21, 1, ASLEEP), (20, 23, 2, STATE_NEW)],
            "none from before it counts"
        );
        assert_eq!(lost(&switches), (3, 0));
        let mut cut = Vec::new();
        switches.left = 30;
        switches.close(&mut |bytes| {
            cut.push(events::read::<OffCpuEvent>(bytes).map(|e| (e.out, e.h.ts, e.h.flags)))
        });
        assert_eq!(cut, [Some((25, 30, FLAG_CUT))]);
    }

    #[test]
    fn a_switch_that_is_missing_is_counted() {
        let mut switches = on_one_cpu();
        switches.admitted.insert(7, 0);
        assert_eq!(
            replayed(&mut switches, &[(1, 1, IN), (2, 1, IN), (3, 1, OUT), (4, 1, OUT), (9, 1, IN)]),
            [(4, 9, 1, ASLEEP)]
        );
        assert_eq!(lost(&switches), (1, 2));
        assert!(!switches.replay(events::bytes(&Call::default()), &mut |_| ()));
    }

    #[test]
    fn a_child_is_told_of_by_this_kernel() {
        if let Err(e) = Switches::offered() {
            println!("skipped: {e}");
            return;
        }
        let mut child = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::null()).spawn().expect("cat");
        let mut switches = Switches::default();
        let pid = child.id();
        let id = pid as libc::pid_t;
        // Stopped, it has to be switched in before it ends.
        // SAFETY: a signal to a child of one's own, and a wait for it that stores one number.
        unsafe {
            let mut status = 0;
            assert_eq!(libc::kill(id, libc::SIGSTOP), 0);
            assert_eq!(libc::waitpid(id, &raw mut status, libc::WUNTRACED), id);
            assert!(libc::WIFSTOPPED(status), "{status}");
        }
        switches.follow(pid).expect("a child of one's own");
        switches.follow(pid).expect("a second time");
        assert!(switches.events.is_empty(), "once");
        drop(child.stdin.take());
        // SAFETY: as above.
        assert_eq!(unsafe { libc::kill(id, libc::SIGCONT) }, 0);
        child.wait().expect("it ends");
        let mut told = Vec::new();
        switches
            .take(&mut |bytes| told.extend(events::read::<Call>(bytes).map(|r| (r.h.tgid, r.h.tid, r.a))));
        assert!(told.contains(&(pid, pid, IN)) && told.last() == Some(&(pid, pid, EXIT)), "{told:?}");
        assert!(!switches.followed.contains(&pid));
    }
}
