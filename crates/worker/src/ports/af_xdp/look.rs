//! Looks after a port's device: whether it still exists, is up, and has the same name and properties.

use std::os::fd::AsFd;

use super::interface::{self, Facts, is_absent};
use super::{AfXdp, NOT_ATTACHED, State, socket};
use tollway_linux::sys::why;
use tollway_xdp::BesideState;

impl AfXdp {
    /// Checks whether the interface still exists, is up, and has the same properties.
    pub(super) fn look(&mut self) {
        if matches!(self.state, State::Detached(_)) {
            return self.look_at_rest();
        }
        if self.sockets.are_open() {
            match interface::name(self.control.as_fd(), self.facts.index) {
                Ok(name) => self.note_name(name),
                Err(_) => self.close(),
            }
        }
        let program = self.program.program();
        let is_attached = program.is_some_and(|program| program.is_attached());
        if self.sockets.are_open() && !is_attached {
            self.close();
            self.program.detach();
            let what = "its XDP program was detached or replaced";
            self.enter(State::Down(what.to_owned()));
        }
        self.note_beside();
        let name = if self.sockets.are_open() { &self.called } else { &self.device };
        match interface::query(self.control.as_fd(), name) {
            Ok(facts) => self.compare(facts),
            Err((_, error)) if is_absent(&error) => {
                self.close();
                self.program.detach();
                self.enter(State::Gone("the interface is gone".to_owned()));
            }
            Err((action, error)) => self.enter(State::Down(format!("{action}: {}", why(&error)))),
        }
    }

    /// Notes whether the tc program beside the XDP program is there. Only what leaves by devices with tc programs needs
    /// it, so the port stays up without.
    fn note_beside(&mut self) {
        let now =
            self.program.program().map_or(Some(BesideState::Absent), |program| program.beside());
        let Some(now) = now.filter(|now| *now != self.beside) else { return };
        self.beside = now;
        if now == BesideState::Lost {
            let (port, device) = (&self.port, &self.called);
            tracing::warn!(
                "port {port}: the tc program on {device} was detached or replaced; what leaves by devices with tc \
                 programs takes the kernel path until the links change or tollway restarts"
            );
        }
    }

    fn note_name(&mut self, name: String) {
        if name != self.called {
            tracing::warn!("port {}: {} is called {name} now", self.port, self.called);
            self.called = name;
        }
    }

    /// Applies a device's current properties; returns whether its number of queues has changed.
    fn note_facts(&mut self, facts: Facts) -> bool {
        if facts.mtu != self.facts.mtu {
            let (was, is) = (self.facts.mtu, facts.mtu);
            tracing::info!("port {}: the MTU of {} was {was} and is {is}", self.port, self.called);
        }
        if facts.mac != self.facts.mac && facts.mac != self.mac {
            tracing::warn!(
                "port {}: {} has another Ethernet address now, which its links follow unless they \
                 were given one",
                self.port,
                self.called
            );
        }
        let queues = interface::queues(self.control.as_fd(), &self.called);
        if queues != self.queues {
            let (was, port) = (self.queues, &self.port);
            tracing::info!("port {port}: {} had {was} queues and has {queues}", self.called);
            let slots = socket::receive_slots_within(queues, self.chunks);
            if slots < socket::receive_slots(queues) {
                tracing::info!(
                    "port {port}: each queue has room for {slots} frames, since memory was allocated for \
                     fewer queues; restart tollway for more"
                );
            }
        }
        self.facts = facts;
        std::mem::replace(&mut self.queues, queues) != queues
    }

    fn compare(&mut self, facts: Facts) {
        if self.note_facts(facts) {
            self.close();
        }
        if !self.sockets.are_open() {
            self.called.clone_from(&self.device);
            self.wants_sockets = true;
            return;
        }
        if facts.up {
            self.enter(State::Up);
        } else {
            self.enter(State::Down("the interface is down".to_owned()));
        }
    }

    /// Checks the device of a detached port.
    pub(super) fn look_at_rest(&mut self) {
        let name = interface::name(self.control.as_fd(), self.facts.index);
        let name = name.unwrap_or_else(|_| self.device.clone());
        // If the device is gone, another with its name may come.
        if let Ok(facts) = interface::query(self.control.as_fd(), &name) {
            self.note_name(name);
            self.note_facts(facts);
        }
    }

    /// Enters a state and logs it once.
    pub(super) fn enter(&mut self, state: State) {
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
                "port {port}: {device} has no XDP program, and the kernel forwards everything: no traffic there \
                 could be fast ({why}); the program is attached as soon as some can"
            ),
        }
        self.set_state(state);
    }

    fn set_state(&mut self, state: State) {
        self.parts.set_up(state == State::Up);
        self.state = state;
    }

    /// Detaches the program from the device, until [`Self::wake`].
    pub(super) fn rest(&mut self, why: &str) {
        self.close();
        self.program.detach();
        self.own.recall(true);
        self.wants_sockets = false;
        NOT_ATTACHED.clone_into(&mut self.how);
        self.enter(State::Detached(why.to_owned()));
    }

    /// Starts to attach the program of a detached port to its device.
    pub(super) fn wake(&mut self) {
        self.look_at_rest();
        self.set_state(State::Down("it is being attached".to_owned()));
        self.wants_sockets = true;
    }
}
