//! Manual pages and completions in the programs that read them: roff formatters, bash, zsh and fish.

use crate::common;

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{profinfer, runner, skip};

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn said(program: &Path, args: &[&str]) -> String {
    let out =
        Command::new(program).args(args).env("SOURCE_DATE_EPOCH", "1763942400").output().expect("it runs");
    assert!(out.status.success(), "{args:?}: {}", text(&out.stderr));
    text(&out.stdout)
}

fn programs() -> [(&'static str, PathBuf); 2] {
    [("profinfer", profinfer()), ("ggml-runner", runner())]
}

/// The subcommands that the overview lists.
fn subcommands(program: &Path) -> Vec<String> {
    let overview = said(program, &["--help"]);
    let rows = overview.lines().skip_while(|l| *l != "Subcommands:").skip(1).take_while(|l| !l.is_empty());
    let names = rows.filter(|l| l.starts_with("  ") && !l.starts_with("   "));
    names.filter_map(|l| l.split_whitespace().next()).map(String::from).collect()
}

/// All pages of both programs, in files that are named like the pages.
fn pages(dir: &Path) -> Vec<PathBuf> {
    let mut pages = Vec::new();
    for (name, program) in programs() {
        let of = |args: &[&str], page: String| {
            let path = dir.join(format!("{page}.1"));
            std::fs::write(&path, said(&program, args)).expect("written");
            path
        };
        pages.push(of(&["help", "--man"], name.into()));
        let subcommands = subcommands(&program);
        assert!(subcommands.len() > 4, "{subcommands:?}");
        for command in subcommands {
            pages.push(of(&["help", "--man", &command], format!("{name}-{command}")));
        }
    }
    pages
}

/// The output of a program, if it is installed.
fn run(command: &mut Command) -> Option<Output> {
    command.output().ok()
}

#[test]
fn roff_formatters_find_nothing_wrong_with_the_pages() {
    let dir = tempfile::tempdir().expect("a directory");
    let pages = pages(dir.path());
    let Some(_) = run(Command::new("groff").arg("--version")) else { skip!("no groff") };
    for page in &pages {
        let out =
            run(Command::new("groff").args(["-man", "-ww", "-z", "-Tutf8"]).arg(page)).expect("it runs");
        assert!(out.status.success() && out.stderr.is_empty(), "{}: {}", page.display(), text(&out.stderr));
    }
    // Without one of these formatters, the other one has checked the pages.
    if let Some(out) = run(Command::new("mandoc").args(["-T", "lint", "-W", "warning"]).args(&pages)) {
        assert!(out.status.success() && out.stdout.is_empty(), "{}", text(&out.stdout));
    }
}

#[test]
fn a_formatted_page_shows_what_the_help_has() {
    let Some(_) = run(Command::new("groff").arg("--version")) else { skip!("no groff") };
    let dir = tempfile::tempdir().expect("a directory");
    let file = dir.path().join("page.1");
    let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
    for (_, program) in programs() {
        for command in subcommands(&program) {
            std::fs::write(&file, said(&program, &["help", "--man", &command])).expect("written");
            // Neither hyphenation nor adjusted lines nor formatting: the bare words.
            let mut groff = Command::new("groff");
            groff.args(["-man", "-Tascii", "-P-cbou", "-rHY=0", "-rLL=5000n", "-dAD=l"]);
            let page = words(&text(&run(groff.arg(&file)).expect("it runs").stdout));
            let help = said(&program, &[&command, "--help"]);
            let parts = help.split("\n\n").filter(|p| !p.starts_with("Usage:"));
            for line in parts.flat_map(str::lines).filter(|l| l.starts_with("  ") && !l.contains("  --")) {
                for word in line.split_whitespace() {
                    assert!(page.contains(word), "{command}: {word:?} of {line:?} in:\n{page}");
                }
            }
        }
    }
}

#[test]
fn help_of_something_else_is_refused() {
    for (args, why) in [
        (&["help", "--man", "recrod"][..], "the nearest is 'record'"),
        (&["help", "--mann"], "unknown option '--mann'"),
        (&["help", "report", "html"], "unexpected argument 'html'"),
        (&["completions"], "SHELL is required"),
        (&["completions", "tcsh"], "expected bash, zsh or fish"),
    ] {
        let out = Command::new(profinfer()).args(args).output().expect("it runs");
        assert_eq!((out.status.code(), out.stdout.len()), (Some(2), 0), "{args:?}");
        assert!(text(&out.stderr).contains(why), "{args:?}: {}", text(&out.stderr));
    }
}

fn script(dir: &Path, name: &str, shell: &str) -> PathBuf {
    let path = dir.join(format!("{name}.{shell}"));
    let program = programs().into_iter().find(|(n, _)| *n == name).expect("a program").1;
    std::fs::write(&path, said(&program, &["completions", shell])).expect("written");
    path
}

/// What bash offers for these words, the last of which is to be completed.
fn bash(script: &Path, function: &str, dir: &Path, words: &[&str]) -> Vec<String> {
    let asked = "source \"$1\"; function=$2; shift 2; COMP_WORDS=(\"$@\"); COMP_CWORD=$(($# - 1)); $function; \
                 printf '%s\\n' \"${COMPREPLY[@]}\"";
    let mut bash = Command::new("bash");
    bash.args(["--norc", "-c", asked, "bash"]).arg(script).arg(function).args(words).current_dir(dir);
    let out = bash.output().expect("bash runs");
    assert!(out.stderr.is_empty(), "{words:?}: {}", text(&out.stderr));
    text(&out.stdout).lines().filter(|l| !l.is_empty()).map(String::from).collect()
}

/// A directory with a file and a directory in it, whose names are not easy.
fn with_files() -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a directory");
    std::fs::write(dir.path().join("my run.pfi"), "").expect("written");
    std::fs::create_dir(dir.path().join("my dir")).expect("made");
    dir
}

#[test]
fn bash_completes_subcommands_options_values_and_files() {
    let dir = with_files();
    let (ours, other) = (script(dir.path(), "profinfer", "bash"), script(dir.path(), "ggml-runner", "bash"));
    let complete = |words: &[&str]| bash(&ours, "_profinfer", dir.path(), words);
    assert_eq!(complete(&["profinfer", "rep"]), ["report"]);
    assert_eq!(complete(&["profinfer", "report", "--expert"]), ["--expert-cache"]);
    assert_eq!(complete(&["profinfer", "report", "--by", "la"]), ["layer"]);
    assert_eq!(
        complete(&["profinfer", "report", "--by", ""]).len(),
        complete(&["profinfer", "report", "--by", "="]).len()
    );
    // As bash splits --phase=de.
    assert_eq!(complete(&["profinfer", "report", "--phase", "=", "de"]), ["decode"]);
    assert_eq!(complete(&["profinfer", "report", "--top", ""]), [""; 0]);
    assert_eq!(complete(&["profinfer", "report", "my"]), ["my dir", "my run.pfi"]);
    assert_eq!(complete(&["profinfer", "completions", "f"]), ["fish"]);
    let all = complete(&["profinfer", ""]);
    assert!(["report", "completions", "help"].iter().all(|name| all.contains(&name.to_string())), "{all:?}");
    assert_eq!(complete(&["profinfer", "help", "--m"]), ["--man"]);
    assert_eq!(complete(&["profinfer", "help", "--man", "repo"]), ["report"]);
    let runner = |words: &[&str]| bash(&other, "_ggml_runner", dir.path(), words);
    assert_eq!(runner(&["ggml-runner", "synth", "qwen"]), ["qwen2-tiny"]);
    assert_eq!(runner(&["ggml-runner", "run", "-m", "my"]), ["my dir", "my run.pfi"]);
}

#[cfg(feature = "agent")]
#[test]
fn bash_completes_directories_processes_and_the_recorded_command() {
    let dir = with_files();
    let ours = script(dir.path(), "profinfer", "bash");
    let complete = |words: &[&str]| bash(&ours, "_profinfer", dir.path(), words);
    assert_eq!(complete(&["profinfer", "record", "--sysroot", "my"]), ["my dir"]);
    assert_eq!(complete(&["profinfer", "record", "-o", "my r"]), ["my run.pfi"]);
    let own = std::process::id().to_string();
    assert!(complete(&["profinfer", "top", "-p", &own]).contains(&own));
    // Its own options end at --.
    assert_eq!(complete(&["profinfer", "record", "--", "ba", "--o"]), [""; 0]);
    assert!(complete(&["profinfer", "record", "--", "bas"]).contains(&"bash".to_string()));
    assert_eq!(complete(&["profinfer", "record", "--", "cat", "my r"]), ["my run.pfi"]);
}

#[test]
fn zsh_completes_them_too() {
    let Some(_) = run(Command::new("zsh").arg("--version")) else { skip!("no zsh") };
    let dir = with_files();
    for (name, _) in programs() {
        let path = script(dir.path(), name, "zsh");
        let out = run(Command::new("zsh").arg("-n").arg(&path)).expect("it runs");
        assert!(out.status.success() && out.stderr.is_empty(), "{}", text(&out.stderr));
    }
    let asked = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/common/complete.zsh");
    let complete = |line: &str| {
        let mut zsh = Command::new("zsh");
        zsh.arg("-f").arg(&asked).arg(dir.path().join("profinfer.zsh")).arg(line).current_dir(dir.path());
        let out = zsh.output().expect("zsh runs");
        assert!(out.stderr.is_empty(), "{line}: {}", text(&out.stderr));
        text(&out.stdout)
            .lines()
            .map(|l| l.trim_end().to_owned())
            .filter(|l| !l.is_empty())
            .collect::<Vec<_>>()
    };
    assert_eq!(complete("profinfer repo"), ["report"]);
    assert_eq!(complete("profinfer report --expert"), ["--expert-cache"]);
    assert_eq!(complete("profinfer report --by la"), ["layer"]);
    assert_eq!(complete("profinfer report --phase=de"), ["decode"]);
    assert_eq!(complete("profinfer report --top "), [""; 0]);
    assert_eq!(complete("profinfer completions f"), ["fish"]);
    assert_eq!(complete("profinfer help --man repo"), ["report"]);
    assert_eq!(complete("profinfer report my\\ r"), ["my run.pfi"]);
}

#[test]
fn fish_completes_them_too() {
    let Some(_) = run(Command::new("fish").arg("--version")) else { skip!("no fish") };
    let dir = with_files();
    let (ours, other) = (script(dir.path(), "profinfer", "fish"), script(dir.path(), "ggml-runner", "fish"));
    for path in [&ours, &other] {
        let out = run(Command::new("fish").args(["--no-config", "-n"]).arg(path)).expect("it runs");
        assert!(out.status.success() && out.stderr.is_empty(), "{}", text(&out.stderr));
    }
    let complete = |script: &Path, line: &str| {
        let mut fish = Command::new("fish");
        fish.args(["--no-config", "-c", "source $argv[1]; complete -C $argv[2]"]).arg(script).arg(line);
        let out = fish.current_dir(dir.path()).env("HOME", dir.path()).output().expect("fish runs");
        assert!(out.stderr.is_empty(), "{line}: {}", text(&out.stderr));
        let names = text(&out.stdout);
        names.lines().map(|l| l.split('\t').next().unwrap_or_default().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(complete(&ours, "profinfer repo"), ["report"]);
    assert_eq!(complete(&ours, "profinfer report --expert"), ["--expert-cache"]);
    assert_eq!(complete(&ours, "profinfer report --by la"), ["layer"]);
    assert_eq!(complete(&ours, "profinfer report --phase=de"), ["--phase=decode"]);
    assert_eq!(complete(&ours, "profinfer report --top "), [""; 0]);
    assert_eq!(complete(&ours, "profinfer completions f"), ["fish"]);
    assert_eq!(complete(&ours, "profinfer help --man repo"), ["report"]);
    assert_eq!(complete(&ours, "profinfer report my\\ r"), ["my run.pfi"]);
    assert_eq!(complete(&other, "ggml-runner synth qwen"), ["qwen2-tiny"]);
    if cfg!(feature = "agent") {
        assert_eq!(complete(&ours, "profinfer record --sysroot my"), ["my dir/"]);
        assert_eq!(complete(&ours, "profinfer record -- cat my\\ r"), ["my run.pfi"]);
        assert!(complete(&ours, "profinfer record -- bas").contains(&"bash".to_owned()));
    }
}
