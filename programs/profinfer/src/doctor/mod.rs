//! `profinfer doctor`: checks whether this machine and this target can be recorded.

mod peaks;
mod show;
mod storage;

use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;

use super::record::flags::{SYSROOT, launch};
use agent::capture::calibrate::Way;
use agent::capture::calibration_target::Spot;
use agent::capture::checkup::{self, Ask, Checkup, Hit};
use analysis::questions::recording_overhead::{HitCosts, PredictedHits, Prediction, Range, predict};
use cli::args::{Args, Argument, Command, Flag, FlagGroup, Usage};
use cli::values::whole;
use engine::examine::Subject;
use machine::kernel::btf::Btf;
use machine::tracing;
use pfi::Trace;
use render::json;
use render::table::Style;

pub const COMMAND: Command = Command {
    name: "doctor",
    about: "Check whether this machine and a target can be recorded, and what is missing",
    text: "\
Tests what a recording needs: capabilities, bpf(), maps, programs, and probes on a function of its own. Loads the same
programs as record and measures the current cost of one probe hit. Names the source that joules per token would come
from. For a target, shows the engines found, their name tables and layout, the expected probe points for tokens, graphs
and ops, where in the function each probe would be placed and why, and what cannot be recorded. The target is only read,
never probed. Works without root, and says what root would add.

With --peaks, measures instead what the machine reaches: memory bandwidth and arithmetic by number of threads, each thread
on its own core. Run nothing else at the same time. The result is kept for recordings of the next 180 days, in
$XDG_CACHE_HOME/profinfer/peaks.json (~/.cache without that variable), by root in /var/cache/profinfer for all users and
the service; higher peaks that are kept there already are not replaced. GB/s and Gop/s are 10^9 per second; a multiply-add is two operations.",
    usage: &["[OPTIONS] [BINARY]", "[OPTIONS] -p PID", "--peaks [--json]", "--storage FILE [--json]"],
    arguments: &[Argument {
        name: "BINARY",
        help: "Program or library that contains llama.cpp or GGML, or a directory of them; also checks the \
         libraries that it needs and those next to it",
    }],
    behind: None,
    groups: &[FLAGS],
    notes: "\
States:
  ok        available
  missing   required; ops cannot be recorded until this is fixed
  optional  not available, but not required; the text says what is lost
  skipped   not tested; the text says why",
    exits: &[("0", "ops can be recorded, here or, for a file of another architecture, on such a machine"), ("1", "ops cannot be recorded; the last line says why"), ("2", "wrong usage"), ("4", "the kernel's tracing does not answer: only a reboot helps")],
    examples: "\
profinfer doctor                                check this machine
profinfer doctor $(command -v llama-server)     also check a program and the libraries next to it
profinfer doctor libggml-cpu.so                 also check a library
sudo profinfer doctor -p $(pidof llama-server)  also check a running process
profinfer doctor --peaks                        measure the machine once, to compare later recordings with it
profinfer doctor --storage model.gguf            what experts that do not fit into memory would cost
profinfer doctor --json | jq .reason            for a program
profinfer doctor --predict 10tok/s --ops 400    also predict the overhead for an engine of this speed
profinfer doctor --predict 10tok/s --trace run.pfi   the same, with the probe hits of a recording",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::value("pid", "PID", "Running process to check").short('p'),
        SYSROOT,
        Flag::switch("json", "Print JSON: times in nanoseconds"),
        Flag::switch(
            "peaks",
            "Measure this machine's memory bandwidth and arithmetic by number of threads, and keep the result: \
             recordings then contain it, and reports compare with it",
        )
        .excludes(&["pid", "no-probe", "compare", "predict", "btf", "sysroot"]),
        Flag::value(
            "storage",
            "FILE",
            "Measure reads at random places of this file, e.g. a model's, instead: around the page cache and through it, one to \
             16 at the same time",
        )
        .excludes(&["pid", "no-probe", "compare", "predict", "btf", "sysroot", "peaks"]),
        Flag::value("read-size", "SIZE", "With --storage: bytes of each read").default("1MiB"),
        Flag::value("btf", "FILE", "BTF file of the running kernel, if the kernel does not provide BTF"),
        Flag::switch(
            "no-probe",
            "Place no probes at all, not even on profinfer itself: probes are not tested, and the cost of \
             a hit is not measured",
        ),
        Flag::switch(
            "compare",
            "Also measure the cost of an op with other capture methods, including the published one: \
             entry and return probe, and the complete structure at each hit",
        )
        .excludes(&["no-probe"]),
        Flag::value(
            "predict",
            "SPEED",
            "Predict how much recording at each level would slow down an engine that decodes at this \
             speed: tok/s, as 10 or 10tok/s",
        )
        .needs(&["trace", "ops"]),
        Flag::value(
            "trace",
            "FILE",
            "With --predict: take the hits per token from this recording at level op",
        )
        .needs(&["predict"])
        .excludes(&["ops"]),
        Flag::value(
            "ops",
            "N",
            "With --predict: op hits per thread and token, i.e. graph nodes that compute something",
        )
        .needs(&["predict"]),
    ],
};

/// How many op hits a token has.
#[derive(Debug)]
struct Prophecy {
    predict: Option<f64>,
    trace: Option<PathBuf>,
    ops: Option<u32>,
}

fn speed(text: &str) -> Result<f64, String> {
    let number = ["tok/s", "tokens/s", "t/s"].iter().find_map(|unit| text.strip_suffix(unit)).unwrap_or(text);
    match number.trim_end().parse::<f64>() {
        Ok(v) if v > 0.0 && v <= 1e6 => Ok(v),
        _ => Err("expected tokens per second, above 0 and at most 1000000, e.g. 10, 7.5 or 10tok/s".into()),
    }
}

impl Prophecy {
    fn read(args: &Args) -> Result<Self, Usage> {
        Ok(Self {
            predict: args.option("predict", speed)?,
            trace: args.path("trace")?,
            ops: args.option("ops", whole(1, 1_000_000))?,
        })
    }

    fn tell(&self, found: &Checkup) -> anyhow::Result<Option<Prediction>> {
        let Some(speed) = self.predict else { return Ok(None) };
        let (source, hits) = match (&self.trace, self.ops) {
            (Some(path), _) => {
                let shown = path.display();
                let trace = Trace::open(path).with_context(|| format!("cannot read {shown}"))?;
                let hits = PredictedHits::of_trace(&trace).map_err(|why| anyhow::anyhow!("{shown} {why}"))?;
                (format!("decode in {shown}"), hits)
            }
            (None, ops) => {
                ("as given; one graph with one split".to_owned(), PredictedHits::of_ops(ops.unwrap_or(1)))
            }
        };
        Ok(Some(predict(speed, source, hits, found.hit.as_ref().and_then(costs))))
    }
}

/// The measured costs, for a prediction; of an op on the target's own instruction if that is known. None: some were
/// not measured.
fn costs(hit: &Hit) -> Option<HitCosts> {
    let find = |way: Way, spot: Spot| {
        hit.ways.iter().find(|w| w.way == way.name() && w.instruction == spot.name()).map(|w| w.ns)
    };
    let range = |way| {
        let (a, b) = (find(way, Spot::Emulated)?, find(way, Spot::Stepped)?);
        Some(Range { least: a.min(b), most: a.max(b) })
    };
    let (op, both) = (range(Way::Op)?, range(Way::OpAndBarrier)?);
    let barrier = Range { least: (both.least - op.least).max(0.0), most: (both.most - op.most).max(0.0) };
    // A return costs about as much as another entry on a single-stepped instruction.
    let call = Range { least: op.least + op.most, most: 2.0 * op.most };
    let op = hit.target_ns.map_or(op, |ns| Range { least: ns.into(), most: ns.into() });
    Some(HitCosts { call, op, barrier })
}

/// The output of `--json`.
#[derive(Serialize)]
struct DoctorOutput<'a> {
    #[serde(flatten)]
    found: &'a Checkup,
    #[serde(skip_serializing_if = "Option::is_none")]
    prediction: Option<&'a Prediction>,
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    if args.flag("peaks") {
        return peaks::run(args);
    }
    if let Some(file) = args.path("storage")? {
        return storage::run(args, &file);
    }
    let subject = match (args.option("pid", whole(0, u32::MAX.into()))?, args.argument("BINARY")) {
        (Some(_), Some(_)) => return Err(Usage::new("-p/--pid and BINARY cannot be combined").into()),
        (Some(pid), None) => Some(Subject::Pid(pid)),
        (None, Some(path)) => Some(Subject::Path(launch(args, Path::new(path))?)),
        (None, None) => None,
    };
    let (prophecy, btf) = (Prophecy::read(args)?, args.path("btf")?);
    let btf = btf.as_deref().map(Btf::read).transpose()?;
    tracing::answers()?;
    // The kernel verifies each program, and a hit's cost is measured.
    let line = std::io::stderr().is_terminal() && !args.flag("no-probe");
    let show = |text: &str| if line { write!(std::io::stderr(), "\r{text}\x1b[K") } else { Ok(()) };
    show("checking this machine: some 5 s")?;
    let found = checkup::checkup(&Ask {
        tool: crate::identity::TOOL,
        subject: subject.as_ref(),
        no_probe: args.flag("no-probe"),
        compare: args.flag("compare"),
        btf: btf.as_ref(),
    });
    show("")?;
    let prediction = prophecy.tell(&found)?;
    let stdout = std::io::stdout();
    let terminal = stdout.is_terminal();
    let mut out = BufWriter::new(stdout.lock());
    if args.flag("json") {
        json::write(&mut out, &DoctorOutput { found: &found, prediction: prediction.as_ref() })?;
    } else {
        let width = terminal.then(|| terminal_size::terminal_size().map_or(100, |(w, _)| usize::from(w.0)));
        show::write(
            &mut out,
            &found,
            prediction.as_ref(),
            &Style { width, color: terminal && cli::terminal::colour(), ..Style::default() },
        )?;
    }
    out.flush()?;
    Ok(if found.fit || found.fits_on.is_some() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn speeds_are_read_as_people_write_them() {
        for (text, value) in
            [("10", 10.0), ("10tok/s", 10.0), ("7.5 t/s", 7.5), ("0.125", 0.125), ("1000000", 1e6)]
        {
            assert_eq!(speed(text), Ok(value), "{text}");
        }
        for text in ["", ".", "0", "-1", "nan", "inf", "1000000.1", "1.2.3", "10 m/s"] {
            assert!(speed(text).is_err(), "{text}");
        }
    }
}
