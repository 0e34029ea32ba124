//! Finds programs of the system, such as `nft`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::sys;

/// Where programs usually are. Not every user's `PATH` has all of these, and a bare `init` sets no
/// `PATH`.
const USUAL: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The caller's `PATH`, then the usual directories of programs.
///
/// It skips entries relative to the working directory (`.`, `bin` and the empty one, execvp(3)). If root
/// works in another user's directory, that user could otherwise have root run a program of any name.
pub fn search_path() -> OsString {
    absolute(&env::var_os("PATH").unwrap_or_default())
}

fn absolute(path: &OsStr) -> OsString {
    let entries = env::split_paths(path).chain(env::split_paths(USUAL));
    // Parts that were split at colons contain none.
    env::join_paths(entries.filter(|entry| entry.is_absolute())).unwrap_or_else(|_| USUAL.into())
}

/// The file of a program, searched for in [`search_path`]. If there is none, returns the bare name; starting that
/// reports that there is no such program.
///
/// Started by its file, a program needs no copy of this process's page tables (`posix_spawn`). Such a copy takes
/// 150 ms and more, and meanwhile no thread gets a page, not even the worker's. The standard library makes it if it
/// must search the `PATH` that the program is started with.
pub fn file_of(name: &str) -> PathBuf {
    let is_program = |file: &PathBuf| file.is_file() && sys::may_execute(file);
    let files = env::split_paths(&search_path()).map(|entry| entry.join(name)).collect::<Vec<_>>();
    files.into_iter().find(is_program).unwrap_or_else(|| name.into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_working_directory_is_not_searched() {
        for path in ["/opt/bin", "/opt/bin:", ":/opt/bin", ".:/opt/bin:bin", "./x::/opt/bin:.."] {
            assert_eq!(absolute(OsStr::new(path)), format!("/opt/bin:{USUAL}").as_str(), "{path}");
        }
        assert_eq!(absolute(OsStr::new("")), USUAL);
    }

    #[test]
    fn programs_are_found_by_their_files() {
        let file = file_of("sh");
        assert!(file.is_absolute() && file.ends_with("sh"), "{file:?}");
        assert_eq!(file_of("no-such-program"), PathBuf::from("no-such-program"));
    }
}
