//! Rules in the kernel's messages (`struct fib_rule_hdr`, `FRA_*`; `fib_nl_fill_rule`).

use std::net::IpAddr;

use ipnet::IpNet;

use crate::kernel::{Family, Rule, RuleAction};
use tollway_linux::netlink::{Attribute, attributes};

/// Length of `struct fib_rule_hdr`.
const HEADER: usize = 12;
/// `FIB_RULE_INVERT`: the rule is for packets that do not match its selectors.
const INVERT: u32 = 2;
/// The word for a rule that applies only to packets of VRFs and does not look up their tables.
pub(crate) const VRF_ONLY: &str = "l3mdev";
/// The word for a rule that applies to packets that do not match its selectors.
pub(crate) const NOT: &str = "not";
/// The value for "no limit" (`FRA_SUPPRESS_*`).
const NONE: u32 = u32::MAX;

/// `FRA_*`.
mod fra {
    pub(super) const DST: u16 = 1;
    pub(super) const SRC: u16 = 2;
    pub(super) const IIF: u16 = 3;
    pub(super) const GOTO: u16 = 4;
    pub(super) const PRIORITY: u16 = 6;
    pub(super) const MARK: u16 = 10;
    pub(super) const FLOW: u16 = 11;
    pub(super) const TUN_ID: u16 = 12;
    pub(super) const SUPPRESS_GROUP: u16 = 13;
    pub(super) const SUPPRESS_LEN: u16 = 14;
    pub(super) const TABLE: u16 = 15;
    pub(super) const MASK: u16 = 16;
    pub(super) const OIF: u16 = 17;
    pub(super) const PAD: u16 = 18;
    pub(super) const L3MDEV: u16 = 19;
    pub(super) const UID_RANGE: u16 = 20;
    pub(super) const PROTOCOL: u16 = 21;
    pub(super) const IP_PROTO: u16 = 22;
    pub(super) const SPORT: u16 = 23;
    pub(super) const DPORT: u16 = 24;
    pub(super) const DSCP: u16 = 25;
    pub(super) const FLOW_LABEL: u16 = 26;
    pub(super) const FLOW_LABEL_MASK: u16 = 27;
    pub(super) const SPORT_MASK: u16 = 28;
    pub(super) const DPORT_MASK: u16 = 29;
    pub(super) const DSCP_MASK: u16 = 30;
}

/// The attributes of a message about a rule.
#[derive(Default)]
struct RuleParts {
    dst: Option<IpAddr>,
    src: Option<IpAddr>,
    iif: Option<String>,
    goto: u32,
    priority: u32,
    mark: Option<u32>,
    mask: Option<u32>,
    table: u32,
    vrf: bool,
    unsupported: Vec<String>,
}

/// The rule in the body of an `RTM_NEWRULE` or `RTM_DELRULE`; none for families other than IPv4 and IPv6.
pub(super) fn read(body: &[u8]) -> Option<Rule> {
    let [family, dst_len, src_len, tos, table, _, _, action, flags @ ..] =
        *body.first_chunk::<HEADER>()?;
    let family = match i32::from(family) {
        libc::AF_INET => Family::V4,
        libc::AF_INET6 => Family::V6,
        _ => return None,
    };
    let mut parts = RuleParts { table: table.into(), ..RuleParts::default() };
    attributes(body, HEADER).for_each(|attribute| parts.read(attribute));
    if tos != 0 {
        parts.unsupported.push(format!("tos {tos:#x}"));
    }
    if u32::from_ne_bytes(flags) & INVERT != 0 {
        parts.unsupported.push(NOT.to_owned());
    }
    let action = parts.action(action);
    let prefix = |address: Option<IpAddr>, len| address.and_then(|a| IpNet::new(a, len).ok());
    let selects = parts.mark.is_some() || parts.mask.is_some();
    Some(Rule {
        family,
        priority: parts.priority,
        src: prefix(parts.src, src_len),
        dst: prefix(parts.dst, dst_len),
        iif: parts.iif,
        mark: selects.then(|| (parts.mark.unwrap_or(0), parts.mask.unwrap_or(u32::MAX))),
        action,
        unsupported: (!parts.unsupported.is_empty()).then(|| parts.unsupported.join(", ")),
    })
}

impl RuleParts {
    fn read(&mut self, attribute: Attribute<'_>) {
        let number = attribute.u32().unwrap_or_default();
        match attribute.kind {
            fra::DST => self.dst = attribute.address(),
            fra::SRC => self.src = attribute.address(),
            fra::IIF => self.iif = Some(attribute.text()),
            fra::GOTO => self.goto = number,
            fra::PRIORITY => self.priority = number,
            fra::MARK => self.mark = Some(number),
            fra::MASK => self.mask = Some(number),
            fra::TABLE => self.table = number,
            fra::L3MDEV => self.vrf = attribute.u8() == Some(1),
            fra::PAD | fra::PROTOCOL => {}
            fra::SUPPRESS_GROUP | fra::SUPPRESS_LEN if number == NONE => {}
            other => self.unsupported.push(words(other, attribute)),
        }
    }

    fn action(&mut self, number: u8) -> RuleAction {
        if self.vrf && number != 1 {
            // The rule applies only to packets of VRFs: `l3mdev unreachable` follows the lookup in their
            // tables.
            self.unsupported.push(VRF_ONLY.to_owned());
        }
        match number {
            1 if self.vrf => RuleAction::Vrf,
            1 => RuleAction::Table(self.table),
            2 => RuleAction::Goto(self.goto),
            3 => RuleAction::Nop,
            6 => RuleAction::Blackhole,
            7 => RuleAction::Unreachable,
            8 => RuleAction::Prohibit,
            other => {
                self.unsupported.push(format!("action {other}"));
                RuleAction::Nop
            }
        }
    }
}

/// A selector by its name in ip-rule(8). Two rules that differ have different words.
fn words(kind: u16, attribute: Attribute<'_>) -> String {
    let name = match kind {
        fra::FLOW => "realms",
        fra::TUN_ID => "tun_id",
        fra::SUPPRESS_GROUP => "suppress_ifgroup",
        fra::SUPPRESS_LEN => "suppress_prefixlength",
        fra::OIF => return format!("oif {}", attribute.text()),
        fra::UID_RANGE => "uidrange",
        fra::IP_PROTO => "ipproto",
        fra::SPORT => "sport",
        fra::DPORT => "dport",
        fra::DSCP => "dscp",
        fra::FLOW_LABEL => "flowlabel",
        fra::FLOW_LABEL_MASK => "flowlabel mask",
        fra::SPORT_MASK => "sport mask",
        fra::DPORT_MASK => "dport mask",
        fra::DSCP_MASK => "dscp mask",
        other => return format!("attribute {other} = {:x?}", attribute.value),
    };
    let number = match *attribute.value {
        [a] => u64::from(a),
        [a, b] => u16::from_ne_bytes([a, b]).into(),
        [a, b, c, d] if matches!(kind, fra::SPORT | fra::DPORT) => {
            let end = |a, b| u16::from_ne_bytes([a, b]);
            return format!("{name} {}-{}", end(a, b), end(c, d));
        }
        [a, b, c, d] => u32::from_ne_bytes([a, b, c, d]).into(),
        _ => return format!("{name} {:x?}", attribute.value),
    };
    format!("{name} {number}")
}
