//! The supervisor with recorders simulated by the test, which has their ends of the channels and sets the time.

mod command;
mod totals;

use std::cell::{Cell, RefCell};
use std::process::{Child, Command};
use std::rc::Rc;

use super::*;
use crate::recorder::channel::{self, WorkerEvent};
use crate::store::calibration_cache;
use crate::supervisor::run_table::in_all;
use crate::supervisor::vitals::ProcessVitals;
use agent::capture::source::{BackendChoice, CaptureOptions, GpuDetail, Structure};
use agent::recorder::recording::{Calibration, RecordOptions, Streams};
use agent::recorder::verify::OpEnd;
use engine::probes::Site;
use machine::hardware::AgentCpu;
use machine::helper::channel::Channel;
use machine::helper::pulse::Signs;
use pfi::record::Level;

const NOBODY: u32 = 65534;
const SECOND: Duration = Duration::from_secs(1);

pub(crate) fn rule(name: &str) -> Rule {
    let record = RecordOptions {
        level: Level::Op,
        capture: CaptureOptions {
            pbuf: false,
            buffer_bytes: 4096,
            structure: Structure::Changes,
            gpu: GpuDetail::Op,
            experts: false,
            sched: false,
            own: false,
            phases_at_once: false,
            few: false,
        },
        phases: false,
        layers: Vec::new(),
        sched_requested: false,
        source: BackendChoice::Auto,
        agent_cpu: AgentCpu::Any,
        op_end: OpEnd::Auto,
        site: Site::Cheapest,
        op_probe: None,
        btf: None,
        budget: None,
        sensors: None,
        duration: None,
        counters: Default::default(),
        tokens: None,
        calibration: None,
        calibrated_later: false,
        user: None,
        cpus: None,
        streams: Streams::Ours,
        flush: SECOND,
        ring: None,
        tool: String::new(),
        command_line: String::new(),
        cmdline: true,
    };
    Rule {
        name: name.into(),
        exe: None,
        user: None,
        cgroup: None,
        ignore: false,
        sample_one_in: 1,
        tokens: None,
        ring: None,
        ring_size: 1 << 20,
        below: None,
        p99_above: None,
        decode_cpus: None,
        prefill_cpus: None,
        on_trigger: None,
        record,
    }
}

fn calibration() -> Calibration {
    Calibration { hit_ns: 5, prices: None, unfit: None }
}

/// A simulated recorder.
struct Played {
    pid: i32,
    channel: Channel,
}

impl Played {
    /// The processes that it was asked to follow since the last call.
    fn told(&mut self) -> Vec<(u32, u64)> {
        let mut told = Vec::new();
        while let Ok(Some(order)) = self.channel.receive() {
            if let channel::RecorderCommand::Follow(run) = order {
                told.push((run.pid, run.start));
            }
        }
        told
    }

    fn says(&mut self, what: &WorkerEvent) {
        self.channel.send(what).expect("sent");
    }

    fn stands(&mut self, runs: &[(u32, u64)], of: impl Fn(&mut Run)) {
        let run = |&(pid, start): &(u32, u64)| {
            let mut run = Run { pid, start, level: "op".into(), ..Run::default() };
            of(&mut run);
            run
        };
        for some in runs.chunks(16) {
            self.says(&WorkerEvent::Runs(some.iter().map(run).collect()));
        }
    }
}

struct Stage {
    supervisor: Supervisor,
    settings: ServiceSettings,
    played: Rc<RefCell<Vec<Played>>>,
    /// Pids of the next recorders; when used up, pids of no process.
    pids: Rc<RefCell<Vec<i32>>>,
    refuses: Rc<RefCell<bool>>,
    time: Rc<Cell<Instant>>,
}

impl Stage {
    fn new() -> Stage {
        let played: Rc<RefCell<Vec<Played>>> = Rc::default();
        let (pids, refuses): (Rc<RefCell<Vec<i32>>>, Rc<RefCell<bool>>) = Default::default();
        let (all, of, no) = (played.clone(), pids.clone(), refuses.clone());
        let time = Rc::new(Cell::new(Instant::now()));
        let now = time.clone();
        let mut begun = -1;
        let hire: Hire = Box::new(move |_, _, _| {
            if *no.borrow() {
                return Err(io::Error::from_raw_os_error(libc::EAGAIN));
            }
            begun -= 1;
            let pid = of.borrow_mut().pop().unwrap_or(begun);
            let (recorder, channel) = Recorder::played(pid)?;
            all.borrow_mut().push(Played { pid, channel });
            Ok(recorder)
        });
        let supervisor = Supervisor::with(hire, Box::new(move || now.get()));
        let settings = ServiceSettings { rules: vec![rule("a")], ..ServiceSettings::default() };
        let mut stage = Stage { supervisor, settings, played, pids, refuses, time };
        stage
            .supervisor
            .calibration_cache
            .learn(calibration_cache::kind(&rule("a").record, false), calibration());
        stage
    }

    fn meet(&mut self, pid: u32, start: u64, uid: u32) {
        let base = (1, pid.into());
        let met = Met { pid, start, exe: b"/bin/x".to_vec(), uid, cgroup: None, base, parent: None };
        self.supervisor.meet(met, &self.settings);
        self.supervisor.assign(&self.settings);
    }

    /// This many runs, all of a living process: they differ in their start times.
    fn meet_many(&mut self, n: u64, uid: u32) {
        let first = self.supervisor.counts.seen;
        (first..first + n).for_each(|start| self.meet(std::process::id(), start, uid));
    }

    fn later(&self, by: Duration) {
        self.time.set(self.time.get() + by);
    }

    fn pass(&mut self, seconds: u64) -> Vec<String> {
        for _ in 0..seconds {
            self.later(SECOND);
            self.supervisor.hear();
            self.supervisor.tick(&self.settings);
            self.supervisor.assign(&self.settings);
        }
        self.supervisor.news()
    }

    fn told(&self, i: usize) -> Vec<(u32, u64)> {
        self.played.borrow_mut()[i].told()
    }

    fn stands(&mut self, i: usize, runs: &[(u32, u64)], of: impl Fn(&mut Run)) {
        self.played.borrow_mut()[i].stands(runs, of);
        self.supervisor.hear();
    }

    /// The users of the current recorders.
    fn users(&self) -> Vec<Option<u32>> {
        self.supervisor.workers.iter().map(|h| h.uid).collect()
    }

    fn ended(&mut self) -> Vec<String> {
        self.supervisor.ended.drain(..).filter_map(|run| run.ended).collect()
    }
}

/// A process in the role of a recorder; killed with the test.
struct Process(Child);

impl Process {
    fn run(line: &str) -> Process {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new("sh");
        // Like a recorder, it is notified of runs with this signal.
        let ignore = || {
            // SAFETY: ignores a signal; the executed program inherits this.
            unsafe { libc::signal(libc::SIGUSR1, libc::SIG_IGN) };
            Ok(())
        };
        // SAFETY: the closure makes one system call.
        unsafe { command.args(["-c", line]).pre_exec(ignore) };
        Process(command.spawn().expect("sh"))
    }

    /// A process that does nothing and does not wait for the disk.
    fn idle() -> Process {
        let process = Process::run("exec sleep 1000");
        let path = format!("/proc/{}/stat", process.pid());
        crate::until::until("it sleeps", || {
            std::fs::read_to_string(&path).is_ok_and(|s| s.contains("(sleep) S"))
        });
        process
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }

    fn was_killed(&mut self) -> bool {
        use std::os::unix::process::ExitStatusExt;
        self.0.wait().expect("its end").signal() == Some(libc::SIGKILL)
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn a_silent_recorder_is_killed_and_its_other_runs_go_on() {
    let mut stage = Stage::new();
    let mut process = Process::idle();
    stage.pids.borrow_mut().push(process.pid());
    let here = std::process::id();
    stage.meet(here, 1, NOBODY);
    stage.stands(0, &[(here, 1)], |_| {});
    stage.meet(1, 2, NOBODY);
    stage.supervisor.workers[0].recorder.pulse().set(Signs { beats: 9, at: 1, ..Signs::default() });
    let said = stage.pass(30);
    assert!(said.iter().all(|l| !l.contains("killed")), "{said:?}");
    let said = stage.pass(3).join("\n");
    assert!(said.contains("is killed: it has shown no sign of life for 30 s"), "{said}");
    assert!(process.was_killed());
    let ended = stage.ended();
    assert!(ended.len() == 1 && ended[0].contains("its recorder was killed"), "{ended:?}");
    assert_eq!(stage.told(1), [(here, 1)], "the other run has another recorder");
    let quarantined = stage.supervisor.quarantined();
    assert_eq!((quarantined.len(), quarantined[0].uid), (1, NOBODY));
    // The same file again: not for that user, but for others.
    stage.meet(here, 3, NOBODY);
    let met =
        |start, uid| Met { pid: here, start, exe: Vec::new(), uid, cgroup: None, base: (1, 1), parent: None };
    stage.supervisor.meet(met(7, NOBODY), &stage.settings);
    assert!(stage.ended().pop().is_some_and(|why| why.contains("is quarantined")));
    stage.supervisor.meet(met(8, 0), &stage.settings);
    stage.pass(1);
    assert_eq!(stage.told(1), [(here, 3)]);
    assert_eq!(stage.told(2), [(here, 8)]);
}

#[test]
fn a_recorder_that_burns_cpu_is_killed_whatever_it_says() {
    let mut stage = Stage::new();
    let mut process = Process::run("while :; do :; done");
    stage.pids.borrow_mut().push(process.pid());
    stage.settings.recorder_timeout = SECOND;
    stage.settings.cpu = 0.001;
    stage.meet(std::process::id(), 1, NOBODY);
    let mut said = String::new();
    for beats in 1..600 {
        stage.supervisor.workers[0].recorder.pulse().set(Signs { beats, ..Signs::default() });
        let cpu = || ProcessVitals::of(process.pid()).expect("alive").cpu;
        let before = cpu();
        crate::until::until("it takes CPU time", || cpu() > before);
        stage.later(SECOND / 10);
        stage.supervisor.tick(&stage.settings);
        said += &stage.supervisor.news().join("\n");
        if said.contains("killed") {
            break;
        }
    }
    assert!(said.contains("(cpu), and it does not end by itself"), "{said}");
    assert!(process.was_killed());
}

#[test]
fn each_user_has_a_recorder_and_a_death_is_nobody_elses() {
    let mut stage = Stage::new();
    stage.meet_many(2, NOBODY);
    stage.meet_many(2, 0);
    assert_eq!(stage.users(), [Some(NOBODY), Some(0)]);
    assert_eq!((stage.told(0).len(), stage.told(1).len()), (2, 2));
    let mut deaths = 0;
    for _ in 0..100 {
        // Those of nobody die as soon as they exist.
        stage.played.borrow_mut().retain(|p| {
            let roots = stage.supervisor.workers.iter().any(|h| h.recorder.pid == p.pid && h.uid == Some(0));
            deaths += u32::from(!roots);
            roots
        });
        stage.pass(1);
        stage.meet_many(1, 0);
    }
    assert!((4..10).contains(&deaths), "{deaths}: the wait grows");
    let own: Vec<_> = stage.supervisor.table.all.iter().filter(|k| k.met.uid == 0).collect();
    assert!(
        own.iter().filter(|k| matches!(k.phase, RunPhase::With(-3))).count() >= 2,
        "root's stay where they are"
    );
    assert!(stage.supervisor.later.why("a", Some(NOBODY), stage.supervisor.now()).is_some());
    assert_eq!(stage.supervisor.later.why("a", Some(0), stage.supervisor.now()), None);
}

#[test]
fn one_who_dies_with_a_file_in_hand_twice_leaves_it() {
    let mut stage = Stage::new();
    let here = std::process::id();
    stage.meet(here, 1, NOBODY);
    for _ in 0..2 {
        let last = stage.supervisor.workers.last().expect("a recorder");
        last.recorder.pulse().set(Signs { at: here, ..Signs::default() });
        stage.played.borrow_mut().clear();
        stage.pass(12);
    }
    assert!(stage.ended().pop().is_some_and(|why| why.contains("recorders died while examining it")));
    assert_eq!(stage.supervisor.quarantined().len(), 1);
}

#[test]
fn sixteen_of_one_user_leave_places_to_others_and_the_next_takes_one_that_is_free() {
    let mut stage = Stage::new();
    stage.meet_many(18, NOBODY);
    assert_eq!((stage.told(0).len(), stage.supervisor.waiting()), (16, 2));
    stage.meet_many(1, 0);
    assert_eq!(stage.told(1).len(), 1, "root's is recorded at once");
    let here = std::process::id();
    stage.stands(0, &[(here, 5)], |run| run.ended = Some("the process has ended".into()));
    stage.supervisor.assign(&stage.settings);
    assert_eq!((stage.told(0), stage.supervisor.waiting()), (vec![(here, 16)], 1), "the oldest of them");
    assert_eq!(stage.supervisor.counts.too_many, 0, "nothing is decided yet");
}

#[test]
fn who_never_uses_the_engine_lets_another_have_the_place() {
    let mut stage = Stage::new();
    let here = std::process::id();
    stage.meet_many(17, NOBODY);
    let all = stage.told(0);
    stage.stands(0, &all, |run| run.processes = if run.start == 3 { Vec::new() } else { vec![here] });
    stage.pass(50);
    assert_eq!(stage.told(0), []);
    stage.pass(20);
    assert_eq!((stage.told(0), stage.supervisor.waiting()), (vec![(here, 16)], 1));
    assert!(stage.supervisor.runs().all(|run| run.start != 3));
    // A user with all places over many rules leaves one to a user without any.
    let mut stage = Stage::new();
    stage.settings.rules = (0..8).map(|n| rule(&n.to_string())).collect();
    for n in 0..8 {
        stage.settings.rules.rotate_left(usize::from(n > 0));
        stage.meet_many(16, NOBODY);
    }
    let taken = stage.supervisor.table.all.iter().filter(|k| k.has_place()).count();
    assert!(taken <= in_all(16) / 2, "{taken}");
    stage.meet_many(1, 1000);
    assert!(stage.supervisor.table.all.last().is_some_and(KnownRun::has_place));
}

#[test]
fn ten_thousand_engines_of_one_user_fill_neither_table_nor_log() {
    let mut stage = Stage::new();
    stage.meet_many(10_000, NOBODY);
    assert_eq!(stage.supervisor.counts.seen, 10_000);
    assert_eq!(stage.supervisor.table.all.len(), OF_USER);
    assert_eq!(stage.supervisor.counts.too_many, 10_000 - OF_USER as u64, "each is counted");
    let said = stage.supervisor.news();
    assert!(said.len() < 30 && said.iter().any(|l| l.contains("too many runs of user 65534")), "{said:?}");
    stage.meet_many(1, 0);
    assert_eq!(stage.told(1).len(), 1);
    assert_eq!(stage.supervisor.recorders(), 2);
    // Short ones: each ends before it is examined.
    for start in 20_000..30_000 {
        stage.meet(u32::MAX - 1, start, NOBODY);
        if start % 500 == 0 {
            stage.later(SECOND);
            stage.supervisor.tick(&stage.settings);
        }
    }
    assert!(stage.supervisor.ended.len() <= ENDED && stage.supervisor.table.all.len() <= OF_USER + 1);
}

#[test]
fn thousands_of_users_leave_a_recorder_to_root() {
    let mut stage = Stage::new();
    for uid in 1000..3000 {
        stage.meet_many(1, uid);
    }
    assert!(stage.supervisor.recorders() < 16, "{}", stage.supervisor.recorders());
    stage.meet_many(1, 0);
    assert_eq!(stage.users().last(), Some(&Some(0)));
    // An idle one ends when others wait.
    let here = std::process::id();
    let first = stage.told(0);
    stage.stands(0, &first, |run| run.ended = Some("over".into()));
    stage.pass(3);
    assert!(stage.supervisor.workers[0].told.is_some(), "it is told to end before it has lingered");
    assert_eq!(first.len(), 1, "of {here}");
}

#[test]
fn a_recorder_that_cannot_be_had_is_told_and_tried_again() {
    let mut stage = Stage::new();
    *stage.refuses.borrow_mut() = true;
    stage.meet_many(1, NOBODY);
    let said = stage.pass(3).join("\n");
    assert!(said.contains("cannot start a recorder: Resource temporarily unavailable"), "{said}");
    *stage.refuses.borrow_mut() = false;
    stage.pass(6);
    assert_eq!(stage.told(0).len(), 1);
}

#[test]
fn what_a_recorder_says_is_good_for_its_own_runs_only() {
    let mut stage = Stage::new();
    let here = std::process::id();
    stage.meet(here, 1, NOBODY);
    stage.meet(here, 2, 0);
    // It cannot report on another's run, and root's process is no child of nobody's.
    stage.stands(0, &[(here, 2)], |run| run.ended = Some("over".into()));
    stage.stands(0, &[(here, 1)], |run| run.processes = vec![1, here]);
    assert!(stage.ended().is_empty());
    stage.meet(1, 3, 0);
    assert_eq!(stage.told(1), [(here, 2), (1, 3)]);
    // A calibration from a recorder that has seen an engine is not accepted for others.
    stage.played.borrow_mut()[0]
        .says(&WorkerEvent::Calibration(Calibration { hit_ns: 1 << 30, ..calibration() }));
    stage.played.borrow_mut()[0].says(&WorkerEvent::Message("one\ntwo \u{1b}[2J".into()));
    stage.supervisor.workers[0].dump = true;
    stage.played.borrow_mut()[0].says(&WorkerEvent::Dumped(Ok("../x.pfi".into())));
    stage.supervisor.hear();
    assert_eq!(
        stage.supervisor.calibration_cache.of(&calibration_cache::kind(&rule("a").record, false)),
        Some(&calibration())
    );
    assert!(stage.supervisor.news().contains(&"rule a: one\\ntwo \\u{1b}[2J".to_owned()));
    assert!(matches!(&stage.supervisor.dumped[..], [(_, Err(DumpError::NoName))]));
    // A recorder that floods gets only its turn.
    let mut sent = 0;
    while sent < 5000 && stage.played.borrow_mut()[0].channel.send(&WorkerEvent::Attached).is_ok() {
        sent += 1;
    }
    stage.supervisor.hear();
    let left = std::iter::from_fn(|| stage.supervisor.workers[0].recorder.hear().ok().flatten()).count();
    assert_eq!(left, sent - 64);
}

#[test]
fn one_that_says_what_no_recorder_says_is_killed() {
    use std::os::fd::AsRawFd;
    let mut stage = Stage::new();
    let mut process = Process::idle();
    stage.pids.borrow_mut().push(process.pid());
    stage.meet_many(1, NOBODY);
    let junk = [255u8; 9];
    let fd = stage.played.borrow()[0].channel.fd().as_raw_fd();
    // SAFETY: nine bytes.
    assert_eq!(unsafe { libc::send(fd, junk.as_ptr().cast(), 9, 0) }, 9);
    stage.supervisor.hear();
    assert!(process.was_killed());
}

#[test]
fn one_that_is_silent_while_it_learns_is_followed_later_and_later() {
    let mut stage = Stage::new();
    stage.supervisor.calibration_cache = CalibrationCache::default();
    let all: Vec<Process> = (0..3).map(|_| Process::idle()).collect();
    stage.pids.borrow_mut().extend(all.iter().map(Process::pid));
    let mut begun = Vec::new();
    for second in 1..200 {
        stage.pass(1);
        let now = stage.played.borrow().len();
        begun.resize(now.max(begun.len()), second);
        // The process ends with its channel.
        let killed: Vec<i32> =
            stage.supervisor.workers.iter().filter(|h| h.killed).map(|h| h.recorder.pid).collect();
        for played in stage.played.borrow_mut().iter_mut().filter(|p| killed.contains(&p.pid)) {
            played.channel = Channel::pair().expect("a pair").0;
        }
        if now == 3 {
            break;
        }
    }
    assert_eq!(begun.len(), 3, "{begun:?}");
    let gaps: Vec<u64> = begun.windows(2).map(|w| w[1] - w[0]).collect();
    assert!(gaps[0] >= 30 + 5 && gaps[1] > gaps[0], "{begun:?}");
    assert!(stage.supervisor.quarantined().is_empty());
}

/// The first run after the service's start does not wait until the cost of a probe is known.
#[test]
fn a_run_is_recorded_while_another_recorder_calibrates() {
    let mut stage = Stage::new();
    stage.supervisor.calibration_cache = CalibrationCache::default();
    stage.meet_many(1, NOBODY);
    let here = std::process::id();
    let states: Vec<(bool, bool)> = stage.supervisor.workers.iter().map(|h| (h.learns, h.awaits)).collect();
    assert_eq!(states, [(true, false), (false, true)]);
    assert_eq!((stage.told(0), stage.told(1)), (Vec::new(), vec![(here, 0)]));
    // What is measured reaches the recorder that has begun, and not that of which it comes.
    stage.played.borrow_mut()[0].says(&WorkerEvent::Calibration(calibration()));
    stage.supervisor.hear();
    let passed = |i: usize| match stage.played.borrow_mut()[i].channel.receive() {
        Ok(Some(channel::RecorderCommand::Calibrated(calibration))) => Some(*calibration),
        _ => None,
    };
    assert_eq!((passed(0), passed(1)), (None, Some(calibration())));
    // The one that has calibrated is free for the next user.
    stage.meet(here, 7, 0);
    assert_eq!(stage.told(0), [(here, 7)]);
    // Without room for two, the one for the run calibrates itself.
    let mut stage = Stage::new();
    stage.supervisor.calibration_cache = CalibrationCache::default();
    stage.settings.recorders = 1;
    stage.meet_many(1, NOBODY);
    assert!(matches!(&stage.supervisor.workers[..], [one] if one.learns && !one.awaits));
}

#[test]
fn a_recorder_that_reports_triggers_without_a_pause_is_heard_once_a_minute() {
    let mut stage = Stage::new();
    let here = std::process::id();
    stage.meet(here, 1, NOBODY);
    stage.meet(here, 2, 0);
    let slow = WorkerEvent::Triggered(Fired {
        pid: Some(here),
        run: None,
        cause: crate::recorder::trigger::Slowness::Below,
        text: "slow\n".into(),
    });
    let fires = |stage: &mut Stage, i: usize| {
        (0..10).for_each(|_| stage.played.borrow_mut()[i].says(&slow));
        stage.supervisor.hear();
        std::mem::take(&mut stage.supervisor.reported).len()
    };
    // Another user's recorder has its own.
    assert_eq!((fires(&mut stage, 0), fires(&mut stage, 1), fires(&mut stage, 0)), (1, 1, 0));
    stage.later(60 * SECOND);
    assert_eq!((fires(&mut stage, 0), fires(&mut stage, 1)), (1, 1));
}

#[test]
fn runs_that_computed_nothing_are_counted_apart() {
    let mut stage = Stage::new();
    let followed = Run { level: "op".into(), ..Run::default() };
    stage.supervisor.end(followed.clone());
    stage.supervisor.end(Run { tokens: 1, ..followed.clone() });
    // Graphs without calls.
    stage.supervisor.end(Run { threads: [None, Some(2)], ..followed });
    assert_eq!((stage.supervisor.counts.recorded, stage.supervisor.counts.empty), (2, 1));
}
