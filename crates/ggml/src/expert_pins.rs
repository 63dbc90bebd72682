//! The list of experts to pin: `profinfer experts --csv` prints it, `ggml-runner run --expert-policy pin:FILE` reads it.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

/// Why a file of experts to pin cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum PinError {
    #[error("read {path}: {source}")]
    Read { path: PathBuf, source: std::io::Error },
    #[error("{path}, line {line}: {why}")]
    Line { path: PathBuf, line: usize, why: String },
    #[error("{path} names no experts: give lines of layer,expert,uses")]
    Empty { path: PathBuf },
}

/// Experts to pin, the most important of each layer first.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PinFile {
    path: PathBuf,
    /// Line, layer, expert.
    lines: Vec<(usize, usize, usize)>,
}

impl PinFile {
    /// Reads a file of lines `layer,expert,uses`, with or without a line that names the columns. What follows the expert is
    /// not used.
    ///
    /// # Errors
    /// It cannot be read, or a line does not begin with two numbers.
    pub fn read(path: &Path) -> Result<Self, PinError> {
        let path = path.to_owned();
        match std::fs::read_to_string(&path) {
            Ok(text) => Self::parse(path, &text),
            Err(source) => Err(PinError::Read { path, source }),
        }
    }

    fn parse(path: PathBuf, text: &str) -> Result<Self, PinError> {
        let mut lines = Vec::new();
        let full = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        for (nth, (index, text)) in full.enumerate() {
            let mut fields = text.split(',').map(str::trim);
            let (layer, expert) = (fields.next().unwrap_or_default(), fields.next().unwrap_or_default());
            if nth == 0 && (layer, expert) == ("layer", "expert") {
                continue;
            }
            match (layer.parse(), expert.parse()) {
                (Ok(layer), Ok(expert)) => lines.push((index + 1, layer, expert)),
                _ => {
                    let shown: String = text.chars().take(40).collect();
                    let why =
                        format!("'{}' is not layer,expert,uses with whole numbers", shown.escape_debug());
                    return Err(PinError::Line { path, line: index + 1, why });
                }
            }
        }
        if lines.is_empty() { Err(PinError::Empty { path }) } else { Ok(Self { path, lines }) }
    }

    /// The experts of each layer, for a model of `layers` layers with `experts` experts each.
    ///
    /// # Errors
    /// A line names a layer or an expert that does not exist, or one that another line has named.
    pub fn by_layer(&self, layers: usize, experts: usize) -> Result<Vec<Vec<u16>>, PinError> {
        let mut all = vec![Vec::new(); layers];
        let mut seen = HashMap::new();
        for &(line, layer, expert) in &self.lines {
            let wrong = |why| Err(PinError::Line { path: self.path.clone(), line, why });
            let Some(of_layer) = all.get_mut(layer) else {
                return wrong(format!("layer {layer}, but the model's layers are 0 to {}", last(layers)));
            };
            let Some(id) = u16::try_from(expert).ok().filter(|_| expert < experts) else {
                return wrong(format!("expert {expert}, but the model's experts are 0 to {}", last(experts)));
            };
            if let Some(first) = seen.insert((layer, id), line) {
                return wrong(format!("expert {expert} of layer {layer} is already on line {first}"));
            }
            of_layer.push(id);
        }
        Ok(all)
    }
}

fn last(count: usize) -> usize {
    count.saturating_sub(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Result<Vec<Vec<u16>>, String> {
        let file = PinFile::parse("pins.csv".into(), text);
        file.and_then(|f| f.by_layer(2, 8)).map_err(|e| e.to_string())
    }

    #[test]
    fn experts_keep_the_order_of_the_lines() {
        let wanted = Ok(vec![vec![5, 0], vec![7]]);
        assert_eq!(parsed("layer,expert,uses\n0,5,10\n1,7,9\n\n0,0,1\n"), wanted);
        assert_eq!(parsed(" 0 , 5\r\n0,0,3,more\r\n1,7"), wanted);
    }

    #[test]
    fn what_is_wrong_is_named_with_its_line() {
        for (text, told) in [
            ("", "pins.csv names no experts"),
            ("layer,expert,uses\n", "pins.csv names no experts"),
            ("0,1\n0\n", "pins.csv, line 2: '0' is not layer,expert,uses"),
            ("0,1\nlayer,expert\n", "pins.csv, line 2: 'layer,expert' is not"),
            ("expert,layer\n0,1\n", "pins.csv, line 1: 'expert,layer' is not"),
            ("0,1\n\n-1,1\n", "pins.csv, line 3: '-1,1' is not"),
            ("0,1\n2,1\n", "pins.csv, line 2: layer 2, but the model's layers are 0 to 1"),
            ("0,8\n", "pins.csv, line 1: expert 8, but the model's experts are 0 to 7"),
            ("0,70000\n", "line 1: expert 70000"),
            ("0,1\n1,1\n0,1\n", "pins.csv, line 3: expert 1 of layer 0 is already on line 1"),
        ] {
            let said = parsed(text).expect_err(text);
            assert!(said.contains(told), "{said:?} does not say {told:?}");
        }
    }
}
