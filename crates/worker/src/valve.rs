//! Valves against ports with too much traffic for the kernel path ([`Crowd`]).
//!
//! While a valve is closed, the XDP program passes packets without a flow in the XDP path to the
//! kernel. The worker would only hand them over to the kernel, and more slowly than they arrive.
//!
//! A closed valve opens again after a while, to see whether the traffic has changed. Each time that
//! it has not, the valve stays closed for twice as long. Packets that arrive meanwhile are neither
//! lost nor slower than with the kernel alone.
//!
//! [`Crowd`]: tollway_dataplane::punts::Crowd

use std::sync::{Arc, Mutex};

use tollway_dataplane::id::PortId;
use tollway_dataplane::punts::{Crowd, CrowdedPorts, MOST_PORTS};

use tollway_linux::sync::lock;
use tollway_xdp::State;

/// The time for which a valve is closed at first.
const SHORTEST_NS: u64 = 1_000_000_000;
/// The longest time for which a valve is closed.
const LONGEST_NS: u64 = 16_000_000_000;
/// A valve that stayed open for this long counts as open for good.
const TRIAL_NS: u64 = 2_000_000_000;

/// Where packets of one family go that arrive at a port and have no flow.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Valve {
    /// To the user path.
    Open,
    /// To the kernel, until then.
    Closed { until_ns: u64, for_ns: u64 },
    /// To the user path again since then, on trial.
    Tried { since_ns: u64, for_ns: u64 },
}

impl Valve {
    /// Closes the valve: too many of the packets take the kernel path.
    fn crowd(self, now_ns: u64) -> Self {
        let for_ns = match self {
            Self::Closed { .. } => return self,
            Self::Open => SHORTEST_NS,
            Self::Tried { for_ns, .. } => (2 * for_ns).min(LONGEST_NS),
        };
        Self::Closed { until_ns: now_ns + for_ns, for_ns }
    }

    /// Follows the passage of time.
    fn pass(self, now_ns: u64) -> Self {
        match self {
            Self::Closed { until_ns, for_ns } if now_ns >= until_ns => {
                Self::Tried { since_ns: now_ns, for_ns }
            }
            Self::Tried { since_ns, .. } if now_ns >= since_ns + TRIAL_NS => Self::Open,
            as_before => as_before,
        }
    }

    const fn is_closed(self) -> bool {
        matches!(self, Self::Closed { .. })
    }
}

/// The valves of all ports, for all workers; cheap to clone. The workers count `now_ns` from one moment. The lock is
/// taken only for a crowded port, and by the tick.
#[derive(Clone)]
pub(super) struct Valves(Arc<Mutex<Ports>>);

/// The ports' valves.
struct Ports {
    state: State,
    names: Vec<String>,
    /// By port; IPv4 and IPv6.
    valves: Vec<[Valve; 2]>,
}

const FAMILIES: [&str; 2] = ["IPv4", "IPv6"];

impl Valves {
    /// Creates the valves of ports with these names, all open.
    pub(super) fn new(state: State, names: Vec<String>) -> Self {
        let valves = vec![[Valve::Open; 2]; names.len().min(MOST_PORTS)];
        (0..valves.len()).for_each(|port| state.set_crowded(PortId(port as u16), (false, false)));
        Self(Arc::new(Mutex::new(Ports { state, names, valves })))
    }

    /// Closes the valves of ports that are crowded with a worker's packets; to be called after each turn of every
    /// worker.
    #[inline]
    pub(super) fn follow(&self, crowd: &mut Crowd, now_ns: u64) {
        if crowd.has_ports() {
            self.close(crowd.take_ports(), now_ns);
        }
    }

    #[cold]
    fn close(&self, crowded: CrowdedPorts, now_ns: u64) {
        lock(&self.0).each(|port, family, valve| crowd(valve, crowded, (port, family), now_ns));
    }

    /// Opens valves that were closed long enough; to be called about ten times a second, by one worker.
    pub(super) fn tick(&self, now_ns: u64) {
        lock(&self.0).each(|_, _, valve| valve.pass(now_ns));
    }
}

impl Ports {
    fn each(&mut self, next: impl Fn(usize, usize, Valve) -> Valve) {
        let Self { state, names, valves } = self;
        each_change(valves, next, |port, before, after| {
            state.set_crowded(PortId(port as u16), after.map(Valve::is_closed).into());
            for family in 0..2 {
                log_change(&names[port], FAMILIES[family], before[family], after[family]);
            }
        });
    }
}

/// The next state of a valve while these ports are crowded.
fn crowd(valve: Valve, ports: CrowdedPorts, (port, family): (usize, usize), now_ns: u64) -> Valve {
    let ports = if family == 0 { ports.v4 } else { ports.v6 };
    if ports >> port & 1 != 0 { valve.crowd(now_ns) } else { valve }
}

/// Gives each valve its next state, and reports the ports with a changed one.
fn each_change(
    valves: &mut [[Valve; 2]],
    next: impl Fn(usize, usize, Valve) -> Valve,
    mut changed: impl FnMut(usize, [Valve; 2], [Valve; 2]),
) {
    for (port, valves) in valves.iter_mut().enumerate() {
        let after = std::array::from_fn(|family| next(port, family, valves[family]));
        let before = std::mem::replace(valves, after);
        if after != before {
            changed(port, before, after);
        }
    }
}

/// Logs a change; repeated tries are logged only the first time.
fn log_change(port: &str, family: &str, before: Valve, after: Valve) {
    match (before, after) {
        (Valve::Open, Valve::Closed { .. }) => tracing::warn!(
            "port {port}: most of its {family} is the kernel's to carry: it gets what has no flow in the \
             XDP path, past user space (`tollway show offload` shows why)"
        ),
        (Valve::Tried { .. }, Valve::Open) => {
            tracing::info!("port {port}: its {family} takes the user path again");
        }
        (Valve::Tried { .. }, Valve::Closed { for_ns, .. }) => {
            tracing::debug!(
                "port {port}: its {family} takes the kernel path for {} s",
                for_ns / SHORTEST_NS
            );
        }
        _ => {}
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_valve_is_tried_less_and_less_often() {
        let (mut valve, mut now_ns, mut closed_for) = (Valve::Open, 0, Vec::new());
        for _ in 0..7 {
            let closed_at = now_ns;
            valve = valve.crowd(now_ns);
            while valve.is_closed() {
                assert_eq!(valve.crowd(now_ns), valve, "what still waits makes no difference");
                now_ns += S / 10;
                valve = valve.pass(now_ns);
            }
            closed_for.push((now_ns - closed_at) / S);
            now_ns += S / 100;
        }
        assert_eq!(closed_for, [1, 2, 4, 8, 16, 16, 16]);
        now_ns += TRIAL_NS;
        valve = valve.pass(now_ns);
        assert_eq!(valve, Valve::Open);
        assert_eq!(valve.crowd(now_ns), Valve::Closed { until_ns: now_ns + S, for_ns: S });
    }

    #[test]
    fn a_port_that_is_crowded_for_several_workers_is_closed_once() {
        let mut valves = vec![[Valve::Open; 2]; 3];
        let mut close = |ports, now_ns| {
            let mut changed = Vec::new();
            let next = |port, family, valve| crowd(valve, ports, (port, family), now_ns);
            each_change(&mut valves, next, |port, before, after| {
                changed.push((port, before, after))
            });
            changed
        };
        let [one, both] = [1 << 1, 1 << 1 | 1 << 2].map(|v6| CrowdedPorts { v4: 0, v6 });
        let closed = [Valve::Open, Valve::Closed { until_ns: 5 + S, for_ns: S }];
        assert_eq!(close(one, 5), [(1, [Valve::Open; 2], closed)]);
        assert_eq!(close(one, 6), []);
        let closed = [Valve::Open, Valve::Closed { until_ns: 7 + S, for_ns: S }];
        assert_eq!(close(both, 7), [(2, [Valve::Open; 2], closed)]);
    }
}
