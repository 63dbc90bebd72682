//! The trace directory across processes: files in use by others are not removed, their locks are released however
//! they ended, and a full file system is reported as such.

use crate::common;

use std::ffi::CString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use common::skip;
use pfi::{Encoder, EncoderConfig};
use service::store::{Leftovers, Store, TraceFile, is_full};

const DIR: &str = "PROFINFER_TEST_STORE";
const CHURN: &str = "PROFINFER_TEST_CHURN";

fn store(path: &Path) -> Store {
    Store::open(path, 1000, 300, None).expect("a store")
}

/// Run by `Other`: opens the store, creates a file, and waits to be killed; or keeps creating files of all sizes
/// until then.
#[test]
fn the_other_process() {
    let Some(dir) = std::env::var_os(DIR) else { return };
    let store = store(Path::new(&dir));
    let churns = std::env::var_os(CHURN).is_some();
    let _only = (!churns).then(|| store.only().expect("the only one"));
    let mut file = store.create("other").expect("room");
    file.write_all(b"\x89PFI").expect("room");
    println!("\nready {}", file.name());
    let mut random = u64::from(std::process::id()) | 1;
    loop {
        if !churns {
            std::thread::park();
            continue;
        }
        random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        let bytes = (random >> 33) % file.left().max(1);
        file.write_all(&vec![0; bytes as usize]).expect("it is within its limit");
        match random >> 60 {
            0..4 => file = replaced(&store, file),
            4 => drop(store.tidy().expect("tidy")),
            _ => {}
        }
    }
}

/// The next file, after the previous one is closed: there is room for it.
fn replaced(store: &Store, before: TraceFile) -> TraceFile {
    drop(before);
    store.create("other").expect("room")
}

/// This program again, as a separate process that holds a file; killed when dropped.
struct Other(Child);

impl Other {
    fn start(dir: &Path, churns: bool) -> Other {
        let mut command = Command::new(std::env::current_exe().expect("this program"));
        if churns {
            command.env(CHURN, "1");
        }
        command.args(["--exact", "store::the_other_process", "--nocapture"]).env(DIR, dir);
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let mut lines = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        let ready = lines.any(|l| l.is_ok_and(|l| l.starts_with("ready other")));
        let other = Other(child);
        assert!(ready, "the other process has a file");
        other
    }
}

impl Drop for Other {
    fn drop(&mut self) {
        // One that is already gone is fine.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn another_process_keeps_its_file_until_it_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("traces");
    let other = Other::start(&path, false);
    let store = store(&path);
    let file = path.join("other.pfi");
    assert_eq!(store.leftovers().expect("leftovers"), Leftovers::default());
    let ours = [store.create("a").expect("room"), store.create("b").expect("room")];
    assert!(store.create("c").is_err(), "300 bytes are the other's");
    assert_eq!(store.tidy().expect("tidy").writing, 3);
    let second = store.only().expect_err("the other is the only one").to_string();
    assert!(
        second.contains(&format!("used by another service (process {}): stop it", other.0.id())),
        "{second}"
    );
    drop(other);
    let only = store.only().expect("it is gone");
    let usage = store.tidy().expect("tidy");
    assert_eq!((usage.files, usage.writing, usage.bytes), (3, 2, 4));
    assert_eq!(store.leftovers().expect("leftovers").empty, ["other.pfi"]);
    assert!(!file.exists());
    drop((ours, only));
}

#[test]
fn the_quota_holds_while_processes_that_write_are_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("traces");
    let mut others: Vec<Other> = (0..3).map(|_| Other::start(&path, true)).collect();
    // Has no quota, so it removes nothing, and checks under the directory's lock.
    let looks = Store::open(&path, u64::MAX, 300, None).expect("a store");
    let mut most = 0;
    for round in 0..30 {
        for _ in 0..20 {
            let usage = looks.tidy().expect("it can be looked at");
            most = most.max(usage.counted);
            assert!(usage.bytes <= 1000 && usage.counted <= 1000, "{usage:?}");
        }
        if round % 3 == 0 {
            drop(others.remove(0));
            others.push(Other::start(&path, true));
        }
    }
    assert!(most >= 900, "{most} bytes at most: there was nothing to hold");
    for other in &mut others {
        assert!(other.0.try_wait().is_ok_and(|ended| ended.is_none()), "it always had room");
    }
    drop(others);
    let usage = looks.tidy().expect("it can be looked at");
    assert_eq!(usage.writing, 0);
    assert!(usage.removed > 0 && usage.bytes <= 1000, "{usage:?}");
}

/// A small file system in memory; unmounted when dropped.
struct Small<'d>(&'d Path, CString);

impl Small<'_> {
    fn mount(at: &Path) -> std::io::Result<Small<'_>> {
        let path = CString::new(at.as_os_str().as_bytes())?;
        let (kind, options) = (c"tmpfs".as_ptr(), c"size=64k,mode=700".as_ptr());
        // SAFETY: all arguments are C strings that live until the call returns.
        match unsafe { libc::mount(kind, path.as_ptr(), kind, libc::MS_NOSUID, options.cast()) } {
            0 => Ok(Small(at, path)),
            _ => Err(std::io::Error::last_os_error()),
        }
    }
}

impl Drop for Small<'_> {
    fn drop(&mut self) {
        // SAFETY: a C string that outlives the call.
        let done = unsafe { libc::umount2(self.1.as_ptr(), libc::MNT_DETACH) };
        assert_eq!(done, 0, "{} is still mounted", self.0.display());
    }
}

#[test]
fn a_full_file_system_is_said_and_what_was_written_can_be_read() {
    // SAFETY: takes no arguments and returns a number.
    if unsafe { libc::geteuid() } != 0 {
        skip!("not root");
    }
    let dir = tempfile::tempdir().expect("a directory");
    let small = match Small::mount(dir.path()) {
        Ok(small) => small,
        Err(e) => skip!("no file system can be mounted here: {e}"),
    };
    let store = Store::open(dir.path(), 1 << 30, 1 << 20, None).expect("a store");
    let file = store.create("full").expect("room");
    let trace = small.0.join(file.name());
    let cfg = EncoderConfig { block_bytes: 4096, flush_ns: 0, ..EncoderConfig::default() };
    let mut enc = Encoder::new(file, cfg, &trace_support::header()).expect("room");
    let error = (0..100_000).find_map(|seq| {
        let token = trace_support::token(seq, 1_000_003 * seq * seq, 900_000 + seq * seq % 7919);
        enc.token(&token).and_then(|()| enc.tick(token.t as u64)).err()
    });
    let error = error.expect("64 KiB are not enough");
    let pfi::WriteError::Io { source, .. } = &error else { panic!("{error}") };
    assert!(is_full(source), "{error}");
    assert!(error.to_string().contains("No space left on device"), "{error}");
    drop(enc);
    // Creating another file fails, or writing to it; once there is room again everything continues.
    let next = store.create("next").map(|mut f| f.write_all(&[0; 8192]));
    assert!(match next {
        Ok(written) => is_full(&written.expect_err("no room")),
        Err(e) => e.is_full(),
    });
    let read = pfi::Trace::open(&trace).expect("what was written is a trace");
    assert!(read.blocks().len() > 3, "{}", read.blocks().len());
    assert!((0..read.blocks().len()).all(|i| read.block(i).is_ok()), "whole blocks");
    drop(read);
    let found = store.leftovers().expect("leftovers");
    assert_eq!(found.unfinished, 1);
    std::fs::remove_file(trace).expect("it goes");
    store.create("again").expect("room").write_all(&[0; 8192]).expect("room");
}

use crate::trace_support;
