//! Formats expert usage token by token, as tables: the cost of reuse distance, and the choices.

use super::more;
use crate::section::Section;
use crate::table::{Table, number, text};
use crate::units::*;
use analysis::questions::stat::reuse::{Activation, ActiveLayer, ReuseRow, ReuseTimes};

/// Time of the experts' multiplications by time since their last use.
pub(crate) fn reuse(found: &ReuseTimes) -> Section {
    let mut t = Table::new(vec![
        text("tokens since last use"),
        number("mean", 0),
        number("n", 0),
        number("us", 0),
        number("above layer mean us", 0),
    ]);
    for r in &found.rows {
        t.row(vec![
            distances(r),
            or_dash(r.distance, |d| format!("{d:.2}")),
            r.n.to_string(),
            us(r.mean_ns),
            format!("{:+.2}", r.beyond_ns / 1e3),
        ]);
    }
    let note = match &found.line {
        None => "the distance barely changes, so there is no fit".into(),
        Some(l) => {
            let rises = match l.rises {
                true => "a miss costs time",
                false => "no significant cost of a miss",
            };
            format!(
                "within a layer, each additional token since the last use adds {} ({} to {}, 95 %), R2 {:.3}: {rises}",
                time(l.ns_per_token),
                time(l.interval[0]),
                time(l.interval[1]),
                l.r2
            )
        }
    };
    let of = format!("{}, mean of a layer {}", count(found.layers, "layer"), time(found.mean_ns));
    Section {
        title: format!("Expert reuse and MUL_MAT_ID time, decode ({of})"),
        table: Some(t),
        notes: vec![note],
    }
}

fn distances(r: &ReuseRow) -> String {
    match r.up_to {
        _ if r.first_use => "first use".into(),
        None => "more".into(),
        Some(to) => format!("up to {to}"),
    }
}

/// Name of a layer.
pub fn name(l: &ActiveLayer) -> String {
    l.layer.map_or_else(|| l.name.clone(), |n| n.to_string())
}

/// The individual choices, the first `top` of them.
pub(crate) fn activation(found: &Activation, top: usize) -> Section {
    let columns = vec![
        text("layer"),
        number("token", 0),
        number("to token", 1),
        number("expert", 0),
        number("choices", 0),
    ];
    let mut t = Table::new(columns);
    let mut all = 0;
    for l in &found.layers {
        for (bin, chosen) in (0u64..).zip(&l.bins) {
            let first = bin * found.tokens_a_bin;
            let last = (first + found.tokens_a_bin).min(found.tokens).saturating_sub(1);
            all += chosen.len();
            for (expert, n) in chosen.iter().take(top.saturating_sub(t.rows().len())) {
                let numbers = [first, last, u64::from(*expert), u64::from(*n)];
                t.row(std::iter::once(name(l)).chain(numbers.iter().map(u64::to_string)).collect());
            }
        }
    }
    let mut notes = more(all, top);
    if found.layers_left_out > 0 {
        notes.push(format!("{} not listed: too many", count(found.layers_left_out, "layer")));
    }
    let of = count(found.tokens, "token");
    Section { title: format!("Expert choices token by token, decode ({of})"), table: Some(t), notes }
}
