//! Tests on live engines: need root, BPF and uprobes. To run one suite: `tests/suite/rust.py --turns live -- sched::`.
#![cfg(feature = "agent")]
#![allow(
    clippy::disallowed_methods,
    clippy::expect_used,
    clippy::panic,
    clippy::unwrap_used,
    reason = "a test program"
)]

#[path = "../all_views/mod.rs"]
mod all_views;
#[path = "../common/mod.rs"]
mod common;
#[path = "../trace_support/mod.rs"]
mod trace_support;

#[global_allocator]
static ALLOCATOR: common::allocator::Counting = common::allocator::Counting;

mod affinity;
mod agents;
mod bisect;
mod btf;
mod budget;
mod capabilities;
mod children;
mod cpus;
mod cuda;
mod dag;
mod device;
mod diff;
mod ends;
mod engines;
mod every_end;
mod experts;
mod finder;
mod fixtures;
mod flood;
mod hexagon;
mod inside;
mod inside_after;
mod inside_user;
mod kill;
mod layers;
mod merge;
mod opencl;
mod output;
mod perf;
mod phases;
mod pmc;
mod privilege;
mod reach;
mod ready;
mod remote;
mod rknn;
mod runner;
mod sched;
mod sequences;
mod serve_command;
mod service;
mod stack;
mod stat;
mod store;
mod submissions;
mod sudo;
mod supervision;
mod top;
mod tune;
mod usage;
mod views;
mod vulkan;
mod watched;
mod wrapped;
