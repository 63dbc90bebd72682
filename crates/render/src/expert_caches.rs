//! The caches of `profinfer experts` as a table, and the experts by use as comma-separated values.

use std::io::{self, Write};

use super::expert_reads;
use super::section::Section;
use super::table::{Style, Table, clean, number, text};
use super::units::{bytes, count, or_dash, pct, time};
use analysis::questions::experts::by_prompt::ExpertPart;
use analysis::questions::experts::{ExpertCacheRow, ExpertCaches, RankedExpert};

/// Experts of a layer that are listed.
const LISTED: usize = 8;

/// Writes what the model has, the caches, and the most used experts of each layer.
///
/// # Errors
/// `out` cannot be written.
pub fn write(out: &mut dyn Write, found: &ExpertCaches, style: &Style) -> io::Result<()> {
    writeln!(out, "{}", style.bold(&clean(&head(found))))?;
    caches(found).write(out, style)?;
    by_prompt(found).iter().try_for_each(|section| section.write(out, style))?;
    if let Some(reads) = expert_reads::section(found) {
        reads.write(out, style)?;
    }
    ranking(found).write(out, style)
}

fn head(found: &ExpertCaches) -> String {
    let size = match (found.expert_bytes, found.all_bytes) {
        (Some(one), Some(all)) => format!(", {} each, {} in all", bytes(one), bytes(all as f64)),
        _ => String::new(),
    };
    format!(
        "{} of {}, {} per token{size}; {} of decode needed {}",
        count(found.layers, "layer"),
        count(found.experts, "expert"),
        found.used,
        count(found.tokens, "token"),
        count(found.needed, "expert")
    )
}

fn caches(found: &ExpertCaches) -> Section {
    let mut t = Table::new(vec![
        number("slots per layer", 0),
        number("memory", 1),
        text("policy"),
        number("hit %", 0),
        number("by part %", 3),
        number("reads/token", 0),
        number("early/token", 2),
        number("tok/s", 0),
    ]);
    let mut slots = None;
    for r in &found.caches {
        let first = slots.replace(r.slots) != Some(r.slots);
        let once = |text: String| if first { text } else { String::new() };
        t.row(vec![
            once(r.slots.to_string()),
            once(or_dash(r.bytes, bytes)),
            r.policy.to_owned(),
            or_dash(r.hit_rate, pct),
            or_dash(r.by_part, |[least, most]| format!("{} to {}", pct(least), pct(most))),
            format!("{:.2}", r.reads_per_token),
            if r.early_per_token > 0.0 { format!("{:.2}", r.early_per_token) } else { "-".into() },
            speed(r),
        ]);
    }
    Section { title: "Caches of experts, decode".into(), table: Some(t), notes: notes(found) }
}

fn speed(r: &ExpertCacheRow) -> String {
    or_dash(r.tokens_per_s, |[least, most]| match least == most {
        true => format!("{most:.2}"),
        false => format!("{least:.2} to {most:.2}"),
    })
}

fn notes(found: &ExpertCaches) -> Vec<String> {
    let parts = match found.parts_of {
        "requests" => count(found.parts, "request"),
        _ => "tenths of the tokens".into(),
    };
    let mut notes = vec![
        format!(
            "by part: the lowest and highest rate of {parts}; pin: {}",
            if found.pins == "file" { "the experts of the list" } else { "the experts of one half of them, kept for the other" }
        ),
        "next: predicted from the experts of the layer before, as recorded so far; a router that looks ahead predicts better"
            .into(),
    ];
    notes.push(match (found.token_ns, found.reads_ns.as_slice()) {
        (Some(token), [read]) => format!(
            "tok/s: {} a token as recorded, and {} for each expert that it waits for; more if the others are computed meanwhile",
            time(token),
            time(*read)
        ),
        (Some(token), [one, .., all]) => format!(
            "tok/s: {} a token as recorded, and what it waits for in each layer: {} for one expert, {} for {} together; more if \
             the other experts are computed meanwhile",
            time(token),
            time(*one),
            time(*all),
            found.reads_ns.len()
        ),
        (None, _) => "tok/s is not known: no call of decode has a time".into(),
        _ => {
            "tok/s: give what reading an expert takes (--read-time, or --storage MODEL to measure it)".into()
        }
    });
    if found.unread > 0 {
        notes.push(format!(
            "the experts of {} were not read, those of prompts mostly: caches stay as they are there",
            count(found.unread, "op")
        ));
    }
    notes
}

/// A table for each number of slots.
fn by_prompt(found: &ExpertCaches) -> Vec<Section> {
    let part = if found.parts_of == "requests" { "request" } else { "tenth" };
    let of = |same: &[ExpertPart]| {
        let mut columns = vec![number(part, 0), number("needed", 1)];
        columns.extend(found.policies.iter().map(|policy| number(policy, 2)));
        columns.extend([number("own list", 0), number("others' lists", 0)]);
        let mut t = Table::new(columns);
        for r in same {
            let mut row = vec![r.part.to_string(), r.needed.to_string()];
            row.extend(r.hit_rates.iter().map(|rate| pct(*rate)));
            row.push(pct(r.own_list));
            row.push(or_dash(r.other_lists, |[least, most]| format!("{} to {}", pct(least), pct(most))));
            t.row(row);
        }
        let slots = same.first().map_or(0, |r| r.slots);
        Section {
            title: format!("Hits by {part}, {} per layer (%)", count(slots.into(), "slot")),
            table: Some(t),
            notes: vec![format!(
                "own list: the experts pinned that the {part} needed most itself; others' lists: those of each other {part}"
            )],
        }
    };
    found.by_prompt.chunk_by(|a, b| a.slots == b.slots).map(of).collect()
}

fn ranking(found: &ExpertCaches) -> Section {
    let mut t = Table::new(vec![
        text("layer"),
        number("used", 0),
        text("most needed experts (% of the layer's uses)"),
    ]);
    for l in &found.ranking {
        let all: u64 = l.experts.iter().map(|e| e.uses).sum();
        let one = |e: &RankedExpert| format!("{} ({})", e.expert, pct(e.uses as f64 / all.max(1) as f64));
        t.row(vec![
            l.layer.map_or_else(|| l.name.clone(), |n| n.to_string()),
            l.experts.len().to_string(),
            l.experts.iter().take(LISTED).map(one).collect::<Vec<_>>().join("  "),
        ]);
    }
    Section { title: "Experts by use in decode".into(), table: Some(t), notes: Vec::new() }
}

/// Writes the option of llama.cpp that leaves the experts of some layers to the CPU, and what that means as a comment.
///
/// # Errors
/// `out` cannot be written.
pub fn overrides(out: &mut dyn Write, found: &ExpertCaches) -> io::Result<()> {
    let Some(device) = &found.device else { return Ok(()) };
    let share =
        device.time_share.map_or_else(String::new, |s| format!(", {} % of the experts' time", pct(s)));
    writeln!(
        out,
        "# on the device: experts of {} of {} layers, {}{share}",
        device.on_device.len(),
        device.on_device.len() + device.on_cpu.len(),
        bytes(device.bytes as f64)
    )?;
    if device.on_cpu.is_empty() {
        return writeln!(out, "# all experts fit: no option is needed");
    }
    let layers: Vec<String> = device.on_cpu.iter().map(u32::to_string).collect();
    writeln!(out, r"-ot 'blk\.({})\.ffn_.*_exps\.=CPU'", layers.join("|"))
}

/// Writes `layer,expert,uses`, the most needed experts of each layer first. Layers that are not known by number are left out.
///
/// # Errors
/// `out` cannot be written.
pub fn csv(out: &mut dyn Write, found: &ExpertCaches) -> io::Result<()> {
    writeln!(out, "layer,expert,uses")?;
    let rows = found.ranking.iter().filter_map(|l| Some((l.layer?, &l.experts)));
    for (layer, experts) in rows {
        for e in experts {
            writeln!(out, "{layer},{},{}", e.expert, e.uses)?;
        }
    }
    Ok(())
}
