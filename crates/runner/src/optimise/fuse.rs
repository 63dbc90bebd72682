//! Fusion: which products find their activations prepared. That a norm runs with its multiplication is decided
//! where the graph runs ([`is_fused`](crate::pool::graph::is_fused)), as in GGML.

use crate::abi::{GgmlTensor, Op};

/// Walks over the nodes of a graph in order. Products that use the same activations in the same format, such as Q,
/// K and V, or gate and up, prepare them only once.
#[derive(Debug)]
pub struct Sharing<F> {
    /// What the work memory holds: the activations of which data, how arranged, in which format.
    held: Option<(Activations, F)>,
}

/// The data of activations.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Activations {
    root: *const GgmlTensor,
    /// Offset, length of the rows, their number; for rows that are not contiguous, nothing is shared.
    at: (usize, i64, i64),
}

impl<F: PartialEq + Copy> Sharing<F> {
    pub const fn new() -> Self {
        Self { held: None }
    }

    /// Whether the next node must prepare its activations; `format` is that of the weights of a product.
    ///
    /// # Safety
    /// The node's sources must be live tensors.
    pub unsafe fn prepares(&mut self, node: &GgmlTensor, format: Option<F>) -> bool {
        if node.op == Op::FLASH_ATTN_EXT {
            // It uses the work memory for something else.
            self.held = None;
        }
        let Some(format) = format else { return true };
        // SAFETY: guaranteed by the caller.
        let wanted = unsafe { node.source(1) }.and_then(Activations::of).map(|a| (a, format));
        let prepares = wanted.is_none() || self.held != wanted;
        self.held = wanted;
        prepares
    }
}

impl Activations {
    fn of(source: &GgmlTensor) -> Option<Self> {
        let root = if source.view_src.is_null() { &raw const *source } else { source.view_src };
        let at = (source.view_offs, source.ne[0], source.nrows());
        source.is_contiguous().then_some(Self { root, at })
    }
}

#[cfg(test)]
mod tests {
    use super::super::made::{Made, Ptr};
    use super::*;

    #[test]
    fn the_same_activations_are_prepared_once_in_each_format() {
        const NE: [i64; 4] = [8, 2, 1, 1];
        let mut g = Made::new();
        let (x, w) = (g.leaf(NE), g.weight([8, 8, 1, 1]));
        let y = g.node(Op::SCALE, NE, &[x]);
        let expanded = g.view(Op::RESHAPE, [8, 1, 2, 1], y, 0);
        let part = g.view(Op::VIEW, [8, 1, 1, 1], y, 32);
        let turned = g.view(Op::PERMUTE, [2, 8, 1, 1], y, 0);
        g.change(turned, |t| t.nb = [32, 4, 64, 64]);
        let products = [(y, 'a'), (y, 'a'), (expanded, 'a'), (y, 'b'), (part, 'b'), (y, 'b'), (y, 'b')];
        let odd = [(turned, 'b'), (turned, 'b'), (y, 'b'), (y, 'b')];
        let mut walk = |sharing: &mut Sharing<char>, s: Ptr, format| {
            let node = g.node(Op::MUL_MAT, [8, 2, 1, 1], &[w, s]);
            // SAFETY: the sources are tensors of the graph.
            unsafe { sharing.prepares(g.of(node), Some(format)) }
        };
        let mut sharing = Sharing::new();
        let prepared = products.map(|(s, f)| walk(&mut sharing, s, f));
        assert_eq!(prepared, [true, false, false, true, true, true, false]);
        assert_eq!(odd.map(|(s, f)| walk(&mut sharing, s, f)), [true, true, true, false]);
        let attention = g.node(Op::FLASH_ATTN_EXT, NE, &[y, y, y]);
        // SAFETY: as above.
        assert!(unsafe { sharing.prepares(g.of(attention), None) });
        let after = g.node(Op::MUL_MAT, NE, &[w, y]);
        // SAFETY: as above.
        assert!(unsafe { sharing.prepares(g.of(after), Some('b')) });
    }
}
