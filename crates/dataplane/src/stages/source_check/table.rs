use std::net::Ipv4Addr;

use crate::id::LinkId;

/// Whether the stage looks up the route to a source, and what that route must be (`rp_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rpf {
    /// No lookup.
    #[default]
    Off,
    /// No `rp_filter`, but the route decides the source's kind: there are policy rules, or local routes
    /// beside those of addresses (`fib_has_custom_rules`, `fib_has_custom_local_routes`).
    Kind,
    /// The route must exist, over whichever link (`rp_filter` 2).
    Loose,
    /// The route must lead to the link that the packet arrived on (`rp_filter` 1).
    Strict,
    /// Like `Strict`, for a link without IPv4 addresses; the kernel uses it for `rp_filter` 2, too.
    /// When the link loses its last address, its next hops die (`fib_disable_ip`) and leave the groups
    /// of these tables. The kernel's check also covers dead next hops (`fib_info_nh_uses_dev`). So if a
    /// group leads elsewhere, the kernel decides.
    Unnumbered,
}

/// A link's check of the sources of IPv4 packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCheck {
    /// The source must not be one of the router's own addresses (unless `accept_local` is set).
    pub own: bool,
    /// The check of the route back.
    pub rpf: Rpf,
    /// Martians take the kernel path, so that the kernel logs them (`log_martians`).
    pub martians_to_kernel: bool,
}

/// How the route to a source is looked up, if at all.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceLookup {
    /// With the packet's mark (`src_valid_mark`); otherwise without a mark.
    pub mark: bool,
    /// Rules match on the input device. For the route back, that is the packet's egress device.
    pub by_input: bool,
    /// The VRF device that the link belongs to.
    pub vrf_device: Option<u32>,
}

/// The source checks of all links.
#[derive(Clone, Debug)]
pub(crate) struct Sources {
    checks: Vec<Check>,
    own: Addresses,
    broadcast: Addresses,
    /// Whether the kernel logs the martians of any link.
    pub(crate) logs_martians: bool,
    /// Whether any link belongs to a VRF device.
    has_vrfs: bool,
}

/// The check of one link.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) source: SourceCheck,
    pub(crate) lookup: SourceLookup,
}

impl Sources {
    pub(crate) fn new() -> Self {
        let [own, broadcast] = [Addresses::new(&[]), Addresses::new(&[])];
        Self { checks: Vec::new(), own, broadcast, logs_martians: false, has_vrfs: false }
    }

    /// The check of a link.
    #[inline(always)]
    pub(crate) fn of(&self, link: LinkId) -> Check {
        self.checks.get(usize::from(link.0)).copied().unwrap_or_default()
    }

    /// Says whether the route back is the same for every egress link.
    #[inline(always)]
    pub(crate) const fn has_one_route_back(&self, check: Check) -> bool {
        !check.lookup.by_input && (check.lookup.vrf_device.is_some() || !self.has_vrfs)
    }

    /// Says whether an address may be among the own or broadcast addresses.
    #[inline(always)]
    pub(super) fn may_have(&self, address: u32) -> bool {
        self.own.may_have(address) | self.broadcast.may_have(address)
    }

    /// Says whether an address is one of the router's own.
    pub(super) fn is_own(&self, address: u32) -> bool {
        self.own.has(address)
    }

    /// Says whether an address is a broadcast address.
    pub(super) fn is_broadcast(&self, address: u32) -> bool {
        self.broadcast.has(address)
    }

    /// Changes the check of a link.
    pub(crate) fn change(&mut self, link: LinkId, change: impl FnOnce(&mut Check)) {
        let index = usize::from(link.0);
        if self.checks.len() <= index {
            self.checks.resize(index + 1, Check::default());
        }
        change(&mut self.checks[index]);
        self.logs_martians = self.checks.iter().any(|check| check.source.martians_to_kernel);
        self.has_vrfs = self.checks.iter().any(|check| check.lookup.vrf_device.is_some());
    }

    /// Replaces the router's own addresses.
    pub(crate) fn set_own(&mut self, addresses: &[Ipv4Addr]) {
        self.own = Addresses::new(addresses);
    }

    /// Replaces the broadcast addresses.
    pub(crate) fn set_broadcast(&mut self, addresses: &[Ipv4Addr]) {
        self.broadcast = Addresses::new(addresses);
    }

    /// Says whether there is nothing to check.
    pub(crate) fn is_idle(&self) -> bool {
        let has_checks = self.checks.iter().any(|check| *check != Check::default());
        !has_checks && self.own.is_empty() && self.broadcast.is_empty()
    }
}

/// A set of addresses, behind a Bloom filter with one bit for the hash of each.
#[derive(Clone, Debug)]
struct Addresses {
    sorted: Vec<u32>,
    bloom: Box<[u64]>,
    /// The number of bits to shift a hash down to get a bit's number.
    shift: u32,
}

impl Addresses {
    fn new(addresses: &[Ipv4Addr]) -> Self {
        let mut sorted: Vec<_> = addresses.iter().map(|address| address.to_bits()).collect();
        sorted.sort_unstable();
        sorted.dedup();
        // At most one bit in 64 is set; few addresses take a quarter of a page.
        let bits = (sorted.len() * 64).next_power_of_two().clamp(1 << 13, 1 << 24);
        let mut new =
            Self { bloom: vec![0; bits / 64].into(), shift: 32 - bits.trailing_zeros(), sorted };
        for index in 0..new.sorted.len() {
            let bit = new.bit(new.sorted[index]);
            new.bloom[bit / 64] |= 1 << (bit % 64);
        }
        new
    }

    #[inline(always)]
    fn bit(&self, address: u32) -> usize {
        // Any odd number works; this one is 2^32 divided by the golden ratio.
        (address.wrapping_mul(0x9e37_79b9) >> (self.shift & 31)) as usize
    }

    #[inline(always)]
    fn may_have(&self, address: u32) -> bool {
        let bit = self.bit(address);
        self.bloom.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }

    fn has(&self, address: u32) -> bool {
        self.sorted.binary_search(&address).is_ok()
    }

    fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }
}
