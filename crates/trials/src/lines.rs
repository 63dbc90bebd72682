//! The command lines to copy.

use std::ffi::OsString;

use super::command::{FlagChange, Tuned};
use super::knobs::{Change, Setting};
use tune::Candidate;

/// What to type to run the command with this choice of `usable` CPUs and these settings.
pub fn line(tuned: &Tuned, candidate: &Candidate, usable: usize, taken: &[Setting]) -> String {
    let mut flags: Vec<FlagChange> = Vec::new();
    let mut before: Vec<String> = Vec::new();
    for setting in taken {
        match &setting.change {
            Change::Flags(all) => flags.extend(all.iter().cloned()),
            Change::HugePages(mode) => {
                before.push(format!("echo {mode} > /sys/kernel/mm/transparent_hugepage/enabled && "));
            }
        }
    }
    let words = typed(&tuned.advised(candidate, &flags));
    let all = candidate.cpus.len() >= usable;
    let pinned = !all && !tuned.places_itself();
    let cpus = common::cpus::ranges(candidate.cpus.iter().copied());
    let taskset = if pinned { format!("taskset -c {cpus} ") } else { String::new() };
    format!("{}{taskset}{words}", before.concat())
}

/// Words as typed in a shell.
pub fn typed(argv: &[OsString]) -> String {
    argv.iter().map(|word| quoted(&word.to_string_lossy())).collect::<Vec<_>>().join(" ")
}

/// A word as a shell reads it.
pub fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=:,+@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::knobs::Knob;

    #[test]
    fn a_line_can_be_typed() {
        let words = ["llama-cli", "-m", "my model.gguf", "-p", "it's", "-t", "8"];
        let tuned = Tuned::of(words.iter().map(Into::into).collect()).expect("known");
        let candidate = Candidate { cpus: vec![4, 5], threads: 2 };
        let fa = FlagChange { names: vec!["-fa".into()], words: vec!["-fa".into(), "on".into()] };
        let taken = [
            Setting { knob: Knob::FlashAttention, shown: "-fa on".into(), change: Change::Flags(vec![fa]) },
            Setting { knob: Knob::HugePages, shown: String::new(), change: Change::HugePages("always") },
        ];
        assert_eq!(
            line(&tuned, &candidate, 8, &taken),
            "echo always > /sys/kernel/mm/transparent_hugepage/enabled && taskset -c 4-5 llama-cli -m 'my model.gguf' \
             -p 'it'\\''s' -fa on -t 2"
        );
        let unpinned = line(&tuned, &candidate, 2, &[]);
        assert_eq!(unpinned, "llama-cli -m 'my model.gguf' -p 'it'\\''s' -t 2");
    }
}
