//! The directory of all pins in the BPF file system, writable only by its owner.
//!
//! `/sys/fs/bpf` is often writable for all users, as `/tmp` is. Another user could create the
//! directory first, with links in it to files that others want to keep. So the program uses the
//! directory only if it belongs to root or to the user of this process, and no other user may
//! enter. It uses the descriptor by which it has checked this, so renaming another directory into
//! place has no effect.

use std::fs::{DirBuilder, File, OpenOptions, Permissions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::error::XdpError;
use super::sys;
use tollway_linux::sys::effective_user;

/// The conventional mount point of the BPF file system.
const BPFFS: &str = "/sys/fs/bpf";
/// The program's directory there.
const NAME: &str = "tollway";
/// Mode of a directory that only its owner enters.
const OWN: u32 = 0o700;
/// The mode bits that let others than the owner write.
const OTHERS_WRITE: u32 = 0o022;
/// The mode bit that lets only owners rename and remove.
const STICKY: u32 = 0o1000;

/// An open directory, through which its entries are reached.
#[derive(Clone, Debug)]
pub(super) struct Home(Arc<File>);

impl Home {
    /// Opens the program's directory; mounts the file system and creates the directory if necessary
    /// and permitted.
    pub(super) fn make() -> Result<Self, XdpError> {
        let root = Path::new(BPFFS);
        if !sys::is_bpffs(root).unwrap_or(false) {
            sys::mount_bpffs(root).map_err(XdpError::NoBpffs)?;
        }
        let root = directory(root).map_err(XdpError::NoBpffs)?;
        let path = fd_path(&root).join(NAME);
        match DirBuilder::new().mode(OWN).create(&path) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(XdpError::NoBpffs(error))
            }
            _ => Self::within(&root),
        }
    }

    /// The program's directory, if it exists and may be used.
    pub(super) fn find() -> Option<Self> {
        let root = Path::new(BPFFS);
        sys::is_bpffs(root).ok().filter(|is| *is)?;
        Self::within(&directory(root).ok()?).ok()
    }

    fn within(root: &File) -> Result<Self, XdpError> {
        let home = match directory(&fd_path(root).join(NAME)) {
            Err(error) if matches!(error.raw_os_error(), Some(libc::ELOOP | libc::ENOTDIR)) => {
                return Err(XdpError::NotOurs("it is not a directory".to_owned()));
            }
            opened => opened.map_err(XdpError::NoBpffs)?,
        };
        match untrusted_reason(root, &home, effective_user()).map_err(XdpError::NoBpffs)? {
            Some(why) => Err(XdpError::NotOurs(why)),
            None => Ok(Self(Arc::new(home))),
        }
    }

    /// A directory for a test.
    #[cfg(test)]
    pub(super) fn at(path: &Path) -> Self {
        Self(Arc::new(directory(path).unwrap()))
    }

    /// The directory's path, valid as long as this lives.
    pub(super) fn path(&self) -> PathBuf {
        fd_path(&self.0)
    }
}

/// Opens a directory without following a symbolic link to it.
pub(super) fn directory(path: &Path) -> io::Result<File> {
    OpenOptions::new().read(true).custom_flags(libc::O_DIRECTORY | libc::O_NOFOLLOW).open(path)
}

/// A path to an open directory that stays valid after a rename.
fn fd_path(directory: &File) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}", directory.as_raw_fd()))
}

/// Why another user could have put something in the directory, or could replace it. If others could
/// only read it, it becomes accessible to its owner only.
fn untrusted_reason(root: &File, home: &File, user: u32) -> io::Result<Option<String>> {
    let (above, facts) = (root.metadata()?, home.metadata()?);
    if facts.uid() != 0 && facts.uid() != user {
        return Ok(Some(format!("it belongs to the user {}", facts.uid())));
    }
    if facts.mode() & OTHERS_WRITE != 0 {
        return Ok(Some(format!("others may write to it (mode {:04o})", facts.mode() & 0o7777)));
    }
    if above.mode() & OTHERS_WRITE != 0 && above.mode() & STICKY == 0 {
        return Ok(Some(format!(
            "others may rename it (mode {:04o} of {BPFFS})",
            above.mode() & 0o7777
        )));
    }
    if facts.mode() & 0o777 != OWN && facts.uid() == user {
        home.set_permissions(Permissions::from_mode(OWN))?;
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    /// Creates a root directory and a home in it, with these modes.
    fn dirs(root: u32, home: u32) -> (tempfile::TempDir, File, File) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join(NAME);
        fs::create_dir(&path).unwrap();
        fs::set_permissions(&path, Permissions::from_mode(home)).unwrap();
        fs::set_permissions(dir.path(), Permissions::from_mode(root)).unwrap();
        let opened = (directory(dir.path()).unwrap(), directory(&path).unwrap());
        (dir, opened.0, opened.1)
    }

    #[test]
    fn only_a_directory_that_nobody_else_could_fill_is_used() {
        let user = effective_user();
        for (root, home, why) in [
            (0o700, 0o700, None),
            (0o1777, 0o755, None),
            (0o1777, 0o775, Some("others may write to it (mode 0775)")),
            (0o1777, 0o1777, Some("others may write to it (mode 1777)")),
            (0o777, 0o700, Some("others may rename it (mode 0777 of /sys/fs/bpf)")),
        ] {
            let (_dir, root, home) = dirs(root, home);
            let found = untrusted_reason(&root, &home, user).unwrap();
            assert_eq!(found.as_deref(), why);
            if why.is_none() {
                assert_eq!(
                    home.metadata().unwrap().mode() & 0o777,
                    0o700,
                    "only its owner may enter now"
                );
            }
        }
    }

    #[test]
    fn a_symlink_to_a_directory_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/tmp", dir.path().join(NAME)).unwrap();
        let error = Home::within(&directory(dir.path()).unwrap()).unwrap_err().to_string();
        assert!(error.contains("it is not a directory"), "{error}");
    }

    #[test]
    fn a_home_keeps_its_directory_after_a_rename() {
        let dir = tempfile::tempdir().unwrap();
        let (ours, away) = (dir.path().join("ours"), dir.path().join("away"));
        fs::create_dir(&ours).unwrap();
        let home = Home::at(&ours);
        fs::rename(&ours, &away).unwrap();
        fs::create_dir(&ours).unwrap();
        fs::write(home.path().join("name"), "").unwrap();
        assert!(away.join("name").exists() && !ours.join("name").exists());
    }
}
