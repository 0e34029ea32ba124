//! What is unsupported, in words.

use serde_json::Value;

use super::json::text;

/// Why an expression or statement is unsupported.
pub(super) fn refusal(name: &str, inner: &Value) -> String {
    let key = text(inner, "key");
    match name {
        "ct" => format!("ct {key} looks at connection tracking"),
        "ct helper" | "ct timeout" | "ct expectation" | "ct count" | "notrack" => {
            format!("{name} is connection tracking's")
        }
        "flow add" => "flow add brings connections into a flowtable of the kernel".to_owned(),
        "fib" => "fib looks at the routes again".to_owned(),
        "socket" | "tproxy" => format!("{name} looks at the sockets of this machine"),
        "snat" | "dnat" | "masquerade" | "redirect" => format!("{name} needs address translation"),
        "set" | "meter" => "a set that packets fill takes the kernel path".to_owned(),
        // Why the module was not turned into conditions, if that is known.
        "xt" if inner.get("why").is_some() => text(inner, "why").to_owned(),
        "xt" => format!("xt {} is a module of iptables", text(inner, "name")),
        "map" => "a map is not known in this place".to_owned(),
        "unlisted" => "the kernel has it, and nft does not list it".to_owned(),
        _ => format!("{name} {key} is not known here").replace("  ", " "),
    }
}
