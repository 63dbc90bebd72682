//! A model's graph, built for a batch size and reused while the size stays the same.

use super::arch;
use super::builder::GraphBuilder;
pub use super::builder::{GraphSize, Inputs};
use super::cache::Cache;
use super::space::{NodePtr, Space};
use super::{Model, weights::Weights};
use crate::abi::{self, GgmlTensor, Op};
use crate::compute::{self, Slow, Weight, WorkSizes};
use crate::kernels::Isa;
use crate::optimise::dump::{self, Stage};
use crate::optimise::fuse::Sharing;
use crate::optimise::{Optimiser, Report, Steps};
use crate::parts::KernelParts;
use crate::pool::graph::{fused_pairs, is_fused};
use memmap2::MmapMut;

/// Not enough memory for the tensors of a graph.
#[derive(Debug, thiserror::Error)]
#[error("not enough memory for the {0} bytes that the largest batch needs: use a smaller --ctx or batch")]
pub struct BufferError(usize);

/// A model's graph and the memory of its tensors.
pub struct ModelGraph {
    space: Space,
    steps: Optimiser,
    buffer: MmapMut,
    /// Sufficient for every graph no larger than the planned one.
    work: WorkSizes,
    built: Option<Built>,
    slow: Option<Slow>,
}

/// A graph that is ready to run.
#[derive(Debug, Clone, Copy)]
pub struct Built {
    pub shape: GraphSize,
    pub graph: *mut abi::GgmlGraph,
    pub inputs: Inputs,
    pub logits: NodePtr,
}

impl ModelGraph {
    /// A graph of at most the sizes in `most`, on at most `threads` threads, which goes through `steps`.
    ///
    /// # Errors
    /// Not enough memory.
    pub fn new(
        model: &Model,
        cache: &Cache,
        most: GraphSize,
        threads: usize,
        steps: Steps,
    ) -> Result<Self, BufferError> {
        let mut space = Space::new(arch::most_tensors(&model.params), model.isa);
        let (inputs, _) = build(&mut space, model, cache, most);
        // SAFETY: the sources are of the space, the weights and the cache; weights do not change.
        let mut steps = unsafe { Optimiser::new(space.tensors(), &inputs.all(), steps) };
        space.retain(&steps);
        let bytes = steps.bytes();
        let work = space.nodes().iter().map(|n| work(*n, threads)).fold(WorkSizes::default(), WorkSizes::max);
        let mut buffer = MmapMut::map_anon(bytes.max(1)).map_err(|_| BufferError(bytes))?;
        // A kernel without huge pages provides small ones.
        #[cfg(target_os = "linux")]
        let _ = buffer.advise(memmap2::Advice::HugePage);
        if steps.fuses() {
            steps.report.prepared = share_activations(&mut space);
            let graph = space.finish(buffer.as_mut_ptr(), &steps, work);
            // SAFETY: the space's own graph, and its nodes.
            steps.report.fused = unsafe { fused_pairs(&*graph) };
        }
        Ok(Self { space, steps, buffer, work, built: None, slow: None })
    }

    /// What the steps did.
    pub fn report(&self) -> &Report {
        &self.steps.report
    }

    /// Whether the graph is to run with fused nodes.
    pub fn fuses(&self) -> bool {
        self.steps.fuses()
    }

    /// The graph of this shape as DOT.
    pub fn dump(&mut self, model: &Model, cache: &Cache, shape: GraphSize, stage: Stage) -> String {
        let graph = match stage {
            Stage::After => self.get(model, cache, shape).graph,
            Stage::Before => {
                self.built = None;
                build(&mut self.space, model, cache, shape);
                self.space.finish(self.buffer.as_mut_ptr(), &self.steps, self.work)
            }
        };
        let fuses = stage == Stage::After && self.fuses();
        let title = format!("{}, {} token", model.params.arch.name(), shape.tokens);
        // SAFETY: the space's own graph, whose sources are of the space, the weights and the cache.
        unsafe {
            let (graph, nodes) = (&*graph, (*graph).nodes());
            dump::dot(&title, nodes, |i| fuses && is_fused(graph, nodes, i))
        }
    }

    /// Bytes of the buffer and of the work memory for `threads` threads.
    pub fn bytes(&self, threads: usize) -> usize {
        self.buffer.len().saturating_add(self.work.bytes(threads))
    }

    /// The graph that was built last.
    pub fn built(&self) -> Option<&Built> {
        self.built.as_ref()
    }

    /// Makes ops slower in graphs built from now on; returns how many nodes of the last graph match.
    pub fn slow_down(&mut self, slow: Slow) -> usize {
        self.built = None;
        // SAFETY: nodes of the space.
        let meant = self.space.nodes().iter().filter(|n| slow.means(unsafe { &***n })).count();
        self.slow = Some(slow);
        meant
    }

    /// The graph of this shape, reusing the last one if it matches. Allocates nothing.
    pub fn get(&mut self, model: &Model, cache: &Cache, shape: GraphSize) -> Built {
        if let Some(built) = self.built.filter(|b| b.shape == shape) {
            return built;
        }
        let (inputs, logits) = build(&mut self.space, model, cache, shape);
        self.steps.apply(self.space.tensors());
        self.space.retain(&self.steps);
        if self.steps.fuses() {
            share_activations(&mut self.space);
        }
        kernel_parts(&mut self.space, model.parts);
        if let Some(slow) = &self.slow {
            mark(&mut self.space, slow);
        }
        let graph = self.space.finish(self.buffer.as_mut_ptr(), &self.steps, self.work);
        let built = Built { shape, graph, inputs, logits };
        self.built = Some(built);
        built
    }
}

fn build(space: &mut Space, model: &Model, cache: &Cache, shape: GraphSize) -> (Inputs, NodePtr) {
    space.clear();
    let weights: &Weights = &model.weights;
    arch::build(&mut GraphBuilder { space, p: &model.params, weights, cache, shape })
}

/// The weights of a matrix product node.
fn weight<'a>(node: &GgmlTensor) -> Option<&'a Weight> {
    if !matches!(node.op, Op::MUL_MAT | Op::MUL_MAT_ID) {
        return None;
    }
    // SAFETY: the first source is a weight tensor of a model that outlives the graph.
    unsafe { node.src[0].as_ref().and_then(|w| Weight::of(w)) }
}

fn rows(t: &GgmlTensor) -> usize {
    usize::try_from(t.nrows()).unwrap_or(0)
}

fn work(node: NodePtr, threads: usize) -> WorkSizes {
    // SAFETY: nodes and sources of the space and the weights.
    let node = unsafe { &*node };
    let Some(weight) = weight(node) else {
        return if node.op == Op::FLASH_ATTN_EXT {
            // SAFETY: as above.
            unsafe { compute::attention_work(node, threads) }
        } else {
            WorkSizes::default()
        };
    };
    // SAFETY: as above.
    let acts = unsafe { node.src[1].as_ref() }.map_or(0, rows);
    if node.op == Op::MUL_MAT_ID {
        compute::experts_work(weight, acts, rows(node))
    } else {
        compute::matmul_work(weight, acts, acts)
    }
}

/// Tells the nodes which parts of the kernels are switched off, and what shares a scale.
fn kernel_parts(space: &mut Space, parts: KernelParts) {
    for i in 0..space.len() {
        let Some(&node) = space.nodes().get(i) else { return };
        // SAFETY: a node of the space.
        let attention = unsafe { (*node).op } == Op::FLASH_ATTN_EXT;
        let Some(state) = space.state(node) else { continue };
        state.scale = parts.activation;
        if attention {
            state.halves = parts.halves;
            if !parts.attention {
                state.isa = Isa::Scalar;
            }
        }
    }
}

/// Marks the nodes that are to be slowed down.
fn mark(space: &mut Space, slow: &Slow) {
    for i in 0..space.len() {
        let Some(&node) = space.nodes().get(i) else { return };
        // SAFETY: a node of the space.
        let share = if slow.means(unsafe { &*node }) { slow.share } else { 0.0 };
        if let Some(state) = space.state(node) {
            state.slow = share;
        }
    }
}

/// Products that use the same activations in the same format prepare them only once. Returns how many find them
/// prepared.
fn share_activations(space: &mut Space) -> usize {
    let (mut sharing, mut found) = (Sharing::new(), 0);
    for i in 0..space.len() {
        let Some(&node) = space.nodes().get(i) else { break };
        // SAFETY: a node of the space; its sources are of the space and the weights.
        let prepares = unsafe {
            let tensor = &*node;
            sharing.prepares(tensor, weight(tensor).map(Weight::format))
        };
        found += usize::from(!prepares);
        if let Some(state) = space.state(node) {
            state.prepares = prepares;
        }
    }
    found
}
