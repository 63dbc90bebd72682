//! What `/proc` says about a process: the fields of its `stat`, its parent, its start, its user. Nothing here blocks, except
//! [`images`], which may wait for a process that is busy with its own memory.

use std::fs;
use std::io::{BufRead, BufReader};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::Duration;

use rustix::fs::{AtFlags, OFlags, Statx, StatxFlags, statx};

use crate::maps::{self, Mapping};
use common::files;

/// Longest line of a list of mappings: a path and the fields before it.
const LONGEST: usize = 3 * libc::PATH_MAX as usize;

/// The fields of a process's or thread's `stat`, by their numbers in proc_pid_stat(5), from 3 on.
pub struct StatFields(String);

impl StatFields {
    /// None: the process is gone, or the file is none of these.
    pub fn of(pid: u32) -> Option<StatFields> {
        StatFields::read(Path::new(&format!("/proc/{pid}/stat")))
    }

    /// The same for any `stat` file, such as a thread's.
    pub fn read(stat: &Path) -> Option<StatFields> {
        StatFields::parse(&fs::read(stat).ok()?)
    }

    pub fn parse(bytes: &[u8]) -> Option<StatFields> {
        // The name may contain anything, and ends with the last parenthesis.
        let behind = bytes.iter().rposition(|&b| b == b')')? + 1;
        Some(StatFields(std::str::from_utf8(bytes.get(behind..)?).ok()?.to_owned()))
    }

    pub fn number<N: FromStr>(&self, field: usize) -> Option<N> {
        self.0.split_ascii_whitespace().nth(field.checked_sub(3)?)?.parse().ok()
    }

    /// Field 3: `R` is running, `Z` and `X` have ended.
    pub fn state(&self) -> Option<char> {
        self.number(3)
    }

    /// Exists and is not a zombie.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state(), None | Some('Z' | 'X'))
    }

    /// CPU time, user and system.
    pub fn cpu(&self) -> Option<Duration> {
        Some(of_ticks(self.number::<u64>(14)?.saturating_add(self.number(15)?)))
    }
}

/// So many clock ticks, the unit of times in /proc.
pub fn of_ticks(ticks: u64) -> Duration {
    // SAFETY: only returns a number.
    let hz = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).unwrap_or(100).max(1);
    Duration::from_micros(ticks.saturating_mul(1_000_000 / hz))
}

/// What changes while a process runs, and what distinguishes it from another one with the same pid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProcStat {
    pub parent: u32,
    /// When it began, clock ticks since boot. With the pid it identifies a process.
    pub start: u64,
    /// Size of its address space, bytes.
    pub size: u64,
    /// Start of its stack: different after an exec (unless addresses are not randomized), the parent's after a
    /// fork. 0 if we have no access.
    pub stack: u64,
}

/// None: the process is gone.
pub fn stat(pid: u32) -> Option<ProcStat> {
    parse_stat(&fs::read(format!("/proc/{pid}/stat")).ok()?)
}

#[doc(hidden)]
pub fn parse_stat(bytes: &[u8]) -> Option<ProcStat> {
    let fields = StatFields::parse(bytes)?;
    let stat = ProcStat {
        parent: fields.number(4)?,
        start: fields.number(22)?,
        size: fields.number(23)?,
        stack: fields.number(28)?,
    };
    // A zombie has no memory and nothing to show.
    fields.is_alive().then_some(stat)
}

/// Descendants of this process by fork that have run no other program since.
pub fn copies(pid: u32) -> Vec<u32> {
    let Some(stack) = stat(pid).map(|s| s.stack).filter(|&stack| stack != 0) else { return Vec::new() };
    let alike = |pid| stat(pid).filter(|s| s.stack == stack).map(|s| (pid, s.parent));
    let all: Vec<(u32, u32)> = processes().into_iter().filter_map(alike).collect();
    let mut tree = vec![pid];
    let mut next = 0;
    while let Some(&parent) = tree.get(next) {
        tree.extend(all.iter().filter(|one| one.1 == parent).map(|one| one.0));
        next += 1;
    }
    tree.split_off(1)
}

/// The users of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Users {
    /// The user who started it, though the program may have another's privileges.
    pub real: u32,
    pub effective: u32,
}

/// The users of a process.
pub fn users(pid: u32) -> Option<Users> {
    let status = fs::read(format!("/proc/{pid}/status")).ok()?;
    parse_users(&status)
}

pub fn parse_users(status: &[u8]) -> Option<Users> {
    let line = status.split(|&b| b == b'\n').find_map(|l| l.strip_prefix(b"Uid:"))?;
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let mut next = || words.next()?.parse().ok();
    Some(Users { real: next()?, effective: next()? })
}

/// What the kernel knows of an open file without asking its file system, which may not answer.
pub fn status_at_once(file: &fs::File) -> Option<Statx> {
    let flags = AtFlags::EMPTY_PATH | AtFlags::STATX_DONT_SYNC;
    statx(file, c"", flags, StatxFlags::BASIC_STATS).ok()
}

/// Its cgroup in the unified hierarchy; None if the machine has none.
pub fn cgroup(pid: u32) -> Option<String> {
    let text = fs::read(format!("/proc/{pid}/cgroup")).ok()?;
    let path = text.split(|&b| b == b'\n').find_map(|l| l.strip_prefix(b"0::"))?;
    Some(String::from_utf8_lossy(path).into_owned())
}

/// Its program as the process sees it, without the kernel's mark on deleted files; empty if we have no access.
pub fn program(pid: u32) -> PathBuf {
    let link = PathBuf::from(format!("/proc/{pid}/exe"));
    let Ok(path) = fs::read_link(&link) else { return PathBuf::new() };
    let deleted = || {
        files::locate(&link, OFlags::empty())
            .ok()
            .and_then(|f| status_at_once(&f))
            .is_some_and(|s| s.stx_nlink == 0)
    };
    let mut path = path.into_os_string().into_vec();
    if path.ends_with(b" (deleted)") && deleted() {
        path.truncate(path.len() - b" (deleted)".len());
    }
    std::ffi::OsString::from_vec(path).into()
}

/// Passes on the files that the process has mapped executable, with one line in memory at a time.
pub fn images(pid: u32, take: &mut dyn FnMut(Mapping)) {
    let Ok(file) = fs::File::open(format!("/proc/{pid}/maps")) else { return };
    each_image(&mut BufReader::with_capacity(4096, file), take);
}

pub fn each_image(lines: &mut dyn BufRead, take: &mut dyn FnMut(Mapping)) {
    let mut line = Vec::new();
    loop {
        line.clear();
        match lines.read_until(b'\n', &mut line) {
            Ok(n) if n > 0 && line.len() <= LONGEST => {}
            _ => return,
        }
        // Addresses, then permissions. Most mappings are not executable.
        let rights = line.iter().position(|&b| b == b' ').and_then(|at| line.get(at + 1..at + 5));
        if rights.is_none_or(|r| r[2] != b'x') {
            continue;
        }
        if let Some(m) = maps::parse_line(line.strip_suffix(b"\n").unwrap_or(&line)).filter(Mapping::is_file)
        {
            take(m);
        }
    }
}

/// The pids of all processes, ascending.
pub fn processes() -> Vec<u32> {
    let mut pids: Vec<u32> = all().collect();
    pids.sort_unstable();
    pids
}

/// The same in the order of /proc, one by one.
pub fn all() -> impl Iterator<Item = u32> {
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    entries.filter_map(|e| std::str::from_utf8(e.file_name().as_bytes()).ok()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const STAT: &str = "77 (a) b (c) S 5 77 77 0 -1 4194304 1 2 3 4 5 6 7 8 20 0 9 0 1234 56789 10 \
                        18446744073709551615 11 12 140001 0 0";

    #[test]
    fn a_name_holds_anything() {
        let stat = ProcStat { parent: 5, start: 1234, size: 56789, stack: 140_001 };
        assert_eq!(parse_stat(STAT.as_bytes()), Some(stat));
        assert_eq!(parse_stat(STAT.replace(") S", ") Z").as_bytes()), None);
        let users = parse_users(b"Name:\tx\nUid:\t7\t1000\t0\t0\n");
        assert_eq!(users, Some(Users { real: 7, effective: 1000 }));
        assert_eq!(parse_users(b"Name:\tx\n"), None);
    }

    #[test]
    fn this_process_is_there() {
        let us = std::process::id();
        let stat = stat(us).expect("alive");
        assert!(stat.start > 0 && stat.size > 0 && stat.stack > 0, "{stat:?}");
        assert_eq!(users(us).map(|u| u.real), Some(rustix::process::getuid().as_raw()));
        assert_eq!(program(us), std::env::current_exe().expect("a program"));
        assert!(processes().contains(&us));
        let mut own = 0;
        images(us, &mut |m| own += usize::from(m.path == program(us)));
        assert!(own > 0);
        assert!(super::stat(u32::MAX).is_none() && users(u32::MAX).is_none() && cgroup(u32::MAX).is_none());
    }

    #[test]
    fn only_files_to_execute_are_images() {
        let text = b"1000-2000 r--p 00000000 08:01 7 /a\n1000-2000 r-xp 00001000 08:01 7 /a b\n\
                     3000-4000 r-xp 00000000 00:00 0 [vdso]\n5000-6000 r-xp 00000000 08:01 8 /c (deleted)";
        let mut seen = Vec::new();
        each_image(&mut &text[..], &mut |m| seen.push((m.path, m.deleted)));
        assert_eq!(seen, [(PathBuf::from("/a b"), false), (PathBuf::from("/c"), true)]);
    }

    proptest! {
        #[test]
        fn damage_is_no_reason_to_stop(bytes in proptest::collection::vec(any::<u8>(), 0..300), cut in 0usize..140) {
            let _ = parse_stat(&bytes);
            let _ = parse_stat(&STAT.as_bytes()[..cut.min(STAT.len())]);
            let _ = parse_users(&bytes);
            each_image(&mut &bytes[..], &mut |_| {});
        }
    }
}
