//! Metrics in Prometheus' text format, version 0.0.4.

use std::fmt::Write;

use super::family::{Family, Kind, Label, Value, plain};
use common::plain::hides;

/// The complete text. Writing to a String cannot fail, so errors are ignored here and below.
pub fn text(families: &[Family]) -> String {
    let mut out = String::with_capacity(16 << 10);
    for family in families {
        let name = family.metric.exposed();
        let kind = match family.metric.kind {
            Kind::Gauge => "gauge",
            Kind::Counter => "counter",
            Kind::Histogram => "histogram",
        };
        let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {kind}", family.metric.help);
        for point in &family.points {
            match &point.value {
                Value::Whole(n) => sample(&mut out, &name, "", &point.labels, None, &n.to_string()),
                Value::Number(x) => sample(&mut out, &name, "", &point.labels, None, &number(*x)),
                Value::Histogram(histogram, bounds) => {
                    let mut below = 0u64;
                    for (n, bound) in histogram.counts.iter().zip(*bounds) {
                        below = below.saturating_add(*n);
                        let le = number(seconds(*bound));
                        sample(&mut out, &name, "_bucket", &point.labels, Some(&le), &below.to_string());
                    }
                    let all = histogram.count().to_string();
                    sample(&mut out, &name, "_bucket", &point.labels, Some("+Inf"), &all);
                    let sum = number(seconds(histogram.sum_ns));
                    sample(&mut out, &name, "_sum", &point.labels, None, &sum);
                    sample(&mut out, &name, "_count", &point.labels, None, &all);
                }
            }
        }
    }
    out
}

/// Nanoseconds as seconds.
pub fn seconds(ns: u64) -> f64 {
    ns as f64 / 1e9
}

fn number(x: f64) -> String {
    match x {
        x if x == f64::INFINITY => "+Inf".into(),
        x if x == f64::NEG_INFINITY => "-Inf".into(),
        x => x.to_string(),
    }
}

fn sample(out: &mut String, name: &str, suffix: &str, labels: &[Label], le: Option<&str>, value: &str) {
    let _ = write!(out, "{name}{suffix}");
    let all = labels.iter().map(|(label, text)| (plain(label), text.as_str()));
    let mut open = '{';
    for (label, text) in all.chain(le.map(|le| ("le".into(), le))) {
        let _ = write!(out, "{open}{label}=\"");
        escape(out, text);
        out.push('"');
        open = ',';
    }
    let _ = writeln!(out, "{} {value}", if open == ',' { "}" } else { "" });
}

/// A label's value: whatever a target calls itself, it remains one value on one line, and is shown unchanged.
fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        match c {
            '\\' => out.push_str("\\\\"),
            '"' => out.push_str("\\\""),
            '\n' => out.push_str("\\n"),
            c if hides(c) => {
                let _ = write!(out, "\\\\x{:02x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
}
