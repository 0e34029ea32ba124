//! A run of the generator, with or without a sink.

use std::sync::atomic::{AtomicBool, Ordering};

use super::fill::Filler;
use super::load::Load;
use super::plan::{FCS, Plan};
use super::port::{DRAIN, Memory, Sent, Task, Writer, send};
use super::sink::{Sink, SinkStats};
use super::track::{Tracker, Wanted};
use super::{Error, Opened, Report, Row, xdp};
use crate::machine::Machine;
use crate::memory;
use crate::sys;

/// The traffic to send.
pub enum Traffic {
    /// The generator's own frames.
    Generated(Plan),
    /// A capture's frames, repeated.
    Replay(Vec<Vec<u8>>),
}

/// The means of sending.
pub enum SendMethod<'a> {
    /// A BPF program.
    Xdp {
        /// Send through this device.
        device: &'a str,
        /// Whether it repeats one frame without number and time.
        plain: bool,
    },
    /// A port for each thread.
    Port(&'a (dyn Fn() -> Result<Opened, Error> + Sync)),
    /// Memory, whose other end may evaluate frames.
    Memory {
        /// Whether it evaluates them.
        looks: bool,
    },
}

/// Sends, and reports what was sent and what the sink received.
///
/// # Errors
/// The request is wrong, or the system refuses.
pub fn run(
    traffic: &Traffic,
    load: &Load,
    run: u8,
    way: &SendMethod<'_>,
    sink: Option<Sink>,
    stop: &AtomicBool,
) -> Result<Report, Error> {
    load.check()?;
    let wire_bytes = traffic.wire_bytes();
    let task =
        Task { pps: load.share(wire_bytes), count: load.count, time: load.time, burst: load.burst };
    let (sent, memory) = match (way, traffic) {
        (SendMethod::Xdp { .. }, Traffic::Replay(_)) => {
            let what = "captures are not sent by the BPF program";
            return Err(Error::usage(what, "Say --via af_packet or --via af_xdp"));
        }
        (SendMethod::Xdp { device, plain }, Traffic::Generated(plan)) => {
            let stream =
                |thread| xdp::Stream::load(device, plan, (run, thread as u8), task, *plain);
            let streams = (0..load.threads).map(stream).collect::<Result<_, _>>()?;
            (xdp::send_all(streams, load.first_cpu, stop)?, None)
        }
        (SendMethod::Port(open), _) => {
            let each = |thread| {
                let (mut port, mut umem) = open()?;
                let mut writer = traffic.writer(run, thread);
                Ok((send(port.as_mut(), &mut umem, &mut writer, task, stop)?, None))
            };
            threads(load, &each, stop)?
        }
        (SendMethod::Memory { looks }, _) => {
            let each = |thread| {
                let failed = || Error::failed("there is no memory for frames", "Free some");
                let mut umem = memory::umem(512, 4096).ok_or_else(failed)?;
                let mut port = Memory::new(looks.then(|| Tracker::new(traffic.wanted(run), 1)));
                let mut writer = traffic.writer(run, thread);
                let sent = send(&mut port, &mut umem, &mut writer, task, stop)?;
                Ok((sent, port.tracker().map(SinkStats::by)))
            };
            threads(load, &each, stop)?
        }
    };
    std::thread::sleep(if sink.is_some() { DRAIN } else { std::time::Duration::ZERO });
    let seen = sink.map(Sink::end).transpose()?.or(memory);
    Ok(report(&sent, seen.as_ref(), traffic))
}

impl Traffic {
    fn wire_bytes(&self) -> f64 {
        match self {
            Self::Generated(plan) => plan.wire_bytes(),
            Self::Replay(frames) => {
                let bytes: usize = frames.iter().map(Vec::len).sum();
                bytes as f64 / frames.len().max(1) as f64 + 24.0
            }
        }
    }

    /// What a sink for this traffic alone counts; a capture's frames have no numbers.
    #[must_use]
    pub const fn wanted(&self, run: u8) -> Wanted {
        match self {
            Self::Generated(_) => Wanted::Run(run),
            Self::Replay(_) => Wanted::All,
        }
    }

    /// Checks that a device of this MTU accepts all frames. With `free_tag`, one tag never counts
    /// towards the MTU; without, an 802.1Q tag does not count and any other does
    /// (`packet_extra_vlan_len_allowed` in `net/packet/af_packet.c`).
    ///
    /// # Errors
    /// A frame is too long.
    pub fn fits(&self, device: &str, mtu: u16, free_tag: bool) -> Result<(), Error> {
        let most = |head: &[u8]| {
            let is_free = free_tag || head.get(12..14) == Some(&[0x81, 0x00]);
            usize::from(mtu) + if is_free { 18 } else { 14 }
        };
        let (longest, most) = match self {
            // All frames of a plan have the same tags.
            Self::Generated(plan) => (plan.longest(), plan.rows.first().map_or(0, |row| most(row))),
            Self::Replay(frames) => {
                let too_long = frames.iter().find(|frame| frame.len() > most(frame));
                too_long.map_or((0, 0), |frame| (frame.len(), most(frame)))
            }
        };
        if longest <= most {
            return Ok(());
        }
        let sent = longest + FCS;
        let (what, remedy) = (
            format!("a frame of {sent} bytes is too long for {device}, whose MTU is {mtu}"),
            format!("Send frames of {} bytes at most, or raise the MTU", most + FCS),
        );
        Err(Error::usage(what, remedy))
    }

    fn writer(&self, run: u8, thread: usize) -> Writer {
        match self {
            Self::Generated(plan) => {
                Writer::Generated(Box::new(Filler::new(plan.clone(), run, thread as u8)))
            }
            Self::Replay(frames) => Writer::Replay { frames: frames.clone(), at: 0 },
        }
    }
}

type Done = (Sent, Option<SinkStats>);

/// Runs a thread for each stream, each on its own processor. Returns what each sent, and what all
/// sinks together received.
fn threads(
    load: &Load,
    each: &(dyn Fn(usize) -> Result<Done, Error> + Sync),
    stop: &AtomicBool,
) -> Result<(Vec<Sent>, Option<SinkStats>), Error> {
    let processors = sys::processors();
    let cpu = |thread: usize| processors[(load.first_cpu + thread) % processors.len()];
    let done: Vec<Result<Done, Error>> = std::thread::scope(|scope| {
        let start = |thread| {
            scope.spawn(move || {
                // If the process has lost this processor meanwhile, the thread continues elsewhere.
                let _ = sys::pin(&[cpu(thread)]);
                // One failure fails the whole run, so stop the others.
                each(thread).inspect_err(|_| stop.store(true, Ordering::Relaxed))
            })
        };
        let started: Vec<_> = (0..load.threads).map(start).collect();
        let failed =
            || Err(Error::failed("a generator's thread panicked", "Report this as a defect"));
        started.into_iter().map(|thread| thread.join().unwrap_or_else(|_| failed())).collect()
    });
    let done = done.into_iter().collect::<Result<Vec<_>, _>>()?;
    let sent = done.iter().map(|(sent, _)| *sent).collect();
    let seen = done.into_iter().filter_map(|(_, seen)| seen).reduce(|mut all, one| {
        all.counts.add(&one.counts);
        // Both have the same bounds.
        let _ = all.latency.add(&one.latency);
        all
    });
    Ok((sent, seen))
}

fn report(sent: &[Sent], seen: Option<&SinkStats>, traffic: &Traffic) -> Report {
    let row = |(thread, sent): (usize, &Sent)| Row {
        name: format!("thread-{thread}"),
        sent_frames: sent.frames,
        mpps: sent.mpps(),
    };
    let mut report = Report::new(Machine::probe(), sent.iter().enumerate().map(row).collect());
    let frames: u64 = sent.iter().map(|sent| sent.frames).sum();
    let mpps: f64 = sent.iter().map(Sent::mpps).sum();
    for (name, value) in [
        ("sent_frames", frames as f64),
        ("sent_bytes", sent.iter().map(|sent| sent.bytes).sum::<u64>() as f64),
        ("seconds", sent.iter().map(|sent| sent.ns).max().unwrap_or(0) as f64 / 1e9),
        ("mpps", mpps),
        ("wire_gbps", mpps * traffic.wire_bytes() * 8.0 / 1e3),
    ] {
        report.figures.insert(name.to_owned(), value);
    }
    if let Some(seen) = seen {
        report.figures.extend(match traffic {
            Traffic::Generated(_) => seen.figures(Some(frames)),
            Traffic::Replay(_) => seen.figures_without_numbers(),
        });
    }
    report
}

#[cfg(test)]
mod tests {
    use super::super::plan::{Spec, tests::spec};
    use super::*;

    #[test]
    fn threads_are_streams_of_their_own() {
        let spec = Spec { flows: Some(16), src: "198.19.0.0/16".parse().unwrap(), ..spec() };
        let traffic = Traffic::Generated(Plan::new(&spec).unwrap());
        let load = Load {
            rate: None,
            count: Some(20_000),
            time: None,
            burst: 32,
            threads: 3,
            first_cpu: 0,
        };
        let stop = AtomicBool::new(false);
        let report =
            run(&traffic, &load, 5, &SendMethod::Memory { looks: true }, None, &stop).unwrap();
        let figure = |name: &str| report.figures[name];
        assert_eq!(report.rows.len(), 3);
        assert_eq!((figure("sent_frames"), figure("received_frames")), (60_000.0, 60_000.0));
        assert_eq!((figure("lost_frames"), figure("duplicate_frames")), (0.0, 0.0));
        assert!(figure("latency_p99_us") > 0.0);
    }

    #[test]
    fn of_a_capture_only_received_frames_are_known() {
        let load =
            Load { rate: None, count: Some(1000), time: None, burst: 32, threads: 1, first_cpu: 0 };
        let traffic = Traffic::Replay(vec![vec![0; 60], vec![0; 100]]);
        let stop = AtomicBool::new(false);
        let report =
            run(&traffic, &load, 5, &SendMethod::Memory { looks: true }, None, &stop).unwrap();
        assert_eq!(report.figures["received_frames"], 1000.0);
        let json = serde_json::to_value(&report).unwrap();
        assert!(json["lost_frames"].is_null() && json["loss_ratio"].is_null(), "{json}");
        assert!(json.get("lost_frames").is_some(), "{json}");
        let text = super::super::render(&report);
        assert!(text.contains("a capture's frames have no numbers"), "{text}");
    }

    #[test]
    fn frames_are_no_longer_than_a_device_takes() {
        let made = |size: usize, vlans: &[u16]| {
            let spec = Spec { sizes: vec![(size, 1)], vlans: vlans.to_vec(), ..spec() };
            Traffic::Generated(Plan::new(&spec).unwrap())
        };
        for (traffic, free_tag, fits) in [
            (made(1518, &[]), false, true),
            (made(1519, &[]), false, false),
            (made(1522, &[]), true, true),
            (made(1522, &[5]), false, true),
            (made(1523, &[5]), false, false),
            (made(1522, &[5, 6]), false, false),
            (made(1522, &[5, 6]), true, true),
            (Traffic::Replay(vec![vec![0; 60], vec![0; 1514]]), false, true),
            (Traffic::Replay(vec![vec![0; 60], vec![0; 1515]]), false, false),
        ] {
            assert_eq!(traffic.fits("eth0", 1500, free_tag).is_ok(), fits);
        }
        let error = made(2000, &[]).fits("eth0", 1500, false).unwrap_err();
        assert!(error.usage && error.what.contains("2000 bytes"), "{error}");
        assert!(error.remedy.contains("1518"), "{error}");
    }

    #[test]
    fn a_capture_has_no_way_through_the_bpf_program() {
        let load =
            Load { rate: None, count: Some(1), time: None, burst: 1, threads: 1, first_cpu: 0 };
        let traffic = Traffic::Replay(vec![vec![0; 60]]);
        let error = run(
            &traffic,
            &load,
            0,
            &SendMethod::Xdp { device: "lo", plain: false },
            None,
            &AtomicBool::new(false),
        );
        assert!(error.unwrap_err().usage);
    }
}
