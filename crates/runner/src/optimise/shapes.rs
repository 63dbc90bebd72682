//! Shapes: the dimensions that a node must have, from those of its sources, and views that change nothing.
//!
//! A chain of RESHAPEs is one RESHAPE of the first one's source, and a chain of VIEWs one VIEW. Other views of views stay:
//! llama.cpp builds them, too.

use super::fate::{Fate, uses};
use super::fixed::Tensors;
use super::kinds::{kinds, shown};
use crate::abi::{FLAG_OUTPUT, GgmlTensor, Op};

type Extents = [i64; 4];

/// Checks the dimensions, makes chains of views one view, and notes in the fates which views that leaves without a use.
///
/// # Errors
/// As [`check`]; nothing is changed then.
///
/// # Safety
/// The sources of the nodes must be live tensors.
pub unsafe fn find(tensors: &mut Tensors, fates: &mut [Fate]) -> Result<(), String> {
    // SAFETY: guaranteed by the caller.
    unsafe { check(tensors) }?;
    let before = uses(tensors, fates);
    for (i, fate) in fates.iter_mut().enumerate().take(tensors.len()) {
        let op = tensors.get(i).op;
        let of = tensors.place(tensors.get(i).src[0]);
        fate.hops = matches!(op, Op::RESHAPE | Op::VIEW) && of.is_some_and(|of| tensors.get(of).op == op);
        if fate.hops {
            hop(tensors, i);
        }
    }
    let mut now = uses(tensors, fates);
    // A view behind others goes first.
    for i in (0..tensors.len()).rev() {
        let t = tensors.get(i);
        let view = matches!(t.op, Op::RESHAPE | Op::VIEW) && t.flags & FLAG_OUTPUT == 0;
        if view && before[i] > 0 && now[i] == 0 {
            fates[i].passed = true;
            if let Some(count) = tensors.place(t.src[0]).and_then(|of| now.get_mut(of)) {
                *count = count.saturating_sub(1);
            }
        }
    }
    Ok(())
}

/// Makes the source of a view the source of the view that it was made from. Its data stays what it is.
pub(super) fn hop(tensors: &mut Tensors, i: usize) {
    if let Some(view) = tensors.place(tensors.get(i).src[0]) {
        tensors.get_mut(i).src[0] = tensors.get(view).src[0];
    }
}

/// Compares the dimensions of all nodes with those that follow from their sources. Returns how many nodes there are.
///
/// # Errors
/// The first node that is different, or whose op is unknown.
///
/// # Safety
/// The sources of the nodes must be live tensors.
unsafe fn check(tensors: &Tensors) -> Result<usize, String> {
    kinds(tensors)?;
    let mut nodes = 0;
    for node in tensors.iter().filter(|t| t.op != Op::NONE) {
        // SAFETY: guaranteed by the caller.
        let ne = unsafe { infer(node) }.map_err(|why| format!("{}: {why}", shown(node)))?;
        if ne != node.ne {
            return Err(format!("{} is {:?}, but its sources give {ne:?}", shown(node), node.ne));
        }
        nodes += 1;
    }
    Ok(nodes)
}

/// The dimensions of a node. For a view, its own if they are within the data.
///
/// # Errors
/// A source is missing, or the sources do not go together.
///
/// # Safety
/// The node's sources must be live tensors.
unsafe fn infer(node: &GgmlTensor) -> Result<Extents, &'static str> {
    // SAFETY: guaranteed by the caller.
    let source = |i: usize| unsafe { node.source(i) }.ok_or("a source is missing");
    let a = source(0)?;
    Ok(match node.op {
        Op::ADD | Op::MUL | Op::DIV => repeated(a.ne, source(1)?.ne)?,
        Op::ADD1 if source(1)?.nelements() == 1 => a.ne,
        Op::ADD1 => return Err("its second source has more than one element"),
        Op::MEAN => [1, a.ne[1], a.ne[2], a.ne[3]],
        Op::GLU => equal(a.ne, source(1)?.ne)?,
        Op::GET_ROWS => {
            let ids = source(1)?.ne;
            [a.ne[0], ids[0], ids[1], ids[2]]
        }
        Op::SET_ROWS => {
            source(1)?;
            source(2)?.ne
        }
        Op::CPY => source(1)?.ne,
        Op::MUL_MAT => {
            let x = source(1)?.ne;
            inner(a.ne, x)?;
            [a.ne[1], x[1], x[2], x[3]]
        }
        Op::MUL_MAT_ID => {
            let (x, ids) = (source(1)?.ne, source(2)?.ne);
            inner(a.ne, x)?;
            [a.ne[1], ids[0], x[2], 1]
        }
        Op::FLASH_ATTN_EXT => {
            let (k, v) = (source(1)?.ne, source(2)?.ne);
            inner(a.ne, k)?;
            [v[0], a.ne[2], a.ne[1], a.ne[3]]
        }
        Op::RESHAPE if node.nelements() == a.nelements() => node.ne,
        Op::RESHAPE => return Err("it has another number of elements than its source"),
        Op::PERMUTE => permuted(node, a)?,
        Op::TRANSPOSE => [a.ne[1], a.ne[0], a.ne[2], a.ne[3]],
        // SAFETY: guaranteed by the caller.
        Op::VIEW => unsafe { within(node)? },
        _ => a.ne,
    })
}

fn equal(a: Extents, b: Extents) -> Result<Extents, &'static str> {
    if a == b { Ok(a) } else { Err("its sources have different dimensions") }
}

fn repeated(a: Extents, b: Extents) -> Result<Extents, &'static str> {
    let fits = |(a, b): (&i64, &i64)| a == b || a.checked_rem(*b) == Some(0);
    if a.iter().zip(&b).all(fits) { Ok(a) } else { Err("its second source cannot be repeated to the first") }
}

fn inner(a: Extents, b: Extents) -> Result<(), &'static str> {
    if a[0] == b[0] { Ok(()) } else { Err("the rows of its sources have different lengths") }
}

fn permuted(node: &GgmlTensor, a: &GgmlTensor) -> Result<Extents, &'static str> {
    let mut ne = [0; 4];
    for (i, n) in a.ne.iter().enumerate() {
        let to = usize::try_from(node.param_i32(i)).ok().and_then(|to| ne.get_mut(to));
        *to.ok_or("an axis does not exist")? = *n;
    }
    Ok(ne)
}

/// # Safety
/// The tensor that it views must be live.
unsafe fn within(node: &GgmlTensor) -> Result<Extents, &'static str> {
    if node.is_empty() {
        return Ok(node.ne);
    }
    // SAFETY: guaranteed by the caller.
    let root = unsafe { node.view_src.as_ref() }.ok_or("a source is missing")?;
    let count = |n: i64| usize::try_from(n).ok();
    let row = count(node.ne[0]).and_then(|n| node.ty.row_bytes(n));
    let end = (1..4).try_fold(node.view_offs, |end, d| {
        count(node.ne[d] - 1)?.checked_mul(node.nb[d]).and_then(|n| n.checked_add(end))
    });
    let end = end.zip(row).and_then(|(end, row)| end.checked_add(row));
    match end {
        Some(end) if end <= root.contiguous_bytes() => Ok(node.ne),
        _ => Err("it ends behind the data that it is a view of"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::made::Made;
    use super::*;

    fn checked(g: &Made) -> Result<usize, String> {
        // SAFETY: the sources are tensors of the graph.
        unsafe { check(&g.tensors) }
    }

    #[test]
    fn shapes_follow_from_the_sources() {
        let mut g = Made::new();
        let (w, x) = (g.weight([8, 6, 1, 1]), g.leaf([8, 3, 1, 1]));
        let y = g.node(Op::MUL_MAT, [6, 3, 1, 1], &[w, x]);
        let heads = g.view(Op::RESHAPE, [2, 3, 3, 1], y, 0);
        let turned = g.view(Op::PERMUTE, [2, 3, 3, 1], heads, 0);
        g.change(turned, |t| t.op_params[..4].copy_from_slice(&[0, 2, 1, 3]));
        let part = g.view(Op::VIEW, [6, 2, 1, 1], y, 24);
        let bias = g.weight([6, 1, 1, 1]);
        let sum = g.node(Op::ADD, [6, 2, 1, 1], &[part, bias]);
        assert_eq!(checked(&g), Ok(5));
        g.change(part, |t| t.view_offs = 28);
        assert_eq!(checked(&g), Err("VIEW 't4': it ends behind the data that it is a view of".into()),);
        g.change(part, |t| t.view_offs = 0);
        g.change(bias, |t| t.ne[0] = 4);
        assert!(checked(&g).is_err_and(|why| why.contains("cannot be repeated")));
        g.change(bias, |t| t.ne[0] = 1);
        g.change(sum, |t| t.ne[1] = 3);
        assert_eq!(checked(&g), Err("ADD 't5' is [6, 3, 1, 1], but its sources give [6, 2, 1, 1]".into()));
        g.change(w, |t| t.ne[0] = 7);
        assert!(checked(&g).is_err_and(|why| why.contains("different lengths")));
    }

    #[test]
    fn means_have_one_element_a_row_and_single_values_are_added_to_each() {
        let mut g = Made::new();
        let (x, eps, two) = (g.leaf([8, 3, 1, 1]), g.weight([1; 4]), g.weight([2, 1, 1, 1]));
        let square = g.node(Op::SQR, [8, 3, 1, 1], &[x]);
        let mean = g.node(Op::MEAN, [1, 3, 1, 1], &[square]);
        let sum = g.node(Op::ADD1, [1, 3, 1, 1], &[mean, eps]);
        let root = g.node(Op::SQRT, [1, 3, 1, 1], &[sum]);
        g.node(Op::DIV, [8, 3, 1, 1], &[x, root]);
        assert_eq!(checked(&g), Ok(5));
        g.change(sum, |t| t.src[1] = two);
        assert!(checked(&g).is_err_and(|why| why.contains("more than one element")));
        g.change(sum, |t| t.src[1] = eps);
        g.change(mean, |t| t.ne[0] = 8);
        assert_eq!(checked(&g), Err("MEAN 't2' is [8, 3, 1, 1], but its sources give [1, 3, 1, 1]".into()));
    }

    fn found(g: &mut Made) -> Vec<Fate> {
        let mut fates = vec![Fate::default(); g.tensors.len()];
        // SAFETY: the sources are tensors of the graph.
        unsafe { find(&mut g.tensors, &mut fates) }.expect("known");
        fates
    }

    #[test]
    fn chains_of_one_op_are_one_view() {
        let mut g = Made::new();
        let (x, cache) = (g.leaf([8, 3, 1, 1]), g.weight([8, 9, 1, 1]));
        let y = g.node(Op::SCALE, [8, 3, 1, 1], &[x]);
        let flat = g.view(Op::RESHAPE, [24, 1, 1, 1], y, 0);
        let cube = g.view(Op::RESHAPE, [2, 4, 3, 1], flat, 0);
        let back = g.view(Op::RESHAPE, [8, 3, 1, 1], cube, 0);
        let heads = g.node(Op::UNARY, [2, 4, 3, 1], &[cube]);
        let same = g.node(Op::UNARY, [8, 3, 1, 1], &[back]);
        let whole = g.view(Op::VIEW, [8, 9, 1, 1], cache, 0);
        let part = g.view(Op::VIEW, [8, 3, 1, 1], whole, 64);
        // Another op: it stays as it is.
        let rows = g.view(Op::RESHAPE, [4, 6, 1, 1], part, 64);
        let result = g.node(Op::UNARY, [4, 6, 1, 1], &[rows]);
        // A chain that a result needs, and a view that nothing ever used.
        let kept = g.view(Op::RESHAPE, [24, 1, 1, 1], heads, 0);
        g.output(kept);
        g.view(Op::RESHAPE, [3, 8, 1, 1], kept, 0);
        let fates = found(&mut g);
        let gone: Vec<usize> = (0..fates.len()).filter(|i| fates[*i].is_gone()).collect();
        assert_eq!(gone, [flat, whole].map(|t| g.place(t)));
        assert_eq!((g.of(cube).src[0], g.of(cube).view_src, g.of(cube).ne), (y, y, [2, 4, 3, 1]));
        assert_eq!((g.of(same).src[0], g.of(back).src[0], g.of(heads).src[0]), (back, y, cube));
        assert_eq!((g.of(part).src[0], g.of(part).view_offs, g.of(part).view_src), (cache, 64, cache));
        assert_eq!((g.of(rows).src[0], g.of(result).src[0]), (part, rows));
    }
}
