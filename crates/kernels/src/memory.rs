//! Memory for repacked weights: zeroed, aligned to cache lines, in huge pages if large enough.

use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ptr::NonNull;

use memmap2::MmapMut;

/// Huge page size of x86-64, and of AArch64 with 4 KiB granules.
const HUGE_PAGE: usize = 2 << 20;
const CACHE_LINE: usize = 64;

/// Zeroed bytes, aligned to 64; blocks of 2 MiB and more are aligned to 2 MiB.
#[derive(Debug)]
pub(crate) struct Memory {
    kind: Allocation,
    len: usize,
}

#[derive(Debug)]
enum Allocation {
    Small(NonNull<u8>, Layout),
    Huge { map: MmapMut, start: usize },
}

// SAFETY: `Small` is the sole owner of its bytes, as a Box would be.
unsafe impl Send for Memory {}
// SAFETY: as above; changed through `&mut` only.
unsafe impl Sync for Memory {}

impl Memory {
    /// `len` zeroed bytes, in pages of the base size if not `huge`; `None` if there is not enough memory.
    pub(crate) fn zeroed(len: usize, huge: bool) -> Option<Self> {
        if len < HUGE_PAGE {
            let layout = Layout::from_size_align(len.max(1), CACHE_LINE).ok()?;
            // SAFETY: the size is not zero.
            let at = NonNull::new(unsafe { alloc_zeroed(layout) })?;
            return Some(Self { kind: Allocation::Small(at, layout), len });
        }
        let map = MmapMut::map_anon(len.checked_add(HUGE_PAGE)?).ok()?;
        // A kernel without huge pages provides small ones.
        #[cfg(target_os = "linux")]
        let _ = map.advise(if huge { memmap2::Advice::HugePage } else { memmap2::Advice::NoHugePage });
        #[cfg(not(target_os = "linux"))]
        let _ = huge;
        let start = map.as_ptr().align_offset(HUGE_PAGE);
        (start <= HUGE_PAGE).then_some(Self { kind: Allocation::Huge { map, start }, len })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match &self.kind {
            // SAFETY: allocated with at least `len` bytes, zeroed, owned.
            Allocation::Small(at, _) => unsafe { std::slice::from_raw_parts(at.as_ptr(), self.len) },
            Allocation::Huge { map, start } => map.get(*start..*start + self.len).unwrap_or_default(),
        }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        match &mut self.kind {
            // SAFETY: as in `bytes`, borrowed mutably.
            Allocation::Small(at, _) => unsafe { std::slice::from_raw_parts_mut(at.as_ptr(), self.len) },
            Allocation::Huge { map, start } => map.get_mut(*start..*start + self.len).unwrap_or_default(),
        }
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if let Allocation::Small(at, layout) = &self.kind {
            // SAFETY: from `alloc_zeroed` with this layout.
            unsafe { dealloc(at.as_ptr(), *layout) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn small_and_huge_are_aligned_and_zero() {
        for (len, align) in [(0, 64), (1, 64), (4096, 64), (HUGE_PAGE, HUGE_PAGE), (HUGE_PAGE + 5, HUGE_PAGE)]
        {
            let mut m = Memory::zeroed(len, len % 2 == 0).expect("memory");
            assert_eq!(m.bytes().len(), len);
            assert_eq!(m.bytes().as_ptr().align_offset(align), 0);
            assert!(m.bytes().iter().all(|b| *b == 0));
            m.bytes_mut().fill(1);
        }
        assert!(Memory::zeroed(usize::MAX, true).is_none());
        assert!(Memory::zeroed(usize::MAX / 2, false).is_none());
    }
}
