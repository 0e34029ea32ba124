//! Writes to the mark and the DSCP: of numbers, of bits, and by maps.

use serde_json::Value;

use super::json::{inner, only, set_name, several, text};
use super::named_bits::Kind;
use super::rule::Rule;
use super::value;
use crate::ir::{Action, Key, SetId, Step, Target};

/// Which bits of the old mark stay, and which are inverted.
#[derive(Clone, Copy)]
struct Bits {
    keep: u32,
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
            ("ct", key, _) => return Err(format!("ct {key} is connection tracking's")),
            (_, key, field) => {
                let protocol = text(inner, "protocol");
                return Err(format!("{name} {protocol}{key} {field} is not written here"));
            }
        };
        if let Some(map) = super::json::inner(value, "map") {
            let lookup = self.lookup(map, Some(kind))?;
            if let Some((keys, map)) = lookup {
                self.steps.push(Step::Map { keys, map, target });
            }
            return Ok(());
        }
        self.steps.push(Step::Do(match target {
            Target::Mark => {
                let Bits { keep, flip } = bits(value)?;
                Action::Mark { keep, flip }
            }
            Target::Dscp => Action::Dscp(dscp(value)?),
        }));
        Ok(())
    }

    /// The keys for a lookup in a map; `None` if no packet has them. `data` is the type of the map's data;
    /// without a kind they are verdicts.
    pub(super) fn lookup(
        &mut self,
        map: &Value,
        data: Option<Kind>,
    ) -> Result<Option<(Vec<Key>, SetId)>, String> {
        let none = Value::Null;
        let named = self.named(map.get("key").unwrap_or(&none))?;
        if self.without_link(&named, false)?.is_some() {
            self.never();
            return Ok(None);
        }
        let right = map.get("data").unwrap_or(&none);
        let data = Some(data);
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

/// The change of the mark that a value describes.
fn bits(value: &Value) -> Result<Bits, String> {
    if inner(value, "meta").is_some_and(|meta| text(meta, "key") == "mark") {
        return Ok(Bits { keep: u32::MAX, flip: 0 });
    }
    if let Some((operator @ ("|" | "&" | "^"), operands)) = only(value) {
        let mut operands = several(operands).iter();
        let first = bits(operands.next().unwrap_or(&Value::Null))?;
        return operands.try_fold(first, |all, operand| combine(operator, all, bits(operand)?));
    }
    let number = value::number(Kind::Plain, value)?;
    let flip = u32::try_from(number).map_err(|_| format!("no mark is {number}"))?;
    Ok(Bits { keep: 0, flip })
}

fn combine(operator: &str, left: Bits, right: Bits) -> Result<Bits, String> {
    let (mark, constant) = match (left.keep, right.keep) {
        (_, 0) => (left, right.flip),
        (0, _) => (right, left.flip),
        _ => return Err("the mark with itself is not known here".to_owned()),
    };
    let Bits { keep, flip } = mark;
    Ok(match operator {
        "|" => Bits { keep: keep & !constant, flip: flip & !constant | constant },
        "&" => Bits { keep: keep & constant, flip: flip & constant },
        _ => Bits { keep, flip: flip ^ constant },
    })
}
