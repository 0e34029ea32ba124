//! fail2ban, which bans addresses by a set of nftables, and sets whose elements end by themselves.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use super::namespaces::{Process, sh, until};
use super::running::{KernelRouter, Net};
use super::scene::{ENGINES, compared, directory, entries, is_fast, load};
use super::talk::{Talk, server};

/// How long an address is banned, in seconds.
const BAN: u64 = 4;
const FIREWALL: &str = "
table inet fw {
    chain forward {
        type filter hook forward priority filter; policy drop;
        ct state established,related accept
        iifname ra accept
    }
}";

/// Asserts that a conversation stands still when its address is banned, and goes on when it is not. Returns whether it lasted
/// about as long as the ban.
fn is_banned(talk: &mut Talk, ban: impl Fn()) -> bool {
    talk.is_going_on();
    ban();
    let start = Instant::now();
    // A question or two may be on the way.
    let mut last = talk.progress().answered;
    assert_eq!(talk.answers_within(Duration::from_millis(1500)), 0, "it is banned");
    until("the end of the ban", || {
        let before = std::mem::replace(&mut last, talk.progress().answered);
        last > before
    });
    let lasted = start.elapsed().as_secs();
    assert!(talk.progress().broken.is_none());
    // TCP waits for up to twice as long before it sends again.
    (BAN - 2..=2 * BAN + 2).contains(&lasted)
}

/// The files of a fail2ban that bans for forwarded packets, with its own action for nftables.
fn configure(dir: &Path) {
    for (name, text) in [
        ("fail2ban.conf", "[Definition]\nloglevel = INFO\nlogtarget = STDOUT\nsyslogsocket = auto\ndbfile = None\n".to_owned()),
        ("filter.d/lines.conf", "[Definition]\nfailregex = ^\\s*failed by <HOST>$\n".to_owned()),
        (
            "jail.conf",
            format!(
                "[DEFAULT]\nbackend = polling\n[lines]\nenabled = true\nfilter = lines\nlogpath = {}\nmaxretry = 2\n\
                 findtime = 60\nbantime = {BAN}\nusedns = no\n\
                 banaction = nftables\naction = nftables[name=lines, type=allports, protocol=tcp, chain_hook=forward]\n",
                dir.join("lines").display()
            ),
        ),
    ] {
        let path = dir.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }
    sh(&format!("ln -s /etc/fail2ban/action.d {}", dir.join("action.d").display()));
    std::fs::write(dir.join("lines"), "").unwrap();
}

/// Starts fail2ban, and waits until its rules are loaded.
fn start(dir: &Path) -> Process {
    let mut command = Command::new("fail2ban-server");
    command.arg("-c").arg(dir).arg("-s").arg(dir.join("socket")).arg("-p").arg(dir.join("pid"));
    let log = std::fs::File::create(dir.join("log")).unwrap();
    let server = Process(command.args(["-f", "start"]).stdout(log).spawn().unwrap());
    until("fail2ban", || dir.join("socket").exists());
    server
}

/// Writes lines of failures, as a server does whose log fail2ban reads.
fn fail(dir: &Path) {
    let now = sh("date +%Y-%m-%dT%H:%M:%S");
    let line = format!("{} failed by 10.0.1.2\n", now.trim());
    let mut file = std::fs::OpenOptions::new().append(true).open(dir.join("lines")).unwrap();
    std::io::Write::write_all(&mut file, line.repeat(2).as_bytes()).unwrap();
}

/// An established connection stands still while fail2ban has its address in the set.
pub fn fail2ban() {
    let net = Net::new();
    let _server = server(&net.b, "10.0.2.2:22");
    compared("ra rb", &ENGINES, |router| {
        let (_dir, dir) = directory();
        configure(&dir);
        load("nft -f -", FIREWALL);
        let _fail2ban = start(&dir);
        router.map(KernelRouter::sync);
        let mut talk = Talk::start(&net.a, "tcp", "10.0.2.2:22");
        is_fast(router, &mut talk);
        let sets = || sh("nft list ruleset");
        let right = is_banned(&mut talk, || {
            fail(&dir);
            until("fail2ban to ban", || sets().contains("elements = { 10.0.1.2 }"));
            router.map(KernelRouter::sync);
        });
        // There is a rule now, which other connections come to.
        is_fast(router, &mut talk);
        let listed = entries(&[22]);
        talk.end();
        (right, listed)
    });
}

/// A set whose elements end by themselves.
pub fn timed() {
    let net = Net::new();
    let _server = server(&net.b, "10.0.2.2:22");
    for (protocol, engine) in ["tcp", "udp"].into_iter().zip(ENGINES) {
        compared("ra rb", &[engine], |router| {
            load("nft -f -", FIREWALL);
            load(
                "nft -f -",
                "table inet bans {
                    set bad { type ipv4_addr; flags timeout; }
                    chain forward {
                        type filter hook forward priority filter - 1;
                        tcp dport 22 ip saddr @bad drop
                        meta l4proto udp ip saddr @bad drop
                    }
                }",
            );
            router.map(KernelRouter::sync);
            let mut talk = Talk::start(&net.a, protocol, "10.0.2.2:22");
            is_fast(router, &mut talk);
            let right = is_banned(&mut talk, || {
                sh(&format!("nft add element inet bans bad {{ 10.0.1.2 timeout {BAN}s }}"));
                router.map(KernelRouter::sync);
            });
            // The kernel does not tell when an element ends. From then on, this becomes known with the next change of rules.
            sh("nft add table inet other");
            is_fast(router, &mut talk);
            talk.end();
            right
        });
    }
}
