//! Sysctls that affect forwarding, and how those of `all` and of a device combine.
//!
//! They are read from `/proc/sys/net`, which shows the network namespace of the thread that reads.
//! The kernel notifies of only some changes ([`Event::Sysctl`](super::event::Event)). So the controller
//! reads them every 80 ms, about 15 small files for a device, which it keeps open, and compares.
//!
//! For IPv4, `include/linux/inetdevice.h` defines how they combine (`IN_DEV_*`). IPv6 forwards what
//! arrives by any device if `all` says so, else what arrives by a device with `force_forwarding`
//! (`ip6_forward`). The device's own `forwarding` does not matter. In a VRF the device's own sysctls
//! apply, not the VRF device's: `ip_rcv_finish` notes the device before it calls `l3mdev_ip_rcv`.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use tollway_linux::kept_files::KeptFiles;

/// Their directory.
const ROOT: &str = "/proc/sys/net";

/// All sysctls that matter, as they were read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sysctls {
    /// Sysctls of the namespace.
    pub global: Global,
    /// IPv4, `conf/all`.
    pub all4: Conf4,
    /// IPv6, `conf/all`.
    pub all6: Conf6,
    /// Sysctls of devices, by name.
    devices: BTreeMap<String, Device>,
}

/// Sysctls of the namespace.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Global {
    /// `ip_forward_use_pmtu`: path MTUs that the host has learnt hold for forwarded packets.
    pub path_mtu: bool,
    /// `ip_fwd_update_priority` is 0: forwarded IPv4 packets keep the priority that they had on arrival, instead of
    /// that of their type of service.
    pub keeps_priority: bool,
    /// IPv4 `fib_multipath_hash_policy`: 0 addresses, 1 flows, 2 inner addresses, 3 chosen fields.
    pub multipath4: u8,
    /// The same for IPv6.
    pub multipath6: u8,
    /// `fib_multipath_hash_seed`: 0 means a secret seed that the kernel draws at boot. `None` before
    /// Linux 6.11, where the kernel has only that seed.
    pub multipath_seed: Option<u32>,
    /// `fib_multipath_use_neigh`: next hops that do not answer are skipped.
    pub multipath_neigh: bool,
    /// `bridge-nf-call-iptables`: bridges show IPv4 packets to the hooks of IPv4.
    pub bridge_calls4: bool,
    /// `bridge-nf-call-ip6tables`: the same of IPv6.
    pub bridge_calls6: bool,
    /// `bridge-nf-filter-vlan-tagged`: also those in tagged frames.
    pub bridge_filters_tagged: bool,
    /// `bridge-nf-filter-pppoe-tagged`: also those in frames of PPPoE.
    pub bridge_filters_pppoe: bool,
}

/// IPv4 sysctls of a device, or of `all`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conf4 {
    /// `forwarding`.
    pub forwarding: bool,
    /// `rp_filter`: 0 off, 1 strict, 2 loose.
    pub rp_filter: u8,
    /// `accept_local`: sources may be the router's own addresses.
    pub accept_local: bool,
    /// `send_redirects`.
    pub send_redirects: bool,
    /// `accept_redirects`.
    pub accept_redirects: bool,
    /// `log_martians`.
    pub log_martians: bool,
    /// `route_localnet`: 127/8 is routed like any other address.
    pub route_localnet: bool,
    /// `src_valid_mark`: the source lookup considers the packet's mark.
    pub src_valid_mark: bool,
    /// `ignore_routes_with_linkdown`.
    pub ignore_linkdown: bool,
}

/// IPv6 sysctls of a device, or of `all`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Conf6 {
    /// `forwarding`.
    pub forwarding: bool,
    /// `force_forwarding`, since Linux 6.17.
    pub force_forwarding: bool,
    /// `disable_ipv6`.
    pub disabled: bool,
    /// `accept_redirects`.
    pub accept_redirects: bool,
    /// `proxy_ndp`.
    pub proxy_ndp: bool,
    /// `ignore_routes_with_linkdown`.
    pub ignore_linkdown: bool,
    /// `mtu`: the largest packet that leaves by the device; without meaning for `all`.
    pub mtu: u32,
}

/// Sysctls of a device; none for a family that it does not have.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Device {
    conf4: Option<Conf4>,
    conf6: Option<Conf6>,
}

/// The effective settings for packets that arrive by a device, and for those that leave by it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LinkSysctls {
    /// The device has IPv4.
    pub has4: bool,
    /// The device has IPv6, and it is not disabled.
    pub has6: bool,
    /// IPv4 that arrives is forwarded.
    pub forward4: bool,
    /// IPv6 that arrives is forwarded.
    pub forward6: bool,
    /// Reverse path filter for arriving packets: 0 off, 1 strict, 2 loose.
    pub rp_filter: u8,
    /// Sources may be the router's own addresses.
    pub accept_local: bool,
    /// Impossible sources are logged.
    pub log_martians: bool,
    /// The source lookup considers the packet's mark.
    pub src_valid_mark: bool,
    /// 127/8 is routed.
    pub route_localnet: bool,
    /// The kernel may answer with a redirect to IPv4 that leaves by the device by which it came.
    pub redirects4: bool,
    /// The same for IPv6, where no sysctl disables it.
    pub redirects6: bool,
    /// Redirects that arrive by the device also change the IPv4 next hops of forwarded packets.
    pub redirected4: bool,
    /// The same for IPv6.
    pub redirected6: bool,
    /// IPv4 next hops by the device do not count while it has no carrier.
    pub ignore_linkdown4: bool,
    /// The same for IPv6.
    pub ignore_linkdown6: bool,
    /// The largest IPv6 packet that leaves by the device.
    pub mtu6: Option<u32>,
}

impl Sysctls {
    /// Reads the sysctls of some devices, by name, and of the namespace. If a file is missing (a kernel
    /// without IPv6, a device that has gone), the value is the one that matches the kernel's behaviour
    /// without it. The files stay open for the next reading.
    #[must_use]
    pub fn read<'a>(files: &mut KeptFiles, devices: impl IntoIterator<Item = &'a str>) -> Self {
        Self::read_at(Path::new(ROOT), files, devices)
    }

    pub(super) fn read_at<'a>(
        root: &Path,
        files: &mut KeptFiles,
        devices: impl IntoIterator<Item = &'a str>,
    ) -> Self {
        files.begin();
        let files = RefCell::new(files);
        let [v4, v6, bridge] = ["ipv4", "ipv6", "bridge"]
            .map(|family| Directory { path: root.join(family), files: &files });
        let global = Global {
            path_mtu: v4.flag("ip_forward_use_pmtu"),
            keeps_priority: v4.some::<i64>("ip_fwd_update_priority") == Some(0),
            multipath4: v4.number("fib_multipath_hash_policy"),
            multipath6: v6.number("fib_multipath_hash_policy"),
            multipath_seed: v4.some("fib_multipath_hash_seed"),
            multipath_neigh: v4.flag("fib_multipath_use_neigh"),
            bridge_calls4: bridge.flag("bridge-nf-call-iptables"),
            bridge_calls6: bridge.flag("bridge-nf-call-ip6tables"),
            bridge_filters_tagged: bridge.flag("bridge-nf-filter-vlan-tagged"),
            bridge_filters_pppoe: bridge.flag("bridge-nf-filter-pppoe-tagged"),
        };
        let devices = devices.into_iter().map(|name| {
            let device = Device { conf4: v4.conf(name).conf4(), conf6: v6.conf(name).conf6() };
            (name.to_owned(), device)
        });
        Self {
            global,
            all4: v4.conf("all").conf4().unwrap_or_default(),
            all6: v6.conf("all").conf6().unwrap_or_default(),
            devices: devices.collect(),
        }
    }

    /// The effective settings of a device, by name. A device that has not been read has no IP.
    #[must_use]
    pub fn link(&self, device: &str) -> LinkSysctls {
        let Device { conf4, conf6 } = self.devices.get(device).copied().unwrap_or_default();
        let (own4, own6) = (conf4.unwrap_or_default(), conf6.unwrap_or_default());
        let all4 = self.all4;
        LinkSysctls {
            has4: conf4.is_some(),
            has6: conf6.is_some() && !own6.disabled,
            forward4: own4.forwarding,
            forward6: self.all6.forwarding || own6.force_forwarding,
            rp_filter: own4.rp_filter.max(all4.rp_filter),
            accept_local: own4.accept_local || all4.accept_local,
            log_martians: own4.log_martians || all4.log_martians,
            src_valid_mark: own4.src_valid_mark || all4.src_valid_mark,
            route_localnet: own4.route_localnet || all4.route_localnet,
            redirects4: own4.send_redirects || all4.send_redirects,
            redirects6: true,
            // `IN_DEV_RX_REDIRECTS`.
            redirected4: match own4.forwarding {
                true => own4.accept_redirects && all4.accept_redirects,
                false => own4.accept_redirects || all4.accept_redirects,
            },
            // `rt6_do_redirect`.
            redirected6: own6.accept_redirects && !own6.forwarding,
            ignore_linkdown4: own4.ignore_linkdown || all4.ignore_linkdown,
            ignore_linkdown6: own6.ignore_linkdown,
            mtu6: conf6.map(|conf| conf.mtu),
        }
    }
}

/// A directory of sysctls.
struct Directory<'a> {
    path: PathBuf,
    files: &'a RefCell<&'a mut KeptFiles>,
}

impl Directory<'_> {
    fn conf(&self, name: &str) -> Self {
        Self { path: self.path.join("conf").join(name), files: self.files }
    }

    /// The number in a file, if it fits.
    fn some<T: TryFrom<i64>>(&self, name: &str) -> Option<T> {
        self.files.borrow_mut().number(&self.path.join(name))
    }

    /// The same; 0 if there is none.
    fn number<T: TryFrom<i64> + Default>(&self, name: &str) -> T {
        self.some(name).unwrap_or_default()
    }

    fn flag(&self, name: &str) -> bool {
        self.number::<i64>(name) != 0
    }

    /// None where the device has no IPv4.
    fn conf4(&self) -> Option<Conf4> {
        self.path.is_dir().then(|| Conf4 {
            forwarding: self.flag("forwarding"),
            rp_filter: self.number("rp_filter"),
            accept_local: self.flag("accept_local"),
            send_redirects: self.flag("send_redirects"),
            accept_redirects: self.flag("accept_redirects"),
            log_martians: self.flag("log_martians"),
            route_localnet: self.flag("route_localnet"),
            src_valid_mark: self.flag("src_valid_mark"),
            ignore_linkdown: self.flag("ignore_routes_with_linkdown"),
        })
    }

    /// None where the device has no IPv6.
    fn conf6(&self) -> Option<Conf6> {
        self.path.is_dir().then(|| Conf6 {
            forwarding: self.flag("forwarding"),
            force_forwarding: self.flag("force_forwarding"),
            disabled: self.flag("disable_ipv6"),
            accept_redirects: self.flag("accept_redirects"),
            proxy_ndp: self.flag("proxy_ndp"),
            ignore_linkdown: self.flag("ignore_routes_with_linkdown"),
            mtu: self.number("mtu"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Reads from files with these names and contents.
    fn read(files: &[(&str, &str)], devices: &[&str]) -> Sysctls {
        let root = tempfile::tempdir().unwrap();
        for (file, text) in files {
            let file = root.path().join(file);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, format!("{text}\n")).unwrap();
        }
        Sysctls::read_at(root.path(), &mut KeptFiles::default(), devices.iter().copied())
    }

    #[test]
    fn all_and_the_device_combine_as_the_kernel_does() {
        let sysctls = read(
            &[
                ("ipv4/ip_forward_use_pmtu", "1"),
                ("ipv4/fib_multipath_hash_policy", "3"),
                ("ipv6/fib_multipath_hash_policy", "1"),
                ("ipv4/fib_multipath_hash_seed", "4294967295"),
                ("ipv4/conf/all/forwarding", "1"),
                ("ipv4/conf/all/rp_filter", "1"),
                ("ipv4/conf/all/send_redirects", "1"),
                ("ipv4/conf/a/forwarding", "0"),
                ("ipv4/conf/a/rp_filter", "2"),
                ("ipv4/conf/a/accept_local", "1"),
                ("ipv4/conf/a/accept_redirects", "1"),
                ("ipv4/conf/b.7/accept_redirects", "1"),
                ("ipv6/conf/a/accept_redirects", "1"),
                ("ipv6/conf/b.7/accept_redirects", "1"),
                ("ipv4/conf/b.7/forwarding", "1"),
                ("ipv4/conf/b.7/log_martians", "1"),
                ("ipv4/conf/b.7/ignore_routes_with_linkdown", "1"),
                ("ipv6/conf/all/forwarding", "0"),
                ("ipv6/conf/all/ignore_routes_with_linkdown", "1"),
                ("ipv6/conf/a/forwarding", "1"),
                ("ipv6/conf/a/mtu", "1400"),
                ("ipv6/conf/b.7/force_forwarding", "1"),
                ("ipv6/conf/b.7/disable_ipv6", "1"),
            ],
            &["a", "b.7", "gone"],
        );
        let Global { path_mtu, multipath4, multipath6, multipath_seed, multipath_neigh, .. } =
            sysctls.global;
        assert_eq!((path_mtu, multipath_seed, multipath_neigh), (true, Some(u32::MAX), false));
        assert_eq!((multipath4, multipath6), (3, 1));
        let [a, b, gone] = ["a", "b.7", "gone"].map(|name| sysctls.link(name));
        assert!(!a.forward4 && b.forward4, "the device's own");
        assert_eq!((a.rp_filter, b.rp_filter), (2, 1), "the greater");
        assert_eq!((a.accept_local, b.accept_local), (true, false), "either");
        assert_eq!((a.log_martians, b.log_martians), (false, true), "either");
        assert_eq!((a.redirects4, b.redirects4), (true, true), "either");
        assert_eq!((a.ignore_linkdown4, b.ignore_linkdown4), (false, true));
        assert_eq!((a.redirected4, b.redirected4), (true, false), "both where it forwards");
        assert_eq!((a.redirected6, b.redirected6), (false, true), "where it does not forward");
        assert!(!a.ignore_linkdown6, "the device's own");
        assert_eq!((a.forward6, b.forward6), (false, true), "all, or the device that forces it");
        assert_eq!((a.has6, b.has6, a.mtu6), (true, false, Some(1400)));
        assert!(!gone.has4 && !gone.has6 && !gone.forward4);
    }

    #[test]
    fn forwarded_packets_get_their_priority_unless_the_sysctl_is_0() {
        let keeps = |files: &[(&str, &str)]| read(files, &[]).global.keeps_priority;
        assert!(!keeps(&[]), "before Linux 4.19");
        assert!(!keeps(&[("ipv4/ip_fwd_update_priority", "1")]));
        assert!(keeps(&[("ipv4/ip_fwd_update_priority", "0")]));
    }

    #[test]
    fn a_namespace_without_ipv6_has_none() {
        let sysctls = read(&[("ipv4/conf/a/forwarding", "x")], &["a"]);
        let link = sysctls.link("a");
        assert!(link.has4 && !link.forward4, "what is no number is 0");
        assert!(!link.has6 && link.mtu6.is_none());
        assert_eq!(sysctls.all6, Conf6::default());
    }
}
