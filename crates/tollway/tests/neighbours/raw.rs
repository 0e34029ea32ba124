//! Rules as raw expressions, for those that nft does not know: `nfnetlink` messages by hand.

use netlink_sys::protocols::NETLINK_NETFILTER;
use netlink_sys::{Socket, SocketAddr};

/// `NFNL_MSG_BATCH_BEGIN`, `NFNL_MSG_BATCH_END`, and `NFT_MSG_NEWRULE` of nf_tables.
const BEGIN: u16 = 0x10;
const END: u16 = 0x11;
const NEWRULE: u16 = 10 << 8 | 6;

fn attribute(kind: u16, value: &[u8]) -> Vec<u8> {
    let mut bytes = ((4 + value.len()) as u16).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(value);
    bytes.resize(bytes.len().next_multiple_of(4), 0);
    bytes
}

fn number(kind: u16, value: u32) -> Vec<u8> {
    attribute(kind, &value.to_be_bytes())
}

fn nested(kind: u16, value: &[u8]) -> Vec<u8> {
    attribute(kind | 0x8000, value)
}

fn named(name: &str, data: &[u8]) -> Vec<u8> {
    [attribute(1, format!("{name}\0").as_bytes()), nested(2, data)].concat()
}

/// An expression of a rule.
pub fn expression(name: &str, data: &[u8]) -> Vec<u8> {
    nested(1, &named(name, data))
}

/// Matches a transport protocol.
pub fn protocol(protocol: u8) -> Vec<u8> {
    let load = [number(1, 1), number(2, 16)].concat();
    [expression("meta", &load), is(&[protocol])].concat()
}

/// Compares register 1 with these bytes.
pub fn is(bytes: &[u8]) -> Vec<u8> {
    let data = [number(1, 1), number(2, 0), nested(3, &attribute(1, bytes))].concat();
    expression("cmp", &data)
}

/// Attributes that load bytes of a header into register 1.
fn load(base: u32, offset: u32, len: u32) -> Vec<u8> {
    [number(1, 1), number(2, base), number(3, offset), number(4, len)].concat()
}

/// Matches bytes of a header.
pub fn payload(base: u32, offset: u32, bytes: &[u8]) -> Vec<u8> {
    [expression("payload", &load(base, offset, bytes.len() as u32)), is(bytes)].concat()
}

/// Matches the source address within VXLAN (`nft_inner`), which no nft before 1.0.7 can read.
pub fn within_vxlan(source: [u8; 4]) -> Vec<u8> {
    let inner = named("payload", &load(1, 12, 4));
    let data = [number(1, 0), number(2, 2), number(3, 0xf), number(4, 8), nested(5, &inner)];
    [expression("inner", &data.concat()), is(&source)].concat()
}

/// Drops the packet.
pub fn drop() -> Vec<u8> {
    let verdict = nested(2, &nested(2, &number(1, 0)));
    expression("immediate", &[number(1, 0), verdict].concat())
}

/// Adds a rule to a chain of a table of a family (`NFPROTO_*`).
pub fn add_rule(family: u8, table: &str, chain: &str, expressions: &[Vec<u8>]) {
    let body = [
        attribute(1, format!("{table}\0").as_bytes()),
        attribute(2, format!("{chain}\0").as_bytes()),
        nested(4, &expressions.concat()),
    ];
    // 0xc05: a request that creates a rule at the end of the chain, with an acknowledgement.
    let batch = [
        message(BEGIN, 1, 1, [0, 0, 0, 10], &[]),
        message(NEWRULE, 0xc05, 2, [family, 0, 0, 0], &body.concat()),
        message(END, 1, 3, [0, 0, 0, 10], &[]),
    ];
    let mut socket = Socket::new(NETLINK_NETFILTER).unwrap();
    socket.bind_auto().unwrap();
    socket.send_to(&batch.concat(), &SocketAddr::new(0, 0), 0).unwrap();
    let (answer, _) = socket.recv_from_full().unwrap();
    let error = i32::from_ne_bytes(answer[16..20].try_into().unwrap());
    assert_eq!(error, 0, "the kernel does not take the rule");
}

fn message(kind: u16, flags: u16, sequence: u32, general: [u8; 4], body: &[u8]) -> Vec<u8> {
    let mut bytes = ((20 + body.len()) as u32).to_ne_bytes().to_vec();
    bytes.extend(kind.to_ne_bytes());
    bytes.extend(flags.to_ne_bytes());
    bytes.extend(sequence.to_ne_bytes());
    bytes.extend([0; 4]);
    bytes.extend(general);
    bytes.extend(body);
    bytes
}
