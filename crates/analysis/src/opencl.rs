//! Reads the profile written by llama.cpp's OpenCL backend (`cl_trace.json` and `cl_profiling.csv`, when built
//! with GGML_OPENCL_PROFILING): when each kernel ran on the device, on the trace's clock.

use super::lanes::Select;
use super::load::Loaded;
use super::tables::backend_name;
use common::order;

/// A kernel on the device. Times are CLOCK_MONOTONIC, ns, with a resolution of a microsecond.
#[derive(Debug, Clone, PartialEq)]
pub struct OpenclKernel {
    pub name: String,
    /// When the host enqueued it; when it began and ended.
    pub queued: i64,
    pub start: i64,
    pub end: i64,
    /// From the table: the tensor, and the sizes as written there.
    pub row: Option<OpenclRow>,
}

/// A line of `cl_profiling.csv`.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct OpenclRow {
    pub tensor: String,
    pub global: String,
    pub local: String,
    pub output: String,
}

/// The kernels of a run.
pub struct Profile {
    pub pid: u32,
    /// Sorted by start.
    pub kernels: Vec<OpenclKernel>,
    /// How the device's clock was mapped to the trace's.
    pub clock: &'static str,
}

/// Why a profile cannot be combined with a run.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum NoProfile {
    #[error("line {0} is not an event of llama.cpp's cl_trace.json")]
    Event(usize),
    #[error("it has no kernels")]
    Empty,
    #[error("line {0} is not a row of llama.cpp's cl_profiling.csv")]
    Row(usize),
    #[error("kernel {at} is {csv} in the table and {json} in the trace: the files are from different runs")]
    Differ { at: usize, csv: String, json: String },
    #[error("the table has {csv} kernels and the trace {json}: the files are from different runs")]
    Count { csv: usize, json: usize },
    #[error("the recording has no OpenCL split to align the device's clock with")]
    NoSplit,
}

/// Reads the backend's files and maps their times to the trace's clock. If shifting from one of the machine's
/// clocks puts them within the OpenCL splits, that shift is used; else the first kernel is taken to be queued at
/// the start of the first OpenCL split.
///
/// # Errors
/// A file that is no profile, files of different runs, or a recording without OpenCL splits.
pub fn profile(loaded: &Loaded<'_>, json: &str, csv: Option<&str>) -> Result<Profile, NoProfile> {
    let mut kernels = events(json)?;
    if let Some(csv) = csv {
        join(&mut kernels, csv)?;
    }
    let splits = || loaded.splits.iter().filter(|s| backend_name(loaded, s.backend) == "OpenCL");
    let first = splits().min_by_key(|s| s.t).ok_or(NoProfile::NoSplit)?;
    let last = splits().map(|s| s.t.saturating_add_unsigned(s.dur)).max().unwrap_or(first.t);
    let queued = kernels.iter().map(|k| k.queued).min().ok_or(NoProfile::Empty)?;
    let ended = kernels.iter().map(|k| k.end).max().unwrap_or(queued);
    let clocks = loaded.header.as_ref().map_or([0; 3], |h| [h.mono_ns, h.boot_ns, h.real_ns]);
    let shifts = clocks.map(|clock| clocks[0].wrapping_sub(clock).cast_signed());
    // Times are in whole microseconds; the last kernels may end after the call that enqueued them.
    let fits = |shift: &i64| {
        queued.saturating_add(*shift) >= first.t.saturating_sub(SLACK)
            && ended.saturating_add(*shift) <= last.saturating_add(SLACK)
    };
    let (shift, clock) = match shifts.into_iter().find(fits) {
        Some(shift) => (shift, "the machine's clock"),
        None => (first.t.saturating_sub(queued), "aligned with the first OpenCL split"),
    };
    for k in &mut kernels {
        for t in [&mut k.queued, &mut k.start, &mut k.end] {
            *t = t.saturating_add(shift);
        }
    }
    order::by_key(&mut kernels, |k| (order::time(k.start), order::time(k.end)));
    Ok(Profile { pid: first.pid, kernels, clock })
}

/// Tolerance around the splits when matching clocks, ns.
const SLACK: i64 = 1_000_000_000;

impl Profile {
    /// The selected kernels.
    pub fn wanted(&self, select: &Select) -> impl Iterator<Item = &OpenclKernel> {
        self.kernels.iter().filter(|k| select.has(self.pid, k.start))
    }
}

/// The events: an array with one event per line and no closing bracket.
fn events(json: &str) -> Result<Vec<OpenclKernel>, NoProfile> {
    let mut kernels: Vec<OpenclKernel> = Vec::new();
    let (mut queued, mut start) = (None, None);
    for (i, line) in json.lines().enumerate() {
        let line = line.trim().trim_end_matches(',');
        if matches!(line, "" | "[" | "]") {
            continue;
        }
        let bad = || NoProfile::Event(i + 1);
        let event: serde_json::Value = serde_json::from_str(line).map_err(|_| bad())?;
        let text = |key: &str| event.get(key).and_then(|v| v.as_str()).ok_or_else(bad);
        let us = event.get("ts").and_then(serde_json::Value::as_i64).ok_or_else(bad)?;
        let t = us.checked_mul(1000).ok_or_else(bad)?;
        match (text("tid")?, text("ph")?) {
            ("Host", "B") => queued = Some(t),
            ("Host", "E") => {}
            ("Device", "B") => start = Some(t),
            ("Device", "E") => {
                let (queued, start) = queued.take().zip(start.take()).ok_or_else(bad)?;
                let name = text("name")?.to_string();
                kernels.push(OpenclKernel { name, queued, start, end: t.max(start), row: None });
            }
            _ => return Err(bad()),
        }
    }
    if kernels.is_empty() { Err(NoProfile::Empty) } else { Ok(kernels) }
}

/// Adds the rows of the table, which are in kernel order. Only the first field may contain commas.
fn join(kernels: &mut [OpenclKernel], csv: &str) -> Result<(), NoProfile> {
    let rows = || csv.lines().enumerate().skip(1).filter(|(_, line)| !line.trim().is_empty());
    if rows().count() != kernels.len() {
        return Err(NoProfile::Count { csv: rows().count(), json: kernels.len() });
    }
    for ((i, line), kernel) in rows().zip(kernels) {
        let mut back = line.rsplitn(6, ',');
        let mut next = || back.next().map(|f| f.trim().to_string()).ok_or(NoProfile::Row(i + 1));
        let (output, local, global, _ms, name, tensor) =
            (next()?, next()?, next()?, next()?, next()?, next()?);
        if name != kernel.name {
            return Err(NoProfile::Differ { at: i, csv: name, json: kernel.name.clone() });
        }
        kernel.row = Some(OpenclRow { tensor, global, local, output });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use pfi::record::{Backend, Device, Split};

    const CSV: &str = "op name, kernel name, exec duration (ms), global size, local size, output size\n\
        Qcur-0,kernel_mul_mat,0.100000,64x1x1,64x1x1,64x1x1x1\n\
        a,b,kernel_add,0.002000,32x1x1,32x1x1,64x1x1x1\n";

    fn json(origin: u64) -> String {
        let event = |name: &str, ph: &str, tid: &str, us: u64| {
            let ts = origin + us;
            format!(
                "{{\"name\": \"{name}\", \"cat\": \"OpenCL\", \"ph\": \"{ph}\", \"ts\": {ts}, \"pid\": \"\", \"tid\": \"{tid}\"}},\n"
            )
        };
        let kernel = |name: &str, at: u64, us: u64| {
            let host = event(name, "B", "Host", at) + &event(name, "E", "Host", at + 1);
            host + &event(name, "B", "Device", at + 5) + &event(name, "E", "Device", at + 5 + us)
        };
        format!("[\n{}{}", kernel("kernel_mul_mat", 10, 100), kernel("kernel_add", 115, 2))
    }

    fn run() -> Loaded<'static> {
        let mut loaded = Loaded::default();
        loaded.backends.insert(4, Backend { id: 4, guid: [0; 16], name: "OpenCL" });
        let (graph, cut) = (None, false);
        loaded.splits.push(Split {
            seq: 0,
            graph,
            backend: 4,
            pid: 7,
            tid: 7,
            n_nodes: 2,
            t: 5_000_000_000,
            dur: 900_000,
            cut,
            device: Device::Idle,
            plan: None,
        });
        loaded
    }

    #[test]
    fn a_clock_of_its_own_is_laid_beside_the_first_split() {
        let p = profile(&run(), &json(777_000_000_000), Some(CSV)).unwrap();
        assert_eq!((p.pid, p.clock), (7, "aligned with the first OpenCL split"));
        let times: Vec<_> = p.kernels.iter().map(|k| (k.queued, k.start, k.end)).collect();
        let t = 5_000_000_000;
        assert_eq!(times, [(t, t + 5000, t + 105_000), (t + 105_000, t + 110_000, t + 112_000)]);
        let row = p.kernels[1].row.as_ref().unwrap();
        assert_eq!((row.tensor.as_str(), row.output.as_str()), ("a,b", "64x1x1x1"));
    }

    #[test]
    fn a_clock_of_the_machine_is_taken_as_it_is() {
        let p = profile(&run(), &json(5_000_100), None).unwrap();
        assert_eq!((p.clock, p.kernels[0].queued), ("the machine's clock", 5_000_110_000));
    }

    #[test]
    fn what_is_none_is_told() {
        let of = |json: &str, csv| profile(&run(), json, csv).map(|p| p.kernels.len());
        assert_eq!(of("[\n", None), Err(NoProfile::Empty));
        assert_eq!(of("[\nop name", None), Err(NoProfile::Event(2)));
        let one = json(0).lines().take(5).collect::<Vec<_>>().join("\n");
        assert_eq!(of(&one, Some(CSV)), Err(NoProfile::Count { csv: 2, json: 1 }));
        let other = CSV.replace("kernel_add", "kernel_sub");
        assert!(matches!(of(&json(0), Some(&other)), Err(NoProfile::Differ { at: 2, .. })));
        assert_eq!(of(&json(0), Some("h\nx\ny\n")), Err(NoProfile::Row(2)));
        let none = Loaded::default();
        assert_eq!(profile(&none, &json(0), None).map(|_| ()), Err(NoProfile::NoSplit));
    }
}
