//! Attribution records of a trace, collected in one read: counters, off-CPU times, experts, phases, sensors,
//! levels. Nothing is computed here.

use std::collections::HashMap;

use crate::recorded::load::upsert;
use pfi::record::*;

/// The attribution records of `pfi::record`. Lists are in file order unless noted otherwise.
#[derive(Default)]
pub struct Causes<'a> {
    /// For counters, sensors and features the last record counts.
    pub counters: Vec<Counter<'a>>,
    pub sensors: Vec<Sensor<'a>>,
    pub features: Vec<Feature<'a>>,
    pub counts: Vec<OpCounts<'a>>,
    pub cpus: Vec<OpCpus<'a>>,
    pub off_cpu: Vec<OffCpu>,
    /// Task names as recorded. If a tid is named again, the new name applies to the OffCpu records that follow;
    /// the number next to each name is the length of `off_cpu` at that time.
    pub tasks: Vec<(usize, Task<'a>)>,
    pub experts: Vec<Experts<'a>>,
    pub phases: Vec<PhaseCall<'a>>,
    pub samples: Vec<SensorSample<'a>>,
    pub levels: Vec<LevelChange<'a>>,
    pub ubatches: Vec<Ubatch<'a>>,
    pub memory: Vec<MemoryCall>,
    pub server_tasks: Vec<ServerTask>,
    pub contents: Vec<Content<'a>>,
    pub usage: Vec<Usage>,
    /// By id once; the last record counts.
    pub sampler_names: HashMap<u32, SamplerName<'a>>,
    pub samplers: Vec<SamplerCall>,
    pub file_reads: Vec<FileRead>,
    pub tensor_data: Vec<TensorData>,
    /// By id once.
    pub read_files: Vec<ReadFile<'a>>,
}

impl<'a> Causes<'a> {
    /// Takes a record if it is of these kinds. Counts those that do not fit.
    pub fn read(&mut self, record: Record<'a>, left_out: &mut u64) {
        match record {
            Record::Counter(r) => upsert(&mut self.counters, r, |r| r.id, left_out),
            Record::Sensor(r) => upsert(&mut self.sensors, r, |r| r.id, left_out),
            Record::Feature(r) => upsert(&mut self.features, r, |r| r.name, left_out),
            Record::OpCounts(r) => self.counts.push(r),
            Record::OpCpus(r) => self.cpus.push(r),
            Record::OffCpu(r) => self.off_cpu.push(r),
            Record::Task(r) => self.tasks.push((self.off_cpu.len(), r)),
            Record::Experts(r) => self.experts.push(r),
            Record::PhaseCall(r) => self.phases.push(r),
            Record::Sample(r) => self.samples.push(r),
            Record::LevelChange(r) => self.levels.push(r),
            Record::Ubatch(r) => self.ubatches.push(r),
            Record::Memory(r) => self.memory.push(r),
            Record::ServerTask(r) => self.server_tasks.push(r),
            Record::Content(r) => self.contents.push(r),
            Record::Usage(r) => self.usage.push(r),
            Record::SamplerName(r) => drop(self.sampler_names.insert(r.id, r)),
            Record::SamplerCall(r) => self.samplers.push(r),
            Record::FileRead(r) => self.file_reads.push(r),
            Record::TensorData(r) => self.tensor_data.push(r),
            Record::ReadFile(r) => upsert(&mut self.read_files, r, |r| r.id, left_out),
            _ => {}
        }
    }

    /// Appends a later part of the file.
    pub fn merge(&mut self, part: Causes<'a>, left_out: &mut u64) {
        let before = self.off_cpu.len();
        part.counters.into_iter().for_each(|r| self.read(Record::Counter(r), left_out));
        part.sensors.into_iter().for_each(|r| self.read(Record::Sensor(r), left_out));
        part.features.into_iter().for_each(|r| self.read(Record::Feature(r), left_out));
        self.counts.extend(part.counts);
        self.cpus.extend(part.cpus);
        self.off_cpu.extend(part.off_cpu);
        self.tasks.extend(part.tasks.into_iter().map(|(at, r)| (before + at, r)));
        self.experts.extend(part.experts);
        self.phases.extend(part.phases);
        self.samples.extend(part.samples);
        self.levels.extend(part.levels);
        self.ubatches.extend(part.ubatches);
        self.memory.extend(part.memory);
        self.server_tasks.extend(part.server_tasks);
        self.contents.extend(part.contents);
        self.usage.extend(part.usage);
        self.sampler_names.extend(part.sampler_names);
        self.samplers.extend(part.samplers);
        self.file_reads.extend(part.file_reads);
        self.tensor_data.extend(part.tensor_data);
        part.read_files.into_iter().for_each(|r| self.read(Record::ReadFile(r), left_out));
    }
}
