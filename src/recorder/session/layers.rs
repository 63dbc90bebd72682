//! Layers of a recording: they are probed in each engine, before a process loads them.

use super::Session;
use crate::recorder::recording::SessionObserver;
use engine::discover::DiscoveredEngine;
use engine::layer;

impl Session {
    /// Adds the layers to an engine that does not have them yet.
    pub(super) fn add_layers(&self, engine: &mut DiscoveredEngine, watch: &mut dyn SessionObserver) {
        for path in &self.options.layers {
            match layer::module(path) {
                Ok(module) => {
                    let there = engine.modules.iter().any(|m| (m.dev, m.inode) == (module.dev, module.inode));
                    if !there && module.elf.machine == engine.machine {
                        engine.modules.push(module);
                    }
                }
                Err(why) => watch.tell(&format!("device times are not recorded: {why}")),
            }
        }
    }
}
