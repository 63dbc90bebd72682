//! Separates an op's own changes from common changes and from chance.
//!
//! A change is the logarithm of B's time over A's, for each pair of calls. The median change of the op's kind is
//! subtracted from it (ops that stream weights follow the memory, others the core), so that a machine that is
//! faster in one run does not count as a change of the op. Its error has two parts: variation between calls, and
//! variation between program starts (`scatter`).

use super::scatter::{OpVariation, over_starts};
use super::{DiffOptions, DiffVerdict, Drift, KINDS, OpChange, Scatter, TimeChange};
use crate::sums::series::Series;
use crate::sums::time_series::{Estimate, false_discovery, mean, typical, weighted_median};
use common::order;

/// Minimum number of ops to form a separate kind.
const KIND: usize = 4;
/// Confidence level of all intervals shown.
const CONFIDENCE: f64 = 0.95;
/// Amount by which probes, clocks and cache placement of code lengthen or shorten an execution in a run, ns.
const JITTER: f64 = 20.0;
/// Tolerance for "runs equally often in both runs": calls may differ this much if a graph was rebuilt during the
/// run.
const SAME: f64 = 0.01;
/// Other ops are used to stabilise an op only if they take at least this share of its time.
const STEADY: f64 = 0.25;
/// This share of a test's weight is the same for all ops; the rest is proportional to their time.
const EVEN: f64 = 0.5;
/// The power used to compute the smallest change found. With a known error it would be found this often; since
/// the error is only estimated, it is found four times out of five.
const POWER: f64 = 0.9;

/// If other work disturbs most calls, the fastest of this many consecutive calls is taken as undisturbed.
const ROW: usize = 4;
/// That is the case if it reduces the variance of a typical op by this factor.
const DISTURBED: f64 = 4.0;

/// Times of one or several groups in both runs, ns by pair; 0 where they did not run.
pub struct TimesColumn {
    streams: bool,
    /// Of each group of this many consecutive calls the fastest is compared.
    row: usize,
    times: [Vec<f64>; 2],
    /// Means over all pairs.
    means: [f64; 2],
    times_a_call: [f64; 2],
    /// None: too few calls, or it ran more often in one run.
    raw: Option<Estimate>,
}

impl TimesColumn {
    pub fn new(group: usize, streams: bool, series: [&Series; 2], pairs: usize, row: usize) -> TimesColumn {
        let times = series.map(|s| s.group(group).iter().take(pairs).map(|t| f64::from(*t)).collect());
        TimesColumn::of(streams, times, series.map(|s| s.times_a_call(group)), row)
    }

    fn of(streams: bool, times: [Vec<f64>; 2], times_a_call: [f64; 2], row: usize) -> TimesColumn {
        let means = [mean(&times[0]), mean(&times[1])];
        let mut column = TimesColumn { streams, row, times, means, times_a_call, raw: None };
        column.raw = if as_often(times_a_call) { typical(&ratios(&column.times, None, row)) } else { None };
        column
    }

    /// Several columns as one; it streams if most of its time does.
    pub fn sum(columns: &[TimesColumn], members: &[usize]) -> TimesColumn {
        let members: Vec<&TimesColumn> = members.iter().filter_map(|i| columns.get(*i)).collect();
        let time = |which: fn(&TimesColumn) -> bool| {
            members.iter().filter(|c| which(c)).map(|c| c.means[0]).sum::<f64>()
        };
        let streams = time(|c| c.streams) > time(|c| !c.streams);
        let times = [0, 1].map(|run| sum(&members, run));
        let counts = [0, 1].map(|run| members.iter().map(|c| c.times_a_call[run]).sum());
        TimesColumn::of(streams, times, counts, members.first().map_or(1, |c| c.row))
    }
}

fn as_often([a, b]: [f64; 2]) -> bool {
    (a - b).abs() <= SAME * a
}

fn sum(columns: &[&TimesColumn], run: usize) -> Vec<f64> {
    let mut out = vec![0.0; columns.first().map_or(0, |c| c.times[run].len())];
    for column in columns {
        for (sum, time) in out.iter_mut().zip(&column.times[run]) {
            *sum += time;
        }
    }
    out
}

/// Logarithms of B over A of the k-th call of each in which the op ran, or of the fastest in the k-th group of
/// consecutive calls, minus the same of `others` in these calls.
fn ratios(times: &[Vec<f64>; 2], others: Option<&[Vec<f64>; 2]>, row: usize) -> Vec<f64> {
    let [a, b] = [0, 1].map(|run| {
        let beside = others.map(|o| &o[run]);
        let ran: Vec<(f64, f64)> = times[run]
            .iter()
            .enumerate()
            .filter(|(_, t)| **t > 0.0)
            .map(|(i, t)| (*t, beside.and_then(|o| o.get(i)).map_or(1.0, |other| other.max(1.0))))
            .collect();
        let fastest = |calls: &[(f64, f64)]| {
            let least = calls.iter().fold((f64::MAX, f64::MAX), |l, c| (l.0.min(c.0), l.1.min(c.1)));
            least.0.ln() - least.1.ln()
        };
        ran.chunks_exact(row.max(1)).map(fastest).collect::<Vec<f64>>()
    });
    a.iter().zip(&b).map(|(a, b)| b - a).collect()
}

/// A time that every call has.
pub fn call(series: [&Series; 2], pairs: usize, row: usize) -> TimesColumn {
    let times = series.map(|s| s.durations.iter().take(pairs).copied().collect());
    TimesColumn::of(false, times, [1.0; 2], row)
}

/// The number of consecutive calls of which the fastest is compared: 1 if few calls are disturbed, so that all of
/// them are used. The columns must have been built with 1.
pub fn in_a_row(columns: &[TimesColumn]) -> usize {
    let less = |c: &TimesColumn| {
        let fastest = typical(&ratios(&c.times, None, ROW))?;
        Some((fastest.variance / c.raw?.variance.max(f64::MIN_POSITIVE), c.means[0]))
    };
    let less: Vec<(f64, f64)> = columns.iter().filter_map(less).collect();
    if weighted_median(&less).is_some_and(|ratio| ratio * DISTURBED < 1.0) { ROW } else { 1 }
}

/// The change of one time over all pairs of starts.
pub fn change(columns: &[TimesColumn]) -> TimeChange {
    let raw: Vec<Estimate> = columns.iter().filter_map(|c| c.raw).collect();
    let e = over_starts(&raw);
    let [a_ns, b_ns] = over(columns, |c| c.means);
    TimeChange { a_ns, b_ns, change: e.map(|e| share(e.value)), interval: e.as_ref().and_then(interval) }
}

/// Means over all pairs of starts.
fn over(columns: &[TimesColumn], what: fn(&TimesColumn) -> [f64; 2]) -> [f64; 2] {
    [0, 1].map(|run| mean(&columns.iter().map(|c| what(c)[run]).collect::<Vec<f64>>()))
}

fn share(log: f64) -> f64 {
    log.exp() - 1.0
}

/// None if calls or starts vary so much that the bounds would be meaningless.
fn interval(e: &Estimate) -> Option<[f64; 2]> {
    let width = e.within(CONFIDENCE);
    (width <= WIDEST.ln()).then(|| [share(e.value - width), share(e.value + width)])
}

/// All ops of a pair of starts; each op is compared against them.
struct PairTotals<'c> {
    columns: &'c [TimesColumn],
    /// Times of the streaming ops and of the others, in both runs.
    totals: [[Vec<f64>; 2]; 2],
}

impl<'c> PairTotals<'c> {
    fn new(columns: &'c [TimesColumn]) -> PairTotals<'c> {
        let totals = [true, false].map(|streams| {
            let kind: Vec<&TimesColumn> =
                columns.iter().filter(|c| c.raw.is_some() && c.streams == streams).collect();
            [0, 1].map(|run| sum(&kind, run))
        });
        PairTotals { columns, totals }
    }

    /// Ops to compare one of this kind with: others of the kind, or all others if the kind has few. None if there
    /// are too few in total. Also returns the kinds they belong to.
    fn peers(&self, streams: bool, without: &[usize]) -> Option<(Vec<&'c TimesColumn>, &'static [bool])> {
        let others = self.columns.iter().enumerate().filter(|(i, _)| !without.contains(i));
        let others: Vec<&TimesColumn> = others.map(|(_, c)| c).filter(|c| c.raw.is_some()).collect();
        let kind: Vec<&TimesColumn> = others.iter().copied().filter(|c| c.streams == streams).collect();
        match (kind.len() + 1 >= KIND, others.len() + 1 >= KIND) {
            (true, _) => Some((kind, if streams { &[true] } else { &[false] })),
            (false, true) => Some((others, &[true, false])),
            (false, false) => None,
        }
    }

    /// Time of all ops of these kinds except `without`, in both runs.
    fn beside(&self, kinds: &[bool], without: &[usize]) -> [Vec<f64>; 2] {
        [0, 1].map(|run| {
            let totals = kinds.iter().map(|streams| &self.totals[usize::from(!streams)][run]);
            let mut out = vec![0.0; totals.clone().map(Vec::len).max().unwrap_or(0)];
            for total in totals {
                out.iter_mut().zip(total).for_each(|(sum, t)| *sum += t);
            }
            let gone = without.iter().filter_map(|i| self.columns.get(*i));
            for column in gone.filter(|c| c.raw.is_some() && kinds.contains(&c.streams)) {
                out.iter_mut().zip(&column.times[run]).for_each(|(sum, t)| *sum -= t);
            }
            out
        })
    }

    /// The op's change minus that of its peers.
    fn own(&self, column: &TimesColumn, members: &[usize]) -> Option<Estimate> {
        let raw = column.raw?;
        let (peers, kinds) = self.peers(column.streams, members)?;
        let median = middle(&peers)?;
        let beside = self.beside(kinds, members);
        let steady = mean(&beside[0]) >= STEADY * column.means[0];
        let steadied = if steady { typical(&ratios(&column.times, Some(&beside), column.row)) } else { None };
        let own = Estimate { value: raw.value - median, ..steadied.unwrap_or(raw) };
        let jitter = JITTER * column.times_a_call[0] / column.means[0].max(1.0);
        Some(Estimate { variance: own.variance + jitter * jitter, ..own })
    }
}

/// All pairs of starts.
pub struct Judge<'c> {
    fields: Vec<PairTotals<'c>>,
    /// For each op: whether it streams, and its own change for each pair of starts.
    own: Vec<(bool, Vec<Estimate>)>,
}

impl<'c> Judge<'c> {
    /// `pairs` has the same ops in each pair of starts.
    pub fn new(pairs: &'c [Vec<TimesColumn>]) -> Judge<'c> {
        let fields: Vec<PairTotals<'_>> = pairs.iter().map(|columns| PairTotals::new(columns)).collect();
        let first = pairs.first().map_or(&[][..], Vec::as_slice);
        let own = |i: usize| -> Vec<Estimate> {
            let of = |field: &PairTotals<'_>| field.own(field.columns.get(i)?, &[i]);
            fields.iter().filter_map(of).collect()
        };
        let own = first.iter().enumerate().map(|(i, c)| (c.streams, own(i))).collect();
        Judge { fields, own }
    }

    /// Variation between starts, estimated from all ops except these: an op that changed must not influence the
    /// estimate it is tested against.
    fn spreads(&self, without: &[usize]) -> [OpVariation; 2] {
        let kind = |of: &[bool]| -> Vec<&[Estimate]> {
            let seen = self.own.iter().enumerate().filter(|(i, (streams, each))| {
                of.contains(streams) && !each.is_empty() && !without.contains(i)
            });
            seen.map(|(_, (_, each))| &each[..]).collect()
        };
        OpVariation::of_kinds(&kind(&[true]), &kind(&[false]), &kind(&[true, false]), KIND - 1)
    }

    /// A row for these members, without its name; `columns` are their sums for each pair of starts.
    pub fn row(&self, columns: &[TimesColumn], members: &[usize]) -> OpChange {
        let streams = columns.first().is_some_and(|c| c.streams);
        let each: Vec<Estimate> =
            self.fields.iter().zip(columns).filter_map(|(field, c)| field.own(c, members)).collect();
        let own = self.spreads(members)[usize::from(!streams)].settle(&each);
        let total = change(columns);
        let relative = own.map(|e| share(e.value)).or(total.change);
        let effect = relative.map_or(total.b_ns - total.a_ns, |share| share * total.a_ns);
        let ran = |column: &TimesColumn| {
            let calls = column.times.each_ref().map(|run| run.iter().filter(|t| **t > 0.0).count());
            calls[0].min(calls[1]) as u64
        };
        let [a, b] = over(columns, |c| c.times_a_call);
        OpChange {
            name: String::new(),
            form: None,
            several: false,
            kind: KINDS[usize::from(!streams)],
            pairs: columns.iter().map(ran).sum(),
            times_a_call: [a, b],
            total,
            own: own.map(|e| share(e.value)),
            own_interval: own.as_ref().and_then(interval),
            effect_ns: effect,
            q: None,
            found: None,
            verdict: (!as_often([a, b])).then_some(DiffVerdict::Recounted),
            estimate: own,
        }
    }

    /// The common change of the ops of each kind; the mean over all pairs of starts.
    pub fn drift(&self) -> Vec<Drift> {
        let told = [true, false].into_iter().zip(KINDS).filter_map(|(streams, ops)| {
            let of = |field: &PairTotals<'_>| {
                let all = field.columns.iter();
                let kind: Vec<&TimesColumn> =
                    all.filter(|c| c.streams == streams && c.raw.is_some()).collect();
                middle(&kind)
            };
            let each: Vec<f64> = self.fields.iter().filter_map(of).collect();
            let count = self.count(streams);
            (!each.is_empty()).then(|| Drift { ops, count, change: share(mean(&each)) })
        });
        told.collect()
    }

    fn count(&self, streams: bool) -> u64 {
        self.fields.first().map_or(&[][..], |f| f.columns).iter().filter(|c| c.streams == streams).count()
            as u64
    }

    /// How much program starts alone change ops of each kind, and the changes that can still be found.
    pub fn scatter(&self, rows: &[OpChange]) -> Vec<Scatter> {
        let spreads = self.spreads(&[]);
        let told = spreads.into_iter().zip(KINDS).filter_map(|(spread, ops)| {
            let kind = rows.iter().filter(|r| r.kind == ops);
            let found: Vec<(f64, f64)> = kind.filter_map(|r| Some((r.found?, r.total.a_ns))).collect();
            let (between_starts, seen) = (spread.variance.sqrt(), spread.seen.sqrt());
            Some(Scatter { ops, between_starts, seen, found: weighted_median(&found)? })
        });
        told.collect()
    }
}

/// Median of the changes, weighted by time.
fn middle(columns: &[&TimesColumn]) -> Option<f64> {
    let values: Vec<(f64, f64)> = columns.iter().filter_map(|c| Some((c.raw?.value, c.means[0]))).collect();
    weighted_median(&values)
}

/// An interval that reaches beyond this factor, either way, is not reported.
const WIDEST: f64 = 10.0;

/// Sets the verdicts of the rows and sorts them: reported changes first, then by effect.
///
/// Tests of ops that take much of a call weigh more: their p-values are divided by weights with mean 1, which
/// preserves the false discovery rate (Genovese, Roeder and Wasserman, Biometrika 93 (2006) 509).
pub fn tell(rows: &mut [OpChange], options: &DiffOptions) {
    let least = (1.0 + options.least).ln();
    let tested: Vec<(usize, Estimate)> =
        rows.iter().enumerate().filter_map(|(i, r)| Some((i, r.estimate?))).collect();
    let all = tested.iter().map(|(i, _)| rows[*i].total.a_ns).sum::<f64>().max(1.0);
    let count = tested.len() as f64;
    let weight = |row: &OpChange| EVEN + (1.0 - EVEN) * count * row.total.a_ns / all;
    let chances: Vec<f64> = tested.iter().map(|(i, e)| e.chance(least) / weight(&rows[*i])).collect();
    for ((i, estimate), q) in tested.iter().zip(false_discovery(&chances)) {
        let row = &mut rows[*i];
        // As if it were the only change.
        let chance = (options.false_discovery * weight(row) / count).min(1.0);
        let beyond = estimate.within(1.0 - 2.0 * chance) + estimate.within(2.0 * POWER - 1.0);
        row.found = Some(share(least + beyond));
        row.q = Some(q);
        if q <= options.false_discovery {
            row.verdict = Some(if row.effect_ns > 0.0 { DiffVerdict::Slower } else { DiffVerdict::Faster });
        }
    }
    order::by_key(rows, |r| (u64::from(r.verdict.is_none()), !order::fraction(r.effect_ns.abs())));
}

#[cfg(test)]
mod tests;
