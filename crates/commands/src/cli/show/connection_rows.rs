//! Connections as text: one line for each where they fit, and otherwise a line with further lines below.

use std::fmt::Write as _;
use std::net::{IpAddr, SocketAddr};

use super::super::text::{cut, si, thousands};
use crate::control::{Connection, ConnectionTuple};

/// Columns of the first line of each connection; in wide terminals of the only one.
const HEADER: [&str; 13] = [
    "protocol",
    "state",
    "source",
    "destination",
    "NAT",
    "packets",
    "bytes",
    "packets/s",
    "bit/s",
    "seconds",
    "mark",
    "zone",
    "path",
];
/// The columns of the first line in narrow terminals.
const NARROW: usize = 4;
/// The columns with numbers, which are aligned to the right.
const NUMBERS: std::ops::Range<usize> = 5..12;
/// The columns with rates, which exist only if the router has measured some.
const RATES: std::ops::Range<usize> = 7..9;
/// Space between columns.
const SPACE: usize = 2;
/// The least width for the reason at the end of a line.
const REASON: usize = 44;
/// Indentation of further lines: the width of the first column.
const INDENT: usize = HEADER[0].len() + SPACE;

type Cells = [String; HEADER.len()];

/// Formats connections. The first page sets the widths of the columns: later pages cannot change what is already
/// printed.
pub(super) struct Rows {
    /// The width of lines; unlimited without one.
    width: Option<usize>,
    columns: Option<Columns>,
}

struct Columns {
    widths: [usize; HEADER.len()],
    is_narrow: bool,
}

impl Rows {
    pub(super) fn new(width: Option<usize>) -> Self {
        Self { width, columns: None }
    }

    pub(super) fn text(&mut self, connections: &[Connection]) -> String {
        let mut out = String::new();
        let rows: Vec<_> = connections.iter().map(|one| (cells(one), one)).collect();
        if rows.is_empty() {
            return out;
        }
        let width = self.width;
        let is_first = self.columns.is_none();
        let columns = self.columns.get_or_insert_with(|| Columns::new(&rows, width));
        if is_first {
            measured(&mut out, connections, width);
            columns.header(&mut out);
        }
        for (cells, connection) in rows {
            if columns.is_narrow {
                columns.narrow(&mut out, &cells, connection, width);
            } else {
                let line = format!("{}{}", columns.line(&cells, HEADER.len()), connection.why);
                // Writing to a `String` cannot fail.
                let _ = writeln!(out, "{}", cut(&line, width));
            }
        }
        out
    }
}

impl Columns {
    fn new(rows: &[(Cells, &Connection)], width: Option<usize>) -> Self {
        let of = |column: usize| {
            let cells = rows.iter().map(|(row, _)| row[column].chars().count());
            cells.chain([HEADER[column].len()]).max().unwrap_or(0)
        };
        let has_rates = rows.iter().any(|(_, one)| one.rates.is_some());
        let mut widths = std::array::from_fn(|column| match RATES.contains(&column) {
            true if !has_rates => 0,
            _ => of(column),
        });
        let shown = widths.iter().filter(|width| **width > 0);
        let whole = shown.map(|width| width + SPACE).sum::<usize>() + REASON;
        let is_narrow = width.is_some_and(|width| width < whole);
        if let (true, Some(width)) = (is_narrow, width) {
            // Where source and destination do not fit side by side, the destination gets a line of its own.
            widths[2] = widths[2].min(width.saturating_sub(INDENT + widths[1] + SPACE) / 2);
        }
        Self { widths, is_narrow }
    }

    fn header(&self, out: &mut String) {
        let header = HEADER.map(str::to_owned);
        let line = match self.is_narrow {
            true => self.line(&header, NARROW),
            false => format!("{}why", self.line(&header, HEADER.len())),
        };
        let _ = writeln!(out, "{}", line.trim_end());
    }

    /// The first cells of a line, each with the space behind it.
    fn line(&self, cells: &Cells, count: usize) -> String {
        let columns = cells.iter().zip(self.widths).enumerate().take(count);
        let columns = columns.filter(|(_, (_, width))| *width > 0);
        let cells = columns.map(|(column, (cell, width))| match NUMBERS.contains(&column) {
            true => format!("{cell:>width$}  "),
            false => format!("{cell:width$}  "),
        });
        cells.collect()
    }

    /// A line with the tuple, and below it lines with the rest.
    fn narrow(&self, out: &mut String, cells: &Cells, one: &Connection, width: Option<usize>) {
        let limit = width.unwrap_or(usize::MAX);
        let line = self.line(cells, NARROW);
        if line.trim_end().chars().count() <= limit {
            let _ = writeln!(out, "{}", line.trim_end());
        } else {
            let indent = INDENT + self.widths[1] + SPACE;
            let _ = writeln!(out, "{}", self.line(cells, NARROW - 1).trim_end());
            let _ = writeln!(out, "{:indent$}{}", "", cells[3]);
        }
        wrap_at(out, INDENT, &details(cells, one), limit);
    }
}

/// Writes words into lines behind a space.
fn wrap_at(out: &mut String, indent: usize, text: &str, limit: usize) {
    let mut line = String::new();
    for word in text.split(' ') {
        if !line.is_empty() && indent + line.chars().count() + 1 + word.chars().count() > limit {
            let _ = writeln!(out, "{:indent$}{line}", "");
            line.clear();
        }
        let space = if line.is_empty() { "" } else { " " };
        let _ = write!(line, "{space}{word}");
    }
    let _ = writeln!(out, "{:indent$}{line}", "");
}

/// All but the first cells, in words.
fn details(cells: &Cells, one: &Connection) -> String {
    let [.., nat, packets, bytes, packet_rate, bit_rate, _, mark, zone, path] = cells;
    let mut parts = Vec::new();
    if !nat.is_empty() {
        parts.push(format!("NAT {nat}"));
    }
    if !packets.is_empty() {
        parts.push(format!("{packets} packets, {bytes} bytes"));
    }
    if one.rates.is_some() {
        parts.push(format!("{packet_rate} packets/s, {bit_rate} bit/s"));
    }
    parts.extend(one.timeout_s.map(|seconds| format!("{} s left", thousands(seconds.into()))));
    for (name, cell) in [("mark", mark), ("zone", zone)] {
        if !cell.is_empty() {
            parts.push(format!("{name} {cell}"));
        }
    }
    let colon = if one.why.is_empty() { "" } else { ": " };
    parts.push(format!("{path} path{colon}{}", one.why));
    parts.join(", ")
}

/// Says how rates were measured, if they were.
fn measured(out: &mut String, connections: &[Connection], width: Option<usize>) {
    let Some(rates) = connections.iter().find_map(|one| one.rates) else { return };
    let seconds = rates.interval_ms as f64 / 1e3;
    // Writing to a `String` cannot fail.
    let _ = writeln!(out, "Rates are those of the last {seconds:.1} s, both directions together.");
    let is_counted = connections.iter().all(|one| one.counts.is_some());
    if !is_counted {
        let words = "The kernel does not count packets of connections (net.netfilter.nf_conntrack_acct = 0): \
                     these are of the fast path alone.";
        wrap_at(out, 0, words, width.unwrap_or(usize::MAX));
    }
    out.push('\n');
}

/// The packets and bytes of the entries, both directions together, and a sign that there may be more: without counts of the
/// kernel, only those of the fast path are known.
fn of_entries(one: &Connection) -> Option<(String, String)> {
    let entries = [&one.original_entry, &one.reply_entry].into_iter().flatten();
    let (packets, bytes) = entries.fold((0, 0), |(packets, bytes): (u64, u64), entry| {
        (packets.saturating_add(entry.packets), bytes.saturating_add(entry.bytes))
    });
    (packets > 0).then(|| (format!("{}+", thousands(packets)), format!("{}+", thousands(bytes))))
}

fn cells(one: &Connection) -> Cells {
    let number = |number: u64| if number == 0 { String::new() } else { number.to_string() };
    let counts = one.counts.map(|counts| {
        let packets = counts.packets.saturating_add(counts.reply_packets);
        let bytes = counts.bytes.saturating_add(counts.reply_bytes);
        (thousands(packets), thousands(bytes))
    });
    let (packets, bytes) = counts.or_else(|| of_entries(one)).unwrap_or_default();
    let rates =
        one.rates.map(|rates| [rates.packets_per_s as f64, rates.bytes_per_s as f64 * 8.0].map(si));
    let [packet_rate, bit_rate] = rates.unwrap_or_default();
    let zone = match (one.zone, one.reply_zone) {
        (zone, reply) if zone == reply => number(zone.into()),
        (zone, reply) => format!("{zone}/{reply}"),
    };
    let destination = end(one.original.destination, one.original.destination_port);
    let query = one.original.icmp.map_or_else(String::new, |icmp| format!(" id {}", icmp.id));
    [
        one.protocol.to_string(),
        one.state.clone(),
        end(one.original.source, one.original.source_port),
        format!("{destination}{query}"),
        nat(&one.original, &one.reply),
        packets,
        bytes,
        packet_rate,
        bit_rate,
        one.timeout_s.map_or_else(String::new, |seconds| thousands(seconds.into())),
        if one.mark == 0 { String::new() } else { format!("{:#x}", one.mark) },
        zone,
        one.path.clone(),
    ]
}

/// The source and the destination that packets of the original direction get.
fn nat(original: &ConnectionTuple, reply: &ConnectionTuple) -> String {
    let changed = |word: &str, before: (IpAddr, Option<u16>), after: (IpAddr, Option<u16>)| {
        (before != after).then(|| format!("{word} {}", end(after.0, after.1)))
    };
    let source = changed(
        "from",
        (original.source, original.source_port),
        (reply.destination, reply.destination_port),
    );
    let destination = changed(
        "to",
        (original.destination, original.destination_port),
        (reply.source, reply.source_port),
    );
    source.into_iter().chain(destination).collect::<Vec<_>>().join(" ")
}

/// An address with its port, if it has one.
fn end(address: IpAddr, port: Option<u16>) -> String {
    port.map_or_else(|| address.to_string(), |port| SocketAddr::new(address, port).to_string())
}

#[cfg(test)]
mod tests;
