//! Flags of `record` for counters of each op, and the list of the counters that this machine has.

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;

use agent::capture::pmc::list::{CpuSetCounters, TrialResult, list as offers};
use agent::capture::pmc::{self, FAULTS, MAX};
use agent::recorder::recording::RecordOptions;
use cli::args::{Args, Flag, FlagGroup, Usage};
use pfi::record::Level;
use render::json;

/// Flags that select what is counted.
pub const COUNTING: [Flag; 3] = [
    Flag::value(
        "pmc",
        "LIST",
        "Count these events for each op and thread, at most 8: names (cycles, instructions, ...) or raw \
         PMU event numbers (r001b). Append ':k' to count the kernel instead of the program, ':uk' for \
         both. `profinfer record --pmc list` tries and prints all events of this machine",
    )
    .many()
    .valid(|name| match name.trim() {
        "list" => Err("is allowed on the command line only".to_owned()),
        _ => Ok(()),
    }),
    Flag::switch("pmc-strict", "Fail unless every counter is fully available").needs(&["pmc"]),
    Flag::switch("faults", "Count page faults for each op: adds the counters major-faults and minor-faults"),
];

pub const FLAGS: FlagGroup = FlagGroup {
    title: "Counters",
    flags: &[
        COUNTING[0],
        COUNTING[1],
        COUNTING[2],
        Flag::switch("json", "With --pmc list: print JSON").needs(&["pmc"]).cli_only(),
    ],
};

/// Whether the list of counters is wanted instead of a recording.
///
/// # Errors
/// None of the choices.
pub fn lists(args: &Args) -> Result<bool, Usage> {
    Ok(names(args)?.iter().any(|n| n == "list"))
}

fn names(args: &Args) -> Result<Vec<String>, Usage> {
    args.list("pmc", |text| Ok(text.trim().to_owned()))
}

/// Reads [`FLAGS`] into the options, which must be complete otherwise.
///
/// # Errors
/// Too many counters, or the other flags lack what these need.
pub fn read(args: &Args, options: &mut RecordOptions) -> Result<(), Usage> {
    let mut asked: Vec<String> = Vec::new();
    let faults = FAULTS.iter().filter(|_| args.flag("faults")).map(|f| (*f).to_owned());
    for name in names(args)?.into_iter().chain(faults) {
        if !name.is_empty() && !asked.contains(&name) {
            asked.push(name);
        }
    }
    if asked.len() > MAX {
        return Err(Usage::new(format!(
            "{}{} counters requested, but at most {MAX} can be counted at a time",
            args.place(&["pmc", "faults"]),
            asked.len()
        )));
    }
    if !asked.is_empty() && options.level != Level::Op {
        return Err(Usage::new(format!(
            "{}counters are recorded for each op: omit --level or use --level op",
            args.place(&["level", "pmc", "faults"])
        )));
    }
    options.counters = pmc::CounterOptions { names: asked, strict: args.flag("pmc-strict") };
    Ok(())
}

/// Prints the available counters.
pub fn list(args: &Args) -> Result<ExitCode> {
    let clusters = offers(&args.path("sysfs")?.unwrap_or_else(|| PathBuf::from("/sys")));
    let mut out = std::io::stdout().lock();
    if args.flag("json") {
        json::write(&mut out, &clusters)?;
    } else {
        clusters.iter().try_for_each(|c| table(&mut out, c))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(out: &mut impl Write, c: &CpuSetCounters) -> std::io::Result<()> {
    writeln!(out, "{}, CPUs {}", c.pmu, c.cpus)?;
    let widest = |f: fn(&pmc::list::Offer) -> &str| c.offers.iter().map(|o| f(o).len()).max().unwrap_or(0);
    let (names, events) = (widest(|o| &o.name), widest(|o| &o.event));
    let mut group = "";
    for o in &c.offers {
        if std::mem::replace(&mut group, o.group) != o.group {
            writeln!(out, "  {}", o.group)?;
        }
        let state = match (o.state, o.count) {
            (TrialResult::Counts, 0) => "ok".to_owned(),
            (TrialResult::Counts, n) => format!("ok, {n} in a trial"),
            (TrialResult::Unsupported, _) => "unsupported".to_owned(),
            (TrialResult::Refused, _) => "refused".to_owned(),
        };
        let unit = if o.scale > 1 { format!(", {} bytes each", o.scale) } else { String::new() };
        let what = if o.why.is_empty() { format!("{}{unit}", o.what) } else { o.why.clone() };
        writeln!(out, "    {:names$}  {:events$}  {state:22}  {what}", o.name, o.event)?;
    }
    Ok(())
}
