//! The files that `profinfer score` takes accuracy from.

use std::collections::HashMap;
use std::fs;
use std::path::Path;

use anyhow::{Context, bail};

use super::QualityKind;
use serde::Deserialize;

/// A figure for each trace, in their order.
pub struct Figures {
    pub kind: QualityKind,
    /// `None`: the file has none for this trace.
    pub of_runs: Vec<Option<f64>>,
}

fn text(file: &Path) -> anyhow::Result<String> {
    let shown = file.display();
    let bytes = fs::read(file).with_context(|| format!("cannot read {shown}"))?;
    String::from_utf8(bytes).ok().with_context(|| format!("{shown} is no UTF-8 text"))
}

/// Reads the accuracies of runs by their names.
///
/// # Errors
/// The file cannot be read, or a line is not as expected.
pub fn accuracies(file: &Path, names: &[String]) -> anyhow::Result<Figures> {
    let shown = file.display();
    let text = text(file)?;
    let all = table(&text).map_err(|why| anyhow::anyhow!("{shown}: {why}"))?;
    let known = |name: &String| {
        let base = Path::new(name).file_name().map(|n| n.to_string_lossy());
        all.get(name.as_str()).or_else(|| all.get(&*base?)).copied()
    };
    let of_runs: Vec<Option<f64>> = names.iter().map(known).collect();
    if of_runs.iter().all(Option::is_none) {
        bail!(
            "{shown} names none of the traces: a line is the name of a trace, white space and its accuracy"
        );
    }
    Ok(Figures { kind: QualityKind::Accuracy, of_runs })
}

/// Names with their accuracies.
fn table(text: &str) -> Result<HashMap<&str, f64>, String> {
    let mut all = HashMap::new();
    for (number, line) in (1..).zip(text.lines()) {
        let line = line.split_once('#').map_or(line, |(line, _)| line).trim();
        if line.is_empty() {
            continue;
        }
        let parts = line.rsplit_once(char::is_whitespace);
        let (name, value) = parts.ok_or_else(|| {
            format!("line {number}: '{line}': expected the name of a trace, white space and its accuracy")
        })?;
        let share = share(value).ok_or_else(|| {
            format!("line {number}: '{value}': expected an accuracy from 0 to 1, or from 0% to 100%")
        })?;
        if all.insert(name.trim_end(), share).is_some() {
            return Err(format!("line {number}: '{}' occurs twice", name.trim_end()));
        }
    }
    Ok(all)
}

fn share(text: &str) -> Option<f64> {
    let value = match text.strip_suffix('%') {
        Some(percent) => percent.parse::<f64>().ok()? / 100.0,
        None => text.parse().ok()?,
    };
    (0.0..=1.0).contains(&value).then_some(value)
}

/// What is read of an answer of `ggml-runner perplexity --json`.
#[derive(Deserialize)]
struct Answer {
    text: String,
    text_id: String,
    vocabulary_id: String,
    context: u64,
    scored: u64,
    perplexity: f64,
}

/// Reads perplexities, one file for each trace.
///
/// # Errors
/// A file is not such an answer, or two are not comparable.
pub fn perplexities(files: &[String]) -> anyhow::Result<Figures> {
    let read = |file: &String| -> anyhow::Result<Answer> {
        let found = serde_json::from_str(&text(Path::new(file))?);
        found.with_context(|| format!("{file} is no answer of 'ggml-runner perplexity --json'"))
    };
    let all = files.iter().map(read).collect::<anyhow::Result<Vec<Answer>>>()?;
    for (file, answer) in files.iter().zip(&all) {
        if let (Some(first), Some(name)) = (all.first(), files.first())
            && let Some(why) = difference(first, answer)
        {
            bail!(
                "{name} and {file} cannot be compared: {why}; run 'ggml-runner perplexity' on both models with the same \
                 -f, -c and --chunks"
            );
        }
    }
    let of_runs = all.iter().map(|a| Some(a.perplexity)).collect();
    Ok(Figures { kind: QualityKind::Perplexity, of_runs })
}

fn difference(a: &Answer, b: &Answer) -> Option<String> {
    if a.text_id != b.text_id {
        return Some(format!("they are of different texts, {} and {}", a.text, b.text));
    }
    if a.vocabulary_id != b.vocabulary_id {
        return Some("the models have different vocabularies".to_owned());
    }
    if a.context != b.context {
        return Some(format!("chunks of {} and of {} tokens", a.context, b.context));
    }
    (a.scored != b.scored).then(|| format!("{} and {} tokens were scored", a.scored, b.scored))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_text_is_accuracies_or_an_error(text in "([a-z .]{0,9}[ \\t][-+0-9.e%#nai]{0,8}\n?){0,6}|.{0,80}") {
            match table(&text) {
                Ok(all) => prop_assert!(all.values().all(|share| (0.0..=1.0).contains(share))),
                Err(why) => prop_assert!(why.starts_with("line ")),
            }
        }

        #[test]
        fn any_text_is_an_answer_or_an_error(key in "[a-z_]{0,8}", number in any::<f64>(), text in ".{0,60}") {
            let fields = r#""text":"t","text_id":"i","vocabulary_id":"v","context":8,"scored":4"#;
            for text in [text, format!(r#"{{{fields},"perplexity":{number}}}"#), format!(r#"{{{fields},"{key}":{number}}}"#)] {
                if let Ok(answer) = serde_json::from_str::<Answer>(&text) {
                    prop_assert!(answer.perplexity.is_finite());
                }
            }
        }
    }

    #[test]
    fn accuracies_are_read_as_people_write_them() {
        let text = "# arc-easy\nf16.pfi\t0.652\nmy run.pfi  61.5%   # with a space\n\nzero 0\n";
        let all = table(text).expect("valid");
        assert_eq!((all.len(), all["f16.pfi"], all["my run.pfi"], all["zero"]), (3, 0.652, 0.615, 0.0));
        for (wrong, why) in [
            ("a.pfi", "line 1: 'a.pfi': expected the name"),
            ("a 1\nb 65.2", "line 2: '65.2': expected an accuracy from 0 to 1"),
            ("a -1%", "'-1%'"),
            ("a nan", "'nan'"),
            ("a 101%", "'101%'"),
            ("a 1\na 0.5", "line 2: 'a' occurs twice"),
        ] {
            let found = table(wrong).expect_err(wrong);
            assert!(found.contains(why), "{found}");
        }
    }
}
