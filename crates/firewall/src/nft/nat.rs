//! Statements that translate addresses: `snat`, `dnat`, `masquerade`, `redirect`.

use serde_json::Value;

use super::json::{inner, several, text};
use super::listing::Data;
use super::nat_map::{NatMap, set_addresses};
use super::rule::Rule;
use crate::ir::{NatRange, NatTarget, NatVerdict, Step, Verdict};

/// Says whether a statement translates addresses.
pub(super) fn is_nat(name: &str) -> bool {
    matches!(name, "snat" | "dnat" | "masquerade" | "redirect")
}

impl Rule<'_, '_> {
    /// Adds a statement that translates addresses. Returns whether more may follow.
    pub(super) fn nat(&mut self, name: &str, statement: &Value) -> Result<bool, String> {
        let version = match (text(statement, "family"), self.site.family) {
            ("ip", _) | ("", crate::ir::Family::Ip) => Some(4),
            ("ip6", _) | ("", crate::ir::Family::Ip6) => Some(6),
            _ => None,
        };
        let target = match name {
            "snat" => NatTarget::Source(None),
            "dnat" => NatTarget::Destination(None),
            "masquerade" => NatTarget::Masquerade,
            _ => NatTarget::Redirect,
        };
        let mut verdict = NatVerdict { version, range: NatRange::new(target) };
        let is_netmap = flags(statement, &mut verdict.range)?;
        let (address, ports) = (statement.get("addr"), statement.get("port"));
        let map = |value: Option<&Value>| value.and_then(|value| inner(value, "map")).cloned();
        let (address_map, port_map) = (map(address), map(ports));
        if let Some(address) = address.filter(|_| address_map.is_none()) {
            set_addresses(&mut verdict, is_netmap, address)?;
        }
        if let Some(ports) = ports.filter(|_| port_map.is_none()) {
            verdict.range.ports = Some(super::nat_map::ports(ports)?);
        }
        let (map, has_ports) = match (address_map, port_map) {
            (None, None) => {
                self.steps.push(Step::Verdict(Verdict::Nat(verdict)));
                return Ok(false);
            }
            (Some(map), None) => (map, false),
            (None, Some(map)) => (map, true),
            (Some(_), Some(_)) => {
                return Err("two maps are not known here; write one of address . port".to_owned());
            }
        };
        let data = Data::Nat(NatMap { verdict, is_netmap, has_ports });
        if let Some((keys, map)) = self.lookup(&map, data)? {
            self.steps.push(Step::VerdictMap { keys, map });
        }
        Ok(false)
    }
}

/// Sets the flags; says whether `netmap` is one.
fn flags(statement: &Value, range: &mut NatRange) -> Result<bool, String> {
    let mut is_netmap = false;
    for flag in statement.get("flags").map(several).unwrap_or_default() {
        match flag.as_str() {
            Some("random" | "fully-random") => range.is_random = true,
            Some("persistent") => range.is_persistent = true,
            Some("netmap") => is_netmap = true,
            _ => return Err(format!("the flag {flag} is not known here")),
        }
    }
    // nft 1.0.6 writes it there too.
    let kinds = statement.get("type_flags").map(several).unwrap_or_default();
    Ok(is_netmap || kinds.iter().any(|kind| kind.as_str() == Some("prefix")))
}
