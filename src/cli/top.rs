//! `profinfer top`: what an engine spends its time on, while it runs. Uses `agent`, `trace`, `analysis` and `views`, and of
//! `record` all that says how.

use std::io::{self, IsTerminal, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

use super::args::{Args, Argument, Command, Flag, Group};
use super::output::{MODE, Output, mode};
use super::record::caller::Caller;
use super::record::{self, Signals, budget, flags};
use super::report::style;
use super::screen::Screen;
use super::values::{time, whole};
use crate::agent::qos::law::Rule;
use crate::agent::recording::{Arrivals, Options, Progress, RecordError, Streams, Summary, Target, Watch};
use crate::agent::service::arrivals::OfFile;
use crate::agent::{qos, target, usage};
use crate::analysis::calls::Phase;
use crate::analysis::live::{Live, keep};
use crate::trace::record::Detail;
use crate::trace::{self, Tail};
use crate::views::json;
use crate::views::table::{Style, clean};
use crate::views::top::{CallNow, Picture, State, text};

pub const COMMAND: Command = Command {
    name: "top",
    about: "Shows what an unmodified llama.cpp, or any GGML program, spends its time on, while it runs",
    text: "\
Attaches as record does, and shows twice a second: tokens/s, what the engine is doing just now, the ops that took most
time in the last five seconds, the threads, how much is being recorded and at what cost, and events lost. With -o the
same data is in a trace at the end, for report and the other views. Ends when the target ends, on q or Ctrl-C, after
--count pictures, --duration or --tokens; the last picture then stays. The key p holds the picture, and goes on.

If several processes run an engine, all are listed and one is shown in detail: the key n selects the next.

Where standard output is no terminal, and with --lines, pictures follow one another as text; with --json each is one line.
A COMMAND's own output is lost where it would go to the terminal that top draws on; give it a file.",
    usage: &["[OPTIONS] -p PID", "[OPTIONS] --exe PATH", "[OPTIONS] -- COMMAND..."],
    arguments: &[],
    behind: Some(Argument { name: "COMMAND", help: "Command to run and watch" }),
    groups: &[flags::TARGET, PICTURE, COST, flags::HOW, flags::UNTIL],
    notes: "\
Speeds are those of the calls of llama_decode and its kin, as report counts them, without the time between calls. Shares
are of the time of the CPU graphs; ms/token is thread 0's time in the op for a token whose ops were recorded; calls/s are
of the time in graphs. All of it is told in docs/TOP.md, with the fields of --json.",
    exits: &[
        ("0", "watched until it ended or was to end"),
        ("1", "no engine was seen, or an error"),
        ("2", "wrong usage"),
        ("130", "ended by a second Ctrl-C"),
        ("N", "COMMAND failed: its own"),
    ],
    examples: "\
profinfer top -p $(pidof llama-server)
profinfer top -o run.pfi -- llama-cli -m model.gguf -p 'Hello' -n 64 > answer.txt
profinfer top --json --interval 1s -p 1234 | jq '.now.phases[] | {phase, tokens_per_s}'
profinfer top --lines --count 1 --interval 10s -p 1234     one look at ten seconds
profinfer top --level op -p 1234                           all ops, whatever it costs",
    run,
};

const PICTURE: Group = Group {
    title: "Pictures",
    flags: &[
        Flag::value("interval", "TIME", "From one picture to the next, 50ms or more").default("500ms"),
        Flag::value("count", "N", "End after this many pictures"),
        Flag::value(
            "rows",
            "N",
            "Rows of the table of ops [default: as many as fit, 10 with --json and --lines]",
        ),
        Flag::switch("lines", "Write pictures as text, one after the other").excludes(&["json"]),
        Flag::switch("json", "Write each picture as a line of JSON"),
        Flag::value("output", "FILE", "Record into FILE meanwhile").short('o'),
        flags::FORCE,
        MODE,
        Flag::switch("quiet", "Leave out what the recorder has to say").short('q'),
    ],
};

const COST: Group = Group {
    title: "Cost",
    flags: &[
        Flag::value(
            "budget",
            "SHARE",
            "Most of the engine's time that looking may take: the level is the richest that fits, --level the richest of \
             all [default: 1%, none with --level or --qos]",
        ),
        budget::QOS,
    ],
};

/// What looking may cost where nothing is said, as a share of the engine's time.
const BUDGET: f64 = 0.01;
/// Rows of ops where no height says how many fit.
const ROWS: usize = 10;
/// The trace is read so often, however rare pictures are: until then it is in memory.
const LOOK: Duration = Duration::from_millis(500);
/// Messages that are kept.
const MESSAGES: usize = 3;

/// How pictures are shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    Screen,
    Lines,
    Json,
}

/// Whether the picture stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Hold {
    No,
    /// From the next one on.
    Next,
    Yes,
}

fn run(args: &Args) -> Result<ExitCode> {
    let way = match (args.flag("json"), args.flag("lines") || !io::stdout().is_terminal()) {
        (true, _) => Way::Json,
        (false, true) => Way::Lines,
        (false, false) => Way::Screen,
    };
    let streams = if way == Way::Screen { Streams::TerminalTaken } else { Streams::StdoutTaken };
    let (target, mut options) = flags::common(args, streams)?;
    budget::read(args, &mut options)?;
    if options.budget.is_none() && !args.flag("level") {
        options.budget = Some(Rule { budget: Some(BUDGET), qos: None });
    }
    let interval = args.needed("interval", |t| time(t).and_then(long_enough))?;
    options.flush = (interval / 2).min(options.flush);
    let (count, rows) = (args.option("count", whole(1, u64::MAX))?, args.option("rows", whole(1, 10_000))?);
    let output = args.path("output")?;
    let file = match &output {
        Some(path) => Some(open(path, args)?),
        None => None,
    };
    let mut top = Top::new(way, &target, &options, Signals::install()?);
    if let (Some(path), Some(file)) = (&output, &file) {
        record::give(file, Caller::read(args)?, path, &mut top);
    }
    let (file, name) = file.map_or((None, None), |file: Output| {
        let name = file.name();
        (Some(Box::new(file) as Box<dyn trace::Output>), name)
    });
    (top.interval, top.count, top.rows) = (interval, count, rows);
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

/// A file that is to be read while it is written must be one that can be written over.
fn open(path: &Path, args: &Args) -> Result<Output> {
    if path.as_os_str() == "-" {
        bail!("standard output is for the pictures: give -o a file");
    }
    let file = Output::create(path, flags::over(args), args.needed("mode", mode)?)?;
    if !trace::Output::seekable(&file) {
        bail!("{} is no regular file: give another name with -o", path.display());
    }
    Ok(file)
}

/// Watches a recording, and draws.
struct Top {
    way: Way,
    interval: Duration,
    count: Option<u64>,
    rows: Option<usize>,
    output: Option<String>,
    quiet: bool,
    target: String,
    budget: Option<f64>,
    signals: Signals,
    tail: Tail,
    live: Live,
    /// When the first look at the session was, and when the next picture is due.
    begun: Option<Instant>,
    due: Instant,
    /// When the trace was read.
    looked: Instant,
    drawn: u64,
    screen: Option<Screen>,
    held: Hold,
    /// It is to end: a key, the count, or nobody reads on.
    done: bool,
    failed: Option<io::Error>,
    messages: Vec<String>,
    /// CPU time of this process at the last picture, us.
    spent: (Instant, u64),
    before: Option<Progress>,
}

impl Top {
    fn new(way: Way, target: &Target, options: &Options, signals: Signals) -> Top {
        let now = Instant::now();
        Top {
            way,
            interval: Duration::from_secs(1),
            count: None,
            rows: None,
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
            spent: (now, cpu_us()),
            before: None,
        }
    }

    /// The first look: from now on time counts.
    fn begin(&mut self) {
        let now = Instant::now();
        self.live.tick(usage::now());
        self.spent = (now, cpu_us());
        self.due = now + if self.way == Way::Screen { Duration::ZERO } else { self.interval };
        self.begun = Some(now);
    }

    fn read(&mut self) {
        self.looked = Instant::now();
        let Top { tail, live, .. } = self;
        tail.read(&mut |block| live.feed(block));
        live.tick(usage::now());
    }

    fn picture(&mut self, now: &Progress, end: Option<&str>) -> Picture {
        let (t, begun) = (usage::now(), *self.begun.get_or_insert_with(Instant::now));
        let (since, us) = self.spent;
        self.spent = (Instant::now(), cpu_us());
        let passed = since.elapsed().as_micros().max(1) as f64;
        let state = match (end, now.engines) {
            (Some(_), _) => State::Ended,
            (None, 0) => State::Waiting,
            (None, _) => State::Running,
        };
        // Where nothing is probed the last call seen may have ended long ago.
        let call = now.call.filter(|_| state == State::Running && now.level.level > Detail::Nothing);
        Picture {
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
            now: self.live.now(t),
            run: self.live.whole(t),
            processes: self.live.processes(),
            messages: self.messages.clone(),
        }
    }

    /// Shows a picture; with `whole` on the usual screen as well.
    fn show(&mut self, mut picture: Picture, whole: bool) -> io::Result<()> {
        let rows = self.rows.unwrap_or(ROWS);
        match self.way {
            Way::Screen if !whole => {
                let screen = match self.screen.take() {
                    Some(screen) => screen,
                    None => Screen::enter()?,
                };
                let screen = self.screen.insert(screen);
                let (width, height) = screen.size();
                let style = Style { width: Some(width), ..style() };
                screen.draw(&text(&picture, self.rows.unwrap_or(usize::MAX), Some(height), &style))
            }
            Way::Screen | Way::Lines => {
                if self.way == Way::Lines {
                    // They stand on standard error already.
                    picture.messages.retain(|m| !self.messages.contains(m));
                }
                let end = if whole { "" } else { "\n" };
                write_out(&format!("{}{end}", text(&picture, rows, None, &style())))
            }
            Way::Json => {
                let spans = [&mut picture.now, &mut picture.run];
                spans.into_iter().flat_map(|s| &mut s.phases).for_each(|p| keep(&mut p.ops, rows));
                let mut lines = Vec::new();
                json::write(&mut lines, &picture)?;
                // Line ends within strings are escaped: those that are left are the layout's. A second serializer, for one
                // line, would be some kilobytes more.
                let line: String = String::from_utf8_lossy(&lines).lines().map(str::trim_start).collect();
                write_out(&(line + "\n"))
            }
        }
    }

    /// The end: the last picture, with all that was recorded.
    fn last(&mut self, s: &Summary) -> Result<()> {
        if let Some(e) = self.failed.take() {
            return Err(e.into());
        }
        let counted = self.count.is_some_and(|n| self.drawn >= n);
        if counted && self.way != Way::Screen {
            return Ok(());
        }
        self.read();
        self.live.finish();
        let Some(before) = self.before else { return Ok(()) };
        let now = Progress { totals: s.totals, lost: s.lost, bytes: s.bytes, call: None, ..before };
        let end = if self.done { "as asked for" } else { s.end.as_str() };
        let picture = self.picture(&now, Some(end));
        Ok(self.show(picture, true)?)
    }

    fn keys(&mut self) {
        match self.screen.as_mut().and_then(Screen::key) {
            Some(b'q' | b'Q') => self.done = true,
            Some(b'n' | b'N') => {
                self.live.show_next();
                self.due = Instant::now();
            }
            Some(b'p' | b'P') => {
                self.held = if self.held == Hold::No { Hold::Next } else { Hold::No };
                self.due = Instant::now();
            }
            _ => {}
        }
    }
}

impl Watch for Top {
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
        // What comes before the first picture may be all that there is.
        if self.screen.is_none() {
            eprintln!("profinfer: {}", clean(text));
        }
        if self.messages.len() == MESSAGES {
            self.messages.remove(0);
        }
        self.messages.push(text.to_owned());
    }

    fn progress(&mut self, now: &Progress) {
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
        // A picture that came late does not make the next one come sooner.
        self.due = (self.due + self.interval).max(Instant::now());
        if self.done || self.held == Hold::Yes {
            return;
        }
        let mut picture = self.picture(now, None);
        if self.held == Hold::Next {
            self.held = Hold::Yes;
            picture.messages.push("held here; p goes on".into());
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

/// Who is recorded, in words.
fn named(target: &Target) -> String {
    match target {
        Target::Pids(pids) => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            format!("process {}", pids.join(", "))
        }
        Target::Command(words) => target::shown(words.iter().map(|w| w.as_bytes())),
        Target::Exe(launch) => format!("all that run {}", launch.program.display()),
        Target::Fed => "engines as they come".into(),
    }
}
