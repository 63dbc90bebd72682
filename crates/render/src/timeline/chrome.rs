//! A timeline as Chrome trace events in JSON, for tools that read no other format: several times larger than
//! Perfetto's format. Times are microseconds with three decimals, on CLOCK_BOOTTIME if the trace contains its
//! offset.

use std::io::{self, Write};

use super::labels::Labels;
use super::{ArgValue, CPU, DeviceQueue, SliceArgs, SliceName, TOKEN, TimelineSink, category};
use analysis::recorded::describe::NO_STRUCTURE;
use analysis::streams::lanes::LaneOwner;
use common::plain::Json;
use pfi::record::Header;

/// Bytes buffered before they are written.
const FULL: usize = 256 << 10;

/// Tracks that are not threads are written as threads with ids from here on, beyond those of any kernel.
const TRACKS: u64 = 1 << 32;

/// Writes an array of events. They are joined from parts that serde_json makes: those of an op are made once, and a
/// time keeps its three decimals.
pub struct Chrome<'o> {
    out: Json<'o>,
    offset: i64,
    /// The constant part of each op's events, without the end of its values.
    ops: Vec<String>,
    /// Process and thread of the current lane.
    place: String,
    tracks: u64,
    /// Of the open slices, as text.
    names: Vec<String>,
    /// End of the last kernel of the current queue.
    last: i64,
    buf: Vec<u8>,
    any: bool,
}

impl<'o> Chrome<'o> {
    /// Begins the array.
    pub fn new(out: &'o mut dyn Write, labels: &Labels, header: Option<&Header<'_>>) -> Self {
        let offset = header.map_or(0, |h| h.boot_ns.wrapping_sub(h.mono_ns).cast_signed());
        let ops = labels.ops.iter().map(|op| open_event(&op.name, category::OP, &op.values)).collect();
        let buf = b"{\"displayTimeUnit\":\"ns\",\"traceEvents\":[\n".to_vec();
        Chrome {
            out: Json(out),
            offset,
            ops,
            place: String::new(),
            tracks: 0,
            names: Vec::new(),
            last: i64::MIN,
            buf,
            any: false,
        }
    }

    fn put(&mut self, parts: &[&str]) -> io::Result<()> {
        if std::mem::replace(&mut self.any, true) {
            self.buf.extend_from_slice(b",\n");
        }
        for part in parts {
            self.buf.extend_from_slice(part.as_bytes());
        }
        if self.buf.len() >= FULL { self.flush() } else { Ok(()) }
    }

    fn flush(&mut self) -> io::Result<()> {
        self.out.write_all(&self.buf)?;
        self.buf.clear();
        Ok(())
    }

    fn time(&self, t: i64) -> String {
        let t = t.saturating_add(self.offset).max(0);
        format!("{}.{:03}", t / 1000, t % 1000)
    }

    fn metadata(&mut self, what: &str, place: &str, name: &str) -> io::Result<()> {
        let name = quoted(name);
        self.put(&["{\"ph\":\"M\",\"name\":\"", what, "\",", place, ",\"args\":{\"name\":", &name, "}}"])
    }

    fn step(&mut self, kind: &str, t: i64, rest: &str) -> io::Result<()> {
        let (t, place) = (self.time(t), std::mem::take(&mut self.place));
        let done = self.put(&["{\"ph\":\"", kind, "\",\"ts\":", &t, ",", &place, rest, "}"]);
        self.place = place;
        done
    }
}

/// A text as a JSON string.
fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}

/// The name's part of the text of an event, which is in front of its category.
fn name_of(event: &str) -> String {
    event.split_once(",\"cat\"").map_or("", |(name, _)| name).to_owned()
}

/// Name, category and values of an event.
fn event(name: &str, category: &str, values: &SliceArgs) -> String {
    if values.is_empty() {
        return format!(",\"name\":{},\"cat\":\"{category}\"", quoted(name));
    }
    let mut out = open_event(name, category, values);
    out.push('}');
    out
}

/// The same, to which values can be added.
fn open_event(name: &str, category: &str, values: &SliceArgs) -> String {
    let mut out = format!(",\"name\":{},\"cat\":\"{category}\",\"args\":{{", quoted(name));
    for (i, (name, value)) in values.iter().enumerate() {
        out.push_str(if i == 0 { "" } else { "," });
        let value = match value {
            ArgValue::Text(text) => quoted(text),
            ArgValue::Count(n) => n.to_string(),
            ArgValue::Real(x) => serde_json::Value::from(*x).to_string(),
            ArgValue::Yes => "true".into(),
        };
        out.push_str(&format!("\"{name}\":{value}"));
    }
    out
}

impl TimelineSink for Chrome<'_> {
    fn process(&mut self, pid: u32, name: &str, _: &str) -> io::Result<()> {
        if name.is_empty() { Ok(()) } else { self.metadata("process_name", &format!("\"pid\":{pid}"), name) }
    }

    fn lane(&mut self, place: &LaneOwner, name: &str) -> io::Result<()> {
        let (tid, place_in_pool) = match place {
            LaneOwner::Thread { tid, ith, .. } => (u64::from(*tid), *ith),
            LaneOwner::Pool { ith, .. } => {
                self.tracks += 1;
                (TRACKS + self.tracks, Some(*ith))
            }
        };
        let place = format!("\"pid\":{},\"tid\":{tid}", place.pid());
        if !name.is_empty() {
            self.metadata("thread_name", &place, name)?;
        }
        if let Some(ith) = place_in_pool {
            let rank = ith.to_string();
            self.put(&[
                "{\"ph\":\"M\",\"name\":\"thread_sort_index\",",
                &place,
                ",\"args\":{\"sort_index\":",
                &rank,
                "}}",
            ])?;
        }
        self.place = place;
        Ok(())
    }

    fn begin(&mut self, t: i64, name: SliceName<'_>) -> io::Result<()> {
        match name {
            SliceName::Op { op, call, cpu } => {
                let missing = || open_event(NO_STRUCTURE, category::OP, &SliceArgs::new());
                let mut text = self.ops.get_mut(op).map_or_else(missing, std::mem::take);
                let len = text.len();
                for (name, value) in [(TOKEN, call), (CPU, cpu.map(u64::from))] {
                    if let Some(value) = value {
                        let comma = if text.ends_with('{') { "" } else { "," };
                        text.push_str(&format!("{comma}\"{name}\":{value}"));
                    }
                }
                text.push('}');
                self.names.push(name_of(&text));
                let done = self.step("B", t, &text);
                text.truncate(len);
                if let Some(place) = self.ops.get_mut(op) {
                    *place = text;
                }
                done
            }
            SliceName::Other { name, category, values, .. } => {
                let rest = event(name, category, values);
                self.names.push(name_of(&rest));
                self.step("B", t, &rest)
            }
        }
    }

    fn end(&mut self, t: i64) -> io::Result<()> {
        // The format needs no name here; speedscope does.
        let name = self.names.pop().unwrap_or_default();
        self.step("E", t, &name)
    }

    fn track(&mut self, pid: Option<u32>, tid: Option<u32>, name: &str, _: Option<&str>) -> io::Result<()> {
        self.tracks += 1;
        let place = format!("\"pid\":{},\"tid\":{}", pid.unwrap_or(0), TRACKS + self.tracks);
        let of = tid.map_or_else(String::new, |tid| format!(" of {tid}"));
        self.metadata("thread_name", &place, &format!("{name}{of}"))?;
        self.place = place;
        Ok(())
    }

    fn value(&mut self, t: i64, name: &str, value: f64) -> io::Result<()> {
        let rest = event(name, category::COUNTER, &vec![("value", ArgValue::Real(value))]);
        self.step("C", t, &rest)
    }

    fn instant(&mut self, t: i64, name: &str, values: &SliceArgs) -> io::Result<()> {
        let rest = event(name, category::RECORDER, values);
        self.step("i", t, &format!(",\"s\":\"g\"{rest}"))
    }

    fn queue(&mut self, queue: &DeviceQueue<'_>) -> io::Result<()> {
        self.last = i64::MIN;
        self.track(Some(queue.pid), None, &format!("{} (times: {})", queue.name, queue.times), None)
    }

    /// The slices of a track must not overlap: a kernel that begins before the previous one ended is drawn from that
    /// end on.
    fn kernel(&mut self, (from, to): (i64, i64), name: &str, values: &SliceArgs) -> io::Result<()> {
        let from = from.max(self.last);
        if from >= to {
            return Ok(());
        }
        self.last = to;
        let rest = event(name, category::DEVICE, values);
        self.names.push(name_of(&rest));
        self.step("B", from, &rest)?;
        self.end(to)
    }

    fn finish(&mut self) -> io::Result<()> {
        self.buf.extend_from_slice(b"\n]}\n");
        self.flush()?;
        self.out.flush()
    }
}
