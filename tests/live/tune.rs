//! `tune`: a board of known speed and power through the real command line, real threads on real CPUs, and what is left
//! when it is killed.

use crate::common;

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use common::run::{profinfer, signal_to, wait_until};
use common::{fixture, live, model, runner};
use serde_json::Value;

const BOARD: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/tune/board.py");

fn tune(cache: &Path, args: &[&str]) -> Output {
    let mut command = profinfer();
    // The machine may have other work: what is tested here does not depend on it.
    command.args(["tune", "--json", "--foreign-load", "100000%"]).args(args);
    command.env("XDG_CACHE_HOME", cache).output().expect("it runs")
}

fn answer(out: &Output) -> Value {
    let said = || format!("{:?}: {}", out.status, String::from_utf8_lossy(&out.stderr));
    assert!(!out.stdout.is_empty(), "{}", said());
    serde_json::from_slice(&out.stdout).unwrap_or_else(|e| panic!("{e}: {}", said()))
}

fn path(path: &Path) -> &str {
    path.to_str().expect("UTF-8")
}

/// The fastest set has three cores; two are nearly as fast and take a quarter less energy.
#[test]
fn the_thriftiest_choice_of_a_known_board_is_found() {
    let _turn = live!();
    let engine = fixture!("modern");
    let dir = tempfile::tempdir().expect("a directory");
    let board = dir.path().join("board");
    let ask = |what: &str, more: &[&str]| {
        let out =
            Command::new("python3").args([BOARD, what, path(&board)]).args(more).output().expect("python3");
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
        serde_json::from_slice::<Value>(&out.stdout).expect("JSON")
    };
    ask("make", &["11", "--cores", "1,4"]);
    let best = ask("best", &[]);
    let command = ["python3", BOARD, "run", path(&board), "--cpus", "{cpus}", "--threads", "{threads}"];
    let command = [&command[..], &["-n", "96", "--engine", path(&engine)]].concat();
    let how = ["--for", "energy", "--phase", "decode", "--rounds", "1", "--sysfs", path(&board), "--"];
    let out = tune(dir.path(), &[&how[..], &command].concat());
    let found = answer(&out);
    assert!(out.status.success(), "{found:#}");
    let work = &found["works"][0];
    let cpus = |which: &str| {
        let row = &work["tried"][work[which].as_u64().expect("an index") as usize];
        common::cpus(row["cpus"].as_str().expect("CPUs"))
    };
    let told = |which: &str| -> Vec<u64> {
        best[which]["cpus"].as_array().expect("CPUs").iter().filter_map(Value::as_u64).collect()
    };
    assert_ne!(told("fastest"), told("thriftiest"), "the board is of no use");
    assert_eq!(cpus("chosen"), told("thriftiest"), "{found:#}");
    assert_eq!(found["energy"]["name"], "battery", "{found:#}");
    assert_eq!(found["energy"]["model"], false);
    assert!(found["notes"].to_string().contains("was not checked"), "{}", found["notes"]);
    let line = found["lines"].as_array().and_then(|l| l.last()).expect("a line");
    assert_eq!(line["goal"], "energy");
    assert!(line["command"].as_str().is_some_and(|c| c.contains("--threads 2")), "{line}");
}

#[test]
fn real_threads_run_where_they_are_told() {
    let _turn = live!();
    let (program, model) = (runner(), model("tiny", "q4_0"));
    let dir = tempfile::tempdir().expect("a directory");
    let how = ["--phase", "decode", "--rounds", "1", "--tokens", "200", "--no-energy", "--cpus", "0-1"];
    let conf = ["--write-conf", path(dir.path())];
    let command = ["--", path(&program), "run", "-m", path(&model), "-t", "1", "--prompt", "4"];
    let args = [&how[..], &conf, &command].concat();
    let out = tune(dir.path(), &args);
    let found = answer(&out);
    assert!(out.status.success(), "{found:#}");
    let work = &found["works"][0];
    assert!(work["default"]["tokens_per_s"].as_f64() > Some(0.0), "{found:#}");
    let rows = work["tried"].as_array().expect("rows");
    let threads: BTreeSet<u64> = rows.iter().filter_map(|r| r["threads"].as_u64()).collect();
    assert_eq!(threads, BTreeSet::from([1, 2]), "{found:#}");
    for row in rows {
        assert!(row["measured"]["tokens_per_s"].as_f64() > Some(0.0), "{found:#}");
        let seen = row["measured"]["seen_on"].as_str().expect("CPUs");
        let given = common::cpus(row["cpus"].as_str().expect("CPUs"));
        assert!(seen.is_empty() || common::cpus(seen).iter().all(|cpu| given.contains(cpu)), "{row}");
        assert!(row["threads"].as_u64() <= Some(given.len() as u64), "{row}");
    }
    assert!(found["no_energy"].as_str().is_some_and(|why| why.contains("--no-energy")), "{found:#}");
    let kept: Value =
        serde_json::from_slice(&fs::read(dir.path().join("tuned.json")).expect("a file")).expect("JSON");
    let chosen = &rows[work["chosen"].as_u64().expect("an index") as usize];
    assert_eq!(kept["results"][0]["decode"]["threads"], chosen["threads"]);
    assert!(kept["results"][0]["engine"].as_str().is_some_and(|id| id.len() >= 16), "{kept:#}");
    // What was measured is not measured again.
    let again = answer(&tune(dir.path(), &args));
    assert!(again["kept_runs"].as_u64() >= Some(2), "{again:#}");
    assert!(again["runs"].as_u64() < found["runs"].as_u64(), "{again:#}");
}

#[test]
fn an_engine_that_fails_or_ignores_its_threads_gets_no_advice() {
    let _turn = live!();
    let dir = tempfile::tempdir().expect("a directory");
    let out =
        tune(dir.path(), &["--phase", "decode", "--", "sh", "-c", "echo oh no >&2; exit 3", "{threads}"]);
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(said.contains("no run had a result") && said.contains("exited with status 3"), "{said}");
    // It always computes with two threads.
    let engine = fixture!("modern");
    let out = tune(
        dir.path(),
        &[
            "--phase",
            "decode",
            "--rounds",
            "0",
            "--",
            path(&engine),
            "-t",
            "2",
            "-n",
            "50",
            "-p",
            "{threads}",
        ],
    );
    let found = answer(&out);
    let rows = found["works"][0]["tried"].as_array().expect("rows");
    let one = rows.iter().find(|r| r["threads"] == 1).expect("a row");
    assert!(one["refused"].as_str().is_some_and(|why| why.contains("with 2 threads")), "{found:#}");
}

#[test]
fn nothing_runs_on_when_it_is_killed() {
    let _turn = live!(beside others);
    let program = runner();
    let dir = tempfile::tempdir().expect("a directory");
    // The model's path tells this engine from those of other tests.
    let names = tempfile::tempdir().expect("a directory");
    let model = names.path().join("model.gguf");
    std::os::unix::fs::symlink(self::model("tiny", "q4_0"), &model).expect("a link");
    let mut child = profinfer()
        .args([
            "tune",
            "--foreign-load",
            "100000%",
            "--no-keep",
            "--tokens",
            "1000000",
            "--phase",
            "decode",
            "--",
        ])
        .args([path(&program), "run", "-m", path(&model), "-t", "1"])
        .env("TMPDIR", dir.path())
        .stderr(Stdio::null())
        .spawn()
        .expect("it runs");
    let mark = format!("{}\0run", path(&program));
    let engines = || {
        let all = fs::read_dir("/proc").expect("/proc").flatten();
        let lines = all.filter_map(|e| fs::read(e.path().join("cmdline")).ok());
        lines
            .filter(|line| {
                String::from_utf8_lossy(line).contains(path(&model)) && line.starts_with(mark.as_bytes())
            })
            .count()
    };
    wait_until("an engine", || engines() > 0);
    signal_to(child.id(), libc::SIGKILL);
    child.wait().expect("waited");
    wait_until("the engine's end", || engines() == 0);
    let left = || fs::read_dir(dir.path()).expect("a directory").flatten().count();
    assert_eq!(left(), 1, "the directory of its recording");
    let out = profinfer()
        .args(["tune", "--phase", "decode", "--no-keep", "--", "false", "{threads}"])
        .env("TMPDIR", dir.path())
        .output()
        .expect("it runs");
    assert_eq!((out.status.code(), left()), (Some(1), 0), "{}", String::from_utf8_lossy(&out.stderr));
}

/// A program with llama.cpp's flags: it decodes best on one CPU, and computes prompts best with two threads.
fn completion(dir: &Path, engine: &Path, obeys: bool) -> std::path::PathBuf {
    use std::os::unix::fs::PermissionsExt;
    let text = format!(
        r#"#!/bin/sh
[ "$1" != --help ] || exec printf -- '-t N\n-tb N\n-C, --cpu-mask M\n-Cb, --cpu-mask-batch M\n'
t=2 more=
while [ $# -gt 0 ]; do
    case $1 in
    -t) t=$2 ;;
    -n) n=$2 ;;
    -tb) more="$more --threads-batch $2 --fresh-threads" tb=$2 ;;
    -C) {0}more="$more --cpu-mask $2" ;;
    -Cb) {0}more="$more --cpu-mask-batch $2" ;;
    esac
    shift
done
ns=400000
[ $(nproc) != 1 ] || ns=200000
exec {1} -p 16 -n ${{n:-16}} -t $t --sleep --op-ns $ns --batch-op-ns $((8000000 / ${{tb:-$t}})) $more
"#,
        if obeys { "" } else { ": " },
        path(engine)
    );
    let file = dir.join("llama-completion");
    fs::write(&file, text).expect("written");
    fs::set_permissions(&file, fs::Permissions::from_mode(0o755)).expect("changed");
    file
}

#[test]
fn both_phases_are_put_into_one_line_if_the_engine_obeys_it() {
    let _turn = live!();
    let engine = fixture!("modern");
    for obeys in [true, false] {
        let dir = tempfile::tempdir().expect("a directory");
        let program = completion(dir.path(), &engine, obeys);
        let how =
            ["--rounds", "0", "--knobs", "none", "--no-energy", "--cpus", "0-1", "--tokens", "32", "--"];
        let page = dir.path().join("page.html");
        let out = tune(dir.path(), &[&["--html", path(&page)][..], &how, &[path(&program)]].concat());
        let (found, page) = (answer(&out), fs::read_to_string(&page).expect("a page"));
        assert!(page.contains("id=\"decode-chart\"") && page.ends_with("</html>\n"), "{page}");
        let lines = found["lines"].as_array().expect("lines");
        let both = lines.iter().find(|line| line["work"] == "both");
        if !obeys {
            assert!(both.is_none(), "{found:#}");
            let notes = found["notes"].to_string();
            assert!(notes.contains("in one line (-C, -Cb)"), "{notes}");
            continue;
        }
        let both = both.unwrap_or_else(|| panic!("no line for both: {found:#}"));
        let command = both["command"].as_str().expect("a command");
        assert!(command.ends_with("/llama-completion -t 1 -C 0x1 -tb 2 -Cb 0x3"), "{command}");
        assert!(both["tokens_per_s"].as_f64() > Some(0.0), "{both}");
        assert!(both["prefill_tokens_per_s"].as_f64() > Some(0.0), "{both}");
        let typed = Command::new("sh").args(["-c", command]).stdout(Stdio::null()).status();
        assert!(typed.expect("it runs").success(), "{command}");
    }
}
