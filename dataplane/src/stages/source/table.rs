use std::net::Ipv4Addr;

use crate::id::LinkId;
use crate::tables::{Tables, TablesError};

/// Whether the route to a source is looked up, and what it has to be (`rp_filter`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Rpf {
    /// It is not looked up.
    #[default]
    Off,
    /// No `rp_filter`, but the source's kind is that of its route: there are policy rules, or local routes
    /// beside those of addresses (`fib_has_custom_rules`, `fib_has_custom_local_routes`).
    Kind,
    /// There has to be one, by whichever link (`rp_filter` 2).
    Loose,
    /// It has to lead to the link that the packet came by (`rp_filter` 1).
    Strict,
    /// The same for a link without IPv4 addresses, which has this for `rp_filter` 2, too. With its last
    /// address its next hops die (`fib_disable_ip`), and are in no group here; the kernel's check goes over
    /// dead ones as well (`fib_info_nh_uses_dev`), so it decides where a group leads elsewhere.
    Unnumbered,
}

/// What a link asks of the sources of IPv4 packets.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceCheck {
    /// None of the router's own addresses (unless `accept_local` is set).
    pub own: bool,
    /// The route back.
    pub rpf: Rpf,
    /// Martians go to the kernel, which logs them (`log_martians`).
    pub martians_to_kernel: bool,
}

/// How the route to a source is looked up, where it is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceLookup {
    /// With the packet's mark (`src_valid_mark`); else as if it had none.
    pub mark: bool,
    /// Rules match on the input device, which on the way back is the one that the packet goes out by.
    pub by_input: bool,
    /// The VRF device that the link belongs to.
    pub vrf_device: Option<u32>,
}

/// What links ask of sources.
#[derive(Debug)]
pub(crate) struct Sources {
    checks: Vec<Check>,
    own: Addresses,
    broadcast: Addresses,
    /// Some link has the kernel log martians.
    pub(crate) tells: bool,
    /// Some link belongs to a VRF device.
    has_vrfs: bool,
}

/// What one link asks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Check {
    pub(crate) is: SourceCheck,
    pub(crate) by: SourceLookup,
}

impl Sources {
    fn new() -> Self {
        let [own, broadcast] = [Addresses::new(&[]), Addresses::new(&[])];
        Self { checks: Vec::new(), own, broadcast, tells: false, has_vrfs: false }
    }

    /// What a link asks.
    #[inline(always)]
    pub(crate) fn of(&self, link: LinkId) -> Check {
        self.checks.get(usize::from(link.0)).copied().unwrap_or_default()
    }

    /// Says if the route back is the same by whichever link a packet goes out.
    #[inline(always)]
    pub(super) const fn has_one_way_back(&self, check: Check) -> bool {
        !check.by.by_input && (check.by.vrf_device.is_some() || !self.has_vrfs)
    }

    /// Says if an address may be one that is looked for.
    #[inline(always)]
    pub(super) fn may_have(&self, address: u32) -> bool {
        self.own.may_have(address) | self.broadcast.may_have(address)
    }

    /// Says if an address is one of the router's own.
    pub(super) fn is_own(&self, address: u32) -> bool {
        self.own.has(address)
    }

    /// Says if an address is a broadcast one.
    pub(super) fn is_broadcast(&self, address: u32) -> bool {
        self.broadcast.has(address)
    }

    fn is_idle(&self) -> bool {
        let asks = self.checks.iter().any(|check| *check != Check::default());
        !asks && self.own.is_empty() && self.broadcast.is_empty()
    }
}

/// Addresses, with a sieve before them that most others do not pass: one bit for the hash of each.
#[derive(Debug)]
struct Addresses {
    sorted: Vec<u32>,
    sieve: Box<[u64]>,
    /// By how many bits a hash is shifted down to be a bit's number.
    shift: u32,
}

impl Addresses {
    fn new(addresses: &[Ipv4Addr]) -> Self {
        let mut sorted: Vec<_> = addresses.iter().map(|address| address.to_bits()).collect();
        sorted.sort_unstable();
        sorted.dedup();
        // One bit in 64 at most is set, and it is a quarter of a page as long as there are few.
        let bits = (sorted.len() * 64).next_power_of_two().clamp(1 << 13, 1 << 24);
        let mut new =
            Self { sieve: vec![0; bits / 64].into(), shift: 32 - bits.trailing_zeros(), sorted };
        for index in 0..new.sorted.len() {
            let bit = new.bit(new.sorted[index]);
            new.sieve[bit / 64] |= 1 << (bit % 64);
        }
        new
    }

    #[inline(always)]
    fn bit(&self, address: u32) -> usize {
        // Any odd number does; this one is 2^32 divided by the golden ratio.
        (address.wrapping_mul(0x9e37_79b9) >> (self.shift & 31)) as usize
    }

    #[inline(always)]
    fn may_have(&self, address: u32) -> bool {
        let bit = self.bit(address);
        self.sieve.get(bit / 64).is_some_and(|word| word >> (bit % 64) & 1 != 0)
    }

    fn has(&self, address: u32) -> bool {
        self.sorted.binary_search(&address).is_ok()
    }

    fn is_empty(&self) -> bool {
        self.sorted.is_empty()
    }
}

impl Tables {
    /// Says what a link asks of the sources of IPv4 packets.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn set_source(&mut self, link: LinkId, check: SourceCheck) -> Result<(), TablesError> {
        self.change_check(link, |known| known.is = check)
    }

    /// Says how a link looks up the routes to sources.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn set_source_lookup(
        &mut self,
        link: LinkId,
        lookup: SourceLookup,
    ) -> Result<(), TablesError> {
        self.change_check(link, |known| known.by = lookup)
    }

    fn change_check(
        &mut self,
        link: LinkId,
        change: impl FnOnce(&mut Check),
    ) -> Result<(), TablesError> {
        self.links.get(usize::from(link.0)).ok_or(TablesError::Unknown)?;
        self.change_sources(|all| {
            let index = usize::from(link.0);
            if all.checks.len() <= index {
                all.checks.resize(index + 1, Check::default());
            }
            change(&mut all.checks[index]);
        });
        Ok(())
    }

    /// Says which IPv4 addresses are the router's own, in all VRFs, in the place of those that were.
    pub fn set_own_addresses(&mut self, v4: &[Ipv4Addr]) {
        self.change_sources(|all| all.own = Addresses::new(v4));
    }

    /// Says which IPv4 addresses are broadcast ones, in the place of those that were: where the route to a
    /// source is not looked up, the kernel decides about these.
    pub fn set_broadcast_addresses(&mut self, v4: &[Ipv4Addr]) {
        self.change_sources(|all| all.broadcast = Addresses::new(v4));
    }

    fn change_sources(&mut self, change: impl FnOnce(&mut Sources)) {
        let all = self.sources.get_or_insert_with(|| Box::new(Sources::new()));
        change(all);
        all.tells = all.checks.iter().any(|check| check.is.martians_to_kernel);
        all.has_vrfs = all.checks.iter().any(|check| check.by.vrf_device.is_some());
        if all.is_idle() {
            self.sources = None;
        }
        self.epochs.changes.note();
    }

    /// Whether what becomes of packets from a link depends on the route to their source.
    #[inline(always)]
    #[must_use]
    pub fn asks_for_source(&self, link: LinkId) -> bool {
        self.sources.as_ref().is_some_and(|sources| sources.of(link).is.rpf != Rpf::Off)
    }
}
