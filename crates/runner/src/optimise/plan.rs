//! Memory planning: where the data of each tensor lies in one buffer.

use super::fate::Fate;
use super::fixed::Tensors;
use super::kinds::kinds;
use crate::abi::{FLAG_COMPUTE, FLAG_INPUT, GgmlTensor, Op};

/// Alignment of a tensor's data.
const ALIGN: usize = 64;

/// The places of all data.
#[derive(Debug, Default)]
pub struct Places {
    /// By tensor; `None` for views and tensors that are never computed.
    offsets: Vec<Option<usize>>,
    /// Bytes of the buffer.
    pub bytes: usize,
}

impl Places {
    /// Offset of a tensor's data in the buffer.
    pub fn of(&self, tensor: usize) -> Option<usize> {
        self.offsets.get(tensor).copied().flatten()
    }

    /// A place of its own for each tensor.
    pub fn apart(tensors: &Tensors, fates: &[Fate]) -> Places {
        let mut places = Places::default();
        for (i, t) in tensors.iter().enumerate() {
            let offset = owns_data(t, fates.get(i)).then_some(places.bytes);
            places.bytes += offset.map_or(0, |_| data_bytes(t));
            places.offsets.push(offset);
        }
        places
    }

    /// Uses memory again once the last node that uses it is done, but never for that node's own result: no kernel
    /// reads where it writes. Inputs and the result keep their memory. The graph must be the largest to come.
    ///
    /// # Errors
    /// An op that may use other data than its sources.
    pub fn shared(tensors: &Tensors, fates: &[Fate]) -> Result<Places, String> {
        kinds(tensors)?;
        let last = last_uses(tensors, fates);
        let mut ends: Vec<Vec<usize>> = vec![Vec::new(); tensors.len()];
        for (i, end) in last.iter().enumerate().filter(|(i, _)| owns_data(tensors.get(*i), fates.get(*i))) {
            if let Some(ends) = ends.get_mut(*end) {
                ends.push(i);
            }
        }
        let mut free = FreeList::default();
        let mut offsets = vec![None; tensors.len()];
        for (i, t) in tensors.iter().enumerate() {
            if owns_data(t, fates.get(i)) {
                offsets[i] = Some(free.take(data_bytes(t)));
            }
            for gone in &ends[i] {
                free.give(offsets[*gone].unwrap_or(0), data_bytes(tensors.get(*gone)));
            }
        }
        Ok(Places { offsets, bytes: free.end })
    }
}

/// For each tensor, the index of the last one that uses its data, or its own index if none does; `usize::MAX` for
/// inputs and the result, which only the next graph may replace.
fn last_uses(tensors: &Tensors, fates: &[Fate]) -> Vec<usize> {
    let mut last: Vec<usize> = (0..tensors.len()).collect();
    let owner = |s: *mut GgmlTensor| tensors.place(tensors.root(s));
    // What is replaced only at some sizes uses its sources at the others.
    let stays = |i: usize| !fates.get(i).is_some_and(Fate::is_always_gone);
    for (i, t) in tensors.iter().enumerate().filter(|(i, _)| stays(*i)) {
        let until = if t.op == Op::RMS_NORM { fused_until(tensors, fates, i) } else { i };
        for source in t.src.iter().chain([&t.view_src]).filter(|s| !s.is_null()) {
            if let Some(place) = owner(*source) {
                last[place] = last[place].max(until);
            }
        }
        if t.flags & FLAG_INPUT != 0 {
            last[i] = usize::MAX;
        }
    }
    // At sizes where a node is not replaced, its own data is used instead of that of the other.
    for (i, twin) in fates.iter().enumerate().filter_map(|(i, fate)| Some((i, fate.twin?))) {
        if let Some(kept) = owner(tensors.at(twin.of)) {
            last[i] = last[i].max(last[kept]);
        }
    }
    if let Some(end) = last.last_mut() {
        *end = usize::MAX;
    }
    last
}

/// A norm is computed by the multiplication that follows in the list of nodes, so its source must stay until then.
fn fused_until(tensors: &Tensors, fates: &[Fate], norm: usize) -> usize {
    let follows = |i: &usize| tensors.get(*i).op != Op::NONE && !fates.get(*i).is_some_and(Fate::is_gone);
    (norm + 1..tensors.len()).find(follows).unwrap_or(norm)
}

/// Whether the buffer has room for the tensor: not for views or tensors that are never computed. A node that is replaced
/// only at some sizes has room for the others.
fn owns_data(t: &GgmlTensor, fate: Option<&Fate>) -> bool {
    let gone = fate.is_some_and(Fate::is_always_gone);
    t.view_src.is_null() && !gone && t.flags & (FLAG_COMPUTE | FLAG_INPUT) != 0
}

fn data_bytes(t: &GgmlTensor) -> usize {
    t.contiguous_bytes().next_multiple_of(ALIGN)
}

/// Free parts of a buffer that grows as needed.
#[derive(Debug, Default)]
struct FreeList {
    /// (offset, bytes), ascending, never adjacent.
    parts: Vec<(usize, usize)>,
    end: usize,
}

impl FreeList {
    /// The smallest part that is large enough, otherwise the end of the buffer.
    fn take(&mut self, bytes: usize) -> usize {
        let fits = self.parts.iter().enumerate().filter(|(_, p)| p.1 >= bytes);
        if let Some((i, &(offset, size))) = fits.min_by_key(|(_, p)| p.1) {
            if size == bytes {
                self.parts.remove(i);
            } else {
                self.parts[i] = (offset + bytes, size - bytes);
            }
            return offset;
        }
        let offset = self.end;
        self.end += bytes;
        offset
    }

    fn give(&mut self, offset: usize, bytes: usize) {
        if bytes == 0 {
            return;
        }
        let i = self.parts.partition_point(|p| p.0 < offset);
        self.parts.insert(i, (offset, bytes));
        for i in [i, i.wrapping_sub(1)] {
            if let Some(&[(a, n), (b, m)]) = self.parts.get(i..).and_then(|p| p.first_chunk())
                && a + n == b
            {
                self.parts[i] = (a, n + m);
                self.parts.remove(i + 1);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::made::Made;
    use super::*;

    #[test]
    fn freed_parts_grow_together_and_are_used_again() {
        let mut free = FreeList::default();
        let at: Vec<usize> = [64, 128, 64, 64].map(|n| free.take(n)).to_vec();
        assert_eq!(at, [0, 64, 192, 256]);
        free.give(0, 64);
        free.give(192, 64);
        assert_eq!(free.take(128), 320);
        free.give(64, 128);
        assert_eq!(free.parts, [(0, 256)]);
        assert_eq!(free.take(256), 0);
        assert_eq!((free.take(64), free.end), (448, 512));
    }

    /// 64 bytes.
    const NE: [i64; 4] = [16, 1, 1, 1];

    #[test]
    fn memory_is_used_again_after_the_last_use_through_a_view() {
        let mut g = Made::new();
        let x = g.leaf(NE);
        let a = g.node(Op::SCALE, NE, &[x]);
        let view = g.view(Op::RESHAPE, [4, 4, 1, 1], a, 0);
        let b = g.node(Op::UNARY, NE, &[x]);
        let c = g.node(Op::ADD, [4, 4, 1, 1], &[view, b]);
        let d = g.node(Op::SCALE, [4, 4, 1, 1], &[c]);
        let places = Places::shared(&g.tensors, &[]).expect("known");
        let of = |t| places.of(g.place(t));
        assert_eq!([x, a, b, c, d].map(of), [Some(0), Some(64), Some(128), Some(192), Some(64)]);
        assert_eq!((of(view), places.bytes), (None, 256));
        let apart = Places::apart(&g.tensors, &[]);
        assert_eq!((apart.of(g.place(d)), apart.bytes), (Some(256), 320));
    }

    #[test]
    fn the_source_of_a_fused_norm_stays_until_the_multiplication() {
        let mut g = Made::new();
        let (x, w) = (g.leaf(NE), g.weight(NE));
        let a = g.node(Op::SCALE, NE, &[x]);
        let norm = g.node(Op::RMS_NORM, NE, &[a]);
        let dead = g.node(Op::UNARY, NE, &[x]);
        let mul = g.node(Op::MUL, NE, &[norm, w]);
        let last = g.node(Op::SCALE, NE, &[mul]);
        let mut fates = vec![Fate::default(); g.tensors.len()];
        fates[g.place(dead)].dead = true;
        let places = Places::shared(&g.tensors, &fates).expect("known");
        let of = |t| places.of(g.place(t));
        assert_eq!([a, norm, dead, mul], [a, norm, dead, mul]);
        assert_eq!((of(a), of(norm), of(dead), of(mul)), (Some(64), Some(128), None, Some(192)));
        assert_eq!((of(last), places.bytes), (Some(64), 256));
    }

    #[test]
    fn what_is_replaced_only_at_some_sizes_has_room_for_the_others() {
        let places = |op: Op| {
            let mut g = Made::new();
            let x = g.leaf(NE);
            let y = g.node(Op::SCALE, NE, &[x]);
            let [va, vb] = [0, 1].map(|_| g.view(op, NE, y, 0));
            let [a, b] = [va, vb].map(|v| g.node(Op::UNARY, NE, &[v]));
            let c = g.node(Op::ADD, NE, &[a, b]);
            g.node(Op::UNARY, NE, &[c]);
            let mut fates = vec![Fate::default(); g.tensors.len()];
            super::super::cse::find(&mut g.tensors, &mut fates).expect("known");
            assert!(fates[g.place(b)].is_gone() && fates[g.place(vb)].is_gone());
            let places = Places::shared(&g.tensors, &fates).expect("known");
            [y, a, b, c].map(|t| places.of(g.place(t)))
        };
        // The dimensions of a transposed tensor follow from it, those of a view do not: `b` may need `y` and its own room.
        assert_eq!(places(Op::TRANSPOSE), [Some(64), Some(128), None, Some(64)]);
        assert_eq!(places(Op::VIEW), [Some(64), Some(128), Some(192), Some(64)]);
    }

    #[test]
    fn an_unknown_op_leaves_all_apart() {
        let mut g = Made::new();
        let x = g.leaf(NE);
        g.named(Op::CONCAT, NE, &[x], "both");
        assert_eq!(Places::shared(&g.tensors, &[]).err(), Some("CONCAT 'both' is an unknown op".into()));
    }
}
