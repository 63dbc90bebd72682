//! The timeline of a token: an empty panel that the script fills, and the slices as compact data.
//!
//! The data of a thread is a series of variable-length integers, 7 bits a byte, in base64: the number of groups; of
//! each group the number of its slices and, slice by slice, the op's index plus 1 less that of the slice before
//! (zigzag), the gap to the slice before (zigzag), the op time plus 1 and the wait plus 1 (0: not known); then the
//! number of off-CPU times and of each the gap, the duration, the state, the index of who had the CPU plus 1 and the
//! CPU; then the number of changes of the slices' CPU, and of each the gap and the CPU plus 1 (0: not known).

use std::collections::HashMap;
use std::io::{self, Write};

use super::markup::{self, text};
use crate::units::count;
use analysis::streams::token_lanes::{CallLanes, Chosen, OffState, ThreadLane, TokenLanes};
use common::order;
use serde::Serialize;

/// Kinds of ops by colour: style, name.
const KINDS: [(&str, &str); 7] = [
    ("matmul", "matrix multiplication"),
    ("experts", "experts"),
    ("attention", "attention"),
    ("norm", "normalization"),
    ("element", "element-wise"),
    ("copy", "copies and rows"),
    ("other", "other ops"),
];

/// Other colours: style, name.
const STATES: [(&str, &str); 5] = [
    ("wait", "waiting at the barrier"),
    ("nocpu", "waiting for a CPU"),
    ("idle", "asleep"),
    ("fault", "page fault or I/O"),
    ("blocked", "blocked"),
];

/// The kind of an op, as an index in [`KINDS`].
fn kind(op: &str) -> usize {
    let name = match op.split('+').next().unwrap_or_default() {
        "MUL_MAT" | "OUT_PROD" => "matmul",
        "MUL_MAT_ID" | "ADD_ID" | "ARGSORT" | "TOP_K" => "experts",
        "FLASH_ATTN_EXT" | "SOFT_MAX" | "DIAG_MASK_INF" => "attention",
        "RMS_NORM" | "NORM" | "L2_NORM" | "GROUP_NORM" => "norm",
        "ADD" | "MUL" | "SUB" | "DIV" | "SCALE" | "GLU" | "SWIGLU" | "GEGLU" | "REGLU" | "SILU" | "GELU"
        | "RELU" | "SIGMOID" | "TANH" | "UNARY" | "ROPE" | "SQR" | "SQRT" | "MEAN" | "ADD1" | "SUM_ROWS"
        | "CLAMP" => "element",
        "CPY" | "CONT" | "DUP" | "GET_ROWS" | "SET_ROWS" | "CONCAT" | "REPEAT" | "PAD" => "copy",
        _ => "other",
    };
    KINDS.iter().position(|(style, _)| *style == name).unwrap_or(KINDS.len() - 1)
}

/// Why a call has a timeline.
fn why(chosen: Chosen) -> &'static str {
    match chosen {
        Chosen::Slowest => "slowest",
        Chosen::Median => "median",
        Chosen::First => "first",
        Chosen::Spaced => "",
    }
}

/// Writes the panel, and which calls have a timeline. Without the script only the latter is visible.
pub fn write(out: &mut dyn Write, lanes: &TokenLanes) -> io::Result<()> {
    if lanes.calls.is_empty() {
        let why = match (lanes.left_out, lanes.most) {
            (0, _) => "no complete call has recorded ops (record with --level op)".to_owned(),
            (_, 0) => "left out with --timeline 0".to_owned(),
            (n, most) => {
                format!("{} with more than {most} op slices each (--timeline)", count(n as u64, "call"))
            }
        };
        return markup::gap(out, &format!("No timeline of a token: {why}."));
    }
    markup::say(out, &included(lanes))?;
    writeln!(
        out,
        "<div id=\"timeline\" class=\"panel\" role=\"region\" aria-labelledby=\"timeline-h\" hidden><h3 id=\"timeline-h\">Timeline</h3>\
         <p class=\"tools\"><button type=\"button\" id=\"timeline-back\">Previous</button>\
         <label>Token <select id=\"timeline-call\"></select></label>\
         <button type=\"button\" id=\"timeline-next\">Next</button>\
         <span role=\"group\" aria-label=\"Zoom\"><button type=\"button\" id=\"timeline-out\" aria-label=\"Longer time\">\u{2212}</button> \
         <button type=\"button\" id=\"timeline-in\" aria-label=\"Shorter time\">+</button> \
         <button type=\"button\" id=\"timeline-all\">All</button></span>\
         <button type=\"button\" id=\"timeline-close\">Close</button></p>\
         <p id=\"timeline-about\" role=\"status\"></p>\
         <div id=\"timeline-box\"><canvas id=\"timeline-canvas\" tabindex=\"0\" role=\"img\" aria-label=\"Threads over time; the table below has its figures\"></canvas></div>"
    )?;
    writeln!(out, "<ul class=\"legend\">")?;
    for (style, name) in KINDS.iter().chain(&STATES) {
        writeln!(out, "<li><i class=\"{style}\"></i>{}</li>", text(name))?;
    }
    writeln!(
        out,
        "</ul><p class=\"more\">Each thread has a lane of ops and waits and, below it, one of times off-CPU. Arrow \
         keys: previous and next token; + and - zoom, 0 shows all, Shift and the arrow keys or dragging move; \
         Escape closes.</p><div id=\"timeline-facts\"></div></div>"
    )
}

/// Which calls have a timeline, and which have none and why.
fn included(lanes: &TokenLanes) -> String {
    let n = count(lanes.calls.len() as u64, "call");
    match lanes.left_out {
        0 => format!(
            "Timeline: {n} of the engine can be opened by selecting a dot of the chart (with JavaScript)."
        ),
        left => format!(
            "Timeline: {n} can be opened by selecting a dot of the chart (with JavaScript): the slowest, the median and the first, \
             and evenly spaced ones. {left} more are left out to keep the page small ({} op slices; --timeline N \
             allows more, --tokens A..B selects calls).",
            lanes.most
        ),
    }
}

#[derive(Serialize)]
struct CallData {
    seq: u64,
    phase: &'static str,
    why: &'static str,
    dur: u64,
    rows: Vec<RowData>,
    splits: Vec<(i64, u64, String)>,
}

#[derive(Serialize)]
struct RowData {
    ith: u16,
    tid: u32,
    /// Its off-CPU times are known.
    known: bool,
    left: usize,
    data: String,
}

#[derive(Serialize)]
struct TimelineData {
    /// Names of the programs that had a CPU.
    who: Vec<String>,
    kinds: Vec<&'static str>,
    /// Op and name, with `{L}` for the layer.
    names: Vec<String>,
    /// By op: its name, its kind, its layer plus 1.
    ops: Vec<[usize; 3]>,
    calls: Vec<CallData>,
}

/// The data of all timelines, for the script.
///
/// # Errors
/// They cannot be serialized.
pub fn data(lanes: &TokenLanes) -> io::Result<String> {
    let mut order: Vec<usize> = lanes.ops.keys().copied().collect();
    order::by_key(&mut order, |ident| (*ident as u64, 0));
    let index: HashMap<usize, usize> = order.iter().enumerate().map(|(i, ident)| (*ident, i)).collect();
    let mut names: Vec<String> = Vec::new();
    let mut known: HashMap<String, usize> = HashMap::new();
    let mut ops = Vec::new();
    for ident in &order {
        let Some((op, name, layer)) = lanes.ops.get(ident) else { continue };
        let whole = format!("{op} {name}");
        let at = *known.entry(whole).or_insert_with_key(|whole| {
            names.push(whole.clone());
            names.len() - 1
        });
        ops.push([at, kind(op), layer.map_or(0, |l| l as usize + 1)]);
    }
    let calls = lanes.calls.iter().map(|c| call(c, &index)).collect();
    let kinds = KINDS.iter().map(|(style, _)| *style).collect();
    Ok(markup::json(&TimelineData { who: lanes.culprits.clone(), kinds, names, ops, calls })?)
}

fn call(c: &CallLanes, index: &HashMap<usize, usize>) -> CallData {
    let row = |t: &ThreadLane| RowData {
        ith: t.ith,
        tid: t.tid,
        known: t.off_cpu.is_some(),
        left: t.off_cpu_left_out,
        data: base64(&packed(t, index)),
    };
    let splits = c.splits.clone();
    let rows = c.threads.iter().map(row).collect();
    CallData { seq: c.seq, phase: c.phase.name(), why: why(c.why), dur: c.dur, rows, splits }
}

/// The slices of a thread; see the top of this file.
fn packed(t: &ThreadLane, index: &HashMap<usize, usize>) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, t.groups.len() as u64);
    let (mut last, mut before) = (0i64, 0i64);
    for group in &t.groups {
        varint(&mut out, group.slices.len() as u64);
        for (ident, (start, time, wait)) in group.idents.iter().zip(&group.slices) {
            let op = ident.and_then(|ident| index.get(&ident)).map_or(0, |i| *i as i64 + 1);
            zigzag(&mut out, op.wrapping_sub(before));
            zigzag(&mut out, start.wrapping_sub(last));
            varint(&mut out, time.map_or(0, |ns| ns.saturating_add(1)));
            varint(&mut out, wait.map_or(0, |ns| ns.saturating_add(1)));
            let lasted = time.unwrap_or(0).saturating_add(wait.unwrap_or(0));
            (last, before) = (start.saturating_add_unsigned(lasted), op);
        }
    }
    let marks = t.off_cpu.as_deref().unwrap_or_default();
    varint(&mut out, marks.len() as u64);
    let mut last = 0i64;
    for mark in marks {
        zigzag(&mut out, mark.from.wrapping_sub(last));
        varint(&mut out, mark.ns);
        varint(&mut out, state(mark.state));
        varint(&mut out, mark.by.map_or(0, |(who, _)| who as u64 + 1));
        varint(&mut out, mark.by.map_or(0, |(_, cpu)| cpu.into()));
        last = mark.from.saturating_add_unsigned(mark.ns);
    }
    varint(&mut out, t.cpus.len() as u64);
    last = 0;
    for (from, cpu) in &t.cpus {
        zigzag(&mut out, from.wrapping_sub(last));
        varint(&mut out, cpu.map_or(0, |cpu| u64::from(cpu) + 1));
        last = *from;
    }
    out
}

/// The number of a state in the data.
fn state(state: OffState) -> u64 {
    match state {
        OffState::Preempted => 0,
        OffState::Runnable => 1,
        OffState::Idle => 2,
        OffState::PageFault => 3,
        OffState::Io => 4,
        OffState::Blocked => 5,
    }
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn zigzag(out: &mut Vec<u8>, n: i64) {
    varint(out, (n.wrapping_shl(1) ^ (n >> 63)).cast_unsigned());
}

/// Base64 with its standard alphabet and padding, as `atob` reads it.
fn base64(bytes: &[u8]) -> String {
    const LETTERS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for three in bytes.chunks(3) {
        let at = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let n = at(0) << 16 | at(1) << 8 | at(2);
        for (i, shift) in [18, 12, 6, 0].into_iter().enumerate() {
            let letter = LETTERS.get((n >> shift) as usize & 63).copied().unwrap_or(b'=');
            out.push(if i <= three.len() { letter.into() } else { '=' });
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use analysis::streams::token_lanes::{OffCpuMark, SliceGroup};

    #[test]
    fn base64_is_the_standard_one() {
        let all = ["", "f", "fo", "foo", "foob", "fooba", "foobar"];
        let want = ["", "Zg==", "Zm8=", "Zm9v", "Zm9vYg==", "Zm9vYmE=", "Zm9vYmFy"];
        assert_eq!(all.map(|text| base64(text.as_bytes())), want);
    }

    #[test]
    fn a_time_that_was_not_seen_is_not_zero() {
        let group = SliceGroup {
            idents: vec![Some(5), None],
            slices: vec![(10, Some(0), None), (300, None, Some(4))],
        };
        let mark = OffCpuMark { state: OffState::Preempted, from: 20, ns: 7, by: Some((2, 3)) };
        let lane = ThreadLane {
            ith: 0,
            tid: 1,
            groups: vec![group],
            cpus: vec![(10, Some(3)), (300, None)],
            off_cpu: Some(vec![mark]),
            off_cpu_left_out: 0,
        };
        let index = HashMap::from([(5, 1)]);
        let want = [1, 2, 4, 20, 1, 0, 3, 0xc4, 4, 0, 5, 1, 40, 7, 0, 3, 3, 2, 20, 4, 0xc4, 4, 0];
        assert_eq!(packed(&lane, &index), want);
    }

    #[test]
    fn ops_have_the_colour_of_their_kind() {
        let of = |op: &str| KINDS[kind(op)].0;
        assert_eq!(
            ["MUL_MAT", "MUL_MAT_ID", "RMS_NORM+MUL", "SWIGLU", "GET_ROWS", "ANYTHING", ""].map(of),
            ["matmul", "experts", "norm", "element", "copy", "other", "other"]
        );
    }
}
