use std::process::{Child, Command, Stdio};

use super::*;
use machine::proc;

/// A process whose CPUs are set, with one thread.
struct Sleeper(Child);

impl Sleeper {
    fn start() -> Sleeper {
        Sleeper(Command::new("sleep").arg("600").spawn().expect("sleep"))
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }

    fn run(&self) -> RunId {
        RunId { pid: self.pid(), start: proc::stat(self.pid()).expect("alive").start, uid: 0, recorder: 5 }
    }

    fn cpus(&self) -> Vec<u32> {
        affinity::of_thread(self.pid()).expect("alive")
    }
}

impl Drop for Sleeper {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A directory, the affinity that keeps its file there, and the CPUs of this test if all are allowed and there are two.
fn stage() -> Option<(tempfile::TempDir, Affinity, Vec<u32>)> {
    let dir = tempfile::tempdir().expect("a directory");
    let place = OpenDir::open(&dir.path().join("own")).expect("a place");
    let all = affinity::of_thread(0).expect("ours");
    let whole = AllowedCpus::default().of_process(std::process::id()).as_ref() == Some(&all);
    (whole && all.len() > 1).then(|| (dir, Affinity::new(Rc::new(place)).0, all))
}

fn rule(decode: CpuChoice) -> Rule {
    Rule { decode_cpus: Some(decode), ..crate::supervisor::tests::rule("a") }
}

fn change(of: &Sleeper, prompt: bool, threads: u32) -> ComputingChange {
    ComputingChange { pid: of.pid(), t: usage::now(), prompt, threads, several: false }
}

fn told(affinity: &mut Affinity) -> String {
    affinity.news().into_iter().map(|news| news.text).collect::<Vec<_>>().join("\n")
}

#[test]
fn cpus_are_given_at_decode_and_taken_back() {
    let Some((_dir, mut affinity, all)) = stage() else { return };
    let (one, of) = (vec![all[1]], Sleeper::start());
    let rule = rule(CpuChoice::List(one.clone()));
    affinity.computes(of.run(), &rule, change(&of, true, 1));
    assert_eq!((of.cpus(), affinity.status()[0].state), (all.clone(), "free"));
    affinity.computes(of.run(), &rule, change(&of, false, 1));
    assert_eq!(of.cpus(), one);
    let status = affinity.status();
    assert_eq!(
        (status[0].state, status[0].work, status[0].cpus.clone()),
        ("set", "decode", Some(one[0].to_string()))
    );
    assert!(status[0].delay_ns >= status[0].took_ns && status[0].took_ns > Some(0), "{status:?}");
    let said = told(&mut affinity);
    assert!(said.contains(&format!("CPUs {} for decode (1 threads, 1 of them compute)", one[0])), "{said}");
    affinity.computes(of.run(), &rule, change(&of, true, 1));
    assert_eq!(of.cpus(), all);
    // Two changes in a short time are enough.
    affinity.computes(of.run(), &rule, change(&of, false, 1));
    assert_eq!(of.cpus(), all);
    let due = affinity.next(0).expect("later");
    affinity.turn(due, &|_| Some(due));
    assert_eq!(of.cpus(), one);
    affinity.keep(&|_| false);
    assert_eq!((of.cpus(), affinity.status().len()), (all, 0));
    assert!(told(&mut affinity).contains("all its CPUs again: it is not recorded any longer"));
}

#[test]
fn more_threads_than_cpus_are_refused_at_once_and_at_any_time() {
    let Some((_dir, mut affinity, all)) = stage() else { return };
    let (one, of) = (vec![all[0]], Sleeper::start());
    let rule = rule(CpuChoice::List(one.clone()));
    affinity.computes(of.run(), &rule, change(&of, false, 2));
    assert_eq!((of.cpus(), affinity.status()[0].state), (all.clone(), "refused"));
    assert!(told(&mut affinity).contains("1 CPU for 2 threads that compute"));
    affinity.computes(of.run(), &rule, change(&of, false, 1));
    assert_eq!(of.cpus(), one);
    // The next prompt has two: without delay.
    affinity.computes(of.run(), &rule, change(&of, true, 2));
    assert_eq!(of.cpus(), all);
    let due = affinity.next(0).unwrap_or(0).max(usage::now() + REST_NS);
    affinity.computes(of.run(), &rule, change(&of, false, 1));
    affinity.turn(due, &|_| Some(due));
    assert_eq!(of.cpus(), one);
    // A prompt may come that its recorder does not see.
    affinity.turn(due + BLIND_NS, &|_| Some(due));
    assert_eq!(of.cpus(), one);
    affinity.turn(due + BLIND_NS + 1, &|_| Some(due));
    assert_eq!(of.cpus(), all);
    assert!(told(&mut affinity).contains("its recorder does not follow it"));
    // Its CPUs do not come and go while it decodes.
    let calm = due + BLIND_NS + 1 + CALM_NS;
    affinity.turn(calm - 1, &|_| Some(calm - 1));
    affinity.computes(of.run(), &rule, change(&of, false, 1));
    assert_eq!((of.cpus(), affinity.next(0)), (all.clone(), Some(calm)));
    affinity.turn(calm, &|_| None);
    assert_eq!(of.cpus(), all, "still not");
    affinity.turn(calm + LOOK_NS, &|_| Some(calm + LOOK_NS));
    assert_eq!(of.cpus(), one);
    // Something else is computed.
    let free = calm + LOOK_NS + BLIND_NS + 1;
    affinity.turn(free, &|_| Some(calm + LOOK_NS));
    assert_eq!(of.cpus(), all);
    affinity.computes(of.run(), &rule, change(&of, true, 1));
    affinity.computes(of.run(), &rule, change(&of, false, 1));
    affinity.turn(free + REST_NS, &|_| Some(free + REST_NS));
    assert_eq!(of.cpus(), one);
    // How many compute is not known.
    affinity.computes(of.run(), &rule, change(&of, false, 0));
    assert_eq!((of.cpus(), affinity.status()[0].state), (all.clone(), "refused"));
    affinity.computes(of.run(), &rule, ComputingChange { several: true, ..change(&of, false, 1) });
    assert_eq!((of.cpus(), affinity.status()[0].state), (all, "off"));
}

#[test]
fn cpus_of_somebody_else_are_left_alone() {
    let Some((_dir, mut affinity, all)) = stage() else { return };
    let (of, its_own) = (Sleeper::start(), Sleeper::start());
    let rule = rule(CpuChoice::List(vec![all[0]]));
    affinity::set_process(its_own.pid(), Some(&all[1..2])).expect("set");
    affinity.computes(its_own.run(), &rule, change(&its_own, false, 1));
    assert_eq!((its_own.cpus(), affinity.status()[0].state), (all[1..2].to_vec(), "off"));
    assert!(told(&mut affinity).contains("has CPUs of its own"));
    affinity.computes(of.run(), &rule, change(&of, false, 1));
    assert_eq!(of.cpus(), all[..1]);
    affinity::set_process(of.pid(), Some(&all[1..2])).expect("set");
    affinity.computes(of.run(), &rule, change(&of, true, 2));
    assert_eq!(
        (of.cpus(), affinity.status()[1].state),
        (all[1..2].to_vec(), "off"),
        "as somebody else wants it"
    );
    assert!(told(&mut affinity).contains("somebody else has changed"));
    affinity.computes(of.run(), &rule, change(&of, false, 1));
    affinity.free_all("the end");
    assert_eq!(of.cpus(), all[1..2]);
}

#[test]
fn two_engines_do_not_share_too_few_cpus() {
    let Some((_dir, mut affinity, all)) = stage() else { return };
    let (first, second) = (Sleeper::start(), Sleeper::start());
    let rule = rule(CpuChoice::List(vec![all[0]]));
    affinity.computes(first.run(), &rule, change(&first, false, 1));
    affinity.computes(second.run(), &rule, change(&second, false, 1));
    assert_eq!((first.cpus(), second.cpus()), (all[..1].to_vec(), all.clone()));
    assert!(told(&mut affinity).contains("other engines that were given some of these CPUs"));
    affinity.change(&|_| false);
    assert_eq!(first.cpus(), all);
}

#[test]
fn auto_needs_a_result_of_tune() {
    let Some((dir, mut affinity, all)) = stage() else { return };
    let (of, of_model) = (Sleeper::start(), "m.gguf");
    let rule = rule(CpuChoice::Auto);
    affinity.engine(of.pid(), "ab".into());
    affinity.computes(of.run(), &rule, change(&of, false, 1));
    assert_eq!((of.cpus(), affinity.status()[0].state), (all.clone(), "off"));
    let said = told(&mut affinity);
    assert!(
        said.contains("no result of tune") && said.contains("own/tuned.json") && !said.contains("/proc/self"),
        "{said}"
    );
    // The model is named by the command line only.
    let child = Command::new("sh")
        .args(["-c", "read x; :", "-m", of_model])
        .stdin(Stdio::piped())
        .spawn()
        .expect("sh");
    crate::until::until("its exec", || tuned::model_of(child.id()).as_deref() == Some(of_model));
    let result = tuned::TunedResult {
        machine: tuned::machine_name(),
        engine: "ab".into(),
        model: of_model.into(),
        decode: Some(tuned::TunedCpus { cpus: all[1].to_string(), threads: 1 }),
        prefill: None,
    };
    let file = tuned::TunedFile { version: tuned::VERSION, results: vec![result] };
    let bytes = serde_json::to_vec(&file).expect("JSON");
    std::fs::write(dir.path().join("own").join(tuned::NAME), bytes).expect("written");
    let sh = Sleeper(child);
    affinity.engine(sh.pid(), "ab".into());
    affinity.computes(sh.run(), &rule, change(&sh, false, 1));
    assert_eq!(sh.cpus(), all[1..2]);
    assert_eq!(affinity.recommended(), [(sh.pid(), "decode", 1, all[1].to_string())]);
}
