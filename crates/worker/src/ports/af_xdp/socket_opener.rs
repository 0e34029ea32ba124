//! Opens a port's sockets, and has the port's program.
//!
//! Loading and attaching takes tens of milliseconds, in which the worker has to serve other ports.
//! So a port that comes back opens its sockets on a thread of its own. Meanwhile that thread has
//! the program.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::task::Poll;
use std::time::Duration;

use tollway_dataplane::frame::FrameAddr;

use super::OwnedProgram;
use super::steps::{self, Refusal, Serving, Target};
use super::umem::SharedUmem;
use tollway_model::AfXdpMode;

/// The longest time until a predecessor's queue is free after its end, with a margin for a busy
/// machine.
const QUEUE_RETURNS: Duration = Duration::from_secs(2);

/// The result of opening: the sockets and how they work in words, or why there are none.
pub(super) type Outcome = Result<(Serving, String), Vec<Refusal>>;

/// Chunks that sockets get before they are bound. The lender has them in custody.
pub(super) type Lent = Vec<FrameAddr>;

/// Opens a port's sockets. The port's program is here, or with the thread that opens sockets.
pub(super) struct SocketOpener {
    /// `None` while the thread has it.
    program: Option<Box<dyn OwnedProgram>>,
    away: Option<Receiver<(Box<dyn OwnedProgram>, Outcome)>>,
}

impl SocketOpener {
    /// Takes charge of a program.
    pub(super) fn new(program: Box<dyn OwnedProgram>) -> Self {
        Self { program: Some(program), away: None }
    }

    /// The program, unless the thread has it.
    pub(super) fn program(&self) -> Option<&dyn OwnedProgram> {
        self.program.as_deref()
    }

    /// Opens sockets and waits for the outcome.
    pub(super) fn open(
        &mut self,
        umem: &SharedUmem,
        target: Target<'_>,
        mode: AfXdpMode,
        lent: &Lent,
    ) -> Outcome {
        match &mut self.program {
            Some(program) => {
                steps::open_best(umem, &mut **program, target, mode, (lent, QUEUE_RETURNS))
            }
            None => Err(lost()),
        }
    }

    /// Starts to open sockets on a thread.
    pub(super) fn begin(
        &mut self,
        umem: &SharedUmem,
        target: Target<'_>,
        mode: AfXdpMode,
        lent: Lent,
    ) -> io::Result<()> {
        let (device, umem) = (target.device.to_owned(), umem.clone());
        let Target { ifindex, queues, slots, mac, mtu, .. } = target;
        let (give, given) = mpsc::sync_channel::<Box<dyn OwnedProgram>>(1);
        let (sender, receiver) = mpsc::sync_channel(1);
        std::thread::Builder::new().name("port".to_owned()).spawn(move || {
            crate::cores::unpin();
            let Ok(mut program) = given.recv() else { return };
            let target = Target { device: &device, ifindex, queues, slots, mac, mtu };
            // A busy queue is tried again later: ending the port waits for this thread.
            let outcome =
                steps::open_best(&umem, &mut *program, target, mode, (&lent, Duration::ZERO));
            // If the port has ended meanwhile, program and sockets end here.
            let _ = sender.send((program, outcome));
        })?;
        // The program moves only now. If no thread started, it would be lost.
        if let Some(program) = self.program.take() {
            let _ = give.send(program);
            self.away = Some(receiver);
        }
        Ok(())
    }

    /// The outcome of opening sockets, once; `Ready(None)` if that was not started.
    pub(super) fn poll(&mut self) -> Poll<Option<Outcome>> {
        let Some(away) = &self.away else { return Poll::Ready(None) };
        let arrived = away.try_recv();
        if matches!(arrived, Err(TryRecvError::Empty)) {
            return Poll::Pending;
        }
        self.away = None;
        Poll::Ready(Some(match arrived {
            Ok((program, outcome)) => {
                self.program = Some(program);
                outcome
            }
            Err(_) => Err(lost()),
        }))
    }

    /// Detaches the program from its device, even if the thread has it.
    pub(super) fn detach(&mut self) {
        if let Some(away) = self.away.take() {
            self.program = away.recv().ok().map(|(program, _)| program);
        }
        if let Some(program) = &mut self.program {
            program.detach();
        }
    }

    /// Directs a queue's frames to a socket.
    pub(super) fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Refusal> {
        match &mut self.program {
            Some(program) => program.set_socket(queue, socket),
            None => Err(lost().remove(0)),
        }
    }
}

/// The thread with the program has panicked.
fn lost() -> Vec<Refusal> {
    let what = "its XDP program is lost; restart tollway".to_owned();
    vec![Refusal { what, remedy: "Restart tollway".to_owned(), is_final: true }]
}
