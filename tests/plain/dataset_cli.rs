//! `profinfer export --parquet` as a command: what is in a data set, what is left of one that cannot be written to, and
//! what is refused. tests/plain/dataset_sql.rs has the tables as databases read them.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use parquet::file::reader::{FileReader, SerializedFileReader};
use parquet::record::Field;

use crate::common::timeline::text;
use crate::synth_trace::causes::one_of_each;
use crate::synth_trace::*;

struct Place {
    dir: tempfile::TempDir,
}

impl Place {
    fn new() -> Place {
        Place { dir: tempfile::tempdir().unwrap() }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn set(&self) -> PathBuf {
        self.at("fleet")
    }

    fn trace(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.at(name);
        fs::write(&path, bytes).unwrap();
        path
    }

    fn add(&self, traces: &[&Path]) -> Output {
        self.command(traces).output().unwrap()
    }

    fn command(&self, traces: &[&Path]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_profinfer"));
        command.args(["export", "--parquet"]).arg(self.set()).args(traces);
        command
    }

    /// All files and what is in them, by their names below the data set.
    fn files(&self) -> BTreeMap<String, Vec<u8>> {
        fn walk(dir: &Path, below: &str, to: &mut BTreeMap<String, Vec<u8>>) {
            for entry in fs::read_dir(dir).into_iter().flatten() {
                let path = entry.unwrap().path();
                let name = format!("{below}{}", path.file_name().unwrap().to_str().unwrap());
                if path.is_dir() {
                    walk(&path, &format!("{name}/"), to);
                } else {
                    to.insert(name, fs::read(&path).unwrap());
                }
            }
        }
        let mut files = BTreeMap::new();
        walk(&self.set(), "", &mut files);
        files
    }

    /// The rows of a table, of all runs, by column.
    fn rows(&self, table: &str) -> Vec<BTreeMap<String, Field>> {
        let mut rows = Vec::new();
        for (name, bytes) in self.files() {
            if name.starts_with(&format!("{table}/")) {
                let path = self.at(&format!("{table}.parquet"));
                fs::write(&path, bytes).unwrap();
                let reader = SerializedFileReader::new(fs::File::open(path).unwrap()).unwrap();
                for row in reader.get_row_iter(None).unwrap() {
                    rows.push(row.unwrap().get_column_iter().map(|(n, f)| (n.clone(), f.clone())).collect());
                }
            }
        }
        rows
    }
}

fn run(host: &str, day: u64, calls: u64) -> Vec<u8> {
    let real_ns = 1_772_409_600_000_000_000 + day * 86_400_000_000_000;
    let cmdline = "llama-cli -m /models/tiny-q4_0.gguf --api-key hunter2";
    let origin = Origin { host, real_ns, cmdline, ..Origin::default() };
    let mut s = Synth::of(Vec::new(), Spec::default(), &origin);
    s.ubatches(&[4, 3], |p, t| 2000 + 10 * p as u64 + 5 * u64::from(t));
    for i in 0..calls {
        s.call(1, |p, t| 1000 + 1037 * p as u64 + 5 * u64::from(t) + i);
    }
    one_of_each(&mut s);
    s.enc.finish(&footer("target exited")).unwrap()
}

fn long(field: &Field) -> i64 {
    match field {
        Field::Int(n) => (*n).into(),
        Field::Long(n) => *n,
        other => panic!("{other}"),
    }
}

fn str(field: &Field) -> &str {
    match field {
        Field::Str(text) => text,
        other => panic!("{other}"),
    }
}

fn succeeded(out: &Output) -> String {
    assert_eq!((text(&out.stderr), out.status.code()), (String::new(), Some(0)));
    text(&out.stdout)
}

fn refused(out: &Output, code: i32, why: &str) {
    let err = text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{err}");
    assert!(err.contains(why), "{err}");
}

#[test]
fn tables_have_what_the_report_has() {
    let place = Place::new();
    let trace = place.trace("run.pfi", &run("board 1/x", 0, 5));
    let said = succeeded(&place.add(&[&trace]));
    let out = Command::new(env!("CARGO_BIN_EXE_profinfer"))
        .args(["report", "--json", "--by", "thread"])
        .arg(&trace)
        .output()
        .unwrap();
    let report: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();

    let [runs] = place.rows("runs").try_into().unwrap();
    let id = str(&runs["run"]).to_owned();
    assert!(said.starts_with(&format!("run {id} of ")) && id.len() == 16, "{said}");
    let name = format!("runs/date=2026-03-02/host=board%201%2Fx/{id}.parquet");
    assert!(place.files().contains_key(&name), "{:?}", place.files().keys());
    assert_eq!(
        (str(&runs["file"]), str(&runs["model"]), str(&runs["quantisation"])),
        ("run.pfi", "tiny-q4_0.gguf", "q4_0")
    );
    assert!(matches!(runs["complete"], Field::Bool(complete) if report["quality"]["complete"] == complete));
    assert_eq!(runs["started"], Field::TimestampMicros(1_772_409_600_000_000));

    let ops = place.rows("ops");
    assert_eq!(ops.len() as u64, report["quality"]["hits"]["slices"].as_u64().unwrap());
    let calls = place.rows("calls");
    assert_eq!(calls.len(), 6);
    assert_eq!(long(&calls[0]["tokens"]), 7);
    let threads = place.rows("threads");
    for phase in report["phases"].as_array().unwrap() {
        let of = |row: &&BTreeMap<String, Field>| str(&row["phase"]) == phase["phase"].as_str().unwrap();
        for thread in phase["by_thread"].as_array().unwrap() {
            let own = |row: &&BTreeMap<String, Field>| of(row) && thread["ith"] == long(&row["thread"]);
            let sum = |name: &str| ops.iter().filter(own).map(|row| long(&row[name])).sum::<i64>();
            assert_eq!(thread["op_ns"], sum("dur_ns"));
            assert_eq!(thread["slices"], ops.iter().filter(own).count());
            let row = threads.iter().find(own).unwrap();
            assert_eq!(thread["op_ns"], long(&row["op_ns"]));
            assert_eq!(thread["causes"]["preempted_ns"], long(&row["preempted_ns"]));
        }
    }
    // All of a run's rows have its id; no secret is in any file.
    for table in ["contexts", "tensors", "counters", "offcpu", "sensors", "splits"] {
        let rows = place.rows(table);
        assert!(!rows.is_empty() && rows.iter().all(|row| str(&row["run"]) == id), "{table}");
    }
    assert_eq!(
        str(&place.rows("contexts")[0]["command"]),
        "llama-cli -m /models/tiny-q4_0.gguf --api-key ***"
    );
}

#[test]
fn ops_say_what_they_are() {
    let place = Place::new();
    succeeded(&place.add(&[&place.trace("run.pfi", &run("a", 0, 3))]));
    let tensors = place.rows("tensors");
    let tensor = |id: i64| tensors.iter().find(|t| long(&t["tensor"]) == id).unwrap();
    let ops = place.rows("ops");
    let of = |call: i64, thread: i64| {
        let own = |o: &&BTreeMap<String, Field>| long(&o["call"]) == call && long(&o["thread"]) == thread;
        ops.iter().filter(own).collect::<Vec<_>>()
    };
    let [zero, one] = [of(3, 0), of(3, 1)];
    assert_eq!(zero.len(), one.len());
    for (position, (a, b)) in zero.iter().zip(&one).enumerate() {
        assert_eq!((long(&a["node"]), long(&a["dur_ns"])), (position as i64, 1002 + 1037 * position as i64));
        // The threads begin an op together, and the slower one ends it.
        assert_eq!((long(&a["start_ns"]), &a["tensor"]), (long(&b["start_ns"]), &b["tensor"]));
        assert_eq!(long(&b["dur_ns"]) - long(&a["dur_ns"]), 5);
    }
    let found = zero.iter().find(|o| str(&o["name"]) == "Kcur-{L}" && o["layer"] == Field::Int(1)).unwrap();
    let result = tensor(long(&found["tensor"]));
    assert_eq!(
        (str(&result["name"]), str(&result["op"]), str(&result["type"])),
        ("Kcur-1", "MUL_MAT", "f32")
    );
    assert_eq!([long(&result["ne0"]), long(&result["op_flops"])], [32, 4096]);
    let Field::ListInternal(sources) = &result["sources"] else { panic!("{:?}", result["sources"]) };
    let weight = tensor(long(&sources.elements()[0]));
    assert_eq!((str(&weight["name"]), &weight["leaf"]), ("blk.1.attn_k.weight", &Field::Bool(true)));
    // Ops outside the layers have none; that is not layer 0.
    assert!(
        zero.iter().any(|o| o["layer"] == Field::Null) && zero.iter().any(|o| o["layer"] == Field::Int(0))
    );
}

#[test]
fn what_is_not_known_is_null() {
    let place = Place::new();
    let mut s = Synth::new(Vec::new(), Spec { structure: false, widths: false, ..Spec::default() });
    s.call(1, |_, _| 1000);
    let trace = place.trace("run.pfi", &s.enc.finish(&footer("signal")).unwrap());
    succeeded(&place.add(&[&trace]));
    for op in place.rows("ops") {
        for column in ["phase", "layer", "op", "name", "cpu"] {
            assert_eq!(op[column], Field::Null, "{column}");
        }
        assert!(long(&op["dur_ns"]) > 0);
    }
    let [run] = place.rows("runs").try_into().unwrap();
    for column in
        ["model", "quantisation", "weight_bytes", "decode_tokens", "decode_j_per_token", "major_faults"]
    {
        assert_eq!(run[column], Field::Null, "{column}");
    }
    assert!(place.rows("offcpu").is_empty() && place.rows("experts").is_empty());
}

#[test]
fn a_trace_of_several_processes_is_one_run() {
    let place = Place::new();
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.call(8, |_, _| 1000);
    (0..4).for_each(|_| s.call(1, |_, _| 1000));
    s.process(PID + 7);
    (0..3).for_each(|_| s.call(1, |_, _| 2000));
    let trace = place.trace("run.pfi", &s.enc.finish(&footer("signal")).unwrap());
    succeeded(&place.add(&[&trace]));
    let [run] = place.rows("runs").try_into().unwrap();
    // As in `report`, its figures are of the busiest one.
    assert_eq!([long(&run["contexts"]), long(&run["pid"]), long(&run["decode_tokens"])], [2, PID.into(), 4]);
    let of = |table: &str, column: &str| {
        let mut sums: BTreeMap<i64, i64> = BTreeMap::new();
        for row in place.rows(table) {
            *sums.entry(long(&row["pid"])).or_default() +=
                if column.is_empty() { 1 } else { long(&row[column]) };
        }
        sums.into_values().collect::<Vec<_>>()
    };
    assert_eq!((of("contexts", "calls"), of("calls", "")), (vec![5, 3], vec![5, 3]));
    assert_eq!((of("threads", "op_ns"), of("threads", "slices")), (of("ops", "dur_ns"), of("ops", "")));
}

#[test]
fn several_may_write_at_a_time() {
    let place = Place::new();
    let traces: Vec<PathBuf> =
        (0..8).map(|i| place.trace(&format!("{i}.pfi"), &run("a", i, 20 + i))).collect();
    let running: Vec<_> = traces.iter().map(|t| place.command(&[t]).spawn().unwrap()).collect();
    for mut export in running {
        assert!(export.wait().unwrap().success());
    }
    assert_eq!(place.rows("runs").len(), traces.len());
    assert!(place.files().keys().all(|name| !name.contains(".tmp")));
}

#[test]
fn a_run_is_there_once_and_leaves_others_alone() {
    let place = Place::new();
    let [one, two] = [place.trace("1.pfi", &run("a", 0, 3)), place.trace("2.pfi", &run("b", 1, 4))];
    succeeded(&place.add(&[&one]));
    let first = place.files();
    assert_eq!(succeeded(&place.add(&[&one, &two])).lines().count(), 2);
    let both = place.files();
    assert!(first.iter().all(|(name, bytes)| both.get(name) == Some(bytes)), "a file has changed");
    assert_eq!(place.rows("runs").len(), 2);
    // A copy with another name is the same run.
    fs::copy(&one, place.at("copy.pfi")).unwrap();
    succeeded(&place.add(&[&place.at("copy.pfi")]));
    assert_eq!((place.rows("runs").len(), place.files().len()), (2, both.len()));
    // What is left of a killed export is in nobody's way.
    assert!(both.keys().all(|name| !name.contains(".tmp")));
}

#[test]
fn a_trace_that_is_damaged_is_added_as_far_as_it_goes() {
    let place = Place::new();
    let whole = run("a", 0, 4000);
    let cut = place.trace("cut.pfi", &whole[..whole.len() - 1]);
    let out = place.add(&[&cut]);
    assert_eq!(out.status.code(), Some(0), "{}", text(&out.stderr));
    assert!(matches!(place.rows("runs")[0]["complete"], Field::Bool(false)));
    // One that is no trace stops none of the others.
    let (other, whole) = (place.trace("x.pfi", b"not a trace"), place.trace("whole.pfi", &whole));
    let out = place.add(&[&other, &whole]);
    refused(&out, 1, "1 of 2 traces were left out");
    assert_eq!(place.rows("runs").len(), 2);
    refused(&place.add(&[&other]), 1, "cannot export");
}

#[test]
fn a_data_set_that_cannot_be_written_to_stays_as_it_is() {
    let place = Place::new();
    let [one, two] = [place.trace("1.pfi", &run("a", 0, 3)), place.trace("2.pfi", &run("b", 1, 2000))];
    succeeded(&place.add(&[&one]));
    let before = place.files();
    // As on a full disk, in the middle of the largest table.
    let mut limited = place.command(&[&two]);
    // SAFETY: between fork and exec only setrlimit is called.
    unsafe {
        limited.pre_exec(|| {
            let limit = libc::rlimit { rlim_cur: 100_000, rlim_max: 100_000 };
            match libc::setrlimit(libc::RLIMIT_FSIZE, &raw const limit) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        })
    };
    refused(&limited.output().unwrap(), 1, "cannot write");
    assert_eq!(place.files(), before);
    assert!(!place.set().join("runs/date=2026-03-03").exists(), "directories of nothing");

    fs::write(place.set().join("_schema.json"), r#"{"format": "profinfer dataset", "version": 99}"#).unwrap();
    let before = place.files();
    refused(&place.add(&[&two]), 1, "its tables have version 99, this program writes version 1");
    assert_eq!(place.files(), before);

    fs::write(place.set().join("_schema.json"), "{}").unwrap();
    refused(&place.add(&[&two]), 1, "is not that of a data set");
    fs::remove_file(place.set().join("_schema.json")).unwrap();
    refused(&place.add(&[&two]), 1, "has other files and is no data set");
    fs::remove_dir_all(place.set()).unwrap();
    fs::write(place.set(), "a file").unwrap();
    refused(&place.add(&[&two]), 1, "cannot");
}

#[test]
fn flags_that_do_not_go_together_are_refused() {
    let place = Place::new();
    let trace = place.trace("run.pfi", &run("a", 0, 3));
    for flags in [&["--tokens", "1"][..], &["--csv", "ops"], &["--perfetto", "x"]] {
        let out = place.command(&[&trace]).args(flags).output().unwrap();
        refused(&out, 2, "--parquet");
    }
    let out = Command::new(env!("CARGO_BIN_EXE_profinfer"))
        .args(["export", "--folded", "-"])
        .args([&trace, &trace])
        .output();
    refused(&out.unwrap(), 2, "only --parquet takes several traces");
    refused(&place.add(&[]), 2, "FILE... is required");
    refused(
        &place.add(&[Path::new("-"), Path::new("-")]),
        2,
        "standard input can be used for one trace only",
    );
    assert!(!place.set().exists());
    let empty = Synth::new(Vec::new(), Spec::default()).enc.finish(&footer("signal")).unwrap();
    refused(&place.add(&[&place.trace("empty.pfi", &empty)]), 1, "it has no engine call, graph or op");
    assert!(!place.set().exists());
}
