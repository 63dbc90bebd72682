//! The `.pfi` trace format: records, block writer, reader. docs/FORMAT.md is the specification.

mod account;
mod block;
mod cause;
mod coding;
mod describe;
mod device;
pub mod encoder;
mod end;
mod open;
mod output;
mod plans;
mod predict;
pub mod reader;
pub mod record;
pub mod ring;
mod sequence;
mod spool;
mod state;
mod store;
mod table;
mod tail;
mod tensors;

pub use block::{BLOCK_HEADER, FILE_HEADER, MAJOR, MAX_PAYLOAD, MINOR};
pub use coding::{
    KernelTimes, PlanHit, Slice, SliceIter, SliceTime, Submission, chunks, content_hashes, counts,
    cpu_changes, enqueued_groups, expert_ids, group_kernels, kernel_times, plan_hits, sensor_values,
    slice_iter, submissions,
};
pub use encoder::{
    CounterRun, DispatchRun, Encoder, EncoderConfig, EncoderStats, EnqueueRun, ExpertRows, ITSELF, KernelRun,
    SliceRun, TensorDesc, WriteError,
};
pub use end::End;
pub use output::Output;
pub use reader::{Block, BlockRef, Damage, DamageKind, ReadError, Trace};
pub use tail::{Tail, Tap};
