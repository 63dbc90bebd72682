//! Names and descriptions of ops on a timeline.

use std::collections::HashMap;

use super::{ArgValue, SliceArgs};
use analysis::questions::report::Report;
use analysis::recorded::calls::{Phase, Timeline};
use analysis::recorded::describe::NO_STRUCTURE;
use analysis::recorded::idents::{Idents, OpKey};
use analysis::recorded::load::{HitTensors, Loaded};
use analysis::recorded::runs::{RunId, Runs};
use analysis::sums::attribution::verdict::Bound;
use common::order;
use pfi::record::Tensor;

/// An op of the graph.
pub struct OpLabel {
    /// Op and tensor: `MUL_MAT Qcur-3`.
    pub name: String,
    pub values: SliceArgs,
}

impl OpLabel {
    /// One of its values; none if it is not known.
    pub fn value(&self, name: &str) -> Option<&ArgValue> {
        self.values.iter().find(|(n, _)| *n == name).map(|(_, value)| value)
    }
}

/// All ops of a run, by ident.
pub struct Labels {
    pub ops: Vec<OpLabel>,
}

/// The report's figures for the ops of a name in a phase.
#[derive(Clone, Default)]
struct OpFigures {
    gb_per_s: Option<f64>,
    bound: Option<Bound>,
}

impl Labels {
    /// `report` contains the table by name, which provides the rate and the limit of the op; without it they are left
    /// out.
    pub fn new(loaded: &Loaded<'_>, line: &Timeline, idents: &Idents, report: Option<&Report>) -> Labels {
        let runs = Runs::of(loaded, line);
        let told = report.map(|report| rows(report, &runs)).unwrap_or_default();
        let phases = phases_of_plans(loaded, line, &runs);
        let mut hits: Vec<Option<(HitTensors, u32)>> = vec![None; idents.list().len()];
        for (plan, info) in &loaded.plans {
            for (ident, hit) in idents.of_plan(*plan).iter().zip(&info.hits) {
                if let Some(place) = hits.get_mut(*ident) {
                    // The plan with the lowest number, so that the output is reproducible.
                    let before = place.filter(|(_, p)| p < plan);
                    *place = before.or(Some((*hit, *plan)));
                }
            }
        }
        let mut labels = Labels { ops: Vec::with_capacity(hits.len()) };
        for (ident, hit) in hits.iter().enumerate() {
            let at = phases.partition_point(|p| p.0 < hit.map_or(0, |(_, plan)| u64::from(plan)));
            let (phase, run) = phases.get(at).map_or((0, 0), |p| (p.1, p.2));
            let told =
                told.get(&group(run, phase, &idents.label(ident, OpKey::Name))).cloned().unwrap_or_default();
            let (name, values) = op(loaded, idents, ident, hit.map(|(hit, _)| hit), told);
            labels.ops.push(OpLabel { name, values });
        }
        labels
    }

    /// Name of an op; one without a number is outside what the trace defines.
    pub fn name(&self, op: Option<usize>) -> &str {
        op.and_then(|op| self.ops.get(op)).map_or(NO_STRUCTURE, |op| &op.name)
    }
}

fn group(run: usize, phase: u64, label: &str) -> String {
    format!("{run} {phase} {label}")
}

/// The table of each run: ops of two models may have the same name.
fn rows(report: &Report, runs: &Runs) -> HashMap<String, OpFigures> {
    let mut told = HashMap::new();
    let place = |id: RunId| runs.list.iter().position(|r| r.id() == id);
    let shown = report.runs.iter().position(|r| r.shown).or(Some(0));
    let others = report.others.iter().map(|o| (place(RunId { pid: o.pid, context: o.context }), &o.phases));
    for (run, phases) in [(shown, &report.phases)].into_iter().chain(others) {
        let Some(run) = run else { continue };
        for phase in phases {
            for row in phase.by_name.iter().flatten() {
                let bound = row.verdict.as_ref().map(|v| v.bound);
                let one = OpFigures { gb_per_s: row.model_gb_per_s, bound };
                told.insert(group(run, phase.phase as u64, &row.name), one);
            }
        }
    }
    told
}

/// For each plan, its first phase and its run, ordered by plan.
fn phases_of_plans(loaded: &Loaded<'_>, line: &Timeline, runs: &Runs) -> Vec<(u64, u64, usize)> {
    let graphs = loaded.cpu_graphs.iter().zip(&line.cpu_phase).zip(&runs.of_cpu);
    let mut of: Vec<(u64, u64, usize)> = graphs
        .filter_map(|((g, phase), run): ((_, &Phase), _)| Some((u64::from(g.plan?), *phase as u64, *run)))
        .collect();
    order::by_key(&mut of, |p| (p.0, p.1));
    of.dedup();
    of
}

/// Name and description of an op.
fn op(
    loaded: &Loaded<'_>,
    idents: &Idents,
    ident: usize,
    hit: Option<HitTensors>,
    told: OpFigures,
) -> (String, SliceArgs) {
    let mut values = SliceArgs::new();
    let Some(known) = idents.list().get(ident).filter(|i| i.known) else {
        return (idents.label(ident, OpKey::Name), values);
    };
    let layer = known.layer.map(|l| l.to_string());
    let tensor = layer.as_ref().map_or_else(|| known.name.clone(), |l| known.name.replace("{L}", l));
    values.push(("op", ArgValue::Text(known.op.clone())));
    values.push(("tensor", ArgValue::Text(tensor.clone())));
    let of = |id: u32| loaded.tensors.get(&id).filter(|t| t.known);
    if let Some((first, fused)) = hit.and_then(|(first, fused)| Some((of(first)?, fused))) {
        let result = fused.and_then(of).unwrap_or(first);
        let sources: Vec<String> =
            first.src.iter().flatten().filter_map(|id| of(*id)).map(|t| shape(loaded, t)).collect();
        let result = shape(loaded, result);
        let types = if sources.is_empty() { result } else { format!("{result} = {}", sources.join(", ")) };
        values.push(("types", ArgValue::Text(types)));
    }
    values.extend(known.layer.map(|l| ("layer", ArgValue::Count(l.into()))));
    if let Some(work) = known.work {
        values.push(("bytes", ArgValue::Count(work.read.saturating_add(work.written))));
        values.push(("flops", ArgValue::Count(work.flops)));
    }
    values.extend(told.gb_per_s.map(|rate| ("mean_gb_per_s", ArgValue::Real(rate))));
    values.extend(told.bound.map(|bound| ("bound", ArgValue::Text(bound.name().into()))));
    (format!("{} {tensor}", known.op), values)
}

/// Type and dimensions, without trailing ones: `q4_0[2048,512]`.
fn shape(loaded: &Loaded<'_>, t: &Tensor) -> String {
    let last = t.ne.iter().rposition(|n| *n != 1).unwrap_or(0);
    let dims: Vec<String> = t.ne.iter().take(last + 1).map(u64::to_string).collect();
    let ty = loaded.types.get(&t.ty).map_or_else(|| format!("type#{}", t.ty), |d| d.name.to_string());
    format!("{ty}[{}]", dims.join(","))
}
