//! Why the kernel forwards everything for a while.

/// Why the kernel forwards everything.
#[derive(Clone, Debug, Default)]
pub(super) struct BypassReasons {
    /// The controller has not yet taken in all notifications since its start.
    pub(super) starting: bool,
    /// Messages were lost.
    pub(super) lost: bool,
    /// The active rules are older than the kernel's.
    pub(super) rules: bool,
    /// More notifications of rules arrive than can be read at once.
    pub(super) rules_late: bool,
    /// More notifications arrive than can be installed at once.
    pub(super) late: bool,
    /// Something has changed, and a query about its consequences has failed.
    pub(super) unasked: bool,
    /// Something could not be installed.
    pub(super) broken: Option<String>,
}

impl BypassReasons {
    pub(super) fn why(&self) -> Option<String> {
        if let Some(why) = &self.broken {
            return Some(why.clone());
        }
        let why = match self {
            Self { lost: true, .. } => {
                "messages of the kernel were lost, and everything is listed again"
            }
            Self { rules: true, .. } => "rules of nftables have changed and are being read",
            Self { late: true, .. } | Self { rules_late: true, .. } => {
                "more changes come than can be installed at once"
            }
            Self { unasked: true, .. } => "the kernel does not answer what has changed",
            Self { starting: true, .. } => "the router is starting",
            _ => return None,
        };
        Some(why.to_owned())
    }
}
