//! What the source, its probers and its probes share: the functions that may be probed, the processes that have the
//! library, and which programs run in which.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::File;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use super::area::Area;
use super::door::Caller;
use super::jumps::{Jumps, Patch};
use super::moved::{self, Room};
use crate::capture::error::ProbeError;
use engine::elf::ElfMachine;
use engine::probes::Prog;
use machine::maps::{self, FileId, Mapping};

/// As much of a function is read, bytes.
const CODE: usize = 4096;
/// A loader tells sooner of what it has mapped.
const LONG: Duration = Duration::from_secs(1);

/// What probers and probes share with the source.
#[derive(Default)]
pub struct State {
    pub functions: Vec<Function>,
    pub places: HashMap<(FileId, u64, u16), usize>,
    /// The constants of each engine.
    pub engines: Vec<Vec<u8>>,
    /// The engines of each process, as bits.
    pub admitted: HashMap<u32, u32>,
    /// The programs that run: process, function, at its return.
    pub armed: BTreeSet<(u32, usize, bool)>,
    pub processes: BTreeMap<u32, Process>,
    pub news: Vec<String>,
}

/// A function that may be probed.
pub struct Function {
    pub file: FileId,
    pub offset: u64,
    pub engine: u16,
    pub room: Room,
    pub enter: Option<Prog>,
    pub leave: Option<Prog>,
}

/// A process that has the library.
pub struct Process {
    pub area: Area,
    /// Readable when it has ended.
    pub ended: Option<OwnedFd>,
    /// It waits for an answer.
    pub caller: Option<Caller>,
    /// The functions that have a jump: their site, and their address.
    pub sites: HashMap<usize, (usize, u64)>,
    /// Its code that was changed, by address; some of it may have been unloaded.
    pub patches: BTreeMap<u64, Patch>,
    /// Sites that no function has.
    pub free: Vec<usize>,
    /// When an engine of it was last found; its jumps are written when its loader has told.
    pub looked_at: Option<Instant>,
    /// The loader's function has a jump.
    pub follows: bool,
}

pub fn lock(state: &Mutex<State>) -> MutexGuard<'_, State> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl State {
    /// The function at this offset of a file, with room for a jump; adds the program.
    ///
    /// # Errors
    /// The file cannot be read, its code has no room, or another program is there.
    pub fn function(
        &mut self,
        prog: Prog,
        file: &Path,
        offset: u64,
        engine: u16,
    ) -> Result<usize, ProbeError> {
        let open = File::open(file).map_err(ProbeError::open(file))?;
        let meta = open.metadata().map_err(ProbeError::Descriptor)?;
        let id = (meta.dev(), meta.ino());
        let at = match self.places.get(&(id, offset, engine)) {
            Some(&at) => at,
            None => {
                let mut code = vec![0; CODE];
                let read = open.read_at(&mut code, offset).map_err(ProbeError::Descriptor)?;
                code.truncate(read);
                let room = moved::room(MACHINE, &code).map_err(ProbeError::NoRoom)?;
                self.functions.push(Function { file: id, offset, engine, room, enter: None, leave: None });
                self.places.insert((id, offset, engine), self.functions.len() - 1);
                self.functions.len() - 1
            }
        };
        if let Some(function) = self.functions.get_mut(at) {
            let place = if prog.is_return() { &mut function.leave } else { &mut function.enter };
            if place.replace(prog).is_some_and(|other| other != prog) {
                return Err(ProbeError::Taken);
            }
        }
        Ok(at)
    }

    /// Gives a process that waits the jumps that it does not have yet, and lets it go on.
    pub fn go_on(&mut self, pid: u32) {
        let Some(process) = self.processes.get_mut(&pid) else { return };
        let Some(caller) = process.caller.take() else { return };
        let maps = maps::read(pid).unwrap_or_default();
        // What was unloaded took its jumps with it.
        process.sites.retain(|&f, (site, entry)| {
            let there = self.functions.get(f).and_then(|function| address(&maps, function)) == Some(*entry);
            if !there {
                process.free.push(*site);
            }
            there
        });
        let mut jumps = Jumps::new(&maps, caller.hello.thunk, std::mem::take(&mut process.free));
        if !process.follows {
            process.follows = true;
            let loader = Room::of_loader(&maps, caller.hello.loaded);
            match loader {
                Ok(room) => {
                    let site =
                        inside::Site { enter: 1, enter_program: inside::LOADED, ..inside::Site::default() };
                    jumps.add(None, room, caller.hello.loaded, site);
                }
                Err(why) => self.news.push(format!(
                    "process {pid}: an engine that it loads while it runs is not recorded: {why}"
                )),
            }
        }
        for (f, function) in self.functions.iter().enumerate() {
            let Some(entry) = address(&maps, function).filter(|_| !process.sites.contains_key(&f)) else {
                continue;
            };
            let on = |leave: bool| u32::from(self.armed.contains(&(pid, f, leave)));
            let number = |prog: Option<Prog>| prog.and_then(number).unwrap_or(0);
            let site = inside::Site {
                enter: on(false),
                leave: on(true),
                enter_program: number(function.enter),
                leave_program: number(function.leave),
                engine: function.engine,
                ..inside::Site::default()
            };
            jumps.add(Some(f), function.room.clone(), entry, site);
        }
        let first = process.sites.is_empty();
        let made = jumps.make(&caller, &process.area);
        if first && !made.sites.is_empty() {
            // A kernel that cannot is no reason not to record.
            let _ = caller.order(&inside::Order::new(inside::FILL), None);
        }
        process.sites.extend(made.sites);
        process.patches.extend(made.patches.into_iter().map(|patch| (patch.address, patch)));
        process.free = made.free;
        if let Some((number, why)) = made.refused {
            self.news.push(format!("process {pid}: {number} functions could not be probed: {why}"));
        }
        process.area.admit(self.admitted.get(&pid).copied().unwrap_or(0));
        caller.go();
    }

    /// Tells of functions whose code runs without a jump, some time after they were found.
    pub fn tell_unprobed(&mut self) {
        let State { processes, functions, armed, news, .. } = self;
        for (&pid, process) in processes {
            if process.looked_at.is_none_or(|at| at.elapsed() < LONG) || process.caller.is_some() {
                continue;
            }
            process.looked_at = None;
            let maps = maps::read(pid).unwrap_or_default();
            let runs = |(f, function): &(usize, &Function)| {
                !process.sites.contains_key(f)
                    && (armed.contains(&(pid, *f, false)) || armed.contains(&(pid, *f, true)))
                    && address(&maps, function).is_some()
            };
            let missing = functions.iter().enumerate().filter(runs).count();
            if missing > 0 {
                news.push(format!(
                    "process {pid}: {missing} functions are not probed: their code ran already, and is changed only \
                     before it does"
                ));
            }
        }
    }

    /// Turns a program of a function in a process on or off.
    pub fn arm(&mut self, pid: u32, function: usize, leave: bool, on: bool) {
        let changed = if on {
            self.armed.insert((pid, function, leave))
        } else {
            self.armed.remove(&(pid, function, leave))
        };
        if let Some(process) = self.processes.get(&pid).filter(|_| changed)
            && let Some(&(site, _)) = process.sites.get(&function)
        {
            process.area.arm(site, leave, on);
        }
    }
}

/// Where a process has a function in its memory.
pub fn address(maps: &[Mapping], function: &Function) -> Option<u64> {
    let here = |m: &&Mapping| {
        m.executable
            && m.inode == function.file.1
            && (m.offset..m.offset + (m.end - m.start)).contains(&function.offset)
    };
    maps.iter().find(here).map(|m| m.start + (function.offset - m.offset))
}

/// A program's number in the library.
pub fn number(prog: Prog) -> Option<u16> {
    Prog::ALL.iter().position(|p| *p == prog).and_then(|at| u16::try_from(at).ok())
}

/// The machine of this program, and of what it starts.
pub const MACHINE: ElfMachine =
    if cfg!(target_arch = "aarch64") { ElfMachine::Aarch64 } else { ElfMachine::X86_64 };
