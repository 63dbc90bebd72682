//! `profinfer dag` as a command: each format compared with tests/snapshots, names that must be escaped in every
//! format, files, errors.

use crate::dag_support;
use crate::synth_trace;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use dag_support::*;
use pfi::{Encoder, EncoderConfig};
use serde_json::Value;

fn profinfer(dir: &Path, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    command.current_dir(dir).args(args).output().unwrap()
}

fn place(bytes: &[u8]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("run.pfi"), bytes).unwrap();
    dir
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Compares with a file under tests/snapshots; UPDATE_SNAPSHOTS=1 writes it instead.
fn snapshot(name: &str, got: &str) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../tests/snapshots").join(name);
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, got).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap();
    assert!(got == want, "{name} changed; if it should, run again with UPDATE_SNAPSHOTS=1:\n{got}");
}

#[test]
fn formats_are_as_they_were() {
    let dir = place(&run(Model { layers: 2, ..LLAMA }, 2));
    for format in ["dot", "graphml", "json", "svg"] {
        let out = profinfer(dir.path(), &["dag", "run.pfi", "--fold", "--format", format]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        assert_eq!(text(&out.stderr), "");
        snapshot(&format!("dag.{format}"), &text(&out.stdout));
        // The extension of the file selects the format as well.
        let name = format!("out.{format}");
        assert!(profinfer(dir.path(), &["dag", "run.pfi", "--fold", "-o", &name]).status.success());
        assert_eq!(std::fs::read(dir.path().join(name)).unwrap(), out.stdout);
    }
}

#[test]
fn the_comparison_is_as_it_was() {
    let dir = place(&run(LLAMA, 1));
    let qwen2 = run(Model { biases: true, last_differs: true, ..LLAMA }, 1);
    std::fs::write(dir.path().join("qwen2.pfi"), qwen2).unwrap();
    let out = profinfer(dir.path(), &["dag", "run.pfi", "--against", "qwen2.pfi"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    snapshot("dag-against.txt", &text(&out.stdout));
    let out = profinfer(dir.path(), &["dag", "run.pfi", "--against", "qwen2.pfi", "--format", "json"]);
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(json["same"], false);
    let adds: Vec<_> = json["pairs"][1]["only"][1].as_array().unwrap().iter().map(|e| &e["op"]).collect();
    assert_eq!(adds, ["ADD", "ADD", "ADD"]);
    let out = profinfer(dir.path(), &["dag", "run.pfi", "--against", "run.pfi"]);
    assert!(text(&out.stdout).ends_with("\nThe structures are identical.\n"), "{}", text(&out.stdout));
}

#[test]
fn names_are_data_in_every_format() {
    const NASTY: &str = "\"]; x -> y; <script>alert(1)</script>&\\\u{202e}\u{7f}]]>";
    let header = synth_trace::header(true);
    let enc = Encoder::new(Vec::new(), EncoderConfig::default(), &header).unwrap();
    let mut made = Made::with(LLAMA, NASTY, enc, 0);
    made.batch(1, 0);
    let dir = place(&made.finish());
    let of = |format: &str| text(&profinfer(dir.path(), &["dag", "run.pfi", "--format", format]).stdout);
    for format in ["dot", "graphml", "svg"] {
        let out = of(format);
        assert!(out.contains("alert(1)"), "{format}: the name is there");
        let bad = |c: char| c != '\n' && (c.is_control() || c == '\u{202e}');
        assert!(!out.contains(bad), "{format}: a character that hides or breaks");
    }
    for format in ["graphml", "svg"] {
        let out = of(format);
        assert!(!out.contains("<script") && !out.contains("]]>"), "{format}");
        well_formed(&out);
    }
    assert!(of("dot").contains(r#"\"]; x -> y; <script>alert(1)</script>&\\"#), "the quote is escaped");
    let json: Value = serde_json::from_str(&of("json")).unwrap();
    let mut names = json["nodes"].as_array().unwrap().iter().filter_map(|n| n["tensors"][0]["name"].as_str());
    assert!(
        names.any(|n| n.contains("\"]; x -> y; <script>") && n.contains('\u{202e}')),
        "as it was recorded"
    );
}

#[test]
fn what_was_not_recorded_is_a_gap_with_a_reason() {
    let dir = place(&run(LLAMA, 1));
    let out = profinfer(dir.path(), &["dag", "run.pfi", "--metric", "stall", "--format", "svg"]);
    assert!(out.status.success());
    assert!(
        text(&out.stderr).contains("note: stall is not available: not recorded: `profinfer record --pmc")
    );
    let svg = text(&out.stdout);
    assert!(
        svg.contains("stall is not available") && svg.contains("url(#gap)") && !svg.contains("0 % stalled")
    );
    let out = profinfer(dir.path(), &["dag", "run.pfi", "--format", "json"]);
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(json["nodes"].as_array().unwrap().iter().all(|n| n["stalled_share"].is_null()));
    let missing: Vec<bool> =
        json["metrics"].as_array().unwrap().iter().map(|m| m["missing"].is_string()).collect();
    assert_eq!(missing, [false, false, false, false, false, true, true, false, true, false]);
}

#[test]
fn errors_are_one_line_and_say_what_to_do() {
    let dir = place(&run(Model { structure: false, ..LLAMA }, 1));
    std::fs::write(dir.path().join("good.pfi"), run(LLAMA, 1)).unwrap();
    std::fs::write(dir.path().join("text"), "hello").unwrap();
    let cases: [(&[&str], i32, &str); 11] = [
        (&["run.pfi"], 1, "cannot draw run.pfi: it was recorded without structure (--no-str)"),
        (&["text"], 1, "not a profinfer trace"),
        (&["good.pfi", "--token", "5"], 1, "no graph of batch 5"),
        (&["good.pfi", "--layer", "5"], 1, "no op of layer 5 was recorded; recorded layers: 0-2"),
        (
            &["good.pfi", "-o", "no/such/dir.svg"],
            1,
            "cannot write no/such/dir.svg: give another place with -o: No such file",
        ),
        (&["good.pfi", "--metric", "tmie"], 2, "expected median, time, gbps"),
        (&["good.pfi", "--fold", "--layer", "1"], 2, "cannot be combined"),
        (&["good.pfi", "--against", "good.pfi", "--format", "svg"], 2, "expected text or json"),
        (&[], 2, "FILE... is required"),
        (&["good.pfi", "-o", "./good.pfi"], 2, "./good.pfi is the input"),
        (&["run.pfi", "--against", "good.pfi", "-o", "good.pfi"], 2, "good.pfi is the input"),
    ];
    for (args, code, want) in cases {
        let out = profinfer(dir.path(), &[&["dag"], args].concat());
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{said}");
        assert!(said.contains(want) && said.lines().count() == 1, "{said}");
        assert_eq!(text(&out.stdout), "");
    }
    assert_eq!(
        std::fs::read(dir.path().join("good.pfi")).unwrap(),
        run(LLAMA, 1),
        "a recording is not written over"
    );
}

/// Each below its name, with one scale: its ends are the lowest and the highest value of both.
#[test]
fn several_models_are_drawn_side_by_side() {
    let dir = place(&run(LLAMA, 2));
    std::fs::write(dir.path().join("other.pfi"), run(Model { layers: 1, ..LLAMA }, 2)).unwrap();
    let out = profinfer(dir.path(), &["dag", "run.pfi", "other.pfi", "--format", "svg"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let both = text(&out.stdout);
    well_formed(&both);
    let at = |name: &str| both.find(&format!(">{name}</text>")).unwrap_or_else(|| panic!("no {name}"));
    assert!(at("run.pfi") < at("other.pfi"));
    let legends: Vec<&str> = both.split(">median: ").skip(1).map(|l| l.split('<').next().unwrap()).collect();
    assert!(legends.len() == 2 && legends[0] == legends[1], "{legends:?}");
    let alone = |file: &str| text(&profinfer(dir.path(), &["dag", file, "--format", "svg"]).stdout);
    let boxes = |svg: &str| svg.matches("<g><title>").count();
    assert_eq!(boxes(&both), boxes(&alone("run.pfi")) + boxes(&alone("other.pfi")));
    for (flags, told) in [(&["--format", "dot"][..], "SVG only"), (&["--against", "run.pfi"], "one trace")] {
        let out = profinfer(dir.path(), &[&["dag", "run.pfi", "other.pfi"], flags].concat());
        assert_eq!(out.status.code(), Some(2));
        assert!(text(&out.stderr).contains(told), "{}", text(&out.stderr));
    }
}
