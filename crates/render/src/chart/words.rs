//! Text within a drawing: breaks it into lines by an estimate of its width, because the font is not known.

use crate::table::cut;

/// Mean width of a letter, and of a capital, in units of the font's size.
const LETTER: f64 = 0.54;
const CAPITAL: f64 = 0.7;

/// The estimated width of a text.
pub fn width(text: &str, size: f64) -> f64 {
    let letter = |c: char| if c.is_uppercase() || "_+%".contains(c) { CAPITAL } else { LETTER };
    text.chars().map(letter).sum::<f64>() * size
}

/// The text in lines that fit; a word that is too long alone is cut.
pub fn lines(text: &str, size: f64, room: f64) -> Vec<String> {
    let most = ((room / (size * LETTER)) as usize).max(8);
    let mut out: Vec<String> = Vec::new();
    let mut open = String::new();
    for word in text.split(' ').filter(|w| !w.is_empty()) {
        let word = cut(word, most);
        let length = open.chars().count();
        if length > 0 && length + 1 + word.chars().count() > most {
            out.push(std::mem::take(&mut open));
        }
        if !open.is_empty() {
            open.push(' ');
        }
        open.push_str(&word);
    }
    out.extend(Some(open).filter(|l| !l.is_empty()));
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_fit_and_lose_no_word() {
        let text = "each point is the mean of several calls with nearly the same context";
        let all = lines(text, 10.0, 100.0);
        assert!(all.len() > 3 && all.iter().all(|l| l.chars().count() <= 18), "{all:?}");
        assert_eq!(all.join(" "), text);
        assert_eq!(lines(&"x".repeat(40), 10.0, 54.0), [format!("{}\u{2026}", "x".repeat(9))]);
        assert!(lines("", 10.0, 100.0).is_empty());
    }
}
