//! TOML as tables of keys and values, each with its line, reporting all mistakes together.
//!
//! Our own parser: with the smallest library a program for boards was 38 kB larger. It supports what settings need;
//! multi-line strings, dates and tables as values are rejected, by name. After a mistake it continues with the next
//! line.

use std::str::CharIndices;

use super::faults::{Faults, short};

/// A table: its own keys, without those of its subtables.
#[derive(Debug, Default)]
pub struct Table {
    /// As in its heading, with dots; empty for the keys above the first heading.
    pub name: String,
    /// Whether its heading has two brackets: the name may occur more than once.
    pub many: bool,
    pub line: usize,
    pub entries: Vec<Entry>,
}

/// A key with its value.
#[derive(Debug)]
pub struct Entry {
    /// With dots if it has several parts.
    pub key: String,
    pub line: usize,
    pub value: Value,
}

#[derive(Debug)]
pub enum Value {
    One(Item),
    List(Vec<Item>),
}

/// A value that is not a list, or an item of a list.
#[derive(Debug)]
pub struct Item {
    /// Without quotes; integers are decimal.
    pub text: String,
    pub kind: Kind,
    pub line: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Text,
    Number,
    Switch(bool),
}

/// Parses a text. The first table is the one without a heading; it always exists. A key with a mistake on its line
/// is left out.
pub fn tables(text: &str, faults: &mut Faults) -> Vec<Table> {
    let mut tables = vec![Table { line: 1, ..Table::default() }];
    let mut reader = Reader { rest: text.strip_prefix('\u{feff}').unwrap_or(text), line: 1, listing: false };
    while !reader.rest.is_empty() && !faults.full() {
        reader.listing = false;
        if let Err(why) = reader.expression(&mut tables) {
            faults.add(reader.line, why);
            reader.recover();
        }
    }
    tables
}

type Read<T> = Result<T, String>;

struct Reader<'a> {
    rest: &'a str,
    line: usize,
    /// Inside a list.
    listing: bool,
}

impl<'a> Reader<'a> {
    /// A line: nothing, a heading, or a key with its value.
    fn expression(&mut self, tables: &mut Vec<Table>) -> Read<()> {
        self.blanks();
        let line = self.line;
        if self.next_is(&['\n', '\r', '#']) || self.rest.is_empty() {
            return self.end();
        }
        if self.eat("[") {
            let many = self.eat("[");
            let name = self.key()?;
            let end = if many { "]]" } else { "]" };
            if !self.eat(end) {
                return Err(format!("a table heading must end with '{end}'"));
            }
            tables.push(Table { name, many, line, entries: Vec::new() });
            return self.end();
        }
        let key = self.key()?;
        if !self.eat("=") {
            return Err("no value: write KEY = VALUE".to_owned());
        }
        self.blanks();
        let value = if self.eat("[") { Value::List(self.list()?) } else { Value::One(self.item()?) };
        self.end()?;
        if let Some(table) = tables.last_mut() {
            table.entries.push(Entry { key, line, value });
        }
        Ok(())
    }

    /// A key, its parts separated by dots.
    fn key(&mut self) -> Read<String> {
        let mut key = String::new();
        loop {
            self.blanks();
            if self.next_is(&['"', '\'']) {
                key.push_str(&self.quoted()?);
            } else {
                let part = self.take(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
                if part.is_empty() {
                    return Err("invalid key: use letters, digits, '-' and '_'".to_owned());
                }
                key.push_str(part);
            }
            self.blanks();
            if !self.eat(".") {
                return Ok(key);
            }
            key.push('.');
        }
    }

    /// The contents of a list, after its opening bracket.
    fn list(&mut self) -> Read<Vec<Item>> {
        self.listing = true;
        let mut items = Vec::new();
        loop {
            self.gap();
            if self.eat("]") {
                return Ok(items);
            }
            items.push(self.item()?);
            self.gap();
            if !self.eat(",") && !self.next_is(&[']']) {
                return Err("expected ',' or ']' in a list".to_owned());
            }
        }
    }

    fn item(&mut self) -> Read<Item> {
        let line = self.line;
        if self.next_is(&['"', '\'']) {
            return Ok(Item { text: self.quoted()?, kind: Kind::Text, line });
        }
        if self.next_is(&['[', '{']) {
            return Err("inline tables and nested lists are not supported".to_owned());
        }
        let raw = self.take(|c| !matches!(c, '#' | ',' | ']' | '\n' | '\r')).trim_end();
        let (text, kind) = match raw {
            "true" => (raw.to_owned(), Kind::Switch(true)),
            "false" => (raw.to_owned(), Kind::Switch(false)),
            _ => (number(raw).ok_or_else(|| unquoted(raw, self.listing))?, Kind::Number),
        };
        Ok(Item { text, kind, line })
    }

    /// A quoted string; the opening quote comes next.
    fn quoted(&mut self) -> Read<String> {
        if self.rest.starts_with("\"\"\"") || self.rest.starts_with("'''") {
            return Err("a string must be on one line, in one pair of quotes".to_owned());
        }
        let mut chars = self.rest.char_indices();
        let quote = chars.next().map_or('"', |(_, c)| c);
        let mut text = String::new();
        while let Some((at, c)) = chars.next() {
            match c {
                c if c == quote => {
                    self.rest = self.rest.get(at + 1..).unwrap_or_default();
                    return Ok(text);
                }
                '\\' if quote == '"' => text.push(escaped(&mut chars).ok_or_else(|| {
                    "unknown escape in a string: write \\\\ for a backslash, or use single quotes".to_owned()
                })?),
                c if c.is_ascii_control() && c != '\t' => break,
                c => text.push(c),
            }
        }
        Err(format!("unterminated string: {quote} is missing"))
    }

    /// The end of a line, after an optional comment.
    fn end(&mut self) -> Read<()> {
        self.blanks();
        if self.next_is(&['#']) {
            self.take(|c| c != '\n');
        }
        if self.rest.is_empty() || self.newline() {
            return Ok(());
        }
        let more = self.rest.lines().next().unwrap_or_default();
        Err(format!("unexpected '{}' after a value or heading: the line must end there", short(more)))
    }

    /// Skips blanks, comments and line ends.
    fn gap(&mut self) {
        loop {
            self.blanks();
            if self.next_is(&['#']) {
                self.take(|c| c != '\n');
            }
            if !self.newline() {
                return;
            }
        }
    }

    /// Moves to the next line; inside a list, to one that may have a key.
    fn recover(&mut self) {
        loop {
            self.take(|c| c != '\n');
            let more = self.newline() && self.listing;
            if !more || self.rest.lines().next().is_none_or(|line| line.contains('=')) {
                return;
            }
        }
    }

    fn newline(&mut self) -> bool {
        let eaten = self.eat("\n") || self.eat("\r\n");
        self.line += usize::from(eaten);
        eaten
    }

    fn blanks(&mut self) {
        self.rest = self.rest.trim_start_matches([' ', '\t']);
    }

    fn next_is(&self, any: &[char]) -> bool {
        self.rest.starts_with(any)
    }

    fn eat(&mut self, what: &str) -> bool {
        let rest = self.rest.strip_prefix(what);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn take(&mut self, part: fn(char) -> bool) -> &'a str {
        let end = self.rest.find(|c| !part(c)).unwrap_or(self.rest.len());
        let (taken, rest) = self.rest.split_at(end);
        self.rest = rest;
        taken
    }
}

/// The character for a backslash sequence.
fn escaped(chars: &mut CharIndices<'_>) -> Option<char> {
    let digits = match chars.next()?.1 {
        'b' => return Some('\u{8}'),
        't' => return Some('\t'),
        'n' => return Some('\n'),
        'f' => return Some('\u{c}'),
        'r' => return Some('\r'),
        'e' => return Some('\u{1b}'),
        same @ ('"' | '\\') => return Some(same),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => return None,
    };
    let mut code = 0_u32;
    for _ in 0..digits {
        code = code.checked_mul(16)? + chars.next()?.1.to_digit(16)?;
    }
    char::from_u32(code)
}

/// A number in the form that the value parsers take: no underscores, integers in decimal.
fn number(raw: &str) -> Option<String> {
    let digits = raw.strip_prefix(['+', '-']).unwrap_or(raw);
    if digits.starts_with('_') || digits.ends_with('_') || digits.contains("__") {
        return None;
    }
    let plain = digits.replace('_', "");
    for (prefix, radix) in [("0x", 16), ("0o", 8), ("0b", 2)] {
        if let Some(rest) = raw.strip_prefix(prefix).and(plain.get(2..)).filter(|r| !r.starts_with('+')) {
            return u64::from_str_radix(rest, radix).ok().map(|n| n.to_string());
        }
    }
    let bytes = plain.as_bytes();
    let zeros = matches!(bytes, [b'0', b'0'..=b'9', ..]);
    let ends = bytes.first().is_some_and(u8::is_ascii_digit) && bytes.last().is_some_and(u8::is_ascii_digit);
    let sign = if raw.starts_with('-') { "-" } else { "" };
    (ends && !zeros && plain.parse::<f64>().is_ok()).then(|| format!("{sign}{plain}"))
}

/// Error text for something that is not a value.
fn unquoted(raw: &str, listing: bool) -> String {
    match raw {
        "" if listing => "expected a value or ']' in a list".to_owned(),
        "" => "no value after '='".to_owned(),
        _ if raw.contains(['"', '\'']) => format!("{}: quotes must enclose the complete string", short(raw)),
        _ => format!("{} must be in quotes: \"{}\"", short(raw), short(raw)),
    }
}
