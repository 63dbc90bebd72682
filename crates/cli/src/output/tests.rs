//! Tests of output files: names, modes, links, replacement.

use std::fs;
use std::io::Read;
use std::os::unix::fs::symlink;

use super::*;

fn dir() -> tempfile::TempDir {
    tempfile::tempdir().expect("a directory")
}

fn permissions(path: &Path) -> u32 {
    fs::symlink_metadata(path).expect("it is there").permissions().mode() & 0o7777
}

fn says(path: &Path, over: Overwrite) -> String {
    format!("{:#}", OutputFile::create(path, OutputRules::new(over, 0o600)).err().expect("it is refused"))
}

fn names(dir: &Path) -> Vec<String> {
    let all = fs::read_dir(dir).expect("a directory");
    let mut names: Vec<String> =
        all.map(|e| e.expect("an entry").file_name().into_string().expect("text")).collect();
    names.sort_unstable();
    names
}

fn pipe(path: &Path) {
    let path = c_string(path.as_os_str()).expect("a name");
    // SAFETY: the name is NUL-terminated.
    assert_eq!(unsafe { libc::mkfifo(path.as_ptr(), 0o666) }, 0);
}

#[test]
fn modes_let_the_owner_write_and_others_read() {
    for (text, right) in [("0600", 0o600), ("640", 0o640), ("0664", 0o664), ("644", 0o644)] {
        assert_eq!(mode(text), Ok(right));
    }
    for wrong in ["", "0", "0400", "0666", "0755", "4600", "06000", "+600", "0o60", "rw", "800", "66"] {
        assert!(mode(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn a_new_file_has_its_name_and_its_mode_at_once() {
    let dir = dir();
    let path = dir.path().join("run.pfi");
    let mut out = OutputFile::create(&path, OutputRules::new(Overwrite::Never, 0o600)).expect("created");
    out.write_all(b"x").expect("written");
    assert_eq!((permissions(&path), fs::read(&path).expect("there")), (0o600, b"x".to_vec()));
    assert!(says(&path, Overwrite::Never).contains("exists"));
    drop(out);
    assert!(path.exists());
    OutputFile::create(&dir.path().join("shared"), OutputRules::new(Overwrite::Never, 0o664))
        .expect("created");
    assert_eq!(permissions(&dir.path().join("shared")), 0o664, "whatever the umask");
}

#[test]
fn one_that_is_replaced_stays_until_the_new_one_is_worth_it() {
    let dir = dir();
    let path = dir.path().join("run.pfi");
    let link = dir.path().join("other");
    fs::write(&path, "old").expect("written");
    fs::hard_link(&path, &link).expect("a hard link");
    let mut out = OutputFile::create(&path, OutputRules::new(Overwrite::Part, 0o600)).expect("created");
    let name = out.name().expect("a file");
    out.write_all(b"new").expect("written");
    assert_eq!(name.now(), dir.path().join("run.pfi.part"));
    assert_eq!((name.is_part(), name.bytes()), (true, Some(3)));
    // Left by a killed process: it is kept.
    let second = OutputFile::create(&path, OutputRules::new(Overwrite::Part, 0o600))
        .expect("created")
        .name()
        .expect("a file");
    assert_eq!(names(dir.path()), ["other", "run.pfi", "run.pfi.part", "run.pfi.part2"]);
    second.remove();
    assert_eq!(fs::read(&path).expect("there"), b"old");
    name.settle().expect("settled");
    assert_eq!((fs::read(&path).expect("there"), permissions(&path)), (b"new".to_vec(), 0o600));
    assert_eq!(fs::read(&link).expect("there"), b"old", "what else has the old one's bytes");
    // Another's file is not removed.
    fs::remove_file(&path).expect("removed");
    fs::write(&path, "another's").expect("written");
    name.remove();
    assert_eq!(names(dir.path()), ["other", "run.pfi"]);
}

#[test]
fn links_are_not_followed() {
    let dir = dir();
    let (path, victim) = (dir.path().join("run.pfi"), dir.path().join("victim"));
    fs::write(&victim, "precious").expect("written");
    for target in [victim.as_path(), Path::new("nowhere")] {
        symlink(target, &path).expect("a link");
        for over in [Overwrite::Never, Overwrite::NeverHidden, Overwrite::Part, Overwrite::Hidden] {
            assert!(says(&path, over).contains("is a link, which is not followed"), "{over:?}");
        }
        fs::remove_file(&path).expect("removed");
    }
    // A file that appears while the new one is written is replaced.
    fs::write(&path, "old").expect("written");
    let out = OutputFile::create(&path, OutputRules::new(Overwrite::Part, 0o600)).expect("created");
    fs::remove_file(&path).expect("removed");
    symlink(&victim, &path).expect("a link");
    out.name().expect("a file").settle().expect("settled");
    assert_eq!(fs::read(&victim).expect("there"), b"precious");
    assert!(fs::symlink_metadata(&path).expect("there").is_file());
    assert_eq!(names(dir.path()), ["run.pfi", "victim"]);
}

#[test]
fn the_directory_is_the_one_that_was_named() {
    let dir = dir();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    fs::create_dir(&one).expect("a directory");
    fs::create_dir(&two).expect("a directory");
    fs::write(one.join("x"), "old").expect("written");
    let out =
        OutputFile::create(&one.join("../one/x"), OutputRules::new(Overwrite::Part, 0o600)).expect("created");
    fs::rename(&one, dir.path().join("moved")).expect("moved");
    symlink(&two, &one).expect("a link");
    out.name().expect("a file").settle().expect("settled");
    assert_eq!(fs::read(dir.path().join("moved/x")).expect("there"), b"");
    assert_eq!(names(&two), Vec::<String>::new());
    for place in ["", "..", "/", "no/x"] {
        assert!(!says(&dir.path().join(place).join(""), Overwrite::Never).is_empty(), "{place}");
    }
    assert!(says(&two, Overwrite::Hidden).contains("is a directory"));
}

#[test]
fn pipes_and_devices_are_written_into() {
    let null = OutputFile::create(Path::new("/dev/null"), OutputRules::new(Overwrite::Never, 0o600))
        .expect("opened");
    assert!(null.name().is_none());
    let dir = dir();
    let path = dir.path().join("pipe");
    pipe(&path);
    let reader = std::thread::spawn({
        let path = path.clone();
        move || {
            let mut text = String::new();
            File::open(path).and_then(|mut f| f.read_to_string(&mut text)).expect("read");
            text
        }
    });
    let mut out = OutputFile::create(&path, OutputRules::new(Overwrite::Never, 0o600)).expect("opened");
    assert!(out.name().is_none() && !pfi::Output::seekable(&out));
    out.write_all(b"through").expect("written");
    drop(out);
    assert_eq!(reader.join().expect("no panic"), "through");
    // Like the name from a shell's >(...): a link, in a directory of our own.
    let link = dir.path().join("link");
    symlink("/dev/null", &link).expect("a link");
    assert!(
        OutputFile::create(&link, OutputRules::new(Overwrite::Hidden, 0o600))
            .expect("opened")
            .name()
            .is_none()
    );
}

#[test]
fn what_somebody_else_put_into_an_open_directory_is_refused() {
    let dir = dir();
    fs::set_permissions(dir.path(), Permissions::from_mode(0o1777)).expect("its mode");
    let (own, others, link) = (dir.path().join("own"), dir.path().join("others"), dir.path().join("link"));
    pipe(&own);
    pipe(&others);
    symlink("/dev/null", &link).expect("a link");
    assert!(says(&link, Overwrite::Never).contains("belongs to another user"));
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&others, Some(65534), None).expect("its owner");
        assert!(says(&others, Overwrite::Hidden).contains("belongs to another user"));
    }
    let reader = std::thread::spawn({
        let own = own.clone();
        move || drop(File::open(own).expect("opened"))
    });
    OutputFile::create(&own, OutputRules::new(Overwrite::Never, 0o600)).expect("ours");
    reader.join().expect("no panic");
}

#[test]
fn a_page_is_written_in_full_or_not_at_all() {
    let dir = dir();
    let path = dir.path().join("run.html");
    let rules = |mode| OutputRules::new(Overwrite::Hidden, mode);
    whole(&path, rules(0o600), |()| true, |out| out.write_all(b"one")).expect("written");
    assert_eq!(permissions(&path), 0o600);
    let failed = whole(
        &path,
        rules(0o600),
        |()| true,
        |out| {
            out.write_all(b"two")?;
            Err(io::ErrorKind::StorageFull.into())
        },
    );
    assert!(failed.is_err());
    whole(&path, rules(0o600), |()| false, |out| out.write_all(b"three")).expect("written, and not kept");
    assert_eq!(
        (fs::read(&path).expect("there"), names(dir.path())),
        (b"one".to_vec(), vec!["run.html".to_owned()])
    );
    whole(&path, rules(0o640), |()| true, |out| out.write_all(b"four")).expect("written");
    assert_eq!((fs::read(&path).expect("there"), permissions(&path)), (b"four".to_vec(), 0o640));
}

#[test]
fn a_file_that_exists_is_kept_whenever_it_appears() {
    let dir = dir();
    let path = dir.path().join("model");
    let rules = OutputRules::new(Overwrite::NeverHidden, SHARED).hint("");
    rules.check(&path).expect("free");
    let late = whole(
        &path,
        rules,
        |()| true,
        |out| {
            out.write_all(b"ours")?;
            assert!(!path.exists(), "incomplete");
            fs::write(&path, "another's")
        },
    );
    let says = format!("{} exists: give another name, or use --force to replace it", path.display());
    assert_eq!(format!("{:#}", late.expect_err("it is refused")), says);
    assert_eq!(rules.check(&path).expect_err("it exists").to_string(), says);
    assert_eq!(
        (fs::read(&path).expect("there"), names(dir.path())),
        (b"another's".to_vec(), vec!["model".to_owned()])
    );
    fs::remove_file(&path).expect("removed");
    whole(&path, rules, |()| true, |out| out.write_all(b"ours")).expect("written");
    assert_eq!(
        (fs::read(&path).expect("there"), names(dir.path())),
        (b"ours".to_vec(), vec!["model".to_owned()])
    );
    let by_umask = dir.path().join("by umask");
    fs::write(&by_umask, "").expect("written");
    assert_eq!(permissions(&path), permissions(&by_umask));
}
