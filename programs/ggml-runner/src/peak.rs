//! `ggml-runner peak`: measures this machine's peaks.

use anyhow::Result;
use cli::args::{Args, Command, Flag, FlagGroup, Usage};
use cli::values::whole;
use runner::peak::{self, Effort};
use runner::peaks_table::table;
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
    exits: cli::args::EXITS,
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
        false => out.write_all(table(&machine).as_bytes())?,
    }
    Ok(ExitCode::SUCCESS)
}
