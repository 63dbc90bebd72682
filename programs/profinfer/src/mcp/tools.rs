//! The tools: what each is called with, and the command line of this program that answers it.

use std::ffi::OsString;
use std::fs;
use std::path::Path;
use std::time::Duration;

use serde_json::{Map, Value, json};

use super::Allowed;
use crate::diagnose::SCHEMA;
use crate::identity::Flags;
use analysis::questions::report::By;
use analysis::recorded::calls::Phase;
use analysis::recorded::idents::OpKey;
use cli::args::Choices;

/// Longest recording, seconds.
const LONGEST: u64 = 300;
const DEFAULT: u64 = 10;
/// Time that a tool may take, without that of its recording.
const PATIENCE: Duration = Duration::from_secs(120);

/// A tool.
pub struct Tool {
    pub name: &'static str,
    title: &'static str,
    about: &'static str,
    arguments: &'static [Argument],
    /// The subcommand, and what it is always called with.
    command: &'static [&'static str],
    /// The answer is an object of JSON; else it is text.
    pub structured: bool,
    /// JSON Schema of that object.
    schema: Option<&'static str>,
    /// It records, for this time unless an argument says another.
    pub records: bool,
}

/// An argument of a tool.
struct Argument {
    name: &'static str,
    about: &'static str,
    required: bool,
    kind: Kind,
}

/// What an argument is, and how it is given to the subcommand.
enum Kind {
    /// A recording: the next positional argument.
    Recording,
    /// One of these: the value of a flag.
    OneOf(&'static str, Choices),
    /// Within bounds: the value of a flag.
    Number(&'static str, u64, u64),
    /// So many seconds.
    Seconds,
    /// A command to start, after `--`.
    Command,
}

const RECORDING: &str = "Recording, a file *.pfi; relative paths begin in the server's directory";
const TOP: Argument = Argument {
    name: "top",
    about: "Maximum rows [default: 20]",
    required: false,
    kind: Kind::Number("top", 1, 1000),
};
const PHASE: Argument = Argument {
    name: "phase",
    about: "Only this phase",
    required: false,
    kind: Kind::OneOf("phase", Choices::of::<Phase, Flags>()),
};

const fn recording(name: &'static str, about: &'static str) -> Argument {
    Argument { name, about, required: true, kind: Kind::Recording }
}

pub const TOOLS: &[Tool] = &[
    Tool {
        name: "list_engines",
        title: "List running engines",
        about: "Lists the processes that run llama.cpp or another GGML engine, and why there may be more.",
        arguments: &[],
        command: &["diagnose", "--list", "--json"],
        structured: true,
        schema: None,
        records: false,
    },
    Tool {
        name: "record",
        title: "Record and diagnose",
        about: "Records running engines, or a command that it starts, and returns the diagnosis of the new recording as \
                the tool verdict does. Refused unless the server was started with --allow-record, and for a command \
                with --allow-command.",
        arguments: &[
            Argument {
                name: "pid",
                about: "Process to record [default: all engines that run]",
                required: false,
                kind: Kind::Number("pid", 1, i32::MAX as u64),
            },
            Argument {
                name: "command",
                about: "Command to start and record instead: its words, without a shell",
                required: false,
                kind: Kind::Command,
            },
            Argument {
                name: "seconds",
                about: "Stop after this many seconds; a command is then terminated [default: 10]",
                required: false,
                kind: Kind::Seconds,
            },
        ],
        command: &["diagnose", "--json"],
        structured: true,
        schema: Some(SCHEMA),
        records: true,
    },
    Tool {
        name: "verdict",
        title: "Diagnose a recording",
        about: "Says of a recording how fast the run was, what limits it, what to change with the expected gain, the \
                evidence and what would show it to be wrong, whether the recording is complete, and which commands show \
                more.",
        arguments: &[recording("file", RECORDING)],
        command: &["diagnose", "--json"],
        structured: true,
        schema: Some(SCHEMA),
        records: false,
    },
    Tool {
        name: "compare",
        title: "Compare two recordings",
        about: "Shows which operators became slower or faster from one recording to another of the same model, with \
                confidence intervals.",
        arguments: &[
            recording("before", RECORDING),
            recording("after", RECORDING),
            Argument {
                name: "by",
                about: "What each row is [default: name]",
                required: false,
                kind: Kind::OneOf("by", Choices::of::<OpKey, Flags>()),
            },
            PHASE,
            TOP,
        ],
        command: &["diff"],
        structured: false,
        schema: None,
        records: false,
    },
    Tool {
        name: "table",
        title: "Open one table",
        about: "Prints one table of a recording as text.",
        arguments: &[
            recording("file", RECORDING),
            Argument {
                name: "table",
                about: "Which table",
                required: true,
                kind: Kind::OneOf("by", Choices::of::<By, Flags>()),
            },
            PHASE,
            TOP,
        ],
        command: &["report"],
        structured: false,
        schema: None,
        records: false,
    },
];

/// What to run for a call.
pub struct Job {
    pub words: Vec<OsString>,
    pub patience: Duration,
}

impl Tool {
    /// Its entry in the list of tools.
    pub fn described(&self) -> Value {
        let properties: Map<_, _> =
            self.arguments.iter().map(|a| (a.name.to_owned(), a.described())).collect();
        let required: Vec<_> = self.arguments.iter().filter(|a| a.required).map(|a| a.name).collect();
        let mut tool = json!({
            "name": self.name,
            "title": self.title,
            "description": self.about,
            "inputSchema": {
                "type": "object",
                "properties": properties,
                "required": required,
                "additionalProperties": false,
            },
            "annotations": { "readOnlyHint": !self.records, "openWorldHint": false },
        });
        let schema = self.schema.and_then(|text| serde_json::from_str::<Value>(text).ok());
        if let (Some(schema), Some(tool)) = (schema, tool.as_object_mut()) {
            tool.insert("outputSchema".to_owned(), schema);
        }
        tool
    }

    /// The command line for these arguments; relative paths begin in `here`.
    ///
    /// # Errors
    /// Why it is not run, for the model that has called.
    pub fn job(&self, mut given: Map<String, Value>, here: &Path, allowed: Allowed) -> Result<Job, String> {
        if self.records && !allowed.record {
            return Err("this server may not record: start it as 'profinfer mcp --allow-record'".to_owned());
        }
        let mut words: Vec<OsString> = self.command.iter().map(Into::into).collect();
        let (mut behind, mut seconds) = (Vec::new(), DEFAULT);
        for argument in self.arguments {
            let value = given.remove(argument.name).filter(|value| !value.is_null());
            let Some(value) = value else {
                if argument.required {
                    return Err(format!("the argument {} is required", argument.name));
                }
                continue;
            };
            let wrong = |why: String| format!("the argument {}: {why}", argument.name);
            match &argument.kind {
                Kind::Recording => words.push(file(&value, here).map_err(wrong)?),
                Kind::OneOf(flag, choices) => {
                    let choice = value.as_str().filter(|text| choices.names().any(|name| name == *text));
                    let names = || choices.names().collect::<Vec<_>>().join(", ");
                    let choice = choice.ok_or_else(|| wrong(format!("expected one of {}", names())))?;
                    words.push(format!("--{flag}={choice}").into());
                }
                Kind::Number(flag, least, most) => {
                    let n = number(&value, *least, *most).map_err(wrong)?;
                    words.push(format!("--{flag}={n}").into());
                }
                Kind::Seconds => seconds = number(&value, 1, LONGEST).map_err(wrong)?,
                Kind::Command if !allowed.command => {
                    return Err(wrong(
                        "this server may not start commands: start it with --allow-command, too".to_owned(),
                    ));
                }
                Kind::Command => behind = command(&value).map_err(wrong)?,
            }
        }
        if let Some(unknown) = given.keys().next() {
            return Err(format!("{} has no argument {unknown}", self.name));
        }
        let mut patience = PATIENCE;
        if self.records {
            words.push(format!("--duration={seconds}s").into());
            patience += Duration::from_secs(seconds);
        }
        if !behind.is_empty() {
            words.push("--".into());
            words.append(&mut behind);
        }
        Ok(Job { words, patience })
    }
}

impl Argument {
    fn described(&self) -> Value {
        let mut schema = match &self.kind {
            Kind::Recording => json!({ "type": "string" }),
            Kind::OneOf(_, choices) => {
                let all = choices.iter().map(|(name, help)| format!("{name}: {help}")).collect::<Vec<_>>();
                let about = format!("{}. {}", self.about, all.join("; "));
                let names: Vec<_> = choices.names().collect();
                return json!({ "type": "string", "enum": names, "description": about });
            }
            Kind::Number(_, least, most) => json!({ "type": "integer", "minimum": least, "maximum": most }),
            Kind::Seconds => json!({ "type": "integer", "minimum": 1, "maximum": LONGEST }),
            Kind::Command => json!({ "type": "array", "items": { "type": "string" }, "minItems": 1 }),
        };
        if let Some(schema) = schema.as_object_mut() {
            schema.insert("description".to_owned(), self.about.into());
        }
        schema
    }
}

fn number(value: &Value, least: u64, most: u64) -> Result<u64, String> {
    let n = value.as_u64().filter(|n| (least..=most).contains(n));
    n.ok_or_else(|| format!("expected an integer from {least} to {most}"))
}

fn command(value: &Value) -> Result<Vec<OsString>, String> {
    let words = value.as_array().map(Vec::as_slice).unwrap_or_default();
    let texts = words.iter().map(|word| word.as_str().filter(|text| !text.contains('\0')));
    let texts: Option<Vec<OsString>> = texts.map(|text| text.map(Into::into)).collect();
    let texts = texts.filter(|texts| texts.first().is_some_and(|program| !program.is_empty()));
    texts.ok_or_else(|| "expected the words of a command, an array of strings".to_owned())
}

/// The whole path of a recording. Nothing else is opened: no pipe, no device, and no file of another kind behind a link.
fn file(value: &Value, here: &Path) -> Result<OsString, String> {
    let Some(text) = value.as_str() else { return Err("expected a path".to_owned()) };
    let given = here.join(text);
    let is_named = |path: &Path| path.extension().is_some_and(|end| end == "pfi");
    if !is_named(&given) {
        return Err("expected a recording: a file whose name ends in .pfi".to_owned());
    }
    let path = fs::canonicalize(&given).map_err(|e| format!("{text}: {e}"))?;
    let is_file = fs::metadata(&path).is_ok_and(|found| found.is_file());
    if !is_file || !is_named(&path) {
        return Err(format!("{text} is not a recording"));
    }
    Ok(path.into_os_string())
}
