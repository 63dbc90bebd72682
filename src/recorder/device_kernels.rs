//! Times of kernels on a device, as a layer in the engine's process hands them over. Allocates only when a kernel is new.

use std::collections::HashMap;
use std::io::Write;

use crate::capture::event;
use machine::memory;
use pfi::record::{Availability, KernelSource};
use pfi::{Encoder, KernelRun, KernelTimes, WriteError};

/// Names of kernels known at a time, over all processes.
const NAMES: usize = 8192;
/// Bytes of a name that are read; a layer keeps no longer ones.
const NAME: usize = 256;
const _: () = assert!(size_of::<[event::GpuKernel; event::KERNELS_CHUNK]>() == NAME);
/// In the first byte of a source: a name, whose address follows in the other bytes (crates/layers/handover).
const NAMED: u8 = 4;

/// Why a layer has no times of kernels: `Reason` in crates/layers/handover.
const REASONS: [&str; 6] = [
    "the device did not execute them, or the driver does not give their times",
    "their queue has no timestamps",
    "more were on their way, or in one command buffer, than the layer keeps",
    "the program ended, or gave up the device, before it had waited for them",
    "they are in secondary command buffers",
    "their command buffer was submitted again before the program had waited for it",
];

/// What layers have handed over.
#[derive(Default)]
pub struct Kernels {
    /// Ids of names, by process and address.
    names: HashMap<(u32, u64), u32>,
    /// Names ever known: an id is not used again.
    ids: u32,
    /// The engine that reports the kernels of each process: with two engines, the layer is probed for both.
    engines: HashMap<u32, u16>,
    /// Kernels recorded.
    pub seen: u64,
    /// Kernels whose times the layer could not get, by reason.
    untimed: [u64; REASONS.len()],
    /// Kernels that could not be read.
    unread: u64,
}

impl Kernels {
    /// Writes the kernels of an event, those of one queue and thread together.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn write<W: Write>(&mut self, e: &event::Kernels, enc: &mut Encoder<W>) -> Result<(), WriteError> {
        let tgid = e.h.tgid;
        if *self.engines.entry(tgid).or_insert(e.h.engine) != e.h.engine {
            return Ok(());
        }
        let n = (e.n as usize).min(e.kernel.len());
        let [source, why, later @ ..] = e.source.to_le_bytes();
        // No reason: the kernel could not read them.
        match usize::from(why).checked_sub(1).and_then(|why| self.untimed.get_mut(why)) {
            Some(lost) => *lost += u64::from(e.lost),
            None => self.unread += u64::from(e.lost),
        }
        let source = match (source, later) {
            (0, [0, ..]) => KernelSource::OpenClLayer,
            (1, [0, ..]) => KernelSource::VulkanLayer,
            (2, [0, ..]) => KernelSource::Cupti,
            (3, [0, ..]) => KernelSource::CuptiGraph,
            // A layer of a later version.
            _ => {
                self.unread += n as u64;
                return Ok(());
            }
        };
        self.seen += n as u64;
        let kernels = e.kernel.get(..n).unwrap_or_default();
        for part in kernels.chunk_by(|a, b| (a.queue, a.tid) == (b.queue, b.tid)) {
            let Some(first) = part.first() else { continue };
            let mut times = heapless::Vec::<KernelTimes, { event::KERNELS_CHUNK }>::new();
            for k in part {
                let name = self.name(tgid, k.name, enc)?;
                let (host, queued, submitted) = (k.host, k.queued, k.submitted);
                let _ = times.push(KernelTimes {
                    name,
                    host,
                    queued,
                    submitted,
                    started: k.started,
                    ended: k.ended,
                });
            }
            let error_ns = part.iter().map(|k| k.error_ns).max().unwrap_or_default().into();
            let run = KernelRun { pid: tgid, tid: first.tid, source, queue: first.queue, error_ns };
            enc.device_kernels(&run, &times)?;
        }
        Ok(())
    }

    /// Keeps a name that a layer hands over. False: the event is not a name.
    ///
    /// # Errors
    /// The trace cannot be written.
    pub fn named<W: Write>(&mut self, e: &event::Kernels, enc: &mut Encoder<W>) -> Result<bool, WriteError> {
        if e.source.to_le_bytes()[0] != NAMED {
            return Ok(false);
        }
        // Without a kernel, its text could not be read.
        if let (true, Some(text)) = (e.n > 0, event::bytes(e).last_chunk()) {
            self.keep((e.h.tgid, e.source >> 8), text, enc)?;
        }
        Ok(true)
    }

    /// Id of the name at an address of a process; 0: not known.
    fn name<W: Write>(&mut self, tgid: u32, address: u64, enc: &mut Encoder<W>) -> Result<u32, WriteError> {
        if address == 0 {
            return Ok(0);
        }
        // The handed over address has no more bits.
        let key = (tgid, address & (u64::MAX >> 8));
        if let Some(id) = self.names.get(&key) {
            return Ok(*id);
        }
        let mut text = [0; NAME];
        // The layer told it before this recording, and the process has ended.
        if memory::read(tgid, address, &mut text).is_err() {
            return Ok(0);
        }
        self.keep(key, &text, enc)
    }

    /// Gives a name an id, unless it has one; 0: there is no room for another.
    fn keep<W: Write>(
        &mut self,
        key: (u32, u64),
        text: &[u8; NAME],
        enc: &mut Encoder<W>,
    ) -> Result<u32, WriteError> {
        if let Some(id) = self.names.get(&key) {
            return Ok(*id);
        }
        if self.names.len() >= NAMES {
            return Ok(0);
        }
        let len = text.iter().position(|c| *c == 0).unwrap_or(text.len());
        let name = String::from_utf8_lossy(text.get(..len).unwrap_or_default()).into_owned();
        self.ids += 1;
        let id = self.ids;
        self.names.insert(key, id);
        enc.kernel_name(id, &name)?;
        Ok(id)
    }

    /// Whether the device's times are there, in the trace that ends here.
    pub fn feature_status(&mut self) -> (Availability, String) {
        let (seen, unread) = (std::mem::take(&mut self.seen), std::mem::take(&mut self.unread));
        let untimed = std::mem::take(&mut self.untimed).into_iter().zip(REASONS);
        let lost = untimed.chain([(unread, "they could not be read")]).filter(|(n, _)| *n > 0);
        let all = lost.clone().fold(seen, |sum, (n, _)| sum.saturating_add(n));
        let why: Vec<String> = lost.map(|(n, why)| format!("{n}: {why}")).collect();
        let why = why.join("; ");
        match (seen, all) {
            (0, 0) => (
                Availability::None,
                "no kernel was handed over: the engine used no device, or its runtime loaded no layer (OpenCL: the \
                 loader must be ocl-icd 2.3 or Khronos's, not the driver itself; Vulkan: see VK_LOADER_DEBUG=layer; CUDA: \
                 see the command's standard error, where libprofinfer-cu.so says what it lacks)"
                    .to_owned(),
            ),
            (0, _) => (
                Availability::None,
                format!("none of {all} kernels has times, only what --gpu op records is there ({why})"),
            ),
            (_, _) if seen == all => (Availability::Whole, format!("{seen} kernels")),
            _ => (Availability::Partly, format!("{} of {all} kernels have no times ({why})", all - seen)),
        }
    }

    /// A process has ended: another one may get its number.
    pub fn forget(&mut self, tgid: u32) {
        self.names.retain(|(of, _), _| *of != tgid);
        self.engines.remove(&tgid);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recorder::sample;
    use pfi::Trace;
    use pfi::record::Record;

    /// An event with these kernels: (queue, thread), of an engine.
    fn event(engine: u16, kernels: &[(u64, u32)], lost: u32) -> event::Kernels {
        let mut e = event::Kernels { n: kernels.len() as u32, lost, ..Default::default() };
        (e.h.tgid, e.h.engine) = (7, engine);
        for (to, (queue, tid)) in e.kernel.iter_mut().zip(kernels) {
            (to.queue, to.tid, to.host, to.ended) = (*queue, *tid, 100, 200);
        }
        e
    }

    /// What is written of these events: (thread, kernels) of each record; and what the recording says.
    fn written(events: &[event::Kernels]) -> (Vec<(u32, usize)>, Availability, String) {
        let mut enc = Encoder::new(Vec::new(), Default::default(), &sample::HEADER).expect("written");
        let mut kernels = Kernels::default();
        events.iter().for_each(|e| kernels.write(e, &mut enc).expect("written"));
        let (state, why) = kernels.feature_status();
        let trace = Trace::from_bytes(enc.finish(&sample::footer()).expect("written")).expect("a trace");
        let mut found = Vec::new();
        for i in 0..trace.blocks().len() {
            for r in trace.block(i).expect("whole").records() {
                if let Record::DeviceKernels(k) = r.expect("a record") {
                    found.push((k.tid, pfi::kernel_times(&k).count()));
                }
            }
        }
        (found, state, why)
    }

    #[test]
    fn a_record_is_of_one_queue_and_thread() {
        let found = written(&[event(0, &[(1, 5), (1, 5), (2, 5), (2, 6)], 0)]);
        assert_eq!(found, (vec![(5, 2), (5, 1), (6, 1)], Availability::Whole, "4 kernels".into()));
    }

    /// An event with a name instead of kernels, in one of process 7.
    fn name(address: u64, text: &str) -> event::Kernels {
        let bytes: Vec<u64> = (0..32)
            .map(|i| {
                (0..8).map(|j| u64::from(*text.as_bytes().get(i * 8 + j).unwrap_or(&0)) << (8 * j)).sum()
            })
            .collect();
        let mut e = event(0, &[(0, 0); 4], 0);
        e.source = u64::from(NAMED) | address << 8;
        for (to, from) in e.kernel.iter_mut().zip(bytes.chunks(8)) {
            (to.host, to.queued, to.submitted, to.started) = (from[0], from[1], from[2], from[3]);
            (to.ended, to.name, to.queue) = (from[4], from[5], from[6]);
            (to.tid, to.error_ns) = (from[7] as u32, (from[7] >> 32) as u32);
        }
        e
    }

    #[test]
    fn a_name_that_was_handed_over_outlives_its_process() {
        let mut enc = Encoder::new(Vec::new(), Default::default(), &sample::HEADER).expect("written");
        let mut kernels = Kernels::default();
        let long = "x".repeat(300);
        // Nothing is at these addresses: no process has the number.
        for (address, text) in [(0x10, "mul_mat_q4"), (0x110, &long)] {
            let mut e = event(0, &[(1, 5)], 0);
            e.kernel[0].name = address;
            for e in [name(address, text), name(address, text), e] {
                let e = event::Kernels { h: event::Head { tgid: u32::MAX, ..e.h }, ..e };
                if !kernels.named(&e, &mut enc).expect("written") {
                    kernels.write(&e, &mut enc).expect("written");
                }
            }
        }
        assert_eq!(kernels.feature_status(), (Availability::Whole, "2 kernels".into()));
        let trace = Trace::from_bytes(enc.finish(&sample::footer()).expect("written")).expect("a trace");
        let block = trace.block(0).expect("whole");
        let names = block.records().filter_map(|r| match r.expect("a record") {
            Record::KernelName(k) => Some((k.id, k.name.len())),
            _ => None,
        });
        assert_eq!(names.collect::<Vec<_>>(), [(1, 10), (2, NAME)]);
        let unread = event::Kernels { n: 0, ..name(0x20, "") };
        let mut enc = Encoder::new(Vec::new(), Default::default(), &sample::HEADER).expect("written");
        assert!(
            kernels.named(&unread, &mut enc).expect("written") && !kernels.names.contains_key(&(7, 0x20))
        );
    }

    #[test]
    fn two_engines_with_one_layer_count_once() {
        let found = written(&[event(0, &[(1, 5)], 0), event(1, &[(1, 5)], 0), event(0, &[(1, 5)], 0)]);
        assert_eq!((found.0, found.2), (vec![(5, 1), (5, 1)], "2 kernels".into()));
    }

    #[test]
    fn what_is_missing_is_told() {
        assert_eq!(written(&[]).1, Availability::None);
        // CUPTI's: two sources, by whether a graph has launched the kernels.
        for source in [2, 3] {
            let found = written(&[event::Kernels { source, ..event(0, &[(1, 5)], 0) }]);
            assert_eq!((found.0, found.1), (vec![(5, 1)], Availability::Whole));
        }
        let because = |why: u64, kernels| event::Kernels { source: (why + 1) << 8, ..event(0, kernels, 3) };
        let (_, state, why) = written(&[event(0, &[(1, 5)], 0), because(4, &[]), because(1, &[])]);
        assert_eq!(state, Availability::Partly);
        assert_eq!(
            why,
            "6 of 7 kernels have no times (3: their queue has no timestamps; 3: they are in secondary command buffers)"
        );
        let (_, state, why) = written(&[because(0, &[])]);
        assert!(
            state == Availability::None && why.starts_with("none of 3 kernels has times, only "),
            "{why}"
        );
        // What BPF could not read, and reasons of a later version.
        for unread in [event(0, &[], 3), because(6, &[]), because(254, &[])] {
            assert!(written(&[unread]).2.contains("3: they could not be read"));
        }
        // A layer of a later version, and a claim of more kernels than there are.
        for source in [9, 1 << 16] {
            let later = event::Kernels { source, ..event(0, &[(1, 5)], 0) };
            assert!(written(&[later]).2.contains("1: they could not be read"));
        }
        assert_eq!(written(&[event::Kernels { n: 99, ..event(0, &[], 0) }]).0, [(0, 4)]);
    }
}
