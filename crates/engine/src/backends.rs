//! The functions that compute the graphs of a live scheduler's backends: reads their addresses from the target's
//! memory, and checks that each is such a function.
//!
//! The target controls its own memory, and a breakpoint in the middle of an instruction, or in a file of another
//! program, could be used for an attack. So an address is accepted only if it is the first byte of a function in
//! one of the engine's own files, and the bytes there are a known instruction.

use std::io;
use std::path::PathBuf;

use crate::discover::EngineModule;
use crate::functions;
use crate::ladder::ProbePoint;
use crate::prologue::{self, Need};
use machine::maps::{self, Mapping};
use machine::memory;

/// First bytes of the GUID of the CPU backend (`ggml_backend_cpu_guid` in ggml-cpu.cpp, since 2024-02), in memory order.
pub const CPU_GUID: [u8; 8] = [0xaa, 0x67, 0xc7, 0x43, 0x96, 0xe6, 0xa3, 0x8a];

/// Bytes of a function to decode.
const CODE: usize = 4096;

/// What the target's memory does not hold where a scheduler's backends should be.
#[derive(Debug, thiserror::Error)]
pub enum BackendsError {
    #[error("scheduler at {address:#x}: {source}")]
    Scheduler { address: u64, source: io::Error },
    #[error("scheduler reports {0} backends: unknown layout")]
    Count(i32),
    #[error("backend at {address:#x}: {source}")]
    Backend { address: u64, source: io::Error },
    #[error("guid of the backend at {address:#x}: {source}")]
    Guid { address: u64, source: io::Error },
    #[error("a backend at the end of memory")]
    End,
    #[error("vtable of a backend: {0}")]
    Vtable(#[source] io::Error),
}

/// Why a backend's function is not probed.
#[derive(Debug, thiserror::Error)]
#[error("graph_compute of a backend ({function:#x}) is not probed: {why}")]
pub struct NotProbed {
    pub function: u64,
    #[source]
    pub why: Unfit,
}

/// What is wrong with the address of a backend's function.
#[derive(Debug, thiserror::Error)]
pub enum Unfit {
    #[error("it is not code from a file")]
    NoCode,
    #[error("its file: {0}")]
    File(#[source] io::Error),
    #[error("{} is not a file of this engine", .0.display())]
    Foreign(PathBuf),
    #[error("its file does not map that address")]
    Unmapped,
    #[error("no function begins there")]
    NoFunction,
    #[error("unknown instruction there")]
    Instruction,
}

/// Addresses of the functions, from the pointer at offset `at` of each backend. Each only once.
///
/// `struct ggml_backend_sched` begins `bool is_reset; bool is_alloc; int n_backends; ggml_backend_t backends[16]`
/// (ggml-backend.cpp, 2024-03 to date).
///
/// # Errors
/// The check that failed.
pub fn functions(pid: u32, scheduler: u64, at: u32) -> Result<Vec<u64>, BackendsError> {
    let mut head = [0; 8 + 16 * 8];
    memory::read(pid, scheduler, &mut head)
        .map_err(|source| BackendsError::Scheduler { address: scheduler, source })?;
    let n = i32::from_le_bytes([head[4], head[5], head[6], head[7]]);
    if !(1..=16).contains(&n) {
        return Err(BackendsError::Count(n));
    }
    let pointers = head[8..].as_chunks::<8>().0.iter().map(|b| u64::from_le_bytes(*b));
    let mut found = Vec::new();
    for address in pointers.take(n as usize) {
        let function = function(pid, address, at)?;
        if !found.contains(&function) {
            found.push(function);
        }
    }
    Ok(found)
}

/// Address of the function from the pointer at offset `at` of one backend, which begins with a pointer to its 16-byte
/// guid: checked.
///
/// # Errors
/// The check that failed.
pub fn function(pid: u32, address: u64, at: u32) -> Result<u64, BackendsError> {
    let guid = memory::read_u64(pid, address).map_err(|source| BackendsError::Backend { address, source })?;
    memory::read(pid, guid, &mut [0; 16]).map_err(|source| BackendsError::Guid { address, source })?;
    let pointer = address.checked_add(at.into()).ok_or(BackendsError::End)?;
    memory::read_u64(pid, pointer).map_err(BackendsError::Vtable)
}

/// Where to probe the function at an address of the target.
///
/// # Errors
/// Why it is not probed.
pub fn point(
    modules: &[EngineModule],
    pid: u32,
    maps: &[Mapping],
    function: u64,
) -> Result<ProbePoint, NotProbed> {
    let refused = |why| NotProbed { function, why };
    let (mapping, offset) = maps::file_offset(maps, function)
        .filter(|(m, _)| m.executable)
        .ok_or_else(|| refused(Unfit::NoCode))?;
    let (_, _, id) = maps::open(pid, mapping).map_err(|e| refused(Unfit::File(e)))?;
    let (place, module) = modules
        .iter()
        .enumerate()
        .find(|(_, m)| (m.dev, m.inode) == id)
        .ok_or_else(|| refused(Unfit::Foreign(mapping.path.clone())))?;
    let elf = &module.elf;
    let vaddr = elf.vaddr_of(offset).ok_or_else(|| refused(Unfit::Unmapped))?;
    if !functions::begins(elf, vaddr) {
        return Err(refused(Unfit::NoFunction));
    }
    let code = elf.bytes_at(vaddr, CODE);
    if prologue::decode(elf.machine, &code).is_none() {
        return Err(refused(Unfit::Instruction));
    }
    Ok(ProbePoint {
        symbol: "(backend vtable) graph_compute",
        module: place,
        sym_file_offset: offset,
        entry: prologue::entry(elf.machine, &code, Need { args: 2, stack: false }),
        ret: Some(prologue::ret(elf.machine, &code)),
        marker: None,
        n_args: 2,
        batch: None,
        node: None,
    })
}
