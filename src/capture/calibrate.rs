//! Cost of an op's probe hits on this machine, measured on a synthetic graph.

use std::cell::RefCell;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use crate::capture::backend::CaptureBackend;
use crate::capture::calibration_target::{self, Function, NODES, Spot, TargetGraph};
use crate::capture::error::{ProbeError, RecordError};
use crate::capture::inside::measure::{self, MeasureError};
use crate::capture::pmc::follow::SharedCounters;
use crate::capture::source::{CaptureOptions, GpuDetail, Probe, Prober, Source, Structure};
use crate::capture::structure::Reading;
use engine::layout::Layout;
use engine::probes::Prog;
use engine::tables::Tables;

/// A way to record an op.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// A program that does nothing: the kernel's own cost of a hit.
    Empty,
    /// Our op program, in a graph whose structure is known to be unchanged.
    Op,
    /// The same with our barrier program after each op: an op of one of several threads.
    OpAndBarrier,
    /// Our programs at the entry and at the return of a call.
    Call,
    /// The op with counters, and the same with its barrier: each of our programs reads them.
    Counted,
    CountedAndBarrier,
    /// Our op program when it has to read each tensor and finds it unchanged.
    Looked,
    /// Our op program when it reads each tensor and finds it new.
    New,
    /// The published method: entry and return probe on the first instruction, full structure at every hit.
    Published,
}

impl Way {
    /// The ways that `doctor` always measures. They share one object, as do those with counters. COMPARED is only
    /// for comparison.
    pub const USUAL: [Way; 4] = [Way::Empty, Way::Op, Way::OpAndBarrier, Way::Call];
    /// With counters, if there are any.
    pub const WITH_COUNTERS: [Way; 2] = [Way::Counted, Way::CountedAndBarrier];
    pub const COMPARED: [Way; 3] = [Way::Looked, Way::New, Way::Published];

    /// Name in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Way::Empty => "empty",
            Way::Op => "op",
            Way::OpAndBarrier => "op-and-barrier",
            Way::Call => "call",
            Way::Counted => "op-counted",
            Way::CountedAndBarrier => "op-and-barrier-counted",
            Way::Looked => "op-looked-at",
            Way::New => "op-new",
            Way::Published => "published",
        }
    }

    /// Description for people.
    pub fn meaning(self) -> &'static str {
        match self {
            Way::Empty => "an empty program",
            Way::Op => "our op program",
            Way::OpAndBarrier => "our op and barrier programs",
            Way::Call => "our programs at a call's entry and return",
            Way::Counted => "our op program with counters task-clock and page-faults",
            Way::CountedAndBarrier => "our op and barrier programs with these counters",
            Way::Looked => "our op program, tensors read and unchanged",
            Way::New => "our op program, tensors new",
            Way::Published => "entry and return probe, structure at each hit",
        }
    }
}

/// Graph walks from which the median is taken; the first ones are for learning and warm-up.
const WALKS: usize = 31;
const FIRST_WALKS: usize = 3;
/// Buffer size, bytes. The buffer is emptied after each walk, so that no walk fills it or wakes a reader.
const BUFFER: u64 = 1 << 18;
const _: () = assert!(NODES * 2 * size_of::<crate::capture::event::Tensor>() < BUFFER as usize / 4);

/// Cost of one op, recorded in one way.
#[derive(Debug, Clone, Copy)]
pub struct Cost {
    pub way: Way,
    pub spot: Spot,
    /// Nanoseconds of all the op's hits.
    pub ns: f64,
}

/// Why a cost is unknown.
#[derive(Debug, thiserror::Error)]
pub enum CostError {
    #[error(transparent)]
    Source(#[from] RecordError),
    #[error(transparent)]
    Inside(#[from] MeasureError),
    #[error(transparent)]
    Probe(#[from] ProbeError),
    #[error("our own executable is not in our memory mappings")]
    Unmapped,
}

/// Measures the usual ways, those with `counters` if there are any, and with `compare` all of them, as far as the
/// backend supports them.
pub fn costs(
    backend: &CaptureBackend,
    counters: Option<&Rc<SharedCounters>>,
    compare: bool,
) -> Result<Vec<Cost>, CostError> {
    if let CaptureBackend::Inside(_) = backend {
        // No instruction is emulated or single-stepped: it costs the same everywhere.
        let costs = measure::costs()?;
        let ways = [(Way::Op, costs.op), (Way::OpAndBarrier, costs.op_and_barrier), (Way::Call, costs.call)];
        let spots = [Spot::Emulated, Spot::Stepped];
        return Ok(ways.iter().flat_map(|&(way, ns)| spots.map(|spot| Cost { way, spot, ns })).collect());
    }
    let mut out = Vec::new();
    let mut alike = |ways: &[Way], counters: Option<&Rc<SharedCounters>>| {
        let mut bench = Bench::new(backend, Way::Op, counters.cloned())?;
        ways.iter().try_for_each(|way| bench.cost(*way, &mut out))
    };
    alike(&Way::USUAL, None)?;
    if counters.is_some() {
        alike(&Way::WITH_COUNTERS, counters)?;
    }
    for way in Way::COMPARED.into_iter().filter(|_| compare && *backend == CaptureBackend::Bpf) {
        Bench::new(backend, way, None)?.cost(way, &mut out)?;
    }
    Ok(out)
}

/// Measures only an op's probe on an instruction that the kernel emulates, ns.
pub fn cheap_hit(backend: &CaptureBackend) -> Result<u32, CostError> {
    if let CaptureBackend::Inside(_) = backend {
        return Ok(measure::costs()?.op.round() as u32);
    }
    let ns = Bench::new(backend, Way::Op, None)?.measure(Way::Op, Spot::Emulated)?;
    Ok(ns.map_or(0, |ns| ns.round() as u32))
}

/// A source with one structure setting, and a graph to walk.
struct Bench {
    // Before `source`: a prober is useless once its source is gone.
    prober: Box<dyn Prober>,
    source: Box<dyn Source>,
    layout: Layout,
    graph: TargetGraph,
}

impl Bench {
    /// Opens what `way` needs.
    fn new(
        backend: &CaptureBackend,
        way: Way,
        counters: Option<Rc<SharedCounters>>,
    ) -> Result<Bench, CostError> {
        let mut layout = Layout::latest();
        if matches!(way, Way::Looked | Way::New) {
            // Without uid our programs cannot know that a graph is unchanged.
            layout.uid_off = None;
        }
        let structure = match way {
            Way::Published => Structure::EveryHit,
            _ => Structure::Changes,
        };
        let options = CaptureOptions {
            pbuf: false,
            buffer_bytes: BUFFER,
            structure,
            gpu: GpuDetail::Off,
            experts: false,
            sched: false,
            own: true,
            phases_at_once: false,
            few: true,
        };
        let mut source = backend.open(options, None, counters, Rc::new(RefCell::new(|_: &[u8]| {})));
        source.add_target(std::process::id());
        let reading = Reading::new(0, layout.clone(), &Tables::default());
        let prober = source.engine(&reading)?;
        source.admit(std::process::id(), reading.engine);
        Ok(Bench { prober, source, graph: TargetGraph::new(&layout), layout })
    }

    fn cost(&mut self, way: Way, out: &mut Vec<Cost>) -> Result<(), CostError> {
        let spots: &[Spot] = match way {
            Way::Published => &[Spot::First],
            _ => &[Spot::Emulated, Spot::Stepped],
        };
        for &spot in spots {
            out.extend(self.measure(way, spot)?.map(|ns| Cost { way, spot, ns }));
        }
        Ok(())
    }

    /// Nanoseconds of an op with all its hits, without the calls themselves. None: the backend does not support
    /// this way, or the calls took no longer with probes than without.
    fn measure(&mut self, way: Way, spot: Spot) -> Result<Option<f64>, CostError> {
        let before = self.sorted_walks(way)[0];
        let Some(probes) = self.attach(way, spot)? else { return Ok(None) };
        let probed = self.sorted_walks(way)[WALKS / 2];
        drop(probes);
        // Another process may have its own probes on our file for a while: the fastest walk had none.
        let bare = before.min(self.sorted_walks(way)[0]);
        Ok((probed > bare).then(|| (probed - bare) as f64 / NODES as f64))
    }

    fn attach(&self, way: Way, spot: Spot) -> Result<Option<Vec<Box<dyn Probe>>>, CostError> {
        let exe = Path::new("/proc/self/exe");
        let at = |function, spot| calibration_target::site(function, spot).ok_or(CostError::Unmapped);
        // In this process only: others may run this file, too.
        let enter = |placed: Result<Box<dyn Probe>, ProbeError>| {
            let mut probe = placed?;
            probe.enter(std::process::id())?;
            Ok::<_, CostError>(probe)
        };
        let probe = |prog, function, spot| enter(self.prober.place(prog, exe, at(function, spot)?));
        if way == Way::Empty {
            let empty = self.prober.place_empty(exe, at(Function::Op, spot)?);
            return empty.map(|probe| enter(probe).map(|p| vec![p])).transpose();
        }
        if way == Way::Call {
            let enter = probe(Prog::SchedEnter, Function::Op, spot)?;
            return Ok(Some(vec![enter, probe(Prog::SchedExit, Function::Op, Spot::First)?]));
        }
        let mut probes = vec![
            probe(Prog::GraphEnter, Function::Graph, Spot::Emulated)?,
            probe(Prog::Op, Function::Op, spot)?,
        ];
        match way {
            Way::OpAndBarrier | Way::CountedAndBarrier => {
                probes.push(probe(Prog::Barrier, Function::Barrier, spot)?)
            }
            Way::Published => probes.push(probe(Prog::OpExit, Function::Op, spot)?),
            _ => {}
        }
        Ok(Some(probes))
    }

    fn sorted_walks(&mut self, way: Way) -> [u64; WALKS] {
        let mut walks = [0; WALKS];
        for i in 0..FIRST_WALKS + WALKS {
            if way == Way::New {
                self.graph.reshape(&self.layout);
            }
            self.graph.enter();
            let ns = self.graph.walk();
            self.source.poll(Duration::ZERO);
            if let Some(walk) = i.checked_sub(FIRST_WALKS).and_then(|i| walks.get_mut(i)) {
                *walk = ns;
            }
        }
        walks.sort_unstable();
        walks
    }
}
