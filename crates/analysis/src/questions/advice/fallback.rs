//! Operators that fell back from a device to the CPU.

use super::rule::{Advice, Confidence, Gain, RuleInput, gain};
use crate::sums::offload::{CpuNodes, FallbackReason, Offload};

/// Share of a call that these nodes and what is around their splits must take.
const WORTH: f64 = 0.01;

/// What is on the CPU though a device takes part; the input layer always is.
pub(super) fn left(offload: &Offload) -> impl Iterator<Item = &CpuNodes> {
    offload.on_cpu.iter().filter(|n| n.reason != FallbackReason::InputLayer)
}

pub fn rule(r: &RuleInput<'_>) -> Option<Advice> {
    let main = r.main()?;
    let work = r.devices()?;
    let offload = work.offload;
    let nodes: u64 = left(offload).map(|n| n.nodes).sum();
    if nodes < offload.graphs.max(1) {
        return None;
    }
    // The nodes beside those that have a reason of their own follow them.
    let own = |n: &&CpuNodes| !matches!(n.reason, FallbackReason::Neighbours | FallbackReason::Unknown);
    let cost = |n: &&CpuNodes| (n.cpu_ns.unwrap_or_default(), n.nodes);
    let worst = left(offload).filter(own).max_by_key(cost).or_else(|| left(offload).max_by_key(cost))?;
    let crossings = || offload.crossings.iter().filter(|c| c.extra_splits > 0);
    let sum =
        |of: fn(&crate::sums::offload::Crossing) -> u64| crossings().map(of).fold(0, u64::saturating_add);
    let (around, cpu) = (work.a_call(sum(|c| c.around_ns())), work.a_call(sum(|c| c.cpu_ns)));
    let copied = left(offload).filter_map(|n| Some(n.to_cpu_bytes?.saturating_add(n.from_cpu_bytes?)));
    let copied = copied.fold(0, u64::saturating_add);
    let cpu_ns = left(offload).filter_map(|n| n.cpu_ns).fold(0, u64::saturating_add);
    if work.a_call(cpu_ns) + around < WORTH * main.call_ns() {
        return None;
    }
    let promised: Option<Gain> = match worst.reason {
        // With other types no split is left: neither the copies around it nor, at best, its time.
        FallbackReason::Types => {
            let call = main.call_ns();
            gain(main.phase, call, [(call - around - cpu).max(1.0), (call - around).max(1.0)])
        }
        _ => None,
    };
    let extra = match sum(|c| c.extra_splits) {
        0 => String::new(),
        n => format!(
            ", in {:.0} extra splits a graph, with copies of {:.1} kB and {:.0} us around them",
            work.a_graph(n),
            work.a_graph(copied) / 1e3,
            around / 1e3
        ),
    };
    Some(Advice {
        rule: "device-fallback",
        title: format!("{} ({}) runs on the CPU although a device takes part", worst.op, worst.types),
        actions: actions(worst),
        gain: promised,
        confidence: match worst.reason {
            FallbackReason::HostWeights | FallbackReason::HostCache if !worst.also_on.is_empty() => {
                Confidence::High
            }
            FallbackReason::Neighbours | FallbackReason::Unknown => Confidence::Low,
            _ => Confidence::Medium,
        },
        evidence: format!(
            "{}; the CPU computes {:.0} nodes a graph in {:.0} us of a call's {:.0} us{extra}",
            worst.why,
            work.a_graph(nodes),
            work.a_graph(cpu_ns) / 1e3,
            main.call_ns() / 1e3,
        ),
        disproof: "with these operators on the device, a token takes as long as before".into(),
        trade_off: None,
    })
}

/// What may bring these nodes to the device.
fn actions(worst: &CpuNodes) -> Vec<String> {
    let cache = matches!(&*worst.op, "FLASH_ATTN_EXT" | "SET_ROWS" | "CPY") || worst.name.starts_with("kq");
    let first = match worst.reason {
        FallbackReason::HostWeights => {
            "-ngl 999 puts all layers on the device, if they fit; -ot, --cpu-moe and --n-cpu-moe leave weights on the CPU"
        }
        FallbackReason::HostCache => {
            "-ngl 999 puts all layers on the device, if they fit; -nkvo leaves the KV cache on the CPU"
        }
        FallbackReason::Types if cache => "-ctk f16 -ctv f16, or the types that the device computes here",
        FallbackReason::Types => "another quantisation, one that the device computes here",
        FallbackReason::NeverOnDevice if worst.op == "FLASH_ATTN_EXT" => {
            "-fa off, if the device computes the separate operators of attention"
        }
        FallbackReason::NeverOnDevice if worst.op == "SOFT_MAX" => {
            "-fa on, if the device computes flash attention"
        }
        FallbackReason::NeverOnDevice => "a newer build of the backend, if that one computes the operator",
        _ => "-ngl 999 puts all layers on the device, if they fit",
    };
    vec![first.into(), "profinfer report FILE --all: the nodes with their types, and the splits".into()]
}
