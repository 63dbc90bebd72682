//! `profinfer record --on MACHINE`: copies the static program to another machine if it is missing there or another
//! version, records there, fetches the trace and prints the verdict. By the ordinary clients: ssh, adb, hdc.
//!
//! What ends when: a session holds a directory there ([`session`]), which a guard removes when the session ends or
//! falls silent ([`script`]); the recorder ends when a file in that directory is gone (`record --while-exists`).

use std::fs::File;
use std::io::{self, IsTerminal, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{ExitCode, Stdio};
use std::rc::Rc;

use anyhow::{Context, Result, bail};

use self::client::{Client, DEVICE_DIR};
use self::place::Place;
use self::program::Program;
use self::script::{Recording, SILENCE, Scripts};
use self::session::{Facts, Session};
use cli::args::{Args, Flag, FlagGroup, Usage};
use cli::output::{self, OutputFile, OutputName, OutputRules, Overwrite, mode};
use render::table::clean;

mod client;
mod copy;
mod interrupt;
mod place;
mod program;
mod quote;
mod script;
mod session;
mod temporary;

pub const FLAGS: FlagGroup = FlagGroup {
    title: "Another machine",
    flags: &[
        Flag::value(
            "on",
            "MACHINE",
            "Record on this machine: ssh:[USER@]HOST[:PORT], adb:[SERIAL] or hdc:[TARGET]. COMMAND, process \
             IDs and paths are that machine's, except FILE of -o; COMMAND gets no standard input",
        )
        .cli_only(),
        Flag::value(
            "remote-program",
            "FILE",
            "Static profinfer to copy there [default: the one that `make dist` made for its processor]",
        )
        .needs(&["on"])
        .cli_only(),
        Flag::value(
            "remote-dir",
            "DIR",
            "Keep the program, and the trace while it is recorded, in DIR/profinfer there [default: the \
             user's cache directory; with adb and hdc /data/local/tmp]",
        )
        .needs(&["on"])
        .cli_only(),
    ],
};

/// Options that apply here, and are not passed on.
const LOCAL: &[&str] =
    &["on", "remote-program", "remote-dir", "output", "force", "mode", "conf", "while-exists"];

/// What was asked for.
struct Asked {
    place: Place,
    program: Option<PathBuf>,
    dir: Option<PathBuf>,
    output: PathBuf,
    rules: OutputRules,
    quiet: bool,
    /// Options, `--` and the command, for the recorder there.
    line: Vec<u8>,
}

impl Asked {
    fn read(args: &Args) -> Result<Asked, Usage> {
        let place = args.needed("on", Place::read)?;
        let dir = args.path("remote-dir")?;
        if let Some(dir) = &dir {
            let text = dir.to_string_lossy();
            let odd = text.chars().any(|c| c.is_control() || " '\"\\$`".contains(c));
            if !dir.is_absolute() || odd && !matches!(place, Place::Ssh { .. }) {
                return Err(Usage::new(format!(
                    "--remote-dir '{text}': give a path from the root, without spaces and quotes if it is a device's"
                )));
            }
        }
        let targets = [args.flag("pid"), args.flag("exe"), !args.behind().is_empty()];
        if targets.into_iter().filter(|given| *given).count() != 1 {
            return Err(Usage::new("give one of -p PID, --exe PATH and -- COMMAND, as on that machine"));
        }
        let over = if args.flag("force") { Overwrite::Part } else { Overwrite::Never };
        Ok(Asked {
            place,
            program: args.path("remote-program")?,
            dir,
            output: output::unused(args)?,
            rules: OutputRules::new(over, args.needed("mode", mode)?),
            quiet: args.flag("quiet"),
            line: line(args),
        })
    }
}

/// The options to pass on, `--` and the command, quoted.
fn line(args: &Args) -> Vec<u8> {
    let mut words: Vec<Vec<u8>> = Vec::new();
    let given = args.all().iter().filter(|g| !LOCAL.contains(&g.flag.name));
    for (flag, value) in given.filter_map(|g| Some((g.flag, g.value.as_ref()?))) {
        let mut word = format!("--{}", flag.name).into_bytes();
        if !flag.is_switch() {
            word.push(b'=');
            word.extend_from_slice(value.as_bytes());
        }
        words.push(word);
    }
    if !args.behind().is_empty() {
        words.push(b"--".to_vec());
        words.extend(args.behind().iter().map(|word| word.as_bytes().to_vec()));
    }
    quote::join(words)
}

/// Records on the machine of `--on`. The other options must have been checked.
///
/// # Errors
/// Wrong usage; what keeps the machine from recording; a lost connection. The message says what is left where.
pub fn run(args: &Args) -> Result<ExitCode> {
    let asked = Asked::read(args)?;
    interrupt::install()?;
    let id = random()?;
    let mut client = Client::new(asked.place.clone(), &id)?;
    client.select()?;
    let device = (!matches!(client.place(), Place::Ssh { .. })).then(|| Path::new(DEVICE_DIR));
    let dir = asked.dir.as_deref().or(device);
    let scripts = Scripts::new(dir.map(|dir| dir.as_os_str().as_bytes()), &id, SILENCE);
    let scripts = match (&asked.dir, device) {
        (Some(_), None) => scripts.checked(0),
        (Some(_), Some(_)) => scripts.checked(client::SHELL),
        (None, _) => scripts,
    };
    let run = format!("{}/profinfer/run.{id}", dir.unwrap_or(Path::new("")).display());
    let mut output = Fetched::create(&asked)?;
    let job = Job { asked: &asked, client: &client, scripts: &scripts, run };
    let code = job.run(&mut output);
    if interrupt::is_abort() {
        let why = code.err().map(|e| format!(": {e:#}")).unwrap_or_default();
        tell(&format!("interrupted{why}"));
        return Ok(ExitCode::from(130));
    }
    let code = code?;
    output.finish(&asked)?;
    Ok(code)
}

/// Sixteen digits that nobody can guess.
fn random() -> Result<String> {
    let mut bytes = [0u8; 8];
    File::open("/dev/urandom")
        .and_then(|mut f| f.read_exact(&mut bytes))
        .context("cannot read /dev/urandom")?;
    Ok(bytes.iter().map(|b| format!("{b:02x}")).collect())
}

/// The trace's file here.
struct Fetched {
    out: Box<dyn Write>,
    name: Option<Rc<OutputName>>,
    /// Size of the trace; None: none was fetched.
    bytes: Option<u64>,
}

impl Fetched {
    /// Before anything is recorded: a recording must have a place.
    fn create(asked: &Asked) -> Result<Fetched> {
        if asked.output.as_os_str() == "-" {
            if io::stdout().is_terminal() {
                bail!("standard output is a terminal: redirect it, or give a file with -o");
            }
            return Ok(Fetched { out: Box::new(io::stdout()), name: None, bytes: None });
        }
        let out = OutputFile::create(&asked.output, asked.rules)?;
        let name = out.name();
        Ok(Fetched { out: Box::new(out), name, bytes: None })
    }

    /// Opens the trace, as a check of it, and prints the verdict.
    fn finish(&mut self, asked: &Asked) -> Result<()> {
        let (Some(name), Some(bytes)) = (&self.name, self.bytes) else { return Ok(()) };
        name.settle()?;
        let file = clean(&asked.output.display().to_string());
        pfi::Trace::open(&asked.output)
            .with_context(|| format!("the fetched trace {file} cannot be read"))?;
        if !asked.quiet {
            tell(&format!("{bytes} bytes in {file}"));
            super::written::verdict_or_next(&asked.output, Some(bytes));
        }
        Ok(())
    }
}

impl Drop for Fetched {
    fn drop(&mut self) {
        // A file without content is useless.
        if let Some(name) = self.name.as_ref().filter(|name| name.bytes() == Some(0)) {
            name.remove();
        }
    }
}

fn tell(text: &str) {
    // A closed standard error must not end the session there.
    let _ = writeln!(io::stderr(), "profinfer: {}", clean(text));
}

/// A recording on another machine.
struct Job<'a> {
    asked: &'a Asked,
    client: &'a Client,
    scripts: &'a Scripts,
    /// The session's directory, for clients that need its path.
    run: String,
}

impl Job<'_> {
    fn run(&self, output: &mut Fetched) -> Result<ExitCode> {
        let (mut session, facts) = Session::open(self.client, self.scripts)?;
        let done = self.record(&mut session, &facts, output);
        let ended = session.end();
        if let (Ok(_), Err(e)) = (&done, &ended) {
            tell(&format!("warning: {e:#}"));
        }
        done
    }

    fn tell(&self, text: &str) {
        if !self.asked.quiet {
            tell(text);
        }
    }

    fn record(&self, session: &mut Session<'_>, facts: &Facts, output: &mut Fetched) -> Result<ExitCode> {
        let place = self.client.place();
        if facts.system != "Linux" {
            bail!("{place} runs {}: profinfer records on Linux only", facts.system);
        }
        let program = Program::find(&facts.machine, self.asked.program.as_deref())
            .with_context(|| format!("cannot record on {place}"))?;
        self.provide(session, facts, &program)?;
        if interrupt::is_stop() {
            bail!("interrupted before the recording began");
        }
        let sudo = !facts.root && facts.sudo;
        let cd = (!matches!(place, Place::Ssh { .. })).then_some(DEVICE_DIR);
        let line = Recording { program: &program.name, sudo, cd, line: &self.asked.line };
        let mut command = self.client.session(&self.scripts.record(&line));
        let apart = !self.client.is_piped();
        let to_stderr = self.asked.output.as_os_str() == "-";
        command.stdin(Stdio::null()).stdout(match (apart, to_stderr) {
            (true, _) => Stdio::piped(),
            (false, true) => io::stderr().into(),
            (false, false) => Stdio::inherit(),
        });
        let mut child = command.spawn().with_context(|| self.client.missing())?;
        let shown = if apart { Some(copy::relay(&mut child)?) } else { None };
        let status = session.attend(&mut child, &|text| self.tell(text))?;
        let code = match shown {
            Some(shown) => shown.join().ok().flatten(),
            None => status.code(),
        };
        self.fetch(session, facts, (code, sudo), output)
    }

    /// Copies the program if it is not there, and runs it once; one that cannot be used does not stay.
    fn provide(&self, session: &mut Session<'_>, facts: &Facts, program: &Program) -> Result<()> {
        let checked = self.copied(session, facts, program).and_then(|()| self.checked(session, program));
        if checked.is_err() {
            // The error says more than a failure to remove it.
            let _ = session.run(&self.scripts.forget(&program.name));
        }
        checked
    }

    fn copied(&self, session: &mut Session<'_>, facts: &Facts, program: &Program) -> Result<()> {
        let place = self.client.place();
        let bytes = program.bytes.len() as u64;
        let is_there = facts.have.iter().any(|(name, size, digest)| {
            *name == program.name && *size == bytes && digest.as_ref().is_none_or(|d| *d == program.digest)
        });
        if !is_there {
            let megabytes = bytes as f64 / 1e6;
            self.tell(&format!("copying {} ({megabytes:.1} MB) to {place}", program.path.display()));
            copy::push(session, self.client, self.scripts, program, &self.run)?;
        }
        Ok(())
    }

    fn checked(&self, session: &mut Session<'_>, program: &Program) -> Result<()> {
        let place = self.client.place();
        let done = session.run(&self.scripts.check(&program.name))?;
        let version = done.text.lines().next().unwrap_or_default();
        match done.code {
            Some(0) if version == crate::identity::TOOL => Ok(()),
            Some(0 | 9) if !version.starts_with("profinfer ") => {
                bail!("{} is not profinfer: its version is '{version}'", program.path.display())
            }
            Some(0) => {
                self.tell(&format!(
                    "{} is {version}; this is {}",
                    program.path.display(),
                    crate::identity::TOOL
                ));
                Ok(())
            }
            Some(9) => bail!(
                "{} is too old ({version}) to record for this program, {}: run `make dist`, or give a newer one with \
                 --remote-program",
                program.path.display(),
                crate::identity::TOOL
            ),
            _ => bail!(
                "{} does not run on {place} ({}): a static program is needed (`make dist`), and a directory that \
                 allows running programs (--remote-dir)",
                program.path.display(),
                done.why()
            ),
        }
    }

    /// Fetches what was recorded, whether or not the recorder succeeded.
    fn fetch(
        &self,
        session: &mut Session<'_>,
        facts: &Facts,
        (code, sudo): (Option<i32>, bool),
        output: &mut Fetched,
    ) -> Result<ExitCode> {
        let place = self.client.place();
        let done = session.run(&self.scripts.recorded(sudo))?;
        let number = |name: &str| {
            let line = done.text.lines().find_map(|line| line.strip_prefix(name));
            line.and_then(|n| n.trim().parse::<u64>().ok())
        };
        if done.code != Some(0) {
            bail!("cannot ask {place} for the trace: {}", done.why());
        }
        // ssh's own errors have an exit status that a command can have, too.
        let code = number("code ").and_then(|n| i32::try_from(n).ok()).or(code);
        let Some(total) = number("size ").filter(|n| *n > 0) else {
            let hint = match facts.root || facts.sudo {
                true => "",
                false => {
                    "; recording needs root there: log in as root, or allow sudo without a password (with adb: \
                     `adb root`)"
                }
            };
            match code {
                Some(code @ 1..) => {
                    tell(&format!("nothing was recorded on {place}, see above{hint}"));
                    return Ok(exit(code));
                }
                _ => bail!("nothing was recorded on {place}: the recorder there ended without a trace{hint}"),
            }
        };
        if total > 8 << 20 {
            self.tell(&format!("fetching the trace ({:.1} MB)", total as f64 / 1e6));
        }
        let from = (self.run.as_str(), sudo);
        let copied = copy::pull(session, self.client, self.scripts, from, total, &mut output.out);
        let kept = output.name.as_ref().and_then(|name| name.bytes()).unwrap_or_default();
        let file = self.asked.output.display();
        let bytes = copied.with_context(|| match kept {
            0 => "cannot fetch the trace".to_owned(),
            n if n >= total => format!("the trace in {file} may be damaged"),
            n => format!("only a part of the trace, {n} of {total} bytes, could be fetched into {file}"),
        })?;
        if bytes != total {
            bail!("{bytes} of {total} bytes of the trace arrived in {file}: it is readable up to there");
        }
        output.bytes = Some(bytes);
        Ok(exit(code.unwrap_or(1)))
    }
}

/// The exit status of the recorder there.
fn exit(code: i32) -> ExitCode {
    ExitCode::from(code.clamp(0, 255) as u8)
}
