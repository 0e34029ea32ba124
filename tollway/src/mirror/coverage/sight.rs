//! All that coverage needs to know, read once: before anything is attached.

use std::collections::BTreeMap;
use std::io;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

use super::{Coverage, Facts, Firewall, Probes, RouteTally};
use crate::mirror::devices;
use crate::mirror::event::{Change, Event};
use crate::mirror::kernel::{Ifindex, Kernel};
use crate::mirror::netlink::{Settings, Source};
use crate::mirror::rules::{self, Follower};
use crate::mirror::sysctl::Sysctls;
use crate::ports::why;

/// The kernel tells a million routes within seconds.
const PATIENCE: Duration = Duration::from_secs(60);
/// Rules, likewise.
const RULES_PATIENCE: Duration = Duration::from_secs(30);

/// Why the kernel's configuration can not be read.
#[derive(Debug, thiserror::Error)]
pub enum SightError {
    /// The system refused.
    #[error("the kernel's configuration can not be read: {}", why(.0))]
    System(#[from] io::Error),
    /// It goes on changing, or the kernel does not answer.
    #[error("the kernel has not told its configuration within {} s", PATIENCE.as_secs())]
    Late,
}

/// What was read.
#[derive(Clone, Debug)]
pub struct Sight {
    /// Devices, addresses, rules and next hops.
    pub kernel: Kernel,
    /// How many routes there are, and of what.
    pub routes: RouteTally,
    /// Sysctls of all devices.
    pub sysctls: Sysctls,
    /// What else was found on all devices.
    pub probes: Probes,
    /// The rules of nftables.
    pub firewall: Firewall,
}

impl Sight {
    /// Reads it all, in the network namespace of this process.
    ///
    /// # Errors
    /// See [`SightError`]. What may not be asked, for want of a privilege, is none: it is unknown then.
    pub fn take() -> Result<Self, SightError> {
        let (kernel, routes) = configuration()?;
        let names = kernel.netdevs.values().map(|netdev| netdev.name.as_str());
        let sysctls = Sysctls::read(names);
        let probes = Probes::read(&kernel.netdevs, kernel.netdevs.keys().copied(), None)?;
        Ok(Self { routes, sysctls, probes, firewall: firewall(), kernel })
    }

    /// Which traffic would take which road if these devices were ports.
    #[must_use]
    pub fn coverage(&self, ports: &[Ifindex], most_mtu: u32) -> Coverage {
        let Self { kernel, routes, sysctls, probes, firewall } = self;
        Coverage::of(&Facts {
            ports,
            kernel,
            sysctls,
            probes,
            routes,
            firewall,
            most_mtu,
            rooms: &BTreeMap::new(),
        })
    }
}

/// What rtnetlink tells.
fn configuration() -> Result<(Kernel, RouteTally), SightError> {
    let mut source = Source::open(Settings::default())?;
    let (mut kernel, mut routes) = (Kernel::default(), RouteTally::default());
    let is_whole = source.read_all(PATIENCE, &mut |event| {
        kernel.take(&event);
        match &event {
            Event::Whole(_) | Event::Lost => routes = RouteTally::default(),
            Event::Route(key, route, Change::Listed | Change::Add(_)) => {
                routes.add(key, route, &kernel.nexthops);
            }
            _ => {}
        }
    })?;
    if !is_whole {
        return Err(SightError::Late);
    }
    // What Tollway makes for itself is nobody's configuration.
    kernel.netdevs.retain(|_, netdev| !devices::is_own(netdev));
    Ok((kernel, routes))
}

/// What nft tells.
fn firewall() -> Firewall {
    let (say, told) = mpsc::channel();
    // Whoever does not listen any more has heard enough.
    let report = Box::new(move |event| drop(say.send(event)));
    let follower = match Follower::start(report) {
        Ok(follower) => follower,
        Err(error) => return Firewall::Unread(why(&error)),
    };
    let first = rules::first(&told, RULES_PATIENCE);
    drop(follower);
    match first {
        Ok(Ok(reading)) => Firewall::from(&*reading),
        Ok(Err(sentence)) => Firewall::Unread(sentence),
        Err(RecvTimeoutError::Timeout) => {
            let patience = RULES_PATIENCE.as_secs();
            Firewall::Unread(format!("they go on changing for {patience} s"))
        }
        Err(RecvTimeoutError::Disconnected) => {
            Firewall::Unread("they can not be followed".to_owned())
        }
    }
}
