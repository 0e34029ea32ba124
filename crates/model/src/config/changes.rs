//! What a reload of the configuration cannot change: the ports, and the room for frames.

use std::path::Path;

use super::raw::Section;
use crate::{Engine, Model, Port, PortKind, XdpPathMode};
use tollway_firewall::mistake::Ledger;

const REMEDY: &str = "restart tollway to apply it";

/// The settings with which a router was started.
#[derive(Clone, Copy, Debug)]
pub struct Running<'a> {
    /// Its ports, by number.
    pub ports: &'a [Port],
    /// The largest layer-3 packet, with its tags, that fits into a frame.
    pub largest_mtu: usize,
    /// The path of the control socket.
    pub control: Option<&'a Path>,
    /// The ports that have the XDP path, and its number of flows.
    pub xdp_path: (XdpPathMode, u32),
}

/// Reports the differences. The caller has found no other mistake in the configuration.
pub(super) fn check(
    root: &Section<'_>,
    model: &Model,
    running: &Running<'_>,
    ledger: &mut Ledger<'_>,
) {
    if model.control.as_deref() != running.control {
        let span = root.key_span("control").unwrap_or(0..0);
        ledger.relation(span, "a reload cannot move the control socket", REMEDY);
    }
    if (model.xdp_path, model.xdp_flows) != running.xdp_path {
        let span = root.key_span("xdp").or(root.key_span("xdp_flows")).unwrap_or(0..0);
        ledger.relation(span, "a reload can neither switch nor resize the XDP path", REMEDY);
    }
    let sections = root.tables("ports", "port", ledger);
    for (index, (port, (name, section))) in model.ports.iter().zip(&sections).enumerate() {
        let Some(known) = running.ports.iter().position(|other| other.name == port.name) else {
            let what = format!("port {} is new, and a reload opens no port", port.name);
            ledger.relation(name.span.clone(), what, REMEDY);
            continue;
        };
        let before = &running.ports[known];
        if before.kind != port.kind {
            let changed = ["kind", "device", "input", "output"]
                .into_iter()
                .filter_map(|key| section.key_span(key))
                .next_back();
            let what = format!(
                "port {} is {}, and a reload cannot make it {}",
                port.name,
                words(&before.kind),
                words(&port.kind)
            );
            ledger.relation(changed.unwrap_or_else(|| name.span.clone()), what, REMEDY);
        } else if known != index && running.ports.len() == model.ports.len() {
            let what =
                format!("port {} has another position among the ports than before", port.name);
            ledger.relation(name.span.clone(), what, REMEDY);
        }
        let mtu = model.links.get(index).map_or(0, |link| usize::from(link.mtu));
        if mtu > running.largest_mtu {
            let span = section.key_span("mtu").unwrap_or_else(|| name.span.clone());
            let what = format!(
                "port {} has an MTU of {mtu}, but the frames in memory have room for {}",
                port.name, running.largest_mtu
            );
            ledger.relation(span, what, REMEDY);
        }
    }
    for gone in running.ports {
        if model.ports.iter().all(|port| port.name != gone.name) {
            let span = root.key_span("ports").unwrap_or(0..0);
            let what = format!("port {} is missing, and a reload closes no port", gone.name);
            ledger.relation(span, what, REMEDY);
        }
    }
}

fn words(kind: &PortKind) -> String {
    match kind {
        PortKind::Memory => "plain memory".to_owned(),
        PortKind::Tap { device } => format!("the TAP device {device}"),
        PortKind::AfPacket { device } => format!("the interface {device}"),
        PortKind::AfXdp { device, engine: Engine::Auto, .. } => {
            format!("the interface {device} by AF_XDP")
        }
        PortKind::AfXdp { device, engine, .. } => {
            format!("the interface {device} by AF_XDP, engine {}", engine.name())
        }
        PortKind::Capture { input, output } => {
            let name = |file: &Option<std::path::PathBuf>| {
                file.as_ref().map_or_else(|| "none".to_owned(), |file| file.display().to_string())
            };
            format!("a capture (input {}, output {})", name(input), name(output))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::{check, parse};
    use super::*;

    const BEFORE: &str = "[ports.a]\nkind = \"af_packet\"\ndevice = \"ra\"\n\n\
                          [ports.b]\nkind = \"tap\"\n";

    fn reported(text: &str) -> Vec<String> {
        let ports = parse(BEFORE, "t.toml").unwrap().model.ports;
        let running = Running {
            ports: &ports,
            largest_mtu: 3900,
            control: None,
            xdp_path: (XdpPathMode::Auto, 1 << 18),
        };
        match check(text, "t.toml", Some(&running)) {
            Ok(_) => Vec::new(),
            Err(mistakes) => mistakes.iter().map(ToString::to_string).collect(),
        }
    }

    #[test]
    fn all_but_ports_may_change() {
        let more = "mtu = 2000\nmac = \"02:00:00:00:00:01\"\naddresses = [\"10.0.0.1/24\"]\n\
                    vrf = \"red\"\n[vrfs.red]\n[vlans.v]\nparent = \"a\"\nvid = 3\n";
        assert_eq!(reported(BEFORE), [""; 0]);
        assert_eq!(reported(&format!("{BEFORE}{more}")), [""; 0]);
    }

    #[test]
    fn each_change_of_a_port_is_reported_with_its_place() {
        let replaced = |from: &str, to: &str| reported(&BEFORE.replace(from, to)).join(" | ");
        assert_eq!(
            replaced("\"ra\"", "\"rc\""),
            "t.toml:3: port a is the interface ra, and a reload cannot make it the interface rc; \
             restart tollway to apply it"
        );
        assert_eq!(
            replaced("\"tap\"", "\"memory\""),
            "t.toml:6: port b is the TAP device b, and a reload cannot make it plain memory; \
             restart tollway to apply it"
        );
        assert_eq!(
            replaced("ports.b]", "ports.c]"),
            "t.toml:1: port b is missing, and a reload closes no port; restart tollway to apply \
             it | t.toml:5: port c is new, and a reload opens no port; restart tollway to apply it"
        );
        assert_eq!(
            replaced("\"tap\"", "\"tap\"\nmtu = 4000"),
            "t.toml:7: port b has an MTU of 4000, but the frames in memory have room for 3900; \
             restart tollway to apply it"
        );
        assert_eq!(
            replaced("[ports.a]", "control = \"c\"\n[ports.a]"),
            "t.toml:1: a reload cannot move the control socket; restart tollway to apply it"
        );
        // Mistakes of single values are reported first.
        assert!(replaced("\"tap\"", "\"tub\"").starts_with("t.toml:6: "));
    }
}
