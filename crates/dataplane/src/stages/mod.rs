//! The stages of the path, one folder each, in the order in which [`crate::path`] calls them.
//!
//! A stage receives the packet lanes that are still on the path and returns those that continue. The
//! others exit with a verdict. The common case is one straight loop. The loop only marks unusual
//! packets; a cold function then examines them one by one and finds the exact reason.

pub mod admit;
pub mod bridge;
pub mod classify;
pub mod ecmp;
pub mod filter;
pub mod icmp_redirect;
pub mod rewrite;
pub mod route;
pub mod rule;
pub mod source_check;
pub mod transmit;
pub mod validate;

/// Declares [`Stage`] from one row for each stage: its variant, its name, the file and the function that
/// [`crate::path`] calls, and what it does. Timers, counts, tables of commands and the lab's columns
/// follow from the rows.
macro_rules! stages {
    ($($stage:ident $name:literal $file:literal $function:literal $what:literal;)+) => {
        /// The stages in the path's order, each with a toll and a count of its own.
        ///
        /// | stage | file, function | what it does |
        /// |---|---|---|
        $(#[doc = concat!("| ", $name, " | `", $file, "`, `", $function, "` | ", $what, " |")])+
        ///
        /// A stage with * runs only if something is configured for it.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
        #[repr(u8)]
        pub enum Stage {
            $(#[doc = $what] $stage,)+
        }

        impl Stage {
            /// Every stage in order.
            pub const ALL: &[Self] = &[$(Self::$stage),+];

            /// The number of stages.
            pub const COUNT: usize = Self::ALL.len();

            /// The stage's name in tables.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$stage => $name,)+
                }
            }
        }

        /// The file and the function of every row.
        #[cfg(test)]
        const FUNCTIONS: &[(&str, &str)] = &[$(($file, $function)),+];
    };
}

stages! {
    Bridge "bridge" "bridge/stage.rs" "run"
        "* Addresses to ports of a bridge that learns by itself; floods and learns (`bridge/slow.rs`).";
    Admit "admit" "admit/stage.rs" "run"
        "For our MAC? IPv4, IPv6, tagged?";
    Classify "classify" "classify/stage.rs" "run"
        "Tags to the link, the link to its FIB.";
    Ingress "ingress" "filter/ingress.rs" "ingress"
        "* Firewall rules of hook ingress.";
    Validate "validate" "validate/ipv4.rs" "ipv4"
        "IP header checks (IPv6: `validate/ipv6.rs`); notes the lookup key.";
    Prerouting "prerouting" "filter/stage.rs" "prerouting"
        "* Firewall rules of hook prerouting.";
    Route "route" "route/stage.rs" "run"
        "Longest prefix to next hop; VRFs that fall back * (`route/fallback.rs`).";
    Rule "rule" "rule/stage.rs" "run"
        "* Policy rules in place of the link's FIB.";
    Ecmp "ecmp" "ecmp/stage.rs" "run"
        "* Next-hop group to member, by flow.";
    IcmpRedirect "icmp_redirect" "icmp_redirect/stage.rs" "run"
        "* What would go back where it came from takes the kernel path.";
    SourceCheck "source_check" "source_check/stage.rs" "run"
        "* Own addresses, reverse path.";
    Forward "forward" "filter/stage.rs" "forward"
        "* Firewall rules of hooks forward, postrouting and egress.";
    Rewrite "rewrite" "rewrite/stage.rs" "ipv4"
        "MTU, TTL, checksum, ready Ethernet header (IPv6: function `ipv6`).";
    Transmit "transmit" "transmit/stage.rs" "run"
        "Queues at the egress ports.";
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn each_row_names_a_function_that_the_path_calls() {
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
        let path = std::fs::read_to_string(source.join("path.rs")).unwrap();
        for (file, function) in FUNCTIONS {
            let stage = std::fs::read_to_string(source.join("stages").join(file)).unwrap();
            let has = |end: char| stage.contains(&format!(" fn {function}{end}"));
            assert!(has('(') || has('<'), "{file} has no {function}");
            let (folder, _) = file.split_once('/').unwrap();
            assert!(
                path.contains(&format!("{folder}::{function}")),
                "{folder}::{function} is not called"
            );
        }
    }

    #[test]
    fn the_path_charges_every_stage_once_and_in_the_order_of_the_rows() {
        let path =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/src/path.rs")).unwrap();
        let charged = path.split("timer.record(Stage::").skip(1);
        let charged: Vec<&str> = charged.filter_map(|rest| rest.split(',').next()).collect();
        let rows: Vec<String> = Stage::ALL.iter().map(|stage| format!("{stage:?}")).collect();
        assert_eq!(charged, rows);
    }
}
