//! Who can change a file or a directory: its owner, and by its mode all others. What is run, or copied to another machine,
//! comes only from where nobody but root and this user can have put it.

use std::fs::{self, Metadata};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Most links on the way to a file, as in the kernel (path_resolution(7)).
const LINKS: usize = 40;

/// Why users other than root and this one can change a file or a directory; None: they cannot. Its group counts as
/// trusted. A directory with the sticky bit is no reason: others can touch only their own files in it.
pub fn changeable(found: &Metadata) -> Option<String> {
    changeable_but_by(found, &[0, us()])
}

fn us() -> u32 {
    rustix::process::geteuid().as_raw()
}

fn changeable_but_by(found: &Metadata, trusted: &[u32]) -> Option<String> {
    let mode = found.mode() & 0o7777;
    if !trusted.contains(&found.uid()) {
        return Some(format!("it belongs to user {}", found.uid()));
    }
    // All links have the mode 0777, which means nothing.
    let is_open = !found.is_symlink() && mode & 0o002 != 0 && !(found.is_dir() && mode & 0o1000 != 0);
    is_open.then(|| format!("its mode is {mode:04o}"))
}

/// Checks that nobody else can exchange or change what is at this path: the file, the directories above it, and each link
/// on the way. Trusted are root, this user, and the owner of this program, who decides already what it does.
///
/// # Errors
/// What others can change, and why; or what cannot be examined.
pub fn only_ours(path: &Path) -> Result<(), String> {
    let program = fs::metadata("/proc/self/exe").map_or(0, |found| found.uid());
    check(path, &[0, us(), program])
}

fn check(path: &Path, trusted: &[u32]) -> Result<(), String> {
    let failed = |at: &Path, e: io::Error| format!("cannot examine {}: {e}", at.display());
    let mut path = std::path::absolute(path).map_err(|e| failed(path, e))?;
    for _ in 0..=LINKS {
        let (mut at, mut rest, mut link) = (PathBuf::new(), path.components(), None);
        while let Some(part) = rest.next() {
            if part == Component::ParentDir {
                at.pop();
                continue;
            }
            at.push(part);
            let found = fs::symlink_metadata(&at).map_err(|e| failed(&at, e))?;
            if let Some(why) = changeable_but_by(&found, trusted) {
                return Err(format!("other users can change {}: {why}", at.display()));
            }
            if found.is_symlink() {
                let to = fs::read_link(&at).map_err(|e| failed(&at, e))?;
                link = Some(at.with_file_name("").join(to).join(rest.as_path()));
                break;
            }
        }
        match link {
            Some(to) => path = to,
            None => return Ok(()),
        }
    }
    Err(format!("too many links on the way to {}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).expect("its mode");
    }

    #[test]
    fn what_others_can_change_on_the_way_is_named() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("a/b")).expect("made");
        fs::write(at("a/b/file"), "x").expect("written");
        mode(&at("a"), 0o755);
        mode(&at("a/b"), 0o755);
        let file = at("a/b/file");
        mode(&file, 0o664);
        assert_eq!(only_ours(&file), Ok(()), "a group is trusted, and so is a sticky /tmp");
        for (name, wrong, right) in [("a/b/file", 0o1666, 0o644), ("a/b", 0o777, 0o1777), ("a", 0o757, 0o755)]
        {
            mode(&at(name), wrong);
            let said = only_ours(&file).expect_err(name);
            assert_eq!(
                said,
                format!("other users can change {}: its mode is {wrong:04o}", at(name).display())
            );
            mode(&at(name), right);
            assert_eq!(only_ours(&file), Ok(()), "{name}");
        }
        assert!(only_ours(&at("none")).is_err_and(|e| e.starts_with("cannot examine ")));
    }

    #[test]
    fn links_are_followed_one_by_one() {
        let dir = tempfile::tempdir().expect("a directory");
        let at = |name: &str| dir.path().join(name);
        fs::create_dir_all(at("open/way")).expect("made");
        fs::create_dir(at("safe")).expect("made");
        fs::write(at("safe/file"), "x").expect("written");
        // The second link is in a directory between.
        symlink("../../safe", at("open/way/on")).expect("a link");
        symlink("open/way/on", at("first")).expect("a link");
        assert_eq!(only_ours(&at("first/file")), Ok(()));
        assert_eq!(only_ours(&at("first/../safe/file")), Ok(()));
        mode(&at("open/way"), 0o777);
        assert!(only_ours(&at("first/file")).is_err_and(|e| e.contains("open/way: its mode is 0777")));
        symlink("round", at("round")).expect("a link");
        assert!(only_ours(&at("round/x")).is_err_and(|e| e.starts_with("too many links")));
    }

    #[test]
    fn owners_other_than_root_and_this_user_are_strangers() {
        let dir = tempfile::tempdir().expect("a directory");
        let file = dir.path().join("file");
        fs::write(&file, "x").expect("written");
        let own = fs::metadata(&file).expect("there").uid();
        let found = fs::metadata(&file).expect("there");
        assert_eq!(changeable(&found), None);
        if own != 0 {
            assert!(check(&file, &[0]).is_err_and(|e| e.ends_with(&format!("it belongs to user {own}"))));
            return;
        }
        chown(&file, Some(4242), None).expect("root may");
        assert!(only_ours(&file).is_err_and(|e| e.ends_with("it belongs to user 4242")));
        assert_eq!(check(&file, &[0, 4242]), Ok(()), "as the owner of the program");
        chown(&file, Some(0), None).expect("root may");
        let link = dir.path().join("link");
        symlink("file", &link).expect("a link");
        std::os::unix::fs::lchown(&link, Some(4242), None).expect("root may");
        assert!(only_ours(&link).is_err_and(|e| e.contains("link: it belongs to user 4242")));
    }
}
