//! The expressions that a rule tests, and the conditions that they imply.

use serde_json::Value;
use tollway_dataplane::wire::eth::ethertype;

use super::json::{inner, number, only, pair, text};
use super::named_bits::{self, Kind, NamedBits};
use super::refusal::refusal;
use super::rule::Rule;
use super::value;
use crate::ir::{Family, Field, Match, PayloadBase, Range};

impl Rule<'_, '_> {
    /// The bits that an expression looks at, several for a concatenation. Adds the implied conditions to the
    /// rule.
    pub(super) fn named(&mut self, expression: &Value) -> Result<Vec<NamedBits>, String> {
        match inner(expression, "concat") {
            Some(parts) => {
                let parts = parts.as_array().map(Vec::as_slice).unwrap_or_default();
                parts.iter().map(|part| self.one_named(part)).collect()
            }
            None => Ok(vec![self.one_named(expression)?]),
        }
    }

    fn one_named(&mut self, expression: &Value) -> Result<NamedBits, String> {
        let unknown = || format!("{expression} is no expression that is known here");
        let (name, inner) = only(expression).ok_or_else(unknown)?;
        match name {
            "meta" => self.meta(text(inner, "key")),
            "payload" => match inner.get("base") {
                Some(_) => self.raw(inner),
                None => self.payload(text(inner, "protocol"), text(inner, "field")),
            },
            "exthdr" => self.extension(inner),
            "ct" => self.connection(inner),
            "&" => {
                let (left, mask) = pair(inner).ok_or_else(unknown)?;
                let bits = self.one_named(left)?;
                if bits.kind == Kind::Link {
                    return Err("bits of an interface are not known here".to_owned());
                }
                Ok(bits.masked(value::number(bits.kind, mask)?))
            }
            _ => Err(refusal(name, inner)),
        }
    }

    fn meta(&self, key: &str) -> Result<NamedBits, String> {
        let bits = named_bits::meta(key).ok_or_else(|| format!("meta {key} is not known here"))?;
        match key {
            "nfproto" if matches!(self.site.family, Family::Netdev | Family::Bridge) => {
                Err("nfproto is no version of IP in this family; write meta protocol".to_owned())
            }
            "length" if self.site.is_at_device() => {
                Err("a frame's padding is in meta length here".to_owned())
            }
            _ => Ok(bits),
        }
    }

    fn connection(&mut self, inner: &Value) -> Result<NamedBits, String> {
        let why = refusal("ct", inner);
        let family = match (text(inner, "family"), self.site.family) {
            ("ip", _) | ("", Family::Ip) => Some(4),
            ("ip6", _) | ("", Family::Ip6) => Some(6),
            _ => None,
        };
        let bits = named_bits::connection(text(inner, "key"), text(inner, "dir"), family);
        let bits = bits.ok_or_else(|| why.clone())?;
        self.note_connection(why);
        Ok(bits)
    }

    fn payload(&mut self, protocol: &str, name: &str) -> Result<NamedBits, String> {
        if protocol == "arp" {
            // No IP packet gets beyond this.
            self.need(Match::is(Field::EtherType, ethertype::ARP.into()));
        }
        let bits = named_bits::payload(protocol, name)
            .ok_or_else(|| format!("{protocol} {name} is not known here"))?;
        match protocol {
            "ip" => self.need_version(4),
            "ip6" => self.need_version(6),
            "icmp" | "igmp" if self.version.is_none() => self.need_version(4),
            "icmpv6" if self.version.is_none() => self.need_version(6),
            "ether" | "vlan" => self.link_header(protocol, name)?,
            _ => {}
        }
        if let Some(number) = named_bits::protocol(protocol) {
            self.need(Match::is(Field::Protocol, number));
        }
        let types = named_bits::icmp_types(protocol, name);
        if !types.is_empty() {
            let types: Vec<_> = types.iter().map(|number| Range::one(*number)).collect();
            self.need(Match::in_ranges(Field::IcmpType, types));
        }
        if self.site.is_at_device() && protocol == "ip" {
            // The kernel has checked no header yet, and takes its content as it is.
            match name {
                "protocol" => return Ok(named_bits::unchecked(72, 8, bits.kind)),
                "length" => return Ok(named_bits::unchecked(16, 16, bits.kind)),
                _ => {}
            }
        }
        if protocol == "ip" && name == "checksum" && self.site.is_behind_routing() {
            return Err("the checksum is another one behind the routing".to_owned());
        }
        Ok(bits)
    }

    fn link_header(&self, protocol: &str, name: &str) -> Result<(), String> {
        let hooks = &self.site.hooks;
        if hooks.contains(&crate::ir::Hook::Egress) {
            return Err("the Ethernet header is another one behind the routing".to_owned());
        }
        match (protocol, self.site.is_at_device()) {
            ("vlan", false) => {
                Err("a link has taken the tag off before packets come here".to_owned())
            }
            ("ether", true) if name == "type" => {
                Err("ether type is a tag's where there is one; write meta protocol".to_owned())
            }
            _ => Ok(()),
        }
    }

    fn raw(&self, inner: &Value) -> Result<NamedBits, String> {
        let (Some(offset), Some(bits)) = (number(inner, "offset"), number(inner, "len")) else {
            return Err(format!("{inner} is no part of a header"));
        };
        let end = offset.saturating_add(bits);
        let base = match text(inner, "base") {
            "ll" if end > 112 || (end > 96 && self.site.is_at_device()) => {
                return Err("what is behind the MAC addresses depends on tags".to_owned());
            }
            "ll" if self.site.hooks.contains(&crate::ir::Hook::Egress) => {
                return Err("the Ethernet header is another one behind the routing".to_owned());
            }
            "ll" => PayloadBase::Link,
            "nh" => PayloadBase::Network,
            "th" => PayloadBase::Transport,
            base => return Err(format!("@{base} is not known here")),
        };
        if base == PayloadBase::Network && self.site.is_behind_routing() {
            let changed: &[(u64, u64)] = match self.version {
                Some(4) => &[(64, 72), (80, 96)],
                Some(6) => &[(56, 64)],
                _ => &[(56, 72), (80, 96)],
            };
            if changed.iter().any(|(first, last)| offset < *last && *first < end) {
                return Err("TTL and checksum are others behind the routing".to_owned());
            }
        }
        NamedBits::of_header(base, offset, bits, Kind::Plain)
            .ok_or_else(|| format!("{bits} bits at {offset} are too many"))
    }

    fn extension(&mut self, inner: &Value) -> Result<NamedBits, String> {
        let (name, field) = (text(inner, "name"), text(inner, "field"));
        let found = if name == "frag" { named_bits::fragment(field) } else { None };
        let found = found.ok_or_else(|| format!("extension header {name} {field} is not known"))?;
        self.need_version(6);
        Ok(found)
    }
}
