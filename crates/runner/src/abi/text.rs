//! String constants in tables that foreign code reads.

/// A pointer to a static NUL-terminated string, for tables that foreign code reads.
#[repr(transparent)]
#[derive(Clone, Copy)]
pub struct Text(*const std::ffi::c_char);

// SAFETY: it points to constant memory that is never written.
unsafe impl Sync for Text {}

impl Text {
    /// Wraps a string constant.
    pub const fn new(text: &'static std::ffi::CStr) -> Text {
        Text(text.as_ptr())
    }

    /// The raw pointer.
    pub const fn as_ptr(self) -> *const std::ffi::c_char {
        self.0
    }

    /// The string itself; empty if it is not UTF-8.
    pub fn as_str(self) -> &'static str {
        // SAFETY: `new` is the only constructor, so the pointer is to a static NUL-terminated string.
        unsafe { std::ffi::CStr::from_ptr(self.0) }.to_str().unwrap_or("")
    }
}
