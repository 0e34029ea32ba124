use super::*;

pub(crate) fn spec() -> Spec {
    Spec {
        dst_mac: [2, 0, 0, 0, 0, 1],
        src_mac: [2, 0, 0, 0, 0, 2],
        vlans: Vec::new(),
        dst: "198.18.0.2".parse().unwrap(),
        src: "198.19.0.2".parse().unwrap(),
        dst_ports: (9, 9),
        src_ports: (1024, 1024),
        sizes: vec![(64, 1)],
        flows: None,
        udp_checksum: false,
        seed: 1,
    }
}

fn v6() -> Spec {
    let [dst, src] = ["2001:2::/64", "2001:2:0:1::1"].map(|text| text.parse().unwrap());
    Spec { dst, src, sizes: vec![(84, 1)], ..spec() }
}

#[test]
fn a_head_equals_its_spec() {
    let plan = Plan::new(&spec()).unwrap();
    let row = &plan.rows[0];
    assert_eq!((plan.rows.len(), plan.lens[0], plan.mark_at), (1, 60, 42));
    assert_eq!(row[..14], [2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 8, 0]);
    assert_eq!(checksum::sum(&row[14..34]), 0xffff);
    assert_eq!(row[16..18], [0, 46]);
    assert_eq!(row[26..34], [198, 19, 0, 2, 198, 18, 0, 2]);
    assert_eq!(row[34..44], [4, 0, 0, 9, 0, 26, 0, 0, 0x70, 0x11]);
    assert!((plan.wire_bytes() - 84.0).abs() < 1e-9);
}

#[test]
fn all_flows_of_small_ranges_come_and_large_ones_are_drawn() {
    let four = Spec { dst: "198.18.0.0/31".parse().unwrap(), dst_ports: (9, 10), ..spec() };
    let mut found = flows(&four);
    found.dedup();
    assert_eq!(found.len(), 4);
    let many = Spec { dst: "198.18.0.0/15".parse().unwrap(), flows: Some(5000), ..spec() };
    let found = flows(&many);
    let range: Range = "198.18.0.0/15".parse().unwrap();
    assert!(found.iter().all(|flow| range.has(Range::one(flow.addresses.1))));
    let unique: HashSet<_> = found.iter().map(|flow| flow.addresses.1).collect();
    assert_eq!(unique.len(), 5000);
    assert_eq!(flows(&many), found, "the same each time");
    for seed in [0, 2, 3] {
        let others = flows(&Spec { seed, ..many.clone() });
        let same = others.iter().zip(&found).filter(|(one, other)| one == other).count();
        assert!(same < 10, "{seed}: {same}");
    }
    assert_ne!(flows(&Spec { seed: 2, ..many.clone() }), flows(&Spec { seed: 3, ..many.clone() }));
    assert_eq!(flows(&v6()).len(), 1024);
}

#[test]
fn no_flow_is_drawn_twice() {
    for (ports, wanted) in [(1000, 999), (1000, 300), (4000, 1000), (60_000, 5000)] {
        let spec = Spec { dst_ports: (1, ports), flows: Some(wanted), ..spec() };
        let unique: HashSet<_> = flows(&spec).into_iter().collect();
        assert_eq!(unique.len(), wanted, "{wanted} of {ports}");
    }
}

#[test]
fn large_ranges_are_drawn_from_as_a_whole() {
    let wide = Spec { dst: "2001:2::/48".parse().unwrap(), flows: Some(1000), ..v6() };
    let mut ones = [0_u32; 80];
    for flow in flows(&wide) {
        let IpAddr::V6(address) = flow.addresses.1 else { panic!("{flow:?}") };
        for (bit, ones) in ones.iter_mut().enumerate() {
            *ones += (address.to_bits() >> bit) as u32 & 1;
        }
    }
    assert!(ones.iter().all(|ones| (400..600).contains(ones)), "{ones:?}");
}

#[test]
fn tags_and_families_move_the_mark() {
    let tagged = Spec { vlans: vec![5, 6], sizes: vec![(72, 1)], ..spec() };
    let plan = Plan::new(&tagged).unwrap();
    assert_eq!(plan.rows[0][12..22], [0x88, 0xa8, 0, 5, 0x81, 0, 0, 6, 8, 0]);
    assert_eq!(plan.mark_at, 50);
    let plan = Plan::new(&v6()).unwrap();
    assert_eq!((plan.mark_at, plan.udp_checksum), (62, true));
    let both = Spec { vlans: vec![5, 6], sizes: vec![(92, 1)], ..v6() };
    let plan = Plan::new(&both).unwrap();
    assert!(plan.mark_at + 2 <= HEAD);
    assert_eq!(plan.rows[0][plan.mark_at..][..2], [0x70, 0x11]);
}

#[test]
fn imix_is_seven_to_four_to_one_and_well_mixed() {
    let order = order(&IMIX);
    let count = |size: u8| order.iter().filter(|one| **one == size).count();
    assert_eq!([count(0), count(1), count(2)], [7, 4, 1]);
    assert!(order.windows(3).all(|three| three != [0, 0, 0]), "{order:?}");
    let plan = Plan::new(&Spec { sizes: IMIX.to_vec(), ..spec() }).unwrap();
    let average = (7 * 64 + 4 * 594 + 1518) as f64 / 12.0 + 20.0;
    assert!((plan.wire_bytes() - average).abs() < 1e-9);
}

#[test]
fn frames_that_cannot_be_sent_are_refused() {
    let refused = |spec: Spec| Plan::new(&spec).unwrap_err();
    for (wrong, about) in [
        (Spec { sizes: vec![(63, 1)], ..spec() }, "-s 64"),
        (Spec { sizes: vec![(67, 1)], vlans: vec![1], ..spec() }, "-s 68"),
        (Spec { sizes: vec![(64, 1)], ..v6() }, "-s 84"),
        (Spec { sizes: vec![(9000, 1)], ..spec() }, "-s 64"),
        (Spec { src: v6().src, ..spec() }, "both"),
        (Spec { vlans: vec![4095], ..spec() }, "4094"),
        (Spec { vlans: vec![1, 2, 3], ..spec() }, "twice"),
        (Spec { flows: Some(0), ..spec() }, "--flows"),
        (Spec { dst_ports: (2, 1), ..spec() }, "lower"),
        (Spec { sizes: vec![], ..spec() }, "-s"),
    ] {
        let error = refused(wrong);
        assert!(error.usage && error.remedy.contains(about), "{error}");
    }
}
