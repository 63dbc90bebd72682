//! The function for one node of a device backend whose file has no symbols: candidates are what the `graph_compute` of
//! a live backend calls, tried one after the other until the arguments of the hits prove one.

use super::{AttachedEngine, VtableError};
use engine::backends;
use engine::enqueue;
use engine::ladder::{Rung, RungMethod};
use engine::probes::Role;
use machine::{capset, maps};

/// What was found for a backend.
pub enum Candidates {
    /// Its file names the function, which is probed.
    Named,
    /// So many functions are tried.
    Some(usize),
    /// Its `graph_compute` calls none that could be it.
    None,
}

impl AttachedEngine {
    /// True until [`AttachedEngine::find_callees`] has been called: once is enough.
    pub fn wants_callees(&self) -> bool {
        self.closed.is_none() && !self.stays && !self.searched && self.prober.takes(Role::Node)
    }

    /// Finds and probes the function for one node of the live `backend` with this name, unless a function of its file
    /// is probed already. What is read of the target is trusted only as far as it names a function of the engine's
    /// own files.
    ///
    /// # Errors
    /// The backend's `graph_compute` was not found.
    pub fn find_callees(&mut self, pid: u32, backend: u64, name: &str) -> Result<Candidates, VtableError> {
        self.searched = true;
        let at = self.engine.layout.graph_compute_off.ok_or(VtableError::Offset)?;
        let few = capset::reading();
        let function = backends::function(pid, backend, at)?;
        let maps = maps::read(pid).map_err(|source| VtableError::Maps { pid, source })?;
        let compute = backends::point(&self.engine.modules, pid, &maps, function);
        let compute = compute.map_err(VtableError::NotProbed)?;
        let known = self.rung(Role::Node).map_or(&[][..], |r| &r.points);
        let Some(module) = self.engine.modules.get(compute.module) else { return Ok(Candidates::None) };
        if known.iter().any(|p| p.module == compute.module) {
            return Ok(Candidates::Named);
        }
        let vaddr = module.elf.vaddr_of(compute.sym_file_offset).unwrap_or(0);
        let found = enqueue::candidates(&module.elf, compute.module, vaddr, name);
        module.elf.release();
        drop(few);
        let n = found.len();
        // The points of other backends stay.
        let rungs: Vec<Rung> = found
            .into_iter()
            .map(|point| Rung {
                name: point.symbol,
                how: RungMethod::Callee,
                points: known.iter().cloned().chain([point]).collect(),
            })
            .collect();
        let replaces = !known.is_empty();
        self.ladder.node.extend(rungs);
        match (n, replaces) {
            (0, _) => return Ok(Candidates::None),
            (_, true) => drop(self.leave(Role::Node, "another backend's function has no symbol")),
            (_, false) => self.attach(Role::Node, 0),
        }
        Ok(Candidates::Some(n))
    }

    /// When the candidate that is probed for nodes was attached, CLOCK_MONOTONIC ns; None if none is.
    pub fn candidate_since(&self) -> Option<u64> {
        let candidate = self.rung(Role::Node).is_some_and(|r| r.how == RungMethod::Callee);
        (candidate && self.closed.is_none() && self.probed(Role::Node)).then_some(self.nodes_since)
    }
}
