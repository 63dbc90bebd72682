//! The engine's graph within a page: a drawing that the script recolours and zooms, and the same data as a table.

use std::io::{self, Write};

use super::markup::{self, gap, say, text};
use crate::dag::colour::{Colour, STOPS, Scale};
use crate::dag::{legend, shape, spread, svg, title};
use crate::table::{Column, Table, named, number, text as words};
use analysis::questions::dag::{Dag, DagError, METRICS, Metric, MetricFacts, Spread};
use serde::Serialize;

/// Maximum boxes of a drawing; a larger one is of no use on a page.
const MOST: usize = 800;

/// The graph, or why it cannot be drawn.
pub enum GraphSection<'d> {
    Drawn(&'d Dag),
    Not(String),
}

impl<'d> GraphSection<'d> {
    pub fn of(dag: &'d Result<Dag, DagError>) -> GraphSection<'d> {
        match dag {
            Ok(dag) if svg::drawn(dag).len() <= MOST => GraphSection::Drawn(dag),
            Ok(dag) => GraphSection::Not(format!(
                "it has {} boxes, too many for a page; `profinfer dag FILE --layer L -o layer.svg` draws one layer",
                svg::drawn(dag).len()
            )),
            Err(why) => GraphSection::Not(why.to_string()),
        }
    }
}

/// Writes the contents of the section.
pub fn write(out: &mut dyn Write, graph: &GraphSection<'_>) -> io::Result<()> {
    let dag = match graph {
        GraphSection::Drawn(dag) => dag,
        GraphSection::Not(why) => return gap(out, &format!("There is no graph to draw: {why}.")),
    };
    say(
        out,
        &format!(
            "{}. Boxes are ops in execution order; weights are listed in the ops that use them.",
            title(dag)
        ),
    )?;
    for note in &dag.notes {
        say(out, &format!("Note: {note}."))?;
    }
    let first = METRICS.iter().find(|m| dag.has(m.metric)).map_or(Metric::Time, |m| m.metric);
    tools(out, dag, first)?;
    let label = text("Graph: + and - zoom, 0 fits it to the view, arrow keys move it");
    writeln!(
        out,
        "<div id=\"dag-box\" class=\"scroll\" tabindex=\"0\" role=\"region\" aria-label=\"{label}\">"
    )?;
    svg::in_page(out, dag, first)?;
    writeln!(out, "</div>")?;
    markup::folded(out, &table(dag), "order", "The graph as a table", false)
}

fn tools(out: &mut dyn Write, dag: &Dag, first: Metric) -> io::Result<()> {
    writeln!(out, "<p class=\"tools\" hidden><label>Colour by <select id=\"metric\">")?;
    for (i, m) in METRICS.iter().enumerate() {
        let missing = if dag.has(m.metric) { "" } else { " (not recorded)" };
        let selected = if m.metric == first { " selected" } else { "" };
        writeln!(out, "<option value=\"{i}\"{selected}>{}{missing}</option>", text(m.name))?;
    }
    writeln!(
        out,
        "</select></label> <span class=\"zoom\" role=\"group\" aria-label=\"Zoom\">\
         <button type=\"button\" id=\"zoom-out\" aria-label=\"Smaller\">\u{2212}</button>\
         <button type=\"button\" id=\"zoom-in\" aria-label=\"Larger\">+</button>\
         <button type=\"button\" id=\"zoom-fit\">Fit</button></span></p>"
    )?;
    let scale = Scale::of(dag, first);
    let [low, middle, high] = STOPS.map(|rgb| Colour::from(rgb).to_string());
    writeln!(
        out,
        "<svg class=\"scale\" viewBox=\"0 0 240 10\" width=\"240\" height=\"10\" role=\"img\" aria-label=\"{}\"><defs><linearGradient \
         id=\"scale\"><stop stop-color=\"{low}\"/><stop offset=\".5\" stop-color=\"{middle}\"/><stop offset=\"1\" \
         stop-color=\"{high}\"/></linearGradient></defs><rect width=\"240\" height=\"10\" fill=\"url(#scale)\"/></svg>",
        text("Colours from the lowest value, on the left, to the highest")
    )?;
    writeln!(out, "<p id=\"legend\" role=\"status\">{}</p>", text(&legend(dag, first, scale.as_ref())))
}

/// The boxes for one metric.
#[derive(Serialize)]
struct Shown {
    legend: String,
    /// Of each box, its colour and that of its text.
    fill: Vec<Option<String>>,
    text: Vec<String>,
}

/// Colours and values of the boxes for each metric, for the script: a list, empty without a graph.
///
/// # Errors
/// They cannot be serialized.
pub fn data(graph: &GraphSection<'_>) -> io::Result<String> {
    let GraphSection::Drawn(dag) = graph else { return Ok("[]".into()) };
    let nodes = svg::drawn(dag);
    let one = |m: &MetricFacts| {
        let scale = Scale::of(dag, m.metric);
        let values = || nodes.iter().map(|node| dag.nodes[*node].figures[m.metric as usize]);
        let colours = |value: Option<Spread>| match value.zip(scale) {
            Some((s, scale)) => {
                let colour = scale.colour(s.median);
                [Some(colour.to_string()), Some(colour.ink().to_string())]
            }
            None => [None, None],
        };
        let shown =
            |value: Option<Spread>| value.map_or_else(|| svg::NO_VALUE.into(), |s| spread(m.metric, &s));
        markup::json(&Shown {
            legend: legend(dag, m.metric, scale.as_ref()),
            fill: values().flat_map(colours).collect(),
            text: values().map(shown).collect(),
        })
    };
    let metrics = METRICS.iter().map(one).collect::<Result<Vec<String>, _>>()?;
    Ok(format!("[{}]", metrics.join(",\n")))
}

fn table(dag: &Dag) -> Table {
    let mut columns: Vec<Column> =
        vec![number("order", 0), words("op"), words("name"), words("result"), words("takes")];
    let there: Vec<&MetricFacts> = METRICS.iter().filter(|m| dag.has(m.metric)).collect();
    columns.extend(there.iter().map(|m| named(m.name, 0)));
    let mut t = Table::new(columns);
    for i in svg::drawn(dag) {
        let n = &dag.nodes[i];
        let takes = dag.sources(i).iter().filter(|e| e.from != i || e.back);
        let takes: Vec<&str> = takes.filter_map(|e| Some(dag.nodes.get(e.from)?.name())).collect();
        let mut cells = vec![
            n.order.map_or_else(|| svg::NO_VALUE.into(), |o| o.to_string()),
            n.op(),
            n.name().to_owned(),
            n.result().map_or_else(String::new, shape),
            takes.join(", "),
        ];
        let value = |m: &&MetricFacts| match n.figures[m.metric as usize] {
            Some(s) => spread(m.metric, &s),
            None => svg::NO_VALUE.into(),
        };
        cells.extend(there.iter().map(value));
        t.row(cells);
    }
    t
}
