//! Can ops be recorded on this machine, and in this target? Combines `features`, `privileges`, `examine` and
//! `calibrate` into a verdict.

use std::path::Path;

use serde::Serialize;

use crate::capture::backend::{self, CaptureBackend};
use crate::capture::calibrate::{self, Cost, Way};
use crate::capture::calibration_target::Spot;
use crate::capture::error::ProbeError;
use crate::capture::features;
use crate::capture::inside::scheduler::Beside;
use crate::capture::inside::{Inside, measure};
use crate::capture::multi;
use crate::capture::object::LoadedObject;
use crate::capture::perf::{self, Perf};
use crate::capture::pmc::{self, Counters};
use crate::capture::process;
use crate::capture::source::{CaptureOptions, GpuDetail, Structure};
use crate::capture::structure::Reading;
use engine::discover::DiscoveredEngine;
use engine::elf::ElfMachine;
use engine::examine::{self, ExaminedEngine, ExaminedTarget, SiteCost, Subject};
use engine::layout::Layout;
use engine::tables::Tables;
use machine::check::{Check, CheckResult};
use machine::diagnose::{self, Act};
use machine::kernel::btf::Btf;
use machine::kernel::kconfig::Kconfig;
use machine::kernel::namespaces;
use machine::privileges::Cap;
use machine::{hardware, privileges, sensors, target_state, tracing};

/// Buffer of the trial load, bytes: the default of a recording.
const BUFFER: u64 = 8 << 20;

/// Counters that every kernel has, to measure the cost of reading counters at an op; [`Way::meaning`] names them.
const COUNTED: [&str; 2] = ["task-clock", "page-faults"];

/// All results. The schema of `profinfer doctor --json`.
#[derive(Debug, Serialize)]
pub struct Checkup {
    pub tool: &'static str,
    pub machine: MachineFacts,
    pub privileges: Vec<Check>,
    pub kernel: Vec<Check>,
    /// Our own programs: whether they load, and the cost of a hit.
    pub programs: Vec<Check>,
    pub hit: Option<Hit>,
    pub target: Option<ExaminedTarget>,
    /// Event source of a recording: `bpf`, or `perf` where there is no bpf().
    pub source: &'static str,
    /// What a recording from that source lacks; empty for BPF.
    pub lacks: &'static str,
    /// Ops can be recorded.
    pub fit: bool,
    /// Why not; empty if they can.
    pub reason: String,
    /// Another machine on which this target's ops could be recorded, in the form of `uname -m`. If set, they cannot
    /// be recorded here.
    pub fits_on: Option<&'static str>,
}

#[derive(Debug, Serialize)]
pub struct MachineFacts {
    pub kernel: String,
    pub arch: String,
    pub cpu_model: String,
    /// What of the machine this process may use, where that is not all.
    pub limits: String,
}

/// Nanoseconds of one op hit, just measured on one of our own functions.
#[derive(Debug, Serialize)]
pub struct Hit {
    /// On an instruction that the kernel emulates.
    pub emulated_ns: Option<u32>,
    /// On an instruction that the kernel single-steps.
    pub single_stepped_ns: Option<u32>,
    /// At the target's op probe; `None` without a target or if that kind was not measured.
    pub target_ns: Option<u32>,
    /// An op with all its hits, for every way measured.
    pub ways: Vec<WayCost>,
}

/// One op recorded in one way.
#[derive(Debug, Serialize)]
pub struct WayCost {
    /// See [`Way::name`].
    pub way: &'static str,
    pub meaning: &'static str,
    /// See [`Spot::name`].
    pub instruction: &'static str,
    pub ns: f64,
}

/// What to check, and in how much detail.
#[derive(Debug, Default)]
pub struct Ask<'a> {
    /// The program that asks, and its version.
    pub tool: &'static str,
    pub subject: Option<&'a Subject>,
    /// Place no probes, so no hit is measured.
    pub no_probe: bool,
    /// Measure other ways to record an op as well.
    pub compare: bool,
    /// The kernel's BTF, if given.
    pub btf: Option<&'a Btf>,
}

pub fn checkup(ask: &Ask<'_>) -> Checkup {
    diagnose::capture_libbpf_log();
    let rights = privileges::read();
    let m = hardware::read();
    let (target, engines) = match ask.subject {
        Some(s) => {
            let (target, engines) = examine::examine(s);
            (Some(target), engines)
        }
        None => (None, Vec::new()),
    };
    let perf = Perf::offered();
    // A command can be recorded without what a running process needs.
    let starts = !matches!(ask.subject, Some(Subject::Pid(_)));
    let backend = match (features::bpf(), backend::refusal(&rights)) {
        (Err(errno), _) if perf.is_ok() => {
            CaptureBackend::Perf(diagnose::short_reason(Act::Map, errno, &rights))
        }
        (_, Some(why)) if starts && Inside::offered().is_ok() => CaptureBackend::Inside(why),
        _ => CaptureBackend::Bpf,
    };
    let mut checks = rights.checks();
    let mut kernel = features::kernel(&rights, !ask.no_probe, ask.btf);
    kernel.push(namespaces());
    kernel.push(oops());
    kernel.push(perf_events(&perf));
    kernel.push(from_inside(ask));
    kernel.push(features::config(Kconfig::read(&m.kernel).as_ref()));
    kernel.push(sensors::offered(Path::new("/sys")));
    let (programs, cost) = match &backend {
        CaptureBackend::Bpf => programs(engines.first(), ask),
        CaptureBackend::Perf(_) => {
            checks.iter_mut().chain(&mut kernel).for_each(not_needed);
            events(&backend, ask)
        }
        CaptureBackend::Inside(_) => {
            checks.iter_mut().chain(&mut kernel).for_each(not_needed_inside);
            events(&backend, ask)
        }
    };
    let op_site = target.as_ref().and_then(|t| t.engines.first()).and_then(|e| e.op_site);
    let mut all = Checkup {
        tool: ask.tool,
        machine: MachineFacts {
            kernel: m.kernel,
            arch: m.arch,
            cpu_model: m.cpu_model,
            limits: target_state::limits_here(),
        },
        privileges: checks,
        kernel,
        programs,
        hit: cost.map(|c| hit(&c, op_site)),
        target,
        source: backend.told(false).0.name(),
        lacks: match backend {
            CaptureBackend::Bpf => "",
            CaptureBackend::Perf(_) => perf::LACKS,
            CaptureBackend::Inside(_) => Beside::of(false).lacks(),
        },
        fit: false,
        reason: String::new(),
        fits_on: None,
    };
    let lacking = match &backend {
        CaptureBackend::Bpf => rights.lacking(),
        CaptureBackend::Perf(_) => rights.lacking_of(&[Cap::Perfmon]),
        CaptureBackend::Inside(_) => Vec::new(),
    };
    all.fits_on = all.target.as_ref().and_then(fits_elsewhere);
    match all.obstacle(&lacking) {
        Some(reason) => all.reason = reason,
        None => all.fit = true,
    }
    if let CaptureBackend::Inside(why) = &backend
        && all.fit
    {
        all.reason = match rights.lacking() {
            lacking if lacking.is_empty() => why.clone(),
            lacking => format!("without {}; {}", lacking.join(" and "), privileges::capability_advice()),
        };
    }
    all
}

fn namespaces() -> Check {
    let check = Check::new("namespaces", "process ids and times as the kernel's", CheckResult::Ok);
    match namespaces::are_initial() {
        Ok(()) => check,
        Err(why) => Check { state: CheckResult::Missing, ..check }.detail(&why.to_string()),
    }
}

fn oops() -> Check {
    let check = Check::new("oops", "no oops since boot", CheckResult::Ok);
    match tracing::oops() {
        None => check,
        Some(told) => Check { state: CheckResult::Optional, ..check }.detail(told),
    }
}

/// Checks that only BPF programs need.
const OF_BPF: [&str; 8] =
    ["cap_bpf", "bpf", "ring-buffer", "perf-buffer", "hash", "lru-hash", "percpu-array", "prog-probe"];

fn not_needed(check: &mut Check) {
    if check.state == CheckResult::Missing && OF_BPF.contains(&check.id.as_str()) {
        check.state = CheckResult::Optional;
        check.detail = format!("{}; perf events are used instead", check.detail);
        check.mend.clear();
    }
}

/// The source that needs no privilege.
fn from_inside(ask: &Ask<'_>) -> Check {
    let check = Check::new("inside", "a library in the process of a command", CheckResult::Ok);
    let optional = Check { state: CheckResult::Optional, ..check.clone() };
    if ask.no_probe {
        return match Inside::offered() {
            Ok(()) => check,
            Err(why) => optional.detail(&why.to_string()),
        };
    }
    match measure::costs() {
        Ok(costs) => check.detail(&format!(
            "record --source inside -- COMMAND: {:.0} ns a hit; {}",
            costs.op,
            Beside::of(backend::refusal(&privileges::read()).is_none()).lacks()
        )),
        Err(why) => optional.detail(&why.to_string()),
    }
}

fn not_needed_inside(check: &mut Check) {
    if check.state == CheckResult::Missing {
        check.state = CheckResult::Optional;
        check.detail = format!("{}; a started command is recorded from inside instead", check.detail);
    }
}

fn perf_events(offered: &Result<(), ProbeError>) -> Check {
    let check = Check::new("perf-events", "probe events through perf", CheckResult::Ok);
    match offered {
        Ok(()) => check,
        Err(why) => Check { state: CheckResult::Optional, ..check }
            .detail(&format!("{why}; needed only without bpf()")),
    }
}

/// Places our probe events as a recording without bpf() would, and measures them.
fn events(backend: &CaptureBackend, ask: &Ask<'_>) -> (Vec<Check>, Option<Vec<Cost>>) {
    let check = Check::new("hit", "our op event on a probe", CheckResult::Ok);
    if ask.no_probe {
        return (vec![Check { state: CheckResult::Skipped, ..check }.detail("--no-probe was given")], None);
    }
    match calibrate::costs(backend, None, ask.compare) {
        Ok(cost) => (vec![check], Some(cost)),
        Err(why) => (vec![Check { state: CheckResult::Missing, ..check }.detail(&why.to_string())], None),
    }
}

fn hit(costs: &[Cost], op_site: Option<SiteCost>) -> Hit {
    let op = |spot| {
        let found = costs.iter().find(|c| c.way == Way::Op && c.spot == spot);
        found.map(|c| c.ns.round() as u32)
    };
    let (emulated_ns, single_stepped_ns) = (op(Spot::Emulated), op(Spot::Stepped));
    let target_ns = match op_site {
        Some(SiteCost::Emulated) => emulated_ns,
        Some(SiteCost::SingleStepped) => single_stepped_ns,
        Some(SiteCost::Nop5) | None => None,
    };
    let ways = costs.iter().map(|c| WayCost {
        way: c.way.name(),
        meaning: c.way.meaning(),
        instruction: c.spot.name(),
        ns: c.ns,
    });
    Hit { emulated_ns, single_stepped_ns, target_ns, ways: ways.collect() }
}

/// Loads our programs as a recording would, and measures them.
fn programs(engine: Option<&DiscoveredEngine>, ask: &Ask<'_>) -> (Vec<Check>, Option<Vec<Cost>>) {
    let (name, reading) = match engine {
        Some(e) => ("our programs, with the target's layout", Reading::new(0, e.layout.clone(), &e.tables)),
        None => ("our programs, with today's layout", Reading::new(0, Layout::latest(), &Tables::default())),
    };
    let options = CaptureOptions {
        pbuf: false,
        buffer_bytes: BUFFER,
        structure: Structure::Changes,
        gpu: GpuDetail::Op,
        experts: true,
        sched: false,
        phases_at_once: false,
        few: true,
        own: true,
    };
    let loaded = match LoadedObject::load(&options, &reading, None, None, multi::links_work()) {
        Ok(loaded) => loaded,
        Err(e) => {
            let why = diagnose::explain(Act::Load, &e);
            return (vec![Check::new("load", name, CheckResult::Missing).detail(&why)], None);
        }
    };
    let mut out = vec![Check::new("load", name, CheckResult::Ok)];
    if ask.no_probe {
        out.push(Check::new("hit", "cost of a hit", CheckResult::Skipped).detail("--no-probe was given"));
        return (out, None);
    }
    out.push(follow(&loaded, &options, ask.btf));
    let names = COUNTED.map(str::to_owned).to_vec();
    let counters = ask.compare.then(|| Counters::open(&pmc::CounterOptions { names, strict: false }, true));
    let shared = counters.as_ref().and_then(|c| c.as_ref().ok()?.as_ref()?.shared());
    let cost = calibrate::costs(&CaptureBackend::Bpf, shared.as_ref(), ask.compare);
    let check = Check::new("hit", "our op program on a probe", CheckResult::Ok);
    match cost {
        Ok(cost) => {
            out.push(check);
            (out, Some(cost))
        }
        Err(why) => {
            out.push(Check { state: CheckResult::Missing, ..check }.detail(&why.to_string()));
            (out, None)
        }
    }
}

/// Follows processes briefly.
fn follow(loaded: &LoadedObject, options: &CaptureOptions, btf: Option<&Btf>) -> Check {
    let check = Check::new("process-events", "follow children and exits", CheckResult::Ok);
    let outcome = match loaded.maps() {
        Ok(maps) => process::follow(&maps, options, btf),
        Err(e) => process::FollowOutcome {
            task: None,
            following: Err(process::FollowError::Maps(e)),
            passed_over: Vec::new(),
        },
    };
    let mut told = outcome.passed_over;
    let state = match (outcome.following, told.is_empty()) {
        (Ok(following), none_failed) => {
            told.push(format!("by {}", following.by));
            if none_failed { CheckResult::Ok } else { CheckResult::Optional }
        }
        (Err(why), _) => {
            told.push(format!("{why}; children of a target are not followed"));
            CheckResult::Optional
        }
    };
    Check { state, ..check }.detail(&told.join("; "))
}

/// The machine that the target was built for, if that is a different one and nothing else prevents recording ops there.
fn fits_elsewhere(target: &ExaminedTarget) -> Option<&'static str> {
    let here = ElfMachine::host().map(ElfMachine::name);
    let other = |e: &&ExaminedEngine| Some(e.machine) != here;
    let here_too = target.engines.iter().any(|e| !other(&e));
    let fit = |e: &&ExaminedEngine| e.limits.iter().all(|l| !l.blocks_ops || l.of_machine);
    target.engines.iter().filter(other).find(fit).filter(|_| !here_too).map(|e| e.machine)
}

impl Checkup {
    /// The first obstacle, with the next step.
    fn obstacle(&self, lacking: &[&str]) -> Option<String> {
        if !lacking.is_empty() {
            let lacking = lacking.join(" and ");
            return Some(format!("without {lacking}; {}", privileges::capability_advice()));
        }
        let all = self.privileges.iter().chain(&self.kernel).chain(&self.programs);
        if let Some(c) = all.into_iter().find(|c| c.state == CheckResult::Missing) {
            let mend = if c.mend.is_empty() { String::new() } else { format!("; {}", c.mend) };
            return Some(format!("{}: {}{mend}", c.name, c.detail));
        }
        let target = self.target.as_ref()?;
        if let Some(error) = &target.error {
            return Some(error.clone());
        }
        // One recordable engine is enough.
        let blocks = target.engines.iter().map(|e| e.limits.iter().find(|l| l.blocks_ops));
        blocks.collect::<Option<Vec<_>>>()?.first().map(|l| format!("{}; {}", l.what, l.advice))
    }
}
