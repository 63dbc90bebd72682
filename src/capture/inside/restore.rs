//! After a recording, a process that goes on gets its own code back.
//!
//! Why that is safe: all its threads have stopped (`machine::stopped`). A jump replaces whole instructions, of which none is a
//! call, so no thread goes on, and none will return, strictly inside the replaced bytes; should one do so all the same, the
//! jump stays. One that is about to execute the jump executes the instructions instead. One that is in the library, or in
//! instructions that were moved, goes on there, and from there to what follows the jump: nothing of it is unmapped. A
//! processor that fetched the jump fetches anew when the thread leaves the kernel; arm64's caches are synchronized by the
//! kernel when it writes.

use std::time::Duration;

use super::is_recorded_inside;
use super::jumps::Patch;
use super::state::State;
use machine::stopped::{Stopped, while_stopped};
use machine::target;

/// A thread that reads a page from a slow disk stops later; a process that stands still any longer is a disturbance.
const PATIENCE: Duration = Duration::from_millis(500);

impl State {
    /// Gives all processes their code back, and those that they have made by fork and of which nothing was recorded; tells
    /// of those that keep the jumps.
    pub fn restore(&mut self) {
        let State { processes, news, .. } = self;
        let known: Vec<u32> = processes.keys().copied().collect();
        for (&pid, process) in processes.iter().filter(|(_, process)| !process.patches.is_empty()) {
            let patches: Vec<&Patch> = process.patches.values().collect();
            // A child has the same memory, which says for both that it is done.
            let mut whole = true;
            for of in family(pid, &known) {
                if let Err(why) = restore(of, &patches) {
                    whole = false;
                    news.push(format!(
                        "process {of} keeps jumps in its code, which pass each call on (some ns): {why}"
                    ));
                }
            }
            if whole {
                process.area.mark_restored();
            }
        }
    }
}

/// The process, and its children by fork that have not asked for memory of their own, and theirs.
fn family(pid: u32, known: &[u32]) -> Vec<u32> {
    let mut all = vec![pid];
    let mut at = 0;
    while let Some(&parent) = all.get(at) {
        let children = target::children(parent).into_iter().map(|(child, _)| child);
        all.extend(children.filter(|child| !known.contains(child) && is_recorded_inside(*child)));
        at += 1;
    }
    all
}

/// False: it has ended.
fn restore(pid: u32, patches: &[&Patch]) -> Result<(), String> {
    if !target::alive(pid) {
        return Ok(());
    }
    match while_stopped(pid, PATIENCE, |stopped| {
        patches.iter().filter(|patch| !put_back(stopped, patch)).count()
    }) {
        Ok(0) => Ok(()),
        Ok(n) => Err(format!("{n} of its functions cannot be written")),
        // It may have ended meanwhile.
        Err(_) if !target::alive(pid) => Ok(()),
        Err(e) => Err(e.to_string()),
    }
}

/// Whether the jump is gone.
fn put_back(stopped: &Stopped, patch: &Patch) -> bool {
    match stopped.read(patch.address, patch.new.len()) {
        Ok(now) if now == patch.new => {
            !stopped.is_inside(patch.address, patch.new.len() as u64)
                && stopped.write(patch.address, &patch.old).is_ok()
        }
        // It was unloaded, or is another program's now.
        _ => true,
    }
}
