//! The live bench's report as text.

use super::rows::{self, Row};
use super::workers;
use crate::report::Report;
use crate::text::heading;

/// The rows, then the single figures in sentences.
#[must_use]
pub fn render(report: &Report<Row>) -> String {
    let mut text = heading(report);
    let figure = |name: &str| report.figures.get(name).copied();
    if report.rows.is_empty() {
        if let (Some(median), Some(min), Some(max)) =
            (figure("kernel_mpps"), figure("kernel_mpps_min"), figure("kernel_mpps_max"))
        {
            text += &format!("the kernel forwards {median:.3} Mpps ({min:.3} to {max:.3})\n");
        }
    } else {
        text += &rows::render(&report.rows);
        text += "\n";
    }
    for (name, what) in [
        ("kill_af_xdp", "kill -9, on the user path"),
        ("kill_xdp", "kill -9, on the XDP path"),
        ("stop_af_xdp", "SIGSTOP, on the user path"),
        ("stop_xdp", "SIGSTOP, on the XDP path"),
    ] {
        let figures = ["lost_ms", "lost_ms_median", "lost_pings", "repeats"];
        let [Some(most), Some(median), Some(pings), Some(repeats)] =
            figures.map(|suffix| figure(&format!("{name}_{suffix}")))
        else {
            continue;
        };
        text += &format!(
            "{what}, under 200 kpps, {repeats} times: at most {most:.1} ms of traffic (median {median:.1}) \
             and {pings} pings lost, one ping every 2 ms\n"
        );
    }
    if let (Some(lost), Some(pings)) = (figure("upgrade_lost_pings"), figure("upgrade_pings")) {
        text += &format!("tollway run --replace: {lost} of {pings} pings lost, one every 2 ms\n");
    }
    text + &flush(report)
        + &arrival(report)
        + &syn_flood(report)
        + &fdb_move(report)
        + &latency(report)
        + &workers::render(&report.figures)
}

fn flush(report: &Report<Row>) -> String {
    let figures = ["connections", "repeats", "late_ms", "late_ms_median", "kernel_late_ms"];
    let figure = |name| report.figures.get(&format!("ct_flush_{name}")).copied();
    let [Some(connections), Some(repeats), Some(most), Some(median), Some(kernel)] =
        figures.map(figure)
    else {
        return String::new();
    };
    format!(
        "conntrack -F of {connections} connections under 200 kpps, {repeats} times: the last packet leaves at \
         most {most:.1} ms later (median {median:.1}; kernel {kernel:.1})\n"
    )
}

fn arrival(report: &Report<Row>) -> String {
    let figures = ["connections", "ms_p99", "ms_median", "ms_max", "interval_ms"];
    let figure = |name| report.figures.get(&format!("ct_offload_{name}")).copied();
    let [Some(connections), Some(p99), Some(median), Some(most), Some(interval)] =
        figures.map(figure)
    else {
        return String::new();
    };
    format!(
        "the first packets of {connections} connections of TCP, one every {interval:.2} ms: the kernel's for \
         {median:.1} ms in the median, p99 {p99:.1}, at most {most:.1}\n"
    )
}

fn syn_flood(report: &Report<Row>) -> String {
    let figures =
        ["connections", "repeats", "percent", "kernel_percent", "flood_kpps", "kernel_flood_kpps"];
    let figure = |name| report.figures.get(&format!("ct_syn_flood_{name}")).copied();
    let [
        Some(connections),
        Some(repeats),
        Some(percent),
        Some(kernel),
        Some(flood),
        Some(by_kernel),
    ] = figures.map(figure)
    else {
        return String::new();
    };
    format!(
        "{connections} connections beside a flood of SYNs, {repeats} times: {percent:.1}% of their goodput is \
         left (kernel {kernel:.1}%), {flood:.0} kpps of SYNs arrive (kernel {by_kernel:.0})\n"
    )
}

fn fdb_move(report: &Report<Row>) -> String {
    let figure = |name| report.figures.get(&format!("fdb_move_{name}")).copied();
    let [Some(repeats), Some(late), Some(kernel)] =
        ["repeats", "late_frames", "kernel_late_frames"].map(figure)
    else {
        return String::new();
    };
    format!(
        "a host that moves to another port of a bridge under 200 kpps to it, {repeats} times: at most {late} \
         frames leave by the old port after 5 ms (kernel {kernel})\n"
    )
}

fn latency(report: &Report<Row>) -> String {
    let mut text = String::new();
    for (kind, what) in [("ping", "every 2 ms"), ("lone_ping", "every 50 ms")] {
        for (path, by) in [("af_xdp", "on the user path"), ("xdp", "on the XDP path")] {
            let figure = |name: &str| report.figures.get(&format!("{kind}_{path}_{name}")).copied();
            let names = ["kernel_p50_us", "kernel_p99_us", "tollway_p50_us", "tollway_p99_us"];
            let [Some(kernel50), Some(kernel99), Some(ours50), Some(ours99)] = names.map(figure)
            else {
                continue;
            };
            text += &format!(
                "ping {what}, p50 and p99: kernel {kernel50:.1} and {kernel99:.1} us, Tollway, {by}, \
                 {ours50:.1} and {ours99:.1} us\n"
            );
        }
    }
    text
}
