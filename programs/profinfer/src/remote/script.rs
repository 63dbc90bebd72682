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
    /// Names the session.
    id: String,
    /// Assigns the directories, as the shell reads it.
    names: String,
    /// Seconds of silence.
    silence: u32,
    /// Who may own the directories above, besides the user: user IDs up to this. None: that is not checked.
    owners: Option<u32>,
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
    /// In this directory, or in the user's cache; `id` names the session: letters and digits.
    pub fn new(dir: Option<&[u8]>, id: &str, silence: u32) -> Scripts {
        let base = match dir {
            Some(dir) => format!("{}/profinfer", String::from_utf8_lossy(&quote(dir))),
            None => "${XDG_CACHE_HOME:-$HOME/.cache}/profinfer".to_owned(),
        };
        let names = format!("umask 077; base={base}; run=$base/run.{id}; ");
        Scripts { id: id.to_owned(), names, silence, owners: None }
    }

    /// Refuses a directory that users other than this one and those up to `owners` could exchange.
    #[must_use]
    pub fn checked(self, owners: u32) -> Scripts {
        Scripts { owners: Some(owners), ..self }
    }

    /// Creates the directories; what was left by a power failure is removed. Nobody else may own or write to `base`: a
    /// program of it is run as root. A session that lasts longer than a day has touched its directory since.
    fn make(&self) -> String {
        let above = self.owners.map_or(String::new(), |owners| {
            format!(
                "owners={owners}; {ABOVE}above \"$base\" && above \"$(cd \"$base\" && pwd -P)\" || exit 1; "
            )
        });
        format!("{OWN}{above}{MAKE}")
    }

    /// The guard, as a function: `gone` removes the session's directory, `guard` waits until that is due.
    fn guard(&self, last: &str) -> String {
        let silence = self.silence;
        // Removing is repeated: a recorder may just create its file.
        format!(
            "gone() {{ rm -f \"$run/alive\"; n=0; while [ -e \"$run\" ] && [ $n -lt 60 ]; do rm -rf \"$run\"; \
             [ ! -e \"$run\" ] || sleep 1; n=$((n + 1)); done; }}; \
             guard() {{ s=; trap 'heard=1' USR1; trap 'trap \"\" HUP INT TERM; kill $s; gone; exit' HUP INT TERM; \
             echo {last} >\"$run/guard\"; [ ! -e \"$run/over\" ] || {{ gone; exit; }}; \
             while :; do heard=; sleep {silence} & s=$!; wait $s; [ \"$heard\" ] || break; kill $s; \
             touch -c \"$run\"; done; gone; }}; "
        )
    }

    /// Creates the session's directory, prints what there is, and stays until its standard input ends: then the
    /// directory is removed. A line `stop` ends the recording; any other says that this side is alive. A guard that acts
    /// ends the shell, if that is still its parent: its number may have become another process's. A shell loses a signal that
    /// arrives between its start as a copy of another and its own traps; for that the guard looks for the file `over`.
    pub fn hold(&self) -> String {
        format!(
            "{}{}trap 'exit 1' HUP INT TERM PIPE; g=; \
             trap 'trap \"\" HUP INT TERM PIPE; [ -z \"$g\" ] || {{ echo 2>/dev/null >\"$run/over\"; kill -TERM $g; wait $g; }}; gone' EXIT; {}\
             {{ guard; read -r x </proc/self/stat; case ${{x##*)}} in \" \"?\" $$ \"*) kill -KILL $$ ;; esac; }} \
             </dev/null >/dev/null 2>&1 & g=$!; {}\
             while read -r x; do case $x in stop) rm -f \"$run/alive\" ;; *) kill -USR1 $g ;; esac; done",
            self.names,
            self.guard("$$"),
            self.make(),
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
            self.names,
            self.make(),
            FACTS
        )
    }

    /// Sends a signal to the guard of [`Scripts::hold_apart`], if it is that: a process whose command line has the session.
    pub fn signal(&self, signal: &str) -> String {
        format!(
            "{}g=$(cat \"$run/guard\") && grep -q {} \"/proc/$g/cmdline\" && kill -{signal} \"$g\"",
            self.names, self.id
        )
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

/// A function that refuses a path if others can exchange one of the directories above it. The sticky bit keeps them from
/// it; a link has no mode of its own.
const ABOVE: &str = "above() { d=$1; u=$(id -u); while [ \"$d\" ]; do d=${d%/*}; set -- $(ls -ldn \"${d:-/}\"); \
    [ \"$3\" ] && { [ \"$3\" -le $owners ] || [ \"$3\" = \"$u\" ]; } && \
    case $1 in l* | ????????[!w]* | ?????????[tT]*) ;; *) false ;; esac || \
    { echo \"others can exchange $base: ${d:-/} has the mode $1 and belongs to user $3; change that, or name a directory \
    with --remote-dir that only you and root can change\" >&2; return 1; }; done; }; ";

const OWN: &str = "mkdir -p \"$base\" && [ ! -h \"$base\" ] && [ -O \"$base\" ] && chmod 700 \"$base\" || \
    { echo \"$base cannot be created, or is not a directory of this user\" >&2; exit 1; }; ";

const MAKE: &str = "find \"$base\" -name 'run.*' -prune -mtime +0 -exec rm -rf {} + 2>/dev/null; \
    mkdir \"$run\" && : >\"$run/alive\" || exit 1; ";

/// What this side has to know, one fact a line.
const FACTS: &str = "echo profinfer-remote; echo \"system $(uname -s)\"; echo \"machine $(uname -m)\"; \
    u=$(id -u); echo \"user $u\"; [ \"$u\" = 0 ] || ! sudo -n true >/dev/null 2>&1 || echo sudo; \
    for f in \"$base\"/profinfer-*; do [ ! -f \"$f\" ] || echo \"have ${f##*/} $(wc -c <\"$f\") \
    $(sha256sum <\"$f\" 2>/dev/null)\"; done; echo ready; ";

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::os::unix::fs::{MetadataExt, PermissionsExt};
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

    /// Makes a session's directory, and returns what the shell says, if it does not go on.
    fn refused(shell: &[&str], scripts: &Scripts) -> Option<String> {
        let mut command = Command::new(shell[0]);
        let out = command.args(&shell[1..]).arg("-c").arg(scripts.hold()).stdin(Stdio::null()).output();
        let out = out.expect("a shell");
        (!out.status.success()).then(|| String::from_utf8_lossy(&out.stderr).into_owned())
    }

    #[test]
    fn a_directory_that_others_can_exchange_is_not_used() {
        let mode = |path: &Path, mode| {
            std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("its mode");
        };
        for shell in shells() {
            let (kept, dir) = temporary();
            std::fs::create_dir_all(dir.join("b")).expect("made");
            let scripts =
                |dir: &Path| Scripts::new(Some(dir.as_os_str().as_encoded_bytes()), "t5", 60).checked(0);
            let below = scripts(&dir.join("b"));
            assert_eq!(refused(&shell, &below), None, "{shell:?}: a sticky /tmp is no reason");
            mode(&dir, 0o777);
            let said = refused(&shell, &below).expect("all can exchange it");
            assert!(
                said.contains("has the mode drwxrwxrwx") && said.contains("--remote-dir"),
                "{shell:?}: {said}"
            );
            // By way of a link that others cannot change.
            std::os::unix::fs::symlink(dir.join("b"), kept.path().join("way")).expect("a link");
            let by_link = scripts(&kept.path().join("way"));
            assert!(refused(&shell, &by_link).is_some_and(|s| s.contains("drwxrwxrwx")), "{shell:?}");
            mode(&dir, 0o1777);
            assert_eq!(refused(&shell, &by_link), None, "{shell:?}");
            assert_eq!(refused(&shell, &below), None, "{shell:?}");
            if std::fs::metadata(&dir).expect("there").uid() != 0 {
                continue;
            }
            std::os::unix::fs::chown(&dir, Some(4242), None).expect("root may");
            assert!(refused(&shell, &below).is_some_and(|s| s.contains("belongs to user 4242")), "{shell:?}");
            assert_eq!(refused(&shell, &below.checked(5000)), None, "{shell:?}: a user of the system");
        }
    }

    /// Makes it as old as files are that a power failure left.
    fn age(path: &Path) {
        let then = std::time::SystemTime::now() - Duration::from_secs(3 * 86400);
        std::fs::File::open(path).and_then(|file| file.set_modified(then)).expect("its time");
    }

    #[test]
    fn only_what_is_dead_for_a_day_is_removed() {
        for shell in shells() {
            let (_kept, dir) = temporary();
            let mut held = hold(&shell, &dir, 60);
            let trace = held.run.join("run.pfi");
            let left = dir.join("profinfer/run.left");
            std::fs::create_dir(&left).expect("made");
            std::fs::write(&trace, "x").expect("written");
            [&trace, &left, &held.run].into_iter().for_each(|path| age(path));
            held.life.as_mut().expect("piped").write_all(b"\n").expect("it listens");
            let is_old = |path: &Path| {
                let changed = std::fs::metadata(path).and_then(|found| found.modified()).expect("there");
                changed.elapsed().is_ok_and(|age| age > Duration::from_secs(86400))
            };
            until("a sign of life is seen at the directory", || !is_old(&held.run));
            let other = Scripts::new(Some(dir.as_os_str().as_encoded_bytes()), "t6", 60);
            assert_eq!(refused(&shell, &other), None, "{shell:?}");
            assert!(trace.exists() && !left.exists(), "{shell:?}");
            drop(held.life.take());
            assert!(held.child.wait().expect("it ends").success(), "{shell:?}");
        }
    }

    #[test]
    fn a_guard_that_outlived_its_shell_kills_nobody() {
        for shell in shells() {
            // The command `kill` is a function that notes what would be killed.
            let (_kept, dir) = temporary();
            let script = Scripts::new(Some(dir.as_os_str().as_encoded_bytes()), "t7", 1).hold();
            let note = dir.with_file_name("note");
            let script = format!(
                "exec 3>&1; kill() {{ echo \"$*\" >>{}; command kill \"$@\"; }}; {script}",
                note.display()
            );
            let start = || {
                let mut command = Command::new(shell[0]);
                command.args(&shell[1..]).arg("-c").arg(&script).stdin(Stdio::piped()).stdout(Stdio::piped());
                command.spawn().expect("a shell")
            };
            let run = dir.join("profinfer/run.t7");
            // Its parent: it is ended with the session.
            let mut child = start();
            let _life = child.stdin.take();
            assert!(!child.wait().expect("it ends").success(), "{shell:?}");
            let said = std::fs::read_to_string(&note).expect("noted");
            assert!(said.contains(&format!("-KILL {}", child.id())), "{shell:?}: {said}");
            std::fs::remove_file(&note).expect("removed");
            let mut child = start();
            until("the guard stands", || run.join("guard").exists());
            child.kill().expect("ours");
            child.wait().expect("it ends");
            // Descriptor 3 of the guard is this pipe: it ends with the guard.
            let mut out = child.stdout.take().expect("a pipe");
            std::io::Read::read_to_end(&mut out, &mut Vec::new()).expect("read");
            assert!(!run.exists(), "{shell:?}");
            let said = std::fs::read_to_string(&note).unwrap_or_default();
            assert!(!said.contains("-KILL"), "{shell:?}: {said}");
        }
    }

    #[test]
    fn a_signal_goes_to_a_guard_alone() {
        let (_kept, dir) = temporary();
        let scripts = Scripts::new(Some(dir.as_os_str().as_encoded_bytes()), "t8", 60);
        let run = dir.join("profinfer/run.t8");
        std::fs::create_dir_all(&run).expect("made");
        let mut other = Command::new("sleep").arg("60").spawn().expect("sleep");
        std::fs::write(run.join("guard"), format!("{}\n", other.id())).expect("written");
        let out = Command::new("sh").arg("-c").arg(scripts.signal("TERM")).output().expect("sh");
        let lives = other.try_wait().expect("ours").is_none();
        let _ = other.kill();
        let _ = other.wait();
        assert!(!out.status.success() && lives);
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
        let digest = common::sha256::hex(program);
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
