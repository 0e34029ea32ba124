//! The process at the other end of a control socket. It may be in another PID namespace, where its
//! number differs from the one here; it may have no number here.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use tollway_linux::sys;

/// A process, held by a pidfd. The descriptor stays valid for this process even if its number is
/// reused.
#[derive(Debug)]
pub struct Peer(OwnedFd);

impl Peer {
    /// The listening process at the other end. None if it cannot be determined: the process is not
    /// visible from this PID namespace, and the kernel is older than 6.5.
    pub(super) fn of(stream: &UnixStream) -> io::Result<Option<Self>> {
        match sys::peer_process(stream.as_fd()) {
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                Self::numbered(sys::peer_number(stream.as_fd())?)
            }
            process => process.map(|process| Some(Self(process))),
        }
    }

    /// The process with a number; 0 means that it has no number here.
    fn numbered(number: libc::pid_t) -> io::Result<Option<Self>> {
        if number == 0 { Ok(None) } else { sys::process(number).map(|process| Some(Self(process))) }
    }

    /// Waits until the process has ended, at most for `patience`; says whether it has.
    ///
    /// # Errors
    /// The system call failed.
    pub fn ends_within(&self, patience: Duration) -> io::Result<bool> {
        let start = Instant::now();
        loop {
            let left = patience.saturating_sub(start.elapsed());
            let mut fds = [sys::readable(self.0.as_raw_fd())];
            // A signal may end the wait early.
            sys::wait(&mut fds, sys::timeout_ms(left))?;
            if fds[0].revents != 0 {
                return Ok(true);
            }
            if left.is_zero() {
                return Ok(false);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::net::UnixListener;
    use std::process::Command;

    use super::*;

    const MOMENT: Duration = Duration::from_millis(30);

    #[test]
    fn a_listener_is_found_by_either_way() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let _listener = UnixListener::bind(&path).unwrap();
        let stream = UnixStream::connect(&path).unwrap();
        let number = sys::peer_number(stream.as_fd()).unwrap();
        assert_eq!(number, i32::try_from(std::process::id()).unwrap());
        for peer in [Peer::of(&stream), Peer::numbered(number)] {
            assert!(!peer.unwrap().unwrap().ends_within(MOMENT).unwrap());
        }
        assert!(Peer::numbered(0).unwrap().is_none(), "it is nobody here");
    }

    #[test]
    fn an_end_is_noticed() {
        let mut child = Command::new("sleep").arg("60").spawn().unwrap();
        let number = i32::try_from(child.id()).unwrap();
        let peer = Peer::numbered(number).unwrap().unwrap();
        assert!(!peer.ends_within(MOMENT).unwrap());
        child.kill().unwrap();
        assert!(peer.ends_within(Duration::from_secs(10)).unwrap(), "before anyone waited for it");
        child.wait().unwrap();
        assert!(peer.ends_within(Duration::ZERO).unwrap(), "after as well");
        assert!(Peer::numbered(number).is_err());
    }
}
