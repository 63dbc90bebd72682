//! Device time by the kernel's own tracepoints: what drivers say about each submission, read as perf events on every CPU
//! and put together. Covers all processes, since a device is shared.

pub mod decode;
pub mod join;
mod sources;

use std::io::{self, Write};
use std::os::fd::OwnedFd;

use self::decode::{EventReader, Hit, Told, readers};
use self::join::Joined;
pub use self::sources::{EventDef, Role, SOURCES, SourceDef, Step};
use crate::capture::perf::event;
use crate::capture::perf::ring::{PerfRecord, Ring};
use crate::capture::source::FeatureStatus;
use machine::kernel::tracepoint;
use machine::usage;
use pfi::record::{Availability, DeviceRing};
use pfi::{Encoder, Submission, WriteError};

/// Its name in the trace.
pub const NAME: &str = "submissions";
/// Bytes of each CPU's ring: some 600 events, between two turns of the recorder's loop, 50 ms apart.
const RING_BYTES: u32 = 64 << 10;
/// An event is in its ring at most this long after its time, ns: it is written there in the tracepoint.
const SETTLED: u64 = 1_000_000;
/// Maximum number of rings with a name.
const RINGS: usize = 512;
/// Most bytes of a device's or ring's name.
const NAME_BYTES: usize = 64;

/// Why submissions are not recorded.
#[derive(Debug, thiserror::Error)]
pub enum NoSubmissions {
    #[error("this kernel has no tracepoint of a GPU driver")]
    None,
    #[error("this kernel's tracepoints of GPU drivers are not as known: {0}")]
    Unknown(String),
    #[error("tracefs cannot be mounted: {0}")]
    Tracefs(#[source] io::Error),
    #[error("the kernel's tracepoints of GPU drivers cannot be read: {0}")]
    Refused(#[source] io::Error),
}

/// A device's queue.
#[derive(Debug)]
struct KnownRing {
    source: usize,
    device: String,
    name: String,
    /// The pointer to the name, if the kernel does not tell it.
    pointer: Option<u64>,
}

/// Tracepoints being read.
pub struct Watch {
    sources: &'static [SourceDef],
    /// By the kernel's number of the event.
    readers: Vec<(u32, EventReader)>,
    /// One for each CPU.
    rings: Vec<Ring>,
    /// Those that write to them, beside the one that owns the ring.
    events: Vec<OwnedFd>,
    known: Vec<KnownRing>,
    /// Rings whose names are in the trace.
    named: usize,
    hits: Vec<Hit>,
    done: Vec<(u32, Submission)>,
    joined: Joined,
    /// Submissions written, events lost and events that are shorter than their format says, in this trace.
    seen: u64,
    lost: u64,
    short: u64,
}

/// The readers of all sources that this kernel has.
fn offered(sources: &[SourceDef]) -> Result<Vec<(u32, EventReader)>, NoSubmissions> {
    tracepoint::ensure_mounted().map_err(NoSubmissions::Tracefs)?;
    let (mut out, mut strange) = (Vec::new(), None);
    for (i, def) in sources.iter().enumerate() {
        let format = |name: &str| tracepoint::format(def.system, name).ok();
        match readers(i, def, format) {
            Ok(readers) => out.extend(readers),
            // The whole source is missing, or only a part of it.
            Err(why) if def.events.iter().any(|e| format(e.name).is_some()) => strange = Some(why),
            Err(_) => {}
        }
    }
    match strange {
        _ if !out.is_empty() => Ok(out),
        Some(why) => Err(NoSubmissions::Unknown(why)),
        None => Err(NoSubmissions::None),
    }
}

impl Watch {
    /// Begins to read the tracepoints that this kernel has of these sources.
    ///
    /// # Errors
    /// It has none, or one cannot be read.
    pub fn start(sources: &'static [SourceDef]) -> Result<Watch, NoSubmissions> {
        let readers = offered(sources)?;
        event::allow_files();
        let refused = NoSubmissions::Refused;
        let (mut rings, mut events) = (Vec::new(), Vec::new());
        for cpu in event::online() {
            let mut ring: Option<Ring> = None;
            for (id, _) in &readers {
                let event = event::tracepoint(*id, cpu, false, false).map_err(refused)?;
                match &ring {
                    None => ring = Some(Ring::of(event, RING_BYTES).map_err(refused)?),
                    Some(ring) => {
                        event::join(&event, ring).map_err(refused)?;
                        events.push(event);
                    }
                }
            }
            rings.extend(ring);
        }
        // Ends are enabled first: an end without a start is counted; a start whose end was missed would stay open.
        events.iter().rev().try_for_each(event::enable).map_err(refused)?;
        rings.iter().try_for_each(event::enable).map_err(refused)?;
        Ok(Watch {
            sources,
            readers,
            rings,
            events,
            known: Vec::new(),
            named: 0,
            hits: Vec::new(),
            done: Vec::new(),
            joined: Joined::default(),
            seen: 0,
            lost: 0,
            short: 0,
        })
    }

    /// Writes the submissions that have ended.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn pass<W: Write>(&mut self, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        let until = usage::now().saturating_sub(SETTLED);
        self.take(until);
        self.write(enc)
    }

    /// Stops, and writes what has ended by now.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn finish<W: Write>(&mut self, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        self.events.iter().for_each(|e| drop(event::disable(e)));
        self.rings.iter().for_each(|e| drop(event::disable(e)));
        self.take(u64::MAX);
        self.write(enc)
    }

    /// Reads the rings, and puts together what happened before `until`: what is later may still come on another CPU.
    fn take(&mut self, until: u64) {
        let (readers, known, hits) = (&self.readers, &mut self.known, &mut self.hits);
        let (mut lost, mut short) = (0, 0);
        for ring in &mut self.rings {
            ring.read(&mut |record| match record {
                PerfRecord::Sample { tgid, time, raw, .. } => {
                    let id = raw.first_chunk().map(|id| u32::from(u16::from_ne_bytes(*id)));
                    let Some((_, reader)) = readers.iter().find(|r| Some(r.0) == id) else { return };
                    let of = ring_of(known, self.sources, reader, raw);
                    match reader.read(raw, time, tgid, of) {
                        Some(hit) => hits.push(hit),
                        None => short += 1,
                    }
                }
                PerfRecord::Lost(n) => lost += n,
                _ => {}
            });
            short += std::mem::take(&mut ring.malformed);
        }
        (self.lost, self.short) = (self.lost.saturating_add(lost), self.short.saturating_add(short));
        common::order::by(&mut self.hits, |a, b| a.t.cmp(&b.t));
        let settled = self.hits.partition_point(|h| h.t <= until);
        let now = |clock| usage::clock_ns(clock);
        let raw_to_mono = now(libc::CLOCK_MONOTONIC).wrapping_sub(now(libc::CLOCK_MONOTONIC_RAW)) as i64;
        for hit in self.hits.drain(..settled) {
            let Some(def) = self.sources.get(hit.key.0) else { continue };
            if let Some((ring, submission)) = self.joined.take(def, &hit, raw_to_mono) {
                self.done.push((ring.unwrap_or(0), submission));
            }
        }
    }

    fn write<W: Write>(&mut self, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        for (i, ring) in self.known.iter().enumerate().skip(self.named) {
            let Some(def) = self.sources.get(ring.source) else { continue };
            let id = i as u32 + 1;
            enc.device_ring(&DeviceRing { id, source: def.source, device: &ring.device, name: &ring.name })?;
        }
        self.named = self.known.len();
        self.seen = self.seen.saturating_add(self.done.len() as u64);
        // The order within a ring stays.
        common::order::by(&mut self.done, |a, b| a.0.cmp(&b.0));
        let mut part = Vec::new();
        for same in self.done.chunk_by(|a, b| a.0 == b.0) {
            part.clear();
            part.extend(same.iter().map(|s| s.1));
            if let Some((ring, _)) = same.first() {
                enc.submissions(*ring, &part)?;
            }
        }
        self.done.clear();
        Ok(())
    }

    /// Whether submissions were recorded, in the trace that ends here.
    pub fn feature_status(&mut self) -> FeatureStatus {
        let mut systems: Vec<&str> =
            self.readers.iter().filter_map(|r| self.sources.get(r.1.source)).map(|def| def.system).collect();
        systems.dedup();
        let from = systems.join(", ");
        let take = std::mem::take::<u64>;
        let (seen, lost, short) = (take(&mut self.seen), take(&mut self.lost), take(&mut self.short));
        let j = &mut self.joined;
        let parts = [
            (lost, "events lost"),
            (short, "events shorter than their format says"),
            (take(&mut j.without_end), "submissions of which no end was seen"),
            (take(&mut j.misfits), "submissions whose times by the device's clock do not fit the host's"),
        ];
        // Those under way when the recording began, and cancelled ones.
        let without_start = take(&mut j.without_start);
        let mut why = match (seen, without_start) {
            (0, 0) => {
                format!("none was seen (tracepoints of {from}): the device's driver does not report there")
            }
            _ => format!("{seen} from the tracepoints of {from}"),
        };
        if without_start > 0 {
            why.push_str(&format!("; {without_start} ends of submissions of which no start was seen"));
        }
        for (n, what) in parts.iter().filter(|p| p.0 > 0) {
            why.push_str(&format!("; {n} {what}"));
        }
        let state = match seen {
            0 => Availability::None,
            _ if parts.iter().all(|p| p.0 == 0) => Availability::Whole,
            _ => Availability::Partly,
        };
        FeatureStatus { state, why }
    }
}

/// Id of the ring that an event tells, from 1 on.
fn ring_of(
    known: &mut Vec<KnownRing>,
    sources: &[SourceDef],
    reader: &EventReader,
    raw: &[u8],
) -> Option<u32> {
    let def = sources.get(reader.source)?;
    let (device, ring) = (reader.told(Role::Device, raw), reader.told(Role::Ring, raw));
    // Ends are joined with what began, and take its ring.
    if reader.step == Step::Done {
        return None;
    }
    let same = |text: &str, told: Option<Told<'_>>, before: &str| match told {
        Some(Told::Text(bytes)) => text == clean(bytes),
        Some(Told::Number(n)) => text.strip_prefix(before).and_then(|n| n.parse().ok()) == Some(n as i64),
        Some(Told::Pointer(_)) => true,
        None => text.is_empty(),
    };
    let pointer = match ring {
        Some(Told::Pointer(at)) => Some(at),
        _ => None,
    };
    let found = known.iter().position(|k| {
        k.source == reader.source
            && k.pointer == pointer
            && same(&k.device, device, def.device)
            && same(&k.name, ring, def.ring)
    });
    if let Some(at) = found {
        return Some(at as u32 + 1);
    }
    if known.len() >= RINGS {
        return None;
    }
    let number = known.iter().filter(|k| k.source == reader.source).count();
    let named = |told: Option<Told<'_>>, before: &str| match told {
        Some(Told::Text(bytes)) => clean(bytes),
        Some(Told::Number(n)) => format!("{before}{}", n as i64),
        Some(Told::Pointer(_)) => format!("{before}{number} (in the order in which they were seen)"),
        None => String::new(),
    };
    let (device, name) = (named(device, def.device), named(ring, def.ring));
    known.push(KnownRing { source: reader.source, device, name, pointer });
    u32::try_from(known.len()).ok()
}

/// A name as text, of bounded length.
fn clean(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes.get(..NAME_BYTES).unwrap_or(bytes)).into_owned()
}

#[cfg(test)]
mod tests;
