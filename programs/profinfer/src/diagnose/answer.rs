//! The output of `profinfer diagnose --json`. All figures are those of `report --json`.

use std::path::Path;

use serde::Serialize;

use super::Schema;
use analysis::questions::quality::{FeatureRow, Figure, RecordingQuality, SampledGraphs};
use analysis::questions::report::Report;
use analysis::questions::verdict::RunVerdict;
use analysis::recorded::runs::RunRow;

/// What a program or an agent needs of a recording.
#[derive(Serialize)]
pub struct Diagnosis<'a> {
    schema: Schema,
    tool: &'static str,
    /// The recording, as an absolute path; `-`: standard input.
    file: String,
    /// Exit code of the recorded command; omitted if none was started, or if it has not ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<i32>,
    verdict: &'a RunVerdict,
    /// Processes and contexts with calls; the verdict is of the one shown.
    runs: &'a [RunRow],
    quality: Quality<'a>,
    next: Vec<NextCommand>,
}

/// Whether the recording can be relied on: a part of the report's `quality`.
#[derive(Serialize)]
struct Quality<'a> {
    complete: bool,
    verdict: &'a str,
    sampled: &'a Option<SampledGraphs>,
    #[serde(skip_serializing_if = "<[FeatureRow]>::is_empty")]
    features: &'a [FeatureRow],
    lost_share: &'a Figure,
    predicted_slowdown: &'a Figure,
    damage: &'a [String],
    notices: &'a [String],
    end: &'a Option<String>,
}

/// A command to go on with.
#[derive(Serialize)]
struct NextCommand {
    why: &'static str,
    /// Words, without a shell's quotes. `NEW.pfi` stands for a recording to be made.
    argv: Vec<String>,
}

impl<'a> Diagnosis<'a> {
    pub fn new(
        file: &Path,
        report: &'a Report,
        verdict: &'a RunVerdict,
        status: Option<i32>,
    ) -> Diagnosis<'a> {
        let piped = file.as_os_str() == "-";
        let whole = if piped { None } else { std::path::absolute(file).ok() };
        let file = whole.as_deref().unwrap_or(file).display().to_string();
        Diagnosis {
            schema: Schema::new("profinfer.diagnosis"),
            tool: crate::identity::TOOL,
            next: if piped { Vec::new() } else { next(&file, !verdict.advice.is_empty()) },
            file,
            status,
            verdict,
            runs: &report.runs,
            quality: Quality::of(&report.quality),
        }
    }
}

impl Quality<'_> {
    fn of(q: &RecordingQuality) -> Quality<'_> {
        Quality {
            complete: q.complete,
            verdict: &q.verdict,
            sampled: &q.sampled,
            features: &q.features,
            lost_share: &q.lost_share,
            predicted_slowdown: &q.predicted_slowdown,
            damage: &q.damage,
            notices: &q.notices,
            end: &q.end,
        }
    }
}

fn next(file: &str, advised: bool) -> Vec<NextCommand> {
    let command = |why, words: &[&str]| NextCommand {
        why,
        argv: ["profinfer"].iter().chain(words).map(|word| (*word).to_owned()).collect(),
    };
    let mut all = Vec::new();
    if advised {
        all.push(command("the advice as text", &["advise", file]));
        let why = "after the change, recorded as NEW.pfi: did the first advice keep its promise?";
        all.push(command(why, &["advise", file, "--check", "NEW.pfi"]));
    }
    all.push(command("operators by time", &["report", file, "--by", "op"]));
    all.push(command("what threads did in each operator", &["report", file, "--by", "cause"]));
    all.push(command("all tables", &["report", file, "--all"]));
    all.push(command("one page for a browser", &["html", file]));
    all
}
