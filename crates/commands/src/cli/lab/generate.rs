//! `tollway lab generate`: sends frames with numbers and timestamps, and reports what becomes of
//! them.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use tollway_lab::generate::sink::Sink;
use tollway_lab::generate::track::Wanted;
use tollway_lab::generate::{self, Error, SendMethod, any_run, xdp};

use super::port::Via;
use super::traffic::{Amount, Frames, check_device, sizes};
use super::{CliError, show};

/// Options of generated frames that do not apply to the frames of a capture.
const GENERATED_ONLY: [&str; 13] = [
    "size",
    "imix",
    "dst",
    "src",
    "dst_mac",
    "src_mac",
    "dst_ports",
    "src_ports",
    "udp_csum",
    "ipv6",
    "vlan",
    "flows",
    "seed",
];

/// Arguments of `tollway lab generate`.
#[derive(clap::Args)]
#[command(
    after_help = "Options are those of the kernel's samples/pktgen, but a size is with check sequence, as in RFC 2544."
)]
pub(super) struct Args {
    /// Send out of this device
    #[arg(short = 'i', long, value_name = "DEV", required_unless_present_any = ["memory"])]
    device: Option<String>,
    /// Send to memory instead, without a device
    #[arg(long, conflicts_with = "device")]
    memory: bool,
    /// Set the frame size with FCS [default: smallest]
    #[arg(short = 's', long, value_name = "BYTES", conflicts_with = "imix")]
    size: Option<usize>,
    /// Send 64, 594 and 1518 bytes in ratio 7:4:1
    #[arg(long)]
    imix: bool,
    /// Send the frames of a pcap or pcapng file in a loop
    #[arg(long, value_name = "FILE", conflicts_with_all = GENERATED_ONLY)]
    replay: Option<PathBuf>,
    #[command(flatten)]
    frames: Frames,
    #[command(flatten)]
    amount: Amount,
    /// Choose how to send
    #[arg(long, default_value = "auto", value_enum)]
    via: Via,
    /// Receive at this device, and report the result
    ///
    /// With --memory, any word inspects the frames that are sent.
    #[arg(long, value_name = "DEV")]
    sink: Option<String>,
    /// Choose how to receive
    #[arg(long, default_value = "auto", value_enum, requires = "sink")]
    sink_via: Via,
    /// Sample the latency of one frame in N
    ///
    /// Default: 1; without a rate, one frame of each burst.
    #[arg(long, value_name = "N")]
    sample: Option<u64>,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<(), CliError> {
    let report = send(args).map_err(|error| to_cli_error(&error))?;
    show(&report, args.json, generate::render)
}

/// Converts an error of the generator.
pub(super) fn to_cli_error(error: &Error) -> CliError {
    match error.usage {
        true => CliError::usage(&error.what, &error.remedy),
        false => CliError::failed(&error.what, &error.remedy),
    }
}

/// A flag that a signal sets to stop the run. The second signal ends the process at once.
pub(super) fn stop_flag() -> Result<Arc<AtomicBool>, Error> {
    tollway_worker::stop_flag()
        .map_err(|error| Error::failed(format!("signals cannot be taken: {error}"), "Try again"))
}

/// Opens a sink at a device.
pub(super) fn sink(device: &str, via: Via, wanted: Wanted, sample: u64) -> Result<Sink, Error> {
    check_device(device)?;
    match via {
        Via::Auto | Via::Xdp => {
            xdp::Sink::attach(device, wanted, sample).map(Box::new).map(Sink::Xdp)
        }
        Via::AfXdp | Via::AfPacket => {
            let device = device.to_owned();
            Sink::over(move || via.open(&device, true), wanted, sample)
        }
        Via::Memory => Err(Error::usage("memory has no device", "Say another --sink-via")),
    }
}

fn only_by_xdp(remedy: &str) -> Error {
    Error::usage("only the BPF program sends frames without numbers", remedy)
}

fn send(args: &Args) -> Result<generate::Report, Error> {
    let load = args.amount.load()?;
    let sizes = sizes(args.size, args.imix, &args.frames);
    let device = args.device.as_deref();
    let traffic = args.frames.traffic(args.replay.as_ref(), device, sizes)?;
    let plain = args.amount.plain;
    if plain && args.sink.is_some() {
        let what = "a sink knows frames by their numbers, which plain ones do not have";
        return Err(Error::usage(what, "Leave --plain out, or --sink"));
    }
    if plain && args.memory {
        return Err(only_by_xdp("Leave --plain out, or say -i"));
    }
    let (stop, run) = (stop_flag()?, any_run());
    let Some(device) = device else {
        let method = SendMethod::Memory { looks: args.sink.is_some() };
        return generate::run(&traffic, &load, run, &method, None, &stop);
    };
    let mut via = args.via;
    if args.replay.is_some() && via == Via::Auto {
        via = Via::AfPacket;
    }
    let via = match via {
        Via::Memory => return Err(Error::usage("memory has no device", "Say --memory without -i")),
        // A sink at the peer may enable it to take redirected frames, so the sink opens first.
        via => via,
    };
    let each = if load.rate.is_some() { 1 } else { load.burst as u64 };
    let sample = args.sample.unwrap_or(each);
    let open_sink = |at| sink(at, args.sink_via, traffic.wanted(run), sample);
    let sink = args.sink.as_deref().map(open_sink).transpose()?;
    let via = via.for_sender(device)?;
    if via == Via::AfXdp && load.threads > 1 {
        let what = "AF_XDP sends by one thread, whose sockets have all queues of the device";
        return Err(Error::usage(what, "Say -t 1, or --via af_packet"));
    }
    if plain && via != Via::Xdp {
        return Err(only_by_xdp("Leave --plain out, or say --via xdp"));
    }
    traffic.fits(device, check_device(device)?.mtu, via == Via::Xdp)?;
    let open = || via.open(device, false);
    let method =
        if via == Via::Xdp { SendMethod::Xdp { device, plain } } else { SendMethod::Port(&open) };
    generate::run(&traffic, &load, run, &method, sink, &stop)
}
