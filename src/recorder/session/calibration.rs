//! What a session needs to know before it begins: the levels that the options allow, and their cost on this
//! machine.

use std::rc::Rc;

use crate::capture::backend::CaptureBackend;
use crate::capture::error::RecordError;
use crate::capture::inside::scheduler::Beside;
use crate::capture::pmc::Counters;
use crate::capture::pmc::follow::SharedCounters;
use crate::capture::source::Structure;
use crate::capture::{calibrate, sched_cost};
use crate::recorder::qos::policy::DetailStep;
use crate::recorder::qos::{self, Prices};
use crate::recorder::recording::{Calibration, RecordOptions};
use machine::diagnose;
use pfi::record::{Detail, Level};

/// The richest level that the options ask for.
pub(super) fn top(level: Level, structure: Structure) -> Detail {
    match level {
        Level::Token => Detail::Token,
        Level::Graph => Detail::Graph,
        Level::Op if structure != Structure::Off => Detail::Structure,
        Level::Op => Detail::Op,
    }
}

/// A level's name.
pub(super) fn name(level: Detail) -> String {
    qos::name(DetailStep { level, one_in: 1 })
}

/// Cost of a thread's off-CPU interval, or why the scheduler cannot be a level; neither: it is not requested.
fn sched_cost(backend: &CaptureBackend, sched: bool) -> (Option<f64>, Option<String>) {
    match (sched, backend) {
        (false, _) => (None, None),
        (true, CaptureBackend::Perf(_)) => {
            (None, Some("scheduler perf events stay on at every level".into()))
        }
        (true, CaptureBackend::Inside(_)) if CaptureBackend::scheduler_allowed().is_err() => {
            match Beside::of(false) {
                Beside::Own => (
                    None,
                    Some("the kernel's records of the target's own switches stay on at every level".into()),
                ),
                _ => (None, None),
            }
        }
        (true, CaptureBackend::Bpf | CaptureBackend::Inside(_)) => {
            match sched_cost::price(&CaptureBackend::Bpf) {
                Ok(price) => (Some(price), None),
                Err(why) => (None, Some(format!("its overhead is unknown: {why}"))),
            }
        }
    }
}

/// Cost of a cheap hit, ns. Errors are reported when the engine's own programs are loaded; the trace then says "not
/// measured".
pub(super) fn hit_ns(backend: &CaptureBackend) -> u32 {
    calibrate::cheap_hit(backend).unwrap_or(0)
}

/// Basis of a budget, and why the scheduler is not one of its levels, if so.
pub(super) fn prices(
    backend: &CaptureBackend,
    counters: Option<&Rc<SharedCounters>>,
    sched: bool,
) -> (Option<Prices>, Option<String>) {
    let costs = calibrate::costs(backend, counters, false).ok();
    let (offcpu, unfit) = sched_cost(backend, sched);
    (costs.and_then(|costs| Prices::of(&costs, counters.is_some(), offcpu)), unfit)
}

/// Measures what a recording with these options, which starts its target or not, needs to know about the machine.
///
/// # Errors
/// The same as for a recording.
pub fn learn(options: &RecordOptions, starts: bool) -> Result<Calibration, RecordError> {
    diagnose::capture_libbpf_log();
    let backend = CaptureBackend::choose(options.source, starts)?;
    let counters = Counters::open(&options.counters, backend == CaptureBackend::Bpf)?;
    let shared = counters.as_ref().and_then(Counters::shared);
    let none = (None, None);
    let (prices, unfit) =
        options.budget.map_or(none, |_| prices(&backend, shared.as_ref(), options.capture.sched));
    Ok(Calibration { hit_ns: hit_ns(&backend), prices, unfit })
}
