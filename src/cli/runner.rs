//! Command line of `ggml-runner`. Uses `runner` and `ggml`.

use crate::ggml::quant::TensorType;
use crate::runner::synth::presets::{self, PRESETS, Preset};
use crate::runner::synth::{self, Order};
use anyhow::{Context, Result, bail};
use clap::{Parser, Subcommand, ValueEnum};
use indicatif::{ProgressBar, ProgressStyle};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Threads that make weights; more gain little against the writing.
const MAX_THREADS: usize = 2;
const WRITE_BUFFER: usize = 1 << 20;

/// Reference side of profinfer: models to profile, and kernels to compare with.
#[derive(Debug, Parser)]
#[command(name = "ggml-runner", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Make a GGUF model with random weights in the shape of a real one.
    ///
    /// The same preset, type and seed always give the same bytes. The text that such a model generates is noise; its
    /// operators, shapes and memory traffic are those of the real model.
    #[command(after_help = "Examples:
  ggml-runner synth --list
  ggml-runner synth tiny tiny.gguf
  ggml-runner synth llama1b-L4 model.gguf --type q4_0
  ggml-runner synth moe - --type q8_0 --seed 7 | ssh board 'cat > moe.gguf'")]
    Synth(SynthArgs),
}

#[derive(Debug, clap::Args)]
struct SynthArgs {
    /// Shape of the model; --list shows them
    #[arg(required_unless_present = "list")]
    preset: Option<String>,
    /// File to write, '-' for standard output
    #[arg(required_unless_present = "list")]
    out: Option<PathBuf>,
    /// Type of the weight matrices (norms, biases and the expert router stay f32)
    #[arg(long = "type", value_enum, default_value = "f16", value_name = "TYPE")]
    ty: TypeArg,
    /// Where the random numbers start
    #[arg(long, default_value_t = synth::DEFAULT_SEED, value_name = "N")]
    seed: u64,
    /// Replace OUT if it exists
    #[arg(long)]
    force: bool,
    /// List the presets with their sizes and exit
    #[arg(long, exclusive = true)]
    list: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum TypeArg {
    F32,
    F16,
    #[value(name = "q8_0")]
    Q8_0,
    #[value(name = "q4_0")]
    Q4_0,
}

impl From<TypeArg> for TensorType {
    fn from(t: TypeArg) -> Self {
        match t {
            TypeArg::F32 => TensorType::F32,
            TypeArg::F16 => TensorType::F16,
            TypeArg::Q8_0 => TensorType::Q8_0,
            TypeArg::Q4_0 => TensorType::Q4_0,
        }
    }
}

/// Runs the command line of this process: 0 on success, 1 on an error, 2 on wrong usage (clap's own).
pub fn main() -> ExitCode {
    let Cli { command: Command::Synth(args) } = Cli::parse();
    match run_synth(&args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            // Nothing is left to do when even this can't be written.
            let _ = writeln!(io::stderr(), "ggml-runner: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn run_synth(args: &SynthArgs) -> Result<()> {
    if args.list {
        return list();
    }
    let (Some(name), Some(out)) = (&args.preset, &args.out) else {
        bail!("PRESET and OUT are needed; --list shows the presets");
    };
    let preset = find(name)?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS);
    let order = Order { preset, ty: args.ty.into(), seed: args.seed, threads };
    if out.as_os_str() == "-" {
        let stdout = io::stdout().lock();
        if stdout.is_terminal() {
            bail!("a model is not for a terminal: give a file name or redirect standard output");
        }
        make(&order, stdout).context("standard output")?;
        return Ok(());
    }
    to_file(&order, out, args.force)
}

fn find(name: &str) -> Result<&'static Preset> {
    presets::find(name).with_context(|| {
        let names: Vec<_> = PRESETS.iter().map(|p| p.name).collect();
        format!("no preset '{name}'; there are {}", names.join(", "))
    })
}

fn list() -> Result<()> {
    let mut out = io::stdout().lock();
    writeln!(out, "{:<12} {:<9} {:>6} {:>9} {:>9}  ABOUT", "PRESET", "ARCH", "LAYERS", "MB f16", "MB q4_0")?;
    for p in &PRESETS {
        let order = |ty| Order { preset: p, ty, seed: 0, threads: 1 };
        let (f16, q4) = (megabytes(&order(TensorType::F16)), megabytes(&order(TensorType::Q4_0)));
        let (name, arch, layers, about) = (p.name, p.arch.name(), p.layers, p.about);
        writeln!(out, "{name:<12} {arch:<9} {layers:>6} {f16:>9} {q4:>9}  {about}")?;
    }
    Ok(out.flush()?)
}

/// Size of the file, rounded up; 0 for a preset that can't be stored (writing it says why).
fn megabytes(order: &Order) -> u64 {
    order.file_bytes().unwrap_or(0).div_ceil(1_000_000)
}

/// Writes a regular file under a temporary name beside `out` and renames it when whole: nobody ever sees a part of a
/// model under its name, and a model that is replaced stays until the new one is complete.
fn to_file(order: &Order, out: &Path, force: bool) -> Result<()> {
    let shown = out.display();
    match fs::metadata(out) {
        Ok(_) if !force => bail!("{shown} exists; --force replaces it"),
        Ok(m) if m.is_dir() => bail!("{shown} is a directory; give a file name"),
        // A device or a pipe can only be written in place.
        Ok(m) if !m.is_file() => {
            let file = OpenOptions::new().write(true).open(out).with_context(|| format!("open {shown}"))?;
            make(order, file).with_context(|| format!("write {shown}"))?;
            return Ok(());
        }
        _ => {}
    }
    let part = part_name(out)?;
    let file = File::create_new(&part).with_context(|| format!("create {}", part.display()))?;
    let result = make(order, file)
        .and_then(|_| Ok(fs::rename(&part, out)?))
        .with_context(|| format!("write {shown} ({} MB needed, nothing is kept)", megabytes(order)));
    if result.is_err() {
        // The first error is the one to report.
        let _ = fs::remove_file(&part);
    }
    result
}

fn part_name(out: &Path) -> Result<PathBuf> {
    let Some(name) = out.file_name() else {
        bail!("{} is not a file name", out.display());
    };
    let mut part = OsString::from(".");
    part.push(name);
    part.push(format!(".{}.part", std::process::id()));
    Ok(out.with_file_name(part))
}

fn make<W: Write>(order: &Order, out: W) -> Result<()> {
    // Draws on a terminal only, and on standard error.
    let bar = ProgressBar::new(order.file_bytes()?);
    let style = "{prefix} {wide_bar} {bytes}/{total_bytes} {eta}";
    bar.set_style(ProgressStyle::with_template(style).unwrap_or_else(|_| ProgressStyle::default_bar()));
    bar.set_prefix(order.preset.name);
    let out = BufWriter::with_capacity(WRITE_BUFFER, out);
    let done = synth::write(order, out, |bytes| bar.inc(bytes));
    bar.finish_and_clear();
    // The writer has flushed; taking the file out of the buffer can't fail any more.
    done?;
    Ok(())
}
