//! Rules of a file, which nft has loaded in a private namespace: its listing there, verified against what the
//! kernel has there.

use std::io;

use serde_json::Value;

use super::kernel::{Kernel, Scope, verify};
use super::read::{ListingError, knows_numbers, parse};
use super::socket::NetfilterSocket;
use tollway_firewall::ir::Ruleset;
use tollway_firewall::mistake::Fault;
use tollway_firewall::nft;
use tollway_firewall::nft::json::{only, several};
use tollway_linux::netlink::Socket;
use tollway_linux::sys::why;

/// Size of the receive buffer for the kernel's answers, in bytes.
pub(crate) use super::socket::ROOM;

/// Why rules that nft has loaded cannot be read back.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LoadedError {
    /// There is no socket in the namespace.
    #[error("cannot be queried: {}", why(.0))]
    NoSocket(io::Error),
    /// The kernel does not answer on the socket.
    #[error("the kernel does not list what it loaded: {}", why(.0))]
    NoAnswer(io::Error),
    /// nft's listing gives no rules.
    #[error(transparent)]
    Listing(#[from] ListingError),
}

/// Rules as loaded.
#[derive(Debug)]
pub(crate) struct Loaded {
    value: Value,
    kernel: Kernel,
}

impl Loaded {
    /// Corrects nft's listing by what the kernel of the socket's namespace has. Nothing may change there
    /// meanwhile.
    ///
    /// # Errors
    /// See [`LoadedError`].
    pub(crate) fn new(listing: &str, socket: Socket) -> Result<Self, LoadedError> {
        let mut value = parse(listing)?;
        let mut socket = NetfilterSocket::of(socket);
        let kernel = socket.tables().and_then(|tables| Kernel::read(&tables, &mut socket));
        let kernel = kernel.map_err(LoadedError::NoAnswer)?;
        kernel.complete(&mut value);
        numbers_of_devices(&mut value);
        Ok(Self { value, kernel })
    }

    /// nft's listing, corrected.
    #[cfg(test)]
    pub(crate) fn listing(&self) -> String {
        self.value.to_string()
    }

    /// The rules for flows of known connections.
    #[cfg(test)]
    pub(super) fn connections(&self) -> Ruleset {
        let forms = nft::read_forms(&self.value, "x").unwrap();
        let mut rules = forms.connections.unwrap();
        verify(&mut rules, &self.kernel, Scope::Connections);
        rules
    }

    /// The same rules with a changed listing.
    #[cfg(test)]
    pub(super) fn with(mut self, change: impl FnOnce(&mut Value)) -> Self {
        change(&mut self.value);
        self.kernel.complete(&mut self.value);
        self
    }

    /// The rules. Where nft's listing differs from the kernel's rules and the meaning is not clear, they are
    /// [`tollway_firewall::ir::Step::Unsupported`]. `file` is their file.
    ///
    /// # Errors
    /// Every mistake found.
    pub(crate) fn rules(&self, file: &str) -> Result<Ruleset, Vec<Fault>> {
        let mut rules = nft::read_value(&self.value, file)?;
        verify(&mut rules, &self.kernel, Scope::Connections);
        Ok(rules)
    }
}

/// nft lists `iif 5` as `iif "5"` if no device has that number, as if it were a name. Which device it is
/// where the rules will run is unknown.
fn numbers_of_devices(value: &mut Value) {
    let objects = value.get_mut("nftables").and_then(Value::as_array_mut);
    for object in objects.into_iter().flatten() {
        let types = only(object).and_then(|(_, inner)| inner.get("type"));
        let types = types.map(several).unwrap_or_default();
        let is_of_devices = types.iter().any(|kind| kind.as_str() == Some("iface_index"));
        if is_of_devices {
            for kind in ["set", "map"] {
                let set = object.get_mut(kind);
                set.and_then(|set| set.get_mut("elem")).into_iter().for_each(numbers);
            }
        }
        let steps = object.pointer_mut("/rule/expr").and_then(Value::as_array_mut);
        steps.into_iter().flatten().filter(|step| knows_numbers(step)).for_each(numbers);
    }
}

/// Replaces strings that are numbers by numbers.
fn numbers(value: &mut Value) {
    match value {
        Value::String(word) => {
            if let Ok(number) = word.parse::<u32>() {
                *value = number.into();
            }
        }
        Value::Array(values) => values.iter_mut().for_each(numbers),
        Value::Object(members) => members.values_mut().for_each(numbers),
        _ => {}
    }
}
