//! Conditions of rules in canonical form, whether from the kernel's expressions or from nft's listing.

/// The location of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// In the Ethernet header.
    Link,
    /// In the IP header.
    Network,
    /// Behind the IP headers.
    Transport,
    /// In an extension header of IPv6, by its number.
    Extension(u8),
    /// Whether there is such an extension header.
    Presence(u8),
    /// The packet's metadata (`NFT_META_*`).
    Meta(u32),
}

/// Some bits of some bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Field {
    pub(super) base: Base,
    pub(super) offset: u32,
    /// Number of bytes, at most 16.
    pub(super) bytes: u32,
    /// The bits that matter, in the number that the bytes form.
    pub(super) mask: u128,
}

/// A condition on fields.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Test {
    /// The field is in this range, or with `negate` is not.
    Range { field: Field, first: u128, last: u128, negate: bool },
    /// A set contains the fields, or with `negate` does not.
    Set { keys: Vec<Field>, set: Lookup, negate: bool },
    /// The field is in one of these ranges, or with `negate` is in none.
    Ranges { field: Field, ranges: Vec<(u128, u128)>, negate: bool },
}

/// The set of a lookup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Lookup {
    /// A named set.
    Named(String),
    /// The elements of an anonymous set; `None` if they are not clear.
    Nameless(Option<Vec<Entry>>),
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

impl Field {
    /// All bits of some bytes.
    pub(super) const fn whole(base: Base, offset: u32, bytes: u32) -> Self {
        Self { base, offset, bytes, mask: all(bytes) }
    }

    /// All bits of a metadata key.
    pub(super) const fn meta(key: u32) -> Self {
        let bytes = match meta(key) {
            Some((bytes, _)) => bytes,
            None => 0,
        };
        Self::whole(Base::Meta(key), 0, bytes)
    }

    /// Says whether it is metadata with one of these keys.
    pub(super) fn is_meta(&self, keys: &[u32]) -> bool {
        matches!(self.base, Base::Meta(key) if keys.contains(&key))
    }

    /// The same bits without leading and trailing bytes that do not matter, and the number of bits cut off at
    /// the end.
    pub(super) fn trimmed(mut self) -> (Self, u32) {
        let mut behind = 0;
        if matches!(self.base, Base::Meta(_)) || self.mask == 0 {
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

    /// The field as the key of a set.
    pub(super) fn as_key(self) -> Self {
        self.trimmed().0
    }
}

impl Test {
    /// A field is in a range, or is not. Conditions that mean the same compare equal, as far as kernels and
    /// nft differ.
    pub(super) fn range(field: Field, first: u128, last: u128, negate: bool) -> Self {
        let mut field = field;
        let (mut first, mut last, mut negate) = (first, last, negate);
        if field.is_meta(&[LEN]) {
            // No packet is longer.
            last = last.min(0xffff);
        }
        if field.mask != all(field.bytes) {
            // There are no values between the numbers that these bits can form.
            let low = field.mask & field.mask.wrapping_neg();
            let below = low.wrapping_sub(1);
            let is_one_piece =
                field.mask.checked_add(low).is_none_or(|above| above & field.mask == 0);
            if low != 0 && is_one_piece {
                first = first.saturating_add(below) & !below;
                last = last.min(field.mask) & !below;
            }
        }
        let low = field.mask & field.mask.wrapping_neg();
        if first != 0 && first <= low && last >= field.mask {
            // Some of these bits are set.
            (first, last, negate) = (0, 0, !negate);
        }
        // A range of all numbers that begin with the same bits.
        let open = last.wrapping_sub(first);
        let is_prefix = open & open.wrapping_add(1) == 0 && first & open == 0 && first <= last;
        if is_prefix && open != 0 && open < all(field.bytes) && !matches!(field.base, Base::Meta(_))
        {
            field.mask &= !open;
            last = first;
        }
        if first == last {
            let (short, behind) = field.trimmed();
            if behind == 0 || first & ((1 << behind) - 1) == 0 {
                return Self::Range {
                    field: short,
                    first: first >> behind,
                    last: first >> behind,
                    negate,
                };
            }
        }
        Self::Range { field, first, last, negate }
    }

    /// The same condition in the form of [`Test::range`].
    pub(super) fn in_one_form(self) -> Self {
        match self {
            Self::Range { field, first, last, negate } => Self::range(field, first, last, negate),
            other => other,
        }
    }

    /// The field and the number that it must equal.
    pub(super) fn number(&self) -> Option<(Field, u128)> {
        match self {
            Self::Range { field, first, last, negate: false } if first == last => {
                Some((*field, *first))
            }
            _ => None,
        }
    }

    /// The fields of the condition.
    pub(super) fn fields(&self) -> &[Field] {
        match self {
            Self::Range { field, .. } | Self::Ranges { field, .. } => std::slice::from_ref(field),
            Self::Set { keys, .. } => keys,
        }
    }
}
