//! Values of the machine's sensors during a recording: power, energy, frequencies, temperatures. They are read by a
//! separate thread, since some drivers are slow.

mod counters;
mod cpu_times;
mod find;
mod found;
mod gauge;
mod hwmon;
mod meter;
mod model;
mod offer;
mod pmic;
mod pressure;
mod supplies;

use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::thread::JoinHandle;
use std::time::Duration;

pub use self::counters::{EnergyCounter, energy_counters};
use self::find::{MAX_SENSORS, find};
use self::found::{Found, FoundSensor, Roots};
pub use self::meter::{MeterError, MeterFile};
pub use self::offer::offered;
use crate::{capset, usage};
use pfi::record::{self, Availability, SensorKind};
use pfi::{Encoder, WriteError};

/// Time between two samples.
pub const INTERVAL: Duration = Duration::from_millis(50);
/// Maximum number of samples waiting for the recorder.
const WAITING: usize = 64;
/// How often it is said of a sensor that it has no value.
const MOST_NOTICES: u32 = 3;

/// What to sample.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SensorOptions {
    /// `/sys`, or a recorded tree.
    pub sysfs: PathBuf,
    pub interval: Duration,
    /// A meter of the user.
    pub meter: Option<MeterFile>,
}

/// Why the sensors cannot be recorded.
#[derive(Debug, thiserror::Error)]
pub enum SensorError {
    #[error(transparent)]
    Meter(#[from] MeterError),
    #[error(transparent)]
    Write(#[from] WriteError),
}

/// Whether there is a sensor below this directory.
pub fn are_in(sysfs: &Path) -> bool {
    !find(&Roots::of(sysfs)).sensors.is_empty()
}

/// All sensors' values at one time: id and value.
type SensorValues = heapless::Vec<(u32, i64), MAX_SENSORS>;

#[allow(clippy::large_enum_variant, reason = "a box would be allocated for each sample")]
enum News {
    Sample {
        t: u64,
        values: SensorValues,
    },
    /// A sensor that had a value has none now.
    Gone {
        id: u32,
        why: io::Error,
    },
}

/// What is known about a sensor apart from its value.
struct SensorInfo {
    name: String,
    kind: record::SensorKind,
    origin: record::SensorOrigin,
    path: String,
    cpus: String,
    /// As stated by the driver, ns; 0 = not stated.
    interval_ns: u64,
    /// Value, and when it was read.
    last: Option<(i64, u64)>,
    /// Smallest time between two changes seen, ns.
    changes: Option<u64>,
    /// How often it was said that it has no value, and why at last.
    gone: (u32, String),
}

/// Sensors being read.
pub struct Sampler {
    known: Vec<SensorInfo>,
    /// What was said about them at the start.
    state: Availability,
    why: String,
    news: Receiver<News>,
    /// Dropping it ends the thread.
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Sampler {
    /// Starts reading. None if there is no sensor; the Feature record says which sensors there are, and what is not read.
    ///
    /// # Errors
    /// The user's meter has no value, or the trace cannot be written.
    pub fn start<W: Write>(
        options: &SensorOptions,
        enc: &mut Encoder<W>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<Option<Sampler>, SensorError> {
        let roots = Roots::of(&options.sysfs);
        let mut found = find(&roots);
        if let Some(meter) = &options.meter {
            found.sensors.insert(0, meter.open()?);
        }
        if !found.sensors.iter().any(|s| matches!(s.kind, SensorKind::Power | SensorKind::Energy)) {
            find::hint(&roots.debugfs, &mut found);
        }
        let Found { sensors, remarks } = found;
        let (state, why) = said(sensors.len(), &remarks, options);
        enc.feature(&record::Feature { name: "sensors", state, why: &why })?;
        if state != Availability::Whole {
            tell(&format!("sensors: {why}"));
        }
        let mut found = sensors;
        found.truncate(MAX_SENSORS);
        if found.is_empty() {
            return Ok(None);
        }
        let known: Vec<SensorInfo> = found.iter().map(SensorInfo::of).collect();
        for (id, sensor) in known.iter().enumerate() {
            sensor.write(id, enc)?;
        }
        let (send, news) = sync_channel(WAITING);
        let (stop, stopped) = channel();
        let interval = options.interval;
        let spawned = std::thread::Builder::new().name("sensors".into()).spawn(move || {
            // The thread needs none of the recorder's other capabilities: it only reads files. If they cannot be
            // dropped, they stay.
            drop(capset::keep(capset::READ));
            sample(&mut found, interval, &send, &stopped);
        });
        match spawned {
            Ok(thread) => {
                Ok(Some(Sampler { known, state, why, news, stop: Some(stop), thread: Some(thread) }))
            }
            Err(e) => {
                let why = format!("cannot start the thread that reads {} sensors: {e}", known.len());
                let state = Availability::None;
                enc.feature(&record::Feature { name: "sensors", state, why: &why })?;
                Ok(None)
            }
        }
    }

    /// Writes what has been read to the trace, and reports lost sensors to the user.
    pub fn pass<W: Write>(
        &mut self,
        enc: &mut Encoder<W>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), WriteError> {
        while let Ok(news) = self.news.try_recv() {
            match news {
                News::Sample { t, values } => {
                    for (id, value) in &values {
                        if let Some(sensor) = self.known.get_mut(*id as usize) {
                            sensor.learn(*value, t);
                        }
                    }
                    enc.sample(t as i64, &values)?;
                }
                News::Gone { id, why } => {
                    let Some(sensor) = self.known.get_mut(id as usize) else { continue };
                    sensor.gone = (sensor.gone.0.saturating_add(1), why.to_string());
                    if sensor.gone.0 > MOST_NOTICES {
                        continue;
                    }
                    let text = format!("sensor {} ({}) has no value now: {why}", sensor.name, sensor.path);
                    tell(&text);
                    enc.notice(&record::Notice { t: usage::now() as i64, text: &text })?;
                }
            }
        }
        Ok(())
    }

    /// Stops reading. Writes the sensors' descriptions again, with the shortest interval between changes seen.
    pub fn finish<W: Write>(
        mut self,
        enc: &mut Encoder<W>,
        tell: &mut dyn FnMut(&str),
    ) -> Result<(), WriteError> {
        self.stop = None;
        let ended = self.thread.take().is_none_or(|t| t.join().is_ok());
        self.pass(enc, tell)?;
        if !ended {
            tell("the thread that reads the sensors died: samples end early");
        }
        for (id, sensor) in self.known.iter().enumerate() {
            sensor.write(id, enc)?;
        }
        let silent = self.known.iter().filter(|s| s.last.is_none() && s.gone.0 > 0);
        let silent: Vec<String> = silent.map(|s| format!("{} had no value: {}", s.name, s.gone.1)).collect();
        if !silent.is_empty() {
            let why = format!("{}; {}", self.why, silent.join("; "));
            let state = self.state.max(Availability::Partly);
            enc.feature(&record::Feature { name: "sensors", state, why: &why })?;
        }
        Ok(())
    }
}

/// Whether there are sensors, and which are not read.
fn said(all: usize, remarks: &[String], options: &SensorOptions) -> (Availability, String) {
    let (state, mut why) = match all {
        0 => {
            let why = format!("{} has no power, frequency or temperature sensors", options.sysfs.display());
            (Availability::None, why)
        }
        n if n > MAX_SENSORS => (Availability::Partly, format!("{MAX_SENSORS} of {n} sensors")),
        n if remarks.is_empty() => (Availability::Whole, format!("{n} sensors")),
        n => (Availability::Partly, format!("{n} sensors")),
    };
    for remark in remarks {
        why.push_str("; ");
        why.push_str(remark);
    }
    (state, why)
}

impl SensorInfo {
    fn of(found: &FoundSensor) -> SensorInfo {
        SensorInfo {
            name: found.name.clone(),
            kind: found.kind,
            origin: found.origin,
            path: found.path.display().to_string(),
            cpus: found.cpus.clone(),
            interval_ns: found.interval_ns,
            last: None,
            changes: None,
            gone: (0, String::new()),
        }
    }

    fn learn(&mut self, value: i64, t: u64) {
        match self.last {
            Some((old, _)) if old == value => {}
            Some((_, since)) => {
                let gap = t.saturating_sub(since);
                self.changes = Some(self.changes.map_or(gap, |c| c.min(gap)));
                self.last = Some((value, t));
            }
            None => self.last = Some((value, t)),
        }
    }

    fn write<W: Write>(&self, id: usize, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        let interval_ns = match self.interval_ns {
            0 => self.changes.unwrap_or(0),
            told => told,
        };
        enc.sensor(&record::Sensor {
            id: id as u32,
            name: &self.name,
            kind: self.kind,
            path: &self.path,
            interval_ns,
            cpus: &self.cpus,
            origin: self.origin,
        })
    }
}

/// Reads all sensors repeatedly until stopped. A sample is dropped if the queue is full.
fn sample(found: &mut [FoundSensor], interval: Duration, send: &SyncSender<News>, stopped: &Receiver<()>) {
    let mut had = [true; MAX_SENSORS];
    loop {
        let (t, mut values) = (usage::now(), SensorValues::new());
        for (id, (sensor, had)) in found.iter_mut().zip(&mut had).enumerate() {
            match sensor.gauge.read() {
                Ok(value) => *had = values.push((id as u32, value)).is_ok(),
                // If the queue is full, the next round reports it.
                Err(why) if *had => *had = send.try_send(News::Gone { id: id as u32, why }).is_err(),
                Err(_) => {}
            }
        }
        let _ = send.try_send(News::Sample { t, values });
        let took = Duration::from_nanos(usage::now().saturating_sub(t));
        match stopped.recv_timeout(interval.saturating_sub(took)) {
            Err(RecvTimeoutError::Timeout) => {}
            _ => return,
        }
    }
}

#[cfg(test)]
mod tests;
