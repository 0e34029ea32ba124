//! Queries what the kernel does with packets beyond forwarding, without evaluating it.
//!
//! The kernel notifies of little. So the controller repeats all queries each second: one or two dumps, and some
//! small files. It polls the state that changes most often every 50 ms ([`QuickPoll`]). A query that needs a
//! missing privilege gives [`Unknown`].

mod connections;
mod devices;
mod foreign_uppers;
mod hooks;
mod quick_poll;
mod tables;
mod tc;
mod xfrm;

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{self, Read as _};
use std::path::Path;

use netlink_sys::protocols::NETLINK_ROUTE;

pub use connections::Watch;
pub use foreign_uppers::ForeignUpper;
pub use hooks::Hook;
pub use quick_poll::QuickPoll;
pub use tables::Legacy;
pub use xfrm::Xfrm;

use super::PerFamily;
use crate::kernel::{Ifindex, Netdev};
use tollway_linux::netlink::QuerySocket;
use tollway_linux::sys::why;
use tollway_xdp::{Mode, Tcx};

use devices::LinkProperties;
use tc::TcAttachments;

/// How often devices are queried again whose XDP program does not seem to be Tollway's.
const TRIES: usize = 2;

/// Why a query failed, in the system's words.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Unknown(pub String);

/// The result of a query, or why it is unknown.
pub type QueryResult<T> = Result<T, Unknown>;

/// The results of all queries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probes {
    /// The queried devices, by number.
    pub devices: BTreeMap<Ifindex, Device>,
    /// Devices here with an XDP program in generic mode.
    pub generic_xdp: BTreeSet<Ifindex>,
    /// Devices in other namespaces on top of the queried ones, or of members of those.
    pub foreign_uppers: QueryResult<BTreeSet<ForeignUpper>>,
    /// IPsec.
    pub xfrm: QueryResult<Xfrm>,
    /// Rules of iptables-legacy.
    pub legacy: QueryResult<PerFamily<Legacy>>,
    /// Netfilter's functions for forwarded packets; none if the kernel does not list them.
    pub hooks: QueryResult<Option<PerFamily<BTreeSet<Hook>>>>,
    /// Whether a table of ebtables-legacy has been loaded.
    pub ebtables: bool,
    /// Whether connections are being tracked at the moment.
    pub tracked: bool,
    /// The listener for all connections, if there is one.
    pub watched: Option<Watch>,
    /// Whether the programs can ask the kernel for connections.
    pub asks_conntrack: bool,
    /// Whether there are virtual services of IPVS.
    pub ipvs: bool,
    /// Whether a security module inspects every packet (`always_check_network`).
    pub labels: bool,
    /// Packet sockets that see all packets: of a device, or of all.
    pub taps: BTreeSet<Option<Ifindex>>,
}

/// The results of queries about a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    /// Its frames are Ethernet's.
    pub ethernet: bool,
    /// For a VLAN device: `reorder_hdr off`.
    pub keeps_tags: bool,
    /// For a VLAN device: some packets leave with a priority in their tag.
    pub egress_qos: bool,
    /// For a VLAN device: some packets get a priority by their tag.
    pub ingress_qos: bool,
    /// A tunnel whose packets bring, or are given, the other end's address (`external`).
    pub external: bool,
    /// The queueing discipline that has been configured for egress.
    pub qdisc: QueryResult<Option<String>>,
    /// There are filters or BPF programs of tc(8) on ingress, other than Tollway's own.
    pub filters_in: QueryResult<bool>,
    /// Some of those on ingress run after Tollway's tc program, or would.
    pub filters_behind: QueryResult<bool>,
    /// The same on egress.
    pub filters_out: QueryResult<bool>,
    /// The number of the attached XDP program. Its owner may have replaced another without a notification
    /// of the kernel.
    pub xdp: Option<u32>,
    /// The number of Tollway's program, if that is attached.
    pub own_xdp: QueryResult<Option<u32>>,
    /// Whether XDP sees the VLAN tags of its frames.
    pub tags: Tags,
    /// Whether its frames have complete checksums.
    pub checksums: Checksums,
    /// Its frames may have a hash of their flow, from the sender, the card, or RPS.
    pub own_hash: bool,
}

/// Whether frames have their VLAN tags when XDP sees them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Tags {
    /// They have them.
    #[default]
    Kept,
    /// The device removes them.
    Stripped,
    /// The peer of a veth, a device of this name, passes them beside the frames.
    ByPeer(String),
    /// The peer of a veth is in another namespace and may do so: no setting excludes it.
    ByPeerElsewhere,
}

/// Whether the checksums of packets are complete when XDP sees them, or left to a network card.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Checksums {
    /// They are complete.
    #[default]
    Whole,
    /// The peer of a veth, a device of this name, leaves them to the card.
    ByPeer(String),
    /// The peer of a veth is in another namespace and may do so: no setting excludes it.
    ByPeerElsewhere,
    /// The owner of a TAP device, usually a virtual machine, may leave them to the card.
    ByOwner,
}

impl Default for Device {
    /// An Ethernet device with nothing on it.
    fn default() -> Self {
        Self {
            ethernet: true,
            keeps_tags: false,
            egress_qos: false,
            ingress_qos: false,
            external: false,
            qdisc: Ok(None),
            filters_in: Ok(false),
            filters_behind: Ok(false),
            filters_out: Ok(false),
            xdp: None,
            own_xdp: Ok(None),
            tags: Tags::Kept,
            checksums: Checksums::Whole,
            own_hash: false,
        }
    }
}

impl Default for Probes {
    /// No results.
    fn default() -> Self {
        Self {
            devices: BTreeMap::new(),
            generic_xdp: BTreeSet::new(),
            foreign_uppers: Ok(BTreeSet::new()),
            xfrm: Ok(Xfrm::default()),
            legacy: Ok(PerFamily::default()),
            hooks: Ok(Some(PerFamily::default())),
            ebtables: false,
            tracked: false,
            watched: None,
            asks_conntrack: false,
            ipvs: false,
            labels: false,
            taps: BTreeSet::new(),
        }
    }
}

impl Probes {
    /// Queries the kernel about some devices, and about the network namespace of this thread.
    /// Queries other namespaces only if `foreign_uppers` gives no earlier result.
    ///
    /// # Errors
    /// The kernel cannot be queried at all.
    pub fn read(
        netdevs: &BTreeMap<Ifindex, Netdev>,
        queried: impl IntoIterator<Item = Ifindex>,
        foreign_uppers: Option<QueryResult<BTreeSet<ForeignUpper>>>,
    ) -> io::Result<Self> {
        let mut route = QuerySocket::open(NETLINK_ROUTE)?;
        let queried: Vec<Ifindex> = queried.into_iter().collect();
        let (mut devices, mut generic_xdp) = read_devices(&mut route, netdevs, &queried)?;
        for _ in 0..TRIES {
            // A program may have been attached between its device's message and the query for its owner.
            if devices.values().all(|device| device.own_xdp.as_ref() == Ok(&device.xdp)) {
                break;
            }
            (devices, generic_xdp) = read_devices(&mut route, netdevs, &queried)?;
        }
        let mut foreign_uppers =
            foreign_uppers.unwrap_or_else(|| known(foreign_uppers::foreign_uppers(&mut route)));
        if let Ok(all) = &mut foreign_uppers {
            let master = |lower: Ifindex| netdevs.get(&lower).and_then(|netdev| netdev.master);
            let is_queried = |ifindex: Ifindex| devices.contains_key(&ifindex);
            all.retain(|upper| {
                is_queried(upper.lower) || master(upper.lower).is_some_and(is_queried)
            });
        }
        Ok(Self {
            devices,
            generic_xdp,
            foreign_uppers,
            xfrm: known(xfrm::xfrm()),
            legacy: known(tables::legacy()),
            hooks: known(hooks::hooks()),
            ebtables: quick_poll::ebtables(),
            tracked: count(quick_poll::TRACKED) > 0,
            watched: connections::watched(),
            asks_conntrack: tollway_xdp::has_conntrack(),
            // Three lines of headings.
            ipvs: text(quick_poll::SERVICES).lines().count() > 3,
            labels: count("/sys/fs/selinux/policy_capabilities/always_check_network") > 0,
            taps: taps(&text(quick_poll::TAPS)),
        })
    }
}

fn known<T>(result: io::Result<T>) -> QueryResult<T> {
    result.map_err(|error| Unknown(why(&error)))
}

/// Reads the queried devices, and which devices have an XDP program in generic mode.
fn read_devices(
    route: &mut QuerySocket,
    netdevs: &BTreeMap<Ifindex, Netdev>,
    queried: &[Ifindex],
) -> io::Result<(BTreeMap<Ifindex, Device>, BTreeSet<Ifindex>)> {
    let link_properties = devices::link_properties(route)?;
    let attachments = known(tc::attachments(route));
    let devices = queried.iter().filter_map(|ifindex| {
        let device = device(
            (*ifindex, netdevs.get(ifindex)?),
            netdevs,
            link_properties.get(ifindex)?,
            &attachments,
        );
        Some((*ifindex, device))
    });
    let generic_xdp = link_properties.iter().filter(|(_, properties)| properties.generic_xdp);
    Ok((devices.collect(), generic_xdp.map(|(ifindex, _)| *ifindex).collect()))
}

fn device(
    (ifindex, netdev): (Ifindex, &Netdev),
    netdevs: &BTreeMap<Ifindex, Netdev>,
    properties: &LinkProperties,
    attachments: &QueryResult<BTreeMap<Ifindex, TcAttachments>>,
) -> Device {
    let attachments =
        attachments.as_ref().map(|all| all.get(&ifindex).cloned().unwrap_or_default());
    let own_before = own_tc(ifindex);
    let tcx = known(tollway_xdp::tcx(ifindex));
    let own = own_tc(ifindex);
    // Another program may have taken its place before or after it was listed.
    let is_own = |program: &u32| [own_before, own].iter().flatten().any(|(_, id)| id == program);
    let before = |tcx: &Tcx| tcx.ingress.iter().position(&is_own).unwrap_or(tcx.ingress.len());
    let is_filter = is_filter(own.map(|(mode, _)| mode), &tcx);
    // One match of either kind is enough; otherwise both results have to be known.
    let filters = |of_tc: &dyn Fn(&TcAttachments) -> bool, of_bpf: &dyn Fn(&Tcx) -> bool| {
        let has = |found: Result<bool, &Unknown>| found.map_err(Clone::clone);
        match (
            has(attachments.as_ref().map(of_tc).map_err(|why| *why)),
            has(tcx.as_ref().map(|tcx| tcx.as_ref().is_some_and(of_bpf))),
        ) {
            (Ok(true), _) | (_, Ok(true)) => Ok(true),
            (Err(why), _) | (_, Err(why)) => Err(why),
            _ => Ok(false),
        }
    };
    Device {
        ethernet: properties.ethernet,
        keeps_tags: properties.keeps_tags,
        egress_qos: properties.egress_qos,
        ingress_qos: properties.ingress_qos,
        external: properties.external,
        filters_in: filters(&|attachments| attachments.ingress, &|tcx| {
            !tcx.ingress.iter().all(&is_own)
        }),
        filters_behind: filters(&|attachments| are_behind(attachments, is_filter), &|tcx| {
            tcx.ingress.len() > before(tcx) + 1
        }),
        filters_out: filters(&|attachments| attachments.egress, &|tcx| !tcx.egress.is_empty()),
        qdisc: attachments.map(|attachments| attachments.qdisc).map_err(Clone::clone),
        xdp: properties.xdp,
        own_xdp: own_xdp(ifindex, properties.xdp),
        tags: tags(netdev, netdevs),
        checksums: checksums(netdev, netdevs, properties),
        own_hash: has_own_hash(netdev),
    }
}

/// Says whether Tollway's tc program is a filter of a device, or would be one: if the kernel has no tcx.
fn is_filter(attached: Option<Mode>, tcx: &QueryResult<Option<Tcx>>) -> bool {
    attached.map_or(*tcx == Ok(None), |mode| mode == Mode::Clsact)
}

/// Says whether filters run after Tollway's tc program. A program of tcx runs before filters, and a filter of the last
/// preference after all others, but not beside a shared block.
const fn are_behind(attachments: &TcAttachments, is_filter: bool) -> bool {
    if is_filter { attachments.ingress_block } else { attachments.ingress }
}

/// Kinds of devices whose packets may bring the hash of a socket or of another device.
const KEEP_HASHES: [&str; 13] = [
    "veth", "bond", "team", "bridge", "macvlan", "vxlan", "geneve", "gre", "ip6gre", "ipip",
    "ip6tnl", "sit", "ppp",
];

/// Sockets set a hash in their packets, which veths, bridges and the like keep (`skb_set_hash_from_sk`); bonds keep that
/// of their members, and tunnels that of the packet inside (`skb_clear_hash_if_not_l4`).
fn has_own_hash(netdev: &Netdev) -> bool {
    let by_rps = || {
        let queues = std::fs::read_dir(format!("/sys/class/net/{}/queues", netdev.name));
        let mut queues = queues.into_iter().flatten().flatten();
        queues.any(|queue| {
            let processors = text(queue.path().join("rps_cpus"));
            processors.bytes().any(|digit| digit.is_ascii_hexdigit() && digit != b'0')
        })
    };
    match netdev.kind.as_deref() {
        Some(kind) if KEEP_HASHES.contains(&kind) => true,
        _ => tollway_xdp::hashes(&netdev.name).unwrap_or(true) || by_rps(),
    }
}

/// A veth receives frames as its peer sent them: with the tags beside them, unless `txvlan` is off at the
/// peer. If the peer is in another namespace, the administrator states that with the veth's own `rxvlan`.
fn tags(netdev: &Netdev, netdevs: &BTreeMap<Ifindex, Netdev>) -> Tags {
    let name = netdev.name.as_str();
    match netdev.kind.as_deref() {
        None if tollway_xdp::strips_tags(name).unwrap_or(false) => Tags::Stripped,
        Some("veth") => match netdev.lower.and_then(|peer| netdevs.get(&peer)) {
            Some(peer) if tollway_xdp::sends_tags_beside(&peer.name).unwrap_or(true) => {
                Tags::ByPeer(peer.name.clone())
            }
            None if tollway_xdp::rxvlan(name).unwrap_or(true) => Tags::ByPeerElsewhere,
            _ => Tags::Kept,
        },
        _ => Tags::Kept,
    }
}

/// Where Tollway's tc program is, that of the port's engine or that beside an XDP program, and its number.
fn own_tc(ifindex: Ifindex) -> Option<(Mode, u32)> {
    let own = tollway_xdp::program_of(ifindex).filter(|(mode, _)| mode.is_tc());
    own.or_else(|| Some((Mode::Tcx, tollway_xdp::program_beside(ifindex)?)))
}

/// The number of Tollway's program, if that is attached. Without the privilege for BPF this is unknown.
fn own_xdp(ifindex: Ifindex, xdp: Option<u32>) -> QueryResult<Option<u32>> {
    use caps::{CapSet, Capability, has_cap};
    let may = |capability| has_cap(None, CapSet::Effective, capability).unwrap_or(false);
    let own = tollway_xdp::program_of(ifindex).filter(|(mode, _)| !mode.is_tc());
    match (xdp, own) {
        (None, _) => Ok(None),
        (Some(_), None) if !may(Capability::CAP_BPF) && !may(Capability::CAP_SYS_ADMIN) => {
            Err(Unknown("only root may query that; run tollway as root".to_owned()))
        }
        (Some(_), own) => Ok(own.map(|(_, id)| id)),
    }
}

/// A veth passes packets on as its peer sent them, and a TAP device as its owner wrote them. If the peer is
/// in another namespace, the administrator states with the port's own `rx` that checksums are complete.
fn checksums(
    netdev: &Netdev,
    netdevs: &BTreeMap<Ifindex, Netdev>,
    properties: &LinkProperties,
) -> Checksums {
    match netdev.kind.as_deref() {
        Some("tun") if properties.vnet_hdr => Checksums::ByOwner,
        Some("veth") => match netdev.lower.and_then(|peer| netdevs.get(&peer)) {
            Some(peer) if tollway_xdp::leaves_checksums(&peer.name).unwrap_or(true) => {
                Checksums::ByPeer(peer.name.clone())
            }
            None if tollway_xdp::rx_checksums(&netdev.name).unwrap_or(true) => {
                Checksums::ByPeerElsewhere
            }
            _ => Checksums::Whole,
        },
        _ => Checksums::Whole,
    }
}

fn text(path: impl AsRef<Path>) -> String {
    read_text(path).unwrap_or_default()
}

/// The text in a file of procfs or sysfs, whose size nobody knows before: this takes half the system calls of
/// `std::fs::read_to_string`.
fn read_text(path: impl AsRef<Path>) -> io::Result<String> {
    const USUAL_BYTES: usize = 4096;
    let mut text = String::with_capacity(USUAL_BYTES);
    File::open(path)?.take(u64::MAX).read_to_string(&mut text)?;
    Ok(text)
}

/// A number in a file; 0 if there is none.
fn count(path: &str) -> u64 {
    text(path).trim().parse().unwrap_or(0)
}

/// Packet sockets that see all packets: of a device, or of all (`packet_seq_show`).
fn taps(table: &str) -> BTreeSet<Option<Ifindex>> {
    /// `ETH_P_ALL`.
    const ALL: &str = "0003";
    let tap = |line: &str| {
        let mut words = line.split_whitespace().skip(3);
        let (protocol, ifindex) = (words.next()?, words.next()?.parse().ok()?);
        (protocol == ALL).then_some((ifindex != 0).then_some(ifindex))
    };
    table.lines().skip(1).filter_map(tap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_without_tcx_lets_filters_of_others_come_first() {
        let (no_tcx, tcx) = (Ok(None), Ok(Some(Tcx::default())));
        let unknown = Err(Unknown("no privilege".to_owned()));
        let filters = TcAttachments { ingress: true, ..TcAttachments::default() };
        let block = TcAttachments { ingress_block: true, ..filters.clone() };
        for (attached, tcx, behind) in [
            (None, &no_tcx, false),
            (Some(Mode::Clsact), &no_tcx, false),
            (Some(Mode::Clsact), &tcx, false),
            (None, &tcx, true),
            (Some(Mode::Tcx), &tcx, true),
            (None, &unknown, true),
        ] {
            let is_filter = is_filter(attached, tcx);
            assert_eq!(are_behind(&filters, is_filter), behind, "{attached:?}, {tcx:?}");
            assert!(are_behind(&block, is_filter), "{attached:?}, {tcx:?}");
            assert!(!are_behind(&TcAttachments::default(), is_filter));
        }
    }

    #[test]
    fn sockets_that_see_all_packets() {
        let table = "\
sk               RefCnt Type Proto  Iface R Rmem   User   Inode
ffff8f2b03c4e000 3      3    0003   2     1 0      0      18241
ffff8f2b03c4e000 3      3    88cc   3     1 0      0      18241
ffff8f2b03c4e000 3      3    0003   0     1 0      0      18241
cut";
        assert_eq!(taps(table), BTreeSet::from([None, Some(2)]));
        assert!(taps("").is_empty());
    }
}
