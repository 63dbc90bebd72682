//! The generated libbpf-rs skeletons of src/bpf/*.bpf.c, whose objects are compressed by build.rs.
#![allow(clippy::all, clippy::restriction, dead_code, non_camel_case_types, missing_docs)]

use std::ffi::{c_int, c_ulong};

// SAFETY: as declared in zlib.h.
unsafe extern "C" {
    // zlib.h; libbpf-sys links the library.
    fn uncompress(to: *mut u8, to_len: *mut c_ulong, from: *const u8, from_len: c_ulong) -> c_int;
}

/// Decompresses what a build script packed, `bytes` long. None: the executable is damaged.
pub fn unpacked(packed: &[u8], bytes: usize) -> Option<Vec<u8>> {
    unpack(packed, bytes).ok()
}

/// Decompresses the object packed by build.rs, `bytes` long.
fn unpack(packed: &[u8], bytes: usize) -> libbpf_rs::Result<Vec<u8>> {
    let mut object = vec![0; bytes];
    let mut len = bytes as c_ulong;
    // SAFETY: writes at most `len` bytes, which the vector has, and reads the bytes of `packed`.
    let answer =
        unsafe { uncompress(object.as_mut_ptr(), &raw mut len, packed.as_ptr(), packed.len() as c_ulong) };
    match (answer, len as usize == bytes) {
        (0, true) => Ok(object),
        _ => Err(std::io::Error::other(
            "the profinfer executable is damaged: its BPF programs cannot be \
            unpacked",
        )
        .into()),
    }
}

macro_rules! skeleton {
    ($name:ident) => {
        pub mod $name {
            include!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".skel.rs"));

            /// The object that the skeletons from build.rs load; unpacked once.
            fn unpacked_object() -> libbpf_rs::Result<&'static [u8]> {
                const FILE: &[u8] =
                    include_bytes!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".bpf.z"));
                // SAFETY: bytes that are only read, in a section that has no meaning to anything else.
                #[unsafe(link_section = ".bpf.objs")]
                static PACKED: [u8; FILE.len()] =
                    *include_bytes!(concat!(env!("OUT_DIR"), "/", stringify!($name), ".bpf.z"));
                static OBJECT: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
                if let Some(object) = OBJECT.get() {
                    return Ok(object);
                }
                let object = super::unpack(&PACKED, imp::OBJECT_BYTES)?;
                Ok(OBJECT.get_or_init(|| object))
            }
        }
    };
}

skeleton!(ops);
skeleton!(pmc);
skeleton!(process);
skeleton!(process_tp);
skeleton!(sched);

pub use ops::types;

#[cfg(test)]
mod tests {
    use super::unpack;

    #[test]
    fn a_damaged_object_is_an_error() {
        let packed = include_bytes!(concat!(env!("OUT_DIR"), "/process.bpf.z"));
        let whole = std::fs::read(concat!(env!("OUT_DIR"), "/process.bpf.o")).expect("build.rs leaves it");
        assert_eq!(unpack(packed, whole.len()).expect("unpacks"), whole);
        assert!(unpack(packed, whole.len() - 1).is_err());
        assert!(unpack(&packed[..packed.len() / 2], whole.len()).is_err());
        assert!(unpack(&[7; 100], 1000).is_err());
    }
}
