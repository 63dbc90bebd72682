//! Draws the graph as SVG. Constants are listed in the boxes of their users, to leave room for what is computed.

use std::io::{self, Write};

use super::colour::{Colour, Scale};
use super::layout::{DagLayout, layout};
use super::{block_title, legend, lines, shape, title, value, xml};
use crate::table::cut;
use crate::units::pct;
use analysis::questions::dag::{Dag, METRICS, Metric, Node, NodeRole};
use common::order;

/// Letter size in pixels; the font is monospaced, so widths are known without it.
const CHAR: f64 = 6.3;
const LINE: f64 = 12.0;
const FONT: f64 = 10.0;
/// Padding inside boxes, and around the drawing.
const PAD: f64 = 5.0;
const MARGIN: f64 = 24.0;
/// Height of the bar of colours with its labels, and a third of its width.
const BAR: f64 = 30.0;
const BAR_PART: f64 = 110.0;
/// Shown for an unknown value.
pub const NO_VALUE: &str = "-";
/// Maximum line length of a box, in letters; the tooltip has the full text.
const LONGEST: usize = 48;

/// A box.
struct Drawn {
    /// Index in [`Dag::nodes`].
    node: usize,
    lines: Vec<String>,
    /// Number of letters that fit on a line.
    letters: usize,
    /// The last line is a value.
    valued: bool,
}

/// Writes the drawing as a standalone file; `metric` colours it.
pub fn write(out: &mut dyn Write, dag: &Dag, metric: Metric) -> io::Result<()> {
    draw(out, dag, metric, false)
}

/// Writes drawings side by side, each below its name, with one scale of colours.
pub fn beside(out: &mut dyn Write, dags: &[(String, Dag)], metric: Metric) -> io::Result<()> {
    let all: Vec<&Dag> = dags.iter().map(|(_, dag)| dag).collect();
    let scale = Scale::over(&all, metric);
    let (mut parts, mut width, mut height) = (Vec::new(), 0.0, 0.0_f64);
    for (name, dag) in dags {
        let part = Part { x: width, name };
        let (w, h) = picture(&mut parts, dag, metric, scale, Frame::Beside(part), None)?;
        (width, height) = (width + w, height.max(h));
    }
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
         height=\"{height:.0}\">"
    )?;
    out.write_all(&parts)?;
    writeln!(out, "</svg>")
}

/// What a drawing is a part of.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Frame<'d> {
    /// A file of its own.
    File,
    Page,
    Beside(Part<'d>),
}

/// One of several drawings: where it begins, and its name.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Part<'d> {
    x: f64,
    name: &'d str,
}

/// Writes the drawing as a part of a page that has its own title and legend. `metric` is the initial colouring;
/// boxes have room for the values of all other metrics. Each box is a `g` of class `n` whose value has class `v`,
/// in the order of [`drawn`].
pub fn in_page(out: &mut dyn Write, dag: &Dag, metric: Metric) -> io::Result<()> {
    draw(out, dag, metric, true)
}

/// Colours and value of a box that do not come from a metric.
pub struct BoxTint {
    pub fill: Colour,
    pub value: String,
}

/// The same with the given tints, by node; a node without one is drawn as unknown.
pub fn tinted(out: &mut dyn Write, dag: &Dag, tints: &[Option<BoxTint>]) -> io::Result<()> {
    let scale = Scale::of(dag, Metric::Time);
    picture(out, dag, Metric::Time, scale, Frame::Page, Some(tints)).map(drop)
}

/// The nodes that have a box.
pub fn drawn(dag: &Dag) -> Vec<usize> {
    (0..dag.nodes.len()).filter(|i| !dag.nodes[*i].role.is_constant()).collect()
}

fn draw(out: &mut dyn Write, dag: &Dag, metric: Metric, page: bool) -> io::Result<()> {
    let frame = if page { Frame::Page } else { Frame::File };
    picture(out, dag, metric, Scale::of(dag, metric), frame, None).map(drop)
}

/// Returns width and height.
fn picture(
    out: &mut dyn Write,
    dag: &Dag,
    metric: Metric,
    scale: Option<Scale>,
    frame: Frame<'_>,
    tints: Option<&[Option<BoxTint>]>,
) -> io::Result<(f64, f64)> {
    let page = frame == Frame::Page;
    let users = users(dag);
    let mut drawn: Vec<Drawn> =
        drawn(dag).into_iter().map(|node| drawn_box(dag, node, metric, page, &users)).collect();
    for d in drawn.iter_mut().filter(|d| tints.is_some() && d.valued) {
        let tint = tints.and_then(|tints| tints.get(d.node)?.as_ref());
        let value = tint.map_or(NO_VALUE, |tint| &tint.value);
        d.letters = d.letters.max(value.chars().count()).min(LONGEST);
        if let Some(line) = d.lines.last_mut() {
            *line = value.to_owned();
        }
    }
    let mut place = vec![None; dag.nodes.len()];
    for (i, d) in drawn.iter().enumerate() {
        place[d.node] = Some(i);
    }
    let mut edges: Vec<(usize, usize, bool)> = dag
        .edges
        .iter()
        .filter(|e| e.from != e.to || e.back)
        .filter_map(|e| Some((place[e.from]?, place[e.to]?, e.back)))
        .collect();
    order::by_key(&mut edges, |e| ((e.0 as u64) << 32 | e.1 as u64, e.2.into()));
    edges.dedup();
    let sizes: Vec<(f64, f64)> = drawn.iter().map(size).collect();
    let forward: Vec<(usize, usize)> = edges.iter().filter(|e| !e.2).map(|e| (e.0, e.1)).collect();
    let places = layout(&sizes, &forward);
    let back: Vec<(usize, usize)> = edges.iter().filter(|e| e.2).map(|e| (e.0, e.1)).collect();
    let picture =
        SvgDrawing { dag, metric, scale, frame, page, tints, drawn: &drawn, sizes: &sizes, places: &places };
    picture.write(out, &back)
}

/// Number of edges that leave each node.
fn users(dag: &Dag) -> Vec<usize> {
    let mut users = vec![0; dag.nodes.len()];
    for e in &dag.edges {
        users[e.from] += 1;
    }
    users
}

fn drawn_box(dag: &Dag, node: usize, metric: Metric, page: bool, users: &[usize]) -> Drawn {
    let mut lines = text(dag, node, metric, users);
    let figures = dag.nodes[node].figures;
    let mut valued = figures[metric as usize].is_some();
    let mut letters = lines.iter().map(|l| l.chars().count()).max().unwrap_or(1);
    if page && figures.iter().any(Option::is_some) {
        if !valued {
            lines.push(NO_VALUE.into());
        }
        valued = true;
        let all = METRICS.iter().zip(figures).filter_map(|(m, s)| Some(super::spread(m.metric, &s?)));
        letters = all.map(|value| value.chars().count()).fold(letters, usize::max);
    }
    Drawn { node, lines, letters: letters.min(LONGEST), valued }
}

/// The lines of a box: its node, and the constants it uses.
fn text(dag: &Dag, node: usize, metric: Metric, users: &[usize]) -> Vec<String> {
    let n = &dag.nodes[node];
    let mut all = lines(n, metric);
    let value = n.figures[metric as usize].and_then(|_| all.pop());
    if n.role == NodeRole::View {
        // The dimensions are in the tooltip.
        all.truncate(2);
    }
    for e in dag.sources(node) {
        let Some(from) = dag.nodes.get(e.from).filter(|f| f.role.is_constant()) else { continue };
        let Some(t) = from.result() else { continue };
        let shared = if users[e.from] > 1 { format!(" ({} users)", users[e.from]) } else { String::new() };
        all.push(crate::table::clean(&format!("+ {} {}{shared}", t.name, shape(t))));
    }
    all.extend(value);
    all
}

fn size(drawn: &Drawn) -> (f64, f64) {
    (drawn.letters as f64 * CHAR + 2.0 * PAD, drawn.lines.len() as f64 * LINE + 2.0 * PAD)
}

struct SvgDrawing<'d> {
    dag: &'d Dag,
    metric: Metric,
    scale: Option<Scale>,
    frame: Frame<'d>,
    page: bool,
    tints: Option<&'d [Option<BoxTint>]>,
    drawn: &'d [Drawn],
    sizes: &'d [(f64, f64)],
    places: &'d DagLayout,
}

impl SvgDrawing<'_> {
    fn write(&self, out: &mut dyn Write, back: &[(usize, usize)]) -> io::Result<(f64, f64)> {
        let dag = self.dag;
        let head = self.head();
        let letters = head.iter().map(|l| l.chars().count()).max().unwrap_or(0);
        let bar = if self.page || self.scale.is_none() { 0.0 } else { BAR };
        let room = if self.page { 0.0 } else { 2.0 * LINE + bar };
        let top = MARGIN + head.len() as f64 * (LINE + 2.0) + room;
        let width = self.places.width.max(letters as f64 * CHAR) + 2.0 * MARGIN;
        let height = self.places.height + top + MARGIN;
        let name = match self.frame {
            Frame::Page => "id=\"dag\"".to_owned(),
            Frame::File => "xmlns=\"http://www.w3.org/2000/svg\"".to_owned(),
            Frame::Beside(part) => format!("x=\"{:.0}\"", part.x),
        };
        writeln!(
            out,
            "<svg {name} viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" \
             height=\"{height:.0}\" font-family=\"monospace\" font-size=\"{FONT}\" role=\"img\" aria-label=\"{}\">",
            xml(&title(dag))
        )?;
        writeln!(out, "<title>{}</title>", xml(&title(dag)))?;
        writeln!(out, "<defs>")?;
        writeln!(
            out,
            "<marker id=\"tip\" viewBox=\"0 0 6 6\" refX=\"6\" refY=\"3\" markerWidth=\"6\" markerHeight=\"6\" \
             orient=\"auto\"><path d=\"M0 0L6 3L0 6z\" fill=\"#667\"/></marker>"
        )?;
        writeln!(
            out,
            "<pattern id=\"gap\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\"><rect width=\"6\" \
             height=\"6\" fill=\"#f4f4f4\"/><path d=\"M0 6L6 0\" stroke=\"#c4c4c4\"/></pattern>"
        )?;
        writeln!(out, "</defs>")?;
        if !self.page {
            writeln!(out, "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>")?;
        }
        for (i, line) in head.iter().enumerate() {
            let y = MARGIN + i as f64 * (LINE + 2.0);
            writeln!(out, "<text x=\"{MARGIN}\" y=\"{y:.1}\">{}</text>", xml(line))?;
        }
        if bar > 0.0 {
            self.bar(out, MARGIN + (head.len() as f64 - 1.0) * (LINE + 2.0) + 8.0)?;
        }
        writeln!(out, "<g transform=\"translate({MARGIN} {top:.1})\">")?;
        self.blocks(out)?;
        for line in self.places.lines.iter().filter(|l| l.len() > 1) {
            let path = curve(line);
            writeln!(out, "<path d=\"{path}\" fill=\"none\" stroke=\"#889\" marker-end=\"url(#tip)\"/>")?;
        }
        for (from, to) in back {
            self.back(out, *from, *to)?;
        }
        for i in 0..self.drawn.len() {
            self.node(out, i)?;
        }
        writeln!(out, "</g>\n</svg>")?;
        Ok((width, height))
    }

    /// The colours from the lowest value to the highest, with both and that in the middle below.
    fn bar(&self, out: &mut dyn Write, y: f64) -> io::Result<()> {
        let Some(scale) = self.scale else { return Ok(()) };
        let width = 3.0 * BAR_PART;
        writeln!(out, "<g id=\"bar\"><linearGradient id=\"scale\">")?;
        for share in [0.0, 0.5, 1.0] {
            let colour = scale.colour(scale.value(share));
            writeln!(out, "<stop offset=\"{share}\" stop-color=\"{colour}\"/>")?;
        }
        writeln!(
            out,
            "</linearGradient><rect x=\"{MARGIN}\" y=\"{y:.1}\" width=\"{width}\" height=\"10\" fill=\"url(#scale)\" stroke=\"#556\"/>"
        )?;
        let ends = [(0.0, "start"), (0.5, "middle"), (1.0, "end")];
        // Equal values need one label only.
        let shown = if scale.high > scale.low { ends.len() } else { 1 };
        for (share, anchor) in ends.iter().take(shown) {
            writeln!(
                out,
                "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"{anchor}\">{}</text>",
                MARGIN + width * share,
                y + 10.0 + LINE,
                xml(&value(self.metric, scale.value(*share)))
            )?;
        }
        writeln!(out, "</g>")
    }

    /// Lines above the drawing; a page has them as its own text.
    fn head(&self) -> Vec<String> {
        if self.page {
            return Vec::new();
        }
        let mut head = match self.frame {
            Frame::Beside(part) => vec![part.name.to_owned()],
            _ => Vec::new(),
        };
        head.extend([title(self.dag), legend(self.dag, self.metric, self.scale.as_ref())]);
        head.extend(self.dag.notes.iter().map(|n| format!("Note: {n}")));
        head
    }

    /// Frames around the folded layers.
    fn blocks(&self, out: &mut dyn Write) -> io::Result<()> {
        let mut frames: Vec<Option<[f64; 4]>> = vec![None; self.dag.blocks.len()];
        for (i, d) in self.drawn.iter().enumerate() {
            let ((x, y), (w, h)) = (self.places.at[i], self.sizes[i]);
            let own = [x - w / 2.0, y - h / 2.0, x + w / 2.0, y + h / 2.0];
            if let Some(frame) = self.dag.nodes[d.node].block.and_then(|b| frames.get_mut(b)) {
                let a = frame.unwrap_or(own);
                *frame = Some([a[0].min(own[0]), a[1].min(own[1]), a[2].max(own[2]), a[3].max(own[3])]);
            }
        }
        for (block, frame) in frames.into_iter().enumerate() {
            let Some([left, top, right, bottom]) = frame else { continue };
            let (x, y) = (left - 8.0, top - 8.0);
            let (w, h) = (right - left + 16.0, bottom - top + 16.0);
            writeln!(
                out,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"6\" fill=\"#f3f7fb\" \
                 stroke=\"#a9bdd0\" stroke-dasharray=\"4 3\"/><text x=\"{:.1}\" y=\"{:.1}\" fill=\"#35506b\">{}</text>",
                x + 4.0,
                y - 3.0,
                xml(&block_title(self.dag, block))
            )?;
        }
        Ok(())
    }

    /// An edge from the bottom of one layer to the top of the next, around the left side.
    fn back(&self, out: &mut dyn Write, from: usize, to: usize) -> io::Result<()> {
        let ((x, y), (w, h)) = (self.places.at[from], self.sizes[from]);
        let ((u, v), (s, t)) = (self.places.at[to], self.sizes[to]);
        let (x, u) = (x - w / 2.0, u - s / 2.0);
        // Keep the ends apart if a box uses its own result from the previous layer.
        let (y, v) = (y + h / 4.0, v - t / 4.0);
        let (side, bend) = (-14.0, ((y - v) / 2.0).clamp(0.0, 20.0));
        writeln!(
            out,
            "<path d=\"M{x:.1} {y:.1}C{side} {y:.1} {side} {y:.1} {side} {:.1}V{:.1}C{side} {v:.1} {side} {v:.1} {u:.1} \
             {v:.1}\" fill=\"none\" stroke=\"#889\" stroke-dasharray=\"3 3\" marker-end=\"url(#tip)\"/>",
            y - bend,
            v + bend
        )
    }

    fn node(&self, out: &mut dyn Write, i: usize) -> io::Result<()> {
        let (d, (x, y), (w, h)) = (&self.drawn[i], self.places.at[i], self.sizes[i]);
        let n = &self.dag.nodes[d.node];
        let colour = n.figures[self.metric as usize].zip(self.scale).map(|(s, scale)| scale.colour(s.median));
        let colour = match self.tints {
            Some(tints) => tints.get(d.node).and_then(|tint| Some(tint.as_ref()?.fill)),
            None => colour,
        };
        let (fill, ink) = match (colour, n.role) {
            (Some(c), _) => (c.to_string(), c.ink()),
            (None, NodeRole::Op) => ("url(#gap)".to_owned(), "#333333"),
            (None, NodeRole::View) => ("#ffffff".to_owned(), "#666666"),
            (None, NodeRole::Copy) => (super::COPY.to_owned(), "#333333"),
            (None, _) => ("#f8f0ff".to_owned(), "#333333"),
        };
        let dashes = match n.role {
            NodeRole::Op => "",
            NodeRole::View => " stroke-dasharray=\"2 2\"",
            _ => " stroke-dasharray=\"5 3\"",
        };
        let (left, top) = (x - w / 2.0, y - h / 2.0);
        let class = if self.page { " class=\"n\"" } else { "" };
        writeln!(
            out,
            "<g{class}><title>{}</title><rect x=\"{left:.1}\" y=\"{top:.1}\" width=\"{w:.1}\" height=\"{h:.1}\" rx=\"3\" \
             fill=\"{fill}\" stroke=\"#556\"{}{dashes}/>",
            self.tip(d),
            frame(n)
        )?;
        for (k, line) in d.lines.iter().enumerate() {
            let (x, y) = (left + PAD, top + PAD + (k as f64 + 0.8) * LINE);
            let bold = if k == 0 && n.role == NodeRole::Op { " font-weight=\"bold\"" } else { "" };
            let value = if self.page && d.valued && k + 1 == d.lines.len() { " class=\"v\"" } else { "" };
            writeln!(
                out,
                "<text x=\"{x:.1}\" y=\"{y:.1}\" fill=\"{ink}\"{bold}{value}>{}</text>",
                xml(&cut(line, LONGEST))
            )?;
        }
        writeln!(out, "</g>")
    }

    /// All details of a node, as a tooltip.
    fn tip(&self, d: &Drawn) -> String {
        let n = &self.dag.nodes[d.node];
        let mut all = d.lines.clone();
        if n.role == NodeRole::View {
            all.extend(n.result().map(shape));
        }
        all.extend(n.time_share.map(|share| format!("share of the time: {} %", pct(share))));
        for (facts, s) in METRICS.iter().zip(n.figures) {
            all.push(match s {
                Some(s) => format!("{}: {}", facts.name, super::spread(facts.metric, &s)),
                None => format!("{}: -", facts.name),
            });
        }
        let all: Vec<String> = all.iter().map(|l| xml(l)).collect();
        all.join("\n")
    }
}

/// The frame of a node whose times are spread: half a pixel more for each half of the median by which the 95th percentile
/// is above it, up to 4 pixels.
fn frame(n: &Node) -> String {
    let spread = n.figures[Metric::Spread as usize].map_or(1.0, |s| s.median);
    let width = (1.0 + 0.5 * ((spread - 1.0) / 0.5).floor()).clamp(1.0, 4.0);
    if width > 1.0 { format!(" stroke-width=\"{width}\"") } else { String::new() }
}

/// A curve through points that is vertical at each of them.
fn curve(points: &[(f64, f64)]) -> String {
    let mut path = String::new();
    let mut before: Option<(f64, f64)> = None;
    for (x, y) in points {
        match before {
            None => path.push_str(&format!("M{x:.1} {y:.1}")),
            Some((u, v)) if (u - x).abs() < 0.05 && v <= *y => path.push_str(&format!("V{y:.1}")),
            Some((u, v)) => {
                let middle = (v + y) / 2.0;
                path.push_str(&format!("C{u:.1} {middle:.1} {x:.1} {middle:.1} {x:.1} {y:.1}"));
            }
        }
        before = Some((*x, *y));
    }
    path
}
