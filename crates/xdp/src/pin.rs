//! What outlives the process: pins in the BPF file system.
//!
//! Each device has a directory with pins: the link, which keeps the program on the device, that of a tc
//! program beside an XDP program, and the map with the heartbeats that the programs read. For a filter of tc,
//! which stays by itself, the program is pinned instead of the link. A process that dies leaves all. The program
//! then finds no fresh confirmation, so the kernel forwards, and the next process takes the link
//! over. A living process has the directory's lock, even while it is stopped.

use std::fs::{self, DirBuilder, File, TryLockError};
use std::hash::{BuildHasher as _, Hasher as _, RandomState};
use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::Mode;
use super::error::XdpError;
use super::home::{self, Home};
use super::hook::Hook;
use super::maps::BYPASS_IDLE;
use super::page::{Heartbeats, Page};
use super::sys;

/// The longest time between a living process's heartbeats, with a margin.
const PULSE: Duration = Duration::from_millis(100);
/// The longest time for which a sweep has the lock of a directory, with a margin.
const SWEPT: Duration = Duration::from_millis(20);
/// With the last heartbeat this old, the process is dead without a second check.
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

/// The prefix of the names of directories for a load.
const LOAD: &str = "load-";

/// A directory in which maps have names while the loader looks for them.
///
/// Processes that share the file system may not see each other, as in containers. So the name is
/// random, and the loading process has the directory's lock.
pub(super) struct Names(Claim);

impl Names {
    pub(super) fn new() -> Result<Self, XdpError> {
        Self::within(&Home::make()?).map_err(XdpError::NoBpffs)
    }

    fn within(home: &Home) -> io::Result<Self> {
        loop {
            let drawn = RandomState::new().build_hasher().finish();
            // The name may exist by chance, or a sweep may have the lock; then try another.
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

/// Removes a directory of pins; a later [`sweep`] finds what cannot be removed.
fn remove(directory: &Path) {
    empty(directory);
    let _ = fs::remove_dir(directory);
}

fn empty(directory: &Path) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let _ = fs::remove_file(entry.path());
    }
}

/// A directory locked by this process: a device's, or one for a load.
pub(super) struct Claim {
    directory: File,
    home: Home,
    name: String,
}

impl Claim {
    /// Takes a directory's lock; `None` if another process has it. This is the only way to a claim, as the
    /// end of one removes the directory if that is empty.
    fn lock(directory: File, home: &Home, name: &str) -> io::Result<Option<Self>> {
        match directory.try_lock() {
            Ok(()) => Ok(Some(Self { directory, home: home.clone(), name: name.to_owned() })),
            Err(TryLockError::WouldBlock) => Ok(None),
            Err(TryLockError::Error(error)) => Err(error),
        }
    }

    /// Takes the lock of a directory that exists, if no other process has it.
    fn of_existing(home: &Home, name: &str) -> Option<Self> {
        let directory = home::directory(&home.path().join(name)).ok()?;
        Self::lock(directory, home, name).ok()?.filter(Self::is_in_place)
    }

    /// A second handle to the same lock.
    pub(super) fn share(&self) -> io::Result<Self> {
        let Self { directory, home, name } = self;
        Ok(Self { directory: directory.try_clone()?, home: home.clone(), name: name.clone() })
    }

    fn path(&self) -> PathBuf {
        self.home.path().join(&self.name)
    }

    /// Whether the locked directory still has the name.
    fn is_in_place(&self) -> bool {
        let (named, ours) = (fs::symlink_metadata(self.path()), self.directory.metadata());
        named.is_ok_and(|named| ours.is_ok_and(|ours| ours.ino() == named.ino()))
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        if self.is_in_place() {
            // This fails while the directory is in use, as it is not empty then.
            let _ = fs::remove_dir(self.path());
        }
    }
}

/// Creates a directory if necessary, and takes its lock; `None` if another process has the lock.
fn claim(home: &Home, name: &str) -> io::Result<Option<Claim>> {
    let path = home.path().join(name);
    loop {
        make(&path)?;
        let directory = match home::directory(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
            opened => opened?,
        };
        let Some(claim) = Claim::lock(directory, home, name)? else { return Ok(None) };
        // Otherwise the last owner has removed it meanwhile.
        if claim.is_in_place() {
            return Ok(Some(claim));
        }
    }
}

/// The pins of a device.
pub(super) struct Pins {
    home: Home,
    /// The directory's name in `home`: the device's ifindex and the number of its network namespace.
    name: String,
}

/// The names of the pins for each mode.
const LINKS: [(Mode, &str); 4] = [
    (Mode::Native, "link-native"),
    (Mode::Generic, "link-generic"),
    (Mode::Tcx, "link-tcx"),
    (Mode::Clsact, "program-clsact"),
];

/// The name of the pin for the link of a tc program beside an XDP program.
const BESIDE: &str = "link-beside";

impl Pins {
    /// The pins of a device of this network namespace.
    pub(super) fn of(ifindex: u32) -> Result<Self, XdpError> {
        let namespace = namespace().map_err(XdpError::system("/proc/self/ns/net", "reading"))?;
        Ok(Self { home: Home::make()?, name: format!("{ifindex}-{namespace}") })
    }

    /// The same if there may be some, without making a home for them.
    fn find(ifindex: u32) -> Option<Self> {
        Some(Self { home: Home::find()?, name: format!("{ifindex}-{}", namespace().ok()?) })
    }

    fn path(&self) -> PathBuf {
        self.home.path().join(&self.name)
    }

    fn link_path(&self, mode: Mode) -> PathBuf {
        let name = LINKS.iter().find(|(of, _)| *of == mode).map_or("link", |(_, name)| name);
        self.path().join(name)
    }

    fn state_path(&self) -> PathBuf {
        self.path().join("state")
    }

    /// Claims the device for this process; `None` if another process has it, and not just for a moment, as
    /// [`sweep`] has.
    pub(super) fn claim(&self) -> io::Result<Option<Claim>> {
        let until = Instant::now() + SWEPT;
        loop {
            match claim(&self.home, &self.name)? {
                None if Instant::now() < until => std::thread::sleep(SWEPT / 20),
                claimed => return Ok(claimed),
            }
        }
    }

    /// Where the program is on the device, and its mode.
    pub(super) fn hook(&self) -> Option<(Mode, Hook)> {
        let ifindex = self.name.split('-').next().and_then(|number| number.parse().ok())?;
        LINKS.into_iter().find_map(|(mode, _)| {
            let object = sys::pinned(&self.link_path(mode)).ok()?;
            Some((mode, Hook::of_pinned(mode, object, ifindex)))
        })
    }

    /// Whether the device may be in another network namespace than this process.
    fn are_elsewhere(&self) -> bool {
        let own = namespace().map(|own| format!("-{own}"));
        !own.is_ok_and(|own| self.name.ends_with(&own))
    }

    /// The map with the heartbeats.
    fn state(&self) -> Option<OwnedFd> {
        sys::pinned(&self.state_path()).ok()
    }

    /// Whether the pinned heartbeats are this process's own.
    pub(super) fn are_of(&self, state: BorrowedFd<'_>) -> bool {
        let Some(pinned) = self.state() else { return false };
        sys::map_id(pinned.as_fd()).ok() == sys::map_id(state).ok()
    }

    /// Whether any worker of a process updates its heartbeat; waits as long as a living process may
    /// take. A process with a worker that hangs still serves the queues of the others.
    pub(super) fn are_alive(&self) -> bool {
        let Some(state) = self.state() else { return false };
        let heartbeats = Heartbeats::map(state.as_fd());
        let Some(heartbeats) = heartbeats.ok().filter(|all| all.are_alive(DEAD_NS)) else {
            return false;
        };
        // A process that lets the kernel forward while the configuration changes is alive all the
        // same. The map of another version may be shorter; then the heartbeats alone decide.
        if Page::map(state.as_fd()).is_ok_and(|page| page.bypass(BYPASS_IDLE)) {
            return false;
        }
        let before_ns = heartbeats.last_ns();
        (0..10).any(|_| {
            std::thread::sleep(PULSE / 10);
            heartbeats.last_ns() != before_ns
        })
    }

    /// Pins a program's place, and the map with the heartbeats that the program reads.
    pub(super) fn keep(
        &self,
        (mode, hook): (Mode, &Hook),
        state: BorrowedFd<'_>,
    ) -> io::Result<()> {
        make(&self.path())?;
        let link = self.link_path(mode);
        // A link stays the same when its program is replaced.
        let is_kept = matches!(hook, Hook::Link(_)) && link.exists();
        let link = (!is_kept).then_some((hook.object(), link));
        for (object, path) in link.into_iter().chain([(state, self.state_path())]) {
            match fs::remove_file(&path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => sys::pin(object, &path)?,
            }
        }
        Ok(())
    }

    /// Where a tc program is beside the device's XDP program.
    pub(super) fn beside(&self) -> Option<Hook> {
        sys::pinned(&self.path().join(BESIDE)).ok().map(Hook::Link)
    }

    /// Pins the place of a tc program beside the device's XDP program.
    pub(super) fn keep_beside(&self, hook: &Hook) -> io::Result<()> {
        sys::pin(hook.object(), &self.path().join(BESIDE))
    }

    /// Removes that pin.
    pub(super) fn remove_beside(&self) {
        let _ = fs::remove_file(self.path().join(BESIDE));
    }

    /// Detaches a tc program beside the device's XDP program, and removes its pin.
    pub(super) fn end_beside(&self) {
        if let Some(hook) = self.beside() {
            // A device that is gone has lost its program already.
            let _ = hook.detach();
            self.remove_beside();
        }
    }

    /// Removes the pins, but keeps the claim on the device. Without a pin, nobody would find a tc program beside an
    /// XDP program again, so that ends.
    pub(super) fn empty(&self) {
        self.end_beside();
        empty(&self.path());
    }

    /// Removes the pins and the directory.
    pub(super) fn remove(&self) {
        remove(&self.path());
    }

    /// Detaches the program of a dead process, and removes its pins and the directory; returns whether that
    /// was so. No other process can claim the device meanwhile.
    fn clear_if_dead(&self) -> bool {
        let claim = Claim::of_existing(&self.home, &self.name);
        let is_dead = claim.is_some() && !self.are_alive();
        if is_dead {
            self.clear();
        }
        is_dead
    }

    /// Detaches the program, and removes the pins and the directory.
    fn clear(&self) {
        if let Some((_, hook)) = self.hook() {
            // A device that is gone has lost its program already.
            let _ = hook.detach();
        }
        self.end_beside();
        self.remove();
    }

    /// Whether its device is gone, or never had a program.
    fn has_no_device(&self) -> bool {
        self.hook().is_none_or(|(_, hook)| match hook {
            // A filter is seen only in its own namespace.
            Hook::Filter { .. } if self.are_elsewhere() => false,
            hook => hook.program().is_ok_and(|(_, ifindex)| ifindex == 0),
        })
    }
}

/// Where Tollway's program runs on a device, and its id, if there is one and this process may see it.
#[must_use]
pub fn program_of(ifindex: u32) -> Option<(Mode, u32)> {
    let (mode, hook) = Pins::find(ifindex)?.hook()?;
    let (program, device) = hook.program().ok()?;
    (device == ifindex).then_some((mode, program))
}

/// The id of Tollway's tc program beside its XDP program on a device, if there is one and this process may see it.
#[must_use]
pub fn program_beside(ifindex: u32) -> Option<u32> {
    let (program, device) = Pins::find(ifindex)?.beside()?.program().ok()?;
    (device == ifindex).then_some(program)
}

/// Removes the remains of devices that are gone, and of interrupted loads.
pub(super) fn sweep() -> Result<(), XdpError> {
    let home = Home::make()?;
    for name in directories(&home)? {
        let pins = Pins { home: home.clone(), name };
        remove_unlocked(&home, &pins.name, || pins.name.starts_with(LOAD) || pins.has_no_device());
    }
    Ok(())
}

/// Removes a directory that is not locked if it is left over, and holds its lock meanwhile.
fn remove_unlocked(home: &Home, name: &str, is_left_over: impl FnOnce() -> bool) {
    if let Some(claim) = Claim::of_existing(home, name)
        && is_left_over()
    {
        remove(&claim.path());
    }
}

/// Detaches the programs of dead Tollways in this network namespace; returns the number of devices.
///
/// # Errors
/// There is no BPF file system, or no privilege.
pub fn clean() -> Result<usize, XdpError> {
    sweep()?;
    let namespace = namespace().map_err(XdpError::system("/proc/self/ns/net", "reading"))?;
    let (home, ours) = (Home::make()?, format!("-{namespace}"));
    let names = directories(&home)?.into_iter().filter(|name| name.ends_with(&ours));
    let pins = names.map(|name| Pins { home: home.clone(), name });
    Ok(pins.filter(Pins::clear_if_dead).count())
}

/// The directories in the home, by name; nothing else belongs there.
fn directories(home: &Home) -> Result<Vec<String>, XdpError> {
    let entries = fs::read_dir(home.path()).map_err(XdpError::NoBpffs)?.flatten();
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
        all.iter().for_each(|name| remove_unlocked(&home, name, || true));
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
                    all.iter().for_each(|name| remove_unlocked(&home, name, || true));
                }
            });
        });
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 0);
    }
}
