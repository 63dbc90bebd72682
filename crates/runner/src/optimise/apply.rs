//! Applies what was decided for the largest graph to one of another size.

use super::fate::{Fate, redirect};
use super::fixed::Tensors;
use super::{cse, norm, shapes};

/// Applies the decisions to a graph of the same structure and other sizes, whose constants are leaves already. Nodes
/// that have no twin at these sizes remain.
pub(super) fn apply(tensors: &mut Tensors, fates: &mut [Fate]) {
    for i in 0..tensors.len().min(fates.len()) {
        if fates[i].hops {
            shapes::hop(tensors, i);
        }
        redirect(tensors, i, fates);
        if let Some(twin) = &mut fates[i].twin {
            twin.now = cse::same(tensors, twin.of, i);
        }
    }
    // Only now: what equals a division is compared with it above.
    for (i, fate) in fates.iter().enumerate() {
        if let Some(eps) = fate.norm {
            norm::write(tensors, i, eps);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::made::Made;
    use super::*;
    use crate::abi::Op;

    const NE: [i64; 4] = [4, 2, 1, 1];

    #[test]
    fn nodes_that_are_different_at_another_size_remain() {
        let mut g = Made::new();
        let x = g.leaf(NE);
        let [a, b] = [0, 1].map(|_| g.view(Op::VIEW, NE, x, 0));
        let [ua, ub] = [a, b].map(|s| g.node(Op::UNARY, NE, &[s]));
        let mut fates = vec![Fate::default(); g.tensors.len()];
        cse::find(&mut g.tensors, &mut fates).expect("known");
        let twin = |fates: &[Fate], i: usize| fates[i].twin.map(|t| (t.of, t.always, t.now));
        assert_eq!((twin(&fates, 2), twin(&fates, 4)), (Some((1, false, true)), Some((3, false, true))));
        // The same graph again, with another size of one view.
        g.change(b, |t| t.ne = [4, 1, 1, 1]);
        g.change(ub, |t| (t.ne, t.src[0]) = ([4, 1, 1, 1], b));
        apply(&mut g.tensors, &mut fates);
        assert_eq!((twin(&fates, 2), twin(&fates, 4)), (Some((1, false, false)), Some((3, false, false))));
        assert_eq!((g.of(ua).src[0], g.of(ub).src[0]), (a, b));
    }

    #[test]
    fn a_chain_of_views_is_one_view_of_what_its_first_is_a_view_of_now() {
        let mut g = Made::new();
        let build = |g: &mut Made, rows: i64| {
            g.tensors.clear();
            let ne = [4, rows, 1, 1];
            let x = g.leaf(ne);
            let [a, b] = [0, 1].map(|_| g.node(Op::SCALE, ne, &[x]));
            let lines = [a, b].map(|s| g.view(Op::RESHAPE, [4 * rows, 1, 1, 1], s, 0));
            let [ra, rb] = lines.map(|s| g.view(Op::RESHAPE, [2, 2, rows, 1], s, 0));
            (a, [ra, rb], g.node(Op::ADD, [2, 2, rows, 1], &[ra, rb]))
        };
        build(&mut g, 3);
        let mut fates = vec![Fate::default(); g.tensors.len()];
        // SAFETY: the sources are tensors of the graph.
        unsafe { shapes::find(&mut g.tensors, &mut fates) }.expect("known");
        cse::find(&mut g.tensors, &mut fates).expect("known");
        let (a, [ra, rb], sum) = build(&mut g, 2);
        apply(&mut g.tensors, &mut fates);
        assert_eq!((g.of(ra).src[0], g.of(rb).src[0], g.of(rb).view_src), (a, a, a));
        assert_eq!(g.of(sum).src[..2], [ra, ra]);
        let gone: Vec<usize> = (0..fates.len()).filter(|i| fates[*i].is_gone()).collect();
        assert_eq!(gone, [2, 3, 4, 6]);
    }
}
