//! The functions that compute the graphs of a live scheduler's backends: reads their addresses from the target's
//! memory, and checks that each is such a function.
//!
//! The target controls its own memory, and a breakpoint in the middle of an instruction, or in a file of another
//! program, could be used for an attack. So an address is accepted only if it is the first byte of a function in
//! one of the engine's own files, and the bytes there are a known instruction.

use crate::engine::discover::Module;
use crate::engine::functions;
use crate::engine::ladder::ProbePoint;
use crate::engine::prologue::{self, Need};
use crate::host::maps::{self, Mapping};
use crate::host::memory;

/// Bytes of a function to decode.
const CODE: usize = 4096;

/// Addresses of the functions, from the pointer at offset `at` of each backend. Each only once.
///
/// `struct ggml_backend_sched` begins `bool is_reset; bool is_alloc; int n_backends; ggml_backend_t backends[16]`
/// (ggml-backend.cpp, 2024-03 to date). Each backend begins with a pointer to its 16-byte guid: checked.
///
/// # Errors
/// The check that failed.
pub fn functions(pid: u32, scheduler: u64, at: u32) -> Result<Vec<u64>, String> {
    let mut head = [0; 8 + 16 * 8];
    memory::read(pid, scheduler, &mut head).map_err(|e| format!("scheduler at {scheduler:#x}: {e}"))?;
    let n = i32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    if !(1..=16).contains(&n) {
        return Err(format!("scheduler reports {n} backends: unknown layout"));
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
        .ok_or_else(|| refused("it is not code from a file"))?;
    let (_, _, id) = maps::open(pid, mapping).map_err(|e| refused(&format!("its file: {e}")))?;
    let (place, module) = modules
        .iter()
        .enumerate()
        .find(|(_, m)| (m.dev, m.inode) == id)
        .ok_or_else(|| refused(&format!("{} is not a file of this engine", mapping.path.display())))?;
    let elf = &module.elf;
    let vaddr = elf.vaddr_of(offset).ok_or_else(|| refused("its file does not map that address"))?;
    if !functions::begins(elf, vaddr) {
        return Err(refused("no function begins there"));
    }
    let code = elf.bytes_at(vaddr, CODE);
    if prologue::decode(elf.machine, &code).is_none() {
        return Err(refused("unknown instruction there"));
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
