//! Small datagrams between real sockets.

use std::net::{Ipv4Addr, UdpSocket};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use super::super::host::Host;
use super::super::topology::{RIGHT, Topology};
use super::pairs::Side;
use crate::sys;

/// The receiver's port.
const PORT: u16 = 5002;
/// Bytes of a datagram: with headers and FCS, its frame has 64.
const PAYLOAD: [u8; 18] = [0; 18];
/// Senders, each with a thread and a socket.
const SENDERS: usize = 2;
/// Time after which a receiver that waits sees whether it is to end.
const LOOK: Duration = Duration::from_millis(50);
/// Time after the senders' start that does not count.
const WARM_UP: Duration = Duration::from_millis(150);
/// Duration of a measurement.
const WINDOW: Duration = Duration::from_millis(300);

/// Senders at A, and a receiver at B.
pub(super) struct Sockets<'a> {
    topology: &'a Topology,
    stop: Arc<AtomicBool>,
    receiver: Option<JoinHandle<()>>,
}

impl<'a> Sockets<'a> {
    /// Starts the receiver.
    pub(super) fn new(topology: &'a Topology) -> Result<Self, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let end = Arc::clone(&stop);
        // A thread that a host starts is in its namespaces.
        let start = move || {
            let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, PORT))?;
            socket.set_read_timeout(Some(LOOK))?;
            std::thread::Builder::new().spawn(move || receive(&socket, &end))
        };
        let failed = |error| format!("cannot start the receiver of datagrams: {error}");
        let receiver = Some(topology.b.run(start)?.map_err(failed)?);
        Ok(Self { topology, stop, receiver })
    }

    /// Datagrams that have arrived at the socket, whether or not it had room. The router is to be measured, not how
    /// often the receiver gets a processor.
    fn arrived(&self) -> Result<u64, String> {
        let b = &self.topology.b;
        Ok(b.snmp("Udp", "InDatagrams")? + b.snmp("Udp", "InErrors")?)
    }
}

impl Drop for Sockets<'_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        // The next receiver needs the port.
        let _ = self.receiver.take().map(JoinHandle::join);
    }
}

impl Side for Sockets<'_> {
    /// Million datagrams per second.
    fn rate(&self) -> Result<f64, String> {
        let senders = Senders::start(&self.topology.a)?;
        std::thread::sleep(WARM_UP);
        let (start, before) = (Instant::now(), self.arrived()?);
        std::thread::sleep(WINDOW);
        let (taken, after) = (start.elapsed(), self.arrived()?);
        senders.stop()?;
        Ok((after - before) as f64 / taken.as_secs_f64() / 1e6)
    }
}

/// Takes datagrams until the end.
fn receive(socket: &UdpSocket, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        // Without one for a while, the call fails.
        let _ = sys::receive_many(socket.as_fd());
    }
}

/// Threads that send.
struct Senders {
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<std::io::Result<()>>>,
}

impl Senders {
    fn start(host: &Host) -> Result<Self, String> {
        let stop = Arc::new(AtomicBool::new(false));
        let mut threads = Vec::new();
        for _ in 0..SENDERS {
            let stop = Arc::clone(&stop);
            let start = move || std::thread::Builder::new().spawn(move || send(&stop));
            let failed = |error| format!("no thread can be started: {error}");
            threads.push(host.run(start)?.map_err(failed)?);
        }
        Ok(Self { stop, threads })
    }

    fn stop(self) -> Result<(), String> {
        self.stop.store(true, Ordering::Relaxed);
        for thread in self.threads {
            let ended = thread.join().map_err(|_| "a sender panicked".to_owned())?;
            ended.map_err(|error| format!("cannot send datagrams: {error}"))?;
        }
        Ok(())
    }
}

fn send(stop: &AtomicBool) -> std::io::Result<()> {
    let socket = UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0))?;
    socket.connect((RIGHT[0], PORT))?;
    while !stop.load(Ordering::Relaxed) {
        // A datagram for which a queue has no room is lost, as on a wire.
        let _ = sys::send_many(socket.as_fd(), &PAYLOAD);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_datagrams_are_sent_and_received_in_one_call() {
        let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        receiver.set_read_timeout(Some(Duration::from_secs(5))).unwrap();
        let sender = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        sender.connect(receiver.local_addr().unwrap()).unwrap();
        let sent = sys::send_many(sender.as_fd(), &PAYLOAD).unwrap();
        assert_eq!(sent, 64);
        // All have arrived, since the loopback device takes no time.
        assert_eq!(sys::receive_many(receiver.as_fd()).unwrap(), sent);
        sys::send_many(sender.as_fd(), &PAYLOAD).unwrap();
        let mut bytes = [1; 64];
        assert_eq!(receiver.recv(&mut bytes).unwrap(), PAYLOAD.len());
        assert_eq!(bytes[..18], PAYLOAD);
    }

    #[test]
    fn a_receiver_does_not_wait_for_ever() {
        let receiver = UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        receiver.set_read_timeout(Some(Duration::from_millis(1))).unwrap();
        assert!(sys::receive_many(receiver.as_fd()).is_err());
    }
}
