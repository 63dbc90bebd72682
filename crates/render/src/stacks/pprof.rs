//! The profile format of `go tool pprof`. Field numbers are those of its proto/profile.proto.

use std::collections::HashMap;
use std::io::{self, Write};

use analysis::streams::stacks::Stacks;
use pfi::record::Header;

use super::{frames, gzip::gzip};
use crate::proto::{bytes, number, varint};
use crate::timeline::thread_name;

/// Fields of Profile.
mod profile {
    pub const SAMPLE_TYPE: u32 = 1;
    pub const SAMPLE: u32 = 2;
    pub const LOCATION: u32 = 4;
    pub const FUNCTION: u32 = 5;
    pub const STRING: u32 = 6;
    pub const TIME: u32 = 9;
    pub const DURATION: u32 = 10;
    pub const DEFAULT_TYPE: u32 = 14;
}

/// Fields of Sample, and of its Label.
mod sample {
    pub const LOCATIONS: u32 = 1;
    pub const VALUES: u32 = 2;
    pub const LABEL: u32 = 3;
    pub const KEY: u32 = 1;
    pub const TEXT: u32 = 2;
}

/// The table of strings; the first one is empty.
struct Strings<'s> {
    index: HashMap<&'s str, u64>,
    list: Vec<&'s str>,
}

impl<'s> Strings<'s> {
    fn id(&mut self, text: &'s str) -> u64 {
        *self.index.entry(text).or_insert_with(|| {
            self.list.push(text);
            self.list.len() as u64 - 1
        })
    }
}

/// Writes the profile: executions and time of each stack, labelled with the thread.
///
/// # Errors
/// Write errors.
pub fn pprof(out: &mut dyn Write, stacks: &Stacks, header: Option<&Header<'_>>) -> io::Result<()> {
    let mut strings = Strings { index: HashMap::new(), list: Vec::new() };
    strings.id("");
    let mut body = Vec::new();
    for (kind, unit) in [("calls", "count"), ("time", "nanoseconds")] {
        let mut value_type = Vec::new();
        number(&mut value_type, 1, strings.id(kind));
        number(&mut value_type, 2, strings.id(unit));
        bytes(&mut body, profile::SAMPLE_TYPE, &value_type);
    }
    let threads: Vec<String> = stacks.rows.iter().map(|row| thread_name(row.thread)).collect();
    // A frame is a location with one function; both have the same id, from 1 on.
    let mut ids: HashMap<&str, u64> = HashMap::new();
    let mut functions: Vec<&str> = Vec::new();
    for (row, thread) in stacks.rows.iter().zip(&threads) {
        let (mut locations, mut values, mut label) = (Vec::new(), Vec::new(), Vec::new());
        for frame in frames(stacks, row).rev() {
            let id = *ids.entry(frame).or_insert_with(|| {
                functions.push(frame);
                functions.len() as u64
            });
            varint(&mut locations, id);
        }
        varint(&mut values, row.calls);
        varint(&mut values, row.ns);
        number(&mut label, sample::KEY, strings.id("thread"));
        number(&mut label, sample::TEXT, strings.id(thread));
        let mut one = Vec::new();
        bytes(&mut one, sample::LOCATIONS, &locations);
        bytes(&mut one, sample::VALUES, &values);
        bytes(&mut one, sample::LABEL, &label);
        bytes(&mut body, profile::SAMPLE, &one);
    }
    for (id, name) in (1..).zip(functions) {
        let (mut line, mut location, mut function) = (Vec::new(), Vec::new(), Vec::new());
        number(&mut line, 1, id);
        number(&mut location, 1, id);
        bytes(&mut location, 4, &line);
        bytes(&mut body, profile::LOCATION, &location);
        number(&mut function, 1, id);
        number(&mut function, 2, strings.id(name));
        bytes(&mut body, profile::FUNCTION, &function);
    }
    number(&mut body, profile::DEFAULT_TYPE, strings.id("time"));
    strings.list.iter().for_each(|text| bytes(&mut body, profile::STRING, text.as_bytes()));
    if let Some((from, to)) = stacks.span {
        if let Some(h) = header {
            // CLOCK_REALTIME and CLOCK_MONOTONIC of the header are of the same instant.
            let since = from.wrapping_sub(h.mono_ns.cast_signed());
            number(&mut body, profile::TIME, h.real_ns.wrapping_add_signed(since));
        }
        number(&mut body, profile::DURATION, from.abs_diff(to));
    }
    out.write_all(&gzip(&body))
}
