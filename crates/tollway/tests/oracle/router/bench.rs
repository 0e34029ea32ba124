//! Both routers, and the steps that the test applies to both.

use std::time::{Duration, Instant};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::case::Case;
use super::draw::DeviceTypes;
use super::kernel_router::{Counts, KernelRouter, Setup};
use super::paths::{self, PathCounts};
use super::router_namespace::{KernelAlone, RouterNamespace};
use super::traffic::Packet;
use crate::kernel::{Sent, on_one_processor};
use crate::namespaces::PATIENCE;
use crate::net::DEVICES;

/// Longest time until Tollway's report agrees with `tollway check`. Only a list of all routes shows Tollway
/// that an IPv6 route with unsupported attributes has gone, and Tollway requests that list a second later.
/// Until then, the route's packets take the kernel path. A busy machine takes longer.
const REPORT_PATIENCE: Duration = Duration::from_secs(20);
/// The least number of polls before the configurations of the namespaces count as different.
const LEAST_POLLS: usize = 50;

/// How Tollway gets a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Start {
    /// Tollway starts after the configuration is in place.
    Fresh,
    /// Tollway is running while the configuration changes.
    Running,
}

/// What forwards in the second router.
pub enum Second {
    /// The kernel as well, with a fault that this script injects.
    Kernel(String),
    Tollway(Option<KernelRouter>),
}

/// The two routers.
pub struct Bench {
    pub device_types: DeviceTypes,
    pub second: Second,
    /// Whether the last configuration has connections tracked.
    tracked: bool,
    namespaces: [RouterNamespace; 2],
}

/// What came out of both routers.
pub struct Outputs {
    pub first: Vec<Sent>,
    pub second: Vec<Sent>,
    pub counts: Counts,
    /// Statements of Tollway about itself that cannot be true.
    pub complaints: Vec<String>,
    /// Whether a neighbour was answered so late that the kernel may have given up: this machine is
    /// slow.
    pub late: bool,
}

impl Bench {
    /// Creates two routers without a configuration.
    pub fn new(second: Second) -> Self {
        on_one_processor();
        std::fs::write("/proc/sys/net/ipv6/conf/default/disable_ipv6", "1").unwrap();
        let namespaces = two_namespaces();
        let can = |what: &str| {
            let script = format!("ip link add {what} 2>/dev/null && ip link delete probe");
            namespaces[0].run(&script, "").is_ok()
        };
        let device_types = DeviceTypes {
            vlan: can("link mark name probe type vlan id 9"),
            vrf: can("name probe type vrf table 9"),
        };
        Self { device_types, second, tracked: false, namespaces }
    }

    /// Creates new namespaces, in which the kernel has no record of the errors that it has sent.
    fn renew(&mut self) {
        if let Second::Tollway(router) = &mut self.second {
            *router = None;
        }
        self.namespaces = two_namespaces();
    }

    /// The name of the second router.
    pub fn second_name(&self) -> &'static str {
        match self.second {
            Second::Kernel(_) => "the other kernel",
            Second::Tollway(_) => "Tollway",
        }
    }

    /// Applies a case's configuration to both routers. Returns how many of its lines they refused,
    /// or sentences if Tollway fails.
    pub fn configure(&mut self, case: &Case) -> Result<usize, Vec<String>> {
        let device_types = self.device_types;
        let other =
            matches!(&self.second, Second::Tollway(Some(old)) if old.setup() != case.setup());
        if case.start == Start::Fresh || case.before.is_some() || other || self.tracked {
            self.renew();
        }
        // Connection entries outlive the rules that had the kernel track them.
        let rules = case.config.rules.as_ref();
        self.tracked = rules.is_some_and(|rules| rules.text().contains("ct state"));
        for namespace in &mut self.namespaces {
            namespace.set_offloads(case.packets.iter().any(|packet| packet.offload.is_some()));
            namespace.reset(device_types);
        }
        if case.start == Start::Running && matches!(self.second, Second::Tollway(_)) {
            let before = case.before.as_ref();
            self.start(case.setup())?;
            if let Some(before) = before {
                self.namespaces[1].apply(before);
                self.sync()?;
                self.namespaces[1].reset(device_types);
            }
        }
        let complaints = [0, 1].map(|at| self.namespaces[at].apply(&case.config));
        assert_eq!(
            complaints[0], complaints[1],
            "the kernel answers differently in the two namespaces"
        );
        self.wait_until_equal();
        self.start(case.setup())?;
        self.sync()?;
        Ok(complaints[0].matches("Command failed").count())
    }

    /// Waits until both routers have the same configuration active, and nothing else. The kernel
    /// activates IPv6 addresses some time after it has accepted them.
    fn wait_until_equal(&mut self) {
        let start = Instant::now();
        let mut last = [Vec::new(), Vec::new()];
        // A machine under load may take seconds for a poll.
        for poll in 0.. {
            let now = [0, 1].map(|at| self.namespaces[at].listing());
            if now == last && now[0] == now[1] {
                return;
            }
            let only = |one: &[String], other: &[String]| {
                let lines = one.iter().filter(|line| !other.contains(line));
                lines.cloned().collect::<Vec<_>>()
            };
            if start.elapsed() > PATIENCE && poll > LEAST_POLLS {
                let [first, second] = &now;
                let new = [only(first, &last[0]), only(second, &last[1])];
                let (first, second) = (only(first, second), only(second, first));
                panic!("the namespaces are not alike: {first:#?} {second:#?}, or change: {new:#?}");
            }
            last = now;
            std::thread::sleep(Duration::from_millis(2));
        }
    }

    fn start(&mut self, setup: Setup) -> Result<(), Vec<String>> {
        match &mut self.second {
            Second::Tollway(none @ None) => {
                *none = Some(
                    KernelRouter::start(&self.namespaces[1].cables, setup)
                        .map_err(|error| vec![error])?,
                );
            }
            Second::Tollway(_) => {}
            Second::Kernel(script) => {
                self.namespaces[1].run(script, "").unwrap();
            }
        }
        Ok(())
    }

    fn sync(&mut self) -> Result<(), Vec<String>> {
        match &mut self.second {
            Second::Tollway(Some(router)) => router.sync().map_err(|error| vec![error]),
            _ => Ok(()),
        }
    }

    /// Sends a case's packets to Tollway, one link and family at a time. Returns sentences where
    /// Tollway contradicts its report.
    pub fn paths(&mut self, case: &Case) -> Result<(Vec<String>, PathCounts), String> {
        let mut by_path = PathCounts::default();
        let Second::Tollway(Some(router)) = &mut self.second else {
            return Ok((Vec::new(), by_path));
        };
        let checked = check(&self.namespaces[1], case.setup())?;
        let start = Instant::now();
        let (report, mut wrong) = loop {
            let report = router.offload()?;
            let wrong = paths::differences(&checked, &report, case.config.hides_routes());
            if wrong.is_empty() || start.elapsed() > REPORT_PATIENCE {
                break (report, wrong);
            }
            std::thread::sleep(Duration::from_millis(50));
        };
        for (class, packets) in paths::classes(&case.config, &case.packets) {
            let before = router.everything()?;
            self.namespaces[1].send(&packets, router);
            let counts = (&before, &router.everything()?);
            wrong.extend(paths::contradictions(&report, &class, counts, &mut by_path));
        }
        Ok((wrong, by_path))
    }

    /// Sends packets to both routers at the same time, as silent neighbours take long.
    pub fn send(&mut self, packets: &[Packet]) -> Outputs {
        let [first, second] = &mut self.namespaces;
        let router = match &mut self.second {
            Second::Tollway(router) => router.as_mut(),
            Second::Kernel(_) => None,
        };
        let (by_first, (by_second, counts, complaints)) = std::thread::scope(|scope| {
            let by_first = scope.spawn(|| first.exchange(packets, &mut KernelAlone));
            let by_second = match router {
                Some(router) => {
                    let before = router.counts();
                    let sent = second.exchange(packets, router);
                    (sent, router.counts().since(before), router.complaints())
                }
                None => (second.exchange(packets, &mut KernelAlone), Counts::default(), Vec::new()),
            };
            (by_first.join().unwrap(), by_second)
        });
        let late = first.is_late() || second.is_late();
        Outputs { first: by_first, second: by_second, counts, complaints, late }
    }
}

/// What `tollway check` reports about a router.
fn check(namespace: &RouterNamespace, setup: Setup) -> Result<Value, String> {
    let mut command = namespace.cables.command(env!("CARGO_BIN_EXE_tollway"));
    let output = command
        .args(["check", "--engine", setup.engine.name(), "--json"])
        .args(&DEVICES[..setup.ports])
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&output.stdout);
    serde_json::from_str(&text)
        .map_err(|_| format!("tollway check: {text}{}", String::from_utf8_lossy(&output.stderr)))
}

fn two_namespaces() -> [RouterNamespace; 2] {
    ["k", "t"].map(RouterNamespace::new)
}
