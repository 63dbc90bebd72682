//! The service's settings: its own from `[service]`, those of its rules from `[[rule]]`, keys above all headings
//! for every rule; overridden by the environment and the command line of `profinfer serve`.

pub mod network;
mod values;

use std::path::{Path, PathBuf};

use self::network::{METRICS, OTLP, OTLP_PREFIX};
use self::values::{
    absolute, add, address, cpu_choice, got, hook_time, hook_word, max_concurrent, name, prom, recorders,
    sample_one_in, timeout, tokens, unless_never,
};
use super::toml::TomlTable;
use super::{FLAG, Faults, File, known_only, settings as keys};
use crate::record::caller::Caller;
use crate::record::flags::{self, COMMAND as RECORD, HOW};
use crate::record::{budget, gpu, inner, outer, pmc, sensors};
use agent::recorder::recording::Streams;
use cli::args::{Args, Command, Flag, FlagGroup, Given, Usage, ValueOrigin};
use cli::values::{amount, percent, span};
use engine::search::Launch;
use machine::kernel::btf::Btf;
use pfi::record::Level;
use service::rules::glob::Glob;
use service::rules::settings::{LEAST_FILE, LEAST_MEMORY, MOST_RULES, ServiceCommand, ServiceSettings};
use service::rules::{CpuChoice, Hook, Rule, RuleUser};

/// Keys of `[service]`.
pub const SERVICE: FlagGroup = FlagGroup {
    title: "Service",
    flags: &[
        Flag::value("directory", "DIR", "Directory for recordings; used by the service only")
            .default("/var/lib/profinfer")
            .valid(|text| absolute(text.as_ref())),
        Flag::value("quota", "SIZE", "Maximum size of all recordings together; the oldest are removed first")
            .default("512MiB")
            .valid(|text| amount(LEAST_FILE)(text).map(drop)),
        Flag::value("file-size", "SIZE", "Rotate a recording when it reaches this size")
            .default("64MiB")
            .valid(|text| amount(LEAST_FILE)(text).map(drop)),
        Flag::value("file-age", "TIME", "Rotate the file after this time")
            .default("1h")
            .valid(|text| span(text).map(drop)),
        Flag::value(
            "keep",
            "TIME",
            "Remove recordings that ended longer ago than this, e.g. 7d, even if the quota has room",
        )
        .valid(|text| span(text).map(drop)),
        Flag::value("status", "FILE", "Status file of the service, in JSON")
            .default("/run/profinfer/status.json")
            .valid(|text| absolute(text.as_ref())),
        Flag::value(
            "metrics",
            "FILE",
            "Metrics file in the directory of node_exporter's textfile collector; its name must end in \
             .prom",
        )
        .valid(|text| prom(text.as_ref())),
        Flag::value(
            "socket",
            "FILE",
            "Socket that 'profinfer status', 'dump' and 'stop' use to reach the service",
        )
        .default("/run/profinfer/control.sock")
        .valid(|text| address(text.as_ref())),
        Flag::value("idle-timeout", "TIME", "Stop a recorder that has had nothing to record for this time")
            .formerly("linger")
            .default("30s")
            .valid(|text| span(text).map(drop)),
        Flag::value(
            "peaks-after",
            "TIME",
            "Measure once what this machine reaches, as doctor --peaks does, when no engine has run for this \
             time and the CPUs are idle; never: do not",
        )
        .default("5min")
        .valid(|text| unless_never(text).map(drop)),
        Flag::value("memory", "SIZE", "Memory limit of the service, and of each of its recorders")
            .default("256MiB")
            .valid(|text| amount(LEAST_MEMORY)(text).map(drop)),
        Flag::value("cpu", "SHARE", "Maximum share of one core for a recorder")
            .default("25%")
            .valid(|text| percent(text).map(drop)),
        Flag::value(
            "max-concurrent",
            "N",
            "Maximum concurrent recordings per rule and user; further runs wait for one to end. The limit \
             for all rules and users together is four times as high, shared fairly",
        )
        .formerly("at-once")
        .default("16")
        .valid(|text| max_concurrent(text).map(drop)),
        Flag::value(
            "recorders",
            "N",
            "Maximum number of recorders, at least one per rule and user in use; shared fairly between \
             users",
        )
        .default("16")
        .valid(|text| recorders(text).map(drop)),
        Flag::value(
            "recorder-timeout",
            "TIME",
            "Kill a recorder that does not respond for this time, or that exceeds cpu for twice this time",
        )
        .default("30s")
        .valid(|text| timeout(text).map(drop)),
    ],
};

/// Keys of `[[rule]]` that are not options of `record`, or have another meaning there.
const OWN: FlagGroup = FlagGroup {
    title: "Rule",
    flags: &[
        Flag::value(
            "name",
            "NAME",
            "Name of the rule in the log, the status and the metrics: letters, digits, -, _ and .",
        )
        .valid(|text| name(text).map(drop)),
        Flag::value(
            "exe",
            "PATTERN",
            "Match programs by path or, without a '/', by file name. '*' and '?' do not match a '/', '**' \
             does",
        )
        .valid(|text| Glob::new(text).map(drop).map_err(|e| e.to_string())),
        Flag::value("user", "USER", "Match processes of this user: a name or a number")
            .valid(|text| RuleUser::of(text).map(drop).map_err(|e| e.to_string())),
        Flag::value(
            "cgroup",
            "PATTERN",
            "Match processes of this cgroup, as in /proc/PID/cgroup: /system.slice/llama*.service",
        )
        .valid(|text| Glob::new(text).map(drop).map_err(|e| e.to_string())),
        Flag::switch("ignore", "Do not record matching runs"),
        Flag::value("sample-one-in", "N", "Record one run in N, starting with the first")
            .formerly("one-in")
            .default("1")
            .valid(|text| sample_one_in(text).map(drop)),
        Flag::value("tokens", "N", "Record the first N decoded tokens of a run")
            .valid(|text| tokens(text).map(drop)),
        Flag::value(
            "ring",
            "TIME",
            "Keep only this much of a run's recent past in memory, and write it to a file on a trigger or \
             on 'profinfer dump'",
        )
        .valid(|text| span(text).map(drop))
        .excludes(&["tokens"]),
        Flag::value(
            "ring-size",
            "SIZE",
            "Maximum size of the ring, at most file-size: a ring is written to one file",
        )
        .default("64MiB")
        .valid(|text| amount(LEAST_FILE)(text).map(drop))
        .needs(&["ring"]),
        Flag::value(
            "trigger-below",
            "SPEED",
            "Trigger if decoding is slower than this, e.g. 5tok/s. Without a ring, the event is only \
             shown in log and status: the run is in a file anyway",
        )
        .valid(|text| budget::speed(text).map(drop)),
        Flag::value(
            "trigger-p99-above",
            "TIME",
            "Trigger if the 99th percentile of the time per decoded token is above this, e.g. 200ms",
        )
        .valid(|text| span(text).map(drop)),
        Flag::value(
            "decode-cpus",
            "LIST",
            "Let the engine's threads run on these CPUs while it decodes, e.g. 4-7; at least as many as threads \
             compute. 'auto': those that 'profinfer tune' found",
        )
        .valid(|text| cpu_choice(text).map(drop)),
        Flag::value(
            "prefill-cpus",
            "LIST",
            "The same while it processes prompts. Without it, all CPUs that the process may have",
        )
        .valid(|text| cpu_choice(text).map(drop)),
        Flag::value(
            "on-trigger",
            "ARG",
            "Run this program, with its arguments, when a trigger fires: [\"/path/program\", \"argument\"]. It gets \
             the event as JSON on standard input; one runs at a time",
        )
        .words()
        .valid(hook_word)
        .needs(&["trigger-below", "trigger-p99-above"]),
        Flag::value("on-trigger-user", "USER", "User that runs it: a name or a number")
            .default("nobody")
            .valid(|text| RuleUser::of(text).map(drop).map_err(|e| e.to_string()))
            .needs(&["on-trigger"]),
        Flag::value("on-trigger-timeout", "TIME", "Kill it, with its children, after this time")
            .default("10s")
            .valid(|text| hook_time(text).map(drop))
            .needs(&["on-trigger"]),
    ],
};

const RING_MEMORY: &str = "the ring does not fit into memory: reduce ring-size";
const RING_FILE: &str = "a ring is written to one file, and file-size is too small for it: set file-size and quota to 3MiB or \
     more";
const CPUS_LEVEL: &str =
    "decode-cpus and prefill-cpus need level graph or op: at level token the engine's threads are not known";
/// The smallest file with room for a ring.
const LEAST_RING_FILE: u64 = 3 << 20;

/// Default cost limit of a recording.
const COST: FlagGroup =
    FlagGroup { title: budget::FLAGS.title, flags: &[budget::BUDGET.default("1%"), budget::QOS] };

const COUNTERS: FlagGroup = FlagGroup { title: pmc::FLAGS.title, flags: &pmc::COUNTING };

/// Options of `record` that a rule may have, and that apply to every rule when above all headings.
const SHARED: &[FlagGroup] = &[HOW, COUNTERS, inner::FLAGS, gpu::FLAGS, outer::FLAGS, COST, sensors::FLAGS];

const AS_ROOT: Flag =
    Flag::switch("as-root", "Under sudo, run COMMAND as root [default: as the user who called sudo]")
        .cli_only();

/// Options of `profinfer serve`; [`settings`] reads them.
pub const GROUPS: &[FlagGroup] = &[
    SERVICE,
    METRICS,
    OTLP,
    FlagGroup { title: "Configuration", flags: &[FLAG, AS_ROOT] },
    HOW,
    COUNTERS,
    inner::FLAGS,
    gpu::FLAGS,
    outer::FLAGS,
    COST,
    sensors::FLAGS,
];

/// A table of flags that is not a subcommand.
const fn table(name: &'static str, groups: &'static [FlagGroup]) -> Command {
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

/// What `profinfer serve` accepts, for callers without its command line.
pub static SERVE: Command = table("serve", GROUPS);
static OF_SERVICE: Command = table("service", &[SERVICE]);
static OF_METRICS: Command = table("metrics", &[METRICS]);
static OF_OTLP: Command = table("otlp", &[OTLP]);
/// What a rule accepts.
pub static RULE: Command =
    table("rule", &[OWN, HOW, COUNTERS, inner::FLAGS, gpu::FLAGS, outer::FLAGS, COST, sensors::FLAGS]);

/// Options of `record` that make no sense in a rule, and why.
const NOT_OF_A_RULE: &[(&str, &str)] = &[
    ("output", "is not allowed in a rule: the service chooses file names in the directory set in [service]"),
    (
        "duration",
        "is not allowed in a rule: tokens = N records the beginning of a run, ring = TIME keeps its most \
         recent part",
    ),
    ("mode", "is not allowed in a rule: the files of the service are readable by its user only"),
    ("quiet", "is not allowed in a rule: the service writes its messages to its log"),
];

/// The settings of the service from its command line (with [`GROUPS`]), the environment, and the file that they
/// name. Prints nothing, and may be called again at any time.
///
/// # Errors
/// Everything that is wrong, one sentence each.
pub fn settings(args: &Args) -> Result<ServiceSettings, Vec<String>> {
    let upper = super::upper(args, &|name| std::env::var_os(name)).map_err(|e| told(&e))?;
    let mut wrong = upper.mistakes;
    let layers = ServiceArgs::new(&upper.args, upper.file);
    let mut settings = layers.values(&mut wrong);
    for (rule, layer) in settings.rules.iter_mut().zip(&layers.rules) {
        rule.record.btf = got(layer.types(), &mut wrong).flatten();
        // All of the engine's time is no limit: the level stays fixed.
        rule.record.budget = rule.record.budget.filter(|b| b.qos.is_some() || b.budget < Some(1.0));
    }
    if wrong.is_empty() { Ok(settings) } else { Err(wrong) }
}

fn told(error: &anyhow::Error) -> Vec<String> {
    match error.downcast_ref::<Usage>() {
        Some(usage) => usage.mistakes().to_vec(),
        None => vec![cli::failure::one_line(error)],
    }
}

/// Takes the keys of any table but the first.
pub(super) fn take(table: &mut TomlTable, file: &mut File, faults: &mut Faults) {
    let what = super::short(&table.name);
    match (table.name.as_str(), table.many) {
        ("rule", false) => faults.add(table.line, "[[rule]] must be in double brackets".to_owned()),
        ("rule", true) => {}
        (name @ ("service" | "metrics" | "otlp"), many) => {
            if many {
                faults.add(table.line, format!("[{name}] must be in single brackets"));
            } else if let Some((_, line)) = file.tables.iter().find(|(of, _)| of == name) {
                faults.add(table.line, format!("[{name}] is given twice: first in line {line}"));
            }
            file.tables.push((name.to_owned(), table.line));
        }
        _ => {
            faults.add(
                table.line,
                format!("unknown table [{what}]: use [service], [metrics], [otlp] or [[rule]]"),
            );
            return;
        }
    }
    type Why = fn(&str) -> Option<&'static str>;
    let (command, why): (_, Why) = match table.name.as_str() {
        "rule" => (&RULE, not_of_a_rule),
        "metrics" => (&OF_METRICS, not_of_metrics),
        "otlp" => (&OF_OTLP, |_| None),
        _ => (&OF_SERVICE, not_of_the_service),
    };
    // The options have a prefix that the keys have not, and what is said of them here must not have.
    let mut own = Faults::default();
    if table.name == "otlp" {
        table.entries.iter_mut().for_each(|entry| entry.key.insert_str(0, OTLP_PREFIX));
    }
    known_only(table, why, &mut own);
    let given = keys(command, &table.entries, &mut own);
    for (line, what) in own.0 {
        faults.add(line, if table.name == "otlp" { what.replace(OTLP_PREFIX, "") } else { what });
    }
    match table.name.as_str() {
        "rule" if file.rules.len() < MOST_RULES => file.rules.push((table.line, given)),
        "rule" => faults.add(table.line, format!("more than {MOST_RULES} rules")),
        _ => file.service.extend(given),
    }
}

fn has(group: &FlagGroup, key: &str) -> bool {
    group.flags.iter().any(|f| f.name == key)
}

fn not_of_a_rule(key: &str) -> Option<&'static str> {
    let why = NOT_OF_A_RULE.iter().find(|(name, _)| *name == key).map(|(_, why)| *why);
    why.or(has(&SERVICE, key).then_some("applies to all rules: put it in [service]"))
        .or(has(&METRICS, key).then_some("applies to all rules: put it in [metrics]"))
}

fn not_of_metrics(key: &str) -> Option<&'static str> {
    has(&SERVICE, key).then_some("belongs in [service]")
}

fn not_of_the_service(key: &str) -> Option<&'static str> {
    if has(&OWN, key) {
        return Some("belongs in a [[rule]]");
    }
    if has(&METRICS, key) {
        return Some("belongs in [metrics]");
    }
    let recording = RECORD.flags().any(|f| f.name == key && f.is_key());
    recording.then_some("is a recording option: put it above all headings, or in a [[rule]]")
}

/// Where a key of the service belongs that is above all headings.
pub(super) fn not_of_record(key: &str) -> Option<&'static str> {
    match key {
        _ if RECORD.flags().any(|f| f.name == key) => None,
        _ if has(&SERVICE, key) => Some("belongs in [service]"),
        _ if has(&METRICS, key) => Some("belongs in [metrics]"),
        _ if has(&OTLP, key) => Some("belongs in [otlp], without 'otlp-'"),
        _ => has(&OWN, key).then_some("belongs in a [[rule]]"),
    }
}

/// Command line, environment and file combined, value by value.
pub struct ServiceArgs {
    pub service: Args,
    pub rules: Vec<RuleArgs>,
    /// Others can read the file.
    open: bool,
}

/// The values of a rule.
pub struct RuleArgs {
    pub args: Args,
    /// Where it begins in the file; 0: it is in no file.
    pub line: usize,
}

impl ServiceArgs {
    /// Puts the file below the stronger layers, which have [`GROUPS`].
    pub fn new(upper: &Args, file: File) -> Self {
        let File { name, open, record, service, rules, .. } = file;
        let (above, below) = (shared(upper.all()), shared(&record));
        let layer = |(line, given): (usize, Vec<Given>)| {
            let mut args = Args::none(&RULE);
            args.below(above.clone());
            args.below(given);
            args.below(below.clone());
            args.set_file(name.clone());
            RuleArgs { args, line }
        };
        let rules = if rules.is_empty() { vec![(0, Vec::new())] } else { rules };
        let rules = rules.into_iter().map(layer).collect();
        let mut all = upper.clone();
        all.below(service);
        all.set_file(name);
        Self { service: all, rules, open }
    }

    /// The settings, and the mistakes in them; the settings are valid only without mistakes.
    pub fn values(&self, wrong: &mut Vec<String>) -> ServiceSettings {
        let all = &self.service;
        let mut settings = service(all, wrong);
        let mut places = Vec::new();
        for (i, layer) in self.rules.iter().enumerate() {
            let name = layer.name(i);
            if let Some(before) = self.rules.iter().take(i).enumerate().find(|(j, l)| l.name(*j) == name) {
                let what = format!("rule '{name}': the rule in line {} has the same name", before.1.line);
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

    fn warnings(&self, settings: &ServiceSettings) -> Vec<String> {
        let mut warnings: Vec<String> =
            self.rules.iter().map(|l| &l.args).chain([&self.service]).flat_map(Args::renamed).collect();
        let rules = &settings.rules;
        for (i, (rule, layer)) in rules.iter().zip(&self.rules).enumerate() {
            if let Some(before) = rules.iter().take(i).find(|before| before.covers(rule)) {
                let what = format!(
                    "rule '{}' is never used: the earlier rule '{}' matches everything it would match",
                    rule.name, before.name
                );
                warnings.push(format!("{}{what}", layer.place()));
            }
        }
        let writing = rules.iter().filter(|r| !r.ignore && r.ring.is_none()).count() as u64;
        // The next file begins before the full one ends.
        if settings.file_size.saturating_mul(2 * writing) > settings.quota {
            let what = "quota is too small for two files per rule (the full one and the next): recording pauses when \
             there is no room";
            warnings.push(format!("{}{what}", self.service.place(&["quota", "file-size"])));
        }
        let headers = self.service.given("otlp-headers");
        if self.open && headers.is_some_and(|given| matches!(given.from, ValueOrigin::Line(_))) {
            let what = "all users of this machine can read the file, and headers can be secret: chmod 600";
            warnings.push(format!("{}{what}", self.service.place(&["otlp-headers"])));
        }
        warnings
    }
}

/// Reduces the file size to fit a small quota: for each rule that writes, one full file and the next. Returns a
/// message about it.
fn lower_file_size(settings: &mut ServiceSettings) -> Option<String> {
    let ServiceSettings { quota, file_size, ref rules, .. } = *settings;
    if file_size <= quota || quota < LEAST_FILE {
        return None;
    }
    let writing = rules.iter().filter(|r| !r.ignore && r.ring.is_none()).count() as u64;
    let least = if rules.iter().any(|r| r.ring.is_some()) { LEAST_RING_FILE } else { LEAST_FILE };
    let fits = if writing > 0 { quota / (2 * writing) } else { quota };
    // In complete MiB, as in the message.
    settings.file_size = (fits.max(least).min(quota) >> 20) << 20;
    let now = settings.file_size >> 20;
    Some(format!("quota is smaller than one file: file-size is reduced to {now}MiB"))
}

impl RuleArgs {
    fn name(&self, i: usize) -> String {
        let given = self.args.text("name").ok().flatten().map(|name| name.to_string_lossy().into_owned());
        given.unwrap_or_else(|| if self.line == 0 { "default".to_owned() } else { format!("rule-{}", i + 1) })
    }

    /// Where it begins, as a prefix for a message.
    fn place(&self) -> String {
        self.args.line(self.line)
    }

    fn rule(&self, name: String, wrong: &mut Vec<String>) -> Option<Rule> {
        let args = &self.args;
        got(args.check(), wrong);
        let record = got(flags::how(args, Streams::Ours), wrong);
        let (decode_cpus, prefill_cpus) =
            (cpus_of("decode-cpus", args, wrong), cpus_of("prefill-cpus", args, wrong));
        let mut record = record;
        if let Some(record) = record.as_mut().filter(|_| decode_cpus.is_some() || prefill_cpus.is_some()) {
            record.capture.phases_at_once = true;
            if record.level == Level::Token {
                add(wrong, format!("{}{CPUS_LEVEL}", args.place(&["level", "decode-cpus", "prefill-cpus"])));
            }
        }
        if record.as_ref().is_some_and(|r| r.counters.names.iter().any(|n| n == "list")) {
            add(wrong, "--pmc 'list': use it with profinfer record".to_owned());
        }
        let pattern = |name| args.option(name, |text| Glob::new(text).map_err(|e| e.to_string()));
        let time = |name| args.option(name, span);
        Some(Rule {
            name,
            exe: got(pattern("exe"), wrong)?,
            user: got(args.option("user", |text| RuleUser::of(text).map_err(|e| e.to_string())), wrong)?,
            cgroup: got(pattern("cgroup"), wrong)?,
            ignore: args.flag("ignore"),
            sample_one_in: got(args.needed("sample-one-in", sample_one_in), wrong)?,
            tokens: got(args.option("tokens", tokens), wrong)?,
            ring: got(time("ring"), wrong)?,
            ring_size: got(args.needed("ring-size", amount(LEAST_FILE)), wrong)?,
            below: got(args.option("trigger-below", budget::speed), wrong)?,
            p99_above: got(time("trigger-p99-above"), wrong)?,
            decode_cpus,
            prefill_cpus,
            on_trigger: self.hook(wrong),
            record: record?,
        })
    }

    fn hook(&self, wrong: &mut Vec<String>) -> Option<Hook> {
        let args = &self.args;
        let argv = args.words("on-trigger");
        let program = argv.first()?;
        if !program.starts_with('/') {
            let what = format!("on-trigger '{program}': expected the absolute path of a program");
            add(wrong, format!("{}{what}", args.place(&["on-trigger"])));
        }
        let user = args.needed("on-trigger-user", |text| RuleUser::of(text).map_err(|e| e.to_string()));
        let timeout = args.needed("on-trigger-timeout", hook_time);
        Some(Hook { user: got(user, wrong)?, timeout: got(timeout, wrong)?, argv })
    }

    /// Reads the type file that it names.
    fn types(&self) -> Result<Option<Btf>, Usage> {
        let path = self.args.path("btf")?;
        let read = |path: PathBuf| {
            Btf::read(&path).map_err(|e| Usage::new(format!("{}{e}", self.args.place(&["btf"]))))
        };
        path.map(read).transpose()
    }
}

fn service(all: &Args, wrong: &mut Vec<String>) -> ServiceSettings {
    let built_in = ServiceSettings::default();
    let mut path =
        |name, check: fn(&Path) -> Result<(), String>| got(checked(all, name, check), wrong).flatten();
    let directory = path("directory", absolute).unwrap_or_default();
    // Beside a service of the machine, and others of commands, each has its own.
    let mut own = |name, check, file| match all.behind().is_empty() || all.given(name).is_some() {
        true => path(name, check),
        false => Some(directory.join(file)),
    };
    let (status, socket) = (own("status", absolute, "status.json"), own("socket", address, "control.sock"));
    let metrics = path("metrics", prom);
    let mut size = |name, least| got(all.needed(name, amount(least)), wrong).unwrap_or_default();
    let (quota, file_size) = (size("quota", LEAST_FILE), size("file-size", LEAST_FILE));
    let memory = size("memory", LEAST_MEMORY);
    let mut time = |name| got(all.option(name, span), wrong).flatten();
    let (file_age, keep, idle_timeout) = (time("file-age"), time("keep"), time("idle-timeout"));
    let peaks_after = got(all.needed("peaks-after", unless_never), wrong).flatten();
    let silence = got(all.option("recorder-timeout", timeout), wrong).flatten();
    ServiceSettings {
        directory,
        quota,
        file_size,
        file_age: file_age.unwrap_or(built_in.file_age),
        keep,
        status: status.unwrap_or_default(),
        metrics,
        per_process: all.flag("per-process"),
        net: network::settings(all, wrong),
        socket: socket.unwrap_or_default(),
        idle_timeout: idle_timeout.unwrap_or(built_in.idle_timeout),
        peaks_after,
        memory,
        cpu: got(all.needed("cpu", percent), wrong).unwrap_or_default(),
        max_concurrent: got(all.needed("max-concurrent", max_concurrent), wrong).unwrap_or_default(),
        recorders: got(all.needed("recorders", recorders), wrong).unwrap_or_default(),
        recorder_timeout: silence.unwrap_or(built_in.recorder_timeout),
        rules: Vec::new(),
        command: command(all)
            .map_err(|e| told(&e).into_iter().for_each(|what| add(wrong, what)))
            .ok()
            .flatten(),
        warnings: Vec::new(),
    }
}

/// The command to start; under sudo it runs as the user who called sudo.
fn command(all: &Args) -> anyhow::Result<Option<ServiceCommand>> {
    let argv = all.behind().to_vec();
    let Some(name) = argv.first() else { return Ok(None) };
    let program = Launch::of_command(&argv).map_or_else(|| name.into(), |launch| launch.program);
    // As the kernel names it.
    let program = program.canonicalize().unwrap_or(program);
    let user = Caller::read(all)?.map(Caller::user).transpose()?;
    Ok(Some(ServiceCommand { argv, program, user }))
}

/// The values that every rule may have.
fn shared(given: &[Given]) -> Vec<Given> {
    let is = |flag: &Flag| SHARED.iter().flat_map(|g| g.flags).any(|f| f.name == flag.name);
    given.iter().filter(|g| is(g.flag)).cloned().collect()
}

fn checked(all: &Args, name: &str, check: fn(&Path) -> Result<(), String>) -> Result<Option<PathBuf>, Usage> {
    let path = all.path(name)?;
    // Its text is needed for the message only.
    all.option(name, |_| path.as_deref().map_or(Ok(()), check))?;
    Ok(path)
}

fn cpus_of(name: &str, args: &Args, wrong: &mut Vec<String>) -> Option<CpuChoice> {
    got(args.option(name, cpu_choice), wrong).flatten()
}

#[cfg(test)]
mod tests;
