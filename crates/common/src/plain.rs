//! Makes foreign text safe to show: which characters are never sent to a terminal, and how they are escaped in
//! text and in JSON.

use std::fmt::Write as _;
use std::io::{self, Write};

use serde::Serialize;

/// Whether a character controls a terminal, or hides or reorders adjacent text: control characters, and Unicode's
/// format characters (category Cf, plus the line separators, minus joiners that have no effect in a name).
pub fn hides(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{1d173}'..='\u{1d17a}'
            | '\u{e0000}'..='\u{e007f}')
}

/// The text with those characters escaped.
pub fn clean(text: &str) -> String {
    if !text.contains(hides) {
        return text.to_string();
    }
    text.chars().map(|c| if hides(c) { c.escape_default().to_string() } else { c.to_string() }).collect()
}

/// A string of DOT; each line ends with `end`, `\n` for centered and `\l` for left-aligned lines.
pub fn dot_string(text: &str, end: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', end))
}

/// Text of Markdown in which no character has a meaning.
pub fn markdown(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in clean(text).chars() {
        if "\\`*_{}[]<>#|~!&$@".contains(c) {
            out.push('\\');
        }
        out.push(c);
    }
    // A web address would become a link.
    out.replace("://", ":\\//").replace("www.", "www\\.")
}

/// Appends a character's JSON escape to `out`.
pub fn escape(out: &mut String, c: char) {
    for unit in c.encode_utf16(&mut [0; 2]) {
        let _ = write!(out, "\\u{unit:04x}");
    }
}

/// Writes JSON with those characters escaped. Those that JSON itself does not escape occur only inside strings,
/// so the position does not matter. Each write must contain complete characters, as text writers ensure.
pub struct Json<'o>(pub &'o mut dyn Write);

impl Write for Json<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let text = std::str::from_utf8(bytes).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?;
        let mut rest = text;
        while let Some(at) = rest.find(|c| hides(c) && !matches!(c, '\n' | '\r' | '\t')) {
            let (before, behind) = rest.split_at(at);
            self.0.write_all(before.as_bytes())?;
            let mut chars = behind.chars();
            let mut escaped = String::new();
            chars.next().into_iter().for_each(|c| escape(&mut escaped, c));
            self.0.write_all(escaped.as_bytes())?;
            rest = chars.as_str();
        }
        self.0.write_all(rest.as_bytes())?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// A value as JSON on one line.
///
/// # Errors
/// The value cannot be serialized.
pub fn json(answer: &impl Serialize) -> serde_json::Result<String> {
    let mut out = Vec::new();
    serde_json::to_writer(Json(&mut out), answer)?;
    String::from_utf8(out).map_err(serde::ser::Error::custom)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn what_hides_is_told_from_what_shows() {
        for c in ['\0', '\x1b', '\x7f', '\u{9b}', '\u{61c}', '\u{200e}', '\u{202e}', '\u{2066}', '\u{2069}'] {
            assert!(hides(c), "{c:?}");
        }
        for c in ['\u{2028}', '\u{2029}', '\u{feff}', '\u{e0041}'] {
            assert!(hides(c), "{c:?}");
        }
        for c in ['a', ' ', 'é', '中', '🦙', '\u{a0}', '\u{202f}', '\u{2070}'] {
            assert!(!hides(c), "{c:?}");
        }
        assert_eq!(clean("a\u{9b}b\u{e0041}"), r"a\u{9b}b\u{e0041}");
    }

    #[test]
    fn a_string_of_dot_is_one_string() {
        assert_eq!(dot_string("a \"b\" \\n\nc", "\\l"), r#""a \"b\" \\n\lc""#);
    }

    #[test]
    fn text_in_markdown_stays_text() {
        assert_eq!(markdown("# *a*_b_`c`|d"), "\\# \\*a\\*\\_b\\_\\`c\\`\\|d");
        assert_eq!(markdown("<img src=x> [l](http://x)\n-"), "\\<img src=x\\> \\[l\\](http:\\//x)\\\\n-");
        assert_eq!(markdown("MUL_MAT 1.5 %"), "MUL\\_MAT 1.5 %");
    }

    proptest! {
        #[test]
        fn json_says_the_same_and_hides_nothing(value in any::<String>(), tag in 0xe0000..=0xe007fu32) {
            let tag = char::from_u32(tag).unwrap_or_default();
            let value = format!("{value}\u{9b}{tag}\u{202e}\u{7f}");
            let out = json(&[&value]).unwrap();
            prop_assert!(!out.contains(hides), "{out:?}");
            prop_assert_eq!(serde_json::from_str::<Vec<String>>(&out).unwrap(), [value]);
        }
    }
}
