//! The report's data: what `--json` contains.

use serde::Serialize;

use crate::questions::quality::RecordingQuality;
use crate::questions::verdict::data::RunVerdict;
use crate::recorded::calls::{CallSource, Latency, Phase, Request, RunWork};
use crate::recorded::graph_kinds::GraphKind;
use crate::recorded::model::ModelFacts;
use crate::recorded::run_facts::RunFacts;
use crate::recorded::runs::{RunId, RunRow};
use crate::recorded::sequences::SequenceReport;
use crate::recorded::target_state::TargetState;
use crate::sums::attribution::counters::CounterFacts;
use crate::sums::attribution::energy::EnergyReport;
use crate::sums::attribution::experts::ExpertReport;
use crate::sums::attribution::interference::InterferenceRow;
use crate::sums::attribution::levels::LevelReport;
use crate::sums::attribution::phases::StageRow;
use crate::sums::attribution::sampling::Sampling;
use crate::sums::attribution::verdict::{Ceiling, Peak};
use crate::sums::offload::Offload;
use crate::sums::op_cpus::CpuTable;
use crate::sums::submissions::DeviceSubmissions;
use crate::sums::tables::{OpRow, SplitRow, ThreadRow, TokenRow};
use crate::sums::usage::ProcessUsage;

/// A table of the report.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum By {
    Op,
    Name,
    Layer,
    Thread,
    Token,
    /// What threads did in each op; can use the rows of the first four tables.
    Cause,
    /// What was counted in each op; likewise.
    Counter,
    Interference,
    Expert,
    Phase,
    Energy,
    Level,
    Cpu,
    /// One row for each request.
    Request,
    /// One row for each sequence of a context.
    Sequence,
    /// Calls by what they compute and for how many sequences, and drafts.
    Batch,
}

impl By {
    pub const ALL: [By; 16] = [
        By::Op,
        By::Name,
        By::Layer,
        By::Thread,
        By::Token,
        By::Cause,
        By::Counter,
        By::Interference,
        By::Expert,
        By::Phase,
        By::Energy,
        By::Level,
        By::Cpu,
        By::Request,
        By::Sequence,
        By::Batch,
    ];
}

/// Report options.
#[derive(Debug, Clone, Default)]
pub struct ReportOptions {
    /// Rows of a table; the rest is summed in one row.
    pub top: Option<usize>,
    pub tables: Vec<By>,
    /// One phase only.
    pub phase: Option<Phase>,
    /// Sizes of expert caches to evaluate; if empty, suitable sizes are chosen.
    pub expert_cache: Vec<u32>,
    /// Peak rates of the machine, by number of threads; empty: not known.
    pub peaks: Vec<Peak>,
    /// Include the verdict and the advice.
    pub verdict: bool,
    /// The run to report on; none: the busiest, see [`crate::recorded::selection::Cut::pid`].
    pub pid: Option<RunId>,
    /// Also report the other runs (of the process in `pid`, if one is given), in [`Report::others`].
    pub others: bool,
}

impl ReportOptions {
    /// True if this is the only requested table.
    pub fn only(&self, by: By) -> bool {
        self.tables == [by]
    }
}

/// The report. `schema` is increased when a field changes its meaning; new fields may be added without that.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    pub schema: u32,
    /// The answer in short; omitted if not requested.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub verdict: Option<RunVerdict>,
    pub run: RunFacts,
    /// What the processes could use of the machine, in the order of time; omitted if not recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub state: Vec<TargetState>,
    /// What the processes used over time, and between their calls; omitted if not recorded.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub usage: Vec<ProcessUsage>,
    /// Processes with calls, and contexts of a process that has several. Everything below, down to `others`, is
    /// about the one shown.
    pub runs: Vec<RunRow>,
    pub model: ModelFacts,
    /// What counts as a call.
    pub call_source: CallSource,
    /// What the calls are for.
    pub work: RunWork,
    /// Graphs by kind, where no calls were recorded; else omitted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub graph_kinds: Vec<GraphKind>,
    /// Time to first token over the requests with a completely recorded prefill.
    pub ttft: Option<Latency>,
    pub requests: Vec<Request>,
    /// Requests by sequence, batching and drafts; omitted if no batch was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<SequenceReport>,
    /// Why there are none; omitted if there are.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences_unknown: Option<String>,
    pub phases: Vec<PhaseReport>,
    /// The peak that ops are compared with. This and the following optional fields are omitted if not recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<Ceiling>,
    /// Requested counters.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub counters: Option<Vec<CounterFacts>>,
    /// Who had the CPU while the target's threads were runnable; empty: no one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub interference: Option<Vec<InterferenceRow>>,
    #[serde(skip_serializing_if = "common::is_default")]
    pub interference_left_out: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertReport>,
    /// Activities of the engine around and within its calls.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<Vec<StageRow>>,
    /// What sampling is made of; omitted if no call of it was recorded.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub energy: Option<EnergyReport>,
    /// Device time by the kernel's tracepoints.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submissions: Option<DeviceSubmissions>,
    /// Recording levels over time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub levels: Option<LevelReport>,
    /// The figures of the other runs, if requested, and the number of further runs that were not analysed.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub others: Vec<OtherRun>,
    #[serde(skip_serializing_if = "common::is_default")]
    pub others_left_out: u64,
    /// Why the completion of a device was not seen; omitted if it was, or if no device was used.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub unseen: Option<String>,
    /// Of the complete recording.
    pub quality: RecordingQuality,
    /// Requested tables, and the maximum rows of each.
    #[serde(skip)]
    pub tables: Vec<By>,
    #[serde(skip)]
    pub top: Option<usize>,
}

/// A run other than the one shown, with the figures of [`Report`].
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct OtherRun {
    pub pid: u32,
    pub context: Option<u32>,
    pub model: ModelFacts,
    pub call_source: CallSource,
    pub work: RunWork,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub graph_kinds: Vec<GraphKind>,
    pub ttft: Option<Latency>,
    pub requests: Vec<Request>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequences: Option<SequenceReport>,
    pub phases: Vec<PhaseReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ceiling: Option<Ceiling>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub experts: Option<ExpertReport>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stages: Option<Vec<StageRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sampling: Option<Sampling>,
}

/// How the op times of a phase are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum OpTime {
    /// Start to barrier entry.
    Busy,
    /// Start to the next op's start, including the barrier wait.
    Wall,
    /// Some graphs have one, some the other.
    Mixed,
}

/// The first call of a phase, if it took much longer for a token than the others did: a program's warm-up, or weights that
/// are read for the first time.
#[derive(Debug, Clone, Copy, PartialEq, Serialize)]
pub struct FirstCall {
    pub ns: u64,
    pub tokens: u64,
    /// Tokens of the other calls over the time in them.
    pub others_tokens_per_s: f64,
}

/// Prefill, decode, or calls whose phase is not known.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PhaseReport {
    pub phase: Phase,
    pub calls: u64,
    /// Calls still running when the recording ended; excluded from all times.
    pub cut_calls: u64,
    /// Calls for which the completion of a device was not seen; also excluded. Omitted if there are none.
    #[serde(skip_serializing_if = "common::is_default")]
    pub unseen_calls: u64,
    /// The part of the calls' durations spent waiting for a device after the call returned. Omitted if zero.
    #[serde(skip_serializing_if = "common::is_default")]
    pub device_ns: u64,
    /// Null if the width of a batch was not recorded.
    pub tokens: Option<u64>,
    /// Sum of the calls' durations.
    pub in_call_ns: u64,
    pub latency: Option<Latency>,
    /// Decode only: from the start of a call to the start of the next one in the same request (includes sampling
    /// and client).
    pub start_to_start: Option<Latency>,
    /// Decode only, per token: duration of a call over its tokens (TPOT as the engine itself computes it), and
    /// the same from start to start. Null if the width of a batch was not recorded.
    pub tpot: Option<Latency>,
    pub tpot_start_to_start: Option<Latency>,
    /// True: calls of several tokens that may not be a prompt (next tokens of several requests in a server,
    /// tokens proposed by a draft model).
    #[serde(skip_serializing_if = "common::is_default")]
    pub batched: bool,
    /// Of embeddings and graphs: calls over the time in calls; else omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runs_per_s: Option<f64>,
    /// Tokens over the time in calls.
    pub tokens_per_s: Option<f64>,
    /// Omitted if the first call was no slower than the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub first_call: Option<FirstCall>,
    /// Decode only: tokens over the time from start to start; null if the width of a batch was not recorded.
    pub tokens_per_s_wall: Option<f64>,
    /// Decode only: share of the time from start to start that is between calls; null if it is not known.
    pub between_calls: Option<f64>,
    pub cpu_graphs: u64,
    /// Additional CPU graphs without recorded ops; and how often the level changed from the first call to the
    /// last. Omitted if it never did.
    #[serde(skip_serializing_if = "common::is_default")]
    pub graphs_below_ops: u64,
    #[serde(skip_serializing_if = "common::is_default")]
    pub level_changes: u64,
    /// Total duration of the CPU graphs; the shares in the tables refer to it.
    pub graph_ns: u64,
    /// Thread 0's op time; the next two are its barrier wait (null in interval mode) and the rest of `graph_ns`.
    pub op_ns: u64,
    pub wait_ns: Option<u64>,
    pub gaps_ns: u64,
    /// Null if no op was recorded, as below level op.
    pub op_time: Option<OpTime>,
    /// Requested tables; others are omitted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_op: Option<Vec<OpRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_name: Option<Vec<OpRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_layer: Option<Vec<OpRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_thread: Option<Vec<ThreadRow>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_token: Option<Vec<TokenRow>>,
    /// Where ops started; also omitted if no CPU is known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub by_cpu: Option<CpuTable>,
    /// Rows of the last two tables beyond [`ReportOptions::top`].
    #[serde(skip_serializing_if = "common::is_default")]
    pub threads_left_out: u64,
    #[serde(skip_serializing_if = "common::is_default")]
    pub calls_left_out: u64,
    pub splits: Vec<SplitRow>,
    /// What each backend computes; omitted if the CPU's does everything.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub offload: Option<Offload>,
}

impl PhaseReport {
    /// Time on backends other than the CPU's, ns. A split lasts until the device has finished, also past the call's return:
    /// if splits were recorded, they have the time after it.
    pub fn on_devices_ns(&self) -> u64 {
        let splits =
            self.splits.iter().filter(|s| !ggml::backend_guid::is_host(&s.backend)).map(|s| s.total_ns);
        splits.fold(0, u64::saturating_add).max(self.device_ns)
    }
}
