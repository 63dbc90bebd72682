//! Operators that fell back from a device to the CPU.

use super::{Advice, Confidence, RuleInput};

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let main = r.main()?;
    let offload = r.facts.report.phases.iter().find(|p| p.phase == main.phase)?.offload.as_ref()?;
    let nodes: u64 = offload.on_cpu.iter().map(|n| n.nodes).sum();
    let first = offload.on_cpu.iter().max_by_key(|n| n.nodes)?;
    let copies: u64 = offload.copies.iter().filter_map(|c| c.bytes).fold(0, u64::saturating_add);
    let graphs = offload.graphs.max(1);
    if nodes < graphs {
        return None;
    }
    Some(Advice {
        rule: "device-fallback",
        title: format!("{} runs on the CPU although a device takes part", first.op),
        actions: vec![
            "-ngl 999 puts all layers on the device, if they fit".into(),
            "or choose types that the device supports (-ctk, -ctv, another quantisation); see profinfer report FILE --all".into(),
        ],
        gain: None,
        confidence: Confidence::Medium,
        evidence: format!(
            "{:.0} nodes a graph are computed by the CPU; {:.1} kB a graph are copied between backends",
            nodes as f64 / graphs as f64,
            copies as f64 / graphs as f64 / 1e3
        ),
        disproof: "with these operators on the device, a token takes as long as before".into(),
        trade_off: None,
    })
}
