//! The events that `profinfer watch` prints and that a hook gets: what happened to a run, each as one line of JSON. The
//! fields are described in docs/EVENTS.md.

pub mod worked;

use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::time::SystemTime;

use serde_json::{Map, Value, json};

use self::worked::{WorkThen, Worked};
use crate::affinity::{AffinityStatus, RunId};
use crate::recorder::trigger::Fired;
use crate::run::Run;
use crate::{clock, hook};
use common::cpus::ranges;
use common::plain;
use machine::affinity::{self, AllowedCpus};
use machine::target;

/// Version of the events: a number that grows when a field changes its meaning or goes; new fields do not change it.
pub const VERSION: u32 = 1;
/// Least share of the time during which threads waited for a CPU that is named as a cause, and the same of the time in which
/// some task of the machine did (pressure).
const WAITED: f64 = 0.1;
const PRESSURE: f64 = 10.0;
/// A run that began less than this ago has no `second` yet, ns: the figures of so short a time mean little.
const LEAST_NS: u64 = 500_000_000;

/// An event as one line.
pub fn line(event: &str, fields: Value) -> String {
    let mut all = Map::new();
    all.insert("v".into(), VERSION.into());
    all.insert("t".into(), clock::rfc3339(SystemTime::now()).into());
    all.insert("event".into(), event.into());
    if let Value::Object(fields) = fields {
        all.extend(fields);
    }
    plain::json(&Value::Object(all)).unwrap_or_default()
}

/// The event with the first of these fields that a hook can be given, else with the last: all of it, or what matters.
fn fitting(event: &str, fields: [Value; 3]) -> String {
    let [all, less, least] = fields.map(|fields| line(event, fields));
    [all, less].into_iter().find(|line| line.len() < hook::MOST).unwrap_or(least)
}

/// What the kernel says of a run's processes, all since they began.
#[derive(Debug, Clone, Copy, Default)]
struct Usage {
    /// Time on a CPU, and time of waiting for one, of all threads together, ns.
    ran: Option<u64>,
    waited: Option<u64>,
    /// Time for which their group was throttled, µs.
    throttled: Option<u64>,
}

/// A run as it was a second ago.
struct Last {
    tokens: u64,
    usage: Usage,
    at: u64,
    level: String,
    first_token: bool,
    recommended: Option<u64>,
    work: WorkThen,
    /// Of the last second.
    second: Second,
    worked: Worked,
}

/// A second of a run.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
struct Second {
    /// CPUs that its threads had on average; share of the time in which they wanted one and had none.
    cpus: Option<f64>,
    waited: Option<f64>,
    /// Share of the time for which its group was throttled.
    throttled: Option<f64>,
}

/// The runs, as they were a second ago.
#[derive(Default)]
pub struct Watch {
    runs: HashMap<(u32, u64), Last>,
    allowed: AllowedCpus,
}

/// Fields that name a run.
fn of_run(run: &Run) -> Value {
    json!({ "pid": run.pid, "rule": run.rule })
}

fn with(mut fields: Value, more: Value) -> Value {
    if let (Value::Object(fields), Value::Object(more)) = (&mut fields, more) {
        fields.extend(more);
    }
    fields
}

/// Fields of a run that begins.
fn begun(run: &Run) -> Value {
    let more = json!({ "exe": plain::clean(&run.exe), "uid": run.uid, "start": run.start });
    with(of_run(run), more)
}

/// The first event of a watcher, with the current runs.
pub fn hello<'r>(version: &str, runs: impl Iterator<Item = &'r Run>) -> String {
    let runs: Vec<Value> = runs.map(begun).collect();
    line("hello", json!({ "version": version, "service": std::process::id(), "runs": runs }))
}

/// The service ends.
pub fn stop() -> String {
    line("stop", json!({}))
}

/// A line of the service's log.
pub fn message(text: &str) -> String {
    line("message", json!({ "text": text }))
}

/// A recording is complete.
pub fn file(rule: &str, path: &Path) -> String {
    line("file", json!({ "rule": rule, "path": plain::clean(&path.to_string_lossy()) }))
}

/// A process's CPUs were changed, or not.
pub fn affinity(of: &AffinityStatus, text: &str) -> String {
    let text = text.strip_prefix("affinity: ").unwrap_or(text);
    let fields = serde_json::to_value(of).unwrap_or_default();
    line("affinity", with(fields, json!({ "text": text })))
}

/// CPUs and threads that a result of `profinfer tune` recommends for a process.
pub fn recommended(pid: u32, work: &str, threads: u32, cpus: &str) -> String {
    let fields = json!({ "pid": pid, "work": work, "threads": threads, "cpus": cpus, "basis": "result of profinfer tune" });
    line("recommended", fields)
}

impl Watch {
    /// The events `run`, `level` and `first_token` that are due, which come before all others of a run.
    pub fn progress<'r>(&mut self, runs: impl Iterator<Item = &'r Run>, now: u64) -> Vec<String> {
        let mut lines = Vec::new();
        for run in runs {
            let key = (run.pid, run.start);
            if !self.runs.contains_key(&key) {
                lines.push(line("run", begun(run)));
                let (usage, second) = (self.usage(run), Second::default());
                let (level, first_token, recommended) = (String::new(), false, None);
                let (work, worked) = (WorkThen::default(), Worked::default());
                let last =
                    Last { tokens: 0, usage, at: now, level, first_token, recommended, work, second, worked };
                self.runs.insert(key, last);
            }
            if let Some(last) = self.runs.get_mut(&key).filter(|last| last.level != run.level) {
                last.level.clone_from(&run.level);
                lines.push(line("level", with(of_run(run), json!({ "level": run.level }))));
            }
            let has_token = run.ttft_ns.is_some() || run.tokens > 0;
            if let Some(last) = self.runs.get_mut(&key).filter(|last| has_token && !last.first_token) {
                last.first_token = true;
                lines.push(line("first_token", with(of_run(run), json!({ "ttft_ns": run.ttft_ns }))));
            }
        }
        lines
    }

    /// Called about once a second, with the current runs: the events of that second.
    pub fn second<'r>(
        &mut self,
        runs: impl Iterator<Item = &'r Run> + Clone,
        set: &[AffinityStatus],
        now: u64,
    ) -> Vec<String> {
        let mut lines = self.progress(runs.clone(), now);
        let mut known = std::mem::take(&mut self.runs);
        for run in runs {
            let key = (run.pid, run.start);
            let Some(mut last) = known.remove(&key) else { continue };
            if now.saturating_sub(last.at) >= LEAST_NS {
                let usage = self.usage(run);
                last.second = second(&last.usage, &usage, now - last.at);
                last.worked = last.work.since(run);
                let causes = json!({ "causes": self.causes(run, &last) });
                let fields = with(with(seconds_fields(run, &last, now), last.worked.fields()), causes);
                lines.push(line("second", with(of_run(run), fields)));
                (last.tokens, last.usage, last.at) = (run.tokens, usage, now);
            }
            let given = set.iter().any(|of| of.pid == run.pid && of.cpus.is_some());
            if let Some((n, fields)) = self.recommend(run, given)
                && last.recommended.replace(n) != Some(n)
            {
                lines.push(line("recommended", with(of_run(run), fields)));
            }
            self.runs.insert(key, last);
        }
        lines
    }

    /// No watcher is connected: the state of the runs is dropped, and sent in full to the next watcher.
    pub fn forget(&mut self) {
        self.runs.clear();
    }

    /// A run has ended.
    pub fn ended(&mut self, run: &Run) -> String {
        self.runs.remove(&(run.pid, run.start));
        let why = run.ended.as_deref().unwrap_or_default();
        line("end", with(of_run(run), json!({ "tokens": run.tokens, "ttft_ns": run.ttft_ns, "why": why })))
    }

    /// A trigger has fired; `run` if it is known.
    pub fn trigger(&self, rule: &str, run: Option<&Run>, id: Option<RunId>, fired: &Fired) -> String {
        let last = run.and_then(|run| Some((run, self.runs.get(&(run.pid, run.start))?)));
        let mut causes = last.map_or_else(Vec::new, |(run, last)| self.causes(run, last));
        if causes.is_empty() {
            causes.push(json!({ "cause": "unknown" }));
        }
        let of = json!({ "rule": rule, "pid": id.map(|id| id.pid), "process": fired.pid });
        let rates = run.map_or(
            json!({}),
            |run| json!({ "tokens": run.tokens, "rate": run.rate, "tpot_ns": run.tpot_ns }),
        );
        let said = json!({ "trigger": fired.cause, "text": fired.text, "causes": causes });
        let least = json!({ "rule": rule, "trigger": fired.cause, "text": fired.text });
        // Causes name a group of the target, whose name may be long.
        fitting("trigger", [with(with(of, rates), said.clone()), with(json!({ "rule": rule }), said), least])
    }

    fn usage(&self, run: &Run) -> Usage {
        let processes = || run.processes.iter().copied().chain(run.processes.is_empty().then_some(run.pid));
        let mut all = Usage::default();
        for (ran, waited) in processes().filter_map(scheduled) {
            all.ran = Some(all.ran.unwrap_or(0) + ran);
            all.waited = Some(all.waited.unwrap_or(0) + waited);
        }
        all.throttled = self.allowed.quota(run.pid).and_then(|(_, throttled, _)| throttled);
        all
    }

    /// CPUs that a run's process may use at a time, where they come from, and the CPUs.
    fn limit(&self, pid: u32, given: bool) -> Option<(u64, String, Vec<u32>)> {
        let allowed = self.allowed.of_process(pid)?;
        let own = affinity::of_thread(pid).ok().filter(|_| !given).unwrap_or_else(|| allowed.clone());
        let n = own.len() as u64;
        let basis =
            if own == allowed { "the CPUs of its cpuset that are online" } else { "its own CPUs (affinity)" };
        match self.allowed.quota(pid) {
            Some((quota, _, group)) if quota < n as f64 => Some((
                (quota as u64).max(1),
                format!("the CPU quota of its group {group}, {quota:.2} CPUs"),
                own,
            )),
            _ => Some((n, format!("{basis}, {}", ranges(own.iter().copied())), own)),
        }
    }

    /// Fewer threads, if more compute than can run: they would wait for each other without end.
    fn recommend(&self, run: &Run, given: bool) -> Option<(u64, Value)> {
        let most = u64::from(run.threads.into_iter().flatten().max()?);
        let (limit, basis, own) = self.limit(run.pid, given)?;
        let basis = format!("{most} threads compute, more than {basis}");
        let cpus = ranges(own.into_iter());
        (most > limit).then(|| (limit, json!({ "threads": limit, "cpus": cpus, "basis": basis })))
    }

    /// What may have made a run slow.
    fn causes(&self, run: &Run, Last { second, worked, .. }: &Last) -> Vec<Value> {
        let mut all = Vec::new();
        if let Some(share) = second.throttled.filter(|share| *share > 0.0) {
            all.push(json!({ "cause": "throttled", "share": rounded(share) }));
        }
        if let Some((threads, fields)) = self.recommend(run, false) {
            all.push(json!({ "cause": "oversubscribed", "threads": threads, "basis": fields["basis"] }));
        }
        if let Some(share) = second.waited.filter(|share| *share > WAITED) {
            all.push(json!({ "cause": "preempted", "share": rounded(share) }));
        }
        all.extend(worked.causes());
        let capped = capped();
        if !capped.is_empty() {
            all.push(json!({ "cause": "frequency_cap", "cpus": capped }));
        }
        if let Some(avg10) = pressure().filter(|avg10| *avg10 > PRESSURE) {
            all.push(json!({ "cause": "cpu_pressure", "percent": avg10 }));
        }
        all
    }
}

fn second(before: &Usage, now: &Usage, passed: u64) -> Second {
    let grown = |before: Option<u64>, now: Option<u64>| Some(now?.saturating_sub(before?) as f64);
    let (ran, waited) = (grown(before.ran, now.ran), grown(before.waited, now.waited));
    let share = |(waited, ran): (f64, f64)| if waited + ran > 0.0 { waited / (waited + ran) } else { 0.0 };
    Second {
        cpus: ran.map(|ran| ran / passed as f64),
        waited: waited.zip(ran).map(share),
        throttled: grown(before.throttled, now.throttled).map(|us| us * 1e3 / passed as f64),
    }
}

fn seconds_fields(run: &Run, last: &Last, now: u64) -> Value {
    let passed = (now - last.at) as f64 / 1e9;
    let tokens = run.tokens.saturating_sub(last.tokens);
    let on = ranges(target::running_on(run.pid).into_iter());
    json!({
        "tokens": tokens,
        "tok_s": rounded(tokens as f64 / passed),
        "rate": run.rate.map(rounded),
        "tpot_ns": run.tpot_ns,
        "threads": { "prefill": run.threads[0], "decode": run.threads[1] },
        "cpus": last.second.cpus.map(rounded),
        "running_on": on,
        "waited": last.second.waited.map(rounded),
        "throttled": last.second.throttled.map(rounded),
        "level": run.level,
    })
}

/// With four digits after the point.
fn rounded(x: f64) -> f64 {
    (x * 1e4).round() / 1e4
}

/// Time on a CPU and time of waiting for one of all threads of a process so far, ns. None: it has ended, or the kernel does
/// not count that.
fn scheduled(pid: u32) -> Option<(u64, u64)> {
    let mut all = None;
    for tid in affinity::threads(pid) {
        let Ok(text) = fs::read_to_string(format!("/proc/{pid}/task/{tid}/schedstat")) else { continue };
        let mut words = text.split_ascii_whitespace().map_while(|word| word.parse::<u64>().ok());
        if let (Some(ran), Some(waited)) = (words.next(), words.next()) {
            let (a, b) = all.unwrap_or((0, 0));
            all = Some((a + ran, b + waited));
        }
    }
    all
}

/// CPUs whose highest frequency is capped below what the hardware has: by heat, or by somebody's setting.
fn capped() -> String {
    let policies = fs::read_dir("/sys/devices/system/cpu/cpufreq").into_iter().flatten().flatten();
    let mut cpus = Vec::new();
    for dir in policies.map(|policy| policy.path()) {
        let text = |name: &str| fs::read_to_string(dir.join(name)).ok();
        let number = |name: &str| text(name)?.trim().parse::<u64>().ok();
        let below =
            number("scaling_max_freq").zip(number("cpuinfo_max_freq")).is_some_and(|(cap, most)| cap < most);
        if below && let Some(related) = text("related_cpus") {
            cpus.extend(related.split_ascii_whitespace().filter_map(|cpu| cpu.parse::<u32>().ok()));
        }
    }
    ranges(cpus.into_iter())
}

/// Percentage of the last ten seconds in which some task of the machine waited for a CPU. None: the kernel does not say.
fn pressure() -> Option<f64> {
    let text = fs::read_to_string("/proc/pressure/cpu").ok()?;
    let some = text.lines().find_map(|line| line.strip_prefix("some "))?;
    some.split(' ').find_map(|word| word.strip_prefix("avg10="))?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::trigger::Slowness;
    use machine::usage;

    fn json(line: &str) -> Value {
        assert!(!line.contains('\n'));
        serde_json::from_str(line).expect("JSON")
    }

    fn run() -> Run {
        let pid = std::process::id();
        Run { pid, start: 7, rule: "a".into(), exe: "/x\n\"y".into(), ..Run::default() }
    }

    fn names(lines: &[String]) -> Vec<String> {
        lines.iter().map(|l| json(l)["event"].as_str().expect("a name").to_owned()).collect()
    }

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_run_begins_has_its_first_token_and_ends() {
        let mut watch = Watch::default();
        let (mut one, begin) = (run(), usage::now());
        let lines = watch.progress([&one].into_iter(), begin);
        assert_eq!(names(&lines), ["run"]);
        let first = json(&lines[0]);
        assert_eq!((&first["v"], &first["pid"], &first["rule"]), (&1.into(), &one.pid.into(), &"a".into()));
        assert!(watch.progress([&one].into_iter(), begin).is_empty());
        assert!(watch.second([&one].into_iter(), &[], begin + S / 4).is_empty(), "too short a time");
        one.level = "op".into();
        let lines = watch.progress([&one].into_iter(), begin);
        assert_eq!((names(&lines), &json(&lines[0])["level"]), (vec!["level".to_owned()], &"op".into()));
        assert!(watch.progress([&one].into_iter(), begin).is_empty(), "the same level");
        (one.tokens, one.ttft_ns) = (5, Some(9));
        let lines = watch.second([&one].into_iter(), &[], begin + S);
        assert_eq!(names(&lines), ["first_token", "second"]);
        let second = json(&lines[1]);
        assert_eq!((&json(&lines[0])["ttft_ns"], &second["tokens"]), (&9.into(), &5.into()));
        assert!(second["tok_s"] == 5.0 && second["cpus"].as_f64() >= Some(0.0), "{second}");
        assert_eq!(names(&watch.second([&one].into_iter(), &[], begin + 2 * S)), ["second"]);
        one.ended = Some("it\u{1b} ended".into());
        let end = json(&watch.ended(&one));
        assert_eq!((&end["event"], &end["tokens"]), (&"end".into(), &5.into()));
        one.ended = None;
        let lines = watch.progress([&one].into_iter(), begin + 3 * S);
        assert_eq!(names(&lines), ["run", "level", "first_token"], "another");
    }

    #[test]
    fn fewer_threads_are_recommended_once_where_there_are_more_than_cpus() {
        let mut watch = Watch::default();
        let (mut one, begin) = (run(), usage::now());
        one.threads = [Some(1), Some(1)];
        assert_eq!(names(&watch.second([&one].into_iter(), &[], begin)), ["run"]);
        one.threads = [Some(100_000), Some(1)];
        let lines = watch.second([&one].into_iter(), &[], begin + S);
        assert_eq!(names(&lines), ["second", "recommended"]);
        let said = json(&lines[1]);
        let cpus = affinity::of_thread(0).expect("ours").len();
        assert!(said["threads"].as_u64() <= Some(cpus as u64), "{said}");
        assert!(
            said["basis"].as_str().expect("a text").starts_with("100000 threads compute, more than "),
            "{said}"
        );
        assert_eq!(names(&watch.second([&one].into_iter(), &[], begin + 2 * S)), ["second"]);
        let fired =
            Fired { pid: Some(one.pid), run: None, cause: Slowness::Below, text: "\"slow\"\n".into() };
        let trigger = json(&watch.trigger("a", Some(&one), None, &fired));
        assert_eq!((&trigger["trigger"], &trigger["text"]), (&"below".into(), &"\"slow\"\n".into()));
        let causes = trigger["causes"].as_array().expect("a list");
        assert!(causes.iter().any(|c| c["cause"] == "oversubscribed"), "{trigger}");
        let unknown = json(&watch.trigger("a", None, None, &fired));
        assert_eq!(unknown["causes"], json!([{ "cause": "unknown" }]));
    }

    #[test]
    fn an_event_for_a_hook_fits_into_a_pipe() {
        let text = "x".repeat(3000);
        let fired = Fired { pid: None, run: None, cause: Slowness::Stuck, text };
        assert!(Watch::default().trigger("a", None, None, &fired).len() < hook::MOST);
        let long = || json!({ "causes": "x".repeat(hook::MOST) });
        let event = fitting("trigger", [long(), long(), json!({ "text": "slow" })]);
        assert_eq!((&json(&event)["text"], event.len() < 100), (&"slow".into(), true));
        // The longest text of a recorder that is passed on.
        let text = super::super::lines::plain(&"\u{1f999}\u{e0041}\\\"".repeat(600), 600);
        let fired = Fired { text, ..fired };
        assert!(Watch::default().trigger(&"r".repeat(40), None, None, &fired).len() < hook::MOST);
    }
}
