//! Where programs of the system are looked for, as `nft`.

use std::env;
use std::ffi::{OsStr, OsString};

/// Where nft usually is, which not every user's path has.
const USUAL: &str = "/usr/sbin:/sbin";

/// The caller's `PATH` and where nft usually is.
///
/// Entries that hang on the working directory are left out (`.`, `bin` and the empty one, execvp(3)): root may stand
/// in a directory of somebody else, who would otherwise have a program of any name run as root.
pub(crate) fn search_path() -> OsString {
    absolute(&env::var_os("PATH").unwrap_or_default())
}

fn absolute(path: &OsStr) -> OsString {
    let entries = env::split_paths(path).chain(env::split_paths(USUAL));
    // What was split at colons has none.
    env::join_paths(entries.filter(|entry| entry.is_absolute())).unwrap_or_else(|_| USUAL.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_working_directory_is_not_searched() {
        for path in ["/opt/bin", "/opt/bin:", ":/opt/bin", ".:/opt/bin:bin", "./x::/opt/bin:.."] {
            assert_eq!(absolute(OsStr::new(path)), "/opt/bin:/usr/sbin:/sbin", "{path}");
        }
        assert_eq!(absolute(OsStr::new("")), USUAL);
    }
}
