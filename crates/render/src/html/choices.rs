//! The answer of `profinfer tune` as a page: the lines to copy, a picture of the choices, and the tables.

use std::collections::BTreeSet;
use std::io::{self, Write};

use super::markup::{self, heading, say, text};
use super::{PageHead, close, filters, head};
use crate::chart;
use crate::tune as terminal;
use tune::answer::{Answer, WorkAnswer};

/// Writes the page. `tool` is the program and its version.
///
/// # Errors
/// `out` cannot be written.
pub fn write(out: &mut dyn Write, a: &Answer, tool: &str) -> io::Result<()> {
    let works = a.works.iter().map(|w| (w.work, terminal::capital(w.work)));
    let sections: Vec<(&str, &str)> = std::iter::once(("best", "Best")).chain(works).collect();
    let name = format!("Choices for {}", a.command);
    head(out, &PageHead { name: &name, about: &terminal::machine(a), sections: &sections, tool })?;
    filters(out, &[], &BTreeSet::new())?;
    markup::section(out, "best", "Best")?;
    for line in &a.lines {
        say(out, &format!("{}: {}", terminal::capital(line.goal), terminal::figures(line)))?;
        writeln!(out, "<p><code>{}</code></p>", text(&line.command))?;
    }
    say(out, &format!("Energy: {}.", terminal::energy(a)))?;
    a.notes.iter().try_for_each(|note| say(out, note))?;
    markup::end(out)?;
    for work in &a.works {
        markup::section(out, work.work, terminal::capital(work.work))?;
        of_work(out, a, work)?;
        markup::end(out)?;
    }
    close(out, "{\"phase\":\"\",\"timeline\":null,\"metrics\":[]}")
}

fn of_work(out: &mut dyn Write, a: &Answer, work: &WorkAnswer) -> io::Result<()> {
    let whole = if work.complete { "" } else { "CUT SHORT: " };
    say(out, &format!("{whole}{}; {}.", work.ended, work.sure))?;
    let title = format!("Choices for {}", work.work);
    let about = "Each point is a choice of CPUs and threads.".to_owned();
    let panels = vec![terminal::panel(work, a.energy.is_some())];
    let picture = chart::Chart { title, about, panels, notes: Vec::new() };
    chart::figure(out, &picture, &format!("{}-chart", work.work))?;
    markup::table(out, &terminal::tried(work, a.energy.is_some()), "CPUs", "Choices", true)?;
    if !work.settings.is_empty() {
        heading(out, "Settings")?;
        markup::table(out, &terminal::settings(work), "setting", "Settings", false)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use tune::answer::{EnergySource, Line, Measured, TriedRow};

    fn row(cpus: &str, tokens_per_s: f64, joules: f64, pareto: bool) -> TriedRow {
        let measured = Measured {
            tokens_per_s,
            scatter: Some(0.01),
            joules_per_token: Some(joules),
            uah_per_token: None,
            runs: 1,
            celsius: None,
            seen_on: cpus.to_owned(),
        };
        let (cpus, measured) = (cpus.to_owned(), Some(measured));
        TriedRow { cpus, threads: 1, free: false, measured, refused: None, pareto }
    }

    #[test]
    fn a_page_has_the_lines_the_picture_and_the_table() {
        let work = WorkAnswer {
            work: "decode",
            tried: vec![row("0", 10.0, 1.0, true), row("1", 20.0, 2.0, true), row("2", 5.0, 3.0, false)],
            fastest: Some(1),
            chosen: Some(0),
            default: None,
            complete: false,
            ended: "the time is over".into(),
            sure: "not sure".into(),
            settings: Vec::new(),
        };
        let line = Line {
            goal: "energy",
            work: "decode",
            command: "taskset -c 0 llama-cli -p '<b>'".into(),
            tokens_per_s: 10.0,
            prefill_tokens_per_s: None,
            joules_per_token: Some(1.0),
            over_default: None,
            differs: false,
        };
        let answer = Answer {
            schema: 1,
            command: "llama-cli <m>".into(),
            model: None,
            engine: None,
            cpu_model: String::new(),
            kernel: String::new(),
            clusters: Vec::new(),
            goal: "energy",
            slack: 0.08,
            energy: Some(EnergySource { name: "battery".into(), model: false }),
            no_energy: None,
            works: vec![work],
            lines: vec![line],
            notes: vec!["a note".into()],
            runs: 3,
            kept_runs: 0,
            seconds: 1.0,
        };
        let mut page = Vec::new();
        write(&mut page, &answer, "profinfer").expect("memory");
        let page = String::from_utf8(page).expect("UTF-8");
        for part in [
            "<code>taskset -c 0 llama-cli -p '&lt;b&gt;'</code>",
            "id=\"decode-chart\"",
            "no other is faster and takes less energy",
            "CUT SHORT: the time is over; not sure.",
            "Energy: battery.",
            "a note",
            "</html>",
        ] {
            assert!(page.contains(part), "{part}: {page}");
        }
        assert!(!page.contains("<b>") && !page.contains("<m>"), "{page}");
    }
}
