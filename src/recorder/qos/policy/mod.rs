//! The policy that keeps a recording's cost within what the user allows (specified in docs/BUDGET.md). Pure: tokens
//! in, levels out, no clock and no kernel.

use pfi::record::Detail;

/// Consecutive tokens above the budget before the level is lowered.
pub const PATIENCE: u32 = 2;
/// Calm required before a step up: this many tokens and this time, ns.
pub const CALM_TOKENS: u64 = 8;
pub const CALM_NS: u64 = 2_000_000_000;
/// A step up that had to be undone doubles the calm before the next one, at most this many times.
const DOUBLINGS: u32 = 6;
/// Time that undoes one doubling, ns: long enough that an engine right at the limit does not go up and down
/// forever.
const FORGIVEN_NS: u64 = 4 * (CALM_NS << DOUBLINGS);
/// Share of the budget that a richer level may be predicted to cost, so that a little more does not lower it again.
pub const FILL: f64 = 0.9;
/// Share of a token's time allowed by the service level that a token at a richer level may be predicted to take.
pub const RESERVE: f64 = 0.95;
/// The sparsest sampling: one token in this many.
pub const MAX_ONE_IN: u32 = 64;
/// Number of durations for the median.
const WINDOW: usize = 5;

/// What the user allows.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct LevelPolicy {
    /// Recording cost as a share of the target's time: 0.01 = 1 %.
    pub budget: Option<f64>,
    /// Tokens per second that decoding must maintain.
    pub qos: Option<f64>,
}

/// How much is recorded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct DetailStep {
    pub level: Detail,
    /// Ops are recorded for one token in this many; 1 = all.
    pub one_in: u32,
}

/// A decoded token.
#[derive(Debug, Clone, Copy)]
pub struct DecodedToken {
    /// When it was finished, ns of any monotonic clock.
    pub t: u64,
    /// Its duration, ns, including our cost.
    pub dur: u64,
    /// The share of it, ns, taken by our hits on its slowest thread, at the level at which it ran.
    pub cost: f64,
    /// Its level; while probes are being added or removed, this differs from the level decided on.
    pub level: Detail,
}

/// Why a level changes.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum ChangeReason {
    /// The first choice: the richest level that fits.
    Fits,
    /// The cost was above the budget: the cost as a share.
    Budget(f64),
    /// Decoding was below the service level: tokens per second.
    Slow(f64),
    /// There has been enough calm.
    Calm,
}

/// A change of level.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LevelDecision {
    pub to: DetailStep,
    pub why: ChangeReason,
    /// Predicted cost of the new level and measured cost of the old one, as shares of a token's time.
    pub predicted: Option<f64>,
    pub measured: Option<f64>,
}

/// The policy with its state.
pub struct Policy {
    rule: LevelPolicy,
    /// Available levels, the poorest first.
    levels: heapless::Vec<Detail, 8>,
    now: DetailStep,
    /// Cost per token at each level (indexed by [`Detail`]), ns: predicted, then measured.
    costs: [Option<f64>; 8],
    measured: [bool; 8],
    recent: heapless::Deque<u64, WINDOW>,
    over: u32,
    /// Duration of the previous token at this level.
    last: Option<u64>,
    /// The current calm: its number of tokens, and the time of the first.
    calm_tokens: u64,
    calm_since: Option<u64>,
    /// The last step up has not been undone yet.
    rose: bool,
    /// Steps up that were undone, and the time from which the next forgiveness is counted.
    failures: u32,
    counted: u64,
    looked: bool,
}

impl Policy {
    /// `levels` in order, the poorest first. It begins at `first`, and moves to the richest that fits as soon as it
    /// has seen tokens there.
    pub fn new(rule: LevelPolicy, levels: &[Detail], first: Detail) -> Policy {
        Policy {
            rule,
            levels: levels.iter().copied().take(8).collect(),
            now: DetailStep { level: first, one_in: 1 },
            costs: [None; 8],
            measured: [false; 8],
            recent: heapless::Deque::new(),
            over: 0,
            last: None,
            calm_tokens: 0,
            calm_since: None,
            rose: false,
            failures: 0,
            counted: 0,
            looked: false,
        }
    }

    /// The current step.
    pub fn now(&self) -> DetailStep {
        self.now
    }

    /// Sets the expected cost of a token at `level`, ns. A measured cost stays.
    pub fn predict(&mut self, level: Detail, cost: f64) {
        if !self.measured[level as usize] {
            self.costs[level as usize] = Some(cost);
        }
    }

    /// Sets the expected extra cost of a token at `level` over one at the level below, ns; infinite = too much.
    /// While the level is off, this replaces what was measured there: the cost depends on the machine's other work.
    pub fn predict_more(&mut self, level: Detail, more: f64) {
        if self.now.level < level {
            let below = self.below(level).map_or(Some(0.0), |l| self.costs[l as usize]);
            self.costs[level as usize] = Some(below.unwrap_or(f64::INFINITY) + more);
            self.measured[level as usize] = false;
        }
    }

    /// Whether this level is available.
    pub fn has(&self, level: Detail) -> bool {
        self.levels.contains(&level)
    }

    /// Removes a level.
    pub fn forgo(&mut self, level: Detail) {
        self.levels.retain(|l| *l != level);
        if self.now.level == level {
            self.now = DetailStep { level: self.below(level).unwrap_or(Detail::Token), one_in: 1 };
        }
    }

    /// Expected cost of a token at `step`, ns.
    pub fn cost(&self, step: DetailStep) -> Option<f64> {
        let whole = self.costs[step.level as usize]?;
        if step.one_in <= 1 {
            return Some(whole);
        }
        let below = self.below(step.level).and_then(|l| self.costs[l as usize]).unwrap_or(0.0);
        Some(below + (whole - below).max(0.0) / f64::from(step.one_in))
    }

    /// Takes a token; returns the change of level, if any.
    pub fn token(&mut self, token: &DecodedToken) -> Option<LevelDecision> {
        if token.dur == 0 {
            return None;
        }
        self.learn(token);
        let usual = self.usual();
        // While ops are sampled a token has their full cost or none: use the mean.
        let cost = if self.now.one_in > 1 { self.cost(self.now) } else { Some(token.cost) };
        let share = cost.unwrap_or(token.cost) / token.dur as f64;
        let settled = token.level == self.now.level || self.now.one_in > 1;
        let over = settled && self.rule.budget.is_some_and(|b| share > b);
        // Average two tokens: an alternating load makes one of them take the time of two.
        let pair = self.last.replace(token.dur).map(|last| (last + token.dur) as f64 / 2.0);
        let slow = self.rule.qos.and_then(|q| pair.filter(|p| p * q > 1e9));
        let late = self.rule.qos.is_some_and(|q| token.dur as f64 * q > 1e9);
        self.over = if over { self.over + 1 } else { 0 };
        if over || late || slow.is_some() {
            (self.calm_tokens, self.calm_since) = (0, None);
        } else {
            self.calm_tokens += 1;
            self.calm_since.get_or_insert(token.t);
        }
        let change = if self.over >= PATIENCE {
            self.lower(ChangeReason::Budget(share), usual)
        } else if let Some(pair) = slow.filter(|_| settled) {
            self.lower(ChangeReason::Slow(1e9 / pair), usual)
        } else if !self.looked && self.recent.len() >= PATIENCE as usize && settled {
            self.looked = true;
            self.richest(usual).filter(|s| *s != self.now).map(|to| (to, ChangeReason::Fits))
        } else {
            self.higher(token.t, usual).map(|to| (to, ChangeReason::Calm))
        };
        let (to, why) = change?;
        Some(self.go(to, why, token, share))
    }

    fn learn(&mut self, token: &DecodedToken) {
        if self.recent.is_full() {
            self.recent.pop_front();
        }
        let _ = self.recent.push_back(token.dur);
        let (old, known) = (&mut self.costs[token.level as usize], &mut self.measured[token.level as usize]);
        *old = Some(match *old {
            Some(old) if *known => old + (token.cost - old) / 4.0,
            _ => token.cost,
        });
        *known = true;
    }

    /// Median of the latest durations, ns.
    fn usual(&self) -> f64 {
        let mut all: heapless::Vec<u64, WINDOW> = self.recent.iter().copied().collect();
        all.sort_unstable();
        all.get(all.len() / 2).map_or(0.0, |d| *d as f64)
    }

    /// The next level below.
    pub fn below(&self, level: Detail) -> Option<Detail> {
        self.levels.iter().rev().find(|l| **l < level).copied()
    }

    fn above(&self, level: Detail) -> Option<Detail> {
        self.levels.iter().find(|l| **l > level).copied()
    }

    /// Whether a token can be expected to keep the rule at `step`. Unknown costs may be tried; infinite ones never
    /// fit.
    fn fits(&self, step: DetailStep, usual: f64) -> bool {
        let here = self.cost(self.now).unwrap_or(0.0);
        let Some(there) = self.cost(step) else { return true };
        if there.is_infinite() {
            return false;
        }
        let bare = (usual - here).max(1.0);
        let budget = self.rule.budget.is_none_or(|b| there / (bare + there) <= b * FILL);
        // The burst of a sampled level must maintain the service level as well.
        let whole = self.costs[step.level as usize].unwrap_or(there);
        let qos = self.rule.qos.is_none_or(|q| (bare + whole) * q <= 1e9 * RESERVE);
        budget && qos
    }

    /// `level` in full, or sampled as often as fits; None if that would be too rare.
    fn at(&self, level: Detail, usual: f64) -> Option<DetailStep> {
        // Which tokens had the scheduler's records would not be known.
        let samples = (Detail::Op..=Detail::Counters).contains(&level);
        let steps = std::iter::successors(Some(1u32), |n| n.checked_mul(2).filter(|n| *n <= MAX_ONE_IN));
        let steps = steps.take(if samples { 32 } else { 1 });
        steps.map(|one_in| DetailStep { level, one_in }).find(|s| self.fits(*s, usual))
    }

    fn richest(&self, usual: f64) -> Option<DetailStep> {
        let poorest = *self.levels.first()?;
        let richest = self.levels.iter().rev().find_map(|level| self.at(*level, usual));
        Some(richest.unwrap_or(DetailStep { level: poorest, one_in: 1 }))
    }

    /// The richest level below the current one that fits, or the poorest.
    fn lower(&self, why: ChangeReason, usual: f64) -> Option<(DetailStep, ChangeReason)> {
        let lower = |s: &DetailStep| {
            (s.level, std::cmp::Reverse(s.one_in)) < (self.now.level, std::cmp::Reverse(self.now.one_in))
        };
        let candidates = self.levels.iter().rev().filter(|l| **l <= self.now.level);
        let fitting = match why {
            // Slow decoding is handled one level at a time, whatever that is predicted to save.
            ChangeReason::Slow(_) => self.below(self.now.level).map(|level| DetailStep { level, one_in: 1 }),
            _ => candidates.clone().filter_map(|l| self.at(*l, usual)).find(lower),
        };
        let last = || candidates.clone().next_back().map(|level| DetailStep { level: *level, one_in: 1 });
        fitting.or_else(last).filter(lower).map(|s| (s, why))
    }

    fn calm_ns(&self) -> u64 {
        CALM_NS << self.failures.min(DOUBLINGS)
    }

    fn higher(&self, t: u64, usual: f64) -> Option<DetailStep> {
        let calm = t.saturating_sub(self.calm_since?);
        if self.calm_tokens < CALM_TOKENS << self.failures.min(DOUBLINGS) || calm < self.calm_ns() {
            return None;
        }
        let denser = (self.now.one_in > 1).then_some(DetailStep { one_in: self.now.one_in / 2, ..self.now });
        let up = denser.filter(|s| self.fits(*s, usual)).or_else(|| match self.now.one_in {
            1 => self.at(self.above(self.now.level)?, usual),
            _ => None,
        });
        up.filter(|s| *s != self.now)
    }

    fn go(&mut self, to: DetailStep, why: ChangeReason, token: &DecodedToken, share: f64) -> LevelDecision {
        let forgiven = token.t.saturating_sub(self.counted) / FORGIVEN_NS;
        self.failures = self.failures.saturating_sub(u32::try_from(forgiven).unwrap_or(u32::MAX));
        match why {
            ChangeReason::Calm => self.rose = true,
            ChangeReason::Budget(_) | ChangeReason::Slow(_) if std::mem::take(&mut self.rose) => {
                self.failures = (self.failures + 1).min(DOUBLINGS);
            }
            _ => {}
        }
        if forgiven > 0 || self.counted == 0 {
            self.counted = token.t;
        }
        self.now = to;
        (self.over, self.last, self.calm_tokens, self.calm_since) = (0, None, 0, None);
        let usual = self.usual();
        let predicted = self.cost(to).filter(|_| usual > 0.0).map(|c| c / usual);
        LevelDecision { to, why, predicted, measured: (token.dur > 0).then_some(share) }
    }
}

#[cfg(test)]
mod tests;
