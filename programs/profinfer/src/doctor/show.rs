//! The results of `profinfer doctor`, as a checklist for a terminal or a pipe.

use std::io::{self, Write};

use agent::capture::checkup::{Checkup, Hit};
use analysis::questions::recording_overhead::Prediction;
use engine::examine::{
    ExaminedEngine, ExaminedModule, ExaminedTarget, PointFacts, ProbeSite, RoleFacts, RungFacts, SiteCost,
};
use machine::check::{Check, CheckResult};
use render::predict;
use render::table::{Style, Table, clean, number, text};
use render::units::{count, time};

/// Width of the state column, and of the gap after each column.
const STATE: usize = 10;
/// Maximum width of the name column.
const NAME_MAX: usize = 36;

/// Writes everything; the last line is the verdict.
pub fn write(
    out: &mut dyn Write,
    all: &Checkup,
    prediction: Option<&Prediction>,
    style: &Style,
) -> io::Result<()> {
    let m = &all.machine;
    let machine: Vec<&str> =
        [m.kernel.as_str(), &m.arch, &m.cpu_model].into_iter().filter(|s| !s.is_empty()).collect();
    writeln!(out, "{}: {}", style.bold("Machine"), clean(&machine.join(", ")))?;
    if !m.limits.is_empty() {
        writeln!(out, "{}: {}", style.bold("Limits"), clean(&m.limits))?;
    }
    checks(out, "Privileges", &all.privileges, style)?;
    checks(out, "Kernel", &all.kernel, style)?;
    checks(out, "Programs", &all.programs, style)?;
    if let Some(hit) = &all.hit {
        cost(out, hit, style)?;
    }
    if let Some(t) = &all.target {
        target(out, t, &all.reason, style)?;
    }
    if let Some(p) = prediction {
        predict::write(out, p, style)?;
    }
    verdict(out, all, style)
}

fn title(out: &mut dyn Write, text: &str, style: &Style) -> io::Result<()> {
    writeln!(out, "\n{}", style.bold(text))
}

fn verdict(out: &mut dyn Write, all: &Checkup, style: &Style) -> io::Result<()> {
    writeln!(out)?;
    if let Some(machine) = all.fits_on {
        return writeln!(
            out,
            "{} on {machine}: ops of this target can be recorded there, but not on this machine ({})",
            style.good("would fit"),
            clean(&all.machine.arch)
        );
    }
    if !all.fit {
        return writeln!(out, "{}: {}", style.bad("not fit"), clean(&all.reason));
    }
    let untried = all.programs.iter().any(|c| c.state == CheckResult::Skipped);
    let what = match &all.target {
        Some(t) => format!("ops of this target can be recorded; next: profinfer record {}", clean(&t.record)),
        None => "this machine can record ops".to_owned(),
    };
    let but = if untried { " (probes not tested)" } else { "" };
    match all.lacks {
        lacks if all.source == "inside" => {
            writeln!(out, "from inside: {lacks}; for the kernel's probes: {}", clean(&all.reason))?;
            let what =
                "ops of a command can be recorded, by a library in its process: profinfer record -- COMMAND";
            writeln!(out, "{}{but}: {what}", style.good("fit"))
        }
        "" => writeln!(out, "{}{but}: {what}", style.good("fit")),
        lacks => {
            writeln!(out, "without BPF: {lacks}")?;
            writeln!(out, "{} by perf events, without BPF{but}: {what}", style.good("fit"))
        }
    }
}

fn checks(out: &mut dyn Write, head: &str, checks: &[Check], style: &Style) -> io::Result<()> {
    if checks.is_empty() {
        return Ok(());
    }
    title(out, head, style)?;
    let widest = checks.iter().map(|c| c.name.chars().count()).max().unwrap_or(0).min(NAME_MAX);
    for c in checks {
        let mut text = clean(&c.detail);
        if !c.mend.is_empty() {
            text = format!("{text}; to fix: {}", clean(&c.mend));
        }
        let name = clean(&c.name);
        let line = match text.is_empty() {
            true => format!("  {}{name}", state(c.state, style)),
            false => {
                let fill = widest.saturating_sub(name.chars().count());
                let text = style.fold(&text, 2 + STATE + widest + 2);
                format!("  {}{name}{}  {text}", state(c.state, style), " ".repeat(fill))
            }
        };
        writeln!(out, "{line}")?;
    }
    Ok(())
}

fn state(state: CheckResult, style: &Style) -> String {
    let (word, painted) = match state {
        CheckResult::Ok => ("ok", style.good("ok")),
        CheckResult::Missing => ("missing", style.bad("missing")),
        CheckResult::Optional => ("optional", style.dim("optional")),
        CheckResult::Skipped => ("skipped", style.dim("skipped")),
    };
    format!("{painted}{}", " ".repeat(STATE.saturating_sub(word.len())))
}

/// A fact line: name and text.
fn fact(out: &mut dyn Write, name: &str, text: &str, style: &Style) -> io::Result<()> {
    writeln!(out, "  {name:<10}{}", style.fold(&clean(text), 2 + STATE))
}

fn cost(out: &mut dyn Write, hit: &Hit, style: &Style) -> io::Result<()> {
    title(out, "Overhead per op hit, measured now", style)?;
    let measured = |ns: Option<u32>| ns.map_or("not measured".to_owned(), |ns| time(ns.into()));
    fact(out, "emulated", &measured(hit.emulated_ns), style)?;
    fact(out, "stepped", &measured(hit.single_stepped_ns), style)?;
    let (ns, whose) = match (hit.target_ns, hit.emulated_ns) {
        (Some(ns), _) => (ns, "at the target's op probe"),
        (None, Some(ns)) => (ns, "on an emulated instruction"),
        (None, None) => return ways(out, hit, style),
    };
    let each = time(ns.into());
    let hundred = time(f64::from(ns) * 100.0);
    let text = format!(
        "{each} per op and thread ({whose}); a 100-op token takes about {hundred} longer; with several \
         threads each op also costs a hit at its barrier"
    );
    fact(out, "overhead", &text, style)?;
    ways(out, hit, style)
}

/// An op with all its hits, by capture method and by instruction.
fn ways(out: &mut dyn Write, hit: &Hit, style: &Style) -> io::Result<()> {
    let find = |way: &str, spot: &str| hit.ways.iter().find(|w| w.way == way && w.instruction == spot);
    let mut table = Table::new(vec![text("method"), number("emulated", 0), number("stepped", 0)]);
    let mut seen: Vec<&str> = Vec::new();
    for w in &hit.ways {
        if seen.contains(&w.way) {
            continue;
        }
        seen.push(w.way);
        let cell = |spot| {
            let Some(c) = find(w.way, spot) else {
                // It has a fixed position, whatever the instruction there.
                return find(w.way, "first").map_or("-".to_owned(), |c| time(c.ns));
            };
            let empty = find("empty", spot).map(|e| e.ns).filter(|e| *e > 0.0);
            let ratio = empty.map(|e| format!(" ({:.2}x)", c.ns / e)).unwrap_or_default();
            format!("{}{ratio}", time(c.ns))
        };
        table.row(vec![w.meaning.to_owned(), cell("emulated"), cell("single-stepped")]);
    }
    writeln!(out)?;
    write!(out, "{}", table.render(style))
}

fn target(out: &mut dyn Write, t: &ExaminedTarget, reason: &str, style: &Style) -> io::Result<()> {
    title(out, &format!("Target: {}", clean(&t.name)), style)?;
    if let Some(error) = &t.error {
        // It may be long, and it is the last line.
        let error = if error == reason { "no engine found: see the last line" } else { error };
        return writeln!(
            out,
            "  {}{}",
            state(CheckResult::Missing, style),
            style.fold(&clean(error), 2 + STATE)
        );
    }
    for (i, e) in t.engines.iter().enumerate() {
        if t.engines.len() > 1 {
            writeln!(out, "  {}", style.bold(&format!("engine {} of {}", i + 1, t.engines.len())))?;
        }
        engine(out, e, style)?;
    }
    Ok(())
}

fn engine(out: &mut dyn Write, e: &ExaminedEngine, style: &Style) -> io::Result<()> {
    fact(out, "machine", e.machine, style)?;
    for m in &e.modules {
        fact(out, "file", &module(m), style)?;
    }
    let n = &e.tables;
    let tables =
        format!("{} ops, {} unary, {} glu, {}", n.ops, n.unary, n.glu, count(n.types as u64, "type"));
    fact(out, "tables", &tables, style)?;
    fact(out, "layout", &e.layout, style)?;
    for r in &e.roles {
        role(out, r, style)?;
    }
    for l in &e.limits {
        let kind = if l.blocks_ops { CheckResult::Missing } else { CheckResult::Optional };
        let text = format!("{}; {}", l.what, l.advice);
        writeln!(out, "  {}{}", state(kind, style), style.fold(&clean(&text), 2 + STATE))?;
    }
    Ok(())
}

fn module(m: &ExaminedModule) -> String {
    let id = if m.build_id.is_empty() { "no build id" } else { &m.build_id };
    let names = if m.stripped { "exported symbols only" } else { "all symbols" };
    format!("{} ({}; {names}; {id})", m.path, m.roles.join("+"))
}

fn role(out: &mut dyn Write, r: &RoleFacts, style: &Style) -> io::Result<()> {
    let Some((first, rest)) = r.rungs.split_first() else {
        return fact(out, r.role, "cannot be observed", style);
    };
    let mut text = format!("by {}", rung(first));
    if !rest.is_empty() {
        let rest: Vec<String> = rest.iter().map(rung).collect();
        text = format!("{text}; if that does not fire, by {}", rest.join(", then "));
    }
    fact(out, r.role, &text, style)?;
    for (p, files) in distinct(&first.points) {
        let among = if files > 1 { format!(" (in {files} files)") } else { String::new() };
        let mut line = |text: &str| writeln!(out, "  {:STATE$}{}", "", style.fold(&clean(text), 4 + STATE));
        line(&format!("{}{among}: {}", p.symbol, site(&p.entry)))?;
        // Ops have no return probes by default.
        if let Some(ret) = p.ret.as_ref().filter(|_| r.role != "op") {
            line(&format!("  return: {}", site(ret)))?;
        }
    }
    Ok(())
}

fn rung(r: &RungFacts) -> String {
    match r.how {
        "vtable" => "function pointers of the running backends".to_owned(),
        "interval" => "the next op's start".to_owned(),
        _ => r.name.to_owned(),
    }
}

fn site(s: &ProbeSite) -> String {
    let cost = match s.cost {
        SiteCost::Nop5 => "5-byte NOP",
        SiteCost::Emulated => "emulated",
        SiteCost::SingleStepped => "single-stepped",
    };
    format!("+{} {}, {cost} ({})", s.offset, s.instruction, s.why)
}

/// Points that differ in relevant ways, with the number of files for each.
fn distinct(points: &[PointFacts]) -> Vec<(&PointFacts, usize)> {
    let mut out: Vec<(&PointFacts, usize)> = Vec::new();
    for p in points {
        let same = |q: &PointFacts| q.symbol == p.symbol && q.entry == p.entry && q.ret == p.ret;
        match out.iter_mut().find(|(q, _)| same(q)) {
            Some((_, n)) => *n += 1,
            None => out.push((p, 1)),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_a_target_cannot_write_to_the_terminal() {
        let t = ExaminedTarget {
            name: "a\x1b[2J".into(),
            record: String::new(),
            engines: Vec::new(),
            error: Some("b\nc\u{202e}".into()),
        };
        let mut out = Vec::new();
        target(&mut out, &t, "", &Style::default()).expect("written");
        let text = String::from_utf8(out).expect("UTF-8");
        assert!(text.contains("a\\u{1b}[2J") && text.contains("b\\nc\\u{202e}"), "{text}");
    }
}
