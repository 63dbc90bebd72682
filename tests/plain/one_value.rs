//! One quantity has one value: what a recording's views say of it, compared with each other. The texts for people are parsed.

use std::process::Command;

use serde_json::Value;

use crate::python_traces::traces;
use crate::synth_trace::footer;

/// What the views say of one recording.
struct Views {
    name: &'static str,
    json: Value,
    advise: Value,
    /// `report FILE`, each item in one line.
    text: String,
    all: String,
    html: String,
}

fn profinfer(args: &[&str]) -> String {
    let out = Command::new(env!("CARGO_BIN_EXE_profinfer")).args(args).output().expect("it runs");
    assert!(out.status.success(), "{args:?}: {}", String::from_utf8_lossy(&out.stderr));
    String::from_utf8(out.stdout).expect("UTF-8")
}

/// A wrapped item has its name in the first line only.
fn unwrapped(text: &str) -> String {
    let mut out = String::new();
    for line in text.lines() {
        match line.strip_prefix("           ") {
            Some(rest) if !rest.trim_start().starts_with('#') => out.push_str(&format!(" {rest}")),
            _ => out.push_str(&format!("\n{line}")),
        }
    }
    out
}

fn views() -> Vec<Views> {
    let dir = tempfile::tempdir().expect("a directory");
    let mut all = Vec::new();
    for (name, synth) in traces() {
        let file = dir.path().join(format!("{name}.pfi"));
        std::fs::write(&file, synth.enc.finish(&footer("target exited")).expect("a trace")).expect("written");
        let file = file.to_str().expect("UTF-8");
        let peak = ["--peak", "500,10"];
        let with = |args: &[&str]| profinfer(&[args, &peak, &[file]].concat());
        let parse = |text: String| serde_json::from_str(&text).expect("JSON");
        all.push(Views {
            name,
            json: parse(with(&["report", "--json"])),
            advise: parse(with(&["advise", "--json"])),
            text: unwrapped(&with(&["report"])),
            all: with(&["report", "--all"]),
            html: with(&["html", "-o", "-"])
                .replace("&#x27;", "'")
                .replace("&#39;", "'")
                .replace("&gt;", ">"),
        });
    }
    all
}

/// The item of this name in the verdict for people.
fn item<'t>(text: &'t str, name: &str) -> Option<&'t str> {
    text.lines().find_map(|line| line.strip_prefix(&format!("{name:<10} ")))
}

/// The same in the page.
fn in_page<'t>(html: &'t str, name: &str) -> Option<&'t str> {
    let (_, rest) = html.split_once(&format!("<dt>{name}</dt><dd>"))?;
    rest.split_once("</dd>").map(|(text, _)| text)
}

/// The number before a word.
fn before(text: &str, word: &str) -> Option<f64> {
    let (left, _) = text.split_once(word)?;
    left.rsplit([' ', ';', '(']).next()?.parse().ok()
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 0.0051 + 1e-9 * a.abs()
}

/// `None`: the view does not show it of this recording.
type ShownValue = fn(&Views) -> Option<f64>;

/// A quantity: its value in the JSON of `report`, and in each view that shows it, if it does.
struct Quantity {
    name: &'static str,
    value: ShownValue,
    shown: &'static [(&'static str, ShownValue)],
}

fn of_phase(v: &Views, phase: &str) -> Option<Value> {
    let phases = v.json["verdict"]["phases"].as_array()?;
    phases.iter().find(|p| p["phase"] == phase).cloned()
}

fn table(v: &Views, phase: &str) -> Option<Value> {
    v.json["phases"].as_array()?.iter().find(|p| p["phase"] == phase).cloned()
}

/// A row of the table "Prefill and decode" of `report --all`: its third column is tok/s.
fn row(v: &Views, phase: &str) -> Option<f64> {
    let (_, table) = v.all.split_once("\nPrefill and decode\n")?;
    let row = table.lines().take_while(|l| !l.is_empty()).find(|l| l.trim_start().starts_with(phase))?;
    row.split_whitespace().nth(3)?.parse().ok()
}

const QUANTITIES: &[Quantity] = &[
    Quantity {
        name: "decode, tokens per second",
        value: |v| of_phase(v, "decode")?["tokens_per_s"].as_f64(),
        shown: &[
            ("report --json, phases", |v| table(v, "decode")?["tokens_per_s"].as_f64()),
            ("report", |v| before(item(&v.text, "Decode")?, " tok/s")),
            ("report --all", |v| row(v, "decode")),
            ("html", |v| before(in_page(&v.html, "Decode")?, " tok/s")),
        ],
    },
    Quantity {
        name: "prefill, tokens per second",
        value: |v| of_phase(v, "prefill")?["tokens_per_s"].as_f64(),
        shown: &[
            ("report --json, phases", |v| table(v, "prefill")?["tokens_per_s"].as_f64()),
            ("report", |v| before(item(&v.text, "Prefill")?, " tok/s")),
            ("report --all", |v| row(v, "prefill")),
            ("html", |v| before(in_page(&v.html, "Prefill")?, " tok/s")),
        ],
    },
    Quantity {
        name: "decode, p50 of a call",
        value: |v| of_phase(v, "decode")?["latency"]["p50_ns"].as_f64(),
        shown: &[("report --json, phases", |v| table(v, "decode")?["latency"]["p50_ns"].as_f64())],
    },
    Quantity {
        name: "decode, share of the ceiling in percent",
        value: |v| Some((of_phase(v, "decode")?["ceiling"]["reached"].as_f64()? * 100.0).round()),
        shown: &[
            ("report", |v| before(item(&v.text, "Decode")?, " % reached")),
            ("html", |v| before(in_page(&v.html, "Decode")?, " % reached")),
            ("report, limit", |v| {
                let limit = item(&v.text, "Limit")?;
                before(limit, " % of the ceiling")
            }),
        ],
    },
    Quantity {
        name: "all shares of a call together",
        value: |_| Some(1.0),
        shown: &[
            ("report --json", |v| {
                let bar = of_phase(v, "decode")?["bar"].as_object()?.clone();
                let sum: f64 = bar.values().filter_map(Value::as_f64).sum();
                Some((sum * 1e9).round() / 1e9)
            }),
            ("report", |v| {
                let line = v.text.lines().find(|l| l.trim_start().starts_with("# "))?;
                let shares =
                    line.split(" % ").filter_map(|part| part.rsplit(' ').next()?.parse::<f64>().ok());
                Some(shares.sum::<f64>() / 100.0)
            }),
        ],
    },
    Quantity {
        name: "weights, MiB or KiB",
        value: |v| {
            let bytes = v.json["model"]["weight_bytes"].as_f64().filter(|bytes| *bytes > 0.0)?;
            format!("{:.1}", bytes / 1024.0).parse().ok()
        },
        shown: &[("report --all", |v| {
            let line = v.all.lines().find(|l| l.trim_start().starts_with("weights "))?;
            before(line, " KiB in")
        })],
    },
    Quantity {
        name: "pieces of advice",
        value: |v| Some(v.json["verdict"]["advice"].as_array()?.len() as f64),
        shown: &[
            ("advise --json", |v| Some(v.advise["advice"].as_array().or(v.advise.as_array())?.len() as f64)),
            ("report, none", |v| item(&v.text, "Advice")?.starts_with("none: ").then_some(0.0)),
        ],
    },
    Quantity {
        name: "complete",
        value: |v| Some(f64::from(u8::from(v.json["quality"]["complete"].as_bool()?))),
        shown: &[
            ("report", |v| {
                let said = item(&v.text, "Recording")?;
                Some(f64::from(u8::from(!said.starts_with("NOT complete"))))
            }),
            ("html", |v| Some(f64::from(u8::from(!v.html.contains("NOT complete"))))),
        ],
    },
];

#[test]
fn every_view_says_the_same() {
    let all = views();
    assert!(all.len() >= 12);
    for quantity in QUANTITIES {
        let mut compared = vec![0; quantity.shown.len()];
        for v in &all {
            let Some(value) = (quantity.value)(v) else { continue };
            for ((view, shown), n) in quantity.shown.iter().zip(&mut compared) {
                let Some(shown) = shown(v) else { continue };
                assert!(
                    near(value, shown),
                    "{}: {} is {value}, but {shown} in {view}",
                    v.name,
                    quantity.name
                );
                *n += 1;
            }
        }
        println!("{}: {compared:?} recordings", quantity.name);
        assert!(compared.iter().all(|n| *n > 0), "{}: not found in all of its views", quantity.name);
    }
}

/// Sentences are the same wherever they stand.
#[test]
fn limit_and_advice_are_the_same_sentences() {
    for v in views() {
        let limit = &v.json["verdict"]["limit"]["text"];
        assert_eq!(limit.as_str(), item(&v.text, "Limit"), "{}", v.name);
        if let Some(limit) = limit.as_str() {
            assert!(v.html.contains(limit), "{}: {limit}", v.name);
        }
        for advice in v.json["verdict"]["advice"].as_array().into_iter().flatten() {
            let title = advice["title"].as_str().expect("a title");
            assert!(v.html.contains(title) && v.advise.to_string().contains(title), "{}: {title}", v.name);
        }
    }
}
