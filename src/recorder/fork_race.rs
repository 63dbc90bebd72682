//! Whether the child of a fork may have run through probes before it was probed itself.

use std::fs;
use std::os::unix::fs::FileExt;

use crate::recorder::attached::AttachedEngine;
use machine::proc::StatFields;
use machine::{affinity, maps, memory};

/// Bytes of a breakpoint: int3, or brk.
const BREAKPOINT: usize = if cfg!(target_arch = "aarch64") { 4 } else { 1 };

/// Whether the process has engine code without a breakpoint where probed processes have one: the kernel copied the
/// breakpoints with its parent's memory, and removed one at the first hit that no probe wanted, or with the probes of
/// another process. False if unknown: the process or the engine's files are gone.
pub fn ran(pid: u32, engine: &AttachedEngine) -> bool {
    let Ok(maps) = maps::read(pid) else { return false };
    engine.breakpoints().any(|(module, offset)| {
        let holds = |m: &&maps::Mapping| {
            m.executable
                && m.inode == module.inode
                && offset.checked_sub(m.offset).is_some_and(|behind| behind < m.end.saturating_sub(m.start))
        };
        let Some(mapping) = maps.iter().find(holds) else { return false };
        let address = mapping.start + (offset - mapping.offset);
        let (mut there, mut code) = ([0; BREAKPOINT], [0; BREAKPOINT]);
        let read = memory::read(pid, address, &mut there);
        let file = module.file.as_ref().is_some_and(|f| f.read_exact_at(&mut code, offset).is_ok());
        read.is_ok() && file && there == code
    })
}

/// Times that the threads of a process were given a CPU; None: one of them runs, or that is not known. Equal before and
/// after: none of them ran in between.
pub fn switches_at_rest(pid: u32) -> Option<u64> {
    let threads = affinity::threads(pid);
    let switches = |tid: &u32| {
        let task = format!("/proc/{pid}/task/{tid}");
        let waits = StatFields::read(format!("{task}/stat").as_ref())?.state()? != 'R';
        let schedstat = fs::read_to_string(format!("{task}/schedstat")).ok().filter(|_| waits)?;
        schedstat.split_ascii_whitespace().nth(2)?.parse::<u64>().ok()
    };
    (!threads.is_empty()).then(|| threads.iter().map(switches).sum())?
}

#[cfg(test)]
mod tests {
    use super::*;

    use std::io::{Read, Write};
    use std::process::{Command, Stdio};

    #[test]
    fn a_process_that_waits_is_at_rest_until_it_runs() {
        let mut cat = Command::new("cat").stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("cat");
        let pid = cat.id();
        let (mut to, mut from) = (cat.stdin.take().expect("a pipe"), cat.stdout.take().expect("a pipe"));
        let mut echo = || {
            to.write_all(b"x").expect("it reads");
            from.read_exact(&mut [0]).expect("it writes");
        };
        let at_rest = || loop {
            match switches_at_rest(pid) {
                Some(switches) => return switches,
                None => std::thread::yield_now(),
            }
        };
        // Once it has answered, it has been loaded and waits for more.
        echo();
        let before = at_rest();
        assert_eq!(switches_at_rest(pid), Some(before));
        echo();
        assert!(at_rest() > before);
        assert_eq!(switches_at_rest(std::process::id()), None, "this thread runs");
        drop(to);
        cat.wait().expect("it ends");
        assert_eq!(switches_at_rest(pid), None, "it is gone");
    }
}
