use super::*;
use crate::rules::RuleUser;

fn hook(argv: &[&str], uid: u32, ms: u64) -> Hook {
    let user = RuleUser { name: uid.to_string(), uid };
    Hook { argv: argv.iter().map(|w| (*w).to_owned()).collect(), user, timeout: Duration::from_millis(ms) }
}

fn us() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Runs a script to its end; returns what was logged.
fn run(runner: &mut HookRunner, hook: &Hook, event: &str) -> Option<String> {
    let said = runner.run("r", hook, event);
    let mut heard = None;
    crate::until::until("its end", || {
        if runner.running.is_some() {
            heard = runner.hear();
        }
        heard.is_some() || runner.running.is_none()
    });
    heard.or(said)
}

#[test]
fn a_program_gets_the_event_and_little_else() {
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("out");
    let mut runner = HookRunner::start(true).expect("a runner");
    let script = format!(
        "cat > {0}; env >> {0}; pwd >> {0}; ls /proc/self/fd | wc -l >> {0}; umask >> {0}",
        out.display()
    );
    let event = "{\"event\":\"trigger\",\"text\":\"'$(touch x)\\\"\"}";
    assert_eq!(run(&mut runner, &hook(&["/bin/sh", "-c", &script], us(), 30_000), event), None);
    let said = std::fs::read_to_string(&out).expect("it ran");
    assert!(said.starts_with(event), "{said}");
    assert!(
        said.contains("PATH=/usr/local/bin:/usr/bin:/bin")
            && !said.contains("HOME=")
            && !said.contains("CARGO"),
        "{said}"
    );
    assert!(said.contains("\n/\n") && said.trim_end().ends_with("0077"), "{said}");
    assert_eq!((runner.counts.runs, runner.counts.failed), (1, 0));
}

#[test]
fn a_program_is_killed_at_its_limit_with_what_it_started() {
    let dir = tempfile::tempdir().expect("a directory");
    let pids = dir.path().join("pids");
    let mut runner = HookRunner::start(true).expect("a runner");
    // One of them in a session of its own, and one orphan.
    let script = format!(
        "setsid sleep 600 & (sleep 600 & echo $! >> {0}); echo $! >> {0}; echo $$ >> {0}; sleep 600",
        pids.display()
    );
    // A longer limit until it suffices for the program to have started all of them.
    let (mut limit, mut begun) = (250, 0);
    while begun < 3 {
        let _ = std::fs::remove_file(&pids);
        let hook = hook(&["/bin/sh", "-c", &script], us(), limit);
        assert!(limit < 60_000, "{begun} of 3 are started");
        let said = run(&mut runner, &hook, "{}").expect("a failure");
        assert!(said.contains("time limit"), "{said}");
        let text = std::fs::read_to_string(&pids).unwrap_or_default();
        let pids: Vec<u32> = text.lines().map(|pid| pid.parse().expect("a number")).collect();
        pids.iter().for_each(|&pid| crate::until::until("it is gone", || !target::alive(pid)));
        (limit, begun) = (limit * 2, pids.len());
    }
    assert!(runner.counts.timed_out > 0 && runner.counts.failed == runner.counts.timed_out);
    // The next one runs.
    assert_eq!(run(&mut runner, &hook(&["/bin/true"], us(), 30_000), "{}"), None);
}

#[test]
fn one_at_a_time_and_failures_are_counted() {
    let mut runner = HookRunner::start(true).expect("a runner");
    let long = hook(&["/bin/true"], us(), 30_000);
    assert_eq!(runner.run("r", &long, "{}"), None);
    assert_eq!((runner.run("r", &long, "{}"), runner.counts.skipped), (None, 1));
    crate::until::until("its end", || {
        assert_eq!(runner.hear(), None);
        runner.running.is_none()
    });
    let said = run(&mut runner, &hook(&["/bin/sh", "-c", "exit 3"], us(), 30_000), "{}").expect("a failure");
    assert!(said.contains("exit code 3; 1 failures"), "{said}");
    let said = run(&mut runner, &hook(&["/nonexistent/x"], us(), 30_000), "{}").expect("a failure");
    assert!(said.contains("could not be started: No such file"), "{said}");
    let said =
        run(&mut runner, &hook(&["/bin/sh", "-c", "kill -9 $$"], us(), 30_000), "{}").expect("a failure");
    assert!(said.contains("signal 9"), "{said}");
    assert_eq!((runner.counts.runs, runner.counts.failed), (4, 3));
    assert!(runner.counts.last_failure.as_ref().is_some_and(|why| why.contains("signal 9")));
}

#[test]
fn without_a_runner_nothing_is_run() {
    let mut runner = HookRunner::start(false).expect("nothing to start");
    let said = runner.run("r", &hook(&["/bin/true"], us(), 1000), "{}").expect("a failure");
    assert!(said.contains("restart it") && runner.fd().is_none() && runner.hear().is_none(), "{said}");
}

#[test]
fn a_program_runs_as_its_user_without_privileges() {
    if us() != 0 {
        return;
    }
    let dir = tempfile::tempdir().expect("a directory");
    let out = dir.path().join("out");
    std::fs::write(&out, "").expect("a file");
    std::os::unix::fs::chown(&out, Some(65534), None).expect("changed");
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(dir.path(), std::fs::Permissions::from_mode(0o755)).expect("changed");
    // Without privileges root cannot write to the files of others.
    std::fs::set_permissions(&out, std::fs::Permissions::from_mode(0o666)).expect("changed");
    let mut runner = HookRunner::start(true).expect("a runner");
    let script =
        format!("grep -E '^(Uid|Gid|Groups|CapPrm|CapEff|NoNewPrivs)' /proc/self/status > {}", out.display());
    for uid in [65534, 0] {
        assert_eq!(run(&mut runner, &hook(&["/bin/sh", "-c", &script], uid, 30_000), "{}"), None);
        let said = std::fs::read_to_string(&out).expect("it ran");
        let line =
            |name: &str| said.lines().find_map(|l| l.strip_prefix(name)).expect("a line").trim().to_owned();
        assert_eq!(line("Uid:"), vec![uid.to_string(); 4].join("\t"), "{said}");
        assert_eq!(
            (line("CapPrm:"), line("CapEff:"), line("NoNewPrivs:")),
            ("0".repeat(16), "0".repeat(16), "1".into())
        );
    }
}
