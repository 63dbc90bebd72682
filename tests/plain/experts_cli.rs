//! `profinfer experts` on a recording whose experts are known: rates, speeds, the list for a cache, and what is refused.

use crate::common;
use crate::synth_trace;

use std::path::Path;
use std::process::{Command, Output, Stdio};

use pfi::ExpertRows;
use pfi::record::{Availability, FileRead, SourceKind, TensorData};
use serde_json::Value;
use synth_trace::causes::feature;
use synth_trace::*;

const EXPERTS: u64 = 8;
/// Bytes of both matrices of an expert, in Q4_0.
const BYTES: u64 = 2 * EMBD * FF / 32 * 18;

/// Of the first layer, experts 2 and 0; of the second, only one that is never needed.
const PINS: &str = "layer,expert,uses\n0,2,9\n0,0,7\n1,5,1\n";

/// Where the weights of layer 0 are, and bytes of one matrix of an expert.
const DATA: u64 = 1 << 40;
const MATRIX: u64 = BYTES / 2;

/// Two requests of one prompt and six tokens. Each token of layer 0 needs one expert: 0, 1, 2, 0, 1, 2; layer 1 the same. Before
/// each token half of a matrix of expert 1 of layer 0 and half of expert 2's are read, and a page of something else.
fn trace(path: &Path, experts: bool) {
    let spec = Spec { layers: 2, source: SourceKind::Bpf, experts: true, structure: true, ..Spec::default() };
    let mut s = Synth::new(Vec::new(), spec);
    let mut graph = 0;
    for _ in 0..2 {
        s.call(3, |_, _| 1_000_000);
        graph += 1;
        for expert in [0, 1, 2, 0, 1, 2] {
            let read =
                FileRead { pid: PID, tid: TID, file: 0, t: s.now as i64, dur: 0, addr: 0, bytes: 4096 };
            let place = s.expert_tensors(1, 0).filter(|_| experts);
            s.call(1, |_, _| 1_000_000);
            if let Some((_, tensor)) = place {
                s.enc.tensor_data(&TensorData { tensor, addr: DATA }).expect("written");
                s.enc.file_read(&read).expect("written");
                let of_two = FileRead { addr: DATA + MATRIX + MATRIX / 2, bytes: MATRIX, ..read };
                s.enc.file_read(&of_two).expect("written");
            }
            for layer in (0..2).filter(|_| experts) {
                let (ids, weights) = s.expert_tensors(1, layer).expect("experts");
                let rows = ExpertRows { graph, ids, weights, used: 1, tokens: 1, first: 0, why: "" };
                s.enc.experts(&rows, &[expert]).expect("written");
            }
            graph += 1;
        }
    }
    s.enc.feature(&feature("file reads", Availability::Whole, "made up")).expect("written");
    std::fs::write(path, s.enc.finish(&footer("target exited")).expect("ended")).expect("written");
}

fn profinfer(view: &str, args: &str, with_experts: bool) -> Output {
    let dir = tempfile::tempdir().expect("a directory");
    trace(&dir.path().join("run.pfi"), with_experts);
    std::fs::write(dir.path().join("pins.csv"), PINS).expect("written");
    let mut command = Command::new(common::profinfer());
    command.current_dir(dir.path()).args([view, "run.pfi"]).args(args.split_whitespace());
    command.stdin(Stdio::null()).output().expect("profinfer runs")
}

fn experts(args: &str, with_experts: bool) -> Output {
    profinfer("experts", args, with_experts)
}

fn json(args: &str) -> Value {
    parsed(&experts(&format!("{args} --json"), true))
}

fn parsed(o: &Output) -> Value {
    serde_json::from_slice(&o.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&o.stderr)))
}

fn row<'v>(found: &'v Value, slots: u64, policy: &str) -> &'v Value {
    let rows = found["caches"].as_array().expect("rows");
    rows.iter()
        .find(|r| r["slots"] == slots && r["policy"] == policy)
        .unwrap_or_else(|| panic!("{policy}: {found}"))
}

#[test]
fn each_policy_has_the_hits_of_its_rule() {
    let found = json("--slots 1,2,3");
    assert_eq!(
        (&found["layers"], &found["experts"], &found["tokens"], &found["needed"]),
        (&2.into(), &8.into(), &12.into(), &24.into())
    );
    let rate = |slots, policy| row(&found, slots, policy)["hit_rate"].as_f64().expect("a rate");
    // A cycle of three: with two slots the one that is needed next has just gone.
    assert_eq!((rate(1, "lru"), rate(2, "lru"), rate(3, "lru")), (0.0, 0.0, 9.0 / 12.0));
    // It keeps what is needed next, and passes the others through.
    let best = [1, 2, 3].map(|slots| rate(slots, "optimum"));
    assert_eq!(best, [3.0 / 12.0, 6.0 / 12.0, 9.0 / 12.0]);
    // Of three experts as frequent as each other, two are pinned, by the tokens of the other request.
    assert_eq!((rate(1, "pin"), rate(2, "pin"), rate(3, "pin")), (4.0 / 12.0, 8.0 / 12.0, 1.0));
    assert_eq!(row(&found, 3, "lru")["by_part"], serde_json::json!([0.5, 1.0]));
    assert_eq!((&found["parts"], &found["parts_of"]), (&2.into(), &"requests".into()));
    // The second layer needs what the first needed: known from the second time on.
    assert_eq!(row(&found, 2, "next")["hit_rate"], 9.0 / 12.0 / 2.0);
    assert_eq!(row(&found, 2, "next")["reads_per_token"], (24.0 - 9.0) / 12.0);
}

#[test]
fn the_report_has_the_same_rates() {
    let found = json("--slots 1,2,3");
    let report = parsed(&profinfer("report", "--all --expert-cache 1,2,3 --json", true));
    let caches = report["experts"]["all"]["caches"].as_array().expect("caches");
    assert_eq!(caches.len(), 3);
    for cache in caches {
        let slots = cache["experts"].as_u64().expect("a number");
        assert_eq!(cache["hit_rate"], row(&found, slots, "lru")["hit_rate"], "{slots}");
    }
}

#[test]
fn memory_and_read_time_give_slots_and_speed() {
    let found = json("--memory 1MiB --read-time 2ms");
    let slots = (1u64 << 20) / (2 * BYTES);
    assert!(slots >= EXPERTS, "{slots}");
    assert_eq!(found["all_bytes"], 2 * EXPERTS * BYTES);
    assert_eq!(found["caches"][0]["slots"], EXPERTS);
    let found = json("--slots 3 --read-time 2ms");
    let token = found["token_ns"].as_f64().expect("a time");
    let lru = row(&found, 3, "lru");
    // A quarter of the two experts of a token is read.
    let wanted = 1e9 / (token + 0.5 * 2e6);
    let speed = [0, 1].map(|at| lru["tokens_per_s"][at].as_f64().expect("a number"));
    assert!((speed[0] / wanted - 1.0).abs() < 1e-9, "{lru} {wanted}");
    // While it reads, it may compute the other experts; not more than all that it computes.
    assert!(speed[1] >= speed[0] && speed[1] < 1e9 / (0.5 * 2e6), "{lru} {wanted}");
    assert_eq!(found["reads_ns"], serde_json::json!([2e6]));
    assert_eq!(found["expert_matrices"].as_array().map(|all| all.len()), Some(2));
    assert_eq!(json("--slots 3")["caches"][0]["tokens_per_s"], Value::Null);
}

#[test]
fn a_list_of_another_recording_is_pinned_as_it_is() {
    let found = json("--slots 1,2 --pins pins.csv");
    let hits = [1, 2].map(|slots| row(&found, slots, "pin")["hit_rate"].as_f64().expect("a rate"));
    // A third of the first layer's tokens need expert 2, another third expert 0.
    assert_eq!(hits, [4.0 / 24.0, 8.0 / 24.0]);
    assert_eq!((&found["pins"], &json("--slots 1")["pins"]), (&"file".into(), &"half".into()));
}

#[test]
fn reads_belong_to_the_experts_in_whose_weights_they_are() {
    let found = json("--slots 1");
    let reads = &found["reads"];
    // Experts 1 and 2 of one layer were needed four times each, expert 0 of it, and all of the other layer, came for nothing.
    assert_eq!((&reads["needed"], &reads["missed"]), (&24.into(), &8.into()), "{reads}");
    assert_eq!(reads["hit_rate"], 1.0 - 8.0 / 24.0);
    let half = MATRIX / 2;
    assert_eq!(reads["needed_bytes"], 8 * half);
    assert_eq!(reads["ahead_bytes"], 12 * MATRIX - 8 * half);
    assert_eq!(
        (&reads["other_bytes"], &reads["all_expert_bytes"]),
        (&(12 * 4096).into(), &(12 * MATRIX).into())
    );
    assert_eq!(reads["all_bytes"], 12 * (MATRIX + 4096));
    let layer = &reads["layers"][0];
    let expert = |n: u64| serde_json::json!({"expert": n, "misses": 4, "bytes": 12 * half});
    assert_eq!(layer["experts"], serde_json::json!([expert(1), expert(2)]));
    let text = String::from_utf8(experts("--slots 1", true).stdout).expect("UTF-8");
    assert!(text.contains("66.67 % of 24 needed experts were in memory"), "{text}");
}

#[test]
fn a_list_is_tried_on_each_request() {
    let found = json("--slots 1,2 --by prompt");
    let rows = found["by_prompt"].as_array().expect("rows");
    assert_eq!(rows.len(), 4);
    for (row, (slots, part, own)) in rows.iter().zip([(1, 1, 4.0), (1, 2, 4.0), (2, 1, 8.0), (2, 2, 8.0)]) {
        assert_eq!((&row["slots"], &row["part"], &row["needed"]), (&slots.into(), &part.into(), &12.into()));
        // Both requests need the same experts: each list serves the other as well.
        let rate = own / 12.0;
        assert_eq!((&row["own_list"], &row["other_lists"]), (&rate.into(), &serde_json::json!([rate, rate])));
        let at = |policy| found["policies"].as_array().and_then(|p| p.iter().position(|name| name == policy));
        assert_eq!(row["hit_rates"][at("pin").expect("pin")], rate);
    }
    assert_eq!(json("--slots 1")["by_prompt"], serde_json::json!([]));
    let text = String::from_utf8(experts("--slots 2 --by prompt", true).stdout).expect("UTF-8");
    assert!(text.contains("Hits by request, 2 slots per layer (%)"), "{text}");
}

#[test]
fn llama_cpp_is_told_which_layers_stay_on_the_device() {
    let layer = EXPERTS * BYTES;
    let of = |memory: u64| {
        let o = experts(&format!("--memory {memory} --ot"), true);
        String::from_utf8(o.stdout).expect("UTF-8")
    };
    let one = of(layer.max(1 << 20));
    let both = of(16 << 20);
    assert!(both.contains("# all experts fit: no option is needed") && !both.contains("-ot"), "{both}");
    let fits = (layer.max(1 << 20) / layer).min(2);
    assert!(one.contains(&format!("experts of {fits} of 2 layers")), "{one}");
    let found = json(&format!("--memory {}", 16 << 20));
    assert_eq!(found["device"]["on_device"], serde_json::json!([0, 1]));
    assert_eq!(found["device"]["bytes"], 2 * layer);
}

#[test]
fn the_picture_has_a_curve_for_each_policy() {
    let svg = String::from_utf8(experts("--slots 2 --svg -", true).stdout).expect("UTF-8");
    assert!(svg.starts_with("<svg") && svg.trim_end().ends_with("</svg>"), "{svg}");
    for part in ["lru", "optimum", "hits (%)", "as it was", "in memory", "expert (number)"] {
        assert!(svg.contains(part), "'{part}'");
    }
}

#[test]
fn the_list_for_a_cache_has_the_most_needed_first() {
    let o = experts("--csv", true);
    let text = String::from_utf8(o.stdout).expect("UTF-8");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines, ["layer,expert,uses", "0,0,4", "0,1,4", "0,2,4", "1,0,4", "1,1,4", "1,2,4"]);
}

#[test]
fn the_table_says_what_the_rates_are_of() {
    let o = experts("--slots 2", true);
    let text = String::from_utf8(o.stdout).expect("UTF-8");
    for part in [
        "2 layers of 8 experts, 1 per token",
        "12 tokens of decode needed 24 experts",
        "optimum",
        "give what reading",
    ] {
        assert!(text.contains(part), "'{part}' in: {text}");
    }
}

#[test]
fn what_cannot_be_replayed_is_told() {
    let refused = |args: &str, with: bool, code: i32, part: &str| {
        let o = experts(args, with);
        let said = String::from_utf8_lossy(&o.stderr).into_owned();
        assert_eq!((o.status.code(), o.stdout.len()), (Some(code), 0), "{args}: {said}");
        assert!(said.contains(part), "'{part}' in: {said}");
    };
    refused("", false, 1, "record a mixture-of-experts model with --experts");
    refused("--storage run.pfi", true, 1, "run.pfi");
    refused("--slots 0", true, 2, "--slots");
    refused("--slots 2 --memory 1MiB", true, 2, "--memory");
    refused("--read-time fast", true, 2, "--read-time");
    refused("--pins none.csv", true, 1, "none.csv");
    refused("--pins run.pfi", true, 1, "run.pfi");
    refused("--storage run.pfi --readers 0", true, 2, "--readers");
    refused("--ot", true, 2, "--memory");
    refused("--by layer", true, 2, "--by");
    refused("--svg run.pfi", true, 2, "run.pfi");
}
