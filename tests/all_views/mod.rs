//! Every view of a trace, with the output discarded.

use std::io::{self, Write};

use analysis::questions::dag::compare::compare;
use analysis::questions::dag::fold::fold;
use analysis::questions::dag::{self, METRICS, dag};
use analysis::questions::diff::{self, diff};
use analysis::questions::experts::simulate::ReadTimes;
use analysis::questions::experts::{CacheOptions, experts};
use analysis::questions::report::{self, By, report};
use analysis::questions::stat::scaling::{ScalingRow, row, scaling};
use analysis::questions::stat::shapes::of_trace;
use analysis::questions::stat::work::ModelProducts;
use analysis::questions::stat::{self, Stat, View, stat};
use analysis::recorded::calls::{Phase, timeline};
use analysis::recorded::idents::{Idents, OpKey};
use analysis::recorded::load::{LoadProgress, load};
use analysis::recorded::runs::Runs;
use analysis::recorded::selection::Cut;
use analysis::streams::lanes::{Lanes, Select};
use analysis::streams::live::Live;
use analysis::streams::overview::overview;
use analysis::streams::stacks::stacks;
use analysis::sums::attribution::verdict::Peak;
use analysis::sums::ops::sort_runs;
use pfi::Trace;
use render::chart;
use render::ops_csv::OpsTable;
use render::stacks::pprof::pprof;
use render::stacks::{folded, speedscope};
use render::stat::pictures;
use render::table::Style;
use render::timeline::TimelineRun;
use render::timeline::chrome::Chrome;
use render::timeline::labels::Labels;
use render::timeline::perfetto::Perfetto;

/// Output limit for a view of a file of some kilobytes: far more than any view needs.
const MOST_WRITTEN: usize = 64 << 20;

/// Accepts a bounded number of bytes; text must not contain hidden or direction-changing characters.
#[derive(Default)]
pub struct Out {
    bytes: usize,
    /// The output is not text.
    binary: bool,
}

impl Write for Out {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.bytes += bytes.len();
        assert!(self.bytes <= MOST_WRITTEN, "a view without end");
        if !self.binary {
            let text = String::from_utf8_lossy(bytes);
            assert!(!text.contains(hides), "{:?}", text.chars().filter(|c| hides(*c)).collect::<String>());
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Characters that no view may pass on from a name: those that a terminal acts on, and those that hide or reorder
/// neighboring text. Views emit ESC and line ends themselves.
pub fn hides(c: char) -> bool {
    let unicode = matches!(c, '\u{61c}' | '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}'
        | '\u{2028}' | '\u{2029}' | '\u{feff}' | '\u{e0000}'..='\u{e007f}');
    unicode || (c.is_control() && !matches!(c, '\x1b' | '\r' | '\n'))
}

/// Groups of views.
pub const GROUPS: [fn(&mut Out, &Trace); 8] =
    [reports, statistics, comparison, graphs, timelines, pages, live, caches];

/// Renders all views of a possible trace; returns the number of bytes written.
pub fn all(bytes: Vec<u8>) -> usize {
    let Ok(trace) = Trace::from_bytes(bytes) else { return 0 };
    let written = |group: &fn(&mut Out, &Trace)| {
        // The limit is that of a view, not of all together.
        let mut out = Out::default();
        group(&mut out, &trace);
        out.bytes
    };
    GROUPS.iter().map(written).sum()
}

fn options() -> report::ReportOptions {
    report::ReportOptions {
        top: Some(7),
        verdict: true,
        tables: By::ALL.to_vec(),
        peaks: vec![Peak { threads: None, gb_per_s: 20.0, gflop_per_s: Some(100.0), int8_gop_per_s: None }],
        ..report::ReportOptions::default()
    }
}

fn reports(out: &mut Out, trace: &Trace) {
    let told = report(trace, &options(), &LoadProgress::default());
    render::verdict::write(out, &told, "a.pfi", &Style { width: Some(90), color: true, ..Style::default() })
        .unwrap();
    if let Some(verdict) = &told.verdict {
        render::verdict::advice(out, verdict, &Style::default()).unwrap();
    }
    render::text::write(out, &told, &Style { width: Some(90), color: true, ..Style::default() }).unwrap();
    render::json::write(out, &told).unwrap();
}

/// Caches of experts, and what was read of them from storage.
fn caches(out: &mut Out, trace: &Trace) {
    let sizes = CacheOptions { slots: vec![1, 3], ..CacheOptions::default() };
    let times = ReadTimes { ns: vec![1e6, 1.5e6] };
    let memory = Some(1 << 20);
    let rest = CacheOptions { memory, by_prompt: true, picture: true, times, ..CacheOptions::default() };
    for options in [sizes, rest] {
        match experts(trace, &options, &LoadProgress::default()) {
            Ok(found) => {
                render::json::write(out, &found).unwrap();
                render::expert_caches::write(out, &found, &Style::default()).unwrap();
                render::expert_caches::overrides(out, &found).unwrap();
                render::expert_caches::csv(out, &found).unwrap();
                chart::file(out, &render::expert_chart::chart(&found)).unwrap();
            }
            Err(why) => said(&why),
        }
    }
}

fn pages(out: &mut Out, trace: &Trace) {
    let (peaks, progress) = (options().peaks, LoadProgress::default());
    for cut in [Cut::default(), Cut { calls: (Some(1), Some(2)), ..Cut::default() }] {
        match overview(trace, &cut, &peaks, &progress) {
            Ok(found) => render::html::write(out, &found, "x", 20, "profinfer").unwrap(),
            Err(why) => said(&why),
        }
    }
}

fn said(why: &dyn std::error::Error) {
    assert!(!why.to_string().is_empty());
}

/// Statistics in all forms.
fn shown(out: &mut Out, found: &Stat, views: &[View]) {
    render::json::write(out, found).unwrap();
    render::stat::write(out, found, views, 9, &Style::default()).unwrap();
    for view in views {
        render::stat::csv(out, found, *view).unwrap();
        match pictures::picture(found, *view, None, pictures::ON_PAGE) {
            Ok(chart) => chart::file(out, &chart).unwrap(),
            Err(why) => said(&why),
        }
    }
}

fn statistics(out: &mut Out, trace: &Trace) {
    let progress = LoadProgress::default();
    for phase in [Phase::Decode, Phase::Prefill] {
        let views: Vec<View> = View::ALL.into_iter().chain([View::Activation]).collect();
        let beside = Some(of_trace(trace, phase, &progress));
        let options = stat::StatOptions { beside, ..stat::StatOptions::new(phase, views.clone()) };
        match stat(trace, &options, &progress) {
            Ok(mut found) => {
                shown(out, &found, &views);
                let model = |products| ModelProducts { file: "x".into(), threads: found.threads, products };
                found.models = found.ops.clone().flatten().map(|products| vec![model(products)]);
                shown(out, &found, &[View::Ops]);
            }
            Err(why) => said(&why),
        }
        match row(trace, "x".into(), phase, None, &progress) {
            Ok(row) => {
                let two = ScalingRow { threads: row.threads.saturating_add(1), ..row.clone() };
                let found = scaling(vec![row, two]);
                chart::file(out, &pictures::threads::threads(&found, phase.name()).unwrap()).unwrap();
            }
            Err(why) => said(&why),
        }
        let options = stat::StatOptions { bandwidth: Some(50.0), context: Some(4096), ..options };
        match stat(trace, &options, &progress) {
            Ok(found) => render::json::write(out, &found).unwrap(),
            Err(why) => said(&why),
        }
    }
}

fn comparison(out: &mut Out, trace: &Trace) {
    for by in [OpKey::Name, OpKey::Layer] {
        let options = diff::DiffOptions {
            phase: Phase::Decode,
            by,
            false_discovery: 0.05,
            least: 0.01,
            pids: Vec::new(),
        };
        for side in [&[trace][..], &[trace, trace]] {
            match diff(side, side, &options, &LoadProgress::default()) {
                Ok(found) => {
                    let names = [vec!["a".to_string(); 2], vec!["b".to_string(); 2]];
                    render::diff::write(out, &found, &names, 5, &Style::default()).unwrap();
                    render::diff::csv(out, &found).unwrap();
                    render::diff::markdown(out, &found, Some((0.01, false)), 5).unwrap();
                    render::json::write(out, &found).unwrap();
                }
                Err(why) => said(&why),
            }
        }
    }
}

fn graphs(out: &mut Out, trace: &Trace) {
    let progress = LoadProgress::default();
    let pid = load(trace, &progress).cpu_graphs.first().map(|g| g.pid);
    let whole = match dag(
        trace,
        &dag::DagOptions { pid: pid.map(Into::into), token: None, phase: None },
        &progress,
    ) {
        Ok(found) => found,
        Err(why) => return said(&why),
    };
    for graph in [&whole, &fold(&whole)] {
        for facts in &METRICS {
            use render::dag::GraphFormat::*;
            for format in [Dot, Graphml, Json, Svg] {
                render::dag::write(out, graph, facts.metric, format).unwrap();
            }
        }
        match compare(graph, &whole) {
            Ok(found) => {
                render::dag::compare::text(out, &found, ["a", "b"], &Style::default()).unwrap();
                render::dag::compare::json(out, &found, ["a", "b"]).unwrap();
            }
            Err(why) => said(&why),
        }
    }
}

fn timelines(out: &mut Out, trace: &Trace) {
    let told = &report(trace, &options(), &LoadProgress::default());
    let mut loaded = load(trace, &LoadProgress::default());
    let (line, idents) = (timeline(&loaded), Idents::new(&loaded));
    let labels = Labels::new(&loaded, &line, &idents, Some(told));
    let header = loaded.header.clone();
    sort_runs(&mut loaded);
    let lanes = Lanes::new(&loaded, Select::default());
    let run = TimelineRun::new(&loaded, &line, &lanes, &idents, &labels);
    out.binary = true;
    run.draw(&mut Perfetto::new(out, &labels, header.as_ref(), 1)).unwrap();
    out.binary = false;
    run.draw(&mut Chrome::new(out, &labels, header.as_ref())).unwrap();
    let runs = Runs::of(&loaded, &line);
    let select = Select::default();
    OpsTable { loaded: &loaded, line: &line, idents: &idents, labels: &labels, runs: &runs, select }
        .write(out)
        .unwrap();
    for all_threads in [false, true] {
        let stacks = stacks(&loaded, &line, &runs, &idents, &select, all_threads);
        folded(out, &stacks).unwrap();
        speedscope(out, &stacks).unwrap();
        out.binary = true;
        pprof(out, &stacks, header.as_ref()).unwrap();
        out.binary = false;
    }
    #[cfg(feature = "dataset")]
    tables(out, trace);
}

/// Parquet keeps names as they are: it is not shown.
#[cfg(feature = "dataset")]
fn tables(out: &mut Out, trace: &Trace) {
    let progress = LoadProgress::default();
    let run = dataset::Run::read(trace, None, &progress);
    for table in dataset::TABLES {
        let mut bytes = Vec::new();
        table.write(Some(&run), &mut bytes).unwrap();
        out.binary = true;
        out.write_all(&bytes).unwrap();
        out.binary = false;
    }
}

fn live(out: &mut Out, trace: &Trace) {
    let mut live = Live::default();
    live.tick(0);
    for i in 0..trace.blocks().len() {
        if let Ok(block) = trace.block(i) {
            live.feed(&block);
            live.tick(i as u64 * 100_000_000);
        }
    }
    let end = 1_000_000_000_000;
    live.finish();
    live.tick(end);
    render::json::write(out, &live.now(end)).unwrap();
    render::json::write(out, &live.whole(end)).unwrap();
}
