use super::table::VlanEntry;
use super::{InnerTag, MAX_TAGS, VlanTable};
use crate::id::{LinkId, Vid};
use crate::testkit::packet::{DOT1AD, DOT1Q, Mac, Tag, ip};
use crate::testkit::path_bench::{Outcome, PathBench};
use crate::testkit::wires::{LinkVariant, OVERLAP4, OVERLAP6};
use crate::verdict::DropReason;

/// The outcome for a packet with these tags, for the address `mac` of port 0; the same for both
/// families.
fn outcome(tags: &[Tag], mac: Mac) -> Outcome {
    let mut path_bench = PathBench::new();
    let [v4, v6] = [LinkVariant::Plain.host4(1), LinkVariant::Plain.host6(1)].map(|dst| {
        let frame = LinkVariant::Plain.packet(0, dst).to(mac).tagged(tags).build();
        match path_bench.send(0, &frame) {
            Outcome::Sent(port, bytes) => {
                assert_eq!(bytes, LinkVariant::Plain.forwarded(1, &frame));
                Outcome::Sent(port, Vec::new())
            }
            left => left,
        }
    });
    assert_eq!(v4, v6);
    v4
}

fn drop(reason: DropReason) -> Outcome {
    Outcome::Drop(reason)
}

const FORWARDED: Outcome = Outcome::Sent(1, Vec::new());
const MAC: Mac = LinkVariant::Plain.mac(0);

#[test]
fn each_link_has_its_tags() {
    for variant in LinkVariant::ALL {
        assert_eq!(outcome(variant.tags(), variant.mac(0)), FORWARDED, "{variant:?}");
    }
}

#[test]
fn priority_bits_do_not_matter() {
    for bits in [0x1000, 0x8000, 0xf000] {
        assert_eq!(outcome(&[(DOT1Q, bits | 10)], MAC), FORWARDED);
        assert_eq!(outcome(&[(DOT1AD, bits | 30), (DOT1Q, bits | 300)], MAC), FORWARDED);
        assert_eq!(outcome(&[(DOT1Q, bits)], MAC), FORWARDED);
    }
}

#[test]
fn priority_tags_are_skipped_wherever_they_are() {
    let (priority, vlan) = ((DOT1Q, 0), (DOT1Q, 10));
    assert_eq!(outcome(&[priority], MAC), FORWARDED);
    assert_eq!(outcome(&[(DOT1AD, 0)], MAC), FORWARDED);
    assert_eq!(outcome(&[priority, priority], MAC), FORWARDED);
    assert_eq!(outcome(&[priority, vlan], MAC), FORWARDED);
    assert_eq!(outcome(&[vlan, priority], MAC), FORWARDED);
    assert_eq!(outcome(&[(DOT1AD, 30), priority, (DOT1Q, 300)], MAC), FORWARDED);
    assert_eq!(outcome(&[priority, (DOT1AD, 30), (DOT1AD, 0), (DOT1Q, 300)], MAC), FORWARDED);
    assert_eq!(outcome(&[priority; MAX_TAGS], MAC), FORWARDED);
}

#[test]
fn too_many_tags_are_too_deep() {
    assert_eq!(outcome(&[(DOT1Q, 0); MAX_TAGS + 1], MAC), drop(DropReason::VlanTooDeep));
    assert_eq!(outcome(&[(DOT1Q, 0); MAX_TAGS + 4], MAC), drop(DropReason::VlanTooDeep));
    let three = [(DOT1Q, 40), (DOT1Q, 400), (DOT1Q, 10)];
    assert_eq!(outcome(&three, MAC), drop(DropReason::VlanUnknown));
}

#[test]
fn tags_of_no_link_are_unknown() {
    let unknown = [
        &[(DOT1Q, 11)][..],
        &[(DOT1Q, 4095)],
        &[(DOT1AD, 10)],
        &[(DOT1Q, 30)],
        &[(DOT1Q, 10), (DOT1Q, 300)],
        &[(DOT1AD, 30), (DOT1AD, 300)],
        &[(DOT1Q, 30), (DOT1Q, 300)],
        &[(DOT1Q, 400)],
        &[(DOT1Q, 400), (DOT1Q, 40)],
        &[(DOT1Q, 0), (DOT1Q, 11)],
    ];
    for tags in unknown {
        assert_eq!(outcome(tags, MAC), drop(DropReason::VlanUnknown), "{tags:x?}");
    }
}

#[test]
fn only_the_two_protocols_are_tags() {
    for protocol in [0x9100, 0x9200, 0x8101] {
        assert_eq!(outcome(&[(protocol, 10)], MAC), drop(DropReason::UnhandledProto));
        assert_eq!(outcome(&[(DOT1Q, 10), (protocol, 10)], MAC), drop(DropReason::UnhandledProto));
    }
}

#[test]
fn a_link_listens_to_its_own_address() {
    let red = LinkVariant::Red.mac(0);
    assert_ne!(red, MAC);
    assert_eq!(outcome(LinkVariant::Red.tags(), MAC), drop(DropReason::OtherHost));
    assert_eq!(outcome(LinkVariant::Vlan.tags(), red), drop(DropReason::OtherHost));
    assert_eq!(outcome(&[], red), drop(DropReason::OtherHost));
    for variant in LinkVariant::ALL {
        let l3 = 14 + 4 * variant.tags().len() as u8;
        assert_eq!(
            outcome(variant.tags(), [0xff; 6]),
            Outcome::Local(variant.link(0), l3),
            "{variant:?}"
        );
        assert_eq!(outcome(variant.tags(), [6; 6]), drop(DropReason::OtherHost), "{variant:?}");
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn a_frame_cut_in_or_behind_its_tags_is_too_small() {
    for variant in LinkVariant::ALL {
        for dst in [LinkVariant::Plain.host4(1), LinkVariant::Plain.host6(1)] {
            let frame = variant.packet(0, dst).build();
            let mut path_bench = PathBench::new().with_stale(&frame);
            for len in 0..frame.len() {
                let outcome = path_bench.send(0, &frame[..len]);
                assert_eq!(outcome, drop(DropReason::PktTooSmall), "{variant:?}, {len} bytes");
            }
            assert!(matches!(path_bench.send(0, &frame), Outcome::Sent(1, _)));
        }
    }
}

#[test]
fn a_link_leads_to_its_vrf() {
    let mut path_bench = PathBench::new();
    for variant in LinkVariant::ALL {
        for dst in [OVERLAP4, OVERLAP6] {
            let frame = variant.packet(1, ip(dst)).build();
            let port = variant.vrf().0;
            let expected = Outcome::Sent(port, LinkVariant::Plain.forwarded(port as u8, &frame));
            assert_eq!(path_bench.send(1, &frame), expected, "{variant:?} to {dst}");
        }
    }
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn the_table_knows_what_was_put_in() {
    let mut table = VlanTable::default();
    assert!(table.of(DOT1Q).is_none());
    for vid in (1..=4094).filter_map(Vid::new) {
        let number = u32::from(vid.get());
        let entry = VlanEntry { link: LinkId(vid.get() - 1), root4: number, root6: number + 1 };
        table.insert(DOT1Q, vid, entry, false);
    }
    let links = table.of(DOT1Q).unwrap();
    assert!(!links.own_macs);
    for vid in 0..=u16::MAX {
        let entry = links.get(vid);
        let vid = vid % 4096;
        assert_eq!(entry.is_some(), (1..=4094).contains(&vid), "{vid}");
        if entry.is_some() {
            let number = u32::from(vid);
            assert_eq!(entry.link, LinkId(vid - 1));
            assert_eq!((entry.root4, entry.root6), (number, number + 1));
        }
    }
    assert!(table.of(DOT1AD).is_none());
    assert!(table.of(0x0800).is_none());
    table.insert(DOT1AD, Vid::new(1).unwrap(), VlanEntry::NONE, true);
    assert!(table.of(DOT1Q).unwrap().own_macs);
}

#[test]
#[cfg_attr(miri, ignore = "takes minutes under Miri")]
fn inner_links_are_found_by_their_outer_link_and_tag() {
    let mut table = VlanTable::default();
    let entry = |number: u32| VlanEntry { link: LinkId(number as u16), root4: number, root6: 0 };
    let tag = |number: u32| {
        let protocol = [DOT1Q, DOT1AD][number as usize % 2];
        InnerTag::new(LinkId((number % 7) as u16), protocol, (number / 14) as u16 + 1)
    };
    assert!(!table.inner().get(tag(1)).is_some());
    for number in 0..20_000 {
        table.insert_inner(tag(number), entry(number), false);
    }
    // Entries are replaced.
    table.insert_inner(tag(3), entry(50_000), true);
    assert!(table.of(DOT1Q).is_none());
    for number in 0..20_000 {
        let found = table.inner().get(tag(number));
        assert_eq!(found.root4, if number == 3 { 50_000 } else { number });
        assert!(!table.inner().get(tag(number + 28_000)).is_some(), "{number}");
    }
    assert!(!table.inner().get(InnerTag::new(VlanEntry::NONE.link, DOT1Q, 1)).is_some());
}

/// Frames that follow each other belong to different loops.
#[test]
fn any_mixture_of_tags_is_sorted() {
    let variants = [
        LinkVariant::ALL.to_vec(),
        vec![LinkVariant::Qinq, LinkVariant::Outer, LinkVariant::Qinq, LinkVariant::Plain],
    ];
    for variants in variants {
        let frames: Vec<_> = (0..24_usize)
            .map(|number| {
                let variant = variants[number % variants.len()];
                let dst = match number % 3 {
                    0 => LinkVariant::Vlan.host6(1),
                    _ => LinkVariant::Vlan.host4(1),
                };
                variant.packet(0, dst).build()
            })
            .collect();
        let outcomes = PathBench::new().burst(0, &frames);
        for (frame, outcome) in frames.iter().zip(outcomes) {
            assert_eq!(outcome, Outcome::Sent(1, LinkVariant::Vlan.forwarded(1, frame)));
        }
    }
}
