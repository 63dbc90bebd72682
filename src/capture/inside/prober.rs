//! Probes as other sources have them: programs of functions, switched on and off in the memory of processes.

use std::path::Path;
use std::sync::{Arc, Mutex};

use super::state::{State, lock};
use crate::capture::error::ProbeError;
use crate::capture::source::{Guard, Probe, Prober};
use engine::probes::Prog;

/// Places the probes of one engine.
pub struct InsideProber {
    pub engine: u16,
    pub state: Arc<Mutex<State>>,
}

/// One program of one function.
struct InsideProbe {
    state: Arc<Mutex<State>>,
    function: usize,
    leave: bool,
}

impl Prober for InsideProber {
    fn place(&self, prog: Prog, file: &Path, offset: u64) -> Result<Box<dyn Probe>, ProbeError> {
        let function = lock(&self.state).function(prog, file, offset, self.engine)?;
        Ok(Box::new(InsideProbe { state: self.state.clone(), function, leave: prog.is_return() }))
    }

    fn reserve(&self, prog: Prog, file: &Path, offset: u64) {
        // A function without room for a jump is reported when it is probed.
        let _ = lock(&self.state).function(prog, file, offset, self.engine);
    }
}

impl Probe for InsideProbe {
    fn enter(&mut self, pid: u32) -> Result<(), ProbeError> {
        lock(&self.state).arm(pid, self.function, self.leave, true);
        Ok(())
    }

    fn leave(&mut self, pid: u32) -> Option<Guard> {
        lock(&self.state).arm(pid, self.function, self.leave, false);
        None
    }

    fn leave_all(&mut self) -> Vec<Guard> {
        let mut state = lock(&self.state);
        let here = |(pid, f, leave): &(u32, usize, bool)| {
            (*f == self.function && *leave == self.leave).then_some(*pid)
        };
        let pids: Vec<u32> = state.armed.iter().filter_map(here).collect();
        pids.into_iter().for_each(|pid| state.arm(pid, self.function, self.leave, false));
        Vec::new()
    }
}
