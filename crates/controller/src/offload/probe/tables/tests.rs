use super::*;

/// A rule with these matches and this target, or verdict.
fn entry(layout: &Layout, matches: &[&str], target: &str, verdict: i32) -> Vec<u8> {
    let part = |name: &str, verdict: i32| {
        let mut part = vec![0; 40];
        part[0] = 40;
        part[NAME.start..NAME.start + name.len()].copy_from_slice(name.as_bytes());
        part[VERDICT].copy_from_slice(&verdict.to_ne_bytes());
        part
    };
    let mut bytes = vec![0; layout.entry];
    matches.iter().for_each(|name| bytes.extend(part(name, 0)));
    let at = bytes.len() as u16;
    bytes.extend(part(target, verdict));
    let end = bytes.len() as u16;
    bytes[layout.target..layout.target + 2].copy_from_slice(&at.to_ne_bytes());
    bytes[layout.target + 2..layout.target + 4].copy_from_slice(&end.to_ne_bytes());
    bytes
}

/// The table `filter` with these rules before the policy of each of its three hooks.
fn table(layout: &Layout, chains: [(Vec<Vec<u8>>, i32); 3]) -> Table {
    let mut info = named("filter", INFO);
    info[VALID] = 0b1110;
    let mut entries = Vec::new();
    for (hook, (rules, policy)) in (1..).zip(chains) {
        let mut put = |base: usize, at: usize| {
            let at_hook = base + 4 * hook;
            info[at_hook..at_hook + 4].copy_from_slice(&(at as u32).to_ne_bytes());
        };
        put(BEGINS, entries.len());
        rules.iter().for_each(|rule| entries.extend(rule));
        put(POLICIES, entries.len());
        entries.extend(entry(layout, &[], "", policy));
    }
    entries.extend(entry(layout, &[], "ERROR", 0));
    Table { name: "filter".to_owned(), info, entries }
}

fn seen(layout: &Layout, table: &Table) -> (Vec<String>, bool) {
    let mut legacy = Legacy::default();
    look(layout, table, &mut legacy);
    (legacy.chains.into_iter().collect(), legacy.tracks)
}

#[test]
fn chains_that_do_something_are_reported() {
    for layout in [&V4, &V6] {
        let rule = || vec![entry(layout, &["tcp"], "", -1)];
        let none = || (vec![], ACCEPT);
        let of = |input, forward, output| seen(layout, &table(layout, [input, forward, output]));
        assert_eq!(of(none(), none(), none()), (vec![], false), "as a new table is");
        assert_eq!(of((rule(), -1), none(), (rule(), ACCEPT)), (vec![], false), "the host's own");
        let forward = vec!["filter FORWARD".to_owned()];
        assert_eq!(of(none(), (rule(), ACCEPT), none()), (forward.clone(), false), "a rule");
        assert_eq!(of(none(), (vec![], -1), none()), (forward, false), "a policy");
    }
}

#[test]
fn rules_that_track_connections_are_found_anywhere() {
    for layout in [&V4, &V6] {
        let none = || (vec![], ACCEPT);
        let with = |rule| seen(layout, &table(layout, [(vec![rule], ACCEPT), none(), none()]));
        assert_eq!(with(entry(layout, &["tcp", "conntrack"], "", ACCEPT)), (vec![], true));
        assert_eq!(with(entry(layout, &["tcp"], "REDIRECT", 0)), (vec![], true));
        assert_eq!(with(entry(layout, &["tcp", "limit"], "LOG", 0)), (vec![], false));
    }
}

#[test]
fn broken_tables_count_as_chains_that_do_something() {
    let none = || (vec![], ACCEPT);
    let whole = table(&V4, [none(), none(), none()]);
    for end in 0..whole.entries.len() {
        let cut = Table {
            name: whole.name.clone(),
            info: whole.info.clone(),
            entries: whole.entries[..end].to_vec(),
        };
        let (chains, tracks) = seen(&V4, &cut);
        // The policy is the second entry.
        assert_eq!(chains.is_empty(), end >= 2 * (V4.entry + 40), "{end}");
        assert!(!tracks);
    }
    let mut endless = entry(&V4, &["tcp"], "", -1);
    endless[V4.entry] = 0;
    assert_eq!(Entry::at(&V4, &endless, 0).unwrap().parts().count(), 1, "a match of no length");
    endless[V4.target + 2..V4.target + 4].fill(0);
    assert!(Entry::at(&V4, &endless, 0).is_none(), "an entry of no length");
}
