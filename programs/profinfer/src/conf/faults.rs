//! Mistakes in a configuration file.

/// Maximum mistakes reported per file.
const TOLD: usize = 100;

/// Mistakes in a file, in the order of its lines.
#[derive(Debug, Default)]
pub struct Faults(pub(super) Vec<(usize, String)>);

impl Faults {
    /// Adds a mistake in a line, from 1; no more than anybody reads.
    pub fn add(&mut self, line: usize, what: String) {
        if !self.full() {
            let behind = self.0.partition_point(|(before, _)| *before <= line);
            self.0.insert(behind, (line, what));
        }
    }

    pub fn full(&self) -> bool {
        self.0.len() >= TOLD
    }

    /// As messages: `board.toml:3: ...`.
    pub fn told(self, file: &str) -> Vec<String> {
        let full = self.full();
        let mut told: Vec<String> =
            self.0.into_iter().map(|(line, what)| format!("{file}:{line}: {what}")).collect();
        if let Some(last) = told.last_mut().filter(|_| full) {
            last.push_str("; there may be more errors after it");
        }
        told
    }
}

/// The beginning of a text, for messages.
pub(super) fn short(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}
