//! `tollway run` on a router's devices, and requests to its control socket.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::process::Stdio;
use std::time::Duration;

use serde_json::Value;
use tempfile::TempDir;
use tollway_model::Engine;

use super::router_namespace::Idle;
use crate::cables::Cables;
use crate::namespaces::{Process, patience, workers};
use crate::net::DEVICES;

/// Tollway's total counts.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub received: u64,
    pub punted: u64,
    pub xdp_path: u64,
    /// A sum that changes whenever packets move.
    moved: u64,
}

impl Counts {
    pub fn since(self, before: Self) -> Self {
        Self {
            received: self.received - before.received,
            punted: self.punted - before.punted,
            xdp_path: self.xdp_path.saturating_sub(before.xdp_path),
            moved: self.moved.wrapping_sub(before.moved),
        }
    }
}

/// How Tollway runs: on the first so many devices, with this engine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Setup {
    pub ports: usize,
    pub engine: Engine,
}

/// A running Tollway.
pub struct KernelRouter {
    process: Process,
    setup: Setup,
    dir: TempDir,
}

impl KernelRouter {
    /// Starts Tollway. Returns its output if it does not start.
    pub fn start(cables: &Cables, setup: Setup) -> Result<Self, String> {
        let dir = tempfile::tempdir().unwrap();
        let mut command = cables.command(env!("CARGO_BIN_EXE_tollway"));
        command.arg("run").args(&DEVICES[..setup.ports]).args(["--socket", "control.sock"]);
        command.args(["--engine", setup.engine.name()]);
        command.args(["--workers", &workers().to_string()]);
        let file = |name: &str| File::create(dir.path().join(name)).unwrap();
        command.current_dir(dir.path()).stdout(Stdio::null()).stderr(file("stderr"));
        let mut process = Process(command.spawn().unwrap());
        let start = std::time::Instant::now();
        loop {
            let log = std::fs::read_to_string(dir.path().join("stderr")).unwrap();
            if log.contains("forwarding") {
                break;
            }
            if process.0.try_wait().unwrap().is_some() || start.elapsed() > patience() {
                return Err(format!("tollway run does not start: {log}"));
            }
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(Self { process, setup, dir })
    }

    pub fn setup(&self) -> Setup {
        self.setup
    }

    fn request(&mut self, request: &str) -> Result<Value, String> {
        let answer = self.answer(request).map_err(|error| {
            let status = self.process.0.try_wait();
            format!("Tollway does not answer ({error}; {status:?}): {}", self.log())
        })?;
        let value: Value =
            serde_json::from_str(&answer).map_err(|error| format!("{error}: {answer}"))?;
        match value.get("error") {
            Some(error) => Err(format!("Tollway refuses {request}: {error}")),
            None => Ok(value),
        }
    }

    /// Sends a request on a new connection: a router closes one that is silent for a minute, which
    /// can happen on a busy machine.
    fn answer(&self, request: &str) -> io::Result<String> {
        let mut control = UnixStream::connect(self.dir.path().join("control.sock"))?;
        control.set_read_timeout(Some(patience()))?;
        control.write_all(format!("{{\"v\":2,{request}}}\n").as_bytes())?;
        let mut answer = String::new();
        BufReader::new(control).read_line(&mut answer)?;
        Ok(answer)
    }

    /// Waits until Tollway has applied the kernel's current configuration.
    pub fn sync(&mut self) -> Result<(), String> {
        self.request(r#""do":"sync""#).map(|_| ())
    }

    fn log(&self) -> String {
        std::fs::read_to_string(self.dir.path().join("stderr")).unwrap_or_default()
    }

    /// Tollway's counts.
    pub fn counts(&mut self) -> Counts {
        let all = self.request(r#""show":"all""#).unwrap_or_default();
        let count = |value: &Value| value.as_u64().unwrap_or(0);
        let totals = &all["totals"];
        let xdp_path: u64 = all["xdp"]["counts"]["packets"].as_u64().unwrap_or(0);
        let names = ["received", "sent", "dropped", "punted", "delivered", "transmitted"];
        let moved =
            names.iter().map(|name| count(&totals[*name])).fold(xdp_path, u64::wrapping_add);
        Counts {
            received: count(&totals["received"]),
            punted: count(&totals["punted"]),
            xdp_path,
            moved,
        }
    }

    /// Tollway's report on which traffic takes which path.
    pub fn offload(&mut self) -> Result<Value, String> {
        self.request(r#""show":"offload""#)
    }

    /// Everything that Tollway has counted.
    pub fn everything(&mut self) -> Result<Value, String> {
        let mut all = self.request(r#""show":"all""#)?;
        all["counts"] = self.offload()?["counts"].take();
        Ok(all)
    }

    /// Statements of Tollway about itself that cannot be true.
    pub fn complaints(&mut self) -> Vec<String> {
        let all = match self.request(r#""show":"all""#) {
            Ok(all) => all,
            Err(error) => return vec![error],
        };
        let defect = all["totals"]["defect"].as_str();
        defect
            .map(|defect| format!("Tollway's counts are not in order: {defect}"))
            .into_iter()
            .collect()
    }
}

impl Idle for KernelRouter {
    fn progress(&mut self) -> u64 {
        self.counts().moved
    }
}
