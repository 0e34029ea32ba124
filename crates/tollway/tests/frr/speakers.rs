//! zebra and bgpd, each in a namespace of the test and with all their files in one directory.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::namespaces::{Host, Process, sh, until};

/// Where Debian installs FRR's daemons.
const PROGRAMS: &str = "/usr/lib/frr";
/// Bytes that zebra may leave unread: with a smaller buffer it loses the kernel's messages, and
/// routes with them.
const NETLINK_BYTES: u32 = 128 << 20;

/// Whether FRR is installed.
pub fn are_installed() -> bool {
    ["zebra", "bgpd"].iter().all(|name| Path::new(PROGRAMS).join(name).exists())
}

/// The daemons of one router.
pub struct Speakers {
    dir: PathBuf,
    host: Option<u32>,
    zebra: Option<Process>,
    bgpd: Option<Process>,
}

impl Speakers {
    /// Prepares daemons, without starting them, for a host or, without one, for the test's own
    /// namespace. Their files are in a new directory.
    pub fn new(dir: PathBuf, host: Option<&Host>) -> Self {
        std::fs::create_dir(&dir).unwrap();
        // The daemons drop root as soon as they can.
        sh(&format!("chown frr:frr {}", dir.display()));
        Self { dir, host: host.map(|host| host.0.0.id()), zebra: None, bgpd: None }
    }

    /// Starts zebra, which installs bgpd's routes in the kernel.
    pub fn start_zebra(&mut self) {
        std::fs::write(self.dir.join("zebra.conf"), "hostname router\n").unwrap();
        let buffer = NETLINK_BYTES.to_string();
        self.zebra = Some(self.start("zebra", &["-s", &buffer]));
        until("zebra to listen", || self.dir.join("zserv").exists());
    }

    /// Starts bgpd with a configuration.
    pub fn start_bgpd(&mut self, config: &str) {
        std::fs::write(self.dir.join("bgpd.conf"), config).unwrap();
        self.start_bgpd_again();
    }

    /// Starts bgpd as it was started before.
    pub fn start_bgpd_again(&mut self) {
        // Without zebra, bgpd announces its networks whether or not the kernel has routes to them.
        let alone: &[&str] = if self.zebra.is_none() { &["-Z"] } else { &[] };
        // A killed bgpd leaves its socket.
        let socket = self.dir.join("bgpd.vty");
        let _ = std::fs::remove_file(&socket);
        self.bgpd = Some(self.start("bgpd", alone));
        until("bgpd to listen", || std::os::unix::net::UnixStream::connect(&socket).is_ok());
    }

    /// Kills bgpd as the kernel does when it is out of memory.
    pub fn kill_bgpd(&mut self) {
        let mut bgpd = self.bgpd.take().unwrap();
        bgpd.0.kill().unwrap();
        bgpd.0.wait().unwrap();
    }

    fn start(&self, name: &str, more: &[&str]) -> Process {
        let program = format!("{PROGRAMS}/{name}");
        let mut command = match self.host {
            Some(host) => {
                let mut command = Command::new("nsenter");
                command.args(["-t", &host.to_string(), "-n", "--", &program]);
                command
            }
            None => Command::new(program),
        };
        let path = |file: &str| self.dir.join(file).display().to_string();
        command.args(["-f", &path(&format!("{name}.conf")), "-i", &path(&format!("{name}.pid"))]);
        command.args(["-z", &path("zserv"), "--vty_socket", &path(""), "-P", "0"]);
        command.args(["--log", &format!("file:{}", path(name))]);
        let output = || Stdio::from(std::fs::File::create(path(&format!("{name}.out"))).unwrap());
        command.args(more).stdin(Stdio::null()).stdout(output()).stderr(output());
        Process(command.spawn().unwrap())
    }

    /// Runs a command in bgpd. Returns the output.
    pub fn run(&self, command: &str) -> String {
        let socket = self.dir.display().to_string();
        let mut vtysh = Command::new("vtysh");
        let output = vtysh.args(["--vty_socket", &socket, "-c", command]).output().unwrap();
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        assert!(output.status.success(), "{command}: {text}");
        text
    }

    /// The daemons' logs, which help to explain a failure.
    pub fn log(&self) -> String {
        let files = ["zebra", "zebra.out", "bgpd", "bgpd.out"];
        files.iter().filter_map(|name| std::fs::read_to_string(self.dir.join(name)).ok()).collect()
    }
}
