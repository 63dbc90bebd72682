//! Values of a command's flags from a file and from the environment, according to the table of its flags.
//!
//! A flag is a key of the file and an environment variable unless its table entry restricts it to the command line:
//! there is no second list. docs/CONFIG.md is for users. Keys above all headings of a file are `record`'s;
//! [`service`] has the rest.

use std::ffi::{OsStr, OsString};
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail};

pub use self::faults::Faults;
use self::faults::short;
use self::toml::{ItemKind, TomlEntry, TomlItem, TomlTable, TomlValue};
use super::record::flags::COMMAND as RECORD;
use cli::args::{Args, CONF, Command, Flag, Given, Usage, ValueOrigin, nearest};

mod faults;
pub mod service;
pub mod toml;

/// The flag that names the file, for commands that use [`settled`].
pub const FLAG: Flag = Flag::value(
    CONF,
    "FILE",
    "Read options that are not on the command line from this TOML file, with option names as keys; \
     `profinfer config --print --default` prints one. Environment variables (PROFINFER_LEVEL for --level) \
     override the file",
)
.cli_only();

/// Maximum file size, bytes.
const LARGEST: u64 = 1 << 20;

/// The values of a file, by table.
#[derive(Debug, Clone, Default)]
pub struct File {
    /// Its name in messages.
    pub name: String,
    /// Users other than its owner and its group can read it.
    pub open: bool,
    /// Above all headings.
    pub record: Vec<Given>,
    /// Of `[service]`, `[metrics]` and `[otlp]`.
    pub service: Vec<Given>,
    /// Those tables that there are, with the lines of their headings.
    pub tables: Vec<(String, usize)>,
    /// Each with the line of its heading.
    pub rules: Vec<(usize, Vec<Given>)>,
}

/// The command line, the environment below it, and below that the file that either names.
///
/// # Errors
/// A file that cannot be read; all wrong values together; what flags need and exclude.
pub fn settled(args: &Args) -> Result<Args> {
    let (settled, mistakes) = layered(args, &|name| std::env::var_os(name))?;
    Usage::none_of(mistakes)?;
    settled.check()?;
    settled.renamed().iter().for_each(|notice| eprintln!("profinfer: {}", render::table::clean(notice)));
    Ok(settled)
}

/// Like [`settled`], but returns the mistakes of environment and file alongside; nothing else is checked.
///
/// # Errors
/// A file that cannot be read.
pub fn layered(args: &Args, environ: &Environ) -> Result<(Args, Vec<String>)> {
    let Upper { mut args, file, mistakes } = upper(args, environ)?;
    args.below(file.record);
    args.set_file(file.name);
    Ok((args, mistakes))
}

/// Reads an environment variable.
pub type Environ<'a> = dyn Fn(&str) -> Option<OsString> + 'a;

/// A command line with the environment below it, and the file that either of them names.
pub struct Upper {
    pub args: Args,
    pub file: File,
    /// Mistakes in environment and file.
    pub mistakes: Vec<String>,
}

/// Adds the environment to a command line, and reads the file.
///
/// # Errors
/// A file that cannot be read.
pub fn upper(args: &Args, environ: &Environ) -> Result<Upper> {
    let (args, mut mistakes) = with_environment(args, environ);
    let mut read = File::default();
    if let Some(path) = args.path(CONF)?.or_else(|| set(environ, &FLAG.variable()).map(PathBuf::from)) {
        let (file, faults) = file(&path)?;
        mistakes.extend(faults.told(&file.name));
        read = file;
    }
    Ok(Upper { args, file: read, mistakes })
}

/// Adds the environment to a command line; returns its mistakes alongside.
pub fn with_environment(args: &Args, environ: &Environ) -> (Args, Vec<String>) {
    let (variables, mistakes) = environment(args.command(), &|name| set(environ, name));
    let mut all = args.clone();
    all.below(variables);
    (all, mistakes)
}

/// A variable. An empty one counts as unset, as usual.
fn set(environ: &Environ, name: &str) -> Option<OsString> {
    environ(name).filter(|v| !v.is_empty())
}

/// The values of a file.
///
/// # Errors
/// It cannot be read as text.
pub fn file(path: &Path) -> Result<(File, Faults)> {
    let (text, open) = text(path)?;
    let (file, faults) = read(&text);
    Ok((File { name: path.display().to_string(), open, ..file }, faults))
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

/// Drops and reports keys that belong elsewhere or are unknown, with the reason from `why`.
fn known_only(table: &mut TomlTable, why: fn(&str) -> Option<&'static str>, faults: &mut Faults) {
    table.entries.retain(|entry| {
        let why = why(&entry.key);
        if let Some(why) = why {
            faults.add(entry.line, format!("{} {why}", entry.key));
        }
        why.is_none()
    });
}

/// Reads a file as text; also returns whether users other than its owner and its group can read it.
///
/// # Errors
/// It cannot be opened, is not a file, is too large, or is not UTF-8.
fn text(path: &Path) -> Result<(String, bool)> {
    let cannot = || format!("cannot read {}", path.display());
    // Do not block on a pipe without a writer.
    let mut how = OpenOptions::new();
    let file = how.read(true).custom_flags(libc::O_NONBLOCK).open(path).with_context(cannot)?;
    let found = file.metadata().with_context(cannot)?;
    let kind = found.file_type();
    if kind.is_dir() || kind.is_fifo() || kind.is_socket() || kind.is_block_device() {
        let what = if kind.is_dir() { "a directory" } else { "not a regular file" };
        bail!("cannot read {}: it is {what}; give a file in TOML", path.display());
    }
    let mut bytes = Vec::new();
    file.take(LARGEST + 1).read_to_end(&mut bytes).with_context(cannot)?;
    if bytes.len() as u64 > LARGEST {
        bail!("cannot read {}: it is larger than 1 MiB, the limit for a configuration", path.display());
    }
    let text = String::from_utf8(bytes).map_err(|e| {
        let before = e.as_bytes().iter().take(e.utf8_error().valid_up_to());
        let line = before.filter(|b| **b == b'\n').count() + 1;
        Usage::new(format!("{}:{line}: not valid UTF-8", path.display()))
    })?;
    Ok((text, found.permissions().mode() & 0o004 != 0))
}

/// The values of a table whose keys are flags of `command`.
pub fn settings(command: &'static Command, entries: &[TomlEntry], faults: &mut Faults) -> Vec<Given> {
    let mut given = Vec::new();
    let mut seen: Vec<(&Flag, usize)> = Vec::new();
    for entry in entries {
        // Further mistakes would not be reported.
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
            let what = format!("{} is given twice: line {line} already has {}", flag.name, first.name);
            faults.add(entry.line, what);
            continue;
        }
        seen.push((flag, entry.line));
        let before = given.len();
        match &entry.value {
            TomlValue::One(item) if flag.is_switch() => given.extend(switch(command, flag, item, faults)),
            TomlValue::One(item) => given.extend(value(flag, item, faults)),
            TomlValue::List(items) if flag.many && items.is_empty() => {
                given.push(Given { flag, value: None, from: ValueOrigin::Line(entry.line), renamed: false });
            }
            TomlValue::List(items) if flag.many => {
                given.extend(items.iter().filter_map(|item| value(flag, item, faults)));
            }
            TomlValue::List(_) => {
                faults.add(entry.line, format!("{} takes a single value, not a list", flag.name))
            }
        }
        given.iter_mut().skip(before).for_each(|g| g.renamed = flag.name != entry.key);
    }
    given
}

fn known(command: &Command, key: &str) -> Result<&'static Flag, String> {
    match command.flags().find(|f| f.is_called(key) && !f.hidden) {
        Some(flag) if flag.is_key() => Ok(flag),
        Some(flag) => Err(format!("{} is allowed on the command line only, not in a file", flag.name)),
        None => {
            let near = nearest(key, command.flags().filter(|f| f.is_key()).map(|f| f.name));
            let hint = near.map_or("profinfer config --print --default lists all keys".to_owned(), |n| {
                format!("the nearest is '{n}'")
            });
            Err(format!("unknown key '{}'; {hint}", short(key)))
        }
    }
}

fn switch(command: &Command, flag: &'static Flag, item: &TomlItem, faults: &mut Faults) -> Option<Given> {
    if let ItemKind::Switch(on) = item.kind {
        return Some(switched(command, flag, on, ValueOrigin::Line(item.line)));
    }
    faults.add(item.line, format!("{} '{}': expected true or false", flag.name, short(&item.text)));
    None
}

fn value(flag: &'static Flag, item: &TomlItem, faults: &mut Faults) -> Option<Given> {
    let given = Given {
        flag,
        value: Some(item.text.clone().into()),
        from: ValueOrigin::Line(item.line),
        renamed: false,
    };
    let why = match item.kind {
        ItemKind::Text | ItemKind::Number => wrong(flag, &item.text),
        ItemKind::Switch(_) => Some(format!("'{}': expected, in quotes: {}", item.text, flag.wanted())),
    };
    let Some(why) = why else { return Some(given) };
    faults.add(item.line, format!("{} {why}", flag.name));
    None
}

/// What is wrong with a value, with the value shown.
fn wrong(flag: &Flag, value: &str) -> Option<String> {
    let told = |part: &str| flag.diagnose(part).map(|why| format!("'{}': {why}", short(part)));
    if flag.many && !flag.whole { value.split(',').find_map(told) } else { told(value) }
}

/// The values of the environment, and the mistakes in others.
fn environment(command: &Command, read: &dyn Fn(&str) -> Option<OsString>) -> (Vec<Given>, Vec<String>) {
    let (mut given, mut mistakes, mut seen) = (Vec::new(), Vec::new(), Vec::<&Flag>::new());
    for flag in command.flags().filter(|f| f.is_key()) {
        let name = flag.variable();
        let now = read(&name);
        let renamed = now.is_none();
        let Some(value) = now.or_else(|| flag.former_variable().and_then(|name| read(&name))) else {
            continue;
        };
        if let Some(first) = seen.iter().find(|f| f.same(flag)) {
            mistakes.push(format!("{name} is the same setting as {}: unset one of them", first.variable()));
            continue;
        }
        seen.push(flag);
        match variable(command, flag, &value) {
            Ok(value) => given.push(Given { renamed, ..value }),
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
            _ => return Err(format!("'{}': expected true or false", short(&text))),
        };
        return Ok(switched(command, flag, on, ValueOrigin::Variable(flag.name)));
    }
    match wrong(flag, &text) {
        Some(why) => Err(why),
        None => Ok(Given {
            flag,
            value: Some(value.to_owned()),
            from: ValueOrigin::Variable(flag.name),
            renamed: false,
        }),
    }
}

/// A switch that is on or off. Off means its opposite, if it has one.
fn switched(command: &Command, flag: &'static Flag, on: bool, from: ValueOrigin) -> Given {
    let (flag, value) = match (on, command.opposite(flag)) {
        (true, _) => (flag, Some(OsString::new())),
        (false, Some(opposite)) => (opposite, Some(OsString::new())),
        (false, None) => (flag, None),
    };
    Given { flag, value, from, renamed: false }
}

#[cfg(test)]
mod tests;
