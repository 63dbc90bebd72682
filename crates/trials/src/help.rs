//! The help text of an engine: which flags this build has.

use std::ffi::OsString;
use std::io::{self, Read};
use std::os::unix::process::CommandExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group, waitid};

use super::command::Tuned;
use machine::child::{die_with_parent, run_as};
use machine::user::User;

/// Maximum time and size of a help text.
const WITHIN: Duration = Duration::from_secs(20);
const SIZE: usize = 1 << 20;
/// Time that others who hold its output have, after the program has ended.
const LINGER: Duration = Duration::from_millis(500);
/// Interval between two looks.
const LOOK: Duration = Duration::from_millis(10);

/// What the engine prints for `--help`, run as `user` if given; empty if it prints nothing in time.
pub fn of(tuned: &Tuned, user: Option<User>, stop: &dyn Fn() -> bool) -> String {
    tuned.help().and_then(|argv| text(&argv, user, stop)).unwrap_or_default()
}

fn text(argv: &[OsString], user: Option<User>, stop: &dyn Fn() -> bool) -> Option<String> {
    let (program, args) = argv.split_first()?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    // Whatever it starts ends with it.
    command.process_group(0);
    if let Some(user) = user {
        run_as(&mut command, user);
    }
    die_with_parent(&mut command);
    let mut child = command.spawn().ok()?;
    let text = child.stdout.take().map(|out| read(&child, out, stop));
    // It has not been waited for, so the group is still its own.
    let _ = kill_process_group(Pid::from_child(&child), Signal::KILL);
    let _ = child.wait();
    Some(String::from_utf8_lossy(&text?).into_owned())
}

/// Reads to the end of the output, or until it is long enough, late enough or not wanted any more: a process that was
/// started by the program may keep it open for ever.
fn read(child: &Child, mut out: ChildStdout, stop: &dyn Fn() -> bool) -> Vec<u8> {
    let mut text = Vec::new();
    if rustix::io::ioctl_fionbio(&out, true).is_err() {
        return text;
    }
    let (begin, mut ended) = (Instant::now(), None);
    let mut part = vec![0; 1 << 16];
    while text.len() < SIZE && begin.elapsed() < WITHIN && !stop() {
        match out.read(&mut part) {
            Ok(0) => break,
            Ok(n) => text.extend_from_slice(part.get(..n).unwrap_or_default()),
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                ended = ended.or_else(|| has_ended(child).then(Instant::now));
                if ended.is_some_and(|at| at.elapsed() >= LINGER) {
                    break;
                }
                std::thread::sleep(LOOK);
            }
            Err(_) => break,
        }
    }
    text
}

/// It has ended; its status is left for the one who waits.
fn has_ended(child: &Child) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    !matches!(waitid(WaitId::Pid(Pid::from_child(child)), options), Ok(None))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(Into::into).collect()
    }

    #[test]
    fn a_help_text_is_read() {
        let text = |argv: &[OsString]| text(argv, None, &|| false);
        assert_eq!(text(&words("echo -t, --threads N")).as_deref(), Some("-t, --threads N\n"));
        assert_eq!(text(&words("/nonexistent/llama-bench --help")), None);
        assert_eq!(text(&[]), None);
    }

    #[test]
    fn who_keeps_the_output_open_holds_nothing_up() {
        let dir = tempfile::tempdir().expect("a directory");
        let script = dir.path().join("llama-cli");
        // The first is in the program's group and ends with it, the second is not.
        for start in ["sleep 1000 &", "setsid sleep 1000 &"] {
            let pid = dir.path().join("pid");
            std::fs::write(&script, format!("{start}\necho $! >{}\necho -t N\n", pid.display()))
                .expect("written");
            let argv = [OsString::from("sh"), script.clone().into()];
            assert_eq!(text(&argv, None, &|| false).as_deref(), Some("-t N\n"), "{start}");
            let pid = std::fs::read_to_string(&pid).expect("its pid").trim().parse().expect("a number");
            if let Some(pid) = Pid::from_raw(pid).filter(|_| start.starts_with("setsid")) {
                rustix::process::kill_process(pid, Signal::KILL).expect("it still runs");
            }
        }
        let stopped = text(&words("sleep 1000"), None, &|| true);
        assert_eq!(stopped.as_deref(), Some(""));
    }
}
