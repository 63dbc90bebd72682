//! Metrics over the network: keys of `[metrics]` and `[otlp]`.

use std::time::Duration;

use super::values::{add, got};
use cli::args::{Args, Flag, FlagGroup};
use cli::values::span;
use service::net::endpoint::{Endpoint, NetSettings, OtlpSettings, attribute, header, listen_address};

/// Keys of `[metrics]`.
pub const METRICS: FlagGroup = FlagGroup {
    title: "Metrics",
    flags: &[
        Flag::value(
            "listen",
            "ADDRESS",
            "Answer GET /metrics with the service's metrics in Prometheus' text format, e.g. at 127.0.0.1:9464",
        )
        .valid(|text| listen_address(text).map(drop)),
        Flag::switch(
            "listen-remote",
            "Allow listen to be an address that other machines can reach: everybody who does can read the \
             names of models, rules and users' programs",
        ),
        Flag::switch(
            "per-process",
            "Add metrics of each process, with its pid. They cannot be added up over machines",
        ),
    ],
};

/// How the options of `[otlp]` begin; its keys do not.
pub const OTLP_PREFIX: &str = "otlp-";

/// Keys of `[otlp]`, each with [`OTLP_PREFIX`].
pub const OTLP: FlagGroup = FlagGroup {
    title: "OpenTelemetry",
    flags: &[
        Flag::value(
            "otlp-endpoint",
            "URL",
            "Push metrics to this receiver by OTLP over HTTP, in JSON, e.g. http://127.0.0.1:4318; the path \
             v1/metrics is added",
        )
        .valid(|text| Endpoint::parse(text).map(drop)),
        Flag::value(
            "otlp-headers",
            "NAME=VALUE",
            "Send this header with each request, e.g. authorization=Bearer TOKEN; may be given more than once",
        )
        .words()
        .valid(|text| header(text).map(drop))
        .needs(&["otlp-endpoint"]),
        Flag::value(
            "otlp-attributes",
            "NAME=VALUE",
            "Add this attribute to the resource, e.g. deployment.environment.name=lab; may be given more than \
             once",
        )
        .words()
        .valid(|text| attribute(text).map(drop))
        .needs(&["otlp-endpoint"]),
        Flag::value("otlp-interval", "TIME", "Interval between pushes")
            .default("60s")
            .valid(|text| interval(text).map(drop)),
        Flag::value(
            "otlp-timeout",
            "TIME",
            "Time limit of a push, from connecting to the end of the answer",
        )
        .default("10s")
        .valid(|text| limit(text).map(drop)),
    ],
};

const REMOTE: &str = "other machines can reach this address: use 127.0.0.1, or allow it with listen-remote";

fn interval(text: &str) -> Result<Duration, String> {
    between(text, Duration::from_secs(1), Duration::from_secs(86400), "expected a time from 1s to 1d")
}

fn limit(text: &str) -> Result<Duration, String> {
    between(text, Duration::from_millis(100), Duration::from_secs(300), "expected a time from 100ms to 5min")
}

fn between(text: &str, least: Duration, most: Duration, wanted: &str) -> Result<Duration, String> {
    let time = span(text)?;
    if (least..=most).contains(&time) { Ok(time) } else { Err(wanted.to_owned()) }
}

/// The settings; mistakes are added to `wrong`.
pub fn settings(all: &Args, wrong: &mut Vec<String>) -> NetSettings {
    let listen = got(all.option("listen", listen_address), wrong).flatten();
    if let Some(address) = listen.filter(|a| !a.ip().is_loopback() && !all.flag("listen-remote")) {
        add(wrong, format!("{}listen '{address}': {REMOTE}", all.place(&["listen"])));
    }
    let endpoint = got(all.option("otlp-endpoint", Endpoint::parse), wrong).flatten();
    let words = |name: &str, read: fn(&str) -> Result<(String, String), String>, wrong: &mut Vec<String>| {
        let mut pairs = Vec::new();
        for word in all.words(name) {
            match read(&word) {
                Ok(pair) => pairs.push(pair),
                // Not the value: it may be a secret.
                Err(why) => add(wrong, format!("{}{name}: {why}", all.place(&[name]))),
            }
        }
        pairs
    };
    let headers = words("otlp-headers", header, wrong);
    let attributes = words("otlp-attributes", attribute, wrong);
    let interval = got(all.needed("otlp-interval", interval), wrong).unwrap_or_default();
    let timeout = got(all.needed("otlp-timeout", limit), wrong).unwrap_or_default();
    let otlp = endpoint.map(|endpoint| OtlpSettings { endpoint, headers, interval, timeout, attributes });
    NetSettings { listen, otlp }
}
