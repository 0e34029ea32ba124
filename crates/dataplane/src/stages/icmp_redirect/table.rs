use crate::id::LinkId;

/// The links on which the kernel sends redirects.
#[derive(Clone, Debug, Default)]
pub(crate) struct Redirects {
    /// By link, one bit for each family.
    by_link: Vec<u8>,
}

const fn bit(version: u8) -> u8 {
    if version == 4 { 1 } else { 2 }
}

impl Redirects {
    /// Says whether the kernel sends redirects for packets of a family that arrive on a link.
    #[inline(always)]
    pub(crate) fn has(&self, link: LinkId, version: u8) -> bool {
        self.by_link.get(usize::from(link.0)).is_some_and(|bits| bits & bit(version) != 0)
    }

    /// Sets the families for which the kernel sends redirects on a link.
    pub(crate) fn set(&mut self, link: LinkId, v4: bool, v6: bool) {
        let index = usize::from(link.0);
        if self.by_link.len() <= index {
            self.by_link.resize(index + 1, 0);
        }
        let [v4, v6] = [(v4, 4), (v6, 6)].map(|(on, version)| if on { bit(version) } else { 0 });
        self.by_link[index] = v4 | v6;
    }

    /// Says whether the kernel sends no redirects.
    pub(crate) fn is_empty(&self) -> bool {
        self.by_link.iter().all(|bits| *bits == 0)
    }
}
