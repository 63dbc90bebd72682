//! `profinfer record`: attach, record, write a trace.

use std::io::{self, IsTerminal, Write};
use std::path::Path;
use std::process::{Child, ExitCode};
use std::rc::Rc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use self::caller::Caller;
use self::events::{Event, Events};
use self::flags::RecordArgs;
use super::{conf, written};
use agent::capture::error::RecordError;
use agent::recorder::recording::{
    Arrivals, ProbedEngine, RecordOptions, RecordingProgress, SessionObserver, Summary, Target,
};
use agent::recorder::requests::Requests;
use agent::recorder::session;
use cli::args::Args;
#[cfg(not(feature = "board"))]
use cli::args::Usage;
use cli::output::{OutputFile, OutputName, OutputRules};
use machine::{target, usage, wake};
use render::table::clean;
use service::arrivals::OfFile;

pub mod budget;
pub mod caller;
mod command;
pub mod events;
pub mod flags;
pub mod gpu;
pub mod inner;
pub mod lifeline;
pub mod outer;
pub mod pmc;
pub mod sensors;

pub use flags::COMMAND;

fn run(args: &Args) -> Result<ExitCode> {
    let args = &conf::settled(args)?;
    #[cfg(not(feature = "board"))]
    if args.flag("on") {
        return elsewhere(args);
    }
    if pmc::lists(args)? {
        return pmc::list(args);
    }
    let events = Events::open(args)?;
    let asked = RecordArgs::read(args)?;
    if is_stdout(&asked.output) && io::stdout().is_terminal() {
        bail!("standard output is a terminal: redirect it, or give a file with -o");
    }
    #[cfg(not(feature = "board"))]
    if args.flag(flags::OPEN.name) {
        super::html::can_open(&asked.output)?;
    }
    let told = events.clone();
    let signals = StopSignals::install(move || told.stopping("signal"))?;
    lifeline::watch(args)?;
    let (quiet, output) = (asked.quiet, asked.output.clone());
    let s = recorded(asked, signals, &events)?;
    if lifeline::is_remote(args) {
        // The other machine prints the verdict, and the trace's name there.
        if !quiet {
            say(&summary_line(None, &s));
        }
        return Ok(exit_code(&s));
    }
    let code = finish(&output, quiet, &s)?;
    #[cfg(not(feature = "board"))]
    if args.flag(flags::OPEN.name) {
        super::html::open_page(&output)?;
    }
    Ok(code)
}

/// Records as asked, to the end; the file has its name, and `events` have the end.
///
/// # Errors
/// The file cannot be written, the recording failed, or no engine was seen at work.
pub fn recorded(asked: RecordArgs, signals: StopSignals, events: &Events) -> Result<Summary> {
    let mut watch = Status::new(asked.quiet, ready_line(&asked.target), signals, events.clone());
    let to_stdout = is_stdout(&asked.output);
    let RecordArgs { target, output, over, mode, quiet: _, leave, owner, options } = asked;
    let (recorded, file) = match to_stdout {
        true => (write_to(target, options, (Box::new(io::stdout()), None), leave, &mut watch), None),
        false => {
            let out = OutputFile::create(&output, OutputRules::new(over, mode))?;
            give(&out, owner, &output, &mut watch);
            let name = out.name();
            let recorded = write_to(target, options, (Box::new(out), name.clone()), leave, &mut watch);
            (recorded, name.filter(|name| name.bytes().is_some()).map(|name| name.now()))
        }
    };
    watch.clear();
    events.stopped(&recorded, file.as_deref());
    recorded
}

/// Whether an output is standard output.
pub fn is_stdout(output: &Path) -> bool {
    output.as_os_str() == "-"
}

/// Records on another machine; mistakes are found before anything is done there.
#[cfg(not(feature = "board"))]
fn elsewhere(args: &Args) -> Result<ExitCode> {
    if args.flag(events::FLAG.name) {
        return Err(Usage::new("--events is for a recording on this machine, not with --on").into());
    }
    if pmc::lists(args)? {
        return Err(Usage::new("--pmc list shows this machine's counters: run it on the other one").into());
    }
    flags::settings(args)?;
    super::remote::run(args)
}

/// Prints a line on standard error. A closed one must not end a recording.
fn say(text: &str) {
    let _ = writeln!(io::stderr(), "{text}");
}

/// Gives a new file to the user who called sudo, and reports where it stays root's.
pub fn give(out: &OutputFile, owner: Option<Caller>, path: &Path, watch: &mut dyn SessionObserver) {
    let Some(Caller { uid, gid }) = owner else { return };
    let why = match out.give(uid, gid) {
        Ok(true) => return,
        Ok(false) => format!("user {uid} (SUDO_UID) cannot create files in its directory"),
        Err(e) => e.to_string(),
    };
    watch.tell(&format!("{} is owned by root: {why}", path.display()));
}

/// Records into `out`, whose file has this name if there is one; a recording without result is removed. A command
/// that outlives its recording is ended, unless it is to be left running; if the recording has failed, it is waited
/// for.
///
/// # Errors
/// The recording failed, or no engine was seen at work.
pub fn write_to(
    target: Target,
    options: RecordOptions,
    (out, name): (Box<dyn pfi::Output>, Option<Rc<OutputName>>),
    leave: bool,
    watch: &mut dyn SessionObserver,
) -> Result<Summary> {
    if let (Target::Command(_), Some(user)) = (&target, &options.user) {
        watch.tell(&format!(
            "the command runs as user {} ({}), who called sudo; --as-root runs it as root",
            user.name.display(),
            user.uid
        ));
    }
    let mut named = Named { watch, name, refused: None, command: None };
    let recorded = session::record(target, options, out, &mut named);
    let Named { name, command, watch, .. } = named;
    let (mut kept, mut settled) = (String::new(), Ok(()));
    if let Some(name) = name {
        // A file without blocks is useless.
        let empty = |bytes| recorded.as_ref().map_or(bytes <= pfi::FILE_HEADER as u64, |s| !s.worked);
        match name.bytes() {
            None => {}
            Some(bytes) if empty(bytes) => name.remove(),
            Some(_) => {
                settled = name.settle();
                kept = format!(
                    "; the data recorded until then is in {}",
                    clean(&name.now().display().to_string())
                );
            }
        }
    }
    // As text: a closed pipe is no error for a view, but a recording has lost its only copy.
    let s = match recorded {
        Ok(s) => s,
        // Its exit code is its own, and nothing was begun.
        Err(RecordError::Silent(why)) => return Err(why.into()),
        Err(e) => {
            bail!("{}{kept}{}", failure(&e), command.map(|c| outlived(c, &e, watch)).unwrap_or_default())
        }
    };
    let s = Summary { status: command.map_or(s.status, |c| outlasted(c, leave, watch)), ..s };
    settled?;
    if !s.worked {
        let none = if s.engines == 0 { "no engine was found" } else { IDLE };
        let status = s.status.filter(|code| *code != 0);
        let ended = status.map(|code| format!("; the command exited with status {code}")).unwrap_or_default();
        bail!("nothing recorded ({}): {}{ended}", s.end, s.missing.as_deref().unwrap_or(none));
    }
    Ok(s)
}

/// Message for an engine that was probed and did not work.
const IDLE: &str =
    "the engine was probed but computed nothing: check that its model loads and that it gets a request";

/// Ends a command that outlives its recording, or leaves it running; returns its exit code if it failed by itself.
fn outlasted(child: Child, leave: bool, watch: &mut dyn SessionObserver) -> Option<i32> {
    let pid = child.id();
    if leave {
        watch.tell(&format!("the command keeps running (--leave-running): process {pid}"));
        return None;
    }
    watch.tell(&format!(
        "recording stopped: terminating the command, process {pid} (--leave-running keeps it running)"
    ));
    let status = command::end(child).map(target::shell_code);
    // These mean that it was ended here.
    status.filter(|code| ![128 + libc::SIGTERM, 128 + libc::SIGKILL].contains(code))
}

/// An error, with its cause where the system's message does not show it.
fn failure(e: &RecordError) -> String {
    let large = matches!(e, RecordError::Write(pfi::WriteError::Io { source, .. })
        if source.raw_os_error() == Some(libc::EFBIG));
    format!("{e}{}", if large { "; the file size limit was reached (ulimit -f)" } else { "" })
}

/// Waits for a command whose recording has failed; returns how it ended.
fn outlived(child: Child, e: &RecordError, watch: &dyn SessionObserver) -> String {
    // Before anything is said: who has read it may send a signal.
    command::pass_signals();
    if watch.stop() {
        return "; the command keeps running".to_owned();
    }
    super::screen::restore();
    say(&format!("profinfer: {}; the command keeps running, waiting for it to exit", clean(&failure(e))));
    match command::wait(child) {
        Some(status) => format!("; the command exited with status {}", target::shell_code(status)),
        None => "; the exit status of the command is unknown".to_owned(),
    }
}

/// Forwards the recording's reports, and gives its file its name once there is something in it.
struct Named<'a> {
    watch: &'a mut dyn SessionObserver,
    name: Option<Rc<OutputName>>,
    /// Why the file could not get its name; this is tried again at the end.
    refused: Option<String>,
    /// The command that continues.
    command: Option<Child>,
}

impl SessionObserver for Named<'_> {
    fn arrivals(&mut self, program: &Path) -> Result<Box<dyn Arrivals>, RecordError> {
        self.watch.arrivals(program)
    }

    fn stop(&self) -> bool {
        self.watch.stop()
    }

    fn tell(&mut self, text: &str) {
        self.watch.tell(text);
    }

    fn lists_requests(&self) -> bool {
        self.watch.lists_requests()
    }

    fn requests_now(&mut self, requests: &Requests) {
        self.watch.requests_now(requests);
    }

    fn engine(&mut self, pid: u32, engine: &ProbedEngine<'_>) {
        self.watch.engine(pid, engine);
    }

    fn level(&mut self, to: &str, why: &str) {
        self.watch.level(to, why);
    }

    fn stopping(&mut self, why: Result<&str, &RecordError>) {
        self.watch.stopping(why);
    }

    fn progress(&mut self, now: &RecordingProgress) {
        let worth = now.totals.events > 0 && now.bytes > pfi::FILE_HEADER as u64;
        if let Some(name) =
            self.name.as_ref().filter(|name| worth && name.is_part() && self.refused.is_none())
            && let Err(e) = name.settle()
        {
            let why = format!("{e:#}");
            self.watch.tell(&why);
            self.refused = Some(why);
        }
        self.watch.progress(now);
    }

    fn left(&mut self, command: Child) {
        self.command = Some(command);
    }
}

fn finish(output: &Path, quiet: bool, s: &Summary) -> Result<ExitCode> {
    if !quiet {
        say(&summary_line(Some(output), s));
        if !is_stdout(output) {
            let bytes = if s.totals.calls == 0 { None } else { Some(s.bytes) };
            written::verdict_or_next(output, bytes);
        }
    }
    Ok(exit_code(s))
}

/// The exit code of the recorded command, if there is one.
pub fn exit_code(s: &Summary) -> ExitCode {
    match s.status {
        Some(code) if code != 0 => {
            say(&format!("profinfer: the command exited with status {code}"));
            ExitCode::from(code.clamp(1, 255) as u8)
        }
        _ => ExitCode::SUCCESS,
    }
}

/// Without a name: the trace is fetched by another machine.
fn summary_line(output: Option<&Path>, s: &Summary) -> String {
    let lost = match s.lost {
        0 => "none lost".to_owned(),
        n => format!("{n} LOST ({:.2} %): increase --buffer-size", n as f64 * 100.0 / s.seen.max(1) as f64),
    };
    let file = match output {
        None => String::new(),
        Some(path) if path.as_os_str() == "-" => " in standard output".to_owned(),
        Some(path) => format!(" in {}", clean(&path.display().to_string())),
    };
    format!(
        "profinfer: {} calls, {} op hits, {} events, {lost}; {} bytes{file} (stopped: {})",
        s.totals.calls, s.ops, s.seen, s.bytes, s.end
    )
}

static STOPS: AtomicU32 = AtomicU32::new(0);
/// When the first signal came, CLOCK_MONOTONIC, ns; 0: none came.
static FIRST_NS: AtomicU64 = AtomicU64::new(0);
/// Signals within this time count as one: when a parent process dies, the kernel sends one for each of its threads
/// (PR_SET_PDEATHSIG), and a closing terminal adds SIGHUP to another signal.
const SAME_NS: u64 = 100_000_000;

/// Ctrl-C, SIGTERM and SIGHUP: the first ends the recording, the second ends the program.
pub struct StopSignals;

impl StopSignals {
    /// Installs the handlers for the rest of the process. `told` is called at the first signal, whatever the
    /// recording is doing.
    ///
    /// # Errors
    /// The system refuses.
    pub fn install(told: impl Fn() + Send + 'static) -> Result<StopSignals> {
        ctrlc::set_handler(move || {
            let now = usage::now();
            let first = FIRST_NS.compare_exchange(0, now, Ordering::SeqCst, Ordering::SeqCst);
            let is_again = first.is_err_and(|first| now.saturating_sub(first) > SAME_NS);
            if STOPS.fetch_add(1, Ordering::SeqCst) == 0 {
                told();
            } else if is_again {
                super::screen::restore();
                left_running();
                // The kernel removes the probes with the process; blocks already written are complete.
                std::process::exit(130);
            }
        })
        .context("cannot install handlers for Ctrl-C and SIGTERM")?;
        // They go to the thread just started, and only interrupt waits here.
        wake::block();
        Ok(StopSignals)
    }

    /// Whether a signal has arrived.
    pub fn came(&self) -> bool {
        STOPS.load(Ordering::SeqCst) > 0
    }
}

/// Says what a recorder that ends at once leaves behind: its command runs on.
fn left_running() {
    say("profinfer: ended at once; the blocks that were written are in the trace");
    for (pid, name) in target::children(std::process::id()) {
        say(&format!("profinfer: process {pid} ({}) still runs; to end it: kill {pid}", clean(&name)));
    }
}

/// Message once the probes are attached.
fn ready_line(target: &Target) -> String {
    let what = match target {
        Target::Pids(pids) => {
            let pids: Vec<String> = pids.iter().map(u32::to_string).collect();
            format!("process {}", pids.join(", "))
        }
        Target::Command(argv) => argv.first().map(|a| a.display().to_string()).unwrap_or_default(),
        Target::Exe(launch) => format!("every process that runs or maps {}", launch.program.display()),
        Target::Managed(_) => "engines as they start".to_owned(),
    };
    format!("ready: recording {what}; press Ctrl-C to stop")
}

/// The status line and the messages.
struct Status {
    quiet: bool,
    terminal: bool,
    shown: bool,
    /// Printed once when the probes are attached, also without a terminal: scripts wait for it.
    ready: Option<String>,
    last: Instant,
    /// Decoded tokens when the line was last shown.
    decoded: u64,
    signals: StopSignals,
    events: Events,
    /// The last level of which there was an event.
    level: Option<String>,
}

impl Status {
    fn new(quiet: bool, ready: String, signals: StopSignals, events: Events) -> Status {
        let terminal = io::stderr().is_terminal();
        Status {
            quiet,
            terminal,
            shown: false,
            ready: Some(ready),
            last: Instant::now(),
            decoded: 0,
            signals,
            events,
            level: None,
        }
    }

    fn clear(&mut self) {
        if std::mem::take(&mut self.shown) {
            eprint!("\r\x1b[K");
        }
    }
}

impl SessionObserver for Status {
    fn arrivals(&mut self, program: &Path) -> Result<Box<dyn Arrivals>, RecordError> {
        Ok(Box::new(OfFile::new(program)?))
    }

    fn stop(&self) -> bool {
        self.signals.came()
    }

    fn tell(&mut self, text: &str) {
        self.clear();
        if !self.quiet {
            say(&format!("profinfer: {}", clean(text)));
        }
    }

    fn engine(&mut self, pid: u32, engine: &ProbedEngine<'_>) {
        let file = engine.file.map(|path| path.display().to_string()).unwrap_or_default();
        self.events.send(&Event::Attached { pid, file: &file, probes: engine.probes });
    }

    fn level(&mut self, to: &str, why: &str) {
        self.events.send(&Event::Level { from: self.level.as_deref(), to, why });
        self.level = Some(to.to_owned());
    }

    fn stopping(&mut self, why: Result<&str, &RecordError>) {
        match why {
            Ok(why) => self.events.stopping(why),
            Err(e) => self.events.stopping(&e.to_string()),
        }
    }

    fn progress(&mut self, now: &RecordingProgress) {
        if now.engines > 0
            && let Some(ready) = self.ready.take()
        {
            self.tell(&ready);
            self.events.send(&Event::Ready);
        }
        if self.quiet || !self.terminal || self.last.elapsed() < Duration::from_millis(250) {
            return;
        }
        // The recent rate: the engine may have spent a long time loading its model before.
        let RecordingProgress { totals: t, lost, bytes, .. } = now;
        let rate = (t.decoded - self.decoded) as f64 / self.last.elapsed().as_secs_f64();
        (self.last, self.decoded) = (Instant::now(), t.decoded);
        self.shown = true;
        eprint!(
            "\r\x1b[K{} tokens  {rate:.1} tok/s  {} events  {lost} lost  {} kB",
            t.decoded,
            t.events,
            bytes / 1000
        );
        let _ = io::stderr().flush();
    }
}
