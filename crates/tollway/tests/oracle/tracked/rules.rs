//! Rules about connections, and at their end those that write into each packet what they see of its connection.

use std::fmt::{self, Display};

use super::nat::NatRules;
use super::talk::SERVERS;
use crate::case::LISTING;
use crate::dice::Dice;

/// Rules of a language.
pub enum Rules {
    Nft(String),
    /// Of IPv4.
    Iptables(String),
}

/// States, with their bits of the class.
const STATES: [(&str, &str); 3] =
    [("new", "NEW"), ("established", "ESTABLISHED"), ("related", "RELATED")];
/// Bits of `enum ip_conntrack_status` that are compared: answered, assured, in the table.
const STATUS: u32 = 0xe;

/// The class of packets of no connection.
const INVALID: u32 = 1;
const UNTRACKED: u32 = 2;

/// The class that rules have written into a packet.
pub fn class_of(frame: &[u8]) -> u32 {
    match frame.get(12..16) {
        Some([8, 0, _, tos]) => u32::from(tos >> 2),
        Some([_, _, high, low]) => u32::from((high << 4 | low >> 4) >> 2),
        _ => 0,
    }
}

pub fn draw(dice: &mut Dice, nat: &NatRules) -> Rules {
    if dice.one_in(3) { Rules::Iptables(iptables(dice, nat)) } else { Rules::Nft(nft(dice, nat)) }
}

impl Rules {
    /// The scripts that load, list and remove them.
    pub fn scripts(&self) -> (String, String, String) {
        match self {
            Self::Nft(_) => ("nft -f -".into(), LISTING.into(), "nft flush ruleset".into()),
            Self::Iptables(_) => {
                let empty: String = ["raw", "mangle", "nat", "filter"]
                    .map(|table| format!("*{table}\\nCOMMIT\\n"))
                    .concat();
                (
                    "iptables-legacy-restore".to_owned(),
                    "iptables-legacy-save -c".to_owned(),
                    format!("printf '{empty}' | iptables-legacy-restore"),
                )
            }
        }
    }
}

impl Display for Rules {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (Self::Nft(text) | Self::Iptables(text)) = self;
        formatter.write_str(text)
    }
}

/// The classes of packets of connections: state, direction and status.
fn classes() -> impl Iterator<Item = (usize, usize, u32, u32)> {
    let all = (0..3).flat_map(|state| (0..2).map(move |way| (state, way)));
    all.flat_map(|(state, way)| {
        (0..8).map(move |bits| (state, way, bits << 1, 3 + ((state * 2 + way) * 8) as u32 + bits))
    })
}

fn some(dice: &mut Dice, times: usize, from: &[String]) -> Vec<String> {
    from.iter().filter(|_| dice.one_in(times)).cloned().collect()
}

fn nft(dice: &mut Dice, nat: &NatRules) -> String {
    let port = dice.pick(&SERVERS);
    let raw = some(
        dice,
        3,
        &[
            format!("udp dport {port} notrack"),
            format!("tcp sport {port} notrack"),
            "meta l4proto 50 notrack".to_owned(),
            "ct state invalid meta mark set 0x40".to_owned(),
            "ct state established drop".to_owned(),
        ],
    );
    let early = some(
        dice,
        4,
        &[
            "ct state invalid drop".to_owned(),
            "ct state new ct mark set 0x5".to_owned(),
            "ct direction reply meta mark set ct mark".to_owned(),
            "ct state untracked tcp flags syn drop".to_owned(),
            "ct state invalid notrack".to_owned(),
        ],
    );
    let forward = some(
        dice,
        5,
        &[
            format!("ct state new tcp dport {port} drop"),
            "ct state new tcp flags & (syn|ack) == ack drop".to_owned(),
            format!("meta l4proto tcp ct original proto-dst {port} ct direction reply drop"),
            "ct original ip saddr 10.101.0.0/16 ct mark set 0x11".to_owned(),
            "ct reply ip saddr 10.103.0.0/16 ct state related drop".to_owned(),
            "ct reply ip6 daddr fd00:102::/32 ct mark set ct mark or 0x100".to_owned(),
            "ct mark 0x5 udp length > 30 drop".to_owned(),
            "ct mark and 0x10 == 0x10 tcp flags fin drop".to_owned(),
            "ct state new ct mark set meta length map { 0-60 : 1, 61-80 : 2 }".to_owned(),
            "ct protocol udp ct status assured meta length > 50 drop".to_owned(),
            "ct l3proto ipv6 ct state { related, invalid } drop".to_owned(),
            "ct state vmap { invalid : drop, untracked : accept }".to_owned(),
            "ct mark != 0 ct mark set ct mark and 0xff meta mark set ct mark".to_owned(),
            "meta mark 0x5 ct state established drop".to_owned(),
            "ct zone 0 ct state new meta length < 29 drop".to_owned(),
            "meta l4proto udp ct reply proto-src 53 ct state established drop".to_owned(),
            "ct status dnat meta length > 100 drop".to_owned(),
            "ct status snat ct direction reply meta length > 90 drop".to_owned(),
            "ct original ip daddr 172.16.0.0/12 ct reply ip daddr 172.17.0.0/16 tcp flags fin drop"
                .to_owned(),
        ],
    );
    let behind = some(
        dice,
        4,
        &[
            "ct state new ip daddr 10.103.0.0/16 ct mark set 0x5".to_owned(),
            "ip daddr 172.16.0.0/12 meta length > 150 drop".to_owned(),
            "ct status snat tcp flags fin drop".to_owned(),
        ],
    );
    let translating = |name: &str, hook: &str, priority: i32, rules: &[String]| {
        let chain = match rules {
            [] => return String::new(),
            rules => rules.join("\n"),
        };
        format!(
            "chain {name} {{ type nat hook {hook} priority {priority}; policy accept;\n{chain}\n}}\n"
        )
    };
    let written: Vec<String> = ["ip", "ip6"].iter().flat_map(|family| written(family)).collect();
    let chain = |name: &str, hook: &str, priority: i32, rules: &[String]| match rules {
        [] => String::new(),
        rules => format!(
            "chain {name} {{ type filter hook {hook} priority {priority}; policy accept;\n{}\n}}\n",
            rules.join("\n")
        ),
    };
    // Answers that nobody waits for begin no connections: these would take ports, in whose place each router chooses
    // others at random.
    let family = |is_six: bool| if is_six { "ip6" } else { "ip" };
    let servers = nat.servers.iter();
    let first: Vec<_> = servers
        .map(|(is_six, server)| format!("ct state new {} saddr {server} drop", family(*is_six)))
        .collect();
    let forward = [first.clone(), forward].concat();
    let input: Vec<_> = first.iter().map(|_| "ct state new drop".to_owned()).take(1).collect();
    format!(
        "table inet t {{\n{}{}{}{}{}{}{}{}}}\n",
        chain("raw", "prerouting", -300, &raw),
        chain("early", "prerouting", -150, &early),
        chain("forward", "forward", 0, &forward),
        chain("input", "input", 0, &input),
        chain("last", "postrouting", 0, &written),
        translating("before_route", "prerouting", -100, &nat.nft[0]),
        chain("behind", "prerouting", -50, &behind),
        translating("at_last", "postrouting", 100, &nat.nft[1]),
    )
}

fn written(family: &str) -> Vec<String> {
    let mut rules: Vec<_> = classes()
        .map(|(state, way, status, class)| {
            let (state, _) = STATES[state];
            let way = ["original", "reply"][way];
            format!(
                "ct state {state} ct direction {way} ct status & {STATUS} == {status} {family} dscp set {class}"
            )
        })
        .collect();
    rules.push(format!("ct state invalid {family} dscp set {INVALID}"));
    rules.push(format!("ct state untracked {family} dscp set {UNTRACKED}"));
    rules
}

fn iptables(dice: &mut Dice, nat: &NatRules) -> String {
    let port = dice.pick(&SERVERS);
    let raw = some(
        dice,
        3,
        &[
            format!("-A PREROUTING -p udp --dport {port} -j CT --notrack"),
            format!("-A PREROUTING -p tcp --sport {port} -j CT --notrack"),
            "-A PREROUTING -m conntrack --ctstate ESTABLISHED -j DROP".to_owned(),
        ],
    );
    let filter = some(dice, 4, &[
        format!("-A FORWARD -p tcp -m conntrack --ctstate NEW -m tcp --dport {port} -j DROP"),
        "-A FORWARD -m conntrack --ctstate INVALID -j DROP".to_owned(),
        "-A FORWARD -m conntrack ! --ctstate NEW,ESTABLISHED -m length --length 60:90 -j DROP".to_owned(),
        format!("-A FORWARD -m conntrack --ctorigdstport {port} --ctdir REPLY -j DROP"),
        "-A FORWARD -m conntrack --ctorigsrc 10.101.0.0/16 -j CONNMARK --set-xmark 0x11/0xff".to_owned(),
        "-A FORWARD -m conntrack --ctproto 17 --ctstatus ASSURED -m length --length 50: -j DROP".to_owned(),
        "-A FORWARD -m conntrack ! --ctreplsrc 10.103.0.0/16 --ctstate RELATED -j DROP".to_owned(),
        "-A FORWARD -m connmark --mark 0x11/0x1f -p tcp -m tcp --tcp-flags FIN FIN -j DROP".to_owned(),
        "-A FORWARD -m state --state RELATED,UNTRACKED -m length --length 0:70 -j DROP".to_owned(),
        "-A FORWARD -m connmark ! --mark 0x0 -m conntrack --ctstatus SEEN_REPLY -m length --length 200: -j DROP".to_owned(),
    ]);
    let mangle = some(dice, 3, &[
        "-A PREROUTING -m conntrack --ctstate NEW -j CONNMARK --set-mark 0x5".to_owned(),
        "-A PREROUTING -j CONNMARK --restore-mark --nfmask 0xff --ctmask 0xff".to_owned(),
        "-A PREROUTING -m mark --mark 0x5/0xff -m conntrack --ctdir REPLY -j MARK --set-xmark 0x9/0xf".to_owned(),
        "-A FORWARD -m mark ! --mark 0x0 -j CONNMARK --save-mark --nfmask 0xf --ctmask 0xff".to_owned(),
    ]);
    let written = classes().map(|(state, way, status, class)| {
        let state = STATES[state].1;
        let way = ["ORIGINAL", "REPLY"][way];
        let bit = |bit: u32, name: &str| {
            let negated = if status & bit == 0 { "! " } else { "" };
            format!("-m conntrack {negated}--ctstatus {name} ")
        };
        let status = bit(2, "SEEN_REPLY") + &bit(4, "ASSURED") + &bit(8, "CONFIRMED");
        format!(
            "-A POSTROUTING -m conntrack --ctstate {state} --ctdir {way} {status}-j DSCP --set-dscp {class:#04x}"
        )
    });
    let others = [
        format!("-A POSTROUTING -m conntrack --ctstate INVALID -j DSCP --set-dscp {INVALID:#04x}"),
        format!(
            "-A POSTROUTING -m conntrack --ctstate UNTRACKED -j DSCP --set-dscp {UNTRACKED:#04x}"
        ),
    ];
    let mangle: Vec<_> = mangle.into_iter().chain(written).chain(others).collect();
    let table = |name: &str, rules: &[String]| format!("*{name}\n{}\nCOMMIT\n", rules.join("\n"));
    let servers = nat.servers.iter().filter(|(is_six, _)| !is_six);
    let first = servers.flat_map(|(_, server)| {
        ["INPUT", "FORWARD"]
            .map(|chain| format!("-A {chain} -s {server} -m conntrack --ctstate NEW -j DROP"))
    });
    let filter = [first.collect(), filter].concat();
    let nat = match &nat.iptables {
        [pre, post] if pre.is_empty() && post.is_empty() => String::new(),
        both => table("nat", &both.concat()),
    };
    table("raw", &raw) + &table("mangle", &mangle) + &nat + &table("filter", &filter)
}
