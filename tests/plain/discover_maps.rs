//! Parsing `/proc/PID/maps`, with paths that the target controls.

use std::path::Path;

use machine::maps;
use proptest::prelude::*;

const TEXT: &str = "\
55d0c0a00000-55d0c0a21000 r--p 00000000 fd:01 1052                       /usr/bin/my engine
55d0c0a21000-55d0c0a80000 r-xp 00021000 fd:01 1052                       /usr/bin/my engine
7f2a10000000-7f2a10021000 rw-p 00000000 00:00 0 
7f2a20000000-7f2a20100000 r-xp 00004000 00:2f 77                         /opt/libggml-base.so (deleted)
7f2a30000000-7f2a30100000 r-xp 00000000 103:02 18446744073709551615      /a\\012b (deleted).so
7ffd5d5d2000-7ffd5d5f3000 rw-p 00000000 00:00 0                          [stack]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0                  [vsyscall]
no line of the kernel
";

#[test]
fn lines_of_all_kinds() {
    let maps = maps::parse(TEXT.as_bytes());
    assert_eq!(maps.len(), 7);
    assert_eq!(maps[1].path, Path::new("/usr/bin/my engine"));
    assert_eq!((maps[1].offset, maps[1].executable, maps[1].major, maps[1].minor), (0x21000, true, 0xfd, 1));
    assert!(!maps[2].is_file() && !maps[5].is_file() && maps[3].is_file());
    assert_eq!(
        (maps[3].path.as_path(), maps[3].deleted, maps[3].minor),
        (Path::new("/opt/libggml-base.so"), true, 0x2f)
    );
    // The mark counts only at the end, and a newline in a name is escaped.
    assert_eq!(
        (maps[4].path.as_path(), maps[4].deleted, maps[4].inode),
        (Path::new("/a\nb (deleted).so"), false, u64::MAX)
    );
}

#[test]
fn live_pointers_become_file_offsets() {
    let maps = maps::parse(TEXT.as_bytes());
    let (m, offset) = maps::file_offset(&maps, 0x7f2a_2000_0010).unwrap();
    assert_eq!((m.inode, offset), (77, 0x4010));
    assert!(maps::file_offset(&maps, 0x7f2a_2010_0000).is_none(), "the end is outside");
    assert!(maps::file_offset(&maps, 0x7f2a_1000_0010).is_none(), "anonymous memory");
}

#[test]
fn our_own_process() {
    let pid = std::process::id();
    let maps = maps::read(pid).unwrap();
    let here = our_own_process as *const () as u64;
    let (m, _) = maps::file_offset(&maps, here).expect("this test is code of a file");
    let (_, _, id) = maps::open(pid, m).unwrap();
    assert_eq!(id.1, m.inode);
    let gone = maps::Mapping { inode: m.inode ^ 1, start: 4096, end: 8192, ..m.clone() };
    assert!(maps::open(pid, &gone).is_err(), "another inode under the name is not taken");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_text(text in proptest::collection::vec(any::<u8>(), 0..400)) {
        maps::parse(&text);
    }

    #[test]
    fn any_path(name in "/[ -~&&[^\\\\]]{0,40}", inode in 1u64.., offset: u64) {
        prop_assume!(!name.ends_with(" (deleted)"));
        let line = format!("1000-2000 r-xp {offset:08x} 08:01 {inode}       {name}");
        let m = maps::parse_line(line.as_bytes()).unwrap();
        prop_assert_eq!((m.path.to_str(), m.inode, m.offset), (Some(name.as_str()), inode, offset));
    }
}
