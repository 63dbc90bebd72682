//! Where CUPTI's library is: it is not linked. The one that belongs to the CUDA runtime of this process comes first.

use core::ffi::{c_char, c_int, c_void};

use crate::api::Cupti;

/// Room for a path, its end included; a longer one is not tried.
const PATH: usize = 1024;

unsafe extern "C" {
    fn dlopen(file: *const c_char, flags: c_int) -> *mut c_void;
    fn dlsym(library: *mut c_void, name: *const c_char) -> *mut c_void;
    fn dl_iterate_phdr(
        each: unsafe extern "C" fn(*mut Loaded, usize, *mut c_void) -> c_int,
        data: *mut c_void,
    ) -> c_int;
}

/// The first fields of struct dl_phdr_info.
#[repr(C)]
struct Loaded {
    address: usize,
    name: *const c_char,
}

/// A text that ends with a zero, of limited length.
pub struct Text {
    bytes: [u8; PATH],
    len: usize,
}

impl Text {
    /// None: it is too long.
    pub fn of(parts: &[&[u8]]) -> Option<Text> {
        let mut text = Text { bytes: [0; PATH], len: 0 };
        for part in parts {
            let end = text.len.checked_add(part.len()).filter(|end| *end < PATH)?;
            text.bytes.get_mut(text.len..end)?.copy_from_slice(part);
            text.len = end;
        }
        Some(text)
    }

    pub fn bytes(&self) -> &[u8] {
        self.bytes.get(..self.len).unwrap_or_default()
    }
}

/// The CUDA versions whose library has this name, and the names of those that have no other.
const VERSIONS: [&[u8]; 6] = [b".13", b".12", b".11", b"", b".11.8", b".11.7"];
/// From the runtime's folder: the same one, that of the pip package beside the runtime's, and that of a toolkit.
const FOLDERS: [&[u8]; 3] = [b"", b"../../cuda_cupti/lib/", b"../extras/CUPTI/lib64/"];

/// The folder of a CUDA runtime, with its last slash, and the major version in its name.
fn runtime(path: &[u8]) -> Option<(&[u8], &[u8])> {
    let slash = path.iter().rposition(|c| *c == b'/')?;
    let (folder, name) = path.split_at_checked(slash + 1)?;
    let rest = name.starts_with(b"libcudart").then_some(name)?;
    let at = rest.windows(4).position(|w| w == b".so.")? + 3;
    // With its dot, as in a library's name.
    let version = rest.get(at..)?;
    let digits = version.iter().skip(1).take_while(|c| c.is_ascii_digit()).count();
    (digits > 0).then_some((folder, version.get(..digits + 1)?))
}

/// The first of the places that `open` accepts, in a process with this CUDA runtime.
pub fn first<T>(cudart: &[u8], open: impl Fn(&Text) -> Option<T>) -> Option<T> {
    let name: &[u8] = b"libcupti.so";
    let try_one = |parts: &[&[u8]]| Text::of(parts).and_then(|path| open(&path));
    let runtime = runtime(cudart);
    if let Some((folder, version)) = runtime {
        for below in FOLDERS {
            let found = try_one(&[folder, below, name, version]).or_else(|| try_one(&[folder, below, name]));
            if found.is_some() {
                return found;
            }
        }
    }
    let own = runtime.map(|(_, version)| version);
    own.into_iter().chain(VERSIONS).find_map(|version| try_one(&[name, version]))
}

/// Path of the CUDA runtime that this process has loaded; empty: none, or it is linked statically.
fn cudart() -> Text {
    unsafe extern "C" fn each(loaded: *mut Loaded, _size: usize, data: *mut c_void) -> c_int {
        // SAFETY: `data` is the text below; a name is a text that ends with a zero, or null.
        unsafe {
            if (*loaded).name.is_null() {
                return 0;
            }
            let path = core::ffi::CStr::from_ptr((*loaded).name).to_bytes();
            match runtime(path).and_then(|_| Text::of(&[path])) {
                Some(text) => {
                    *data.cast::<Text>() = text;
                    1
                }
                None => 0,
            }
        }
    }
    let mut text = Text { bytes: [0; PATH], len: 0 };
    // SAFETY: `each` takes what it is given.
    unsafe { dl_iterate_phdr(each, (&raw mut text).cast()) };
    text
}

/// CUPTI's library, loaded; None: there is none.
pub fn library() -> Option<*mut c_void> {
    const NOW: c_int = 2;
    first(cudart().bytes(), |path| {
        // SAFETY: a text that ends with a zero.
        let library = unsafe { dlopen(path.bytes.as_ptr().cast(), NOW) };
        (!library.is_null()).then_some(library)
    })
}

/// A function of the library.
///
/// # Safety
/// `F` is its type.
unsafe fn function<F: Copy>(library: *mut c_void, name: &core::ffi::CStr) -> Option<F> {
    const { assert!(size_of::<F>() == size_of::<*mut c_void>()) };
    // SAFETY: an open library and a text; the caller vouches for the type.
    unsafe {
        let address = dlsym(library, name.as_ptr());
        (!address.is_null()).then(|| core::mem::transmute_copy(&address))
    }
}

/// CUPTI's functions; None: one is missing.
pub fn functions(library: *mut c_void) -> Option<Cupti> {
    // SAFETY: the types are those of CUPTI's headers (`Cupti`).
    unsafe {
        Some(Cupti {
            version: function(library, c"cuptiGetVersion")?,
            timestamp: function(library, c"cuptiGetTimestamp")?,
            subscribe: function(library, c"cuptiSubscribe")?,
            unsubscribe: function(library, c"cuptiUnsubscribe")?,
            enable_callback: function(library, c"cuptiEnableCallback")?,
            register: function(library, c"cuptiActivityRegisterCallbacks")?,
            enable: function(library, c"cuptiActivityEnable")?,
            flush: function(library, c"cuptiActivityFlushAll")?,
            next_record: function(library, c"cuptiActivityGetNextRecord")?,
            dropped: function(library, c"cuptiActivityGetNumDroppedRecords")?,
            latency: function(library, c"cuptiActivityEnableLatencyTimestamps")?,
            flush_period: function(library, c"cuptiActivityFlushPeriod"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;

    /// The places that are tried, in order.
    fn tried(cudart: &str) -> Vec<String> {
        let all = RefCell::new(Vec::new());
        let none: Option<()> = first(cudart.as_bytes(), |path| {
            all.borrow_mut().push(String::from_utf8_lossy(path.bytes()).into_owned());
            None
        });
        assert_eq!(none, None);
        all.into_inner()
    }

    #[test]
    fn the_library_of_the_runtime_comes_first() {
        let all = tried("/opt/nvidia/cuda_runtime/lib/libcudart.so.12.9.79");
        assert_eq!(
            all[..7],
            [
                "/opt/nvidia/cuda_runtime/lib/libcupti.so.12",
                "/opt/nvidia/cuda_runtime/lib/libcupti.so",
                "/opt/nvidia/cuda_runtime/lib/../../cuda_cupti/lib/libcupti.so.12",
                "/opt/nvidia/cuda_runtime/lib/../../cuda_cupti/lib/libcupti.so",
                "/opt/nvidia/cuda_runtime/lib/../extras/CUPTI/lib64/libcupti.so.12",
                "/opt/nvidia/cuda_runtime/lib/../extras/CUPTI/lib64/libcupti.so",
                "libcupti.so.12",
            ]
        );
        let first = first(b"/x/libcudart-0b1c.so.13", |path| Some(path.bytes().to_vec()));
        assert_eq!(first.as_deref(), Some(&b"/x/libcupti.so.13"[..]));
    }

    #[test]
    fn without_a_runtime_the_names_are_tried() {
        let names = ["", ".11.8", ".11.7"].map(|v| format!("libcupti.so{v}"));
        let all =
            [&["libcupti.so.13", "libcupti.so.12", "libcupti.so.11"].map(str::to_owned)[..], &names].concat();
        for none in
            ["", "/usr/lib/libggml-cuda.so", "libcudart.so.12", "/usr/lib/libcudart.so", "/x/libcudart.so.x"]
        {
            assert_eq!(tried(none), all, "{none}");
        }
    }

    #[test]
    fn a_path_that_is_too_long_is_left_out() {
        let long = format!("/{}/libcudart.so.12", "x".repeat(PATH));
        assert_eq!(tried(&long)[0], "libcupti.so.12");
        assert!(Text::of(&[&[b'x'; PATH - 1]]).is_some() && Text::of(&[&[b'x'; PATH]]).is_none());
    }
}
