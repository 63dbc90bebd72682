//! What a session writes to the trace about engines, modules and probes, and reports to the user.

use std::io::Write;

use super::Session;
use super::output::notice;
use crate::capture::sched;
use crate::capture::structure::{GLU_BASE, OPS_PER_ENGINE, TYPES_PER_ENGINE, UNARY_BASE};
use crate::recorder::recording::SessionObserver;
use engine::discover::{DiscoveredEngine, EngineModule};
use engine::version;
use machine::maps;
use pfi::record;
use pfi::{Encoder, WriteError};

/// Kinds of UNARY and GLU that get a name even if the engine's tables have none.
const KINDS_TOLD: usize = 64;

impl Session {
    /// Writes which counters there are.
    pub(super) fn count(&mut self, watch: &mut dyn SessionObserver) -> Result<(), WriteError> {
        let Some(counters) = &self.counters else { return Ok(()) };
        for text in counters.notices() {
            notice(&self.drain, &text, watch)?;
        }
        counters.tell(&mut self.drain.borrow_mut().enc)
    }

    pub(super) fn define(&mut self, id: u16, engine: &DiscoveredEngine) -> Result<(), WriteError> {
        let enc = &mut self.drain.borrow_mut().enc;
        let version =
            engine.modules.iter().find(|m| m.roles.base).map(|m| version::of(&m.elf)).unwrap_or_default();
        let layout = engine.layout_told();
        enc.engine(&record::Engine { id: id.into(), version: &version, layout: &layout })?;
        let (ops, t) = (id * OPS_PER_ENGINE, &engine.tables);
        for (i, name) in t.ops.iter().enumerate().take(UNARY_BASE.into()) {
            enc.op_def(ops + i as u16, name, name);
        }
        for (base, name, kinds) in [(UNARY_BASE, "UNARY", &t.unary), (GLU_BASE, "GLU", &t.glu)] {
            // A kind that the table does not name is written by its number.
            for i in 0..kinds.len().clamp(KINDS_TOLD, UNARY_BASE.into()) {
                let unnamed = format!("{name}({i})");
                enc.op_def(ops + base + i as u16, name, kinds.get(i).unwrap_or(&unnamed));
            }
        }
        for t in t.types.iter().filter(|t| t.number < TYPES_PER_ENGINE.into()) {
            enc.type_def(id * TYPES_PER_ENGINE + t.number as u16, &t.name, t.block, t.bytes);
        }
        Ok(())
    }

    /// Writes the modules that a process has mapped and that are not written yet; all of them without a process, or
    /// if its maps cannot be read. An engine opens and closes other CPU variants before it settles on one.
    pub(super) fn write_modules(&mut self, engine: u16, pid: Option<u32>) -> Result<(), WriteError> {
        let Some(a) = self.engines.get_mut(engine as usize) else { return Ok(()) };
        let mapped = pid.and_then(|pid| maps::read(pid).ok());
        for m in &a.engine.modules {
            let here = |maps: &Vec<maps::Mapping>| {
                maps.iter().any(|x| x.inode == m.inode && x.path == m.path_in_target)
            };
            if mapped.as_ref().is_none_or(here) && a.written.insert((m.dev, m.inode)) {
                write_module(&mut self.drain.borrow_mut().enc, engine, m)?;
            }
        }
        Ok(())
    }

    /// Writes the status of what was requested beyond the engine's own functions.
    pub(super) fn write_features(&mut self) -> Result<(), WriteError> {
        if let Some(s) = self.scheduler() {
            let r = record::Feature { name: sched::NAME, state: s.state, why: &s.why };
            self.drain.borrow_mut().enc.feature(&r)?;
        }
        self.write_early()?;
        self.write_late()
    }

    /// Writes the probes, except those of CPU variants that no process is known to have loaded.
    pub(super) fn write_probes(&mut self) -> Result<(), WriteError> {
        let enc = &mut self.drain.borrow_mut().enc;
        for (id, a) in self.engines.iter_mut().enumerate() {
            let written = &a.written;
            for p in a.probes.extract_if(.., |p| p.variant.is_none_or(|file| written.contains(&file))) {
                let (symbol, module, why) = (&p.symbol, &p.module, &p.why);
                enc.probe(&record::ProbeRecord {
                    engine: id as u32,
                    symbol,
                    module,
                    ret: p.ret,
                    offset: p.offset,
                    why,
                })?;
            }
        }
        Ok(())
    }
}

/// Writes a module's record.
fn write_module<W: Write>(enc: &mut Encoder<W>, id: u16, m: &EngineModule) -> Result<(), WriteError> {
    let r = m.roles;
    let all = [
        ("llama", r.llama),
        ("base", r.base),
        ("cpu", r.cpu),
        ("device", r.device),
        ("layer", r.layer),
        ("runtime", r.dispatches),
        ("server", r.serves),
    ];
    let role: Vec<&str> = all.iter().filter(|r| r.1).map(|r| r.0).collect();
    enc.module(&record::Module {
        engine: id.into(),
        path: &m.path_in_target.display().to_string(),
        build_id: &m.build_id,
        role: &role.join("+"),
    })
}
