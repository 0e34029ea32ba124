//! Writes to marks and the DSCP: of numbers, of bits, and by maps.

use serde_json::Value;

use super::json::{inner, only, set_name, several, text};
use super::listing::Data;
use super::named_bits::Kind;
use super::rule::Rule;
use super::value;
use crate::ir::{Action, Key, MarkOf, MarkUpdate, SetId, Step, Target};

/// A number by the marks: bits of the packet's, bits of the connection's if that is read, and a constant, all
/// joined by exclusive or.
#[derive(Clone, Copy)]
struct Bits {
    packet: u32,
    connection: Option<u32>,
    flip: u32,
}

impl Rule<'_, '_> {
    /// Writes to a packet or its metadata.
    pub(super) fn mangle(&mut self, mangle: &Value) -> Result<(), String> {
        let none = Value::Null;
        let (key, value) =
            (mangle.get("key").unwrap_or(&none), mangle.get("value").unwrap_or(&none));
        let (name, inner) = only(key).ok_or_else(|| format!("{key} is nothing to write to"))?;
        let (target, kind) = match (name, text(inner, "key"), text(inner, "field")) {
            ("meta", "mark", _) => (Target::Mark, Kind::Plain),
            ("payload", _, "dscp") => {
                match text(inner, "protocol") {
                    "ip" => self.need_version(4),
                    "ip6" => self.need_version(6),
                    protocol => return Err(format!("{protocol} dscp is not known here")),
                }
                (Target::Dscp, Kind::Dscp)
            }
            ("ct", "mark", _) => {
                self.note_connection("ct mark is connection tracking's".to_owned());
                (Target::ConnectionMark, Kind::Plain)
            }
            ("ct", key, _) => return Err(format!("ct {key} is connection tracking's")),
            (_, key, field) => {
                let protocol = text(inner, "protocol");
                return Err(format!("{name} {protocol}{key} {field} is not written here"));
            }
        };
        if let Some(map) = super::json::inner(value, "map") {
            let lookup = self.lookup(map, Data::Numbers(kind))?;
            if let Some((keys, map)) = lookup {
                self.steps.push(Step::Map { keys, map, target });
            }
            return Ok(());
        }
        let action = match target {
            Target::Mark => self.mark(value, MarkOf::Packet)?,
            Target::ConnectionMark => self.mark(value, MarkOf::Connection)?,
            Target::Dscp => Action::Dscp(dscp(value)?),
        };
        self.steps.push(Step::Do(action));
        Ok(())
    }

    /// The action that sets a mark to a value.
    fn mark(&mut self, value: &Value, target: MarkOf) -> Result<Action, String> {
        let Bits { packet, connection, flip } = self.bits(value)?;
        Ok(match (target, connection) {
            (MarkOf::Packet, None) => Action::Mark { keep: packet, flip },
            _ => Action::UpdateMark(MarkUpdate { target, packet, connection, flip }),
        })
    }

    /// The number that a value describes.
    fn bits(&mut self, value: &Value) -> Result<Bits, String> {
        let is_mark = |of| inner(value, of).is_some_and(|inner| text(inner, "key") == "mark");
        if is_mark("meta") {
            return Ok(Bits { packet: u32::MAX, connection: None, flip: 0 });
        }
        if is_mark("ct") {
            self.note_connection(value::no_constant(value));
            return Ok(Bits { packet: 0, connection: Some(u32::MAX), flip: 0 });
        }
        if let Some((operator @ ("|" | "&" | "^"), operands)) = only(value) {
            let mut operands = several(operands).iter();
            let mut all = self.bits(operands.next().unwrap_or(&Value::Null))?;
            for operand in operands {
                all = combine(operator, all, self.bits(operand)?)?;
            }
            return Ok(all);
        }
        let number = value::number(Kind::Plain, value)?;
        let flip = u32::try_from(number).map_err(|_| format!("no mark is {number}"))?;
        Ok(Bits { packet: 0, connection: None, flip })
    }

    /// The keys for a lookup in a map; `None` if no packet has them. `data` is the type of the map's data.
    pub(super) fn lookup(
        &mut self,
        map: &Value,
        data: Data,
    ) -> Result<Option<(Vec<Key>, SetId)>, String> {
        let none = Value::Null;
        let named = self.named(map.get("key").unwrap_or(&none))?;
        if self.without_link(&named, false)?.is_some() {
            self.never();
            return Ok(None);
        }
        let right = map.get("data").unwrap_or(&none);
        let set = match set_name(right) {
            Some(name) => self.listing.named_set(self.site, name, &named, data)?,
            None => {
                let elements = inner(right, "set").ok_or_else(|| format!("{right} is no map"))?;
                self.listing.anonymous_set(self.site, several(elements), &named, data)?
            }
        };
        Ok(Some((named.iter().map(|bits| bits.key).collect(), set)))
    }
}

fn dscp(value: &Value) -> Result<u8, String> {
    let number = value::number(Kind::Dscp, value)?;
    u8::try_from(number)
        .ok()
        .filter(|dscp| *dscp < 64)
        .ok_or_else(|| format!("no DSCP is {number}"))
}

fn combine(operator: &str, left: Bits, right: Bits) -> Result<Bits, String> {
    let (mark, constant) = match (left, right) {
        (mark, Bits { packet: 0, connection: None, flip }) => (mark, flip),
        (Bits { packet: 0, connection: None, flip }, mark) => (mark, flip),
        _ => return joined(operator, left, right),
    };
    let with = |keep, flip| Bits {
        packet: mark.packet & keep,
        connection: mark.connection.map(|bits| bits & keep),
        flip,
    };
    Ok(match operator {
        "|" => with(!constant, mark.flip & !constant | constant),
        "&" => with(constant, mark.flip & constant),
        _ => with(u32::MAX, mark.flip ^ constant),
    })
}

/// Bits of the packet's mark, and bits of the connection's.
fn joined(operator: &str, left: Bits, right: Bits) -> Result<Bits, String> {
    let is_of_one = |packet: Bits, connection: Bits| {
        packet.connection.is_none() && connection.packet == 0 && connection.connection.is_some()
    };
    if !is_of_one(left, right) && !is_of_one(right, left) {
        return Err("the mark with itself is not known here".to_owned());
    }
    let used = |bits: Bits| bits.packet | bits.connection.unwrap_or(0) | bits.flip;
    let is_apart = operator == "|" && used(left) & used(right) == 0;
    if operator != "^" && !is_apart {
        return Err(format!("{operator} of two marks is not known here"));
    }
    Ok(Bits {
        packet: left.packet | right.packet,
        connection: left.connection.or(right.connection),
        flip: left.flip ^ right.flip,
    })
}
