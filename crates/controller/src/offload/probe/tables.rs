//! Rules of iptables-legacy, which nftables does not list.
//!
//! `/proc/net/ip_tables_names` names the existing tables. Their rules are read as iptables itself reads
//! them, by getsockopt(2) (`include/uapi/linux/netfilter_ipv4/ip_tables.h`).

use std::collections::BTreeSet;
use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, UdpSocket};
use std::os::fd::AsFd;

use crate::offload::PerFamily;
use tollway_linux::sys;

/// The differences between the families.
struct Layout {
    names: &'static str,
    level: libc::c_int,
    /// `IPT_SO_GET_INFO`; `IPT_SO_GET_ENTRIES` is the next.
    info: libc::c_int,
    /// The offset in `struct ipt_entry` of the target's offset; the entry's length follows.
    target: usize,
    /// The length of the entry in bytes; matches follow.
    entry: usize,
}

const V4: Layout = Layout {
    names: "/proc/thread-self/net/ip_tables_names",
    level: libc::SOL_IP,
    info: 64,
    target: 88,
    entry: 112,
};
const V6: Layout = Layout {
    names: "/proc/thread-self/net/ip6_tables_names",
    level: libc::SOL_IPV6,
    info: 64,
    target: 140,
    entry: 168,
};
/// `struct ipt_getinfo`: name, valid hooks, start of each hook's chain, position of its policy, ...
const INFO: usize = 84;
const VALID: usize = 32;
const BEGINS: usize = 36;
const POLICIES: usize = 56;
const SIZE: usize = 80;
/// `struct ipt_get_entries`: begins with name and size.
const ENTRIES: usize = 40;
/// The hooks of forwarded packets, by number and by the name of iptables' chain.
const FORWARD_HOOKS: [(usize, &str); 3] = [(0, "PREROUTING"), (2, "FORWARD"), (4, "POSTROUTING")];
/// `-NF_ACCEPT - 1`.
const ACCEPT: i32 = -2;
/// The position of the name in a match or a target, and of a target's verdict.
const NAME: std::ops::Range<usize> = 2..31;
const VERDICT: std::ops::Range<usize> = 32..36;
/// Matches and targets that enable connection tracking or reassembly of fragments.
const TRACKING: [&str; 21] = [
    "conntrack",
    "state",
    "connmark",
    "connlimit",
    "connbytes",
    "connlabel",
    "helper",
    "cluster",
    "socket",
    "CT",
    "NOTRACK",
    "CONNMARK",
    "CONNSECMARK",
    "SNAT",
    "DNAT",
    "MASQUERADE",
    "REDIRECT",
    "NETMAP",
    "SYNPROXY",
    "TPROXY",
    "CLUSTERIP",
];

/// The effect of the tables of a family.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Legacy {
    /// Chains with an effect on forwarded packets, such as `filter FORWARD`.
    pub chains: BTreeSet<String>,
    /// A rule, even one for the host's own packets only, enables connection tracking.
    pub tracks: bool,
}

/// Reads the tables of both families.
///
/// # Errors
/// No privilege.
pub(super) fn legacy() -> io::Result<PerFamily<Legacy>> {
    let v4 = read(&V4, || UdpSocket::bind((Ipv4Addr::UNSPECIFIED, 0)))?;
    let v6 = read(&V6, || UdpSocket::bind((Ipv6Addr::UNSPECIFIED, 0)))?;
    Ok(PerFamily { v4, v6 })
}

fn read(layout: &Layout, open: impl Fn() -> io::Result<UdpSocket>) -> io::Result<Legacy> {
    let mut legacy = Legacy::default();
    let names = match super::read_text(layout.names) {
        // The kernel has no such tables.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(legacy),
        names => names?,
    };
    for name in names.lines() {
        let socket = open()?;
        look(layout, &Table::read(layout, &socket, name)?, &mut legacy);
    }
    Ok(legacy)
}

/// A table as the kernel returns it.
struct Table {
    name: String,
    info: Vec<u8>,
    entries: Vec<u8>,
}

impl Table {
    fn read(layout: &Layout, socket: &UdpSocket, name: &str) -> io::Result<Self> {
        /// A table that changes between two requests has another size.
        const TRIES: usize = 4;
        let mut last = io::Error::from(io::ErrorKind::InvalidData);
        for _ in 0..TRIES {
            let mut info = named(name, INFO);
            sys::get_bytes(socket.as_fd(), layout.level, layout.info, &mut info)?;
            let size = word(&info, SIZE).unwrap_or(0) as usize;
            let mut entries = named(name, ENTRIES + size);
            entries[VALID..VALID + 4].copy_from_slice(&(size as u32).to_ne_bytes());
            match sys::get_bytes(socket.as_fd(), layout.level, layout.info + 1, &mut entries) {
                Ok(()) => {
                    let entries = entries.split_off(ENTRIES);
                    return Ok(Self { name: name.to_owned(), info, entries });
                }
                Err(error) if error.raw_os_error() == Some(libc::EAGAIN) => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// The position of the policy and of the chain's first entry, for a hook that the table has.
    fn chain(&self, hook: usize) -> Option<(usize, usize)> {
        let at = |base| word(&self.info, base + 4 * hook).map(|at| at as usize);
        let is_there = word(&self.info, VALID)? & 1 << hook != 0;
        is_there.then(|| Some((at(POLICIES)?, at(BEGINS)?))).flatten()
    }
}

/// A request for a table.
fn named(name: &str, len: usize) -> Vec<u8> {
    let mut bytes = vec![0; len];
    // The last byte stays zero.
    let name = &name.as_bytes()[..name.len().min(VALID - 1)];
    bytes[..name.len()].copy_from_slice(name);
    bytes
}

/// Records the effect of a table.
fn look(layout: &Layout, table: &Table, legacy: &mut Legacy) {
    for (hook, chain) in FORWARD_HOOKS {
        let Some((policy, begin)) = table.chain(hook) else { continue };
        let accepts = Entry::at(layout, &table.entries, policy)
            .is_some_and(|entry| entry.verdict() == Some(ACCEPT));
        if begin != policy || !accepts {
            legacy.chains.insert(format!("{} {chain}", table.name));
        }
    }
    let mut at = 0;
    while let Some(entry) = Entry::at(layout, &table.entries, at) {
        legacy.tracks |= entry.parts().any(|name| TRACKING.contains(&name));
        at += entry.bytes.len();
    }
}

/// A rule.
struct Entry<'a> {
    bytes: &'a [u8],
    target: usize,
    matches: usize,
}

impl<'a> Entry<'a> {
    /// `None` after the last one.
    fn at(layout: &Layout, entries: &'a [u8], at: usize) -> Option<Self> {
        let rest = entries.get(at..)?;
        let (target, end) = (half(rest, layout.target)?, half(rest, layout.target + 2)?);
        let bytes = rest.get(..end)?;
        // A shorter entry could keep the walk from ending.
        (end >= layout.entry && target <= end).then_some(Self {
            bytes,
            target,
            matches: layout.entry,
        })
    }

    /// The verdict of a target that has no name.
    fn verdict(&self) -> Option<i32> {
        let target = self.bytes.get(self.target..)?;
        let verdict = target.get(VERDICT)?.try_into().ok().map(i32::from_ne_bytes);
        verdict.filter(|_| name_of(target).is_empty())
    }

    /// The names of its matches and of its target.
    fn parts(&self) -> impl Iterator<Item = &'a str> {
        let (bytes, end) = (self.bytes, self.target);
        let mut at = self.matches;
        let matches = std::iter::from_fn(move || {
            let part = bytes.get(at..end).filter(|part| !part.is_empty())?;
            // A length of zero ends the list.
            let len = half(part, 0).filter(|len| *len > 0)?;
            at += len;
            Some(name_of(part))
        });
        matches.chain(std::iter::once(name_of(bytes.get(end..).unwrap_or_default())))
    }
}

/// The name of a match or target; empty if it is not text.
fn name_of(part: &[u8]) -> &str {
    let name = part.get(NAME).unwrap_or_default();
    let end = name.iter().position(|byte| *byte == 0).unwrap_or(name.len());
    std::str::from_utf8(&name[..end]).unwrap_or_default()
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(bytes.get(at..at + 4)?.try_into().ok()?))
}

fn half(bytes: &[u8], at: usize) -> Option<usize> {
    Some(u16::from_ne_bytes(bytes.get(at..at + 2)?.try_into().ok()?).into())
}

#[cfg(test)]
mod tests;
