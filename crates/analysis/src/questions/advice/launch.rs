//! The device waits for the host to enqueue.

use super::rule::{Advice, Confidence, DeviceWork, RuleInput, pct};
use crate::questions::verdict::facts::PhaseFacts;

/// From this share of a call on, with the device idle while the host enqueues.
const SHARE: f64 = 0.2;
/// Without times of the device: the host's part of the time until the device had finished, from which on the device
/// cannot have taken longer than the host.
const HOST: f64 = 0.6;
/// Share of the call in splits on the device, without times of the device.
const SPLITS: f64 = 0.5;

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let p = r.main()?;
    let work = r.devices()?;
    // The best source decides alone.
    let (confidence, evidence) = if work.timed().is_some() {
        (Confidence::High, by_kernels(p, &work)?)
    } else if r.gaps().is_some() {
        (Confidence::Medium, by_submissions(r)?)
    } else {
        (Confidence::Low, by_enqueueing(p, &work)?)
    };
    Some(Advice {
        rule: "device-launch-bound",
        title: "the device waits while the host enqueues: give it more work at a time".into(),
        actions: vec![
            "more tokens per call: parallel requests (-np), a draft model (-md)".into(),
            "fewer nodes: -fa on, or a newer build that fuses more of them".into(),
            "on CUDA without GGML_CUDA_DISABLE_GRAPHS: a graph is then launched as a whole".into(),
        ],
        gain: None,
        confidence,
        evidence,
        disproof: "with twice the tokens per call, a call takes nearly twice as long".into(),
        trade_off: None,
    })
}

/// Kernels that had not been submitted while the device ran none and the host was in the call that enqueues them.
fn by_kernels(p: &PhaseFacts, work: &DeviceWork<'_>) -> Option<String> {
    let (backend, device) = work.timed()?;
    let (gaps, idle) = (device.gaps?, device.idle_ns);
    let share = work.a_call(device.enqueueing_ns) / p.call_ns();
    let error = device.error_ns.saturating_mul(gaps.n);
    let enough = share >= SHARE && device.enqueueing_ns.saturating_mul(2) >= idle;
    (enough && error < device.enqueueing_ns).then(|| {
        format!(
            "{backend} was idle {} of a call between kernels, {} while the host had not yet submitted the next kernel of \
             the same split",
            pct(work.a_call(idle) / p.call_ns()),
            pct(share)
        )
    })
}

/// Gaps between the submissions of a graph, which are many and alike.
fn by_submissions(r: &RuleInput<'_>) -> Option<String> {
    let gaps = r.gaps()?;
    (gaps.share >= SHARE && gaps.regular).then(|| {
        format!(
            "the device had nothing to do between submissions of a graph for {} of the calls' time, {:.0} us in the median",
            pct(gaps.share),
            gaps.p50_ns as f64 / 1e3
        )
    })
}

/// The time to enqueue against the time until the device had finished.
fn by_enqueueing(p: &PhaseFacts, work: &DeviceWork<'_>) -> Option<String> {
    let of = work.offload.backends.iter().filter_map(|b| Some((b, b.enqueueing?)));
    let (backend, sum) = of.max_by_key(|(_, sum)| sum.split_ns)?;
    let host = sum.before_last_ns as f64 / sum.split_ns.max(1) as f64;
    let splits = work.a_call(sum.split_ns) / p.call_ns();
    (host >= HOST && splits >= SPLITS).then(|| {
        format!(
            "the host enqueued for {} of the time until {} had finished (all nodes but the last of each split); record \
             --gpu kernel shows when the device was idle",
            pct(host),
            backend.backend
        )
    })
}
