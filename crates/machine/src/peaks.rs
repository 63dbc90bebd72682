//! The machine's peaks as `profinfer doctor --peaks` measured and kept them: where the file is, whose it is, and the
//! records made of it.

use std::env;
use std::ffi::OsString;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};

use serde_json::{Value, json};

use crate::open;
use crate::user::User;
use crate::{hardware, target_state};
use common::calendar;
use common::machine_peaks::{MachinePeak, rates};
use pfi::record;
use pfi::{Encoder, WriteError};

/// Directory of the file that counts for all users.
const SYSTEM: &str = "/var/cache/profinfer";
const NAME: &str = "peaks.json";
/// Longest file read, bytes.
const LONGEST: u64 = 256 << 10;
/// Peaks older than this are not used, seconds: 180 days.
const OLD_S: u64 = 180 * 86_400;
/// Clocks may differ by this much, seconds: a day.
const AHEAD_S: u64 = 86_400;
const ADVICE: &str = "run `profinfer doctor --peaks` to measure them again";

/// What identifies a machine, as far as its peaks depend on it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MachineIdentity {
    pub cpu_model: String,
    pub arch: String,
    /// CPUs that are online, e.g. `0-3`.
    pub online: String,
    /// A hash of /etc/machine-id, which must not leave the machine (machine-id(5)); empty if there is none.
    pub id: String,
}

/// FNV-1a with 64 bits: not reversible, as the hash is shorter than the id.
fn hash(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ u64::from(*b)).wrapping_mul(0x100_0000_01b3))
}

impl MachineIdentity {
    /// This machine's.
    pub fn read() -> Self {
        let m = hardware::read();
        let id = target_state::text(Path::new("/etc/machine-id"));
        Self {
            cpu_model: m.cpu_model,
            arch: m.arch,
            online: target_state::text(Path::new("/sys/devices/system/cpu/online")).unwrap_or_default(),
            id: id
                .map(|id| format!("{:016x}", hash(format!("profinfer {id}").as_bytes())))
                .unwrap_or_default(),
        }
    }

    /// As in the file.
    pub fn json(&self) -> Value {
        json!({"cpu_model": self.cpu_model, "arch": self.arch, "online": self.online, "id": self.id})
    }

    fn of(json: &Value) -> Option<Self> {
        let text = |name: &str| Some(json.get(name)?.as_str()?.to_owned());
        Some(Self {
            cpu_model: text("cpu_model")?,
            arch: text("arch")?,
            online: text("online")?,
            id: text("id")?,
        })
    }

    /// Why what was measured there does not hold here; None: it does.
    fn differs(&self, here: &Self) -> Option<String> {
        let hidden = common::plain::clean;
        let ids = !self.id.is_empty() && !here.id.is_empty() && self.id != here.id;
        if self.arch != here.arch || self.cpu_model != here.cpu_model {
            let (there, here) = (hidden(&self.cpu_model), hidden(&here.cpu_model));
            return Some(format!("they are of another machine ({there}, this one is {here})"));
        }
        if ids {
            return Some("they are of another machine of this kind".into());
        }
        (self.online != here.online).then(|| {
            format!("CPUs {} were online then, and CPUs {} are now", hidden(&self.online), here.online)
        })
    }
}

/// The record of a row.
fn record(p: &MachinePeak) -> record::Peaks<'_> {
    record::Peaks {
        cluster: &p.cluster,
        cpus: &p.cpus,
        threads: p.threads,
        measured_s: p.measured_s,
        read: p.read,
        read_small_pages: p.read_small_pages,
        triad: p.triad,
        f32: p.f32,
        int8: p.int8,
        isa: &p.isa,
    }
}

/// The environment that decides where files are.
#[derive(Default)]
struct Places {
    cache: Option<OsString>,
    home: Option<OsString>,
    root: bool,
    /// Home directory of the user who called sudo.
    caller: Option<OsString>,
}

impl Places {
    fn here() -> Self {
        let number = |name: &str| env::var(name).ok()?.parse::<u32>().ok();
        let root = rustix::process::geteuid().is_root();
        let caller = || User::find(number("SUDO_UID")?, number("SUDO_GID")?).ok()?.map(|user| user.home);
        let set = |name: &str| env::var_os(name).filter(|dir| Path::new(dir).is_absolute());
        Self {
            cache: set("XDG_CACHE_HOME"),
            home: set("HOME"),
            root,
            caller: if root { caller() } else { None },
        }
    }

    /// The user's file.
    fn own(&self) -> Option<PathBuf> {
        let under = |home: &OsString| Path::new(home).join(".cache");
        let cache = self.cache.as_ref().map(PathBuf::from);
        let dir = cache.or_else(|| self.caller.as_ref().or(self.home.as_ref()).map(under))?;
        Some(dir.join("profinfer").join(NAME))
    }

    fn system() -> PathBuf {
        Path::new(SYSTEM).join(NAME)
    }

    /// Root's measurement counts for all users, and leaves nothing of root's in another's home.
    fn written(&self) -> Option<PathBuf> {
        if self.root && self.cache.is_none() { Some(Self::system()) } else { self.own() }
    }
}

/// Where this user keeps the machine's peaks; None: there is no home directory.
pub fn place() -> Option<PathBuf> {
    Places::here().written()
}

/// The peaks of a file. An error says why they are not used.
fn peaks_of(path: &Path, here: &MachineIdentity, now_s: u64) -> Option<Result<Vec<MachinePeak>, String>> {
    let file = match open::regular(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return None,
        Err(e) => return Some(Err(e.to_string())),
    };
    let mut bytes = Vec::new();
    if let Err(e) = file.take(LONGEST).read_to_end(&mut bytes) {
        return Some(Err(e.to_string()));
    }
    let json: Option<Value> = serde_json::from_slice(&bytes).ok();
    let parts =
        json.as_ref().and_then(|json| Some((rates(json)?, MachineIdentity::of(json.get("machine")?)?)));
    let Some((all, of)) = parts else { return Some(Err("the file is damaged or of another program".into())) };
    let measured_s = all.first().map_or(0, |p| p.measured_s);
    let why = of.differs(here).or_else(|| {
        let day = calendar::day(measured_s);
        let old = now_s.saturating_sub(measured_s) > OLD_S || measured_s > now_s.saturating_add(AHEAD_S);
        old.then(|| format!("they were measured on {day}, which is not within the last 180 days"))
    });
    Some(why.map_or(Ok(all), Err))
}

/// Seconds since 1970.
pub fn now_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

/// The peaks measured on this machine: the user's, else the system's. Tells why some are not used.
pub fn find(tell: &mut dyn FnMut(String)) -> Vec<MachinePeak> {
    let mut places: Vec<PathBuf> = Places::here().own().into_iter().chain([Places::system()]).collect();
    places.dedup();
    let mut here = None;
    for path in places.iter().filter(|path| path.exists()) {
        let here = here.get_or_insert_with(MachineIdentity::read);
        match peaks_of(path, here, now_s()) {
            None => {}
            Some(Ok(all)) => return all,
            Some(Err(why)) => {
                tell(format!("the machine's peaks in {} are not used: {why}; {ADVICE}", path.display()));
            }
        }
    }
    Vec::new()
}

/// Writes them into a trace.
///
/// # Errors
/// The trace cannot be written.
pub fn write<W: Write>(enc: &mut Encoder<W>, all: &[MachinePeak]) -> Result<(), WriteError> {
    all.iter().try_for_each(|p| enc.peaks(&record(p)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const NOW: u64 = 1_764_000_000;

    fn here() -> MachineIdentity {
        let text = str::to_owned;
        MachineIdentity { cpu_model: text("Fast"), arch: text("x86_64"), online: text("0-1"), id: text("ab") }
    }

    fn file(machine: &MachineIdentity, measured_s: u64) -> Value {
        let peaks = |threads: u32| {
            json!({"threads": threads, "read": 10.5, "read_small_pages": null, "triad": 8.0, "f32_fma": 50.0,
                   "int8_dot": null, "int8_matrix": 200.0, "int8_widening": 100.0})
        };
        let cluster = json!({"name": "all", "cpus": [0, 1], "peaks": [peaks(1), peaks(2)]});
        json!({"isa": "avx2", "clusters": [cluster], "machine": machine.json(), "measured_s": measured_s})
    }

    /// What is made of this content.
    fn read(content: &[u8]) -> Result<Vec<MachinePeak>, String> {
        let dir = tempfile::tempdir().expect("a directory");
        let path = dir.path().join(NAME);
        fs::write(&path, content).expect("written");
        peaks_of(&path, &here(), NOW).expect("it is there")
    }

    #[test]
    fn peaks_of_this_machine_become_records() {
        let all = read(file(&here(), NOW - 5).to_string().as_bytes()).expect("usable");
        let expected = record::Peaks {
            cluster: "all",
            cpus: "0-1",
            threads: 2,
            measured_s: NOW - 5,
            read: 10_500,
            read_small_pages: None,
            triad: Some(8000),
            f32: Some(50_000),
            int8: Some(200_000),
            isa: "avx2",
        };
        assert_eq!((all.len(), record(&all[1])), (2, expected));
        // A machine without an id has none at another time, too.
        let nameless = MachineIdentity { id: String::new(), ..here() };
        assert!(read(file(&nameless, NOW).to_string().as_bytes()).is_ok());
    }

    #[test]
    fn what_is_foreign_or_old_is_named_and_not_used() {
        let other = |change: &dyn Fn(&mut MachineIdentity)| {
            let mut machine = here();
            change(&mut machine);
            read(file(&machine, NOW).to_string().as_bytes()).expect_err("of another machine")
        };
        assert!(other(&|m| m.cpu_model = "Slow".into()).contains("(Slow, this one is Fast)"));
        assert!(other(&|m| m.arch = "aarch64".into()).contains("another machine"));
        assert!(other(&|m| m.id = "cd".into()).contains("another machine of this kind"));
        assert!(
            other(&|m| m.online = "0-3".into()).contains("CPUs 0-3 were online then, and CPUs 0-1 are now")
        );
        for at in [0, NOW - OLD_S - 1, NOW + AHEAD_S + 1] {
            let why = read(file(&here(), at).to_string().as_bytes()).expect_err("too old");
            assert!(why.contains(&calendar::day(at)), "{why}");
        }
    }

    #[test]
    fn damage_is_never_a_rate() {
        let whole = file(&here(), NOW).to_string();
        for end in 0..whole.len() {
            assert!(read(&whole.as_bytes()[..end]).is_err(), "{end} bytes of it");
        }
        for (from, to) in [
            ("10.5", "0"),
            ("10.5", "-1"),
            ("\"threads\":1", "\"threads\":-1"),
            ("[0,1]", "[1e9]"),
            ("\"x86_64\"", "5"),
        ] {
            assert!(whole.contains(from) && read(whole.replace(from, to).as_bytes()).is_err(), "{to}");
        }
        assert_eq!(rates(&json!({"clusters": []})), None);
    }

    #[test]
    fn the_user_s_file_comes_first_and_root_writes_the_system_s() {
        let at = |text: &str| Some(OsString::from(text));
        let own = |places: &Places| places.own().map(|p| p.display().to_string());
        let user = Places { home: at("/home/u"), ..Places::default() };
        assert_eq!(own(&user).as_deref(), Some("/home/u/.cache/profinfer/peaks.json"));
        assert_eq!(user.written(), user.own());
        let sudo = Places { root: true, home: at("/root"), caller: at("/home/u"), ..Places::default() };
        assert_eq!(sudo.own(), user.own());
        assert_eq!(sudo.written(), Some(Places::system()));
        let set = Places { cache: at("/c"), ..sudo };
        assert_eq!((own(&set).as_deref(), set.written()), (Some("/c/profinfer/peaks.json"), set.own()));
        assert_eq!(Places::default().written(), None);
    }

    #[test]
    fn this_machine_is_itself() {
        let here = MachineIdentity::read();
        assert_eq!(MachineIdentity::of(&here.json()), Some(here.clone()));
        assert_eq!(here.differs(&here), None);
    }
}
