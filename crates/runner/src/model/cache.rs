//! The KV cache: keys and values of the tokens so far, in f16.
//!
//! Address space for the complete context is reserved at the start, so that addresses are stable; memory is
//! committed in chunks of tokens as the context grows. Mapping memory is unsafe in rustix, too.

use super::params::Params;
use crate::abi::{GgmlTensor, GgmlType};

/// Tokens per chunk.
pub const CHUNK: usize = 256;

/// Why there is no room for more tokens.
#[derive(Debug, thiserror::Error)]
#[error("not enough memory for the keys and values of {tokens} tokens ({bytes} bytes): use a smaller --ctx")]
pub struct CacheError {
    tokens: usize,
    bytes: usize,
}

/// The cache of one sequence.
pub struct Cache {
    space: Reserved,
    /// Key and value tensors of each layer.
    tensors: Box<[GgmlTensor]>,
    /// Bytes per token in one tensor.
    row: usize,
    /// Tokens for which memory is committed.
    ready: usize,
    context: usize,
}

// SAFETY: the tensors point into the space, which is owned.
unsafe impl Send for Cache {}

impl Cache {
    /// A cache for `context` tokens, a multiple of [`CHUNK`].
    ///
    /// # Errors
    /// Not enough address space.
    pub fn new(p: &Params, context: usize) -> Result<Self, CacheError> {
        let row = p.kv_width().saturating_mul(size_of::<u16>());
        // Each tensor begins on a page boundary.
        let each = row.checked_mul(context).and_then(|n| n.checked_next_multiple_of(Reserved::PAGE));
        let (each, bytes) = each
            .and_then(|each| Some((each, each.checked_mul(2 * p.layers)?)))
            .ok_or(CacheError { tokens: context, bytes: usize::MAX })?;
        let space = Reserved::new(bytes).ok_or(CacheError { tokens: context, bytes })?;
        let ne = [p.kv_width(), context, 1, 1].map(|n| i64::try_from(n).unwrap_or(i64::MAX));
        let tensors = (0..2 * p.layers).map(|i| {
            let mut t = GgmlTensor::contiguous(GgmlType::F16, ne);
            let kind = if i % 2 == 0 { "k" } else { "v" };
            t.set_name(&format!("cache_{kind}_l{}", i / 2));
            t.data = space.base.wrapping_add(i * each).cast();
            t
        });
        Ok(Self { tensors: tensors.collect(), space, row, ready: 0, context })
    }

    /// Capacity in tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Commits memory for `tokens` tokens, in complete chunks.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn grow(&mut self, tokens: usize) -> Result<(), CacheError> {
        let tokens = tokens.next_multiple_of(CHUNK).min(self.context);
        if tokens <= self.ready {
            return Ok(());
        }
        for t in &self.tensors {
            let start = (t.data as usize) - (self.space.base as usize);
            let (from, to) = (start + self.ready * self.row, start + tokens * self.row);
            if !self.space.commit(from, to) {
                return Err(CacheError { tokens, bytes: (to - from).saturating_mul(self.tensors.len()) });
            }
        }
        self.ready = tokens;
        Ok(())
    }

    /// Keys of a layer.
    pub(super) fn keys(&self, layer: usize) -> *mut GgmlTensor {
        (&raw const self.tensors[2 * layer]).cast_mut()
    }

    /// Values of a layer.
    pub(super) fn values(&self, layer: usize) -> *mut GgmlTensor {
        (&raw const self.tensors[2 * layer + 1]).cast_mut()
    }
}

/// Reserved address space, partly committed.
#[derive(Debug)]
struct Reserved {
    base: *mut u8,
    bytes: usize,
}

impl Reserved {
    /// The largest page size of the supported machines.
    const PAGE: usize = 64 << 10;

    fn new(bytes: usize) -> Option<Self> {
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping, at any free address.
        let base = unsafe { libc::mmap(std::ptr::null_mut(), bytes.max(1), libc::PROT_NONE, flags, -1, 0) };
        if base == libc::MAP_FAILED {
            return None;
        }
        // Heads of a long context are far apart, each position in another page. A kernel without huge pages
        // provides small ones.
        #[cfg(target_os = "linux")]
        // SAFETY: advice about the mapping just made.
        let _ = unsafe { libc::madvise(base, bytes.max(1), libc::MADV_HUGEPAGE) };
        Some(Self { base: base.cast(), bytes: bytes.max(1) })
    }

    /// Commits the pages that this range touches; they are zeroed.
    fn commit(&self, from: usize, to: usize) -> bool {
        let from = from / Self::PAGE * Self::PAGE;
        let to = to.next_multiple_of(Self::PAGE).min(self.bytes);
        let access = libc::PROT_READ | libc::PROT_WRITE;
        // SAFETY: within our own mapping, starting at a page boundary.
        from < to && unsafe { libc::mprotect(self.base.add(from).cast(), to - from, access) } == 0
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        // SAFETY: our own mapping, which nothing uses any more.
        unsafe { libc::munmap(self.base.cast(), self.bytes) };
    }
}
