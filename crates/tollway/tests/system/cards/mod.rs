//! Network cards in virtual machines, with zero-copy sockets where their drivers support that. All
//! that two hosts send must arrive, whatever happens to the router and its devices.
//!
//! `TOLLWAY_CARDS` names the models to test, and `TOLLWAY_CARDS_SUITES` the Debian suites of their
//! kernels. Without these variables the test takes two kinds, and does not test copy mode on them.
//! The test cannot fetch another suite's kernel itself, because its namespace has no way out: run
//! `tests/qemu/fetch.sh kernel SUITE` first.

mod bounds;
mod events;
mod plug;

use std::process::{Child, Command, ExitCode};
use std::time::Instant;

use self::events::Event;
use crate::namespaces::{PATIENCE, is_root, ping, unanswered, until};
use crate::numbered::{Losses, Numbered};
use crate::router::{Net, config};
use crate::running::Router;
use crate::transfer::Transfer;
use crate::variants::{self, PathVariant};

/// The script that starts the machine, and the one that fetches its parts.
const RUN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/qemu/run.sh");
const FETCH: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/qemu/fetch.sh");

/// A model with a kernel, and how Tollway gets its frames.
#[derive(Clone, Copy, Debug)]
struct Kind {
    suite: &'static str,
    model: &'static str,
    mode: &'static str,
    method: &'static str,
}

const fn kind(
    suite: &'static str,
    model: &'static str,
    mode: &'static str,
    method: &'static str,
) -> Kind {
    Kind { suite, model, mode, method }
}

/// Zero-copy with igb and virtio-net needs Linux 6.14.
const KINDS: [Kind; 9] = [
    kind("trixie-backports", "igb", ZERO_COPY, "AF_XDP zero-copy"),
    kind("trixie-backports", "virtio-net-pci", ZERO_COPY, "AF_XDP zero-copy"),
    kind("trixie-backports", "e1000e", "auto", "AF_XDP copy mode, generic XDP"),
    kind("trixie", "vmxnet3", "copy", "AF_XDP copy mode, native XDP"),
    kind("trixie", "igb", "copy", "AF_XDP copy mode, native XDP"),
    kind("trixie", "virtio-net-pci", "copy", "AF_XDP copy mode, native XDP"),
    kind("bookworm", "igb", "copy", "AF_XDP copy mode, native XDP"),
    kind("bookworm", "virtio-net-pci", "copy", "AF_XDP copy mode, native XDP"),
    kind("bookworm", "vmxnet3", "auto", "AF_XDP copy mode, generic XDP"),
];
/// The kinds that every change is tested with. The others take minutes each.
const USUAL: [Kind; 2] = [KINDS[0], KINDS[1]];
const ZERO_COPY: &str = "zero-copy";
const MEGABYTES: u64 = 20;
const PINGS: usize = 3;

/// Returns why no virtual machine can run here.
pub fn missing() -> Option<&'static str> {
    let has = |what: &[&str]| {
        Command::new(FETCH).args(what).output().is_ok_and(|out| out.status.success())
    };
    let is_there = has(&["emulator"]) && has(&["kernel", USUAL[0].suite]);
    (!is_there || !is_root()).then_some("no emulator with igb, or no kernel (scripts/setup.sh)")
}

/// Returns the kinds to test, and whether the environment selects them.
fn wanted() -> (Vec<Kind>, bool) {
    let settings = ["TOLLWAY_CARDS", "TOLLWAY_CARDS_SUITES"]
        .map(|name| std::env::var(name).unwrap_or_default());
    if settings.iter().all(String::is_empty) {
        return (USUAL.into(), false);
    }
    let is_in = |words: &str, word| words.is_empty() || words.split(' ').any(|one| one == word);
    let is_wanted =
        |kind: &Kind| is_in(&settings[0], kind.model) && is_in(&settings[1], kind.suite);
    (KINDS.into_iter().filter(is_wanted).collect(), true)
}

/// Tests two pairs of cards of each kind, in a machine for each.
pub fn in_machine() {
    let (kinds, is_thorough) = wanted();
    assert!(!kinds.is_empty(), "there is no such card: {KINDS:?}");
    let faults: Vec<Kind> = if is_thorough {
        kinds
            .into_iter()
            .filter(|kind| !started(*kind, "thorough").wait().unwrap().success())
            .collect()
    } else {
        // The machines run in parallel, since each has one processor.
        let machines: Vec<_> =
            kinds.into_iter().map(|kind| (kind, started(kind, "brief"))).collect();
        let is_whole = |mut machine: Child| machine.wait().unwrap().success();
        machines
            .into_iter()
            .filter_map(|(kind, machine)| (!is_whole(machine)).then_some(kind))
            .collect()
    };
    assert!(faults.is_empty(), "the cards in the virtual machine: {faults:?}");
}

fn started(kind: Kind, extent: &str) -> Child {
    let Kind { suite, model, .. } = kind;
    println!("{model} of {suite}:");
    let mut command = Command::new(RUN);
    command.arg(std::env::current_exe().unwrap()).args(["--role", "cards", model, suite, extent]);
    command.env("TOLLWAY_QEMU_SUITE", suite).env("CI", "1");
    command.env("TOLLWAY_QEMU_CARDS", [model; 4].join(" "));
    command.spawn().unwrap()
}

/// Runs in the machine.
pub fn inside(model: &str, suite: &str, is_thorough: bool) -> ExitCode {
    let of = |kind: &&Kind| kind.model == model && kind.suite == suite;
    let kind = KINDS.iter().find(of).unwrap();
    let net = plug::plug();
    variants::prepare(&net);
    until("the cables", || is_answered(&net, "10.0.2.2"));
    let mut machine = Machine { net: &net, model, is_thorough, seen: Vec::new(), faults: 0 };
    if is_thorough {
        machine.transfers("the kernel");
    }
    machine.events("the kernel", None, false);
    if is_thorough && kind.mode == ZERO_COPY {
        machine.routers("copy", "AF_XDP copy mode, native XDP");
    }
    machine.routers(kind.mode, kind.method);
    ExitCode::from(u8::from(machine.faults > 0))
}

fn is_answered(net: &Net, target: &str) -> bool {
    variants::output_of(&net.a, &format!("ping -n -q -c 1 -W 2 {target}"))
        .contains(" 0% packet loss")
}

/// Two hosts and the router between them.
struct Machine<'a> {
    net: &'a Net,
    model: &'a str,
    is_thorough: bool,
    /// What was lost with the kernel alone and in copy mode.
    seen: Vec<(Event, Losses)>,
    faults: usize,
}

impl Machine<'_> {
    fn fault(&mut self, fault: String) {
        println!("FAULT {fault}");
        self.faults += 1;
    }

    /// Runs all tests with routers that get their frames in this mode, and that log `method`.
    fn routers(&mut self, mode: &str, method: &str) {
        for variant in variants::TOLLWAY {
            let router = variant.start(&config(mode, 1500, true));
            let what = format!("{}: {mode}, {variant:?}", self.model);
            let log = router.read("stderr");
            if log.matches(method).count() != 2 {
                self.fault(format!("{what}: not by {method}: {log}"));
            }
            self.forwards(&what);
            self.transfers(&what);
            self.events(&what, Some((variant, router)), mode == ZERO_COPY);
        }
    }

    /// Sends pings of all sizes.
    fn forwards(&mut self, what: &str) {
        for size in [0, 1, 56, 500, 1000, 1472, 4000] {
            for target in ["10.0.2.2", "fd00:2::2"] {
                let output =
                    variants::output_of(&self.net.a, &ping(PINGS, &format!("-s {size} {target}")));
                if !unanswered(&output, PINGS).is_empty() {
                    self.fault(format!("{what}, {size} bytes to {target}: {output}"));
                }
            }
        }
    }

    /// Sends streams from hosts that leave checksums to their cards. A thorough run also has hosts
    /// that do not, and both directions.
    fn transfers(&mut self, what: &str) {
        let Net { a, b, .. } = self.net;
        let both = [([a, b], "10.0.2.2:7000"), ([b, a], "[fd00:1::2]:7000")];
        let (offloads, variants) = if self.is_thorough {
            (&["off", "on"][..], &both[..])
        } else {
            (&["on"][..], &both[..1])
        };
        for offload in offloads {
            for (host, device) in [(a, "ha"), (b, "hb")] {
                host.sh(&format!("ethtool -K {device} tx {offload}"));
            }
            for (hosts, address) in variants {
                let (start, what) =
                    (Instant::now(), format!("{what}: {MEGABYTES} MB to {address}, tx {offload}"));
                if Transfer::start_whole(*hosts, address, MEGABYTES).ends_whole() {
                    println!("{what}: {:?}", start.elapsed());
                } else {
                    self.fault(what);
                }
            }
        }
    }

    /// Makes the events happen to a router and its devices, or to the kernel's devices alone.
    fn events(&mut self, what: &str, routed: Option<(PathVariant, Router)>, is_zero_copy: bool) {
        let (variant, mut router) = routed.unzip();
        let mut numbered = Numbered::start(self.net);
        if numbered.recovered(PATIENCE).is_none() {
            return self.fault(format!("{what}: datagrams are always lost"));
        }
        for event in Event::all(variant, self.is_thorough) {
            let what = format!("{what}: {event:?}");
            let mut error = String::new();
            // A busy host may cause additional losses in a machine.
            let is_borne = (0..event.tries()).any(|_| {
                match self.event(event, &mut router, &mut numbered, is_zero_copy) {
                    Ok(borne) => println!("{what}: {borne}"),
                    Err(not) => {
                        println!("{what}: too much: {not}");
                        error = not;
                        return false;
                    }
                }
                true
            });
            if !is_borne {
                let log = router.as_ref().map(|router| router.read("stderr"));
                self.fault(format!("{what}: {error}: {}", log.unwrap_or_default()));
            }
        }
    }

    /// Makes one event happen. Returns the losses, or an error if they are above the limit.
    fn event(
        &mut self,
        event: Event,
        router: &mut Option<Router>,
        numbered: &mut Numbered,
        is_zero_copy: bool,
    ) -> Result<String, String> {
        let start = Instant::now();
        if let Err(why) = event.happen(router) {
            return Ok(format!("not here: {why}"));
        }
        let took = start.elapsed();
        let losses = numbered.recovered(2 * PATIENCE).ok_or("datagrams are lost ever since")?;
        let of_this = |seen: &&(Event, Losses)| seen.0 == event;
        let others: Vec<_> = self.seen.iter().filter(of_this).map(|seen| seen.1).collect();
        let allowed = bounds::allowed(event, is_zero_copy, &others);
        if losses.outage() > allowed || losses.twice > 0 {
            return Err(format!("{losses}, and no more than {allowed:?} may be"));
        }
        if !is_zero_copy {
            self.seen.push((event, losses));
        }
        Ok(format!("{took:?}, {:?} until all arrives: {losses}", start.elapsed()))
    }
}
