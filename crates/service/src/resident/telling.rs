//! What the service measures for its metrics, and their way to the network.

use std::time::{Duration, Instant, SystemTime};

use super::Service;
use crate::metrics::{self, exposition, otlp};
use crate::net::endpoint::OtlpSettings;
use crate::status::ServiceState;

impl Service<'_> {
    /// Once a second: looks at what only the service counts.
    pub(super) fn measure(&mut self) {
        let runs = self.supervisor.runs();
        let first = |run: &crate::run::Run| run.processes.is_empty().then_some(run.pid);
        self.faults.look(runs.flat_map(|run| run.processes.iter().copied().chain(first(run))));
        if let Some(sysfs) = self.settings.sysfs() {
            self.energy.look(sysfs);
        }
        self.state.faults = self.faults.all();
        self.state.energy = self.energy.used();
    }

    /// Once a second: passes the metrics on to the network.
    pub(super) fn tell_network(&mut self) {
        let (state, per_process) = (&self.state, self.settings.per_process);
        let scraped = || exposition::text(&metrics::families(state, per_process));
        let otlp = self.settings.net.otlp.as_ref();
        let pushed = || otlp.map(|otlp| export(state, per_process, otlp, self.began)).unwrap_or_default();
        let said = self.network.tick(Instant::now(), &scraped, &pushed);
        said.iter().for_each(|line| self.say(line));
    }

    /// The service ends: pushes its last state, and lets scrapers see that it is gone.
    pub(super) fn end_network(&mut self) {
        let (state, per_process) = (&self.state, self.settings.per_process);
        let otlp = self.settings.net.otlp.as_ref();
        self.network
            .end(&|| otlp.map(|otlp| export(state, per_process, otlp, self.began)).unwrap_or_default());
    }

    /// Takes what the network's process reports.
    pub(super) fn hear_network(&mut self) {
        self.network.hear().iter().for_each(|line| self.say(line));
    }
}

/// The metrics for OpenTelemetry's protocol.
fn export(state: &ServiceState, per_process: bool, otlp: &OtlpSettings, began: SystemTime) -> String {
    let ns = |at: SystemTime| {
        let since = at.duration_since(SystemTime::UNIX_EPOCH).unwrap_or(Duration::ZERO);
        u64::try_from(since.as_nanos()).unwrap_or(u64::MAX)
    };
    let times = otlp::Times { began: ns(began), now: ns(SystemTime::now()) };
    let families = metrics::families(state, per_process);
    otlp::request(&families, &resource(state, &otlp.attributes), &state.version, times)
}

/// What is measured: this service on this machine. Attributes of the configuration replace those that are known here.
fn resource(state: &ServiceState, given: &[(String, String)]) -> Vec<(String, String)> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let known = [
        ("service.name", "profinfer"),
        ("service.version", &state.version),
        ("host.name", host.trim()),
        ("os.type", "linux"),
    ];
    let known = known
        .into_iter()
        .filter(|(name, value)| !value.is_empty() && given.iter().all(|(given, _)| given != name));
    known.map(|(name, value)| (name.to_owned(), value.to_owned())).chain(given.iter().cloned()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn given_attributes_replace_known_ones() {
        let state = ServiceState::new("1.2");
        let given = [("host.name".to_owned(), "board-7".to_owned()), ("a".to_owned(), "b".to_owned())];
        let all = resource(&state, &given);
        let of =
            |name: &str| all.iter().filter(|(n, _)| n == name).map(|(_, v)| v.as_str()).collect::<Vec<_>>();
        assert_eq!((of("host.name"), of("a")), (vec!["board-7"], vec!["b"]));
        assert_eq!((of("service.name"), of("service.version")), (vec!["profinfer"], vec!["1.2"]));
    }
}
