//! The functions that compute the graphs of a live scheduler's backends: their addresses, read from the target's memory, and
//! whether each is what it should be. Uses `discover`, `functions`, `ladder`, `maps`, `memory` and `prologue`.
//!
//! The target's memory is the target's to write, and a breakpoint inside of an instruction, or in somebody else's file, is a
//! weapon. So an address counts only where it is the first byte of a function in one of the engine's own files, and where
//! the bytes there are an instruction that we know.

use super::discover::Module;
use super::functions;
use super::ladder::ProbePoint;
use super::maps::{self, Mapping};
use super::memory;
use super::prologue::{self, Need};

/// Bytes of a function that are decoded.
const CODE: usize = 4096;

/// Addresses of the functions, by the offset `at` of their pointer in a backend. Each once.
///
/// `struct ggml_backend_sched` begins `bool is_reset; bool is_alloc; int n_backends; ggml_backend_t backends[16]`
/// (ggml-backend.cpp, 2024-03 to date). Each backend begins with a pointer to its 16-byte guid: checked.
///
/// # Errors
/// Which check failed.
pub fn functions(pid: u32, scheduler: u64, at: u32) -> Result<Vec<u64>, String> {
    let mut head = [0; 8 + 16 * 8];
    memory::read(pid, scheduler, &mut head).map_err(|e| format!("scheduler at {scheduler:#x}: {e}"))?;
    let n = i32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    if !(1..=16).contains(&n) {
        return Err(format!("scheduler says it has {n} backends: not a layout we know"));
    }
    let pointers = head[8..].as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b));
    let mut found = Vec::new();
    for backend in pointers.take(n as usize) {
        let guid = memory::read_u64(pid, backend).map_err(|e| format!("backend at {backend:#x}: {e}"))?;
        memory::read(pid, guid, &mut [0; 16])
            .map_err(|e| format!("guid of the backend at {backend:#x}: {e}"))?;
        let pointer = backend.checked_add(at.into()).ok_or("a backend at the end of memory")?;
        let function = memory::read_u64(pid, pointer).map_err(|e| format!("vtable of a backend: {e}"))?;
        if !found.contains(&function) {
            found.push(function);
        }
    }
    Ok(found)
}

/// Where to probe the function at an address of the target.
///
/// # Errors
/// Why it is not probed.
pub fn point(modules: &[Module], pid: u32, maps: &[Mapping], function: u64) -> Result<ProbePoint, String> {
    let refused = |why: &str| format!("graph_compute of a backend ({function:#x}) is not probed: {why}");
    let (mapping, offset) = maps::file_offset(maps, function)
        .filter(|(m, _)| m.executable)
        .ok_or_else(|| refused("it is no code of a file"))?;
    let (_, _, id) = maps::open(pid, mapping).map_err(|e| refused(&format!("its file: {e}")))?;
    let (place, module) = modules
        .iter()
        .enumerate()
        .find(|(_, m)| (m.dev, m.inode) == id)
        .ok_or_else(|| refused(&format!("{} is no file of this engine", mapping.path.display())))?;
    let elf = &module.elf;
    let vaddr = elf.vaddr_of(offset).ok_or_else(|| refused("its file does not load it there"))?;
    if !functions::begins(elf, vaddr) {
        return Err(refused("no function begins there"));
    }
    let code = elf.bytes_at(vaddr, CODE);
    if prologue::decode(elf.machine, &code).is_none() {
        return Err(refused("the instruction there is not known"));
    }
    Ok(ProbePoint {
        symbol: "(backend vtable) graph_compute",
        module: place,
        sym_file_offset: offset,
        entry: prologue::entry(elf.machine, &code, Need { args: 2, stack: false }),
        ret: Some(prologue::ret(elf.machine, &code)),
        n_args: 2,
        batch: None,
    })
}
