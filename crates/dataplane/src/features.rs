//! The optional stages that a build of the path has.

/// Selects which optional stages are compiled in.
///
/// The program uses [`AllStages`]. The lab also measures [`NoStages`], to show what a feature costs
/// that is compiled in but not configured.
pub(crate) trait Features {
    /// VLAN links.
    const VLAN: bool;
    /// Next-hop groups.
    const ECMP: bool;
    /// Firewall rules.
    const FILTER: bool;
    /// Policy rules, and VRFs that fall back to other VRFs.
    const RULE: bool;
    /// Checks of the source address, and packets that exit through their ingress link.
    const SOURCE_CHECK: bool;
    /// Bridges that learn by themselves.
    const BRIDGE: bool;
}

/// Every optional stage.
pub(crate) struct AllStages;
impl Features for AllStages {
    const VLAN: bool = true;
    const ECMP: bool = true;
    const FILTER: bool = true;
    const RULE: bool = true;
    const SOURCE_CHECK: bool = true;
    const BRIDGE: bool = true;
}

/// No optional stage.
pub(crate) struct NoStages;
impl Features for NoStages {
    const VLAN: bool = false;
    const ECMP: bool = false;
    const FILTER: bool = false;
    const RULE: bool = false;
    const SOURCE_CHECK: bool = false;
    const BRIDGE: bool = false;
}
