//! Whether the child of a fork may have run through probes before it was probed itself.

use std::os::unix::fs::FileExt;

use crate::host::{maps, memory};
use crate::recorder::attached::AttachedEngine;

/// Bytes of a breakpoint: int3, or brk.
const BREAKPOINT: usize = if cfg!(target_arch = "aarch64") { 4 } else { 1 };

/// Whether the process has engine code without a breakpoint where probed processes have one: the kernel copied the
/// breakpoints with its parent's memory, and removed one at the first hit that no probe wanted. False if unknown:
/// the process or the engine's files are gone.
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
