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

/// What the steps did. The bytes are those of the largest graph, with its inputs; all else is the same for each size.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize)]
pub struct Report {
    /// Nodes of the graph that runs.
    pub nodes: usize,
    /// Nodes of the graph as it was built.
    pub built: usize,
    /// Nodes whose shape was compared with that of their sources.
    pub checked: usize,
    pub folded: usize,
    pub dead: usize,
    /// Nodes that equal an earlier one.
    pub shared: usize,
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
        let Self { nodes, built, dead, shared, folded, fused, prepared, .. } = self;
        write!(f, "graph: {nodes} nodes of {built} ({dead} dead, {shared} shared")?;
        if *folded > 0 {
            write!(f, ", {folded} constant")?;
        }
        write!(f, "), {fused} fused, {prepared} products with prepared activations; ")?;
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
        let mut report = Report { nodes: 171, built: 180, dead: 3, shared: 6, ..Report::new(steps) };
        (report.fused, report.prepared, report.bytes, report.bytes_apart) = (40, 9, 1_200_000, 4_940_000);
        let line = "graph: 171 nodes of 180 (3 dead, 6 shared), 40 fused, 9 products with prepared activations; \
                    intermediates 1.20 MB of 4.94 MB; switched off: fuse";
        assert_eq!(report.to_string(), line);
        report.leave_out(Step::Cse, "CONCAT 'x' is an unknown op".into());
        report.leave_out(Step::Plan, "another reason".into());
        let more = "; left out: cse (CONCAT 'x' is an unknown op), plan (another reason)";
        assert_eq!(report.to_string(), format!("{line}{more}"));
    }
}
