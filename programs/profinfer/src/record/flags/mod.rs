//! The command line of `profinfer record`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::caller::{AS_ROOT, Caller};
use crate::conf;
use agent::capture::source::{BackendChoice, CaptureOptions, GpuDetail, Structure};
use agent::recorder::recording::{RecordOptions, Streams, Target};
use agent::recorder::verify::OpEnd;
use cli::args::{Args, Argument, Choice, Command, Flag, FlagGroup, Usage};
use cli::output::{self, MODE, Overwrite, mode};
use cli::values::{choice, parsed, size, time, whole};
use common::redact;
use engine::probes::Site;
use engine::search::Launch;
use machine::hardware::AgentCpu;
use machine::kernel::btf::Btf;
use machine::root::Root;
use pfi::record::Level;

pub const COMMAND: Command = Command {
    name: "record",
    about: "Record a run of an unmodified llama.cpp or any other GGML program",
    text: "\
Attaches probes to the engine's functions from outside: nothing is rebuilt or restarted, and the only slowdown is the cost
of the probes. Recording stops when the target exits, on Ctrl-C or SIGTERM, or after --duration or --tokens. Everything
recorded until then is in the trace, which only its owner can read unless --mode says otherwise. A second Ctrl-C exits
immediately. Requires root, or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE.",
    usage: &["[OPTIONS] -- COMMAND...", "[OPTIONS] -p PID", "[OPTIONS] --exe PATH"],
    arguments: &[],
    behind: Some(Argument { name: "COMMAND", help: "Command to run and record" }),
    groups: &[
        TARGET,
        #[cfg(not(feature = "board"))]
        crate::remote::FLAGS,
        OUTPUT,
        HOW,
        UNTIL,
        super::pmc::FLAGS,
        super::inner::FLAGS,
        super::gpu::FLAGS,
        super::outer::FLAGS,
        super::budget::FLAGS,
        super::sensors::FLAGS,
        super::lifeline::FLAGS,
        CONF,
    ],
    notes: "\
Options can also be set in the environment (PROFINFER_BUFFER_SIZE for --buffer-size) or in the file given by --conf: all
options except -p, --force, --json and, in the file, --conf. --no-NAME overrides a setting of --NAME from either of
them. `profinfer config --print` shows the result.",
    exits: &[
        ("0", "recorded"),
        ("1", "nothing recorded, or an error such as a full disk; after an error COMMAND keeps running, and its \
         exit status is reported"),
        ("2", "wrong usage"),
        ("4", "the kernel's tracing does not answer: only a reboot helps"),
        ("130", "stopped by a second Ctrl-C"),
        ("N", "COMMAND failed: its exit status"),
    ],
    examples: "\
profinfer record -o run.pfi -- llama-cli -m model.gguf -p 'Hello' -n 64
profinfer record -o run.pfi -p $(pidof llama-server) --duration 30s
profinfer record -o run.pfi --exe /usr/bin/llama-server --tokens 200
profinfer record --pmc list
profinfer record --pmc cycles,instructions --faults -- llama-cli -m model.gguf -p 'Hello' -n 64
profinfer record -o - --level graph -p 1234 | ssh desk 'profinfer report -'
profinfer record --conf board.toml --no-budget -- llama-cli -m model.gguf -p 'Hello' -n 64",
    run: super::run,
};

/// What to record, for every subcommand that records; read by [`common()`], together with [`HOW`] and [`UNTIL`].
pub const TARGET: FlagGroup = FlagGroup {
    title: "Target",
    flags: &[
        Flag::value(
            "pid",
            "PID",
            "Running processes to record, with their children (repeat, or separate by commas)",
        )
        .short('p')
        .many()
        .excludes(&["exe"])
        .cli_only(),
        Flag::value(
            "exe",
            "PATH",
            "Record every process that runs this program or maps this library from now on, and no others; \
             for a directory, any of its programs and libraries",
        ),
        SYSROOT.needs(&["exe"]).cli_only(),
        AS_ROOT,
        Flag::value("cpus", "LIST", "Run COMMAND on these CPUs only, e.g. 4-7, as taskset does").cli_only(),
    ],
};

/// Where to look up the libraries of a program given by its file.
pub const SYSROOT: Flag = Flag::value(
    "sysroot",
    "DIR",
    "Look up its libraries in this directory: the root of the chroot, container or system image that it \
     belongs to [default: the nearest directory above it that has a loader]",
);

/// The program at this path, in the given root or in the one that contains it.
///
/// # Errors
/// It is not in the given root.
pub fn launch(args: &Args, path: &Path) -> Result<Launch, Usage> {
    let root = match args.path("sysroot")? {
        Some(dir) => Root::given(&dir, path).map_err(|why| Usage::new(format!("--sysroot: {why}")))?,
        None => Root::of(path),
    };
    Ok(Launch::within(path, root))
}

const OUTPUT: FlagGroup = FlagGroup {
    title: "Output",
    flags: &[
        Flag::value(
            "output",
            "FILE",
            "Write the trace to FILE; '-' is standard output (COMMAND's own output then goes to standard \
             error). Without it, a name that exists is numbered: run.1.pfi",
        )
        .short('o')
        .default("run.pfi"),
        FORCE,
        MODE,
        Flag::switch("quiet", "Print nothing while recording").short('q'),
        #[cfg(not(feature = "board"))]
        OPEN,
        super::events::FLAG,
    ],
};

/// Shows the recording in a browser.
#[cfg(not(feature = "board"))]
pub const OPEN: Flag = Flag::switch(
    "open",
    "When the recording has ended, write its page (see profinfer html) and open it in a browser; not as root \
     for another user",
)
.excludes(&["on"])
.cli_only();

pub const FORCE: Flag =
    Flag::switch("force", "Replace FILE if it exists; the new trace is FILE.part until it contains data")
        .cli_only();

const CONF: FlagGroup = FlagGroup { title: "Configuration", flags: &[conf::FLAG] };

/// How to record, likewise.
pub const HOW: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value("level", "LEVEL", "Level of detail").default("op").one_of::<Level, _>(),
        Flag::switch(
            "str",
            "Record tensors: name, op, type, dimensions, strides, sources; written only when they change \
             [default]",
        )
        .overrides("no-str"),
        Flag::switch("no-str", "Do not record tensors: ops are then identified by position only")
            .overrides("str"),
        Flag::switch(
            "cmdline",
            "Record command lines, with '***' in place of what looks like a secret [default]",
        )
        .overrides("no-cmdline"),
        Flag::switch("no-cmdline", "Do not record command lines, only program names").overrides("cmdline"),
        Flag::value("op-end", "HOW", "How to determine the end of an op")
            .default("auto")
            .one_of::<OpEnd, _>(),
        Flag::switch("pbuf", "Use per-CPU perf buffers instead of the ring buffer"),
        SOURCE,
        Flag::value(
            "buffer-size",
            "SIZE",
            "Size of the kernel's event buffer (per CPU with --pbuf or perf events), rounded up to a \
             power of two",
        )
        .default("4MiB")
        .valid(|text| size(text).map(drop)),
        Flag::value(
            "agent-cpu",
            "CPU",
            "CPU to run the recorder on: a number, 'any', or 'auto': a small core if cores differ, else \
             one that the engine leaves free",
        )
        .default("auto")
        .valid(|text| agent_cpu(text).map(drop)),
        Flag::value(
            "btf",
            "FILE",
            "BTF file of the running kernel, if the kernel does not provide BTF; used to tell processes \
             from threads when following children",
        ),
        Flag::value(
            "site",
            "SITE",
            "Where to place probes: cheapest, first or published; for comparing costs",
        )
        .default("cheapest")
        .hidden(),
    ],
};

/// When a recording ends, likewise.
pub const UNTIL: FlagGroup = FlagGroup {
    title: "End",
    flags: &[
        Flag::value("duration", "TIME", "Stop after this time: 500ms, 30s, 10min")
            .valid(|text| time(text).map(drop)),
        Flag::value("tokens", "N", "Stop after this many decoded tokens")
            .valid(|text| tokens(text).map(drop)),
        Flag::switch(
            "leave-running",
            "Leave COMMAND running if recording stops first; otherwise it gets SIGTERM",
        )
        .cli_only(),
    ],
};

/// Where events come from, for every subcommand that records; read by [`source`].
pub const SOURCE: Flag =
    Flag::value("source", "SOURCE", "Event source").default("auto").one_of::<BackendChoice, _>();

impl Choice<crate::identity::Flags> for BackendChoice {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        (
            "auto",
            "BPF, or perf events if the kernel has no bpf(), or inside where neither is allowed",
            Self::Auto,
        ),
        ("bpf", "BPF programs on uprobes", Self::Bpf),
        (
            "perf",
            "uprobe events through perf ring buffers: works without bpf(), at a higher cost for the recorder",
            Self::Perf,
        ),
        (
            "inside",
            "a library in the engine's own process: works without root, for a COMMAND that is started",
            Self::Inside,
        ),
    ];
}

impl Choice<crate::identity::Flags> for Level {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("token", "calls of llama_decode and similar functions", Self::Token),
        ("graph", "the same, plus graphs and their splits by backend", Self::Graph),
        ("op", "the same, plus every op on every thread", Self::Op),
    ];
}

impl Choice<crate::identity::Flags> for OpEnd {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("auto", "barrier where it fires and more than one thread runs, else interval", Self::Auto),
        ("barrier", "the barrier after the op: separates busy time from waiting time", Self::Barrier),
        ("interval", "the start of the next op: fewer probe hits, includes waiting time", Self::Interval),
    ];
}

impl Choice<crate::identity::Flags> for Site {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("cheapest", "where a hit costs least", Self::Cheapest),
        ("first", "at the first instruction", Self::First),
        ("published", "at the first instruction and at the return", Self::FirstAndReturn),
    ];
}

/// The value of [`SOURCE`].
///
/// # Errors
/// None of the choices.
pub fn source(args: &Args) -> Result<BackendChoice, Usage> {
    args.needed("source", choice)
}

/// Everything that the user asked for.
#[derive(Debug)]
pub struct RecordArgs {
    pub target: Target,
    /// `-`: standard output.
    pub output: PathBuf,
    /// What to do with an existing file, and the permissions of the new one.
    pub over: Overwrite,
    pub mode: u32,
    pub quiet: bool,
    /// Leave a command running that outlives its recording.
    pub leave: bool,
    /// The owner of the new file, if not the recorder's user.
    pub owner: Option<Caller>,
    pub options: RecordOptions,
}

impl RecordArgs {
    /// Reads the flags; opens a type file, and looks up the user of a command.
    ///
    /// # Errors
    /// Wrong usage, invalid BTF, or an unknown user.
    pub fn read(args: &Args) -> anyhow::Result<Self> {
        let output = output::unused(args)?;
        let options = settings(args)?;
        let target = target(args)?;
        let layers = super::gpu::layers(args, &target, options.capture.gpu)?;
        let options = opened(args, &target, RecordOptions { layers, ..options })?;
        Ok(Self {
            target,
            output,
            over: over(args),
            mode: args.needed("mode", mode)?,
            quiet: args.flag("quiet"),
            leave: args.flag("leave-running"),
            owner: Caller::read(args)?,
            options,
        })
    }
}

/// The choice made by [`FORCE`].
pub fn over(args: &Args) -> Overwrite {
    if args.flag("force") { Overwrite::Part } else { Overwrite::Never }
}

/// Everything except the target; opens no file.
///
/// # Errors
/// Wrong usage: all flags that lack what they need.
pub fn settings(args: &Args) -> Result<RecordOptions, Usage> {
    args.needed("mode", mode)?;
    let to_stdout = args.path("output")?.is_some_and(|path| path.as_os_str() == "-");
    let options = how(args, if to_stdout { Streams::StdoutTaken } else { Streams::Ours })?;
    until(args, options)
}

/// How to record, from [`HOW`] and the related groups; nothing about target, output and end.
///
/// # Errors
/// As for [`settings`].
pub fn how(args: &Args, streams: Streams) -> Result<RecordOptions, Usage> {
    let mut options = options(args, streams)?;
    let read = [
        super::pmc::read(args, &mut options),
        super::inner::read(args, &mut options),
        super::gpu::read(args, &mut options),
        super::budget::read(args, &mut options),
        super::sensors::read(args, &mut options),
    ];
    super::outer::read(args, &mut options);
    Usage::none_of(
        read.iter().filter_map(|r| r.as_ref().err()).flat_map(|e| e.mistakes().to_vec()).collect(),
    )?;
    Ok(options)
}

/// Adds the flags of [`UNTIL`].
fn until(args: &Args, options: RecordOptions) -> Result<RecordOptions, Usage> {
    Ok(RecordOptions {
        duration: args.option("duration", time)?,
        tokens: args.option("tokens", tokens)?,
        ..options
    })
}

/// Adds what must be looked up: a type file, and the user that a command runs as.
fn opened(args: &Args, target: &Target, options: RecordOptions) -> anyhow::Result<RecordOptions> {
    let btf = args.path("btf")?.as_deref().map(Btf::read).transpose()?;
    let user = match target {
        Target::Command(_) => Caller::read(args)?.map(Caller::user).transpose()?,
        _ => None,
    };
    let cpus = args.option("cpus", cpus)?;
    if cpus.is_some() && !matches!(target, Target::Command(_)) {
        return Err(Usage::new(
            "--cpus is for a command: of a running process, taskset -acp LIST PID sets them",
        )
        .into());
    }
    Ok(RecordOptions { btf, user, cpus, ..options })
}

/// Reads [`TARGET`], [`HOW`] and [`UNTIL`]; opens a type file, and looks up the user of a command.
///
/// # Errors
/// Wrong usage, invalid BTF, or an unknown user.
pub fn common(args: &Args, streams: Streams) -> anyhow::Result<(Target, RecordOptions)> {
    let options = until(args, options(args, streams)?)?;
    let target = target(args)?;
    let options = opened(args, &target, options)?;
    Ok((target, options))
}

fn target(args: &Args) -> Result<Target, Usage> {
    let pids: Vec<u32> = args.list("pid", whole(0, u32::MAX.into()))?;
    // A command to run overrides a program named outside the command line.
    let exe = args.path("exe")?.filter(|_| args.behind().is_empty() || args.on_line("exe"));
    match (exe, pids.is_empty(), args.behind()) {
        (Some(path), true, []) => Ok(Target::Exe(launch(args, &path)?)),
        (None, false, []) => Ok(Target::Pids(pids)),
        (None, true, command @ [_, ..]) => Ok(Target::Command(command.to_vec())),
        (None, true, []) => Err(Usage::new("nothing to record: give -p PID, --exe PATH, or -- COMMAND")),
        _ => Err(Usage::new("give only one of -p PID, --exe PATH and -- COMMAND")),
    }
}

fn options(args: &Args, streams: Streams) -> Result<RecordOptions, Usage> {
    let level = args.needed("level", choice)?;
    let (source, buffer_bytes) = (source(args)?, args.needed("buffer-size", size)?);
    let agent_cpu = args.needed("agent-cpu", agent_cpu)?;
    let (op_end, site) = (args.needed("op-end", choice)?, args.needed("site", choice)?);
    let structure = match (level, args.flag("no-str"), site) {
        (Level::Op, false, Site::FirstAndReturn) => Structure::EveryHit,
        (Level::Op, false, _) => Structure::Changes,
        _ => Structure::Off,
    };
    let capture = CaptureOptions {
        pbuf: args.flag("pbuf"),
        buffer_bytes,
        structure,
        gpu: GpuDetail::Off,
        experts: false,
        sched: false,
        own: false,
        phases_at_once: false,
        // Links need markers in forked children, which lie where these probes leave room.
        few: site == Site::Cheapest,
    };
    Ok(RecordOptions {
        level,
        capture,
        budget: None,
        sensors: None,
        phases: false,
        layers: Vec::new(),
        sched_requested: false,
        source,
        agent_cpu,
        op_end,
        site,
        op_probe: None,
        btf: None,
        counters: Default::default(),
        duration: None,
        tokens: None,
        streams,
        user: None,
        cpus: None,
        // A killed recorder loses less than a second.
        flush: Duration::from_millis(500),
        ring: None,
        calibration: None,
        calibrated_later: false,
        tool: crate::identity::TOOL.to_owned(),
        command_line: whole_line(args),
        cmdline: !args.flag("no-cmdline"),
    })
}

/// The command line and, after a '#', what file and environment add to it.
fn whole_line(args: &Args) -> String {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if args.flag("no-cmdline") {
        // Keep the program of the command to run.
        words.truncate(words.len().saturating_sub(args.behind().len().saturating_sub(1)));
    }
    let line = command_line(words.into_iter());
    match command_line(args.elsewhere()) {
        added if added.is_empty() => line,
        added => format!("{line} # with {added}"),
    }
}

fn command_line(words: impl Iterator<Item = OsString>) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    let quote = |a: String| match a.replace(redact::MARK, "").chars().all(plain) && !a.is_empty() {
        true => a,
        false => format!("'{}'", a.replace('\'', r"'\''")),
    };
    let words: Vec<String> = words.map(|a| a.to_string_lossy().into_owned()).collect();
    let words = redact::arguments(words.iter().map(String::as_str));
    words.into_iter().map(quote).collect::<Vec<_>>().join(" ")
}

/// A list of CPUs.
///
/// # Errors
/// What is expected.
pub fn cpus(text: &str) -> Result<Vec<u32>, String> {
    common::cpus::parse(text).ok_or_else(|| "expected a list of CPUs, e.g. 0-3,8".to_owned())
}

fn tokens(text: &str) -> Result<u64, String> {
    whole(0, u64::MAX)(text)
}

fn agent_cpu(text: &str) -> Result<AgentCpu, String> {
    match text {
        "auto" => Ok(AgentCpu::Auto),
        "any" => Ok(AgentCpu::Any),
        n => parsed(n).map(AgentCpu::Cpu).map_err(|_| "expected a CPU number, 'auto' or 'any'".to_owned()),
    }
}

#[cfg(test)]
mod tests;
