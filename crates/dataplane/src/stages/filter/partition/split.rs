//! Chooses the levels: by which fields, and where their values are parted.

use std::ops::Range;

use super::super::cut::Cut;
use super::super::wide::SIDE;
use super::Level;
use super::area::Area;
use super::leaf::Leaves;

/// The maximum number of levels.
const MOST_LEVELS: usize = 8;

/// The numbers of leaves that the parts of a level may have.
const DEPTHS: [usize; 4] = [1, 2, 4, 8];

/// An area in one field: the smallest aligned block of values that holds its range, and its index.
/// In order, a block comes before those inside it.
type Key = (u32, u32, u32);

/// The parts of a field's values: where each begins, and its areas.
type Parts = Vec<(u32, Vec<u32>)>;

/// Splits areas of `dims` fields into levels; returns these, all leaves, and the first leaf of the rest.
/// None if a packet might be compared with more than `most` leaves.
pub(super) fn split(areas: &[Area], dims: usize, most: usize) -> Option<(Vec<Level>, Leaves, u32)> {
    let mut leaves = Leaves::new(dims);
    let mut levels = Vec::new();
    let mut orders: Vec<Vec<Key>> = (0..dims).map(|dim| order(areas, dim)).collect();
    let mut left: Vec<bool> = vec![true; areas.len()];
    let (mut rest, mut used) = (areas.len(), 0);
    while levels.len() < MOST_LEVELS {
        let Some((dim, depth, parts)) = best(&orders, most.saturating_sub(used)) else { break };
        for area in parts.iter().flat_map(|(_, areas)| areas) {
            left[*area as usize] = false;
            rest -= 1;
        }
        for order in &mut orders {
            order.retain(|(.., area)| left[*area as usize]);
        }
        levels.push(level(dim, &parts, areas, &mut leaves));
        used += depth;
    }
    if used + rest.div_ceil(SIDE) > most {
        return None;
    }
    let others = areas.iter().zip(&left).filter(|(_, left)| **left);
    let rest = leaves.push(others.map(|(area, _)| area).collect());
    Some((levels, leaves, rest))
}

fn level(dim: usize, parts: &Parts, areas: &[Area], leaves: &mut Leaves) -> Level {
    let begin = leaves.count();
    let mut classes = Vec::with_capacity(parts.len());
    for (_, part) in parts {
        classes.push(leaves.push(part.iter().map(|area| &areas[*area as usize]).collect()));
    }
    let bounds = parts.iter().skip(1).map(|(start, _)| *start).collect();
    let is_deep = leaves.count() - begin > parts.len() as u32;
    let leaves = (begin, leaves.count() - begin);
    Level { dim, cut: Cut::of_bounds(bounds, &classes), leaves, is_deep }
}

/// The areas' blocks in one field, in order.
fn order(areas: &[Area], dim: usize) -> Vec<Key> {
    let block = |(area, of): (u32, &Area)| {
        let (first, last) = of.sides[dim];
        let len = (first ^ last).leading_zeros();
        (first & !below(len), len, area)
    };
    let mut keys: Vec<_> = (0..).zip(areas).map(block).collect();
    keys.sort_unstable();
    keys
}

/// The values in a block whose first `len` bits are given.
const fn below(len: u32) -> u32 {
    match u32::MAX.checked_shr(len) {
        Some(below) => below,
        None => 0,
    }
}

/// The field, depth and parts that take most areas for the leaves that a packet is compared with, at
/// most `most`. None if the areas cost less in the rest.
fn best(orders: &[Vec<Key>], most: usize) -> Option<(usize, usize, Parts)> {
    let mut best: Option<(usize, usize, Parts)> = None;
    let mut best_count = 0;
    for depth in DEPTHS.into_iter().filter(|depth| *depth <= most) {
        for (dim, order) in orders.iter().enumerate() {
            let parts = parts(order, depth * SIDE);
            let count: usize = parts.iter().map(|(_, areas)| areas.len()).sum();
            let best_depth = best.as_ref().map_or(1, |(_, depth, _)| *depth);
            // The lookup of the part costs about as much as a leaf.
            if count > (depth + 1) * SIDE && count * (best_depth + 1) > best_count * (depth + 1) {
                best_count = count;
                best = Some((dim, depth, parts));
            }
        }
    }
    best
}

/// Parts of up to `most` areas. Areas that reach beyond are in none.
fn parts(order: &[Key], most: usize) -> Parts {
    let mut parts = Parts::new();
    halve(order, 0..order.len(), (0, 0), most, &mut parts);
    parts
}

/// Adds the areas of a block to the parts, if necessary by halves. Neighbours share a part if they
/// fit.
fn halve(
    order: &[Key],
    range: Range<usize>,
    (base, len): (u32, u32),
    most: usize,
    parts: &mut Parts,
) {
    let keys = &order[range.clone()];
    if keys.len() > most {
        if len == u32::BITS {
            return;
        }
        // Areas as large as the block fit into no half.
        let own = range.start + keys.partition_point(|(.., own, _)| *own <= len);
        let middle = base | 1 << (u32::BITS - 1 - len);
        let end = own + order[own..range.end].partition_point(|key| key.0 < middle);
        halve(order, own..end, (base, len + 1), most, parts);
        halve(order, end..range.end, (middle, len + 1), most, parts);
        return;
    }
    let areas = keys.iter().map(|(.., area)| *area);
    match parts.last_mut() {
        _ if keys.is_empty() => {}
        Some((_, last)) if last.len() + keys.len() <= most => last.extend(areas),
        _ => parts.push((base, areas.collect())),
    }
}
