//! `ggml-runner synth`: generated models. Uses `runner::synth`.

use super::progress::Progress;
use crate::cli::args::{Args, Argument, Command, Flag, Group, Usage};
use crate::cli::values::{parsed, whole};
use crate::ggml::quant::TensorType;
use crate::runner::synth::presets::{self, PRESETS, Preset};
use crate::runner::synth::{self, Order};
use anyhow::{Context, Result, bail};
use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Threads that make weights; more gain little against the writing.
const MAX_THREADS: usize = 2;
const WRITE_BUFFER: usize = 1 << 20;

pub const COMMAND: Command = Command {
    name: "synth",
    about: "Makes a GGUF model with random weights in the shape of a real one",
    text: "\
The same preset, type and seed always give the same bytes. The text that such a model generates is noise; its
operators, shapes and memory traffic are those of the real model.",
    usage: &["PRESET OUT [OPTIONS]", "--list"],
    arguments: &[
        Argument { name: "PRESET", help: "Shape of the model; --list shows them" },
        Argument { name: "OUT", help: "File to write, '-' for standard output" },
    ],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: crate::cli::EXITS,
    examples: "\
ggml-runner synth --list
ggml-runner synth tiny tiny.gguf
ggml-runner synth llama1b-L4 model.gguf --type q4_0
ggml-runner synth moe - --type q8_0 --seed 7 | ssh board 'cat > moe.gguf'",
    run,
};

const FLAGS: Group = Group {
    title: "Options",
    flags: &[
        Flag::value(
            "type",
            "TYPE",
            "Type of the weight matrices: f32, f16, bf16, q8_0, q4_0, q4_1, q4_k or q6_k (norms, biases and the \
             expert router stay f32; a matrix whose rows don't fill the blocks of 256 of q4_k and q6_k becomes q8_0, \
             and that is said)",
        )
        .default("f16"),
        Flag::value("seed", "N", "Where the random numbers start").default("42"),
        Flag::switch("force", "Replace OUT if it exists"),
        Flag::switch("list", "List the presets with their sizes and exit"),
    ],
};

fn run(args: &Args) -> Result<ExitCode> {
    let ty: TensorType = args.needed("type", parsed)?;
    let seed = args.needed("seed", whole(0, u64::MAX))?;
    let given = (args.argument("PRESET"), args.argument("OUT"));
    let (name, out) = match (args.flag("list"), given) {
        (true, (None, None)) => {
            list()?;
            return Ok(ExitCode::SUCCESS);
        }
        (true, _) => return Err(Usage::new("--list stands alone").into()),
        (false, (Some(name), Some(out))) => (name, out),
        (false, _) => return Err(Usage::new("PRESET and OUT are needed").into()),
    };
    let preset = find(&name.to_string_lossy())?;
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get()).min(MAX_THREADS);
    let order = Order { preset, ty, seed, threads };
    for (tensor, stored) in order.exceptions() {
        let _ = writeln!(
            io::stderr(),
            "ggml-runner: {tensor} becomes {}: its rows don't fill blocks of {}",
            stored.name(),
            ty.block()
        );
    }
    if out != "-" {
        to_file(&order, Path::new(out), args.flag("force"))?;
        return Ok(ExitCode::SUCCESS);
    }
    let stdout = io::stdout().lock();
    if stdout.is_terminal() {
        bail!("a model is not for a terminal: give a file name or redirect standard output");
    }
    make(&order, stdout).context("standard output")?;
    Ok(ExitCode::SUCCESS)
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
    let mut progress = Progress::new(order.preset.name, order.file_bytes()?);
    let out = BufWriter::with_capacity(WRITE_BUFFER, out);
    // The writer has flushed; taking the file out of the buffer can't fail any more.
    synth::write(order, out, |bytes| progress.add(bytes))?;
    Ok(())
}
