//! Events of each driver in the layouts of tests/tracepoints, and any bytes.

use super::*;
use machine::kernel::event_format::EventFormat;
use proptest::prelude::*;

/// The formats of a file of tests/tracepoints.
fn formats(text: &str) -> Vec<(&str, EventFormat)> {
    let formats = text.split("\nname: ").skip(1);
    formats.map(|t| (t.lines().next().expect("a name"), EventFormat::parse(t))).collect()
}

fn bytes(hex: &str) -> Vec<u8> {
    let pair = |at: usize| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex");
    (0..hex.len()).step_by(2).map(pair).collect()
}

/// The events of a file: time, process, bytes.
fn events(text: &str) -> Vec<(u64, u32, Vec<u8>)> {
    let parts =
        text.lines().filter_map(|l| l.strip_prefix("event ")).map(|l| l.split(' ').collect::<Vec<_>>());
    parts.map(|p| (p[0].parse().expect("ns"), p[1].parse().expect("a process"), bytes(p[2]))).collect()
}

/// What a file's events are read as: ring and submission; the rings; the counts.
struct Read {
    done: Vec<(u32, Submission)>,
    rings: Vec<String>,
    joined: Joined,
}

fn read(text: &str, raw_to_mono: i64) -> Read {
    let formats = formats(text);
    let format = |name: &str| formats.iter().find(|f| f.0 == name).map(|f| f.1.clone());
    let found = SOURCES.iter().enumerate().filter_map(|(i, def)| readers(i, def, format).ok());
    let (sources, mut known, mut out) = (found.collect::<Vec<_>>(), Vec::new(), Vec::new());
    assert_eq!(sources.len(), 1, "the file is of one source");
    let mut joined = Joined::default();
    for (t, tgid, raw) in events(text) {
        let id = u32::from(u16::from_ne_bytes([raw[0], raw[1]]));
        let reader = &sources[0].iter().find(|r| r.0 == id).expect("an event of the file").1;
        let ring = ring_of(&mut known, SOURCES, reader, &raw);
        let hit = reader.read(&raw, t, tgid, ring).expect("long enough");
        let done = joined.take(&SOURCES[reader.source], &hit, raw_to_mono);
        out.extend(done.map(|(ring, s)| (ring.expect("a ring"), s)));
    }
    let rings = known.iter().map(|k| format!("{:?} {} {}", SOURCES[k.source].source, k.device, k.name));
    Read { done: out, rings: rings.collect(), joined }
}

fn submission(pid: u32, queued: u64, run: u64, end: u64) -> Submission {
    Submission { pid, queued: Some(queued), run: Some(run), end, ..Submission::default() }
}

const SCHEDULER_6_17: &str = include_str!("../../../tests/tracepoints/gpu_scheduler-6.17.txt");
const SCHEDULER_6_6: &str = include_str!("../../../tests/tracepoints/gpu_scheduler-6.6.txt");
const SCHEDULER_5_10: &str = include_str!("../../../tests/tracepoints/gpu_scheduler-5.10.txt");
const MSM: &str = include_str!("../../../tests/tracepoints/drm_msm_gpu-6.6.txt");
const KGSL: &str = include_str!("../../../tests/tracepoints/kgsl-ticks.txt");
const KGSL_EARLY: &str = include_str!("../../../tests/tracepoints/kgsl-no-ticks.txt");
const PERIOD: &str = include_str!("../../../tests/tracepoints/gpu_work_period.txt");
const ALL: [&str; 7] = [SCHEDULER_6_17, SCHEDULER_6_6, SCHEDULER_5_10, MSM, KGSL, KGSL_EARLY, PERIOD];

#[test]
fn the_schedulers_jobs_are_joined_by_their_fences_numbers() {
    let r = read(SCHEDULER_6_17, 0);
    let rings = ["Scheduler 0000:03:00.0 gfx_0.0.0", "Scheduler 0000:03:00.0 comp_1.0.0"];
    assert_eq!(r.rings, rings);
    assert_eq!(r.done, [(2, submission(78, 1150, 1200, 1500)), (1, submission(77, 1000, 1100, 1700))]);
    // One began before the recording, one was cancelled before it ran.
    assert_eq!((r.joined.without_start, r.joined.without_end), (2, 0));
}

#[test]
fn the_schedulers_jobs_are_joined_by_their_fences_addresses() {
    let r = read(SCHEDULER_6_6, 0);
    assert_eq!(r.rings, ["Scheduler  pan_js"]);
    let again = Submission { run: Some(2500), end: 2600, ..Submission::default() };
    assert_eq!(r.done, [(1, submission(77, 1000, 1100, 1300)), (1, again)], "whose second run is not known");
    assert_eq!((r.joined.without_start, r.joined.without_end), (0, 1));
}

#[test]
fn rings_without_names_are_numbered() {
    let r = read(SCHEDULER_5_10, 0);
    assert_eq!(r.done.iter().map(|d| d.0).collect::<Vec<_>>(), [1, 2, 1]);
    assert!(r.rings[0].ends_with("ring 0 (in the order in which they were seen)"), "{:?}", r.rings);
    assert!(r.rings.iter().all(|name| !name.contains("ffff")), "no address of the kernel: {:?}", r.rings);
}

#[test]
fn adreno_tells_times_by_its_own_clock() {
    let r = read(MSM, 0);
    assert_eq!(r.rings, ["Msm  ring 2"]);
    // 192 ticks behind the hand-over are 10 us.
    let own = Submission {
        started: Some(1_020_000),
        end: 1_070_000,
        busy: Some(50_000),
        clock: Some(710_000_000),
        ..submission(77, 1_000_000, 1_010_000, 0)
    };
    let blind = submission(77, 2_000_000, 2_010_000, 2_100_000);
    let other = Submission { started: None, ..submission(77, 3_000_000, 3_010_000, 3_100_000) };
    let other = Submission { busy: own.busy, clock: own.clock, ..other };
    assert_eq!(r.done, [(1, own), (1, blind), (1, other)]);
    assert_eq!(r.joined.misfits, 1, "ticks of another counter");
}

#[test]
fn the_vendors_adreno_tells_ticks() {
    let r = read(KGSL, 0);
    assert_eq!(r.rings, ["Kgsl  ", "Kgsl  ring 1", "Kgsl  ring -1"]);
    let own = Submission {
        started: Some(1_110_000),
        end: 1_210_000,
        busy: Some(100_000),
        ..submission(77, 1_000_000, 1_010_000, 0)
    };
    let blind = Submission { run: Some(1_300_000), end: 1_400_000, ..Submission::default() };
    assert_eq!(r.done, [(2, own), (3, blind)]);
    let r = read(KGSL_EARLY, 0);
    let old = Submission { run: Some(1_010_000), end: 1_200_000, ..Submission::default() };
    assert_eq!((r.done, r.rings), (vec![(1, old)], vec!["Kgsl  ".to_owned()]));
}

#[test]
fn periods_are_moved_to_the_traces_clock() {
    let r = read(PERIOD, -300);
    assert_eq!(r.rings, ["WorkPeriod gpu 0 uid 10123", "WorkPeriod gpu 0 uid 1000"]);
    let period = |busy| Submission { run: Some(700), end: 3700, busy: Some(busy), ..Submission::default() };
    assert_eq!(r.done, [(1, period(2500)), (2, period(0))]);
    assert_eq!(r.joined.misfits, 1, "a period that ends before it begins");
}

#[test]
fn a_missing_event_or_field_is_named() {
    let formats = formats(SCHEDULER_6_17);
    let without = |event: &'static str| {
        let format = |name: &str| formats.iter().find(|f| f.0 == name && name != event).map(|f| f.1.clone());
        readers(0, &SOURCES[0], format).map(drop)
    };
    assert_eq!(without("drm_sched_job_run"), Err("no event drm_sched_job_run".into()));
    let bare = |_: &str| Some(EventFormat::parse("ID: 5\n"));
    let lacks = "drm_sched_job_queue has no field fence_context";
    assert_eq!(readers(0, &SOURCES[0], bare).map(drop), Err(lacks.into()));
    // What is not needed may be missing.
    let old = |name: &str| (name != "adreno_cmdbatch_queued").then(|| self::formats(KGSL_EARLY));
    let kgsl = |name: &str| old(name)?.into_iter().find(|f| f.0 == name).map(|f| f.1);
    assert_eq!(readers(3, &SOURCES[3], kgsl).expect("enough").len(), 2);
}

#[test]
fn submissions_that_never_end_are_bounded() {
    let mut joined = Joined::default();
    for n in 0..40_000u64 {
        let key = (0, [n, 0]);
        let hit = Hit {
            step: Step::Run,
            key,
            t: n,
            tgid: 0,
            ring: None,
            ticks: None,
            start: None,
            end: None,
            busy: None,
            clock: None,
        };
        joined.take(&SOURCES[0], &hit, 0);
    }
    assert!(joined.without_end > 30_000, "{}", joined.without_end);
}

proptest! {
    /// Any bytes in any driver's layout: nothing panics, and each end is either joined or counted.
    #[test]
    fn any_events_are_read(which in 0usize..ALL.len(), all in proptest::collection::vec((proptest::collection::vec(0u8..4, 0..112), any::<u64>()), 0..40), mono: i64) {
        let formats = formats(ALL[which]);
        let format = |name: &str| formats.iter().find(|f| f.0 == name).map(|f| f.1.clone());
        let mut known = Vec::new();
        for (i, def) in SOURCES.iter().enumerate() {
            let Ok(readers) = readers(i, def, format) else { continue };
            let (mut joined, mut ends, mut seen) = (Joined::default(), 0, 0);
            for (raw, t) in &all {
                let Some((_, reader)) = readers.get(*t as usize % readers.len()) else { continue };
                let ring = ring_of(&mut known, SOURCES, reader, raw);
                let Some(hit) = reader.read(raw, *t, 1, ring) else { continue };
                ends += u64::from(matches!(hit.step, Step::Done | Step::Period));
                seen += u64::from(joined.take(def, &hit, mono).is_some());
            }
            let periods = if def.events[0].step == Step::Period { joined.misfits } else { 0 };
            prop_assert_eq!(seen + joined.without_start + periods, ends);
        }
    }
}
