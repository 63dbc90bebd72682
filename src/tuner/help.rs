//! The help text of an engine: which flags this build has.

use std::io::Read;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use super::command::Tuned;

/// Maximum time and size of a help text.
const WITHIN: Duration = Duration::from_secs(20);
const SIZE: u64 = 1 << 20;

/// What the engine prints for `--help`; empty if it prints nothing in time.
pub fn of(tuned: &Tuned) -> String {
    tuned.help().and_then(|argv| text(&argv)).unwrap_or_default()
}

fn text(argv: &[std::ffi::OsString]) -> Option<String> {
    let (program, args) = argv.split_first()?;
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    crate::host::child::die_with_parent(&mut command);
    let mut child = command.spawn().ok()?;
    let out = child.stdout.take()?;
    // It ends with the program, whose end is waited for below.
    let reader = std::thread::spawn(move || {
        let mut text = Vec::new();
        let _ = out.take(SIZE).read_to_end(&mut text);
        text
    });
    let begin = Instant::now();
    while matches!(child.try_wait(), Ok(None)) {
        if begin.elapsed() >= WITHIN {
            let _ = child.kill();
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    Some(String::from_utf8_lossy(&reader.join().ok()?).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_help_text_is_read() {
        let words = |line: &str| line.split(' ').map(Into::into).collect::<Vec<_>>();
        assert_eq!(text(&words("echo -t, --threads N")).as_deref(), Some("-t, --threads N\n"));
        assert_eq!(text(&words("/nonexistent/llama-bench --help")), None);
        assert_eq!(text(&[]), None);
    }
}
