//! The steps that a graph goes through before it runs: shapes, constants, common subexpressions, dead nodes, fusion,
//! memory.
//!
//! A graph is built many times with other sizes, but always with the same nodes in the same order. So everything is
//! decided once, for the largest sizes, and then applied to each graph without allocating. A step that meets something
//! that it does not understand is left out, and [`Report`] says why.

pub mod dump;
pub mod report;
pub mod steps;

mod cse;
mod dead;
mod fate;
pub(crate) mod fixed;
mod fold;
pub(crate) mod fuse;
mod kinds;
#[cfg(test)]
mod made;
mod plan;
mod shapes;

pub use report::Report;
pub use steps::{Step, Steps};

use super::abi::{GgmlTensor, Op};
use fate::Fate;
use fixed::Tensors;
use fold::Folded;
use plan::Places;

/// The decisions about a graph.
pub struct Optimiser {
    fates: Vec<Fate>,
    folded: Vec<Folded>,
    places: Places,
    fuse: bool,
    pub report: Report,
}

impl Optimiser {
    /// Decides about the graph in `tensors`, which must be the largest to come, and applies the decisions to it. The
    /// tensors in `keep` are used from outside.
    ///
    /// # Safety
    /// The sources of the tensors must be live tensors; weights must have data and stay as they are.
    pub(crate) unsafe fn new(tensors: &mut Tensors, keep: &[*mut GgmlTensor], steps: Steps) -> Self {
        let mut report = Report::new(steps);
        let built = tensors.iter().filter(|t| t.op != Op::NONE).count();
        let mut fates = vec![Fate::default(); tensors.len()];
        let mut step = |step: Step, run: &mut dyn FnMut() -> Result<(), String>| {
            steps.has(step) && run().map_err(|why| report.leave_out(step, why)).is_ok()
        };
        let mut checked = 0;
        step(Step::Shapes, &mut || {
            // SAFETY: guaranteed by the caller.
            checked = unsafe { shapes::check(tensors)? };
            Ok(())
        });
        let mut folded = Vec::new();
        step(Step::Fold, &mut || {
            // SAFETY: guaranteed by the caller.
            folded = unsafe { fold::find(tensors, &mut fates)? };
            Ok(())
        });
        step(Step::Cse, &mut || cse::find(tensors, &mut fates));
        step(Step::Dead, &mut || dead::find(tensors, keep, &mut fates));
        let fuse = step(Step::Fuse, &mut || kinds::kinds(tensors).map(|_| ()));
        let apart = Places::apart(tensors, &fates);
        let bytes_apart = apart.bytes;
        let mut places = apart;
        step(Step::Plan, &mut || {
            places = Places::shared(tensors, &fates)?;
            Ok(())
        });
        let nodes = || tensors.iter().zip(&fates).filter(|(t, _)| t.op != Op::NONE).map(|(_, fate)| fate);
        (report.checked, report.built, report.folded) = (checked, built, folded.len());
        report.nodes = nodes().filter(|f| !f.is_gone()).count();
        report.shared = nodes().filter(|f| f.merged).count();
        report.dead = nodes().filter(|f| f.dead && !f.merged).count();
        (report.bytes, report.bytes_apart) = (places.bytes, bytes_apart);
        Self { fates, folded, places, fuse, report }
    }

    /// Applies the decisions to a graph of the same structure.
    pub(crate) fn apply(&mut self, tensors: &mut Tensors) {
        self.folded.iter().for_each(|f| f.apply(tensors));
        cse::apply(tensors, &mut self.fates);
    }

    /// Whether a tensor is not in the graph that runs.
    pub(crate) fn is_gone(&self, tensor: usize) -> bool {
        self.fates.get(tensor).is_some_and(Fate::is_gone)
    }

    /// Offset of a tensor's data in the buffer.
    pub(crate) fn place(&self, tensor: usize) -> Option<usize> {
        self.places.of(tensor)
    }

    /// Bytes of the buffer.
    pub(crate) fn bytes(&self) -> usize {
        self.places.bytes
    }

    /// Whether nodes are fused.
    pub fn fuses(&self) -> bool {
        self.fuse
    }
}

#[cfg(test)]
mod tests {
    use super::made::Made;
    use super::*;

    const NE: [i64; 4] = [16, 1, 1, 1];

    #[test]
    fn each_step_can_be_switched_off_and_an_unknown_op_leaves_all_out() {
        let of = |steps: Steps, op: Op| {
            let mut g = Made::new();
            let x = g.leaf(NE);
            let [a, b] = [0, 1].map(|_| g.node(Op::SCALE, NE, &[x]));
            g.named(op, NE, &[x], "lost");
            let sum = g.node(Op::ADD, NE, &[a, b]);
            let last = g.node(Op::SCALE, NE, &[sum]);
            g.output(last);
            // SAFETY: the sources are tensors of the graph.
            unsafe { Optimiser::new(&mut g.tensors, &[x], steps) }.report
        };
        let all = of(Steps::ALL, Op::UNARY);
        assert_eq!((all.nodes, all.built, all.checked, all.dead, all.shared), (3, 5, 5, 1, 1));
        assert!(all.bytes < all.bytes_apart && all.left_out.is_empty());
        let less = of(Steps::ALL.without(Step::Dead), Op::UNARY);
        assert_eq!((less.nodes, less.dead, less.shared), (4, 0, 1));
        let less = of(Steps::ALL.without(Step::Cse), Op::UNARY);
        assert_eq!((less.nodes, less.dead, less.shared), (4, 1, 0));
        let less = of(Steps::ALL.without(Step::Plan), Op::UNARY);
        assert_eq!(less.bytes, less.bytes_apart);
        let unknown = of(Steps::ALL, Op::CONCAT);
        let left: Vec<&str> = unknown.left_out.iter().map(|l| l.step).collect();
        assert_eq!(left, ["shapes", "fold", "cse", "dead", "fuse", "plan"]);
        assert!(unknown.left_out.iter().all(|l| l.why == "CONCAT 'lost' is an unknown op"));
        assert_eq!((unknown.nodes, unknown.bytes), (5, unknown.bytes_apart));
        let none = of(Steps::NONE, Op::CONCAT);
        assert_eq!((none.nodes, none.off.len(), none.left_out), (5, Step::ALL.len(), vec![]));
    }
}
