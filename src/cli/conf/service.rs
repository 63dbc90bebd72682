//! The service's settings: its own from `[service]`, those of its rules from `[[rule]]`, what is above all headings for
//! every rule; over them the environment, and the command line of `profinfer serve`. Uses [`super`], `record`'s flags and
//! `agent::service`.

use std::path::{Path, PathBuf};
use std::time::Duration;

use super::toml::Table;
use super::{FLAG, Faults, File, known_only, settings as keys};
use crate::agent::btf::Btf;
use crate::agent::recording::Streams;
use crate::agent::service::glob::Glob;
use crate::agent::service::rules::{Rule, User};
use crate::agent::service::settings::{LEAST_FILE, LEAST_MEMORY, MOST_RULES, Settings};
use crate::cli::args::{Args, Command, Flag, Given, Group, Usage};
use crate::cli::record::flags::{self, COMMAND as RECORD, HOW};
use crate::cli::record::{budget, inner, outer, pmc, sensors};
use crate::cli::values::{amount, percent, span, whole};

/// Keys of `[service]`.
pub const SERVICE: Group = Group {
    title: "Service",
    flags: &[
        Flag::value("directory", "DIR", "Where recordings are written; it belongs to the service alone")
            .default("/var/lib/profinfer")
            .valid(|text| absolute(text.as_ref())),
        Flag::value("quota", "SIZE", "What all recordings may have together: the oldest are removed first")
            .default("512MiB")
            .valid(|text| amount(LEAST_FILE)(text).map(drop)),
        Flag::value("file-size", "SIZE", "A recording that has reached this size is followed by the next")
            .default("64MiB")
            .valid(|text| amount(LEAST_FILE)(text).map(drop)),
        Flag::value("file-age", "TIME", "One that has been written for so long, too")
            .default("1h")
            .valid(|text| span(text).map(drop)),
        Flag::value("keep", "TIME", "Remove recordings that ended longer ago, e.g. 7d, even where the quota has room")
            .valid(|text| span(text).map(drop)),
        Flag::value("status", "FILE", "File that says how the service stands, as JSON")
            .default("/run/profinfer/status.json")
            .valid(|text| absolute(text.as_ref())),
        Flag::value(
            "metrics",
            "FILE",
            "File of the same for node_exporter, in the directory of its textfile collector; its name ends in .prom",
        )
        .valid(|text| prom(text.as_ref())),
        Flag::value("socket", "FILE", "Socket by which 'profinfer status', 'dump' and 'stop' reach the service")
            .default("/run/profinfer/control.sock")
            .valid(|text| address(text.as_ref())),
        Flag::value("linger", "TIME", "A recorder that has had nothing to record for so long ends")
            .default("30s")
            .valid(|text| span(text).map(drop)),
        Flag::value("memory", "SIZE", "Memory that the service, and each of its recorders, may have")
            .default("256MiB")
            .valid(|text| amount(LEAST_MEMORY)(text).map(drop)),
        Flag::value("cpu", "SHARE", "Share of one core that a recorder may take")
            .default("25%")
            .valid(|text| percent(text).map(drop)),
        Flag::value(
            "at-once",
            "N",
            "Runs of one rule and user that are recorded at a time, others wait for one to end; and four times as many \
             of all rules and users, shared fairly",
        )
        .default("16")
        .valid(|text| at_once(text).map(drop)),
        Flag::value(
            "recorders",
            "N",
            "Recorders at a time, one for each rule and user in use, or more; shared fairly between users",
        )
        .default("16")
        .valid(|text| recorders(text).map(drop)),
        Flag::value(
            "recorder-timeout",
            "TIME",
            "A recorder that shows no sign of life for so long, or takes more than cpu for twice as long, is killed",
        )
        .default("30s")
        .valid(|text| timeout(text).map(drop)),
    ],
};

/// Keys of `[[rule]]` that are no options of `record`, or mean something else there.
const OWN: Group = Group {
    title: "Rule",
    flags: &[
        Flag::value("name", "NAME", "What it is called in the log, the status and the metrics: letters, digits, -, _ and .")
            .valid(|text| name(text).map(drop)),
        Flag::value(
            "exe",
            "PATTERN",
            "For programs of this path; without a '/' it is the file's name. '*' and '?' stop at a '/', '**' does not",
        )
        .valid(|text| Glob::new(text).map(drop)),
        Flag::value("user", "USER", "For processes of this user: a name or a number").valid(|text| User::of(text).map(drop)),
        Flag::value(
            "cgroup",
            "PATTERN",
            "For processes of this control group, as /proc/PID/cgroup has it: /system.slice/llama*.service",
        )
        .valid(|text| Glob::new(text).map(drop)),
        Flag::switch("ignore", "Do not record what it is for"),
        Flag::value("one-in", "N", "Record one run in so many, beginning with the first")
            .default("1")
            .valid(|text| one_in(text).map(drop)),
        Flag::value("tokens", "N", "Record a run up to its first N decoded tokens").valid(|text| tokens(text).map(drop)),
        Flag::value(
            "ring",
            "TIME",
            "Write nothing, but keep the last so long of its runs in memory, until a trigger or 'profinfer dump' has it \
             written",
        )
        .valid(|text| span(text).map(drop))
        .excludes(&["tokens"]),
        Flag::value("ring-size", "SIZE", "Most that the ring may have, and never more than file-size: what is written of it is one file")
            .default("64MiB")
            .valid(|text| amount(LEAST_FILE)(text).map(drop))
            .needs(&["ring"]),
        Flag::value(
            "trigger-below",
            "SPEED",
            "Trigger: decoding is slower than this, e.g. 5tok/s. Without a ring it is told in log and status, and marks \
             nothing else: the run is in a file anyway",
        )
        .valid(|text| budget::speed(text).map(drop)),
        Flag::value(
            "trigger-p99-above",
            "TIME",
            "Trigger: the 99th percentile of the time for a decoded token is longer than this, e.g. 200ms",
        )
        .valid(|text| span(text).map(drop)),
    ],
};

const RING_MEMORY: &str = "the ring does not fit into memory: give it a smaller ring-size";
const RING_FILE: &str =
    "a ring is written into one file, and file-size leaves it no room: give file-size and quota 3MiB or more";
/// The smallest file with room for a ring.
const LEAST_RING_FILE: u64 = 3 << 20;

/// What a recording may cost where nothing else is said.
const COST: Group = Group { title: budget::FLAGS.title, flags: &[budget::BUDGET.default("1%"), budget::QOS] };

const COUNTERS: Group = Group { title: pmc::FLAGS.title, flags: &pmc::COUNTING };

/// Options of `record` that a rule may have, and that stand above all headings for every rule.
const SHARED: &[Group] = &[HOW, COUNTERS, inner::FLAGS, outer::FLAGS, COST, sensors::FLAGS];

/// Options of `profinfer serve`; [`settings`] reads them.
pub const GROUPS: &[Group] = &[
    SERVICE,
    Group { title: "Configuration", flags: &[FLAG] },
    HOW,
    COUNTERS,
    inner::FLAGS,
    outer::FLAGS,
    COST,
    sensors::FLAGS,
];

/// A table of flags that is no subcommand.
const fn table(name: &'static str, groups: &'static [Group]) -> Command {
    Command {
        name,
        about: "",
        text: "",
        usage: &[],
        arguments: &[],
        behind: None,
        groups,
        examples: "",
        notes: "",
        exits: &[],
        run: |_| Err(Usage::new("no subcommand").into()),
    }
}

/// What `profinfer serve` takes, for those who have no command line of it.
pub static SERVE: Command = table("serve", GROUPS);
static OF_SERVICE: Command = table("service", &[SERVICE]);
/// What a rule takes.
pub static RULE: Command =
    table("rule", &[OWN, HOW, COUNTERS, inner::FLAGS, outer::FLAGS, COST, sensors::FLAGS]);

/// What of `record` makes no sense in a rule, and why.
const NOT_OF_A_RULE: &[(&str, &str)] = &[
    ("output", "is not a rule's: the service names its files itself, in the directory of [service]"),
    (
        "duration",
        "is not a rule's: tokens = N records the beginning of a run, ring = TIME keeps the last of it",
    ),
    ("mode", "is not a rule's: the service's files are for its user alone"),
    ("quiet", "is not a rule's: what the service says is in its log"),
];

/// The settings of the service by its command line, which has [`GROUPS`], by the environment and the file that they name.
/// Prints nothing, and may be called again at any time.
///
/// # Errors
/// All that is wrong, a sentence each.
pub fn settings(args: &Args) -> Result<Settings, Vec<String>> {
    let upper = super::upper(args, &|name| std::env::var_os(name)).map_err(|e| told(&e))?;
    let mut wrong = upper.mistakes;
    let layers = Layers::new(&upper.args, upper.file);
    let mut settings = layers.values(&mut wrong);
    for (rule, layer) in settings.rules.iter_mut().zip(&layers.rules) {
        rule.record.btf = got(layer.types(), &mut wrong).flatten();
        // All of the engine's time is no bound: the level stays as it is.
        rule.record.budget = rule.record.budget.filter(|b| b.qos.is_some() || b.budget < Some(1.0));
    }
    if wrong.is_empty() { Ok(settings) } else { Err(wrong) }
}

fn told(error: &anyhow::Error) -> Vec<String> {
    match error.downcast_ref::<Usage>() {
        Some(usage) => usage.mistakes().to_vec(),
        None => vec![crate::cli::one_line(error)],
    }
}

/// Takes the keys of a table that is not the first.
pub(super) fn take(table: &mut Table, file: &mut File, faults: &mut Faults) {
    let what = super::short(&table.name);
    match (table.name.as_str(), table.many) {
        ("service", false) if file.service_line > 0 => {
            faults.add(
                table.line,
                format!("[service] is there twice: it begins in line {}", file.service_line),
            );
        }
        ("service", true) => faults.add(table.line, "[service] stands in one pair of brackets".to_owned()),
        ("rule", false) => faults.add(table.line, "[[rule]] stands in two pairs of brackets".to_owned()),
        ("service", _) | ("rule", _) => {}
        _ => {
            faults.add(table.line, format!("unknown table [{what}]: there are [service] and [[rule]]"));
            return;
        }
    }
    let (command, why): (_, fn(&str) -> Option<&'static str>) =
        if table.name == "rule" { (&RULE, not_of_a_rule) } else { (&OF_SERVICE, not_of_the_service) };
    known_only(table, why, faults);
    let given = keys(command, &table.entries, faults);
    match table.name.as_str() {
        "service" => (file.service, file.service_line) = (given, table.line),
        _ if file.rules.len() < MOST_RULES => file.rules.push((table.line, given)),
        _ => faults.add(table.line, format!("more than {MOST_RULES} rules")),
    }
}

fn has(group: &Group, key: &str) -> bool {
    group.flags.iter().any(|f| f.name == key)
}

fn not_of_a_rule(key: &str) -> Option<&'static str> {
    let why = NOT_OF_A_RULE.iter().find(|(name, _)| *name == key).map(|(_, why)| *why);
    why.or(has(&SERVICE, key).then_some("is the same for all rules: it stands in [service]"))
}

fn not_of_the_service(key: &str) -> Option<&'static str> {
    if has(&OWN, key) {
        return Some("stands in a [[rule]]");
    }
    let recording = RECORD.flags().any(|f| f.name == key && f.is_key());
    recording.then_some("says how to record: it stands above all headings, or in a [[rule]]")
}

/// Where a key of the service stands that is above all headings.
pub(super) fn not_of_record(key: &str) -> Option<&'static str> {
    match key {
        _ if RECORD.flags().any(|f| f.name == key) => None,
        _ if has(&SERVICE, key) => Some("stands in [service]"),
        _ => has(&OWN, key).then_some("stands in a [[rule]]"),
    }
}

/// What command line, environment and file come to, value by value.
pub struct Layers {
    pub service: Args,
    pub rules: Vec<Layer>,
}

/// The values of a rule.
pub struct Layer {
    pub args: Args,
    /// Where it begins in the file; 0: no file has it.
    pub line: usize,
}

impl Layers {
    /// Lays the file below what is stronger, which has [`GROUPS`].
    pub fn new(upper: &Args, file: File) -> Self {
        let File { name, record, service, rules, .. } = file;
        let (above, below) = (shared(upper.all()), shared(&record));
        let layer = |(line, given): (usize, Vec<Given>)| {
            let mut args = Args::none(&RULE);
            args.below(above.clone());
            args.below(given);
            args.below(below.clone());
            args.set_file(name.clone());
            Layer { args, line }
        };
        let rules = if rules.is_empty() { vec![(0, Vec::new())] } else { rules };
        let rules = rules.into_iter().map(layer).collect();
        let mut all = upper.clone();
        all.below(service);
        all.set_file(name);
        Self { service: all, rules }
    }

    /// The settings, and what is wrong with them; they hold where nothing is.
    pub fn values(&self, wrong: &mut Vec<String>) -> Settings {
        let all = &self.service;
        let mut settings = service(all, wrong);
        let mut places = Vec::new();
        for (i, layer) in self.rules.iter().enumerate() {
            let name = layer.name(i);
            if let Some(before) = self.rules.iter().take(i).enumerate().find(|(j, l)| l.name(*j) == name) {
                let what = format!("rule '{name}': that of line {} has the same name", before.1.line);
                add(wrong, format!("{}{what}", layer.place()));
            }
            if let Some(rule) = layer.rule(name, wrong) {
                settings.rules.push(rule);
                places.push(layer);
            }
        }
        let lowered = lower_file_size(&mut settings);
        for (rule, layer) in settings.rules.iter().zip(places).filter(|(rule, _)| rule.ring.is_some()) {
            let (key, what) = match settings.ring_bytes(rule) {
                ring if ring < LEAST_FILE => ("file-size", RING_FILE),
                ring if ring >= settings.memory => ("ring-size", RING_MEMORY),
                _ => continue,
            };
            add(wrong, format!("{}{what}", layer.args.place(&[key, "ring"])));
        }
        if wrong.is_empty() {
            let place = all.place(&["quota", "file-size"]);
            settings.warnings.extend(lowered.map(|what| format!("{place}{what}")));
            settings.warnings.extend(self.warnings(&settings));
        }
        settings
    }

    fn warnings(&self, settings: &Settings) -> Vec<String> {
        let mut warnings = Vec::new();
        let rules = &settings.rules;
        for (i, (rule, layer)) in rules.iter().zip(&self.rules).enumerate() {
            if let Some(before) = rules.iter().take(i).find(|before| before.covers(rule)) {
                let what = format!(
                    "rule '{}' is never used: '{}' before it takes all that it is for",
                    rule.name, before.name
                );
                warnings.push(format!("{}{what}", layer.place()));
            }
        }
        let writing = rules.iter().filter(|r| !r.ignore && r.ring.is_none()).count() as u64;
        // The next file is begun before the one that is full ends.
        if settings.file_size.saturating_mul(2 * writing) > settings.quota {
            let what = "quota holds less than two files for each rule: the one that is full, and the next; a recording waits \
                        where there is no room";
            warnings.push(format!("{}{what}", self.service.place(&["quota", "file-size"])));
        }
        warnings
    }
}

/// Makes files as small as a quota wants that is smaller than one: for each rule that writes, one that is full and the next.
/// What there is to say of it.
fn lower_file_size(settings: &mut Settings) -> Option<String> {
    let Settings { quota, file_size, ref rules, .. } = *settings;
    if file_size <= quota || quota < LEAST_FILE {
        return None;
    }
    let writing = rules.iter().filter(|r| !r.ignore && r.ring.is_none()).count() as u64;
    let least = if rules.iter().any(|r| r.ring.is_some()) { LEAST_RING_FILE } else { LEAST_FILE };
    let fits = if writing > 0 { quota / (2 * writing) } else { quota };
    // In whole MiB, as it is told.
    settings.file_size = (fits.max(least).min(quota) >> 20) << 20;
    let now = settings.file_size >> 20;
    Some(format!("quota is smaller than one file: file-size is lowered to {now}MiB"))
}

impl Layer {
    fn name(&self, i: usize) -> String {
        let given = self.args.text("name").ok().flatten().map(|name| name.to_string_lossy().into_owned());
        given.unwrap_or_else(|| if self.line == 0 { "default".to_owned() } else { format!("rule-{}", i + 1) })
    }

    /// Where it begins, before a message.
    fn place(&self) -> String {
        self.args.line(self.line)
    }

    fn rule(&self, name: String, wrong: &mut Vec<String>) -> Option<Rule> {
        let args = &self.args;
        got(args.check(), wrong);
        let record = got(flags::how(args, Streams::Ours), wrong);
        if record.as_ref().is_some_and(|r| r.counters.names.iter().any(|n| n == "list")) {
            add(wrong, "--pmc 'list': profinfer record has it".to_owned());
        }
        let pattern = |name| args.option(name, Glob::new);
        let time = |name| args.option(name, span);
        Some(Rule {
            name,
            exe: got(pattern("exe"), wrong)?,
            user: got(args.option("user", User::of), wrong)?,
            cgroup: got(pattern("cgroup"), wrong)?,
            ignore: args.flag("ignore"),
            one_in: got(args.needed("one-in", one_in), wrong)?,
            tokens: got(args.option("tokens", tokens), wrong)?,
            ring: got(time("ring"), wrong)?,
            ring_size: got(args.needed("ring-size", amount(LEAST_FILE)), wrong)?,
            below: got(args.option("trigger-below", budget::speed), wrong)?,
            p99_above: got(time("trigger-p99-above"), wrong)?,
            record: record?,
        })
    }

    /// The file of types that it names, read.
    fn types(&self) -> Result<Option<Btf>, Usage> {
        let path = self.args.path("btf")?;
        let read = |path: PathBuf| {
            Btf::read(&path).map_err(|e| Usage::new(format!("{}{e}", self.args.place(&["btf"]))))
        };
        path.map(read).transpose()
    }
}

fn service(all: &Args, wrong: &mut Vec<String>) -> Settings {
    let built_in = Settings::default();
    let mut path =
        |name, check: fn(&Path) -> Result<(), String>| got(checked(all, name, check), wrong).flatten();
    let (directory, status) = (path("directory", absolute), path("status", absolute));
    let (metrics, socket) = (path("metrics", prom), path("socket", address));
    let mut size = |name, least| got(all.needed(name, amount(least)), wrong).unwrap_or_default();
    let (quota, file_size) = (size("quota", LEAST_FILE), size("file-size", LEAST_FILE));
    let memory = size("memory", LEAST_MEMORY);
    let mut time = |name| got(all.option(name, span), wrong).flatten();
    let (file_age, keep, linger) = (time("file-age"), time("keep"), time("linger"));
    let silence = got(all.option("recorder-timeout", timeout), wrong).flatten();
    Settings {
        directory: directory.unwrap_or_default(),
        quota,
        file_size,
        file_age: file_age.unwrap_or(built_in.file_age),
        keep,
        status: status.unwrap_or_default(),
        metrics,
        socket: socket.unwrap_or_default(),
        linger: linger.unwrap_or(built_in.linger),
        memory,
        cpu: got(all.needed("cpu", percent), wrong).unwrap_or_default(),
        at_once: got(all.needed("at-once", at_once), wrong).unwrap_or_default(),
        recorders: got(all.needed("recorders", recorders), wrong).unwrap_or_default(),
        recorder_timeout: silence.unwrap_or(built_in.recorder_timeout),
        rules: Vec::new(),
        warnings: Vec::new(),
    }
}

/// What was read; what is wrong with it is noted.
fn got<T>(read: Result<T, Usage>, wrong: &mut Vec<String>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(usage) => {
            usage.mistakes().iter().for_each(|mistake| add(wrong, mistake.clone()));
            None
        }
    }
}

/// Notes a mistake once: what stands above all headings is wrong for every rule.
fn add(wrong: &mut Vec<String>, mistake: String) {
    if !wrong.contains(&mistake) {
        wrong.push(mistake);
    }
}

/// Of these values those that every rule may have.
fn shared(given: &[Given]) -> Vec<Given> {
    let is = |flag: &Flag| SHARED.iter().flat_map(|g| g.flags).any(|f| f.name == flag.name);
    given.iter().filter(|g| is(g.flag)).cloned().collect()
}

fn checked(all: &Args, name: &str, check: fn(&Path) -> Result<(), String>) -> Result<Option<PathBuf>, Usage> {
    let path = all.path(name)?;
    // Its text is for the message only.
    all.option(name, |_| path.as_deref().map_or(Ok(()), check))?;
    Ok(path)
}

fn absolute(path: &Path) -> Result<(), String> {
    if path.is_absolute() { Ok(()) } else { Err("give the whole path, from '/' on".to_owned()) }
}

fn prom(path: &Path) -> Result<(), String> {
    absolute(path)?;
    let ends = path.extension().is_some_and(|e| e == "prom");
    if ends { Ok(()) } else { Err("its name must end in .prom: node_exporter reads no other".to_owned()) }
}

fn address(path: &Path) -> Result<(), String> {
    /// Of an address, with a zero behind it (unix(7)).
    const LONGEST: usize = 107;
    absolute(path)?;
    if path.as_os_str().len() <= LONGEST {
        Ok(())
    } else {
        Err(format!("the name of a socket has at most {LONGEST} bytes"))
    }
}

fn name(text: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let right = (1..=40).contains(&text.len()) && text.chars().all(fits);
    if right { Ok(()) } else { Err("wanted: 1 to 40 letters, digits, -, _ and .".to_owned()) }
}

fn at_once(text: &str) -> Result<u32, String> {
    whole(1, 1000)(text)
}

fn recorders(text: &str) -> Result<u32, String> {
    whole(4, 256)(text)
}

/// With less a recorder would be killed for what others take of the machine.
fn timeout(text: &str) -> Result<Duration, String> {
    let time = span(text)?;
    if time >= Duration::from_secs(2) { Ok(time) } else { Err("wanted: 2s or more".to_owned()) }
}

fn one_in(text: &str) -> Result<u32, String> {
    whole(1, 1_000_000)(text)
}

fn tokens(text: &str) -> Result<u64, String> {
    whole(1, u64::MAX)(text)
}

#[cfg(test)]
mod tests;
