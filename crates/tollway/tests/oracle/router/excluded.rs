//! Differences between the two routers that the test accepts, and why. They are all in this file.
//!
//! - The group member that takes a packet. This holds for next-hop objects, for
//!   `fib_multipath_use_neigh`, and for routes that differ only in their next hops. The kernel
//!   skips neighbours that do not answer, so its choice depends on timing. Any member of a route
//!   that the packet may match is right.
//!   The consequences of the choice may differ, too: one member causes an error or a redirect,
//!   another none. Packets wait for a member that never answers, and are lost. The router does not
//!   always send the error about that, as there may be no route to the source. So one router may be
//!   silent about a packet in two cases. Either its group has such a member, or the members are on
//!   several devices and there are nft rules. Rules may match the device, and they never see a
//!   packet that is too large for its device.
//! - Which packets get an error after they have waited in vain for a silent neighbour, if the error
//!   for one of them leaves through the same neighbour. The error waits there, and the kernel drops
//!   whatever else waits there (`neigh_invalidate`). So the result depends on the packets' order.
//! - Reports of routes, if an IPv6 route has next hops on both sides of another route of its key in the
//!   kernel. The kernel's list then leaves out the latter (`fib6_dump_node` skips to the last next hop), so
//!   a router knows it by a notification alone.
//! - Which of several default routes an IPv4 packet takes, if they differ only in their next hops.
//!   This includes errors of the router. The kernel tries the routes in turn, by what it knows
//!   about their gateways (`fib_select_default`).
//! - The IPv4 identification (and so the checksum) of packets that the router itself sends, and the
//!   time of day in its ICMP timestamps.
//! - ARP, ND and MLD of the router: what the kernel requests depends on the time of its last
//!   request. The test compares the effects of the answers. Rules may reject an answer of ND, so errors about ND
//!   depend on that time as well.
//! - How often the router sends a redirect (the kernel limits that by time: `ip_rt_send_redirect`,
//!   `ndisc_send_redirect`), and for which packet. Also, whether an IPv6 redirect has the
//!   neighbour's Ethernet address, which may still be unknown. The test compares whether there is a
//!   redirect, its sender and its receiver.
//! - The order of frames: a packet on the kernel path takes longer.
//! - Bytes behind the packet in a frame of Ethernet's minimum size (46 bytes behind the header).
//!   The kernel cuts them off and a network card adds them again; the XDP path leaves them in
//!   place.
//! - Fragments other than the first, where nft rules match transport headers, and limits: see the
//!   filter oracle.
//! - Errors to one source beyond the fifth, which the kernel limits by time (`ip_error`). Each
//!   packet of a case therefore has its own source.
//! - What becomes of fragments for the router itself: the kernel would wait half a minute for the rest.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::Ipv4Net;

use super::case::Case;
use super::config::Config;
use super::net::{addresses, ethertype, icmp, is_four, is_six, packet_at, words_of};
use super::traffic::{Packet, tag};
use crate::icmp::checksum;
use crate::kernel::Sent;
use crate::net::DEVICES;

/// Bytes behind the header of the smallest Ethernet frame.
const SMALL: usize = 46;

/// Frames by device, with the number of times that each occurred.
type Tally = BTreeMap<Sent, usize>;

/// Returns sentences that describe how the frames that two routers sent differ, none if they are
/// alike. `words` are the names of the two routers.
pub fn differences(
    Case { config, packets, .. }: &Case,
    words: [&str; 2],
    sent: [&[Sent]; 2],
) -> Vec<String> {
    let own = config.own();
    let [mut first, mut second] = sent.map(|sent| tally(sent, &own));
    let both: Vec<_> = first.keys().filter(|one| second.contains_key(*one)).cloned().collect();
    for one in both {
        let count = first[&one].min(second[&one]);
        take(&mut first, &one, count);
        take(&mut second, &one, count);
    }
    members(config, &mut first, &mut second);
    consequences(config, &mut first, &mut second);
    let blocked = blocked(config, packets);
    for tally in [&mut first, &mut second] {
        tally.retain(|(_, frame), _| !is_unreachable_by(config, &blocked, frame));
    }
    let describe = |tally: &Tally, word: &str| {
        let one = |((device, frame), count): (&Sent, &usize)| {
            let times = if *count == 1 { String::new() } else { format!(" ({count} times)") };
            let number = tag(frame).unwrap_or(0);
            format!(
                "only {word} sends{times} by {}, packet {number}: {}",
                DEVICES[*device],
                words_of(frame)
            )
        };
        tally.iter().map(one).collect::<Vec<_>>()
    };
    [describe(&first, words[0]), describe(&second, words[1])].concat()
}

/// Counts the sent frames that the test compares.
fn tally(sent: &[Sent], own: &[Ipv4Net]) -> Tally {
    let mut tally = Tally::new();
    for (device, frame) in sent.iter().filter(|(_, frame)| is_compared(frame)) {
        let frame = plain(frame.clone(), own);
        let is_redirect = is_redirect(&frame);
        let key = (*device, if is_redirect { redirect(frame) } else { frame });
        let count = tally.entry(key).or_default();
        *count = if is_redirect { 1 } else { *count + 1 };
    }
    tally
}

fn is_compared(frame: &[u8]) -> bool {
    if is_four(frame) {
        // IGMP with a TTL of 1 is the router's own.
        return frame.get(packet_at(frame) + 9) != Some(&2)
            || frame.get(packet_at(frame) + 8) != Some(&1);
    }
    if !is_six(frame) {
        return !matches!(ethertype(frame), Some([0x08, 0x06]));
    }
    let at = packet_at(frame);
    let hops = frame.get(at + 7).copied();
    let about = frame.get(at + 48..).filter(|_| matches!(icmp(frame), Some([1..=4, _])));
    let is_nd = is_nd(&frame[at..]) || about.is_some_and(is_nd);
    // Multicast listener reports have a hop-by-hop header with a router alert.
    let is_report = frame.get(at + 6) == Some(&0)
        && hops == Some(1)
        && matches!(frame.get(at + 48), Some(131 | 132 | 143));
    !is_nd && !is_report
}

/// Whether an IPv6 packet belongs to ND: a hop limit of 255, ICMPv6, and one of four types.
fn is_nd(packet: &[u8]) -> bool {
    packet.get(6..8) == Some(&[58, 255]) && matches!(packet.get(40), Some(133..=136))
}

/// Returns a frame without the fields that each router chooses for itself.
fn plain(mut frame: Vec<u8>, own: &[Ipv4Net]) -> Vec<u8> {
    let at = packet_at(&frame);
    if frame.len() <= at + SMALL {
        let length = |of: usize| frame.get(of..)?.first_chunk().copied().map(u16::from_be_bytes);
        let own = if is_four(&frame) { length(at + 2) } else { length(at + 4).map(|of| of + 40) };
        if is_four(&frame) || is_six(&frame) {
            frame.truncate(at + own.map_or(SMALL, usize::from));
        }
    }
    let is_own = |frame: &[u8]| matches!(addresses(frame), Some([IpAddr::V4(source), _]) if own.iter().any(|own| own.contains(&source)));
    if is_four(&frame) && frame.len() >= at + 20 && is_own(&frame) {
        let end = (at + usize::from(frame[at] & 15) * 4).min(frame.len());
        frame[at + 4..at + 6].fill(0);
        frame[at + 10..at + 12].fill(0);
        let sum = checksum(&frame[at..end]);
        frame[at + 10..at + 12].copy_from_slice(&sum.to_be_bytes());
        if icmp(&frame) == Some([14, 0]) && frame.len() >= end + 20 {
            frame[end + 2..end + 4].fill(0);
            frame[end + 12..end + 20].fill(0);
        }
    }
    frame
}

/// Returns a redirect without the packet that caused it: each wave has another packet.
fn redirect(mut frame: Vec<u8>) -> Vec<u8> {
    let at = packet_at(&frame);
    // An IPv4 redirect keeps its packet's IP header, for the addresses.
    let keep = if is_four(&frame) { 48 } else { 80 };
    frame.truncate(at + keep);
    // An IPv6 redirect has one more option if the kernel already knows the neighbour's Ethernet
    // address.
    if let Some(length) = frame.get_mut(at + 4..at + 6).filter(|_| keep == 80) {
        length.fill(0);
    }
    // The checksums of ICMP and ICMPv6 cover the removed packet.
    let sum = if is_four(&frame) { at + 22 } else { at + 42 };
    if let Some(sum) = frame.get_mut(sum..sum + 2) {
        sum.fill(0);
    }
    if is_four(&frame)
        && let Some(packet) = frame.get_mut(at + 28..at + 40)
    {
        packet.fill(0);
    }
    frame
}

fn take(from: &mut Tally, one: &Sent, count: usize) {
    if let Some(left) = from.get_mut(one) {
        *left -= count;
        if *left == 0 {
            from.remove(one);
        }
    }
}

/// Silent neighbours on the way back to the packets' sources.
fn blocked(config: &Config, packets: &[Packet]) -> BTreeSet<IpAddr> {
    let sources =
        packets.iter().filter_map(|packet| addresses(&packet.frame)).map(|[from, _]| from);
    sources.flat_map(|from| config.silent_hops(from)).collect()
}

/// Whether a frame is an "unreachable" error about a host behind one of these neighbours.
fn is_unreachable_by(config: &Config, blocked: &BTreeSet<IpAddr>, frame: &[u8]) -> bool {
    let is_it =
        matches!((is_four(frame), icmp(frame)), (true, Some([3, 1])) | (false, Some([1, 3])));
    let is_behind = |to| !config.silent_hops(to).is_disjoint(blocked);
    is_it && subject(frame).is_some_and(|(_, to)| is_behind(to))
}

/// Removes what both routers made of a packet that several members of a group may take.
fn consequences(config: &Config, first: &mut Tally, second: &mut Tally) {
    let is_shared = |to: IpAddr| config.groups(to).iter().any(|group| group.hops.len() > 1);
    // A redirect names only its packet's destination.
    for tally in [&mut *first, &mut *second] {
        let is_by_choice = |frame: &[u8]| {
            is_redirect(frame) && subject(frame).is_some_and(|(_, to)| is_shared(to))
        };
        tally.retain(|(_, frame), _| !is_by_choice(frame));
    }
    let of = |tally: &Tally| -> BTreeSet<u32> {
        let shared = tally.keys().filter_map(|(_, frame)| {
            let (tag, to) = subject(frame)?;
            let [_, own] = addresses(frame)?;
            (is_shared(to) || is_shared(own)).then_some(tag)
        });
        shared.collect()
    };
    let both: BTreeSet<u32> = of(first).intersection(&of(second)).copied().collect();
    let may_be_silent = |to: IpAddr| {
        config.waits_in_vain(to) || config.rules.is_some() && config.shares_devices(to)
    };
    let may_differ = |tag: u32, to: IpAddr| both.contains(&tag) || may_be_silent(to);
    let is_one = |(device, frame): &Sent| {
        let Some((tag, to)) = subject(frame).filter(|(tag, to)| may_differ(*tag, *to)) else {
            return false;
        };
        let is_error = addresses(frame).is_some_and(|[_, own]| own != to);
        let groups = config.groups(to);
        let is_member = groups.iter().any(|group| group.has(*device, &frame[..6], to));
        tag != 0 && (is_error || is_member)
    };
    for tally in [first, second] {
        tally.retain(|one, _| !is_one(one));
    }
}

/// The number and the destination of a frame's packet, or of the packet that its error is about.
fn subject(frame: &[u8]) -> Option<(u32, IpAddr)> {
    let at = packet_at(frame);
    let inner = match (is_four(frame), icmp(frame)) {
        (true, Some([3 | 4 | 5 | 11 | 12, _])) => at + usize::from(frame.get(at)? & 15) * 4 + 8,
        (false, Some([1..=4, _])) => at + 48,
        (false, Some([137, _])) => {
            let to: [u8; 16] = *frame.get(at + 64..)?.first_chunk()?;
            return Some((0, to.into()));
        }
        _ => return Some((tag(frame)?, addresses(frame)?[1])),
    };
    let frame = [&frame[..at], frame.get(inner..)?].concat();
    Some((tag(&frame)?, addresses(&frame)?[1]))
}

fn is_redirect(frame: &[u8]) -> bool {
    matches!((is_four(frame), icmp(frame)), (true, Some([5, _])) | (false, Some([137, _])))
}

/// Removes pairs of frames that took two members of one group.
fn members(config: &Config, first: &mut Tally, second: &mut Tally) {
    let ours: Vec<_> = first.keys().cloned().collect();
    for one in ours {
        let others: Vec<_> =
            second.keys().filter(|other| are_members(config, &one, other)).cloned().collect();
        for other in others {
            let count = |tally: &Tally, sent| tally.get(sent).copied().unwrap_or(0);
            let pairs = count(first, &one).min(count(second, &other));
            take(first, &one, pairs);
            take(second, &other, pairs);
        }
    }
}

fn are_members(config: &Config, one: &Sent, other: &Sent) -> bool {
    let packet = |sent: &Sent| sent.1.get(packet_at(&sent.1)..).map(<[u8]>::to_vec);
    let Some([_, to]) = addresses(&one.1) else { return false };
    let tries = config.lines.iter().any(|line| line.text == "ipv4/fib_multipath_use_neigh=1");
    let has = |sent: &Sent, group: &super::config::Group| {
        (tries || group.tries) && group.has(sent.0, &sent.1[..6], to)
    };
    packet(one) == packet(other)
        && config.groups(to).iter().any(|group| has(one, group) && has(other, group))
}
