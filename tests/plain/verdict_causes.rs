//! Causes that the verdict names, each beside a run without it, from traces made by hand.

use crate::synth_trace;
use crate::verdict::{CALLS, OP, POSITIONS, begin, end, even, peaks, rules, states, verdict};

use pfi::record::{MemoryCall, MemoryChange, OffCpu, Usage};
use synth_trace::causes::*;
use synth_trace::*;

fn names(file: Vec<u8>, rule: &str) -> bool {
    rules(&verdict(file)).contains(&rule)
}

/// Thread 1 has less to do in each op, and sleeps until thread 0 wakes it.
#[test]
fn threads_that_sleep_at_barriers() {
    let of = |asleep: u64| {
        let mut s = begin(Spec::default());
        for _ in 0..CALLS {
            let first = s.now + 3 * LEAD;
            s.call(1, |_, ith| OP / (1 + u64::from(ith)));
            for p in (0..POSITIONS).filter(|_| asleep > 0) {
                let away = slept(1, start_of(first, p, |_| OP) + (OP / 2 + 1000) as i64, asleep, 1000);
                s.enc.off_cpu(&OffCpu { from: 0, ..away }).unwrap();
            }
        }
        states(&mut s, |_, state| state);
        verdict(end(s))
    };
    let v = of(OP / 3);
    let a = v.advice.iter().find(|a| a.rule == "sleeping-barriers").expect("advice");
    assert!(a.evidence.contains("woken 33 times a call") && a.gain.is_none(), "{a:?}");
    assert!(!rules(&v).contains(&"imbalance"), "one of the two explains the other");
    assert!(!rules(&of(0)).contains(&"sleeping-barriers"));
}

/// Prompts have two threads, tokens one, which waits while the other one has its CPU.
#[test]
fn threads_that_compute_nothing_and_have_the_cpu() {
    let of = |prompts: u16, by: u32| {
        let mut s = begin(Spec { threads: prompts, ..Spec::default() });
        s.call(8, even);
        s.spec.threads = 1;
        for _ in 0..CALLS {
            let first = s.now + 3 * LEAD;
            s.call(1, |_, _| 4 * OP);
            for p in 0..POSITIONS {
                let away = preempted(0, start_of(first, p, |_| 4 * OP) + 1000, OP);
                s.enc.off_cpu(&OffCpu { by, from: by, ..away }).unwrap();
            }
        }
        states(&mut s, |_, state| state);
        verdict(end(s))
    };
    let v = of(2, TID + 1);
    assert_eq!(rules(&v)[0], "idle-threads", "{:?}", v.advice);
    assert_eq!(v.advice[0].actions[0], "-tb 1 (as -t)");
    assert!(!rules(&of(1, TID + 1)).contains(&"idle-threads"), "both have one");
    assert!(!rules(&of(2, 900)).contains(&"idle-threads"), "another program has the CPU");
}

/// What is shown as 0.0 s is no evidence.
#[test]
fn a_program_that_ran_for_a_moment_is_not_to_be_stopped() {
    let of = |calls: u64| {
        let mut s = begin(Spec::default());
        for _ in 0..calls {
            let first = s.now + 3 * LEAD;
            s.call(1, |_, ith| if ith == 0 { 10 * OP } else { OP });
            for p in 0..POSITIONS {
                s.enc.off_cpu(&preempted(0, start_of(first, p, |_| 10 * OP) + 1000, 9 * OP)).unwrap();
            }
        }
        states(&mut s, |_, state| state);
        end(s)
    };
    assert!(names(of(CALLS), "cpu-contention") && !names(of(1), "cpu-contention"));
}

/// A first prompt that reads the same weights as the calls after it.
#[test]
fn a_first_call_that_touches_the_weights_first() {
    let of = |times: u64, prompts: u64| {
        let mut s = begin(Spec::default());
        peaks(&mut s, 1000);
        (0..prompts).for_each(|_| s.call(2, |_, _| times * OP));
        (0..CALLS).for_each(|_| s.call(1, even));
        states(&mut s, |_, state| state);
        end(s)
    };
    assert!(names(of(30, 1), "cold-start"));
    assert!(!names(of(2, 1), "cold-start") && !names(of(30, 2), "cold-start"), "all prompts are slow");
}

#[test]
fn states_that_are_saved_and_never_loaded() {
    let of = |saved: u64, loaded: u64, each: u64| {
        let mut s = begin(Spec::default());
        for n in 0..5 {
            s.call(2, even);
            let (t, anonymous) = (s.now as i64, Some(100_000_000 + n * each));
            s.enc.usage(&Usage { pid: PID, t, anonymous, ..Usage::default() }).unwrap();
            (0..CALLS).for_each(|_| s.call(1, even));
        }
        let call = |what, n: u64| {
            let t = ORIGIN as i64 + n as i64;
            MemoryCall { pid: PID, tid: TID, t, context: 1, what, seq: 0, to: -1, from: -1, until: -1 }
        };
        (0..saved).for_each(|n| s.enc.memory(&call(MemoryChange::Save, n)).unwrap());
        (0..loaded).for_each(|n| s.enc.memory(&call(MemoryChange::Load, n)).unwrap());
        end(s)
    };
    assert!(names(of(9, 0, 10_000_000), "saved-states"));
    for other in [of(7, 0, 10_000_000), of(9, 1, 10_000_000), of(9, 0, 1_000_000)] {
        assert!(!names(other, "saved-states"));
    }
}

/// A server waits for requests, and the threads that compute with the caller spin.
#[test]
fn threads_that_spin_between_calls() {
    let of = |seconds: u64, team_us: Option<u64>| {
        let mut s = begin(Spec::default());
        (0..CALLS).for_each(|_| s.call(1, even));
        for n in 0..=seconds {
            let (t, team_us) = (s.now as i64, team_us.map(|us| us * n));
            s.enc.usage(&Usage { pid: PID, t, team_us, ..Usage::default() }).unwrap();
            s.now += 1_000_000_000;
        }
        s.call(1, even);
        end(s)
    };
    let found = verdict(of(4, Some(900_000)));
    let a = found.advice.iter().find(|a| a.rule == "idle-spin").expect("advice");
    assert!(a.evidence.contains("in 4.0 s without a call") && a.title.contains("0.90 CPUs"), "{a:?}");
    for other in [of(2, Some(900_000)), of(4, Some(100_000)), of(4, None)] {
        assert!(!names(other, "idle-spin"));
    }
}
