//! Requests of an engine, as its calls on batches and the changes of its contexts' memories show them: who is a request, when
//! it begins and ends, which tokens it brought, and which contexts are those of draft models.
//!
//! The recorder, `top` and `report` give [`Requests`] their calls, and take from its [`Event`]s what they show, so that they
//! say the same. It reads nothing by itself, and its memory is bounded.

mod batch;
mod call;
mod contexts;
mod fact;
mod open;
mod requests;
mod row;
mod sequence;
mod widths;

pub use batch::{CallBatch, CallBatches};
pub use call::{Arrival, Call, SeqKey};
pub use contexts::ContextKey;
pub use fact::{Event, Fact, REASONS, Unobserved};
pub use requests::Requests;
pub use row::{RequestNow, RequestPhase};
pub use sequence::ChunkWork;

#[cfg(test)]
mod tests;
