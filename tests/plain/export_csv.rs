//! `profinfer export --csv ops`: a row per op slice of the trace, with the times of the timeline and the report.

use crate::common::timeline::{Files, files, profinfer, text};
use crate::synth_trace;

use std::collections::HashMap;
use std::path::Path;

use pfi::record::*;
use synth_trace::causes::{sampler_call, sampling};
use synth_trace::*;

const COLUMNS: &str = "pid,context,call,phase,token,graph,layer,op,name,thread,tid,cpu,start_ns,end_ns,wait_ns,bytes,flops,types";

fn run(spec: Spec) -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), spec);
    s.cpu = |graph, p, ith| (p % 5 != 4).then_some(ith + ((graph + p as u64) % 3) as u16);
    s.ubatches(&[4, 3], |p, t| 2000 + 10 * p as u64 + 5 * u64::from(t));
    for i in 0..5 {
        s.call(1, |p, t| 1000 + 1037 * p as u64 + 5 * u64::from(t) + i);
    }
    s.enc.finish(&footer("target exited")).unwrap()
}

/// Rows of RFC 4180.
fn parsed(csv: &str) -> Vec<Vec<String>> {
    let (mut rows, mut row, mut cell) = (Vec::new(), Vec::new(), String::new());
    let mut chars = csv.chars().peekable();
    let mut quoted = false;
    while let Some(c) = chars.next() {
        match c {
            '"' if quoted && chars.next_if_eq(&'"').is_some() => cell.push('"'),
            '"' if quoted => {
                quoted = false;
                assert!(matches!(chars.peek(), Some(',' | '\r')), "text after a quote");
            }
            '"' => {
                assert!(cell.is_empty(), "a quote within a cell: {cell}");
                quoted = true;
            }
            ',' if !quoted => row.push(std::mem::take(&mut cell)),
            '\r' if !quoted => {
                assert_eq!(chars.next(), Some('\n'));
                row.push(std::mem::take(&mut cell));
                rows.push(std::mem::take(&mut row));
            }
            '\n' => panic!("a line that does not end in CR LF"),
            c => cell.push(c),
        }
    }
    assert!(row.is_empty() && cell.is_empty(), "the last row does not end");
    rows
}

/// The rows without the heading, by column.
fn table(files: &Files, flags: &[&str]) -> Vec<HashMap<String, String>> {
    let out = profinfer(&[&["export", "--csv", "ops", &files.trace], flags].concat());
    assert_eq!((text(&out.stderr), out.status.code()), (String::new(), Some(0)));
    let csv = text(&out.stdout);
    assert_eq!(csv.split("\r\n").next(), Some(COLUMNS));
    let rows = parsed(&csv);
    let names = &rows[0];
    assert!(rows.iter().all(|r| r.len() == names.len()));
    rows[1..].iter().map(|r| names.iter().cloned().zip(r.iter().cloned()).collect()).collect()
}

fn number(row: &HashMap<String, String>, column: &str) -> u64 {
    row[column].parse().unwrap_or_else(|_| panic!("{column}: {:?}", row[column]))
}

#[test]
fn rows_are_the_slices_of_the_trace() {
    for (barrier, threads) in [(true, 2), (false, 3)] {
        let files = files(&run(Spec { barrier, threads, ..Spec::default() }));
        let report = files.report();
        let rows = table(&files, &[]);
        assert_eq!(rows.len() as u64, report["quality"]["hits"]["slices"].as_u64().unwrap());
        for phase in report["phases"].as_array().unwrap() {
            for cpu in phase["by_cpu"]["cpus"].as_array().unwrap() {
                let own = rows.iter().filter(|r| r["phase"] == phase["phase"].as_str().unwrap());
                let number = cpu["cpu"].as_u64().map_or(String::new(), |n| n.to_string());
                let own = own.filter(|r| r["cpu"] == number);
                assert_eq!(own.count() as u64, cpu["ops"].as_u64().unwrap());
            }
            for thread in phase["by_thread"].as_array().unwrap() {
                let own = rows
                    .iter()
                    .filter(|r| r["phase"] == phase["phase"].as_str().unwrap())
                    .filter(|r| number(r, "thread") == thread["ith"]);
                let own: Vec<_> = own.collect();
                assert_eq!(own.len() as u64, thread["slices"].as_u64().unwrap());
                let busy: u64 = own.iter().map(|r| number(r, "end_ns") - number(r, "start_ns")).sum();
                assert_eq!(busy, thread["op_ns"].as_u64().unwrap());
                let known = own.iter().filter(|r| !r["wait_ns"].is_empty());
                match thread["wait_ns"].as_u64() {
                    Some(wait) => assert_eq!(known.map(|r| number(r, "wait_ns")).sum::<u64>(), wait),
                    // In interval mode the wait is a part of the op, and not known.
                    None => assert_eq!(known.count(), 0),
                }
            }
        }
    }
}

#[test]
fn cells_say_what_an_op_is() {
    let files = files(&run(Spec::default()));
    let rows = table(&files, &[]);
    let of = |name: &str, token: u64, thread: u64| {
        let found = rows.iter().filter(|r| r["name"] == name && number(r, "thread") == thread);
        found.filter(|r| number(r, "token") == token).collect::<Vec<_>>()
    };
    // The first call has two ubatches.
    assert_eq!(
        [of("Kcur-1", 0, 0).len(), of("Kcur-1", 3, 1).len()],
        [2 * of("Kcur-1", 1, 0).len(), of("Kcur-1", 3, 0).len()]
    );
    let row = of("Kcur-1", 3, 1).into_iter().find(|r| r["op"] == "MUL_MAT").unwrap();
    let cell = |column: &str| row[column].as_str();
    assert_eq!((cell("pid"), cell("context")), ("4242", ""));
    assert_eq!(
        (cell("call"), cell("phase"), cell("layer"), cell("op")),
        ("llama_decode", "decode", "1", "MUL_MAT")
    );
    assert_eq!(cell("tid"), (TID + 1).to_string());
    assert_eq!((cell("types"), cell("flops")), ("f32[32] = q4_0[64,32], f32[64]", "4096"));
    assert_eq!(number(row, "bytes"), 32 * 2 * 18 + 64 * 4 + 32 * 4);
    // Ops outside the layers have none; that is not layer 0.
    assert!(rows.iter().any(|r| r["layer"].is_empty()) && rows.iter().any(|r| r["layer"] == "0"));
}

#[test]
fn what_is_not_known_is_empty() {
    // No tensors, no widths.
    let files = files(&run(Spec { structure: false, widths: false, ..Spec::default() }));
    for row in table(&files, &[]) {
        for column in ["phase", "layer", "op", "name", "bytes", "flops", "types"] {
            assert_eq!(row[column], "", "{column}");
        }
        assert!(!row["start_ns"].is_empty() && !row["end_ns"].is_empty());
    }
}

#[test]
fn parts_and_files() {
    let files = files(&run(Spec::default()));
    let all = table(&files, &[]);
    let part = table(&files, &["--tokens", "2..3", "--pid", "4242"]);
    let wanted: Vec<_> = all.into_iter().filter(|r| ["2", "3"].contains(&r["token"].as_str())).collect();
    assert_eq!(part, wanted);
    let out = profinfer(&["export", "--csv", "ops", "-o", &files.out, &files.trace]);
    assert!(out.status.success() && out.stdout.is_empty());
    let stdout = profinfer(&["export", "--csv", "ops", "-o", "-", &files.trace]).stdout;
    assert_eq!(std::fs::read(&files.out).unwrap(), stdout);

    let refused = |args: &[&str], code: i32, why: &str| {
        let out = profinfer(&[&["export"], args].concat());
        let err = text(&out.stderr);
        assert_eq!((out.status.code(), err.lines().count()), (Some(code), 1), "{err}");
        assert!(err.contains(why), "{err}");
    };
    refused(&["--csv", "tokens", &files.trace], 2, "ops");
    refused(&["-o", "x", &files.trace], 2, "--csv");
    refused(&["--csv", "ops", "-o", &files.out, &files.trace], 1, "use --force to replace it");
    let empty = Synth::new(Vec::new(), Spec::default()).enc.finish(&footer("signal")).unwrap();
    std::fs::write(&files.trace, empty).unwrap();
    std::fs::remove_file(&files.out).unwrap();
    refused(&["--csv", "ops", "-o", &files.out, &files.trace], 1, "no op begins in the selected range");
    assert!(!Path::new(&files.out).exists());
    refused(&["--csv", "ops", &files.trace], 1, "no op begins in the selected range");
    refused(&["--csv", "samplers", &files.trace], 1, "they are recorded with --phases");
}

#[test]
fn samplers_have_a_row_each_call() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    s.call(1, |_, _| 1000);
    let now = s.now;
    sampling(&mut s, now, 500);
    s.enc.sampler_call(&sampler_call(9, s.now + 400, (7, 9))).unwrap();
    let files = files(&s.enc.finish(&footer("target exited")).unwrap());
    let out = profinfer(&["export", "--csv", "samplers", &files.trace]);
    assert_eq!((text(&out.stderr), out.status.code()), (String::new(), Some(0)));
    let rows = parsed(&text(&out.stdout));
    assert_eq!(rows[0], ["pid", "tid", "sampler", "does", "start_ns", "end_ns", "own_ns"]);
    let told: Vec<_> = rows[1..].iter().map(|r| [&*r[2], &*r[3], &*r[6]]).collect();
    let want = [
        ["top-k", "apply", "100"],
        ["dist", "apply", "150"],
        ["chain", "apply", "50"],
        ["top-k", "accept", "40"],
        ["", "apply", "0"],
    ];
    assert_eq!(told, want);
    let number = |row: usize, column: usize| rows[row][column].parse::<u64>().expect("a number");
    assert_eq!((number(3, 5) - number(3, 4), number(1, 4) - number(3, 4)), (300, 10));
}

/// Names chosen by a model are data: quoted, on one line, and not a spreadsheet's formula.
#[test]
fn odd_names_stay_in_their_cell() {
    for (name, cell) in
        [("a,\"b\" \u{2028}c", "a,\"b\" \\u{2028}c"), ("=1+1,2", "'=1+1,2"), ("@x\"", "'@x\"")]
    {
        let mut e = pfi::Encoder::new(Vec::new(), pfi::EncoderConfig::default(), &header(true)).unwrap();
        e.op_def(1, "ADD", "ADD");
        let desc = pfi::TensorDesc {
            pid: PID,
            addr: 1,
            known: true,
            op: 1,
            ty: 0,
            flags: 0,
            name: name.as_bytes(),
            ne: [4, 1, 1, 1],
            nb: None,
            src: &[],
            view_src: None,
        };
        let tensor = e.tensor(&desc).unwrap();
        let plan = e.plan(PID, 1, &[pfi::PlanHit { tensor, fused: None }]).unwrap();
        // The graph's own record is lost: what it says is not known.
        let run = pfi::SliceRun { graph: 7, ith: 0, tid: TID, plan, first: 0, barrier: true };
        e.slices(&run, &[pfi::Slice { start: ORIGIN + 10, end: Some(ORIGIN + 110) }]).unwrap();
        e.process(&Process { pid: PID, engine: 0, exe: "x", cmdline: "x" }).unwrap();
        let files = files(&e.finish(&footer("signal")).unwrap());
        let rows = table(&files, &[]);
        let [row] = rows.as_slice() else { panic!("{rows:?}") };
        assert_eq!(row["name"], cell);
        for column in ["context", "call", "phase", "token", "wait_ns", "bytes", "flops"] {
            assert_eq!(row[column], "", "{column}");
        }
        assert_eq!((row["pid"].as_str(), row["graph"].as_str()), ("4242", "7"));
    }
}
