//! What an exporter writes instead of GGML's ops, as models that come from ONNX have it.

use super::GraphForm;
use super::builder::{GraphBuilder, get};
use super::space::NodePtr;
use super::weights::Id;
use crate::abi::{GgmlTensor, Op};
use std::fmt::Arguments;

impl GraphBuilder<'_> {
    /// A norm as its parts: `x / sqrt(mean(x²) + eps)`, times the weight. The epsilon is 1 times a number, and the weight
    /// gets a dimension and loses it.
    pub(super) fn norm_parts(
        &mut self,
        x: NodePtr,
        weight: Id,
        layer: Option<usize>,
        name: Arguments<'_>,
    ) -> NodePtr {
        let (ne, eps) = (get(x).ne, self.p.norm_eps);
        let row = [1, ne[1], ne[2], ne[3]];
        let of = Of(layer);
        let weight = self.weights.get(weight);
        let shape = [usize::try_from(ne[0]).unwrap_or(0), 1, 1];
        let weight = self.reshape(weight, shape, format_args!("{} (reshaped)", get(weight).name()));
        let eps = self.scale(self.weights.get(self.weights.one), eps, format_args!("{of} (epsilon)"));
        let square = self.node(Op::SQR, ne, &[x], format_args!("{of} (square)"));
        let mean = self.node(Op::MEAN, row, &[square], format_args!("{of} (mean)"));
        let sum = self.node(Op::ADD1, row, &[mean, eps], format_args!("{of} (mean and epsilon)"));
        let root = self.node(Op::SQRT, row, &[sum], format_args!("{of} (root)"));
        let norm = self.node(Op::DIV, ne, &[x, root], format_args!("{of}"));
        self.node(Op::MUL, ne, &[norm, weight], name)
    }

    /// The norm `h` of `x` for another user: in an exported graph, each has its own.
    pub(super) fn same_norm(
        &mut self,
        h: NodePtr,
        x: NodePtr,
        weight: Id,
        layer: usize,
        name: Arguments<'_>,
    ) -> NodePtr {
        match self.p.form {
            GraphForm::Llama => h,
            GraphForm::Exported => self.norm(x, weight, Some(layer), name),
        }
    }

    /// A result of an exported graph that nobody asks for.
    pub(super) fn unread(&mut self, x: NodePtr, name: Arguments<'_>) {
        if self.p.form == GraphForm::Exported {
            self.scale(x, 1.0, name);
        }
    }

    /// What a view in an exported graph is a view of: for a RESHAPE all elements in one row, for a VIEW all of the tensor.
    pub(super) fn view_before(&mut self, op: Op, of: NodePtr) -> NodePtr {
        let source = get(of);
        let like = match op {
            Op::RESHAPE => GgmlTensor::contiguous(source.ty, [source.nelements(), 1, 1, 1]),
            Op::VIEW => GgmlTensor { nb: source.nb, ..GgmlTensor::contiguous(source.ty, source.ne) },
            _ => return of,
        };
        self.view_of(op, of, like, format_args!("{} (whole)", source.name()))
    }
}

/// The name of a norm.
struct Of(Option<usize>);

impl std::fmt::Display for Of {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            Some(layer) => write!(f, "norm-{layer}"),
            None => f.write_str("norm"),
        }
    }
}
