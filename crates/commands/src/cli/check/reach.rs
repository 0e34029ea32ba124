//! The conclusion of `tollway check DEVICE...`: its last line and its exit status.

use std::process::ExitCode;

use crate::control::{Offload, OffloadedFrames, Reasons, Why};

/// Reasons for which the kernel forwards nothing itself: there is nothing that could be fast.
const NOT_FORWARDED: [&str; 2] = ["forwarding_off", "no_family"];

/// How much of what the kernel forwards between devices would take the fast path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Reach {
    /// All of it.
    All,
    /// Part of it.
    Part,
    /// Nothing.
    Nothing,
}

impl Reach {
    pub(super) fn of(offload: &Offload) -> Self {
        let families = [
            Family::of(offload, |reasons| &reasons.ipv4),
            Family::of(offload, |reasons| &reasons.ipv6),
            Family::of_frames(offload),
        ];
        // Where next-hop groups take the kernel path, the routes that have one are a part.
        let is_excepted = !offload.parts.is_empty();
        match (
            families.iter().any(|family| family.fast),
            families.iter().any(|family| family.kernel),
        ) {
            (false, _) => Self::Nothing,
            (true, false) if !is_excepted => Self::All,
            (true, _) => Self::Part,
        }
    }

    /// The exit status.
    pub(super) fn status(self) -> ExitCode {
        match self {
            Self::All => ExitCode::SUCCESS,
            Self::Part => ExitCode::from(3),
            Self::Nothing => ExitCode::from(4),
        }
    }

    /// The last line of the report.
    pub(super) const fn sentence(self) -> &'static str {
        match self {
            Self::All => "All that the kernel forwards between them would be fast.",
            Self::Part => {
                "Part of what the kernel forwards between them would be fast (exit status 3)."
            }
            Self::Nothing => {
                "Nothing that the kernel forwards between them would be fast (exit status 4)."
            }
        }
    }
}

/// Where the packets of an IP version go, or frames between hosts of bridges.
struct Family {
    /// Some arrive and leave on the fast path.
    fast: bool,
    /// Some take the kernel path.
    kernel: bool,
}

impl Family {
    fn of(offload: &Offload, of: fn(&Reasons) -> &Vec<Why>) -> Self {
        let is_general = !of(&offload.general).is_empty();
        let forwarded = |why: &[Why]| !why.iter().any(is_not_forwarded);
        let links = || offload.links.iter().filter(|link| link.bridged.is_none());
        let arrives = || links().map(|link| of(&link.arrives));
        let leaves = || links().map(|link| of(&link.leaves));
        if !arrives().any(|why| forwarded(why)) {
            // What does not arrive to be forwarded does not leave either.
            return Self { fast: false, kernel: false };
        }
        let is_fast = arrives().any(Vec::is_empty) && leaves().any(Vec::is_empty);
        let is_excepted = arrives().chain(leaves()).any(|why| forwarded(why) && !why.is_empty());
        Self { fast: is_fast && !is_general, kernel: is_excepted || is_general }
    }

    fn of_frames(offload: &Offload) -> Self {
        let frames = || offload.links.iter().filter_map(|link| link.bridged.as_ref());
        let has_exceptions = |frames: &OffloadedFrames| {
            let OffloadedFrames { all, packets, tagged, .. } = frames;
            [all, &packets.ipv4, &packets.ipv6, tagged].into_iter().any(|why| !why.is_empty())
        };
        Self {
            fast: frames().any(|frames| frames.all.is_empty()),
            kernel: frames().any(has_exceptions),
        }
    }
}

fn is_not_forwarded(why: &Why) -> bool {
    NOT_FORWARDED.contains(&why.reason.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{OffloadedLink, OffloadedPart};

    fn why(reason: &str) -> Vec<Why> {
        vec![Why { reason: reason.to_owned(), why: String::new() }]
    }

    fn both(reason: &str) -> Reasons {
        Reasons { ipv4: why(reason), ipv6: why(reason) }
    }

    fn between(links: [(Reasons, Reasons); 2]) -> Offload {
        let link = |(arrives, leaves)| OffloadedLink {
            link: "eth0".to_owned(),
            port: "eth0".to_owned(),
            vrf: None,
            up: true,
            ipv4_fast: true,
            ipv6_fast: true,
            arrives,
            leaves,
            is_bridge: false,
            bridged: None,
        };
        Offload { links: links.map(link).into(), ..Offload::default() }
    }

    #[test]
    fn what_the_kernel_does_not_forward_does_not_count() {
        let fast = Reasons::default;
        let only_v4 = || Reasons { ipv6: why("forwarding_off"), ..fast() };
        let off_too =
            || Reasons { ipv6: [why("forwarding_off"), why("redirects")].concat(), ..fast() };
        let v6_out = || Reasons { ipv6: why("redirects"), ..fast() };
        for (links, expected) in [
            ([(fast(), fast()), (fast(), fast())], Reach::All),
            ([(only_v4(), fast()), (only_v4(), fast())], Reach::All),
            ([(only_v4(), v6_out()), (only_v4(), v6_out())], Reach::All),
            ([(off_too(), v6_out()), (off_too(), v6_out())], Reach::All),
            ([(fast(), v6_out()), (fast(), v6_out())], Reach::Part),
            ([(fast(), both("qdisc")), (fast(), fast())], Reach::Part),
            ([(fast(), both("qdisc")), (fast(), both("qdisc"))], Reach::Nothing),
            ([(both("forwarding_off"), fast()), (both("forwarding_off"), fast())], Reach::Nothing),
            ([(both("peer_checksums"), fast()), (both("peer_checksums"), fast())], Reach::Nothing),
        ] {
            let offload = between(links);
            assert_eq!(Reach::of(&offload), expected, "{:?}", offload.links);
        }
    }

    #[test]
    fn reasons_for_all_and_exceptions_count() {
        let fast = || between(Default::default());
        assert_eq!(Reach::of(&Offload { general: both("conntrack"), ..fast() }), Reach::Nothing);
        let v4 = Reasons { ipv4: why("xfrm"), ..Reasons::default() };
        assert_eq!(Reach::of(&Offload { general: v4.clone(), ..fast() }), Reach::Part);
        assert_eq!(Reach::of(&Offload { groups: v4, ..fast() }), Reach::All);
        let part = OffloadedPart { what: "1 route".to_owned(), why: "it is".to_owned() };
        assert_eq!(Reach::of(&Offload { parts: vec![part], ..fast() }), Reach::Part);
        assert_eq!(Reach::of(&Offload::default()), Reach::Nothing, "no link");
    }
}
