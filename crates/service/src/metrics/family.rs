//! A metric with its values, named once: as OpenTelemetry names it, from which the name in Prometheus follows.

use std::borrow::Cow;

use agent::recorder::tally::Histogram;

/// How values change.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Goes up and down.
    Gauge,
    /// Only grows, from 0 when the service starts.
    Counter,
    /// The same, by bucket.
    Histogram,
}

/// A metric.
#[derive(Debug)]
pub struct Metric {
    /// Its name in OpenTelemetry.
    pub name: &'static str,
    /// UCUM: `s`, `By`, `J`, `1` for a share; something counted in braces; empty: none.
    pub unit: &'static str,
    pub kind: Kind,
    /// One sentence.
    pub help: &'static str,
}

/// A value.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    Whole(u64),
    Number(f64),
    /// Durations, and the upper bounds of their buckets, ns.
    Histogram(Box<Histogram>, &'static [u64]),
}

/// A label, named as an attribute in OpenTelemetry, and its text.
pub type Label = (&'static str, String);

/// A value with its labels. Labels that are not known are left out.
#[derive(Debug, Clone, PartialEq)]
pub struct Point {
    pub labels: Vec<Label>,
    pub value: Value,
}

/// A metric with all its values; there is at least one, and no two have the same labels.
#[derive(Debug)]
pub struct Family {
    pub metric: &'static Metric,
    pub points: Vec<Point>,
}

impl Metric {
    /// A metric of this service; in the tables of metrics.
    pub const fn new(name: &'static str, unit: &'static str, kind: Kind, help: &'static str) -> Metric {
        Metric { name, unit, kind, help }
    }

    /// Its name in Prometheus, as an OpenTelemetry Collector would write it.
    pub fn exposed(&self) -> String {
        let mut name = plain(self.name).into_owned();
        let unit = match self.unit {
            "s" => "seconds",
            "By" => "bytes",
            "J" => "joules",
            "1" => "ratio",
            _ => "",
        };
        for part in [unit, if self.kind == Kind::Counter { "total" } else { "" }] {
            if !part.is_empty() && !name.ends_with(&format!("_{part}")) {
                name.push('_');
                name.push_str(part);
            }
        }
        name
    }
}

/// Metrics with their values, in the order in which they are added.
#[derive(Debug, Default)]
pub struct Families(pub Vec<Family>);

impl Families {
    /// Adds a value. The values of a metric are added one after the other.
    pub fn add(&mut self, metric: &'static Metric, labels: Vec<Label>, value: Value) {
        let point = Point { labels, value };
        match self.0.last_mut().filter(|last| std::ptr::eq(last.metric, metric)) {
            Some(last) => last.points.push(point),
            None => self.0.push(Family { metric, points: vec![point] }),
        }
    }

    /// Adds a whole number, with one label or none.
    pub fn count(&mut self, metric: &'static Metric, label: Option<(&'static str, &str)>, n: u64) {
        let labels = label.map(|(name, text)| (name, text.to_owned()));
        self.add(metric, labels.into_iter().collect(), Value::Whole(n));
    }
}

/// A name with what Prometheus allows in one.
pub fn plain(name: &str) -> Cow<'_, str> {
    match name.contains('.') {
        true => name.replace('.', "_").into(),
        false => name.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_follow_the_conventions() {
        let exposed = |name, unit, kind| Metric::new(name, unit, kind, "").exposed();
        for (name, unit, kind, wanted) in [
            ("hw.energy", "J", Kind::Counter, "hw_energy_joules_total"),
            ("process.paging.faults", "{fault}", Kind::Counter, "process_paging_faults_total"),
            (
                "gen_ai.server.time_to_first_token",
                "s",
                Kind::Histogram,
                "gen_ai_server_time_to_first_token_seconds",
            ),
            ("profinfer.files_bytes", "By", Kind::Gauge, "profinfer_files_bytes"),
            ("profinfer.run_cost", "1", Kind::Gauge, "profinfer_run_cost_ratio"),
            ("profinfer.up", "", Kind::Gauge, "profinfer_up"),
        ] {
            assert_eq!(exposed(name, unit, kind), wanted);
        }
    }
}
