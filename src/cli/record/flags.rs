//! The command line of `profinfer record`. Uses `agent`'s options and `redact`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::caller::{AS_ROOT, Caller};
use crate::agent::attached::Site;
use crate::agent::btf::Btf;
use crate::agent::machine::AgentCpu;
use crate::agent::recording::{Options, Streams, Target};
use crate::agent::root::Root;
use crate::agent::search::Launch;
use crate::agent::source::Wish;
use crate::agent::verify::OpEnd;
use crate::cli::args::{Args, Argument, Command, Flag, Group, Usage};
use crate::cli::conf;
use crate::cli::output::{MODE, Over, mode};
use crate::cli::values::{one_of, parsed, size, time, whole};
use crate::redact;
use crate::trace::record::Level;

pub const COMMAND: Command = Command {
    name: "record",
    about: "Records a run of an unmodified llama.cpp, or of any GGML program, into a trace",
    text: "\
Attaches probes to the engine's functions from outside: nothing is rebuilt, restarted or slowed more than the probes
cost. Ends when the target ends, on Ctrl-C or SIGTERM, after --duration or after --tokens; what was recorded until
then is in the file, which only its owner may read unless --mode says more. A second Ctrl-C ends at once. Needs root, or CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE.",
    usage: &["[OPTIONS] -- COMMAND...", "[OPTIONS] -p PID", "[OPTIONS] --exe PATH"],
    arguments: &[],
    behind: Some(Argument { name: "COMMAND", help: "Command to run and record" }),
    groups: &[TARGET, OUTPUT, HOW, UNTIL, super::pmc::FLAGS, super::inner::FLAGS, super::outer::FLAGS, super::budget::FLAGS, super::sensors::FLAGS, CONF],
    notes: "\
What is not given on the command line may stand in the environment, PROFINFER_BUFFER_SIZE for --buffer-size, or in the
file of --conf: all options but -p, --force, --json and, in the file, --conf. --no-NAME takes back what either of
them says of --NAME. `profinfer config --print` shows what comes of it.",
    exits: &[
        ("0", "recorded"),
        ("1", "nothing recorded, or an error such as a full disk; after an error COMMAND keeps running, and its status is reported"),
        ("2", "wrong usage"),
        ("130", "ended by a second Ctrl-C"),
        ("N", "COMMAND failed: its own"),
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

/// Whom to record, of every subcommand that does; read, with [`HOW`] and [`UNTIL`], by [`common`].
pub const TARGET: Group = Group {
    title: "Target",
    flags: &[
        Flag::value(
            "pid",
            "PID",
            "Running processes to record (repeat or separate by commas); their children are recorded as well",
        )
        .short('p')
        .many()
        .excludes(&["exe"])
        .line_only(),
        Flag::value(
            "exe",
            "PATH",
            "Record every process that runs this program or maps this library, from now on, and nobody else; of a \
             directory, its programs and libraries",
        ),
        SYSROOT.needs(&["exe"]).line_only(),
        AS_ROOT,
    ],
};

/// Where libraries of a program named by its file are looked up.
pub const SYSROOT: Flag = Flag::value(
    "sysroot",
    "DIR",
    "Look its libraries up below this directory: the chroot, container or system of another machine that it lies in \
     [default: the nearest directory above it that has a loader]",
);

/// The program of this path, in the root that is given or that it lies in.
///
/// # Errors
/// It does not lie in the root given.
pub fn launch(args: &Args, path: &Path) -> Result<Launch, Usage> {
    let root = match args.path("sysroot")? {
        Some(dir) => Root::given(&dir, path).map_err(|why| Usage::new(format!("--sysroot: {why}")))?,
        None => Root::of(path),
    };
    Ok(Launch::within(path, root))
}

const OUTPUT: Group = Group {
    title: "Output",
    flags: &[
        Flag::value(
            "output",
            "FILE",
            "File to write, '-' for standard output (COMMAND's own output then goes to standard error)",
        )
        .short('o')
        .default("profinfer.pfi"),
        FORCE,
        MODE,
        Flag::switch("quiet", "Say nothing while recording").short('q'),
    ],
};

pub const FORCE: Flag = Flag::switch(
    "force",
    "Replace FILE if it exists; the new one is FILE.part until there is something in it",
)
.line_only();

const CONF: Group = Group { title: "Configuration", flags: &[conf::FLAG] };

/// How to record, likewise.
pub const HOW: Group = Group {
    title: "Options",
    flags: &[
        Flag::value("level", "LEVEL", "How deep to look").default("op").choices(&[
            ("token", "calls of llama_decode and its kin"),
            ("graph", "and graphs and splits by backend"),
            ("op", "and every op on every thread"),
        ]),
        Flag::switch(
            "str",
            "Record tensors: name, op, type, dims, strides, sources; sent only when they change [default]",
        )
        .overrides("no-str"),
        Flag::switch("no-str", "Do not record tensors: ops are then known by position only").overrides("str"),
        Flag::switch("cmdline", "Record command lines, '***' in place of what looks like a secret [default]")
            .overrides("no-cmdline"),
        Flag::switch("no-cmdline", "Record no command lines: of a process its program only").overrides("cmdline"),
        Flag::value("op-end", "HOW", "How the end of an op is told").default("auto").choices(&[
            ("auto", "by barrier where it fires and more than one thread runs, else by interval"),
            ("barrier", "by the barrier behind the op: time busy and time waited are told apart"),
            ("interval", "by the next op: fewer probe hits, waiting included"),
        ]),
        Flag::switch("pbuf", "Use perf buffers, one for each CPU, instead of the ring buffer"),
        SOURCE,
        Flag::value(
            "buffer-size",
            "SIZE",
            "Size of the kernel's event buffer (each CPU's, with --pbuf or perf events); rounded up to a power of two",
        )
        .default("4MiB")
        .valid(|text| size(text).map(drop)),
        Flag::value(
            "agent-cpu",
            "CPU",
            "CPU on which the recorder itself runs: a number, 'any', or 'auto': a small core where cores differ, else \
             one that the engine leaves free",
        )
        .default("auto")
        .valid(|text| agent_cpu(text).map(drop)),
        Flag::value(
            "btf",
            "FILE",
            "The running kernel's BTF, where it has none of its own: tells processes from threads when following \
             children",
        ),
        Flag::value("site", "SITE", "Where probes sit: cheapest, first or published; for comparing costs")
            .default("cheapest")
            .hidden(),
    ],
};

/// When a recording ends, likewise.
pub const UNTIL: Group = Group {
    title: "End",
    flags: &[
        Flag::value("duration", "TIME", "End after this time: 500ms, 30s, 10min")
            .valid(|text| time(text).map(drop)),
        Flag::value("tokens", "N", "End after this many decoded tokens").valid(|text| tokens(text).map(drop)),
        Flag::switch(
            "leave-running",
            "Leave COMMAND running if the recording ends first; otherwise it is ended by SIGTERM",
        )
        .line_only(),
    ],
};

/// Where events come from, of every subcommand that records; read by [`source`].
pub const SOURCE: Flag =
    Flag::value("source", "SOURCE", "Where events come from").default("auto").choices(&[
        ("auto", "BPF, or, on a kernel without bpf(), perf events"),
        ("bpf", "BPF programs on uprobes"),
        ("perf", "uprobe events through perf's rings: no bpf() needed, more work for the recorder"),
    ]);

/// The value of [`SOURCE`].
///
/// # Errors
/// None of these.
pub fn source(args: &Args) -> Result<Wish, Usage> {
    args.needed("source", one_of(&[("auto", Wish::Auto), ("bpf", Wish::Bpf), ("perf", Wish::Perf)]))
}

/// All that the user asked for.
#[derive(Debug)]
pub struct Asked {
    pub target: Target,
    /// `-`: standard output.
    pub output: PathBuf,
    /// What becomes of a file that is there, and the permissions of the new one.
    pub over: Over,
    pub mode: u32,
    pub quiet: bool,
    /// A command that outlives its recording is left running.
    pub leave: bool,
    /// Whose the new file is, if it is not to stay the recorder's.
    pub owner: Option<Caller>,
    pub options: Options,
}

impl Asked {
    /// Reads the flags; a file of types is opened, and the user of a command looked up.
    ///
    /// # Errors
    /// Wrong usage, BTF that is none, or a user that is none.
    pub fn read(args: &Args) -> anyhow::Result<Self> {
        let output = args.path("output")?.ok_or_else(|| args.missing("output"))?;
        let options = settings(args)?;
        let target = target(args)?;
        let options = opened(args, &target, options)?;
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

/// What [`FORCE`] says.
pub fn over(args: &Args) -> Over {
    if args.flag("force") { Over::Part } else { Over::Never }
}

/// All that is asked for but the target; no file is opened.
///
/// # Errors
/// Wrong usage: all flags that leave out what others need.
pub fn settings(args: &Args) -> Result<Options, Usage> {
    args.needed("mode", mode)?;
    let to_stdout = args.path("output")?.is_some_and(|path| path.as_os_str() == "-");
    let options = how(args, if to_stdout { Streams::StdoutTaken } else { Streams::Ours })?;
    until(args, options)
}

/// How to record, of [`HOW`] and the groups that say more of it; nothing of target, output and end.
///
/// # Errors
/// As [`settings`].
pub fn how(args: &Args, streams: Streams) -> Result<Options, Usage> {
    let mut options = options(args, streams)?;
    let read = [
        super::pmc::read(args, &mut options),
        super::inner::read(args, &mut options),
        super::budget::read(args, &mut options),
        super::sensors::read(args, &mut options),
    ];
    super::outer::read(args, &mut options);
    Usage::none_of(
        read.iter().filter_map(|r| r.as_ref().err()).flat_map(|e| e.mistakes().to_vec()).collect(),
    )?;
    Ok(options)
}

/// Adds what [`UNTIL`] says.
fn until(args: &Args, options: Options) -> Result<Options, Usage> {
    Ok(Options {
        duration: args.option("duration", time)?,
        tokens: args.option("tokens", tokens)?,
        ..options
    })
}

/// Adds what has to be looked up: a file of types, and the user that a command runs as.
fn opened(args: &Args, target: &Target, options: Options) -> anyhow::Result<Options> {
    let btf = args.path("btf")?.as_deref().map(Btf::read).transpose()?;
    let user = match target {
        Target::Command(_) => Caller::read(args)?.map(Caller::user).transpose()?,
        _ => None,
    };
    Ok(Options { btf, user, ..options })
}

/// Reads [`TARGET`], [`HOW`] and [`UNTIL`]; a file of types is opened, and the user of a command looked up.
///
/// # Errors
/// Wrong usage, BTF that is none, or a user that is none.
pub fn common(args: &Args, streams: Streams) -> anyhow::Result<(Target, Options)> {
    let options = until(args, options(args, streams)?)?;
    let target = target(args)?;
    let options = opened(args, &target, options)?;
    Ok((target, options))
}

fn target(args: &Args) -> Result<Target, Usage> {
    let pids: Vec<u32> = args.list("pid", whole(0, u32::MAX.into()))?;
    // A command to run is stronger than a program named elsewhere than beside it.
    let exe = args.path("exe")?.filter(|_| args.behind().is_empty() || args.on_line("exe"));
    match (exe, pids.is_empty(), args.behind()) {
        (Some(path), true, []) => Ok(Target::Exe(launch(args, &path)?)),
        (None, false, []) => Ok(Target::Pids(pids)),
        (None, true, command @ [_, ..]) => Ok(Target::Command(command.to_vec())),
        (None, true, []) => Err(Usage::new("what to record? give -p PID, --exe PATH, or -- COMMAND")),
        _ => Err(Usage::new("give only one of -p PID, --exe PATH and -- COMMAND")),
    }
}

fn options(args: &Args, streams: Streams) -> Result<Options, Usage> {
    let levels = one_of(&[("token", Level::Token), ("graph", Level::Graph), ("op", Level::Op)]);
    let ends = one_of(&[("auto", OpEnd::Auto), ("barrier", OpEnd::Barrier), ("interval", OpEnd::Interval)]);
    let sites =
        one_of(&[("cheapest", Site::Cheapest), ("first", Site::First), ("published", Site::FirstAndReturn)]);
    Ok(Options {
        level: args.needed("level", levels)?,
        structure: !args.flag("no-str"),
        experts: false,
        budget: None,
        sensors: None,
        sched: false,
        phases: false,
        pbuf: args.flag("pbuf"),
        source: source(args)?,
        buffer_bytes: args.needed("buffer-size", size)?,
        agent_cpu: args.needed("agent-cpu", agent_cpu)?,
        op_end: args.needed("op-end", ends)?,
        site: args.needed("site", sites)?,
        btf: None,
        counters: Default::default(),
        duration: None,
        tokens: None,
        streams,
        user: None,
        // A recorder that is killed loses less than a second.
        flush: Duration::from_millis(500),
        ring: None,
        learnt: None,
        tool: format!("profinfer {}", crate::VERSION),
        command_line: whole_line(args),
        cmdline: !args.flag("no-cmdline"),
    })
}

/// The command line, and behind a '#' what file and environment add to it.
fn whole_line(args: &Args) -> String {
    let mut words: Vec<OsString> = std::env::args_os().collect();
    if args.flag("no-cmdline") {
        // Of the command to run the program stays.
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

fn tokens(text: &str) -> Result<u64, String> {
    whole(0, u64::MAX)(text)
}

fn agent_cpu(text: &str) -> Result<AgentCpu, String> {
    match text {
        "auto" => Ok(AgentCpu::Auto),
        "any" => Ok(AgentCpu::Any),
        n => parsed(n).map(AgentCpu::Cpu).map_err(|_| "wanted: a CPU number, 'auto' or 'any'".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::args::Parsed;

    fn read(line: &str) -> Result<Asked, String> {
        let words = line.split(' ').chain(["--", "ls", "-l"]).filter(|w| !w.is_empty());
        match Args::parse(&COMMAND, words.map(OsString::from).collect()) {
            Ok(Parsed::Run(args)) => Asked::read(&args).map_err(|e| e.to_string()),
            Ok(Parsed::Help { .. }) => Err("help".to_owned()),
            Err(e) => Err(e.to_string()),
        }
    }

    #[test]
    fn defaults_are_those_that_the_help_tells() {
        let asked = read("").expect("defaults");
        assert!(
            asked.over == Over::Never
                && asked.mode == 0o600
                && !asked.quiet
                && asked.output.as_os_str() == "profinfer.pfi"
        );
        assert!(matches!(asked.target, Target::Command(c) if c == ["ls", "-l"]));
        let o = asked.options;
        assert_eq!((o.level, o.structure, o.pbuf, o.source), (Level::Op, true, false, Wish::Auto));
        assert_eq!((o.op_end, o.site, o.agent_cpu), (OpEnd::Auto, Site::Cheapest, AgentCpu::Auto));
        assert_eq!((o.buffer_bytes, o.duration, o.tokens), (4 << 20, None, None));
    }

    #[test]
    fn every_choice_that_the_help_tells_is_one() {
        for flag in COMMAND.flags() {
            for (choice, _) in flag.choices {
                assert!(read(&format!("--{} {choice}", flag.name)).is_ok(), "--{} {choice}", flag.name);
            }
        }
        assert_eq!(read("--site published").map(|a| a.options.site), Ok(Site::FirstAndReturn));
    }

    #[test]
    fn the_last_word_on_structure_counts() {
        for (line, structure) in
            [("--str", true), ("--no-str", false), ("--no-str --str", true), ("--str --no-str", false)]
        {
            assert_eq!(read(line).map(|a| a.options.structure), Ok(structure), "{line}");
        }
    }

    #[test]
    fn one_target_is_wanted() {
        for line in ["-p 1", "--exe x", "--exe x -p 1"] {
            assert!(read(line).is_err_and(|why| why.contains("exe")), "{line}");
        }
    }

    #[test]
    fn what_is_given_elsewhere_stands_behind_the_command_line() {
        let (file, _) = conf::read("level = \"graph\"\nsched = true\nquiet = false\nbtf = \"a b\"");
        let mut args = Args::none(&COMMAND);
        args.below(file.record);
        let line = whole_line(&args);
        assert!(line.ends_with(" # with --level=graph --sched '--btf=a b'"), "{line}");
        assert_eq!(whole_line(&Args::none(&COMMAND)), command_line(std::env::args_os()));
    }

    #[test]
    fn words_that_a_shell_would_split_are_quoted() {
        let words = ["profinfer", "a b", "it's", ""].into_iter().map(OsString::from);
        assert_eq!(command_line(words), r"profinfer 'a b' 'it'\''s' ''");
        let words =
            ["record", "--", "server", "--api-key", "x y", "-p", "a*"].into_iter().map(OsString::from);
        assert_eq!(command_line(words), "record -- server --api-key *** -p 'a*'");
    }
}
