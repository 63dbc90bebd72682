//! `profinfer doctor`: can this machine, and this target, be recorded? Uses `agent` and `views`.

use std::io::{BufWriter, IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

use crate::agent::btf::Btf;
use crate::agent::checkup;
use crate::agent::examine::Subject;
use crate::views::doctor;
use crate::views::table::Style;

const EXAMPLES: &str = "\
Examples:
  profinfer doctor                               this machine alone
  profinfer doctor $(command -v llama-server)    and a program with the libraries beside it
  profinfer doctor libggml-cpu.so                and a library
  sudo profinfer doctor -p $(pidof llama-server) and a running process
  profinfer doctor --json | jq .reason           for a program

Words:
  ok        there
  missing   needed and not there: nothing can be recorded at op level until it is mended
  optional  not there, and not needed; says what is lost without it
  skipped   not tried; says why

Exit status: 0 fit to record ops; 1 not fit, the reason is the last line; 2 wrong usage.";

/// Say whether this machine and this target can be recorded, and what is missing.
///
/// Tries what a recording needs: capabilities, bpf(), maps, programs, probes on a function of its own. Loads the very
/// programs that record uses and measures what one hit costs now. For a target it shows the engines found, their name
/// tables and layout, the probe points expected for tokens, graphs and ops, where in the function each probe would sit
/// and why there, and what cannot be recorded. The target itself is only read, never probed. Runs without root, and
/// says what root would change.
#[derive(Debug, clap::Args)]
#[command(after_help = EXAMPLES)]
pub struct Args {
    /// Program or library that contains llama.cpp or GGML; the libraries it needs and those beside it are looked at too
    pub binary: Option<PathBuf>,
    /// Running process to look at
    #[arg(short, long, conflicts_with = "binary")]
    pub pid: Option<u32>,
    /// Write JSON: times in nanoseconds
    #[arg(long)]
    pub json: bool,
    /// The running kernel's BTF, where it has none of its own
    #[arg(long, value_name = "FILE")]
    pub btf: Option<PathBuf>,
    /// Place no probe, not even on ourselves: probes are then not tried and the cost of a hit is not measured
    #[arg(long)]
    pub no_probe: bool,
}

/// Runs the subcommand.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let subject = match (args.pid, &args.binary) {
        (Some(pid), _) => Some(Subject::Pid(pid)),
        (None, Some(path)) => Some(Subject::Path(path.clone())),
        (None, None) => None,
    };
    let btf = args.btf.as_deref().map(Btf::read).transpose()?;
    let found = checkup::checkup(subject.as_ref(), !args.no_probe, btf.as_ref());
    let stdout = std::io::stdout();
    let terminal = stdout.is_terminal();
    let mut out = BufWriter::new(stdout.lock());
    if args.json {
        serde_json::to_writer_pretty(&mut out, &found)?;
        writeln!(out)?;
    } else {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let width = terminal.then(|| terminal_size::terminal_size().map_or(100, |(w, _)| usize::from(w.0)));
        doctor::write(&mut out, &found, &Style { width, color: terminal && !no_color })?;
    }
    out.flush()?;
    Ok(if found.fit { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
