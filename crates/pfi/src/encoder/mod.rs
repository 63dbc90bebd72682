//! The block writer: takes calls with absolute times and writes `.pfi` bytes. After setup, a stream of known
//! tensors and plans allocates nothing.

mod causes;
mod device;
mod rotate;
mod sequences;

use std::collections::HashMap;
use std::io::{self, Write};

use super::block::{BLOCK_HEADER, file_header};
pub use super::coding::PlanHit;
use super::coding::{MAX_VARINT, Slice, hits_of, put_slices};
use super::open::{Def, MAX_HITS, OpenBlock, def};
pub use super::open::{EncoderStats, WriteError};
use super::output::{Growing, Output};
use super::plans::Plans;
use super::record::*;
use super::tensors::{KeptTensor, MAX_SRC, TensorName, Tensors, coded, sanitise};
use causes::WrittenCpus;
pub use causes::{CounterRun, ExpertRows};
pub use device::{DispatchRun, EnqueueRun, KernelRun};

/// Most slices in one record; longer runs are split.
pub const MAX_SLICES: usize = 4096;
/// Most bytes of records kept for the last block (header not counted).
const MAX_KEPT: usize = 4 << 20;
/// Unit in which the kernel copies data into a file.
const PAGE: u64 = 4096;

/// Sizes and times of the writer.
#[derive(Debug, Clone, Copy)]
pub struct EncoderConfig {
    /// A block is sealed once its payload has this many bytes (4 KiB to 4 MiB).
    pub block_bytes: usize,
    /// `tick` writes data older than this to a seekable output, ns. The block stays open.
    pub flush_ns: u64,
    /// `tick` seals a block that has been open this long if the output is not seekable, ns.
    pub seal_ns: u64,
    /// Tensors remembered at a time (64 to 32768).
    pub max_tensors: usize,
    /// Plans remembered at a time (2 to 4096).
    pub max_plans: usize,
}

impl Default for EncoderConfig {
    fn default() -> Self {
        Self {
            block_bytes: 128 << 10,
            flush_ns: 1_000_000_000,
            seal_ns: 5_000_000_000,
            max_tensors: 16_384,
            max_plans: 256,
        }
    }
}

/// A tensor as seen by the recorder. Ids come from `Encoder::tensor`, so none can be the tensor's own: [`ITSELF`] stands
/// for it among the sources. The name is raw bytes; it is cut at the first NUL and at 255 bytes, and cleaned to UTF-8
/// without control characters.
pub type TensorDesc<'a> = Tensor<&'a [u8], &'a [Option<u32>]>;

/// Stands in for a tensor's own id if it is its own source (a copy onto itself), as the id is assigned
/// afterwards.
pub const ITSELF: u32 = u32::MAX - 1;

/// What a run of consecutive op hits of one thread has in common.
#[derive(Debug, Clone, Copy)]
pub struct SliceRun {
    /// seq of the CpuGraph.
    pub graph: u64,
    pub ith: u16,
    pub tid: u32,
    pub plan: u32,
    /// Position of the first slice in the plan.
    pub first: u32,
    pub barrier: bool,
}

/// Writes a trace.
pub struct Encoder<W: Write> {
    out: Growing<W>,
    cfg: EncoderConfig,
    open: OpenBlock,
    /// Number of the current file's first block.
    first: u32,
    /// Time of the first `tick` that found unwritten data.
    since: Option<u64>,
    last_ts: u64,
    failed: bool,
    header: Def,
    /// Records repeated in the last block, keyed by a hash of kind and identity.
    kept: Vec<(u64, Def)>,
    kept_bytes: usize,
    ops: HashMap<u16, Def>,
    types: HashMap<u16, Def>,
    processes: HashMap<u32, Def>,
    counters: Vec<(u32, Def)>,
    sensors: Vec<(u32, Def)>,
    tasks: HashMap<u32, (Box<str>, Def)>,
    cpus: WrittenCpus,
    kernels: HashMap<u32, Def>,
    rings: HashMap<u32, Def>,
    samplers: HashMap<u32, Def>,
    backends: Vec<([u8; 16], String, Def)>,
    tensors: Tensors,
    plans: Plans,
    /// Tensors being written, each with the number of the next reference to visit.
    stack: Vec<(u32, u32)>,
    data: Vec<u8>,
}

fn key_of(kind: &str, name: impl std::hash::Hash) -> u64 {
    use std::hash::{DefaultHasher, Hash, Hasher};
    let mut hasher = DefaultHasher::new();
    (kind, name).hash(&mut hasher);
    hasher.finish()
}

impl<W: Write> Encoder<W> {
    /// Writes the file header. `header` is the first record, and is repeated in the last block.
    pub fn new(out: W, cfg: EncoderConfig, header: &Header) -> Result<Self, WriteError>
    where
        W: Output,
    {
        let cfg = EncoderConfig {
            block_bytes: cfg.block_bytes.clamp(4 << 10, 4 << 20),
            max_tensors: cfg.max_tensors.clamp(64, 32_768),
            max_plans: cfg.max_plans.clamp(2, 4096),
            ..cfg
        };
        // Room beyond the seal mark for one run of slices with the definitions of a typical graph; a larger one
        // grows the buffer once.
        let open = OpenBlock::new(cfg.block_bytes + (128 << 10), MAX_SLICES * (1 + 2 * MAX_VARINT) + 128);
        let mut encoder = Encoder {
            out: Growing::new(out),
            cfg,
            open,
            first: 1,
            since: None,
            last_ts: header.mono_ns,
            failed: false,
            header: def(&Record::Header(header.clone()))?,
            kept: Vec::new(),
            kept_bytes: 0,
            ops: HashMap::new(),
            types: HashMap::new(),
            processes: HashMap::new(),
            counters: Vec::new(),
            sensors: Vec::new(),
            tasks: HashMap::new(),
            cpus: WrittenCpus::default(),
            kernels: HashMap::new(),
            rings: HashMap::new(),
            samplers: HashMap::new(),
            backends: Vec::new(),
            tensors: Tensors::new(cfg.max_tensors),
            plans: Plans::new(cfg.max_plans),
            stack: Vec::with_capacity(cfg.max_tensors),
            data: Vec::with_capacity(MAX_SLICES * (1 + 2 * MAX_VARINT)),
        };
        let written = encoder.out.append(&file_header());
        encoder.check(written)?;
        encoder.open.put_def(&mut encoder.header)?;
        Ok(encoder)
    }

    /// An engine found. Kept for the last block, like the four kinds below.
    pub fn engine(&mut self, r: &Engine) -> Result<(), WriteError> {
        self.keep(key_of("engine", r.id), &Record::Engine(r.clone()))
    }

    /// A module of an engine.
    pub fn module(&mut self, r: &Module) -> Result<(), WriteError> {
        self.keep(key_of("module", (r.engine, r.path)), &Record::Module(r.clone()))
    }

    /// An attached probe.
    pub fn probe(&mut self, r: &ProbeRecord) -> Result<(), WriteError> {
        let key = key_of("probe", (r.engine, r.symbol, r.module, r.ret));
        self.keep(key, &Record::Probe(r.clone()))
    }

    /// A rung's state. In the last block a later one replaces an earlier one with the same role and name.
    pub fn rung(&mut self, r: &RungRecord) -> Result<(), WriteError> {
        self.keep(key_of("rung", (r.engine, r.role, r.name)), &Record::Rung(r.clone()))
    }

    /// A target process; also repeated in each block that refers to its pid.
    pub fn process(&mut self, r: &Process) -> Result<(), WriteError> {
        let record = Record::Process(r.clone());
        self.keep(key_of("process", r.pid), &record)?;
        self.processes.insert(r.pid, Def { written: self.open.number, ..def(&record)? });
        Ok(())
    }

    /// Something the reader should know.
    pub fn notice(&mut self, r: &Notice) -> Result<(), WriteError> {
        self.begin()?;
        self.last_ts = self.last_ts.max(r.t as u64);
        self.open.put(Record::Notice(r.clone()))
    }

    /// Names an op; written in blocks with a tensor of this op.
    pub fn op_def(&mut self, id: u16, name: &str, desc: &str) {
        if let Ok(d) = def(&Record::OpDef(OpDef { id, name, desc })) {
            replace(&mut self.ops, id, d);
        }
    }

    /// Names a type; written in blocks with a tensor of this type.
    pub fn type_def(&mut self, id: u16, name: &str, block: u32, bytes: u32) {
        if let Ok(d) = def(&Record::TypeDef(TypeDef { id, name, block, bytes })) {
            replace(&mut self.types, id, d);
        }
    }

    /// The id of a backend, new if this guid and name were not seen before.
    pub fn backend(&mut self, guid: [u8; 16], name: &str) -> u32 {
        if let Some(i) = self.backends.iter().position(|(g, n, _)| *g == guid && n == name) {
            return i as u32;
        }
        let id = self.backends.len() as u32;
        if let Ok(d) = def(&Record::Backend(Backend { id, guid, name })) {
            self.backends.push((guid, name.to_owned(), d));
        }
        id
    }

    /// The id of a tensor: the same for the same content while the table holds it, and never reused.
    pub fn tensor(&mut self, d: &TensorDesc) -> Result<u32, WriteError> {
        let used = d.src.iter().rposition(Option::is_some).map_or(0, |last| last + 1);
        if used > MAX_SRC {
            return Err(WriteError::TooManySources(used));
        }
        let content = if d.known {
            KeptTensor {
                pid: d.pid,
                addr: d.addr,
                known: true,
                op: d.op,
                ty: d.ty,
                flags: d.flags,
                name: sanitise(d.name),
                ne: d.ne,
                nb: d.nb,
                src: d.src.iter().take(used).map(|s| coded(*s)).collect(),
                view_src: d.view_src,
            }
        } else {
            KeptTensor {
                pid: d.pid,
                addr: d.addr,
                known: false,
                op: 0,
                ty: 0,
                flags: 0,
                name: TensorName::new(),
                ne: [1; 4],
                nb: None,
                src: heapless::Vec::new(),
                view_src: None,
            }
        };
        Ok(self.tensors.intern(content, self.open.number))
    }

    /// The id of a plan: the same for the same content while the table holds it, and never reused.
    pub fn plan(&mut self, pid: u32, n_nodes: u32, hits: &[PlanHit]) -> Result<u32, WriteError> {
        if hits.len() > MAX_HITS {
            return Err(WriteError::TooManyHits(hits.len()));
        }
        Ok(self.plans.intern(pid, n_nodes, hits))
    }

    pub fn token(&mut self, r: &Token) -> Result<(), WriteError> {
        self.begin_at(r.pid, r.t, r.dur)?;
        self.open.put(Record::Token(r.clone()))
    }

    pub fn graph(&mut self, r: &Graph) -> Result<(), WriteError> {
        self.begin_at(r.pid, r.t, r.dur)?;
        self.open.put(Record::Graph(r.clone()))
    }

    /// Errors: as for `slices`, if the plan has left the table.
    pub fn split(&mut self, r: &Split) -> Result<(), WriteError> {
        self.begin_at(r.pid, r.t, r.dur)?;
        if let Some(plan) = r.plan {
            self.write_plan(plan)?;
        }
        if let Some((_, _, d)) = self.backends.get_mut(r.backend as usize) {
            self.open.put_def(d)?;
        }
        self.open.put(Record::Split(r.clone()))
    }

    /// Errors: as for `slices`, if the plan has left the table.
    pub fn cpu_graph(&mut self, r: &CpuGraph) -> Result<(), WriteError> {
        self.begin_at(r.pid, r.t, r.dur)?;
        if let Some(plan) = r.plan {
            self.write_plan(plan)?;
        }
        self.open.put(Record::CpuGraph(r.clone()))
    }

    /// Writes a run of slices, preceded by the parts of its plan that this block lacks. Runs longer than
    /// [`MAX_SLICES`] become several records. Errors: [`WriteError::UnknownPlan`] if the plan has left the table;
    /// pass it again.
    pub fn slices(&mut self, run: &SliceRun, slices: &[Slice]) -> Result<(), WriteError> {
        for (i, chunk) in slices.chunks(MAX_SLICES).enumerate() {
            // A run stays in one block.
            if i == 0 {
                self.begin()?;
            }
            self.write_plan(run.plan)?;
            let done = i * MAX_SLICES;
            let after = slices.get(done + chunk.len()).map(|s| s.start);
            self.data.clear();
            put_slices(&mut self.data, run.barrier, chunk, after);
            self.open.put(Record::Slices(Slices {
                graph: run.graph,
                ith: run.ith,
                tid: run.tid,
                plan: run.plan,
                first: run.first.wrapping_add(done as u32),
                n: chunk.len() as u32,
                t: chunk.first().map_or(0, |s| s.start as i64),
                barrier: run.barrier,
                data: &self.data,
            }))?;
            self.open.stats.slices += chunk.len() as u64;
            self.last_ts = chunk.last().map_or(self.last_ts, |s| self.last_ts.max(s.end.unwrap_or(s.start)));
        }
        Ok(())
    }

    /// Writes data that has waited for `flush_ns`, or seals the block after `seal_ns`. Call it a few times a
    /// second.
    pub fn tick(&mut self, now: u64) -> Result<(), WriteError> {
        self.last_ts = self.last_ts.max(now);
        if self.open.payload() == self.out.done() {
            self.since = None;
            return Ok(());
        }
        let since = *self.since.get_or_insert(now);
        let grows = self.out.grows();
        if now.saturating_sub(since) < if grows { self.cfg.flush_ns } else { self.cfg.seal_ns } {
            return Ok(());
        }
        if grows { self.put_block() } else { self.seal() }
    }

    /// Writes pending data to an output that allows overwriting. Call it before anything that may take long.
    ///
    /// # Errors
    /// The data cannot be written.
    pub fn flush(&mut self) -> Result<(), WriteError> {
        let waits = self.out.grows() && self.open.payload() > self.out.done();
        if waits { self.put_block() } else { Ok(()) }
    }

    /// Bytes of the trace so far.
    pub fn bytes_written(&self) -> u64 {
        self.out.written()
    }

    pub fn stats(&self) -> EncoderStats {
        self.open.stats
    }

    /// Ends the trace: the open block, then a last block with the header, everything kept, and the footer.
    pub fn finish(mut self, footer: &Footer) -> Result<W, WriteError> {
        self.put_last(footer)?;
        let (block, written) = (self.seq() - 1, self.out.written());
        self.out.finish().map_err(|source| WriteError::Io { block, written, source })
    }

    /// Number of the open block within its file, from 0.
    fn seq(&self) -> u32 {
        self.open.number - self.first
    }

    fn keep(&mut self, key: u64, record: &Record) -> Result<(), WriteError> {
        self.begin()?;
        self.keep_here(key, record)
    }

    /// The same in the open block, even if it is full.
    fn keep_here(&mut self, key: u64, record: &Record) -> Result<(), WriteError> {
        let mut d = def(record)?;
        self.open.put_def(&mut d)?;
        match self.kept.iter_mut().find(|(k, _)| *k == key) {
            Some((_, old)) => {
                self.kept_bytes = self.kept_bytes - old.bytes.len() + d.bytes.len();
                *old = d;
            }
            None if self.kept_bytes + d.bytes.len() <= MAX_KEPT => {
                self.kept_bytes += d.bytes.len();
                self.kept.push((key, d));
            }
            None => {}
        }
        Ok(())
    }

    /// Fails once the writer has stopped.
    fn still_whole(&self) -> Result<(), WriteError> {
        match self.failed {
            true => Err(WriteError::Stopped { written: self.out.written() }),
            false => Ok(()),
        }
    }

    /// Seals the block if it is full. Everything that one call writes stays in one block: blocks end between
    /// calls.
    fn begin(&mut self) -> Result<(), WriteError> {
        self.still_whole()?;
        if self.open.payload() >= self.cfg.block_bytes { self.seal() } else { Ok(()) }
    }

    fn begin_at(&mut self, pid: u32, t: i64, dur: u64) -> Result<(), WriteError> {
        self.begin()?;
        self.last_ts = self.last_ts.max((t as u64).saturating_add(dur));
        self.write_process(pid)
    }

    fn write_process(&mut self, pid: u32) -> Result<(), WriteError> {
        self.processes.get_mut(&pid).map_or(Ok(()), |d| self.open.put_def(d))
    }

    fn write_plan(&mut self, id: u32) -> Result<(), WriteError> {
        let number = self.open.number;
        let plan = self.plans.get(id).ok_or(WriteError::UnknownPlan(id))?;
        if plan.written == number {
            return Ok(());
        }
        plan.written = number;
        let (pid, n_nodes) = (plan.pid, plan.n_nodes);
        // Take the encoding out of the table while its tensors are written, which needs `&mut self`.
        let hits = std::mem::take(&mut plan.hits);
        let done = self.write_plan_parts(Plan { id, pid, n_nodes, hits: Ids(&hits) });
        if let Some(plan) = self.plans.get(id) {
            plan.hits = hits;
        }
        done
    }

    fn write_plan_parts(&mut self, plan: Plan) -> Result<(), WriteError> {
        self.write_process(plan.pid)?;
        for hit in hits_of(plan.hits.0) {
            self.write_tensor(hit.tensor)?;
            if let Some(fused) = hit.fused {
                self.write_tensor(fused)?;
            }
        }
        self.open.put(Record::Plan(plan))
    }

    /// Writes a tensor that this block lacks, after those it refers to. A tensor counts as written from its first
    /// visit, so cycles end and the stack never holds a tensor twice.
    fn write_tensor(&mut self, id: u32) -> Result<(), WriteError> {
        let number = self.open.number;
        let Some(slot) = self.tensors.slot(id).filter(|s| self.tensors.entry(*s).written != number) else {
            return Ok(());
        };
        self.tensors.mark_written(slot, number);
        self.stack.clear();
        self.stack.push((slot as u32, 0));
        while let Some((slot, next)) = self.stack.last_mut() {
            let at = *slot as usize;
            let reference = self.tensors.reference(at, *next as usize);
            *next += 1;
            match reference {
                Some(Some(to)) if self.tensors.entry(to).written != number => {
                    self.tensors.mark_written(to, number);
                    self.stack.push((to as u32, 0));
                }
                Some(_) => {}
                None => {
                    self.stack.pop();
                    self.put_tensor(at)?;
                }
            }
        }
        Ok(())
    }

    fn put_tensor(&mut self, slot: usize) -> Result<(), WriteError> {
        let entry = self.tensors.entry(slot);
        let c = &entry.content;
        if c.known {
            self.ops.get_mut(&c.op).map_or(Ok(()), |d| self.open.put_def(d))?;
            self.types.get_mut(&c.ty).map_or(Ok(()), |d| self.open.put_def(d))?;
        }
        self.open.put_tensor(entry.id, c)
    }

    /// Completes the open block and begins the next.
    fn seal(&mut self) -> Result<(), WriteError> {
        if self.failed {
            return Err(WriteError::Stopped { written: self.out.written() });
        }
        if self.open.is_empty() {
            return Ok(());
        }
        // The next block's header must not span two pages: an overwrite is atomic only within one page.
        while (self.out.next_header(self.open.payload()) % PAGE) as usize > PAGE as usize - BLOCK_HEADER {
            self.open.bytes.push(0);
        }
        self.put_block()?;
        self.out.next();
        self.open.next();
        self.open.stats.blocks += 1;
        Ok(())
    }

    /// Writes the open block to the output as far as it goes.
    fn put_block(&mut self) -> Result<(), WriteError> {
        if self.failed {
            return Err(WriteError::Stopped { written: self.out.written() });
        }
        let first_ts = self.open.first_ts.unwrap_or(self.last_ts);
        self.since = None;
        let done = self.out.put(&mut self.open.bytes, self.open.number - self.first, first_ts);
        self.check(done)
    }

    fn check(&mut self, done: io::Result<()>) -> Result<(), WriteError> {
        done.map_err(|source| {
            self.failed = true;
            WriteError::Io { block: self.seq(), written: self.out.written(), source }
        })
    }
}

/// Keeps a definition that did not change, so that a block does not repeat it.
fn replace(defs: &mut HashMap<u16, Def>, id: u16, new: Def) {
    match defs.get(&id) {
        Some(old) if old.bytes == new.bytes => {}
        _ => {
            defs.insert(id, new);
        }
    }
}
