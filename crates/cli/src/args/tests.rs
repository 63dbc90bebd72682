//! Tests of the argument parser.

use super::*;
use crate::values::{one_of, size, whole};

const LEVELS: Choices = Choices::from_fn(|i| [("token", ""), ("graph", "")].get(i).copied());

static COMMAND: Command = Command {
    name: "try",
    about: "Tries flags",
    text: "",
    usage: &["[OPTIONS]"],
    arguments: &[Argument { name: "IN", help: "" }, Argument { name: "OUT", help: "" }],
    behind: None,
    groups: &[
        FlagGroup {
            title: "Options",
            flags: &[
                Flag::value("number", "N", "").short('n').excludes(&["level"]),
                Flag::value("pid", "PID", "").short('p').many(),
                Flag::switch("quiet", "").short('q'),
                Flag::switch("force", "").short('f'),
                Flag::switch("str", "").overrides("no-str"),
                Flag::switch("no-str", "").overrides("str"),
            ],
        },
        FlagGroup {
            title: "More",
            flags: &[
                Flag::value("size", "SIZE", "").default("4MiB"),
                Flag::value("level", "LEVEL", "").choices(LEVELS),
                Flag::value("output", "FILE", "").short('o'),
                Flag::switch("more", "").needs(&["output", "level"]),
                Flag::switch("secret", "").hidden(),
            ],
        },
    ],
    notes: "",
    exits: &[],
    examples: "",
    run: |_| Ok(ExitCode::SUCCESS),
};

static STARTER: Command = Command {
    arguments: &[],
    behind: Some(Argument { name: "COMMAND", help: "" }),
    name: COMMAND.name,
    about: "",
    text: "",
    usage: &[],
    groups: COMMAND.groups,
    notes: "",
    exits: &[],
    examples: "",
    run: |_| Ok(ExitCode::SUCCESS),
};

fn parse(command: &'static Command, line: &str) -> Result<Args, String> {
    match Args::parse(command, line.split(' ').filter(|w| !w.is_empty()).map(OsString::from).collect()) {
        Ok(Parsed::Run(args)) => Ok(args),
        Ok(Parsed::Help { long }) => Err(format!("help {long}")),
        Err(e) => Err(e.to_string()),
    }
}

fn args(line: &str) -> Args {
    parse(&COMMAND, line).unwrap_or_else(|e| panic!("{line}: {e}"))
}

fn refused(line: &str) -> String {
    parse(&COMMAND, line).err().unwrap_or_else(|| panic!("{line}: not refused"))
}

const ANY: fn(&str) -> Result<String, String> = |text| Ok(text.to_owned());

#[test]
fn flags_stand_anywhere_and_in_any_form() {
    for line in [
        "a -n 5 -q b",
        "--number=5 a --quiet b",
        "a b -q --number 5",
        "-n=5 -q -- a b",
        "-qn5 a -- b",
        "-qfn 5 a b",
    ] {
        let a = args(line);
        assert_eq!(a.option("number", whole::<u32>(0, 9)).ok(), Some(Some(5)), "{line}");
        assert!(a.flag("quiet") && a.flag("force") == line.contains('f') && !a.flag("more"), "{line}");
        assert_eq!((a.argument("IN"), a.argument("OUT")), (Some("a".as_ref()), Some("b".as_ref())), "{line}");
        assert!(a.behind().is_empty());
    }
}

#[test]
fn values_may_be_a_dash_or_negative_or_joined() {
    for (line, value) in [
        ("-o -", "-"),
        ("-o=-", "-"),
        ("-o-", "-"),
        ("-o -1.5", "-1.5"),
        ("--output=-q", "-q"),
        ("-o-q", "-q"),
        ("-o a=b", "a=b"),
        ("--output=a=b", "a=b"),
    ] {
        assert_eq!(args(line).text("output").expect(line), Some(value.into()), "{line}");
    }
}

#[test]
fn lists_are_repeated_or_have_commas() {
    let pids = |line: &str| args(line).list("pid", whole::<u32>(0, 99)).map_err(|e| e.to_string());
    assert_eq!(pids("-p 1,2 --pid 3 -p4 --pid=5,6"), Ok(vec![1, 2, 3, 4, 5, 6]));
    assert_eq!(pids(""), Ok(vec![]));
    assert_eq!(pids("-p 1,x"), Err("-p/--pid 'x': expected an integer from 0 to 99".to_owned()));
    assert!(pids("--pid=1,").is_err() && pids("-p ,").is_err());
}

#[test]
fn what_follows_two_dashes_is_no_flag() {
    let a = args("- -- --quiet");
    assert!(!a.flag("quiet"));
    assert_eq!((a.argument("IN"), a.argument("OUT")), (Some("-".as_ref()), Some("--quiet".as_ref())));
    let a = parse(&STARTER, "-q -- ls -l -- x").expect("a command");
    assert_eq!(a.behind(), ["ls", "-l", "--", "x"]);
    let why = parse(&STARTER, "ls -l").err();
    assert_eq!(why.as_deref(), Some("unknown option '-l'; put COMMAND after '--': profinfer try -- ls ..."));
    let why = parse(&STARTER, "-t 4 -- ls").err();
    assert_eq!(why.as_deref(), Some("unknown option '-t'; an option of COMMAND follows it, after '--'"));
    let why = parse(&STARTER, "ls").err();
    assert_eq!(why.as_deref(), Some("unexpected argument 'ls'; put COMMAND after '--'"));
}

#[test]
fn what_is_not_given_has_its_default() {
    let a = args("");
    assert_eq!(a.needed("size", size).ok(), Some(4 << 20));
    assert_eq!(a.text("size").ok(), Some(Some("4MiB".into())));
    assert_eq!(a.option("number", ANY).ok(), Some(None));
    assert_eq!(a.path("output").ok(), Some(None));
    assert_eq!(a.needed("output", ANY).expect_err("none").to_string(), "-o FILE is required");
    assert_eq!(a.needed("level", ANY).expect_err("none").to_string(), "--level LEVEL is required");
    assert_eq!(a.needed_argument("IN").expect_err("none").to_string(), "IN is required");
    assert_eq!(args("--size 8MiB").needed("size", size).ok(), Some(8 << 20));
}

#[test]
fn of_two_that_override_each_other_the_last_one_counts() {
    for (line, given) in
        [("--no-str --str", false), ("--str --no-str", true), ("--str --no-str --str", false)]
    {
        assert_eq!(args(line).flag("no-str"), given, "{line}");
    }
}

#[test]
fn wrong_usage_is_told_by_name() {
    for (line, why) in [
        ("--numbr 1", "unknown option '--numbr'; the nearest is '--number'"),
        ("--out 1", "unknown option '--out'; the nearest is '--output'"),
        ("--secre", "unknown option '--secre'"),
        (
            "--cl-profile x",
            "--cl-profile was removed: record --gpu kernel has the kernels of OpenCL, and their times, in the recording",
        ),
        (
            "--gpu-times=logger",
            "--gpu-times was removed: --gpu kernel has the times of Vulkan, from a layer in the started command",
        ),
        ("--colour", "unknown option '--colour'"),
        ("-x", "unknown option '-x'"),
        ("-qx1", "unknown option '-x' in '-qx1'"),
        ("-qq", "-q/--quiet is given twice"),
        ("-n 1 --number 2", "-n/--number is given twice"),
        ("-n", "-n/--number needs a value: N"),
        ("-n -- 1", "-n/--number needs a value: N"),
        ("-o --force", "-o/--output needs a value: FILE (if '--force' is the value, write --output=--force)"),
        ("--level", "--level needs a value: token or graph"),
        ("--quiet=yes", "-q/--quiet takes no value"),
        ("-q=yes", "-q/--quiet takes no value"),
        ("-n 1 --level token", "-n/--number and --level cannot be combined"),
        ("--level token -n 1", "-n/--number and --level cannot be combined"),
        ("--more", "--more requires -o FILE or --level LEVEL"),
        ("a b c", "unexpected argument 'c'"),
        ("--=", "unknown option '--'"),
        ("--help=yes", "help true"),
        ("-h -x", "help false"),
        ("-qh", "help false"),
        ("--help --nonsense", "help true"),
    ] {
        assert_eq!(refused(line), why, "{line}");
    }
    let levels = one_of(&[("token", 1), ("graph", 2)]);
    let why = args("--level grap").option("level", levels).expect_err("no level").to_string();
    assert_eq!(why, "--level 'grap': expected token or graph; the nearest is 'graph'");
    let why = args("--output=").path("output").expect_err("empty").to_string();
    assert_eq!(why, "-o/--output needs a value: FILE");
}

#[test]
fn the_nearest_name_is_one_that_could_be_meant() {
    let near = |word| nearest(word, ["level", "output", "op-end", "op"].into_iter());
    assert_eq!(near("lvel"), Some("level"));
    assert_eq!(near("otuput"), Some("output"));
    assert_eq!(near("ops"), Some("op"));
    assert_eq!(near("op-"), Some("op-end"));
    assert_eq!(near("colour"), None);
    assert_eq!(near(""), None);
    assert_eq!(near("o"), None);
}

#[test]
fn bytes_that_are_no_text_pass_as_they_are() {
    use std::os::unix::ffi::OsStringExt;
    for word in [b"--output=\xff".to_vec(), b"-o\xff".to_vec()] {
        let Ok(Parsed::Run(a)) = Args::parse(&COMMAND, vec![OsString::from_vec(word)]) else {
            panic!("refused")
        };
        assert_eq!(a.text("output").expect("a value"), Some(OsString::from_vec(vec![0xff])));
        assert!(a.option("output", whole::<u32>(0, 9)).is_err());
    }
}
