//! The clients that reach another machine, `ssh`, `adb` and `hdc`, and the command lines that they are run with.

use std::env;
use std::ffi::{OsStr, OsString};
use std::io::{self, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};

use anyhow::{Context, Result, bail};

use super::place::Place;
use super::quote::quote;
use super::temporary::Temporary;

/// Where everything is on Android and OpenHarmony: the only place to both write and run files.
pub const DEVICE_DIR: &str = "/data/local/tmp";

/// The user `shell` of a device; those below are its system's own (Android's android_filesystem_config.h).
pub const SHELL: u32 = 2000;

/// A client for one machine.
pub struct Client {
    place: Place,
    program: OsString,
    /// Where the socket of the connection is that all sessions share (ssh). Whoever reaches the socket has the connection,
    /// and clients do not ask whose it is.
    shared: Option<Temporary>,
}

/// Its name there.
const SOCKET: &str = "s";
/// Longest path of its directory: a socket's has 108 bytes (unix(7)), on some systems 104, with the suffix that ssh adds
/// until the socket is ready.
const LONGEST: usize = 80;
/// Most that is kept of what a client prints, bytes.
pub const MOST: u64 = 1 << 20;

impl Client {
    /// For this machine; `id` names the session.
    ///
    /// # Errors
    /// No directory for the socket.
    pub fn new(place: Place, id: &str) -> Result<Client> {
        let (variable, name) = match place {
            Place::Ssh { .. } => ("SSH", "ssh"),
            Place::Adb(_) => ("ADB", "adb"),
            Place::Hdc(_) => ("HDC", "hdc"),
        };
        let program = env::var_os(variable).filter(|p| !p.is_empty()).unwrap_or_else(|| name.into());
        let shared = match place {
            Place::Ssh { .. } => {
                let own = env::var_os("XDG_RUNTIME_DIR").filter(|dir| !dir.is_empty()).map(PathBuf::from);
                let within: Vec<PathBuf> = own.into_iter().chain([env::temp_dir(), "/tmp".into()]).collect();
                Some(Temporary::new(&within, id, LONGEST)?)
            }
            _ => None,
        };
        Ok(Client { place, program, shared })
    }

    /// Adds the socket to a command of ssh.
    fn share(&self, command: &mut Command) {
        if let Some(dir) = &self.shared {
            command.arg("-S").arg(dir.path().join(SOCKET));
        }
    }

    pub fn place(&self) -> &Place {
        &self.place
    }

    /// Name of the client, for messages.
    pub fn name(&self) -> String {
        self.program.to_string_lossy().into_owned()
    }

    /// Whether the client passes standard input on, and returns the exit status.
    pub fn is_piped(&self) -> bool {
        !matches!(self.place, Place::Hdc(_))
    }

    /// Selects the only device if none is named.
    ///
    /// # Errors
    /// There is none, or several.
    pub fn select(&mut self) -> Result<()> {
        let (named, list, none): (_, &[&str], _) = match &self.place {
            Place::Ssh { .. } => return Ok(()),
            Place::Adb(named) => {
                (named, &["devices"], "connect one with USB debugging enabled, or `adb connect HOST`")
            }
            Place::Hdc(named) => (named, &["list", "targets"], "connect one, or `hdc tconn HOST:PORT`"),
        };
        let (_, said) = printed(&mut self.plain(list)).with_context(|| self.missing())?;
        let all: Vec<(String, String)> = match self.place {
            Place::Adb(_) => said.lines().skip(1).filter_map(adb_device).collect(),
            _ => said.lines().filter_map(hdc_target).collect(),
        };
        let names = || all.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ");
        let client = self.name();
        let chosen = match (named, all.as_slice()) {
            (Some(name), all) => match all.iter().find(|(n, _)| n == name) {
                Some(one) => one.clone(),
                None if all.is_empty() => bail!("{client} lists no device: {none}"),
                None => bail!("{client} lists no device {name}, only {}", names()),
            },
            (None, []) => bail!("{client} lists no device: {none}"),
            (None, [one]) => one.clone(),
            (None, _) => {
                let kind = if matches!(self.place, Place::Adb(_)) { "adb" } else { "hdc" };
                bail!("{client} lists several devices: give one, as --on {kind}:NAME: {}", names())
            }
        };
        let (name, state) = chosen;
        if state != "device" {
            bail!(
                "the device {name} is {state}: confirm the connection on its screen, or see `{client} devices`"
            );
        }
        self.place = match self.place {
            Place::Hdc(_) => Place::Hdc(Some(name)),
            _ => Place::Adb(Some(name)),
        };
        Ok(())
    }

    /// Context of an error to start the client.
    pub fn missing(&self) -> String {
        let from = match self.place {
            Place::Ssh { .. } => "install an OpenSSH client, or name one in SSH",
            Place::Adb(_) => "install Android's platform tools, or name it in ADB",
            Place::Hdc(_) => "it comes with the OpenHarmony SDK (toolchains/hdc); or name it in HDC",
        };
        format!("cannot run {}: {from}", self.name())
    }

    /// The client with these words.
    fn plain<W: AsRef<OsStr>>(&self, words: &[W]) -> Command {
        let mut command = Command::new(&self.program);
        command.args(words);
        command
    }

    /// The first session, which all others share; it may ask for a password on the terminal.
    pub fn first(&self, script: &str) -> Command {
        let Place::Ssh { .. } = self.place else { return self.session(script.as_bytes()) };
        let mut command = self.plain(&["-T", "-e", "none", "-M"]);
        self.share(&mut command);
        for option in [
            "ControlPersist=no",
            "ConnectTimeout=15",
            // A dead connection is noticed here after a minute; the guard there waits a little longer.
            "ServerAliveInterval=15",
            "ServerAliveCountMax=4",
        ] {
            command.args(["-o", option]);
        }
        self.destination(&mut command, script.as_bytes());
        ignore_interrupts(&mut command);
        command
    }

    /// A session that runs a script.
    pub fn session(&self, script: &[u8]) -> Command {
        let mut command = match &self.place {
            Place::Ssh { .. } => {
                let mut command = self.plain(&["-T", "-e", "none"]);
                self.share(&mut command);
                // The shared connection needs no password; without it, none could be asked for.
                command.args(["-o", "ControlMaster=no", "-o", "BatchMode=yes"]);
                self.destination(&mut command, script);
                command
            }
            Place::Adb(_) => {
                let mut command = self.device(&["shell", "-T"]);
                command.arg(OsStr::from_bytes(script));
                command
            }
            Place::Hdc(_) => {
                let mut command = self.device(&["shell"]);
                // Its own exit status is always 0.
                command.arg(OsStr::from_bytes(&[b"( ", script, b" ); echo code=$?"].concat()));
                command
            }
        };
        // Ctrl-C reaches only this program, which then ends the sessions in order.
        command.process_group(0);
        command
    }

    /// Copies the program to `new` in the session's directory; None: through the standard input of a session.
    pub fn push(&self, from: &Path, run: &str) -> Option<Command> {
        let words: &[&str] = match self.place {
            Place::Ssh { .. } => return None,
            Place::Adb(_) => &["push"],
            Place::Hdc(_) => &["file", "send"],
        };
        let mut command = self.device(words);
        command.arg(from).arg(format!("{run}/new")).process_group(0);
        Some(command)
    }

    /// Prints the trace; None: by a session.
    pub fn print(&self, run: &str, by_sudo: bool) -> Option<Command> {
        let Place::Adb(_) = self.place else { return None };
        let cat: &[&str] = if by_sudo { &["exec-out", "sudo", "-n", "cat"] } else { &["exec-out", "cat"] };
        let mut command = self.device(cat);
        command.arg(String::from_utf8_lossy(&quote(format!("{run}/run.pfi").as_bytes())).into_owned());
        command.process_group(0);
        Some(command)
    }

    /// Copies the trace into a file here, with a client that can do nothing else.
    pub fn receive(&self, run: &str, to: &Path) -> Command {
        let mut command = self.device(&["file", "recv"]);
        command.arg(format!("{run}/run.pfi")).arg(to).process_group(0);
        command
    }

    fn device(&self, words: &[&str]) -> Command {
        let (flag, name) = match &self.place {
            Place::Adb(name) => ("-s", name),
            Place::Hdc(name) => ("-t", name),
            Place::Ssh { .. } => ("", &None),
        };
        let mut command = self.plain::<&str>(&[]);
        if let Some(name) = name {
            command.args([flag, name]);
        }
        command.args(words);
        command
    }

    /// Adds options that must hold whatever ssh's configuration says, the host, and the script for a POSIX shell.
    fn destination(&self, command: &mut Command, script: &[u8]) {
        let Place::Ssh { user, host, port } = &self.place else { return };
        for option in ["RemoteCommand=none", "RequestTTY=no", "ClearAllForwardings=yes"] {
            command.args(["-o", option]);
        }
        if let Some(port) = port {
            command.arg("-p").arg(port.to_string());
        }
        if let Some(user) = user {
            command.arg("-l").arg(user);
        }
        let line = [b"exec sh -c ".as_slice(), &quote(script)].concat();
        command.arg("--").arg(host).arg(OsStr::from_bytes(&line));
    }
}

/// Runs a client to its end without standard input, and returns what it prints. One that prints more than [`MOST`] is
/// ended.
///
/// # Errors
/// It cannot be started, or its output cannot be read.
pub fn printed(command: &mut Command) -> io::Result<(ExitStatus, String)> {
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null()).spawn()?;
    let mut text = Vec::new();
    let read = match child.stdout.take() {
        Some(out) => out.take(MOST).read_to_end(&mut text).map(|bytes| bytes as u64 == MOST),
        None => Ok(true),
    };
    if !matches!(read, Ok(false)) {
        let _ = child.kill();
    }
    let status = child.wait()?;
    read.map(|_| (status, String::from_utf8_lossy(&text).into_owned()))
}

/// Ctrl-C is for this program, which ends the connection when everything is in order. The client stays in the
/// terminal's foreground, where it can ask for a password.
fn ignore_interrupts(command: &mut Command) {
    let ignore = || -> io::Result<()> {
        // SAFETY: a plain system call, allowed between fork and exec.
        unsafe { libc::signal(libc::SIGINT, libc::SIG_IGN) };
        Ok(())
    };
    // SAFETY: the closure makes one system call.
    unsafe { command.pre_exec(ignore) };
}

/// A line of `adb devices`: name and state.
fn adb_device(line: &str) -> Option<(String, String)> {
    let (name, state) = line.split_once(char::is_whitespace)?;
    Some((name.to_owned(), state.trim().to_owned()))
        .filter(|(name, _)| !name.is_empty() && !name.starts_with('*'))
}

/// A line of `hdc list targets`.
fn hdc_target(line: &str) -> Option<(String, String)> {
    let name = line.trim();
    let is_name = !name.is_empty() && !name.starts_with('[') && !name.contains(char::is_whitespace);
    is_name.then(|| (name.to_owned(), "device".to_owned()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn words(command: &Command) -> Vec<String> {
        command.get_args().map(|a| a.to_string_lossy().into_owned()).collect()
    }

    #[test]
    fn a_host_is_never_read_as_an_option() {
        let place = Place::Ssh { user: Some("root".to_owned()), host: "board".to_owned(), port: Some(2222) };
        let client = Client::new(place, &format!("host-{}", std::process::id())).expect("a directory");
        for command in [client.first("true"), client.session(b"echo 'a b'")] {
            let words = words(&command);
            let at = words.iter().position(|w| w == "--").expect("a mark");
            assert_eq!(words[at - 4..=at + 1], ["-p", "2222", "-l", "root", "--", "board"]);
            assert!(words[at + 2].starts_with("exec sh -c ") && words.len() == at + 3);
        }
        assert_eq!(
            words(&client.session(b"echo 'a b'")).last().expect("words"),
            r"exec sh -c 'echo '\''a b'\'''"
        );
    }

    #[test]
    fn devices_are_selected_by_name() {
        let client = Client::new(Place::Adb(Some("S1".to_owned())), "id").expect("nothing is made");
        assert_eq!(words(&client.session(b"id -u")), ["-s", "S1", "shell", "-T", "id -u"]);
        let run = "/data/local/tmp/profinfer/run.id";
        let push = client.push(Path::new("p q"), run).expect("a command");
        assert_eq!(words(&push), ["-s", "S1", "push", "p q", "/data/local/tmp/profinfer/run.id/new"]);
        let hdc = Client::new(Place::Hdc(Some("K".to_owned())), "id").expect("nothing is made");
        assert_eq!(words(&hdc.session(b"id -u")), ["-t", "K", "shell", "( id -u ); echo code=$?"]);
        assert_eq!(
            words(&hdc.receive(run, Path::new("x"))),
            ["-t", "K", "file", "recv", "/data/local/tmp/profinfer/run.id/run.pfi", "x"]
        );
    }

    #[test]
    fn the_shared_connection_is_in_a_private_directory() {
        let place = Place::Ssh { user: None, host: "board".to_owned(), port: None };
        let client = Client::new(place, &format!("shared-{}", std::process::id())).expect("a directory");
        let mut sockets = [client.first("true"), client.session(b"true")].into_iter().map(|command| {
            let words = words(&command);
            PathBuf::from(words.iter().skip_while(|w| *w != "-S").nth(1).expect("a socket"))
        });
        let socket = sockets.next().expect("two");
        assert_eq!(sockets.next(), Some(socket.clone()));
        assert!(socket.is_absolute() && socket.as_os_str().len() <= LONGEST + 2, "{socket:?}");
        let dir = socket.parent().expect("a directory").to_owned();
        let mode = std::fs::metadata(&dir).expect("there").permissions().mode();
        assert_eq!(mode & 0o7777, 0o700);
        drop(client);
        assert!(!dir.exists());
    }

    #[test]
    fn a_client_that_prints_without_end_is_ended() {
        let (status, text) = printed(Command::new("sh").args(["-c", "echo a; exit 3"])).expect("it runs");
        assert_eq!((status.code(), text.as_str()), (Some(3), "a\n"));
        let (status, text) = printed(&mut Command::new("yes")).expect("it runs");
        assert!(!status.success() && text.len() as u64 == MOST);
    }

    #[test]
    fn lists_of_devices() {
        let adb = |line| adb_device(line);
        assert_eq!(adb("emulator-5554\tdevice"), Some(("emulator-5554".to_owned(), "device".to_owned())));
        assert_eq!(adb("X1\tunauthorized"), Some(("X1".to_owned(), "unauthorized".to_owned())));
        assert_eq!((adb(""), adb("* daemon started successfully")), (None, None));
        assert_eq!(
            hdc_target("FMR0223C13000649\r"),
            Some(("FMR0223C13000649".to_owned(), "device".to_owned()))
        );
        assert_eq!((hdc_target("[Empty]"), hdc_target("")), (None, None));
    }
}
