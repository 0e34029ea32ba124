//! Reads the kernel's messages about the forwarding databases of its bridges.

use tollway_linux::netlink::{Message, attributes};

/// A network device's number.
pub(super) type Ifindex = u32;

/// `RTM_*`.
const NEW_NEIGH: u16 = 28;
const DEL_NEIGH: u16 = 29;
pub(super) const GET_NEIGH: u16 = 30;

/// Length of `struct ndmsg`.
const HEADER: usize = 12;

/// The body of a request for all entries: a `struct ndmsg` of the family of bridges.
pub(super) const ALL: [u8; HEADER] = [libc::AF_BRIDGE as u8, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

/// The key of an entry: the bridge's device, the VLAN (0 while the bridge does not filter VLANs) and the MAC address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct EntryKey {
    pub(super) bridge: Ifindex,
    pub(super) vid: u16,
    pub(super) mac: [u8; 6],
}

/// What the kernel uses an entry for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum EntryKind {
    /// Frames for a host go to a device.
    Host,
    /// Frames go up at the bridge's device.
    Local,
    /// As for a host, but that must not send yet.
    Locked,
    /// The kernel removes it soon, or a frame makes it a host's again without a message.
    Expired,
}

/// An entry of the kernel, without its key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct KernelEntry {
    /// The bridge's member. For local entries the bridge itself: the kernel has a member there that changes without a
    /// message (`fdb_delete_local`).
    pub(super) device: Ifindex,
    pub(super) kind: EntryKind,
}

/// A message: an entry as it is now; none if it is gone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) key: EntryKey,
    pub(super) entry: Option<KernelEntry>,
}

/// A message that is too short for its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct CutShort;

/// Reads a message (`fdb_fill_info`, `net/bridge/br_fdb.c`); none if it is not about an entry of a bridge.
///
/// # Errors
/// The message ends within its header.
pub(super) fn read(message: &Message<'_>) -> Result<Option<Event>, CutShort> {
    if ![NEW_NEIGH, DEL_NEIGH].contains(&message.kind) {
        return Ok(None);
    }
    let header = message.body.first_chunk().ok_or(CutShort)?;
    let known = entry(header, message.body);
    let is_gone = message.kind == DEL_NEIGH;
    Ok(known.map(|(key, entry)| Event { key, entry: (!is_gone).then_some(entry) }))
}

/// The entry of a bridge. Others are a device's own (`NTF_SELF`): those of VXLAN, or the filter of a card.
fn entry(header: &[u8; HEADER], body: &[u8]) -> Option<(EntryKey, KernelEntry)> {
    /// `NDA_*`.
    const LLADDR: u16 = 2;
    const VLAN: u16 = 5;
    const MASTER: u16 = 9;
    const FLAGS_EXT: u16 = 15;
    /// `NTF_EXT_LOCKED`.
    const LOCKED: u32 = 2;
    let [family, _, _, _, i0, i1, i2, i3, s0, s1, flags, _] = *header;
    if i32::from(family) != libc::AF_BRIDGE || flags & libc::NTF_SELF != 0 {
        return None;
    }
    let (mut mac, mut bridge, mut vid, mut more_flags) = (None, None, 0, 0);
    for attribute in attributes(body, HEADER) {
        match attribute.kind {
            LLADDR => mac = attribute.value.try_into().ok(),
            MASTER => bridge = attribute.u32(),
            VLAN => vid = attribute.u16().unwrap_or_default(),
            FLAGS_EXT => more_flags = attribute.u32().unwrap_or_default(),
            _ => {}
        }
    }
    let (mac, bridge): ([u8; 6], Ifindex) = mac.zip(bridge)?;
    // Somebody may add a group's address; the kernel does not look it up here.
    if mac[0] & 1 != 0 || mac == [0; 6] {
        return None;
    }
    let member = u32::from_ne_bytes([i0, i1, i2, i3]);
    let kind = kind(u16::from_ne_bytes([s0, s1]), more_flags & LOCKED != 0);
    let device = if kind == EntryKind::Local { bridge } else { member };
    Some((EntryKey { bridge, vid, mac }, KernelEntry { device, kind }))
}

/// The kind of an entry in this state (`fdb_to_nud`).
const fn kind(state: u16, is_locked: bool) -> EntryKind {
    match state {
        libc::NUD_PERMANENT => EntryKind::Local,
        libc::NUD_NOARP | libc::NUD_REACHABLE if is_locked => EntryKind::Locked,
        libc::NUD_NOARP | libc::NUD_REACHABLE => EntryKind::Host,
        _ => EntryKind::Expired,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tollway_linux::netlink::{push, request};

    fn read_body(kind: u16, body: &[u8]) -> Result<Option<Event>, CutShort> {
        let bytes = request(kind, 0, 1, body);
        read(&Message::cut(&bytes).unwrap().0)
    }

    fn bytes(hex: &str) -> Vec<u8> {
        let hex: String = hex.split_whitespace().collect();
        let pairs = (0..hex.len()).step_by(2).map(|at| &hex[at..at + 2]);
        pairs.map(|pair| u8::from_str_radix(pair, 16).unwrap()).collect()
    }

    const fn key(last: u8) -> EntryKey {
        EntryKey { bridge: 2, vid: 0, mac: [2, 0, 0, 0, 0, last] }
    }

    const fn event(last: u8, device: Ifindex, kind: EntryKind) -> Option<Event> {
        Some(Event { key: key(last), entry: Some(KernelEntry { device, kind }) })
    }

    /// As Linux 6.18 sent them: `ndmsg`, `NDA_LLADDR`, `NDA_MASTER`, `NDA_FLAGS_EXT`, `NDA_CACHEINFO`.
    #[test]
    fn messages_of_the_kernel_are_read() {
        let new = |hex: &str| read_body(NEW_NEIGH, &bytes(hex)).unwrap();
        let learned = "07000000 06000000 02000000 0a00 0200 020000000007 0000 0800 0900 02000000 \
                       0800 0f00 00000000 1400 0300 00000000 1f000000 00000000 00000000";
        assert_eq!(new(learned), event(7, 6, EntryKind::Host));
        let fixed = "07000000 04000000 40000000 0a00 0200 020000000008 0000 0800 0900 02000000 \
                     0800 0f00 00000000 1400 0300 00000000 00000000 00000000 00000000";
        assert_eq!(new(fixed), event(8, 4, EntryKind::Host));
        let local = "07000000 04000000 80000000 0a00 0200 020000000009 0000 0800 0900 02000000 \
                     0800 0f00 00000000 1400 0300 00000000 00000000 00000000 00000000";
        assert_eq!(new(local), event(9, 2, EntryKind::Local), "whichever member it has");
        let of_a_tunnel = "07000000 07000000 c0000201 0a00 0200 02000000000c 0000 \
                           0800 0100 0a000001 1400 0300 00000000 00000000 00000000 00000000";
        assert_eq!(new(of_a_tunnel), None);
        let of_a_card = "07000000 04000000 c0000200 0a00 0200 02000000000b 0000";
        assert_eq!(new(of_a_card), None);
        let of_a_group = "07000000 04000000 40000000 0a00 0200 03000000000b 0000 0800 0900 02000000 \
                          0800 0f00 00000000 1400 0300 00000000 00000000 00000000 00000000";
        assert_eq!(new(of_a_group), None);
        let aged = "07000000 04000000 04000000 0a00 0200 02000000000e 0000 0800 0900 02000000 \
                    0800 0f00 00000000 1400 0300 00000000 1f000000 1f000000 00000000";
        let gone = Event { key: key(14), entry: None };
        assert_eq!(read_body(DEL_NEIGH, &bytes(aged)), Ok(Some(gone)));
        assert_eq!(new(aged), event(14, 4, EntryKind::Expired), "in a list");
        assert_eq!(read_body(16, &bytes(learned)), Ok(None), "another kind of message");
    }

    /// An entry of a bridge 2 at the device 7.
    fn body(state: u16, flags: u8, vid: u16, more_flags: u32) -> Vec<u8> {
        let mut body = vec![libc::AF_BRIDGE as u8, 0, 0, 0];
        body.extend(7_u32.to_ne_bytes());
        body.extend(state.to_ne_bytes());
        body.extend([flags, 0]);
        push(&mut body, 2, &key(1).mac);
        push(&mut body, 9, &2_u32.to_ne_bytes());
        push(&mut body, 15, &more_flags.to_ne_bytes());
        push(&mut body, 5, &vid.to_ne_bytes());
        body
    }

    #[test]
    fn states_and_flags_decide_the_kind() {
        const LOCKED: u32 = 2;
        for state in 0..=0xff {
            for (more_flags, host) in [(0, EntryKind::Host), (LOCKED, EntryKind::Locked)] {
                let expected = match state {
                    0x80 => event(1, 2, EntryKind::Local),
                    0x40 | 0x02 => event(1, 7, host),
                    _ => event(1, 7, EntryKind::Expired),
                };
                let read = read_body(NEW_NEIGH, &body(state, 0, 0, more_flags)).unwrap();
                assert_eq!(read, expected, "{state:#x}, {more_flags:#x}");
            }
        }
        // `NTF_EXT_LEARNED`, `NTF_OFFLOADED`, `NTF_STICKY`.
        let read = read_body(NEW_NEIGH, &body(2, 0x70, 0, 0)).unwrap();
        assert_eq!(read, event(1, 7, EntryKind::Host));
        let read = read_body(NEW_NEIGH, &body(2, 0, 4094, 0)).unwrap().unwrap();
        assert_eq!(read.key, EntryKey { vid: 4094, ..key(1) });
        let mut of_ip = body(2, 0, 0, 0);
        of_ip[0] = libc::AF_INET as u8;
        assert_eq!(read_body(NEW_NEIGH, &of_ip), Ok(None));
    }

    #[test]
    fn a_message_that_is_cut_short_is_no_entry() {
        let whole = body(2, 0, 0, 0);
        for end in 0..whole.len() {
            let read = read_body(NEW_NEIGH, &whole[..end]);
            match end {
                0..HEADER => assert_eq!(read, Err(CutShort)),
                // Up to the bridge, which is behind the address.
                HEADER..32 => assert_eq!(read, Ok(None), "{end}"),
                _ => assert!(read.unwrap().is_some(), "{end}"),
            }
        }
    }
}
