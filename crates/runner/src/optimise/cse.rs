//! Common subexpressions: a node that computes what an earlier one has computed is replaced by that one.

use super::fate::{Fate, Twin, redirect};
use super::fixed::Tensors;
use super::kinds::{Kind, kinds};
use crate::abi::{FLAG_COMPUTE, FLAG_OUTPUT, GgmlTensor, Op};

/// Lists of earlier nodes, by their op and sources.
const BUCKETS: usize = 1024;
const END: usize = usize::MAX;

/// Finds the nodes that equal an earlier one, notes that in their fates, and makes their users use the earlier one.
///
/// # Errors
/// Something unknown; nothing is changed then.
pub fn find(tensors: &mut Tensors, fates: &mut [Fate]) -> Result<(), String> {
    let kinds = kinds(tensors)?;
    let effects: Vec<(usize, *mut GgmlTensor)> = kinds
        .iter()
        .enumerate()
        .filter(|(_, kind)| **kind == Kind::Effect)
        .map(|(i, _)| (i, tensors.root(tensors.get(i).view_src)))
        .collect();
    let (mut first, mut next) = (vec![END; BUCKETS], vec![END; tensors.len()]);
    for (i, kind) in kinds.iter().enumerate() {
        let always = always(tensors, i, *kind, fates);
        redirect(tensors, i, fates);
        let written = effects.iter().any(|(_, to)| *to == tensors.at(i));
        let fate = &fates[i];
        let comparable = matches!(kind, Kind::View | Kind::Pure) || fate.folded;
        if !comparable || written || fate.passed {
            continue;
        }
        let bucket = bucket(tensors.get(i));
        let mut at = first[bucket];
        while at != END && !(same(tensors, at, i) && unchanged(tensors, &effects, *kind, at, i)) {
            at = next[at];
        }
        if at == END {
            next[i] = first[bucket];
            first[bucket] = i;
        } else {
            fates[i].twin = Some(Twin { of: at, always, now: true });
        }
    }
    Ok(())
}

/// Whether a node that equals another does so at every size: its dimensions follow from its sources, which are the same
/// at every size. Those of a view do not.
fn always(tensors: &Tensors, i: usize, kind: Kind, fates: &[Fate]) -> bool {
    let t = tensors.get(i);
    let follows = kind != Kind::View || matches!(t.op, Op::PERMUTE | Op::TRANSPOSE);
    let fixed = |s: &*mut GgmlTensor| {
        let fate = tensors.place(*s).and_then(|place| fates.get(place));
        fate.and_then(|f| f.twin).is_none_or(|twin| twin.always)
    };
    follows && t.src.iter().chain([&t.view_src]).all(fixed)
}

fn bucket(t: &GgmlTensor) -> usize {
    let start = t.op as usize ^ t.data as usize;
    t.src.iter().fold(start, |h, s| (h.rotate_left(5) ^ (*s as usize)).wrapping_mul(0x9e37_79b9)) >> 8
        & (BUCKETS - 1)
}

/// True if both compute the same from the same sources, or are constants with the same data. A result of the graph is
/// never the later one.
pub(super) fn same(tensors: &Tensors, earlier: usize, later: usize) -> bool {
    let (a, b) = (tensors.get(earlier), tensors.get(later));
    (a.op, a.ty, a.ne, a.nb, a.op_params) == (b.op, b.ty, b.ne, b.nb, b.op_params)
        && (a.src, a.view_src, a.view_offs, a.data) == (b.src, b.view_src, b.view_offs, b.data)
        && a.flags & FLAG_COMPUTE == b.flags & FLAG_COMPUTE
        && b.flags & FLAG_OUTPUT == 0
}

/// True if nothing between the two writes to what they read.
fn unchanged(
    tensors: &Tensors,
    effects: &[(usize, *mut GgmlTensor)],
    kind: Kind,
    earlier: usize,
    later: usize,
) -> bool {
    let sources = tensors.get(later).src;
    let reads = |to: *mut GgmlTensor| sources.iter().any(|s| !s.is_null() && tensors.root(*s) == to);
    // A view reads nothing.
    kind == Kind::View || !effects.iter().any(|(at, to)| (earlier..later).contains(at) && reads(*to))
}

#[cfg(test)]
mod tests {
    use super::super::made::{Made, Ptr};
    use super::*;

    fn merged(g: &mut Made) -> Vec<(usize, usize)> {
        let mut fates = vec![Fate::default(); g.tensors.len()];
        find(&mut g.tensors, &mut fates).expect("known");
        fates.iter().enumerate().filter_map(|(i, f)| Some((i, f.twin?.of))).collect()
    }

    const NE: [i64; 4] = [4, 2, 1, 1];

    #[test]
    fn equal_nodes_and_what_follows_from_them_are_one() {
        let mut g = Made::new();
        let x = g.leaf(NE);
        let [a, b] = [0, 1].map(|_| g.node(Op::SCALE, NE, &[x]));
        let [va, vb] = [a, b].map(|s| g.view(Op::RESHAPE, [8, 1, 1, 1], s, 0));
        let [ua, ub] = [va, vb].map(|s| g.node(Op::UNARY, [8, 1, 1, 1], &[s]));
        let sum = g.node(Op::ADD, [8, 1, 1, 1], &[ua, ub]);
        let other = g.node(Op::SCALE, NE, &[x]);
        g.change(other, |t| t.op_params[0] = 1);
        assert_eq!(merged(&mut g), [(2, 1), (4, 3), (6, 5)]);
        assert_eq!(g.of(sum).src[..2], [ua, ua]);
        assert_eq!(g.of(vb).view_src, a);
    }

    #[test]
    fn results_are_not_removed_and_writes_are_respected() {
        let mut g = Made::new();
        let (x, ids, cache) = (g.leaf(NE), g.leaf([2, 1, 1, 1]), g.weight([4, 8, 1, 1]));
        let read = |g: &mut Made| -> Ptr {
            let view = g.view(Op::VIEW, NE, cache, 0);
            g.change(view, |t| t.view_src = cache);
            g.node(Op::SCALE, NE, &[view])
        };
        let before = read(&mut g);
        g.store([4, 8, 1, 1], x, ids, cache);
        let [after, again] = [0, 1].map(|_| read(&mut g));
        let result = g.node(Op::ADD, NE, &[before, after]);
        let second = g.node(Op::ADD, NE, &[before, again]);
        g.output(second);
        let merged = merged(&mut g);
        // The views are the same, the values only after the write.
        assert_eq!(merged, [(5, 2), (7, 2), (8, 6)]);
        assert_eq!(g.of(result).src[..2], g.of(second).src[..2]);
    }

    #[test]
    fn data_that_is_written_later_stays_apart() {
        let mut g = Made::new();
        let (x, ids) = (g.leaf(NE), g.leaf([2, 1, 1, 1]));
        let [a, b] = [0, 1].map(|_| g.node(Op::DUP, NE, &[x]));
        g.store(NE, x, ids, a);
        g.node(Op::ADD, NE, &[a, b]);
        assert_eq!(merged(&mut g), []);
    }
}
