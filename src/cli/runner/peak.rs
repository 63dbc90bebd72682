//! `ggml-runner peak`: measures this machine's peaks.

use crate::cli::args::{Args, Command, Flag, FlagGroup, Usage};
use crate::cli::values::whole;
use anyhow::Result;
use common::cpus;
use runner::peak::{self, ClusterPeaks, Effort, MachinePeaks, Peaks};
use std::fmt::Write as _;
use std::io::{self, Write};
use std::process::ExitCode;

pub const COMMAND: Command = Command {
    name: "peak",
    about: "Measure this machine's memory bandwidth and compute peaks",
    text: "\
Measures the maximum memory bandwidth and arithmetic throughput, for each number of threads and for each cluster of equal
cores. Each thread is pinned to its own core.

GB/s and Gop/s are 10^9 per second; a multiply-add is two operations. Every figure is the best of several short windows:
an upper bound. Run nothing else at the same time. Each number of threads takes about four seconds.",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[FlagGroup {
        title: "Options",
        flags: &[
            Flag::value("threads", "N", "Measure only this number of threads [default: 1 to all cores]").short('t'),
            Flag::switch("json", "Print JSON; null for what this processor does not support"),
        ],
    }],
    notes: "",
    exits: crate::cli::args::EXITS,
    examples: "\
ggml-runner peak
ggml-runner peak -t 1 --json | jq .",
    run,
};

fn run(args: &Args) -> Result<ExitCode> {
    let threads: Option<usize> = args.option("threads", whole(0, u64::MAX))?;
    let json = args.flag("json");
    let machine = peak::machine(threads.as_slice(), Effort::FULL, &mut ())?;
    if machine.clusters.iter().all(|c| c.peaks.is_empty()) {
        let most = machine.clusters.iter().map(|c| c.cpus.len()).max().unwrap_or(1);
        return Err(Usage::new(format!("-t/--threads: give 1 to {most}, the number of cores")).into());
    }
    let mut out = io::stdout().lock();
    match json {
        true => render::json::write(&mut out, &machine)?,
        false => out.write_all(table(&machine)?.as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A row of the table: its label and its value.
type PeakRow = (&'static str, fn(&Peaks) -> Option<f64>);

const ROWS: [PeakRow; 7] = [
    ("read, huge pages      GB/s", |p| Some(p.read)),
    ("read, small pages     GB/s", |p| p.read_small_pages),
    ("triad                 GB/s", |p| p.triad),
    ("f32 multiply-add   GFLOP/s", |p| p.f32_fma),
    ("int8 dot product     Gop/s", |p| p.int8_dot),
    ("int8 matrix product  Gop/s", |p| p.int8_matrix),
    ("int8 by widening     Gop/s", |p| p.int8_widening),
];

/// The peaks as a table for people.
///
/// # Errors
/// None: a text can always be written to.
pub fn table(machine: &MachinePeaks) -> Result<String> {
    let mut text = format!("instruction set: {}\n", machine.isa);
    for cluster in machine.clusters.iter().filter(|c| !c.peaks.is_empty()) {
        writeln!(text, "\ncores {} ({}){}", list(&cluster.cpus), cluster.name, header(cluster))?;
        for (name, value) in ROWS {
            write!(text, "  {name}")?;
            for peaks in &cluster.peaks {
                match value(peaks) {
                    Some(value) => write!(text, "{value:>11.1}")?,
                    None => write!(text, "{:>11}", "-")?,
                }
            }
            let lacks = cluster.peaks.iter().all(|p| value(p).is_none());
            text.push_str(if lacks { "  not available on this processor\n" } else { "\n" });
        }
    }
    Ok(text)
}

fn header(cluster: &ClusterPeaks) -> String {
    let mut text = String::from("\n  threads                   ");
    for peaks in &cluster.peaks {
        let _ = write!(text, "{:>11}", peaks.threads);
    }
    text
}

/// CPU numbers as ranges: `0-3,6`.
fn list(cpus: &[usize]) -> String {
    cpus::ranges(cpus.iter().filter_map(|&cpu| u32::try_from(cpu).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_ranges() {
        assert_eq!(list(&[5, 0, 1, 2, 7, 6]), "0-2,5-7");
        assert_eq!(list(&[3]), "3");
    }

    #[test]
    fn what_lacks_is_said_and_never_zero() {
        let peaks = Peaks { threads: 2, read: 61.25, f32_fma: Some(280.0), ..Peaks::default() };
        let cluster = ClusterPeaks { name: "all".to_owned(), cpus: vec![0, 1], peaks: vec![peaks] };
        let text = table(&MachinePeaks { isa: "neon".to_owned(), clusters: vec![cluster] }).expect("a table");
        let line =
            |start: &str| text.lines().find(|l| l.trim().starts_with(start)).expect("a line").to_owned();
        assert!(line("read, huge").ends_with("61.2"), "{text}");
        assert!(line("f32").ends_with("280.0"), "{text}");
        assert!(line("int8 matrix").ends_with("-  not available on this processor"), "{text}");
        assert!(text.contains("cores 0-1 (all)\n"), "{text}");
    }
}
