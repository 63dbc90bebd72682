//! Whether drafts gain time: how long they are, how much of them is accepted, and what they cost.

use std::collections::{BTreeMap, HashSet};

use serde::Serialize;

use super::data::{CallKind, Sequences, TokenStep};
use crate::recorded::call::{Call, Latency, latency};
use crate::recorded::load::Loaded;

/// The drafts that a run's calls verified.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Speculation {
    /// Drafts verified.
    pub drafts: u64,
    /// Tokens of the drafts whose result is known, and how many of them were accepted.
    pub drafted: u64,
    pub accepted: u64,
    /// `accepted` over `drafted`.
    pub acceptance: f64,
    /// Pairs: number of accepted tokens, and number of drafts with that many.
    pub accepted_lengths: Vec<(u64, u64)>,
    /// Drafts whose result was not seen: the last of a request, or of a recording.
    pub unseen: u64,
    /// Duration of the calls that verify.
    pub verify: Option<Latency>,
    /// Calls of other contexts of the process while requests were past their prompts: those of a draft model. Null if
    /// there is no other context: drafts without a model.
    pub draft_calls: Option<u64>,
    pub draft_ns: Option<u64>,
    /// Duration of calls that decode one token of one sequence, without a draft.
    pub single: Option<Latency>,
    /// Null if too little is known: no token was decoded without a draft, or calls have several sequences.
    pub cost: Option<SpeculationCost>,
}

/// Time per token with drafts and without.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SpeculationCost {
    /// Draft and verification, over the tokens that they brought, ns.
    pub with_ns: f64,
    /// A token without a draft, ns.
    pub without_ns: f64,
    /// `without_ns` over `with_ns`, minus one: negative if drafts cost time.
    pub gain: f64,
    /// The length of drafts with the best estimated gain, 0 = none, and that gain. Estimated from the accepted lengths,
    /// with costs that grow evenly with the length.
    pub best_length: u64,
    pub best_gain: f64,
}

/// The speculation of the calls shown; none if no draft was verified.
pub fn speculation(loaded: &Loaded<'_>, calls: &[Call], all: &Sequences) -> Option<Speculation> {
    let steps: Vec<&TokenStep> =
        all.requests.iter().flat_map(|r| &r.steps).filter(|s| s.drafted > 0).collect();
    if steps.is_empty() {
        return None;
    }
    let known: Vec<(u64, u64)> =
        steps.iter().filter_map(|s| Some((s.drafted, s.accepted?.min(s.drafted)))).collect();
    let mut lengths: BTreeMap<u64, u64> = BTreeMap::new();
    known.iter().for_each(|(_, accepted)| *lengths.entry(*accepted).or_default() += 1);
    let (drafted, accepted) =
        known.iter().fold((0u64, 0u64), |(d, a), k| (d.saturating_add(k.0), a.saturating_add(k.1)));
    let drafts = drafts_of(loaded, calls, all);
    let speculating: HashSet<(u32, u64)> = all
        .requests
        .iter()
        .filter(|r| r.steps.iter().any(|s| s.drafted > 0))
        .map(|r| (r.pid, r.context))
        .collect();
    let of_kind = |kind, lone: bool| {
        let found = calls.iter().zip(&all.works).filter(|(c, w)| {
            let own = w.as_ref().filter(|w| speculating.contains(&(c.pid, w.context)));
            !c.cut && own.filter(|w| !lone || w.sequences() == 1).and_then(|w| w.kind()) == Some(kind)
        });
        latency(found.map(|(c, _)| c.dur).collect())
    };
    let (verify, single) = (of_kind(CallKind::Verify, false), of_kind(CallKind::Decode, true));
    let lone = of_kind(CallKind::Verify, true).map(|l| l.n) == verify.map(|l| l.n);
    let cost = verify.zip(single).filter(|_| lone).and_then(|(verify, single)| {
        let rounds = steps.len() as f64;
        let draft = drafts.map_or(0.0, |(_, ns)| ns as f64) / rounds;
        cost(&known, verify.p50_ns as f64, draft, single.p50_ns as f64)
    });
    Some(Speculation {
        drafts: steps.len() as u64,
        drafted,
        accepted,
        acceptance: accepted as f64 / drafted.max(1) as f64,
        accepted_lengths: lengths.into_iter().collect(),
        unseen: (steps.len() - known.len()) as u64,
        verify,
        draft_calls: drafts.map(|d| d.0),
        draft_ns: drafts.map(|d| d.1),
        single,
        cost,
    })
}

/// Calls of other contexts, and their time, from the first token of a request that has drafts to its last.
fn drafts_of(loaded: &Loaded<'_>, calls: &[Call], all: &Sequences) -> Option<(u64, u64)> {
    let speculating: Vec<_> = all.requests.iter().filter(|r| r.steps.iter().any(|s| s.drafted > 0)).collect();
    let (pid, context) = speculating.first().map(|r| (r.pid, r.context))?;
    let own = |c: usize| all.works.get(c).and_then(Option::as_ref).is_none_or(|w| w.context == context);
    let here = calls
        .iter()
        .enumerate()
        .filter(|(i, c)| c.pid == pid && !c.cut && !own(*i))
        .map(|(_, c)| (c.start, c.dur));
    let aside = loaded.aside.iter().filter(|t| t.pid == pid && !t.cut).map(|t| (t.t, t.dur));
    let others: Vec<(i64, u64)> = here.chain(aside).collect();
    let within = |t: i64| {
        speculating.iter().any(|r| {
            let last = r.steps.iter().rev().find(|s| s.drafted > 0);
            r.first_token.unwrap_or(r.start) <= t && last.is_some_and(|s| t <= s.end)
        })
    };
    let between = others.iter().filter(|(t, _)| within(*t));
    let sum = between.fold((0, 0u64), |(n, ns), (_, dur)| (n + 1, ns.saturating_add(*dur)));
    (!others.is_empty()).then_some(sum)
}

/// `known`: length and accepted tokens of each draft; times of a verification, of a draft and of a single token, ns.
fn cost(known: &[(u64, u64)], verify: f64, draft: f64, single: f64) -> Option<SpeculationCost> {
    let rounds = known.len() as f64;
    let length = known.iter().map(|k| k.0 as f64).sum::<f64>() / rounds;
    if known.is_empty() || single <= 0.0 {
        return None;
    }
    let brought = |most: u64| 1.0 + known.iter().map(|k| k.1.min(most) as f64).sum::<f64>() / rounds;
    let with_ns = (verify + draft) / brought(u64::MAX);
    let longest = known.iter().map(|k| k.0).max().unwrap_or(0);
    let gain = |most: u64| {
        let share = most as f64 / length;
        let time = single + (verify - single).max(0.0) * share + draft * share;
        single / (time / brought(most)) - 1.0
    };
    let best = (1..=longest.min(256))
        .map(|n| (n, gain(n)))
        .fold((0, 0.0), |best, now| if now.1 > best.1 { now } else { best });
    Some(SpeculationCost {
        with_ns,
        without_ns: single,
        gain: single / with_ns - 1.0,
        best_length: best.0,
        best_gain: best.1,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn drafts_that_are_rarely_accepted_cost_time_and_shorter_ones_less() {
        // One of sixteen tokens accepted, each costs a tenth of a single token to draft and a twentieth to verify.
        let found = cost(&[(16, 1); 10], 180.0, 160.0, 100.0).expect("known");
        assert!((found.with_ns - 170.0).abs() < 1e-9 && found.gain < -0.4, "{found:?}");
        // With one token: 115 for two.
        assert_eq!(found.best_length, 1);
        assert!((found.best_gain - (200.0 / 115.0 - 1.0)).abs() < 1e-9, "{found:?}");
        // Nothing is ever accepted: none is best.
        let useless = cost(&[(4, 0); 10], 120.0, 40.0, 100.0).expect("known");
        assert_eq!((useless.best_length, useless.best_gain), (0, 0.0));
        assert!(cost(&[], 1.0, 1.0, 1.0).is_none());
    }
}
