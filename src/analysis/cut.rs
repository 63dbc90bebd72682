//! A part of a recorded run: one process, and some of its calls. What does not belong to it is taken out of what was
//! loaded, so that every question can be asked of the part alone. May use `trace`.

use super::calls::{CallSource, Timeline, timeline};
use super::load::Loaded;
use super::processes::{NoProcess, Processes};
use crate::order;

/// What is wanted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Cut {
    /// None: the process with the most calls.
    pub pid: Option<u32>,
    /// Numbers of the first and the last call, as in `report --by token`; an end that is missing is that of the recording.
    pub calls: (Option<u64>, Option<u64>),
}

/// Why there is no such part.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoPart {
    #[error(transparent)]
    Process(#[from] NoProcess),
    #[error("it has no such call of the engine: there are {first} to {last}")]
    Calls { first: u64, last: u64 },
    #[error("it has no call of the engine, so none can be chosen")]
    NoCalls,
}

/// What was taken.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Part {
    /// None: the recording has no process.
    pub pid: Option<u32>,
    /// The other processes recorded, ascending.
    pub others: Vec<u32>,
    /// First and last call, where not all were wanted.
    pub calls: Option<(u64, u64)>,
}

impl Part {
    /// True where something was left out.
    pub fn is_cut(&self) -> bool {
        !self.others.is_empty() || self.calls.is_some()
    }
}

impl Cut {
    /// The part of `loaded` that is wanted.
    ///
    /// # Errors
    /// There is no such process or call.
    pub fn part(&self, loaded: &Loaded<'_>) -> Result<Part, NoPart> {
        let line = timeline(loaded);
        let (pid, others) = self.process(loaded, &line)?;
        let mut part = Part { pid, others, calls: None };
        if self.calls != (None, None) {
            part.calls = Some(self.ends(&line, pid)?);
        }
        Ok(part)
    }

    /// Leaves nothing in `loaded` but this part of it.
    pub fn apply(&self, part: &Part, loaded: &mut Loaded<'_>) {
        if let (Some(pid), true) = (part.pid, part.is_cut()) {
            let line = timeline(loaded);
            self.keep(loaded, &line, pid, self.calls == (None, None));
        }
    }

    /// The process wanted, and the others.
    fn process(&self, loaded: &Loaded<'_>, line: &Timeline) -> Result<(Option<u32>, Vec<u32>), NoPart> {
        let processes = Processes::of(loaded);
        let wanted = self.pid.map(|pid| processes.wanted(pid)).transpose()?;
        let mut all = processes.active;
        let mut counts = vec![0u64; all.len()];
        for call in &line.calls {
            if let Some(n) = all.binary_search(&call.pid).ok().and_then(|at| counts.get_mut(at)) {
                *n += 1;
            }
        }
        let pid = match wanted {
            Some(pid) => Some(pid),
            // The first of those with the most calls.
            None => all.iter().zip(&counts).rev().max_by_key(|(_, n)| **n).map(|(pid, _)| *pid),
        };
        all.retain(|other| Some(*other) != pid);
        Ok((pid, all))
    }

    fn wants(&self, seq: u64) -> bool {
        let (from, to) = self.calls;
        from.is_none_or(|from| from <= seq) && to.is_none_or(|to| seq <= to)
    }

    /// First and last of the calls wanted.
    fn ends(&self, line: &Timeline, pid: Option<u32>) -> Result<(u64, u64), NoPart> {
        let all = || line.calls.iter().filter(|c| Some(c.pid) == pid).map(|c| c.seq);
        let wanted = || all().filter(|seq| self.wants(*seq));
        match (wanted().min(), wanted().max(), all().min(), all().max()) {
            (Some(first), Some(last), ..) => Ok((first, last)),
            (_, _, Some(first), Some(last)) => Err(NoPart::Calls { first, last }),
            _ => Err(NoPart::NoCalls),
        }
    }

    fn keep(&self, loaded: &mut Loaded<'_>, line: &Timeline, pid: u32, whole: bool) {
        let chosen: Vec<bool> = line.calls.iter().map(|c| c.pid == pid && self.wants(c.seq)).collect();
        let is_chosen = |call: Option<usize>| call.and_then(|c| chosen.get(c)) == Some(&true);
        let calls = || line.calls.iter().zip(&chosen).filter(|(_, chosen)| **chosen).map(|(call, _)| call);
        let from = calls().map(|c| c.start).min().unwrap_or(i64::MIN);
        let to = calls().map(|c| c.end()).max().unwrap_or(i64::MAX);
        // What belongs to no call goes by its time.
        let has = |of: u32, t: i64| of == pid && (whole || (from <= t && t < to));
        let mut of = line.cpu_call.iter().copied();
        loaded.cpu_graphs.retain(|g| match of.next().flatten() {
            Some(call) if !whole => is_chosen(Some(call)),
            _ => has(g.pid, g.t),
        });
        let mut seqs: Vec<u64> = loaded.cpu_graphs.iter().map(|g| g.seq).collect();
        seqs.sort_unstable();
        let graph = |seq: u64| seqs.binary_search(&seq).is_ok();
        loaded.runs.retain(|r| graph(r.graph));
        loaded.causes.counts.retain(|r| graph(r.graph));
        loaded.causes.experts.retain(|r| graph(r.graph));
        loaded.tokens.retain(|t| t.pid == pid && (whole || self.wants(t.seq)));
        let scheduled = line.source == CallSource::SchedulerGraph;
        loaded.graphs.retain(|g| match (whole, scheduled, g.token) {
            (false, true, _) => g.pid == pid && self.wants(g.seq),
            (false, false, Some(token)) => g.pid == pid && self.wants(token),
            _ => has(g.pid, g.t),
        });
        loaded.splits.retain(|s| has(s.pid, s.t));
        loaded.causes.phases.retain(|p| has(p.pid, p.t));
        loaded.tensors.retain(|_, t| t.pid == pid);
        order::by_key(&mut loaded.processes, |p| ((p.pid != pid).into(), p.pid.into()));
    }
}
