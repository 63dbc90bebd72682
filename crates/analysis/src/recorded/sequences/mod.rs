//! What a call is made of, sequence by sequence; the requests that this shows; and how well batching and speculation do.
//!
//! A server computes several sequences (slots) in one call: parts of prompts, single tokens, and drafts to verify. The
//! records of batches say which; without them nothing here is known, and nothing is guessed.

mod batching;
mod contents;
mod data;
mod given;
mod request;
mod speculation;
mod track;

#[cfg(test)]
mod tests;

use serde::Serialize;

pub use self::batching::{BatchRow, Batching};
pub use self::contents::PromptBefore;
pub use self::data::{CallKind, CallWork, SeqRequest, Sequences, TokenStep};
use self::given::Given;
pub use self::request::{RequestRow, SequenceRow, rows as request_rows};
pub use self::speculation::{Speculation, SpeculationCost};
use crate::recorded::call::{Call, Latency, Request, latency, weighted};
use crate::recorded::load::Loaded;
use common::order;
use pfi::record::Availability;

impl Sequences {
    /// Reads the batches of the calls, which are in time order. None: no batch was recorded.
    pub fn of(loaded: &Loaded<'_>, calls: &[Call]) -> Option<Sequences> {
        if loaded.causes.ubatches.is_empty() {
            return None;
        }
        let mut all = track::sequences(&Given::of(loaded, calls), calls);
        contents::compare(loaded, calls, &mut all);
        Some(all)
    }
}

/// The requests as the report lists them for all recordings.
pub fn requests(all: &Sequences) -> Vec<Request> {
    let request = |r: &SeqRequest| Request {
        pid: r.pid,
        start_ns: r.start,
        prefill_calls: r.prefill_calls,
        prompt_tokens: (!r.late).then_some(r.prompt),
        ttft_ns: r.ttft(),
        prefill_ns: r.prefill_ns,
        decode_calls: r.steps.len() as u64,
    };
    let mut list: Vec<Request> = all.requests.iter().map(request).collect();
    order::by_key(&mut list, |r| (order::time(r.start_ns), r.pid.into()));
    list
}

/// The part of the report about sequences.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct SequenceReport {
    pub requests: Vec<RequestRow>,
    /// By sequence, in the order of their first requests.
    pub sequences: Vec<SequenceRow>,
    /// Rows beyond those shown.
    pub requests_left_out: u64,
    /// Over all requests; null if none is known.
    pub ttft: Option<Latency>,
    /// From when the server took a request in to the start of its first call; null if that is not known of any.
    pub queued: Option<Latency>,
    pub tpot: Option<Latency>,
    pub batching: Batching,
    /// Omitted if no draft was verified.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub speculation: Option<Speculation>,
    /// Chunks of more sequences than are followed.
    pub untracked: u64,
    /// Why figures are incomplete: what of the batches could not be read; null: all was.
    pub incomplete: Option<String>,
}

/// Builds the report of the calls shown, with at most `top` requests.
pub fn report(loaded: &Loaded<'_>, calls: &[Call], all: &Sequences, top: Option<usize>) -> SequenceReport {
    let requests: Vec<RequestRow> = request::rows(calls, all).into_iter().map(|(_, row)| row).collect();
    let left_out = requests.len().saturating_sub(top.unwrap_or(usize::MAX));
    let told =
        loaded.causes.features.iter().find(|f| f.name == "sequences" && f.state != Availability::Whole);
    SequenceReport {
        ttft: latency(requests.iter().filter_map(|r| r.ttft_ns).collect()),
        queued: latency(requests.iter().filter_map(|r| r.queued_ns).collect()),
        tpot: weighted(request::token_times(all)),
        batching: Batching { stalled: request::stalled_share(&requests), ..batching::batching(calls, all) },
        sequences: request::by_sequence(&requests, all),
        speculation: speculation::speculation(loaded, calls, all),
        requests: requests.into_iter().take(top.unwrap_or(usize::MAX)).collect(),
        requests_left_out: left_out as u64,
        untracked: all.untracked,
        incomplete: told.map(|f| f.why.to_owned()),
    }
}

/// Why the sequences of a recording are not known.
pub fn why_unknown(loaded: &Loaded<'_>) -> String {
    let told = loaded.causes.features.iter().find(|f| f.name == "sequences");
    told.map_or("recorded by a profinfer that did not read batches", |f| f.why).into()
}
