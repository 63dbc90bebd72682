//! The steps that a graph goes through before it runs: constants, shapes, common subexpressions, dead nodes, fusion,
//! memory.
//!
//! A graph is built many times with other sizes, but always with the same nodes in the same order. So everything is
//! decided once, for the largest sizes, and then applied to each graph without allocating. A step that meets something
//! that it does not understand is left out, and [`Report`] says why.

pub mod dump;
pub mod report;
pub mod steps;

mod apply;
mod cse;
mod dead;
mod fate;
pub(crate) mod fixed;
mod fold;
pub(crate) mod fuse;
mod kinds;
#[cfg(test)]
mod made;
mod norm;
mod plan;
mod shapes;

pub use report::Report;
pub use steps::{Step, Steps};

use super::abi::{GgmlTensor, Op};
use fate::Fate;
use fixed::Tensors;
use fold::Constants;
use plan::Places;

/// The decisions about a graph.
pub struct Optimiser {
    fates: Vec<Fate>,
    constants: Constants,
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
        let mut run = Run { fates: vec![Fate::default(); tensors.len()], steps, report: Report::new(steps) };
        run.report.built = run.nodes(tensors);
        let mut constants = Constants::default();
        run.step(Step::Fold, tensors, |tensors, fates| {
            // SAFETY: guaranteed by the caller.
            constants = unsafe { fold::find(tensors, fates)? };
            Ok(())
        });
        // SAFETY: guaranteed by the caller.
        run.step(Step::Shapes, tensors, |tensors, fates| unsafe { shapes::find(tensors, fates) });
        run.step(Step::Cse, tensors, cse::find);
        run.step(Step::Dead, tensors, |tensors, fates| dead::find(tensors, keep, fates));
        // SAFETY: guaranteed by the caller.
        let fuse = run.step(Step::Fuse, tensors, |tensors, fates| unsafe { norm::find(tensors, fates) });
        let mut places = Places::apart(tensors, &run.fates);
        run.report.bytes_apart = places.bytes;
        run.step(Step::Plan, tensors, |tensors, fates| {
            places = Places::shared(tensors, fates)?;
            Ok(())
        });
        (run.report.nodes, run.report.bytes) = (run.nodes(tensors), places.bytes);
        Self { fates: run.fates, constants, places, fuse, report: run.report }
    }

    /// Applies the decisions to a graph of the same structure.
    pub(crate) fn apply(&mut self, tensors: &mut Tensors) {
        self.constants.apply(tensors);
        apply::apply(tensors, &mut self.fates);
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

/// The steps while they are done.
struct Run {
    fates: Vec<Fate>,
    steps: Steps,
    report: Report,
}

impl Run {
    /// Does a step unless it is switched off. Returns whether it was done.
    fn step(
        &mut self,
        step: Step,
        tensors: &mut Tensors,
        how: impl FnOnce(&mut Tensors, &mut [Fate]) -> Result<(), String>,
    ) -> bool {
        if !self.steps.has(step) {
            return false;
        }
        let before = self.nodes(tensors);
        let done = how(tensors, &mut self.fates).map_err(|why| self.report.leave_out(step, why)).is_ok();
        if done {
            self.report.did(step, before, self.nodes(tensors));
        }
        done
    }

    /// Nodes of the graph so far.
    fn nodes(&self, tensors: &Tensors) -> usize {
        // What is folded is a leaf by now.
        let built = tensors.iter().zip(&self.fates).filter(|(t, _)| t.op != Op::NONE);
        built.filter(|(_, fate)| !fate.is_gone()).count()
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
        let removed =
            |r: &Report| [Step::Fold, Step::Shapes, Step::Cse, Step::Dead, Step::Fuse].map(|s| r.removed(s));
        let all = of(Steps::ALL, Op::UNARY);
        assert_eq!((all.built, all.nodes, removed(&all)), (5, 3, [0, 0, 1, 1, 0]));
        assert!(all.bytes < all.bytes_apart && all.left_out.is_empty());
        let less = of(Steps::ALL.without(Step::Dead), Op::UNARY);
        assert_eq!((less.nodes, removed(&less)), (4, [0, 0, 1, 0, 0]));
        let less = of(Steps::ALL.without(Step::Cse), Op::UNARY);
        assert_eq!((less.nodes, removed(&less)), (4, [0, 0, 0, 1, 0]));
        let less = of(Steps::ALL.without(Step::Plan), Op::UNARY);
        assert_eq!(less.bytes, less.bytes_apart);
        let unknown = of(Steps::ALL, Op::CONCAT);
        let left: Vec<&str> = unknown.left_out.iter().map(|l| l.step).collect();
        assert_eq!(left, ["fold", "shapes", "cse", "dead", "fuse", "plan"]);
        assert!(unknown.left_out.iter().all(|l| l.why == "CONCAT 'lost' is an unknown op"));
        assert_eq!((unknown.nodes, unknown.bytes), (5, unknown.bytes_apart));
        let none = of(Steps::NONE, Op::CONCAT);
        assert_eq!((none.nodes, none.off.len(), none.left_out), (5, Step::ALL.len(), vec![]));
    }

    /// Norms as their parts, twice the same, and what an exporter leaves around them. With two rows and with one.
    #[test]
    fn what_is_decided_for_the_largest_graph_is_applied_to_smaller_ones() {
        let mut value = 1e-5f32;
        let mut weight = [1.0f32; 16];
        let mut g = Made::new();
        let (w, eps) = (g.weight(NE), g.weight([1; 4]));
        g.change(w, |t| t.data = weight.as_mut_ptr().cast());
        g.change(eps, |t| t.data = (&raw mut value).cast());
        let build = |g: &mut Made, rows: i64| {
            g.tensors.clear();
            let (ne, row) = ([16, rows, 1, 1], [1, rows, 1, 1]);
            let x = g.leaf(ne);
            let norms = [0, 1].map(|_| {
                let flat = g.view(Op::RESHAPE, [4, 4, 1, 1], w, 0);
                let shaped = g.view(Op::RESHAPE, NE, flat, 0);
                let square = g.node(Op::SQR, ne, &[x]);
                let mean = g.node(Op::MEAN, row, &[square]);
                let sum = g.node(Op::ADD1, row, &[mean, eps]);
                let root = g.node(Op::SQRT, row, &[sum]);
                let division = g.node(Op::DIV, ne, &[x, root]);
                g.node(Op::MUL, ne, &[division, shaped])
            });
            g.node(Op::SCALE, ne, &[norms[0]]);
            let last = g.node(Op::ADD, ne, &norms);
            g.output(last);
            x
        };
        let x = build(&mut g, 2);
        // SAFETY: the sources are tensors of the graph, or constants with data.
        let mut steps = unsafe { Optimiser::new(&mut g.tensors, &[x], Steps::ALL) };
        let r = &steps.report;
        let table: Vec<(&str, usize, usize)> = r.steps.iter().map(|s| (s.step, s.before, s.after)).collect();
        let expected = [("fold", 18, 14), ("shapes", 14, 14), ("cse", 14, 8), ("dead", 8, 7), ("fuse", 7, 3)];
        assert_eq!((&table[..], r.built, r.nodes), (&expected[..], 18, 3));
        // One copy's norm and its product, and the sum; the input and these three have memory.
        assert_eq!(r.bytes_apart, 4 * 128);
        let runs = |g: &Made, steps: &Optimiser| -> Vec<(Op, [usize; 2])> {
            let place = |s| g.tensors.place(s).unwrap_or(usize::MAX);
            let stays = g.tensors.iter().enumerate().filter(|(i, t)| t.op != Op::NONE && !steps.is_gone(*i));
            stays.map(|(_, t)| (t.op, [place(t.src[0]), place(t.src[1])])).collect()
        };
        let large = runs(&g, &steps);
        assert_eq!(large.iter().map(|n| n.0).collect::<Vec<_>>(), [Op::RMS_NORM, Op::MUL, Op::ADD]);
        build(&mut g, 1);
        steps.apply(&mut g.tensors);
        assert_eq!(runs(&g, &steps), large);
    }
}
