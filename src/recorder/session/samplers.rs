//! Names the samplers of which calls were recorded, from the engine's files.

use super::Session;
use crate::recorder::samplers::UnnamedSampler;
use engine::discover::EngineModule;
use engine::samplers;
use machine::maps::Mapping;
use machine::{capset, maps};
use pfi::WriteError;
use pfi::record::SamplerName;

/// Why a sampler has no name.
const ENDED: &str = "its process had ended";
const NO_FILE: &str = "its functions are not in a file";

/// Whether a mapping is of this file. By inode: on some file systems the maps and stat give different devices.
fn is_of(mapping: &Mapping, file: &EngineModule) -> bool {
    mapping.inode == file.inode && mapping.path == file.path_in_target
}

/// Tables of functions whose names are remembered, over all files.
const MOST_NAMES: usize = 1024;
/// Processes of which the files' places are kept.
const MOST_PROCESSES: usize = 1024;

impl Session {
    /// Names the samplers that have no name yet.
    pub(super) fn name_samplers(&mut self) -> Result<(), WriteError> {
        if self.drain.borrow().samplers.unnamed.is_empty() {
            return Ok(());
        }
        let written = self.name_all();
        // What was read of the files is needed no longer.
        for file in self.engines.iter_mut().flat_map(|a| &mut a.engine.modules) {
            file.elf.forget_pointers();
            file.elf.release();
        }
        written
    }

    fn name_all(&mut self) -> Result<(), WriteError> {
        loop {
            let Some(one) = self.drain.borrow_mut().samplers.unnamed.pop_front() else { return Ok(()) };
            let found = self.name_of_sampler(&one);
            let (name, why) = match &found {
                Ok(name) => (&**name, ""),
                Err(why) => ("", &**why),
            };
            let drain = &mut *self.drain.borrow_mut();
            if let Err(why) = &found {
                drain.samplers.nameless.get_or_insert_with(|| why.clone());
            }
            drain.enc.sampler_name(&SamplerName { id: one.id, name, why })?;
        }
    }

    /// Keeps where a process has the engine's files: it may have ended when its samplers are named.
    pub(super) fn keep_maps(&mut self, pid: u32) {
        let Some(mut mapped) = self.options.phases.then(|| maps::read(pid).unwrap_or_default()) else {
            return;
        };
        let modules = || self.engines.iter().flat_map(|a| &a.engine.modules);
        mapped.retain(|m| modules().any(|file| is_of(m, file)));
        // Events of a process may arrive after its end: none is forgotten with it.
        if self.mapped.len() >= MOST_PROCESSES {
            self.mapped.clear();
        }
        if !mapped.is_empty() {
            self.mapped.insert(pid, mapped);
        }
    }

    /// Err says why it is not known. The target can forge what is read here: it decides which part of its own files is read.
    fn name_of_sampler(&mut self, one: &UnnamedSampler) -> Result<String, String> {
        let _few = capset::reading();
        let kept = self.mapped.get(&one.pid).and_then(|mapped| maps::file_offset(mapped, one.table));
        let kept = kept.map(|(mapping, offset)| (mapping.clone(), offset));
        let (mapping, offset) = match kept {
            Some(found) => found,
            None => {
                let live = maps::read(one.pid).unwrap_or_default();
                let found = maps::file_offset(&live, one.table).map(|(m, offset)| (m.clone(), offset));
                found.ok_or(if live.is_empty() { ENDED } else { NO_FILE })?
            }
        };
        let file = mapping.path.display();
        let modules = self.engines.get_mut(usize::from(one.engine)).map(|a| &mut a.engine.modules);
        let module = modules.and_then(|all| all.iter_mut().find(|m| is_of(&mapping, m)));
        let module = module.ok_or_else(|| format!("{file} is not a file of the engine"))?;
        let (id, elf) = ((module.dev, module.inode), &mut module.elf);
        let table = elf.vaddr_of(offset).ok_or_else(|| format!("{file} does not map its functions"))?;
        let key = (id.0, id.1, table);
        if let Some(known) = self.sampler_names.get(&key) {
            return known.clone();
        }
        let name = samplers::name(elf, self.sampler_makers.entry(id).or_default(), table);
        let name = name.ok_or_else(|| format!("{file} does not tell its name"));
        if self.sampler_names.len() < MOST_NAMES {
            self.sampler_names.insert(key, name.clone());
        }
        name
    }
}
