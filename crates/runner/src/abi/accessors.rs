//! GGML's exported accessors. A tracer reads field offsets from their code, so each is as small as GGML's own and
//! none is inlined away; [`keep`] keeps them in the program.

use std::ffi::{c_char, c_void};
use std::hint::black_box;
use std::sync::atomic::{AtomicU64, Ordering};

use super::backend::GgmlBackend;
use super::graph::GgmlGraph;
use super::ops::{GLU_OP_NAMES, OP_NAMES, Op, UNARY_OP_NAMES};
use super::ops::{GluOp, UnaryOp};
use super::tensor::GgmlTensor;
use super::text::Text;
use super::types::{TYPE_TRAITS, TypeTraits};

/// Bytes that GGML's allocator puts before each tensor (`ggml_object`).
const OBJECT: usize = 32;

/// A function or table that must stay in the program, whether or not anything uses it.
#[repr(transparent)]
pub struct KeptSymbol(pub *const c_void);

// SAFETY: only addresses of code and constant tables; they are never dereferenced.
unsafe impl Sync for KeptSymbol {}

/// Keeps functions and tables in the program under their names, with their C signatures: calling this with a list
/// makes the compiler assume that the entries may be called or read by anyone.
#[inline(never)]
pub fn keep(list: &'static [KeptSymbol]) {
    for entry in list {
        black_box(entry.0);
    }
}

/// A list of [`KeptSymbol`] from function names.
macro_rules! kept {
    ($($what:path),+ $(,)?) => { [$($crate::abi::accessors::KeptSymbol($what as *const std::ffi::c_void)),+] };
}

pub(crate) use kept;

/// The functions of this module.
pub static ACCESSORS: [KeptSymbol; 20] = kept![
    ggml_get_name,
    ggml_get_data,
    ggml_tensor_overhead,
    ggml_nelements,
    ggml_get_unary_op,
    ggml_get_glu_op,
    ggml_is_view,
    ggml_graph_n_nodes,
    ggml_graph_nodes,
    ggml_graph_next_uid,
    ggml_backend_guid,
    ggml_op_name,
    ggml_op_desc,
    ggml_unary_op_name,
    ggml_glu_op_name,
    ggml_type_name,
    ggml_get_type_traits,
    ggml_blck_size,
    ggml_version,
    ggml_commit,
];

/// The tables of the sibling modules. As they are kept by address, they stay tables of pointers.
pub static TABLES: [KeptSymbol; 4] = [
    KeptSymbol((&raw const OP_NAMES).cast()),
    KeptSymbol((&raw const UNARY_OP_NAMES).cast()),
    KeptSymbol((&raw const GLU_OP_NAMES).cast()),
    KeptSymbol((&raw const TYPE_TRAITS).cast()),
];

fn text_of(table: &'static [Text], number: i32) -> *const c_char {
    let text = usize::try_from(number).ok().and_then(|i| table.get(i));
    text.map_or(std::ptr::null(), |t| t.as_ptr())
}

/// Address of a tensor's name.
///
/// # Safety
/// `tensor` must point to a tensor, as in all functions here that take one.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_get_name(tensor: *const GgmlTensor) -> *const c_char {
    // SAFETY: the caller passes a valid tensor.
    unsafe { (&raw const (*tensor).name).cast() }
}

/// Address of a tensor's data.
///
/// # Safety
/// See [`ggml_get_name`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_get_data(tensor: *const GgmlTensor) -> *mut c_void {
    // SAFETY: the caller passes a valid tensor.
    unsafe { (*tensor).data }
}

/// Bytes of overhead per tensor in GGML's allocator.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ggml_tensor_overhead() -> usize {
    OBJECT + size_of::<GgmlTensor>()
}

/// Number of elements.
///
/// # Safety
/// See [`ggml_get_name`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_nelements(tensor: *const GgmlTensor) -> i64 {
    // SAFETY: the caller passes a valid tensor.
    let [a, b, c, d] = unsafe { (*tensor).ne };
    a.wrapping_mul(b).wrapping_mul(c).wrapping_mul(d)
}

/// The function that a UNARY node computes; aborts the program for other nodes.
///
/// # Safety
/// See [`ggml_get_name`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_get_unary_op(tensor: *const GgmlTensor) -> i32 {
    // SAFETY: the caller passes a valid tensor.
    let tensor = unsafe { &*tensor };
    if tensor.op as i32 != Op::UNARY as i32 {
        std::process::abort();
    }
    tensor.op_params[0]
}

/// The function that a GLU node computes; aborts the program for other nodes.
///
/// # Safety
/// See [`ggml_get_name`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_get_glu_op(tensor: *const GgmlTensor) -> i32 {
    // SAFETY: the caller passes a valid tensor.
    let tensor = unsafe { &*tensor };
    if tensor.op as i32 != Op::GLU as i32 {
        std::process::abort();
    }
    tensor.op_params[0]
}

/// Whether a tensor is a view of another's data.
///
/// # Safety
/// See [`ggml_get_name`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_is_view(tensor: *const GgmlTensor) -> bool {
    // SAFETY: the caller passes a valid tensor.
    unsafe { !(*tensor).view_src.is_null() }
}

/// Number of nodes.
///
/// # Safety
/// `graph` must point to a graph.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_graph_n_nodes(graph: *const GgmlGraph) -> i32 {
    // SAFETY: the caller passes a valid graph.
    unsafe { (*graph).n_nodes }
}

/// The list of nodes.
///
/// # Safety
/// `graph` must point to a graph.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_graph_nodes(graph: *const GgmlGraph) -> *mut *mut GgmlTensor {
    // SAFETY: the caller passes a valid graph.
    unsafe { (*graph).nodes }
}

/// A number that no graph of this process has had.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ggml_graph_next_uid() -> u64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NEXT.fetch_add(1, Ordering::Relaxed)
}

/// The GUID of a backend, null for null.
///
/// # Safety
/// `backend` must be null or point to a backend.
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_backend_guid(backend: *const GgmlBackend) -> *const [u8; 16] {
    if backend.is_null() {
        return std::ptr::null();
    }
    // SAFETY: not null, so the caller passes a valid backend.
    unsafe { (*backend).guid }
}

/// Name of an op, null for an invalid number.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ggml_op_name(op: i32) -> *const c_char {
    text_of(&OP_NAMES, op)
}

/// Name of a node's op; for UNARY and GLU, the name of the function.
///
/// # Safety
/// See [`ggml_get_name`].
#[unsafe(no_mangle)]
#[inline(never)]
pub unsafe extern "C" fn ggml_op_desc(tensor: *const GgmlTensor) -> *const c_char {
    // SAFETY: the caller passes a valid tensor.
    let tensor = unsafe { &*tensor };
    match tensor.op {
        Op::UNARY => ggml_unary_op_name(tensor.op_params[0]),
        Op::GLU => ggml_glu_op_name(tensor.op_params[0]),
        op => ggml_op_name(op as i32),
    }
}

/// Name of a UNARY function, null for an invalid number.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ggml_unary_op_name(op: i32) -> *const c_char {
    text_of(&UNARY_OP_NAMES, op)
}

/// Name of a GLU function, null for an invalid number.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ggml_glu_op_name(op: i32) -> *const c_char {
    text_of(&GLU_OP_NAMES, op)
}

/// Name of a type, null for an invalid number.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ggml_type_name(ty: i32) -> *const c_char {
    traits_of(ty).map_or(std::ptr::null(), |t| t.type_name.as_ptr())
}

/// Traits of a type, null for an invalid number.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ggml_get_type_traits(ty: i32) -> *const TypeTraits {
    traits_of(ty).map_or(std::ptr::null(), |t| t)
}

/// Elements in a block of a type, 0 for an invalid number.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ggml_blck_size(ty: i32) -> i64 {
    traits_of(ty).map_or(0, |t| t.blck_size)
}

fn traits_of(ty: i32) -> Option<&'static TypeTraits> {
    usize::try_from(ty).ok().and_then(|i| TYPE_TRAITS.get(i))
}

/// Version of this program, in place of GGML's.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ggml_version() -> *const c_char {
    concat!(env!("CARGO_PKG_VERSION"), "\0").as_ptr().cast()
}

/// Name of this program, in place of GGML's commit.
#[unsafe(no_mangle)]
#[inline(never)]
pub extern "C" fn ggml_commit() -> *const c_char {
    c"ggml-runner".as_ptr()
}

/// Name of the op that a node computes, which depends on its op number and, for UNARY and GLU, on its first
/// parameter.
pub fn description(tensor: &GgmlTensor) -> &'static str {
    let kind = tensor.unary().map(UnaryOp::name).or_else(|| tensor.glu().map(GluOp::name));
    kind.unwrap_or_else(|| tensor.op.name())
}
