//! Values of a command's flags from a file and from the environment, by the table of its flags. Uses [`super::args`].
//!
//! A flag is a key of the file and a variable of the environment unless its line in the table says that it stands on
//! the command line only: there is no second list. docs/CONFIG.md tells users. What is above all headings of a file is
//! `record`'s; [`service`] has the rest.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

use self::toml::{Entry, Item, Kind, Table, Value};
use super::args::{Args, CONF, Command, Flag, Given, Origin, Usage, nearest};
use super::record::flags::COMMAND as RECORD;

pub mod service;
pub mod toml;

/// The flag that names the file, for commands that have their values laid below by [`settled`].
pub const FLAG: Flag = Flag::value(
    CONF,
    "FILE",
    "Take what is not given here from this file, written in TOML with options as keys; `profinfer config --print \
     --default` writes one. The environment is stronger than the file: PROFINFER_LEVEL for --level",
)
.line_only();

/// Bytes that a file may have.
const LARGEST: u64 = 1 << 20;
/// Mistakes that are told of one file.
const TOLD: usize = 100;

/// The values of a file, by the tables that they stand in.
#[derive(Debug, Clone, Default)]
pub struct File {
    /// As it is told.
    pub name: String,
    /// Above all headings.
    pub record: Vec<Given>,
    pub service: Vec<Given>,
    /// Line of the heading `[service]`; 0: there is none.
    pub service_line: usize,
    /// Each with the line of its heading.
    pub rules: Vec<(usize, Vec<Given>)>,
}

/// What is wrong with a file, in the order of its lines.
#[derive(Debug, Default)]
pub struct Faults(Vec<(usize, String)>);

impl Faults {
    /// Notes a mistake in a line, from 1; not more of them than anybody reads.
    pub fn add(&mut self, line: usize, what: String) {
        if !self.full() {
            let behind = self.0.partition_point(|(before, _)| *before <= line);
            self.0.insert(behind, (line, what));
        }
    }

    pub fn full(&self) -> bool {
        self.0.len() >= TOLD
    }

    /// As they are told: `board.toml:3: ...`.
    pub fn told(self, file: &str) -> Vec<String> {
        let full = self.full();
        let mut told: Vec<String> =
            self.0.into_iter().map(|(line, what)| format!("{file}:{line}: {what}")).collect();
        if let Some(last) = told.last_mut().filter(|_| full) {
            last.push_str("; there may be more behind it");
        }
        told
    }
}

/// The command line, with the environment below it, and below that the file that either names.
///
/// # Errors
/// A file that cannot be read; wrong values, all at once; what flags need and exclude.
pub fn settled(args: &Args) -> Result<Args> {
    let (settled, mistakes) = layered(args, &|name| std::env::var_os(name))?;
    Usage::none_of(mistakes)?;
    settled.check()?;
    Ok(settled)
}

/// As [`settled`], with the mistakes of environment and file beside it; nothing else is checked.
///
/// # Errors
/// A file that cannot be read.
pub fn layered(args: &Args, environ: &Environ) -> Result<(Args, Vec<String>)> {
    let Upper { mut args, file, mistakes } = upper(args, environ)?;
    args.below(file.record);
    args.set_file(file.name);
    Ok((args, mistakes))
}

/// Reads a variable of the environment.
pub type Environ<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// A command line with the environment below it, and the file that either of them names.
pub struct Upper {
    pub args: Args,
    pub file: File,
    /// What is wrong with environment and file.
    pub mistakes: Vec<String>,
}

/// Lays the environment below a command line, and reads the file.
///
/// # Errors
/// A file that cannot be read.
pub fn upper(args: &Args, environ: &Environ) -> Result<Upper> {
    let (args, mut mistakes) = with_environment(args, environ);
    let mut read = File::default();
    if let Some(path) = args.path(CONF)?.or_else(|| set(environ, &FLAG).map(PathBuf::from)) {
        let (file, faults) = file(&path)?;
        mistakes.extend(faults.told(&file.name));
        read = file;
    }
    Ok(Upper { args, file: read, mistakes })
}

/// Lays the environment below a command line; what is wrong with it beside that.
pub fn with_environment(args: &Args, environ: &Environ) -> (Args, Vec<String>) {
    let (variables, mistakes) = environment(args.command(), &|flag| set(environ, flag));
    let mut all = args.clone();
    all.below(variables);
    (all, mistakes)
}

/// The variable of a flag. One that is empty is none, as it is usual.
fn set(environ: &Environ, flag: &Flag) -> Option<OsString> {
    environ(&flag.variable()).filter(|v| !v.is_empty())
}

/// The values of a file.
///
/// # Errors
/// It cannot be read as text.
pub fn file(path: &Path) -> Result<(File, Faults)> {
    let (file, faults) = read(&text(path)?);
    Ok((File { name: path.display().to_string(), ..file }, faults))
}

/// The values of a text.
pub fn read(text: &str) -> (File, Faults) {
    let mut faults = Faults::default();
    let mut file = File::default();
    for (i, mut table) in toml::tables(text, &mut faults).into_iter().enumerate() {
        if i == 0 {
            known_only(&mut table, service::not_of_record, &mut faults);
            file.record = settings(&RECORD, &table.entries, &mut faults);
        } else {
            service::take(&mut table, &mut file, &mut faults);
        }
    }
    (file, faults)
}

/// Drops and tells keys that stand elsewhere or nowhere, for the reason that `why` gives.
fn known_only(table: &mut Table, why: fn(&str) -> Option<&'static str>, faults: &mut Faults) {
    table.entries.retain(|entry| {
        let why = why(&entry.key);
        if let Some(why) = why {
            faults.add(entry.line, format!("{} {why}", entry.key));
        }
        why.is_none()
    });
}

/// Reads a file as text.
///
/// # Errors
/// It cannot be opened, is no file, too large, or no UTF-8.
pub fn text(path: &Path) -> Result<String> {
    let cannot = || format!("cannot read {}", path.display());
    // A pipe that nobody writes to would be waited for.
    let mut how = OpenOptions::new();
    let file = how.read(true).custom_flags(libc::O_NONBLOCK).open(path).with_context(cannot)?;
    let kind = file.metadata().with_context(cannot)?.file_type();
    if kind.is_dir() || kind.is_fifo() || kind.is_socket() || kind.is_block_device() {
        let what = if kind.is_dir() { "a directory" } else { "no regular file" };
        bail!("cannot read {}: it is {what}; give a file in TOML", path.display());
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).with_context(cannot)?;
    if bytes.len() as u64 > LARGEST {
        bail!("cannot read {}: it has more than 1 MiB, which no configuration needs", path.display());
    }
    String::from_utf8(bytes).map_err(|e| {
        let before = e.as_bytes().iter().take(e.utf8_error().valid_up_to());
        let line = before.filter(|b| **b == b'\n').count() + 1;
        Usage::new(format!("{}:{line}: no text: its bytes are no UTF-8", path.display())).into()
    })
}

/// The values of a table whose keys are flags of `command`.
pub fn settings(command: &'static Command, entries: &[Entry], faults: &mut Faults) -> Vec<Given> {
    let mut given = Vec::new();
    let mut seen: Vec<(&Flag, usize)> = Vec::new();
    for entry in entries {
        // What more is wrong would not be told.
        if faults.full() {
            break;
        }
        let flag = match known(command, &entry.key) {
            Ok(flag) => flag,
            Err(why) => {
                faults.add(entry.line, why);
                continue;
            }
        };
        if let Some((first, line)) = seen.iter().find(|(f, _)| f.same(flag)) {
            let what = format!("{} is given twice: line {line} has {} already", flag.name, first.name);
            faults.add(entry.line, what);
            continue;
        }
        seen.push((flag, entry.line));
        match &entry.value {
            Value::One(item) if flag.is_switch() => given.extend(switch(command, flag, item, faults)),
            Value::One(item) => given.extend(value(flag, item, faults)),
            Value::List(items) if flag.many && items.is_empty() => {
                given.push(Given { flag, value: None, from: Origin::Line(entry.line) });
            }
            Value::List(items) if flag.many => {
                given.extend(items.iter().filter_map(|item| value(flag, item, faults)));
            }
            Value::List(_) => faults.add(entry.line, format!("{} takes one value, no list", flag.name)),
        }
    }
    given
}

fn known(command: &Command, key: &str) -> Result<&'static Flag, String> {
    match command.flags().find(|f| f.name == key && !f.hidden) {
        Some(flag) if flag.is_key() => Ok(flag),
        Some(flag) => Err(format!("{} stands on the command line only, not in a file", flag.name)),
        None => {
            let near = nearest(key, command.flags().filter(|f| f.is_key()).map(|f| f.name));
            let hint = near.map_or("profinfer config --print --default lists all".to_owned(), |n| {
                format!("the nearest is '{n}'")
            });
            Err(format!("unknown key '{}'; {hint}", short(key)))
        }
    }
}

fn switch(command: &Command, flag: &'static Flag, item: &Item, faults: &mut Faults) -> Option<Given> {
    if let Kind::Switch(on) = item.kind {
        return Some(switched(command, flag, on, Origin::Line(item.line)));
    }
    faults.add(item.line, format!("{} '{}': wanted: true or false", flag.name, short(&item.text)));
    None
}

fn value(flag: &'static Flag, item: &Item, faults: &mut Faults) -> Option<Given> {
    let given = Given { flag, value: Some(item.text.clone().into()), from: Origin::Line(item.line) };
    let why = match item.kind {
        Kind::Text | Kind::Number => wrong(flag, &item.text),
        Kind::Switch(_) => Some(format!("'{}': wanted, in quotes: {}", item.text, flag.wanted())),
    };
    let Some(why) = why else { return Some(given) };
    faults.add(item.line, format!("{} {why}", flag.name));
    None
}

/// What is wrong with a value, which is told too.
fn wrong(flag: &Flag, value: &str) -> Option<String> {
    let told = |part: &str| flag.refusal(part).map(|why| format!("'{}': {why}", short(part)));
    if flag.many { value.split(',').find_map(told) } else { told(value) }
}

/// The values of the environment, and what is wrong with others.
fn environment(command: &Command, read: &dyn Fn(&Flag) -> Option<OsString>) -> (Vec<Given>, Vec<String>) {
    let (mut given, mut mistakes, mut seen) = (Vec::new(), Vec::new(), Vec::<&Flag>::new());
    for flag in command.flags().filter(|f| f.is_key()) {
        let Some(value) = read(flag) else { continue };
        let name = flag.variable();
        if let Some(first) = seen.iter().find(|f| f.same(flag)) {
            mistakes.push(format!("{name} says again what {} does: unset one of them", first.variable()));
            continue;
        }
        seen.push(flag);
        match variable(command, flag, &value) {
            Ok(value) => given.push(value),
            Err(why) => mistakes.push(format!("{name} {why}")),
        }
    }
    (given, mistakes)
}

fn variable(command: &Command, flag: &'static Flag, value: &OsStr) -> Result<Given, String> {
    let text = value.to_string_lossy();
    if flag.is_switch() {
        let on = match text.to_ascii_lowercase().as_str() {
            "1" | "true" | "yes" | "on" => true,
            "0" | "false" | "no" | "off" => false,
            _ => return Err(format!("'{}': wanted: true or false", short(&text))),
        };
        return Ok(switched(command, flag, on, Origin::Variable(flag.name)));
    }
    match wrong(flag, &text) {
        Some(why) => Err(why),
        None => Ok(Given { flag, value: Some(value.to_owned()), from: Origin::Variable(flag.name) }),
    }
}

/// A switch that is on or off. Off is what its opposite says, where it has one.
fn switched(command: &Command, flag: &'static Flag, on: bool, from: Origin) -> Given {
    let (flag, value) = match (on, command.opposite(flag)) {
        (true, _) => (flag, Some(OsString::new())),
        (false, Some(opposite)) => (opposite, Some(OsString::new())),
        (false, None) => (flag, None),
    };
    Given { flag, value, from }
}

/// A text's beginning, for messages.
fn short(text: &str) -> String {
    const MOST: usize = 60;
    match text.char_indices().nth(MOST) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text.to_owned(),
    }
}

#[cfg(test)]
mod tests;
