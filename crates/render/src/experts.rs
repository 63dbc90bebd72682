//! Formats the experts that layers chose, as tables for a terminal or a pipe.

use std::io::{self, Write};

use super::section::{fact, title};
use super::table::{Column, Style, Table, named, number, text};
use super::units::*;
use analysis::sums::attribution::experts::{ExpertLayer, ExpertReport, ExpertUsage};
use analysis::sums::attribution::pass::Misses;
use common::order;

/// Layers shown if experts are one section among many, and experts listed for each layer.
pub(super) const BRIEF: usize = 8;
const NAMED: usize = 5;

/// Writes the section, with the first `most` layers.
pub fn write(out: &mut dyn Write, r: &ExpertReport, most: usize, style: &Style) -> io::Result<()> {
    title(out, style, "Experts, decode")?;
    let shown = most.min(r.layers.len());
    if !r.layers.is_empty() {
        write!(out, "{}", layers(r, shown).render(style))?;
        let more = r.layers.len() - shown;
        if more > 0 {
            writeln!(
                out,
                "{}",
                style.dim(&format!("  and {} (--by expert --top N)", count(more as u64, "more layer")))
            )?;
        }
        reuse(out, &r.all, style)?;
        caches(out, &r.all, style)?;
    }
    if let Some(m) = &r.miss {
        fact(out, style, "page faults", &faults(m))?;
    }
    let prefill: u64 = r.layers.iter().map(|l| l.prefill.iter().sum::<u64>()).sum();
    if prefill > 0 {
        prefill_table(out, &r.layers, shown, style)?;
    }
    if r.out_of_range > 0 {
        fact(out, style, "excluded", &format!("{} out of range", count(r.out_of_range, "expert id")))?;
    }
    for u in &r.unread {
        let layer = u.layer.map_or("layer unknown".into(), |l| format!("layer {l}"));
        fact(out, style, "not read", &format!("{layer}, {}: {}", count(u.tensors, "id tensor"), u.why))?;
    }
    Ok(())
}

/// Name of a layer.
pub(super) fn name(l: &ExpertLayer) -> String {
    l.layer.map_or_else(|| l.name.clone(), |n| n.to_string())
}

/// `7 12 %, 3 9 %`: the most frequent experts.
fn top(counts: &[u64]) -> String {
    let all: u64 = counts.iter().sum();
    let mut most: Vec<(usize, u64)> =
        counts.iter().enumerate().filter(|(_, n)| **n > 0).map(|(id, n)| (id, *n)).collect();
    order::by_key(&mut most, |(id, n)| (!n, *id as u64));
    let named = most.iter().take(NAMED);
    let named: Vec<String> =
        named.map(|(id, n)| format!("{id} ({:.1} %)", *n as f64 * 100.0 / all as f64)).collect();
    named.join(", ")
}

/// Expert usage of the first `shown` layers.
pub(super) fn layers(r: &ExpertReport, shown: usize) -> Table {
    let faults = r.miss.is_some();
    let mut columns: Vec<Column> = vec![
        text("layer"),
        number("tokens", 2),
        number("experts", 2),
        number("never", 1),
        number("effective", 0),
        number("reuse p50", 1),
        number("p90", 1),
    ];
    columns.extend(r.all.caches.iter().map(|c| named(&format!("hit % of {}", c.experts), 3)));
    columns.extend(faults.then(|| number("major faults", 0)));
    columns.push(text("most chosen"));
    let mut t = Table::new(columns);
    for l in r.layers.iter().take(shown) {
        let u = &l.usage;
        let never = l.decode.iter().filter(|n| **n == 0).count() as u64;
        let mut cells = vec![
            name(l),
            u.tokens.to_string(),
            or_dash(l.experts, |n| n.to_string()),
            or_dash(l.experts.filter(|_| u.tokens > 0), |_| never.to_string()),
            or_dash(u.effective_experts, |v| format!("{v:.1}")),
            or_dash(u.reuse_p50, |n| n.to_string()),
            or_dash(u.reuse_p90, |n| n.to_string()),
        ];
        cells.extend(u.caches.iter().map(|c| or_dash(c.hit_rate, pct)));
        cells.extend(faults.then(|| or_dash(l.miss, |m| m.major_faults.to_string())));
        cells.push(top(&l.decode));
        t.row(cells);
    }
    t
}

fn reuse(out: &mut dyn Write, all: &ExpertUsage, style: &Style) -> io::Result<()> {
    if all.choices == 0 {
        return Ok(());
    }
    let share = |n: u64| pct(n as f64 / all.choices as f64);
    let mut from = 1;
    let mut parts = Vec::new();
    for r in &all.reuse {
        parts.push(match r.up_to {
            Some(to) if to <= from => format!("{to}: {} %", share(r.choices)),
            Some(to) => format!("{from}-{to}: {} %", share(r.choices)),
            None => format!("more: {} %", share(r.choices)),
        });
        from = r.up_to.map_or(from, |to| to + 1);
    }
    let first = format!("first use: {} %", share(all.first_uses));
    fact(
        out,
        style,
        "reuse",
        &format!("tokens since last use in the same layer, all layers: {}, {first}", parts.join(", ")),
    )
}

fn caches(out: &mut dyn Write, all: &ExpertUsage, style: &Style) -> io::Result<()> {
    let rates: Vec<String> = all
        .caches
        .iter()
        .filter_map(|c| Some(format!("{} experts {} %", c.experts, pct(c.hit_rate?))))
        .collect();
    if rates.is_empty() {
        return Ok(());
    }
    let what = "hit rate of one LRU cache per layer, initially empty";
    fact(out, style, "cache", &format!("{what}: {}", rates.join(", ")))
}

/// Cost of a call with page faults compared with one without.
fn faults(m: &Misses) -> String {
    let mean = |ns: u64, calls: u64| time(ns as f64 / calls.max(1) as f64);
    let with = format!("{} of {} MUL_MAT_ID calls had", m.with_faults, m.with_faults + m.without);
    if m.with_faults == 0 {
        return format!("none of {} MUL_MAT_ID calls had major faults", m.without);
    }
    let with =
        format!("{with} {} major faults and took {}", m.major_faults, mean(m.with_faults_ns, m.with_faults));
    if m.without == 0 {
        return format!("{with} on average; no call had none");
    }
    format!("{with} on average, the others {}", mean(m.without_ns, m.without))
}

fn prefill_table(out: &mut dyn Write, layers: &[ExpertLayer], shown: usize, style: &Style) -> io::Result<()> {
    title(out, style, "Experts, prefill")?;
    let columns = vec![
        text("layer"),
        number("tokens", 0),
        number("never", 0),
        number("most tokens", 0),
        text("most chosen"),
    ];
    let mut t = Table::new(columns);
    for l in layers.iter().take(shown) {
        let never = l.prefill.iter().filter(|n| **n == 0).count() as u64;
        t.row(vec![
            name(l),
            l.prefill_tokens.to_string(),
            or_dash(l.experts.filter(|_| l.prefill_tokens > 0), |_| never.to_string()),
            or_dash(l.prefill.iter().max(), u64::to_string),
            top(&l.prefill),
        ]);
    }
    write!(out, "{}", t.render(style))
}
