//! The part of the block writer that handles the records of `cause`.

use std::collections::HashMap;
use std::io::Write;

use super::{Encoder, WriteError, key_of};
use crate::coding::{put_varint, zigzag};
use crate::open::{Def, def};
use crate::record::*;

/// Thread names remembered at a time.
const MAX_TASKS: usize = 4096;
/// Threads whose last CPU is remembered at a time.
const MAX_THREADS: usize = 4096;

/// The CPU last written for each thread in the open block.
pub(super) struct WrittenCpus {
    block: u32,
    last: HashMap<u32, Option<u16>>,
    /// A CPU was ever known: from then on blocks also say of which threads it is not.
    any: bool,
}

impl Default for WrittenCpus {
    fn default() -> Self {
        WrittenCpus { block: 0, last: HashMap::with_capacity(MAX_THREADS), any: false }
    }
}

impl WrittenCpus {
    /// What the block says of a thread.
    fn of(&mut self, tid: u32, block: u32) -> Option<Option<u16>> {
        if self.block != block {
            self.block = block;
            self.last.clear();
        }
        self.last.get(&tid).copied().or((!self.any).then_some(None))
    }

    /// Forgets all threads when there are too many: their CPUs are written again.
    fn set(&mut self, tid: u32, cpu: Option<u16>) {
        if self.last.len() >= MAX_THREADS {
            self.last.clear();
        }
        self.any |= cpu.is_some();
        self.last.insert(tid, cpu);
    }
}

/// Names of samplers remembered at a time; llama.cpp has some twenty in each process.
const MAX_SAMPLERS: usize = 8192;

/// Identifies the run of slices that counter values belong to, with that run's own numbers.
#[derive(Debug, Clone, Copy)]
pub struct CounterRun {
    pub graph: u64,
    pub ith: u16,
    pub plan: u32,
    pub first: u32,
    /// Ids of the counters included, one bit each.
    pub counters: u32,
}

/// Which ids an Experts record holds; see [`Experts`].
#[derive(Debug, Clone, Copy)]
pub struct ExpertRows<'a> {
    pub graph: u64,
    /// Tensor ids as `Encoder::tensor` gave them.
    pub ids: u32,
    pub weights: u32,
    pub used: u32,
    pub tokens: u32,
    pub first: u32,
    pub why: &'a str,
}

impl<W: Write> Encoder<W> {
    /// A requested counter; call again when more is known about it. Kept for the last block, and written in each
    /// block that has its counts.
    pub fn counter(&mut self, r: &Counter) -> Result<(), WriteError> {
        let record = Record::Counter(r.clone());
        self.keep(key_of("counter", r.id), &record)?;
        define(&mut self.counters, r.id, Def { written: self.open.number, ..def(&record)? });
        Ok(())
    }

    /// Counts for consecutive slices that were written just before; `counts` goes slice by slice, with a slice's
    /// counters in id order.
    pub fn op_counts(&mut self, run: &CounterRun, counts: &[Option<u64>]) -> Result<(), WriteError> {
        // Stay in the block of these slices, even if it is full.
        self.still_whole()?;
        for (id, d) in &mut self.counters {
            if run.counters >> *id & 1 != 0 {
                self.open.put_def(d)?;
            }
        }
        self.data.clear();
        for count in counts {
            put_varint(&mut self.data, count.map_or(0, |c| c.saturating_add(1)));
        }
        let n = counts.len() / (run.counters.count_ones() as usize).max(1);
        let &CounterRun { graph, ith, plan, first, counters } = run;
        self.open.put(Record::OpCounts(OpCounts {
            graph,
            ith,
            plan,
            first,
            n: n as u32,
            counters,
            data: &self.data,
        }))
    }

    /// The CPUs on which slices of a thread that were written just before started, with their starts. Nothing is
    /// written where the block says the same already.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn op_cpus(
        &mut self,
        tid: u32,
        cpus: impl IntoIterator<Item = (u64, Option<u16>)>,
    ) -> Result<(), WriteError> {
        // Stay in the block of these slices, even if it is full.
        self.still_whole()?;
        let (mut said, mut t, mut before, mut now) = (self.cpus.of(tid, self.open.number), None, 0, 0);
        self.data.clear();
        for (start, cpu) in cpus {
            // As `put_slices` has it.
            now = start.max(now);
            if said == Some(cpu) {
                continue;
            }
            match t {
                None => t = Some(now as i64),
                Some(_) => put_varint(&mut self.data, now - before),
            }
            put_varint(&mut self.data, cpu.map_or(0, |cpu| u64::from(cpu) + 1));
            (said, before) = (Some(cpu), now);
        }
        let (Some(t), Some(last)) = (t, said) else { return Ok(()) };
        self.cpus.set(tid, last);
        self.open.put(Record::OpCpus(OpCpus { tid, t, data: &self.data }))
    }

    /// The name of a thread, written where an OffCpu record needs it. Forgets all names when there are too many.
    pub fn task(&mut self, tid: u32, comm: &str) -> Result<(), WriteError> {
        if let Some((known, _)) = self.tasks.get(&tid)
            && **known == *comm
        {
            return Ok(());
        }
        if self.tasks.len() >= MAX_TASKS {
            self.tasks.clear();
        }
        let d = def(&Record::Task(Task { tid, comm }))?;
        self.tasks.insert(tid, (comm.into(), d));
        Ok(())
    }

    pub fn off_cpu(&mut self, r: &OffCpu) -> Result<(), WriteError> {
        self.begin_at(r.pid, r.t, r.dur)?;
        for tid in [r.by, r.from, r.waker] {
            if let Some((_, d)) = self.tasks.get_mut(&tid) {
                self.open.put_def(d)?;
            }
        }
        self.open.put(Record::OffCpu(*r))
    }

    /// The experts chosen: `chosen` has `used` ids per token, starting at token `first`.
    pub fn experts(&mut self, run: &ExpertRows, chosen: &[i32]) -> Result<(), WriteError> {
        self.begin()?;
        self.write_tensor(run.ids)?;
        self.write_tensor(run.weights)?;
        self.data.clear();
        for id in chosen {
            put_varint(&mut self.data, zigzag(i64::from(*id)));
        }
        let rows = chosen.len() / (run.used as usize).max(1);
        let &ExpertRows { graph, ids, weights, used, tokens, first, why } = run;
        let rows = rows as u32;
        let data = &self.data;
        self.open.put(Record::Experts(Experts { graph, ids, weights, used, tokens, first, rows, why, data }))
    }

    pub fn phase_call(&mut self, r: &PhaseCall) -> Result<(), WriteError> {
        self.begin_at(r.pid, r.t, r.dur)?;
        self.open.put(Record::PhaseCall(*r))
    }

    /// The name of a sampler, written here and where a SamplerCall record needs it. Without room for another it is not
    /// kept, and is written only here.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn sampler_name(&mut self, r: &SamplerName) -> Result<(), WriteError> {
        self.begin()?;
        let mut d = def(&Record::SamplerName(*r))?;
        self.open.put_def(&mut d)?;
        if self.samplers.len() < MAX_SAMPLERS || self.samplers.contains_key(&r.id) {
            self.samplers.insert(r.id, d);
        }
        Ok(())
    }

    /// A call of a sampler.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn sampler_call(&mut self, r: &SamplerCall) -> Result<(), WriteError> {
        self.begin_at(r.pid, r.t, r.dur)?;
        if let Some(d) = self.samplers.get_mut(&r.sampler) {
            self.open.put_def(d)?;
        }
        self.open.put(Record::SamplerCall(*r))
    }

    /// Bytes of a file that were read for a process.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn file_read(&mut self, r: &FileRead) -> Result<(), WriteError> {
        self.begin_at(r.pid, r.t, r.dur)?;
        self.open.put(Record::FileRead(*r))
    }

    /// A file whose reads follow; kept for the last block, and for later traces of the recording.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn read_file(&mut self, r: &ReadFile) -> Result<(), WriteError> {
        self.keep(key_of("read file", r.id), &Record::ReadFile(*r))
    }

    /// Where a tensor has its data.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn tensor_data(&mut self, r: &TensorData) -> Result<(), WriteError> {
        self.begin()?;
        self.write_tensor(r.tensor)?;
        self.open.put(Record::TensorData(*r))
    }

    /// A sensor; kept for the last block, and written in each block that has samples.
    pub fn sensor(&mut self, r: &Sensor) -> Result<(), WriteError> {
        let record = Record::Sensor(*r);
        self.keep(key_of("sensor", r.id), &record)?;
        define(&mut self.sensors, r.id, Def { written: self.open.number, ..def(&record)? });
        Ok(())
    }

    /// Sensor values (id and value) at one instant.
    pub fn sample(&mut self, t: i64, values: &[(u32, i64)]) -> Result<(), WriteError> {
        self.begin()?;
        self.last_ts = self.last_ts.max(t as u64);
        self.data.clear();
        for (id, value) in values {
            if let Some((_, d)) = self.sensors.iter_mut().find(|(known, _)| known == id) {
                self.open.put_def(d)?;
            }
            put_varint(&mut self.data, (*id).into());
            put_varint(&mut self.data, zigzag(*value));
        }
        self.open.put(Record::Sample(SensorSample { t, data: &self.data }))
    }

    pub fn level_change(&mut self, r: &LevelChange) -> Result<(), WriteError> {
        self.begin()?;
        self.last_ts = self.last_ts.max(r.t as u64);
        self.open.put(Record::LevelChange(*r))
    }

    /// A requested feature; in the last block a later entry replaces an earlier one with the same name.
    pub fn feature(&mut self, r: &Feature) -> Result<(), WriteError> {
        self.keep(key_of("feature", r.name), &Record::Feature(*r))
    }

    /// What this machine reaches; kept for the last block, and for later traces of the recording.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn peaks(&mut self, r: &Peaks) -> Result<(), WriteError> {
        self.keep(key_of("peaks", (r.cluster, r.threads)), &Record::Peaks(*r))
    }

    /// What a target may use; kept for the last block until the process is forgotten. A later one with the same pid and
    /// occasion replaces it.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn target_state(&mut self, r: &TargetState) -> Result<(), WriteError> {
        self.begin()?;
        self.last_ts = self.last_ts.max(r.mono_ns);
        self.write_process(r.pid)?;
        self.keep_here(state_key(r.pid, r.at), &Record::TargetState(*r))
    }

    /// What a process uses now.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn usage(&mut self, r: &Usage) -> Result<(), WriteError> {
        self.begin_at(r.pid, r.t, 0)?;
        self.open.put(Record::Usage(*r))
    }
}

/// Under which a [`TargetState`] is kept.
pub(super) fn state_key(pid: u32, at: StateAt) -> u64 {
    key_of("state", (pid, at as u8))
}

fn define(defs: &mut Vec<(u32, Def)>, id: u32, new: Def) {
    match defs.iter_mut().find(|(known, _)| *known == id) {
        Some((_, old)) => *old = new,
        None => defs.push((id, new)),
    }
}
