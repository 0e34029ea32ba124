//! Who is at the other end of a control socket: a process that may be in another PID namespace, where
//! its number is not the one that it has here, if it has any here.

use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::ports::sys;

/// A process, by a descriptor that stays its own whoever gets its number.
#[derive(Debug)]
pub struct Peer(OwnedFd);

impl Peer {
    /// Who listens at the other end. None where that can not be told: the process can not be seen from
    /// this PID namespace, and the kernel is older than 6.5.
    pub(super) fn of(stream: &UnixStream) -> io::Result<Option<Self>> {
        match sys::peer_process(stream.as_fd()) {
            Err(error) if error.raw_os_error() == Some(libc::ENOPROTOOPT) => {
                Self::numbered(sys::peer_number(stream.as_fd())?)
            }
            process => process.map(|process| Some(Self(process))),
        }
    }

    /// The process of a number, of which 0 says that there is none here.
    fn numbered(number: libc::pid_t) -> io::Result<Option<Self>> {
        if number == 0 { Ok(None) } else { sys::process(number).map(|process| Some(Self(process))) }
    }

    /// Waits until it has ended, for so long at most; says if it has.
    ///
    /// # Errors
    /// The system refused.
    pub fn ends_within(&self, patience: Duration) -> io::Result<bool> {
        let start = Instant::now();
        loop {
            let left = patience.saturating_sub(start.elapsed());
            let timeout_ms = i32::try_from(left.as_millis()).unwrap_or(i32::MAX);
            let mut fds =
                [libc::pollfd { fd: self.0.as_raw_fd(), events: libc::POLLIN, revents: 0 }];
            // A signal may end it early.
            sys::wait(&mut fds, timeout_ms)?;
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
