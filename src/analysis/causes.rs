//! What a trace says of causes, read once: counters, time off the CPU, experts, phases, sensors, levels. Nothing is
//! computed here. May use `trace`.

use super::load::upsert;
use crate::trace::record::*;

/// Records of `trace::record`'s kinds of causes. Lists are in file order unless said otherwise.
#[derive(Default)]
pub struct Causes<'a> {
    /// The last word on each counter, sensor and feature counts.
    pub counters: Vec<Counter<'a>>,
    pub sensors: Vec<Sensor<'a>>,
    pub features: Vec<Feature<'a>>,
    pub counts: Vec<OpCounts<'a>>,
    pub off_cpu: Vec<OffCpu>,
    /// Names as told: a tid's later one counts for the OffCpu records that come after it, whose number in `off_cpu` at the
    /// time stands beside it.
    pub tasks: Vec<(usize, Task<'a>)>,
    pub experts: Vec<Experts<'a>>,
    pub phases: Vec<PhaseCall<'a>>,
    pub samples: Vec<Sample<'a>>,
    pub levels: Vec<LevelChange<'a>>,
}

impl<'a> Causes<'a> {
    /// Takes a record if it is of these kinds. Counts those for which there is no room.
    pub fn read(&mut self, record: Record<'a>, left_out: &mut u64) {
        match record {
            Record::Counter(r) => upsert(&mut self.counters, r, |r| r.id, left_out),
            Record::Sensor(r) => upsert(&mut self.sensors, r, |r| r.id, left_out),
            Record::Feature(r) => upsert(&mut self.features, r, |r| r.name, left_out),
            Record::OpCounts(r) => self.counts.push(r),
            Record::OffCpu(r) => self.off_cpu.push(r),
            Record::Task(r) => self.tasks.push((self.off_cpu.len(), r)),
            Record::Experts(r) => self.experts.push(r),
            Record::PhaseCall(r) => self.phases.push(r),
            Record::Sample(r) => self.samples.push(r),
            Record::LevelChange(r) => self.levels.push(r),
            _ => {}
        }
    }

    /// Appends what comes later in the file.
    pub fn merge(&mut self, part: Causes<'a>, left_out: &mut u64) {
        let before = self.off_cpu.len();
        part.counters.into_iter().for_each(|r| self.read(Record::Counter(r), left_out));
        part.sensors.into_iter().for_each(|r| self.read(Record::Sensor(r), left_out));
        part.features.into_iter().for_each(|r| self.read(Record::Feature(r), left_out));
        self.counts.extend(part.counts);
        self.off_cpu.extend(part.off_cpu);
        self.tasks.extend(part.tasks.into_iter().map(|(at, r)| (before + at, r)));
        self.experts.extend(part.experts);
        self.phases.extend(part.phases);
        self.samples.extend(part.samples);
        self.levels.extend(part.levels);
    }
}
