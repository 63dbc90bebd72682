use super::*;
use crate::record::events::Events;
use cli::args::Parsed;
use std::os::fd::AsRawFd;

fn parse(line: &str) -> Result<Args, String> {
    let words = line.split(' ').chain(["--", "ls", "-l"]).filter(|w| !w.is_empty());
    match Args::parse(&COMMAND, words.map(OsString::from).collect()) {
        Ok(Parsed::Run(args)) => Ok(args),
        Ok(Parsed::Help { .. }) => Err("help".to_owned()),
        Err(e) => Err(e.to_string()),
    }
}

fn read(line: &str) -> Result<RecordArgs, String> {
    RecordArgs::read(&parse(line)?).map_err(|e| e.to_string())
}

#[test]
fn defaults_are_those_that_the_help_tells() {
    let asked = read("").expect("defaults");
    assert!(
        asked.over == Overwrite::Never
            && asked.mode == 0o600
            && !asked.quiet
            && asked.output.as_os_str() == "run.pfi"
    );
    assert!(matches!(asked.target, Target::Command(c) if c == ["ls", "-l"]));
    let o = asked.options;
    assert_eq!(
        (o.level, o.capture.structure, o.capture.pbuf, o.source),
        (Level::Op, Structure::Changes, false, BackendChoice::Auto)
    );
    assert_eq!((o.op_end, o.site, o.agent_cpu), (OpEnd::Auto, Site::Cheapest, AgentCpu::Auto));
    assert_eq!((o.capture.buffer_bytes, o.duration, o.tokens), (4 << 20, None, None));
}

#[test]
fn every_choice_that_the_help_tells_is_one() {
    for flag in COMMAND.flags() {
        for choice in flag.choices.names() {
            let line = format!("--{} {choice}", flag.name);
            // Files that a choice needs are looked for later.
            assert!(parse(&line).is_ok_and(|args| settings(&args).is_ok()), "{line}");
        }
    }
    assert_eq!(read("--site published").map(|a| a.options.site), Ok(Site::FirstAndReturn));
}

#[test]
fn a_descriptor_for_events_must_be_open_for_writing() {
    let (reader, writer) = std::io::pipe().expect("a pipe");
    let open = |line: &str| Events::open(&parse(line)?).map_err(|e| e.to_string());
    assert!(open(&format!("--events {}", writer.as_raw_fd())).is_ok() && open("").is_ok());
    let flags = rustix::io::fcntl_getfd(&writer).expect("open");
    assert!(flags.contains(rustix::io::FdFlags::CLOEXEC), "nobody inherits it");
    let unreadable = format!("--events {}", reader.as_raw_fd());
    for (line, why) in [
        (&*unreadable, "not open for writing"),
        ("--events 1000000", "not open"),
        ("--events x", "expected an integer"),
        ("--events 1 -o -", "taken by the trace"),
    ] {
        assert!(open(line).is_err_and(|e| e.contains(why)), "{line}");
    }
}

#[test]
fn the_last_word_on_structure_counts() {
    for (line, structure) in
        [("--str", true), ("--no-str", false), ("--no-str --str", true), ("--str --no-str", false)]
    {
        assert_eq!(
            read(line).map(|a| a.options.capture.structure != Structure::Off),
            Ok(structure),
            "{line}"
        );
    }
}

#[test]
fn one_target_is_wanted() {
    for line in ["-p 1", "--exe x", "--exe x -p 1"] {
        assert!(read(line).is_err_and(|why| why.contains("exe")), "{line}");
    }
}

#[test]
fn a_command_may_be_given_cpus() {
    assert_eq!(read("--cpus 0-1,8").map(|a| a.options.cpus), Ok(Some(vec![0, 1, 8])));
    assert!(read("--cpus 0x3").is_err_and(|why| why.contains("a list of CPUs")));
    let args = Args::parse(&COMMAND, ["-p", "1", "--cpus", "0"].map(OsString::from).to_vec());
    let Ok(Parsed::Run(args)) = args else { panic!("it does not parse") };
    assert!(RecordArgs::read(&args).is_err_and(|e| e.to_string().contains("taskset")));
}

#[test]
fn what_is_given_elsewhere_stands_behind_the_command_line() {
    let (file, _) = conf::read("level = \"graph\"\nsched = true\nquiet = false\nbtf = \"a b\"");
    let mut args = Args::none(&COMMAND);
    args.below(file.record);
    let line = whole_line(&args);
    assert!(line.ends_with(" # with --level=graph --sched '--btf=a b'"), "{line}");
    assert_eq!(whole_line(&Args::none(&COMMAND)), command_line(std::env::args_os()));
}

#[test]
fn words_that_a_shell_would_split_are_quoted() {
    let words = ["profinfer", "a b", "it's", ""].into_iter().map(OsString::from);
    assert_eq!(command_line(words), r"profinfer 'a b' 'it'\''s' ''");
    let words = ["record", "--", "server", "--api-key", "x y", "-p", "a*"].into_iter().map(OsString::from);
    assert_eq!(command_line(words), "record -- server --api-key *** -p 'a*'");
}
