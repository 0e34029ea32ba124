//! Conditions of rules in canonical form, whether from the kernel's expressions or from nft's listing.

use tollway_firewall::ir::{ConnectionField, PayloadBase};

/// Where an expression loads bytes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Location {
    /// A header, or the bytes behind it.
    Payload(PayloadBase),
    /// An extension header of IPv6, by its number.
    Extension(u8),
    /// Whether there is such an extension header.
    Presence(u8),
    /// The packet's metadata (`NFT_META_*`).
    Meta(u32),
    /// A property of the packet's connection.
    Connection(ConnectionField),
}

/// What an expression loads into a register: some bits of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Load {
    pub(super) location: Location,
    pub(super) offset: u32,
    /// Number of bytes, at most 16.
    pub(super) bytes: u32,
    /// The bits that matter, in the number that the bytes form.
    pub(super) mask: u128,
}

/// A condition on what was loaded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// The number is in this range, or with `negate` is not.
    Range { load: Load, first: u128, last: u128, negate: bool },
    /// A set contains the numbers, or with `negate` does not.
    Set { keys: Vec<Load>, set: Lookup, negate: bool },
    /// The number is in one of these ranges, or with `negate` is in none.
    Ranges { load: Load, ranges: Vec<(u128, u128)>, negate: bool },
}

/// The set of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// A named set.
    Named(String),
    /// The elements of an anonymous set; `None` if they are not clear.
    Anonymous(Option<Vec<Entry>>),
}

/// An element: the first and the last number for each part of the key, and a map's datum.
pub(super) type Entry = (Vec<(u128, u128)>, Option<Datum>);

/// A map's datum for an element.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Datum {
    /// Bytes in host order.
    Number(Vec<u8>),
    /// A verdict with the chain that it leads to.
    Verdict { code: i32, chain: Option<String> },
}

/// `NFT_META_*`.
pub(super) const LEN: u32 = 0;
pub(super) const PROTOCOL: u32 = 1;
pub(super) const MARK: u32 = 3;
pub(super) const IIF: u32 = 4;
pub(super) const OIF: u32 = 5;
pub(super) const IIFNAME: u32 = 6;
pub(super) const OIFNAME: u32 = 7;
pub(super) const IIFTYPE: u32 = 8;
pub(super) const NFPROTO: u32 = 15;
pub(super) const L4PROTO: u32 = 16;

/// The length in bytes of a metadata key, and whether it is in host order.
pub(super) const fn meta(key: u32) -> Option<(u32, bool)> {
    Some(match key {
        LEN | MARK | IIF | OIF => (4, true),
        PROTOCOL => (2, false),
        IIFNAME | OIFNAME => (16, false),
        IIFTYPE => (2, true),
        NFPROTO | L4PROTO => (1, false),
        _ => return None,
    })
}

/// The greatest number of this many bytes.
pub(super) const fn all(bytes: u32) -> u128 {
    match bytes {
        0 => 0,
        1..16 => (1 << (bytes * 8)) - 1,
        _ => u128::MAX,
    }
}

impl Load {
    /// All bits of some bytes.
    pub(super) const fn whole(location: Location, offset: u32, bytes: u32) -> Self {
        Self { location, offset, bytes, mask: all(bytes) }
    }

    /// All bits of some bytes of a header.
    pub(super) const fn payload(base: PayloadBase, offset: u32, bytes: u32) -> Self {
        Self::whole(Location::Payload(base), offset, bytes)
    }

    /// All bits of a metadata key.
    pub(super) const fn meta(key: u32) -> Self {
        let bytes = match meta(key) {
            Some((bytes, _)) => bytes,
            None => 0,
        };
        Self::whole(Location::Meta(key), 0, bytes)
    }

    /// Says whether it is metadata with one of these keys.
    pub(super) fn is_meta(&self, keys: &[u32]) -> bool {
        matches!(self.location, Location::Meta(key) if keys.contains(&key))
    }

    /// The same bits without leading and trailing bytes that do not matter, and the number of bits cut off at
    /// the end.
    pub(super) fn trimmed(mut self) -> (Self, u32) {
        let mut behind = 0;
        if matches!(self.location, Location::Meta(_)) || self.mask == 0 {
            return (self, behind);
        }
        while self.bytes > 1 && self.mask >> ((self.bytes - 1) * 8) == 0 {
            self.offset += 1;
            self.bytes -= 1;
        }
        while self.bytes > 1 && self.mask & 0xff == 0 {
            self.mask >>= 8;
            self.bytes -= 1;
            behind += 8;
        }
        (self, behind)
    }

    /// The load as the key of a set.
    pub(super) fn as_key(self) -> Self {
        self.trimmed().0
    }
}

impl Test {
    /// A number is in a range, or is not. Conditions that mean the same compare equal, as far as kernels and
    /// nft differ.
    pub(super) fn range(load: Load, first: u128, last: u128, negate: bool) -> Self {
        let mut load = load;
        let (mut first, mut last, mut negate) = (first, last, negate);
        if load.is_meta(&[LEN]) {
            // No packet is longer.
            last = last.min(0xffff);
        }
        if load.mask != all(load.bytes) {
            // There are no values between the numbers that these bits can form.
            let low = load.mask & load.mask.wrapping_neg();
            let below = low.wrapping_sub(1);
            let is_one_piece =
                load.mask.checked_add(low).is_none_or(|above| above & load.mask == 0);
            if low != 0 && is_one_piece {
                first = first.saturating_add(below) & !below;
                last = last.min(load.mask) & !below;
            }
        }
        let low = load.mask & load.mask.wrapping_neg();
        if first != 0 && first <= low && last >= load.mask {
            // Some of these bits are set.
            (first, last, negate) = (0, 0, !negate);
        }
        // A range of all numbers that begin with the same bits.
        let open = last.wrapping_sub(first);
        let is_prefix = open & open.wrapping_add(1) == 0 && first & open == 0 && first <= last;
        if is_prefix
            && open != 0
            && open < all(load.bytes)
            && !matches!(load.location, Location::Meta(_))
        {
            load.mask &= !open;
            last = first;
        }
        if first == last {
            let (short, behind) = load.trimmed();
            if behind == 0 || first & ((1 << behind) - 1) == 0 {
                return Self::Range {
                    load: short,
                    first: first >> behind,
                    last: first >> behind,
                    negate,
                };
            }
        }
        Self::Range { load, first, last, negate }
    }

    /// The same condition in the form of [`Test::range`].
    pub(super) fn in_one_form(self) -> Self {
        match self {
            Self::Range { load, first, last, negate } => Self::range(load, first, last, negate),
            other => other,
        }
    }

    /// The load and the number that it must equal.
    pub(super) fn number(&self) -> Option<(Load, u128)> {
        match self {
            Self::Range { load, first, last, negate: false } if first == last => {
                Some((*load, *first))
            }
            _ => None,
        }
    }

    /// The version of IP of the packets that fulfil this. At the hooks of devices the Ethernet header may
    /// contain the type of a tag.
    pub(super) fn version(&self, is_at_device: bool) -> Option<u8> {
        let (load, number) = self.number()?;
        let type_at = if is_at_device { 16 } else { 12 };
        let is_type =
            load == Load::meta(PROTOCOL) || load == Load::payload(PayloadBase::Link, type_at, 2);
        match number {
            2 if load == Load::meta(NFPROTO) => Some(4),
            10 if load == Load::meta(NFPROTO) => Some(6),
            0x0800 if is_type => Some(4),
            0x86dd if is_type => Some(6),
            _ => None,
        }
    }

    /// Says whether packets that fulfil this are TCP; IPv4 if `is_4`.
    pub(super) fn is_tcp(&self, is_4: bool) -> bool {
        let of_4 = Load::payload(PayloadBase::Network, 9, 1);
        self.number().is_some_and(|(load, number)| {
            number == 6 && (load == Load::meta(L4PROTO) || is_4 && load == of_4)
        })
    }

    /// What the condition tests.
    pub(super) fn loads(&self) -> &[Load] {
        match self {
            Self::Range { load, .. } | Self::Ranges { load, .. } => std::slice::from_ref(load),
            Self::Set { keys, .. } => keys,
        }
    }
}
