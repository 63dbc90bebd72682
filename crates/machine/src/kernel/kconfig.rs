//! Options that the running kernel was built with, if available: /proc/config.gz, otherwise the distribution's file
//! in /boot. Only for explanations: features are detected by trying them.

use std::ffi::{CString, c_char, c_int, c_uint, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Options that recording depends on, and what they provide.
pub const OPTIONS: [(&str, &str); 6] = [
    ("CONFIG_BPF_SYSCALL", "bpf()"),
    ("CONFIG_PERF_EVENTS", "perf_event_open()"),
    ("CONFIG_UPROBES", "probes on programs"),
    ("CONFIG_UPROBE_EVENTS", "probes on programs through perf"),
    ("CONFIG_BPF_EVENTS", "BPF programs on probes"),
    ("CONFIG_DEBUG_INFO_BTF", "kernel type information, optional"),
];

/// Longest configuration read, bytes; kernels have some 300 kB.
const MOST: usize = 8 << 20;

#[derive(Debug, Clone)]
pub struct Kconfig {
    pub path: PathBuf,
    text: String,
}

impl Kconfig {
    /// The running kernel's, with its release given; `None` if not available.
    pub fn read(release: &str) -> Option<Kconfig> {
        let boot = format!("/boot/config-{release}");
        ["/proc/config.gz", &boot].iter().find_map(|path| {
            let path = PathBuf::from(path);
            let text = String::from_utf8_lossy(&unpacked(&path)?).into_owned();
            text.contains("CONFIG_").then_some(Kconfig { path, text })
        })
    }

    /// True if the option is built in or a module.
    pub fn has(&self, option: &str) -> bool {
        let value = |line: &str| line.strip_prefix(option)?.strip_prefix('=').map(|v| v == "y" || v == "m");
        self.text.lines().any(|line| value(line) == Some(true))
    }

    /// Those of [`OPTIONS`] that are off.
    pub fn off(&self) -> impl Iterator<Item = (&'static str, &'static str)> {
        OPTIONS.into_iter().filter(|(option, _)| !self.has(option))
    }
}

// SAFETY: as declared in zlib.h.
unsafe extern "C" {
    // zlib.h; libbpf-sys links the library.
    fn gzopen(path: *const c_char, mode: *const c_char) -> *mut c_void;
    fn gzread(file: *mut c_void, buf: *mut c_void, len: c_uint) -> c_int;
    fn gzclose(file: *mut c_void) -> c_int;
}

/// A file's bytes, decompressed if it is a gzip file; `None` if it cannot be read completely.
fn unpacked(path: &Path) -> Option<Vec<u8>> {
    if !path.is_file() {
        return None;
    }
    let name = CString::new(path.as_os_str().as_bytes()).ok()?;
    // SAFETY: two C strings, only read.
    let file = unsafe { gzopen(name.as_ptr(), c"rb".as_ptr()) };
    if file.is_null() {
        return None;
    }
    let mut out = Vec::new();
    let mut part = vec![0u8; 64 << 10];
    let whole = loop {
        // SAFETY: the file is open, and at most as many bytes are written as the buffer holds.
        let n = unsafe { gzread(file, part.as_mut_ptr().cast(), part.len() as c_uint) };
        match usize::try_from(n) {
            Ok(0) => break true,
            Ok(n) if out.len() + n <= MOST => out.extend_from_slice(&part[..n]),
            _ => break false,
        }
    };
    // SAFETY: open until here, and not used afterwards.
    let closed = unsafe { gzclose(file) };
    // A truncated file is reported only now.
    (whole && closed == 0).then_some(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(text: &str) -> Kconfig {
        Kconfig { path: PathBuf::new(), text: text.into() }
    }

    #[test]
    fn what_is_off_is_told() {
        let rk3399 = config(
            "CONFIG_BPF=y\n# CONFIG_BPF_SYSCALL is not set\nCONFIG_UPROBES=y\nCONFIG_UPROBE_EVENTS=y\n",
        );
        let off: Vec<&str> = rk3399.off().map(|o| o.0).collect();
        assert_eq!(
            off,
            ["CONFIG_BPF_SYSCALL", "CONFIG_PERF_EVENTS", "CONFIG_BPF_EVENTS", "CONFIG_DEBUG_INFO_BTF"]
        );
        assert!(config("CONFIG_UPROBES=m").has("CONFIG_UPROBES"));
        assert!(!config("CONFIG_UPROBES=n\nCONFIG_UPROBES_X=y").has("CONFIG_UPROBES"));
    }

    #[test]
    fn packed_or_not_the_text_is_the_same() {
        // printf 'CONFIG_BPF_SYSCALL=y\n' | gzip -9n
        const PACKED: [u8; 41] = [
            0x1f, 0x8b, 0x08, 0, 0, 0, 0, 0, 0x02, 0x03, 0x73, 0xf6, 0xf7, 0x73, 0xf3, 0x74, 0x8f, 0x77,
            0x0a, 0x70, 0x8b, 0x0f, 0x8e, 0x0c, 0x76, 0x76, 0xf4, 0xf1, 0xb1, 0xad, 0xe4, 0x02, 0, 0xe2,
            0x9c, 0xfd, 0xda, 0x15, 0, 0, 0,
        ];
        let dir = tempfile::tempdir().expect("a directory");
        let read = |bytes: &[u8]| {
            let path = dir.path().join("config");
            std::fs::write(&path, bytes).expect("written");
            unpacked(&path)
        };
        assert_eq!(read(b"CONFIG_BPF_SYSCALL=y\n").as_deref(), Some(&b"CONFIG_BPF_SYSCALL=y\n"[..]));
        assert_eq!(read(&PACKED).as_deref(), Some(&b"CONFIG_BPF_SYSCALL=y\n"[..]));
        assert_eq!(read(&PACKED[..30]), None, "cut short");
        assert_eq!(unpacked(dir.path()), None, "a directory");
        assert_eq!(unpacked(Path::new("/nonexistent")), None);
    }
}
