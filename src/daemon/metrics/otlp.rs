//! Metrics as an `ExportMetricsServiceRequest` of OpenTelemetry's protocol, in its JSON encoding: 64-bit integers are
//! strings, enumerations are numbers (opentelemetry.io/docs/specs/otlp, "JSON Protobuf Encoding").

use serde_json::{Value as Json, json};

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

/// The request, with these attributes of the resource: name and value.
pub fn request(families: &[Family], resource: &[(String, String)], version: &str, times: Times) -> Json {
    let resource: Vec<Json> = resource.iter().map(|(key, value)| attribute(key, value)).collect();
    let metrics: Vec<Json> = families.iter().map(|family| metric(family, times)).collect();
    json!({"resourceMetrics": [{
        "resource": {"attributes": resource},
        "scopeMetrics": [{"scope": {"name": SCOPE, "version": version}, "metrics": metrics}],
    }]})
}

fn attribute(key: &str, value: &str) -> Json {
    json!({"key": key, "value": {"stringValue": value}})
}

fn metric(family: &Family, times: Times) -> Json {
    let of = family.metric;
    let points: Vec<Json> = family.points.iter().map(|p| point(p, of.kind, times)).collect();
    let mut metric = json!({"name": of.name, "description": of.help, "unit": of.unit});
    let data = match of.kind {
        Kind::Gauge => json!({"dataPoints": points}),
        Kind::Counter => {
            json!({"dataPoints": points, "aggregationTemporality": CUMULATIVE, "isMonotonic": true})
        }
        Kind::Histogram => json!({"dataPoints": points, "aggregationTemporality": CUMULATIVE}),
    };
    let key = match of.kind {
        Kind::Gauge => "gauge",
        Kind::Counter => "sum",
        Kind::Histogram => "histogram",
    };
    metric[key] = data;
    metric
}

fn point(point: &Point, kind: Kind, times: Times) -> Json {
    let attributes: Vec<Json> = point.labels.iter().map(|(key, value)| attribute(key, value)).collect();
    let mut json = json!({"attributes": attributes, "timeUnixNano": times.now.to_string()});
    if kind != Kind::Gauge {
        // A clock that was set back must not make the beginning later than now.
        json["startTimeUnixNano"] = times.began.min(times.now).to_string().into();
    }
    match &point.value {
        // It is a signed number there.
        Value::Whole(n) => json["asInt"] = (*n).min(i64::MAX as u64).to_string().into(),
        Value::Number(x) => json["asDouble"] = (*x).into(),
        Value::Histogram(histogram, bounds) => {
            let counts = histogram.counts.iter().take(bounds.len() + 1).map(u64::to_string);
            json["count"] = histogram.count().to_string().into();
            json["sum"] = seconds(histogram.sum_ns).into();
            json["bucketCounts"] = counts.collect::<Vec<_>>().into();
            json["explicitBounds"] = bounds.iter().map(|&ns| seconds(ns)).collect::<Vec<_>>().into();
        }
    }
    json
}

#[cfg(test)]
mod tests {
    use super::super::family::Metric;
    use super::*;
    use crate::recorder::tally::{Histogram, OUTPUT_TOKEN_NS};

    #[test]
    fn integers_are_texts_and_counts_have_a_beginning() {
        static UP: Metric = Metric::new("a.up", "", Kind::Gauge, "Up.");
        static SEEN: Metric = Metric::new("a.seen", "{run}", Kind::Counter, "Seen.");
        static TIME: Metric = Metric::new("a.time", "s", Kind::Histogram, "Time.");
        let mut histogram = Histogram::default();
        [5_000_000, 60_000_000, 9_000_000_000]
            .into_iter()
            .for_each(|ns| histogram.observe(&OUTPUT_TOKEN_NS, ns));
        let families = [
            UP.alone(Value::Number(0.5)),
            Family { metric: &SEEN, points: vec![Point::labelled("b.c", "x \"y\"", Value::Whole(u64::MAX))] },
            TIME.alone(Value::Histogram(Box::new(histogram), &OUTPUT_TOKEN_NS)),
        ];
        let resource = [("service.name".to_owned(), "profinfer".to_owned())];
        let json = request(&families, &resource, "1", Times { began: 30, now: 20 });
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
        assert_eq!(point["attributes"][0], json!({"key": "b.c", "value": {"stringValue": "x \"y\""}}));
        let point = &metrics[2]["histogram"]["dataPoints"][0];
        assert_eq!((&point["count"], &point["sum"]), (&"3".into(), &9.065.into()));
        let counts: Vec<&str> =
            point["bucketCounts"].as_array().expect("counts").iter().filter_map(Json::as_str).collect();
        assert_eq!(counts, ["1", "0", "0", "1", "0", "0", "0", "0", "0", "0", "0", "0", "0", "1"]);
        assert_eq!(point["explicitBounds"].as_array().map(Vec::len), Some(13));
    }
}
