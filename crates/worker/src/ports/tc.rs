//! A network interface of this machine whose frames a tc program forwards, or leaves to the kernel.
//!
//! No frame that arrives comes to the worker. What the user path sends by the port, because it arrived on a port of
//! another kind, leaves by a packet socket and the device's queueing discipline.
//!
//! Limit: a renamed interface is still the same one. If an interface is gone, a new one with its old name replaces it.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::mpsc::{self, Receiver, TryRecvError};

use tollway_dataplane::burst::Burst;
use tollway_dataplane::frame::{Descriptor, Umem};
use tollway_dataplane::port::Port;

use super::af_xdp::{OwnedProgram, Refusal, Target};
use super::interface::{self, Facts, is_absent};
use super::{Device, PortError, State, send_each};
use tollway_linux::sys::netdevice;
use tollway_linux::sys::why;
use tollway_net::Mac;

/// The interval between checks of a device, and between attempts to recover it.
const RETRY_NS: u64 = 1_000_000_000;

/// The port's program, or a thread that attaches it: this takes tens of milliseconds, in which the worker has to
/// serve other ports.
enum TcProgram {
    Here(Box<dyn OwnedProgram>),
    Away(Receiver<(Box<dyn OwnedProgram>, TcAttached)>),
    /// The thread has panicked.
    Lost,
}

/// How the program is attached, in words, or why it is not.
type TcAttached = Result<&'static str, Refusal>;

/// A port with a tc program.
pub(super) struct Tc {
    port: String,
    /// The device's name in the configuration.
    device: String,
    /// The device's current name.
    called: String,
    facts: Facts,
    /// The address that the port was opened with.
    mac: Mac,
    program: TcProgram,
    /// Whether the program is attached.
    serves: bool,
    how: String,
    state: State,
    /// Sends frames by the device.
    socket: OwnedFd,
    next_look_ns: u64,
    maintained_ns: u64,
}

impl Tc {
    /// Opens a device, and attaches the program if `idle` gives no reason against it.
    ///
    /// # Errors
    /// No such interface, neither Ethernet nor a layer-3 device, in use by another Tollway, no privilege.
    pub(super) fn open(
        (port, device): (&str, &str),
        program: Box<dyn OwnedProgram>,
        idle: Option<&str>,
    ) -> Result<Self, PortError> {
        let explain = |(action, error)| super::af_packet::explain(port, device, action, error);
        let socket =
            netdevice::packet_socket(0).map_err(|error| explain(("packet socket", error)))?;
        let facts = interface::query_any(socket.as_fd(), device).map_err(explain)?;
        netdevice::bind(socket.as_fd(), facts.index, 0)
            .map_err(|error| explain(("bind", error)))?;
        let mut this = Self {
            port: port.to_owned(),
            device: device.to_owned(),
            called: device.to_owned(),
            facts,
            mac: facts.mac,
            program: TcProgram::Here(program),
            serves: false,
            how: NOT_ATTACHED.to_owned(),
            state: State::Up,
            socket,
            next_look_ns: 0,
            maintained_ns: 0,
        };
        // A predecessor's program is taken over first, so that it can be detached.
        if idle.is_none() || tollway_xdp::program_of(facts.index.cast_unsigned()).is_some() {
            let attached = match &mut this.program {
                TcProgram::Here(program) => program.attach_tc(target(device, &facts, facts.mac)),
                TcProgram::Away(_) | TcProgram::Lost => Err(lost()),
            };
            this.arrive(attached).map_err(|refusal| refused(port, device, &refusal))?;
        }
        if idle.is_some() {
            this.set_idle(idle);
        } else if !facts.up {
            this.enter(State::Down("the interface is down".to_owned()));
        }
        Ok(this)
    }

    fn arrive(&mut self, attached: TcAttached) -> Result<(), Refusal> {
        attached?.clone_into(&mut self.how);
        self.serves = true;
        Ok(())
    }

    /// Starts to attach the program on a thread.
    fn begin(&mut self) {
        let TcProgram::Here(program) = std::mem::replace(&mut self.program, TcProgram::Lost) else {
            return;
        };
        let (sender, receiver) = mpsc::sync_channel(1);
        let (device, facts, mac) = (self.called.clone(), self.facts, self.mac);
        let (give, given) = mpsc::sync_channel::<Box<dyn OwnedProgram>>(1);
        let started = std::thread::Builder::new().name("port".to_owned()).spawn(move || {
            crate::cores::unpin();
            let Ok(mut program) = given.recv() else { return };
            let attached = program.attach_tc(target(&device, &facts, mac));
            // If the port has ended meanwhile, the program ends here.
            let _ = sender.send((program, attached));
        });
        match started {
            Ok(_) => {
                // The thread waits for it.
                let _ = give.send(program);
                self.program = TcProgram::Away(receiver);
            }
            Err(error) => {
                self.program = TcProgram::Here(program);
                self.enter(State::Down(format!("cannot start a thread for it: {}", why(&error))));
            }
        }
    }

    /// Takes the program back from the thread, if that is ready; returns whether the program is here.
    fn take_back(&mut self, now_ns: u64) -> bool {
        let TcProgram::Away(away) = &self.program else { return true };
        let attached = match away.try_recv() {
            Err(TryRecvError::Empty) => return false,
            Err(TryRecvError::Disconnected) => {
                self.program = TcProgram::Lost;
                Err(lost())
            }
            Ok((program, attached)) => {
                self.program = TcProgram::Here(program);
                attached
            }
        };
        match self.arrive(attached) {
            // The device may have changed while the thread had the program.
            Ok(()) => self.next_look_ns = now_ns,
            Err(refusal) => {
                self.next_look_ns = now_ns + RETRY_NS;
                self.enter(State::Down(refusal.what));
            }
        }
        true
    }

    fn detach(&mut self) {
        if let TcProgram::Away(away) = &self.program {
            let program =
                away.recv().map_or(TcProgram::Lost, |(program, _)| TcProgram::Here(program));
            self.program = program;
        }
        if let TcProgram::Here(program) = &mut self.program {
            program.detach();
        }
        self.serves = false;
        NOT_ATTACHED.clone_into(&mut self.how);
    }

    fn is_attached(&self) -> bool {
        matches!(&self.program, TcProgram::Here(program) if program.is_attached())
    }

    /// Checks whether the interface still exists, is up, and has the program.
    fn look(&mut self) {
        let is_resting = matches!(self.state, State::Detached(_));
        match interface::name(self.socket.as_fd(), self.facts.index) {
            Ok(name) => self.note_name(name),
            // If the device is gone, another with its name may come.
            Err(_) => self.called.clone_from(&self.device),
        }
        match interface::query_any(self.socket.as_fd(), &self.called) {
            Ok(facts) => self.compare(facts, is_resting),
            Err(_) if is_resting => {}
            Err((_, error)) if is_absent(&error) => {
                self.detach();
                self.enter(State::Gone("the interface is gone".to_owned()));
            }
            Err((action, error)) => self.enter(State::Down(format!("{action}: {}", why(&error)))),
        }
    }

    fn compare(&mut self, facts: Facts, is_resting: bool) {
        if facts.index != self.facts.index {
            if self.serves {
                self.detach();
            }
            // A frame that this loses is counted when it is not sent.
            let _ = netdevice::bind(self.socket.as_fd(), facts.index, 0);
        }
        self.facts = facts;
        if is_resting {
            return;
        }
        if self.serves && !self.is_attached() {
            self.detach();
            self.enter(State::Down("its tc program was detached or replaced".to_owned()));
        } else if !self.serves {
            self.begin();
        } else if facts.up {
            self.enter(State::Up);
        } else {
            self.enter(State::Down("the interface is down".to_owned()));
        }
    }

    fn note_name(&mut self, name: String) {
        if name != self.called {
            tracing::warn!("port {}: {} is called {name} now", self.port, self.called);
            self.called = name;
        }
    }

    /// Enters a state and logs it once.
    fn enter(&mut self, state: State) {
        if self.state == state {
            return;
        }
        let (port, device) = (&self.port, &self.called);
        match &state {
            State::Up => tracing::info!("port {port}: {device} is back ({})", self.how),
            State::Down(why) | State::Gone(why) => tracing::error!(
                "port {port}: {device} passes no frames: {why}; looking for it every second"
            ),
            State::Detached(why) => tracing::info!(
                "port {port}: {device} has no tc program, and the kernel forwards everything: no traffic there \
                 could be fast ({why}); the program is attached as soon as some can"
            ),
        }
        self.state = state;
    }
}

/// The mode, in words, of a port without its program.
const NOT_ATTACHED: &str = "not attached";

/// The error if the tc program is refused.
pub(super) fn refused(port: &str, device: &str, refusal: &Refusal) -> PortError {
    let (what, remedy) = (refusal.what.clone(), refusal.remedy.clone());
    PortError::NoTc { port: port.to_owned(), device: device.to_owned(), what, remedy }
}

/// The thread with the program has panicked.
fn lost() -> Refusal {
    let what = "its tc program is lost".to_owned();
    Refusal { what, remedy: "Restart tollway".to_owned(), is_final: true }
}

fn target<'a>(device: &'a str, facts: &Facts, mac: Mac) -> Target<'a> {
    let ifindex = facts.index.cast_unsigned();
    // It has no sockets.
    Target { device, ifindex, queues: 0, slots: 0, mac, mtu: facts.mtu }
}

impl Port for Tc {
    fn receive(&mut self, _umem: &mut Umem, _burst: &mut Burst) {}

    fn transmit(&mut self, umem: &mut Umem, frames: &[Descriptor]) -> usize {
        if matches!(self.state, State::Down(_) | State::Gone(_)) {
            return 0;
        }
        let socket = self.socket.as_fd();
        send_each(umem, frames, |frame| {
            netdevice::send(socket, &[frame]).is_ok_and(|sent| sent == 1)
        })
    }

    fn has_kernel(&self) -> bool {
        true
    }
}

impl Device for Tc {
    fn how(&self) -> String {
        self.how.clone()
    }

    fn state(&self) -> State {
        self.state.clone()
    }

    fn maintain(&mut self, now_ns: u64) {
        self.maintained_ns = now_ns;
        if !self.take_back(now_ns) || now_ns < self.next_look_ns {
            return;
        }
        self.look();
        self.next_look_ns = now_ns + RETRY_NS;
    }

    fn look_again(&mut self) {
        self.next_look_ns = 0;
        // The time of the last tick, which is close enough.
        self.maintain(self.maintained_ns);
    }

    fn set_idle(&mut self, why: Option<&str>) {
        match (why, &self.state) {
            (Some(why), State::Detached(now)) if now == why => {}
            (Some(why), _) => {
                self.detach();
                self.enter(State::Detached(why.to_owned()));
            }
            (None, State::Detached(_)) => {
                self.state = State::Down("it is being attached".to_owned());
                self.begin();
            }
            (None, _) => {}
        }
    }

    fn ifindex(&self) -> Option<u32> {
        self.serves.then(|| self.facts.index.cast_unsigned())
    }

    fn mac(&self) -> Option<Mac> {
        // None of a layer-3 device is an address, too, which its link has.
        Some(self.mac)
    }

    fn mtu(&self) -> Option<u16> {
        Some(self.facts.mtu)
    }

    fn finish(&mut self) -> Result<(), tollway_capture::CaptureError> {
        self.detach();
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::os::fd::BorrowedFd;
    use std::os::unix::net::UnixDatagram;

    use super::super::af_xdp::Program;
    use super::*;

    /// A program that is on no device.
    struct Detached;

    impl Program for Detached {
        fn attach(&mut self, _target: Target<'_>, _generic: bool) -> Result<(), Refusal> {
            Ok(())
        }

        fn set_socket(&mut self, _queue: u32, _socket: BorrowedFd<'_>) -> Result<(), Refusal> {
            Ok(())
        }

        fn detach(&mut self) {}
    }

    impl OwnedProgram for Detached {
        fn is_attached(&self) -> bool {
            false
        }
    }

    /// A port whose thread has ended with an outcome.
    fn port(attached: TcAttached) -> Tc {
        let (sender, receiver) = mpsc::sync_channel::<(Box<dyn OwnedProgram>, TcAttached)>(1);
        sender.send((Box::new(Detached), attached)).unwrap();
        let mac = Mac([0; 6]);
        Tc {
            port: "p".to_owned(),
            device: "no-such-device".to_owned(),
            called: "no-such-device".to_owned(),
            facts: Facts { index: i32::MAX, mac, mtu: 1500, up: true },
            mac,
            program: TcProgram::Away(receiver),
            serves: false,
            how: NOT_ATTACHED.to_owned(),
            state: State::Up,
            socket: UnixDatagram::unbound().unwrap().into(),
            next_look_ns: 0,
            maintained_ns: 0,
        }
    }

    #[test]
    fn a_refused_program_is_tried_again_after_a_pause() {
        let refusal = Refusal { what: "refused".to_owned(), ..Refusal::default() };
        let mut refused = port(Err(refusal));
        let mut states = |now_ns| {
            refused.maintain(now_ns);
            refused.state()
        };
        for now_ns in [5, 6, 4 + RETRY_NS] {
            assert_eq!(states(now_ns), State::Down("refused".to_owned()));
        }
        let gone = State::Gone("the interface is gone".to_owned());
        assert_eq!(states(5 + RETRY_NS), gone, "the port has looked at its device");
        let mut attached = port(Ok("tcx"));
        attached.maintain(5);
        assert_eq!(attached.state(), gone, "the device may have changed meanwhile");
    }
}
