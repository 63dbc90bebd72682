//! Constant folding: element-wise nodes whose sources are all weights are computed once and become weights.

use std::ptr::null_mut;

use super::fate::Fate;
use super::fixed::Tensors;
use super::kinds::{Kind, kinds};
use crate::abi::{ComputeParams, FLAG_COMPUTE, FLAG_OUTPUT, GgmlTensor, GgmlType, Op};
use crate::compute;

/// A node that has been computed.
pub struct Folded {
    place: usize,
    data: Vec<f32>,
}

/// Computes the constant nodes, and makes them leaves with data.
///
/// # Errors
/// Something unknown; nothing is changed then.
///
/// # Safety
/// The sources of the nodes must be live tensors, and those outside of the graph must have their data, which stays as
/// it is unless a node of the graph writes to it.
pub unsafe fn find(tensors: &mut Tensors, fates: &mut [Fate]) -> Result<Vec<Folded>, String> {
    let kinds = kinds(tensors)?;
    let effects = tensors.iter().zip(&kinds).filter(|(_, kind)| **kind == Kind::Effect);
    let written: Vec<*mut GgmlTensor> = effects.map(|(t, _)| tensors.root(t.view_src)).collect();
    let mut folded = Vec::new();
    for (i, fate) in fates.iter_mut().enumerate().take(tensors.len()) {
        let at = tensors.at(i);
        let constant = |s: &*mut GgmlTensor| {
            let inside =
                tensors.place(*s).is_some_and(|place| place >= i || tensors.get(place).data.is_null());
            // SAFETY: guaranteed by the caller.
            !inside
                && !written.contains(s)
                && unsafe { (**s).op == Op::NONE && is_plain(&**s) && !(**s).data.is_null() }
        };
        let node = tensors.get(i);
        let sources = node.src.iter().filter(|s| !s.is_null());
        if !can_fold(node) || written.contains(&at) || !sources.clone().all(constant) || sources.count() == 0
        {
            continue;
        }
        let mut data = vec![0.0; usize::try_from(node.nelements()).unwrap_or(0)];
        let node = GgmlTensor { data: data.as_mut_ptr().cast(), ..node.clone() };
        // SAFETY: an element-wise node uses no work memory and does not wait for threads; its sources have data, and
        // there is room for its own.
        unsafe { compute::forward(&ALONE, &node) };
        let one = Folded { place: i, data };
        one.apply(tensors);
        fate.folded = true;
        folded.push(one);
    }
    Ok(folded)
}

/// One thread.
const ALONE: ComputeParams =
    ComputeParams { ith: 0, nth: 1, wsize: 0, wdata: null_mut(), threadpool: null_mut(), use_ref: false };

impl Folded {
    /// Makes the node a leaf.
    pub fn apply(&self, tensors: &mut Tensors) {
        let data = self.data.as_ptr().cast_mut().cast();
        let t = tensors.get_mut(self.place);
        (t.op, t.flags, t.data) = (Op::NONE, 0, data);
        t.src = [null_mut(); 10];
    }
}

fn can_fold(node: &GgmlTensor) -> bool {
    let simple = matches!(node.op, Op::ADD | Op::MUL | Op::DIV | Op::SCALE | Op::UNARY);
    simple
        && is_plain(node)
        && node.view_src.is_null()
        && node.flags & (FLAG_COMPUTE | FLAG_OUTPUT) == FLAG_COMPUTE
}

fn is_plain(t: &GgmlTensor) -> bool {
    t.ty == GgmlType::F32 && t.is_contiguous()
}

#[cfg(test)]
mod tests {
    use super::super::made::Made;
    use super::super::{Optimiser, Steps};
    use super::*;

    #[test]
    fn nodes_of_weights_become_weights() {
        const NE: [i64; 4] = [4, 1, 1, 1];
        let mut g = Made::new();
        let (x, ids) = (g.leaf(NE), g.leaf([1, 1, 1, 1]));
        let (mut a, mut b) = ([1.0f32, 2.0, 3.0, 4.0], [0.5f32; 4]);
        let mut outside = [&mut a, &mut b].map(|data| {
            let w = g.weight(NE);
            g.change(w, |t| t.data = data.as_mut_ptr().cast());
            w
        });
        let cache = g.weight(NE);
        g.change(cache, |t| t.data = b.as_mut_ptr().cast());
        let sum = g.node(Op::ADD, NE, &outside);
        let scaled = g.node(Op::SCALE, NE, &[sum]);
        g.change(scaled, |t| t.set_param_f32(0, 2.0));
        outside.reverse();
        let not = g.node(Op::MUL, NE, &[scaled, x]);
        g.store(NE, x, ids, cache);
        let written = g.node(Op::ADD, NE, &[cache, outside[0]]);
        let result = g.node(Op::ADD, NE, &[not, written]);
        g.output(result);
        // SAFETY: the sources are tensors of the graph or weights with data.
        let steps = unsafe { Optimiser::new(&mut g.tensors, &[x, ids], Steps::ALL) };
        let r = &steps.report;
        assert_eq!((r.built, r.nodes, r.folded, r.dead, &r.left_out[..]), (6, 4, 2, 0, &[][..]));
        assert_eq!(
            (g.of(sum).op, g.of(scaled).op, g.of(not).op, g.of(written).op),
            (Op::NONE, Op::NONE, Op::MUL, Op::ADD)
        );
        // SAFETY: four numbers, as computed.
        let values = unsafe { std::slice::from_raw_parts(g.of(scaled).data.cast::<f32>(), 4) };
        assert_eq!(values, [3.0, 5.0, 7.0, 9.0]);
        assert!(steps.place(g.place(scaled)).is_none() && steps.is_gone(g.place(sum)));
    }
}
