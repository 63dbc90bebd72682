//! Where thread 0's time goes, from phases to layers to ops, as frames above each other: each as wide as its time. The script
//! zooms into a frame.

use std::io::{self, Write};

use super::markup::{self, gap, say, text};
use crate::units::{count, pct, time};
use analysis::streams::stacks::Stacks;
use analysis::sums::tables::{GAPS_ROW, WAIT_ROW};

/// Columns of the drawing, height of a frame, width of a letter.
const WIDTH: f64 = 1000.0;
const HEIGHT: f64 = 20.0;
const LETTER: f64 = 6.5;
/// Frames that are narrower are left out; those of less than half a column are seen when one zooms in. No more are drawn.
const NARROW: f64 = 0.1;
const SEEN: f64 = 0.5;
const MOST: usize = 3000;

/// The time of a frame and of those in it.
struct Frame<'s> {
    name: &'s str,
    ns: u64,
    calls: u64,
    inside: Vec<Frame<'s>>,
}

impl<'s> Frame<'s> {
    fn new(name: &'s str) -> Frame<'s> {
        Frame { name, ns: 0, calls: 0, inside: Vec::new() }
    }

    fn add(&mut self, path: &[&'s str], ns: u64, calls: u64) {
        self.ns = self.ns.saturating_add(ns);
        let Some((first, rest)) = path.split_first() else {
            self.calls = self.calls.saturating_add(calls);
            return;
        };
        if !self.inside.iter().any(|frame| frame.name == *first) {
            self.inside.push(Frame::new(first));
        }
        if let Some(frame) = self.inside.iter_mut().find(|frame| frame.name == *first) {
            frame.add(rest, ns, calls);
        }
    }
}

/// A frame with its place: left end and width in columns, row.
struct Placed<'f, 's> {
    frame: &'f Frame<'s>,
    x: f64,
    width: f64,
    row: usize,
}

/// Writes the contents of the section.
pub fn write(out: &mut dyn Write, stacks: &Stacks) -> io::Result<()> {
    let mut all = Frame::new("all");
    let several =
        stacks.rows.iter().any(|row| stacks.rows.first().is_some_and(|first| first.model != row.model));
    for row in stacks.rows.iter().filter(|row| row.ns > 0) {
        let model = stacks.models.get(row.model).filter(|_| several).map(String::as_str);
        let path = model.into_iter().chain([row.phase.name()]).chain(row.frames.iter().map(String::as_str));
        all.add(&path.collect::<Vec<_>>(), row.ns, row.calls);
    }
    if all.ns == 0 {
        return gap(
            out,
            "There is no flame graph to draw: no ops were recorded (use `profinfer record --level op`).",
        );
    }
    let (mut frames, mut left_out) = (Vec::new(), 0);
    place(&all, (0.0, WIDTH), 0, &mut frames, &mut left_out);
    let rows = frames.iter().map(|f| f.row + 1).max().unwrap_or(1);
    say(
        out,
        "Thread 0's time in CPU graphs, all calls together, from phases to layers to ops: a frame is as wide as its time. \
         Select one to see it whole; the same data, for other programs: profinfer export --folded, --speedscope, --pprof.",
    )?;
    let what = format!("{} in {}", time(all.ns as f64), count(frames.len() as u64, "frame"));
    markup::svg(out, "flame-chart", (WIDTH, rows as f64 * HEIGHT), "Flame graph", &what)?;
    frames.iter().try_for_each(|f| draw(out, f, all.ns))?;
    let more = if left_out > 0 {
        format!("; {} too narrow to draw", count(left_out, "frame"))
    } else {
        String::new()
    };
    markup::svg_end(out, &format!("Of {}{more}.", time(all.ns as f64)))
}

/// Places a frame and those in it, side by side in the order in which they were met.
fn place<'f, 's>(
    frame: &'f Frame<'s>,
    (x, width): (f64, f64),
    row: usize,
    out: &mut Vec<Placed<'f, 's>>,
    left_out: &mut u64,
) {
    if width < NARROW || out.len() >= MOST {
        *left_out += 1;
        return;
    }
    out.push(Placed { frame, x, width, row });
    let mut at = x;
    for inner in &frame.inside {
        let part = width * inner.ns as f64 / frame.ns.max(1) as f64;
        place(inner, (at, part), row + 1, out, left_out);
        at += part;
    }
}

fn draw(out: &mut dyn Write, f: &Placed<'_, '_>, all: u64) -> io::Result<()> {
    let Frame { name, ns, calls, .. } = f.frame;
    let kind = match *name {
        name if name == WAIT_ROW => "wait",
        name if name == GAPS_ROW => "rest",
        _ if f.frame.inside.is_empty() => "busy",
        _ => "rest",
    };
    let out_of_sight = if f.width < SEEN { " out" } else { "" };
    let times = if *calls > 0 { format!(", {}", count(*calls, "time")) } else { String::new() };
    let (x, width, y) = (f.x, f.width, f.row as f64 * HEIGHT);
    let letters = ((width - 6.0) / LETTER).max(0.0) as usize;
    let label: String = if letters > 2 { name.chars().take(letters).collect() } else { String::new() };
    writeln!(
        out,
        "<g class=\"f{out_of_sight}\" data-x=\"{x:.3}\" data-w=\"{width:.3}\"><title>{}\n{}, {} %{times}</title><rect class=\"{kind}\" x=\"{x:.2}\" \
         y=\"{y}\" width=\"{width:.2}\" height=\"{HEIGHT}\"/><text x=\"{:.2}\" y=\"{}\">{}</text></g>",
        text(name),
        time(*ns as f64),
        pct(*ns as f64 / all as f64),
        x + 3.0,
        y + HEIGHT - 6.0,
        text(&label)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use analysis::recorded::calls::Phase;
    use analysis::streams::stacks::StackRow;

    fn row(phase: Phase, frames: &[&str], calls: u64, ns: u64) -> StackRow {
        let frames = frames.iter().map(|f| (*f).to_owned()).collect();
        StackRow { model: 0, phase, thread: 0, frames, calls, ns }
    }

    fn page(rows: Vec<StackRow>) -> String {
        let mut out = Vec::new();
        let stacks = Stacks { models: vec!["m".into()], rows, span: None, slices: 1 };
        write(&mut out, &stacks).expect("written");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_frame_is_as_wide_as_its_time() {
        let html = page(vec![
            row(Phase::Decode, &["layer 0", "MUL_MAT a<b"], 4, 600),
            row(Phase::Decode, &["layer 0", "(barrier wait)"], 4, 150),
            row(Phase::Decode, &["(gaps)"], 1, 250),
            row(Phase::Prefill, &["layer 0", "MUL_MAT a<b"], 2, 1000),
            row(Phase::Prefill, &["layer 0", "SMALL"], 2, 0),
        ]);
        let frames: Vec<&str> = html.lines().filter(|l| l.starts_with("<g class=\"f\"")).collect();
        assert_eq!(frames.len(), 9, "{html}");
        assert!(
            html.contains("data-x=\"0.000\" data-w=\"500.000\"><title>decode\n1.00 us, 50.00 %</title>"),
            "{html}"
        );
        assert!(
            html.contains(
                "data-x=\"0.000\" data-w=\"300.000\"><title>MUL_MAT a&lt;b\n600 ns, 30.00 %, 4 times</title>"
            ),
            "{html}"
        );
        assert!(html.contains("data-x=\"300.000\" data-w=\"75.000\"><title>(barrier wait)"), "{html}");
        assert!(html.contains("data-x=\"375.000\" data-w=\"125.000\"><title>(gaps)"), "{html}");
        assert!(html.contains("<rect class=\"wait\" x=\"300.00\" y=\"60\""), "{html}");
    }

    #[test]
    fn without_ops_there_is_a_reason() {
        assert!(page(vec![]).contains("no ops were recorded"));
    }
}
