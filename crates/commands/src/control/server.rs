//! The server of the control socket: one thread listens, and one serves each client; clients are
//! few.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::SocketError;
use super::message::refusal;
use super::request::{Command, Request, RequestError};
use super::serve::{Backends, RequestHandler};
use super::socket::Socket;
use tollway_linux::mailbox::{WakeReceiver, Waker};
use tollway_linux::sys::{self, why};
use tollway_model::names::NameTable;
use tollway_worker::WorkerMailbox;

/// The most clients at once.
pub(super) const MOST_CLIENTS: usize = 16;
/// The most bytes of a request: some thousand elements of a set.
pub const REQUEST_LIMIT: u64 = 1 << 16;
/// How long a client may be silent, and how long it may leave an answer unread.
const CLIENT_PATIENCE: Duration = Duration::from_secs(60);
const WRITE_PATIENCE: Duration = Duration::from_secs(10);

/// The running server of a control socket. Dropping it ends the service.
pub struct Server {
    /// Dropping it ends the thread.
    waker: Option<Waker>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    /// Starts to answer at a socket. Queries the worker through `mailbox`, and takes names from
    /// `name_table`. Requests that need what `backends` lacks are refused.
    ///
    /// # Errors
    /// The system has no descriptor or no thread left.
    pub fn start(
        socket: Socket,
        mailbox: WorkerMailbox,
        name_table: NameTable,
        backends: Backends,
    ) -> Result<Self, SocketError> {
        let path = socket.path().to_owned();
        let failed = |error| SocketError::System { path, error };
        Self::listen(socket, Arc::new(RequestHandler::new(mailbox, name_table, backends)))
            .map_err(failed)
    }

    fn listen(socket: Socket, handler: Arc<RequestHandler>) -> io::Result<Self> {
        let (waker, wakes) = Waker::pair()?;
        socket.listener.set_nonblocking(true)?;
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || accept(&socket, &wakes, &handler))?;
        Ok(Self { waker: Some(waker), thread: Some(thread) })
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.waker = None;
        if let Some(thread) = self.thread.take() {
            // The thread ends by itself, and removes the socket.
            let _ = thread.join();
        }
    }
}

/// Accepts clients until the server's waker is dropped.
fn accept(socket: &Socket, wakes: &WakeReceiver, handler: &Arc<RequestHandler>) {
    let clients = Arc::new(AtomicUsize::new(0));
    let mut shortage = Shortage::new(wakes.as_fd());
    loop {
        let listener = socket.listener.as_fd().as_raw_fd();
        let mut fds = [sys::readable(wakes.as_fd().as_raw_fd()), sys::readable(listener)];
        if let Err(error) = sys::wait(&mut fds, -1) {
            tracing::error!(
                "waiting at the control socket failed: {error}; clients get no answers until tollway restarts"
            );
            return;
        }
        if fds[0].revents != 0 {
            return;
        }
        match socket.listener.accept() {
            Ok((stream, _)) => match admit(stream, &clients, handler) {
                Ok(()) => shortage.may_be_over(),
                Err(error) => shortage.note(&error),
            },
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            Err(error) => {
                // A shortage of descriptors or memory may be temporary.
                shortage.note(&error);
                shortage.turn_away(&socket.listener);
            }
        }
    }
}

/// The time for which the server must accept clients until a shortage counts as over: of
/// descriptors, memory or threads.
const CALM: Duration = Duration::from_secs(10);

/// A shortage that keeps the server from accepting clients. Its start and its end are logged.
struct Shortage<'a> {
    since: Option<Instant>,
    /// A descriptor to give up for a moment, and the one that it duplicates.
    spare: Option<OwnedFd>,
    of: BorrowedFd<'a>,
}

impl<'a> Shortage<'a> {
    fn new(of: BorrowedFd<'a>) -> Self {
        Self { since: None, spare: of.try_clone_to_owned().ok(), of }
    }

    fn note(&mut self, error: &io::Error) {
        if self.since.is_none() {
            tracing::warn!(
                "the control socket cannot accept clients: {}; it refuses them until it can",
                why(error)
            );
        }
        self.since = Some(Instant::now());
    }

    fn may_be_over(&mut self) {
        if self.since.is_some_and(|since| since.elapsed() >= CALM) {
            tracing::info!("the control socket accepts clients again");
            self.since = None;
        }
    }

    /// Accepts a client, and answers that the router cannot serve it; this needs the spare descriptor.
    fn turn_away(&mut self, listener: &UnixListener) {
        self.spare = None;
        match listener.accept() {
            // The client may have closed the connection.
            Ok((stream, _)) => {
                _ = send_line(
                    &stream,
                    &refusal("the router lacks descriptors or memory for another client"),
                );
            }
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
        self.spare = self.of.try_clone_to_owned().ok();
    }
}

/// A slot for one client; dropping it frees the slot.
struct ClientSlot(Arc<AtomicUsize>);

impl Drop for ClientSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn admit(
    stream: UnixStream,
    clients: &Arc<AtomicUsize>,
    handler: &Arc<RequestHandler>,
) -> io::Result<()> {
    let place = ClientSlot(Arc::clone(clients));
    let before = clients.fetch_add(1, Ordering::AcqRel);
    let prepared = stream
        .set_nonblocking(false)
        .and_then(|()| stream.set_read_timeout(Some(CLIENT_PATIENCE)))
        .and_then(|()| stream.set_write_timeout(Some(WRITE_PATIENCE)));
    if prepared.is_err() {
        // The client has closed the connection.
        return Ok(());
    }
    if before >= MOST_CLIENTS {
        let sentence = format!("{MOST_CLIENTS} clients are being served; try again later");
        // The client may have closed the connection.
        let _ = send_line(&stream, &refusal(&sentence));
        return Ok(());
    }
    let handler = Arc::clone(handler);
    let thread = std::thread::Builder::new().name("control-client".to_owned());
    let spawned = thread.spawn(move || {
        let _place = place;
        // After any error the connection closes, which the client notices.
        let _ = serve(&stream, &handler);
    });
    spawned.map(drop)
}

/// Sends a line.
fn send_line(mut stream: &UnixStream, line: &str) -> io::Result<()> {
    stream.write_all(format!("{line}\n").as_bytes())
}

/// Serves one client, request by request.
fn serve(stream: &UnixStream, handler: &RequestHandler) -> io::Result<()> {
    let mut reader = BufReader::new(stream);
    let mut line = Vec::new();
    loop {
        line.clear();
        let count = (&mut reader).take(REQUEST_LIMIT).read_until(b'\n', &mut line)?;
        if count == 0 {
            return Ok(());
        }
        if line.last() != Some(&b'\n') && count as u64 == REQUEST_LIMIT {
            let sentence = format!("the request is longer than {REQUEST_LIMIT} bytes");
            // The start of the next request is unknown.
            return send_line(stream, &refusal(&sentence));
        }
        let request = match std::str::from_utf8(&line) {
            Ok(text) => Request::read(text.trim()),
            Err(_) => Err(RequestError::NotText),
        };
        match request {
            Ok(Request::Show(show)) => {
                handler.answer(&show, &mut |line| send_line(stream, line))?
            }
            Ok(Request::Do(Command::Reload)) => send_line(stream, &handler.reload())?,
            Ok(Request::Do(Command::Sync)) => send_line(stream, &handler.sync())?,
            Ok(Request::Do(Command::HandOver)) => {
                handler.hand_over(&mut |line| send_line(stream, line))?;
            }
            Ok(Request::Do(Command::Set { name, change, elements })) => {
                send_line(stream, &handler.change_set(&name, change, &elements))?;
            }
            Err(error) => send_line(stream, &refusal(&error.to_string()))?,
        }
    }
}
