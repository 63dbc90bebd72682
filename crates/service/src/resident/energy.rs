//! The machine's energy since the service began to count it: while a rule records sensors.

use std::path::Path;

use machine::sensors::{EnergyCounter, energy_counters};

/// Energy of a counter.
#[derive(Debug, Clone, PartialEq)]
pub struct EnergyUsed {
    pub id: String,
    /// As OpenTelemetry's `hw.type`.
    pub kind: &'static str,
    pub joules: f64,
}

/// The counters.
#[derive(Default)]
pub struct EnergyMeter {
    counters: Option<Vec<EnergyCounter>>,
}

impl EnergyMeter {
    /// Reads the counters below this directory (`/sys`).
    pub fn look(&mut self, sysfs: &Path) {
        let counters = self.counters.get_or_insert_with(|| energy_counters(sysfs));
        counters.iter_mut().for_each(EnergyCounter::read);
    }

    /// Empty: nothing is known.
    pub fn used(&self) -> Vec<EnergyUsed> {
        let used = |c: &EnergyCounter| EnergyUsed { id: c.name.clone(), kind: c.kind, joules: c.joules() };
        self.counters.iter().flatten().map(used).collect()
    }
}
