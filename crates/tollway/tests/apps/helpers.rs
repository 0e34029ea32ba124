//! Protocols with connections that the kernel's helpers expect: FTP and TFTP, with real servers and clients.

use std::path::Path;
use std::process::Stdio;

use super::connections::json;
use super::namespaces::{Host, Process, sh, until};
use super::running::{KernelRouter, Net, by_kernel};
use super::scene::{ENGINES, compared, directory, entries, load, paths};

/// A firewall that assigns helpers, and lets in what they expect. Host A is inside.
pub const FIREWALL: &str = r#"
table inet fw {
    ct helper ftp { type "ftp" protocol tcp; }
    ct helper tftp { type "tftp" protocol udp; }
    ct helper sip { type "sip" protocol udp; }
    chain helpers {
        type filter hook prerouting priority filter;
        tcp dport 21 ct helper set "ftp"
        udp dport 69 ct helper set "tftp"
        udp dport 5060 ct helper set "sip"
    }
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state invalid counter drop
        ct state established,related accept
        iifname "ra" ct state new tcp dport 21 accept
        iifname "ra" ct state new udp dport { 69, 5060 } accept
    }
}
"#;
/// Such a firewall by iptables, for FTP.
const FIREWALL_OF_IPTABLES: &str = "\
*raw
-A PREROUTING -p tcp --dport 21 -j CT --helper ftp
COMMIT
*filter
:FORWARD DROP
-A FORWARD -m conntrack --ctstate INVALID -j DROP
-A FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
-A FORWARD -i ra -p tcp --dport 21 -m conntrack --ctstate NEW -j ACCEPT
COMMIT
*nat
-A POSTROUTING -o rb -j MASQUERADE
COMMIT
";
/// Translates the addresses of host A.
pub const MASQUERADE: &str = r#"
table ip nat {
    chain post { type nat hook postrouting priority srcnat; oifname "rb" masquerade; }
}
"#;
/// A server behind the router: host B has the router's address on the side of host A.
const PORT_FORWARDING: &str = r#"
table ip nat {
    chain pre { type nat hook prerouting priority dstnat; iifname "ra" ip daddr 10.0.1.1 tcp dport 21 dnat to 10.0.2.2; }
}
"#;
/// Bytes of the file that FTP transfers, and at most how many a second.
const FILE: usize = 4_000_000;
const RATE: usize = 1_000_000;
/// Bytes of TFTP's file, and of its packets: one at a time, and so many that it takes some seconds.
const SMALL_FILE: usize = 40_000_000;
const SMALL_BLOCK: usize = 128;

/// Writes a file of this length, and returns what it has.
fn write(path: &Path, len: usize) -> Vec<u8> {
    let bytes: Vec<_> = (0..len).map(|at| (at * 7 % 251) as u8).collect();
    std::fs::write(path, &bytes).unwrap();
    bytes
}

/// Starts `vsftpd` on a host, with these files for everybody.
fn ftp_server_of(host: &Host, files: &Path, work: &Path) -> Process {
    let empty = work.join("empty");
    std::fs::create_dir(&empty).unwrap();
    let config = work.join("vsftpd.conf");
    let text = format!(
        "listen=YES\nlisten_address=10.0.2.2\nbackground=NO\nanonymous_enable=YES\nlocal_enable=NO\nanon_root={}\n\
         secure_chroot_dir={}\nconnect_from_port_20=YES\nxferlog_enable=NO\nisolate=NO\nisolate_network=NO\n\
         seccomp_sandbox=NO\nanon_max_rate={RATE}\n",
        files.display(),
        empty.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = host.command(&format!("vsftpd {}", config.display()));
    let server = Process(command.spawn().unwrap());
    until("the server", || !host.sh("ss -Hltn sport = :21").is_empty());
    server
}

/// Transfers a file, and looks at both connections meanwhile. Returns what the kernel lists then.
fn transfer(router: Option<&KernelRouter>, host: &Host, curl: &str, work: &Path) -> Vec<String> {
    let got = work.join("got");
    let before = router.map(|router| (router.counts().sent, by_kernel()));
    let line = format!("curl -sS --max-time 60 -o {} {curl}", got.display());
    let mut client = Process(host.command(&line).stderr(Stdio::inherit()).spawn().unwrap());
    let mut listed = Vec::new();
    until("the connection for data", || {
        listed = entries(&[20, 21]);
        listed.iter().filter(|line| line.contains("ESTABLISHED")).count() == 2
    });
    if let Some(router) = router {
        until("its packets by Tollway", || {
            assert!(
                client.0.try_wait().unwrap().is_none(),
                "{curl} has ended: {:?}",
                json(router, "")
            );
            let all = json(router, "--protocol tcp --state established");
            all.iter().any(|one| one["path"] == "fast")
        });
        let control = paths(router, "--port 21 --state established");
        assert_eq!(control, [("kernel".into(), "helper".into())].into(), "{curl}");
        assert_eq!(json(router, "--port 21 --state established")[0]["helper"], "ftp");
    }
    assert!(client.0.wait().unwrap().success(), "{curl}");
    if let (Some(router), Some(before)) = (router, before) {
        // The last packets count with a delay.
        until("most packets by Tollway", || {
            router.counts().sent - before.0 > 2 * (by_kernel() - before.1)
        });
    }
    assert!(
        std::fs::read(&got).unwrap() == std::fs::read(work.join("files/file")).unwrap(),
        "{curl}"
    );
    sh("conntrack -F");
    listed
}

/// A client inside, whose addresses are translated, in its packets and in the commands that it sends.
pub fn ftp() {
    // By EPSV, PASV, EPRT and PORT.
    let ways = ["", "--disable-epsv", "-P -", "-P - --disable-eprt"];
    transfers(&[("nft -f -", FIREWALL), ("nft -f -", MASQUERADE)], "10.0.2.2", &ways);
}

/// The same, where rules of iptables assign the helper.
pub fn ftp_by_iptables() {
    transfers(&[("iptables-nft-restore", FIREWALL_OF_IPTABLES)], "10.0.2.2", &["", "-P -"]);
}

/// A server behind the router, whose answers name its own address.
pub fn ftp_server() {
    // The client takes the address that it is told.
    let ways = ["--disable-epsv --no-ftp-skip-pasv-ip", "-P - --disable-eprt"];
    transfers(&[("nft -f -", FIREWALL), ("nft -f -", PORT_FORWARDING)], "10.0.1.1", &ways);
}

/// Transfers a file from an address in these ways, with rules that a program loads.
fn transfers(rules: &[(&str, &str)], address: &str, ways: &[&str]) {
    let net = Net::new();
    let (_dir, work) = directory();
    let files = work.join("files");
    std::fs::create_dir(&files).unwrap();
    write(&files.join("file"), FILE);
    let _server = ftp_server_of(&net.b, &files, &work);
    compared("ra rb", &ENGINES, |router| {
        rules.iter().for_each(|(program, rules)| load(program, rules));
        router.map(KernelRouter::sync);
        let by = |words| transfer(router, &net.a, &format!("{words} ftp://{address}/file"), &work);
        ways.iter().map(by).collect::<Vec<_>>()
    });
}

/// The server answers from another port than it was asked at.
pub fn tftp() {
    let net = Net::new();
    let (_dir, work) = directory();
    let file = write(&work.join("file"), SMALL_FILE);
    let words = format!("in.tftpd -L --address 10.0.2.2:69 -s {}", work.display());
    let _server = Process(net.b.command(&words).spawn().unwrap());
    until("the server", || !net.b.sh("ss -Hlun sport = :69").is_empty());
    compared("ra rb", &ENGINES, |router| {
        load("nft -f -", FIREWALL);
        load("nft -f -", MASQUERADE);
        router.map(KernelRouter::sync);
        let before = router.map(|router| (router.counts().sent, by_kernel()));
        let got = work.join("got");
        let line = format!(
            "curl -sS --max-time 120 --tftp-blksize {SMALL_BLOCK} -o {} tftp://10.0.2.2/file",
            got.display()
        );
        let mut client = Process(net.a.command(&line).spawn().unwrap());
        let mut listed = Vec::new();
        until("the connection for data to be assured", || {
            assert!(client.0.try_wait().unwrap().is_none(), "the transfer has ended");
            listed = entries(&[69]);
            listed.iter().any(|line| line.contains("[ASSURED]"))
        });
        if let Some(router) = router {
            until("its packets by Tollway", || {
                json(router, "--protocol udp").iter().any(|one| one["path"] == "fast")
            });
            // That of the request has seen no answer.
            let request = paths(router, "--port 69");
            assert_eq!(request, [("kernel".into(), "helper".into())].into());
        }
        assert!(client.0.wait().unwrap().success());
        if let (Some(router), Some(before)) = (router, before) {
            let (fast, kernel) = (router.counts().sent - before.0, by_kernel() - before.1);
            assert!(fast > 1000, "{fast} by Tollway, {kernel} by the kernel");
        }
        assert!(std::fs::read(&got).unwrap() == file);
        listed
    });
}
