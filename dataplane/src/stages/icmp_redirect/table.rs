use crate::id::LinkId;
use crate::tables::{Tables, TablesError};

/// The links on which the kernel sends redirects.
#[derive(Debug, Default)]
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
}

impl Tables {
    /// Sets the families whose packets take the kernel path if they arrive on a link and would exit
    /// through it again (`PuntReason::Redirect`). The kernel forwards them and sends redirects.
    ///
    /// # Errors
    /// See [`TablesError`].
    pub fn set_redirects(&mut self, link: LinkId, v4: bool, v6: bool) -> Result<(), TablesError> {
        self.links.get(usize::from(link.0)).ok_or(TablesError::Unknown)?;
        let all = self.redirects.get_or_insert_default();
        let index = usize::from(link.0);
        if all.by_link.len() <= index {
            all.by_link.resize(index + 1, 0);
        }
        let [v4, v6] = [(v4, 4), (v6, 6)].map(|(on, version)| if on { bit(version) } else { 0 });
        all.by_link[index] = v4 | v6;
        if all.by_link.iter().all(|bits| *bits == 0) {
            self.redirects = None;
        }
        self.epochs.changes.note();
        Ok(())
    }
}
