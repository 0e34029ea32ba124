//! Rules as areas: a range of values of each field.

use super::super::Field;
use super::NONE;

/// The ranges of a field by rule, as numbers of 32 bits in ascending order.
pub(super) type Numbers = Vec<(u32, Vec<Side>)>;

/// The maximum number of areas of one rule.
const MOST_AREAS: usize = 16;

/// The maximum number of areas, by the number of rules.
const MOST_AREAS_PER_RULE: usize = 4;

/// The least and the greatest value.
pub(super) type Side = (u32, u32);

/// A range of values of each field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Area {
    /// The rule that it belongs to.
    pub(super) rule: u32,
    /// Field by field.
    pub(super) sides: Vec<Side>,
}

/// The conditions of rules of which areas only hold the hull: those with several ranges.
#[derive(Debug, Default)]
pub(super) struct Exact {
    /// For each rule, the index of its conditions, or [`NONE`].
    at: Vec<u32>,
    conditions: Vec<Vec<(usize, Vec<Side>)>>,
}

impl Exact {
    #[inline(always)]
    pub(super) const fn is_empty(&self) -> bool {
        self.conditions.is_empty()
    }

    /// Says whether values that are in a rule's area are in its ranges, too. A field without a value is.
    pub(super) fn holds(&self, rule: u32, value: impl Fn(usize) -> Option<u32>) -> bool {
        let index = self.at.get(rule as usize).copied().unwrap_or(NONE);
        let Some(conditions) = self.conditions.get(index as usize) else { return true };
        conditions.iter().all(|(dim, ranges)| {
            value(*dim).is_none_or(|value| {
                let after = ranges.partition_point(|range| range.0 <= value);
                after > 0 && value <= ranges[after - 1].1
            })
        })
    }

    fn push(&mut self, rule: u32, dim: usize, ranges: &[Side]) {
        if self.at.len() <= rule as usize {
            self.at.resize(rule as usize + 1, NONE);
        }
        let at = &mut self.at[rule as usize];
        if *at == NONE {
            *at = self.conditions.len() as u32;
            self.conditions.push(Vec::new());
        }
        self.conditions[*at as usize].push((dim, ranges.to_vec()));
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let ranges = self.conditions.iter().flatten().map(|(_, ranges)| ranges.len());
        self.at.len() * size_of::<u32>() + ranges.sum::<usize>() * size_of::<Side>()
    }
}

/// How many rules are small in a field: they have less than a 256th of its numbers.
pub(super) fn small(numbers: &Numbers) -> usize {
    let ends = |ranges: &Vec<Side>| Some((ranges.first()?.0, ranges.last()?.1));
    let hulls = || numbers.iter().filter_map(|(_, ranges)| ends(ranges));
    let max = hulls().map(|(_, last)| last).max().unwrap_or(0);
    hulls().filter(|(first, last)| last - first < max / 256).count()
}

/// The areas of `count` rules, of these numbers by field; none if they are too many.
///
/// A rule with several ranges of addresses has an area for each, since they may be far apart. Of other
/// fields, such as ports, its areas hold all ranges and what is between.
pub(super) fn areas(fields: &[(Field, Numbers)], count: usize) -> Option<(Vec<Area>, Exact)> {
    let mut all = vec![Vec::new(); count];
    for (dim, (field, numbers)) in fields.iter().enumerate() {
        for (rule, ranges) in numbers {
            all[*rule as usize].push((dim, field, ranges));
        }
    }
    let (mut areas, mut exact) = (Vec::new(), Exact::default());
    for (rule, conditions) in (0..).zip(all) {
        let mut own = vec![vec![(0, u32::MAX); fields.len()]];
        for (dim, field, ranges) in conditions {
            let splits = field.is_address() && own.len() * ranges.len() <= MOST_AREAS;
            if ranges.len() > 1 && !splits {
                let hull = (ranges[0].0, ranges[ranges.len() - 1].1);
                own.iter_mut().for_each(|sides| sides[dim] = hull);
                exact.push(rule, dim, ranges);
                continue;
            }
            // Without a range no area is left: no packet matches.
            own = ranges.iter().flat_map(|range| with(&own, dim, *range)).collect();
        }
        areas.extend(own.into_iter().map(|sides| Area { rule, sides }));
        if areas.len() > count * MOST_AREAS_PER_RULE {
            return None;
        }
    }
    Some((areas, exact))
}

/// The same areas with another range of a field.
fn with(areas: &[Vec<Side>], dim: usize, range: Side) -> Vec<Vec<Side>> {
    let mut areas = areas.to_vec();
    areas.iter_mut().for_each(|sides| sides[dim] = range);
    areas
}
