//! Suggests the known word that a mistyped one probably stands for.

/// Words of other routers and tools, and the names used here.
const ALIASES: &[(&str, &str)] = &[
    ("gateway", "via"),
    ("gw", "via"),
    ("nexthop", "via"),
    ("next_hop", "via"),
    ("interface", "dev"),
    ("link", "parent"),
    ("link", "dev"),
    ("device", "dev"),
    ("id", "vid"),
    ("vlan", "vid"),
    ("vlan_id", "vid"),
    ("tpid", "protocol"),
    ("table", "vrf"),
    ("lladdr", "mac"),
    ("ip", "addresses"),
    ("address", "addresses"),
    ("dst", "to"),
    ("destination", "to"),
    ("prefix", "to"),
    ("interfaces", "ports"),
    ("neigh", "neighbours"),
    ("arp", "neighbours"),
    ("packet", "af_packet"),
    ("xdp", "af_xdp"),
    ("pcap", "capture"),
    ("dot1q", "802.1Q"),
    ("0x8100", "802.1Q"),
    ("dot1ad", "802.1ad"),
    ("0x88a8", "802.1ad"),
];

/// The longest word to correct: the computation takes time proportional to the product of both
/// lengths.
const WORD_LIMIT: usize = 40;

/// The remedy for an unknown word: the nearest known one, or `otherwise` if none is near.
pub(super) fn did_you_mean(
    word: &str,
    known: &[&str],
    otherwise: impl FnOnce() -> String,
) -> String {
    nearest(word, known).map_or_else(otherwise, |name| format!("did you mean {name}?"))
}

/// The most similar known word, or the one that an alias stands for; none if no word is similar.
pub(super) fn nearest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    if word.len() > WORD_LIMIT {
        return None;
    }
    let lower = word.to_lowercase();
    let aliased = ALIASES.iter().filter(|(alias, _)| *alias == lower).map(|(_, name)| *name);
    if let Some(name) = aliased.filter_map(|a| known.iter().find(|k| **k == a)).next() {
        return Some(name);
    }
    let close_enough = (lower.chars().count() / 3).max(1);
    known
        .iter()
        .filter(|name| name.len() <= WORD_LIMIT)
        .map(|name| (distance(&lower, &name.to_lowercase()), *name))
        .filter(|(far, _)| *far <= close_enough)
        .min_by_key(|(far, _)| *far)
        .map(|(_, name)| name)
}

/// The number of edits (insert, delete, replace, swap adjacent characters) that turn one word into
/// the other.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![(0..=b.len()).collect::<Vec<_>>()];
    for (i, from) in a.iter().enumerate() {
        let mut row = vec![i + 1];
        for (j, to) in b.iter().enumerate() {
            let replaced = rows[i][j] + usize::from(from != to);
            let mut best = replaced.min(rows[i][j + 1] + 1).min(row[j] + 1);
            if i > 0 && j > 0 && *from == b[j - 1] && a[i - 1] == *to {
                best = best.min(rows[i - 1][j - 1] + 1);
            }
            row.push(best);
        }
        rows.push(row);
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::{distance, nearest};

    #[test]
    fn distance_counts_single_edits() {
        assert_eq!(distance("metric", "metric"), 0);
        assert_eq!(distance("meric", "metric"), 1);
        assert_eq!(distance("af_pakcet", "af_packet"), 1);
        assert_eq!(distance("", "via"), 3);
    }

    #[test]
    fn nearest_guesses_typing_errors_and_other_names() {
        assert_eq!(nearest("neighbors", &["ports", "neighbours"]), Some("neighbours"));
        assert_eq!(nearest("gateway", &["via", "dev"]), Some("via"));
        assert_eq!(nearest("colour", &["via", "dev"]), None);
        assert_eq!(nearest(&"x".repeat(1000), &["via"]), None);
    }
}
