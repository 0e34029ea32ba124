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

use tollway_dataplane::id::PortId;
use tollway_dataplane::punts::{Crowd, CrowdedPorts, MOST_PORTS};

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

/// The valves of all ports.
pub(super) struct Valves {
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
        Self { state, names, valves }
    }

    /// Closes the valves of crowded ports; to be called after each turn.
    #[inline]
    pub(super) fn follow(&mut self, crowd: &mut Crowd, now_ns: u64) {
        if crowd.has_ports() {
            self.close(crowd.take_ports(), now_ns);
        }
    }

    #[cold]
    fn close(&mut self, crowded: CrowdedPorts, now_ns: u64) {
        self.each(|port, family, valve| {
            let ports = if family == 0 { crowded.v4 } else { crowded.v6 };
            if ports >> port & 1 != 0 { valve.crowd(now_ns) } else { valve }
        });
    }

    /// Opens valves that were closed long enough; to be called about ten times a second.
    pub(super) fn tick(&mut self, now_ns: u64) {
        self.each(|_, _, valve| valve.pass(now_ns));
    }

    fn each(&mut self, next: impl Fn(usize, usize, Valve) -> Valve) {
        for port in 0..self.valves.len() {
            let before = self.valves[port];
            let after = std::array::from_fn(|family| next(port, family, before[family]));
            if after == before {
                continue;
            }
            self.valves[port] = after;
            self.state.set_crowded(PortId(port as u16), after.map(Valve::is_closed).into());
            for family in 0..2 {
                log_change(&self.names[port], FAMILIES[family], before[family], after[family]);
            }
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
}
