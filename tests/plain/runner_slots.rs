//! `ggml-runner run --expert-slots`: the tokens and logits of a run without, the figures that it prints, and its errors.

use crate::common::{model, runner_name};

use std::path::Path;
use std::process::{Command, Output};

use serde_json::Value;

/// Shape of the preset `moe`.
const LAYERS: u64 = 4;
const EXPERTS: u64 = 60;
const USED: u64 = 4;
const PROMPT: u64 = 20;
const DECODED: u64 = 6;

fn run(args: &[&str]) -> Output {
    let model = model("moe", "q4_0");
    let mut command = Command::new(runner_name());
    command.args(["run", "--no-roofline", "-t", "1", "-p", "20", "-n", "6", "-m"]).arg(model).args(args);
    command.output().expect("ggml-runner runs")
}

fn said(args: &[&str]) -> String {
    let o = run(args);
    assert!(o.status.success(), "{args:?}: {}", String::from_utf8_lossy(&o.stderr));
    String::from_utf8(o.stdout).expect("UTF-8")
}

/// The JSON object, and the logits of the prompt's last token.
fn answer(dir: &Path, args: &[&str]) -> (Value, Vec<u8>) {
    let logits = dir.join("logits");
    let out = ["--json", "--force", "--logits", logits.to_str().expect("UTF-8")];
    let json = serde_json::from_str(&said(&[args, &out].concat())).expect("JSON");
    (json, std::fs::read(logits).expect("written"))
}

fn pins(dir: &Path, text: &str) -> String {
    let path = dir.join("pins.csv");
    std::fs::write(&path, text).expect("written");
    format!("pin:{}", path.to_str().expect("UTF-8"))
}

#[test]
fn results_are_the_same_and_reads_are_counted() {
    let dir = tempfile::tempdir().expect("a directory");
    let lines: String = (0..EXPERTS * LAYERS).map(|i| format!("{},{},1\n", i % LAYERS, i / LAYERS)).collect();
    let pin = pins(dir.path(), &format!("layer,expert,uses\n{lines}"));
    let (plain, logits) = answer(dir.path(), &[]);
    assert_eq!(plain.get("expert_slots"), None);
    for (policy, slots, from) in
        [("lru", "8", "disk"), ("lfu", "2", "disk"), ("next", "12", "memory"), (pin.as_str(), "8", "disk")]
    {
        let args = ["--expert-slots", slots, "--expert-policy", policy, "--experts-from", from];
        let (json, same) = answer(dir.path(), &args);
        assert!(json["tokens"] == plain["tokens"] && same == logits, "{args:?}");
        let found = &json["expert_slots"];
        let n = |v: &Value| v.as_u64().unwrap_or_else(|| panic!("{args:?}: {v} in {found}"));
        let of = |phase: &str, key: &str| n(&found[phase][key]);
        assert_eq!(found["policy"].as_str(), policy.split(':').next());
        assert_eq!((found["from"].as_str(), n(&found["experts"])), (Some(from), EXPERTS));
        let access: &[&str] = if from == "disk" { &["direct", "buffered"] } else { &["memory"] };
        assert!(access.contains(&found["access"].as_str().expect("text")), "{found}");
        // The warm-up decodes one token.
        assert_eq!([of("warm_up", "ops"), of("prefill", "ops")], [2 * LAYERS, LAYERS]);
        assert_eq!(
            [of("decode", "ops"), of("decode", "needed")],
            [DECODED * LAYERS, DECODED * LAYERS * USED]
        );
        assert!(of("prefill", "needed") <= (LAYERS - 1) * EXPERTS.min(PROMPT * USED) + USED);
        let expert = 3 * 512 * 256 / 32 * 18;
        for phase in ["warm_up", "prefill", "decode"] {
            let reads = of(phase, "demand_reads");
            assert_eq!(of(phase, "hits") + reads, of(phase, "needed"));
            assert_eq!(of(phase, "read_bytes"), expert * (reads + of(phase, "early_reads")));
            for key in ["needed", "hits", "demand_reads", "early_reads", "read_bytes"] {
                let layers = found["layers"].as_array().expect("layers").iter();
                assert_eq!(layers.map(|l| n(&l[phase][key])).sum::<u64>(), of(phase, key), "{phase} {key}");
            }
        }
        let pinned = if policy == pin { 8 * LAYERS } else { 0 };
        assert_eq!([n(&found["pinned_reads"]), n(&found["pinned_bytes"])], [pinned, pinned * expert]);
    }
    let text = said(&["--expert-slots", "60"]);
    let line = |start: &str| text.lines().find(|l| l.starts_with(start)).unwrap_or_else(|| panic!("{text}"));
    assert!(line("experts: ").starts_with("experts: lru, 60 of 60 of a layer in slots, "), "{text}");
    let decode: Vec<&str> = line("decode ").split_whitespace().collect();
    assert_eq!(decode[1], (DECODED * LAYERS * USED).to_string(), "{text}");
}

#[test]
fn a_damaged_file_of_pinned_experts_is_refused_with_its_line() {
    let dir = tempfile::tempdir().expect("a directory");
    for (text, told) in [
        ("layer,expert,uses\n0,1,9\n0,x,9\n", "line 3: '0,x,9' is not layer,expert,uses with whole numbers"),
        ("4,1\n", "line 1: layer 4, but the model's layers are 0 to 3"),
        ("0,1\n0,60\n", "line 2: expert 60, but the model's experts are 0 to 59"),
        ("0,1\n1,1\n0,1\n", "line 3: expert 1 of layer 0 is already on line 1"),
        ("\n", "names no experts: give lines of layer,expert,uses"),
    ] {
        let o = run(&["--expert-slots", "4", "--expert-policy", &pins(dir.path(), text)]);
        let said = String::from_utf8_lossy(&o.stderr);
        assert_eq!((o.status.code(), said.lines().count()), (Some(1), 1), "{said}");
        assert!(said.contains("pins.csv") && said.contains(told), "{said}");
    }
}

fn synth(args: &[&str], out: &Path) -> Output {
    let mut command = Command::new(runner_name());
    command.arg("synth").args(args).arg(out).args(["--type", "q4_0", "--force"]);
    command.output().expect("ggml-runner runs")
}

/// Models with other experts than a preset's, and tokens that are drawn.
#[test]
fn models_have_the_experts_that_were_asked_for() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("m.gguf");
    let run = |more: &[&str]| {
        let args =
            ["run", "--no-roofline", "-t", "1", "-p", "8", "-n", "6", "--json", "--expert-slots", "3", "-m"];
        let o =
            Command::new(runner_name()).args(args).arg(&out).args(more).output().expect("ggml-runner runs");
        assert!(o.status.success(), "{}", String::from_utf8_lossy(&o.stderr));
        serde_json::from_slice::<Value>(&o.stdout).expect("JSON")
    };
    let mut tokens = Vec::new();
    for routing in ["even", "skewed", "topics"] {
        let args =
            ["moe", "--experts", "12", "--experts-used", "3", "--expert-width", "64", "--routing", routing];
        assert!(synth(&args, &out).status.success(), "{routing}");
        let [greedy, drawn, again] = [&[][..], &["--temp", "2"], &["--temp", "2"]].map(run);
        assert_eq!(greedy["expert_slots"]["experts"], 12);
        assert_eq!(greedy["expert_slots"]["decode"]["needed"], DECODED * LAYERS * 3);
        assert!(drawn["tokens"] == again["tokens"] && drawn["tokens"] != greedy["tokens"], "{routing}");
        tokens.push(greedy["tokens"].clone());
    }
    assert!(tokens[0] != tokens[1] && tokens[1] != tokens[2], "{tokens:?}");
    for (args, code, why) in [
        (&["tiny", "--experts", "8"][..], 1, "preset 'tiny' has no experts"),
        (&["moe", "--experts", "4", "--experts-used", "5"], 2, "a token cannot use 5 of 4 experts"),
        (&["moe", "--experts", "0"], 2, "--experts"),
    ] {
        let o = synth(args, &out);
        let said = String::from_utf8_lossy(&o.stderr);
        assert!(o.status.code() == Some(code) && said.contains(why), "{args:?}: {said}");
    }
}
