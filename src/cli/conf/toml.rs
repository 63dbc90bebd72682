//! TOML as tables of keys and values, each with its line, and all that is wrong with it at once. Uses nothing here.
//!
//! A reader of our own: with the smallest library a program for boards was 38 kB larger. It has what settings need; a
//! text over several lines, a date or a table as a value are refused, by name. Behind a mistake it goes on with the next
//! line.

use std::str::CharIndices;

use super::{Faults, short};

/// A table: its own keys, without those of tables below it.
#[derive(Debug, Default)]
pub struct Table {
    /// As in its heading, with dots; empty for what stands above the first heading.
    pub name: String,
    /// Whether its heading has two brackets: there may be more of this name.
    pub many: bool,
    pub line: usize,
    pub entries: Vec<Entry>,
}

/// A key with its value.
#[derive(Debug)]
pub struct Entry {
    /// With dots where it has several parts.
    pub key: String,
    pub line: usize,
    pub value: Value,
}

#[derive(Debug)]
pub enum Value {
    One(Item),
    List(Vec<Item>),
}

/// A value that is no list, or one of a list.
#[derive(Debug)]
pub struct Item {
    /// Without quotes; whole numbers are decimal.
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

/// Reads a text. The first table is the one without a heading; there is always that. A key whose line is wrong is left
/// out.
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
    /// A list is open.
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
                return Err(format!("the heading of a table ends with '{end}'"));
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

    /// A key, its parts with dots between them.
    fn key(&mut self) -> Read<String> {
        let mut key = String::new();
        loop {
            self.blanks();
            if self.next_is(&['"', '\'']) {
                key.push_str(&self.quoted()?);
            } else {
                let part = self.take(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_');
                if part.is_empty() {
                    return Err("no key: one has letters, digits, '-' and '_'".to_owned());
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

    /// What is in a list, behind its bracket.
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
                return Err("a list goes on with ',' or ends with ']'".to_owned());
            }
        }
    }

    fn item(&mut self) -> Read<Item> {
        let line = self.line;
        if self.next_is(&['"', '\'']) {
            return Ok(Item { text: self.quoted()?, kind: Kind::Text, line });
        }
        if self.next_is(&['[', '{']) {
            return Err("a table is no value, nor is a list in a list".to_owned());
        }
        let raw = self.take(|c| !matches!(c, '#' | ',' | ']' | '\n' | '\r')).trim_end();
        let (text, kind) = match raw {
            "true" => (raw.to_owned(), Kind::Switch(true)),
            "false" => (raw.to_owned(), Kind::Switch(false)),
            _ => (number(raw).ok_or_else(|| unquoted(raw, self.listing))?, Kind::Number),
        };
        Ok(Item { text, kind, line })
    }

    /// A text in quotes; the next one is there.
    fn quoted(&mut self) -> Read<String> {
        if self.rest.starts_with("\"\"\"") || self.rest.starts_with("'''") {
            return Err("a text stands on one line, in one pair of quotes".to_owned());
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
                    "unknown escape in a text: write \\\\ for a backslash, or use single quotes".to_owned()
                })?),
                c if c.is_ascii_control() && c != '\t' => break,
                c => text.push(c),
            }
        }
        Err(format!("a text does not end: {quote} is missing"))
    }

    /// The end of a line; a comment may stand before it.
    fn end(&mut self) -> Read<()> {
        self.blanks();
        if self.next_is(&['#']) {
            self.take(|c| c != '\n');
        }
        if self.rest.is_empty() || self.newline() {
            return Ok(());
        }
        let more = self.rest.lines().next().unwrap_or_default();
        Err(format!("'{}' behind a value or heading: the line should end there", short(more)))
    }

    /// Blanks, comments and ends of lines.
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

    /// Goes to the next line, or, out of a list, to one that may have a key.
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

/// What a backslash and the letters behind it stand for.
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

/// A number as the readers of values have it: no underscores, whole ones decimal.
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

/// What stands where a value should, and is none.
fn unquoted(raw: &str, listing: bool) -> String {
    match raw {
        "" if listing => "no value, or no ']', where a list goes on".to_owned(),
        "" => "no value behind the '='".to_owned(),
        _ if raw.contains(['"', '\'']) => format!("{}: quotes must stand around all of a text", short(raw)),
        _ => format!("{} must stand in quotes: \"{}\"", short(raw), short(raw)),
    }
}
