//! Formats the CPUs that ops ran on as tables for a terminal or a pipe.

use std::io::{self, Write};

use super::table::{Style, Table, number, text};
use super::text::cores;
use super::units::*;
use analysis::questions::report::Report;
use analysis::sums::op_cpus::{CpuShare, CpuTable};

/// CPUs named in one cell.
const NAMED: usize = 3;

/// Writes the tables of a phase; those of threads only if this is the only table requested, as the table of threads
/// has them too.
pub(super) fn write(out: &mut dyn Write, found: &CpuTable, report: &Report, style: &Style) -> io::Result<()> {
    write!(out, "{}", by_cpu(found, report).render(style))?;
    match found.cpus.len().saturating_sub(report.top.unwrap_or(usize::MAX)) {
        0 => {}
        n => writeln!(out, "{}", style.dim(&format!("  and {} (--top)", count(n as u64, "more CPU"))))?,
    }
    if !found.clusters.is_empty() {
        writeln!(out)?;
        write!(out, "{}", by_cluster(found).render(style))?;
    }
    writeln!(out, "{}", style.dim("  where ops started; 100 % = the op time of all threads"))?;
    if report.tables.len() == 1 {
        writeln!(out)?;
        write!(out, "{}", threads(found).render(style))?;
    }
    Ok(())
}

fn by_cpu(found: &CpuTable, report: &Report) -> Table {
    let several = !found.clusters.is_empty();
    let mut columns =
        vec![number("CPU", 0), number("ops", 1), number("op ms", 0), number("%", 0), text("threads")];
    if several {
        columns.insert(1, number("capacity", 2));
    }
    let mut t = Table::new(columns);
    for r in found.cpus.iter().take(report.top.unwrap_or(usize::MAX)) {
        let cluster = r.cluster.and_then(|at| report.run.clusters.get(at));
        let mut cells = vec![name(r.cpu), r.ops.to_string(), ms(r.op_ns), pct(r.share), ranges(&r.threads)];
        if several {
            cells.insert(1, or_dash(cluster.and_then(|c| c.capacity), |n| n.to_string()));
        }
        t.row(cells);
    }
    t
}

fn by_cluster(found: &CpuTable) -> Table {
    let columns = vec![number("ops", 1), number("op ms", 0), number("%", 0), text("threads"), text("cores")];
    let mut t = Table::new(columns);
    for r in &found.clusters {
        t.row(vec![r.ops.to_string(), ms(r.op_ns), pct(r.share), ranges(&r.threads), cores(&r.cluster)]);
    }
    t
}

fn threads(found: &CpuTable) -> Table {
    let columns = vec![number("thread", 0), number("migrations", 0), number("per s", 1), text("CPUs")];
    let mut t = Table::new(columns);
    for r in &found.threads {
        let rate = or_dash(r.migrations_per_s, |v| format!("{v:.1}"));
        t.row(vec![r.ith.to_string(), r.migrations.to_string(), rate, list(&r.cpus)]);
    }
    t
}

fn name(cpu: Option<u16>) -> String {
    cpu.map_or_else(|| "unknown".into(), |n| n.to_string())
}

/// `0 (98 %), 1`: all but the last with their share.
pub(super) fn list(cpus: &[CpuShare]) -> String {
    let last = cpus.len() - 1.min(cpus.len());
    let one = |(i, c): (usize, &CpuShare)| match i == last {
        true => name(c.cpu),
        false => format!("{} ({} %)", name(c.cpu), pct(c.share)),
    };
    let mut out: Vec<String> = cpus.iter().enumerate().take(NAMED).map(one).collect();
    if cpus.len() > NAMED {
        out.push(format!("{} more", cpus.len() - NAMED));
    }
    out.join(", ")
}

/// `0-3, 6`.
fn ranges(ascending: &[u16]) -> String {
    let parts = ascending.chunk_by(|a, b| a.checked_add(1) == Some(*b));
    let part = |p: &[u16]| match p {
        [only] => only.to_string(),
        [first, .., last] => format!("{first}-{last}"),
        [] => String::new(),
    };
    parts.map(part).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_name_the_cpus() {
        let on = |cpu, share| CpuShare { cpu, ops: 1, op_ns: 1, share };
        assert_eq!(list(&[on(Some(4), 1.0)]), "4");
        assert_eq!(list(&[on(Some(0), 0.98), on(Some(1), 0.02)]), "0 (98.00 %), 1");
        let many = [on(Some(0), 0.5), on(None, 0.3), on(Some(2), 0.1), on(Some(3), 0.1)];
        assert_eq!(list(&many), "0 (50.00 %), unknown (30.00 %), 2 (10.00 %), 1 more");
        assert_eq!(list(&[]), "");
        assert_eq!(
            (ranges(&[0, 1, 2, 6]), ranges(&[3]), ranges(&[])),
            ("0-2, 6".into(), "3".into(), String::new())
        );
    }
}
