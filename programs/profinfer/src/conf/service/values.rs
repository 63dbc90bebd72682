//! The values of the service's keys: parsers, checks of paths, and mistakes in them.

use std::path::Path;
use std::time::Duration;

use cli::args::Usage;
use cli::values::{span, whole};
use service::rules::CpuChoice;

/// A time; None: `never`.
pub(super) fn unless_never(text: &str) -> Result<Option<Duration>, String> {
    if text == "never" { Ok(None) } else { span(text).map(Some) }
}

pub(super) fn absolute(path: &Path) -> Result<(), String> {
    if path.is_absolute() { Ok(()) } else { Err("expected an absolute path".to_owned()) }
}

pub(super) fn prom(path: &Path) -> Result<(), String> {
    absolute(path)?;
    let ends = path.extension().is_some_and(|e| e == "prom");
    if ends {
        Ok(())
    } else {
        Err("the name must end in .prom: node_exporter ignores other files".to_owned())
    }
}

pub(super) fn address(path: &Path) -> Result<(), String> {
    /// Of an address with its final NUL (unix(7)).
    const LONGEST: usize = 107;
    absolute(path)?;
    if path.as_os_str().len() <= LONGEST {
        Ok(())
    } else {
        Err(format!("a socket path has at most {LONGEST} bytes"))
    }
}

pub(super) fn name(text: &str) -> Result<(), String> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    let right = (1..=40).contains(&text.len()) && text.chars().all(fits);
    if right { Ok(()) } else { Err("expected 1 to 40 letters, digits, -, _ and .".to_owned()) }
}

pub(super) fn cpu_choice(text: &str) -> Result<CpuChoice, String> {
    if text == "auto" {
        return Ok(CpuChoice::Auto);
    }
    let list = common::cpus::parse(text).map(CpuChoice::List);
    list.ok_or_else(|| {
        format!("expected a list of CPUs, such as 4-7 or 0,2-3, up to {}, or auto", common::cpus::HIGHEST)
    })
}

/// A word of a program's command line.
pub(super) fn hook_word(text: &str) -> Result<(), String> {
    if text.contains('\0') {
        Err("a word of a command cannot contain a zero byte".to_owned())
    } else {
        Ok(())
    }
}

pub(super) fn hook_time(text: &str) -> Result<Duration, String> {
    let (time, most) = (span(text)?, Duration::from_secs(3600));
    if time <= most { Ok(time) } else { Err("expected 1h or less".to_owned()) }
}

pub(super) fn max_concurrent(text: &str) -> Result<u32, String> {
    whole(1, 1000)(text)
}

pub(super) fn recorders(text: &str) -> Result<u32, String> {
    whole(4, 256)(text)
}

/// With less, a recorder would be killed because of other load on the machine.
pub(super) fn timeout(text: &str) -> Result<Duration, String> {
    let time = span(text)?;
    if time >= Duration::from_secs(2) { Ok(time) } else { Err("expected 2s or more".to_owned()) }
}

pub(super) fn sample_one_in(text: &str) -> Result<u32, String> {
    whole(1, 1_000_000)(text)
}

pub(super) fn tokens(text: &str) -> Result<u64, String> {
    whole(1, u64::MAX)(text)
}

/// The parsed value; a mistake is added to `wrong`.
pub(super) fn got<T>(read: Result<T, Usage>, wrong: &mut Vec<String>) -> Option<T> {
    match read {
        Ok(value) => Some(value),
        Err(usage) => {
            usage.mistakes().iter().for_each(|mistake| add(wrong, mistake.clone()));
            None
        }
    }
}

/// Adds a mistake once: one above all headings is wrong for every rule.
pub(super) fn add(wrong: &mut Vec<String>, mistake: String) {
    if !wrong.contains(&mistake) {
        wrong.push(mistake);
    }
}
