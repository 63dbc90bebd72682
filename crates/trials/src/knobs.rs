//! Settings of the engine beside threads and CPUs, as far as this build has them: its own help is read.

use crate::command::{FlagChange, Tuned, Work};

/// Settings that can be tried.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Knob {
    FlashAttention,
    LoadMode,
    Ubatch,
    KvType,
    HugePages,
}

/// What a setting changes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    Flags(Vec<FlagChange>),
    /// The machine's mode of transparent huge pages.
    HugePages(&'static str),
}

/// One value of a knob.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Setting {
    pub knob: Knob,
    /// As shown: `-fa on`.
    pub shown: String,
    pub change: Change,
}

impl Knob {
    pub const ALL: [Knob; 5] =
        [Knob::FlashAttention, Knob::LoadMode, Knob::Ubatch, Knob::KvType, Knob::HugePages];

    pub fn name(self) -> &'static str {
        match self {
            Knob::FlashAttention => "flash-attention",
            Knob::LoadMode => "load-mode",
            Knob::Ubatch => "ubatch",
            Knob::KvType => "kv-type",
            Knob::HugePages => "huge-pages",
        }
    }

    /// What besides speed it changes; such a setting is measured, and never part of the command to copy unless asked
    /// for.
    pub fn caution(self) -> Option<&'static str> {
        match self {
            Knob::KvType => Some("changes what the model computes"),
            Knob::HugePages => Some("changes the whole machine"),
            Knob::FlashAttention | Knob::LoadMode | Knob::Ubatch => None,
        }
    }

    /// Whether it can matter for this work.
    fn matters(self, work: Work) -> bool {
        self != Knob::Ubatch || work == Work::Prefill
    }

    fn names(self) -> &'static [&'static str] {
        match self {
            Knob::FlashAttention => &["-fa", "--flash-attn"],
            Knob::LoadMode => &["-lm", "--load-mode"],
            Knob::Ubatch => &["-ub", "--ubatch-size"],
            Knob::KvType => &["-ctk", "--cache-type-k"],
            Knob::HugePages => &[],
        }
    }
}

const KV_VALUE: [&str; 2] = ["-ctv", "--cache-type-v"];

/// The settings to try for a work; why a knob has none here is added to `notes`.
pub fn settings(
    tuned: &Tuned,
    help: &str,
    wanted: &[Knob],
    work: Work,
    prompt: u32,
    notes: &mut Vec<String>,
) -> Vec<Setting> {
    let mut all = Vec::new();
    if !tuned.has_settings() {
        let note = "settings beside CPUs and threads are tried with llama.cpp's own programs only".to_owned();
        if !wanted.is_empty() && !notes.contains(&note) {
            notes.push(note);
        }
        return all;
    }
    for knob in wanted.iter().copied().filter(|knob| knob.matters(work)) {
        let found = of(help, knob, prompt);
        if found.is_empty() {
            let note = format!("{} is not tried: this build's help names no such flag", knob.name());
            if !notes.contains(&note) {
                notes.push(note);
            }
        }
        all.extend(found);
    }
    all
}

fn of(help: &str, knob: Knob, prompt: u32) -> Vec<Setting> {
    if knob == Knob::HugePages {
        let mode = |mode| Setting {
            knob,
            shown: format!("transparent_hugepage={mode}"),
            change: Change::HugePages(mode),
        };
        return vec![mode("always"), mode("never")];
    }
    let Some((flag, values)) = flag_of(help, knob.names()) else {
        return if knob == Knob::LoadMode { switches(help) } else { Vec::new() };
    };
    let wanted: Vec<String> = match knob {
        Knob::FlashAttention if values.iter().any(|v| v == "on") => vec!["on".into(), "off".into()],
        Knob::FlashAttention => vec!["1".into(), "0".into()],
        Knob::LoadMode => ["mmap", "mlock", "none"]
            .into_iter()
            .filter(|mode| values.iter().any(|v| v == mode))
            .map(str::to_owned)
            .collect(),
        // 512 is llama.cpp's default.
        Knob::Ubatch => {
            [64, 128, 256, 1024].into_iter().filter(|n| *n < prompt).map(|n: u32| n.to_string()).collect()
        }
        Knob::KvType => vec!["q8_0".into()],
        Knob::HugePages => Vec::new(),
    };
    wanted.into_iter().map(|value| flagged(knob, &flag, &value, help)).collect()
}

fn flagged(knob: Knob, flag: &str, value: &str, help: &str) -> Setting {
    let change = |names: &[&str], flag: &str| FlagChange {
        names: names.iter().map(|n| (*n).to_owned()).collect(),
        words: vec![flag.to_owned(), value.to_owned()],
    };
    let mut flags = vec![change(knob.names(), flag)];
    if knob == Knob::KvType
        && let Some((flag, _)) = flag_of(help, &KV_VALUE)
    {
        flags.push(change(&KV_VALUE, &flag));
    }
    let shown = flags.iter().map(|f| f.words.join(" ")).collect::<Vec<_>>().join(" ");
    Setting { knob, shown, change: Change::Flags(flags) }
}

/// Load modes of builds that have a switch for each.
fn switches(help: &str) -> Vec<Setting> {
    let known = ["--mlock", "--no-mmap"].into_iter().filter(|flag| flag_of(help, &[flag]).is_some());
    let setting = |flag: &str| Setting {
        knob: Knob::LoadMode,
        shown: flag.to_owned(),
        change: Change::Flags(vec![FlagChange { names: Vec::new(), words: vec![flag.to_owned()] }]),
    };
    known.map(setting).collect()
}

/// The first of these flags that a help text has, with the values that it lists: `-fa, --flash-attn <on|off|auto>`, or
/// below it as `- mmap: text`, further to the right than flags are.
fn flag_of(help: &str, names: &[&str]) -> Option<(String, Vec<String>)> {
    let indent = |line: &str| line.len() - line.trim_start().len();
    let mut lines = help.lines();
    while let Some(line) = lines.next() {
        let words: Vec<&str> = line.split(|c: char| c.is_whitespace() || c == ',').collect();
        let flag = names.iter().find(|name| line.trim_start().starts_with('-') && words.contains(name));
        let Some(name) = flag else { continue };
        let listed = line.split(['<', '[', '{']).nth(1).and_then(|rest| rest.split(['>', ']', '}']).next());
        let values: Vec<String> = match listed {
            Some(listed) => listed.split(['|', ',']).map(|v| v.trim().to_owned()).collect(),
            None => lines
                .take_while(|below| indent(below) > indent(line) + 8)
                .filter_map(|below| below.trim_start().strip_prefix("- ")?.split_once(':'))
                .map(|(value, _)| value.to_owned())
                .collect(),
        };
        return Some(((*name).to_owned(), values));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    const BENCH: &str = "\
  -ub, --ubatch-size <n>                            (default: 512)
  -ctk, --cache-type-k <t>                          (default: f16)
  -ctv, --cache-type-v <t>                          (default: f16)
  -fa, --flash-attn <on|off|auto>                   (default: auto)
  -lm, --load-mode <auto|none|mmap|mlock|mmap+mlock|dio> (default: auto)";

    fn shown(help: &str, knob: Knob) -> Vec<String> {
        of(help, knob, 512).into_iter().map(|s| s.shown).collect()
    }

    #[test]
    fn the_builds_own_help_decides() {
        assert_eq!(shown(BENCH, Knob::FlashAttention), ["-fa on", "-fa off"]);
        assert_eq!(shown("  -fa, --flash-attn <0|1>", Knob::FlashAttention), ["-fa 1", "-fa 0"]);
        assert_eq!(shown(BENCH, Knob::LoadMode), ["-lm mmap", "-lm mlock", "-lm none"]);
        assert_eq!(shown("--mlock   keep\n--no-mmap  x", Knob::LoadMode), ["--mlock", "--no-mmap"]);
        assert_eq!(shown(BENCH, Knob::Ubatch), ["-ub 64", "-ub 128", "-ub 256"]);
        assert_eq!(shown(BENCH, Knob::KvType), ["-ctk q8_0 -ctv q8_0"]);
        assert!(shown("  --other N", Knob::FlashAttention).is_empty());
    }

    #[test]
    fn values_may_be_listed_below_their_flag() {
        let help = "\
--mlock                                  keep
-lm,   --load-mode MODE                  model loading mode (default: auto)
                                         - auto: mmap, unless a device does not support it
                                         - none: no special mode
                                         - mmap: maps it (if disabled, slower but may
                                         - not a value, as it has no colon
                                         - mmap+mlock: both
-fa,   --flash-attn [on|off|auto]        - on: no value of the flag above
";
        assert_eq!(shown(help, Knob::LoadMode), ["-lm mmap", "-lm none"]);
        assert_eq!(shown(help, Knob::FlashAttention), ["-fa on", "-fa off"]);
    }

    #[test]
    fn a_flag_that_a_build_lacks_is_told_once() {
        let tuned = Tuned::of(vec!["llama-bench".into()]).expect("known");
        let mut notes = Vec::new();
        for _ in 0..2 {
            assert!(settings(&tuned, "", &[Knob::KvType], Work::Decode, 512, &mut notes).is_empty());
        }
        assert_eq!(notes.len(), 1);
        assert!(notes[0].contains("kv-type"), "{notes:?}");
    }

    #[test]
    fn the_ubatch_is_a_matter_of_prefill() {
        let tuned = Tuned::of(vec!["llama-bench".into()]).expect("known");
        let mut notes = Vec::new();
        assert!(settings(&tuned, BENCH, &[Knob::Ubatch], Work::Decode, 512, &mut notes).is_empty());
        assert!(!settings(&tuned, BENCH, &[Knob::Ubatch], Work::Prefill, 512, &mut notes).is_empty());
    }
}
