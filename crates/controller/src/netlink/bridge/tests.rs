//! Tests with messages of Linux 6.18: ports `p0` (4) and `p1` (6) of the bridge `br0` (2).

use std::time::Duration;

use super::super::implicit_deletes::implicit_deletes;
use super::super::{link, message};
use crate::effect::Effect;
use crate::event::Event;
use crate::kernel::{
    BridgePort, BridgePortFlag, BridgePortFlags, BridgePortState, BridgeSettings, Kernel, Netdev,
    Stp,
};
use tollway_linux::netlink::{Message, push};

const NEW_LINK: u16 = 16;
const DEL_LINK: u16 = 17;

/// `p0` after `bridge link set dev p0 backup_port p1`, `ip link set p0 type bridge_slave isolated on
/// neigh_suppress on hairpin on flood off`, and `MAB`, `LOCKED`, `BACKUP_NHID` (77), of `AF_BRIDGE`.
const PORT: &str = "\
07000100040000004310010000000000070003007030000008000a000200000008000400dc05000005001000060000000a000100\
42eb93c7030d0000080005000300000060010c800500010003000000060002002000000008000300020000000500040001000000\
05000500000000000500060000000000050007000000000005001c00000000000500080001000000050009000000000005001b00\
0100000005001e000100000005000a000000000005000c00000000000c000d00800042eb93c7030d0c000e00800042eb93c7030d\
06000f00018000000600100000000000060011000180000006001200010000000500130000000000050014000000000005001d00\
0000000006001f000000000005002000010000000500230000000000050024000000000005002100010000000500270001000000\
050028000100000005002b00000000000c00150000000000000000000c0016004e050000000000000c0017000000000000000000\
050019000100000008002500000200000800260000000000080029000000000008002a0000000000080022000600000008002c00\
4d000000";

/// The same of `AF_UNSPEC`, cut down to its `IFLA_LINKINFO`.
const DEVICE: &str = "\
000001000400000043100100000000007c0112000900010076657468000000000b00040062726964676500006001050005000100\
03000000060002002000000008000300020000000500040001000000050005000000000005000600000000000500070000000000\
05001c00000000000500080001000000050009000000000005001b000100000005001e000100000005000a000000000005000c00\
000000000c000d00800042eb93c7030d0c000e00800042eb93c7030d06000f000180000006001000000000000600110001800000\
06001200010000000500130000000000050014000000000005001d000000000006001f0000000000050020000100000005002300\
00000000050024000000000005002100010000000500270001000000050028000100000005002b00000000000c00150000000000\
000000000c0016004e050000000000000c0017000000000000000000050019000100000008002500000200000800260000000000\
080029000000000008002a0000000000080022000600000008002c004d000000";

/// `p0` leaves the bridge: an `RTM_DELLINK` of `AF_BRIDGE`.
const LEAVES: &str = "\
07000100040000004310010000000000070003007030000008000a000200000008000400dc05000005001000060000000a000100\
42eb93c7030d00000800050003000000";

/// `br0` after `ip link set br0 type bridge ageing_time 10000 forward_delay 400 nf_call_ip6tables 1
/// no_linklocal_learn 1`, cut down to its `IFLA_LINKINFO`. The kernel has no filtering of VLANs.
const BRIDGE: &str = "\
000001000200000043100100000000009c0112000b00010062726964676500008c0102000c00100000000000000000000c001100\
00000000000000000c00120000000000000000000c0013008b26000000000000080001009001000008000200c800000008000300\
d0070000080004001027000008000500000000000600060000800000050007000000000006000900000000000c000b00800042eb\
93c7030d0c000a00800042eb93c7030d06000c000000000008000d000000000005000e000000000005000f00000000000a001400\
0180c200000000000c002e00010000001f0000000800300002000000080031000000000005001600010000000500170001000000\
0500180000000000050019000000000005002a000000000008001a001000000008001b000010000008001c000200000008001d00\
0200000005002b000200000005002c00010000000c001e0064000000000000000c001f0090650000000000000c0020009c630000\
000000000c002100d4300000000000000c002200e8030000000000000c002300340c000000000000050024000000000005002500\
010000000500260000000000";

fn bytes(hex: &str) -> Vec<u8> {
    let digits = hex.as_bytes().chunks(2);
    digits.map(|pair| u8::from_str_radix(str::from_utf8(pair).unwrap(), 16).unwrap()).collect()
}

fn events(kind: u16, body: &[u8]) -> Vec<Event> {
    message::read(&Message { kind, flags: 0, sequence: 1, port: 0, body }, false).collect()
}

fn recorded_port() -> BridgePort {
    use BridgePortFlag::{Hairpin, Isolated, Learning, Locked, Mab, NeighSuppress, UnicastFlood};
    let on = [Hairpin, Learning, Isolated, Locked, Mab, NeighSuppress];
    let flags = BridgePortFlags::default().with(UnicastFlood, false);
    let flags = on.into_iter().fold(flags, |flags, flag| flags.with(flag, true));
    let state = BridgePortState::Forwarding;
    BridgePort { state, flags, backup_port: Some(6), backup_nexthop: Some(77) }
}

/// A message about device 4 with these attributes in an `IFLA_PROTINFO` or `IFLA_INFO_SLAVE_DATA`.
fn port_message(family: i32, kind: &str, attributes: &[(u16, &[u8])]) -> Vec<u8> {
    let mut body = vec![family as u8, 0, 0, 0, 4, 0, 0, 0];
    body.resize(16, 0);
    let mut data = Vec::new();
    attributes.iter().for_each(|(kind, value)| push(&mut data, *kind, value));
    if family == libc::AF_BRIDGE {
        push(&mut body, 12, &data);
    } else {
        let mut info = Vec::new();
        push(&mut info, 4, kind.as_bytes());
        push(&mut info, 5, &data);
        push(&mut body, 18, &info);
    }
    body
}

#[test]
fn both_families_have_the_same_port() {
    assert_eq!(
        events(NEW_LINK, &bytes(PORT)),
        [Event::BridgePort(4, Some(recorded_port()))],
        "of AF_BRIDGE"
    );
    let of_device = events(NEW_LINK, &bytes(DEVICE));
    let [Event::Link(4, Some(netdev)), Event::BridgePort(4, Some(port))] = &of_device[..] else {
        panic!("{of_device:?}")
    };
    assert_eq!((netdev.kind.as_deref(), netdev.bridge), (Some("veth"), None));
    assert_eq!(*port, recorded_port());
    assert_eq!(events(DEL_LINK, &bytes(LEAVES)), [Event::BridgePort(4, None)]);
    assert_eq!(events(DEL_LINK, &bytes(DEVICE)), [Event::Link(4, None)]);
}

#[test]
fn a_bridge_has_settings() {
    let (index, netdev) = link::read(&bytes(BRIDGE)).unwrap();
    let expected = BridgeSettings {
        ageing_time: Duration::from_secs(100),
        forward_delay: Duration::from_secs(4),
        nf_call_ip6tables: true,
        bool_options: 1,
        ..BridgeSettings::default()
    };
    assert_eq!((index, netdev.bridge), (2, Some(expected)));
    assert_eq!(events(NEW_LINK, &bytes(BRIDGE)).len(), 1, "it is no port");
    // With the attributes of kernels that filter VLANs.
    let mut data = Vec::new();
    push(&mut data, 5, &1_u32.to_ne_bytes());
    push(&mut data, 7, &[1]);
    push(&mut data, 8, &0x88a8_u16.to_be_bytes());
    push(&mut data, 36, &[1]);
    let (mut info, mut body) = (Vec::new(), vec![0; 16]);
    push(&mut info, 1, b"bridge\0");
    push(&mut info, 2, &data);
    push(&mut body, 18, &info);
    let expected = BridgeSettings {
        stp: Stp::Kernel,
        vlan_filtering: true,
        vlan_protocol: 0x88a8,
        nf_call_iptables: true,
        ..BridgeSettings::default()
    };
    assert_eq!(link::read(&body).unwrap().1.bridge, Some(expected));
}

#[test]
fn each_flag_has_its_attribute() {
    let kinds = [4, 8, 9, 10, 12, 29, 32, 43, 33, 39, 40];
    for (kind, flag) in kinds.into_iter().zip(BridgePortFlag::ALL) {
        let is_default = BridgePortFlags::default().has(flag);
        let value = [u8::from(!is_default)];
        for family in [libc::AF_UNSPEC, libc::AF_BRIDGE] {
            let body = port_message(family, "bridge\0", &[(1, &[2]), (kind, &value)]);
            let (_, port) = super::port(&body).unwrap();
            assert_eq!(port.state, BridgePortState::Learning);
            assert_eq!(port.flags, BridgePortFlags::default().with(flag, !is_default));
            assert_eq!((port.backup_port, port.backup_nexthop), (None, None));
        }
    }
}

#[test]
fn other_messages_are_about_no_port() {
    let state: &[(u16, &[u8])] = &[(1, &[3])];
    let port = |family, kind, attributes| super::port(&port_message(family, kind, attributes));
    assert!(port(libc::AF_UNSPEC, "bridge\0", state).is_some());
    assert_eq!(port(libc::AF_UNSPEC, "bond\0", state), None);
    assert_eq!(port(libc::AF_INET6, "bridge\0", state), None);
    // A driver's message about its own switch (`ndo_dflt_bridge_getlink`).
    assert_eq!(port(libc::AF_BRIDGE, "", &[(8, &[1]), (9, &[1])]), None);
    // The bridge itself.
    assert_eq!(super::port(&bytes(LEAVES)), None);
    for len in 0..bytes(PORT).len() {
        super::port(&bytes(PORT)[..len]);
    }
}

/// The bridge `br0` (2) with the ports 4 and 6; 6 is a backup of 4.
fn bridged() -> Kernel {
    let mut kernel = Kernel::default();
    for index in [4, 6] {
        let netdev = Netdev { master: Some(2), ..Netdev::default() };
        kernel.apply(&Event::Link(index, Some(Box::new(netdev))));
    }
    let without_backup = BridgePort { backup_port: None, ..recorded_port() };
    kernel.apply(&Event::BridgePort(4, Some(recorded_port())));
    kernel.apply(&Event::BridgePort(6, Some(without_backup)));
    kernel
}

#[test]
fn a_port_goes_with_its_device_and_its_master() {
    let kernel = bridged();
    let free = Box::new(Netdev::default());
    let member = Box::new(kernel.netdevs[&4].clone());
    for event in [Event::Link(4, None), Event::Link(4, Some(free))] {
        assert_eq!(implicit_deletes(&kernel, &event), [Event::BridgePort(4, None)]);
    }
    assert_eq!(implicit_deletes(&kernel, &Event::Link(4, Some(member))), []);
    // No port keeps a backup that is none.
    let changed = Event::BridgePort(4, Some(BridgePort { backup_port: None, ..recorded_port() }));
    let with_backup = implicit_deletes(&kernel, &Event::Link(6, None));
    assert_eq!(with_backup, [Event::BridgePort(6, None), changed.clone()]);
    assert_eq!(implicit_deletes(&kernel, &Event::BridgePort(6, None)), [changed]);
}

#[test]
fn a_changed_port_may_change_the_topology() {
    let mut kernel = bridged();
    let blocked = BridgePort { state: BridgePortState::Blocking, ..recorded_port() };
    for port in [Some(blocked), None, Some(blocked)] {
        assert_eq!(kernel.apply(&Event::BridgePort(4, port)), Effect::Topology);
        assert_eq!(kernel.apply(&Event::BridgePort(4, port)), Effect::Nothing);
        assert_eq!(kernel.bridge_ports.get(&4).copied(), port);
    }
}
