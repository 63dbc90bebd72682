//! What was recorded: calls, runs, processes, sequences, tensors, as the trace has them.

pub mod call;
pub mod calls;
pub mod cause_records;
pub mod clusters;
pub mod describe;
pub mod graph_kinds;
pub mod idents;
pub mod labels;
pub mod load;
pub mod model;
pub mod processes;
pub(crate) mod run_facts;
pub mod runs;
pub mod selection;
pub mod sequences;
pub mod server;
pub mod target_state;
