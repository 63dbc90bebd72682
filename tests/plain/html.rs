//! `profinfer html`: every section is present or says why not, names are data, nothing is fetched, and the page
//! stays small for runs of any length.

use crate::dag_support;
use crate::html_support;
use crate::synth_trace;

use std::os::unix::ffi::OsStringExt;
use std::process::Command;

use dag_support::{LLAMA, Made, Model};
use html_support::*;
use pfi::record::*;
use pfi::{Encoder, EncoderConfig};
use proptest::prelude::*;
use render::html::{SCRIPT, SCRIPT_HASH, STYLE, STYLE_HASH};
use serde_json::Value;
use synth_trace::*;

const SECTIONS: [&str; 10] =
    ["summary", "phases", "tokens", "graph", "flame", "ops", "roof", "threads", "experts", "trust"];
/// 3 MB.
const MOST: usize = 3_000_000;

/// The inside of a section.
fn section<'p>(page: &'p str, id: &str) -> &'p str {
    let from = page.find(&format!("<section id=\"{id}\"")).unwrap_or_else(|| panic!("no section {id}"));
    let rest = &page[from..];
    &rest[..rest.find("</section>").unwrap()]
}

fn gaps(section: &str) -> Vec<&str> {
    section.split("<p class=\"gap\">").skip(1).filter_map(|rest| rest.split("</p>").next()).collect()
}

/// An element's name and its text.
type Tag<'p> = (&'p str, &'p str);

/// All start tags, in order; every element is closed by its own name and every attribute is quoted.
fn tags(page: &str) -> Vec<Tag<'_>> {
    const NEVER_CLOSED: [&str; 2] = ["!DOCTYPE", "meta"];
    let (mut all, mut open) = (Vec::new(), Vec::new());
    let mut rest = page;
    while let Some(at) = rest.find('<') {
        let end = rest[at..].find('>').unwrap_or_else(|| panic!("without end: {:.80}", &rest[at..])) + at;
        let tag = &rest[at + 1..end];
        rest = &rest[end + 1..];
        if let Some(name) = tag.strip_prefix('/') {
            assert_eq!(open.pop(), Some(name), "{:.80}", rest);
            continue;
        }
        let name = tag.split([' ', '\n', '/']).next().unwrap();
        assert_eq!(tag.matches('"').count() % 2, 0, "{tag}");
        all.push((name, tag));
        if matches!(name, "script" | "style") {
            let close = rest.find(&format!("</{name}>")).unwrap();
            rest = &rest[close + name.len() + 3..];
        } else if !tag.ends_with('/') && !NEVER_CLOSED.contains(&name) {
            open.push(name);
        }
    }
    assert!(open.is_empty(), "{open:?}");
    all
}

/// Every section has contents; the page fetches nothing, and contains no script but ours.
pub(crate) fn check(page: &str) {
    for id in SECTIONS {
        assert!(section(page, id).len() > 120, "{id} is empty");
    }
    safe(page);
}

/// The page fetches nothing, and contains no script but ours.
fn safe(page: &str) {
    for (name, tag) in tags(page) {
        let fetches = ["link", "img", "iframe", "object", "embed", "base", "form", "image", "use"];
        assert!(!fetches.contains(&name), "{tag}");
        for attribute in [" src=", " srcset=", " action=", " style=", " on", " xlink:"] {
            let outside: String = tag.split('"').step_by(2).collect();
            assert!(!outside.contains(attribute), "{tag}");
        }
        for link in tag.split(" href=\"").skip(1) {
            assert!(link.starts_with('#'), "{tag}");
        }
        for url in tag.split("url(").skip(1) {
            assert!(url.starts_with('#'), "{tag}");
        }
    }
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script").count(), 2);
    let policy = page.split("http-equiv=\"Content-Security-Policy\" content=\"").nth(1).unwrap();
    assert!(policy.starts_with("default-src 'none'; "), "{policy:.80}");
    let bad = |c: char| c != '\n' && (c.is_control() || matches!(c, '\u{202e}' | '\u{2028}' | '\u{2029}'));
    assert!(!page.contains(bad), "a character that hides or breaks");
    data(page);
    assert!(page.len() <= MOST, "{}", page.len());
}

fn data(page: &str) -> Value {
    let block = page.split("<script type=\"application/json\" id=\"data\">").nth(1).unwrap();
    serde_json::from_str(block.split("</script>").next().unwrap()).unwrap()
}

#[test]
fn a_page_has_every_section() {
    let page = page(&rich(200), &["--peak", "100,10"]);
    check(&page);
    for id in SECTIONS {
        assert_eq!(gaps(section(&page, id)), [""; 0], "{id}");
    }
    for chart in [
        "tokens-decode",
        "dag",
        "roofline-chart",
        "threads-chart",
        "experts-chart",
        "activation-chart",
        "growth-chart",
        "products-chart",
        "reuse-chart",
    ] {
        assert!(page.contains(&format!("id=\"{chart}\"")), "{chart}");
    }
    let summary = section(&page, "summary");
    assert!(summary.contains(" tok/s; p50 ") && summary.contains("The recording is complete."), "{summary}");
    assert!(summary.contains(" slower as the context grows.") && summary.contains("ROPE"), "{summary}");
    let data = data(&page);
    let boxes = page.matches("<g class=\"n\">").count();
    assert!(boxes > 10);
    let metrics = data["metrics"].as_array().unwrap();
    assert_eq!(metrics.len(), 10);
    for metric in metrics {
        assert_eq!(metric["text"].as_array().unwrap().len(), boxes);
        assert_eq!(metric["fill"].as_array().unwrap().len(), 2 * boxes);
    }
    // Four layers are shown as one.
    assert!(section(&page, "graph").contains("layers 0-3 (4 identical)"));
}

#[test]
fn what_was_recorded_beside_ops_is_on_the_page_and_what_was_not_is_told() {
    let rich = page(&rich(200), &[]);
    for (id, parts) in [
        ("phases", &["<summary>Energy</summary>", "<th scope=\"row\">soc</th>"][..]),
        ("ops", &["Counters, decode, all threads", "l3d_cache_refill", "GB/s"]),
        ("threads", &["Thread time by cause, decode", "preempted %", "CPU interference", "hostile=1"]),
        ("experts", &["Experts chosen token by token, decode: 4 layers of 200 tokens", "Expert reuse"]),
    ] {
        for part in parts {
            assert!(section(&rich, id).contains(part), "{id}: {part}");
        }
    }
    assert!(!section(&rich, "trust").contains("Not recorded, so not on this page"));
    let bare = page(&dag_support::run(LLAMA, 5), &[]);
    let trust = section(&bare, "trust");
    for flag in ["counters (--pmc)", "CPU interference (--sched)", "temperatures (--sensors)"] {
        assert!(trust.contains(flag), "{flag}: {trust}");
    }
    assert!(!section(&bare, "ops").contains("Counters") && !section(&bare, "phases").contains("Energy"));
}

#[test]
fn figures_are_those_of_the_report() {
    let trace = rich(20);
    let page = page(&trace, &[]);
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("run.pfi"), &trace).unwrap();
    let report = profinfer(dir.path(), &["report", "--json", "run.pfi"]);
    let report: Value = serde_json::from_slice(&report.stdout).unwrap();
    let decode = report["phases"].as_array().unwrap().iter().find(|p| p["phase"] == "decode").unwrap();
    let rate = decode["tokens_per_s"].as_f64().unwrap();
    assert!(section(&page, "summary").contains(&format!("<dd>{rate:.2} tok/s; ")), "{rate}");
    // The verdict is the report's, and its bar adds up to 100.
    let verdict = &report["verdict"];
    let limit = verdict["limit"]["text"].as_str().unwrap();
    assert!(section(&page, "summary").contains(limit), "{limit}");
    for advice in verdict["advice"].as_array().unwrap() {
        assert!(section(&page, "summary").contains(advice["title"].as_str().unwrap()), "{advice}");
    }
    let bar =
        section(&page, "summary").split("id=\"time-bar\"").nth(1).unwrap().split("</svg>").next().unwrap();
    let widths = bar.split(" width=\"").skip(1).map(|rest| rest.split('"').next().unwrap());
    assert_eq!(widths.map(|n| n.parse::<u32>().unwrap()).sum::<u32>(), 100, "{bar}");
    for row in decode["by_name"].as_array().unwrap() {
        let ms = format!("{:.3}</td>", row["total_ns"].as_f64().unwrap() / 1e6);
        let name = format!("<th scope=\"row\">{}</th>", row["name"].as_str().unwrap());
        let line =
            section(&page, "ops").lines().find(|l| l.contains(&name)).unwrap_or_else(|| panic!("{name}"));
        assert!(line.contains(&ms), "{line} {ms}");
    }
    // Without peaks and without ops that read enough, no roofline is drawn.
    assert!(gaps(section(&page, "roof"))[0].starts_with("No roof is known"));
}

#[test]
fn waits_are_told_first_where_they_take_the_most() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    (0..6).for_each(|_| s.call(1, |_, t| 1000 + 9000 * u64::from(t)));
    let page = page(&s.enc.finish(&footer("target exited")).unwrap(), &[]);
    let verdict = section(&page, "summary").split("<p class=\"more\">").nth(1).unwrap();
    let at = |what: &str| verdict.find(what).unwrap_or_else(|| panic!("{what}: {verdict:.400}"));
    assert!(at("Thread 0 waits at barriers for 8") < at("takes"), "{verdict:.400}");
}

/// The page of a small run, except style, script and version, compared with tests/snapshots; UPDATE_SNAPSHOTS=1
/// writes it instead.
#[test]
fn the_page_is_as_it_was() {
    let mut got = page(&growing(Spec { layers: 1, ..Spec::default() }), &["--peak", "100,10"]);
    for (own, name) in [(STYLE, "STYLE"), (SCRIPT, "SCRIPT"), (STYLE_HASH, "HASH"), (SCRIPT_HASH, "HASH")] {
        got = got.replace(own, name);
    }
    got = got
        .replace(&format!("content=\"profinfer {}\"", profinfer::VERSION), "content=\"profinfer VERSION\"");
    let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/snapshots/page.html");
    if std::env::var_os("UPDATE_SNAPSHOTS").is_some() {
        std::fs::write(&path, &got).unwrap();
    }
    let want = std::fs::read_to_string(&path).unwrap();
    let differs = got.lines().zip(want.lines()).find(|(got, want)| got != want);
    assert!(got == want, "the page changed; if it should, run again with UPDATE_SNAPSHOTS=1: {differs:#?}");
}

#[test]
fn a_long_run_is_thinned() {
    let page = page(&calls(100_000), &[]);
    check(&page);
    assert!(page.len() < 300_000, "{}", page.len());
    let chart = section(&page, "tokens");
    // The one slow call is still at the end of a line.
    assert!(chart.contains("99999 calls: median 9.05 us, from 9.00 us to 19.00 us"), "{chart:.600}");
    assert!(chart.contains("Each dot is the median of 417 calls"), "{chart:.600}");
    assert!(chart.contains("<td class=\"r\">0.019</td>"));
}

#[test]
fn what_was_not_recorded_is_said_where_it_would_be() {
    let no_structure = page(&dag_support::run(Model { structure: false, ..LLAMA }, 5), &[]);
    check(&no_structure);
    let gap = gaps(section(&no_structure, "graph"));
    assert!(gap[0].contains("recorded without structure (--no-str)"), "{gap:?}");
    let at_token = page(&calls(9), &[]);
    check(&at_token);
    for (id, want) in [
        ("phases", "record with --phases"),
        ("graph", "no graph whose nodes are known"),
        ("ops", "profinfer record --level op"),
        ("roof", "no ops were recorded (record --level op)"),
        ("threads", "No decode ops were recorded"),
        ("experts", "No experts"),
    ] {
        let gap = gaps(section(&at_token, id));
        assert!(gap.iter().any(|g| g.contains(want)), "{id}: {gap:?}");
    }
    assert!(gaps(section(&at_token, "tokens"))[0].contains("no complete call has recorded ops"));
    let interval = page(&growing(Spec { barrier: false, ..Spec::default() }), &[]);
    assert!(section(&interval, "threads").contains("the barrier was not probed"));
    assert!(section(&interval, "experts").contains("No experts"));
    let unread = page(&growing(Spec { experts: true, ..Spec::default() }), &[]);
    assert!(gaps(section(&unread, "experts"))[0].contains("has 8 experts; their choices were not recorded"));
    let nothing = Encoder::new(Vec::new(), EncoderConfig::default(), &header(true)).unwrap();
    let nothing = page(&nothing.finish(&footer("target exited")).unwrap(), &[]);
    check(&nothing);
    assert!(section(&nothing, "summary").contains("The recording has no engine calls"));
    for id in ["tokens", "graph", "ops", "roof", "threads", "experts"] {
        assert_eq!(gaps(section(&nothing, id)).len(), 1, "{id}");
    }
}

fn growing(spec: Spec) -> Vec<u8> {
    let mut s = Synth::new(Vec::new(), spec);
    for i in 0..6 {
        s.call(1, |p, t| 2000 + 10 * p as u64 + u64::from(t) + i);
    }
    s.enc.finish(&footer("target exited")).unwrap()
}

#[test]
fn a_recording_that_was_cut_off_says_so() {
    let config = EncoderConfig { block_bytes: 4096, seal_ns: 0, ..EncoderConfig::default() };
    let mut s = Synth::with(Vec::new(), Spec::default(), &Origin::default(), config);
    (0..40).for_each(|_| s.call(1, |_, _| 1000));
    let trace = s.enc.finish(&footer("target exited")).unwrap();
    let cut = page(&trace[..trace.len() * 2 / 3], &[]);
    check(&cut);
    assert!(section(&cut, "summary").contains("NOT complete: did not end cleanly"));
    assert!(section(&cut, "trust").contains("<p class=\"bad\">NOT complete"));
}

#[test]
fn changes_of_the_level_are_told() {
    let mut s = Synth::new(Vec::new(), Spec::default());
    let change = |t: u64, to| LevelChange {
        t: t as i64,
        to,
        one_in: 1,
        predicted_ppm: None,
        measured_ppm: None,
        why: "the budget",
    };
    s.call(1, |_, _| 1000);
    s.enc.level_change(&change(s.now - 1, Detail::Graph)).unwrap();
    s.call(1, |_, _| 1000);
    let page = page(&s.enc.finish(&footer("target exited")).unwrap(), &[]);
    assert!(
        section(&page, "ops").contains("The recording level changed 1 time during these calls"),
        "{page}"
    );
}

#[test]
fn one_process_of_several_and_some_of_the_calls() {
    let mut first = Made::new(LLAMA);
    (0..5).for_each(|_| first.batch(1, 0));
    let mut second = Made::with(Model { pid: 78, biases: true, ..LLAMA }, "", first.enc, 5);
    (0..3).for_each(|_| second.batch(1, 0));
    let trace = second.finish();
    let most = page(&trace, &[]);
    check(&most);
    assert!(section(&most, "summary").contains("this page shows process 77. --pid selects another: 78."));
    assert!(section(&most, "graph").contains("process 77, decode: 5 graphs"));
    assert!(section(&most, "trust").contains("These figures are for the complete recording"));
    let other = page(&trace, &["--pid", "78"]);
    assert!(section(&other, "graph").contains("process 78, decode: 3 graphs"));
    assert!(section(&other, "phases").contains("<th scope=\"row\">decode</th><td class=\"r\">3</td>"));
    let some = page(&rich(40), &["--tokens", "11..30"]);
    check(&some);
    assert!(section(&some, "summary").contains("Only calls 11 to 30 are included"));
    assert!(section(&some, "graph").contains("decode: 20 graphs"));
    assert!(section(&some, "tokens").contains("20 calls: "));
    assert!(!section(&some, "ops").contains("Operators, prefill"));
    // Hit cost and losses refer to the full recording, and that is complete.
    assert!(section(&some, "summary").contains("The recording is complete"));
}

#[test]
fn names_are_data() {
    let h = Header { host: NASTY, cpu_model: NASTY, command: NASTY, ..header(true) };
    let mut enc = Encoder::new(Vec::new(), EncoderConfig::default(), &h).unwrap();
    enc.notice(&Notice { t: ORIGIN as i64, text: NASTY }).unwrap();
    enc.feature(&causes::feature(NASTY, Availability::None, NASTY)).unwrap();
    let mut made = Made::with(LLAMA, NASTY, enc, 0);
    made.enc.process(&Process { pid: made.model.pid, engine: 0, exe: NASTY, cmdline: NASTY }).unwrap();
    made.batch(2, 0);
    made.batch(1, 0);
    let trace = made.finish();
    let dir = tempfile::tempdir().unwrap();
    // The name of a file is data as well, and need not be UTF-8.
    let name: std::ffi::OsString = OsStringExt::from_vec(b"a<script>b\xff\"&.pfi".to_vec());
    std::fs::write(dir.path().join(&name), trace).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_profinfer"));
    let out = command.current_dir(dir.path()).arg("html").arg(&name).args(["-o", "-"]).output().unwrap();
    assert!(out.status.success(), "{}", text(&out.stderr));
    let page = text(&out.stdout);
    check(&page);
    assert!(page.contains("hostile=1"), "the names are there");
    assert!(page.contains("<title>a&lt;script&gt;b\u{fffd}&quot;&amp;.pfi - profinfer</title>"));
}

#[test]
fn the_policy_knows_style_and_script() {
    for (what, inside, hash) in [("page.css", STYLE, STYLE_HASH), ("the scripts", SCRIPT, SCRIPT_HASH)] {
        assert!(!inside.contains("</") && !inside.contains("<!--"), "{what} would end its element");
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("inside"), inside).unwrap();
        let code = "import base64, hashlib; \
                    print(base64.b64encode(hashlib.sha256(open('inside', 'rb').read()).digest()).decode())";
        let out = Command::new("python3").current_dir(dir.path()).args(["-c", code]).output().unwrap();
        assert_eq!(
            hash,
            text(&out.stdout).trim(),
            "{what} changed: crates/render/src/html/mod.rs must have the new hash"
        );
    }
}

/// Reads the variable-length integers of a timeline's thread.
struct Packed(Vec<u8>, usize);

impl Packed {
    fn of(text: &str) -> Packed {
        let letters = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
        let bits: Vec<usize> = text.bytes().filter_map(|b| letters.iter().position(|l| *l == b)).collect();
        let bytes = bits.windows(2).enumerate().filter(|(i, _)| i % 4 < 3);
        Packed(bytes.map(|(i, w)| (w[0] << (2 + 2 * (i % 4)) | w[1] >> (4 - 2 * (i % 4))) as u8).collect(), 0)
    }

    fn next(&mut self) -> u64 {
        let (mut n, mut shift) = (0, 0);
        loop {
            let byte = self.0[self.1];
            self.1 += 1;
            n |= u64::from(byte & 0x7f) << shift;
            shift += 7;
            if byte < 0x80 {
                return n;
            }
        }
    }

    fn signed(&mut self) -> i64 {
        let n = self.next();
        (n >> 1) as i64 ^ -((n & 1) as i64)
    }
}

#[test]
fn a_timeline_has_every_slice_of_its_call() {
    let page = page(&rich(20), &[]);
    let timeline = &data(&page)["timeline"];
    let calls = timeline["calls"].as_array().unwrap();
    assert_eq!(calls.len(), 21, "a prompt and all tokens");
    let fifth = calls.iter().find(|c| c["seq"] == 5).unwrap();
    assert_eq!((fifth["phase"].as_str(), fifth["why"].as_str()), (Some("decode"), Some("")));
    let rows = fifth["rows"].as_array().unwrap();
    assert_eq!(rows.len(), 2);
    for (ith, row) in rows.iter().enumerate() {
        assert_eq!((row["ith"].as_u64(), row["known"].as_bool()), (Some(ith as u64), Some(true)));
        let mut packed = Packed::of(row["data"].as_str().unwrap());
        let (mut op, mut last, mut slices) = (0, 0, 0);
        for _ in 0..packed.next() {
            for position in 0..packed.next() {
                op += packed.signed();
                let start = last + packed.signed();
                let (time, wait) = (packed.next(), packed.next());
                // Call 5 is token 4: see `rich`.
                let (p, i) = (position, 4u64);
                let grown = if p == 3 { 50 * i } else { 0 };
                let busy = 2000 + 100 * p + 500 * ith as u64 + grown + (i * 31 + p * 7) % 130;
                assert_eq!(time, busy + 1, "thread {ith} op {p}");
                let op = &timeline["ops"][op as usize - 1];
                assert!(timeline["names"][op[0].as_u64().unwrap() as usize].is_string());
                last = start + busy as i64 + wait.saturating_sub(1) as i64;
                slices += 1;
            }
        }
        assert!(slices > 40 && last as u64 <= fifth["dur"].as_u64().unwrap(), "{slices} {last}");
        let off = packed.next();
        assert_eq!(off, u64::from(ith == 0), "every second token has one, on thread 0 or 1");
        for _ in 0..off {
            let (from, ns, state) = (packed.signed(), packed.next(), packed.next());
            assert!(from > 0 && (ns, state) == (500, 0), "{from} {ns} {state}");
            let who = packed.next();
            let name = timeline["who"][who as usize - 1].as_str().unwrap();
            assert!(name.contains("hostile"), "{name}");
            packed.next();
        }
        assert_eq!(packed.next(), 0, "no CPU was recorded");
        assert_eq!(packed.1, packed.0.len(), "all of the data is read");
    }
}

#[test]
fn timelines_stay_within_their_limit() {
    let trace = rich(200);
    let few = page(&trace, &["--timeline", "1000"]);
    let calls = data(&few)["timeline"]["calls"].as_array().unwrap().clone();
    assert!((5..=12).contains(&calls.len()), "{}", calls.len());
    let why: Vec<&str> = calls.iter().filter_map(|c| c["why"].as_str()).filter(|w| !w.is_empty()).collect();
    assert!(why.contains(&"slowest") && why.contains(&"median") && why.contains(&"first"), "{why:?}");
    // The pause of `rich`.
    assert_eq!(calls.iter().find(|c| c["why"] == "slowest" && c["phase"] == "decode").unwrap()["seq"], 121);
    let tokens = section(&few, "tokens");
    assert!(tokens.contains(" more are left out to keep the page small (1000 op slices"), "{tokens:.300}");
    let none = page(&trace, &["--timeline", "0"]);
    assert!(data(&none)["timeline"]["calls"].as_array().unwrap().is_empty());
    assert!(gaps(section(&none, "tokens"))[0].contains("left out with --timeline 0"));
    let whole = page(&trace, &["--peak", "100,10"]);
    assert!(whole.len() < 1_000_000, "{}", whole.len());
}

/// Any byte of a trace may change: the result is a page, or a clear error.
fn any_page(bytes: Vec<u8>) {
    use analysis::{recorded::load::LoadProgress, recorded::selection::Cut, streams::overview::overview};
    let Ok(trace) = pfi::Trace::from_bytes(bytes) else { return };
    let found = overview(&trace, &Cut::default(), &[], &LoadProgress::default()).unwrap();
    let mut page = Vec::new();
    render::html::write(&mut page, &found, "x", 100, "profinfer").unwrap();
    check(&text(&page));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn damage_makes_no_page_unreadable(at in any::<prop::sample::Index>(), bit in 0u8..8, cut in any::<prop::sample::Index>()) {
        static TRACE: std::sync::OnceLock<Vec<u8>> = std::sync::OnceLock::new();
        let mut bytes = TRACE.get_or_init(|| rich(4)).clone();
        let place = at.index(bytes.len());
        bytes[place] ^= 1 << bit;
        any_page(bytes.clone());
        bytes.truncate(cut.index(bytes.len()));
        any_page(bytes);
    }
}

/// Two traces: both verdicts, what changed as `diff` has it, and the graph in its colours.
#[test]
fn two_traces_are_compared_on_one_page() {
    let page = compared(&steady(1), &steady(3));
    safe(&page);
    let verdicts = section(&page, "verdicts");
    for part in ["A: old.pfi", "B: new.pfi", "id=\"time-bar-a\"", "id=\"time-bar-b\""] {
        assert!(verdicts.contains(part), "{part}");
    }
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("a.pfi"), steady(1)).unwrap();
    std::fs::write(dir.path().join("b.pfi"), steady(3)).unwrap();
    let diff = profinfer(dir.path(), &["diff", "a.pfi", "b.pfi", "--json"]);
    let diff: Value = serde_json::from_slice(&diff.stdout).unwrap();
    let slower = diff["ops"].as_array().unwrap().iter().find(|o| o["verdict"] == "slower").unwrap();
    let name = slower["name"].as_str().unwrap();
    let row = section(&page, "changes").lines().find(|l| l.contains(name) && l.contains("slower"));
    let change = slower["total"]["change"].as_f64().unwrap() * 100.0;
    assert!(row.unwrap().contains(&format!("<td class=\"r\">{change:+.2}</td>")), "{change} {row:?}");
    let graph = section(&page, "graph");
    assert!(graph.contains("fill=\"#b2182b\"") && graph.contains("fill=\"#f7f7f7\""), "colours");
    // The same run twice: nothing is reported, and no box has a colour.
    let same = compared(&steady(1), &steady(1));
    safe(&same);
    assert!(section(&same, "changes").contains("no change reported"));
    assert!(!section(&same, "graph").contains("fill=\"#b2182b\""));
    // Nothing to compare: the verdicts stay, with the reason.
    let empty = compared(&steady(1), &calls(9));
    safe(&empty);
    assert!(gaps(section(&empty, "changes"))[0].starts_with("The runs cannot be compared op by op: "));
}
