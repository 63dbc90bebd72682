//! `profinfer top`: shows live where an engine spends its time.

use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::record::caller::Caller;
use super::record::{self, StopSignals, budget, flags, outer};
use super::report::style;
use super::screen::Screen;
use agent::capture::error::RecordError;
use agent::recorder::qos;
use agent::recorder::qos::policy::LevelPolicy;
use agent::recorder::recording::{
    Arrivals, RecordOptions, RecordingProgress, SessionObserver, Streams, Summary, Target,
};
use agent::recorder::requests::Requests;
use analysis::recorded::calls::Phase;
use analysis::streams::live::{Live, keep, limit};
use cli::args::{Args, Argument, Choice, Command, Flag, FlagGroup};
use cli::output::{MODE, OutputFile, OutputRules, mode};
use cli::terminal;
use cli::values::{choice, time, whole};
use machine::sensors::{self, SensorOptions};
use machine::{target, target_state, usage};
use pfi::record::Detail;
use pfi::{self, Tail};
use render::json;
use render::table::{Style, clean};
use render::top::{CallNow, FaultRate, OpOrder, RecordingState, ShownPhase, TopSnapshot, TopView, text};
use requests::RequestNow;
use service::arrivals::OfFile;

pub const COMMAND: Command = Command {
    name: "top",
    about: "Show live where an unmodified llama.cpp or any other GGML program spends its time",
    text: "\
Attaches like record and shows twice a second: tok/s, what the engine is doing, the ops that took the most time in the
last five seconds, the threads, what they waited for, page faults, frequencies and temperatures where the machine has sensors,
the level of detail and its overhead, and lost events. With -o, the same data is also written to a trace for report and the
other views. Stops when the target exits, on q or Ctrl-C, or after --count refreshes, --duration or --tokens; the last
screen remains visible. The last line names the keys; ? explains them.

If several processes run an engine, all are listed and one is shown in detail; the key n selects the next.

With --lines, or if standard output is not a terminal, each refresh is printed as text; with --json, each is one line.
If COMMAND writes to the terminal that top draws on, that output is discarded; redirect it to a file.",
    usage: &["[OPTIONS] -p PID", "[OPTIONS] --exe PATH", "[OPTIONS] -- COMMAND..."],
    arguments: &[],
    behind: Some(Argument { name: "COMMAND", help: "Command to run and watch" }),
    groups: &[flags::TARGET, PICTURE, COST, flags::HOW, outer::FLAGS, flags::UNTIL],
    notes: "\
Speeds are those of calls of llama_decode and similar functions, as in report, without the time between calls. Percentages
refer to the time of the CPU graphs; ms/token is thread 0's time in the op, per token whose ops were recorded; calls/s
refers to time in graphs. docs/TOP.md describes all values and the fields of --json.",
    exits: &[
        ("0", "the target exited, or top was stopped"),
        ("1", "no engine seen, or an error"),
        ("2", "wrong usage"),
        ("4", "the kernel's tracing does not answer: only a reboot helps"),
        ("130", "stopped by a second Ctrl-C"),
        ("N", "COMMAND failed: its exit status"),
    ],
    examples: "\
profinfer top -p $(pidof llama-server)
profinfer top -o run.pfi -- llama-cli -m model.gguf -p 'Hello' -n 64 > answer.txt
profinfer top --json --interval 1s -p 1234 | jq '.now.phases[] | {phase, tokens_per_s}'
profinfer top --lines --count 1 --interval 10s -p 1234     a single summary after ten seconds
profinfer top --level op -p 1234                           all ops, whatever the overhead",
    run,
};

const PICTURE: FlagGroup = FlagGroup {
    title: "Display",
    flags: &[
        Flag::value("interval", "TIME", "Refresh interval, 50ms or more").default("500ms"),
        Flag::value("count", "N", "Stop after this many refreshes"),
        Flag::value(
            "rows",
            "N",
            "Rows of the op table [default: as many as fit, 10 with --json and --lines]",
        ),
        Flag::value("sort", "KEY", "Order of the op table").default("time").one_of::<OpOrder, _>(),
        Flag::value("phase", "PHASE", "Phase whose ops to show").default("busiest").one_of::<ShownPhase, _>(),
        Flag::switch("lines", "Print each refresh as text, one after the other").excludes(&["json"]),
        Flag::switch("json", "Print each refresh as a line of JSON"),
        Flag::value("output", "FILE", "Also record into FILE").short('o'),
        flags::FORCE,
        MODE,
        Flag::switch("quiet", "Hide the recorder's messages").short('q'),
        Flag::value("sysfs", "DIR", "Directory to look for sensors in").default("/sys").hidden(),
    ],
};

impl Choice<crate::identity::Flags> for OpOrder {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        (Self::Time.name(), "total time, longest first", Self::Time),
        (Self::Calls.name(), "executions, most first", Self::Calls),
        (Self::Mean.name(), "mean time of an execution, longest first", Self::Mean),
    ];
}

impl Choice<crate::identity::Flags> for ShownPhase {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        (Self::Busiest.name(), "the phase that took the most time in the last seconds", Self::Busiest),
        (Self::Decode.name(), "calls with one token", Self::Decode),
        (Self::Prefill.name(), "calls with more than one token in a ubatch", Self::Prefill),
        (Self::All.name(), "each phase, in a table of its own", Self::All),
    ];
}

const COST: FlagGroup = FlagGroup {
    title: "Overhead",
    flags: &[
        Flag::value(
            "budget",
            "SHARE",
            "Maximum overhead as a share of the engine's time. profinfer uses the most detailed level \
             that fits; --level sets the most detailed level allowed [default: 1%, none with --level or \
             --qos]",
        ),
        budget::QOS,
    ],
};

/// Default cost limit, as a share of the engine's time.
const BUDGET: f64 = 0.01;
/// Rows of ops if the height does not determine them.
const ROWS: usize = 10;
/// The trace is read this often, even with a longer refresh interval: until then it is in memory.
const LOOK: Duration = Duration::from_millis(500);
/// Number of messages kept.
const MESSAGES: usize = 3;

/// How frames are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FrameMode {
    Screen,
    Lines,
    Json,
}

/// Whether the display is frozen.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    No,
    /// From the next frame on.
    Next,
    Yes,
}

fn run(args: &Args) -> Result<ExitCode> {
    let way = match (args.flag("json"), args.flag("lines") || !io::stdout().is_terminal()) {
        (true, _) => FrameMode::Json,
        (false, true) => FrameMode::Lines,
        (false, false) => FrameMode::Screen,
    };
    let streams = if way == FrameMode::Screen { Streams::TerminalTaken } else { Streams::StdoutTaken };
    let (target, mut options) = flags::common(args, streams)?;
    budget::read(args, &mut options)?;
    if options.budget.is_none() && !args.flag("level") {
        options.budget = Some(LevelPolicy { budget: Some(BUDGET), qos: None });
    }
    outer::read(args, &mut options);
    let interval = args.needed("interval", |t| time(t).and_then(long_enough))?;
    options.flush = (interval / 2).min(options.flush);
    let sysfs = args.path("sysfs")?.unwrap_or_else(|| "/sys".into());
    options.sensors = sensors::are_in(&sysfs).then_some(SensorOptions { sysfs, interval: LOOK, meter: None });
    let (count, rows) = (args.option("count", whole(1, u64::MAX))?, args.option("rows", whole(1, 10_000))?);
    let output = args.path("output")?;
    let file = match &output {
        Some(path) => Some(open(path, args)?),
        None => None,
    };
    let mut top = Top::new(way, &target, &options, StopSignals::install(|| {})?);
    if let (Some(path), Some(file)) = (&output, &file) {
        record::give(file, Caller::read(args)?, path, &mut top);
    }
    let (file, name) = file.map_or((None, None), |file: OutputFile| {
        let name = file.name();
        (Some(Box::new(file) as Box<dyn pfi::Output>), name)
    });
    (top.interval, top.count, top.rows) = (interval, count, rows);
    (top.order, top.phase) = (args.needed("sort", choice)?, args.needed("phase", choice)?);
    (top.output, top.quiet) = (output.as_ref().map(|o| o.display().to_string()), args.flag("quiet"));
    let tap = Box::new(top.tail.tap(file));
    let recorded = record::write_to(target, options, (tap, name), args.flag("leave-running"), &mut top);
    top.screen = None;
    let summary = recorded?;
    top.last(&summary)?;
    if let (Some(file), false) = (&top.output, top.quiet) {
        eprintln!(
            "profinfer: {} bytes in {file}; next: profinfer report {file}",
            summary.bytes,
            file = clean(file)
        );
    }
    Ok(record::exit_code(&summary))
}

fn long_enough(interval: Duration) -> Result<Duration, String> {
    match interval {
        short if short < Duration::from_millis(50) => Err("must be 50ms or more".into()),
        long => Ok(long),
    }
}

/// A file that is read while it is written must be overwritable.
fn open(path: &Path, args: &Args) -> Result<OutputFile> {
    if path.as_os_str() == "-" {
        bail!("standard output shows the display: give a file with -o");
    }
    let file = OutputFile::create(path, OutputRules::new(flags::over(args), args.needed("mode", mode)?))?;
    if !pfi::Output::seekable(&file) {
        bail!("{} is not a regular file: give another name with -o", path.display());
    }
    Ok(file)
}

/// Watches a recording, and draws.
struct Top {
    way: FrameMode,
    interval: Duration,
    count: Option<u64>,
    rows: Option<usize>,
    order: OpOrder,
    phase: ShownPhase,
    /// The explanation of keys and columns is shown.
    help: bool,
    output: Option<String>,
    quiet: bool,
    target: String,
    budget: Option<f64>,
    signals: StopSignals,
    tail: Tail,
    live: Live,
    /// When the session first reported, and when the next frame is due.
    begun: Option<Instant>,
    due: Instant,
    /// When the trace was last read.
    looked: Instant,
    drawn: u64,
    screen: Option<Screen>,
    held: Hold,
    /// It is to end: by a key, by the count, or because nobody reads the output.
    done: bool,
    failed: Option<io::Error>,
    messages: Vec<String>,
    /// Requests in progress at the last frame.
    requests: Vec<RequestNow>,
    /// CPU time of this process at the last frame, us.
    spent: (Instant, u64),
    before: Option<RecordingProgress>,
    /// Page faults of a process at the last frame: its id, the time, minor and major ones.
    faults: Option<(u32, Instant, (u64, u64))>,
}

impl Top {
    fn new(way: FrameMode, target: &Target, options: &RecordOptions, signals: StopSignals) -> Top {
        let now = Instant::now();
        Top {
            way,
            interval: Duration::from_secs(1),
            count: None,
            rows: None,
            order: OpOrder::Time,
            phase: ShownPhase::Busiest,
            help: false,
            output: None,
            quiet: false,
            target: named(target),
            budget: options.budget.and_then(|rule| rule.budget),
            signals,
            tail: Tail::default(),
            live: Live::default(),
            begun: None,
            due: now,
            looked: now,
            drawn: 0,
            screen: None,
            held: Hold::No,
            done: false,
            failed: None,
            messages: Vec::new(),
            requests: Vec::new(),
            spent: (now, cpu_us()),
            before: None,
            faults: None,
        }
    }

    /// The first report: time counts from now on.
    fn begin(&mut self) {
        let now = Instant::now();
        self.live.tick(usage::now());
        self.spent = (now, cpu_us());
        self.due = now + if self.way == FrameMode::Screen { Duration::ZERO } else { self.interval };
        self.begun = Some(now);
    }

    fn read(&mut self) {
        self.looked = Instant::now();
        let Top { tail, live, .. } = self;
        tail.read(&mut |block| live.feed(block));
        live.tick(usage::now());
    }

    fn picture(&mut self, now: &RecordingProgress, end: Option<&str>) -> TopSnapshot {
        let (t, begun) = (usage::now(), *self.begun.get_or_insert_with(Instant::now));
        let (since, us) = self.spent;
        self.spent = (Instant::now(), cpu_us());
        let passed = since.elapsed().as_micros().max(1) as f64;
        let state = match (end, now.engines) {
            (Some(_), _) => RecordingState::Ended,
            (None, 0) => RecordingState::Waiting,
            (None, _) => RecordingState::Running,
        };
        // While nothing is probed, the last seen call may have ended long ago.
        let call = now.call.filter(|_| state == RecordingState::Running && now.level.level > Detail::Nothing);
        self.live.mark();
        let processes = self.live.processes();
        let shown = processes.iter().find(|row| row.shown).and_then(|row| row.pid);
        let faults = shown.filter(|_| end.is_none()).and_then(|pid| self.faults(pid));
        let speeds = Phase::ALL.into_iter().map(|phase| (phase, self.live.speeds(phase)));
        let speeds = speeds.filter(|(_, values)| values.iter().any(Option::is_some)).collect();
        let lately = self.live.now(t);
        TopSnapshot {
            schema: 2,
            state,
            end: end.map(str::to_owned),
            target: self.target.clone(),
            elapsed_s: begun.elapsed().as_secs_f64(),
            call: call.map(|(since, width)| CallNow {
                phase: Phase::of_width(width.into()),
                seconds: t.saturating_sub(since) as f64 / 1e9,
            }),
            level: qos::name(now.level),
            cost: now.cost,
            budget: self.budget,
            own_cpu: self.spent.1.saturating_sub(us) as f64 / passed,
            events: now.totals.events,
            lost: now.lost,
            output: self.output.clone(),
            bytes: now.bytes,
            limit: lately.phases.iter().max_by_key(|p| p.in_call_ns).and_then(limit),
            now: lately,
            run: self.live.whole(t),
            faults,
            sensors: self.live.sensors(),
            speeds,
            requests: self.requests.iter().filter(|r| Some(r.pid) == shown).copied().collect(),
            processes,
            messages: self.messages.clone(),
        }
    }

    /// Page faults of a process since the last frame.
    fn faults(&mut self, pid: u32) -> Option<FaultRate> {
        let now = target_state::faults_of(pid)?;
        let (of, since, before) = self.faults.replace((pid, Instant::now(), now))?;
        let seconds = since.elapsed().as_secs_f64();
        let rate = |now: u64, before: u64| now.saturating_sub(before) as f64 / seconds;
        (of == pid && seconds > 0.0)
            .then(|| FaultRate { minor_per_s: rate(now.0, before.0), major_per_s: rate(now.1, before.1) })
    }

    /// How to show a frame: on a screen of this height, or as text.
    fn view(&self, height: Option<usize>) -> TopView {
        let rows = self.rows.unwrap_or(if height.is_some() { usize::MAX } else { ROWS });
        let (order, phase, unicode) = (self.order, self.phase, terminal::unicode());
        let keys = height.is_some() && self.screen.as_ref().is_some_and(Screen::has_keys);
        TopView { rows, height, order, phase, unicode, keys, help: self.help && keys }
    }

    /// Shows a frame; with `whole` also on the normal screen.
    fn show(&mut self, mut picture: TopSnapshot, whole: bool) -> io::Result<()> {
        match self.way {
            FrameMode::Screen if !whole => {
                let screen = match self.screen.take() {
                    Some(screen) => screen,
                    None => Screen::enter()?,
                };
                let (width, height) = self.screen.insert(screen).size();
                let style = Style { width: Some(width), ..style() };
                let frame = text(&picture, &self.view(Some(height)), &style);
                self.screen.as_mut().map_or(Ok(()), |screen| screen.draw(&frame))
            }
            FrameMode::Screen | FrameMode::Lines => {
                if self.way == FrameMode::Lines {
                    // They are already on standard error.
                    picture.messages.retain(|m| !self.messages.contains(m));
                }
                let end = if whole { "" } else { "\n" };
                write_out(&format!("{}{end}", text(&picture, &self.view(None), &style())))
            }
            FrameMode::Json => {
                let spans = [&mut picture.now, &mut picture.run];
                for phase in spans.into_iter().flat_map(|s| &mut s.phases) {
                    self.order.sort(&mut phase.ops);
                    keep(&mut phase.ops, self.rows.unwrap_or(ROWS));
                }
                let mut lines = Vec::new();
                json::write(&mut lines, &picture)?;
                // Line ends within strings are escaped, so the remaining ones are layout. A second serializer for
                // one line would add some kilobytes.
                let line: String = String::from_utf8_lossy(&lines).lines().map(str::trim_start).collect();
                write_out(&(line + "\n"))
            }
        }
    }

    /// The end: the last frame, with everything recorded.
    fn last(&mut self, s: &Summary) -> Result<()> {
        if let Some(e) = self.failed.take() {
            return Err(e.into());
        }
        let counted = self.count.is_some_and(|n| self.drawn >= n);
        if counted && self.way != FrameMode::Screen {
            return Ok(());
        }
        self.read();
        self.live.finish();
        let Some(before) = self.before else { return Ok(()) };
        let now = RecordingProgress { totals: s.totals, lost: s.lost, bytes: s.bytes, call: None, ..before };
        let end = if self.done { "as requested" } else { s.end.as_str() };
        let picture = self.picture(&now, Some(end));
        Ok(self.show(picture, true)?)
    }

    fn keys(&mut self) {
        for key in self.screen.as_mut().map(Screen::pressed).unwrap_or_default() {
            match key.to_ascii_lowercase() {
                b'q' => self.done = true,
                b'n' => self.live.show_next(),
                b'p' => self.held = if self.held == Hold::No { Hold::Next } else { Hold::No },
                b's' => self.order = self.order.next(),
                b'f' => self.phase = self.phase.next(),
                b'h' | b'?' => self.help = !self.help,
                _ => continue,
            }
            self.due = Instant::now();
        }
    }
}

impl SessionObserver for Top {
    fn arrivals(&mut self, program: &Path) -> Result<Box<dyn Arrivals>, RecordError> {
        Ok(Box::new(OfFile::new(program)?))
    }

    fn stop(&self) -> bool {
        self.done || self.signals.came()
    }

    fn tell(&mut self, text: &str) {
        if self.quiet {
            return;
        }
        // What comes before the first frame may be all there is.
        if self.screen.is_none() {
            eprintln!("profinfer: {}", clean(text));
        }
        if self.messages.len() == MESSAGES {
            self.messages.remove(0);
        }
        self.messages.push(text.to_owned());
    }

    fn lists_requests(&self) -> bool {
        true
    }

    fn requests_now(&mut self, requests: &Requests) {
        if Instant::now() >= self.due {
            self.requests = requests.rows(None, usage::now());
        }
    }

    fn progress(&mut self, now: &RecordingProgress) {
        if self.begun.is_none() {
            self.begin();
        }
        self.before = Some(*now);
        self.keys();
        let due = Instant::now() >= self.due;
        if !due && self.looked.elapsed() < LOOK {
            return;
        }
        self.read();
        if !due {
            return;
        }
        // A late frame does not make the next one come sooner.
        self.due = (self.due + self.interval).max(Instant::now());
        if self.done || self.held == Hold::Yes {
            return;
        }
        let mut picture = self.picture(now, None);
        if self.held == Hold::Next {
            self.held = Hold::Yes;
            picture.messages.push("paused; press p to resume".into());
        }
        self.drawn += 1;
        self.done = self.count.is_some_and(|n| self.drawn >= n);
        if let Err(e) = self.show(picture, false) {
            (self.done, self.failed) = (true, Some(e));
        }
    }
}

/// CPU time of this process, us.
fn cpu_us() -> u64 {
    let (user, system) = usage::cpu_us();
    user + system
}

fn write_out(text: &str) -> io::Result<()> {
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

/// The recorded processes, as text.
fn named(target: &Target) -> String {
    match target {
        Target::Pids(pids) => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            format!("process {}", pids.join(", "))
        }
        Target::Command(words) => target::shown(words.iter().map(|w| w.as_bytes())),
        Target::Exe(launch) => format!("all processes running {}", launch.program.display()),
        Target::Managed(_) => "engines as they start".into(),
    }
}
