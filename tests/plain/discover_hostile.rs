//! Discovery on malicious files: tables that take forever, files truncated or exchanged while they are read,
//! excessive numbers of names. Needs a C compiler (`cc`); skipped with a message otherwise.

use crate::common;

use std::collections::HashSet;
use std::ffi::CString;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use crate::common::skips;
use engine::discover;

/// Far longer than anything here takes; a real hang never ends.
const HANG: Duration = Duration::from_secs(100);

/// An engine whose table of unary ops cannot be found, so that every word is tried as one, with room for many names.
const ENGINE: &str = r#"
#include <stddef.h>
#include <stdint.h>
struct tensor { int type; void *buffer; int64_t ne[4]; size_t nb[4]; int op; int op_params[16]; int flags;
    struct tensor *src[10]; struct tensor *view_src; size_t view_offs; void *data; char name[64]; void *extra; char pad[8]; };
static const char *OPS[] = { "NONE", "DUP", "ADD", "MUL_MAT", "MUL_MAT_ID", "VIEW", "UNARY", "GLU" };
static const char *GLU[] = { "REGLU", "GEGLU" };
struct traits { const char *name; int64_t block, interleave; size_t size; char quantized; void *a, *b; };
static const struct traits TRAITS[] = {
    { "f32", 1, 0, 4, 0, 0, 0 }, { "f16", 1, 0, 2, 0, 0, 0 }, { "q4_0", 32, 0, 18, 1, 0, 0 } };
__asm__(".section .rodata\n.globl many\n.balign 16\nmany:\n.byte 0\n.rept 2097152\n.ascii \"ABS\\0\"\n.endr\n.text");
extern const char many[];
const char *ggml_unary_op_name(int op) { return many + op; }
const char *ggml_op_name(int op) { return OPS[op]; }
const char *ggml_glu_op_name(int op) { return GLU[op]; }
const struct traits *ggml_get_type_traits(int t) { return &TRAITS[t]; }
const char *ggml_get_name(const struct tensor *t) { return t->name; }
void *ggml_get_data(const struct tensor *t) { return t->data; }
size_t ggml_tensor_overhead(void) { return 32 + sizeof(struct tensor); }
int ggml_get_unary_op(const struct tensor *t) { if (t->op != 6) __builtin_trap(); return t->op_params[0]; }
int ggml_graph_compute(void *g, void *plan) { return g != plan; }
int ggml_compute_forward(void *g, void *plan) { return g == plan; }
int llama_decode(void *ctx) { return ctx != NULL; }
"#;

/// Compiles one source file to a library; `None` if this machine has no compiler.
fn library(dir: &Path, source: &str) -> Option<PathBuf> {
    let (src, lib) = (dir.join("engine.c"), dir.join("libengine.so"));
    fs::write(&src, source).expect("written");
    let done = Command::new("cc").args(["-shared", "-fPIC", "-O2", "-o"]).arg(&lib).arg(&src).output();
    fs::remove_file(src).expect("removed");
    match done {
        Ok(o) if o.status.success() => Some(lib),
        Ok(o) => panic!("cc: {}", String::from_utf8_lossy(&o.stderr)),
        Err(_) => {
            skips::skipped("no C compiler");
            None
        }
    }
}

/// The engine with a megabyte of other words in that place, all of which are read.
fn small(dir: &Path) -> Option<PathBuf> {
    library(dir, &ENGINE.replace("2097152", "262144").replace("ABS\\\\0", "WORD"))
}

/// Runs it in a separate thread and panics on timeout.
fn ends<T: Send + 'static>(what: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let (done, wait) = mpsc::channel();
    std::thread::spawn(move || drop(done.send(work())));
    wait.recv_timeout(HANG).unwrap_or_else(|e| panic!("{what}: {e}"))
}

/// Calls `disturb` repeatedly while `work` runs.
fn disturbed(disturb: impl Fn() + Sync, work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                disturb();
            }
        });
        work();
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn millions_of_one_name_take_no_hours() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(lib) = library(dir.path(), ENGINE) else { return };
    assert!(fs::metadata(&lib).expect("there").len() > 8 << 20);
    let mut doctor = Command::new(env!("CARGO_BIN_EXE_profinfer"))
        .args(["doctor", "--no-probe"])
        .arg(&lib)
        .stdout(std::process::Stdio::null())
        .spawn()
        .expect("it starts");
    common::run::wait(&mut doctor);
    // The engine is found; only the table in question is empty.
    let engine = discover::of_path(&lib).expect("an engine").remove(0);
    assert!(engine.tables.unary.is_empty() && engine.tables.op("UNARY") == Some(6));
}

#[test]
fn a_file_cut_short_while_it_is_read_is_an_error_at_most() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(lib) = small(dir.path()) else { return };
    let bytes = fs::read(&lib).expect("read");
    let file = File::options().write(true).open(&lib).expect("opened");
    let cut = AtomicBool::new(false);
    let disturb = || {
        file.set_len(4096).expect("cut");
        cut.store(true, Ordering::Relaxed);
        file.write_all_at(&bytes, 0).expect("written");
        std::thread::sleep(Duration::from_millis(1));
    };
    let (mut found, mut refused) = (0, 0);
    disturbed(disturb, || {
        let start = Instant::now();
        while found + refused < 400 && start.elapsed() < HANG {
            match discover::of_path(&lib) {
                Ok(_) => found += 1,
                Err(_) => refused += 1,
            }
        }
    });
    println!("{found} found, {refused} refused");
    assert!(cut.load(Ordering::Relaxed) && found + refused > 0);
    assert!(discover::of_path(&lib).is_ok(), "the file is whole again");
}

fn c_path(path: &Path) -> CString {
    CString::new(path.as_os_str().as_bytes()).expect("a path")
}

fn exchange(a: &Path, b: &Path) {
    let (a, b) = (c_path(a), c_path(b));
    // SAFETY: two zero-terminated strings, and numbers.
    let done = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            a.as_ptr(),
            libc::AT_FDCWD,
            b.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    assert_eq!(done, 0, "{}", std::io::Error::last_os_error());
}

#[test]
fn a_pipe_in_the_place_of_a_library_blocks_nobody() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(lib) = small(dir.path()) else { return };
    let pipe = dir.path().join("pipe");
    // SAFETY: a zero-terminated string.
    assert_eq!(unsafe { libc::mkfifo(c_path(&pipe).as_ptr(), 0o600) }, 0);
    // A process that maps the library executable, as a hostile one may.
    let map =
        "import ctypes, sys, time; ctypes.CDLL(sys.argv[1]); print('mapped', flush=True); time.sleep(1000)";
    let holder =
        Command::new("python3").args(["-c", map]).arg(&lib).stdout(std::process::Stdio::piped()).spawn();
    let mut holder = match holder {
        Ok(mut holder) => {
            let mut line = [0; 7];
            let out = holder.stdout.as_mut().expect("a pipe");
            std::io::Read::read_exact(out, &mut line).expect("it has mapped it");
            Some(holder)
        }
        Err(e) => {
            println!("no process that holds the library: {e}");
            None
        }
    };
    let pid = holder.as_ref().map(std::process::Child::id);
    let looked = lib.clone();
    ends("discovery", move || {
        disturbed(
            || exchange(&lib, &pipe),
            || {
                for _ in 0..300 {
                    drop(discover::of_path(&looked));
                    pid.into_iter().for_each(|pid| drop(discover::of_pid(pid)));
                }
            },
        );
    });
    holder.iter_mut().for_each(|h| drop(h.kill()));
    holder.iter_mut().for_each(|h| drop(h.wait()));
}

#[test]
fn files_of_others_are_parsed_with_the_least_privileges() {
    /// For access to files and processes of others: CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE.
    const READ: u64 = 1 << 2 | 1 << 19;
    let effective = || {
        let status = fs::read_to_string("/proc/thread-self/status").expect("our own");
        let line = status.lines().find_map(|l| l.strip_prefix("CapEff:")).expect("a line");
        u64::from_str_radix(line.trim(), 16).expect("a number")
    };
    let before = effective();
    let during = std::cell::Cell::new(None);
    let known = |_| {
        during.set(Some(effective()));
        false
    };
    drop(discover::of_pid_again(std::process::id(), &known, &mut HashSet::new()));
    let during = during.get().expect("it looked at a file");
    assert_eq!(during & !READ, 0, "{during:#x}");
    assert_eq!(effective(), before, "all of it is back");
}

#[test]
fn holes_are_not_read() {
    let dir = tempfile::tempdir().expect("a directory");
    let Some(lib) = small(dir.path()) else { return };
    // Name and symbol tables of the maximum size, without any data in them.
    let mut bytes = fs::read(&lib).expect("read");
    let sections = u64::from_le_bytes(bytes[40..48].try_into().expect("eight")) as usize;
    let count = usize::from(u16::from_le_bytes(bytes[60..62].try_into().expect("two")));
    let hole = 7u64 << 30;
    for s in bytes[sections..][..64 * count].chunks_exact_mut(64) {
        // Symbols, strings, exported symbols.
        if matches!(s[4], 2 | 3 | 11) {
            let len = bytes_of(s);
            s[24..32].copy_from_slice(&((1u64 << 30) - len).to_le_bytes());
            s[32..40].copy_from_slice(&(hole - (1 << 30)).to_le_bytes());
        }
    }
    let mut file = File::create(&lib).expect("created");
    file.write_all(&bytes).expect("written");
    file.set_len(hole).expect("a hole");
    let said = ends("discovery", move || discover::of_path(&lib).err().map(|e| e.to_string()));
    assert!(said.is_some_and(|e| e.contains("no GGML")), "it has no names");
}

fn bytes_of(section: &[u8]) -> u64 {
    u64::from_le_bytes(section[32..40].try_into().expect("eight"))
}
