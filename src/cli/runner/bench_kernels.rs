//! `ggml-runner bench-kernels`: how fast the matrix products are, beside what the machine could do. Uses
//! `runner::bench` and `runner::peak`.

use super::model;
use crate::cli::args::{Args, Command, Flag, Group, Usage};
use crate::cli::values::{parsed, whole};
use crate::ggml::quant::TensorType;
use crate::runner::bench::{Case, FOOTPRINT, Timing, measure, tile_by_rule};
use crate::runner::kernels::Isa;
use crate::runner::peak::{self, Effort, Peaks};
use crate::views;
use anyhow::{Context, Result};
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

/// Rows and columns of a 1B-shaped model: attention, feed-forward up and down.
const SHAPES: [(usize, usize); 3] = [(2048, 2048), (8192, 2048), (2048, 8192)];
/// Decode, and the prompts that the runner is compared by.
const TOKENS: [usize; 3] = [1, 64, 512];
const SECONDS: f64 = 0.3;

pub const COMMAND: Command = Command {
    name: "bench-kernels",
    about: "Times the matrix products of each type, beside the peaks of the machine",
    text: "\
The peaks are those that `ggml-runner peak` measures. Weights come from memory, not from a cache. GB/s counts the
weights as they are in the file, Gop/s a multiplication and an addition as two operations. `rule` is the tile of tokens
times vectors of rows that the number of registers would allow with the fewest loads, `tile` that of the kernel: tokens
times vectors of rows. Let nothing else run meanwhile.",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: crate::cli::EXITS,
    examples: "\
ggml-runner bench-kernels --type q4_0
ggml-runner bench-kernels --isa avx2 -t 2 --shape 4096x4096 --tokens 1 --json",
    run,
};

const FLAGS: Group = Group {
    title: "Options",
    flags: &[
        Flag::value(
            "type",
            "TYPE",
            "This type of weights only: f32, f16, bf16, q8_0, q4_0, q4_1, q4_K or q6_K [default: all]",
        ),
        model::ISA,
        Flag::value("threads", "N", "Threads").short('t').default("1"),
        Flag::value(
            "shape",
            "RxC",
            "This many rows and columns only [default: 2048x2048, 8192x2048 and 2048x8192]",
        ),
        Flag::value("tokens", "N", "This many tokens only, 1 to 4096 [default: 1, 64 and 512]"),
        Flag::switch("json", "Print JSON"),
    ],
};

/// All that is printed.
#[derive(Serialize)]
struct Report {
    isa: &'static str,
    peaks: Peaks,
    kernels: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    #[serde(rename = "type")]
    ty: &'static str,
    rows: usize,
    cols: usize,
    tokens: usize,
    /// Tokens and vectors of rows by the rule.
    rule: Option<(usize, usize)>,
    #[serde(flatten)]
    timing: Timing,
}

/// Rows and columns as the user gives them.
#[derive(Clone, Copy)]
struct Shape(usize, usize);

impl std::str::FromStr for Shape {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let (rows, cols) = text.split_once('x').ok_or("two numbers with an x between them")?;
        let number = |n: &str| n.parse().ok().filter(|n| (1..=1 << 20).contains(n));
        number(rows).zip(number(cols)).map(|(r, c)| Self(r, c)).ok_or("numbers of 1 to 1048576".to_owned())
    }
}

fn run(args: &Args) -> Result<ExitCode> {
    let ty: Option<TensorType> = args.option("type", parsed)?;
    let isa = args.option("isa", parsed)?.unwrap_or_else(Isa::best);
    let threads: usize = args.needed("threads", whole(0, u64::MAX))?;
    let shape: Option<Shape> = args.option("shape", parsed)?;
    let tokens: Option<usize> = args.option("tokens", whole(1, 4096))?;
    let json = args.flag("json");
    let cpus: Vec<usize> = peak::clusters::of_this_machine().into_iter().flat_map(|c| c.cpus).collect();
    let Some(used) = cpus.get(..threads).filter(|used| !used.is_empty()) else {
        return Err(Usage::new(format!("-t {threads}: give 1 to {}, the CPUs there are", cpus.len())).into());
    };
    if !isa.available() {
        return Err(Usage::new(format!("--isa {isa}: this processor does not have it")).into());
    }
    let types = ty.map_or(TensorType::ALL.to_vec(), |ty| vec![ty]);
    let shapes = shape.map_or(SHAPES.to_vec(), |s| vec![(s.0, s.1)]);
    let tokens = tokens.map_or(TOKENS.to_vec(), |n| vec![n]);
    let mut report =
        Report { isa: isa.name(), peaks: peak::of_cpus(used, Effort::QUICK)?, kernels: Vec::new() };
    for ty in types {
        for (rows, cols) in &shapes {
            for tokens in &tokens {
                let case = Case { ty, rows: *rows, cols: *cols, tokens: *tokens, isa, threads };
                report.kernels.push(row(&case)?);
            }
        }
    }
    let mut out = io::stdout().lock();
    match json {
        true => views::json::write(&mut out, &report)?,
        false => out.write_all(table(&report)?.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

fn row(case: &Case) -> Result<Row> {
    let timing = measure(case, FOOTPRINT, SECONDS)
        .with_context(|| format!("{} {}x{}", case.ty.name(), case.rows, case.cols))?;
    let rule = case
        .isa
        .registers()
        .map(|(registers, lanes)| tile_by_rule(registers, case.tokens, case.rows.div_ceil(lanes), case.cols));
    Ok(Row { ty: case.ty.name(), rows: case.rows, cols: case.cols, tokens: case.tokens, rule, timing })
}

fn table(report: &Report) -> Result<String> {
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
        let tile = t.tile.map(|(tokens, rows)| (tokens, rows.div_ceil(lanes)));
        writeln!(
            text,
            "{:<5} {:>10} {:>6} {:>11.1} {:>7.1} {:>5} {:>8.1} {:>5} {:>6} {:>5}",
            r.ty,
            format!("{}x{}", r.rows, r.cols),
            r.tokens,
            t.us,
            t.weights_gb_s,
            share(t.weights_gb_s, Some(peaks.read)),
            t.gop_s,
            share(t.gop_s, peak),
            pair(r.rule),
            pair(tile)
        )?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shapes_are_read() {
        let read = |text: &str| text.parse::<Shape>().ok().map(|s| (s.0, s.1));
        assert_eq!(read("2048x512"), Some((2048, 512)));
        assert_eq!((read("2048"), read("0x1"), read("1x-1"), read("2000000x1")), (None, None, None, None));
    }
}
