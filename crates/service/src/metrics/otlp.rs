//! Metrics as an `ExportMetricsServiceRequest` of OpenTelemetry's protocol, in its JSON encoding: 64-bit integers are
//! strings, enumerations are numbers (opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding").

use std::fmt::Write;

use super::exposition::seconds;
use super::family::{Family, Kind, Point, Value};

/// `AGGREGATION_TEMPORALITY_CUMULATIVE`.
const CUMULATIVE: u32 = 2;
/// Name of what measures, in OpenTelemetry's words the instrumentation scope.
const SCOPE: &str = "profinfer";

/// When the counts began, and now: ns since 1970.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    pub began: u64,
    pub now: u64,
}

/// The request, with these attributes of the resource: name and value. Written as text: a tree of values is many times as
/// large. Writing to a String cannot fail, so errors are ignored here and below.
pub fn request(families: &[Family], resource: &[(String, String)], version: &str, times: Times) -> String {
    let mut out = String::with_capacity(64 << 10);
    out.push_str("{\"resourceMetrics\":[{\"resource\":");
    attributes(&mut out, resource.iter().map(|(key, value)| (key.as_str(), value.as_str())));
    let _ = write!(out, "}},\"scopeMetrics\":[{{\"scope\":{{\"name\":\"{SCOPE}\",\"version\":");
    quoted(&mut out, version);
    out.push_str("},\"metrics\":");
    list(&mut out, families, &mut |out, family| metric(out, family, times));
    out.push_str("}]}]}");
    out
}

/// A list of things.
fn list<T>(out: &mut String, all: &[T], one: &mut dyn FnMut(&mut String, &T)) {
    out.push('[');
    for (i, of) in all.iter().enumerate() {
        if i > 0 {
            out.push(',');
        }
        one(out, of);
    }
    out.push(']');
}

/// A text in quotes.
fn quoted(out: &mut String, text: &str) {
    let _ = write!(out, "{}", serde_json::Value::from(text));
}

/// The beginning of an object with attributes; the object is left open.
fn attributes<'a>(out: &mut String, all: impl Iterator<Item = (&'a str, &'a str)>) {
    out.push_str("{\"attributes\":[");
    for (i, (key, value)) in all.enumerate() {
        out.push_str(if i == 0 { "{\"key\":" } else { ",{\"key\":" });
        quoted(out, key);
        out.push_str(",\"value\":{\"stringValue\":");
        quoted(out, value);
        out.push_str("}}");
    }
    out.push(']');
}

fn metric(out: &mut String, family: &Family, times: Times) {
    let of = family.metric;
    let (key, more) = match of.kind {
        Kind::Gauge => ("gauge", ""),
        Kind::Counter => ("sum", ",\"isMonotonic\":true"),
        Kind::Histogram => ("histogram", ""),
    };
    out.push_str("{\"name\":");
    quoted(out, of.name);
    out.push_str(",\"description\":");
    quoted(out, of.help);
    out.push_str(",\"unit\":");
    quoted(out, of.unit);
    let _ = write!(out, ",\"{key}\":{{\"dataPoints\":");
    list(out, &family.points, &mut |out, p| point(out, p, of.kind, times));
    if of.kind != Kind::Gauge {
        let _ = write!(out, ",\"aggregationTemporality\":{CUMULATIVE}{more}");
    }
    out.push_str("}}");
}

fn point(out: &mut String, point: &Point, kind: Kind, times: Times) {
    attributes(out, point.labels.iter().map(|(key, value)| (*key, value.as_str())));
    let _ = write!(out, ",\"timeUnixNano\":\"{}\"", times.now);
    if kind != Kind::Gauge {
        // A clock that was set back must not make the beginning later than now.
        let _ = write!(out, ",\"startTimeUnixNano\":\"{}\"", times.began.min(times.now));
    }
    match &point.value {
        // It is a signed number there.
        Value::Whole(n) => {
            let _ = write!(out, ",\"asInt\":\"{}\"", (*n).min(i64::MAX as u64));
        }
        Value::Number(x) => {
            out.push_str(",\"asDouble\":");
            number(out, *x);
        }
        Value::Histogram(histogram, bounds) => {
            let _ = write!(out, ",\"count\":\"{}\",\"sum\":", histogram.count());
            number(out, seconds(histogram.sum_ns));
            out.push_str(",\"bucketCounts\":");
            let counts = histogram.counts.get(..=bounds.len()).unwrap_or_default();
            list(out, counts, &mut |out, n| {
                let _ = write!(out, "\"{n}\"");
            });
            out.push_str(",\"explicitBounds\":");
            list(out, bounds, &mut |out, &ns| number(out, seconds(ns)));
        }
    }
    out.push('}');
}

/// A number; one that is none is a text in this encoding.
fn number(out: &mut String, x: f64) {
    let _ = match x {
        x if x.is_finite() => write!(out, "{x}"),
        x if x.is_nan() => write!(out, "\"NaN\""),
        x => write!(out, "\"{}Infinity\"", if x > 0.0 { "" } else { "-" }),
    };
}

#[cfg(test)]
mod tests {
    use super::super::family::{Families, Metric};
    use super::*;
    use agent::recorder::tally::{Histogram, OUTPUT_TOKEN_NS};
    use serde_json::{Value as Json, json};

    #[test]
    fn integers_are_texts_and_counts_have_a_beginning() {
        static UP: Metric = Metric::new("a.up", "", Kind::Gauge, "Up.");
        static SEEN: Metric = Metric::new("a.seen", "{run}", Kind::Counter, "Seen.");
        static TIME: Metric = Metric::new("a.time", "s", Kind::Histogram, "Time.");
        let mut histogram = Histogram::default();
        [5_000_000, 60_000_000, 9_000_000_000]
            .into_iter()
            .for_each(|ns| histogram.observe(&OUTPUT_TOKEN_NS, ns));
        let mut families = Families::default();
        families.add(&UP, Vec::new(), Value::Number(0.5));
        families.count(&SEEN, Some(("b.c", "x \"y\"\n\\z")), u64::MAX);
        families.add(&TIME, Vec::new(), Value::Histogram(Box::new(histogram), &OUTPUT_TOKEN_NS));
        for x in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY] {
            families.add(&UP, Vec::new(), Value::Number(x));
        }
        let resource = [("service.name".to_owned(), "profinfer".to_owned())];
        let text = request(&families.0, &resource, "1", Times { began: 30, now: 20 });
        let json: Json = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        let of = &json["resourceMetrics"][0];
        assert_eq!(of["resource"]["attributes"][0]["value"]["stringValue"], "profinfer");
        let metrics = &of["scopeMetrics"][0]["metrics"];
        let gauge = &metrics[0]["gauge"]["dataPoints"][0];
        assert_eq!((&gauge["asDouble"], &gauge["startTimeUnixNano"]), (&0.5.into(), &Json::Null));
        let sum = &metrics[1]["sum"];
        assert_eq!((&sum["isMonotonic"], &sum["aggregationTemporality"]), (&true.into(), &2.into()));
        let point = &sum["dataPoints"][0];
        assert_eq!(
            (&point["asInt"], &point["startTimeUnixNano"]),
            (&"9223372036854775807".into(), &"20".into())
        );
        assert_eq!(point["attributes"][0], json!({"key": "b.c", "value": {"stringValue": "x \"y\"\n\\z"}}));
        let odd = |i: usize| metrics[3]["gauge"]["dataPoints"][i]["asDouble"].clone();
        assert_eq!([odd(0), odd(1), odd(2)], ["NaN".into(), "Infinity".into(), Json::from("-Infinity")]);
        let point = &metrics[2]["histogram"]["dataPoints"][0];
        assert_eq!((&point["count"], &point["sum"]), (&"3".into(), &9.065.into()));
        let counts: Vec<&str> =
            point["bucketCounts"].as_array().expect("counts").iter().filter_map(Json::as_str).collect();
        assert_eq!(counts, ["1", "0", "0", "1", "0", "0", "0", "0", "0", "0", "0", "0", "0", "1"]);
        assert_eq!(point["explicitBounds"].as_array().map(Vec::len), Some(13));
    }
}
