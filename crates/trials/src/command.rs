//! The command line to tune: which engine it runs, and the same command with other threads, CPUs and lengths.

use std::ffi::{OsStr, OsString};
use std::path::Path;

use tune::Candidate;

/// What is measured in a run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Work {
    Decode,
    Prefill,
}

impl Work {
    pub fn name(self) -> &'static str {
        match self {
            Work::Decode => "decode",
            Work::Prefill => "prefill",
        }
    }
}

/// Programs whose flags are known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Engine {
    /// llama-bench: prefill and decode are runs of their own.
    Bench,
    /// llama-cli, llama-completion: one prompt, one answer.
    Cli,
    /// llama-server: gets one request.
    Server,
    /// ggml-runner run.
    Runner,
    /// Any other: `{threads}`, `{cpus}` and `{mask}` in its command line are replaced.
    Template,
}

/// Flags that replace those of the same names.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct FlagChange {
    pub names: Vec<String>,
    /// The words to add.
    pub words: Vec<String>,
}

/// How many tokens a run has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lengths {
    pub prompt: u32,
    pub tokens: u32,
}

/// A command to tune.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tuned {
    pub argv: Vec<OsString>,
    pub engine: Engine,
    /// Index of the engine's program: a wrapper may come first.
    at: usize,
}

/// Why a command cannot be tuned.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum CommandError {
    #[error("no command: give one after --, e.g. profinfer tune -- llama-bench -m model.gguf")]
    None,
    #[error(
        "{0} is not a program whose flags are known (llama-bench, llama-cli, llama-completion, llama-server, \
         ggml-runner): put {{threads}}, and {{cpus}} if it takes a list of CPUs, where they belong in its command line"
    )]
    Unknown(String),
    #[error("{{{0}}} is not a placeholder: there are {{threads}}, {{cpus}} and {{mask}}")]
    Placeholder(String),
    #[error("{{threads}} is missing in the command line: the number of threads could not be changed")]
    NoThreads,
}

const THREADS: [&str; 2] = ["-t", "--threads"];
const BATCH_THREADS: [&str; 3] = ["-tb", "--threads-batch", "--decode-threads"];
/// Flags by which the engine would undo the CPUs given to it.
const MASKS: [&str; 11] = [
    "-C",
    "--cpu-mask",
    "-Cr",
    "--cpu-range",
    "--cpu-strict",
    "-Cb",
    "--cpu-mask-batch",
    "-Crb",
    "--cpu-range-batch",
    "--cpu-strict-batch",
    "--numa",
];
const BENCH_WORK: [&str; 9] =
    ["-p", "--n-prompt", "-n", "--n-gen", "-pg", "-r", "--repetitions", "-o", "--output"];
/// With a file for the prompt's state, later runs would have no prefill.
const CLI_WORK: [&str; 4] = ["-n", "--predict", "--n-predict", "--prompt-cache"];
const RUNNER_WORK: [&str; 6] = ["-p", "--prompt", "-n", "--decode", "-r", "--repeat"];
const NO_ROOFLINE: &str = "--no-roofline";
/// The request is sent over the loopback, without TLS.
const SERVER_WORK: [&str; 5] = ["--port", "--host", "--api-prefix", "--ssl-key-file", "--ssl-cert-file"];
const PROMPTS: [&str; 6] = ["-p", "--prompt", "-f", "--file", "-bf", "--binary-file"];
const PLACEHOLDERS: [&str; 3] = ["{threads}", "{cpus}", "{mask}"];

/// Words of the prompt of a run: random weights need no better ones.
const WORDS: [&str; 8] = ["the ", "model ", "reads ", "a ", "text ", "about ", "many ", "things "];

impl Tuned {
    /// Recognises the program, behind a wrapper too.
    ///
    /// # Errors
    /// It is unknown, and has no placeholders.
    pub fn of(argv: Vec<OsString>) -> Result<Tuned, CommandError> {
        let first = argv.first().ok_or(CommandError::None)?.to_string_lossy().into_owned();
        for word in &argv {
            if let Some(name) = unknown_placeholder(&word.to_string_lossy()) {
                return Err(CommandError::Placeholder(name));
            }
        }
        if argv.iter().any(|word| PLACEHOLDERS.iter().any(|p| word.to_string_lossy().contains(p))) {
            let tuned = Tuned { argv, engine: Engine::Template, at: 0 };
            return if tuned.has("{threads}") { Ok(tuned) } else { Err(CommandError::NoThreads) };
        }
        let found = argv.iter().enumerate().find_map(|(at, word)| Some((at, engine_of(word)?)));
        match found {
            Some((at, engine)) => Ok(Tuned { argv, engine, at }),
            None => Err(CommandError::Unknown(first)),
        }
    }

    fn has(&self, placeholder: &str) -> bool {
        self.argv.iter().any(|word| word.to_string_lossy().contains(placeholder))
    }

    /// The command gets its CPUs by `{cpus}` or `{mask}`, and applies them itself.
    pub fn places_itself(&self) -> bool {
        self.engine == Engine::Template && (self.has("{cpus}") || self.has("{mask}"))
    }

    /// The command can run without a choice of threads and CPUs.
    pub fn has_default(&self) -> bool {
        self.engine != Engine::Template
    }

    /// The engine's settings are known by their flags.
    pub fn has_settings(&self) -> bool {
        matches!(self.engine, Engine::Bench | Engine::Cli | Engine::Server)
    }

    /// Prefill and decode are different runs.
    pub fn works_apart(&self) -> bool {
        self.engine == Engine::Bench
    }

    /// The first key that a server wants, by its flag or else by the variable that it reads.
    pub fn key(&self) -> Option<String> {
        let words = self.argv.get(self.at + 1..)?;
        let given = words.iter().enumerate().rev().find_map(|(i, word)| {
            match word.to_str()?.strip_prefix("--api-key")? {
                "" => words.get(i + 1)?.to_str(),
                value => value.strip_prefix('='),
            }
        });
        let keys = given.map(str::to_owned).or_else(|| std::env::var("LLAMA_API_KEY").ok())?;
        keys.split(',').next().map(str::to_owned)
    }

    /// The command that prints the engine's flags.
    pub fn help(&self) -> Option<Vec<OsString>> {
        let mut argv: Vec<OsString> = self.argv.get(..=self.at)?.to_vec();
        if self.engine == Engine::Template {
            return None;
        }
        if self.engine == Engine::Runner {
            argv.push("run".into());
        }
        argv.push("--help".into());
        Some(argv)
    }

    /// Program and model for a title: the engine's own arguments without the wrapper.
    pub fn shown(&self) -> String {
        machine::target::shown(self.argv.iter().map(|a| a.as_encoded_bytes()))
    }

    /// A command line for one run. None as `candidate`: with the threads that the command itself names. `flags` are
    /// added, and replace the command's own of the same names; `help` is the engine's help.
    pub fn run(
        &self,
        candidate: Option<&Candidate>,
        work: Work,
        lengths: Lengths,
        flags: &[FlagChange],
        port: Option<u16>,
        help: &str,
    ) -> Vec<OsString> {
        if self.engine == Engine::Template {
            return candidate.map_or_else(|| self.argv.clone(), |c| self.replaced(c));
        }
        let mut argv = self.with(candidate, flags);
        argv.extend(self.work(work, lengths, port, help).into_iter().map(OsString::from));
        if let Some(candidate) = candidate {
            argv.extend(THREADS.iter().take(1).map(OsString::from));
            argv.push(candidate.threads.to_string().into());
        }
        argv
    }

    /// Flags by which the engine computes both phases as chosen; None: it computes them apart, or its help lacks one.
    pub fn masks(&self, decode: &Candidate, prefill: &Candidate, help: &str) -> Option<FlagChange> {
        let flags = ["-t", "-C", "-tb", "-Cb"];
        let known = matches!(self.engine, Engine::Cli | Engine::Server)
            && flags.iter().all(|flag| names_flag(help, flag));
        let names = THREADS.iter().chain(&BATCH_THREADS).chain(&MASKS).map(|n| (*n).to_owned()).collect();
        let values = [decode, prefill].into_iter().flat_map(|c| [c.threads.to_string(), mask(&c.cpus)]);
        let words =
            flags.into_iter().zip(values).flat_map(|(flag, value)| [flag.to_owned(), value]).collect();
        known.then_some(FlagChange { names, words })
    }

    /// The user's own command with these flags.
    pub fn changed(&self, flags: &[FlagChange]) -> Vec<OsString> {
        changed(self.argv.clone(), self.at + 1, flags)
    }

    /// The user's own command with these threads and flags: what to type from now on.
    pub fn advised(&self, candidate: &Candidate, flags: &[FlagChange]) -> Vec<OsString> {
        if self.engine == Engine::Template {
            return self.replaced(candidate);
        }
        let mut argv = without(&self.argv, self.at + 1, &THREADS);
        argv = without(&argv, self.at + 1, &BATCH_THREADS);
        argv = without(&argv, self.at + 1, &MASKS);
        argv = changed(argv, self.at + 1, flags);
        argv.extend([OsString::from("-t"), candidate.threads.to_string().into()]);
        argv
    }

    /// Without what the run sets by itself.
    fn with(&self, candidate: Option<&Candidate>, flags: &[FlagChange]) -> Vec<OsString> {
        let from = self.at + 1;
        let set: &[&str] = match self.engine {
            Engine::Bench => &BENCH_WORK,
            Engine::Cli => &CLI_WORK,
            Engine::Server => &SERVER_WORK,
            Engine::Runner => &RUNNER_WORK,
            Engine::Template => &[],
        };
        let mut argv = without(&self.argv, from, set);
        if candidate.is_some() {
            argv = without(&argv, from, &THREADS);
            argv = without(&argv, from, &BATCH_THREADS);
            argv = without(&argv, from, &MASKS);
        }
        changed(argv, from, flags)
    }

    /// The flags that set the work of a run.
    fn work(&self, work: Work, lengths: Lengths, port: Option<u16>, help: &str) -> Vec<String> {
        let Lengths { prompt, tokens } = lengths;
        let text = |all: &[&str]| all.iter().map(|s| (*s).to_owned()).collect::<Vec<String>>();
        let (prompt, tokens) = (prompt.to_string(), tokens.to_string());
        match (self.engine, work) {
            (Engine::Bench, Work::Decode) => text(&["-p", "0", "-n", &tokens, "-r", "1"]),
            (Engine::Bench, Work::Prefill) => text(&["-p", &prompt, "-n", "0", "-r", "2"]),
            (Engine::Runner, _) => {
                let mut flags = text(&["-p", &prompt, "-n", &tokens, "-r", "1"]);
                // The runner refuses a flag that is given twice.
                let given = self.argv.iter().any(|word| word == NO_ROOFLINE);
                flags.extend((!given).then(|| NO_ROOFLINE.to_owned()));
                flags
            }
            (Engine::Cli, _) => {
                let mut flags = text(&["-n", &tokens]);
                let asked = has_flag(&self.argv, self.at + 1, &PROMPTS);
                if !asked {
                    flags.extend(["-p".to_owned(), prompt_text(lengths.prompt)]);
                }
                let known = |name: &str| names_flag(help, name);
                let once = ["--single-turn", "--no-conversation", "-no-cnv"].into_iter().find(|f| known(f));
                flags.extend(once.map(str::to_owned));
                flags.extend(known("--ignore-eos").then(|| "--ignore-eos".to_owned()));
                flags
            }
            (Engine::Server, _) => {
                let port = port.unwrap_or(0).to_string();
                text(&["--host", "127.0.0.1", "--port", &port])
            }
            (Engine::Template, _) => Vec::new(),
        }
    }

    fn replaced(&self, candidate: &Candidate) -> Vec<OsString> {
        let cpus = common::cpus::ranges(candidate.cpus.iter().copied());
        let values = [candidate.threads.to_string(), cpus, mask(&candidate.cpus)];
        let replace = |word: &OsString| {
            let mut text = word.to_string_lossy().into_owned();
            for (placeholder, value) in PLACEHOLDERS.iter().zip(&values) {
                text = text.replace(placeholder, value);
            }
            // Words without a placeholder need not be text.
            if text == word.to_string_lossy() { word.clone() } else { text.into() }
        };
        self.argv.iter().map(replace).collect()
    }
}

/// A text of about this many tokens.
pub fn prompt_text(tokens: u32) -> String {
    WORDS.iter().copied().cycle().take(tokens as usize).collect::<String>().trim_end().to_owned()
}

/// A mask of CPUs as `0xf0`.
pub fn mask(cpus: &[u32]) -> String {
    let digits = cpus.iter().max().map_or(1, |most| most / 4 + 1);
    let digit = |at: u32| {
        let value: u32 =
            cpus.iter().filter(|cpu| *cpu / 4 == at).map(|cpu| 1 << (cpu % 4)).fold(0, |a, b| a | b);
        char::from_digit(value, 16).unwrap_or('0')
    };
    format!("0x{}", (0..digits).rev().map(digit).collect::<String>())
}

fn unknown_placeholder(word: &str) -> Option<String> {
    let mut rest = word;
    while let Some((_, after)) = rest.split_once('{') {
        let (name, tail) = after.split_once('}')?;
        let is_name = !name.is_empty() && name.bytes().all(|b| b.is_ascii_lowercase());
        if is_name && !PLACEHOLDERS.iter().any(|p| p.trim_matches(['{', '}']) == name) {
            return Some(name.to_owned());
        }
        rest = tail;
    }
    None
}

fn engine_of(word: &OsStr) -> Option<Engine> {
    match Path::new(word).file_name()?.to_str()? {
        "llama-bench" => Some(Engine::Bench),
        "llama-cli" | "llama-completion" => Some(Engine::Cli),
        "llama-server" => Some(Engine::Server),
        "ggml-runner" => Some(Engine::Runner),
        _ => None,
    }
}

/// The words without these flags and their values, from a position on: `-t 4`, `--threads=4`.
fn without(argv: &[OsString], from: usize, names: &[&str]) -> Vec<OsString> {
    let mut kept = Vec::with_capacity(argv.len());
    let mut words = argv.iter().enumerate();
    while let Some((at, word)) = words.next() {
        let text = word.to_string_lossy();
        let name = text.split_once('=').map_or(&*text, |(name, _)| name);
        if at < from || !names.contains(&name) {
            kept.push(word.clone());
        } else if name.len() == text.len() {
            words.next();
        }
    }
    kept
}

fn changed(mut argv: Vec<OsString>, from: usize, flags: &[FlagChange]) -> Vec<OsString> {
    for FlagChange { names, words } in flags {
        argv = without(&argv, from, &names.iter().map(String::as_str).collect::<Vec<_>>());
        argv.extend(words.iter().map(OsString::from));
    }
    argv
}

fn has_flag(argv: &[OsString], from: usize, names: &[&str]) -> bool {
    without(argv, from, names).len() < argv.len()
}

/// Whether a help text has this flag.
pub fn names_flag(help: &str, name: &str) -> bool {
    help.lines()
        .filter(|line| line.trim_start().starts_with('-'))
        .flat_map(|line| line.split(|c: char| c.is_whitespace() || c == ',' || c == '='))
        .any(|word| word == name)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(line: &str) -> Vec<OsString> {
        line.split(' ').map(OsString::from).collect()
    }

    fn line(argv: &[OsString]) -> String {
        argv.iter().map(|a| a.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
    }

    fn candidate(cpus: &[u32], threads: u32) -> Candidate {
        Candidate { cpus: cpus.to_vec(), threads }
    }

    const LENGTHS: Lengths = Lengths { prompt: 128, tokens: 32 };

    fn run(command: &str, work: Work) -> String {
        let tuned = Tuned::of(words(command)).expect("known");
        line(&tuned.run(
            Some(&candidate(&[4, 5], 2)),
            work,
            LENGTHS,
            &[],
            Some(8123),
            "  -st, --single-turn  x",
        ))
    }

    #[test]
    fn a_bench_is_run_once_for_each_work() {
        let own = "nice -n 5 /opt/llama-bench -m m.gguf -t 1,2,4 --threads=8 -p 512 -n 128 -C 0x3 --cpu-strict 1 -r 9";
        assert_eq!(run(own, Work::Decode), "nice -n 5 /opt/llama-bench -m m.gguf -p 0 -n 32 -r 1 -t 2");
        assert_eq!(run(own, Work::Prefill), "nice -n 5 /opt/llama-bench -m m.gguf -p 128 -n 0 -r 2 -t 2");
    }

    #[test]
    fn an_answer_ends_by_itself_and_keeps_its_prompt() {
        let own = run("llama-cli -m m.gguf -p hello -n 999 -tb 8", Work::Decode);
        assert_eq!(own, "llama-cli -m m.gguf -p hello -n 32 --single-turn -t 2");
        assert!(run("llama-completion -m m.gguf", Work::Decode).contains(" -p the model reads"));
        let server = run("llama-server -m m.gguf --port 80", Work::Decode);
        assert_eq!(server, "llama-server -m m.gguf --host 127.0.0.1 --port 8123 -t 2");
    }

    #[test]
    fn the_runner_measures_no_roofline_however_it_is_told() {
        for own in ["ggml-runner run -m m.gguf -t 1 -n 9", "ggml-runner run -m m.gguf --no-roofline"] {
            let run = run(own, Work::Decode);
            assert_eq!(run.matches("--no-roofline").count(), 1, "{run}");
            assert!(run.ends_with(" -t 2") && run.contains(" -p 128 -n 32 -r 1"), "{run}");
        }
    }

    #[test]
    fn a_servers_key_is_known_and_its_address_is_ours() {
        let own = "llama-server --api-key a,b --ssl-key-file k --ssl-cert-file=c --api-prefix /x -m m.gguf";
        assert_eq!(Tuned::of(words(own)).expect("known").key().as_deref(), Some("a"));
        assert_eq!(Tuned::of(words("llama-server --api-key=c")).expect("known").key().as_deref(), Some("c"));
        assert_eq!(Tuned::of(words("llama-server --api-key-file f")).expect("known").key(), None);
        let own = run(own, Work::Decode);
        assert_eq!(own, "llama-server --api-key a,b -m m.gguf --host 127.0.0.1 --port 8123 -t 2");
    }

    #[test]
    fn both_phases_have_masks_where_the_build_knows_them() {
        let tuned =
            Tuned::of(words("llama-cli -m m -t 8 --cpu-mask ff -tb 4 --cpu-strict 1")).expect("known");
        let help = "-t, --threads N\n-tb, --threads-batch N\n-C, --cpu-mask M\n-Cb, --cpu-mask-batch M";
        let (decode, prefill) = (candidate(&[4, 5], 2), candidate(&[0, 1, 2], 3));
        let masks = tuned.masks(&decode, &prefill, help).expect("known");
        assert_eq!(line(&tuned.changed(&[masks])), "llama-cli -m m -t 2 -C 0x30 -tb 3 -Cb 0x7");
        assert_eq!(tuned.masks(&decode, &prefill, "-t N\n-C M"), None);
        let bench = Tuned::of(words("llama-bench -m m")).expect("known");
        assert_eq!(bench.masks(&decode, &prefill, help), None, "it computes them apart");
    }

    #[test]
    fn placeholders_are_replaced() {
        let own = "engine --team={threads} on {cpus} as {mask} {not} {json:1}";
        assert_eq!(Tuned::of(words(own)), Err(CommandError::Placeholder("not".to_owned())));
        let own = run("engine --team={threads} on {cpus} as {mask} {\"a\":1}", Work::Decode);
        assert_eq!(own, "engine --team=2 on 4-5 as 0x30 {\"a\":1}");
        assert_eq!(Tuned::of(words("llama-bench {cpus}")), Err(CommandError::NoThreads));
        assert_eq!(Tuned::of(words("engine -t 4")), Err(CommandError::Unknown("engine".to_owned())));
        assert_eq!(Tuned::of(Vec::new()), Err(CommandError::None));
    }

    #[test]
    fn flags_replace_the_commands_own() {
        let tuned = Tuned::of(words("llama-bench -m m.gguf -fa 0 -t 4 -p 512")).expect("known");
        let text = |all: &[&str]| all.iter().map(|s| (*s).to_owned()).collect();
        let fa = FlagChange { names: text(&["-fa", "--flash-attn"]), words: text(&["-fa", "on"]) };
        let advised = tuned.advised(&candidate(&[0], 1), &[fa]);
        assert_eq!(line(&advised), "llama-bench -m m.gguf -p 512 -fa on -t 1");
        let own = tuned.run(None, Work::Decode, LENGTHS, &[], None, "");
        assert_eq!(line(&own), "llama-bench -m m.gguf -fa 0 -t 4 -p 0 -n 32 -r 1");
    }

    #[test]
    fn a_mask_has_a_bit_for_each_cpu() {
        assert_eq!(mask(&[0, 1]), "0x3");
        assert_eq!(mask(&[4, 64]), "0x10000000000000010");
        assert_eq!(mask(&[]), "0x0");
    }

    #[test]
    fn a_flag_is_found_in_a_help_text() {
        let help = "usage: x -no\n  -fa, --flash-attn <on|off>   text with --other\n--repack <0|1>";
        assert!(names_flag(help, "-fa") && names_flag(help, "--repack"));
        assert!(!names_flag(help, "-f") && !names_flag(help, "-no"));
    }
}
