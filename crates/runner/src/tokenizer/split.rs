//! Splits a text into words before BPE.
//!
//! Each pass is a regular expression by the model's authors, implemented by hand; the names are those of
//! `tokenizer.ggml.pre` (src/llama-vocab.cpp).

use super::unicode::{is_letter, is_punctuation};
use std::ops::Range;

/// One pass over the text; later passes split what earlier ones made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum SplitPass {
    /// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`
    Gpt2,
    /// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,DIGITS}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|`
    /// `\s+(?!\S)|\s+`
    Llama3 { digits: usize },
    /// `\p{N}`
    Digit,
    /// `\p{N}+`
    Number,
    /// `[0-9][0-9][0-9]`
    ThreeDigits,
    /// `[\p{P}\$\+<=>\^~\|]+`
    Punctuation,
}

/// A way to split text.
#[derive(Debug, Clone, Copy)]
pub struct Splitter(&'static [SplitPass]);

/// Names whose tokenizers use a word directly if it is a token, and add the begin token by default.
const LLAMA3_FAMILY: [&str; 8] =
    ["llama3", "llama-v3", "llama-bpe", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2"];

impl Splitter {
    /// The splitter with this name.
    pub fn find(name: &str) -> Option<Self> {
        use SplitPass::*;
        Some(Self(match name {
            "default" => &[Punctuation, Gpt2, Number, ThreeDigits],
            "gpt-2" | "phi-2" | "mpt" | "olmo" | "jais" | "gigachat" | "mellum" | "exaone4" | "trillion" => {
                &[Gpt2]
            }
            "starcoder" | "refact" | "command-r" | "smollm" | "codeshell" | "exaone" | "minerva-7b" => {
                &[Digit, Gpt2]
            }
            "qwen2" | "deepseek-r1-qwen" | "megrez" | "stablelm2" | "hunyuan" => &[Llama3 { digits: 1 }],
            "dbrx" | "smaug-bpe" | "glm4" | "chatglm-bpe" => &[Llama3 { digits: 3 }],
            name if LLAMA3_FAMILY.contains(&name) => &[Llama3 { digits: 3 }],
            _ => return None,
        }))
    }

    /// Whether complete words take precedence over merges; see [`LLAMA3_FAMILY`].
    pub fn is_llama3_family(self, name: &str) -> bool {
        LLAMA3_FAMILY.contains(&name)
    }

    /// The words of a text, in order, without gaps.
    pub fn split(self, text: &[char]) -> Vec<Range<usize>> {
        let mut words: Vec<Range<usize>> = std::iter::once(0..text.len()).collect();
        words.retain(|w| !w.is_empty());
        for pass in self.0 {
            words = words.into_iter().flat_map(|word| split(*pass, text, word)).collect();
        }
        words
    }
}

fn split(pass: SplitPass, text: &[char], word: Range<usize>) -> Vec<Range<usize>> {
    let mut words = Vec::new();
    let mut at = word.start;
    while at < word.end {
        let rest = &text[at..word.end];
        let length = match pass {
            SplitPass::Gpt2 => gpt2(rest),
            SplitPass::Llama3 { digits } => llama3(rest, digits),
            SplitPass::Digit => apart(rest, |r| usize::from(r.first().is_some_and(|c| c.is_numeric()))),
            SplitPass::Number => apart(rest, |r| run(r, char::is_numeric)),
            SplitPass::ThreeDigits => {
                apart(rest, |r| if run(r, |c| c.is_ascii_digit()) >= 3 { 3 } else { 0 })
            }
            SplitPass::Punctuation => {
                apart(rest, |r| run(r, |c| is_punctuation(c) || "$+<=>^~|".contains(c)))
            }
        };
        // Every pass takes at least one character.
        let end = (at + length.max(1)).min(word.end);
        words.push(at..end);
        at = end;
    }
    words
}

/// Number of characters at the start that satisfy `of`.
fn run(text: &[char], of: impl Fn(char) -> bool) -> usize {
    text.iter().take_while(|c| of(**c)).count()
}

/// Length of the match at the start or, if there is none, of the text before the next match.
fn apart(text: &[char], matched: impl Fn(&[char]) -> usize) -> usize {
    match matched(text) {
        0 => (1..text.len()).find(|at| matched(&text[*at..]) > 0).unwrap_or(text.len()),
        length => length,
    }
}

/// Not whitespace, letter or number.
fn is_mark(c: char) -> bool {
    !(c.is_whitespace() || c.is_numeric() || is_letter(c))
}

/// Length of `'s`, `'t`, `'re`, `'ve`, `'m`, `'ll` or `'d` at the start.
fn contraction(text: &[char], lower: impl Fn(char) -> char) -> usize {
    let at = |i: usize| text.get(i).map(|c| lower(*c));
    match (at(0), at(1), at(2)) {
        (Some('\''), Some('s' | 't' | 'm' | 'd'), _) => 2,
        (Some('\''), Some('r' | 'v'), Some('e')) | (Some('\''), Some('l'), Some('l')) => 3,
        _ => 0,
    }
}

/// Whitespace at the start, except the last character if a word follows: `\s+(?!\S)|\s+`.
fn blanks(text: &[char]) -> usize {
    let count = run(text, char::is_whitespace);
    if count > 1 && count < text.len() { count - 1 } else { count }
}

fn gpt2(text: &[char]) -> usize {
    let short = contraction(text, |c| c);
    if short > 0 {
        return short;
    }
    let blank = usize::from(text.first() == Some(&' '));
    let rest = text.get(blank..).unwrap_or_default();
    let word = [run(rest, is_letter), run(rest, char::is_numeric), run(rest, is_mark)].into_iter().max();
    match word {
        Some(length) if length > 0 => blank + length,
        _ => blanks(text),
    }
}

fn llama3(text: &[char], digits: usize) -> usize {
    let short = contraction(text, |c| c.to_ascii_lowercase());
    if short > 0 {
        return short;
    }
    let Some(&first) = text.first() else { return 0 };
    // Letters, with one preceding character that is not a letter, number or line end.
    let before = usize::from(!(is_letter(first) || first.is_numeric() || first == '\r' || first == '\n'));
    let letters = run(text.get(before..).unwrap_or_default(), is_letter);
    if letters > 0 {
        return before + letters;
    }
    if first.is_numeric() {
        return run(text, char::is_numeric).min(digits);
    }
    let blank = usize::from(first == ' ');
    let marks = run(text.get(blank..).unwrap_or_default(), is_mark);
    if marks > 0 {
        let end = blank + marks;
        return end + run(text.get(end..).unwrap_or_default(), |c| c == '\r' || c == '\n');
    }
    let space = &text[..run(text, char::is_whitespace)];
    match space.iter().rposition(|c| *c == '\r' || *c == '\n') {
        Some(last) => last + 1,
        None => blanks(text),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &str, text: &str) -> String {
        let characters: Vec<char> = text.chars().collect();
        let ranges = Splitter::find(name).expect("a known name").split(&characters);
        ranges
            .into_iter()
            .map(|r| characters[r].iter().collect::<String>())
            .collect::<Vec<_>>()
            .join("\u{b7}")
    }

    #[test]
    fn words_by_hand() {
        let text = "I'm  DON'T\n\n x=12345 (ok)!\r\n end  ";
        let gpt2 = "I\u{b7}'m\u{b7} \u{b7} DON\u{b7}'\u{b7}T\u{b7}\n\n\u{b7} x\u{b7}=\u{b7}12345\u{b7} (\u{b7}ok\u{b7})!\u{b7}\r\n\u{b7} end\u{b7}  ";
        assert_eq!(words("gpt-2", text), gpt2);
        let llama3 = "I\u{b7}'m\u{b7} \u{b7} DON\u{b7}'T\u{b7}\n\n\u{b7} x\u{b7}=\u{b7}123\u{b7}45\u{b7} (\u{b7}ok\u{b7})!\r\n\u{b7} end\u{b7}  ";
        assert_eq!(words("llama-bpe", text), llama3);
        assert_eq!(words("qwen2", text), llama3.replace("123\u{b7}45", "1\u{b7}2\u{b7}3\u{b7}4\u{b7}5"));
        assert_eq!(words("smollm", "ab 12 3"), "ab\u{b7} \u{b7}1\u{b7}2\u{b7} \u{b7}3");
        assert_eq!(words("default", "a,b 12345$"), "a\u{b7},\u{b7}b\u{b7} \u{b7}123\u{b7}45\u{b7}$");
        assert_eq!(words("qwen2", ""), "");
        assert!(Splitter::find("no-such").is_none());
    }
}
