//! What outlives the process: names in the BPF file system.
//!
//! Each device has a directory with its link, which keeps the program on the device, and the
//! heartbeat that the program looks at. A process that dies leaves both: the program finds the
//! heartbeat stale and the kernel forwards, and the next process takes the link over. One that lives
//! has the directory's lock, even while it is stopped.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::Mode;
use super::error::SteerError;
use super::home::{self, Home};
use super::maps::BYPASS_IDLE;
use super::page::Page;
use super::sys;

/// How often a living process stamps its heartbeat at least, with room to spare.
const PULSE: Duration = Duration::from_millis(100);
/// A heartbeat this old needs no second look.
const DEAD_NS: u64 = 1_000_000_000;

fn make(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
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
        Self::within(&Home::make()?).map_err(SteerError::NoBpffs)
    }

    fn within(home: &Home) -> io::Result<Self> {
        loop {
            let drawn = RandomState::new().build_hasher().finish();
            // None is another's by chance, or in the hands of one who sweeps.
            if let Some(claim) = claim(home, &format!("{LOAD}{drawn:016x}"))? {
                return Ok(Self(claim));
            }
        }
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }
}

impl Drop for Names {
    fn drop(&mut self) {
        remove(&self.0.path());
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
    home: Home,
    name: String,
}

impl Claim {
    /// The same, to be held by another as well.
    pub(super) fn share(&self) -> io::Result<Self> {
        let Self { directory, home, name } = self;
        Ok(Self { directory: directory.try_clone()?, home: home.clone(), name: name.clone() })
    }

    fn path(&self) -> PathBuf {
        self.home.path().join(&self.name)
    }

    /// Says if the directory is the one that has the name.
    fn is_in_place(&self) -> bool {
        let (named, ours) = (fs::symlink_metadata(self.path()), self.directory.metadata());
        named.is_ok_and(|named| ours.is_ok_and(|ours| ours.ino() == named.ino()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_in_place() {
            // What is in use is not empty.
            let _ = fs::remove_dir(self.path());
        }
    }
}

/// Makes a directory, where it is not there, and takes its lock; none where another has that.
fn claim(home: &Home, name: &str) -> io::Result<Option<Claim>> {
    let path = home.path().join(name);
    loop {
        make(&path)?;
        let directory = match home::directory(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        match directory.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => return Ok(None),
            Err(TryLockError::Error(error)) => return Err(error),
        }
        let claim = Claim { directory, home: home.clone(), name: name.to_owned() };
        // Else whoever had it has removed it meanwhile.
        if claim.is_in_place() {
            return Ok(Some(claim));
        }
    }
}

/// What is kept of a device.
pub(super) struct Pins {
    home: Home,
    /// The directory's name there.
    name: String,
}

impl Pins {
    /// Those of a device of this network namespace.
    pub(super) fn of(ifindex: u32) -> Result<Self, SteerError> {
        let namespace = namespace().map_err(SteerError::system("/proc/self/ns/net", "reading"))?;
        Ok(Self { home: Home::make()?, name: format!("{ifindex}-{namespace}") })
    }

    fn path(&self) -> PathBuf {
        self.home.path().join(&self.name)
    }

    fn link_path(&self, mode: Mode) -> PathBuf {
        self.path().join(match mode {
            Mode::Native => "link-native",
            Mode::Generic => "link-generic",
        })
    }

    fn state_path(&self) -> PathBuf {
        self.path().join("state")
    }

    /// Makes the device this process's; none where another has it.
    pub(super) fn claim(&self) -> io::Result<Option<Claim>> {
        claim(&self.home, &self.name)
    }

    /// Says if a process that lives has the device, be it stopped.
    fn is_claimed(&self) -> bool {
        let locked = home::directory(&self.path()).map(|directory| directory.try_lock());
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
        make(&self.path())?;
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
        empty(&self.path());
    }

    /// Forgets the device.
    pub(super) fn remove(&self) {
        remove(&self.path());
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
    let pins = Pins { home: Home::find()?, name: format!("{ifindex}-{}", namespace().ok()?) };
    let (program, device) = sys::link_program(pins.link()?.1.as_fd()).ok()?;
    (device == ifindex).then_some(program)
}

/// Removes what is left of devices that are gone, and of loads that were cut short.
pub(super) fn sweep() -> Result<(), SteerError> {
    let home = Home::make()?;
    for name in directories(&home)? {
        if name.starts_with(LOAD) {
            remove_unlocked(&home, &name);
            continue;
        }
        let pins = Pins { home: home.clone(), name };
        if pins.is_left_over() {
            pins.remove();
        }
    }
    Ok(())
}

/// Removes a directory that nobody has the lock of, and has that lock meanwhile.
fn remove_unlocked(home: &Home, name: &str) {
    let Ok(directory) = home::directory(&home.path().join(name)) else { return };
    // Only whoever has the lock may make a claim of it: the end of a claim removes the directory while it is empty.
    if directory.try_lock().is_err() {
        return;
    }
    let claim = Claim { directory, home: home.clone(), name: name.to_owned() };
    if claim.is_in_place() {
        remove(&claim.path());
    }
}

/// Takes the programs of dead Tollways off the devices of this network namespace; says of how many.
///
/// # Errors
/// There is no BPF file system, or no privilege.
pub fn clean() -> Result<usize, SteerError> {
    sweep()?;
    let namespace = namespace().map_err(SteerError::system("/proc/self/ns/net", "reading"))?;
    let (home, ours) = (Home::make()?, format!("-{namespace}"));
    let names = directories(&home)?.into_iter().filter(|name| name.ends_with(&ours));
    let pins = names.map(|name| Pins { home: home.clone(), name });
    let is_served = |pins: &Pins| pins.is_claimed() || pins.are_alive();
    Ok(pins.filter(|pins| !is_served(pins)).map(|pins| pins.clear()).count())
}

/// Directories in the home, by name; nothing else has a place there.
fn directories(home: &Home) -> Result<Vec<String>, SteerError> {
    let entries = fs::read_dir(home.path()).map_err(SteerError::NoBpffs)?.flatten();
    let directories = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()));
    Ok(directories.filter_map(|entry| entry.file_name().into_string().ok()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loads_of_processes_that_do_not_see_each_other_are_apart() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path());
        let loads = || fs::read_dir(directory.path()).unwrap().count();
        let names: Vec<_> = (0..50).map(|_| Names::within(&home).unwrap()).collect();
        assert_eq!(loads(), 50);
        names.iter().for_each(|names| fs::write(names.path("state"), "").unwrap());
        let cut_short = directory.path().join("load-2-0");
        fs::create_dir(&cut_short).unwrap();
        fs::write(cut_short.join("state"), "").unwrap();
        let all = directories(&home).unwrap();
        all.iter().for_each(|name| remove_unlocked(&home, name));
        assert!(!cut_short.exists());
        assert!(names.iter().all(|names| names.path("state").exists()), "who loads is left alone");
        drop(names);
        assert_eq!(loads(), 0);
    }

    #[test]
    fn a_load_that_meets_a_sweep_goes_on() {
        let directory = tempfile::tempdir().unwrap();
        let home = Home::at(directory.path());
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    for _ in 0..2000 {
                        let names = Names::within(&home).unwrap();
                        fs::write(names.path("state"), "").unwrap();
                        assert!(names.0.is_in_place());
                    }
                });
            }
            scope.spawn(|| {
                for _ in 0..2000 {
                    let all = directories(&home).unwrap();
                    all.iter().for_each(|name| remove_unlocked(&home, name));
                }
            });
        });
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
