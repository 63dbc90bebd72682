//! Small graphs made by hand, for tests.

use super::fixed::Tensors;
use crate::abi::{FLAG_COMPUTE, FLAG_INPUT, FLAG_OUTPUT, GgmlTensor, GgmlType, Op};

pub type Ptr = *mut GgmlTensor;

pub struct Made {
    pub tensors: Tensors,
    /// Tensors outside of the graph, like weights and the cache.
    outside: Tensors,
}

impl Made {
    pub fn new() -> Self {
        Self { tensors: Tensors::new(64), outside: Tensors::new(8) }
    }

    pub fn weight(&mut self, ne: [i64; 4]) -> Ptr {
        self.outside.put(GgmlTensor::contiguous(GgmlType::F32, ne))
    }

    pub fn leaf(&mut self, ne: [i64; 4]) -> Ptr {
        self.put(GgmlTensor { flags: FLAG_INPUT, ..GgmlTensor::contiguous(GgmlType::F32, ne) }, &[])
    }

    fn put(&mut self, mut tensor: GgmlTensor, sources: &[Ptr]) -> Ptr {
        for (slot, source) in tensor.src.iter_mut().zip(sources) {
            *slot = *source;
        }
        tensor.set_name(&format!("t{}", self.tensors.len()));
        self.tensors.put(tensor)
    }

    pub fn node(&mut self, op: Op, ne: [i64; 4], sources: &[Ptr]) -> Ptr {
        self.put(GgmlTensor { op, flags: FLAG_COMPUTE, ..GgmlTensor::contiguous(GgmlType::F32, ne) }, sources)
    }

    pub fn named(&mut self, op: Op, ne: [i64; 4], sources: &[Ptr], name: &str) -> Ptr {
        let node = self.node(op, ne, sources);
        self.change(node, |t| t.set_name(name));
        node
    }

    /// A contiguous view from byte `offset` of `of`.
    pub fn view(&mut self, op: Op, ne: [i64; 4], of: Ptr, offset: usize) -> Ptr {
        let (node, root) = (self.node(op, ne, &[of]), self.tensors.root(of));
        self.change(node, |t| (t.view_src, t.view_offs) = (root, offset));
        node
    }

    /// Rows written to a tensor.
    pub fn store(&mut self, ne: [i64; 4], rows: Ptr, ids: Ptr, to: Ptr) -> Ptr {
        let node = self.node(Op::SET_ROWS, ne, &[rows, ids, to]);
        self.change(node, |t| t.view_src = to);
        node
    }

    pub fn change(&mut self, tensor: Ptr, how: impl FnOnce(&mut GgmlTensor)) {
        let (inside, outside) = (self.tensors.place(tensor), self.outside.place(tensor));
        match (inside, outside) {
            (Some(i), _) => how(self.tensors.get_mut(i)),
            (_, Some(i)) => how(self.outside.get_mut(i)),
            _ => panic!("not a tensor of this graph"),
        }
    }

    pub fn output(&mut self, tensor: Ptr) {
        self.change(tensor, |t| t.flags |= FLAG_OUTPUT);
    }

    pub fn of(&self, tensor: Ptr) -> &GgmlTensor {
        self.tensors.get(self.place(tensor))
    }

    pub fn place(&self, tensor: Ptr) -> usize {
        self.tensors.place(tensor).expect("a tensor of this graph")
    }

    /// A tensor outside of the graph.
    pub fn of_outside(&self, tensor: Ptr) -> &GgmlTensor {
        self.outside.get(self.outside.place(tensor).expect("a tensor outside of this graph"))
    }
}
