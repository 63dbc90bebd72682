//! The root directory that a file belongs to: that of this system, or of a chroot, a container or a cross
//! compiler's sysroot. Resolves the paths that its files name.

use std::collections::VecDeque;
use std::ffi::OsString;
use std::io;
use std::path::{Component, Path, PathBuf};

/// Loaders; each root has one of them.
const LOADERS: [&str; 7] = [
    "lib64/ld-linux-x86-64.so.2",
    "lib/ld-linux-x86-64.so.2",
    "lib/ld-linux-aarch64.so.1",
    "lib64/ld-linux-aarch64.so.1",
    "lib/ld-musl-x86_64.so.1",
    "lib/ld-musl-aarch64.so.1",
    "system/bin/linker64",
];
/// Maximum number of links followed on one path, the same as in the kernel (path_resolution(7)).
const MAX_LINKS: usize = 40;

/// Why a directory is not taken as the root of a file.
#[derive(Debug, thiserror::Error)]
pub enum RootError {
    #[error("{}: {source}", dir.display())]
    Io { dir: PathBuf, source: io::Error },
    #[error("{} is not a directory", .0.display())]
    NotADirectory(PathBuf),
    #[error("{} is not inside {}", path.display(), dir.display())]
    Outside { path: PathBuf, dir: PathBuf },
}

/// A root directory, without links in its path. None: this system's root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Root(Option<PathBuf>);

impl Root {
    /// The directory that contains a path and looks like a root: it has a loader at a usual place. `/proc/PID/root`
    /// is one. This system's root if there is none.
    pub fn of(path: &Path) -> Root {
        if let Some(root) = of_process(path) {
            return Root(Some(root));
        }
        // If the file itself is a link, its target is another file in another root.
        let above = path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let dir = if path.is_dir() { path } else { above };
        let Ok(real) = dir.canonicalize() else { return Root(None) };
        // /usr has the same directories.
        let may_be =
            |dir: &&Path| dir.parent().is_some() && dir.file_name().is_some_and(|name| name != "usr");
        let has_loader = |dir: &&Path| LOADERS.iter().any(|loader| is_in(dir, Path::new(loader)));
        Root(real.ancestors().filter(may_be).find(has_loader).map(Path::to_owned))
    }

    /// A directory given as root.
    ///
    /// # Errors
    /// It does not exist, or the file is not in it.
    pub fn given(dir: &Path, path: &Path) -> Result<Root, RootError> {
        let real = match of_process(&dir.join("x")) {
            Some(root) if root == dir => Ok(root),
            _ => dir.canonicalize(),
        };
        let real = real.map_err(|source| RootError::Io { dir: dir.to_owned(), source })?;
        if !real.is_dir() {
            return Err(RootError::NotADirectory(dir.to_owned()));
        }
        let root = Root(Some(real.clone()).filter(|real| real.parent().is_some()));
        match root.place(path).is_some_and(|place| place.starts_with(&real)) {
            true => Ok(root),
            false => Err(RootError::Outside { path: path.to_owned(), dir: dir.to_owned() }),
        }
    }

    /// Path on this system of a file named by a path as seen inside the root. Links are followed as inside the
    /// root. None: there is no such file.
    pub fn resolve(&self, inside: &Path) -> Option<PathBuf> {
        let Some(root) = &self.0 else { return inside.canonicalize().ok() };
        let mut at = PathBuf::new();
        let mut rest: VecDeque<OsString> = parts(inside).collect();
        let mut links = 0;
        while let Some(part) = rest.pop_front() {
            if part == ".." {
                at.pop();
                continue;
            }
            let next = root.join(&at).join(&part);
            if !std::fs::symlink_metadata(&next).ok()?.is_symlink() {
                at.push(part);
                continue;
            }
            links += 1;
            if links > MAX_LINKS {
                return None;
            }
            let target = std::fs::read_link(&next).ok()?;
            if target.is_absolute() {
                at.clear();
            }
            parts(&target).collect::<Vec<_>>().into_iter().rev().for_each(|part| rest.push_front(part));
        }
        Some(root.join(at))
    }

    /// The same for a path on this system.
    pub fn place(&self, path: &Path) -> Option<PathBuf> {
        let Some(root) = &self.0 else { return path.canonicalize().ok() };
        // Up to the root, links are resolved on this system.
        match path.strip_prefix(root) {
            Ok(inside) => self.resolve(inside),
            Err(_) => {
                let name = path.file_name()?;
                let real = path.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new("."));
                let real = real.canonicalize().ok()?.join(name);
                self.resolve(real.strip_prefix(root).ok()?)
            }
        }
    }

    /// The path of a resolved place as seen inside the root.
    pub fn inside(&self, place: &Path) -> PathBuf {
        match self.0.as_ref().and_then(|root| place.strip_prefix(root).ok()) {
            Some(inside) => Path::new("/").join(inside),
            None => place.to_owned(),
        }
    }

    /// Its path; None: this system's root.
    pub fn path(&self) -> Option<&Path> {
        self.0.as_deref()
    }
}

/// The root of a process, if the path leads through one. The target of that link is valid only inside the process.
fn of_process(path: &Path) -> Option<PathBuf> {
    let mut parts = path.components();
    let first: PathBuf = parts.by_ref().take(4).collect();
    let is_root = first.starts_with("/proc")
        && first.file_name()? == "root"
        && first.parent()?.parent()? == Path::new("/proc");
    (is_root && parts.next().is_some()).then_some(first)
}

/// Whether a directory has such a file if it is a root: a link in it such as `lib -> /usr/lib` does not lead out of it.
fn is_in(dir: &Path, file: &Path) -> bool {
    let (Some(above), Some(name)) = (file.parent(), file.file_name()) else { return false };
    let place = Root(Some(dir.to_owned())).resolve(above);
    place.is_some_and(|place| std::fs::symlink_metadata(place.join(name)).is_ok())
}

fn parts(path: &Path) -> impl Iterator<Item = OsString> {
    path.components().filter_map(|part| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn paths_are_those_of_the_root() {
        let dir = tempfile::tempdir().expect("a directory");
        let top = dir.path().canonicalize().expect("real");
        let root = top.join("root");
        for below in ["usr/lib64", "usr/bin", "opt/engine"] {
            fs::create_dir_all(root.join(below)).expect("made");
        }
        symlink("usr/lib64", root.join("lib64")).expect("a link");
        fs::write(root.join("usr/lib64/ld-linux-x86-64.so.2"), "").expect("written");
        let program = root.join("usr/bin/engine");
        fs::write(&program, "").expect("written");
        symlink("/usr/bin/engine", root.join("opt/engine/absolute")).expect("a link");
        symlink("../../../../../usr/bin/engine", root.join("opt/engine/up")).expect("a link");
        symlink("/nowhere", root.join("opt/engine/nowhere")).expect("a link");
        symlink("again", root.join("opt/engine/again")).expect("a link");
        let found = Root::of(&program);
        assert_eq!(found.path(), Some(root.as_path()));
        assert_eq!(found.inside(&program), Path::new("/usr/bin/engine"));
        for path in ["/usr/bin/engine", "/opt/engine/absolute", "/opt/engine/up", "/../usr/./bin/engine"] {
            assert_eq!(found.resolve(Path::new(path)), Some(program.clone()), "{path}");
            assert_eq!(
                found.place(&root.join(path.trim_start_matches('/'))),
                Some(program.clone()),
                "{path}"
            );
        }
        for path in ["/opt/engine/nowhere", "/opt/engine/again", "/etc/passwd"] {
            assert_eq!(found.resolve(Path::new(path)), None, "{path}");
        }
        assert_eq!(Root::given(&root, &program).expect("inside"), found);
        assert!(matches!(Root::given(&root, &top.join("x")), Err(RootError::Outside { .. })));
        assert!(matches!(Root::given(&program, &program), Err(RootError::NotADirectory(_))));
        assert!(matches!(Root::given(&top.join("none"), &program), Err(RootError::Io { .. })));
        // This system's own root.
        let here = std::env::current_exe().expect("a program");
        assert_eq!(Root::of(&here), Root::default());
        assert_eq!(Root::given(Path::new("/"), &here).expect("inside"), Root::default());
        assert_eq!(Root::default().inside(&here), here);
    }

    #[test]
    fn a_loader_outside_makes_no_root() {
        let dir = tempfile::tempdir().expect("a directory");
        let top = dir.path().canonicalize().expect("real");
        for below in ["other", "root/usr/lib"] {
            fs::create_dir_all(top.join(below)).expect("made");
        }
        fs::write(top.join("other/ld-musl-x86_64.so.1"), "").expect("written");
        symlink(top.join("other"), top.join("root/lib")).expect("a link");
        assert_eq!(Root::of(&top.join("root/usr/lib/x")), Root::default());
    }

    #[test]
    fn a_process_has_a_root() {
        let root = format!("/proc/{}/root", std::process::id());
        let found = Root::of(Path::new(&format!("{root}/bin/sh")));
        assert_eq!(found.path(), Some(Path::new(&root)));
        assert_eq!(Root::of(Path::new(&root)), Root::default());
    }
}
