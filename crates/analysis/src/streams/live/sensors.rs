//! The last values of the machine's sensors.

use serde::Serialize;

use pfi::record::{Sensor, SensorKind, SensorOrigin, SensorSample};
use pfi::sensor_values;

/// Sensors kept; a recording has fewer.
const MOST: usize = 256;

/// A sensor and its value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SensorNow {
    pub name: String,
    pub kind: SensorKind,
    /// CPUs that it covers, e.g. `0-3`; empty: all, or none in particular.
    pub cpus: String,
    /// Computed by the kernel's Energy Model, not measured.
    pub model: bool,
    /// In the unit of its kind: uW, uJ in total, kHz, thousandths of a degree Celsius, uA, a cooling device's state, or
    /// us waited for a CPU in total.
    pub value: i64,
}

#[derive(Default)]
pub struct LiveSensors {
    known: Vec<(u32, SensorNow)>,
    /// Those with a value in the last sample.
    last: Vec<(u32, i64)>,
}

impl LiveSensors {
    pub fn define(&mut self, r: &Sensor<'_>) {
        let model = r.origin == SensorOrigin::Model;
        let sensor = SensorNow { name: r.name.into(), kind: r.kind, cpus: r.cpus.into(), model, value: 0 };
        if let Some((_, old)) = self.known.iter_mut().find(|(id, _)| *id == r.id) {
            *old = sensor;
        } else if self.known.len() < MOST {
            self.known.push((r.id, sensor));
        }
    }

    pub fn sample(&mut self, r: &SensorSample<'_>) {
        self.last.clear();
        self.last.extend(sensor_values(r).take(MOST));
    }

    /// Those that have a value, in the order in which they were defined.
    pub fn now(&self) -> Vec<SensorNow> {
        let value = |id: u32| self.last.iter().find(|(of, _)| *of == id).map(|(_, value)| *value);
        let with_value = |(id, s): &(u32, SensorNow)| Some(SensorNow { value: value(*id)?, ..s.clone() });
        self.known.iter().filter_map(with_value).collect()
    }
}
