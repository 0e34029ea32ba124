//! What has the kernel forward everything for a while.

/// Why the kernel forwards everything.
#[derive(Clone, Debug, Default)]
pub(super) struct Holds {
    /// Not all has been taken in yet that was told until the start.
    pub(super) starting: bool,
    /// Messages were lost.
    pub(super) lost: bool,
    /// Rules in force are older than the kernel's.
    pub(super) rules: bool,
    /// More is told of rules than can be read at once.
    pub(super) rules_late: bool,
    /// More is told than can be put in force at once.
    pub(super) late: bool,
    /// Something has changed, and what hangs on it could not be asked for yet.
    pub(super) unasked: bool,
    /// Something could not be put in force.
    pub(super) broken: Option<String>,
}

impl Holds {
    pub(super) fn why(&self) -> Option<String> {
        if let Some(why) = &self.broken {
            return Some(why.clone());
        }
        let why = match self {
            Self { lost: true, .. } => "messages of the kernel were lost, and all is listed anew",
            Self { rules: true, .. } => "rules of nftables have changed and are being read",
            Self { late: true, .. } | Self { rules_late: true, .. } => {
                "more changes are told than can be in force at once"
            }
            Self { unasked: true, .. } => "the kernel does not answer what has changed",
            Self { starting: true, .. } => "the router is starting",
            _ => return None,
        };
        Some(why.to_owned())
    }
}
