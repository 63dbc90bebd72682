//! Options and figures of a model whose experts are in slots.

use anyhow::Result;
use cli::args::{Args, Choice, Flag, FlagGroup};
use cli::values::{choice, whole};
use ggml::expert_pins::PinFile;
use runner::slots::{ExpertsFrom, PhaseReport, SlotPolicy, SlotReport, SlotSettings};
use std::io::{self, Write};
use std::path::PathBuf;

const SLOTS: &[&str] = &["expert-slots"];

/// Read by [`read`].
pub const FLAGS: FlagGroup = FlagGroup {
    title: "Experts that do not fit into memory",
    flags: &[
        Flag::value(
            "expert-slots",
            "N",
            "Keep N experts of each layer in memory, and read others when they are needed [default: all experts \
             are in memory or mapped]",
        ),
        Flag::value(
            "expert-policy",
            "POLICY",
            "Which experts stay: lru (those needed last), lfu (those needed most often), next (lru, and likely experts of \
             the next layer are read early) or pin:FILE (of each layer the first N of a CSV file with the columns \
             layer,expert,uses)",
        )
        .default("lru")
        .needs(SLOTS),
        Flag::value("experts-from", "PLACE", "Where experts are read from")
            .default("disk")
            .one_of::<ExpertsFrom, _>()
            .needs(SLOTS),
        Flag::value("expert-readers", "N", "Number of threads that read experts").default("4").needs(SLOTS),
    ],
};

impl Choice<crate::identity::Flags> for ExpertsFrom {
    const ALL: &'static [(&'static str, &'static str, Self)] = &[
        ("disk", "the model file, past the page cache", Self::Disk),
        ("memory", "the mapped file: what slots cost without the disk", Self::Memory),
    ];
}

/// A policy as it is given; the file of experts to pin is not read yet.
enum PolicyArg {
    Known(SlotPolicy),
    Pin(PathBuf),
}

fn policy(text: &str) -> Result<PolicyArg, String> {
    match text {
        "lru" => Ok(PolicyArg::Known(SlotPolicy::Lru)),
        "lfu" => Ok(PolicyArg::Known(SlotPolicy::Lfu)),
        "next" => Ok(PolicyArg::Known(SlotPolicy::Next)),
        _ => match text.strip_prefix("pin:").filter(|path| !path.is_empty()) {
            Some(path) => Ok(PolicyArg::Pin(path.into())),
            None => Err("must be lru, lfu, next or pin:FILE".to_owned()),
        },
    }
}

/// Reads [`FLAGS`]; none if all experts are to be in memory.
///
/// # Errors
/// A wrong value, or a file of experts to pin that cannot be read.
pub fn read(args: &Args) -> Result<Option<SlotSettings>> {
    let (policy, from) = (args.needed("expert-policy", policy)?, args.needed("experts-from", choice)?);
    let readers = args.needed("expert-readers", whole(1, 64))?;
    let Some(slots) = args.option("expert-slots", whole(0, u64::MAX))? else { return Ok(None) };
    let policy = match policy {
        PolicyArg::Known(policy) => policy,
        PolicyArg::Pin(path) => SlotPolicy::Pin(PinFile::read(&path)?),
    };
    Ok(Some(SlotSettings { slots, policy, from, readers }))
}

/// Prints what the slots brought.
///
/// # Errors
/// Those of `out`.
pub fn print(r: &SlotReport, out: &mut impl Write) -> io::Result<()> {
    let from = match r.access {
        "direct" => "read from the disk past the page cache (O_DIRECT)",
        "buffered" => "read from the disk, pages dropped after each read (no O_DIRECT here)",
        _ => "copied from the mapped file",
    };
    let threads = if r.readers == 1 { "1 thread".to_owned() } else { format!("{} threads", r.readers) };
    writeln!(
        out,
        "\nexperts: {}, {} of {} of a layer in slots, {} in memory; {from} by {threads}",
        r.policy,
        r.slots,
        r.experts,
        megabytes(r.slot_bytes)
    )?;
    if r.pinned_reads > 0 {
        writeln!(out, "pinned before the run: {} experts, {}", r.pinned_reads, megabytes(r.pinned_bytes))?;
    }
    writeln!(
        out,
        "{:<8} {:>9} {:>9} {:>8} {:>9} {:>9} {:>12} {:>12}",
        "phase", "needed", "hits", "hit rate", "reads", "early", "read", "waited"
    )?;
    let phases =
        [("warm-up", &r.counts.warm_up), ("prefill", &r.counts.prefill), ("decode", &r.counts.decode)];
    for (name, phase) in phases.into_iter().filter(|(_, p)| p.ops > 0) {
        line(name, phase, out)?;
    }
    Ok(())
}

fn line(name: &str, p: &PhaseReport, out: &mut impl Write) -> io::Result<()> {
    let rate = p.hit_rate.map_or("-".to_owned(), |rate| format!("{:.2} %", 100.0 * rate));
    let (read, waited) = (megabytes(p.read_bytes), format!("{:.3} ms", p.wait_ms));
    let PhaseReport { needed, hits, demand_reads, early_reads, .. } = p;
    writeln!(
        out,
        "{name:<8} {needed:>9} {hits:>9} {rate:>8} {demand_reads:>9} {early_reads:>9} {read:>12} {waited:>12}"
    )
}

/// `12.34 MB`, of 10^6 bytes.
fn megabytes(bytes: u64) -> String {
    format!("{:.2} MB", bytes as f64 / 1e6)
}
