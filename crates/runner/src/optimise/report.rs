//! What the steps did to a graph.

use std::fmt::{self, Display, Formatter};

use super::steps::{Step, Steps};
use serde::Serialize;

/// A step that was not done, because it met something that it does not understand.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct LeftOut {
    pub step: &'static str,
    pub why: String,
}

/// The nodes of the graph before and after a step that was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct StepNodes {
    pub step: &'static str,
    pub before: usize,
    pub after: usize,
}

/// What the steps did. The bytes are those of the largest graph, with its inputs; all else is the same for each size.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Report {
    /// Nodes of the graph as it was built.
    pub built: usize,
    /// Nodes of the graph that runs; two that are fused count as two.
    pub nodes: usize,
    /// The steps that may remove nodes and were done, in order.
    pub steps: Vec<StepNodes>,
    /// Pairs of nodes that run as one.
    pub fused: usize,
    /// Products that find their activations prepared.
    pub prepared: usize,
    /// Bytes of the buffer.
    pub bytes: usize,
    /// The same if each node had its own memory.
    pub bytes_apart: usize,
    /// Steps that were switched off.
    pub off: Vec<&'static str>,
    pub left_out: Vec<LeftOut>,
}

impl Report {
    pub fn new(steps: Steps) -> Self {
        Self { off: steps.off().collect(), ..Self::default() }
    }

    /// Notes what a step did to the number of nodes. Planning memory never changes it.
    pub fn did(&mut self, step: Step, before: usize, after: usize) {
        if step != Step::Plan {
            self.steps.push(StepNodes { step: step.name(), before, after });
        }
    }

    /// How many nodes a step removed; 0 if it was not done.
    pub fn removed(&self, step: Step) -> usize {
        self.steps.iter().find(|s| s.step == step.name()).map_or(0, |s| s.before.saturating_sub(s.after))
    }

    /// Notes that a step was left out.
    pub fn leave_out(&mut self, step: Step, why: String) {
        self.left_out.push(LeftOut { step: step.name(), why });
    }
}

fn mega(bytes: usize) -> f64 {
    bytes as f64 / 1e6
}

impl Display for Report {
    /// One line.
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { built, nodes, fused, prepared, .. } = self;
        write!(f, "graph: {nodes} nodes")?;
        if built != nodes {
            let removed = self.steps.iter().filter(|s| s.before > s.after);
            let removed: Vec<String> =
                removed.map(|s| format!("{} {}", s.step, s.before - s.after)).collect();
            write!(f, " of {built} (removed by {})", removed.join(", "))?;
        }
        write!(f, ", {fused} fused, {prepared} products with prepared activations; ")?;
        write!(f, "intermediates {:.2} MB of {:.2} MB", mega(self.bytes), mega(self.bytes_apart))?;
        if !self.off.is_empty() {
            write!(f, "; switched off: {}", self.off.join(", "))?;
        }
        for (i, LeftOut { step, why }) in self.left_out.iter().enumerate() {
            write!(f, "{} {step} ({why})", if i == 0 { "; left out:" } else { "," })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_is_one_line() {
        let steps = Steps::ALL.without(Step::Fuse);
        let mut report = Report { built: 171, nodes: 171, ..Report::new(steps) };
        (report.fused, report.prepared, report.bytes, report.bytes_apart) = (40, 9, 1_200_000, 4_940_000);
        let line = "graph: 171 nodes, 40 fused, 9 products with prepared activations; intermediates 1.20 MB of \
                    4.94 MB; switched off: fuse";
        assert_eq!(report.to_string(), line);
        report.did(Step::Fold, 180, 173);
        report.did(Step::Shapes, 173, 173);
        report.did(Step::Cse, 173, 171);
        report.built = 180;
        let line = line.replace("nodes", "nodes of 180 (removed by fold 7, cse 2)");
        assert_eq!(report.to_string(), line);
        assert_eq!([Step::Fold, Step::Cse, Step::Dead].map(|s| report.removed(s)), [7, 2, 0]);
        report.leave_out(Step::Fuse, "CONCAT 'x' is an unknown op".into());
        report.leave_out(Step::Plan, "another reason".into());
        let more = "; left out: fuse (CONCAT 'x' is an unknown op), plan (another reason)";
        assert_eq!(report.to_string(), format!("{line}{more}"));
    }
}
