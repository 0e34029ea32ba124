//! Names of the protocols above IP.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A protocol above IP: a name that netfilter knows, or a number.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct Protocol(pub u8);

const NAMES: [(u8, &str); 8] = [
    (1, "icmp"),
    (6, "tcp"),
    (17, "udp"),
    (33, "dccp"),
    (47, "gre"),
    (58, "icmpv6"),
    (132, "sctp"),
    (136, "udplite"),
];

impl fmt::Display for Protocol {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match NAMES.iter().find(|(number, _)| *number == self.0) {
            Some((_, name)) => f.pad(name),
            None => f.pad(&self.0.to_string()),
        }
    }
}

impl FromStr for Protocol {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let named = NAMES.iter().find(|(_, name)| name.eq_ignore_ascii_case(text));
        let number = named.map(|(number, _)| *number).or_else(|| text.parse().ok());
        number.map(Self).ok_or_else(|| {
            let names = NAMES.map(|(_, name)| name).join(", ");
            format!("{text:?} is no protocol; write its number, or one of {names}")
        })
    }
}

impl From<Protocol> for String {
    fn from(protocol: Protocol) -> Self {
        protocol.to_string()
    }
}

impl TryFrom<String> for Protocol {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}
