//! `profinfer install`: installs this program as a service of the machine.
//!
//! Files are written next to their final place and renamed, so that a planted link is never followed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::config;
use cli::args::{Args, Choices, Command, Flag, FlagGroup, Usage};
use cli::values::one_of;
use machine::{owner, privileges};
use render::table::clean;

pub const COMMAND: Command = Command {
    name: "install",
    about: "Install this program as a service: binary, configuration, unit or init script",
    text: "\
Copies itself, writes a configuration for profinfer serve unless one exists, and installs the unit or init script. Nothing is
started, enabled or reloaded; the last line of the output says what to do next.

Existing files are replaced, except the configuration. Links and directories in place of a file are refused, as are parent
directories that other users can change.",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: cli::args::EXITS,
    examples: "\
profinfer install --dry-run                   show what it would do
sudo ./profinfer install                      then as printed: systemctl enable --now profinfer
profinfer install --root image --init sysv    into the file system image of another machine
sudo profinfer install --uninstall            configuration and recordings are kept",
    run,
};

const FLAGS: FlagGroup = FlagGroup {
    title: "Options",
    flags: &[
        Flag::switch("dry-run", "Print what would be done, without doing it"),
        Flag::value(
            "prefix",
            "DIR",
            "Install the program in DIR/bin [default: /usr/local; /usr with procd, /system with \
             openharmony]",
        ),
        Flag::value("root", "DIR", "Use DIR as / (the file system of another machine)").default("/"),
        Flag::value("init", "INIT", "Init system [default: detected]").choices(INIT_CHOICES),
        Flag::switch("uninstall", "Remove the program and the unit or script"),
    ],
};

/// An init system, with its specifics.
#[derive(Debug)]
struct Init {
    name: &'static str,
    help: &'static str,
    /// A machine has it if this path exists.
    sign: &'static str,
    prefix: &'static str,
    conf: &'static str,
    /// The path of its file, the contents, and whether it is executable.
    file: Option<(&'static str, &'static str, bool)>,
    /// Where recordings go, and where runtime files go.
    state: &'static str,
    run: &'static str,
    /// Commands that enable and start it, and that stop it.
    start: &'static str,
    stop: &'static str,
}

/// In the order of how reliable their signs are.
const INITS: [Init; 5] = [
    Init {
        name: "openharmony",
        help: "a .cfg for OpenHarmony's init",
        sign: "/system/etc/init",
        prefix: "/system",
        conf: "/system/etc/profinfer/profinfer.toml",
        file: Some((
            "/system/etc/init/profinfer.cfg",
            include_str!("../../../conf/openharmony/profinfer.cfg"),
            false,
        )),
        state: "/data/service/el1/public/profinfer",
        run: "/data/service/el1/public/profinfer",
        start: "reboot (init reads the .cfg when it starts)",
        stop: "begetctl stop_service profinfer",
    },
    Init {
        name: "procd",
        help: "an init script for OpenWrt",
        sign: "/sbin/procd",
        prefix: "/usr",
        conf: "/etc/profinfer/profinfer.toml",
        file: Some(("/etc/init.d/profinfer", include_str!("../../../conf/procd/profinfer"), true)),
        state: "/var/lib/profinfer",
        run: "/var/run/profinfer",
        start: "/etc/init.d/profinfer enable && /etc/init.d/profinfer start",
        stop: "/etc/init.d/profinfer stop; /etc/init.d/profinfer disable",
    },
    Init {
        name: "systemd",
        help: "a hardened unit",
        sign: "/run/systemd/system",
        prefix: "/usr/local",
        conf: "/etc/profinfer/profinfer.toml",
        file: Some((
            "/etc/systemd/system/profinfer.service",
            include_str!("../../../conf/systemd/profinfer.service"),
            false,
        )),
        state: "/var/lib/profinfer",
        run: "/run/profinfer",
        start: "systemctl daemon-reload && systemctl enable --now profinfer",
        stop: "systemctl disable --now profinfer",
    },
    Init {
        name: "sysv",
        help: "an LSB init script",
        sign: "/etc/init.d",
        prefix: "/usr/local",
        conf: "/etc/profinfer/profinfer.toml",
        file: Some(("/etc/init.d/profinfer", include_str!("../../../conf/sysv/profinfer"), true)),
        state: "/var/lib/profinfer",
        run: "/run/profinfer",
        start: "update-rc.d profinfer defaults (if available), then /etc/init.d/profinfer start",
        stop: "/etc/init.d/profinfer stop",
    },
    Init {
        name: "none",
        help: "program and configuration only",
        sign: "/",
        prefix: "/usr/local",
        conf: "/etc/profinfer/profinfer.toml",
        file: None,
        state: "/var/lib/profinfer",
        run: "/run/profinfer",
        start: "start profinfer serve --conf /etc/profinfer/profinfer.toml from the init system of this machine",
        stop: "profinfer stop",
    },
];

/// As the help lists them: the most common first.
const INIT_CHOICES: Choices = Choices::from_fn(|i| {
    let init = INITS.get(*[2, 3, 1, 0, 4].get(i)?)?;
    Some((init.name, init.help))
});

/// The paths in the files of conf/, which are replaced with the actual ones.
const PROGRAMS: [&str; 2] = ["/usr/bin/profinfer", "/system/bin/profinfer"];
const DOMAIN: &str = "u:r:su:s0";
const STATE: &str = "/var/lib/profinfer";
const RUN: &str = "/run/profinfer";

fn run(args: &Args) -> Result<ExitCode> {
    let root = args.path("root")?.unwrap_or_else(|| "/".into());
    let meta = fs::metadata(&root).with_context(|| format!("--root {}", root.display()))?;
    if !meta.is_dir() {
        bail!("--root {}: not a directory", root.display());
    }
    let place = InstallRoot { root, dry: args.flag("dry-run") };
    let choices = [0, 1, 2, 3, 4].map(|i| INITS.get(i).map_or(("", None), |init| (init.name, Some(init))));
    let init = match args.option("init", one_of(&choices))?.flatten() {
        Some(init) => init,
        None => found(&place),
    };
    let prefix = match args.path("prefix")? {
        Some(prefix) => written(&prefix)?,
        None => init.prefix.to_owned(),
    };
    let program = format!("{}/bin/profinfer", prefix.trim_end_matches('/'));
    match args.flag("uninstall") {
        true => uninstall(&place, init, &program)?,
        false => install(&place, init, &program)?,
    }
    Ok(ExitCode::SUCCESS)
}

/// A path that has the same meaning in a unit, a script and JSON.
fn written(prefix: &Path) -> Result<String, Usage> {
    let text = prefix.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._+-".contains(c);
    match text.starts_with('/') && text.chars().all(plain) && !text.split('/').any(|part| part == "..") {
        true => Ok(text.into_owned()),
        false => Err(Usage::new(format!(
            "--prefix '{text}': expected an absolute path of letters, digits and ._+-"
        ))),
    }
}

/// Detects the init system: on the running machine by what runs, in an image by what exists.
fn found(place: &InstallRoot) -> &'static Init {
    let there = |path: &str| place.at(path).exists();
    let of = |init: &Init| match init.name {
        "systemd" => there(init.sign) || (!place.is_here() && there("/usr/lib/systemd/systemd")),
        _ => there(init.sign),
    };
    let last = INITS.len() - 1;
    INITS.iter().find(|init| of(init)).unwrap_or(&INITS[last])
}

fn install(place: &InstallRoot, init: &Init, program: &str) -> Result<()> {
    say(&format!("init system: {}", init.name))?;
    place.copy_of_this(program)?;
    let conf = config::built_in().replace(STATE, init.state).replace(RUN, init.run);
    // It may hold secrets: headers of `[otlp]`.
    place.put(init.conf, conf.as_bytes(), 0o600, true)?;
    if let Some((path, text, runs)) = init.file {
        let mut text = PROGRAMS.iter().fold(text.to_owned(), |text, old| text.replace(old, program));
        if init.name == "openharmony" && place.is_here() {
            // The current domain is one that the policy has, and in which `doctor` was tried.
            let domain = privileges::read().selinux_context;
            let plain = |c: char| c.is_ascii_alphanumeric() || ":_,.-".contains(c);
            if !domain.is_empty() && domain.chars().all(plain) {
                text = text.replace(DOMAIN, &domain);
            }
        }
        place.put(path, text.as_bytes(), if runs { 0o755 } else { 0o644 }, false)?;
    }
    say(&format!("next: {}", init.start))
}

fn uninstall(place: &InstallRoot, init: &Init, program: &str) -> Result<()> {
    say(&format!("init system: {}; to stop a running service: {}", init.name, init.stop))?;
    if let Some((path, ..)) = init.file {
        place.remove(path)?;
    }
    place.remove(program)?;
    say(&format!("kept: {} and the recordings in {}", init.conf, init.state))
}

fn say(line: &str) -> Result<()> {
    Ok(writeln!(io::stdout(), "{}", clean(line))?)
}

/// Where files go.
struct InstallRoot {
    root: PathBuf,
    dry: bool,
}

impl InstallRoot {
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// The running machine, not an image of another.
    fn is_here(&self) -> bool {
        self.root == Path::new("/")
    }

    fn copy_of_this(&self, path: &str) -> Result<()> {
        let mut this = File::open("/proc/self/exe").context("cannot read this program")?;
        let meta = this.metadata().context("cannot read this program")?;
        let same = |m: &fs::Metadata| (m.dev(), m.ino()) == (meta.dev(), meta.ino());
        if fs::symlink_metadata(self.at(path)).is_ok_and(|m| m.is_file() && same(&m)) {
            return say(&format!("{}: is this program", self.at(path).display()));
        }
        let mut bytes = Vec::new();
        this.read_to_end(&mut bytes).context("cannot read this program")?;
        self.put(path, &bytes, 0o755, false)
    }

    /// Writes a file, or keeps an existing one.
    fn put(&self, path: &str, bytes: &[u8], mode: u32, keep: bool) -> Result<()> {
        let at = self.at(path);
        self.folders(&at)?;
        let there = self.is_file(&at)?;
        if there && keep {
            return say(&format!("{}: exists, kept", at.display()));
        }
        let what = if there { "replace" } else { "write" };
        if self.dry {
            return say(&format!("would {what} {} ({} bytes, mode {mode:04o})", at.display(), bytes.len()));
        }
        replace(&at, bytes, mode).with_context(|| advice(&at))?;
        say(&format!("{}: {}", at.display(), if there { "replaced" } else { "written" }))
    }

    fn remove(&self, path: &str) -> Result<()> {
        let at = self.at(path);
        match (self.is_file(&at)?, self.dry) {
            (false, _) => say(&format!("{}: does not exist", at.display())),
            (true, true) => say(&format!("would remove {}", at.display())),
            (true, false) => {
                fs::remove_file(&at).with_context(|| advice(&at))?;
                say(&format!("{}: removed", at.display()))
            }
        }
    }

    /// Whether the file exists; anything else at its path is refused.
    fn is_file(&self, at: &Path) -> Result<bool> {
        match fs::symlink_metadata(at) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e).with_context(|| format!("cannot access {}", at.display())),
            Ok(meta) if meta.is_file() => Ok(true),
            Ok(meta) => {
                let what = if meta.is_symlink() { "a link" } else { "not a file" };
                bail!("{} is {what}: left unchanged; remove it if it is not needed", at.display())
            }
        }
    }

    /// Creates the parent directories of a file, and checks that nobody else can change them.
    fn folders(&self, at: &Path) -> Result<()> {
        let below = at.strip_prefix(&self.root).unwrap_or(at);
        let mut folder = self.root.clone();
        self.is_safe(&folder)?;
        for part in below.parent().into_iter().flat_map(Path::components) {
            let Component::Normal(name) = part else { continue };
            folder.push(name);
            match fs::symlink_metadata(&folder) {
                Ok(_) => self.is_safe(&folder)?,
                Err(_) if self.dry => return Ok(()),
                Err(_) => {
                    fs::DirBuilder::new().mode(0o755).create(&folder).with_context(|| advice(&folder))?;
                }
            }
        }
        Ok(())
    }

    fn is_safe(&self, folder: &Path) -> Result<()> {
        let look = || format!("cannot access {}", folder.display());
        let link = fs::symlink_metadata(folder).with_context(look)?;
        if link.is_symlink() && *folder != self.root {
            let to = fs::read_link(folder).with_context(look)?;
            let out = to.is_absolute() || to.components().any(|c| c == Component::ParentDir);
            if out && !self.is_here() {
                bail!("{} is a link that points outside {}", folder.display(), self.root.display());
            }
        }
        let meta = fs::metadata(folder).with_context(look)?;
        if !meta.is_dir() {
            bail!("{} is not a directory", folder.display());
        }
        if let Some(why) = [&link, &meta].into_iter().find_map(owner::changeable) {
            bail!("{} can be changed by other users ({why}): refusing to install below it", folder.display());
        }
        Ok(())
    }
}

fn advice(at: &Path) -> String {
    let root = rustix::process::geteuid().is_root();
    format!("cannot change {}{}", at.display(), if root { "" } else { " (run as root)" })
}

/// Writes a new file next to the path and renames it into place.
fn replace(at: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let mut name = at.file_name().unwrap_or_default().to_owned();
    name.push(".new");
    let new = at.with_file_name(name);
    match fs::remove_file(&new) {
        Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
        _ => {}
    }
    let write = || {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&new)?;
        file.write_all(bytes)?;
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        file.sync_all()?;
        fs::rename(&new, at)
    };
    write().inspect_err(|_| {
        // A partial file is useless; failing to remove it is the lesser problem.
        let _ = fs::remove_file(&new);
    })
}
