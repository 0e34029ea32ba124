//! The processor of each worker: if it can be had, the one that the interrupts of its queues come to.
//!
//! The kernel puts received frames into the RX ring on the processor of the queue's interrupt. There the worker finds
//! the ring's memory in the cache, and no other worker waits for that processor.
//!
//! A single worker is not pinned: the scheduler moves it away from a processor that is busy.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::OnceLock;

use tollway_linux::sys::cores::{allowed_cores, pin_to};

/// The processors that the process could use before workers were pinned.
static ALLOWED: OnceLock<Vec<usize>> = OnceLock::new();

/// The processor of each of several workers; none for a single worker, or if the system does not say which there are.
/// `devices` are the names of the network devices.
pub(crate) fn of_workers(workers: usize, devices: &[String]) -> Vec<Option<usize>> {
    let allowed = match allowed_cores() {
        Ok(allowed) if workers > 1 => ALLOWED.get_or_init(|| allowed),
        _ => return vec![None; workers],
    };
    let interrupts = fs::read_to_string("/proc/interrupts").unwrap_or_default();
    let mut wanted = BTreeMap::new();
    for device in devices {
        for (queue, irq) in queues_of(&interrupts, &interrupts_of(device)) {
            if let Some(core) = core_of(irq) {
                wanted.entry(queue % workers).or_insert(core);
            }
        }
    }
    choose(workers, allowed, &wanted)
}

/// Pins the calling thread to a processor, if it has one; returns the processor if that is done.
pub(crate) fn pin(core: Option<usize>) -> Option<usize> {
    let core = core?;
    match pin_to(&[core]) {
        Ok(()) => Some(core),
        Err(error) => {
            tracing::info!("a worker is not pinned to processor {core}: {error}");
            None
        }
    }
}

/// Lets the calling thread use all processors again: it has inherited the one of the worker that started it.
pub(crate) fn unpin() {
    if let Some(allowed) = ALLOWED.get() {
        // If it fails, the thread shares a processor with its worker.
        let _ = pin_to(allowed);
    }
}

/// Gives each worker the processor that it wants, or else the next that nobody wants. If there are fewer
/// processors than workers, the rest are not pinned.
fn choose(
    workers: usize,
    allowed: &[usize],
    wanted: &BTreeMap<usize, usize>,
) -> Vec<Option<usize>> {
    let mut chosen: Vec<Option<usize>> = vec![None; workers];
    for (worker, core) in wanted {
        if *worker < workers && allowed.contains(core) && !chosen.contains(&Some(*core)) {
            chosen[*worker] = Some(*core);
        }
    }
    for worker in 0..workers {
        if chosen[worker].is_none() {
            chosen[worker] = allowed.iter().copied().find(|core| !chosen.contains(&Some(*core)));
        }
    }
    chosen
}

/// The interrupts by which a device's receive queues report frames: the queue's number, the interrupt's number.
///
/// Drivers name them with the queue's number at the end, or before a direction: `eth0-TxRx-3`, `virtio1-input.3`,
/// `mlx5_comp3@pci:0000:03:00.0`.
fn queues_of(interrupts: &str, of_device: &[u32]) -> Vec<(usize, u32)> {
    let queue = |line: &str| {
        let (number, rest) = line.trim_start().split_once(':')?;
        let irq = number.parse().ok().filter(|irq| of_device.contains(irq))?;
        let name = rest.split_whitespace().last()?;
        let name = name.split_once('@').map_or(name, |(name, _)| name);
        let sends_only = name.contains("output") || name.to_lowercase().ends_with("tx");
        let digits = name.len() - name.trim_end_matches(|c: char| c.is_ascii_digit()).len();
        let queue = name[name.len() - digits..].parse().ok().filter(|_| !sends_only)?;
        Some((queue, irq))
    };
    interrupts.lines().filter_map(queue).collect()
}

/// The interrupts of a network device. A virtio device has those of the PCI device that it is on.
fn interrupts_of(device: &str) -> Vec<u32> {
    let device = Path::new("/sys/class/net").join(device).join("device");
    let is_virtio =
        fs::read_link(device.join("subsystem")).is_ok_and(|bus| bus.ends_with("virtio"));
    numbers_in(&device.join(if is_virtio { "../msi_irqs" } else { "msi_irqs" }))
}

/// The processor that an interrupt comes to, if it is one only.
fn core_of(irq: u32) -> Option<usize> {
    let list = fs::read_to_string(format!("/proc/irq/{irq}/effective_affinity_list")).ok()?;
    list.trim().parse().ok()
}

/// The files in a directory that are numbers.
fn numbers_in(directory: &Path) -> Vec<u32> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const INTERRUPTS: &str = "            CPU0       CPU1
  27:          1          0   PCI-MSI 1-edge      virtio1-config
  28:         52          0   PCI-MSI 2-edge      virtio1-input.0
  29:          9          0   PCI-MSI 3-edge      virtio1-output.0
  30:          0         77   PCI-MSI 4-edge      virtio1-input.1
  31:          0         77   PCI-MSI 5-edge      eth0-TxRx-0
  32:          0         77   PCI-MSI 6-edge      eth0-TxRx-1
  33:          0         77   PCI-MSI 7-edge      eth0
  34:          0         77   PCI-MSI 8-edge      mlx5_comp3@pci:0000:03:00.0
 NMI:          0          0   Non-maskable interrupts
";

    #[test]
    fn interrupts_are_known_by_their_names() {
        assert_eq!(queues_of(INTERRUPTS, &[27, 28, 29, 30]), [(0, 28), (1, 30)]);
        assert_eq!(queues_of(INTERRUPTS, &[31, 32]), [(0, 31), (1, 32)]);
        assert_eq!(queues_of(INTERRUPTS, &[34]), [(3, 34)]);
    }

    #[test]
    fn a_worker_gets_the_processor_of_its_queue() {
        let wanted = |list: &[(usize, usize)]| list.iter().copied().collect();
        let all = |list: &[usize]| list.iter().copied().map(Some).collect::<Vec<_>>();
        assert_eq!(choose(2, &[0, 1], &wanted(&[])), all(&[0, 1]));
        assert_eq!(choose(2, &[0, 1], &wanted(&[(0, 1)])), all(&[1, 0]));
        assert_eq!(choose(2, &[0, 1], &wanted(&[(0, 1), (1, 1)])), all(&[1, 0]));
        assert_eq!(choose(2, &[2, 5, 7], &wanted(&[(1, 0)])), all(&[2, 5]), "0 is not allowed");
        assert_eq!(choose(3, &[4, 6], &wanted(&[])), [Some(4), Some(6), None]);
    }
}
