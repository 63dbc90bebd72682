//! `struct ggml_tensor` as of 2024-11 and later: 336 bytes.

use std::ffi::c_void;
use std::mem::{offset_of, size_of};

use super::backend::GgmlBuffer;
use super::ops::{GluOp, Op, UnaryOp};
use super::types::GgmlType;

/// GGML_MAX_SRC.
pub const MAX_SRC: usize = 10;
/// GGML_MAX_NAME, including the terminating NUL.
pub const MAX_NAME: usize = 64;
/// Words of op parameters (GGML_MAX_OP_PARAMS is 64 bytes).
pub const MAX_PARAMS: usize = 16;

/// The user fills the tensor before the graph runs.
pub const FLAG_INPUT: i32 = 1;
/// The user reads the tensor after the graph has run.
pub const FLAG_OUTPUT: i32 = 2;
/// The graph computes the tensor; nodes without this flag are skipped.
pub const FLAG_COMPUTE: i32 = 16;

/// A tensor: an array of up to four dimensions, and the op that produces it. `struct ggml_tensor` as programs lay it out
/// in memory, which fixes every field.
#[repr(C)]
#[derive(Clone)]
pub struct GgmlTensor {
    pub ty: GgmlType,
    pub buffer: *mut GgmlBuffer,
    /// Elements per dimension, innermost first; unused dimensions are 1.
    pub ne: [i64; 4],
    /// Bytes from one element (innermost dimension: block) to the next in each dimension.
    pub nb: [usize; 4],
    pub op: Op,
    pub op_params: [i32; MAX_PARAMS],
    pub flags: i32,
    pub src: [*mut GgmlTensor; MAX_SRC],
    /// The tensor whose data this one views, null if it has its own.
    pub view_src: *mut GgmlTensor,
    pub view_offs: usize,
    pub data: *mut c_void,
    pub name: [u8; MAX_NAME],
    /// For weights: their repacked matrix.
    pub extra: *mut c_void,
    pub padding: [u8; 8],
}

const _: () = {
    assert!(size_of::<GgmlTensor>() == 336);
    assert!(offset_of!(GgmlTensor, buffer) == 8);
    assert!(offset_of!(GgmlTensor, ne) == 16);
    assert!(offset_of!(GgmlTensor, nb) == 48);
    assert!(offset_of!(GgmlTensor, op) == 80);
    assert!(offset_of!(GgmlTensor, op_params) == 84);
    assert!(offset_of!(GgmlTensor, flags) == 148);
    assert!(offset_of!(GgmlTensor, src) == 152);
    assert!(offset_of!(GgmlTensor, view_src) == 232);
    assert!(offset_of!(GgmlTensor, data) == 248);
    assert!(offset_of!(GgmlTensor, name) == 256);
    assert!(offset_of!(GgmlTensor, extra) == 320);
};

impl GgmlTensor {
    /// A tensor of one `f32` without data, name or op.
    pub const EMPTY: GgmlTensor = GgmlTensor {
        ty: GgmlType::F32,
        buffer: std::ptr::null_mut(),
        ne: [1; 4],
        nb: [4; 4],
        op: Op::NONE,
        op_params: [0; MAX_PARAMS],
        flags: 0,
        src: [std::ptr::null_mut(); MAX_SRC],
        view_src: std::ptr::null_mut(),
        view_offs: 0,
        data: std::ptr::null_mut(),
        name: [0; MAX_NAME],
        extra: std::ptr::null_mut(),
        padding: [0; 8],
    };

    /// A contiguous tensor without data, name or op. [`GgmlType::row_bytes`] must accept `ne[0]`.
    pub fn contiguous(ty: GgmlType, ne: [i64; 4]) -> GgmlTensor {
        let mut t = GgmlTensor { ty, ne, ..GgmlTensor::EMPTY };
        let count = |n: i64| usize::try_from(n).unwrap_or(0);
        let row = ty.row_bytes(count(ne[0])).unwrap_or(0);
        t.nb[0] = ty.traits().type_size;
        t.nb[1] = row;
        t.nb[2] = row.saturating_mul(count(ne[1]));
        t.nb[3] = t.nb[2].saturating_mul(count(ne[2]));
        t
    }

    /// Sets the tensor's name, cut to [`MAX_NAME`] - 1 bytes.
    pub fn set_name(&mut self, name: &str) {
        self.name = [0; MAX_NAME];
        let len = name.len().min(MAX_NAME - 1);
        self.name[..len].copy_from_slice(&name.as_bytes()[..len]);
    }

    /// The name up to its NUL; empty if it is not UTF-8.
    pub fn name(&self) -> &str {
        let end = self.name.iter().position(|&b| b == 0).unwrap_or(MAX_NAME);
        std::str::from_utf8(&self.name[..end]).unwrap_or("")
    }

    /// Number of elements.
    pub fn nelements(&self) -> i64 {
        self.ne.iter().product()
    }

    /// Number of rows: the product of all dimensions but the innermost.
    pub fn nrows(&self) -> i64 {
        self.ne[1] * self.ne[2] * self.ne[3]
    }

    /// Bytes of the tensor's data if it is contiguous; 0 if the size is not representable.
    pub fn contiguous_bytes(&self) -> usize {
        self.nb[3].saturating_mul(usize::try_from(self.ne[3]).unwrap_or(0))
    }

    /// True if some dimension is 0, so that there is nothing to compute.
    pub fn is_empty(&self) -> bool {
        self.ne.contains(&0)
    }

    /// True if elements, rows and planes follow each other without gaps.
    pub fn is_contiguous(&self) -> bool {
        self.nb == GgmlTensor::contiguous(self.ty, self.ne).nb
    }

    /// True if the node is only a view of other data: the compute loop skips it.
    pub fn is_nop(&self) -> bool {
        matches!(self.op, Op::NONE | Op::RESHAPE | Op::VIEW | Op::PERMUTE | Op::TRANSPOSE)
    }

    /// A source, or `None` if it does not exist.
    ///
    /// # Safety
    /// The source pointers must be null or point to tensors that live as long as `self`.
    pub unsafe fn source(&self, i: usize) -> Option<&GgmlTensor> {
        // SAFETY: the caller guarantees the pointers.
        self.src.get(i).and_then(|p| unsafe { p.as_ref() })
    }

    /// An op parameter as an integer, 0 if it does not exist.
    pub fn param_i32(&self, i: usize) -> i32 {
        self.op_params.get(i).copied().unwrap_or(0)
    }

    /// An op parameter with its bits interpreted as a float.
    pub fn param_f32(&self, i: usize) -> f32 {
        f32::from_bits(self.param_i32(i).cast_unsigned())
    }

    /// Sets an op parameter; does nothing if it does not exist.
    pub fn set_param_i32(&mut self, i: usize, value: i32) {
        if let Some(slot) = self.op_params.get_mut(i) {
            *slot = value;
        }
    }

    /// The function that a UNARY node computes.
    pub fn unary(&self) -> Option<UnaryOp> {
        if self.op == Op::UNARY { UnaryOp::from_number(self.param_i32(0)) } else { None }
    }

    /// The function that a GLU node computes.
    pub fn glu(&self) -> Option<GluOp> {
        if self.op == Op::GLU { GluOp::from_number(self.param_i32(0)) } else { None }
    }
}
