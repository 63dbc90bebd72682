//! Tracepoints of the kernel that tell when work was submitted to a device, when it ran and when it ended. What is
//! needed of them is checked against their `format`; a source is used if all of that is there.
//!
//! Drivers that use the kernel's scheduler for devices (amdgpu, xe, nouveau, lima, v3d, panfrost, panthor, etnaviv, msm
//! and others) need no source of their own: their own tracepoints tell the same moments of a submission, and for amdgpu
//! and lima not its end. NVIDIA's own driver has no tracepoints.

use pfi::record::SubmissionSource;

/// What an event says about a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// A process submits it. Happens in that process.
    Queued,
    /// The kernel hands it to the device.
    Run,
    /// It has ended.
    Done,
    /// A period during which an application used the device: no submission, and complete in itself.
    Period,
}

/// What a field is, beyond those that identify a submission.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    /// The device and its queue: a text or a number.
    Device,
    Ring,
    /// The device's counter at the moment of the event.
    Ticks,
    /// The counter when the device began and when it ended; times in ns of a Period.
    Start,
    End,
    /// Time that the device took, ns; 0 = not known.
    Busy,
    /// Its clock, MHz; 0 = not known.
    Megahertz,
}

/// Number of roles.
pub const ROLES: usize = Role::Megahertz as usize + 1;

/// One tracepoint of a source.
#[derive(Debug, Clone, Copy)]
pub struct EventDef {
    pub name: &'static str,
    pub step: Step,
    /// Fields that are the same in all events of a submission, at most two. They must be there.
    pub keys: &'static [&'static str],
    /// Fields that may be missing.
    pub fields: &'static [(Role, &'static str)],
    /// Without this event the source is of no use.
    pub needed: bool,
}

/// Tracepoints that together tell about submissions.
#[derive(Debug, Clone, Copy)]
pub struct SourceDef {
    pub source: SubmissionSource,
    pub system: &'static str,
    pub events: &'static [EventDef],
    /// Put before a device or ring that is a number.
    pub device: &'static str,
    pub ring: &'static str,
    /// Ticks of the device's counter per second; None: the events say how long the ticks took.
    pub ticks: Option<u64>,
}

const fn event(
    name: &'static str,
    step: Step,
    keys: &'static [&'static str],
    fields: &'static [(Role, &'static str)],
) -> EventDef {
    EventDef { name, step, keys, fields, needed: true }
}

const FENCE: &[&str] = &["fence_context", "fence_seqno"];
const FENCE_POINTER: &[&str] = &["fence"];
const MSM: &[&str] = &["id", "ringid"];
const KGSL: &[&str] = &["id", "timestamp"];
const OF_RING: &[(Role, &str)] = &[(Role::Device, "dev"), (Role::Ring, "name")];

/// drivers/gpu/drm/scheduler/gpu_scheduler_trace.h, Linux 6.17 and later, where these are stable interfaces.
const SCHEDULER: SourceDef = SourceDef {
    source: SubmissionSource::Scheduler,
    system: "gpu_scheduler",
    events: &[
        event("drm_sched_job_queue", Step::Queued, FENCE, OF_RING),
        event("drm_sched_job_run", Step::Run, FENCE, OF_RING),
        event("drm_sched_job_done", Step::Done, FENCE, &[]),
    ],
    device: "",
    ring: "ring ",
    ticks: None,
};

/// The same file before 6.17. In 5.10 the ring's name is a pointer.
const SCHEDULER_POINTERS: SourceDef = SourceDef {
    events: &[
        event("drm_sched_job", Step::Queued, FENCE_POINTER, OF_RING),
        event("drm_run_job", Step::Run, FENCE_POINTER, OF_RING),
        event("drm_sched_process_job", Step::Done, FENCE_POINTER, &[]),
    ],
    ..SCHEDULER
};

/// drivers/gpu/drm/msm/msm_gpu_trace.h, Linux 6.6. The counter runs at 19.2 MHz in all of them (retire_submit
/// of msm_gpu.c), but elapsed / (end_ticks - start_ticks) says so itself.
const MSM_GPU: SourceDef = SourceDef {
    source: SubmissionSource::Msm,
    system: "drm_msm_gpu",
    events: &[
        event("msm_gpu_submit", Step::Queued, MSM, &[(Role::Ring, "ringid")]),
        event("msm_gpu_submit_flush", Step::Run, MSM, &[(Role::Ring, "ringid"), (Role::Ticks, "ticks")]),
        event(
            "msm_gpu_submit_retired",
            Step::Done,
            MSM,
            &[
                (Role::Busy, "elapsed"),
                (Role::Megahertz, "clock"),
                (Role::Start, "start_ticks"),
                (Role::End, "end_ticks"),
            ],
        ),
    ],
    device: "",
    ring: "ring ",
    ticks: None,
};

/// adreno_trace.h of Qualcomm's graphics kernel; early versions have no ticks. KGSL_XO_CLK_FREQ of its kgsl_pwrctrl.h is 19.2 MHz.
const KGSL_BATCHES: SourceDef = SourceDef {
    source: SubmissionSource::Kgsl,
    system: "kgsl",
    events: &[
        EventDef { needed: false, ..event("adreno_cmdbatch_queued", Step::Queued, KGSL, &[]) },
        event("adreno_cmdbatch_submitted", Step::Run, KGSL, &[(Role::Ring, "rb_id"), (Role::Ticks, "ticks")]),
        event("adreno_cmdbatch_retired", Step::Done, KGSL, &[(Role::Start, "start"), (Role::End, "retire")]),
    ],
    device: "",
    ring: "ring ",
    ticks: Some(19_200_000),
};

/// Of Android's GPU drivers; there is no such event in Linux 6.18. Its times are CLOCK_MONOTONIC_RAW.
const WORK_PERIOD: SourceDef = SourceDef {
    source: SubmissionSource::WorkPeriod,
    system: "power",
    events: &[event(
        "gpu_work_period",
        Step::Period,
        &[],
        &[
            (Role::Device, "gpu_id"),
            (Role::Ring, "uid"),
            (Role::Start, "start_time_ns"),
            (Role::End, "end_time_ns"),
            (Role::Busy, "total_active_duration_ns"),
        ],
    )],
    device: "gpu ",
    ring: "uid ",
    ticks: None,
};

/// All that are known.
pub const SOURCES: &[SourceDef] = &[SCHEDULER, SCHEDULER_POINTERS, MSM_GPU, KGSL_BATCHES, WORK_PERIOD];
