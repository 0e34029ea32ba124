//! Tests sets whose elements change, rules that take long to read, and devices that are renamed.

use std::os::unix::fs::PermissionsExt as _;
use std::process::Command;

use tollway_commands::control::ShowRequest;

use super::namespaces::{sh, until};
use super::running::{KernelRouter, Net, answered};

/// A set drops packets of some sources. Its elements change alone, and together with everything
/// else.
pub fn live() {
    let net = Net::new();
    for last in [8, 9] {
        net.a.sh(&format!("ip address add 10.0.1.{last}/24 dev ha"));
    }
    let [eight, nine] = [8, 9].map(|last| format!("-I 10.0.1.{last} 10.0.2.2"));
    let router = KernelRouter::start("ra rb");
    sh("nft add table inet f");
    sh("nft add set inet f bad { type ipv4_addr ; }");
    sh("nft add chain inet f fw { type filter hook forward priority 0 ; }");
    sh("nft add rule inet f fw ip saddr @bad drop");
    sh("nft add element inet f bad { 10.0.1.8 }");
    router.stops(&net.a, &eight);
    router.forwards(&net.a, &nine);
    sh("nft add element inet f bad { 10.0.1.9 }");
    router.stops(&net.a, &nine);
    let rebuilds = router.status().rebuilds;
    sh("ip link set rb mtu 1400");
    router.stops(&net.a, &nine);
    router.stops(&net.a, &eight);
    assert!(router.status().rebuilds > rebuilds, "tables were rebuilt");
    sh("nft delete element inet f bad { 10.0.1.9 }");
    sh("ip link set rb mtu 1500");
    router.forwards(&net.a, &nine);
    router.stops(&net.a, &eight);
    // The rules as read now equal those read before, but not the active ones.
    sh("nft add element inet f bad { 10.0.1.9 }");
    sh("nft add chain inet f nothing");
    router.stops(&net.a, &nine);
    sh("nft delete element inet f bad { 10.0.1.9 }");
    router.forwards(&net.a, &nine);
    let refresh = router.path("refresh.nft");
    let lines = "flush set inet f bad\nadd element inet f bad { 10.0.1.8, 10.0.1.9 }\n";
    std::fs::write(&refresh, lines).unwrap();
    sh(&format!("nft -f {}", refresh.display()));
    router.stops(&net.a, &nine);
    router.stops(&net.a, &eight);
}

/// While Tollway reads changed rules, the kernel forwards, whatever else changes.
pub fn slow() {
    let net = Net::new();
    sh("nft add table inet f");
    sh("nft add chain inet f fw { type filter hook forward priority 0 ; }");
    let dir = tempfile::tempdir().unwrap();
    let (slow, nft) = (dir.path().join("slow"), dir.path().join("nft"));
    let real = Command::new("sh").args(["-c", "command -v nft"]).output().unwrap().stdout;
    let real = String::from_utf8(real).unwrap();
    let script = format!(
        "#!/bin/sh\n[ ! -e {} ] || sleep 1.5\nexec {} \"$@\"\n",
        slow.display(),
        real.trim()
    );
    std::fs::write(&nft, script).unwrap();
    std::fs::set_permissions(&nft, std::fs::Permissions::from_mode(0o755)).unwrap();
    let path = format!("{}:{}", dir.path().display(), std::env::var("PATH").unwrap());
    let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
    command.env("PATH", path);
    let router = KernelRouter::start_by(command, "ra rb");
    router.forwards(&net.a, "10.0.2.2");
    std::fs::write(&slow, "").unwrap();
    let known = || router.show(&ShowRequest::Controller);
    let addresses = known()["addresses"].clone();
    sh("nft add rule inet f fw ip saddr 10.0.1.2 drop");
    sh("ip address add 192.0.2.1/32 dev lo");
    until("both to be received, and the rules to be read", || {
        let known = known();
        !known["bypassed"].is_null() && known["addresses"] != addresses
    });
    let before = router.counts();
    assert_eq!(answered(&net.a, "10.0.2.2"), 0, "the kernel drops them");
    assert_eq!(router.counts().sent, before.sent, "nothing is forwarded by old rules");
    std::fs::remove_file(&slow).unwrap();
    router.stops(&net.a, "10.0.2.2");
    sh("nft flush chain inet f fw");
    router.forwards(&net.a, "10.0.2.2");
}

/// Rules match the current names of devices.
pub fn names() {
    let net = Net::new();
    let router = KernelRouter::start("ra rb");
    sh("nft add table inet f");
    sh("nft add chain inet f fw { type filter hook forward priority 0 ; }");
    router.forwards(&net.a, "10.0.2.2");
    sh("ip link set rb down");
    sh("ip link set rb name rx");
    sh("ip link set rx up");
    router.forwards(&net.a, "10.0.2.2");
    sh("nft add rule inet f fw oifname rb drop");
    router.forwards(&net.a, "10.0.2.2");
    sh("nft add rule inet f fw oifname rx drop");
    router.stops(&net.a, "10.0.2.2");
    sh("nft flush chain inet f fw");
    // `oif` matches a device's number, so the rule still applies when the device is renamed.
    sh("nft add rule inet f fw oif rx drop");
    router.stops(&net.a, "10.0.2.2");
    sh("ip link set rx down");
    sh("ip link set rx name ry");
    sh("ip link set ry up");
    router.stops_there(&net.a, "10.0.2.2");
}
