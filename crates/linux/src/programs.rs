//! The search path for programs of the system, such as `nft`.

use std::env;
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;

use crate::sys;

/// Where programs usually are. Not every user's `PATH` has all of these, and a bare `init` sets
/// none.
const USUAL: &str = "/usr/sbin:/usr/bin:/sbin:/bin";

/// The caller's `PATH`, then the usual directories of programs.
///
/// Entries relative to the working directory are skipped (`.`, `bin` and the empty one, execvp(3)):
/// if root works in another user's directory, that user could have root run a program of any name.
pub fn search_path() -> OsString {
    absolute(&env::var_os("PATH").unwrap_or_default())
}

fn absolute(path: &OsStr) -> OsString {
    let entries = env::split_paths(path).chain(env::split_paths(USUAL));
    // Parts that were split at colons contain none.
    env::join_paths(entries.filter(|entry| entry.is_absolute())).unwrap_or_else(|_| USUAL.into())
}

/// The file of a program, by the same path; its bare name where there is none, so that starting it reports that.
///
/// By its file a program starts without a copy of this process's page tables (`posix_spawn`): a copy takes 150 ms
/// and more, and meanwhile no thread gets a page, the worker's included. The standard library makes that copy where
/// it has to look for the program in a `PATH` of the program's own.
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
