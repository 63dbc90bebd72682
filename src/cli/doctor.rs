//! `profinfer doctor`: can this machine, and this target, be recorded? Uses `agent` and `views`.

use std::io::{BufWriter, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use serde::Serialize;

use super::args::{Args, Argument, Command, Flag, Group, Usage};
use super::record::flags::{SYSROOT, launch};
use super::values::whole;
use crate::agent::btf::Btf;
use crate::agent::calibrate::Way;
use crate::agent::checkup::{self, Ask, Checkup, Hit};
use crate::agent::examine::Subject;
use crate::agent::rehearsal::Spot;
use crate::analysis::predict::{HitCosts, Hits, Prediction, Range, predict};
use crate::trace::Trace;
use crate::views::table::Style;
use crate::views::{doctor, json};

pub const COMMAND: Command = Command {
    name: "doctor",
    about: "Says whether this machine and this target can be recorded, and what is missing",
    text: "\
Tries what a recording needs: capabilities, bpf(), maps, programs, probes on a function of its own. Loads the very
programs that record uses and measures what one hit costs now. For a target it shows the engines found, their name
tables and layout, the probe points expected for tokens, graphs and ops, where in the function each probe would sit
and why there, and what cannot be recorded. The target itself is only read, never probed. Runs without root, and
says what root would change.",
    usage: &["[OPTIONS] [BINARY]", "[OPTIONS] -p PID"],
    arguments: &[Argument {
        name: "BINARY",
        help: "Program or library that contains llama.cpp or GGML, or a directory of them; the libraries it needs and \
               those beside it are looked at too",
    }],
    behind: None,
    groups: &[FLAGS],
    notes: "\
Words:
  ok        there
  missing   needed and not there: nothing can be recorded at op level until it is mended
  optional  not there, and not needed; says what is lost without it
  skipped   not tried; says why",
    exits: &[("0", "fit to record ops, or a file that would fit on another machine"), ("1", "not fit, the reason is the last line"), ("2", "wrong usage")],
    examples: "\
profinfer doctor                                this machine alone
profinfer doctor $(command -v llama-server)     and a program with the libraries beside it
profinfer doctor libggml-cpu.so                 and a library
sudo profinfer doctor -p $(pidof llama-server)  and a running process
profinfer doctor --json | jq .reason            for a program
profinfer doctor --predict 10tok/s --ops 400    and what recording would cost an engine of this speed
profinfer doctor --predict 10tok/s --trace run.pfi   the same, with the hits of a recording",
    run,
};

const FLAGS: Group = Group {
    title: "Options",
    flags: &[
        Flag::value("pid", "PID", "Running process to look at").short('p'),
        SYSROOT,
        Flag::switch("json", "Write JSON: times in nanoseconds"),
        Flag::value("btf", "FILE", "The running kernel's BTF, where it has none of its own"),
        Flag::switch(
            "no-probe",
            "Place no probe, not even on ourselves: probes are then not tried and the cost of a hit is not measured",
        ),
        Flag::switch(
            "compare",
            "Also measure what an op costs by other ways of watching it: among them the published method, with entry \
             and return probe and the whole structure at each hit",
        )
        .excludes(&["no-probe"]),
        Flag::value(
            "predict",
            "SPEED",
            "Say how much slower an engine that decodes at this speed would be while it is recorded, for each level: \
             tokens/s, as 10 or 10tok/s",
        )
        .needs(&["trace", "ops"]),
        Flag::value(
            "trace",
            "FILE",
            "With --predict: take the hits of a token from this recording of level op",
        )
        .needs(&["predict"])
        .excludes(&["ops"]),
        Flag::value(
            "ops",
            "N",
            "With --predict: op hits of one thread in a token, that is nodes of the graph that compute something",
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
        _ => Err("wanted: tokens a second, above 0 and at most 1000000, as 10, 7.5 or 10tok/s".into()),
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
                let hits = Hits::of_trace(&trace).map_err(|why| anyhow::anyhow!("{shown} {why}"))?;
                (format!("decode in {shown}"), hits)
            }
            (None, ops) => ("as given; one graph of one split".to_owned(), Hits::of_ops(ops.unwrap_or(1))),
        };
        Ok(Some(predict(speed, source, hits, found.hit.as_ref().and_then(costs))))
    }
}

/// What was measured, for a prediction; of an op on the target's own instruction where that is known. None: not all of it
/// was measured.
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

/// What `--json` writes.
#[derive(Serialize)]
struct Answer<'a> {
    #[serde(flatten)]
    found: &'a Checkup,
    #[serde(skip_serializing_if = "Option::is_none")]
    prediction: Option<&'a Prediction>,
}

fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let subject = match (args.option("pid", whole(0, u32::MAX.into()))?, args.argument("BINARY")) {
        (Some(_), Some(_)) => return Err(Usage::new("-p/--pid and BINARY exclude each other").into()),
        (Some(pid), None) => Some(Subject::Pid(pid)),
        (None, Some(path)) => Some(Subject::Path(launch(args, Path::new(path))?)),
        (None, None) => None,
    };
    let (prophecy, btf) = (Prophecy::read(args)?, args.path("btf")?);
    let btf = btf.as_deref().map(Btf::read).transpose()?;
    let found = checkup::checkup(&Ask {
        subject: subject.as_ref(),
        no_probe: args.flag("no-probe"),
        compare: args.flag("compare"),
        btf: btf.as_ref(),
    });
    let prediction = prophecy.tell(&found)?;
    let stdout = std::io::stdout();
    let terminal = stdout.is_terminal();
    let mut out = BufWriter::new(stdout.lock());
    if args.flag("json") {
        json::write(&mut out, &Answer { found: &found, prediction: prediction.as_ref() })?;
    } else {
        let no_color = std::env::var_os("NO_COLOR").is_some_and(|v| !v.is_empty());
        let width = terminal.then(|| terminal_size::terminal_size().map_or(100, |(w, _)| usize::from(w.0)));
        doctor::write(&mut out, &found, prediction.as_ref(), &Style { width, color: terminal && !no_color })?;
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
