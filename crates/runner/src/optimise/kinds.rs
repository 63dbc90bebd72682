//! What a step must know about an op, and what none of them can work with.

use super::fixed::Tensors;
use crate::abi::{GgmlTensor, Op};

/// What an op does to memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing: an input.
    Leaf,
    /// Nothing: other dimensions of the same data.
    View,
    /// Writes its own data, computed from that of its sources and its parameters alone.
    Pure,
    /// Writes to the data of another tensor, of which it is a view.
    Effect,
}

impl Kind {
    /// The kind of an op that is known.
    pub fn of(op: Op) -> Option<Kind> {
        Some(match op {
            Op::NONE => Kind::Leaf,
            Op::RESHAPE | Op::VIEW | Op::PERMUTE | Op::TRANSPOSE => Kind::View,
            Op::SET_ROWS | Op::CPY => Kind::Effect,
            Op::ADD | Op::ADD1 | Op::MUL | Op::DIV | Op::SQR | Op::SQRT | Op::SCALE | Op::UNARY => Kind::Pure,
            Op::MEAN | Op::GLU | Op::DUP | Op::CONT => Kind::Pure,
            Op::RMS_NORM | Op::ROPE | Op::SOFT_MAX | Op::ARGSORT | Op::GET_ROWS => Kind::Pure,
            Op::MUL_MAT | Op::MUL_MAT_ID | Op::FLASH_ATTN_EXT => Kind::Pure,
            _ => return None,
        })
    }
}

/// A node for messages.
pub fn shown(node: &GgmlTensor) -> String {
    format!("{} '{}'", node.op.name(), common::plain::clean(node.name()))
}

/// The kind of each tensor.
///
/// # Errors
/// An unknown op, an op that writes to unknown data, or a tensor before one of its sources: what such a graph does
/// is not known.
pub fn kinds(tensors: &Tensors) -> Result<Vec<Kind>, String> {
    let of = |(i, t): (usize, &GgmlTensor)| {
        let kind = Kind::of(t.op).ok_or_else(|| format!("{} is an unknown op", shown(t)))?;
        if matches!(kind, Kind::View | Kind::Effect) && t.view_src.is_null() {
            return Err(format!("{} has no data to be a view of", shown(t)));
        }
        let later = |s: &*mut GgmlTensor| tensors.place(*s).is_some_and(|place| place >= i);
        if t.src.iter().chain([&t.view_src]).any(later) {
            return Err(format!("{} comes before one of its sources", shown(t)));
        }
        Ok(kind)
    };
    tensors.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::super::made::Made;
    use super::*;

    #[test]
    fn unknown_ops_and_orders_are_named() {
        let mut g = Made::new();
        let x = g.leaf([4, 1, 1, 1]);
        let y = g.node(Op::SCALE, [4, 1, 1, 1], &[x]);
        let known = kinds(&g.tensors).expect("all known");
        assert_eq!(known, [Kind::Leaf, Kind::Pure]);
        let z = g.named(Op::CONCAT, [8, 1, 1, 1], &[x, y], "both");
        assert_eq!(kinds(&g.tensors), Err("CONCAT 'both' is an unknown op".into()));
        g.change(z, |t| t.op = Op::SET_ROWS);
        assert_eq!(kinds(&g.tensors), Err("SET_ROWS 'both' has no data to be a view of".into()));
        g.change(z, |t| t.op = Op::ADD);
        g.change(y, |t| t.src[1] = z);
        assert_eq!(kinds(&g.tensors), Err("SCALE 't1' comes before one of its sources".into()));
    }
}
