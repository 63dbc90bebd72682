//! The shell scripts that run on the other machine. They need a POSIX shell, and are tested with dash and busybox.
//!
//! Everything there is in one private directory: a program that stays for the next recording, named after its digest,
//! and a directory of each session with the trace. The session's directory is removed by a guard: when the session
//! ends, in whatever way, or when nothing was heard of this side for [`SILENCE`]. The recorder ends when the file
//! `alive` in it is gone.

use super::quote::quote;

/// The guard acts if it hears nothing for this long, seconds. The other end of a dead connection is not noticed sooner.
pub const SILENCE: u32 = 90;

/// First line of what [`Scripts::hold`] prints: a login shell may print lines of its own before.
pub const MARK: &str = "profinfer-remote";

/// The scripts of one session.
pub struct Scripts {
    /// Assigns the directories, as the shell reads it.
    names: String,
    /// Seconds of silence.
    silence: u32,
}

/// How a trace is to be recorded.
pub struct Recording<'a> {
    /// Name of the program in the directory.
    pub program: &'a str,
    pub sudo: bool,
    /// Where the command runs; None: where the login is.
    pub cd: Option<&'a str>,
    /// Options, `--` and the command, quoted.
    pub line: &'a [u8],
}

impl Scripts {
    /// In this directory, or in the user's cache; `id` names the session.
    pub fn new(dir: Option<&[u8]>, id: &str, silence: u32) -> Scripts {
        let base = match dir {
            Some(dir) => format!("{}/profinfer", String::from_utf8_lossy(&quote(dir))),
            None => "${XDG_CACHE_HOME:-$HOME/.cache}/profinfer".to_owned(),
        };
        Scripts { names: format!("umask 077; base={base}; run=$base/run.{id}; "), silence }
    }

    /// The guard, as a function: `gone` removes the session's directory, `guard` waits until that is due.
    fn guard(&self, last: &str) -> String {
        let silence = self.silence;
        // Removing is repeated: a recorder may just create its file.
        format!(
            "gone() {{ rm -f \"$run/alive\"; n=0; while [ -e \"$run\" ] && [ $n -lt 60 ]; do rm -rf \"$run\"; \
             [ ! -e \"$run\" ] || sleep 1; n=$((n + 1)); done; }}; \
             guard() {{ s=; trap 'heard=1' USR1; trap 'trap \"\" HUP INT TERM; kill $s; gone; exit' HUP INT TERM; \
             echo {last} >\"$run/guard\"; \
             while :; do heard=; sleep {silence} & s=$!; wait $s; [ \"$heard\" ] || break; kill $s; done; \
             gone; }}; "
        )
    }

    /// Creates the session's directory, prints what there is, and stays until its standard input ends: then the
    /// directory is removed. A line `stop` ends the recording; any other says that this side is alive.
    pub fn hold(&self) -> String {
        format!(
            "{}{}trap 'exit 1' HUP INT TERM PIPE; g=; \
             trap 'trap \"\" HUP INT TERM PIPE; [ -z \"$g\" ] || {{ kill -TERM $g; wait $g; }}; gone' EXIT; {}\
             {{ guard; kill -KILL $$; }} </dev/null >/dev/null 2>&1 & g=$!; {}\
             while read -r x; do case $x in stop) rm -f \"$run/alive\" ;; *) kill -USR1 $g ;; esac; done",
            self.names,
            self.guard("$$"),
            MAKE,
            FACTS
        )
    }

    /// The same for a client that passes no standard input on: the guard is a process of its own, whose id is in the
    /// file `guard`. SIGUSR1 says that this side is alive, SIGTERM ends it.
    pub fn hold_apart(&self) -> String {
        let guard = format!("{}{}guard", self.names, self.guard("$$"));
        let guard = String::from_utf8_lossy(&quote(guard.as_bytes())).into_owned();
        format!(
            "{}{}setsid sh -c {guard} </dev/null >/dev/null 2>&1 & \
             n=0; until [ -s \"$run/guard\" ] || [ $n -ge 20 ]; do sleep 1; n=$((n + 1)); done; {}",
            self.names, MAKE, FACTS
        )
    }

    /// Sends a signal to the guard of [`Scripts::hold_apart`].
    pub fn signal(&self, signal: &str) -> String {
        format!("{}kill -{signal} \"$(cat \"$run/guard\")\"", self.names)
    }

    /// Ends the recording.
    pub fn stop(&self) -> String {
        format!("{}rm -f \"$run/alive\"", self.names)
    }

    /// Succeeds once the session's directory is gone.
    pub fn is_gone(&self) -> String {
        format!("{}[ ! -e \"$run\" ]", self.names)
    }

    /// Stores standard input as the new program.
    pub fn receive(&self) -> String {
        format!("{}cat >\"$run/new\"", self.names)
    }

    /// Checks the new program and gives it its name; other versions are removed. Prints what differs.
    pub fn adopt(&self, program: &str, bytes: usize, digest: &str) -> String {
        format!(
            "{}size=$(wc -c <\"$run/new\") || exit; \
             [ \"$size\" -eq {bytes} ] || {{ echo \"only $size of {bytes} bytes arrived\"; exit 1; }}; \
             if sum=$(sha256sum <\"$run/new\" 2>/dev/null); then \
             [ \"${{sum%% *}}\" = {digest} ] || {{ echo 'its SHA-256 differs after the copy'; exit 1; }}; fi; \
             chmod 700 \"$run/new\" && rm -f \"$base\"/profinfer-* && mv -f \"$run/new\" \"$base/{program}\"",
            self.names
        )
    }

    /// Prints the program's version; fails if it does not run there, and with 9 if it is too old.
    pub fn check(&self, program: &str) -> String {
        format!(
            "{}\"$base/{program}\" --version && \
             {{ \"$base/{program}\" record --while-exists=x --help >/dev/null 2>&1 || exit 9; }}",
            self.names
        )
    }

    /// Removes a program that turned out to be unusable.
    pub fn forget(&self, program: &str) -> String {
        format!("{}rm -f \"$base/{program}\"", self.names)
    }

    /// Records into the session's directory, and leaves the exit status there.
    pub fn record(&self, of: &Recording<'_>) -> Vec<u8> {
        let cd = of.cd.map_or(String::new(), |dir| format!("cd {dir} && export TMPDIR={dir} && "));
        let mut script = format!(
            "{}{cd}{}\"$base/{}\" record --while-exists=\"$run/alive\" --output=\"$run/run.pfi\" ",
            self.names,
            sudo(of.sudo),
            of.program
        )
        .into_bytes();
        script.extend_from_slice(of.line);
        script.extend_from_slice(b" </dev/null; c=$?; echo $c >\"$run/code\"; exit $c");
        script
    }

    /// Prints the exit status of the recording and the size of the trace, as far as there are any.
    pub fn recorded(&self, by_sudo: bool) -> String {
        format!(
            "{}[ ! -s \"$run/code\" ] || echo code \"$(cat \"$run/code\")\"; \
             [ ! -e \"$run/run.pfi\" ] || echo size \"$({}cat \"$run/run.pfi\" | wc -c)\"",
            self.names,
            sudo(by_sudo)
        )
    }

    /// Prints the trace.
    pub fn trace(&self, by_sudo: bool) -> String {
        format!("{}exec {}cat \"$run/run.pfi\"", self.names, sudo(by_sudo))
    }
}

fn sudo(on: bool) -> &'static str {
    if on { "sudo -n " } else { "" }
}

/// Creates the directories; what was left by a power failure is removed. Nobody else may own or write to `base`: a
/// program of it is run as root.
const MAKE: &str = "mkdir -p \"$base\" && [ ! -h \"$base\" ] && [ -O \"$base\" ] && chmod 700 \"$base\" || \
    { echo \"$base cannot be created, or is not a directory of this user\" >&2; exit 1; }; \
    find \"$base\" -name 'run.*' -mtime +0 -exec rm -rf {} + 2>/dev/null; \
    mkdir \"$run\" && : >\"$run/alive\" || exit 1; ";

/// What this side has to know, one fact a line.
const FACTS: &str = "echo profinfer-remote; echo \"system $(uname -s)\"; echo \"machine $(uname -m)\"; \
    u=$(id -u); echo \"user $u\"; [ \"$u\" = 0 ] || ! sudo -n true >/dev/null 2>&1 || echo sudo; \
    for f in \"$base\"/profinfer-*; do [ ! -f \"$f\" ] || echo \"have ${f##*/} $(wc -c <\"$f\") \
    $(sha256sum <\"$f\" 2>/dev/null)\"; done; echo ready; ";

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::path::{Path, PathBuf};
    use std::process::{Child, ChildStdin, Command, Stdio};
    use std::time::{Duration, Instant};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(30);

    fn until(what: &str, mut done: impl FnMut() -> bool) {
        let begin = Instant::now();
        while !done() {
            assert!(begin.elapsed() < PATIENCE, "in vain: {what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// The shells of this machine.
    fn shells() -> Vec<Vec<&'static str>> {
        let there = |name: &str| Command::new(name).arg("-c").arg(":").output().is_ok();
        let busybox =
            Command::new("busybox").args(["ash", "-c", ":"]).output().is_ok_and(|o| o.status.success());
        let mut all = vec![vec!["sh"]];
        all.extend(["bash", "mksh"].into_iter().filter(|s| there(s)).map(|s| vec![s]));
        all.extend(busybox.then(|| vec!["busybox", "ash"]));
        all
    }

    struct Held {
        child: Child,
        life: Option<ChildStdin>,
        facts: Vec<String>,
        run: PathBuf,
    }

    fn hold(shell: &[&str], dir: &Path, silence: u32) -> Held {
        let script = Scripts::new(Some(dir.as_os_str().as_encoded_bytes()), "t1", silence).hold();
        let mut command = Command::new(shell[0]);
        command.args(&shell[1..]).arg("-c").arg(script).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().expect("a shell");
        let life = child.stdin.take();
        let mut facts = Vec::new();
        for line in BufReader::new(child.stdout.take().expect("piped")).lines() {
            let line = line.expect("text");
            let ready = line == "ready";
            facts.push(line);
            if ready {
                break;
            }
        }
        Held { child, life, facts, run: dir.join("profinfer/run.t1") }
    }

    fn temporary() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().expect("a directory");
        let odd = dir.path().join("it's a\ndirectory");
        (dir, odd)
    }

    #[test]
    fn a_session_lasts_as_long_as_its_standard_input() {
        for shell in shells() {
            let (_kept, dir) = temporary();
            let mut held = hold(&shell, &dir, 60);
            assert!(held.facts.contains(&MARK.to_owned()), "{shell:?}: {:?}", held.facts);
            assert!(held.facts.iter().any(|f| f == "system Linux"), "{shell:?}: {:?}", held.facts);
            let mut life = held.life.take().expect("piped");
            life.write_all(b"\n\n").expect("it listens");
            assert!(held.run.join("alive").exists(), "{shell:?}");
            life.write_all(b"stop\n").expect("it listens");
            until("the recording's end", || !held.run.join("alive").exists());
            assert!(held.run.exists() && held.child.try_wait().expect("ours").is_none(), "{shell:?}");
            drop(life);
            assert!(held.child.wait().expect("it ends").success(), "{shell:?}");
            assert!(!held.run.exists() && dir.join("profinfer").exists(), "{shell:?}");
        }
    }

    #[test]
    fn signals_and_silence_end_a_session_too() {
        for shell in shells() {
            for signal in [Some(libc::SIGTERM), Some(libc::SIGHUP), Some(libc::SIGKILL), None] {
                let (_kept, dir) = temporary();
                let mut held = hold(&shell, &dir, if signal == Some(libc::SIGTERM) { 60 } else { 1 });
                std::fs::write(held.run.join("run.pfi"), "x").expect("written");
                if let Some(signal) = signal {
                    // SAFETY: a signal to our own child.
                    unsafe { libc::kill(held.child.id() as i32, signal) };
                    if signal == libc::SIGTERM {
                        // Some shells run a trap only after a line was read.
                        let _ = held.life.as_mut().expect("piped").write_all(b"\n");
                    }
                }
                until("the guard acts", || !held.run.exists());
                drop(held.life.take());
                let _ = held.child.wait();
            }
        }
    }

    #[test]
    fn a_guard_apart_is_ended_by_a_signal_or_by_silence() {
        for silence in [60, 1] {
            let (_kept, dir) = temporary();
            let scripts = Scripts::new(Some(dir.as_os_str().as_encoded_bytes()), "t2", silence);
            let sh = |script: String| Command::new("sh").arg("-c").arg(script).output().expect("sh");
            let out = sh(scripts.hold_apart());
            let said = String::from_utf8_lossy(&out.stdout).into_owned();
            assert!(said.ends_with("ready\n"), "{said} {}", String::from_utf8_lossy(&out.stderr));
            if silence > 1 {
                assert!(sh(scripts.signal("USR1")).status.success());
                assert!(!sh(scripts.is_gone()).status.success());
                assert!(sh(scripts.stop()).status.success());
                assert!(sh(scripts.signal("TERM")).status.success());
            }
            until("the guard acts", || sh(scripts.is_gone()).status.success());
        }
    }

    #[test]
    fn a_directory_of_others_is_not_used() {
        let (_kept, dir) = temporary();
        std::fs::create_dir_all(&dir).expect("made");
        std::os::unix::fs::symlink("/tmp", dir.join("profinfer")).expect("a link");
        let script = Scripts::new(Some(dir.as_os_str().as_encoded_bytes()), "t3", 60).hold();
        let out = Command::new("sh").arg("-c").arg(script).output().expect("sh");
        let said = String::from_utf8_lossy(&out.stderr);
        assert!(!out.status.success() && said.contains("not a directory of this user"), "{said}");
        assert!(!Path::new("/tmp/run.t3").exists());
    }

    #[test]
    fn a_program_that_arrived_in_part_is_not_used() {
        let (_kept, dir) = temporary();
        let scripts = Scripts::new(Some(dir.as_os_str().as_encoded_bytes()), "t4", 60);
        let base = dir.join("profinfer");
        std::fs::create_dir_all(base.join("run.t4")).expect("made");
        std::fs::write(base.join("profinfer-old"), "old").expect("written");
        let sh = |script: String| Command::new("sh").arg("-c").arg(script).output().expect("sh");
        let program = b"#!/bin/sh\necho profinfer test\n";
        let digest = super::super::sha256::hex(program);
        let adopt = || sh(scripts.adopt("profinfer-new", program.len(), &digest));
        let wrong = [b"#!/bin/sh\necho profinfer".to_vec(), b"#!/bin/sh\necho profinfer tesT\n".to_vec()];
        for (bytes, why) in wrong.iter().zip(["only 24 of 30 bytes", "SHA-256 differs"]) {
            std::fs::write(base.join("run.t4/new"), bytes).expect("written");
            let out = adopt();
            let said = String::from_utf8_lossy(&out.stdout);
            assert!(!out.status.success() && said.contains(why), "{said}");
            assert!(base.join("profinfer-old").exists() && !base.join("profinfer-new").exists());
        }
        std::fs::write(base.join("run.t4/new"), program).expect("written");
        assert!(adopt().status.success());
        assert!(!base.join("profinfer-old").exists() && base.join("profinfer-new").exists());
        assert_eq!(sh(scripts.check("profinfer-new")).stdout, b"profinfer test\n");
    }
}
