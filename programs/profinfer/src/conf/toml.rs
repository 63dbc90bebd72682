//! TOML as tables of keys and values, each with its line, reporting all mistakes together.
//!
//! `toml_parser` does the syntax and continues after a mistake; this file keeps lines and says what to write instead.
//! Settings are two levels deep: `[service]`, `service.KEY` and `service = {...}` are the same table, and `[[rule]]`
//! is an item of `rule = [{...}]`.

use toml_parser::decoder::{Encoding, ScalarKind};
use toml_parser::parser::{EventReceiver, ValidateWhitespace, parse_document};
use toml_parser::{ErrorSink, Expected, ParseError, Raw, Source, Span};

use super::faults::{Faults, short};

/// A table: its own keys, without those of its subtables.
#[derive(Debug, Default)]
pub struct TomlTable {
    /// As in its heading, with dots; empty for the keys above the first heading.
    pub name: String,
    /// Whether it is one of several: its heading has two brackets.
    pub many: bool,
    pub line: usize,
    pub entries: Vec<TomlEntry>,
}

/// A key with its value.
#[derive(Debug)]
pub struct TomlEntry {
    /// With dots if it has several parts.
    pub key: String,
    pub line: usize,
    /// The line in which its value ends.
    end: usize,
    pub value: TomlValue,
}

#[derive(Debug)]
pub enum TomlValue {
    One(TomlItem),
    List(Vec<TomlItem>),
}

/// A value that is not a list, or an item of a list.
#[derive(Debug)]
pub struct TomlItem {
    /// Without quotes; integers are decimal.
    pub text: String,
    pub kind: ItemKind,
    pub line: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ItemKind {
    Text,
    Number,
    Switch(bool),
}

/// Tables that may also be values, or named before a dot.
const SINGLE: [&str; 3] = ["service", "metrics", "otlp"];
const RULE: &str = "rule";

/// Parses a text. The first table is the one without a heading; it always exists. A key with a mistake in its lines
/// is left out.
pub fn tables(text: &str, faults: &mut Faults) -> Vec<TomlTable> {
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    let source = Source::new(text);
    let lines = LineStarts(text.match_indices('\n').map(|(at, _)| at).collect());
    let mut reader = Reader::new(text, &lines);
    let mut sink = |error: ParseError| {
        let (at, what) = told(&error, text);
        let line = lines.of(at);
        // What follows from the first mistake in a line is not worth a message.
        if !faults.0.iter().any(|(other, _)| *other == line) {
            faults.add(line, what);
        }
    };
    let tokens = source.lex().into_vec();
    parse_document(&tokens, &mut ValidateWhitespace::new(&mut reader, source), &mut sink);
    let mut tables = reader.tables;
    for table in &mut tables {
        table.entries.retain(|e| !faults.0.iter().any(|(line, _)| (e.line..=e.end).contains(line)));
    }
    tables
}

/// Where the lines end.
struct LineStarts(Vec<usize>);

impl LineStarts {
    /// The line of a byte, from 1.
    fn of(&self, at: usize) -> usize {
        self.0.partition_point(|end| *end < at) + 1
    }
}

/// What a value is part of.
enum OpenValue {
    /// A list of values.
    List,
    /// `rule = [...]`
    Rules,
    /// An inline table, in the table of this number.
    Table(usize),
    /// A list or table where there must be none.
    Refused,
}

/// Makes tables of what the parser finds.
struct Reader<'a> {
    text: &'a str,
    lines: &'a LineStarts,
    tables: Vec<TomlTable>,
    /// The table that keys belong to.
    current: usize,
    /// Tables named before a dot: `service.quota = ...`
    dotted: Vec<usize>,
    /// Parts of the last key.
    key: Vec<String>,
    /// Line of its first part.
    line: usize,
    /// A dot came after it.
    more: bool,
    open: Vec<OpenValue>,
    items: Vec<TomlItem>,
}

impl<'a> Reader<'a> {
    fn new(text: &'a str, lines: &'a LineStarts) -> Self {
        Self {
            text,
            lines,
            tables: vec![TomlTable { line: 1, ..TomlTable::default() }],
            current: 0,
            dotted: Vec::new(),
            key: Vec::new(),
            line: 1,
            more: false,
            open: Vec::new(),
            items: Vec::new(),
        }
    }

    fn raw(&self, span: Span, encoding: Option<Encoding>) -> Raw<'a> {
        Raw::new_unchecked(self.text.get(span.start()..span.end()).unwrap_or_default(), encoding, span)
    }

    /// Begins a table; returns the number of the one before.
    fn table(&mut self, name: String, many: bool) -> usize {
        self.tables.push(TomlTable { name, many, line: self.line, entries: Vec::new() });
        std::mem::replace(&mut self.current, self.tables.len() - 1)
    }

    /// Whether the last key, above all headings, is this one.
    fn is(&self, name: &str) -> bool {
        self.current == 0 && matches!(&self.key[..], [only] if only == name)
    }

    /// Adds the last key with its value, which ends here.
    fn entry(&mut self, value: TomlValue, end: usize) {
        let mut table = self.current;
        let mut parts = &self.key[..];
        if let [first, rest @ ..] = parts
            && (table, rest.is_empty()) == (0, false)
            && (SINGLE.contains(&first.as_str()) || first == RULE)
        {
            let named = |i: &&usize| self.tables.get(**i).is_some_and(|t| t.name == *first);
            table = match self.dotted.iter().find(named) {
                Some(before) => *before,
                None => {
                    let made = TomlTable { name: first.clone(), line: self.line, ..TomlTable::default() };
                    self.dotted.push(self.tables.len());
                    self.tables.push(made);
                    self.tables.len() - 1
                }
            };
            parts = rest;
        }
        let entry = TomlEntry { key: parts.join("."), line: self.line, end: self.lines.of(end), value };
        if let Some(table) = self.tables.get_mut(table) {
            table.entries.push(entry);
        }
    }

    fn item(&self, span: Span, encoding: Option<Encoding>, error: &mut dyn ErrorSink) -> Option<TomlItem> {
        let raw = self.raw(span, encoding);
        let line = self.lines.of(span.start());
        let mut text = String::new();
        if encoding.is_some() && !raw.is_empty() {
            let _ = raw.decode_scalar(&mut text, error);
            return Some(TomlItem { text, kind: ItemKind::Text, line });
        }
        let mut wrong: Option<ParseError> = None;
        let kind = raw.decode_scalar(&mut text, &mut wrong);
        let item = match kind {
            _ if wrong.is_some() => None,
            ScalarKind::Boolean(on) => Some((text, ItemKind::Switch(on))),
            ScalarKind::Float => Some((text, ItemKind::Number)),
            ScalarKind::Integer(radix) if radix.value() == 10 => Some((text, ItemKind::Number)),
            ScalarKind::Integer(radix) => {
                let number = u64::from_str_radix(&text, radix.value()).ok();
                number.map(|n| (n.to_string(), ItemKind::Number))
            }
            ScalarKind::String | ScalarKind::DateTime => None,
        };
        if item.is_none() {
            error.report_error(ParseError::new(unquoted(self.all(span))).with_unexpected(span));
        }
        // The value parsers take no plus sign.
        item.map(|(text, kind)| TomlItem { text: text.trim_start_matches('+').to_owned(), kind, line })
    }

    /// What the author of an unquoted value may have meant as a whole.
    fn all(&self, span: Span) -> &'a str {
        let rest = self.text.get(span.start()..).unwrap_or_default();
        let inline = matches!(self.open.last(), Some(OpenValue::Table(_)));
        let ends = |c| matches!(c, '#' | ',' | ']' | '\n' | '\r') || c == '}' && inline;
        rest.split(ends).next().unwrap_or_default().trim_end()
    }

    fn refuse(&mut self, what: &'static str, span: Span, error: &mut dyn ErrorSink) -> bool {
        error.report_error(ParseError::new(what).with_unexpected(span));
        self.open.push(OpenValue::Refused);
        false
    }
}

impl EventReceiver for Reader<'_> {
    fn std_table_close(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.table(self.key.join("."), false);
    }

    fn array_table_close(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.table(self.key.join("."), true);
    }

    fn simple_key(&mut self, span: Span, encoding: Option<Encoding>, error: &mut dyn ErrorSink) {
        if !std::mem::take(&mut self.more) {
            self.key.clear();
            self.line = self.lines.of(span.start());
        }
        let mut part = String::new();
        self.raw(span, encoding).decode_key(&mut part, error);
        self.key.push(part);
    }

    fn key_sep(&mut self, _: Span, _: &mut dyn ErrorSink) {
        self.more = true;
    }

    fn scalar(&mut self, span: Span, encoding: Option<Encoding>, error: &mut dyn ErrorSink) {
        let Some(item) = self.item(span, encoding, error) else { return };
        match self.open.last() {
            Some(OpenValue::List) => self.items.push(item),
            Some(OpenValue::Rules | OpenValue::Refused) => {
                error.report_error(ParseError::new("expected a table: write [[rule]]").with_unexpected(span));
            }
            None | Some(OpenValue::Table(_)) => self.entry(TomlValue::One(item), span.end().max(1) - 1),
        }
    }

    fn array_open(&mut self, span: Span, error: &mut dyn ErrorSink) -> bool {
        match self.open.last() {
            None if self.is(RULE) => self.open.push(OpenValue::Rules),
            None | Some(OpenValue::Table(_)) => {
                self.items.clear();
                self.open.push(OpenValue::List);
            }
            Some(_) => return self.refuse("expected a value, not a list", span, error),
        }
        true
    }

    fn array_close(&mut self, span: Span, _: &mut dyn ErrorSink) {
        match self.open.pop() {
            Some(OpenValue::List) => {
                let items = std::mem::take(&mut self.items);
                self.entry(TomlValue::List(items), span.start());
            }
            Some(OpenValue::Table(before)) => self.open.push(OpenValue::Table(before)),
            Some(OpenValue::Rules | OpenValue::Refused) | None => {}
        }
    }

    fn inline_table_open(&mut self, span: Span, error: &mut dyn ErrorSink) -> bool {
        let single = SINGLE.into_iter().find(|name| self.is(name));
        let name = match (self.open.last(), single) {
            (None, Some(name)) => name,
            (None, None) if self.is(RULE) => RULE,
            (Some(OpenValue::Rules), _) => RULE,
            _ => return self.refuse("expected a value, not a table", span, error),
        };
        let many = !self.open.is_empty();
        self.line = self.lines.of(span.start());
        let before = self.table(name.to_owned(), many);
        self.open.push(OpenValue::Table(before));
        true
    }

    fn inline_table_close(&mut self, _: Span, _: &mut dyn ErrorSink) {
        match self.open.pop() {
            Some(OpenValue::Table(before)) => self.current = before,
            Some(OpenValue::Refused) | None => {}
            Some(other) => self.open.push(other),
        }
    }
}

/// Where a mistake is, and what to write instead. The parser's descriptions are kept where they say that.
fn told(error: &ParseError, text: &str) -> (usize, String) {
    let [begin, at] = [error.context().or(error.unexpected()), error.unexpected().or(error.context())]
        .map(|span| span.map_or(0, |span| span.start()));
    let what = match (error.description(), error.expected()) {
        ("key with no value" | "missing value for key", _) => "no value: write KEY = VALUE",
        ("unclosed table", _) => "a table heading must end with ']'",
        ("unclosed array table", _) => "a table heading must end with ']]'",
        ("missing comma between array elements", _) => "expected ',' or ']' in a list",
        ("unclosed array", _) => return (begin, "expected ',' or ']' in a list".to_owned()),
        ("extra comma in array", _) => "expected a value or ']' in a list",
        (
            "unquoted keys cannot be empty"
            | "invalid unquoted key"
            | "invalid table"
            | "invalid key-value pair"
            | "missing table open",
            _,
        ) => "invalid key: use letters, digits, '-' and '_'",
        ("missing escaped value" | "too few unicode value digits" | "invalid value", _)
        | (_, Some([Expected::Literal("\n")])) => {
            "unknown escape in a string: write \\\\ for a backslash, or use single quotes"
        }
        ("unexpected key or value" | "unexpected content between comment and newline", _) => {
            let more = text.get(at..).and_then(|rest| rest.lines().next()).unwrap_or_default();
            let more = short(more);
            return (at, format!("unexpected '{more}' after a value or heading: the line must end there"));
        }
        (_, Some([Expected::Literal(quote @ ("\"" | "'"))])) => {
            return (begin, format!("unterminated string: {quote} is missing"));
        }
        (what, _) if what.starts_with("invalid") && what.ends_with("string") => {
            "control character in a string: in double quotes, write \\u and four digits for it"
        }
        (what, _) => what,
    };
    (at, what.to_owned())
}

/// Error text for something that is not a value.
fn unquoted(raw: &str) -> String {
    match raw {
        "" => "no value after '='".to_owned(),
        _ if raw.contains(['"', '\'']) => format!("{}: quotes must enclose the complete string", short(raw)),
        _ => format!("{} must be in quotes: \"{}\"", short(raw), short(raw)),
    }
}
