//! Functions that need all packets in the kernel, whichever rules the packets meet: connection tracking and
//! reassembly of fragments.
//!
//! The kernel tracks connections as long as any rule of its namespace needs it (`nf_ct_netns_get` in
//! `net/netfilter/nf_conntrack_proto.c`): even a rule of a dormant table, or one for the host's own traffic.
//! It does not track a packet that bypasses it: then known flows look new, windows are wrong, flows time
//! out.
//!
//! If only rules for the host itself need tracking (hook input), no rule tests the state of a forwarded
//! packet. The kernel passes the packet whatever that state is (`nf_conntrack_in` drops only if its table is
//! full). But the kernel changes fragments: it reassembles them before routing and fragments packets again
//! afterwards (`nf_defrag_ipv4`, `nf_defrag_ipv6`). Rules of hook output meet the ICMP errors that forwarded
//! packets cause. Such an error has the state of the packet's connection, so these rules count like those of
//! other hooks.

use std::collections::HashSet;

use serde_json::Value;

use super::reach::Reach;
use super::{Need, Needs};
use tollway_firewall::nft::json::{number, only, several, text};
use tollway_firewall::nft::words;

/// Statements and expressions that need tracking or reassembly, and the reason to report.
const TRACKING_WORDS: &[(&str, &str)] = &[
    ("ct", TRACKING),
    ("ct helper", TRACKING),
    ("ct timeout", TRACKING),
    ("ct expectation", TRACKING),
    ("ct count", TRACKING),
    ("snat", TRANSLATION),
    ("dnat", TRANSLATION),
    ("masquerade", TRANSLATION),
    ("redirect", TRANSLATION),
    ("flow", "flows that the kernel forwards itself are tracked"),
    ("synproxy", "the kernel answers in the place of servers, and tracks"),
    ("tproxy", FRAGMENTS),
    ("socket", FRAGMENTS),
];

const TRACKING: &str = "connections are tracked";
const TRANSLATION: &str = "addresses are translated, so connections are tracked";
const FRAGMENTS: &str = "fragments are reassembled before rules see them";
const MODULE: &str = "this module of iptables may track connections";
/// Modules of iptables that track and do nothing else that other packets could notice.
const TRACKERS: &[&str] = &[
    "CONNMARK",
    "connbytes",
    "connlabel",
    "connlimit",
    "connmark",
    "conntrack",
    "helper",
    "state",
];

/// Modules of iptables that translate the addresses of a connection's first packet.
const TRANSLATORS: &[&str] = &["DNAT", "MASQUERADE", "NETMAP", "REDIRECT", "SNAT"];

/// Statements and objects that change what an established connection is in the kernel, beyond what its entry says: how
/// long it lives, who answers in whose place, which packets sockets get.
const CHANGES_ALL: &[&str] = &["ct timeout", "ct expectation", "synproxy", "tproxy", "socket"];

/// In the listing of iptables' target `CT`: that it does not change how long connections live.
pub(super) const KEEPS_TIMEOUTS: &str = "keeps_timeouts";

/// Modules of iptables that neither track nor reassemble fragments.
const HARMLESS: &[&str] = &[
    "AUDIT",
    "CHECKSUM",
    "CLASSIFY",
    "DROP",
    "DSCP",
    "ECN",
    "HL",
    "HMARK",
    "IDLETIMER",
    "LED",
    "LOG",
    "MARK",
    "NFLOG",
    "NFQUEUE",
    "RATEEST",
    "REJECT",
    "SET",
    "TCPMSS",
    "TCPOPTSTRIP",
    "TOS",
    "TRACE",
    "TTL",
    "addrtype",
    "ah",
    "bpf",
    "cgroup",
    "comment",
    "cpu",
    "dccp",
    "devgroup",
    "dscp",
    "ecn",
    "esp",
    "eui64",
    "frag",
    "hashlimit",
    "hbh",
    "hl",
    "icmp",
    "icmp6",
    "iprange",
    "ipv6header",
    "l2tp",
    "length",
    "limit",
    "mac",
    "mark",
    "mh",
    "multiport",
    "nfacct",
    "osf",
    "owner",
    "pkttype",
    "policy",
    "quota",
    "rateest",
    "realm",
    "recent",
    "rpfilter",
    "rt",
    "sctp",
    "set",
    "srh",
    "statistic",
    "string",
    "tcp",
    "tcpmss",
    "time",
    "tos",
    "ttl",
    "u32",
    "udp",
];

/// Everything in a listing that needs tracking or reassembly.
pub(super) fn needs(listing: &Value) -> Needs {
    let objects = listing.get("nftables").and_then(Value::as_array);
    let objects: Vec<_> = objects.into_iter().flatten().filter_map(only).collect();
    let nat =
        objects.iter().filter(|(kind, chain)| *kind == "chain" && text(chain, "type") == "nat");
    let nat: HashSet<_> = nat.map(|(_, chain)| place(chain, "name")).collect();
    let translates = |rule: &Value| !nat.is_empty() && nat.contains(&place(rule, "chain"));
    let reach = Reach::of(&objects);
    let mut tracking = Vec::new();
    for (kind, object) in &objects {
        let why = match *kind {
            "rule" => {
                let found = object.get("expr").and_then(first_need);
                found.or_else(|| translates(object).then_some(TRANSLATION))
            }
            "flowtable" => Some("flows that the kernel forwards itself are tracked"),
            "ct helper" | "ct timeout" | "ct expectation" | "synproxy" => Some(TRACKING),
            "set" | "map" => set(object),
            _ => None,
        };
        let host = match *kind {
            "rule" => {
                let expr = object.get("expr").filter(|_| !translates(object));
                !reach.reaches(object) && expr.is_some_and(is_unseen)
            }
            "ct helper" | "ct timeout" | "ct expectation" => true,
            _ => false,
        };
        let spares = !CHANGES_ALL.contains(kind) && spares_established(object);
        tracking.extend(why.and_then(|why| need(kind, object, why, (host, spares))));
    }
    Needs { tracking }
}

/// A chain's family, table and name; `chain` names the object's member that contains the chain's name.
fn place<'v>(object: &'v Value, chain: &str) -> [&'v str; 3] {
    [text(object, "family"), text(object, "table"), text(object, chain)]
}

/// The need of a set: in sets that packets fill, elements may have statements of their own.
fn set(set: &Value) -> Option<&'static str> {
    let flags = set.get("flags").map(several).unwrap_or_default();
    let is_filled = flags.iter().any(|flag| flag.as_str() == Some("dynamic"));
    let elements = set.get("elem").filter(|_| is_filled).and_then(first_need);
    elements.or_else(|| set.get("stmt").and_then(first_need))
}

/// The first need found anywhere in a statement or an expression.
fn first_need(value: &Value) -> Option<&'static str> {
    match value {
        Value::Array(values) => values.iter().find_map(first_need),
        Value::Object(members) => members.iter().find_map(|(name, inner)| {
            if name == "xt" {
                // An unlisted module may do anything.
                return (!HARMLESS.contains(&text(inner, "name"))).then_some(MODULE);
            }
            let known = TRACKING_WORDS.iter().find(|(word, _)| word == name);
            known.map(|(_, why)| *why).or_else(|| first_need(inner))
        }),
        _ => None,
    }
}

/// Says whether a rule only tests the tracked state, or sockets. Translation, proxies and unknown modules may
/// affect packets that the rule never sees.
fn is_unseen(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.iter().all(is_unseen),
        Value::Object(members) => members.iter().all(|(name, inner)| match name.as_str() {
            "xt" => {
                let module = text(inner, "name");
                HARMLESS.contains(&module) || TRACKERS.contains(&module)
            }
            "snat" | "dnat" | "masquerade" | "redirect" | "flow" | "synproxy" | "tproxy" => false,
            _ => is_unseen(inner),
        }),
        _ => true,
    }
}

/// Says whether the kernel may miss packets of established connections in spite of a rule, or an object. Rules that
/// Tollway cannot evaluate keep their own connections on the kernel path, and no others.
fn spares_established(value: &Value) -> bool {
    match value {
        Value::Array(values) => values.iter().all(spares_established),
        Value::Object(members) => members.iter().all(|(name, inner)| match name.as_str() {
            "xt" => {
                let module = text(inner, "name");
                [HARMLESS, TRACKERS, TRANSLATORS].iter().any(|known| known.contains(&module))
                    || inner.get(KEEPS_TIMEOUTS).is_some()
            }
            name => !CHANGES_ALL.contains(&name) && spares_established(inner),
        }),
        _ => true,
    }
}

/// A need for the families that can track; a bridge tracks both versions.
fn need(
    kind: &str,
    object: &Value,
    why: &'static str,
    (host, spares_established): (bool, bool),
) -> Option<Need> {
    let family = text(object, "family");
    let (v4, v6) = match family {
        "ip" => (true, false),
        "ip6" => (false, true),
        "inet" | "bridge" => (true, true),
        _ => return None,
    };
    let host = host && family != "bridge";
    let table = format!("{} {}", text(object, "family"), text(object, "table"));
    let (chain, text) = match kind {
        "rule" => (format!("{table} {}", text(object, "chain")), words(object)),
        _ => (table, format!("{kind} {}", text(object, "name"))),
    };
    Some(Need {
        chain,
        handle: number(object, "handle"),
        text,
        why,
        v4,
        v6,
        host,
        spares_established,
    })
}
