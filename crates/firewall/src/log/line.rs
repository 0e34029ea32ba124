//! A log line in the format of `nf_log_syslog` without any flags.

use std::fmt::Write as _;

use tollway_dataplane::stages::filter::Logged;
use tollway_dataplane::wire::l4;

/// The line for a packet.
pub(super) fn line(logged: &Logged, prefix: &str, input: &str, output: &str) -> String {
    let mut dump = Dump {
        line: format!("{prefix}IN={input} OUT={output} "),
        packet: logged.bytes().get(usize::from(logged.l3)..).unwrap_or_default(),
        len: (logged.len as usize).saturating_sub(logged.l3.into()),
        mark: logged.mark,
    };
    let frame = logged.bytes();
    let ethertype = frame.get(usize::from(logged.l3).saturating_sub(2)..usize::from(logged.l3));
    if ethertype == Some(&[8, 6]) {
        let _ = dump.arp();
        return dump.line;
    }
    let mac = frame.iter().take(12).chain(ethertype.unwrap_or_default());
    let mac: Vec<_> = mac.map(|byte| format!("{byte:02x}")).collect();
    dump.add(format_args!("MAC={} ", mac.join(":")));
    let _ = match ethertype {
        Some([0x86, 0xdd]) => dump.ip6(0),
        _ => dump.ip4(0),
    };
    dump.line.truncate(dump.line.trim_end().len());
    dump.line
}

/// A line under construction. A function that returns `None` ends the line.
struct Dump<'a> {
    line: String,
    /// Layer 3, as far as it was captured.
    packet: &'a [u8],
    /// Original length of layer 3 in bytes.
    len: usize,
    mark: u32,
}

impl<'a> Dump<'a> {
    fn add(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a String cannot fail.
        let _ = self.line.write_fmt(text);
    }

    fn part<const N: usize>(&self, at: usize) -> Option<&'a [u8; N]> {
        self.packet.get(at..)?.first_chunk()
    }

    fn truncated(&mut self) -> Option<()> {
        self.add(format_args!("TRUNCATED"));
        None
    }

    fn incomplete(&mut self, at: usize) {
        let left = self.len.saturating_sub(at);
        self.add(format_args!("INCOMPLETE [{left} bytes] "));
    }

    fn arp(&mut self) -> Option<()> {
        let Some(arp) = self.part::<8>(0) else { return self.truncated() };
        let (kind, protocol, op) = (be16(arp, 0), be16(arp, 2), be16(arp, 6));
        self.add(format_args!("ARP HTYPE={kind} PTYPE=0x{protocol:04x} OPCODE={op}"));
        if (kind, arp[4], arp[5]) != (1, 6, 4) {
            return Some(());
        }
        let Some(body) = self.part::<20>(8) else {
            let left = self.len.saturating_sub(8);
            self.add(format_args!(" INCOMPLETE [{left} bytes]"));
            return None;
        };
        for (at, name) in [(0, "SRC"), (10, "DST")] {
            let mac: Vec<_> = body[at..at + 6].iter().map(|byte| format!("{byte:02x}")).collect();
            let ip = dotted(&body[at + 6..at + 10]);
            self.add(format_args!(" MAC{name}={} IP{name}={ip}", mac.join(":")));
        }
        Some(())
    }

    /// Writes an IPv4 packet; a quoted packet does not quote again.
    fn ip4(&mut self, at: usize) -> Option<()> {
        let Some(ip) = self.part::<20>(at) else { return self.truncated() };
        let (src, dst) = (dotted(&ip[12..16]), dotted(&ip[16..20]));
        self.add(format_args!("SRC={src} DST={dst} "));
        self.add(format_args!(
            "LEN={} TOS=0x{:02X} PREC=0x{:02X} TTL={} ID={} ",
            be16(ip, 2),
            ip[1] & 0x1e,
            ip[1] & 0xe0,
            ip[8],
            be16(ip, 4)
        ));
        let field = be16(ip, 6);
        for (bit, name) in [(0x8000, "CE "), (0x4000, "DF "), (0x2000, "MF ")] {
            if field & bit != 0 {
                self.add(format_args!("{name}"));
            }
        }
        let is_later = field & 0x1fff != 0;
        if is_later {
            self.add(format_args!("FRAG:{} ", field & 0x1fff));
        }
        let behind = at + usize::from(ip[0] & 15) * 4;
        match ip[9] {
            l4::TCP => self.tcp(behind, is_later)?,
            protocol @ (l4::UDP | l4::UDP_LITE) => self.udp(protocol, behind, is_later)?,
            l4::ICMP => self.icmp(behind, is_later, at == 0),
            protocol @ (l4::AUTH | l4::ESP) if !is_later => self.ipsec(protocol, behind),
            l4::AUTH | l4::ESP => {}
            protocol => self.add(format_args!("PROTO={protocol} ")),
        }
        self.mark(at == 0);
        Some(())
    }

    fn ip6(&mut self, at: usize) -> Option<()> {
        let Some(ip) = self.part::<40>(at) else { return self.truncated() };
        let (src, dst) = (colons(&ip[8..24]), colons(&ip[24..40]));
        let first = u32::from_be_bytes([ip[0], ip[1], ip[2], ip[3]]);
        self.add(format_args!("SRC={src} DST={dst} "));
        self.add(format_args!(
            "LEN={} TC={} HOPLIMIT={} FLOWLBL={} ",
            usize::from(be16(ip, 4)) + 40,
            first >> 20 & 0xff,
            ip[7],
            first & 0xf_ffff
        ));
        let (next, behind, is_later) = self.extensions(ip[6], at + 40)?;
        match next {
            l4::TCP => self.tcp(behind, is_later)?,
            l4::UDP | l4::UDP_LITE => self.udp(next, behind, is_later)?,
            l4::ICMPV6 => self.icmp6(behind, is_later, at == 0)?,
            _ => self.add(format_args!("PROTO={next} ")),
        }
        self.mark(at == 0);
        Some(())
    }

    /// The protocol behind the extension headers, its position, and whether it is in a later fragment.
    fn extensions(&mut self, mut next: u8, mut at: usize) -> Option<(u8, usize, bool)> {
        let mut is_later = false;
        while matches!(
            next,
            l4::HOP_BY_HOP | l4::ROUTING | l4::FRAGMENT | l4::ESP | l4::AUTH | l4::DEST_OPTIONS
        ) {
            let Some(&[following, len]) = self.part::<2>(at) else {
                self.truncated()?;
                return None;
            };
            match next {
                l4::FRAGMENT => {
                    self.add(format_args!("FRAG:"));
                    let Some(header) = self.part::<8>(at) else {
                        self.truncated()?;
                        return None;
                    };
                    let field = be16(header, 2);
                    self.add(format_args!("{} ", field & 0xfff8));
                    if field & 1 != 0 {
                        self.add(format_args!("INCOMPLETE "));
                    }
                    let id = u32::from_be_bytes([header[4], header[5], header[6], header[7]]);
                    self.add(format_args!("ID:{id:08x} "));
                    is_later |= field & 0xfff8 != 0;
                    at += 8;
                }
                l4::ESP => return None,
                l4::AUTH => at += (usize::from(len) + 2) * 4,
                _ if is_later => return None,
                _ => at += (usize::from(len) + 1) * 8,
            }
            next = following;
        }
        Some((next, at, is_later))
    }

    fn tcp(&mut self, at: usize, is_later: bool) -> Option<()> {
        self.add(format_args!("PROTO=TCP "));
        if is_later {
            return Some(());
        }
        let Some(tcp) = self.part::<20>(at) else {
            self.incomplete(at);
            return None;
        };
        self.add(format_args!("SPT={} DPT={} ", be16(tcp, 0), be16(tcp, 2)));
        self.add(format_args!("WINDOW={} RES=0x{:02x} ", be16(tcp, 14), (tcp[12] & 0x0e) << 2));
        if tcp[12] & 1 != 0 {
            self.add(format_args!("AE "));
        }
        let names = ["CWR", "ECE", "URG", "ACK", "PSH", "RST", "SYN", "FIN"];
        for (bit, name) in (0..8).rev().zip(names) {
            if tcp[13] >> bit & 1 != 0 {
                self.add(format_args!("{name} "));
            }
        }
        self.add(format_args!("URGP={} ", be16(tcp, 18)));
        Some(())
    }

    fn udp(&mut self, protocol: u8, at: usize, is_later: bool) -> Option<()> {
        let name = if protocol == l4::UDP { "UDP" } else { "UDPLITE" };
        self.add(format_args!("PROTO={name} "));
        if is_later {
            return Some(());
        }
        let Some(udp) = self.part::<8>(at) else {
            self.incomplete(at);
            return None;
        };
        let (src, dst, len) = (be16(udp, 0), be16(udp, 2), be16(udp, 4));
        self.add(format_args!("SPT={src} DPT={dst} LEN={len} "));
        Some(())
    }

    fn icmp(&mut self, at: usize, is_later: bool, quotes: bool) {
        self.add(format_args!("PROTO=ICMP "));
        if is_later {
            return;
        }
        let Some(icmp) = self.part::<8>(at) else { return self.incomplete(at) };
        let (kind, code) = (icmp[0], icmp[1]);
        self.add(format_args!("TYPE={kind} CODE={code} "));
        let least = match kind {
            0 | 8 => 4,
            3 | 4 | 5 | 11 | 12 => 28,
            13 | 14 => 20,
            17 | 18 => 12,
            _ => 0,
        };
        if self.len.saturating_sub(at) < least {
            return self.incomplete(at);
        }
        match kind {
            0 | 8 => {
                self.add(format_args!("ID={} SEQ={} ", be16(icmp, 4), be16(icmp, 6)));
            }
            12 => self.add(format_args!("PARAMETER={} ", icmp[4])),
            3 | 4 | 5 | 11 => {
                if kind == 5 {
                    let gateway = dotted(&icmp[4..8]);
                    self.add(format_args!("GATEWAY={gateway} "));
                }
                if quotes {
                    self.add(format_args!("["));
                    let _ = self.ip4(at + 8);
                    self.add(format_args!("] "));
                }
                if (kind, code) == (3, 4) {
                    self.add(format_args!("MTU={} ", be16(icmp, 6)));
                }
            }
            _ => {}
        }
    }

    fn icmp6(&mut self, at: usize, is_later: bool, quotes: bool) -> Option<()> {
        self.add(format_args!("PROTO=ICMPv6 "));
        if is_later {
            return Some(());
        }
        let Some(icmp) = self.part::<8>(at) else {
            self.incomplete(at);
            return None;
        };
        let (kind, code) = (icmp[0], icmp[1]);
        self.add(format_args!("TYPE={kind} CODE={code} "));
        let rest = u32::from_be_bytes([icmp[4], icmp[5], icmp[6], icmp[7]]);
        match kind {
            128 | 129 => {
                self.add(format_args!("ID={} SEQ={} ", be16(icmp, 4), be16(icmp, 6)));
            }
            1..=4 => {
                if kind == 4 {
                    self.add(format_args!("POINTER={rest:08x} "));
                }
                if quotes {
                    self.add(format_args!("["));
                    let _ = self.ip6(at + 8);
                    self.add(format_args!("] "));
                }
                if kind == 2 {
                    self.add(format_args!("MTU={rest} "));
                }
            }
            _ => {}
        }
        Some(())
    }

    fn ipsec(&mut self, protocol: u8, at: usize) {
        let (name, spi) = if protocol == l4::AUTH { ("AH", 4) } else { ("ESP", 0) };
        self.add(format_args!("PROTO={name} "));
        match self.part::<4>(at + spi) {
            Some(spi) => self.add(format_args!("SPI=0x{:x} ", u32::from_be_bytes(*spi))),
            None => self.incomplete(at),
        }
    }

    fn mark(&mut self, is_outer: bool) {
        if is_outer && self.mark != 0 {
            let mark = self.mark;
            self.add(format_args!("MARK=0x{mark:x} "));
        }
    }
}

const fn be16(bytes: &[u8], at: usize) -> u16 {
    u16::from_be_bytes([bytes[at], bytes[at + 1]])
}

fn dotted(bytes: &[u8]) -> String {
    bytes.iter().map(u8::to_string).collect::<Vec<_>>().join(".")
}

/// All digits, as in the kernel's `%pI6`.
fn colons(bytes: &[u8]) -> String {
    let words = bytes.chunks(2).map(|pair| format!("{:02x}{:02x}", pair[0], pair[1]));
    words.collect::<Vec<_>>().join(":")
}
