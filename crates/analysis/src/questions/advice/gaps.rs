//! The device is idle in a few long gaps.

use super::rule::{Advice, Confidence, RuleInput, pct};

/// From this share of a call on.
const SHARE: f64 = 0.15;
/// Most long gaps of a graph: more are no exception.
const MOST: f64 = 8.0;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let evidence = match r.devices()?.timed() {
        Some(_) => by_kernels(r)?,
        None => by_submissions(r)?,
    };
    Some(Advice {
        rule: "device-gaps",
        title: "the device is idle in a few long gaps: see what the host does in them".into(),
        actions: vec![
            "profinfer export --perfetto OUT.pftrace FILE, for ui.perfetto.dev".into(),
            "profinfer report FILE --all: column 'idle before us' shows the operators after them".into(),
        ],
        gain: None,
        confidence: Confidence::Medium,
        evidence,
        disproof: "without what the host does in these gaps, a token takes as long as before".into(),
        trade_off: None,
    })
}

fn by_kernels(r: &RuleInput<'_>) -> Option<String> {
    let (p, work) = (r.main()?, r.devices()?);
    let (backend, device) = work.timed()?;
    // What the CPU computes in between has a rule of its own, and so has a host that enqueues too slowly.
    let other = device.long_gap_ns.saturating_sub(work.crossing_ns());
    let share = work.a_call(other) / p.call_ns();
    let each = work.a_graph(device.long_gaps);
    let few = each > 0.0 && each <= MOST && device.enqueueing_ns.saturating_mul(2) < device.idle_ns;
    let after = device.ops.iter().max_by_key(|o| o.sum.idle_before_ns)?;
    (few && share >= SHARE).then(|| {
        format!(
            "{each:.1} gaps a graph, each at least a tenth of it, leave {backend} idle for {} of a call; most of the idle \
             time is before {}",
            pct(share),
            after.ops
        )
    })
}

fn by_submissions(r: &RuleInput<'_>) -> Option<String> {
    let gaps = r.gaps()?;
    (gaps.share >= SHARE && !gaps.regular).then(|| {
        format!(
            "the device had nothing to do between submissions of a graph for {} of the calls' time: {:.0} us in the \
             median, up to {:.0} us",
            pct(gaps.share),
            gaps.p50_ns as f64 / 1e3,
            gaps.max_ns as f64 / 1e3
        )
    })
}
