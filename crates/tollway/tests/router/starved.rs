//! Tests that a router whose workers get no processor goes on forwarding by its programs.

use std::time::Duration;

use super::leaks::busy;
use super::load::mac_of;
use super::namespaces::sh;
use super::running::{KernelRouter, Net};
use tollway_commands::control::ShowRequest;

const PACKETS: u64 = 100_000;
/// Of all packets, those that the kernel may forward: a machine may stop for longer than a confirmation lasts.
const MOST_TO_KERNEL: u64 = PACKETS / 20;

/// Makes the workers' threads such that run when nobody else does; returns how many there are.
fn starve_workers(pid: u32) -> usize {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    let threads = tasks.map(|task| task.unwrap().file_name().into_string().unwrap());
    let is_worker = |thread: &String| {
        // Other threads come and go.
        let name = std::fs::read_to_string(format!("/proc/{pid}/task/{thread}/comm"));
        let name = name.unwrap_or_default();
        *thread == pid.to_string() || name.starts_with("worker-")
    };
    let workers: Vec<_> = threads.filter(is_worker).collect();
    workers.iter().for_each(|thread| drop(sh(&format!("chrt -i -p 0 {thread}"))));
    workers.len()
}

/// With XDP programs.
pub fn by_xdp() {
    starved("--engine xdp ra rb", "xdp");
}

/// With tc programs.
pub fn by_tc() {
    starved("--engine tc ra rb", "af_packet");
}

/// `via` is how the test sends: a veth device takes frames of XDP only from one that has a program.
fn starved(arguments: &str, via: &str) {
    let net = Net::new();
    let router = KernelRouter::start(arguments);
    router.forwards(&net.a, "10.0.2.2");
    assert!(starve_workers(router.process.0.id()) > 0);
    let before = router.by_xdp_path();
    let load = busy();
    let (program, mac) = (env!("CARGO_BIN_EXE_tollway"), mac_of("ra"));
    let sends = "--i-know -d 10.0.2.2 --flows 64 -p 1-64 --rate 50kpps";
    net.a.sh(&format!("{program} lab generate -i ha -m {mac} --via {via} -n {PACKETS} {sends}"));
    drop(load);
    // Tollway counts packets of the XDP path with a delay.
    std::thread::sleep(Duration::from_millis(100));
    let fast = router.by_xdp_path() - before;
    println!("{fast} of {PACKETS} packets by the program");
    let paths = || router.show(&ShowRequest::Offload)["counts"].to_string();
    let log = || router.read("stderr");
    assert!(fast >= PACKETS - MOST_TO_KERNEL, "{fast}: {}\n{}", paths(), log());
}
