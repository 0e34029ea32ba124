//! What outlives the process: names in the BPF file system.
//!
//! Each device has a directory with its link, which keeps the program on the device, and the
//! heartbeat that the program looks at. A process that dies leaves both: the program finds the
//! heartbeat stale and the kernel forwards, and the next process takes the link over. One that lives
//! has the directory's lock, even while it is stopped.

use std::fs::{self, File, TryLockError};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Mode;
use super::error::SteerError;
use super::maps::BYPASS_IDLE;
use super::page::Page;
use super::sys;

/// Where the BPF file system is, by convention.
const BPFFS: &str = "/sys/fs/bpf";
/// How often a living process stamps its heartbeat at least, with room to spare.
const PULSE: Duration = Duration::from_millis(100);
/// A heartbeat this old needs no second look.
const DEAD_NS: u64 = 1_000_000_000;

/// The program's directory; mounts the file system where it may.
pub(super) fn home() -> Result<PathBuf, SteerError> {
    let root = Path::new(BPFFS);
    if !sys::is_bpffs(root).unwrap_or(false) {
        sys::mount_bpffs(root).map_err(SteerError::NoBpffs)?;
    }
    let home = root.join("tollway");
    make(&home).map_err(SteerError::NoBpffs)?;
    Ok(home)
}

fn make(directory: &Path) -> io::Result<()> {
    match fs::create_dir(directory) {
        Err(error) if error.kind() != io::ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// The number of this network namespace.
pub(super) fn namespace() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/net")?.ino())
}

/// What names of directories for a load begin with.
const LOAD: &str = "load-";

/// A directory for the moment in which maps have names, so that the loader finds them.
///
/// Processes that share the file system need not see each other, as in containers: the name is drawn, and who
/// loads has the directory's lock.
pub(super) struct Names(Claim);

impl Names {
    pub(super) fn new() -> Result<Self, SteerError> {
        Self::within(&home()?).map_err(SteerError::NoBpffs)
    }

    fn within(home: &Path) -> io::Result<Self> {
        loop {
            let drawn = RandomState::new().build_hasher().finish();
            // None is another's by chance, or in the hands of one who sweeps.
            if let Some(claim) = claim(&home.join(format!("{LOAD}{drawn:016x}")))? {
                return Ok(Self(claim));
            }
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path.join(name)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        remove(&self.0.path);
    }
}

/// Removes a directory of pins; what can not be removed is found again by [`sweep`].
fn remove(directory: &Path) {
    empty(directory);
    let _ = fs::remove_dir(directory);
}

fn empty(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path());
    }
}

/// A directory that is this process's: a device's, or one for a load.
pub(super) struct Claim {
    directory: File,
    path: PathBuf,
}

impl Claim {
    /// The same, to be held by another as well.
    pub(super) fn share(&self) -> io::Result<Self> {
        Ok(Self { directory: self.directory.try_clone()?, path: self.path.clone() })
    }

    /// Says if the directory is the one that has the name.
    fn is_in_place(&self) -> bool {
        let (named, ours) = (fs::metadata(&self.path), self.directory.metadata());
        named.is_ok_and(|named| ours.is_ok_and(|ours| ours.ino() == named.ino()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_in_place() {
            // What is in use is not empty.
            let _ = fs::remove_dir(&self.path);
        }
    }
}

/// Makes a directory, where it is not there, and takes its lock; none where another has that.
fn claim(path: &Path) -> io::Result<Option<Claim>> {
    loop {
        make(path)?;
        let directory = match File::open(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        match directory.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let claim = Claim { directory, path: path.to_owned() };
        // Else whoever had it has removed it meanwhile.
        if claim.is_in_place() {
            return Ok(Some(claim));
        }
    }
}

/// What is kept of a device.
pub(super) struct Pins(PathBuf);

impl Pins {
    /// Those of a device of this network namespace.
    pub(super) fn of(ifindex: u32) -> Result<Self, SteerError> {
        let namespace = namespace().map_err(SteerError::system("/proc/self/ns/net", "reading"))?;
        Ok(Self(home()?.join(format!("{ifindex}-{namespace}"))))
    }

    fn link_path(&self, mode: Mode) -> PathBuf {
        self.0.join(match mode {
            Mode::Native => "link-native",
            Mode::Generic => "link-generic",
        })
    }

    fn state_path(&self) -> PathBuf {
        self.0.join("state")
    }

    /// Makes the device this process's; none where another has it.
    pub(super) fn claim(&self) -> io::Result<Option<Claim>> {
        claim(&self.0)
    }

    /// Says if a process that lives has the device, be it stopped.
    fn is_claimed(&self) -> bool {
        let locked = File::open(&self.0).map(|directory| directory.try_lock());
        matches!(locked, Ok(Err(TryLockError::WouldBlock)))
    }

    /// The link, and the mode that it was made in.
    pub(super) fn link(&self) -> Option<(Mode, OwnedFd)> {
        let link = |mode| Some((mode, sys::pinned(&self.link_path(mode)).ok()?));
        link(Mode::Native).or_else(|| link(Mode::Generic))
    }

    /// The heartbeat's map.
    fn state(&self) -> Option<OwnedFd> {
        sys::pinned(&self.state_path()).ok()
    }

    /// Says if this process's heartbeat is the one that counts.
    pub(super) fn are_of(&self, state: BorrowedFd<'_>) -> bool {
        let Some(pinned) = self.state() else { return false };
        sys::map_id(pinned.as_fd()).ok() == sys::map_id(state).ok()
    }

    /// Says if somebody stamps the heartbeat: looks for as long as a living process may take.
    pub(super) fn are_alive(&self) -> bool {
        let page = self.state().and_then(|state| Page::map(state.as_fd()).ok());
        // Whoever lets the kernel forward while the configuration changes lives all the same.
        let is_busy = |page: &Page| page.is_alive(DEAD_NS) && !page.bypass(BYPASS_IDLE);
        let Some(page) = page.filter(is_busy) else {
            return false;
        };
        let before_ns = page.last_heartbeat_ns();
        (0..10).any(|_| {
            std::thread::sleep(PULSE / 10);
            page.last_heartbeat_ns() != before_ns
        })
    }

    /// Keeps a link, and the heartbeat that its program looks at.
    pub(super) fn keep(
        &self,
        link: Option<(Mode, BorrowedFd<'_>)>,
        state: BorrowedFd<'_>,
    ) -> io::Result<()> {
        make(&self.0)?;
        if let Some((mode, link)) = link {
            sys::pin(link, &self.link_path(mode))?;
        }
        match fs::remove_file(self.state_path()) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        sys::pin(state, &self.state_path())
    }

    /// Forgets what is kept, but not whose the device is.
    pub(super) fn empty(&self) {
        empty(&self.0);
    }

    /// Forgets the device.
    pub(super) fn remove(&self) {
        remove(&self.0);
    }

    /// Takes the program off and forgets the device.
    fn clear(&self) {
        if let Some((_, link)) = self.link() {
            // A device that is gone has lost its program already.
            let _ = sys::detach(link.as_fd());
        }
        self.remove();
    }

    /// Says if its device is gone, or never had a program.
    fn is_left_over(&self) -> bool {
        !self.is_claimed()
            && self
                .link()
                .is_none_or(|(_, link)| sys::link_ifindex(link.as_fd()).is_ok_and(|of| of == 0))
    }
}

/// The number of Tollway's program on a device, if it has one and this process may know.
#[must_use]
pub fn program_of(ifindex: u32) -> Option<u32> {
    let pins =
        Pins(Path::new(BPFFS).join("tollway").join(format!("{ifindex}-{}", namespace().ok()?)));
    let (program, device) = sys::link_program(pins.link()?.1.as_fd()).ok()?;
    (device == ifindex).then_some(program)
}

/// Removes what is left of devices that are gone, and of loads that were cut short.
pub(super) fn sweep() -> Result<(), SteerError> {
    for directory in directories()? {
        if is_load(&directory) {
            remove_unlocked(&directory);
        } else if Pins(directory.clone()).is_left_over() {
            remove(&directory);
        }
    }
    Ok(())
}

fn is_load(directory: &Path) -> bool {
    let name = directory.file_name().and_then(|name| name.to_str()).unwrap_or_default();
    name.starts_with(LOAD)
}

/// Removes a directory that nobody has the lock of, and has that lock meanwhile.
fn remove_unlocked(path: &Path) {
    let Ok(directory) = File::open(path) else { return };
    let claim = Claim { path: path.to_owned(), directory };
    if claim.directory.try_lock().is_ok() && claim.is_in_place() {
        remove(path);
    }
}

/// Takes the programs of dead Tollways off the devices of this network namespace; says of how many.
///
/// # Errors
/// There is no BPF file system, or no privilege.
pub fn clean() -> Result<usize, SteerError> {
    sweep()?;
    let namespace = namespace().map_err(SteerError::system("/proc/self/ns/net", "reading"))?;
    let ours = format!("-{namespace}");
    let is_ours = |path: &PathBuf| {
        path.file_name().and_then(|name| name.to_str()).is_some_and(|name| name.ends_with(&ours))
    };
    let pins = directories()?.into_iter().filter(is_ours).map(Pins);
    let is_served = |pins: &Pins| pins.is_claimed() || pins.are_alive();
    Ok(pins.filter(|pins| !is_served(pins)).map(|pins| pins.clear()).count())
}

fn directories() -> Result<Vec<PathBuf>, SteerError> {
    let entries = fs::read_dir(home()?).map_err(SteerError::NoBpffs)?;
    Ok(entries.flatten().map(|entry| entry.path()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_of_processes_that_do_not_see_each_other_are_apart() {
        let home = tempfile::tempdir().unwrap();
        let loads = || fs::read_dir(home.path()).unwrap().count();
        let names: Vec<_> = (0..50).map(|_| Names::within(home.path()).unwrap()).collect();
        assert_eq!(loads(), 50);
        names.iter().for_each(|names| fs::write(names.path("state"), "").unwrap());
        let cut_short = home.path().join("load-2-0");
        fs::create_dir(&cut_short).unwrap();
        fs::write(cut_short.join("state"), "").unwrap();
        let sweep = || {
            let entries = fs::read_dir(home.path()).unwrap().map(|entry| entry.unwrap().path());
            entries.filter(|path| is_load(path)).for_each(|path| remove_unlocked(&path));
        };
        sweep();
        assert!(!cut_short.exists());
        assert!(names.iter().all(|names| names.path("state").exists()), "who loads is left alone");
        drop(names);
        assert_eq!(loads(), 0);
    }

    #[test]
    fn a_load_that_meets_a_sweep_goes_on() {
        let home = tempfile::tempdir().unwrap();
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let names = Names::within(home.path()).unwrap();
                        fs::write(names.path("state"), "").unwrap();
                        assert!(names.0.is_in_place());
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..2000 {
                    let entries = fs::read_dir(home.path()).unwrap().flatten();
                    entries.for_each(|entry| remove_unlocked(&entry.path()));
                }
            });
        });
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 0);
    }
}
