//! Names come from a target or a file: in no view may one of them reach a terminal as a command, or hide or reorder
//! neighboring text. Every text of a recording is tried, in every view; then the output that does not come from a
//! recording.

use crate::all_views;
use crate::dag_support;
use crate::html_support;
use crate::synth_trace;
use crate::trace_support;

use std::collections::HashSet;
use std::path::Path;

use dag_support::LLAMA;
use html_support::{profinfer, text};
use pfi::BLOCK_HEADER;
use synth_trace::causes::one_of_each;
use synth_trace::*;
use trace_support::{seal, small_file, spans};

/// A text within a file name, an argument, a name.
const HOSTILE: &str = "a\u{1b}\u{9b}\u{7f}\u{61c}\u{200e}\u{202e}\u{2066}\u{feff}\u{2028}\u{2029}\u{e0041}b";

/// Traces that together contain everything a trace can contain.
fn traces() -> Vec<Vec<u8>> {
    let mut s = Synth::new(Vec::new(), Spec { experts: true, ..Spec::default() });
    s.call(4, |p, _| 1000 + p as u64);
    for i in 0..4 {
        s.backend = if i % 2 == 0 { ([7; 16], "CPU") } else { ([9; 16], "AMX") };
        s.call(1, |p, t| 1000 + 10 * p as u64 + u64::from(t) + i);
    }
    one_of_each(&mut s);
    let mixed = s.enc.finish(&footer("signal")).unwrap();
    vec![small_file(), mixed, html_support::rich(4), dag_support::run(LLAMA, 2)]
}

/// Positions of texts of at least three letters in a file's blocks, each text once.
fn texts(file: &[u8]) -> Vec<(usize, usize)> {
    let (mut found, mut seen) = (Vec::new(), HashSet::new());
    for (start, end) in spans(file) {
        let mut at = start + BLOCK_HEADER;
        while at < end {
            let len = file[at..end].iter().take_while(|b| b.is_ascii_graphic() || **b == b' ').count();
            if len >= 3 && seen.insert(&file[at..at + len]) {
                found.push((at, len));
            }
            at += len + 1;
        }
    }
    found
}

/// Texts that are changed together: all views of a file take a quarter of a second.
const TOGETHER: usize = 8;

#[test]
fn no_name_in_a_recording_is_more_than_text() {
    let mut tried = 0;
    for whole in traces() {
        let spans = spans(&whole);
        for some in texts(&whole).chunks(TOGETHER) {
            let mut file = whole.clone();
            for (at, len) in some {
                // The length of the text may precede it and look like a letter.
                let at = at + (len - 3).div_ceil(2);
                let three = ["\u{202e}", "\u{9b}\u{7f}"][tried % 2];
                file[at..at + 3].copy_from_slice(three.as_bytes());
                tried += 1;
            }
            spans.iter().for_each(|s| seal(&mut file, s.0));
            all_views::all(file);
        }
    }
    assert!(tried > 100, "{tried} texts");
}

/// A program's output, in which each line must be plain.
fn plain(dir: &Path, args: &[&str]) -> String {
    let out = profinfer(dir, args);
    let both = [text(&out.stdout), text(&out.stderr)].concat();
    let bad: String = both.chars().filter(|c| all_views::hides(*c) || *c == '\u{1b}').collect();
    assert!(bad.is_empty(), "{args:?}: {bad:?} in {both}");
    assert!(!both.is_empty(), "{args:?} says nothing");
    text(&out.stdout)
}

#[test]
fn no_name_of_a_file_is_more_than_text() {
    let dir = tempfile::tempdir().unwrap();
    let (file, none) = (format!("{HOSTILE}.pfi"), format!("{HOSTILE}.none"));
    std::fs::write(dir.path().join(&file), dag_support::run(LLAMA, 4)).unwrap();
    let (conf, broken) = (format!("{HOSTILE}.toml"), format!("{HOSTILE}-2.toml"));
    std::fs::write(dir.path().join(&conf), format!("[service]\ndirectory = '/x/{}'\n", &HOSTILE[2..]))
        .unwrap();
    std::fs::write(dir.path().join(&broken), format!("\"{}\" = 1\n", &HOSTILE[2..])).unwrap();
    let mut all: Vec<Vec<&str>> = Vec::new();
    for file in [&file, &none] {
        for more in [&[][..], &["--json"]] {
            all.push([&["report", file][..], more].concat());
            all.push([&["stat", file][..], more].concat());
            all.push([&["diff", file, file][..], more].concat());
            #[cfg(feature = "agent")]
            all.push([&["doctor", "--no-probe", file][..], more].concat());
        }
        all.push(vec!["stat", "--csv", file, "ops"]);
        all.push(vec!["diff", file, file, "--markdown"]);
        all.push(vec!["stat", file, "ops", "--svg", "-"]);
        all.push(vec!["stat", file, "threads", "--beside", file]);
        for format in ["dot", "graphml", "json", "svg"] {
            all.push(vec!["dag", file, "--format", format]);
        }
        for format in ["text", "json"] {
            all.push(vec!["dag", file, "--against", file, "--format", format]);
        }
        all.push(vec!["html", file, "-o", "-"]);
        all.push(vec!["export", file, "--format", "chrome", "-o", "-"]);
        all.push(vec!["export", file, "--merge", &none, "-o", "x.pftrace"]);
    }
    all.push(vec!["report", HOSTILE, "--no-such-flag"]);
    all.push(vec![HOSTILE]);
    #[cfg(feature = "agent")]
    for file in [&conf, &broken, &none] {
        for what in ["--check", "--print"] {
            all.push(vec!["config", what, "--config", file]);
        }
    }
    for args in &all {
        plain(dir.path(), args);
    }
}

#[test]
fn a_program_reads_the_name_that_was_there() {
    let dir = tempfile::tempdir().unwrap();
    let file = format!("{HOSTILE}.pfi");
    std::fs::write(dir.path().join(&file), dag_support::run(LLAMA, 4)).unwrap();
    let out = plain(dir.path(), &["dag", &file, "--against", &file, "--format", "json"]);
    let json: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(json["files"][0], file.as_str());
}
