//! The log, on stderr.
//!
//! Log output must neither end a router nor delay it: the disk may be full, the pipe closed, the
//! terminal stopped. The log counts each line that it cannot write. The next line that succeeds
//! reports how many were lost.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, TryRecvError, sync_channel};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// The most lines that wait for stderr; further lines are lost.
const MOST_WAITING: usize = 1024;
/// How long the program waits at its end for these lines.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);

/// The queue between the threads that log and stderr.
#[derive(Default)]
pub(super) struct Log {
    /// The sender to the writing thread, and that thread, if there is one.
    queue: OnceLock<(SyncSender<Vec<u8>>, Thread)>,
    waiting: AtomicUsize,
    lost: AtomicU64,
}

impl Log {
    /// Starts a thread that writes all further lines, so that a packet never waits for a reader of
    /// the log. If no thread can be started, the caller's threads continue to write themselves.
    pub(super) fn detach(self: &Arc<Self>) {
        let (queue, lines) = sync_channel(MOST_WAITING);
        let log = Arc::clone(self);
        let thread = std::thread::Builder::new().name("log".to_owned());
        if let Ok(thread) = thread.spawn(move || log.write_all_of(&lines)) {
            // This cannot fail: no other caller detaches the log.
            let _ = self.queue.set((queue, thread.thread().clone()));
        }
    }

    /// Parks while there are no lines. A receiver that waits in the channel would be woken under a lock: a thread that
    /// gets no processor could have it, and threads that change tables would wait for it to log a line.
    fn write_all_of(&self, lines: &Receiver<Vec<u8>>) {
        loop {
            match lines.try_recv() {
                Ok(line) => {
                    self.put(&mut io::stderr().lock(), &line);
                    self.waiting.fetch_sub(1, Ordering::AcqRel);
                }
                Err(TryRecvError::Empty) => std::thread::park(),
                Err(TryRecvError::Disconnected) => return,
            }
        }
    }

    /// Waits for unwritten lines, for a limited time.
    pub(super) fn finish(&self) {
        let start = Instant::now();
        while self.waiting.load(Ordering::Acquire) > 0 && start.elapsed() < FLUSH_TIMEOUT {
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Writes a line, preceded by the number of lost lines.
    fn put(&self, out: &mut impl Write, line: &[u8]) {
        let lost = self.lost.swap(0, Ordering::AcqRel);
        let notice = || format!("{lost} log lines before this one were lost\n");
        if lost > 0 && out.write_all(notice().as_bytes()).is_err() {
            self.lost.fetch_add(lost + 1, Ordering::AcqRel);
        } else if out.write_all(line).is_err() {
            self.lost.fetch_add(1, Ordering::AcqRel);
        }
    }
}

impl Write for &Log {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        match self.queue.get() {
            None => self.put(&mut io::stderr().lock(), line),
            Some((queue, thread)) => {
                self.waiting.fetch_add(1, Ordering::AcqRel);
                if queue.try_send(line.to_vec()).is_err() {
                    self.waiting.fetch_sub(1, Ordering::AcqRel);
                    self.lost.fetch_add(1, Ordering::AcqRel);
                }
                thread.unpark();
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A disk with limited room, in bytes.
    struct Disk {
        room: usize,
        text: String,
    }

    impl Write for Disk {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if bytes.len() > self.room {
                return Err(io::ErrorKind::StorageFull.into());
            }
            self.room -= bytes.len();
            self.text += std::str::from_utf8(bytes).unwrap();
            Ok(bytes.len())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn lost_lines_are_counted_and_reported_once() {
        let log = Log::default();
        let mut disk = Disk { room: 6, text: String::new() };
        for line in ["one\n", "two\n", "three\n", "four\n"] {
            log.put(&mut disk, line.as_bytes());
        }
        assert_eq!(disk.text, "one\n");
        disk.room = 1000;
        log.put(&mut disk, b"five\n");
        log.put(&mut disk, b"six\n");
        assert_eq!(disk.text, "one\n3 log lines before this one were lost\nfive\nsix\n");
    }

    #[test]
    fn logging_does_not_wait_for_a_reader() {
        let log = Log::default();
        let (queue, lines) = sync_channel(2);
        log.queue.set((queue, std::thread::current())).unwrap();
        for line in ["a", "b", "c", "d"] {
            (&log).write_all(line.as_bytes()).unwrap();
        }
        assert_eq!((log.waiting.load(Ordering::Acquire), log.lost.load(Ordering::Acquire)), (2, 2));
        assert_eq!(lines.try_iter().collect::<Vec<_>>(), [b"a", b"b"]);
    }
}
