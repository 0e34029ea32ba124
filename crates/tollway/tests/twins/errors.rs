//! Errors of ICMP about packets of conversations.

use std::net::IpAddr;

use crate::crafted::{Agreement, Bench, Fault, Line, Note, Sum};
use crate::packets::{ICMP_HEADER, Packet};
use crate::scene::{Version, phantom};
use crate::script::Protocol;
use crate::testkit::dice::Dice;

/// What the device that reports `TooBig` takes.
const MTU: u32 = 1300;

/// What has happened to a packet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    NoPort,
    NoHost,
    TooBig,
    OutOfHops,
    /// A source quench, or a header with a problem: a number that both families have.
    Other,
}

impl Trouble {
    const ALL: [Self; 5] = [Self::NoPort, Self::NoHost, Self::TooBig, Self::OutOfHops, Self::Other];

    /// Type and code.
    const fn numbers(self, version: Version) -> [u8; 2] {
        match (self, version) {
            (Self::NoPort, Version::V4) => [3, 3],
            (Self::NoHost, Version::V4) => [3, 1],
            (Self::TooBig, Version::V4) => [3, 4],
            (Self::OutOfHops, Version::V4) => [11, 0],
            (Self::NoPort, Version::V6) => [1, 4],
            (Self::NoHost, Version::V6) => [1, 3],
            (Self::TooBig, Version::V6) => [2, 0],
            (Self::OutOfHops, Version::V6) => [3, 0],
            (Self::Other, _) => [4, 0],
        }
    }

    /// The header of the message, whose checksum is still missing.
    fn header(self, version: Version) -> [u8; ICMP_HEADER] {
        let [kind, code] = self.numbers(version);
        let [a, b, c, d] = if self == Self::TooBig { MTU.to_be_bytes() } else { [0; 4] };
        [kind, code, 0, 0, a, b, c, d]
    }
}

/// Whom an error comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Sender {
    Addressee,
    RouterBehind,
}

/// What an error is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    Sent,
    /// A packet of another port, which nobody has sent.
    Nothing,
}

/// Sends an error about the last packet, from the side where that has arrived. Says whether it arrives, too.
pub fn about_last(bench: &mut Bench, line: &mut Line, dice: &mut Dice) -> Result<bool, Fault> {
    let Some((way, packets)) = line.last.clone() else { return Ok(false) };
    let back = 1 - way;
    let trouble = dice.pick(&Trouble::ALL);
    let about = if dice.one_in(4) { About::Nothing } else { About::Sent };
    let sender = if dice.one_in(3) { Sender::RouterBehind } else { Sender::Addressee };
    let quoted = dice.pick(&[8, 40]);
    let errors = packets.map(|inner| error(inner, (trouble, about), (sender, back), quoted));
    let what = format!("{trouble:?} about {about:?}, from {sender:?}, {quoted} bytes");
    let note = Note { what, agreement: Agreement::Exact, sum: Sum::Right };
    let arrives = line.packet(bench, back, errors, &note)?;
    bench.count.errors += usize::from(arrives);
    Ok(arrives)
}

/// An error of a sender at a side about a packet, of which it quotes so many bytes behind the header.
fn error(
    mut inner: Packet,
    (trouble, about): (Trouble, About),
    (sender, side): (Sender, usize),
    quoted: usize,
) -> Packet {
    let (version, (protocol, at)) = (inner.version(), inner.upper());
    let [from, to] = inner.hosts();
    if about == About::Nothing {
        let port = if protocol == Protocol::Icmp { at + 4 } else { at };
        inner.0[port] ^= 0x55;
    }
    inner.0.truncate(at + quoted);
    let message = [&trouble.header(version)[..], &inner.0].concat();
    let sender = match sender {
        Sender::Addressee => to,
        Sender::RouterBehind => router_behind(side, version),
    };
    Packet::new([sender, from], Protocol::Icmp, &message)
}

/// Another router, on the way to a side.
fn router_behind(side: usize, version: Version) -> IpAddr {
    let [a, b, c, _] = phantom(side).octets();
    version.address([a, b, c, 77].into())
}
