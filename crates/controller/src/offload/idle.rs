//! Finds ports that gain nothing from an XDP program.
//!
//! On many devices a program slows down packets that it does not forward. For example, a veth with a
//! program receives TCP in single packets instead of large ones. So a port has a program only if some
//! arriving or leaving traffic could be fast.

use super::{Link, Offload, PerFamily, Reason};
use crate::kernel::{Family, Ifindex};

impl Offload {
    /// Why no traffic that arrives or leaves by a port would be fast; `None` if some would. Also `None` if
    /// another program is on the port: attaching then reports that.
    #[must_use]
    pub fn idle(&self, port: Ifindex) -> Option<String> {
        if let Some(bridged) = self.bridged.iter().find(|bridged| bridged.port.0 == port) {
            let is_taken = bridged.kernel.iter().any(|why| matches!(why, Reason::OtherXdp(_)));
            let obstacle = bridged.obstacle().filter(|_| !is_taken);
            return obstacle.map(ToString::to_string);
        }
        let mut families = [Family::V4, Family::V6].into_iter();
        let gains = families.any(|family| could_be_fast(&self.links, &self.general, port, family));
        let mut reasons = self.links_of(port).flat_map(|link| link.arrives.v4.iter());
        let is_taken = reasons.any(|reason| matches!(reason, Reason::OtherXdp(_)));
        (!gains && !is_taken).then(|| self.obstacle(port))
    }

    /// Whether a link is new, so that nobody knows yet what the ports gain.
    #[must_use]
    pub fn has_new_links(&self) -> bool {
        self.links.iter().any(|link| link.is_new)
    }

    /// The links of a port, its own first.
    fn links_of(&self, port: Ifindex) -> impl Iterator<Item = &Link> {
        self.links.iter().filter(move |link| link.port == port)
    }

    /// The first obstacle, for IPv4.
    fn obstacle(&self, port: Ifindex) -> String {
        let own =
            self.links_of(port).flat_map(|link| link.arrives.v4.iter().chain(&link.leaves.v4));
        let others = self.links.iter().filter(|link| link.port != port);
        let others = others.flat_map(|link| link.leaves.v4.iter().chain(&link.arrives.v4));
        let mut reasons = self.general.v4.iter().chain(own).chain(others);
        match reasons.next() {
            Some(reason) => reason.to_string(),
            None => "there is no other link that packets could go to or come from".to_owned(),
        }
    }
}

/// Says whether a packet that arrives by one link and leaves by another could be fast, if either link belongs to the port, or
/// to the bridge.
pub(super) fn could_be_fast(
    links: &[Link],
    general: &PerFamily<Vec<Reason>>,
    port: Ifindex,
    family: Family,
) -> bool {
    if !general.of(family).is_empty() {
        return false;
    }
    let enters = |link: &Link| link.arrives.of(family).is_empty();
    let leaves = |link: &Link| link.leaves.of(family).is_empty();
    let entrances = links.iter().filter(|link| enters(link)).count();
    let exits = links.iter().filter(|link| leaves(link)).count();
    links.iter().filter(|link| link.port == port).any(|link| {
        let (enters, leaves) = (enters(link), leaves(link));
        enters && exits > usize::from(leaves) || leaves && entrances > usize::from(enters)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::offload::PerFamily;

    fn link(ifindex: Ifindex, port: Ifindex) -> Link {
        let off = || PerFamily { v4: vec![], v6: vec![Reason::NoArp("six".to_owned())] };
        Link { ifindex, port, arrives: off(), leaves: off(), ..Link::default() }
    }

    fn idle(offload: &Offload) -> Vec<bool> {
        [1, 2, 3].map(|port| offload.idle(port).is_some()).to_vec()
    }

    #[test]
    fn a_port_gains_where_something_can_go_from_one_link_to_another() {
        let links = vec![link(1, 1), link(2, 2), link(3, 3)];
        let mut all = Offload { links, ..Offload::default() };
        assert_eq!(idle(&all), [false; 3]);
        let why = || vec![Reason::NoArp("it".to_owned())];
        (all.links[0].arrives.v4, all.links[0].leaves.v4) = (why(), why());
        assert_eq!(idle(&all), [true, false, false], "between the others");
        (all.links[1].arrives.v4, all.links[1].leaves.v4) = (why(), vec![]);
        assert_eq!(idle(&all), [true, false, false], "from the third to the second");
        all.links[1].leaves.v4 = why();
        assert_eq!(idle(&all), [true; 3], "only back to where it came from");
        assert!(all.idle(1).unwrap().contains("it has noarp"));
        assert!(all.idle(3).unwrap().contains("it has noarp"), "of the others");
        all.links.push(link(4, 3));
        assert_eq!(idle(&all), [true, true, false], "from one VLAN to the other");
        all.general.v4 = vec![Reason::Ipvs];
        assert_eq!(idle(&all), [true; 3]);
        assert!(all.idle(3).unwrap().contains("ipvsadm"));
        all.links[0].arrives.v4 = vec![Reason::OtherXdp("it".to_owned())];
        assert_eq!(idle(&all), [false, true, true], "the error of attaching reports it");
    }

    #[test]
    fn a_port_alone_gains_nothing() {
        let all = Offload { links: vec![link(1, 1)], ..Offload::default() };
        assert!(all.idle(1).unwrap().contains("no other link"));
    }
}
