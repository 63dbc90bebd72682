//! Tests of the text display.

use super::*;
use ::requests::{RequestNow, RequestPhase};
use analysis::questions::report::OpTime;
use analysis::questions::verdict::bar::TimeBar;
use analysis::recorded::labels::share;
use analysis::streams::live::{LiveDevice, LiveOp, LiveThread, PhaseSpan};
use pfi::record::SensorKind;

const VIEW: TopView = TopView {
    rows: 10,
    height: None,
    order: OpOrder::Time,
    phase: ShownPhase::Busiest,
    unicode: true,
    keys: false,
    help: false,
};

fn screen(height: usize) -> TopView {
    TopView { rows: usize::MAX, height: Some(height), keys: true, ..VIEW }
}

fn op(name: &str, ns: u64) -> LiveOp {
    let share = share(ns, 5_000_000);
    let (calls, calls_per_s, ns_per_token) = (10, Some(2000.0), Some(ns as f64 / 10.0));
    LiveOp { name: name.into(), calls, total_ns: ns, share, calls_per_s, ns_per_token }
}

fn decode() -> PhaseSpan {
    let thread = |ith, op_share| LiveThread { ith, op_share, wait_share: Some(0.95 - op_share) };
    PhaseSpan {
        phase: Phase::Decode,
        calls: 10,
        cut_calls: 0,
        unseen_calls: 0,
        tokens: Some(10),
        in_call_ns: 800_000_000,
        tokens_per_s: Some(12.5),
        cpu_graphs: 10,
        graph_ns: 5_000_000,
        op_ns: 4_500_000,
        wait_ns: Some(250_000),
        gaps_ns: 250_000,
        op_time: Some(OpTime::Busy),
        bar: None,
        bar_wall: None,
        ops: vec![
            op("MUL_MAT  ffn_up-{L}", 4_000_000),
            op("ADD  a\x1b[31m", 300_000),
            op("ROPE  q", 200_000),
        ],
        threads: vec![thread(0, 0.9), thread(1, 0.85)],
        causes: None,
        graphs_share: None,
    }
}

fn process(pid: u32, shown: bool) -> ProcessSpan {
    ProcessSpan {
        pid: Some(pid),
        calls: 10,
        in_call_ns: 800_000_000,
        prefill_tokens_per_s: None,
        decode_tokens_per_s: Some(11.25),
        shown,
    }
}

#[test]
fn several_processes_stand_in_a_table() {
    let mut p = picture();
    p.processes = (0..20).map(|i| process(4700 + i, i == 15)).collect();
    let said = text(&p, &VIEW, &Style::default());
    assert!(said.contains("4700") && said.contains("4715") && !said.contains("4714"), "{said}");
    assert!(said.contains("and 12 more"), "{said}");
    let line = said.lines().find(|l| l.contains("shown")).expect("a line");
    assert_eq!(line.split_whitespace().collect::<Vec<_>>(), ["4715", "-", "11.25", "10", "shown"]);
}

fn picture() -> TopSnapshot {
    let span = |seconds, speed| LiveSpan {
        seconds,
        devices: Vec::new(),
        phases: vec![PhaseSpan { tokens_per_s: Some(speed), ..decode() }],
    };
    TopSnapshot {
        schema: 1,
        state: RecordingState::Running,
        end: None,
        target: "process 4711".into(),
        elapsed_s: 12.3,
        call: Some(CallNow { phase: Phase::Decode, seconds: 0.0321 }),
        level: "op with structure".into(),
        cost: Some(0.0071),
        budget: Some(0.01),
        own_cpu: 0.013,
        events: 123_456,
        lost: 0,
        output: Some("run.pfi".into()),
        bytes: 1_258_291,
        now: span(5.0, 12.5),
        run: span(12.3, 11.25),
        limit: None,
        faults: None,
        sensors: Vec::new(),
        speeds: Vec::new(),
        requests: Vec::new(),
        processes: vec![process(4711, true)],
        messages: vec!["level now op: the richest\x07".into()],
    }
}

#[test]
fn a_picture_looks_like_this() {
    let want = "\
profinfer top: process 4711, 12 s, output run.pfi (1.2 MiB)
now      in a decode call for 32.10 ms
decode       12.50 tok/s now     11.25 over the run   10 calls
level    op with structure, overhead 0.71 %, budget 1.00 %; own CPU 1.30 %
events   123456, none lost

Ops, decode, last 5.0 s: 90.0 % in ops, 5.0 % at barriers, 5.0 % in gaps
      %  ms/token  mean us  calls/s  op and name
  80.00    0.4000    400.0     2000  MUL_MAT  ffn_up-{L}
   6.00    0.0300     30.0     2000  ADD  a\\u{1b}[31m
   4.00    0.0200     20.0     2000  ROPE  q
Threads: % in ops + % at barriers
   0:  90.0 +  5.0   1:  85.0 + 10.0
level now op: the richest\\u{7}
";
    assert_eq!(text(&picture(), &VIEW, &Style::default()), want);
}

/// A picture of which everything is known.
fn all_known() -> TopSnapshot {
    let mut p = picture();
    let bar = TimeBar {
        computing: 0.68,
        barrier: Some(0.15),
        waiting_for_cpu: Some(0.14),
        faults: Some(0.01),
        between_calls: Some(0.02),
        ..TimeBar::default()
    };
    p.now.phases[0].bar_wall = Some(bar);
    p.now.phases[0].graphs_share = Some(0.95);
    p.limit = Some("CPU contention: threads waited for a CPU for 14 % of the threads' time".into());
    p.faults = Some(FaultRate { minor_per_s: 120.4, major_per_s: 2.0 });
    let sensor = |name: &str, kind, value| {
        let cpus = name.strip_prefix("CPUs ").unwrap_or_default().into();
        SensorNow { name: name.into(), kind, cpus, model: false, value }
    };
    p.sensors = vec![
        sensor("CPUs 0-3", SensorKind::Frequency, 2_400_000),
        sensor("CPUs 4-7", SensorKind::Frequency, 1_800_000),
        sensor("device dmc", SensorKind::Frequency, 528_000),
        sensor("board", SensorKind::Temperature, 40_000),
        sensor("package", SensorKind::Temperature, 61_200),
        sensor("battery", SensorKind::Power, 5),
    ];
    p.speeds = vec![(Phase::Decode, vec![Some(10.0), None, Some(5.0), Some(20.0)])];
    p
}

#[test]
fn what_is_known_has_its_line() {
    let said = text(&all_known(), &VIEW, &Style::default());
    let head: Vec<&str> = said.lines().take(10).collect();
    let want = [
        "profinfer top: process 4711, 12 s, output run.pfi (1.2 MiB)",
        "limit    CPU contention: threads waited for a CPU for 14 % of the threads' time",
        "now      in a decode call for 32.10 ms",
        "decode       12.50 tok/s now     11.25 over the run   10 calls",
        "tok/s    ▄ ▂█  decode, 0 to 20.0",
        "time     68 % computing, 15 % at barriers, 14 % waiting for a CPU, 1 % page faults and I/O, 2 % between calls",
        "faults   122 a second, 2 of them major",
        "sensors  1.80 to 2.40 GHz, 61 °C (package)",
        "level    op with structure, overhead 0.71 %, budget 1.00 %; own CPU 1.30 %",
        "events   123456, none lost",
    ];
    assert_eq!(head, want);
    let ascii = text(&all_known(), &TopView { unicode: false, ..VIEW }, &Style::default());
    assert!(ascii.is_ascii() && ascii.contains("tok/s    ~ .#  decode"), "{ascii}");
}

#[test]
fn no_word_is_cut_and_the_keys_stay_at_the_bottom() {
    for (width, height) in [(80, 24), (60, 22), (80, 18)] {
        let style = Style { width: Some(width), ..Style::default() };
        let said = text(&all_known(), &screen(height), &style);
        assert!(said.lines().count() <= height && said.lines().all(|l| l.chars().count() <= width), "{said}");
        assert!(
            said.lines().last().is_some_and(|l| l.starts_with("q quit   ? help   s sort: time")),
            "{said}"
        );
        assert!(!said.contains('…'), "{said}");
        let words = said.split_whitespace().collect::<Vec<_>>().join(" ");
        assert!(words.contains("14 % waiting for a CPU, 1 % page faults and I/O"), "{said}");
    }
    let long = TopSnapshot { target: "word ".repeat(40), ..all_known() };
    let said = text(&long, &screen(24), &Style { width: Some(80), ..Style::default() });
    assert!(said.lines().next().is_some_and(|l| l.ends_with("word…")), "{said}");
}

#[test]
fn lines_break_between_words() {
    assert_eq!(wrapped("one two three", 7), ["one two", "three"]);
    assert_eq!(wrapped("one two three", 8), ["one two", "three"]);
    assert_eq!(wrapped("  s  sort  by time", 9), ["  s  sort", "by time"]);
    assert_eq!(wrapped("unbreakable word", 4), ["unbreakable word"]);
    assert_eq!(
        (wrapped("", 4), wrapped("µµµµ µµ", 4)),
        (vec![String::new()], vec!["µµµµ".into(), "µµ".into()])
    );
}

#[test]
fn a_device_has_a_line() {
    let mut p = picture();
    let device = LiveDevice {
        backend: "Vulkan".into(),
        splits: 10,
        split_ns: 720_000_000,
        waited_ns: 640_000_000,
        share: 0.9,
        waited_share: 0.8,
        unseen: 0,
        busy_share: None,
        busy_source: None,
    };
    p.run.devices = vec![device.clone()];
    let line = |p: &TopSnapshot| {
        let text = text(p, &VIEW, &Style::default());
        text.lines().find(|l| l.starts_with("device")).map(str::to_owned)
    };
    let splits = "device   Vulkan: 90.00 % of the calls' time in its splits, 80.00 % waiting for it";
    assert_eq!(line(&p).as_deref(), Some(splits));
    let (busy_share, busy_source) = (Some(0.5), Some("kernels"));
    p.now.devices = vec![LiveDevice { busy_share, busy_source, unseen: 1, ..device }];
    let all = format!("{splits}; busy 50.00 % (by kernels); end of 1 split not seen");
    assert_eq!(line(&p), Some(all));
    assert_eq!(line(&picture()), None);
}

#[test]
fn colours_take_no_room() {
    let (plain, color) = (
        Style { width: Some(80), ..Style::default() },
        Style { width: Some(80), color: true, ..Style::default() },
    );
    let painted = text(&all_known(), &screen(24), &color);
    assert!(
        painted.contains("\x1b[31m68 % computing") && painted.contains("\x1b[32m▄ ▂█\x1b[0m"),
        "{painted:?}"
    );
    let mut bare = painted;
    for code in ["\x1b[1m", "\x1b[2m", "\x1b[31m", "\x1b[32m", "\x1b[0m"] {
        bare = bare.replace(code, "");
    }
    assert_eq!(bare, text(&all_known(), &screen(24), &plain));
}

fn first_op(view: &TopView, p: &TopSnapshot) -> String {
    let said = text(p, view, &Style::default());
    let row = said.lines().skip_while(|l| !l.ends_with("op and name")).nth(1).unwrap_or_default().to_owned();
    row.split_whitespace().nth(4).unwrap_or_default().to_owned()
}

#[test]
fn ops_are_sorted_as_asked() {
    let mut p = picture();
    for (op, calls) in p.now.phases[0].ops.iter_mut().zip([100, 1000, 1]) {
        op.calls = calls;
    }
    let by = |order| first_op(&TopView { order, ..VIEW }, &p);
    assert_eq!(by(OpOrder::Time), "MUL_MAT");
    assert_eq!(by(OpOrder::Calls), "ADD");
    assert_eq!(by(OpOrder::Mean), "ROPE");
    let all = [OpOrder::Time, OpOrder::Time.next(), OpOrder::Time.next().next()];
    assert_eq!(all.map(OpOrder::name), ["time", "calls", "mean"]);
    assert_eq!(all[2].next(), OpOrder::Time);
}

#[test]
fn the_phase_shown_is_the_one_asked_for() {
    let mut p = all_known();
    let ops = vec![op("SOFT_MAX  kq", 1)];
    p.run.phases.push(PhaseSpan { phase: Phase::Prefill, graph_ns: 1, ops, ..decode() });
    let said = |phase| text(&p, &TopView { phase, ..VIEW }, &Style::default());
    let busiest = said(ShownPhase::Busiest);
    assert!(busiest.contains("Ops, decode, last") && !busiest.contains("SOFT_MAX"), "{busiest}");
    let prefill = said(ShownPhase::Prefill);
    assert!(prefill.contains("Ops, prefill, over the run, none in the last 5.0 s: "), "{prefill}");
    assert!(prefill.contains("SOFT_MAX") && !prefill.contains("MUL_MAT"), "{prefill}");
    // Nor does it have lines that are about another one.
    assert!(!prefill.contains("\ntok/s") && !prefill.contains("\ntime "), "{prefill}");
    let all = said(ShownPhase::All);
    assert!(all.contains("Ops, decode, ") && all.contains("Ops, prefill, "), "{all}");
    p.run.phases.pop();
    let none = text(&p, &TopView { phase: ShownPhase::Prefill, ..VIEW }, &Style::default());
    assert!(none.contains("No ops of prefill recorded yet"), "{none}");
}

#[test]
fn help_takes_the_place_of_the_tables() {
    let said = text(&all_known(), &TopView { help: true, ..screen(60) }, &Style::default());
    for line in ["Keys", "  s  sort by time, calls or mean", "Columns", "  mean us   mean time", "decode   "]
    {
        assert!(said.contains(line), "{line}: {said}");
    }
    assert!(
        !said.contains("MUL_MAT") && said.lines().last().is_some_and(|l| l.starts_with("q quit")),
        "{said}"
    );
    assert!(HELP.lines().all(|l| l.chars().count() <= 80));
}

#[test]
fn it_fits_whatever_room_there_is() {
    for p in [picture(), all_known()] {
        for height in 1..30 {
            for width in [1, 20, 60, 100] {
                let style = Style { width: Some(width), ..Style::default() };
                let text = text(&p, &screen(height), &style);
                assert!(text.lines().count() <= height, "{text}");
                let least = 30;
                assert!(text.lines().all(|l| l.chars().count() <= width.max(least)), "{width}: {text}");
            }
        }
    }
    let rows = |height| text(&picture(), &screen(height), &Style::default());
    assert!(rows(15).contains("ADD") && !rows(15).contains("(other)"), "{}", rows(15));
    assert!(rows(14).contains("  10.00    0.0500     25.0     4000  (other)"), "{}", rows(14));
}

#[test]
fn what_is_not_known_is_said() {
    let nothing = LiveSpan::default();
    let mut p = TopSnapshot {
        state: RecordingState::Waiting,
        call: None,
        cost: None,
        budget: None,
        lost: 44,
        run: nothing.clone(),
        now: nothing,
        messages: Vec::new(),
        ..picture()
    };
    let said = |p: &TopSnapshot| text(p, &VIEW, &Style::default());
    assert!(said(&p).contains("waiting: no engine found yet"), "{}", said(&p));
    p.state = RecordingState::Running;
    for line in ["no calls seen yet", "overhead not measured", "44 LOST (0.04 %)", "No ops recorded"] {
        assert!(said(&p).contains(line), "{}", said(&p));
    }
    p.run = picture().run;
    assert!(said(&p).contains("between calls") && said(&p).contains("over the run, none in the last 0.0 s"));
    p.run.phases[0].wait_ns = None;
    p.run.phases[0].threads[0].wait_share = None;
    assert!(said(&p).contains("including barrier waits") && said(&p).contains("0:  90.0  "), "{}", said(&p));
    (p.state, p.end) = (RecordingState::Ended, Some("target exited".into()));
    assert!(said(&p).contains("ended: target exited") && said(&p).contains("Ops, decode, over the run: "));
}

#[test]
fn one_request_has_a_line_and_several_a_table() {
    let one = RequestNow {
        seq: 2,
        phase: RequestPhase::Decode,
        prompt_tokens: 30,
        cached_tokens: Some(12),
        ttft_ns: Some(120_000_000),
        tokens: 88,
        tokens_per_s: Some(23.125),
        drafted: 40,
        accepted: 10,
        ..RequestNow::default()
    };
    let show = |requests| text(&TopSnapshot { requests, ..picture() }, &VIEW, &Style::default());
    let line = "request  sequence 2: decode, prompt of 30 (12 more cached), first token after 120.00 ms, 88 tokens \
                at 23.12 tok/s, 25 % of drafts accepted";
    assert!(show(vec![one]).lines().any(|l| l == line), "{}", show(vec![one]));
    let waits = RequestNow { seq: 3, idle_ns: 2_000_000_000, prompt_tokens: 7, ..RequestNow::default() };
    let said = show(vec![one, waits]);
    let rows: Vec<Vec<&str>> = said
        .lines()
        .skip_while(|l| !l.trim_start().starts_with("sequence"))
        .take(3)
        .map(|l| l.split_whitespace().collect())
        .collect();
    assert_eq!(rows[0], ["sequence", "state", "prompt", "cached", "TTFT", "tokens", "tok/s", "accepted"]);
    assert_eq!(rows[1], ["2", "decode", "30", "12", "120.00", "ms", "88", "23.12", "25", "%"]);
    assert_eq!(rows[2], ["3", "idle", "for", "2.00", "s", "7", "-", "-", "0", "-", "-"]);
    // Those that computed last are shown, in their order; the text says how many are not.
    let many = (0..20).map(|seq| RequestNow { seq, idle_ns: seq as u64, ..one }).collect();
    let said = show(many);
    assert!(said.contains("  and 12 more requests (--json lists all)\n"), "{said}");
}
