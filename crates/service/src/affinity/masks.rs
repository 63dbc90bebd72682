//! Which CPUs a process is to have now: from its rule, what it computes, what it may have, and when its CPUs were last
//! changed. Pure: no clock and no kernel.
//!
//! Threads of an engine that wait for each other spin. With fewer CPUs than threads they do not get slower, they
//! collapse, 40 to 50 times: no rule here gives less CPUs than threads that compute.

use common::cpus::{ranges, within};

/// Time within which two changes are made that need not be made at once, ns: one for a short prompt, and one for the tokens
/// after it. A server that computes parts of prompts between
/// tokens would otherwise have its threads moved hundreds of times a second.
pub const REST_NS: u64 = 500_000_000;

/// What an engine computes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Work {
    Prefill,
    Decode,
}

impl Work {
    pub fn name(self) -> &'static str {
        match self {
            Work::Prefill => "prefill",
            Work::Decode => "decode",
        }
    }
}

/// The CPUs of a rule for one process, sorted; None: all that it may have.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WantedCpus {
    pub prefill: Option<Vec<u32>>,
    pub decode: Option<Vec<u32>>,
}

impl WantedCpus {
    fn of(&self, work: Work) -> Option<&[u32]> {
        match work {
            Work::Prefill => self.prefill.as_deref(),
            Work::Decode => self.decode.as_deref(),
        }
    }
}

/// What is known of a process.
#[derive(Debug, Clone, Copy)]
pub struct Known<'a> {
    pub wanted: &'a WantedCpus,
    pub work: Work,
    /// Threads that compute; None: not known.
    pub threads: Option<u32>,
    /// The CPUs that it may have; None: not known.
    pub allowed: Option<&'a [u32]>,
    /// The CPUs given to it; None: none, it has all that it may have.
    pub set: Option<&'a [u32]>,
    /// When the last change but one was made, ns; None: never.
    pub changed: Option<u64>,
    /// CPUs of other processes that were given some of the same, and how many threads compute there.
    pub others: &'a [(Vec<u32>, u32)],
}

/// What is to be done.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    Stay,
    /// Nothing yet: ask again at this time, ns.
    Later(u64),
    /// Give it these CPUs; None: all that it may have.
    Set(Option<Vec<u32>>),
    /// It cannot have the CPUs of its rule: set it free if it has any.
    Refuse(String),
}

/// Decides, at the time `now`, ns.
pub fn decide(of: &Known<'_>, now: u64) -> Decision {
    let wanted = match check(of) {
        Ok(wanted) => wanted,
        Err(why) => return Decision::Refuse(why),
    };
    if wanted == of.set {
        return Decision::Stay;
    }
    // Too few CPUs for the threads: not a moment longer.
    let crowded = of.set.is_some_and(|set| of.threads.is_none_or(|n| (set.len() as u64) < n.into()));
    let due = of.changed.map_or(0, |at| at.saturating_add(REST_NS));
    if !crowded && now < due {
        return Decision::Later(due);
    }
    Decision::Set(wanted.map(<[u32]>::to_vec))
}

/// The CPUs of the rule, if the process can have them; None: all. An error says why not.
fn check<'a>(of: &Known<'a>) -> Result<Option<&'a [u32]>, String> {
    let Some(wanted) = of.wanted.of(of.work) else { return Ok(None) };
    let (name, list) = (of.work.name(), ranges(wanted.iter().copied()));
    let Some(threads) = of.threads.filter(|n| *n > 0) else {
        return Err(format!("{name}-cpus = {list}: how many threads compute is not known"));
    };
    let Some(allowed) = of.allowed else {
        return Err(format!("{name}-cpus = {list}: which CPUs the process may have is not known"));
    };
    if (wanted.len() as u64) < threads.into() {
        return Err(format!(
            "{name}-cpus = {list}: {} for {threads} threads that compute: they would wait for each other without end; give at least \
             {threads} CPUs, or start the engine with fewer threads",
            count(wanted.len()),
        ));
    }
    if !within(wanted, allowed) {
        let without = wanted.iter().copied().filter(|cpu| allowed.binary_search(cpu).is_err());
        return Err(format!(
            "{name}-cpus = {list}: CPU {} is offline or not in the process's cpuset ({})",
            ranges(without),
            ranges(allowed.iter().copied())
        ));
    }
    // All that were given some of these CPUs compute on the others' as well.
    let beside: u64 = of
        .others
        .iter()
        .filter(|(cpus, _)| cpus.iter().any(|cpu| wanted.binary_search(cpu).is_ok()))
        .map(|(_, n)| u64::from(*n))
        .sum();
    if beside > 0 && beside + u64::from(threads) > wanted.len() as u64 {
        return Err(format!(
            "{name}-cpus = {list}: other engines that were given some of these CPUs compute with {beside} threads there already"
        ));
    }
    Ok(Some(wanted))
}

fn count(n: usize) -> String {
    if n == 1 { "1 CPU".to_owned() } else { format!("{n} CPUs") }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [u32; 8] = [0, 1, 2, 3, 4, 5, 6, 7];

    fn wanted(decode: &[u32]) -> WantedCpus {
        WantedCpus { prefill: None, decode: Some(decode.to_vec()) }
    }

    fn known(wanted: &WantedCpus, work: Work, threads: u32) -> Known<'_> {
        let threads = Some(threads).filter(|n| *n > 0);
        Known { wanted, work, threads, allowed: Some(&ALL), set: None, changed: None, others: &[] }
    }

    fn refused(of: &Known<'_>) -> String {
        match decide(of, 0) {
            Decision::Refuse(why) => why,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn never_fewer_cpus_than_threads() {
        let four = wanted(&[4, 5, 6, 7]);
        for threads in 1..=4 {
            assert_eq!(
                decide(&known(&four, Work::Decode, threads), 0),
                Decision::Set(Some(vec![4, 5, 6, 7]))
            );
        }
        for threads in [5, 6, 100, u32::MAX] {
            let why = refused(&known(&four, Work::Decode, threads));
            assert!(why.contains("4-7: 4 CPUs for") && why.contains("start the engine with fewer"), "{why}");
        }
        assert!(refused(&known(&four, Work::Decode, 0)).contains("is not known"));
        // No CPUs for prefill: all.
        assert_eq!(decide(&known(&four, Work::Prefill, 0), 0), Decision::Stay);
    }

    #[test]
    fn only_cpus_that_the_process_may_have() {
        let some = wanted(&[0, 1]);
        let of = known(&some, Work::Decode, 1);
        assert!(refused(&Known { allowed: Some(&[1, 2]), ..of }).contains("CPU 0 is offline or not in"));
        assert!(refused(&Known { allowed: None, ..of }).contains("may have is not known"));
    }

    #[test]
    fn engines_do_not_get_each_other_s_cpus() {
        let some = wanted(&[0, 1, 2]);
        let of = known(&some, Work::Decode, 2);
        let fits = [(vec![2, 3], 1)];
        assert!(matches!(decide(&Known { others: &fits, ..of }, 0), Decision::Set(Some(_))));
        let full = [(vec![2, 3], 2)];
        assert!(refused(&Known { others: &full, ..of }).contains("compute with 2 threads there already"));
        let elsewhere = [(vec![4, 5], 64)];
        assert!(matches!(decide(&Known { others: &elsewhere, ..of }, 0), Decision::Set(Some(_))));
    }

    /// Prompts in parts between tokens, a thousand times a second.
    #[test]
    fn changes_are_rare_but_those_for_more_threads_are_at_once() {
        let cpus = wanted(&[6, 7]);
        let (mut set, mut changed, mut changes): (Option<Vec<u32>>, [Option<u64>; 2], u64) =
            (None, [None; 2], 0);
        for ms in 0..10_000u64 {
            let work = if ms % 2 == 0 { Work::Decode } else { Work::Prefill };
            let of = Known { set: set.as_deref(), changed: changed[0], ..known(&cpus, work, 2) };
            if let Decision::Set(to) = decide(&of, ms * 1_000_000) {
                (set, changed, changes) = (to, [changed[1], Some(ms * 1_000_000)], changes + 1);
            }
        }
        assert!((30..=41).contains(&changes), "{changes} in 10 s");
        // The prompt has more threads than the two CPUs.
        let two: &[u32] = &[6, 7];
        let of = Known { set: Some(two), changed: Some(10), ..known(&cpus, Work::Prefill, 4) };
        assert_eq!(decide(&of, 11), Decision::Set(None));
        assert_eq!(decide(&Known { threads: None, ..of }, 11), Decision::Set(None), "it may have");
        assert_eq!(decide(&Known { threads: Some(2), ..of }, 11), Decision::Later(10 + REST_NS));
        assert_eq!(decide(&Known { threads: Some(2), ..of }, 10 + REST_NS), Decision::Set(None));
        let of = Known { set: None, changed: Some(10), ..known(&cpus, Work::Decode, 2) };
        assert_eq!(decide(&of, 11), Decision::Later(10 + REST_NS));
    }

    #[test]
    fn what_has_its_cpus_stays() {
        let cpus = wanted(&[6, 7]);
        let two: &[u32] = &[6, 7];
        assert_eq!(decide(&Known { set: Some(two), ..known(&cpus, Work::Decode, 2) }, 0), Decision::Stay);
        // More threads than before: it loses them.
        assert!(matches!(
            decide(&Known { set: Some(two), ..known(&cpus, Work::Decode, 3) }, 0),
            Decision::Refuse(_)
        ));
    }
}
