//! `[vlans.NAME]`: links whose frames carry a VLAN tag on another link.

use std::collections::HashMap;
use std::fmt::Display;

use super::links::{COMMON_KEYS, Draft, DraftKind, narrow, read_common};
use super::nearest::nearest;
use super::raw::{At, Section, Setting, bare};
use super::topology::Arranged;
use super::values::choice;
use super::vrfs::Vrfs;
use tollway_firewall::mistake::{Fault, Ledger, quoted};
use tollway_net::VlanProtocol;

const PROTOCOLS: [(&str, VlanProtocol); 2] =
    [("802.1Q", VlanProtocol::Dot1q), ("802.1ad", VlanProtocol::Dot1ad)];

/// The most tags of a frame.
const TAG_LIMIT: usize = 2;

/// Reads the VLAN links and appends them to the links of the ports.
pub(super) fn read<'a>(
    root: &Section<'a>,
    vrfs: &Vrfs,
    drafts: &mut Vec<Draft<'a>>,
    ledger: &mut Ledger<'_>,
) {
    let mut known = vec!["parent", "vid", "protocol"];
    known.extend(COMMON_KEYS);
    for (name, section) in root.tables("vlans", "VLAN link", ledger) {
        section.check_keys(&known, ledger);
        let parent = section.text("parent", ledger);
        if parent.is_absent() {
            section.missing("parent", "name the port or VLAN link that carries it", ledger);
        }
        let vid = read_vid(&name, &section, ledger);
        let protocol = match section.text("protocol", ledger) {
            Setting::Absent => Some(VlanProtocol::default()),
            given => given
                .read(ledger, |text| choice("VLAN protocol", text, &PROTOCOLS))
                .given()
                .map(|at| at.value),
        };
        let kind = DraftKind::Vlan { parent: parent.given(), vid, protocol };
        drafts.push(read_common(name, kind, &section, vrfs, ledger));
    }
}

fn read_vid(name: &At<&str>, section: &Section<'_>, ledger: &mut Ledger<'_>) -> Option<At<u16>> {
    let reserved =
        |vid: &dyn Display, why| Fault::new(format!("VLAN {vid:.24} {why}"), "write 1 to 4094");
    let unfit = "is out of range: a tag has 12 bits";
    let vid = section.number("vid", 0..=4095, ledger, |vid, _| reserved(&vid, unfit));
    if vid.is_absent() {
        let suffix = name.value.rsplit('.').next().and_then(|tail| tail.parse::<u16>().ok());
        let example = suffix.filter(|vid| (1..=4094).contains(vid)).unwrap_or(10);
        section.missing("vid", &format!("add the VLAN identifier, as vid = {example}"), ledger);
    }
    vid.read(ledger, |vid| match vid {
        0 => Err(reserved(&vid, "marks frames that belong to no VLAN")),
        4095 => Err(reserved(&vid, "is reserved by 802.1Q")),
        _ => narrow("vid", vid),
    })
    .given()
}

/// Finds each link's parent, sorts parents before their children, and checks what depends on
/// parents.
pub(super) fn arrange<'a>(
    drafts: Vec<Draft<'a>>,
    names: &HashMap<&'a str, usize>,
    ledger: &mut Ledger<'_>,
) -> Vec<Arranged<'a>> {
    let parents = find_parents(&drafts, names, ledger);
    check_loops(&drafts, &parents, ledger);
    check_tags(&drafts, &parents, ledger);
    let order = parents_first(&parents);
    let mut place = vec![0; drafts.len()];
    for (at, index) in order.iter().enumerate() {
        if let Some(slot) = place.get_mut(*index) {
            *slot = at;
        }
    }
    let mut slots: Vec<Option<Draft<'a>>> = drafts.into_iter().map(Some).collect();
    let mut arranged: Vec<Arranged<'a>> = Vec::new();
    for (at, index) in order.into_iter().enumerate() {
        let Some(draft) = slots.get_mut(index).and_then(Option::take) else { continue };
        // A parent that comes later is part of a loop, which was reported. The link then counts as
        // without parent.
        let parent = parents.get(index).copied().flatten().and_then(|p| place.get(p).copied());
        let parent = parent.filter(|parent| *parent < at);
        let above = parent.and_then(|parent| arranged.get(parent));
        let link = Arranged::below(draft, parent, above, ledger);
        arranged.push(link);
    }
    arranged
}

fn find_parents(
    drafts: &[Draft<'_>],
    names: &HashMap<&str, usize>,
    ledger: &mut Ledger<'_>,
) -> Vec<Option<usize>> {
    let mut known: Vec<&str> = names.keys().copied().collect();
    known.sort_unstable();
    let mut parents = Vec::with_capacity(drafts.len());
    for draft in drafts {
        let DraftKind::Vlan { parent: Some(parent), .. } = &draft.kind else {
            parents.push(None);
            continue;
        };
        let found = names.get(parent.value).copied();
        if found.is_none() {
            let remedy = match nearest(parent.value, &known) {
                Some(name) => format!("did you mean {name}?"),
                None => "name a port or another VLAN link".to_owned(),
            };
            let what = format!("the parent {} is not a link", quoted(parent.value));
            ledger.relation(parent.span.clone(), what, remedy);
        }
        parents.push(found);
    }
    parents
}

/// Reports each loop of parents once, at its first link in the file.
fn check_loops(drafts: &[Draft<'_>], parents: &[Option<usize>], ledger: &mut Ledger<'_>) {
    // 0 means not visited; otherwise the number of the walk that visited the link.
    let mut seen = vec![0; drafts.len()];
    for start in 0..drafts.len() {
        let walk = start + 1;
        let mut at = Some(start);
        while let Some(index) = at {
            match seen.get_mut(index) {
                Some(mark) if *mark == 0 => *mark = walk,
                // The walk is back on its own path: a loop that is not reported yet.
                Some(mark) if *mark == walk => {
                    report_loop(drafts, parents, index, ledger);
                    break;
                }
                _ => break,
            }
            at = parents.get(index).copied().flatten();
        }
    }
}

fn report_loop(
    drafts: &[Draft<'_>],
    parents: &[Option<usize>],
    entry: usize,
    ledger: &mut Ledger<'_>,
) {
    let next = |index: usize| parents.get(index).copied().flatten().filter(|p| *p != entry);
    let members: Vec<usize> = std::iter::successors(Some(entry), |at| next(*at)).collect();
    let Some(first) = members.iter().min().and_then(|index| drafts.get(*index)) else { return };
    let mut names: Vec<String> =
        members.iter().filter_map(|i| drafts.get(*i)).map(|d| bare(d.name.value)).collect();
    // The first names are enough to show a long loop.
    names.truncate(8);
    let what = match names.as_slice() {
        [own] => format!("the VLAN link {own} is its own parent"),
        _ => format!("the parents of {} form a loop", names.join(", ")),
    };
    let span = match &first.kind {
        DraftKind::Vlan { parent: Some(parent), .. } => parent.span.clone(),
        _ => first.name.span.clone(),
    };
    ledger.relation(span, what, "let the chain of parents end at a port");
}

/// Reports frames with too many tags, and links that would receive the same frames.
fn check_tags(drafts: &[Draft<'_>], parents: &[Option<usize>], ledger: &mut Ledger<'_>) {
    let mut taken: HashMap<(usize, u16, VlanProtocol), usize> = HashMap::new();
    for (index, draft) in drafts.iter().enumerate() {
        let (DraftKind::Vlan { parent: Some(name), vid, protocol }, Some(parent)) =
            (&draft.kind, parents.get(index).copied().flatten())
        else {
            continue;
        };
        if tags(parents, index) == Some(TAG_LIMIT + 1) {
            ledger.relation(
                name.span.clone(),
                format!("frames of {} would carry more than two VLAN tags", bare(draft.name.value)),
                "choose a parent that carries at most one tag",
            );
        }
        let (Some(vid), Some(protocol)) = (vid, protocol) else { continue };
        if let Some(other) = taken.get(&(parent, vid.value, *protocol)).and_then(|i| drafts.get(*i))
        {
            let line = ledger.line(other.name.span.start);
            let other = bare(other.name.value);
            ledger.relation(
                vid.span.clone(),
                format!(
                    "VLAN {} of {} is already {other} (line {line})",
                    vid.value,
                    bare(name.value)
                ),
                "give each VLAN link of a parent its own vid",
            );
            continue;
        }
        taken.insert((parent, vid.value, *protocol), index);
    }
}

/// How many tags the frames of a link carry, at most one more than allowed; none in a loop.
fn tags(parents: &[Option<usize>], index: usize) -> Option<usize> {
    let up = |at: &usize| parents.get(*at).copied().flatten();
    let chain = std::iter::successors(Some(index), up).take(TAG_LIMIT + 3).count();
    // Deeper links follow from the first one that is too deep, which is reported.
    (chain <= TAG_LIMIT + 2).then(|| chain - 1)
}

/// File order, but each link after its parent.
fn parents_first(parents: &[Option<usize>]) -> Vec<usize> {
    let mut placed = vec![false; parents.len()];
    let mut order = Vec::with_capacity(parents.len());
    for start in 0..parents.len() {
        let mut chain = Vec::new();
        let mut at = Some(start);
        while let Some(index) = at {
            let Some(mark) = placed.get_mut(index).filter(|mark| !**mark) else { break };
            // Marking on the way up also ends the walk in a loop.
            *mark = true;
            chain.push(index);
            at = parents.get(index).copied().flatten();
        }
        order.extend(chain.into_iter().rev());
    }
    order
}
