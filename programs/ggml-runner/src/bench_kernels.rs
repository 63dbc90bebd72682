//! `ggml-runner bench-kernels`: measures matrix products and compares them with the machine's peak.

use super::model;
use anyhow::{Context, Result};
use cli::args::{Args, Command, Flag, FlagGroup, Usage};
use cli::values::{parsed, whole};
use ggml::quant::TensorType;
use runner::bench::{BenchCase, FOOTPRINT, Timing, measure, tile_by_rule};
use runner::kernels::Isa;
use runner::peak::{self, Effort, Peaks};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

/// Rows and columns of a 1B-shaped model: attention, feed-forward up and down.
const SHAPES: [(usize, usize); 3] = [(2048, 2048), (8192, 2048), (2048, 8192)];
/// Decode, and the prompt lengths used in comparisons of the runner.
const TOKENS: [usize; 3] = [1, 64, 512];
const SECONDS: f64 = 0.3;

pub const COMMAND: Command = Command {
    name: "bench-kernels",
    about: "Benchmark the matrix products of each type against the machine's peaks",
    text: "\
The peaks are measured as by `ggml-runner peak`. Weights are read from memory, not from a cache. GB/s counts the weights as
stored in the file; its share for one token is that of reading alone, which takes turns with the product on the same memory.
The ways to read the weights take turns, too, and the fastest is chosen, as when a model is loaded. Gop/s counts a
multiply-add as two operations. `tile` is the kernel's tile: tokens times vectors of
rows. `rule` is the tile with the fewest loads that the number of registers would allow. Run nothing else at the same
time.",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: cli::args::EXITS,
    examples: "\
ggml-runner bench-kernels --type q4_0
ggml-runner bench-kernels --isa avx2 -t 2 --shape 4096x4096 --tokens 1 --json",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value(
            "type",
            "TYPE",
            "Benchmark only this weight type: f32, f16, bf16, q8_0, q4_0, q4_1, q4_K, q5_K, q6_K, iq4_nl, iq4_xs or mxfp4 [default: \
             all]",
        ),
        model::ISA,
        Flag::value("threads", "N", "Number of threads").short('t').default("1"),
        Flag::value(
            "shape",
            "RxC",
            "Benchmark only this number of rows and columns [default: 2048x2048, 8192x2048 and 2048x8192]",
        ),
        Flag::value(
            "tokens",
            "N",
            "Benchmark only this number of tokens, 1 to 4096 [default: 1, 64 and 512]",
        ),
        Flag::switch("json", "Print JSON"),
    ],
};

/// Everything that is printed.
#[derive(Serialize)]
struct BenchReport {
    isa: &'static str,
    peaks: Peaks,
    kernels: Vec<BenchRow>,
}

#[derive(Serialize)]
struct BenchRow {
    #[serde(rename = "type")]
    ty: &'static str,
    rows: usize,
    cols: usize,
    tokens: usize,
    /// Tokens, and vectors of rows, according to the rule.
    rule: Option<(usize, usize)>,
    #[serde(flatten)]
    timing: Timing,
}

/// Rows and columns as given by the user.
#[derive(Clone, Copy)]
struct MatrixShape(usize, usize);

impl std::str::FromStr for MatrixShape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rows, cols) = text.split_once('x').ok_or("expected two numbers with an x between them")?;
        let number = |n: &str| n.parse().ok().filter(|n| (1..=1 << 20).contains(n));
        number(rows)
            .zip(number(cols))
            .map(|(r, c)| Self(r, c))
            .ok_or("expected numbers from 1 to 1048576".to_owned())
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    let ty: Option<TensorType> = args.option("type", parsed)?;
    let isa = args.option("isa", parsed)?.unwrap_or_else(Isa::best);
    let threads: usize = args.needed("threads", whole(0, u64::MAX))?;
    let shape: Option<MatrixShape> = args.option("shape", parsed)?;
    let tokens: Option<usize> = args.option("tokens", whole(1, 4096))?;
    let json = args.flag("json");
    let cpus: Vec<usize> = peak::clusters::of_this_machine().into_iter().flat_map(|c| c.cpus).collect();
    let Some(used) = cpus.get(..threads).filter(|used| !used.is_empty()) else {
        return Err(Usage::new(format!("-t {threads}: give 1 to {}, the number of CPUs", cpus.len())).into());
    };
    if !isa.available() {
        return Err(Usage::new(format!("--isa {isa}: not supported by this processor")).into());
    }
    let types = ty.map_or(TensorType::ALL.to_vec(), |ty| vec![ty]);
    let shapes = shape.map_or(SHAPES.to_vec(), |s| vec![(s.0, s.1)]);
    let tokens = tokens.map_or(TOKENS.to_vec(), |n| vec![n]);
    let mut report =
        BenchReport { isa: isa.name(), peaks: peak::of_cpus(used, Effort::QUICK)?, kernels: Vec::new() };
    for ty in types {
        for (rows, cols) in &shapes {
            for tokens in &tokens {
                let case = BenchCase { ty, rows: *rows, cols: *cols, tokens: *tokens, isa, threads };
                report.kernels.push(row(&case)?);
            }
        }
    }
    let mut out = io::stdout().lock();
    match json {
        true => render::json::write(&mut out, &report)?,
        false => out.write_all(table(&report)?.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn row(case: &BenchCase) -> Result<BenchRow> {
    let timing = measure(case, FOOTPRINT, SECONDS)
        .with_context(|| format!("{} {}x{}", case.ty.name(), case.rows, case.cols))?;
    let rule = case
        .isa
        .registers()
        .map(|(registers, lanes)| tile_by_rule(registers, case.tokens, case.rows.div_ceil(lanes), case.cols));
    Ok(BenchRow { ty: case.ty.name(), rows: case.rows, cols: case.cols, tokens: case.tokens, rule, timing })
}

fn table(report: &BenchReport) -> Result<String> {
    let peaks = &report.peaks;
    let lanes = report.isa.parse().ok().and_then(Isa::registers).map_or(1, |(_, lanes)| lanes);
    let mut text = format!("{}, threads {}: reads {:.1} GB/s", report.isa, peaks.threads, peaks.read);
    for (name, value) in [("int8", peaks.int8()), ("f32", peaks.f32_fma)] {
        if let Some(value) = value {
            write!(text, ", {name} {value:.0} Gop/s")?;
        }
    }
    writeln!(
        text,
        "\n\n{:<5} {:>10} {:>6} {:>11} {:>7} {:>5} {:>8} {:>5} {:>6} {:>5}",
        "type", "shape", "tokens", "us", "GB/s", "of", "Gop/s", "of", "rule", "tile"
    )?;
    for r in &report.kernels {
        let quantised = !["f32", "f16", "bf16"].contains(&r.ty);
        let peak = if quantised { peaks.int8() } else { peaks.f32_fma };
        let share = |value: f64, of: Option<f64>| {
            of.map_or("-".to_owned(), |of| format!("{:.0}%", 100.0 * value / of))
        };
        let pair = |pair: Option<(usize, usize)>| pair.map_or("-".to_owned(), |(a, b)| format!("{a}x{b}"));
        let t = &r.timing;
        let read = t.reading.as_ref().map_or(Some(peaks.read), |r| r.read_only_gb_s);
        let tile = t.tile.map(|(tokens, rows)| (tokens, rows.div_ceil(lanes)));
        writeln!(
            text,
            "{:<5} {:>10} {:>6} {:>11.1} {:>7.1} {:>5} {:>8.1} {:>5} {:>6} {:>5}",
            r.ty,
            format!("{}x{}", r.rows, r.cols),
            r.tokens,
            t.us,
            t.weights_gb_s,
            share(t.weights_gb_s, read),
            t.gop_s,
            share(t.gop_s, peak),
            pair(r.rule),
            pair(tile)
        )?;
    }
    text.push_str(&readings(report));
    Ok(text)
}

/// How the products of one token read their weights, and the speed of each way.
fn readings(report: &BenchReport) -> String {
    let mut text = String::new();
    for r in &report.kernels {
        let Some(reading) = r.timing.reading.as_ref().filter(|reading| reading.measured.len() > 1) else {
            continue;
        };
        let head =
            if text.is_empty() { "\nWays to read the weights for one token, GB/s (* chosen)\n" } else { "" };
        let _ = writeln!(text, "{head}{} {}x{}", r.ty, r.rows, r.cols);
        for way in &reading.measured {
            let mark = if way.reading == reading.chosen { '*' } else { ' ' };
            let _ = writeln!(text, "  {mark} {:>6.1}  {}", way.gb_s, way.reading);
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read() {
        let read = |text: &str| text.parse::<MatrixShape>().ok().map(|s| (s.0, s.1));
        assert_eq!(read("2048x512"), Some((2048, 512)));
        assert_eq!((read("2048"), read("0x1"), read("1x-1"), read("2000000x1")), (None, None, None, None));
    }
}
