//! Charts as SVG: axes with units, points, lines, a legend, and a tooltip on every mark. Used for files and for parts of
//! a page. Names come from a target; all text is escaped here.

pub mod axis;
mod draw;
mod words;

use std::io::{self, Write};

/// A chart: panels below one another that share nothing but the width.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Chart {
    pub title: String,
    /// What is shown, in a sentence or two, below the title.
    pub about: String,
    pub panels: Vec<Panel>,
    /// Below the drawing.
    pub notes: Vec<String>,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Panel {
    pub x: Scale,
    pub y: Scale,
    pub series: Vec<Series>,
    /// Height of the plot area, pixels.
    pub height: f64,
}

/// What an axis shows.
#[derive(Debug, Clone, PartialEq)]
pub struct Scale {
    /// With the unit in parentheses.
    pub name: String,
    pub kind: ScaleKind,
    /// Name of an extra place after the end, for values that are infinite.
    pub beyond: Option<&'static str>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ScaleKind {
    /// From 0.
    Zero,
    /// Around the values.
    Around,
    Log,
    /// Around the values, with whole numbers at the values only.
    Each,
}

/// Points of a kind, and a line.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Series {
    /// In the legend; empty: in no legend.
    pub name: String,
    pub look: Look,
    pub points: Vec<Mark>,
    /// A line through these places.
    pub line: Vec<(f64, f64)>,
    /// Tooltip of the line.
    pub line_about: String,
    /// Horizontal strokes: from x, to x, at y.
    pub strokes: Vec<[f64; 3]>,
    /// Names beside places. One that would cover another is left out.
    pub labels: Vec<(f64, f64, String)>,
}

/// Colour and shape: kinds differ in both.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Look {
    /// The n-th kind.
    Kind(usize),
    /// For comparison only: grey, the line dashed.
    #[default]
    Reference,
}

#[derive(Debug, Clone, PartialEq)]
pub struct Mark {
    pub x: f64,
    pub y: f64,
    /// Tooltip.
    pub about: String,
}

impl Scale {
    pub fn new(name: impl Into<String>, kind: ScaleKind) -> Scale {
        Scale { name: name.into(), kind, beyond: None }
    }
}

/// Writes a chart as a file.
pub fn file(out: &mut dyn Write, chart: &Chart) -> io::Result<()> {
    draw::file(out, chart)
}

/// Writes a chart as a figure of a page; `id` must be unique there.
pub fn figure(out: &mut dyn Write, chart: &Chart, id: &str) -> io::Result<()> {
    draw::figure(out, chart, id)
}

#[cfg(test)]
mod tests;
