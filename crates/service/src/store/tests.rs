//! Tests of the directory of traces: quota, age, locks, leftovers.

use std::os::unix::fs::symlink;
use std::sync::OnceLock;

use proptest::prelude::*;
use tempfile::TempDir;

use super::*;

fn dir() -> TempDir {
    tempfile::tempdir().expect("a directory")
}

fn store(dir: &TempDir, quota: u64, reserve: u64) -> Store {
    Store::open(&dir.path().join("traces"), quota, reserve, None).expect("a store")
}

/// A complete file of this size, last written this many seconds ago.
fn put(store: &Store, name: &str, bytes: usize, age: u64) {
    let file = store.place.create(&format!("{name}.pfi")).expect("a file");
    (&file).write_all(&vec![0; bytes]).expect("room");
    // Files of the same age have the same timestamp, to the nanosecond.
    static NOW: OnceLock<SystemTime> = OnceLock::new();
    let now = *NOW.get_or_init(SystemTime::now);
    file.set_modified(now - Duration::from_secs(age)).expect("a time");
}

fn names(store: &Store) -> Vec<String> {
    let mut names: Vec<String> =
        store.entries().expect("entries").into_iter().map(|e| e.name.replace(".pfi", "")).collect();
    names.sort_unstable();
    names
}

#[test]
fn the_oldest_go_until_there_is_room_and_none_being_written() {
    let dir = dir();
    let store = store(&dir, 1000, 300);
    let mut first = store.create("first").expect("room");
    first.write_all(&[1; 10]).expect("room");
    first.file.set_modified(SystemTime::UNIX_EPOCH).expect("a time");
    for (name, bytes, age) in [("c", 100, 50), ("b", 200, 70), ("a", 1, 70), ("d", 200, 10)] {
        put(&store, name, bytes, age);
    }
    // 300 for the first, 501 for the others: 100 are wanted of them, and the two oldest have 201.
    let second = store.create("second").expect("room");
    assert_eq!(names(&store), ["c", "d", "first", "second"]);
    let usage = store.tidy().expect("tidy");
    let known = DirectoryUsage { files: 4, writing: 2, bytes: 310, counted: 900, quota: 1000, removed: 2 };
    assert_eq!(usage, known);
    drop((first, second));
    assert_eq!(store.tidy().expect("tidy").counted, 310);
    drop(store.create("third").expect("room"));
    // Nothing was written to the other two: they leave no names.
    assert_eq!(names(&store), ["c", "d", "first"]);
}

#[test]
fn when_all_is_being_written_there_is_no_room_and_nothing_goes() {
    let dir = dir();
    let store = store(&dir, 700, 300);
    put(&store, "old", 50, 1000);
    let one = store.create("one").expect("room");
    let two = store.create("two").expect("room");
    assert_eq!(names(&store), ["old", "one", "two"]);
    let error = store.create("three").expect_err("no room");
    assert!(matches!(error, StoreError::NoRoom { writing: 2, .. }), "{error}");
    assert!(error.to_string().contains("within the quota of 700 bytes"), "{error}");
    assert_eq!(names(&store), ["old", "one", "two"]);
    drop(one);
    store.create("three").expect("room again");
    drop(two);
    assert_eq!(store.tidy().expect("tidy").writing, 0);
}

#[test]
fn a_quota_that_became_smaller_is_kept_by_the_next_tick() {
    let dir = dir();
    for (i, bytes) in [400, 300, 200, 100].into_iter().enumerate() {
        put(&store(&dir, 1000, 100), &format!("f{i}"), bytes, 100 - i as u64);
    }
    let store = store(&dir, 350, 100);
    assert_eq!(store.tidy().expect("tidy").bytes, 300);
    assert_eq!(names(&store), ["f2", "f3"]);
    assert_eq!(store.tidy().expect("tidy").removed, 2);
}

thread_local! {
    /// The simulated time since boot, ns.
    static UP: Cell<u64> = const { Cell::new(0) };
}

const HOUR: u64 = 3_600_000_000_000;

/// A store that keeps files for an hour, by the test's clock.
fn aged(dir: &TempDir, boot: &str) -> Store {
    let hour = Some(Duration::from_secs(3600));
    let store = Store::open(&dir.path().join("traces"), 1000, 100, hour).expect("a store");
    Store { boot: boot.into(), uptime: || UP.get(), ..store }
}

fn passes(ns: u64) {
    UP.set(UP.get() + ns);
}

#[test]
fn what_is_too_old_goes_but_not_while_it_is_written() {
    let dir = dir();
    let store = aged(&dir, "first");
    // Last written before the clock was set, or after it was set back: this shows nothing.
    for (name, age) in [("a", 0), ("b", 40 * 365 * 86_400)] {
        put(&store, name, 10, age);
    }
    let file = store.place.create("future.pfi").expect("a file");
    file.set_modified(SystemTime::now() + Duration::from_secs(86_400)).expect("a time");
    let open = store.create("open").expect("room");
    open.file.set_modified(SystemTime::UNIX_EPOCH).expect("a time");
    store.tidy().expect("tidy");
    assert_eq!(names(&store), ["a", "b", "future", "open"]);
    passes(HOUR / 2);
    put(&store, "young", 10, 40 * 365 * 86_400);
    assert_eq!(store.tidy().expect("tidy").removed, 0);
    passes(HOUR / 2 + 1);
    assert_eq!(store.tidy().expect("tidy").removed, 3);
    assert_eq!(names(&store), ["open", "young"]);
    passes(HOUR / 2);
    store.tidy().expect("tidy");
    assert_eq!(names(&store), ["open"]);
    passes(10 * HOUR);
    (&open.file).write_all(b"x").expect("room");
    drop(open);
    fs::write(store.place.at("open.pfi"), "x").expect("a file");
    store.tidy().expect("tidy");
    assert_eq!(names(&store), ["open"], "it has ended just now");
}

#[test]
fn ages_go_on_after_a_boot_and_by_nothing_else() {
    let dir = dir();
    UP.set(5 * HOUR);
    let store = aged(&dir, "first");
    put(&store, "a", 10, 0);
    store.tidy().expect("tidy");
    passes(HOUR / 2);
    put(&store, "b", 10, 0);
    store.tidy().expect("tidy");
    // Two boots, the first only for a moment, the second for a long time before anything is checked.
    UP.set(1);
    aged(&dir, "second").tidy().expect("tidy");
    UP.set(40 * HOUR);
    let store = aged(&dir, "third");
    store.tidy().expect("tidy");
    passes(HOUR / 2 - 1);
    assert_eq!(store.tidy().expect("tidy").removed, 0);
    passes(2);
    store.tidy().expect("tidy");
    assert_eq!(names(&store), ["b"]);
    // Damage makes nothing older, and planted links are not followed.
    for text in ["", "rubbish", "1 third 0\n"] {
        fs::write(store.place.at(ages::NAME), text).expect("written");
        store.tidy().expect("tidy");
        assert_eq!(names(&store), ["b"], "{text}");
    }
    let outside = dir.path().join("outside");
    fs::write(&outside, "precious").expect("written");
    fs::remove_file(store.place.at(ages::NAME)).expect("removed");
    symlink(&outside, store.place.at(ages::NAME)).expect("a link");
    put(&store, "c", 10, 0);
    store.tidy().expect("tidy");
    assert_eq!(fs::read(&outside).expect("there"), b"precious");
    assert!(fs::symlink_metadata(store.place.at(ages::NAME)).expect("there").is_file());
}

#[test]
fn a_flood_of_one_user_leaves_the_others_files() {
    let dir = dir();
    let store = store(&dir, 1000, 100);
    let record = |uid: u32, n: u32| {
        let mut file = store.create(&Store::name("llama-cli", uid, n)).expect("room");
        file.write_all(&[0; 100]).expect("room");
        assert_eq!(owner(file.name()), Some(uid));
    };
    (0..4).for_each(|n| record(0, n));
    put(&store, "20261121T204143.123Z-llama-cli-42", 100, 0);
    (0..40).for_each(|n| record(1000, n));
    let of = |who: TraceOwner| names(&store).iter().filter(|n| owner(n) == who).count();
    assert_eq!((of(Some(0)), of(None), of(Some(1000))), (4, 1, 5));
}

#[test]
fn users_are_told_from_names_whatever_the_program_is_called() {
    assert_eq!(owner(&Store::name("x-u7-", 1000, 42)), Some(1000));
    assert_eq!(owner("20261121T204143.123Z-u0-x-1.pfi"), Some(0));
    for earlier in [
        "20261121T204143.123Z-llama-cli-42.pfi",
        "u5-x.pfi",
        "x-u5-y.pfi",
        "20261121T204143.123Z-u-1.pfi",
        "Z-u+1-2.pfi",
        "Z-u99999999999-1.pfi",
        "x",
    ] {
        assert_eq!(owner(earlier), None, "{earlier}");
    }
}

#[test]
fn nothing_is_read_again_where_nothing_has_changed() {
    let dir = dir();
    let hour = Duration::from_secs(3600);
    let store = aged(&dir, "first");
    put(&store, "a", 10, 100);
    store.tidy().expect("tidy");
    File::open(store.path()).and_then(|d| d.set_modified(SystemTime::now() - hour)).expect("a time");
    let first = store.tidy().expect("tidy");
    let seen = store.seen.get().expect("it is remembered");
    assert_eq!((seen.usage, first.bytes), (first, 10));
    assert_eq!(seen.until - UP.get(), ages::KEPT.as_nanos() as u64);
    store.seen.set(Some(TidyResult { usage: DirectoryUsage { bytes: 77, ..first }, ..seen }));
    assert_eq!(store.tidy().expect("tidy").bytes, 77);
    // A file became too old, or there is a new one.
    for seen in
        [TidyResult { until: UP.get(), ..seen }, TidyResult { changed: SystemTime::UNIX_EPOCH, ..seen }]
    {
        store.seen.set(Some(TidyResult { usage: DirectoryUsage { bytes: 77, ..first }, ..seen }));
        assert_eq!(store.tidy().expect("tidy").bytes, 10);
    }
    let _open = store.create("b").expect("room");
    assert_eq!(store.tidy().expect("tidy").files, 2);
    store.tidy().expect("tidy");
    assert!(store.seen.get().is_none(), "what is being written grows");
}

#[test]
fn a_file_is_made_beside_what_stands_in_its_place() {
    let dir = dir();
    let store = store(&dir, 1000, 10);
    let outside = dir.path().join("outside");
    symlink(&outside, store.place.at("x.pfi")).expect("a link");
    fs::create_dir(store.place.at("x-2.pfi")).expect("a directory");
    let mut made = store.create("x").expect("room");
    assert_eq!(made.name(), "x-3.pfi");
    made.write_all(b"data").expect("room");
    assert!(!outside.exists());
    // Neither the link nor the directory is a trace.
    assert_eq!(store.tidy().expect("tidy").files, 1);
    made.discard().expect("it can be removed");
    assert_eq!(store.tidy().expect("tidy").files, 0);
}

#[test]
fn names_are_data_of_a_small_alphabet() {
    let name = Store::name("/opt/evil \n\u{202e}/llama cli\u{1b}[31m", 7, 42);
    let (time, rest) = name.split_once('-').expect("a time");
    assert_eq!((time.len(), rest), ("20261121T204143.123Z".len(), "u7-llama_cli__31m-42"));
    assert!(Store::name("", 0, 1).ends_with("Z-u0-engine-1"));
    assert!(Store::name("/", 0, 1).ends_with("Z-u0-engine-1"));
    let long = Store::name(&"x".repeat(4096), 1, 7);
    assert!(long.ends_with(&format!("-{}-7", "x".repeat(NAME_BYTES))), "{long}");
    let dir = dir();
    let store = store(&dir, 1000, 10);
    assert_eq!(store.create("../../etc/passwd").expect("room").name(), "_.._.._etc_passwd.pfi");
    assert_eq!(store.create(".lock").expect("room").name(), "_.lock.pfi");
    assert_eq!(store.create("-rf").expect("room").name(), "_-rf.pfi");
}

#[test]
fn a_file_grows_to_its_limit_and_not_beyond() {
    let dir = dir();
    let store = store(&dir, 1 << 20, 1024);
    let mut file = store.create("x").expect("room");
    file.write_all(&[7; 1000]).expect("room");
    let error = file.write_all(&[8; 25]).expect_err("too much");
    assert_eq!(error.to_string(), "x.pfi may not exceed 1 KiB");
    assert!(!is_full(&error));
    file.write_all(&[9; 24]).expect("the rest");
    assert_eq!((file.bytes(), file.left()), (1024, 0));
    Output::write_at(&mut file, 10, b"!").expect("what was written before");
    assert!(Output::write_at(&mut file, 1020, b"12345").is_err());
    drop(file);
    let bytes = fs::read(store.place.at("x.pfi")).expect("it is there");
    assert_eq!((bytes.len(), bytes[10], bytes[1023]), (1024, b'!', 9));
}

#[test]
fn a_quota_below_one_file_is_refused() {
    let dir = dir();
    let error = Store::open(dir.path(), 1 << 20, 64 << 20, None).expect_err("too small");
    let says = "the quota of 1 MiB is less than the 64 MiB that one file may take: raise the quota, or use smaller files";
    assert_eq!(error.to_string(), says);
}

#[test]
fn what_a_dead_service_left_is_found() {
    let dir = dir();
    let store = store(&dir, 1 << 20, 1000);
    let header = b"\x89PFI\r\n\x1a\n\x01\0\x02\0";
    for (name, bytes) in
        [("empty.pfi", &b""[..]), ("header.pfi", header), ("other.pfi", b"what?"), (".status.json.tmp", b"{")]
    {
        fs::write(store.place.at(name), bytes).expect("a file");
    }
    let open = store.create("open").expect("room");
    let mut found = store.leftovers().expect("leftovers");
    found.empty.sort_unstable();
    assert_eq!(found.empty, ["empty.pfi", "header.pfi"]);
    assert_eq!((found.temporary, found.unfinished), (vec![".status.json.tmp".to_owned()], 1));
    assert_eq!(names(&store), ["open", "other"]);
    drop(open);
    assert_eq!(names(&store), ["other"]);
    assert_eq!(store.leftovers().expect("leftovers"), Leftovers { unfinished: 1, ..Leftovers::default() });
}

#[test]
fn a_full_file_system_is_told_from_other_errors() {
    let full = |code| io::Error::from_raw_os_error(code);
    let file = |code| StoreError::File { what: "create", name: "x".into(), source: full(code) };
    assert!(is_full(&full(libc::ENOSPC)) && is_full(&full(libc::EDQUOT)) && !is_full(&full(libc::EIO)));
    assert!(file(libc::ENOSPC).is_full() && !file(libc::EACCES).is_full());
    assert!(!StoreError::Busy { path: String::new() }.is_full());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Whatever is created, written, closed and tidied in whatever order: the bytes on disk stay within the quota.
    #[test]
    fn the_quota_is_never_exceeded(
        quota in 100u64..1000, reserve in 1u64..100, steps in prop::collection::vec((0u8..5, 0usize..120, 0usize..8), 1..60)
    ) {
        let dir = dir();
        // Another process has its own store.
        let stores = [store(&dir, quota, reserve), store(&dir, quota, reserve)];
        let mut open: Vec<TraceFile> = Vec::new();
        for (what, bytes, which) in steps {
            let store = &stores[which % 2];
            match what {
                0 | 1 => match store.create("x") {
                    Ok(file) => open.push(file),
                    Err(e) => prop_assert!((open.len() as u64 + 1) * reserve > quota, "{e} with {} open", open.len()),
                },
                2 if !open.is_empty() => {
                    let at = which % open.len();
                    let fits = bytes as u64 <= open[at].left();
                    prop_assert_eq!(open[at].write_all(&vec![0; bytes]).is_ok(), fits);
                }
                3 if !open.is_empty() => drop(open.swap_remove(which % open.len())),
                _ => prop_assert!(store.tidy().expect("tidy").counted <= quota),
            }
            let now: u64 = store.entries().expect("entries").iter().map(|e| e.bytes).sum();
            prop_assert!(now <= quota, "{now} of {quota}");
            for file in &open {
                prop_assert!(store.place.at(file.name()).exists(), "{} is gone while it is written", file.name());
            }
        }
    }
}
