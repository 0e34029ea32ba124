//! The groups that limits count: states of one rule whose packets share parts (`O_LIMIT_PARENT`).

use super::super::flows::{FlowId, NONE};
use super::MOST_PARENTS;

/// The number of lists.
const LISTS: usize = 4096;

/// The groups, by hash of rule and shared parts.
#[derive(Debug)]
pub(super) struct Parents {
    heads: Box<[u32]>,
    slots: Box<[Parent]>,
    free: u32,
    seed: [u64; 2],
}

#[derive(Clone, Copy, Debug)]
struct Parent {
    state_rule: u64,
    group: FlowId,
    /// The number of states; a group without states is free.
    count: u32,
    next: u32,
}

/// The result of a request for one more state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Taken {
    /// The number of the group.
    Yes(u32),
    OverLimit,
    Full,
}

impl Parents {
    pub(super) fn new(seed: [u64; 2]) -> Self {
        let slot = |next: usize| Parent {
            state_rule: 0,
            group: FlowId::default(),
            count: 0,
            next: if next < MOST_PARENTS { next as u32 } else { NONE },
        };
        Self {
            heads: vec![NONE; LISTS].into(),
            slots: (1..=MOST_PARENTS).map(slot).collect(),
            free: 0,
            seed,
        }
    }

    /// Counts one more state, if the group has less than `most`.
    pub(super) fn take(&mut self, state_rule: u64, group: &FlowId, most: u32) -> Taken {
        let list = self.list(state_rule, group);
        let mut at = self.heads[list];
        while let Some(parent) = self.slots.get_mut(at as usize) {
            if parent.state_rule == state_rule && parent.group == *group {
                if parent.count >= most {
                    return Taken::OverLimit;
                }
                parent.count += 1;
                return Taken::Yes(at);
            }
            at = parent.next;
        }
        if most == 0 {
            return Taken::OverLimit;
        }
        let at = self.free;
        let Some(parent) = self.slots.get_mut(at as usize) else { return Taken::Full };
        self.free = parent.next;
        *parent = Parent { state_rule, group: *group, count: 1, next: self.heads[list] };
        self.heads[list] = at;
        Taken::Yes(at)
    }

    /// Counts one state less.
    pub(super) fn give_back(&mut self, at: u32) {
        let Some(parent) = self.slots.get_mut(at as usize) else { return };
        parent.count = parent.count.saturating_sub(1);
        if parent.count > 0 {
            return;
        }
        let Parent { state_rule, group, next, .. } = *parent;
        let list = self.list(state_rule, &group);
        let (mut before, mut here) = (NONE, self.heads[list]);
        while here != at {
            let Some(parent) = self.slots.get(here as usize) else { return };
            (before, here) = (here, parent.next);
        }
        match self.slots.get_mut(before as usize) {
            Some(parent) => parent.next = next,
            None => self.heads[list] = next,
        }
        if let Some(parent) = self.slots.get_mut(at as usize) {
            parent.next = self.free;
        }
        self.free = at;
    }

    fn list(&self, state_rule: u64, group: &FlowId) -> usize {
        (group.hash([self.seed[0] ^ state_rule, self.seed[1]]) % LISTS as u64) as usize
    }

    /// The numbers of states of all groups.
    #[cfg(test)]
    pub(super) fn counts(&self) -> Vec<u32> {
        self.slots.iter().map(|parent| parent.count).filter(|count| *count > 0).collect()
    }
}
