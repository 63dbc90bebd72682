//! Constant folding: views of weights are leaves with their data, and element-wise nodes whose sources are all
//! constants are computed once.

use std::ptr::null_mut;

use super::fate::Fate;
use super::fixed::Tensors;
use super::kinds::{Kind, kinds};
use crate::abi::{ComputeParams, FLAG_COMPUTE, FLAG_INPUT, FLAG_OUTPUT, GgmlTensor, GgmlType, MAX_NAME, Op};
use crate::compute;

/// A node that is a constant.
pub struct Folded {
    place: usize,
    data: *mut f32,
    name: [u8; MAX_NAME],
}

/// The constant nodes of a graph.
#[derive(Default)]
pub struct Constants {
    folded: Vec<Folded>,
    /// What was computed. Equal constants share an entry.
    computed: Vec<Box<[f32]>>,
}

/// Makes the constant nodes leaves with data.
///
/// # Errors
/// Something unknown; nothing is changed then.
///
/// # Safety
/// The sources of the nodes must be live tensors, and those outside of the graph must have their data, which stays as
/// it is unless a node of the graph writes to it.
pub unsafe fn find(tensors: &mut Tensors, fates: &mut [Fate]) -> Result<Constants, String> {
    let kinds = kinds(tensors)?;
    let effects = tensors.iter().zip(&kinds).filter(|(_, kind)| **kind == Kind::Effect);
    let written: Vec<*mut GgmlTensor> = effects.map(|(t, _)| tensors.root(t.view_src)).collect();
    let mut found = Constants::default();
    for (i, (fate, kind)) in fates.iter_mut().zip(kinds).enumerate() {
        let constant = |s: &*mut GgmlTensor| {
            let outside = tensors.place(*s).is_none();
            // SAFETY: guaranteed by the caller.
            !written.contains(s) && unsafe { is_constant(&**s, outside) }
        };
        let node = tensors.get(i);
        let sources: Vec<_> = node.src.into_iter().chain([node.view_src]).filter(|s| !s.is_null()).collect();
        let written_to = written.contains(&tensors.at(i));
        if !can_fold(node) || written_to || sources.is_empty() || !sources.iter().all(constant) {
            continue;
        }
        let one = if kind == Kind::View {
            // SAFETY: a constant.
            unsafe { Folded::view(i, node) }
        } else {
            // SAFETY: the sources are constants, and live.
            Folded { place: i, data: found.keep(unsafe { computed(node) }), name: node.name }
        };
        one.apply(tensors);
        fate.folded = true;
        found.folded.push(one);
    }
    Ok(found)
}

/// One thread.
const ALONE: ComputeParams =
    ComputeParams { ith: 0, nth: 1, wsize: 0, wdata: null_mut(), threadpool: null_mut(), use_ref: false };

/// The elements of an element-wise node.
///
/// # Safety
/// Its sources must have their data.
unsafe fn computed(node: &GgmlTensor) -> Vec<f32> {
    let mut data = vec![0.0; usize::try_from(node.nelements()).unwrap_or(0)];
    let node = GgmlTensor { data: data.as_mut_ptr().cast(), ..node.clone() };
    // SAFETY: an element-wise node uses no work memory and does not wait for threads; its sources have data, and there is
    // room for its own.
    unsafe { compute::forward(&ALONE, &node) };
    data
}

impl Constants {
    /// How many there are.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.folded.len()
    }

    /// Makes the nodes of a graph of the same structure leaves.
    pub fn apply(&self, tensors: &mut Tensors) {
        self.folded.iter().for_each(|f| f.apply(tensors));
    }

    /// The address of a constant with these bits, which stays.
    fn keep(&mut self, data: Vec<f32>) -> *mut f32 {
        let equal = |old: &[f32]| old.iter().map(|v| v.to_bits()).eq(data.iter().map(|v| v.to_bits()));
        if let Some(old) = self.computed.iter().find(|old| equal(old)) {
            return old.as_ptr().cast_mut();
        }
        let data = data.into_boxed_slice();
        let at = data.as_ptr().cast_mut();
        self.computed.push(data);
        at
    }
}

impl Folded {
    /// A view of a constant. One with the same dimensions has its name, too: it is that constant.
    ///
    /// # Safety
    /// The tensor that it is a view of must be live and have its data.
    unsafe fn view(place: usize, node: &GgmlTensor) -> Self {
        // SAFETY: guaranteed by the caller.
        let root = unsafe { &*node.view_src };
        let same = (root.ne, root.nb) == (node.ne, node.nb) && node.view_offs == 0;
        let data = root.data.wrapping_byte_add(node.view_offs).cast();
        Self { place, data, name: if same { root.name } else { node.name } }
    }

    /// Makes the node a leaf.
    fn apply(&self, tensors: &mut Tensors) {
        let t = tensors.get_mut(self.place);
        (t.op, t.flags, t.data, t.name) = (Op::NONE, 0, self.data.cast(), self.name);
        (t.src, t.view_src, t.view_offs) = ([null_mut(); 10], null_mut(), 0);
        t.op_params = [0; 16];
    }
}

/// Whether a source is a constant: a weight, or a node that is folded already.
pub(super) fn is_constant(t: &GgmlTensor, outside: bool) -> bool {
    // The extra data of a weight is its repacked matrix, and that of a node its state.
    let whole = !outside || t.extra.is_null();
    whole && t.op == Op::NONE && t.flags & FLAG_INPUT == 0 && is_plain(t) && !t.data.is_null()
}

fn can_fold(node: &GgmlTensor) -> bool {
    let view = matches!(node.op, Op::RESHAPE | Op::VIEW);
    let simple = matches!(node.op, Op::ADD | Op::ADD1 | Op::MUL | Op::DIV | Op::SQR | Op::SQRT)
        || matches!(node.op, Op::SCALE | Op::UNARY);
    (view || simple && node.view_src.is_null())
        && is_plain(node)
        && node.flags & (FLAG_COMPUTE | FLAG_OUTPUT) == FLAG_COMPUTE
}

fn is_plain(t: &GgmlTensor) -> bool {
    t.ty == GgmlType::F32 && t.is_contiguous()
}

#[cfg(test)]
mod tests {
    use super::super::made::Made;
    use super::super::{Optimiser, Step, Steps};
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
        g.change(scaled, |t| t.set_param_i32(0, 2.0f32.to_bits().cast_signed()));
        outside.reverse();
        let not = g.node(Op::MUL, NE, &[scaled, x]);
        g.store(NE, x, ids, cache);
        let written = g.node(Op::ADD, NE, &[cache, outside[0]]);
        let result = g.node(Op::ADD, NE, &[not, written]);
        g.output(result);
        // SAFETY: the sources are tensors of the graph or weights with data.
        let steps = unsafe { Optimiser::new(&mut g.tensors, &[x, ids], Steps::ALL) };
        let r = &steps.report;
        assert_eq!((r.built, r.nodes, r.removed(Step::Fold), &r.left_out[..]), (6, 4, 2, &[][..]));
        assert_eq!(
            (g.of(sum).op, g.of(scaled).op, g.of(not).op, g.of(written).op),
            (Op::NONE, Op::NONE, Op::MUL, Op::ADD)
        );
        // SAFETY: four numbers, as computed.
        let values = unsafe { std::slice::from_raw_parts(g.of(scaled).data.cast::<f32>(), 4) };
        assert_eq!(values, [3.0, 5.0, 7.0, 9.0]);
        assert!(steps.place(g.place(scaled)).is_none() && steps.is_gone(g.place(sum)));
    }

    #[test]
    fn chains_of_reshapes_of_a_weight_are_that_weight() {
        let mut g = Made::new();
        let mut data = [1.0f32, 2.0, 3.0, 4.0];
        let (x, w, matrix) = (g.leaf([2, 2, 1, 1]), g.weight([4, 1, 1, 1]), g.weight([2, 2, 1, 1]));
        g.change(w, |t| (t.data, t.name[0]) = (data.as_mut_ptr().cast(), b'w'));
        // Repacked: only its product knows where its data is.
        let mut packed = 0u8;
        g.change(matrix, |t| {
            (t.data, t.extra) = (data.as_mut_ptr().cast(), (&raw mut packed).cast());
        });
        let square = g.view(Op::RESHAPE, [2, 2, 1, 1], w, 0);
        let line = g.view(Op::RESHAPE, [4, 1, 1, 1], square, 0);
        let end = g.view(Op::VIEW, [2, 1, 1, 1], line, 8);
        let of_matrix = g.view(Op::RESHAPE, [4, 1, 1, 1], matrix, 0);
        let of_input = g.view(Op::RESHAPE, [4, 1, 1, 1], x, 0);
        let mut fates = vec![Fate::default(); g.tensors.len()];
        // SAFETY: the sources are tensors of the graph or weights with data.
        let found = unsafe { find(&mut g.tensors, &mut fates) }.expect("known");
        let folded = |t| fates[g.place(t)].folded;
        assert_eq!([square, line, end, of_matrix, of_input].map(folded), [true, true, true, false, false]);
        assert_eq!(found.len(), 3);
        assert_eq!((g.of(square).name(), g.of(line).name(), g.of(end).name()), ("t1", "w", "t3"));
        assert_eq!(g.of(line).data, data.as_mut_ptr().cast());
        assert_eq!(g.of(end).data, data.as_mut_ptr().wrapping_add(2).cast());
    }

    #[test]
    fn equal_constants_have_the_same_data() {
        let mut g = Made::new();
        let mut one = 1.0f32;
        let w = g.weight([1; 4]);
        g.change(w, |t| t.data = (&raw mut one).cast());
        let made = [0.5f32, 0.25, 0.5].map(|factor| {
            let node = g.node(Op::SCALE, [1; 4], &[w]);
            g.change(node, |t| t.set_param_i32(0, factor.to_bits().cast_signed()));
            node
        });
        let mut fates = vec![Fate::default(); g.tensors.len()];
        // SAFETY: as above.
        let _kept = unsafe { find(&mut g.tensors, &mut fates) }.expect("known");
        let at = made.map(|t| g.of(t).data);
        assert_eq!((at[0] == at[1], at[0] == at[2]), (false, true));
    }
}
