//! Sensor values over time.

use std::collections::HashMap;

use parquet::errors::Result;
use pfi::record::{SensorKind, SensorOrigin};
use pfi::sensor_values;

use crate::column::{RUN, Table, int, long, real, text};
use crate::rows::{Rows, Word};
use crate::run::Run;

pub const TABLE: Table = Table {
    name: "sensors",
    about: "a value of a sensor",
    single: false,
    columns: &[
        RUN,
        int("sensor", "number of the sensor in its run"),
        text("name", "name of the sensor: `battery`, `cluster 1`"),
        text("kind", "`power`, `energy`, `frequency`, `temperature`, `current`, `cooling` or `pressure`"),
        text("unit", "`W`, `J`, `Hz`, `degC`, `A`, `state` or `s`"),
        text("origin", "of power, energy and current, what is covered: as `energy_origin` in `runs`")
            .or_null(),
        text("cpus", "CPUs that it covers; null for all, or none in particular").or_null(),
        long("start_ns", "when it was read, since the run's start").delta(),
        real("value", "value in this unit; energy and pressure are running totals"),
    ],
    fill,
};

struct Source {
    name: Word,
    kind: Word,
    unit: Word,
    origin: Option<Word>,
    cpus: Option<Word>,
    scale: f64,
}

fn fill(run: &Run<'_, '_>, rows: &mut Rows<'_>) -> Result<()> {
    let causes = &run.loaded.causes;
    let mut sources: HashMap<u32, Source> = HashMap::new();
    for s in &causes.sensors {
        let (kind, unit, scale) = kind(s.kind);
        let source = Source {
            name: rows.word(s.name),
            kind: rows.word(kind),
            unit: rows.word(unit),
            origin: origin(s.origin).map(|o| rows.word(o)),
            cpus: (!s.cpus.is_empty()).then(|| rows.word(s.cpus)),
            scale,
        };
        sources.insert(s.id, source);
    }
    for sample in &causes.samples {
        for (id, value) in sensor_values(sample) {
            let Some(s) = sources.get(&id) else { continue };
            rows.row()
                .int(Some(id))
                .word(Some(s.name))
                .word(Some(s.kind))
                .word(Some(s.unit))
                .word(s.origin)
                .word(s.cpus)
                .long(Some(run.since(sample.t)))
                .real(Some(value as f64 / s.scale))
                .end()?;
        }
    }
    Ok(())
}

/// Name of a kind, its unit here, and how many of the trace's units that is.
fn kind(kind: SensorKind) -> (&'static str, &'static str, f64) {
    match kind {
        SensorKind::Power => ("power", "W", 1e6),
        SensorKind::Energy => ("energy", "J", 1e6),
        SensorKind::Frequency => ("frequency", "Hz", 1e-3),
        SensorKind::Temperature => ("temperature", "degC", 1e3),
        SensorKind::Current => ("current", "A", 1e6),
        SensorKind::Cooling => ("cooling", "state", 1.0),
        SensorKind::Pressure => ("pressure", "s", 1e6),
    }
}

fn origin(of: SensorOrigin) -> Option<&'static str> {
    Some(match of {
        SensorOrigin::Unknown => return None,
        SensorOrigin::Meter => "meter",
        SensorOrigin::Device => "device",
        SensorOrigin::Estimate => "estimate",
        SensorOrigin::Package => "package",
        SensorOrigin::Rail => "rail",
        SensorOrigin::Model => "model",
    })
}
