//! `profinfer install`: this program as a service of the machine. Uses `agent::privileges` and [`super::config`]; the files
//! are those of conf/.
//!
//! What is written is written beside its place and renamed, so that a link planted there is never followed.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Component, Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};

use super::args::{Args, Command, Flag, Group, Usage};
use super::config;
use super::values::one_of;
use crate::agent::privileges;
use crate::views::table::clean;

pub const COMMAND: Command = Command {
    name: "install",
    about: "Makes this program a service of the machine: binary, configuration, unit or init script",
    text: "\
Copies itself, writes the configuration of profinfer serve unless there is one, and what the init system goes by. Nothing is
started, enabled or reloaded: what to do next is the last line of its output.

What was there is replaced, but for the configuration. A link or a directory in the place of a file is refused, and so is a
directory on the way that others may change.",
    usage: &["[OPTIONS]"],
    arguments: &[],
    behind: None,
    groups: &[FLAGS],
    notes: "",
    exits: super::EXITS,
    examples: "\
profinfer install --dry-run                   what it would do
sudo ./profinfer install                      then as it says: systemctl enable --now profinfer
profinfer install --root image --init sysv    into the files of a machine that is being made
sudo profinfer install --uninstall            configuration and recordings stay",
    run,
};

const FLAGS: Group = Group {
    title: "Options",
    flags: &[
        Flag::switch("dry-run", "Say what would be done, and do nothing"),
        Flag::value(
            "prefix",
            "DIR",
            "The program goes into DIR/bin [default: /usr/local; /usr with procd, /system with openharmony]",
        ),
        Flag::value("root", "DIR", "Take DIR for / (files of another machine)").default("/"),
        Flag::value("init", "INIT", "What starts services [default: what the machine has]").choices(&[
            ("systemd", "a hardened unit"),
            ("sysv", "an init script by the Linux Standard Base"),
            ("procd", "an init script for OpenWrt"),
            ("openharmony", "a .cfg for OpenHarmony's init"),
            ("none", "program and configuration alone"),
        ]),
        Flag::switch("uninstall", "Remove program and unit or script again"),
    ],
};

/// A way to be started, and what differs with it.
#[derive(Debug)]
struct Init {
    name: &'static str,
    /// A machine has it if this is there.
    sign: &'static str,
    prefix: &'static str,
    conf: &'static str,
    /// Where its file goes, the file, and whether it is a program.
    file: Option<(&'static str, &'static str, bool)>,
    /// Where recordings go, and what lives as long as the machine runs.
    state: &'static str,
    run: &'static str,
    /// What makes it known and starts it, and what stops it.
    start: &'static str,
    stop: &'static str,
}

/// Those that leave a surer sign come first.
const INITS: [Init; 5] = [
    Init {
        name: "openharmony",
        sign: "/system/etc/init",
        prefix: "/system",
        conf: "/system/etc/profinfer/profinfer.toml",
        file: Some((
            "/system/etc/init/profinfer.cfg",
            include_str!("../../conf/openharmony/profinfer.cfg"),
            false,
        )),
        state: "/data/service/el1/public/profinfer",
        run: "/data/service/el1/public/profinfer",
        start: "reboot (init reads the .cfg when it starts)",
        stop: "begetctl stop_service profinfer",
    },
    Init {
        name: "procd",
        sign: "/sbin/procd",
        prefix: "/usr",
        conf: "/etc/profinfer/profinfer.toml",
        file: Some(("/etc/init.d/profinfer", include_str!("../../conf/procd/profinfer"), true)),
        state: "/var/lib/profinfer",
        run: "/var/run/profinfer",
        start: "/etc/init.d/profinfer enable && /etc/init.d/profinfer start",
        stop: "/etc/init.d/profinfer stop; /etc/init.d/profinfer disable",
    },
    Init {
        name: "systemd",
        sign: "/run/systemd/system",
        prefix: "/usr/local",
        conf: "/etc/profinfer/profinfer.toml",
        file: Some((
            "/etc/systemd/system/profinfer.service",
            include_str!("../../conf/systemd/profinfer.service"),
            false,
        )),
        state: "/var/lib/profinfer",
        run: "/run/profinfer",
        start: "systemctl daemon-reload && systemctl enable --now profinfer",
        stop: "systemctl disable --now profinfer",
    },
    Init {
        name: "sysv",
        sign: "/etc/init.d",
        prefix: "/usr/local",
        conf: "/etc/profinfer/profinfer.toml",
        file: Some(("/etc/init.d/profinfer", include_str!("../../conf/sysv/profinfer"), true)),
        state: "/var/lib/profinfer",
        run: "/run/profinfer",
        start: "update-rc.d profinfer defaults (where there is one), then /etc/init.d/profinfer start",
        stop: "/etc/init.d/profinfer stop",
    },
    Init {
        name: "none",
        sign: "/",
        prefix: "/usr/local",
        conf: "/etc/profinfer/profinfer.toml",
        file: None,
        state: "/var/lib/profinfer",
        run: "/run/profinfer",
        start: "profinfer serve --conf /etc/profinfer/profinfer.toml, from whatever starts programs here",
        stop: "profinfer stop",
    },
];

/// The files of conf/ have these paths, which others take the place of.
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
    let place = Place { root, dry: args.flag("dry-run") };
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

/// A path that means the same in a unit, a script and JSON.
fn written(prefix: &Path) -> Result<String, Usage> {
    let text = prefix.to_string_lossy();
    let plain = |c: char| c.is_ascii_alphanumeric() || "/._+-".contains(c);
    match text.starts_with('/') && text.chars().all(plain) && !text.split('/').any(|part| part == "..") {
        true => Ok(text.into_owned()),
        false => Err(Usage::new(format!(
            "--prefix '{text}': wanted: a path from / on, of letters, digits and ._+-"
        ))),
    }
}

/// What starts services: on the machine by what runs, in an image by what is there.
fn found(place: &Place) -> &'static Init {
    let there = |path: &str| place.at(path).exists();
    let of = |init: &Init| match init.name {
        "systemd" => there(init.sign) || (!place.is_here() && there("/usr/lib/systemd/systemd")),
        _ => there(init.sign),
    };
    let last = INITS.len() - 1;
    INITS.iter().find(|init| of(init)).unwrap_or(&INITS[last])
}

fn install(place: &Place, init: &Init, program: &str) -> Result<()> {
    say(&format!("init system: {}", init.name))?;
    place.copy_of_this(program)?;
    let conf = config::built_in().replace(STATE, init.state).replace(RUN, init.run);
    place.put(init.conf, conf.as_bytes(), 0o644, true)?;
    if let Some((path, text, runs)) = init.file {
        let mut text = PROGRAMS.iter().fold(text.to_owned(), |text, old| text.replace(old, program));
        if init.name == "openharmony" && place.is_here() {
            // The domain in which this runs is one that the policy has, and in which `doctor` was tried.
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

fn uninstall(place: &Place, init: &Init, program: &str) -> Result<()> {
    say(&format!("init system: {}; if the service still runs: {}", init.name, init.stop))?;
    if let Some((path, ..)) = init.file {
        place.remove(path)?;
    }
    place.remove(program)?;
    say(&format!("left where they are: {} and what was recorded, in {}", init.conf, init.state))
}

fn say(line: &str) -> Result<()> {
    Ok(writeln!(io::stdout(), "{}", clean(line))?)
}

/// Where files go.
struct Place {
    root: PathBuf,
    dry: bool,
}

impl Place {
    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    /// This machine itself, not the files of another.
    fn is_here(&self) -> bool {
        self.root == Path::new("/")
    }

    fn copy_of_this(&self, path: &str) -> Result<()> {
        let mut this = File::open("/proc/self/exe").context("cannot read this program")?;
        let meta = this.metadata().context("cannot read this program")?;
        let same = |m: &fs::Metadata| (m.dev(), m.ino()) == (meta.dev(), meta.ino());
        if fs::symlink_metadata(self.at(path)).is_ok_and(|m| m.is_file() && same(&m)) {
            return say(&format!("{}: is this program itself", self.at(path).display()));
        }
        let mut bytes = Vec::new();
        this.read_to_end(&mut bytes).context("cannot read this program")?;
        self.put(path, &bytes, 0o755, false)
    }

    /// Writes a file, or keeps the one that is there.
    fn put(&self, path: &str, bytes: &[u8], mode: u32, keep: bool) -> Result<()> {
        let at = self.at(path);
        self.folders(&at)?;
        let there = self.is_file(&at)?;
        if there && keep {
            return say(&format!("{}: kept as it is", at.display()));
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
            (false, _) => say(&format!("{}: was not there", at.display())),
            (true, true) => say(&format!("would remove {}", at.display())),
            (true, false) => {
                fs::remove_file(&at).with_context(|| advice(&at))?;
                say(&format!("{}: removed", at.display()))
            }
        }
    }

    /// Whether there is a file; anything else in its place is refused.
    fn is_file(&self, at: &Path) -> Result<bool> {
        match fs::symlink_metadata(at) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(e) => Err(e).with_context(|| format!("cannot look at {}", at.display())),
            Ok(meta) if meta.is_file() => Ok(true),
            Ok(meta) => {
                let what = if meta.is_symlink() { "a link" } else { "not a file" };
                bail!("{} is {what}: nothing was done there; remove it if it is not wanted", at.display())
            }
        }
    }

    /// Makes the folders on the way to a file, and sees that nobody else has a hand in them.
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
        let look = || format!("cannot look at {}", folder.display());
        // SAFETY: takes nothing, gives a number.
        let us = unsafe { libc::geteuid() };
        let link = fs::symlink_metadata(folder).with_context(look)?;
        if link.is_symlink() && *folder != self.root {
            let to = fs::read_link(folder).with_context(look)?;
            let out = to.is_absolute() || to.components().any(|c| c == Component::ParentDir);
            if out && !self.is_here() {
                bail!("{} is a link that leads out of {}", folder.display(), self.root.display());
            }
        }
        let meta = fs::metadata(folder).with_context(look)?;
        if !meta.is_dir() {
            bail!("{} is not a directory", folder.display());
        }
        let strange = [&link, &meta].iter().any(|m| m.uid() != 0 && m.uid() != us);
        // In one with the sticky bit others cannot touch what is not theirs.
        if strange || meta.mode() & 0o1002 == 0o002 {
            bail!("{} can be changed by others: nothing is installed below it", folder.display());
        }
        Ok(())
    }
}

fn advice(at: &Path) -> String {
    // SAFETY: takes nothing, gives a number.
    let root = unsafe { libc::geteuid() } == 0;
    format!("cannot change {}{}", at.display(), if root { "" } else { " (run as root)" })
}

/// A new file beside the place, which then takes it.
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
        // What could not be written whole is of no use; that it cannot be removed either is the lesser trouble.
        let _ = fs::remove_file(&new);
    })
}
