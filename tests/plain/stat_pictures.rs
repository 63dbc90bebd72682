//! `profinfer stat --svg`: marks are where the figures of the table say, axes have units, and what is missing is an error.

use crate::dag_support;
use crate::html_support;
use crate::synth_trace;

use std::path::Path;

use dag_support::well_formed;
use html_support::{profinfer, rich, text};
use serde_json::Value;
use synth_trace::*;

const PROMPT: u64 = 8;

/// A prompt and `n` tokens; RoPE takes 50 ns more for each token of context.
fn growing(spec: Spec, n: u64) -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), spec);
    s.call(PROMPT as u32, |_, _| 1000);
    for i in 0..n {
        s.call(1, |p, t| {
            let grown = if p == 3 { 50 * (PROMPT + 1 + i) } else { 0 };
            2000 + 100 * p as u64 + 500 * u64::from(t) + grown + (i * 31 + p as u64 * 7) % 13
        });
    }
    s.enc.finish(&footer("target exited")).unwrap()
}

fn place(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    files.iter().for_each(|(name, bytes)| std::fs::write(dir.path().join(name), bytes).unwrap());
    dir
}

fn svg(dir: &Path, args: &[&str]) -> String {
    let out = profinfer(dir, &[&["stat"], args, &["--svg", "-"]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    let svg = text(&out.stdout);
    well_formed(&svg);
    let again = profinfer(dir, &[&["stat"], args, &["--svg", "-"]].concat());
    assert_eq!(svg, text(&again.stdout), "the drawing is always the same");
    svg
}

fn json(dir: &Path, args: &[&str]) -> Value {
    let out = profinfer(dir, &[&["stat"], args, &["--json"]].concat());
    assert!(out.status.success(), "{}", text(&out.stderr));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// The number after a text.
fn after(line: &str, what: &str) -> f64 {
    let rest = &line[line.find(what).unwrap() + what.len()..];
    rest.split(|c: char| c != '-' && c != '.' && !c.is_ascii_digit()).next().unwrap().parse().unwrap()
}

/// A drawn panel: maps positions back to values by the labels of its first and last tick.
struct Drawn<'s> {
    svg: &'s str,
    ends: [[(f64, f64); 2]; 2],
    log: [bool; 2],
}

impl Drawn<'_> {
    fn panel(svg: &str, n: usize) -> Drawn<'_> {
        let svg = svg.split("<g class=\"panel\">").nth(n + 1).unwrap();
        let axis = |name: &str, at: &str| {
            let part =
                svg.split(&format!("<g class=\"{name}\"")).nth(1).unwrap().split("</g>").next().unwrap();
            let labels = part.lines().filter_map(|line| {
                let value = line.strip_suffix("</text>")?.rsplit('>').next()?.parse::<f64>().ok()?;
                // Labels of the vertical axis are 4 below their line.
                Some((after(line, at) - if at == " y=\"" { 4.0 } else { 0.0 }, value))
            });
            let labels: Vec<(f64, f64)> = labels.collect();
            ([labels[0], labels[labels.len() - 1]], part.contains(", logarithmic"))
        };
        let (x, y) = (axis("x-axis", " x=\""), axis("y-axis", " y=\""));
        Drawn { svg, ends: [x.0, y.0], log: [x.1, y.1] }
    }

    fn value(&self, axis: usize, at: f64) -> f64 {
        let [(p, low), (q, high)] = self.ends[axis];
        let share = (at - p) / (q - p);
        if self.log[axis] { low * (high / low).powf(share) } else { low + (high - low) * share }
    }

    /// The marks of all series, as values.
    fn marks(&self) -> Vec<(f64, f64)> {
        let groups = self.svg.split("<g class=\"marks\"").skip(1).map(|g| g.split("</g>").next().unwrap());
        let paths = groups.flat_map(|g| g.split("<path d=\"M").skip(1));
        let place = |path: &str| {
            let (x, rest) = path.split_once(' ').unwrap();
            let y = rest.split('m').next().unwrap();
            (self.value(0, x.parse().unwrap()), self.value(1, y.parse().unwrap()))
        };
        paths.map(place).collect()
    }

    /// Each value has its mark: positions are written to a tenth of a pixel, of some hundred.
    fn has(&self, values: &[(f64, f64)]) {
        let near = |axis: usize, a: f64, b: f64| {
            let [(_, low), (_, high)] = self.ends[axis];
            if self.log[axis] {
                (a / b).ln().abs() < 0.004 * (high / low).ln()
            } else {
                (a - b).abs() < 0.002 * high
            }
        };
        let marks = self.marks();
        assert_eq!(marks.len(), values.len());
        for (x, y) in values {
            assert!(marks.iter().any(|(u, v)| near(0, *u, *x) && near(1, *v, *y)), "{x} {y}: {marks:?}");
        }
    }
}

#[test]
fn tokens_are_drawn_where_the_table_says() {
    let dir = place(&[("run", &growing(Spec::default(), 200))]);
    let d = json(dir.path(), &["run", "tokens"]);
    let drawing = svg(dir.path(), &["run", "tokens"]);
    assert!(
        drawing.contains("context length (tokens)</text>") && drawing.contains("time per call (us)</text>")
    );
    let points = |of: &Value| -> Vec<(f64, f64)> {
        let number = |p: &Value, i: usize| p[i].as_f64().unwrap();
        of["points"].as_array().unwrap().iter().map(|p| (number(p, 0), number(p, 1) / 1e3)).collect()
    };
    // Each call is a point. This model's attention has none of the names by which it is known.
    let each = |key: &str| -> Vec<(f64, f64)> {
        let all = d["tokens"]["each"].as_array().unwrap().iter();
        all.filter_map(|p| Some((p["context"].as_f64()?, p[key].as_f64()? / 1e3))).collect()
    };
    let (call, attention) = (each("call_ns"), each("attention_ns"));
    assert_eq!((call.len(), attention.len()), (200, 0));
    assert!(drawing.contains("No op of attention was recognised"), "{drawing}");
    Drawn::panel(&drawing, 0).has(&call);
    let rope = points(&d["tokens"]["ops"][0]);
    Drawn::panel(&drawing, 1).has(&rope);
    assert!(drawing.contains(">ROPE  Qcur-{L}: +50.0"), "{drawing}");
    let marks = call.len() + rope.len();
    assert_eq!(drawing.matches("<title>").count(), marks + 2, "a tooltip on each mark and line");
}

#[test]
fn multiplications_are_drawn_where_the_table_says() {
    let dir = place(&[("run", &growing(Spec::default(), 20))]);
    let d = json(dir.path(), &["run", "ops"]);
    let drawing = svg(dir.path(), &["run", "ops"]);
    let rows = d["ops"]["rows"].as_array().unwrap();
    assert!(rows.iter().any(|r| r["weights"] == "q4_0"), "{d:#}");
    let number = |r: &Value, key: &str| r[key].as_f64().unwrap();
    let at = |r: &Value| (number(r, "flops") / 1e6, number(r, "ns") / 1e3);
    Drawn::panel(&drawing, 0).has(&rows.iter().map(at).collect::<Vec<_>>());
    assert!(drawing.contains("(MFLOP), logarithmic</text>") && drawing.contains("(us), logarithmic</text>"));
    assert!(drawing.contains(">weights of q4_0</text>") && drawing.contains(">fitted line: "), "{drawing}");
}

#[test]
fn multiplications_of_several_recordings_have_a_line_each() {
    let larger = Spec { layers: 3, ..Spec::default() };
    let dir = place(&[("a", &growing(Spec::default(), 20)), ("b", &growing(larger, 20))]);
    let d = json(dir.path(), &["a", "ops", "--beside", "b"]);
    let models = d["models"].as_array().unwrap();
    assert_eq!(models.iter().map(|m| m["file"].as_str().unwrap()).collect::<Vec<_>>(), ["a", "b"]);
    assert_eq!(models[0]["products"], d["ops"]);
    assert_eq!(models[1]["products"], json(dir.path(), &["b", "ops"])["ops"]);
    let drawing = svg(dir.path(), &["a", "ops", "--beside", "b"]);
    let number = |r: &Value, key: &str| r[key].as_f64().unwrap();
    let rows = models.iter().flat_map(|m| m["products"]["rows"].as_array().unwrap());
    let at = |r: &Value| (number(r, "bytes") / 1e6, number(r, "ns") / 1e3);
    Drawn::panel(&drawing, 0).has(&rows.map(at).collect::<Vec<_>>());
    for m in models {
        let rate = number(&m["products"]["bytes"], "giga_per_s");
        let name = format!(">{}, 2 threads: {rate:.2} GB/s</text>", m["file"].as_str().unwrap());
        assert!(drawing.contains(&name), "{name}: {drawing}");
    }
    assert!(drawing.contains("class=\"label\"") && drawing.contains(">ffn_up-{L}</text>"), "{drawing}");
    let table = text(&profinfer(dir.path(), &["stat", "a", "ops", "--beside", "b", "--csv"]).stdout);
    assert!(
        table.starts_with("GB/s,at 0 us,R2,shapes,threads,file\r\n") && table.lines().count() == 3,
        "{table}"
    );
}

/// Each choice of the layer is in a stroke of its expert, at its token.
#[test]
fn experts_of_a_layer_are_drawn_over_the_tokens() {
    let dir = place(&[("run", &rich(40))]);
    let d = json(dir.path(), &["run", "activation"]);
    let layer = d["activation"]["layers"].as_array().unwrap().last().unwrap();
    let number = layer["layer"].as_u64().unwrap().to_string();
    let drawing = svg(dir.path(), &["run", "activation", "--layer", &number]);
    let map = Drawn::panel(&drawing, 0);
    let path = map.svg.split("class=\"strokes\" d=\"").nth(1).unwrap().split('"').next().unwrap();
    let mut drawn = 0.0;
    for stroke in path.split('M').skip(1) {
        let (from, rest) = stroke.split_once(' ').unwrap();
        let (y, to) = rest.split_once('H').unwrap();
        let at = |axis: usize, text: &str| map.value(axis, text.parse().unwrap());
        let (from, to, expert) = (at(0, from), at(0, to), at(1, y).round());
        for token in from.round() as usize..to.round() as usize {
            let bin = layer["bins"][token].as_array().unwrap();
            assert!(bin.iter().any(|c| c[0].as_f64() == Some(expert)), "{token} {expert}: {bin:?}");
            drawn += 1.0;
        }
    }
    let choices: usize = layer["bins"].as_array().unwrap().iter().map(|b| b.as_array().unwrap().len()).sum();
    assert_eq!(drawn, choices as f64);
    // Its times and distances are those of the view `reuse`.
    let reuse = json(dir.path(), &["run", "reuse"]);
    let points = reuse["reuse"]["points"].as_array().unwrap().iter();
    let points: Vec<&Value> = points.filter(|p| p["layer"] == layer["layer"]).collect();
    let at = |key: &str, each: f64| -> Vec<(f64, f64)> {
        let all = points.iter().filter_map(|p| Some((p["token"].as_f64()?, p[key].as_f64()? / each)));
        all.collect()
    };
    Drawn::panel(&drawing, 2).has(&at("ns", 1e3));
    assert_eq!(Drawn::panel(&drawing, 3).marks().len(), at("distance", 1.0).len());
    let out = profinfer(dir.path(), &["stat", "run", "activation", "--layer", "99", "--svg", "-"]);
    assert!(text(&out.stderr).contains("no experts of layer 99"), "{}", text(&out.stderr));
}

#[test]
fn recordings_are_drawn_by_their_threads() {
    let with = |threads| growing(Spec { threads, ..Spec::default() }, 20);
    let dir = place(&[("one", &with(1)), ("two", &with(2)), ("four", &with(4))]);
    let d = json(dir.path(), &["two", "threads", "--beside", "four,one"]);
    let runs = d["scaling"]["runs"].as_array().unwrap();
    let threads: Vec<_> =
        runs.iter().map(|r| (r["threads"].as_u64().unwrap(), r["file"].as_str().unwrap())).collect();
    assert_eq!(threads, [(1, "one"), (2, "two"), (4, "four")]);
    assert_eq!(
        (&d["scaling"]["traffic"], &d["scaling"]["waiting"]),
        (&"cost_model".into(), &"barriers".into())
    );
    assert_eq!((&d["scaling"]["other_models"], &runs[0]["barrier_share"]), (&false.into(), &0.0.into()));
    assert!(runs.iter().all(|r| r["counted_gb_per_s"].is_null()), "{d:#}");
    // The same work: only the time differs.
    let bytes = |i: usize| runs[i]["model_bytes"].as_f64().unwrap();
    assert!(bytes(0) > 10_000.0 && bytes(0) == bytes(1) && bytes(0) == bytes(2), "{d:#}");
    let rate = runs[1]["model_gb_per_s"].as_f64().unwrap();
    assert!((rate - bytes(1) / runs[1]["call_ns"].as_f64().unwrap()).abs() < 1e-9);

    let drawing = svg(dir.path(), &["two", "threads", "--beside", "four,one"]);
    for (panel, key, factor) in
        [(0, "call_ns", 1e-3), (1, "model_gb_per_s", 1.0), (2, "barrier_share", 100.0)]
    {
        let value = |r: &Value| (r["threads"].as_f64().unwrap(), r[key].as_f64().unwrap() * factor);
        Drawn::panel(&drawing, panel).has(&runs.iter().map(value).collect::<Vec<_>>());
    }
    // Each multiplication of each recording, as the view `ops` has them.
    assert_eq!(runs[1]["products"], json(dir.path(), &["two", "ops"])["ops"]);
    let products = runs.iter().flat_map(|r| r["products"]["rows"].as_array().unwrap());
    let at = |r: &Value| (r["bytes"].as_f64().unwrap() / 1e6, r["ns"].as_f64().unwrap() / 1e3);
    Drawn::panel(&drawing, 3).has(&products.map(at).collect::<Vec<_>>());
    assert!(
        drawing.contains("traffic (GB/s), cost model</text>")
            && drawing.contains("time at barriers (%)</text>")
    );
    let shown = text(&profinfer(dir.path(), &["stat", "two", "threads", "--beside", "four,one"]).stdout);
    assert!(
        shown.contains("By number of threads, decode")
            && shown.contains("memory traffic: bytes of the cost model")
    );
    let csv =
        text(&profinfer(dir.path(), &["stat", "two", "threads", "--beside", "four,one", "--csv"]).stdout);
    assert!(
        csv.starts_with("threads,ms/call,model GB/s,counted GB/s,stalled %,barrier %,file\r\n1,"),
        "{csv}"
    );
}

#[test]
fn counted_traffic_is_drawn_if_all_recordings_have_it() {
    let dir = place(&[
        ("a", &rich(8)),
        ("b", &rich(9)),
        ("plain", &growing(Spec { threads: 1, ..Spec::default() }, 20)),
    ]);
    let d = json(dir.path(), &["a", "threads", "--beside", "b"]);
    assert_eq!(d["scaling"]["traffic"], "counted");
    let run = &d["scaling"]["runs"][0];
    assert_eq!(run["counter"], "l3d_cache_refill");
    // Lines of 64 bytes: 1001 and two more at each position, on each of two threads.
    let ops = d["scaling"]["runs"][0]["counted_bytes"].as_f64().unwrap() / 128.0;
    let n = (1..200).find(|n| f64::from(1001 * n + n * (n - 1)) == ops.round());
    assert!(n.is_some(), "{ops}");
    let out = profinfer(dir.path(), &["stat", "a", "threads", "--beside", "b", "--svg", "-"]);
    assert!(
        text(&out.stderr).contains("all recordings have 2 threads: record the same work with other numbers")
    );
    assert_eq!((out.status.code(), out.stdout.len()), (Some(1), 0));
    // One without counters: the cost model for all, and the axis says so.
    let drawing = svg(dir.path(), &["a", "threads", "--beside", "plain"]);
    assert!(drawing.contains("traffic (GB/s), cost model</text>"), "{drawing}");
    assert!(drawing.contains("do not show the same model"), "{drawing}");
}

#[test]
fn shapes_are_drawn_in_both_places() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    for i in 0..20 {
        s.backend = if i % 2 == 0 { ([7; 16], "CPU") } else { ([9; 16], "AMX") };
        s.call(1, |p, _| 1000 * (1 + i % 2) + p as u64);
    }
    let dir = place(&[("run", &s.enc.finish(&footer("target exited")).unwrap())]);
    let d = json(dir.path(), &["run", "shapes"]);
    let drawing = svg(dir.path(), &["run", "shapes"]);
    let rows = d["shapes"]["rows"].as_array().unwrap();
    let us = |r: &Value, i: usize| r["cells"][i]["median_ns"].as_f64().unwrap() / 1e3;
    Drawn::panel(&drawing, 1).has(&rows.iter().map(|r| (us(r, 0), us(r, 1))).collect::<Vec<_>>());
    // The multiplications, against the size of their matrix, in both places.
    let products = rows.iter().filter(|r| r["op"].as_str().unwrap().starts_with("MUL_MAT"));
    let sized = products.flat_map(|r| [0, 1].map(|i| (r["elements"].as_f64().unwrap() / 1e6, us(r, i))));
    Drawn::panel(&drawing, 0).has(&sized.collect::<Vec<_>>());
    assert!(drawing.contains("Fastest for every matrix: CPU from "), "{drawing}");
    assert!(drawing.contains(">time on CPU (us), logarithmic</text>"), "{drawing}");
    assert!(drawing.contains(">time on AMX (us), logarithmic</text>"), "{drawing}");
}

#[test]
fn expert_reuse_is_drawn_token_by_token() {
    let dir = place(&[("run", &rich(40))]);
    let d = json(dir.path(), &["run", "reuse"]);
    let points = d["reuse"]["points"].as_array().unwrap();
    assert_eq!(
        (points.len() as u64, d["reuse"]["each"].as_u64()),
        (d["reuse"]["n"].as_u64().unwrap(), Some(1))
    );
    assert!(points.iter().all(|p| p["major_faults"].is_null()), "other counters only");
    let drawing = svg(dir.path(), &["run", "reuse"]);
    let marks = Drawn::panel(&drawing, 0).marks();
    assert_eq!(marks.len(), points.len());
    let near = |a: f64, b: f64| (a / b - 1.0).abs() < 0.01;
    for p in points.iter().filter(|p| p["distance"].is_f64()) {
        let (x, y) = (p["distance"].as_f64().unwrap(), p["ns"].as_f64().unwrap() / 1e3);
        assert!(marks.iter().any(|(u, v)| near(*u, x) && near(*v, y)), "{p}");
    }
    assert!(drawing.contains(">first use</text>") && drawing.contains("record --faults"), "{drawing}");
}

#[test]
fn the_roofline_is_drawn_below_its_peaks() {
    let dir = place(&[("run", &growing(Spec::default(), 20))]);
    let d = json(dir.path(), &["run", "roofline", "--peak", "100,10"]);
    let drawing = svg(dir.path(), &["run", "roofline", "--peak", "100,10"]);
    let number = |r: &Value, key: &str| r[key].as_f64().unwrap();
    let rows = d["roofline"]["rows"].as_array().unwrap().iter();
    let placed = rows.map(|r| (number(r, "flops_per_byte"), number(r, "gflop_per_s"))).filter(|p| p.0 > 0.0);
    Drawn::panel(&drawing, 0).has(&placed.collect::<Vec<_>>());
    assert!(drawing.contains(">memory roof: 10.0 GB/s</text>") && drawing.contains(">f32: 100 GOP/s</text>"));
}

#[test]
fn a_picture_goes_where_it_is_told_and_over_nothing() {
    let dir = place(&[("run.pfi", &growing(Spec::default(), 40))]);
    let to = |args: &[&str]| profinfer(dir.path(), &[&["stat", "run.pfi", "tokens", "--svg"], args].concat());
    assert!(to(&["t.svg"]).status.success());
    let first = std::fs::read(dir.path().join("t.svg")).unwrap();
    assert_eq!(first, to(&["-"]).stdout);
    let again = to(&["t.svg"]);
    assert!(!again.status.success() && text(&again.stderr).contains("--force"), "{}", text(&again.stderr));
    assert!(to(&["t.svg", "--force"]).status.success());
    let over = to(&["run.pfi", "--force"]);
    assert_eq!(over.status.code(), Some(2));
    assert!(text(&over.stderr).contains("run.pfi is the input"), "{}", text(&over.stderr));
}

#[test]
fn what_cannot_be_drawn_is_an_error_that_says_what_to_record() {
    let short = growing(Spec::default(), 8);
    let bare = growing(Spec { structure: false, ..Spec::default() }, 40);
    let dir = place(&[("short", &short), ("bare", &bare)]);
    let cases: [(&[&str], i32, &str); 14] = [
        (&["short", "tokens"], 1, "record a run of more tokens"),
        (&["bare", "ops"], 1, "record without --no-str"),
        (&["short", "reuse"], 1, "record a mixture-of-experts model with --experts"),
        (&["short", "shapes"], 1, "add a recording of the other backend with --beside"),
        (&["short", "threads"], 1, "with other numbers of threads, with --beside"),
        (&["short", "roofline"], 1, "--peak"),
        (&["short"], 2, "--svg requires a VIEW: tokens, ops"),
        (&["short", "experts"], 2, "this view has no picture: expected tokens, ops"),
        (&["short", "tokens", "--json"], 2, "cannot be combined"),
        (&["short", "tokens", "--csv"], 2, "cannot be combined"),
        (&["short", "tokens", "--beside", "bare"], 2, "--beside applies to"),
        (
            &["short", "shapes", "--beside", "bare,short"],
            2,
            "several traces in the views threads and ops only",
        ),
        (&["short", "tokens", "--layer", "1"], 2, "--layer applies to the picture of the view activation"),
        (&["short", "activation"], 1, "record a mixture-of-experts model with --experts"),
    ];
    for (args, code, want) in cases {
        let out = profinfer(dir.path(), &[&["stat"], args, &["--svg", "x.svg"]].concat());
        let said = text(&out.stderr);
        assert_eq!(out.status.code(), Some(code), "{args:?}: {said}");
        assert!(said.contains(want) && said.lines().count() == 1, "{args:?}: {said}");
        assert!(!dir.path().join("x.svg").exists() && out.stdout.is_empty(), "{args:?}");
    }
}

#[test]
fn a_graph_is_coloured_by_counted_bytes() {
    let dir = place(&[("run", &rich(6)), ("plain", &growing(Spec::default(), 6))]);
    let dag = |args: &[&str]| {
        let out = profinfer(dir.path(), &[&["dag"], args].concat());
        assert!(out.status.success(), "{}", text(&out.stderr));
        text(&out.stdout)
    };
    let d: Value = serde_json::from_str(&dag(&["run", "--format", "json"])).unwrap();
    let nodes = d["nodes"].as_array().unwrap();
    for n in nodes.iter().filter(|n| n["order"].is_u64() && n["time_ns"].is_object()) {
        // Lines of 64 bytes, on two threads.
        let want = 2 * 64 * (1001 + 2 * n["order"].as_u64().unwrap());
        assert_eq!(n["counted_bytes"]["median"].as_u64(), Some(want), "{n}");
    }
    let share: f64 = nodes.iter().filter_map(|n| n["time_share"].as_f64()).sum();
    assert!((share - 1.0).abs() < 1e-9, "{share}");
    let drawing = dag(&["run", "--metric", "bytes", "--fold", "--format", "svg"]);
    well_formed(&drawing);
    assert!(drawing.contains(
        "counted: bytes of missed cache lines in a call, all threads (counter l3d_cache_refill), "
    ));
    assert!(drawing.contains("<g id=\"bar\">") && drawing.contains("\nshare of the time: "), "{drawing}");
    let bar = drawing.split("<g id=\"bar\">").nth(1).unwrap().split("</g>").next().unwrap();
    assert_eq!(bar.matches("KiB</text>").count(), 3, "{bar}");
    // Not counted: those of the cost model.
    let drawing = dag(&["plain", "--metric", "bytes", "--format", "svg"]);
    assert!(drawing.contains("bytes: bytes read and written in a call, by the cost model, "), "{drawing}");
}
