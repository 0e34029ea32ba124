//! Packets that the router itself makes: its answers to translated packets, and errors about these.

use super::super::binding::Manip;
use super::super::{Filter, Tracker, tracking};
use super::stage::write;
use crate::wire::translate::{Translation, translate};

/// Translates a packet that the router has made, if it belongs to a translated connection (`nf_nat_ipv4_local_fn`, and
/// hook postrouting behind it).
pub(crate) fn translate_own(filter: &Filter, packet: &mut [u8], now_ns: u64) {
    if let Some(aliases) = filter.aliases()
        && let Some(new) = aliases.translate_own_error(packet, now_ns)
    {
        // What is truncated stays.
        let _ = new.apply(packet);
    }
    let Some((tracker, version)) = translating(filter, packet) else { return };
    for (manip, end) in [Manip::Destination, Manip::Source].into_iter().zip(tracking::ends_of_own(
        tracker,
        (version, packet),
        now_ns,
    )) {
        if let Some(end) = end {
            write(packet, end, manip);
        }
    }
}

/// Gives a packet that nobody could receive the addresses with which it has come, for the error to its sender.
pub(crate) fn restore(filter: &Filter, packet: &mut [u8], now_ns: u64) {
    if let Some(aliases) = filter.aliases()
        && let Some(came) = aliases.restore(packet, now_ns)
    {
        let _ = translate(packet, &came);
    }
    let Some((tracker, version)) = translating(filter, packet) else { return };
    let [source, destination] = tracking::ends_of_answer(tracker, (version, packet), now_ns);
    let new = Translation {
        source: source.map(|end| end.address),
        source_port: source.map(|end| end.port),
        destination: destination.map(|end| end.address),
        destination_port: destination.map(|end| end.port),
    };
    // What is truncated stays.
    let _ = translate(packet, &new);
}

/// What tracks the connections of a packet, if it translates them, and the version of IP.
fn translating<'a>(filter: &'a Filter, packet: &[u8]) -> Option<(&'a Tracker, u8)> {
    let version = packet.first()? >> 4;
    filter.tracker().filter(|tracker| tracker.translates(version)).map(|tracker| (tracker, version))
}
