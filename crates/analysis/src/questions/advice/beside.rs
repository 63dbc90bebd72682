//! Two recordings of one model with other settings, such as other numbers of threads: which is faster, why, and what follows.

use serde::Serialize;

use super::check;
use super::rule::tune;
use crate::questions::diff::Diff;
use crate::questions::report::Report;
use crate::questions::verdict::data::PhaseVerdict;
use crate::recorded::calls::Phase;

/// A change without a confidence interval counts from this factor on, one with an interval from the second on.
const CLEAR: f64 = 1.1;
const LEAST: f64 = 1.02;

/// The answer; A is the first recording.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Beside {
    pub phase: Phase,
    /// Tokens per second of A and B.
    pub tokens_per_s: [f64; 2],
    /// Speed of B over that of A.
    pub change: f64,
    /// Its 95 % confidence interval, from calls that both have; null if there are too few.
    pub interval: Option<[f64; 2]>,
    /// `A` or `B`; null: no difference beyond scatter.
    pub faster: Option<&'static str>,
    /// Time of a token (of a call, where it has several) in A and B by what it went to, ns.
    pub parts: Vec<PartTimes>,
    /// Differences in recorded facts: what, in A, in B.
    pub differences: Vec<[String; 3]>,
    /// What follows, first what to do.
    pub advice: Vec<String>,
}

/// A share of the time bar in both recordings.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PartTimes {
    pub name: &'static str,
    pub a_ns: f64,
    pub b_ns: f64,
}

/// Why two recordings give no answer.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoAnswer {
    #[error(
        "the recordings are of different models ({what}: {a} and {b}): record the same one with other settings"
    )]
    OtherModel { what: &'static str, a: u64, b: u64 },
    #[error("the recordings have no phase with a speed in common: record at least one whole call of each")]
    NoSpeed,
}

/// Compares two recordings. `diff` is of their calls, where these can be paired.
///
/// # Errors
/// They are of different models, or have no speed in common.
pub fn beside(a: &Report, b: &Report, diff: Option<&Diff>) -> Result<Beside, NoAnswer> {
    same_model(a, b)?;
    let phases = |r: &Report| r.verdict.as_ref().map(|v| v.phases.clone()).unwrap_or_default();
    let (of_a, of_b) = (phases(a), phases(b));
    let pair =
        of_a.iter().find_map(|p| Some((p, of_b.iter().find(|q| q.phase == p.phase && speed(q).is_some())?)));
    let (p, q) = pair.filter(|(p, _)| speed(p).is_some()).ok_or(NoAnswer::NoSpeed)?;
    let tokens_per_s = [speed(p).unwrap_or_default(), speed(q).unwrap_or_default()];
    let change = tokens_per_s[1] / tokens_per_s[0];
    // A change of time is the inverse of one of speed.
    let interval = diff.filter(|d| d.phase == p.phase && d.enough()).and_then(|d| d.call.interval);
    let interval = interval.map(|[low, high]| [1.0 / (1.0 + high), 1.0 / (1.0 + low)]);
    let clear = |factor: f64, bound: Option<f64>| match bound {
        Some(bound) => bound > 1.0 && factor >= LEAST,
        None => factor >= CLEAR,
    };
    let faster = match change {
        up if clear(up, interval.map(|i| i[0])) => Some("B"),
        down if clear(1.0 / down, interval.map(|i| 1.0 / i[1])) => Some("A"),
        _ => None,
    };
    let mut found = Beside {
        phase: p.phase,
        tokens_per_s,
        change,
        interval,
        faster,
        parts: parts(p, q, tokens_per_s),
        differences: differences(a, b, diff),
        advice: Vec::new(),
    };
    found.advice = advice(&found, a, b);
    Ok(found)
}

fn speed(p: &PhaseVerdict) -> Option<f64> {
    p.tokens_per_s.filter(|rate| *rate > 0.0)
}

fn same_model(a: &Report, b: &Report) -> Result<(), NoAnswer> {
    let facts = |r: &Report| {
        let m = &r.model;
        [
            ("layers", m.layers.map(u64::from)),
            ("embedding", m.embedding),
            ("vocabulary", m.vocabulary),
            ("experts", m.experts),
        ]
    };
    for ((what, a), (_, b)) in facts(a).into_iter().zip(facts(b)) {
        if let (Some(a), Some(b)) = (a, b)
            && a != b
        {
            return Err(NoAnswer::OtherModel { what, a, b });
        }
    }
    Ok(())
}

/// The bars' shares as times of a token.
fn parts(p: &PhaseVerdict, q: &PhaseVerdict, rates: [f64; 2]) -> Vec<PartTimes> {
    let Some((a, b)) = p.bar.zip(q.bar) else { return Vec::new() };
    let [a_ns, b_ns] = rates.map(|rate| 1e9 / rate);
    let of_b = b.all();
    let there = |name: &str| of_b.iter().find(|(n, _)| *n == name).map_or(0.0, |(_, share)| *share);
    let all = a.all().into_iter().map(|(name, share)| PartTimes {
        name,
        a_ns: share * a_ns,
        b_ns: there(name) * b_ns,
    });
    all.filter(|p| p.a_ns.max(p.b_ns) > 0.0).collect()
}

fn threads(r: &Report) -> u32 {
    r.verdict.as_ref().map_or(0, |v| v.threads)
}

/// The facts that differ. Without a diff those of the reports alone.
fn differences(a: &Report, b: &Report, diff: Option<&Diff>) -> Vec<[String; 3]> {
    let kind = |r: &Report| r.verdict.as_ref().map_or_else(String::new, |v| v.quantisation.clone());
    let mut own = vec![["weights".to_owned(), kind(a), kind(b)]];
    match diff {
        Some(diff) => own.extend(diff.differences.iter().cloned()),
        None => {
            own.push(["threads".to_owned(), threads(a).to_string(), threads(b).to_string()]);
            let rest = check::differences(a, b).into_iter();
            own.extend(rest.filter_map(|text| {
                let (what, both) = text.split_once(": ")?;
                let (a, b) = both.split_once(" and ")?;
                Some([what.to_owned(), a.to_owned(), b.to_owned()])
            }));
        }
    }
    own.retain(|[_, a, b]| a != b);
    own
}

/// What to do, then what to look at next.
fn advice(found: &Beside, a: &Report, b: &Report) -> Vec<String> {
    let counts = [threads(a), threads(b)];
    let other_threads = counts[0] != counts[1] && counts.iter().all(|n| *n > 0);
    let (best, n) = match found.faster {
        Some("A") => (a, counts[0]),
        Some(_) => (b, counts[1]),
        None if counts[0] <= counts[1] => (a, counts[0]),
        None => (b, counts[1]),
    };
    let mut out = Vec::new();
    match (found.faster, other_threads) {
        (Some(_), true) => out.push(format!("-t {n}")),
        (Some(which), false) => out.push(format!("keep the settings of {which}: {}", command(best))),
        (None, true) => out.push(format!("-t {n}: as fast with fewer threads")),
        (None, false) => out.push("either: neither is faster beyond scatter".into()),
    }
    if let Some(first) = best.verdict.as_ref().and_then(|v| v.advice.first()) {
        let action = first.actions.first().map_or_else(String::new, |action| format!(": {action}"));
        out.push(format!("then, by the faster one: {}{action}", first.title));
    }
    if other_threads {
        out.push(format!("all numbers of threads, CPUs and flags: {}", tune(best)));
    }
    out
}

/// The recorded command, without the recorder's own words.
fn command(r: &Report) -> &str {
    r.run.command.split_once(" -- ").map_or("(its command was not recorded)", |(_, command)| command)
}

impl Beside {
    /// In a few lines.
    pub fn text(&self) -> String {
        let [a, b] = self.tokens_per_s;
        let sure = self.interval.map_or_else(
            || "; too few calls for an interval".to_owned(),
            |[low, high]| format!("; 95 % interval {low:.2} to {high:.2}"),
        );
        let factor = |n: f64| format!("{n:.2} times as fast");
        let head = match self.faster {
            Some("A") => format!("A is {} as B", factor(1.0 / self.change)),
            Some(_) => format!("B is {} as A", factor(self.change)),
            None => "A and B are equally fast, within scatter".to_owned(),
        };
        let mut out = format!(
            "{head} in {}: A {a:.2}, B {b:.2} tok/s (B over A {:.2}{sure})",
            self.phase.name(),
            self.change
        );
        let ms = |ns: f64| format!("{:.2}", ns / 1e6);
        for part in &self.parts {
            out += &format!(
                "\n  {:<20} A {:>9} ms, B {:>9} ms a token",
                part.name,
                ms(part.a_ns),
                ms(part.b_ns)
            );
        }
        for [what, a, b] in &self.differences {
            out += &format!("\n  they differ in {what}: {a} and {b}");
        }
        for (i, line) in self.advice.iter().enumerate() {
            out += &format!("\n  {:<9} {line}", if i == 0 { "do" } else { "" });
        }
        out
    }
}
