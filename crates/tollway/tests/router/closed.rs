//! Tests what happens to packets while no worker can evaluate the configuration's own rules.

use std::process::{Command, Stdio};

use super::leaks::busy;
use super::load::mac_of;
use super::namespaces::{Process, sh, until};
use super::running::{Net, SILENCE, answered};

const RULES: &str = "table inet f {\n chain fw {\n type filter hook forward priority 0; policy accept;\n \
                     ip daddr 10.0.2.3 drop\n }\n}\n";

/// Returns the configuration of a router between two hosts, with the lines `fail` before its ports.
pub fn config(fail: &str) -> String {
    let port = |name: &str, net: u8| {
        format!(
            "[ports.{name}]\nkind = \"af_xdp\"\ndevice = \"r{name}\"\n\
             addresses = [\"10.0.{net}.1/24\", \"fd00:{net}::1/64\"]\n"
        )
    };
    format!("{fail}\nfilter = \"rules.nft\"\n{}{}", port("a", 1), port("b", 2))
}

/// A running router with its configuration and rules in a directory.
pub struct Router {
    process: Process,
    dir: tempfile::TempDir,
}

impl Router {
    fn start(fail: &str) -> Self {
        Self::start_with(&config(fail), RULES)
    }

    /// Starts a router with a configuration that names the file `rules.nft`.
    pub fn start_with(config: &str, rules: &str) -> Self {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("rules.nft"), rules).unwrap();
        std::fs::write(dir.path().join("router.toml"), config).unwrap();
        Self::start_in(dir)
    }

    fn start_in(dir: tempfile::TempDir) -> Self {
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_tollway"));
        command.args(["run", "--config", "router.toml", "--socket", "control.sock"]);
        command.current_dir(dir.path()).stdin(Stdio::null()).stdout(Stdio::null()).stderr(log);
        let router = Self { process: Process(command.spawn().unwrap()), dir };
        until("the router to forward", || router.logged("forwarding"));
        router
    }

    pub fn logged(&self, words: &str) -> bool {
        std::fs::read_to_string(self.dir.path().join("log")).unwrap().contains(words)
    }

    /// Returns the process ID.
    pub fn pid(&self) -> u32 {
        self.process.0.id()
    }

    fn signal(&self, name: &str) {
        sh(&format!("kill -{name} {}", self.process.0.id()));
        std::thread::sleep(SILENCE);
    }
}

/// Asserts that pings pass, except those to 10.0.2.3 (also host B), which a rule drops.
fn works(net: &Net) {
    until("pings to go through", || answered(&net.a, "10.0.2.2") == 5);
    assert_eq!(answered(&net.a, "10.0.2.3"), 0, "the rule drops them");
}

fn is_closed(net: &Net, when: &str) {
    for address in ["10.0.2.2", "10.0.2.3", "fd00:2::2"] {
        assert_eq!(answered(&net.a, address), 0, "{when}: {address}");
    }
    assert_eq!(answered(&net.a, "10.0.1.1"), 5, "{when}: for the router itself");
    assert_eq!(answered(&net.a, "fd00:1::1"), 5, "{when}: for the router itself");
}

fn net() -> Net {
    let net = Net::new();
    net.b.sh("ip address add 10.0.2.3/24 dev hb");
    until("the kernel to forward", || answered(&net.a, "10.0.2.3") == 5);
    net
}

pub fn closed() {
    let net = net();
    let mut router = Router::start("");
    works(&net);
    assert!(
        router
            .logged("the programs drop packets that these rules cannot decide (fail = \"closed\")")
    );
    router.signal("STOP");
    is_closed(&net, "stopped");
    router.signal("CONT");
    until("a line about it", || router.logged("packets were dropped (fail = \"closed\")"));
    works(&net);
    // SIGKILL: the router cannot clean up, and afterwards no worker can evaluate the rules.
    router.process.0.kill().unwrap();
    router.process.0.wait().unwrap();
    std::thread::sleep(SILENCE);
    is_closed(&net, "killed");
    let Router { dir, .. } = router;
    let mut next = Router::start_in(dir);
    works(&net);
    // An administrator stops the router on purpose.
    sh(&format!("kill -TERM {}", next.process.0.id()));
    assert!(next.process.0.wait().unwrap().success());
    assert!(next.logged("the kernel forwards from now on"));
    assert_eq!(answered(&net.a, "10.0.2.3"), 5, "the kernel knows no rule");
}

pub fn open() {
    let net = net();
    let router = Router::start("fail = \"open\"");
    // Until the workers run, the kernel forwards.
    until("the rule to drop packets", || answered(&net.a, "10.0.2.3") == 0);
    works(&net);
    assert!(router.logged("the kernel forwards without these rules (fail = \"open\")"));
    router.signal("STOP");
    assert_eq!(answered(&net.a, "10.0.2.3"), 5, "the kernel forwards meanwhile");
    router.signal("CONT");
    until("a line about it", || router.logged("without them (fail = \"open\")"));
    works(&net);
}

/// Packets that a rule drops do not pass while a flood or busy loops load the worker.
pub fn loaded() {
    const DROPPED: u64 = 40_000;
    let net = net();
    for line in [
        "nft add table ip seen",
        "nft add chain ip seen arrived { type filter hook prerouting priority 0 ; }",
        "nft add rule ip seen arrived ip daddr 10.0.2.3 counter",
    ] {
        net.b.sh(line);
    }
    let mac = mac_of("ra");
    let program = env!("CARGO_BIN_EXE_tollway");
    let generate = format!("{program} lab generate -i ha -m {mac} --i-know");
    let dropped = format!("{generate} --via af_packet -d 10.0.2.3 -n {DROPPED} --rate 20kpps");
    let flood = "-d 10.0.2.2 -p 1-60000 --flows 60000 --rate 500kpps -n 1000000";
    let arrived = || {
        let output = net.b.sh("nft list table ip seen");
        let words = output.split("counter packets ").nth(1).unwrap();
        words.split(' ').next().unwrap().parse::<u64>().unwrap()
    };
    assert_eq!(answered(&net.a, "10.0.2.3"), 5);
    assert!(arrived() >= 5, "the kernel knows no rule, and what arrives is counted");
    let _router = Router::start("");
    works(&net);
    // The generator ends when its `Process` is dropped.
    let flooding = || {
        let mut command = net.a.command(&format!("{generate} --via xdp {flood}"));
        vec![Process(command.stdout(Stdio::null()).spawn().unwrap())]
    };
    for (what, load) in [("a flood", &flooding as &dyn Fn() -> Vec<Process>), ("loops", &busy)] {
        let before = arrived();
        let load = load();
        net.a.sh(&dropped);
        drop(load);
        println!("beside {what}: {} of {DROPPED} get through", arrived() - before);
        assert_eq!(arrived(), before, "beside {what}");
    }
    works(&net);
}
