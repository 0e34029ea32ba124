//! What the path says about a packet: sent, dropped, punted or delivered, and why.

/// Declares an enum of reasons with the name that counters show, in declaration order.
macro_rules! reasons {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident = $text:literal,)+ }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum $name { $($(#[$doc])* $variant,)+ }

        impl $name {
            /// Every reason, in the order of its number.
            pub const ALL: &[Self] = &[$(Self::$variant,)+];
            /// How many reasons there are.
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
    /// Why a packet was dropped; names follow Linux's `skb_drop_reason`
    /// (`include/net/dropreason-core.h`) in lower case where Linux has the reason.
    DropReason {
        /// The frame ends before its Ethernet header, or the packet before its length field says.
        PktTooSmall = "pkt_too_small",
        /// The frame does not fit the memory chunk that a port has for it.
        PktTooBig = "pkt_too_big",
        /// The destination MAC address is another station's.
        OtherHost = "otherhost",
        /// The VLAN tag names no link of the port (Linux counts these as `otherhost`).
        VlanUnknown = "vlan_unknown",
        /// More VLAN tags than links can be stacked.
        VlanTooDeep = "vlan_too_deep",
        /// The ethertype is none that the router speaks.
        UnhandledProto = "unhandled_proto",
        /// The IPv4 or IPv6 header contradicts itself: version, header length, total length.
        IpInhdr = "ip_inhdr",
        /// The IPv4 header checksum is wrong.
        IpCsum = "ip_csum",
        /// The source address can not be a sender's: multicast, broadcast, loopback, 0.0.0.0.
        IpInvalidSource = "ip_invalid_source",
        /// The source address is one of the router's own.
        IpLocalSource = "ip_local_source",
        /// The route to the source does not lead where the packet came from, or there is none
        /// (reverse path filter).
        IpRpfilter = "ip_rpfilter",
        /// The destination address can not be forwarded to: loopback, zero.
        IpInvalidDest = "ip_invalid_dest",
        /// A blackhole route matched.
        Blackhole = "blackhole",
        /// A packet that is to be forwarded came in a broadcast or multicast frame.
        UnicastInL2Multicast = "unicast_in_l2_multicast",
        /// A neighbour did not answer.
        NeighFailed = "neigh_failed",
        /// Too many packets wait for one neighbour, or for all of them.
        NeighQueueFull = "neigh_queuefull",
        /// An IPv4 option is malformed or not allowed (source routes).
        IpOptions = "ip_options",
        /// The egress port could not take the frame: its queue is full, it is down or gone.
        DevTxFailed = "dev_tx_failed",
        /// A rule of the firewall, or a chain's policy, says so.
        NetfilterDrop = "netfilter_drop",
        /// More packets than the kernel is to be given to answer, for one reason.
        PuntLimit = "punt_limit",
        /// The kernel did not take a packet back.
        PuntFailed = "punt_failed",
        /// The rules of a configuration could not be asked: nobody was there, or the configuration changed.
        FailClosed = "fail_closed",
    }
}

reasons! {
    /// Why a packet left the fast road for the slow one (in file mode: [`crate::host`]).
    PuntReason {
        /// IPv4 options.
        IpOptions = "ip_options",
        /// An IPv6 hop-by-hop header.
        HopByHop = "hop_by_hop",
        /// TTL or hop limit ran out: the sender is owed an ICMP time exceeded.
        TtlExpired = "ttl_expired",
        /// No route: the sender is owed an ICMP unreachable.
        NoRoute = "no_route",
        /// An `unreachable` route: the sender is owed an ICMP unreachable.
        Unreachable = "unreachable",
        /// A `prohibit` route: the sender is owed an ICMP administratively prohibited.
        Prohibit = "prohibit",
        /// Larger than the egress MTU: to be fragmented, or answered with "too big".
        MtuExceeded = "mtu_exceeded",
        /// A link-local source that wants to leave its link (RFC 4291, 2.5.6).
        LinkLocalSource = "link_local_source",
        /// The neighbour's address is not known yet: the packet is held meanwhile.
        NeighUnresolved = "neigh_unresolved",
        /// A rule rejects it: the sender is owed an ICMP error or a TCP reset.
        Reject = "reject",
        /// It has come to a rule that the filter can not do: the kernel's to decide.
        FilterUnsupported = "filter_unsupported",
        /// It came by a link whose packets of this family are the kernel's.
        KernelLink = "kernel_link",
        /// Its route is the kernel's: by a device that is none of the router's, or of an odd kind.
        KernelRoute = "kernel_route",
        /// A policy rule leaves it to the kernel.
        KernelRule = "kernel_rule",
        /// It would leave by the link that it came by: the kernel may owe its sender a redirect.
        Redirect = "redirect",
        /// Its source can not be right, which the kernel is to log.
        Martian = "martian",
        /// Only the kernel can say if its source is right.
        KernelSource = "kernel_source",
    }
}

impl PuntReason {
    /// Whether what punts one packet punts every other of its flow, unless its verdict depended on more than
    /// the flow.
    #[must_use]
    pub const fn is_of_flow(self) -> bool {
        matches!(
            self,
            Self::KernelLink
                | Self::KernelRoute
                | Self::KernelRule
                | Self::KernelSource
                | Self::Redirect
                | Self::FilterUnsupported
        )
    }
}

/// Where a packet goes when it leaves the road.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Dropped and counted.
    Drop(DropReason),
    /// Handed to the slow path.
    Punt(PuntReason),
    /// For the router itself.
    Local,
}
