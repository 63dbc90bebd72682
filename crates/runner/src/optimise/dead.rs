//! Dead nodes: what neither a result of the graph nor a write to the cache needs.

use super::fate::Fate;
use super::fixed::Tensors;
use super::kinds::{Kind, kinds};
use crate::abi::{FLAG_COMPUTE, FLAG_OUTPUT, GgmlTensor};

/// Finds them, and notes that in their fates. Needed are the tensors in `keep`, results, and what is written to
/// other data.
///
/// # Errors
/// Something unknown, or a graph without results.
pub fn find(tensors: &Tensors, keep: &[*mut GgmlTensor], fates: &mut [Fate]) -> Result<(), String> {
    let kinds = kinds(tensors)?;
    let mut live = vec![false; tensors.len()];
    let mut open: Vec<usize> = keep.iter().filter_map(|t| tensors.place(*t)).collect();
    let inputs = open.len();
    for (i, (t, kind)) in tensors.iter().zip(&kinds).enumerate() {
        if t.flags & FLAG_OUTPUT != 0 || *kind == Kind::Effect && t.flags & FLAG_COMPUTE != 0 {
            open.push(i);
        }
    }
    if open.len() == inputs {
        return Err("no node is a result".into());
    }
    while let Some(i) = open.pop() {
        if !std::mem::replace(&mut live[i], true) {
            let t = tensors.get(i);
            open.extend(t.src.iter().chain([&t.view_src]).filter_map(|s| tensors.place(*s)));
        }
    }
    for (fate, live) in fates.iter_mut().zip(live) {
        fate.dead = !live;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::made::Made;
    use super::*;
    use crate::abi::Op;

    #[test]
    fn what_leads_nowhere_is_dead_and_writes_and_bases_of_views_are_not() {
        const NE: [i64; 4] = [4, 2, 1, 1];
        let mut g = Made::new();
        let (x, ids, cache) = (g.leaf(NE), g.leaf([2, 1, 1, 1]), g.weight([4, 8, 1, 1]));
        let (unused, input) = (g.leaf(NE), g.leaf(NE));
        let base = g.node(Op::SCALE, NE, &[x]);
        let view = g.view(Op::VIEW, [4, 1, 1, 1], base, 16);
        let lost = g.node(Op::UNARY, NE, &[unused]);
        let lost_too = g.view(Op::RESHAPE, [8, 1, 1, 1], lost, 0);
        let stored = g.node(Op::SCALE, NE, &[x]);
        let write = g.store([4, 8, 1, 1], stored, ids, cache);
        // A write that is never computed.
        let idle = g.store([4, 8, 1, 1], lost, ids, cache);
        g.change(idle, |t| t.flags = 0);
        let result = g.node(Op::UNARY, [4, 1, 1, 1], &[view]);
        let mut fates = vec![Fate::default(); g.tensors.len()];
        let all = [x, ids, unused, input, base, view, lost, lost_too, stored, write, idle, result];
        g.change(write, |t| t.flags = 0);
        assert_eq!(find(&g.tensors, &[input], &mut fates), Err("no node is a result".into()));
        g.change(write, |t| t.flags = FLAG_COMPUTE);
        g.output(result);
        find(&g.tensors, &[input], &mut fates).expect("known");
        let dead: Vec<_> = all.into_iter().filter(|t| fates[g.place(*t)].dead).collect();
        assert_eq!(dead, [unused, lost, lost_too, idle]);
    }
}
