//! The bytes of a tracepoint's event, as what they say about a submission.

use super::sources::{EventDef, ROLES, Role, SourceDef, Step};
use machine::kernel::event_format::{EventFormat, Field};

/// A tracepoint of a source, with where its fields are on this kernel.
#[derive(Debug, Clone)]
pub struct EventReader {
    pub step: Step,
    /// The source's position in the table.
    pub source: usize,
    keys: [Option<Field>; 2],
    fields: [Option<Field>; ROLES],
}

/// Identifies a submission among those under way.
pub type Key = (usize, [u64; 2]);

/// What one event says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Hit {
    pub step: Step,
    pub key: Key,
    /// CLOCK_MONOTONIC, ns.
    pub t: u64,
    /// The process that was running.
    pub tgid: u32,
    /// Id of the ring; None: the event does not tell it.
    pub ring: Option<u32>,
    pub ticks: Option<u64>,
    pub start: Option<u64>,
    pub end: Option<u64>,
    /// ns.
    pub busy: Option<u64>,
    /// Hz.
    pub clock: Option<u64>,
}

/// A device or a ring, as an event tells it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Told<'r> {
    Text(&'r [u8]),
    Number(u64),
    /// A pointer to a name that is not in the event.
    Pointer(u64),
}

impl EventReader {
    /// # Errors
    /// The field that the event lacks.
    pub fn new(source: usize, def: &EventDef, format: &EventFormat) -> Result<EventReader, &'static str> {
        let mut keys = [None; 2];
        for (to, name) in keys.iter_mut().zip(def.keys) {
            *to = Some(format.field(name).ok_or(*name)?);
        }
        let mut fields = [None; ROLES];
        for (role, name) in def.fields {
            if let Some(to) = fields.get_mut(*role as usize) {
                *to = format.field(name);
            }
        }
        Ok(EventReader { step: def.step, source, keys, fields })
    }

    fn field(&self, role: Role) -> Option<Field> {
        *self.fields.get(role as usize)?
    }

    fn number(&self, role: Role, raw: &[u8]) -> Option<u64> {
        self.field(role)?.number(raw)
    }

    /// The device or the ring, if the event tells it.
    pub fn told<'r>(&self, role: Role, raw: &'r [u8]) -> Option<Told<'r>> {
        let field = self.field(role)?;
        match field.number(raw) {
            // A name in eight bytes is the kernel's pointer to it.
            Some(n) if role == Role::Ring && field.size == 8 => Some(Told::Pointer(n)),
            Some(n) => Some(Told::Number(n)),
            None => field.text(raw).map(Told::Text),
        }
    }

    /// Reads an event. None: it is too short for its fields.
    pub fn read(&self, raw: &[u8], t: u64, tgid: u32, ring: Option<u32>) -> Option<Hit> {
        let mut key = [0; 2];
        for (to, field) in key.iter_mut().zip(&self.keys) {
            if let Some(field) = field {
                *to = field.number(raw)?;
            }
        }
        let known = |role| self.number(role, raw).filter(|n| *n != 0);
        Some(Hit {
            step: self.step,
            key: (self.source, key),
            t,
            tgid,
            ring,
            ticks: known(Role::Ticks),
            start: known(Role::Start),
            end: known(Role::End),
            busy: match self.step {
                // An application that used the device for no time in a period is no unknown.
                Step::Period => self.number(Role::Busy, raw),
                _ => known(Role::Busy),
            },
            clock: known(Role::Megahertz).and_then(|mhz| mhz.checked_mul(1_000_000)),
        })
    }
}

/// Readers of a source's events, and the kernel's numbers for them.
///
/// # Errors
/// The event or field that is missing.
pub fn readers(
    source: usize,
    def: &SourceDef,
    format: impl Fn(&str) -> Option<EventFormat>,
) -> Result<Vec<(u32, EventReader)>, String> {
    let mut out = Vec::new();
    for event in def.events {
        let format = match format(event.name) {
            Some(format) => format,
            None if event.needed => return Err(format!("no event {}", event.name)),
            None => continue,
        };
        let lacks = |field| format!("{} has no field {field}", event.name);
        match (format.id, EventReader::new(source, event, &format)) {
            (Some(id), Ok(reader)) => out.push((id, reader)),
            (None, _) if event.needed => return Err(lacks("ID")),
            (_, Err(field)) if event.needed => return Err(lacks(field)),
            _ => {}
        }
    }
    Ok(out)
}
