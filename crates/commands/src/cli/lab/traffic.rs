//! The options for frames to send, as in the scripts of the kernel's pktgen.

use std::path::PathBuf;
use std::time::Duration;

use tollway_lab::generate::address::{Range, allow, allow_source, has_own_namespace};
use tollway_lab::generate::load::{Load, Rate};
use tollway_lab::generate::plan::{IMIX, Mac, Plan, Spec, smallest};
use tollway_lab::generate::{Error, Traffic, replay};

use tollway_capture::{CaptureError, CaptureReader};
use tollway_worker::ports::{self, Ethernet};

/// The contents of frames.
#[derive(clap::Args)]
pub(super) struct Frames {
    /// Send to ADDRESS, NETWORK/LENGTH or FIRST-LAST
    ///
    /// Default: 198.18.0.42, or 2001:2::42 for IPv6.
    #[arg(short = 'd', long, value_name = "RANGE")]
    dst: Option<Range>,
    /// Send from these addresses, likewise
    ///
    /// Default: 198.19.0.1, or 2001:2:0:1::1 for IPv6.
    #[arg(long, value_name = "RANGE")]
    src: Option<Range>,
    /// Send to this Ethernet address
    #[arg(short = 'm', long = "dst-mac", value_name = "MAC", value_parser = mac)]
    dst_mac: Option<Mac>,
    /// Send from this Ethernet address [default: device's]
    #[arg(long, value_name = "MAC", value_parser = mac)]
    src_mac: Option<Mac>,
    /// Send to this port, or ports FIRST-LAST
    #[arg(short = 'p', long = "dport", default_value = "9", value_name = "PORTS", value_parser = port_range)]
    dst_ports: (u16, u16),
    /// Send from these ports, likewise
    #[arg(long = "sport", default_value = "9", value_name = "PORTS", value_parser = port_range)]
    src_ports: (u16, u16),
    /// Set the UDP checksum (always set over IPv6)
    #[arg(short = 'k', long)]
    udp_csum: bool,
    /// Send IPv6
    #[arg(short = '6', long)]
    ipv6: bool,
    /// Tag frames with this VLAN; repeat for an inner tag
    #[arg(long, value_name = "VID")]
    vlan: Vec<u16>,
    /// Send N flows, drawn at random if there are more
    ///
    /// Default: all, at most 1024.
    #[arg(long, value_name = "N")]
    flows: Option<usize>,
    /// Seed the random choice of flows
    #[arg(long, default_value_t = 1, value_name = "N")]
    seed: u64,
    /// Allow all addresses, and all frames of a capture
    ///
    /// Otherwise addresses must be loopback, 198.18.0.0/15 or 2001:2::/48.
    ///
    /// Otherwise a capture may contain only IP and ARP.
    #[arg(long)]
    pub(super) i_know: bool,
}

/// The amount and rate of frames.
#[derive(clap::Args)]
pub(super) struct Amount {
    /// Start N threads, each on its own CPU
    #[arg(short = 't', long, default_value_t = 1, value_name = "N")]
    threads: usize,
    /// Run the first thread on this processor
    #[arg(short = 'f', long, default_value_t = 0, value_name = "CPU")]
    first_cpu: usize,
    /// Hand over N frames at once
    #[arg(short = 'b', long, default_value_t = 32, value_name = "N")]
    burst: usize,
    /// Send N frames per thread, 0 for no end
    ///
    /// Default: send for 10 seconds.
    #[arg(short = 'n', long, value_name = "N")]
    count: Option<u64>,
    /// Send for at most S seconds
    #[arg(long, value_name = "S", value_parser = seconds)]
    time: Option<Duration>,
    /// Send at this total rate
    ///
    /// Use frames per second (500000, 1.5Mpps) or bits on the wire (10Gbit).
    #[arg(long, value_name = "RATE", conflicts_with = "delay")]
    rate: Option<Rate>,
    /// Wait NS nanoseconds between two frames of a thread
    #[arg(short = 'w', long, value_name = "NS", value_parser = delay_ns)]
    delay: Option<f64>,
    /// Send frames without number and time (--via xdp)
    ///
    /// This is what xdp-trafficgen does.
    #[arg(long)]
    pub(super) plain: bool,
}

pub(super) fn seconds(text: &str) -> Result<Duration, String> {
    let seconds = text.parse().ok().filter(|seconds| (0.0..=1e6).contains(seconds));
    seconds
        .map(Duration::from_secs_f64)
        .ok_or_else(|| "write seconds, such as 10 or 0.5".to_owned())
}

fn delay_ns(text: &str) -> Result<f64, String> {
    // NaN is in no range.
    let ns = text.parse().ok().filter(|ns| (0.0..=1e15).contains(ns));
    ns.ok_or_else(|| "write nanoseconds, 0 or more".to_owned())
}

fn mac(text: &str) -> Result<Mac, String> {
    let mac = tollway_net::Mac::parse(text).map(|mac| mac.0);
    mac.ok_or_else(|| "write six bytes, such as 02:00:00:00:00:01".to_owned())
}

fn port_range(text: &str) -> Result<(u16, u16), String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let ports = first.parse().ok().zip(last.parse().ok());
    ports.ok_or_else(|| "write a port, or FIRST-LAST".to_owned())
}

/// The frame sizes to send, including the check sequence, with their shares.
pub(super) fn sizes(size: Option<usize>, imix: bool, frames: &Frames) -> Vec<(usize, usize)> {
    match size {
        _ if imix => {
            // Frames grow if the headers do not fit into the smallest size, as is usual with IMIX.
            let least = frames.smallest();
            IMIX.iter().map(|(size, share)| ((*size).max(least), *share)).collect()
        }
        Some(size) => vec![(size, 1)],
        None => vec![(frames.smallest(), 1)],
    }
}

impl Frames {
    fn is_v6(&self) -> bool {
        self.ipv6 || self.dst.is_some_and(Range::is_v6)
    }

    /// The smallest frame that has room for its headers.
    pub(super) fn smallest(&self) -> usize {
        smallest(self.is_v6(), self.vlan.len())
    }

    /// The specification of frames to send to a device or to memory.
    pub(super) fn spec(
        &self,
        device: Option<&str>,
        sizes: Vec<(usize, usize)>,
    ) -> Result<Spec, Error> {
        let v6 = self.is_v6();
        let given = |range: Option<Range>, default: &str| match range {
            Some(range) => Ok(range),
            None => default.parse().map_err(|what: String| Error::usage(what, "Say -d")),
        };
        let dst = given(self.dst, if v6 { "2001:2::42" } else { "198.18.0.42" })?;
        let src = given(self.src, if v6 { "2001:2:0:1::1" } else { "198.19.0.1" })?;
        if self.ipv6 && !dst.is_v6() {
            return Err(Error::usage(
                "-6 is given, and the destination is of IPv4",
                "Say -d with an IPv6 address",
            ));
        }
        if !self.i_know {
            allow(dst, has_own_namespace())?;
            allow_source(src, has_own_namespace())?;
        }
        let (dst_mac, src_mac) = match device {
            Some(device) => {
                let own = check_device(device)?.mac.0;
                let lacks = || {
                    Error::usage(
                        "no destination on the wire is given",
                        "Say -m with the Ethernet address of the receiver",
                    )
                };
                (self.dst_mac.ok_or_else(lacks)?, self.src_mac.unwrap_or(own))
            }
            None => (
                self.dst_mac.unwrap_or([2, 0, 0, 0, 0, 1]),
                self.src_mac.unwrap_or([2, 0, 0, 0, 0, 2]),
            ),
        };
        Ok(Spec {
            dst_mac,
            src_mac,
            vlans: self.vlan.clone(),
            dst,
            src,
            dst_ports: self.dst_ports,
            src_ports: self.src_ports,
            sizes,
            flows: self.flows,
            udp_checksum: self.udp_csum,
            seed: self.seed,
        })
    }

    /// The frames of a capture, or those of the specification.
    pub(super) fn traffic(
        &self,
        replay: Option<&PathBuf>,
        device: Option<&str>,
        sizes: Vec<(usize, usize)>,
    ) -> Result<Traffic, Error> {
        let Some(path) = replay else {
            return Ok(Traffic::Generated(Plan::new(&self.spec(device, sizes)?)?));
        };
        if let Some(device) = device {
            check_device(device)?;
        }
        let failed = |error: CaptureError| Error::failed(&error, error.remedy());
        let mut reader = CaptureReader::open(path).map_err(failed)?;
        let mut frames = Vec::new();
        while let Some(frame) = reader.next_frame().map_err(failed)? {
            frames.push(frame.bytes);
        }
        replay::traffic(frames, self.i_know, has_own_namespace())
    }
}

/// Checks that a device can send and receive: it must be Ethernet, and up.
pub(super) fn check_device(device: &str) -> Result<Ethernet, Error> {
    let missing = format!("there is no interface {device}");
    let found = ports::ethernet_of(device)
        .map_err(|_| Error::usage(missing, "`ip link` lists the devices"))?;
    let what = format!("{device} is not an Ethernet interface");
    let found = found.ok_or_else(|| Error::usage(what, "Choose an interface of type ether"))?;
    if !found.up {
        let remedy = format!("Switch it on by `ip link set {device} up`");
        return Err(Error::usage(format!("{device} is down"), remedy));
    }
    Ok(found)
}

impl Amount {
    /// Converts the options for the generator.
    pub(super) fn load(&self) -> Result<Load, Error> {
        let rate = match self.delay {
            Some(ns) if ns > 0.0 => Some(Rate::Pps(1e9 / ns * self.threads as f64)),
            Some(_) => None,
            None => self.rate,
        };
        let endless = self.count.is_none() && self.time.is_none();
        let load = Load {
            rate,
            count: self.count.filter(|count| *count > 0),
            time: if endless { Some(Duration::from_secs(10)) } else { self.time },
            burst: self.burst,
            threads: self.threads,
            first_cpu: self.first_cpu,
        };
        load.check()?;
        Ok(load)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ethernet_addresses_are_six_pairs_of_digits() {
        assert_eq!(mac("02:00:00:00:0a:Ff"), Ok([2, 0, 0, 0, 10, 255]));
        for bad in ["", "02:00:00:00:00:+1", "02:00:00:00:00:1", "02:00:00:00:00:01:", "02:00:00"] {
            assert!(mac(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn delays_are_numbers_that_can_be() {
        assert_eq!(delay_ns("0"), Ok(0.0));
        assert_eq!(delay_ns("1500.5"), Ok(1500.5));
        for bad in ["", "nan", "inf", "-5", "-0.1", "1e99", "soon"] {
            assert!(delay_ns(bad).is_err(), "{bad}");
        }
    }
}
