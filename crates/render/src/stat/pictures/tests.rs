use super::*;
use analysis::questions::stat::growth::{CallPoint, Growth, Trend, WidthStep};
use analysis::questions::stat::reuse::{ReuseLine, ReusePoint, ReuseTimes};
use analysis::questions::stat::work::{Fit, MatmulWork, Products};
use analysis::recorded::calls::Phase;

use crate::chart::{Mark, file};

fn trend(name: &str, ns: impl Fn(f64) -> f64) -> Trend {
    Trend {
        name: name.into(),
        from_ns: ns(10.0),
        to_ns: ns(200.0),
        ns_per_token: (ns(200.0) - ns(10.0)) / 190.0,
        interval: [1.0, 2.0],
        r2: 0.9,
        share: name.contains("ROPE").then_some(0.5),
        grows: name.contains("ROPE"),
        points: (1..=20).map(|i| f64::from(i) * 10.0).map(|x| [x, ns(x)]).collect(),
    }
}

fn growth() -> Growth {
    let ops = vec![
        trend("ROPE  Qcur-{L}", |x| 100.0 + x),
        trend("MUL_MAT  kq-{L}", |x| 900.0 + 40.0 * x),
        trend("MUL_MAT  ffn_up-{L}", |_| 5000.0),
    ];
    let attention = |n: u64| 500.0 + 40.0 * n.next_multiple_of(128) as f64;
    let each = (10..200).map(|context| CallPoint {
        context,
        call_ns: 2e6 + 50.0 * context as f64,
        attention_ns: Some(attention(context)),
    });
    let step = |width, from, to, calls| WidthStep { width, from, to, calls, attention_ns: attention(to) };
    Growth {
        calls: 190,
        from: 10,
        to: 200,
        call: trend("", |x| 2e6 + 50.0 * x),
        attention: Some(trend("", |x| 900.0 + 40.0 * x)),
        ops,
        each: each.collect(),
        steps: vec![step(128, 10, 128, 119), step(256, 129, 199, 71)],
    }
}

fn drawn(chart: &Chart) -> String {
    let mut out = Vec::new();
    file(&mut out, chart).unwrap();
    String::from_utf8(out).unwrap()
}

fn marks(chart: &Chart, panel: usize) -> Vec<&Mark> {
    chart.panels[panel].series.iter().flat_map(|s| &s.points).collect()
}

#[test]
fn a_call_and_its_attention_have_points_and_lines() {
    let chart = tokens::tokens(&growth(), "decode", 4000);
    assert_eq!(chart.panels.len(), 2);
    assert_eq!(chart.panels[0].y.name, "time per call (ms)");
    // Each call is a point.
    let call = marks(&chart, 0);
    assert_eq!((call.len(), call[30].x), (190, 40.0));
    assert!((call[30].y - (2e6 + 2000.0) / 1e6).abs() < 1e-9);
    let names: Vec<_> = chart.panels[1].series.iter().map(|s| s.name.as_str()).collect();
    // Attention although it is not said to grow; the product that does not grow is left out.
    assert_eq!(
        names,
        [
            "attention products: +40.00 ns per token of context",
            "ROPE  Qcur-{L}: +1.00 ns per token of context"
        ]
    );
    let attention = &chart.panels[1].series[0];
    // Steps, where the padded width of the cache changes.
    assert_eq!(attention.line, [(10.0, 5.62), (128.0, 5.62), (129.0, 10.74), (199.0, 10.74)]);
    assert_eq!(attention.points.len(), 190);
    assert!(attention.line_about.ends_with("width of the cache: 128, 256"), "{}", attention.line_about);
    let thinned = tokens::tokens(&growth(), "decode", 50);
    assert_eq!(thinned.panels[0].series[0].points.len(), 48);
    assert!(thinned.notes.iter().any(|n| n.contains("one call, of every 4")), "{:?}", thinned.notes);
    assert!(
        chart.notes.iter().any(|n| n.contains("2 widths from 128 to 256 positions")),
        "{:?}",
        chart.notes
    );
    assert_eq!(drawn(&chart), drawn(&tokens::tokens(&growth(), "decode", 4000)));
}

fn product(name: &str, weights: &str, flops: f64) -> MatmulWork {
    MatmulWork {
        name: name.into(),
        form: "f32 4 of f32 4".into(),
        weights: weights.into(),
        ns: 500.0 + flops / 10.0,
        bytes: flops / 4.0,
        flops,
        expected_ns: Some(500.0 + flops / 10.0),
        off: Some(0.0),
        outlier: false,
    }
}

#[test]
fn multiplications_are_grouped_by_type() {
    let rows = vec![product("a", "q6_K", 4e6), product("b", "q4_K", 2e6), product("c", "q6_K", 1e4)];
    let flops = Fit { points: 3, at_zero_ns: 500.0, ns_per_unit: 0.1, giga_per_s: Some(10.0), r2: 0.99 };
    let p = Products { bytes: None, flops: Some(flops), rows };
    let chart = ops::ops(&p, "decode", 100).unwrap();
    let series = &chart.panels[0].series;
    let kinds: Vec<_> = series.iter().map(|s| (s.name.as_str(), s.points.len())).collect();
    assert_eq!(kinds[..2], [("weights of q6_K", 2), ("weights of q4_K", 1)]);
    assert!(kinds[2].0.contains("10.00 GFLOP/s, R2 0.990"), "{kinds:?}");
    assert_eq!((series[0].points[0].x, series[0].points[0].y), (4.0, 400.5));
    // The line passes through its ends in the units of the axes.
    let (first, last) = (series[2].line[0], series[2].line[series[2].line.len() - 1]);
    assert!((first.0 - 0.01).abs() < 1e-9 && (first.1 - 1.5).abs() < 1e-6, "{first:?}");
    assert!((last.0 - 4.0).abs() < 1e-6 && (last.1 - 400.5).abs() < 1e-3, "{last:?}");
    let none = Products { bytes: None, flops: None, rows: vec![product("a", "q6_K", 0.0)] };
    assert!(ops::ops(&none, "decode", 100).unwrap_err().to_string().contains("record without --no-str"));
}

fn point(token: u64, distance: Option<f64>, major_faults: Option<u64>) -> ReusePoint {
    ReusePoint { token, layer: 1, distance, ns: 1000.0 * (1.0 + token as f64), major_faults }
}

#[test]
fn single_tokens_are_coloured_by_their_faults() {
    let line = ReuseLine { at_zero_ns: 900.0, ns_per_token: 5.0, interval: [1.0, 9.0], r2: 0.5, rises: true };
    let points = vec![
        point(0, None, Some(12)),
        point(1, Some(1.0), Some(0)),
        point(2, Some(4.0), Some(3)),
        point(3, Some(2.0), None),
    ];
    let found =
        ReuseTimes { n: 4, layers: 1, mean_ns: 2500.0, line: Some(line), rows: Vec::new(), each: 1, points };
    let chart = reuse::reuse(&found, 100);
    let names: Vec<_> = chart.panels[0].series.iter().map(|s| (s.name.as_str(), s.points.len())).collect();
    assert_eq!(
        names[..4],
        [
            ("no major page fault", 1),
            ("1 to 9 major page faults", 1),
            ("10 or more major page faults", 1),
            ("page faults not counted", 1)
        ]
    );
    let all = marks(&chart, 0);
    assert_eq!((all[0].x, all[0].y), (1.0, 2.0));
    assert_eq!(all[2].x, f64::INFINITY);
    assert_eq!(chart.panels[0].x.beyond, Some("first use"));
    let svg = drawn(&chart);
    assert!(svg.contains(">first use</text>") && svg.contains("token 0, layer 1: 1.00 us"), "{svg}");
    let uncounted = ReuseTimes { points: vec![point(1, Some(1.0), None)], ..found };
    let chart = reuse::reuse(&uncounted, 100);
    assert_eq!(chart.panels[0].series[0].name, "one layer and token");
    assert!(chart.notes.iter().any(|n| n.contains("record --faults")), "{:?}", chart.notes);
    assert_eq!(chart.panels[0].x.beyond, None);
}

#[test]
fn what_is_missing_has_a_reason_and_no_picture() {
    let s = Stat {
        schema: 2,
        phase: Phase::Decode,
        pid: 1,
        context: None,
        runs: Vec::new(),
        other_processes: 0,
        threads: 1,
        calls: 1,
        left_out: 0,
        call_ns: 1.0,
        tokens: Some(None),
        ops: Some(None),
        models: None,
        roofline: Some(None),
        thread_balance: Some(None),
        scaling: None,
        experts: Some(None),
        reuse: Some(None),
        activation: Some(None),
        backends: None,
        shapes: Some(None),
        forecast: None,
    };
    let says = [
        (View::Tokens, "record a run of more tokens"),
        (View::Ops, "record without --no-str"),
        (View::Roofline, "--peak"),
        (View::Threads, "--beside"),
        (View::Reuse, "--experts"),
        (View::Activation, "--experts"),
        (View::Shapes, "--beside"),
        (View::Backends, "no picture"),
    ];
    for (view, what) in says {
        let why = picture(&s, view, None, 10).unwrap_err().to_string();
        assert!(why.contains(what), "{why}");
    }
}
