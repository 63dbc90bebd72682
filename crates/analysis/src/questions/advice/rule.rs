//! What rules look at, and what they share.

pub use super::data::{Advice, Confidence, Gain};
use crate::questions::report::data::Report;
use crate::questions::verdict::data::{Limit, PhaseVerdict};
use crate::questions::verdict::facts::{PhaseFacts, VerdictFacts};
use crate::recorded::calls::Phase;
use crate::sums::device_kernels::DeviceTimes;
use crate::sums::offload::Offload;

/// What rules look at.
pub struct RuleInput<'r> {
    pub facts: &'r VerdictFacts<'r>,
    pub phases: &'r [PhaseVerdict],
    pub limit: Option<&'r Limit>,
}

impl<'r> RuleInput<'r> {
    /// The phase of most interest.
    pub fn main(&self) -> Option<&'r PhaseFacts> {
        self.facts.main()
    }

    /// What devices and the CPU beside them do in the phase of most interest; `None` if no device takes part.
    pub fn devices(&self) -> Option<DeviceWork<'r>> {
        let main = self.main()?;
        let phase = self.facts.report.phases.iter().find(|p| p.phase == main.phase)?;
        Some(DeviceWork { offload: phase.offload.as_ref()?, calls: phase.calls })
    }

    /// Times between submissions of a graph, of the ring with most of the target's own; `None` if none were recorded.
    pub fn gaps(&self) -> Option<SubmissionGaps> {
        let rings = &self.facts.report.submissions.as_ref()?.rings;
        let ring = rings.iter().filter(|r| r.own > 0).max_by_key(|r| r.own)?;
        let gaps = ring.gaps?;
        let phases = || self.facts.report.phases.iter();
        let work = phases().filter_map(|p| Some(DeviceWork { offload: p.offload.as_ref()?, calls: p.calls }));
        let crossing = work.map(|w| w.crossing_ns()).fold(0, u64::saturating_add);
        let calls = phases().map(|p| p.in_call_ns).fold(0, u64::saturating_add);
        let all = (gaps.mean_ns * gaps.n as f64 - crossing as f64).max(0.0);
        let share = all / calls.max(1) as f64;
        let regular = gaps.p50_ns as f64 * 4.0 >= gaps.mean_ns;
        Some(SubmissionGaps { share, regular, p50_ns: gaps.p50_ns, max_ns: gaps.max_ns })
    }

    /// The share of a measured ceiling that a phase reached; `None` without one.
    pub fn reached(&self, phase: Phase) -> Option<f64> {
        let top = self.phases.iter().find(|p| p.phase == phase)?.ceiling.as_ref()?;
        (top.source != "trace").then_some(top.reached)
    }
}

impl RuleInput<'_> {
    /// The command that measures other numbers of threads, CPUs and flags of the same run.
    pub fn tune(&self) -> String {
        tune(self.facts.report)
    }

    /// No call is faster than this: the time at a measured ceiling, ns; 0 without one.
    fn least_ns(&self, p: &PhaseFacts) -> f64 {
        self.reached(p.phase).map_or(0.0, |share| share * p.call_ns())
    }
}

/// Programs whose flags `tune` knows; in the command of another one it replaces `{threads}`.
const KNOWN: [&str; 5] = ["llama-bench", "llama-cli", "llama-completion", "llama-server", "ggml-runner"];

/// The command that measures other numbers of threads, CPUs and flags of a recorded run.
pub fn tune(report: &Report) -> String {
    let command = report.run.command.split_once(" -- ").map(|(_, command)| command);
    // A secret was left out of the recorded one.
    let command = command.filter(|c| !c.contains("***")).and_then(tunable);
    format!("profinfer tune -- {}", command.as_deref().unwrap_or("COMMAND -t {threads}"))
}

/// A command line as `tune` takes it; `None` if it is not known where its number of threads is.
fn tunable(command: &str) -> Option<String> {
    let mut words: Vec<&str> = command.split(' ').collect();
    let name = |word: &str| word.rsplit('/').next().is_some_and(|name| KNOWN.contains(&name));
    if !words.iter().any(|word| name(word)) {
        let at = words.iter().position(|word| ["-t", "--threads"].contains(word))?;
        *words.get_mut(at + 1)? = "{threads}";
    }
    Some(words.join(" "))
}

/// The work of one phase, with the number of its calls.
pub struct DeviceWork<'r> {
    pub offload: &'r Offload,
    pub calls: u64,
}

impl<'r> DeviceWork<'r> {
    /// The mean of a sum over the phase, by call and by graph.
    pub fn a_call(&self, sum: u64) -> f64 {
        sum as f64 / self.calls.max(1) as f64
    }

    pub fn a_graph(&self, sum: u64) -> f64 {
        sum as f64 / self.offload.graphs.max(1) as f64
    }

    /// The busiest device of which times are known, with its name.
    pub fn timed(&self) -> Option<(&'r str, &'r DeviceTimes)> {
        let timed = self.offload.backends.iter().filter_map(|b| Some((&*b.backend, b.device.as_ref()?)));
        timed.max_by_key(|(_, device)| device.busy_ns)
    }

    /// Time in which the device has nothing to do because the CPU computes, ns.
    pub fn crossing_ns(&self) -> u64 {
        let between = self.offload.crossings.iter().filter(|c| c.between > 0);
        between.map(|c| c.around_ns().saturating_add(c.cpu_ns)).fold(0, u64::saturating_add)
    }
}

/// Times between submissions of a graph, without those in which the CPU computes.
pub struct SubmissionGaps {
    /// Of the time in calls.
    pub share: f64,
    /// Many that are alike; otherwise a few long ones make up the sum.
    pub regular: bool,
    pub p50_ns: u64,
    pub max_ns: u64,
}

/// A gain, if it is worth the work: at least 5 % even in the better case.
pub fn gain(phase: Phase, now_ns: f64, then_ns: [f64; 2]) -> Option<Gain> {
    let [fastest, slowest] = then_ns;
    let gain = Gain { phase, least: (now_ns / slowest).max(1.0), most: now_ns / fastest };
    (gain.most.is_finite() && gain.most >= 1.05).then_some(gain)
}

/// Whole percent.
pub fn pct(share: f64) -> String {
    format!("{:.0} %", share * 100.0)
}

/// Measured duration over the replay's: what replays of runs whose interferer was then removed left out or added
/// (trials on two engines, 7 runs).
pub const REPLAY_ERROR: [f64; 2] = [0.9, 1.4];

/// The range of a call's duration without waits, ns. While a thread waited for a CPU the others had memory and caches for
/// themselves: at once they are slower, as threads are on CPUs that are added.
pub fn replayed(r: &RuleInput<'_>, p: &PhaseFacts) -> Option<[f64; 2]> {
    let ns = p.replay_call_ns()?;
    let threads = f64::from(p.threads.max(1));
    let used = (threads * (1.0 - p.bar.and_then(|bar| bar.waiting_for_cpu).unwrap_or(0.0))).max(1.0);
    let [under, over] = REPLAY_ERROR;
    let range = [ns * under, ns * over * threads / scaled(used, threads)];
    Some(range.map(|ns| ns.max(r.least_ns(p)).min(p.call_ns())))
}

/// What a CPU adds to those that threads used, as a share: predictions of more threads from one recording were up to 44 %
/// above what they brought (trials on two engines).
const ADDED: f64 = 0.56;

/// What `cpus` CPUs are worth for certain to threads that used `used` of them.
fn scaled(used: f64, cpus: f64) -> f64 {
    used + ADDED * (cpus - used).max(0.0)
}

/// The gain of `cpus` CPUs for threads that shared `used` ones. As many threads as CPUs share the same work. A thread
/// without a CPU takes no part of an operator from those that have one: where threads spun, the work is that of one thread
/// on each CPU at least, and of all of them at most.
pub fn uncrowded(r: &RuleInput<'_>, p: &PhaseFacts, used: u32, cpus: u32) -> Option<Gain> {
    let work = p.crowded?;
    let [under, over] = REPLAY_ERROR;
    let call = |graph_ns: f64| graph_ns * p.graphs_a_call + p.outside_ns();
    let [used, cpus] = [used, cpus].map(|n| f64::from(n.max(1)));
    let fastest = (call(work.calm / cpus + work.spun) * under).max(r.least_ns(p));
    let slowest = call((work.calm + work.spun * f64::from(p.threads)) / scaled(used, cpus)) * over;
    gain(p.phase, p.call_ns(), [fastest, slowest.max(fastest)])
}

#[cfg(test)]
mod tests {
    use super::tunable;

    #[test]
    fn tune_is_told_where_the_threads_are() {
        let known = "nice -n 5 /opt/llama-bench -m m.gguf -t 2";
        assert_eq!(tunable(known).as_deref(), Some(known));
        assert_eq!(tunable("./engine -m m -t 2 -n 8").as_deref(), Some("./engine -m m -t {threads} -n 8"));
        assert_eq!(tunable("./engine -m m"), None);
        assert_eq!(tunable("./engine -t"), None);
    }
}
