//! The engine's graph within a page: a drawing that the script recolours and zooms, and the same data as a table.

use std::io::{self, Write};

use super::markup::{self, gap, say, text};
use crate::dag::colour::Scale;
use crate::dag::{legend, shape, spread, svg, title};
use crate::table::{Column, Table, named, number, text as words};
use analysis::dag::{Dag, DagError, METRICS, Metric, MetricFacts};

/// Maximum boxes of a drawing; a larger one is of no use on a page.
const MOST: usize = 800;

/// The graph, or why it cannot be drawn.
pub enum Graph<'d> {
    Drawn(&'d Dag),
    Not(String),
}

impl<'d> Graph<'d> {
    pub fn of(dag: &'d Result<Dag, DagError>) -> Graph<'d> {
        match dag {
            Ok(dag) if svg::drawn(dag).len() <= MOST => Graph::Drawn(dag),
            Ok(dag) => Graph::Not(format!(
                "it has {} boxes, which is too many for a page; `profinfer dag FILE --layer L -o layer.svg` draws one layer",
                svg::drawn(dag).len()
            )),
            Err(why) => Graph::Not(why.to_string()),
        }
    }
}

/// Writes the contents of the section.
pub fn write(out: &mut dyn Write, graph: &Graph<'_>) -> io::Result<()> {
    let dag = match graph {
        Graph::Drawn(dag) => dag,
        Graph::Not(why) => return gap(out, &format!("There is no graph to draw: {why}.")),
    };
    say(
        out,
        &format!(
            "{}. Boxes are ops in the order they ran in, weights are told in the ops that take them.",
            title(dag)
        ),
    )?;
    for note in &dag.notes {
        say(out, &format!("Note: {note}."))?;
    }
    let first = METRICS.iter().find(|m| dag.has(m.metric)).map_or(Metric::Time, |m| m.metric);
    tools(out, dag, first)?;
    let label = text("The graph; + and - zoom, 0 fits it in, arrows move it");
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
    writeln!(out, "<p id=\"legend\" role=\"status\">{}</p>", text(&legend(first, scale.as_ref())))
}

/// Colours and values of the boxes for each metric, for the script.
pub fn data(graph: &Graph<'_>) -> String {
    let Graph::Drawn(dag) = graph else { return "{\"metrics\":[]}".into() };
    let nodes = svg::drawn(dag);
    let list = |of: &mut dyn FnMut(usize) -> String| {
        nodes.iter().map(|node| of(*node)).collect::<Vec<String>>().join(",")
    };
    let one = |m: &MetricFacts| {
        let scale = Scale::of(dag, m.metric);
        let value = |node: usize| dag.nodes[node].figures[m.metric as usize];
        let fill = list(&mut |node| match value(node).zip(scale) {
            Some((s, scale)) => {
                let colour = scale.colour(s.median);
                format!("\"{colour}\",\"{}\"", colour.ink())
            }
            None => "null,null".into(),
        });
        let shown = list(&mut |node| {
            markup::json(&value(node).map_or_else(|| svg::NO_VALUE.into(), |s| spread(m.metric, &s)))
        });
        let legend = markup::json(&legend(m.metric, scale.as_ref()));
        format!("{{\"legend\":{legend},\"fill\":[{fill}],\"text\":[{shown}]}}")
    };
    format!("{{\"metrics\":[{}]}}", METRICS.iter().map(one).collect::<Vec<String>>().join(",\n"))
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
