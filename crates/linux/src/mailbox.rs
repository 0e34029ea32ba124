//! How a thread hands something to another that sleeps in poll(2).
//!
//! ```text
//! Waker ───wake()──▶ WakeReceiver              Mailbox<T> ──post(T)──▶ MailboxReceiver<T>
//!                      as_fd(): to poll on                               as_fd(): to poll on
//!                      drain(): ends the wake                            drain(): the messages
//! ```
//!
//! Both senders are cheap to clone. They never wait: messages have no limit, and what has not been
//! drained wakes the receiver anyway. When the last sender is dropped, the receiver's descriptor
//! becomes readable for good; this is how most threads learn that they have to end.
//!
//! The worker has a mailbox of another kind (`crates/worker/src/mailbox.rs`): it checks for jobs in each
//! turn, with a single load.

use std::fmt;
use std::io::{self, ErrorKind, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, Sender, TryIter};

use crate::sys;

/// Wakes the thread that polls on a [`WakeReceiver`].
#[derive(Clone, Debug)]
pub struct Waker(Arc<UnixStream>);

/// The receiving end of a [`Waker`]: readable from a wake on until it is drained.
#[derive(Debug)]
pub struct WakeReceiver(UnixStream);

impl Waker {
    /// Makes a waker and its receiver.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn pair() -> io::Result<(Self, WakeReceiver)> {
        let (sender, receiver) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok((Self(Arc::new(sender)), WakeReceiver(receiver)))
    }

    /// Wakes the receiver, without waiting for it.
    pub fn wake(&self) {
        // A full socket is readable, so it wakes the receiver as well.
        let _ = (&*self.0).write(&[0]);
    }

    /// A socket for signal handlers: each byte written to it wakes the receiver.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn socket(&self) -> io::Result<UnixStream> {
        self.0.try_clone()
    }
}

impl WakeReceiver {
    /// Takes in all wakes so far. Returns false if the last waker is dropped.
    pub fn drain(&self) -> bool {
        let mut bytes = [0; 64];
        loop {
            match (&self.0).read(&mut bytes) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                // A socket that fails never wakes anybody again.
                Err(error) => return error.kind() == ErrorKind::WouldBlock,
            }
        }
    }

    /// Whether the last waker is dropped; takes in no wake.
    pub fn has_ended(&self) -> bool {
        let fd = self.0.as_raw_fd();
        let mut fds = [libc::pollfd { fd, events: libc::POLLRDHUP, revents: 0 }];
        sys::wait(&mut fds, 0).is_ok() && fds[0].revents & (libc::POLLRDHUP | libc::POLLHUP) != 0
    }
}

impl AsFd for WakeReceiver {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// Sends messages to the thread that polls on a [`MailboxReceiver`].
pub struct Mailbox<T> {
    // Dropped before the waker, so that a receiver that notices the end has all messages.
    messages: Sender<T>,
    waker: Waker,
}

/// The receiving end of a [`Mailbox`]: readable while there are messages.
pub struct MailboxReceiver<T> {
    messages: Receiver<T>,
    wakes: WakeReceiver,
}

impl<T> Mailbox<T> {
    /// Makes a mailbox and its receiver.
    ///
    /// # Errors
    /// The system has no descriptor left.
    pub fn pair() -> io::Result<(Self, MailboxReceiver<T>)> {
        let (sender, messages) = mpsc::channel();
        let (waker, wakes) = Waker::pair()?;
        Ok((Self { messages: sender, waker }, MailboxReceiver { messages, wakes }))
    }

    /// Posts a message, without waiting for the receiver; false if the receiver is dropped.
    pub fn post(&self, message: T) -> bool {
        let is_posted = self.messages.send(message).is_ok();
        self.waker.wake();
        is_posted
    }

    /// Wakes the receiver without a message.
    pub fn wake(&self) {
        self.waker.wake();
    }
}

// A derived `Clone` would need messages that are `Clone`.
impl<T> Clone for Mailbox<T> {
    fn clone(&self) -> Self {
        Self { messages: self.messages.clone(), waker: self.waker.clone() }
    }
}

impl<T> fmt::Debug for Mailbox<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Mailbox").finish_non_exhaustive()
    }
}

impl<T> MailboxReceiver<T> {
    /// Takes in the wakes so far. Returns the messages, and whether a sender is left that may post
    /// others.
    pub fn drain(&mut self) -> Mail<'_, T> {
        // In this order: a sender that posts a message meanwhile wakes the receiver again.
        let has_senders = self.wakes.drain();
        Mail { messages: self.messages.try_iter(), has_senders }
    }
}

impl<T> AsFd for MailboxReceiver<T> {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.wakes.as_fd()
    }
}

/// What [`MailboxReceiver::drain`] found.
pub struct Mail<'a, T> {
    /// The messages, in the order in which they were posted.
    pub messages: TryIter<'a, T>,
    /// False if the last sender is dropped: no message follows.
    pub has_senders: bool,
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    const PATIENCE_MS: i32 = 10_000;

    /// Whether a descriptor becomes readable within `timeout_ms`.
    fn is_readable(receiver: &impl AsFd, timeout_ms: i32) -> bool {
        let mut fds = [sys::readable(receiver.as_fd().as_raw_fd())];
        sys::wait(&mut fds, timeout_ms).unwrap();
        fds[0].revents != 0
    }

    fn messages<T>(receiver: &mut MailboxReceiver<T>) -> Vec<T> {
        receiver.drain().messages.collect()
    }

    /// Writes until the waker's socket is full.
    fn fill(waker: &Waker) {
        while (&*waker.0).write(&[0; 4096]).is_ok() {}
    }

    #[test]
    fn a_post_wakes_a_thread_that_polls() {
        let (mailbox, mut receiver) = Mailbox::pair().unwrap();
        assert!(!is_readable(&receiver, 0));
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let is_woken = is_readable(&receiver, PATIENCE_MS);
                (is_woken, messages(&mut receiver))
            });
            // Most likely, the thread polls by now.
            std::thread::sleep(Duration::from_millis(20));
            assert!(mailbox.post(7));
            assert_eq!(reader.join().unwrap(), (true, vec![7]));
        });
    }

    #[test]
    fn a_drain_ends_all_wakes_so_far() {
        let (mailbox, mut receiver) = Mailbox::pair().unwrap();
        for number in 0..200 {
            assert!(mailbox.post(number));
        }
        mailbox.wake();
        assert_eq!(messages(&mut receiver), (0..200).collect::<Vec<_>>());
        assert!(!is_readable(&receiver, 0));
        mailbox.wake();
        assert!(is_readable(&receiver, 0), "a wake without a message");
        assert!(receiver.drain().has_senders);
        assert!(!is_readable(&receiver, 0));
    }

    #[test]
    fn no_message_is_lost_when_the_socket_is_full() {
        let (mailbox, mut receiver) = Mailbox::pair().unwrap();
        fill(&mailbox.waker);
        for number in 0..3 {
            assert!(mailbox.post(number));
        }
        assert!(is_readable(&receiver, 0));
        assert_eq!(messages(&mut receiver), [0, 1, 2]);
        assert!(!is_readable(&receiver, 0));
    }

    #[test]
    fn every_message_arrives_once_while_senders_post_and_the_receiver_drains() {
        let (mailbox, mut receiver) = Mailbox::pair().unwrap();
        std::thread::scope(|scope| {
            for sender in 0..3 {
                let mailbox = mailbox.clone();
                scope
                    .spawn(move || (0..5000).for_each(|number| _ = mailbox.post((sender, number))));
            }
            drop(mailbox);
            let (mut next, mut has_senders) = ([0; 3], true);
            while has_senders {
                assert!(is_readable(&receiver, PATIENCE_MS), "a post has not woken the receiver");
                let mail = receiver.drain();
                has_senders = mail.has_senders;
                for (sender, number) in mail.messages {
                    assert_eq!(number, next[sender]);
                    next[sender] += 1;
                }
            }
            assert_eq!(next, [5000; 3], "all messages precede the end");
        });
    }

    #[test]
    fn the_end_comes_with_the_last_sender_and_after_its_messages() {
        let (mailbox, mut receiver) = Mailbox::pair().unwrap();
        let other = mailbox.clone();
        drop(mailbox);
        assert!(!is_readable(&receiver, 0), "one sender is left");
        assert!(other.post(1));
        drop(other);
        let mail = receiver.drain();
        assert!(!mail.has_senders);
        assert_eq!(mail.messages.collect::<Vec<_>>(), [1]);
        assert!(is_readable(&receiver, 0), "the end stays readable");
    }

    #[test]
    fn a_receiver_notices_the_end_without_taking_in_wakes() {
        let (waker, receiver) = Waker::pair().unwrap();
        waker.wake();
        assert!(!receiver.has_ended());
        assert!(receiver.drain());
        waker.wake();
        let other = waker.clone();
        drop(waker);
        assert!(!receiver.has_ended());
        drop(other);
        assert!(receiver.has_ended());
        assert!(!receiver.drain());
    }

    #[test]
    fn a_sender_whose_receiver_is_dropped_learns_it() {
        let (mailbox, receiver) = Mailbox::pair().unwrap();
        drop(receiver);
        assert!(!mailbox.post(()));
    }

    #[test]
    fn a_real_time_sender_never_waits_for_a_receiver_that_does_not_drain() {
        let (mailbox, mut receiver) = Mailbox::pair().unwrap();
        let (done, is_done) = mpsc::channel();
        std::thread::spawn(move || {
            // Without the privilege, the thread is an ordinary one.
            let _ = sys::set_schedule(sys::Schedule::Realtime);
            fill(&mailbox.waker);
            for number in 0..10_000 {
                assert!(mailbox.post(number));
            }
            done.send(()).unwrap();
        });
        assert_eq!(is_done.recv_timeout(Duration::from_secs(10)), Ok(()), "the sender waits");
        assert_eq!(messages(&mut receiver).len(), 10_000);
    }
}
