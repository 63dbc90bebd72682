//! Command lines of both programs, of all kinds of words.

use std::ffi::OsString;

use cli::args::{Args, Parsed};
use cli::program::Program;
use cli::values::{size, time, whole};
use ggml_runner::RUNNER;
use proptest::prelude::*;

use crate::PROFINFER;

const PROGRAMS: [&Program; 2] = [&PROFINFER, &RUNNER];

/// All kinds of words: existing flags, parts of them, values, and arbitrary bytes.
fn word() -> impl Strategy<Value = OsString> {
    use std::os::unix::ffi::OsStringExt;
    let names = PROGRAMS.iter().flat_map(|p| p.commands.iter()).flat_map(|c| c.flags());
    let names: Vec<String> =
        names.flat_map(|f| [format!("--{}", f.name), f.shown(), f.name.to_owned()]).collect();
    let known = proptest::sample::select(names);
    prop_oneof![
        3 => known.clone().prop_map(OsString::from),
        2 => (known, "[=,a-z0-9-]{0,6}").prop_map(|(a, b)| format!("{a}={b}").into()),
        2 => "-{0,2}[a-zA-Z0-9=,.]{0,5}".prop_map(OsString::from),
        1 => proptest::collection::vec(any::<u8>(), 0..6).prop_map(OsString::from_vec),
    ]
}

proptest! {
    #[test]
    fn no_words_make_it_panic(words in proptest::collection::vec(word(), 0..8)) {
        for command in PROGRAMS.iter().flat_map(|p| p.commands.iter()).copied() {
            let Ok(Parsed::Run(args)) = Args::parse(command, words.clone()) else { continue };
            for flag in command.flags() {
                let _ = (args.flag(flag.name), args.text(flag.name), args.list(flag.name, whole::<u8>(1, 3)));
                let _ = (args.option(flag.name, size), args.needed(flag.name, time));
            }
            for argument in command.arguments {
                let _ = args.needed_argument(argument.name);
            }
        }
    }
}
