//! The file of the control socket. From the first moment only its owner can open it, and only one
//! router uses it.
//!
//! The router creates the socket in a directory that only its owner can enter. It sets the mode,
//! and then moves the socket to its place. To check for an existing socket and replace it, a router
//! holds a lock.

use std::ffi::OsString;
use std::fs::{DirBuilder, File, OpenOptions, Permissions, TryLockError};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::RUN_DIR;
use tollway_linux::sys::effective_user;
use tollway_linux::sys::why;

/// The most bytes of a socket's path (`sun_path` without the final zero).
const PATH_LIMIT: usize = 107;
/// How often a router tries to take the lock.
const LOCK_TRIES: u32 = 50;
/// The pause between two tries.
const LOCK_PAUSE: Duration = Duration::from_millis(20);

/// Why a control socket cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SocketError {
    /// A router answers there.
    #[error("another tollway answers at the control socket {}", .0.display())]
    Live(PathBuf),
    /// Something that is not a socket is there.
    #[error("{} exists and is not a socket", .0.display())]
    NoSocket(PathBuf),
    /// The path does not fit a socket address.
    #[error("the path of the control socket {} is too long", .0.display())]
    TooLong(PathBuf),
    /// A system call failed.
    #[error("the control socket {} cannot be created: {}", path.display(), why(.error))]
    System {
        /// The socket.
        path: PathBuf,
        /// The error of the system.
        error: io::Error,
    },
}

impl SocketError {
    /// What the user can do about it.
    #[must_use]
    pub fn remedy(&self) -> &'static str {
        match self {
            Self::Live(_) => "End that one, or name another socket with --socket",
            Self::NoSocket(_) => "Remove it, or name another socket with --socket",
            Self::TooLong(_) => "Name a shorter one with --socket; 107 bytes are room enough",
            Self::System { .. } => {
                "Name one with --socket in a directory that is there and that this user can write to"
            }
        }
    }
}

/// A listening control socket; dropping it removes the file.
#[derive(Debug)]
pub struct Socket {
    pub(super) listener: UnixListener,
    path: PathBuf,
    /// Device and inode of the file. Another process may have replaced the file since.
    file: (u64, u64),
}

impl Socket {
    /// Listens at a path. Replaces the socket of a router that has ended. Also replaces the socket
    /// of a running router if `replace` is set; clients cannot reach that router any more.
    ///
    /// # Errors
    /// See [`SocketError`].
    pub fn open(path: &Path, replace: bool) -> Result<Self, SocketError> {
        let failed = |error| SocketError::System { path: path.to_owned(), error };
        let parent = match path.parent() {
            Some(parent) if parent.as_os_str().is_empty() => Path::new("."),
            Some(parent) => parent,
            None => return Err(SocketError::NoSocket(path.to_owned())),
        };
        let name = path.file_name().ok_or_else(|| SocketError::NoSocket(path.to_owned()))?;
        if path.as_os_str().len() > PATH_LIMIT {
            return Err(SocketError::TooLong(path.to_owned()));
        }
        if parent == Path::new(RUN_DIR) {
            create_run_dir(parent).map_err(failed)?;
        }
        let mut lock = OsString::from(".");
        lock.push(name);
        lock.push(".lock");
        let _lock = Lock::take(parent.join(lock)).map_err(failed)?;
        check_replaceable(path, replace)?;
        let private_dir = PrivateDir::new(parent).map_err(failed)?;
        let inside = private_dir.socket_path();
        let listener = UnixListener::bind(&inside).map_err(failed)?;
        std::fs::set_permissions(&inside, Permissions::from_mode(0o600)).map_err(failed)?;
        std::fs::rename(&inside, path).map_err(failed)?;
        let file = identity(path).map_err(failed)?;
        Ok(Self { listener, path: path.to_owned(), file })
    }

    /// The path of the socket.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        if identity(&self.path).is_ok_and(|file| file == self.file) {
            // Nothing can handle an error here; the next router replaces the file.
            let _ = std::fs::remove_file(&self.path);
            if self.path.parent() == Some(Path::new(RUN_DIR)) {
                // This fails, and should, if other routers have sockets in the directory.
                let _ = std::fs::remove_dir(RUN_DIR);
            }
        }
    }
}

/// Device and inode, which identify a file.
fn identity(path: &Path) -> io::Result<(u64, u64)> {
    path.symlink_metadata().map(|facts| (facts.dev(), facts.ino()))
}

/// Creates the directory for root's sockets; closes an existing one to other users.
fn create_run_dir(directory: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(directory)?;
    let facts = directory.symlink_metadata()?;
    if facts.is_dir() && facts.uid() == effective_user() && facts.mode() & 0o077 != 0 {
        std::fs::set_permissions(directory, Permissions::from_mode(0o700))?;
    }
    Ok(())
}

/// A lock that a router takes while it creates its socket. Only its owner can open the file, since
/// any process that can open it could keep the lock. Dropping the lock removes the file.
struct Lock {
    file: File,
    path: PathBuf,
}

impl Lock {
    fn take(path: PathBuf) -> io::Result<Self> {
        for _ in 0..LOCK_TRIES {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .mode(0o600)
                .custom_flags(libc::O_NOFOLLOW)
                .open(&path)?;
            if file.metadata()?.uid() != effective_user() {
                let name = path.display();
                return Err(io::Error::other(format!("{name} is another user's: remove it")));
            }
            match file.try_lock() {
                Ok(()) => {
                    let lock = Self { file, path: path.clone() };
                    // Otherwise the previous holder has removed the file meanwhile.
                    if lock.is_in_place() {
                        return Ok(lock);
                    }
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(LOCK_PAUSE),
                Err(TryLockError::Error(error)) => return Err(error),
            }
        }
        Err(io::Error::other("another process keeps creating one there"))
    }

    fn is_in_place(&self) -> bool {
        let ours = self.file.metadata().map(|facts| (facts.dev(), facts.ino()));
        ours.is_ok_and(|ours| identity(&self.path).is_ok_and(|named| named == ours))
    }
}

impl Drop for Lock {
    fn drop(&mut self) {
        if self.is_in_place() {
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

/// Checks that the path is free, or has a socket that may be replaced.
fn check_replaceable(path: &Path, replace: bool) -> Result<(), SocketError> {
    let facts = match path.symlink_metadata() {
        Ok(facts) => facts,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(SocketError::System { path: path.to_owned(), error }),
    };
    if !facts.file_type().is_socket() {
        return Err(SocketError::NoSocket(path.to_owned()));
    }
    match UnixStream::connect(path) {
        Err(error) if error.kind() == io::ErrorKind::ConnectionRefused => Ok(()),
        Ok(_) if replace => Ok(()),
        Ok(_) => Err(SocketError::Live(path.to_owned())),
        // It belongs to another user, or its queue is full: this router must not replace it.
        Err(error) => Err(SocketError::System { path: path.to_owned(), error }),
    }
}

/// A temporary directory that only its owner can enter. It is accessed by descriptor, so that
/// renames in the directory above have no effect.
struct PrivateDir {
    path: PathBuf,
    directory: File,
}

impl PrivateDir {
    fn new(parent: &Path) -> io::Result<Self> {
        let drawn = RandomState::new().build_hasher().finish();
        let path = parent.join(format!(".toll{drawn:016x}"));
        DirBuilder::new().mode(0o700).create(&path)?;
        let flags = libc::O_DIRECTORY | libc::O_NOFOLLOW;
        let directory = OpenOptions::new().read(true).custom_flags(flags).open(&path)?;
        if directory.metadata()?.uid() != effective_user() {
            return Err(io::Error::other(
                "another user's directory took the place of one made here",
            ));
        }
        Ok(Self { path, directory })
    }

    /// The path at which the socket is created.
    fn socket_path(&self) -> PathBuf {
        PathBuf::from(format!("/proc/self/fd/{}/s", self.directory.as_raw_fd()))
    }
}

impl Drop for PrivateDir {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.socket_path());
        let _ = std::fs::remove_dir(&self.path);
    }
}
