//! The verdict of the path on a packet: dropped, punted or delivered, and why.

/// Declares an enum of reasons with the names that counters show, in declaration order.
macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every reason, in the order of its number.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];
            /// The number of reasons.
            pub const COUNT: usize = Self::ALL.len();

            /// The reason's name as counters show it.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $text,)+ }
            }
        }
    };
}

reasons! {
    /// Why a packet was dropped; names are those of Linux's `skb_drop_reason`
    /// (`include/net/dropreason-core.h`) in lower case, if Linux has the reason.
    DropReason {
        /// The frame ends within its Ethernet header, or the packet before its length field says.
        PktTooSmall = "pkt_too_small",
        /// The frame does not fit the memory chunk that a port has for it, or is longer than a bridge's port can send.
        PktTooBig = "pkt_too_big",
        /// The destination MAC address is another station's.
        OtherHost = "otherhost",
        /// The VLAN tag matches no link of the port (Linux counts these as `otherhost`).
        VlanUnknown = "vlan_unknown",
        /// More VLAN tags than links can be stacked.
        VlanTooDeep = "vlan_too_deep",
        /// The router does not handle this ethertype.
        UnhandledProto = "unhandled_proto",
        /// The IPv4 or IPv6 header contradicts itself: version, header length, total length.
        IpInhdr = "ip_inhdr",
        /// The IPv4 header checksum is wrong.
        IpCsum = "ip_csum",
        /// The source address is not valid for a sender: multicast, broadcast, loopback, 0.0.0.0.
        IpInvalidSource = "ip_invalid_source",
        /// The source address is one of the router's own.
        IpLocalSource = "ip_local_source",
        /// There is no route to the source, or it does not lead to the ingress link (reverse path
        /// filter).
        IpRpfilter = "ip_rpfilter",
        /// The destination address cannot be forwarded to: loopback, zero.
        IpInvalidDest = "ip_invalid_dest",
        /// A blackhole route matched.
        Blackhole = "blackhole",
        /// A packet to be forwarded arrived in a broadcast or multicast frame.
        UnicastInL2Multicast = "unicast_in_l2_multicast",
        /// A neighbour did not answer.
        NeighFailed = "neigh_failed",
        /// Too many packets wait for one neighbour, or for all of them.
        NeighQueueFull = "neigh_queuefull",
        /// An IPv4 option is malformed or not allowed (source routes).
        IpOptions = "ip_options",
        /// The egress port could not take the frame: its queue is full, it is down or gone.
        DevTxFailed = "dev_tx_failed",
        /// A firewall rule, or a chain's policy, drops the packet.
        NetfilterDrop = "netfilter_drop",
        /// The kernel would have to answer too many packets for one reason.
        PuntLimit = "punt_limit",
        /// The kernel did not accept the packet.
        PuntFailed = "punt_failed",
        /// The rules of a configuration could not be evaluated: no evaluator was available, or the
        /// configuration changed.
        FailClosed = "fail_closed",
        /// A rule translates it to an address of the router, whose kernel does not know the rule: it could not translate
        /// the answers.
        NoSocket = "no_socket",
        /// The source address is no station's: a group address, or zero.
        MacInvalidSource = "mac_invalid_source",
        /// The destination is a group address that no bridge forwards (01:80:c2:00:00:00 to :0f; IEEE 802.1Q-2018,
        /// table 8-1).
        MacReserved = "mac_reserved",
        /// No port of the bridge may get the frame: the destination is behind the port that it came from, or both are
        /// isolated, or there is no other port.
        NoTxTarget = "no_tx_target",
        /// More frames were to be flooded from the port than its storm limit allows.
        StormLimit = "storm_limit",
        /// There was no memory for a copy of a frame that was flooded.
        NoMem = "nomem",
    }
}

reasons! {
    /// Why a packet exits the fast path to the slow path (in file mode: [`crate::host`]).
    PuntReason {
        /// IPv4 options.
        IpOptions = "ip_options",
        /// An IPv6 hop-by-hop header.
        HopByHop = "hop_by_hop",
        /// TTL or hop limit expired: the router has to answer with ICMP time exceeded.
        TtlExpired = "ttl_expired",
        /// No route: the router has to answer with ICMP unreachable.
        NoRoute = "no_route",
        /// An `unreachable` route: the router has to answer with ICMP unreachable.
        Unreachable = "unreachable",
        /// A `prohibit` route: the router has to answer with ICMP administratively prohibited.
        Prohibit = "prohibit",
        /// Larger than the egress MTU: the router has to fragment it, or answer with "too big".
        MtuExceeded = "mtu_exceeded",
        /// A link-local source whose packet would exit its link (RFC 4291, 2.5.6).
        LinkLocalSource = "link_local_source",
        /// The neighbour's address is not known yet: the packet waits for it.
        NeighUnresolved = "neigh_unresolved",
        /// A rule rejects it: the router has to answer with an ICMP error or a TCP reset.
        Reject = "reject",
        /// It reached a rule that the filter does not support: the kernel decides.
        FilterUnsupported = "filter_unsupported",
        /// It arrived on a link whose packets of this family take the kernel path.
        KernelLink = "kernel_link",
        /// Its route takes the kernel path: over a device that Tollway does not handle, or of an
        /// unsupported kind.
        KernelRoute = "kernel_route",
        /// A policy rule sends it to the kernel path.
        KernelRule = "kernel_rule",
        /// Its egress link is its ingress link: the kernel may have to send a redirect.
        Redirect = "redirect",
        /// Its source cannot be valid; the kernel may log it.
        Martian = "martian",
        /// Only the kernel can decide whether its source is valid.
        KernelSource = "kernel_source",
        /// Its route leads to a link by which only the kernel sends.
        KernelExit = "kernel_exit",
    }
}

impl DropReason {
    /// Says whether a drop for this reason may apply to every packet of the flow. The route or the
    /// firewall's rules decide whether it does.
    #[must_use]
    pub const fn may_be_of_flow(self) -> bool {
        matches!(self, Self::Blackhole | Self::NetfilterDrop)
    }
}

impl PuntReason {
    /// Says whether a punt for this reason applies to every packet of the flow, unless the verdict
    /// depended on more than the flow.
    #[must_use]
    pub const fn is_of_flow(self) -> bool {
        matches!(
            self,
            Self::KernelLink
                | Self::KernelRoute
                | Self::KernelRule
                | Self::KernelSource
                | Self::KernelExit
                | Self::Redirect
                | Self::FilterUnsupported
        )
    }
}

/// Where a packet goes when it exits the path.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Dropped and counted.
    Drop(DropReason),
    /// Handed to the slow path.
    Punt(PuntReason),
    /// Delivered to the router itself.
    Local,
}
