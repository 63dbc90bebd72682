//! A norm that was written as its parts: `x / sqrt(mean(x²) + eps)`, with one node each for the square, the mean, the sum,
//! the root and the division, is one RMS_NORM. The multiplication by its weight follows, and runs with it where the graph
//! runs.
//!
//! The result differs in the last bits: RMS_NORM adds the squares without rounding each, and multiplies by the reciprocal.

use std::ptr::null_mut;

use super::fate::{Fate, uses};
use super::fixed::Tensors;
use super::fold::is_constant;
use super::kinds::{Kind, kinds};
use crate::abi::{FLAG_COMPUTE, FLAG_OUTPUT, GgmlTensor, GgmlType, Op};

/// Finds the norms, notes them in the fates, and makes the division the RMS_NORM.
///
/// # Errors
/// Something unknown; nothing is changed then.
///
/// # Safety
/// The sources of the nodes must be live tensors, and constants outside of the graph must have their data.
pub unsafe fn find(tensors: &mut Tensors, fates: &mut [Fate]) -> Result<(), String> {
    let kinds = kinds(tensors)?;
    let effects = tensors.iter().enumerate().zip(&kinds).filter(|(_, kind)| **kind == Kind::Effect);
    let written: Vec<(usize, *mut GgmlTensor)> =
        effects.map(|((i, t), _)| (i, tensors.root(t.view_src))).collect();
    let uses = uses(tensors, fates);
    for i in 0..tensors.len() {
        let graph = Graph { tensors, fates, uses: &uses, written: &written };
        // SAFETY: guaranteed by the caller.
        if let Some((parts, eps)) = unsafe { graph.parts(i) } {
            parts.into_iter().for_each(|part| fates[part].part = true);
            fates[i].norm = Some(eps);
            write(tensors, i, eps);
        }
    }
    Ok(())
}

/// Makes the division of a norm that was found an RMS_NORM.
pub(super) fn write(tensors: &mut Tensors, i: usize, eps: f32) {
    let t = tensors.get_mut(i);
    (t.op, t.op_params[0]) = (Op::RMS_NORM, eps.to_bits().cast_signed());
    t.src[1] = null_mut();
}

/// What is known about a graph.
struct Graph<'a> {
    tensors: &'a Tensors,
    fates: &'a [Fate],
    uses: &'a [usize],
    /// Where which data is written.
    written: &'a [(usize, *mut GgmlTensor)],
}

impl Graph<'_> {
    /// Square, mean, sum and root of the norm that ends with this division, and its epsilon.
    ///
    /// # Safety
    /// The sources must be live tensors, and the constants among them must have data.
    unsafe fn parts(&self, division: usize) -> Option<([usize; 4], f32)> {
        let node = self.tensors.get(division);
        if node.op != Op::DIV || !self.runs(division) {
            return None;
        }
        let x = node.src[0];
        let root = self.part(node.src[1], &[Op::SQRT])?;
        let sum = self.part(self.tensors.get(root).src[0], &[Op::ADD, Op::ADD1])?;
        let mean = self.part(self.tensors.get(sum).src[0], &[Op::MEAN])?;
        let square = self.part(self.tensors.get(mean).src[0], &[Op::SQR])?;
        let row = [1, node.ne[1], node.ne[2], node.ne[3]];
        let shapes = self.tensors.get(square).ne == node.ne
            && [mean, sum, root].iter().all(|i| self.tensors.get(*i).ne == row);
        // SAFETY: guaranteed by the caller.
        let same = unsafe { x.as_ref() }.is_some_and(|x| x.ty == GgmlType::F32 && x.ne == node.ne);
        if self.tensors.get(square).src[0] != x || !same || !shapes || !self.stays(x, square, division) {
            return None;
        }
        // SAFETY: guaranteed by the caller.
        let eps = unsafe { self.single(self.tensors.get(sum).src[1]) }?;
        Some(([square, mean, sum, root], eps))
    }

    /// A node with one of these ops that the next part of the norm alone uses.
    fn part(&self, tensor: *mut GgmlTensor, ops: &[Op]) -> Option<usize> {
        let i = self.tensors.place(tensor)?;
        let t = self.tensors.get(i);
        let own = t.view_src.is_null() && self.uses.get(i) == Some(&1) && t.flags & FLAG_OUTPUT == 0;
        (ops.contains(&t.op) && own && self.runs(i)).then_some(i)
    }

    /// Whether a node is computed as f32, and is not written by others.
    fn runs(&self, i: usize) -> bool {
        let t = self.tensors.get(i);
        t.flags & FLAG_COMPUTE != 0
            && t.ty == GgmlType::F32
            && t.is_contiguous()
            && !self.fates[i].is_gone()
            && !self.written.iter().any(|(_, to)| *to == self.tensors.at(i))
    }

    /// Whether nothing between two nodes writes to a tensor's data.
    fn stays(&self, x: *mut GgmlTensor, from: usize, until: usize) -> bool {
        let root = self.tensors.root(x);
        !self.written.iter().any(|(at, to)| (from..until).contains(at) && *to == root)
    }

    /// The value of a constant with one element that can be an epsilon.
    ///
    /// # Safety
    /// It must be null, a tensor of the graph or a live one outside, with data if it is a constant.
    unsafe fn single(&self, tensor: *mut GgmlTensor) -> Option<f32> {
        let outside = self.tensors.place(tensor).is_none();
        // SAFETY: guaranteed by the caller.
        let t = unsafe { tensor.as_ref() }?;
        let written = self.written.iter().any(|(_, to)| *to == self.tensors.root(tensor));
        if written || t.nelements() != 1 || !is_constant(t, outside) {
            return None;
        }
        // SAFETY: a constant has data, here one f32.
        let value = unsafe { t.data.cast::<f32>().read() };
        (value.is_finite() && value >= 0.0).then_some(value)
    }
}

#[cfg(test)]
mod tests {
    use super::super::made::{Made, Ptr};
    use super::*;

    const NE: [i64; 4] = [16, 3, 1, 1];
    const ROW: [i64; 4] = [1, 3, 1, 1];

    /// A norm as its parts.
    struct Parts {
        g: Made,
        x: Ptr,
        /// Another input of that size.
        other: Ptr,
        eps: Ptr,
        /// Epsilons that are no constants: an input, and a node.
        loose: [Ptr; 2],
        square: Ptr,
        mean: Ptr,
        sum: Ptr,
        root: Ptr,
        division: Ptr,
        scaled: Ptr,
        _value: Box<f32>,
    }

    fn parts() -> Parts {
        let mut g = Made::new();
        let mut value = Box::new(1e-5f32);
        let (x, w, eps) = (g.leaf(NE), g.weight([16, 1, 1, 1]), g.weight([1; 4]));
        g.change(eps, |t| t.data = (&raw mut *value).cast());
        let (other, input) = (g.leaf(NE), g.leaf([1; 4]));
        let loose = [input, g.node(Op::SCALE, [1; 4], &[input])];
        let square = g.node(Op::SQR, NE, &[x]);
        let mean = g.node(Op::MEAN, ROW, &[square]);
        let sum = g.node(Op::ADD1, ROW, &[mean, eps]);
        let root = g.node(Op::SQRT, ROW, &[sum]);
        let division = g.named(Op::DIV, NE, &[x, root], "norm-0");
        let scaled = g.node(Op::MUL, NE, &[division, w]);
        Parts { g, x, other, eps, loose, square, mean, sum, root, division, scaled, _value: value }
    }

    /// The fates after `change`.
    fn found(change: impl FnOnce(&mut Parts)) -> (Parts, Vec<Fate>) {
        let mut p = parts();
        change(&mut p);
        let mut fates = vec![Fate::default(); p.g.tensors.len()];
        // SAFETY: the sources are tensors of the graph or constants with data.
        unsafe { find(&mut p.g.tensors, &mut fates) }.expect("known");
        (p, fates)
    }

    #[test]
    fn a_norm_from_its_parts_is_one_node() {
        for op in [Op::ADD1, Op::ADD] {
            let (p, fates) = found(|p| p.g.change(p.sum, |t| t.op = op));
            let gone: Vec<usize> = (0..fates.len()).filter(|i| fates[*i].is_gone()).collect();
            assert_eq!(gone, [p.square, p.mean, p.sum, p.root].map(|t| p.g.place(t)));
            let norm = p.g.of(p.division);
            assert_eq!((norm.op, norm.param_f32(0), norm.name()), (Op::RMS_NORM, 1e-5, "norm-0"));
            assert_eq!((norm.src[0], norm.src[1], norm.ne), (p.x, null_mut(), NE));
            assert_eq!(p.g.of(p.scaled).src[0], p.division);
        }
    }

    #[test]
    fn what_only_looks_like_a_norm_stays() {
        type Change = fn(&mut Parts);
        let cases: [(&str, Change); 17] = [
            ("the mean of another tensor", |p| p.g.change(p.square, |t| t.src[0] = p.other)),
            ("another tensor is divided", |p| p.g.change(p.division, |t| t.src[0] = p.other)),
            ("the root is divided", |p| p.g.change(p.division, |t| t.src[..2].reverse())),
            ("a sum, no mean", |p| p.g.change(p.mean, |t| t.op = Op::SQR)),
            ("no square", |p| p.g.change(p.square, |t| t.op = Op::SCALE)),
            ("no root", |p| p.g.change(p.root, |t| t.op = Op::SQR)),
            ("an epsilon for each row", |p| {
                p.g.change(p.eps, |t| *t = GgmlTensor { data: t.data, ..GgmlTensor::contiguous(t.ty, ROW) });
                p.g.change(p.sum, |t| t.op = Op::ADD);
            }),
            ("an epsilon that comes with the batch", |p| p.g.change(p.sum, |t| t.src[1] = p.loose[0])),
            ("an epsilon that is computed", |p| p.g.change(p.sum, |t| t.src[1] = p.loose[1])),
            ("a negative epsilon", |p| {
                // SAFETY: the value that the test owns.
                unsafe { p.g.of_outside(p.eps).data.cast::<f32>().write(-1.0) };
            }),
            ("an epsilon of another type", |p| p.g.change(p.eps, |t| t.ty = GgmlType::I32)),
            ("the mean is needed elsewhere", |p| {
                p.g.node(Op::SCALE, ROW, &[p.mean]);
            }),
            ("a view of the squares is needed elsewhere", |p| {
                p.g.view(Op::VIEW, [16, 1, 1, 1], p.square, 0);
            }),
            ("the root is a result", |p| p.g.output(p.root)),
            ("the sum is not computed", |p| p.g.change(p.sum, |t| t.flags = 0)),
            ("the squares are written by another node", |p| {
                let ids = p.g.leaf([3, 1, 1, 1]);
                p.g.store(NE, p.x, ids, p.square);
            }),
            ("the mean has another shape", |p| p.g.change(p.mean, |t| t.ne = [3, 1, 1, 1])),
        ];
        for (what, change) in cases {
            let (p, fates) = found(change);
            assert!(p.g.of(p.division).op == Op::DIV, "{what}");
            assert!(fates.iter().all(|f| !f.is_gone() && f.norm.is_none()), "{what}");
        }
    }

    #[test]
    fn data_that_is_written_in_between_is_read_twice() {
        let mut g = Made::new();
        let mut value = 1e-5f32;
        let (x, ids, eps) = (g.leaf(NE), g.leaf([3, 1, 1, 1]), g.weight([1; 4]));
        g.change(eps, |t| t.data = (&raw mut value).cast());
        let y = g.node(Op::DUP, NE, &[x]);
        let square = g.node(Op::SQR, NE, &[y]);
        let mean = g.node(Op::MEAN, ROW, &[square]);
        g.store(NE, x, ids, y);
        let sum = g.node(Op::ADD1, ROW, &[mean, eps]);
        let root = g.node(Op::SQRT, ROW, &[sum]);
        let division = g.node(Op::DIV, NE, &[y, root]);
        let mut fates = vec![Fate::default(); g.tensors.len()];
        // SAFETY: as above.
        unsafe { find(&mut g.tensors, &mut fates) }.expect("known");
        assert_eq!(g.of(division).op, Op::DIV);
    }

    #[test]
    fn a_dead_user_of_a_part_does_not_count() {
        let mut p = parts();
        let lost = p.g.node(Op::SCALE, ROW, &[p.mean]);
        let mut fates = vec![Fate::default(); p.g.tensors.len()];
        fates[p.g.place(lost)].dead = true;
        // SAFETY: as above.
        unsafe { find(&mut p.g.tensors, &mut fates) }.expect("known");
        assert_eq!(p.g.of(p.division).op, Op::RMS_NORM);
    }
}
