//! Time by model, phase, layer and op for flame graph programs: [`folded`] lines, [`speedscope`], and [`pprof`].

mod gzip;
pub mod pprof;

use std::collections::HashMap;
use std::io::{self, Write};

use analysis::streams::stacks::{StackRow, Stacks};
use common::plain::Json;
use serde_json::{Value, json};

use crate::table::clean;
use crate::timeline::thread_name;

/// The frames of a row, outermost first.
fn frames<'s>(stacks: &'s Stacks, row: &'s StackRow) -> impl DoubleEndedIterator<Item = &'s str> + use<'s> {
    let model = stacks.models.get(row.model).map_or("?", String::as_str);
    [model, row.phase.name()].into_iter().chain(row.frames.iter().map(String::as_str))
}

/// One line per stack: frames separated by semicolons, a space, and the time in ns. Equal stacks of several threads are
/// added up.
///
/// # Errors
/// Write errors.
pub fn folded(out: &mut dyn Write, stacks: &Stacks) -> io::Result<()> {
    let mut index: HashMap<String, usize> = HashMap::new();
    let mut lines: Vec<(String, u64)> = Vec::new();
    for row in stacks.rows.iter().filter(|r| r.ns > 0) {
        // A semicolon in a name would be read as another frame.
        let parts: Vec<String> = frames(stacks, row).map(|f| clean(f).replace(';', ",")).collect();
        let at = *index.entry(parts.join(";")).or_insert_with_key(|line| {
            lines.push((line.clone(), 0));
            lines.len() - 1
        });
        if let Some((_, sum)) = lines.get_mut(at) {
            *sum = sum.saturating_add(row.ns);
        }
    }
    lines.iter().try_for_each(|(line, ns)| writeln!(out, "{line} {ns}"))
}

/// The file format of speedscope: a sampled profile of each model and thread, with a sample per stack that weighs its
/// time.
///
/// # Errors
/// Write errors.
pub fn speedscope(out: &mut dyn Write, stacks: &Stacks) -> io::Result<()> {
    let mut index: HashMap<&str, usize> = HashMap::new();
    let mut names: Vec<Value> = Vec::new();
    let mut profiles: Vec<Value> = Vec::new();
    for of_thread in stacks.rows.chunk_by(|a, b| (a.model, a.thread) == (b.model, b.thread)) {
        let Some(first) = of_thread.first() else { continue };
        let (mut samples, mut weights, mut end) = (Vec::new(), Vec::new(), 0u64);
        for row in of_thread.iter().filter(|r| r.ns > 0) {
            let stack = frames(stacks, row).map(|frame| {
                *index.entry(frame).or_insert_with(|| {
                    names.push(json!({ "name": frame }));
                    names.len() - 1
                })
            });
            samples.push(stack.collect::<Vec<usize>>());
            weights.push(row.ns);
            end = end.saturating_add(row.ns);
        }
        let model = stacks.models.get(first.model).map_or("?", String::as_str);
        profiles.push(json!({
            "type": "sampled",
            "name": format!("{model}, {}", thread_name(first.thread)),
            "unit": "nanoseconds",
            "startValue": 0,
            "endValue": end,
            "samples": samples,
            "weights": weights,
        }));
    }
    let file = json!({
        "$schema": "https://www.speedscope.app/file-format-schema.json",
        "exporter": concat!("profinfer ", env!("CARGO_PKG_VERSION")),
        "activeProfileIndex": 0,
        "shared": { "frames": names },
        "profiles": profiles,
    });
    writeln!(Json(out), "{file}")
}
