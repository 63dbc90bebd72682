//! The peaks of a machine as a table for people.

use std::fmt::Write as _;

use common::cpus;

use crate::peak::{ClusterPeaks, MachinePeaks, Peaks};

/// A row of the table: its label and its value.
type PeakRow = (&'static str, fn(&Peaks) -> Option<f64>);

const ROWS: [PeakRow; 7] = [
    ("read, huge pages      GB/s", |p| Some(p.read)),
    ("read, small pages     GB/s", |p| p.read_small_pages),
    ("triad                 GB/s", |p| p.triad),
    ("f32 multiply-add   GFLOP/s", |p| p.f32_fma),
    ("int8 dot product     Gop/s", |p| p.int8_dot),
    ("int8 matrix product  Gop/s", |p| p.int8_matrix),
    ("int8 by widening     Gop/s", |p| p.int8_widening),
];

/// The peaks as a table for people.
pub fn table(machine: &MachinePeaks) -> String {
    let mut text = format!("instruction set: {}\n", machine.isa);
    for cluster in machine.clusters.iter().filter(|c| !c.peaks.is_empty()) {
        let _ = writeln!(text, "\ncores {} ({}){}", list(&cluster.cpus), cluster.name, header(cluster));
        for (name, value) in ROWS {
            let _ = write!(text, "  {name}");
            for peaks in &cluster.peaks {
                let _ = match value(peaks) {
                    Some(value) => write!(text, "{value:>11.1}"),
                    None => write!(text, "{:>11}", "-"),
                };
            }
            let lacks = cluster.peaks.iter().all(|p| value(p).is_none());
            text.push_str(if lacks { "  not available on this processor\n" } else { "\n" });
        }
    }
    text
}

fn header(cluster: &ClusterPeaks) -> String {
    let mut text = String::from("\n  threads                   ");
    for peaks in &cluster.peaks {
        let _ = write!(text, "{:>11}", peaks.threads);
    }
    text
}

/// CPU numbers as ranges: `0-3,6`.
fn list(cpus: &[usize]) -> String {
    cpus::ranges(cpus.iter().filter_map(|&cpu| u32::try_from(cpu).ok()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_as_ranges() {
        assert_eq!(list(&[5, 0, 1, 2, 7, 6]), "0-2,5-7");
        assert_eq!(list(&[3]), "3");
    }

    #[test]
    fn what_lacks_is_said_and_never_zero() {
        let peaks = Peaks { threads: 2, read: 61.25, f32_fma: Some(280.0), ..Peaks::default() };
        let cluster = ClusterPeaks { name: "all".to_owned(), cpus: vec![0, 1], peaks: vec![peaks] };
        let text = table(&MachinePeaks { isa: "neon".to_owned(), clusters: vec![cluster] });
        let line =
            |start: &str| text.lines().find(|l| l.trim().starts_with(start)).expect("a line").to_owned();
        assert!(line("read, huge").ends_with("61.2"), "{text}");
        assert!(line("f32").ends_with("280.0"), "{text}");
        assert!(line("int8 matrix").ends_with("-  not available on this processor"), "{text}");
        assert!(text.contains("cores 0-1 (all)\n"), "{text}");
    }
}
