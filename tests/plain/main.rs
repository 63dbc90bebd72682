//! Tests that need no live engine. To run one suite: `cargo test --test plain report_cli::`.
#![allow(clippy::duplicate_mod, reason = "fuzz/src/targets.rs is part of another program, too")]
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
#[path = "../dag_support/mod.rs"]
mod dag_support;
#[cfg(feature = "dataset")]
#[path = "../fleet/mod.rs"]
mod fleet;
#[path = "../html_support/mod.rs"]
mod html_support;
#[path = "../synth_trace/mod.rs"]
mod synth_trace;
#[path = "../trace_support/mod.rs"]
mod trace_support;

#[global_allocator]
static ALLOCATOR: common::allocator::Counting = common::allocator::Counting;

mod accuracy_cli;
#[cfg(target_os = "linux")]
mod adapt;
mod advice_commands;
mod completions;
#[cfg(feature = "agent")]
mod config_cli;
#[cfg(feature = "agent")]
mod control_cli;
mod dag;
mod dag_cli;
#[cfg(feature = "dataset")]
mod dataset_cli;
#[cfg(feature = "dataset")]
mod dataset_sql;
#[cfg(feature = "agent")]
mod diagnose_cli;
mod diff_runs;
#[cfg(feature = "agent")]
mod discover_fixtures;
#[cfg(feature = "agent")]
mod discover_hostile;
#[cfg(feature = "agent")]
mod discover_maps;
#[cfg(feature = "agent")]
mod discover_prologue;
#[cfg(feature = "agent")]
mod discover_real;
#[cfg(feature = "agent")]
mod doctor;
#[cfg(feature = "agent")]
mod drain_alloc;
#[cfg(feature = "agent")]
mod drain_room;
mod experts_cli;
mod export_beside;
mod export_chrome;
mod export_csv;
mod export_device;
mod export_perfetto;
mod export_stacks;
mod export_trust;
#[cfg(feature = "agent")]
mod fuzz_corpus;
mod hostile_text;
mod html;
mod html_cli;
#[cfg(feature = "agent")]
mod mcp_cli;
mod model_damage;
mod no_threads;
mod offload;
#[cfg(feature = "agent")]
mod one_request;
mod one_value;
mod outputs_cli;
#[cfg(feature = "agent")]
mod pmc_pmus;
mod predict_cli;
mod promises;
mod python_traces;
#[cfg(feature = "agent")]
mod recording_end;
mod report_attribution;
mod report_cli;
mod report_counters;
mod report_cpus;
mod report_experts;
mod report_invariants;
mod report_lines;
mod report_numbers;
mod report_run;
mod report_runs;
mod report_trust;
mod runner_cli;
mod runner_graph;
mod runner_llama;
mod runner_models;
mod runner_quality;
mod runner_slots;
mod score_cli;
mod stat_pictures;
mod stat_runs;
mod synth_cli;
mod synth_models;
mod tokenizer;
mod top_sums;
mod trace_alloc;
mod trace_cut;
mod trace_damage;
mod trace_golden;
mod trace_growing;
mod trace_rotate;
mod trace_roundtrip;
mod trace_size;
mod verdict;
mod verdict_causes;
mod version_cli;
mod views_damage;
