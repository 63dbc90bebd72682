//! Draws a chart. The colours are readable on white and on black; text and axes take the colour of the text around.

use std::fmt::Write as _;
use std::io::{self, Write};

use super::axis::{Axis, label};
use super::words;
use super::{Chart, Look, Panel, Scale, ScaleKind, Series};
use crate::dag::xml;
use crate::table::cut;

/// Width of a drawing: as a file, and on a page, where it also has to be readable on a phone.
const WIDTH: f64 = 760.0;
const PAGE_WIDTH: f64 = 520.0;
const FONT: f64 = 12.0;
const LINE: f64 = 16.0;
/// Space to the left for the labels and the name of an axis, below for the same, and around.
const LEFT: f64 = 68.0;
const FOOT: f64 = 44.0;
const MARGIN: f64 = 16.0;
/// Width of the place after the end of an axis.
const BEYOND: f64 = 76.0;
/// Maximum letters of a name in the legend; the tooltips have all of it.
const LONGEST: usize = 64;
/// Names beside places: their size, and the maximum letters and number of them.
const LABEL_FONT: f64 = 10.0;
const LONGEST_LABEL: usize = 24;
const LABELS: usize = 400;
/// Maximum length of a tooltip.
const LONGEST_TIP: usize = 400;

/// Colours of the kinds, for white and dark backgrounds, distinguishable with the common colour blindnesses.
const COLOURS: [&str; 8] =
    ["#2f7ed8", "#d9731a", "#2e9e6b", "#c0508e", "#8c6bd1", "#a08214", "#d1403a", "#3c9fb0"];
const GREY: &str = "#8a929b";

/// Path of a mark around its centre, from which it starts with a move.
const SHAPES: [&str; 5] = [
    "m-3.5 0a3.5 3.5 0 1 0 7 0a3.5 3.5 0 1 0 -7 0",
    "m-3-3h6v6h-6z",
    "m0-4.2l4 7h-8z",
    "m0-4.4l4.4 4.4l-4.4 4.4l-4.4-4.4z",
    "m0 4.2l4-7h-8z",
];

impl Look {
    fn colour(self) -> &'static str {
        match self {
            Look::Kind(n) => COLOURS.get(n % COLOURS.len()).unwrap_or(&GREY),
            Look::Reference => GREY,
        }
    }

    fn shape(self) -> &'static str {
        match self {
            Look::Kind(n) => SHAPES.get(n % SHAPES.len()).unwrap_or(&""),
            Look::Reference => SHAPES.first().unwrap_or(&""),
        }
    }
}

pub fn file(out: &mut dyn Write, chart: &Chart) -> io::Result<()> {
    let (mut body, mut y) = (String::new(), MARGIN + 6.0);
    text(&mut body, (MARGIN, y + 6.0), "font-size=\"16\" font-weight=\"bold\"", &chart.title);
    y += 14.0;
    paragraph(&mut body, &mut y, &chart.about, WIDTH);
    panels(&mut body, &mut y, chart, WIDTH);
    for note in &chart.notes {
        paragraph(&mut body, &mut y, note, WIDTH);
    }
    let height = y + MARGIN;
    writeln!(
        out,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {height:.0}\" width=\"{WIDTH}\" \
         height=\"{height:.0}\" style=\"max-width:100%;height:auto\" font-family=\"system-ui, sans-serif\" font-size=\"{FONT}\" fill=\"currentColor\" \
         role=\"img\" aria-labelledby=\"t d\">"
    )?;
    writeln!(
        out,
        "<title id=\"t\">{}</title><desc id=\"d\">{}</desc>",
        xml(&chart.title),
        xml(&chart.about)
    )?;
    writeln!(
        out,
        "<style>svg{{color:#1b1f24}}@media(prefers-color-scheme:dark){{svg{{color:#e4e8ec}}.back{{fill:#14171b}}}}</style>"
    )?;
    writeln!(out, "<rect class=\"back\" width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>")?;
    writeln!(out, "{body}</svg>")
}

pub fn figure(out: &mut dyn Write, chart: &Chart, id: &str) -> io::Result<()> {
    let (mut body, mut y) = (String::new(), 4.0);
    panels(&mut body, &mut y, chart, PAGE_WIDTH);
    writeln!(
        out,
        "<figure><svg class=\"chart\" id=\"{id}\" viewBox=\"0 0 {PAGE_WIDTH} {y:.0}\" fill=\"currentColor\" role=\"img\" \
         aria-labelledby=\"{id}-t {id}-d\"><title id=\"{id}-t\">{}</title><desc id=\"{id}-d\">{}</desc>",
        xml(&chart.title),
        xml(&chart.about)
    )?;
    let notes: Vec<&str> =
        [&chart.title, &chart.about].into_iter().chain(&chart.notes).map(|s| s.as_str()).collect();
    let caption: Vec<String> = notes.iter().filter(|n| !n.is_empty()).map(|n| sentence(n)).collect();
    writeln!(out, "{body}</svg><figcaption>{}</figcaption></figure>", xml(&caption.join(" ")))
}

fn sentence(text: &str) -> String {
    if text.ends_with(['.', ':']) { text.to_owned() } else { format!("{text}.") }
}

fn text(body: &mut String, (x, y): (f64, f64), how: &str, what: &str) {
    let gap = if how.is_empty() { "" } else { " " };
    let _ = writeln!(body, "<text x=\"{x:.1}\" y=\"{y:.1}\"{gap}{how}>{}</text>", xml(what));
}

fn paragraph(body: &mut String, y: &mut f64, what: &str, width: f64) {
    for line in words::lines(what, FONT, width - 2.0 * MARGIN) {
        *y += LINE;
        text(body, (MARGIN, *y), "", &line);
    }
}

fn panels(body: &mut String, y: &mut f64, chart: &Chart, width: f64) {
    for panel in &chart.panels {
        legend(body, y, panel, width);
        let (top, foot) = (*y + 12.0, *y + 12.0 + panel.height);
        let x = axis(&panel.x, values(panel, |p| p.0), LEFT, width - MARGIN);
        let up = axis(&panel.y, values(panel, |p| p.1), foot, top);
        body.push_str("<g class=\"panel\">\n");
        grid(body, panel, (&x, &up), (top, foot), width);
        for s in &panel.series {
            series(body, s, (&x, panel.x.beyond.is_some()), &up);
        }
        labels(body, panel, &x, &up);
        body.push_str("</g>\n");
        *y = foot + FOOT;
    }
}

/// The names of the series that have one, in rows.
fn legend(body: &mut String, y: &mut f64, panel: &Panel, width: f64) {
    let named: Vec<&Series> = panel.series.iter().filter(|s| !s.name.is_empty()).collect();
    if named.is_empty() {
        return;
    }
    let mut x = LEFT;
    *y += LINE + 4.0;
    body.push_str("<g class=\"legend\">\n");
    for s in named {
        let name = cut(&s.name, LONGEST);
        let wide = 30.0 + words::width(&name, FONT);
        if x > LEFT && x + wide > width - MARGIN {
            (x, *y) = (LEFT, *y + LINE);
        }
        let (colour, at) = (s.look.colour(), *y - 4.0);
        if !s.line.is_empty() {
            let _ = writeln!(body, "<path d=\"M{x:.1} {at:.1}h18\" {}/>", stroke(s.look));
        }
        if !s.strokes.is_empty() {
            let _ = writeln!(body, "<path d=\"M{x:.1} {at:.1}h18\" stroke=\"{colour}\" stroke-width=\"4\"/>");
        }
        if !s.points.is_empty() {
            let _ =
                writeln!(body, "<path d=\"M{:.1} {at:.1}{}\" fill=\"{colour}\"/>", x + 9.0, s.look.shape());
        }
        text(body, (x + 24.0, *y), "", &name);
        x += wide + 14.0;
    }
    body.push_str("</g>\n");
}

fn stroke(look: Look) -> String {
    let dashes = if look == Look::Reference { " stroke-dasharray=\"5 4\"" } else { "" };
    format!("fill=\"none\" stroke=\"{}\" stroke-width=\"1.6\"{dashes}", look.colour())
}

/// The finite coordinates of all marks and lines.
fn values(panel: &Panel, of: fn((f64, f64)) -> f64) -> Vec<f64> {
    let marks = panel.series.iter().flat_map(|s| s.points.iter().map(|p| (p.x, p.y)));
    let lines = panel.series.iter().flat_map(|s| s.line.iter().copied());
    let strokes =
        panel.series.iter().flat_map(|s| &s.strokes).flat_map(|[from, to, y]| [(*from, *y), (*to, *y)]);
    marks.chain(lines).chain(strokes).map(of).filter(|v| v.is_finite()).collect()
}

fn axis(scale: &Scale, values: Vec<f64>, from: f64, to: f64) -> Axis {
    let to = if scale.beyond.is_some() { to - BEYOND * (to - from).signum() } else { to };
    let high = values.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let low = |least: f64| values.iter().copied().filter(|v| *v > least).fold(f64::INFINITY, f64::min);
    match scale.kind {
        ScaleKind::Zero => Axis::linear(high, from, to),
        ScaleKind::Around => Axis::around(low(f64::NEG_INFINITY), high, from, to),
        ScaleKind::Log => Axis::close(low(0.0), high, from, to),
        ScaleKind::Each => {
            let (low, high) = (low(f64::NEG_INFINITY), high);
            let room = ((high - low) * 0.08).max(0.5);
            let (low, high) = if low.is_finite() { (low - room, high + room) } else { (0.0, 1.0) };
            Axis { low, high, log: false, from, to }
        }
    }
}

/// The position of a value, or of the place after the end if it is infinite.
fn at(axis: &Axis, value: f64) -> f64 {
    if value == f64::INFINITY {
        axis.to + (BEYOND + 16.0) * (axis.to - axis.from).signum() / 2.0
    } else {
        axis.at(value)
    }
}

fn ticks(scale: &Scale, axis: &Axis, values: Vec<f64>) -> Vec<f64> {
    if scale.kind != ScaleKind::Each {
        return axis.ticks();
    }
    let mut all = values;
    common::order::by_key(&mut all, |v| (common::order::fraction(*v), 0));
    all.dedup();
    all
}

fn grid(body: &mut String, panel: &Panel, (x, y): (&Axis, &Axis), (top, foot): (f64, f64), width: f64) {
    let right = width - MARGIN;
    let line = "stroke=\"currentColor\" stroke-opacity=\".16\"";
    body.push_str("<g class=\"x-axis\" text-anchor=\"middle\">\n");
    let mut taken = f64::NEG_INFINITY;
    for tick in ticks(&panel.x, x, values(panel, |p| p.0)) {
        let (at, name) = (x.at(tick), label(tick));
        let _ = writeln!(body, "<path d=\"M{at:.1} {top:.1}V{foot:.1}\" {line}/>");
        // A label without room is left out, never its line.
        let half = words::width(&name, FONT) / 2.0 + 2.0;
        if at - half >= taken {
            taken = at + half;
            text(body, (at, foot + 16.0), "", &name);
        }
    }
    if let Some(name) = panel.x.beyond {
        let (from, to) = (x.to + 16.0, right);
        let _ = writeln!(
            body,
            "<rect x=\"{from:.1}\" y=\"{top:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill-opacity=\".06\"/>",
            to - from,
            foot - top
        );
        text(body, ((from + to) / 2.0, foot + 16.0), "", name);
    }
    let log = |scale: &Scale| if scale.kind == ScaleKind::Log { ", logarithmic" } else { "" };
    let name = format!("{}{}", panel.x.name, log(&panel.x));
    text(body, ((LEFT + right) / 2.0, foot + 34.0), "", &name);
    body.push_str("</g>\n<g class=\"y-axis\" text-anchor=\"end\">\n");
    for tick in ticks(&panel.y, y, values(panel, |p| p.1)) {
        let at = y.at(tick);
        let _ = writeln!(body, "<path d=\"M{LEFT} {at:.1}H{right}\" {line}/>");
        text(body, (LEFT - 6.0, at + 4.0), "", &label(tick));
    }
    let (middle, name) = ((top + foot) / 2.0, format!("{}{}", panel.y.name, log(&panel.y)));
    let turned = format!("text-anchor=\"middle\" transform=\"rotate(-90 {MARGIN} {middle:.1})\"");
    text(body, (MARGIN, middle), &turned, &name);
    body.push_str("</g>\n");
}

fn series(body: &mut String, s: &Series, (x, beyond): (&Axis, bool), y: &Axis) {
    let placed = |(a, b): (f64, f64)| b.is_finite() && (a.is_finite() || beyond && a == f64::INFINITY);
    let name = cut(&s.name, LONGEST);
    let _ = writeln!(body, "<g class=\"series\" aria-label=\"{}\">", xml(&name));
    if !s.points.is_empty() {
        let (colour, shape) = (s.look.colour(), s.look.shape());
        let _ = writeln!(body, "<g class=\"marks\" fill=\"{colour}\" fill-opacity=\".75\">");
        for p in s.points.iter().filter(|p| placed((p.x, p.y))) {
            let about = xml(&cut(&p.about, LONGEST_TIP));
            let _ = writeln!(
                body,
                "<path d=\"M{:.1} {:.1}{shape}\"><title>{about}</title></path>",
                at(x, p.x),
                at(y, p.y)
            );
        }
        body.push_str("</g>\n");
    }
    if !s.strokes.is_empty() {
        let wide = ((y.to - y.from) / (y.high - y.low)).abs() * 0.8;
        let mut path = String::new();
        for [from, to, at] in s.strokes.iter().filter(|s| s.iter().all(|v| v.is_finite())) {
            let _ = write!(path, "M{:.1} {:.1}H{:.1}", x.at(*from), y.at(*at), x.at(*to));
        }
        let _ = writeln!(
            body,
            "<path class=\"strokes\" d=\"{path}\" stroke=\"{}\" stroke-width=\"{:.1}\"/>",
            s.look.colour(),
            wide.clamp(0.8, 6.0)
        );
    }
    if let [_, _, ..] = &*s.line {
        let mut path = String::new();
        for (i, (a, b)) in s.line.iter().filter(|p| placed(**p)).enumerate() {
            let _ = write!(path, "{}{:.1} {:.1}", if i == 0 { 'M' } else { 'L' }, at(x, *a), at(y, *b));
        }
        let about = xml(&cut(&s.line_about, LONGEST_TIP));
        let _ = writeln!(
            body,
            "<path class=\"line\" d=\"{path}\" {}><title>{about}</title></path>",
            stroke(s.look)
        );
    }
    body.push_str("</g>\n");
}

/// Names beside their places, as far as there is room.
fn labels(body: &mut String, panel: &Panel, x: &Axis, y: &Axis) {
    let mut taken: Vec<[f64; 4]> = Vec::new();
    let placed = |(a, b, _): &&(f64, f64, String)| a.is_finite() && b.is_finite();
    for (a, b, name) in panel.series.iter().flat_map(|s| &s.labels).filter(placed).take(LABELS) {
        let name = cut(name, LONGEST_LABEL);
        let wide = words::width(&name, LABEL_FONT);
        let (at, up) = (x.at(*a), y.at(*b));
        // To the left of places near the end.
        let left = if at + 7.0 + wide > x.to { at - 7.0 - wide } else { at + 7.0 };
        let room = [left, up - LABEL_FONT / 2.0, left + wide, up + LABEL_FONT / 2.0];
        let covers = |t: &[f64; 4]| room[0] < t[2] && t[0] < room[2] && room[1] < t[3] && t[1] < room[3];
        if left < x.from || taken.iter().any(covers) {
            continue;
        }
        taken.push(room);
        text(body, (left, up + 3.5), &format!("class=\"label\" font-size=\"{LABEL_FONT}\""), &name);
    }
}
