//! A port's program and its way up to open sockets.
//!
//! Loading and attaching takes tens of milliseconds, in which the worker has other ports to serve: a
//! port that comes back climbs on a thread of its own, and has no program meanwhile.

use std::io;
use std::os::fd::BorrowedFd;
use std::sync::mpsc::{self, Receiver, TryRecvError};
use std::task::Poll;
use std::time::Duration;

use tollway_dataplane::frame::FrameAddr;

use super::Kept;
use super::steps::{self, Open, Refusal, Target};
use super::umem::SharedUmem;
use crate::model::AfXdpMode;

/// A predecessor's queue is free so long after its end at most; a busy machine takes its time.
const QUEUE_RETURNS: Duration = Duration::from_secs(2);

/// What a climb comes to: the sockets and in words how they work, or why there are none.
pub(super) type Outcome = Result<(Open, String), Vec<Refusal>>;

/// Chunks that sockets get before they are bound. Whoever lends them has them in custody.
pub(super) type Lent = Vec<FrameAddr>;

/// A port's program, at home or on its way up.
pub(super) struct Climber {
    /// None while it is away.
    program: Option<Box<dyn Kept>>,
    away: Option<Receiver<(Box<dyn Kept>, Outcome)>>,
}

impl Climber {
    /// With the program at home.
    pub(super) fn new(program: Box<dyn Kept>) -> Self {
        Self { program: Some(program), away: None }
    }

    /// The program, if it is at home.
    pub(super) fn program(&self) -> Option<&dyn Kept> {
        self.program.as_deref()
    }

    /// Climbs and waits for what comes of it.
    pub(super) fn climb(
        &mut self,
        umem: &SharedUmem,
        target: Target<'_>,
        mode: AfXdpMode,
        lent: &Lent,
    ) -> Outcome {
        match &mut self.program {
            Some(program) => {
                steps::climb(umem, &mut **program, target, mode, (lent, QUEUE_RETURNS))
            }
            None => Err(lost()),
        }
    }

    /// Begins to climb.
    pub(super) fn begin(
        &mut self,
        umem: &SharedUmem,
        target: Target<'_>,
        mode: AfXdpMode,
        lent: Lent,
    ) -> io::Result<()> {
        let (device, umem) = (target.device.to_owned(), umem.clone());
        let Target { ifindex, queues, mac, mtu, .. } = target;
        let (give, given) = mpsc::sync_channel::<Box<dyn Kept>>(1);
        let (tell, told) = mpsc::sync_channel(1);
        std::thread::Builder::new().name("port".to_owned()).spawn(move || {
            let Ok(mut program) = given.recv() else { return };
            let target = Target { device: &device, ifindex, queues, mac, mtu };
            // What is busy is tried again later: whoever ends the port waits for this thread.
            let outcome = steps::climb(&umem, &mut *program, target, mode, (&lent, Duration::ZERO));
            // A port that has ended meanwhile takes nothing: program and sockets end here.
            let _ = tell.send((program, outcome));
        })?;
        // Only now, so that it is not lost where there is no thread.
        if let Some(program) = self.program.take() {
            let _ = give.send(program);
            self.away = Some(told);
        }
        Ok(())
    }

    /// What has come of a climb, once; nothing where none was begun.
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

    /// Takes the program from its device, wherever it is by now.
    pub(super) fn detach(&mut self) {
        if let Some(away) = self.away.take() {
            self.program = away.recv().ok().map(|(program, _)| program);
        }
        if let Some(program) = &mut self.program {
            program.detach();
        }
    }

    /// Says which socket has a queue's frames.
    pub(super) fn set_socket(&mut self, queue: u32, socket: BorrowedFd<'_>) -> Result<(), Refusal> {
        match &mut self.program {
            Some(program) => program.set_socket(queue, socket),
            None => Err(lost().remove(0)),
        }
    }

    /// Hands a frame to the kernel; false where that failed.
    pub(super) fn punt(&mut self, frame: &[u8]) -> bool {
        self.program.as_mut().is_some_and(|program| program.punt(frame))
    }
}

/// Whoever had the program has ended badly.
fn lost() -> Vec<Refusal> {
    let what = "its XDP program is lost; restart tollway".to_owned();
    vec![Refusal { what, remedy: "Restart tollway".to_owned(), is_final: true }]
}
