//! Which changes are an op's own, and which no chance explains. Uses `stats`.
//!
//! A change is the logarithm of B's time over A's, pair by pair of calls. From it the median change of the op's kind is
//! taken (ops that stream weights follow the memory, others the core), so that a machine which is faster in one run is
//! no op's change. Its error has two parts: what calls scatter, and what ops scatter around the median beyond that:
//! every start of a program places its memory anew, which no number of calls of one run shows.

use super::{Change, Drift, OpChange, Options, Verdict};
use crate::analysis::series::Series;
use crate::analysis::stats::{Estimate, false_discovery, mean, median, sorted, typical, weighted_median};
use crate::order;

/// So many ops make a kind of their own.
const KIND: usize = 4;
/// Of all intervals shown.
const CONFIDENCE: f64 = 0.95;
/// Share of the ops that may have changed without being taken for scatter, and the mean square of the others where all are
/// normally distributed (of the four fifths within 1.28 deviations).
const CHANGED: f64 = 0.2;
const MEAN_SQUARE: f64 = 0.4377;
/// So much less than by all of the squares the variance is known with by those.
const EFFICIENCY: f64 = 0.6;
/// Probes, clocks and where code lies in a cache make an execution longer or shorter by so much in a run, ns.
const JITTER: f64 = 20.0;
/// It runs as often in both runs: calls may differ by so much, where a graph was rebuilt within the run.
const SAME: f64 = 0.01;
/// Others must take at least so much of an op's time to steady its own.
const STEADY: f64 = 0.25;

/// Times of one or several groups in both runs, ns by pair; 0 where they did not run.
pub struct Column {
    streams: bool,
    times: [Vec<f64>; 2],
    /// Means over all pairs.
    means: [f64; 2],
    times_a_call: [f64; 2],
    /// None: too few calls, or it ran more often in one run.
    raw: Option<Estimate>,
}

impl Column {
    pub fn new(group: usize, streams: bool, series: [&Series; 2], pairs: usize) -> Column {
        let times = series.map(|s| s.group(group).iter().take(pairs).map(|t| f64::from(*t)).collect());
        Column::of(streams, times, series.map(|s| s.times_a_call(group)))
    }

    fn of(streams: bool, times: [Vec<f64>; 2], times_a_call: [f64; 2]) -> Column {
        let means = [mean(&times[0]), mean(&times[1])];
        let mut column = Column { streams, times, means, times_a_call, raw: None };
        column.raw = if column.as_often() { typical(&ratios(&column.times, None)) } else { None };
        column
    }

    fn as_often(&self) -> bool {
        let [a, b] = self.times_a_call;
        (a - b).abs() <= SAME * a
    }

    /// Several as one; it streams if most of its time does.
    pub fn sum(columns: &[Column], members: &[usize]) -> Column {
        let members: Vec<&Column> = members.iter().filter_map(|i| columns.get(*i)).collect();
        let time =
            |which: fn(&Column) -> bool| members.iter().filter(|c| which(c)).map(|c| c.means[0]).sum::<f64>();
        let streams = time(|c| c.streams) > time(|c| !c.streams);
        let times = [0, 1].map(|run| sum(&members, run));
        let counts = [0, 1].map(|run| members.iter().map(|c| c.times_a_call[run]).sum());
        Column::of(streams, times, counts)
    }
}

fn sum(columns: &[&Column], run: usize) -> Vec<f64> {
    let mut out = vec![0.0; columns.first().map_or(0, |c| c.times[run].len())];
    for column in columns {
        for (sum, time) in out.iter_mut().zip(&column.times[run]) {
            *sum += time;
        }
    }
    out
}

/// Logarithms of B over A of the k-th call of each in which there is something; the same of `others` in these calls
/// taken away.
fn ratios(times: &[Vec<f64>; 2], others: Option<&[Vec<f64>; 2]>) -> Vec<f64> {
    let [a, b] = [0, 1].map(|run| {
        let beside = others.map_or(&[][..], |o| &o[run]);
        let logs =
            times[run].iter().enumerate().filter(|(_, t)| **t > 0.0).map(|(i, t)| match beside.get(i) {
                Some(other) => t.ln() - other.max(1.0).ln(),
                None => t.ln(),
            });
        logs.collect::<Vec<f64>>()
    });
    a.iter().zip(&b).map(|(a, b)| b - a).collect()
}

/// The change of a time that every call has.
pub fn change(a: &[f64], b: &[f64], pairs: usize) -> Change {
    let times = [a, b].map(|t| t.iter().take(pairs).copied().collect());
    let column = Column::of(false, times, [1.0; 2]);
    shown(&column, column.raw)
}

fn share(log: f64) -> f64 {
    log.exp() - 1.0
}

fn interval(e: &Estimate) -> [f64; 2] {
    let width = e.within(CONFIDENCE);
    [share(e.value - width), share(e.value + width)]
}

fn shown(column: &Column, e: Option<Estimate>) -> Change {
    Change {
        a_ns: column.means[0],
        b_ns: column.means[1],
        change: e.map(|e| share(e.value)),
        interval: e.as_ref().map(interval),
    }
}

/// All ops, against which each is seen.
pub struct Field<'c> {
    columns: &'c [Column],
    /// Times of those that stream and of the others, in both runs.
    totals: [[Vec<f64>; 2]; 2],
    /// Variance between ops beyond that between calls, and the degrees of freedom it is known with.
    between: (f64, f64),
}

impl<'c> Field<'c> {
    pub fn new(columns: &'c [Column]) -> Field<'c> {
        let totals = [true, false].map(|streams| {
            let kind: Vec<&Column> =
                columns.iter().filter(|c| c.raw.is_some() && c.streams == streams).collect();
            [0, 1].map(|run| sum(&kind, run))
        });
        let mut field = Field { columns, totals, between: (0.0, 1.0) };
        field.between = field.variance_between();
        field
    }

    /// Ops to hold one of this kind against: others of the kind, or all others where these are few. None: there are too
    /// few at all. With them, the kinds that they are of.
    fn peers(&self, streams: bool, without: &[usize]) -> Option<(Vec<&'c Column>, &'static [bool])> {
        let others = self.columns.iter().enumerate().filter(|(i, _)| !without.contains(i));
        let others: Vec<&Column> = others.map(|(_, c)| c).filter(|c| c.raw.is_some()).collect();
        let kind: Vec<&Column> = others.iter().copied().filter(|c| c.streams == streams).collect();
        match (kind.len() + 1 >= KIND, others.len() + 1 >= KIND) {
            (true, _) => Some((kind, if streams { &[true] } else { &[false] })),
            (false, true) => Some((others, &[true, false])),
            (false, false) => None,
        }
    }

    /// Time of all ops of these kinds but some, in both runs.
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

    /// The change without that of its peers.
    fn own(&self, column: &Column, members: &[usize]) -> Option<Estimate> {
        let raw = column.raw?;
        let (peers, kinds) = self.peers(column.streams, members)?;
        let median = middle(&peers)?;
        let beside = self.beside(kinds, members);
        let steady = mean(&beside[0]) >= STEADY * column.means[0];
        let steadied = if steady { typical(&ratios(&column.times, Some(&beside))) } else { None };
        let own = Estimate { value: raw.value - median, ..steadied.unwrap_or(raw) };
        let jitter = JITTER * column.times_a_call[0] / column.means[0].max(1.0);
        Some(Estimate { variance: own.variance + jitter * jitter, ..own })
    }

    /// How far ops lie from their peers beyond what their calls let expect.
    fn variance_between(&self) -> (f64, f64) {
        let own: Vec<Estimate> =
            self.columns.iter().enumerate().filter_map(|(i, c)| self.own(c, &[i])).collect();
        let squares = sorted(&own.iter().map(|e| e.value * e.value).collect::<Vec<f64>>());
        let most = squares.len() - (CHANGED * squares.len() as f64).ceil() as usize;
        let seen = mean(squares.get(..most).unwrap_or(&[])) / MEAN_SQUARE;
        let expected = median(&own.iter().map(|e| e.variance).collect::<Vec<f64>>());
        ((seen - expected).max(0.0), (EFFICIENCY * own.len() as f64).max(1.0))
    }

    /// A row of these members, without its name.
    pub fn row(&self, column: &Column, members: &[usize]) -> OpChange {
        let (variance, df) = self.between;
        let own = self.own(column, members).map(|e| e.blurred(variance, df));
        let effect = own
            .or(column.raw)
            .map_or(column.means[1] - column.means[0], |e| share(e.value) * column.means[0]);
        let [a, b] = [0, 1].map(|run| column.times[run].iter().filter(|t| **t > 0.0).count());
        OpChange {
            name: String::new(),
            form: None,
            several: false,
            pairs: a.min(b) as u64,
            times_a_call: column.times_a_call,
            total: shown(column, column.raw),
            own: own.map(|e| share(e.value)),
            own_interval: own.as_ref().map(interval),
            effect_ns: effect,
            q: None,
            verdict: (!column.as_often()).then_some(Verdict::Recounted),
            estimate: own,
        }
    }

    /// Standard deviation of what the start of a run gives each op.
    pub fn scatter(&self) -> f64 {
        self.between.0.sqrt()
    }

    pub fn drift(&self) -> Vec<Drift> {
        let kinds = [(true, "ops that stream weights"), (false, "other ops")];
        let told = kinds.into_iter().filter_map(|(streams, ops)| {
            let kind: Vec<&Column> =
                self.columns.iter().filter(|c| c.streams == streams && c.raw.is_some()).collect();
            let change = share(middle(&kind)?);
            Some(Drift { ops, count: kind.len() as u64, change })
        });
        told.collect()
    }
}

/// Median of the changes, by time.
fn middle(columns: &[&Column]) -> Option<f64> {
    let values: Vec<(f64, f64)> = columns.iter().filter_map(|c| Some((c.raw?.value, c.means[0]))).collect();
    weighted_median(&values)
}

/// Gives rows their verdicts, and sorts them: told changes first, then by effect.
pub fn tell(rows: &mut [OpChange], options: &Options) {
    let least = (1.0 + options.least).ln();
    let tested: Vec<usize> = (0..rows.len()).filter(|i| rows[*i].estimate.is_some()).collect();
    let chances: Vec<f64> =
        tested.iter().map(|i| rows[*i].estimate.map_or(1.0, |e| e.chance(least))).collect();
    for (i, q) in tested.iter().zip(false_discovery(&chances)) {
        let row = &mut rows[*i];
        row.q = Some(q);
        if q <= options.false_discovery {
            row.verdict = Some(if row.effect_ns > 0.0 { Verdict::Slower } else { Verdict::Faster });
        }
    }
    order::by_key(rows, |r| (u64::from(r.verdict.is_none()), !order::fraction(r.effect_ns.abs())));
}

#[cfg(test)]
mod tests;
