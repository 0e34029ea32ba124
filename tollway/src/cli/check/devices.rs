//! Network devices: what would be fast between them.

use std::path::{Path, PathBuf};

use super::super::text::width;
use super::super::{CliError, coverage, print, print_json};
use crate::control::Coverage;
use crate::mirror::coverage::Sight;
use crate::mirror::devices;
use crate::ports;

/// `IFNAMSIZ`, its zero included.
const LONGEST_NAME: usize = 16;

/// The file that is meant, if it is no devices: one that is there and is not called as a device is, or one
/// that can not be a device for its name.
///
/// # Errors
/// Files and devices together, or several files.
pub(super) fn file_of(what: &[String]) -> Result<Option<PathBuf>, CliError> {
    pick(what, &|name| known().iter().any(|known| known == name))
}

fn pick(what: &[String], is_device: &dyn Fn(&str) -> bool) -> Result<Option<PathBuf>, CliError> {
    let is_file = |name: &&String| !is_device(name) && (Path::new(name).is_file() || is_path(name));
    match (what.iter().find(is_file), what) {
        (None, _) => Ok(None),
        (Some(_), [one]) => Ok(Some(PathBuf::from(one))),
        (Some(file), _) => Err(CliError::usage(
            format!("{file} is a file, and is named with others"),
            "Check one file at a time, or network devices alone",
        )),
    }
}

/// Whether a name is one that files have and devices do not: a path, or an end that is no VLAN's number.
fn is_path(name: &str) -> bool {
    let end = Path::new(name).extension().and_then(|end| end.to_str()).unwrap_or_default();
    name.len() >= LONGEST_NAME || name.contains('/') || end.chars().any(|c| c.is_ascii_alphabetic())
}

/// The names of this namespace's devices (`/proc/net/dev`); none where they can not be told.
fn known() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

/// Says what would be fast between devices, and why the rest would not.
pub(super) fn check(names: &[String], json: bool) -> Result<(), CliError> {
    let sight = Sight::take()
        .map_err(|error| CliError::failed(error, "Try again, or look at what the kernel logs"))?;
    let found = devices::find(&sight.kernel, names)
        .map_err(|error| CliError::usage(error, "See `ip link` for what there is"))?;
    let judged = sight.coverage(&found, ports::MOST_MTU);
    let traffic = sight.traffic(&judged).map(Into::into);
    let coverage = Coverage { traffic, ..Coverage::from(&judged) };
    if json {
        return print_json(&coverage);
    }
    print(coverage::text(&coverage, width()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_and_devices_are_told_apart() {
        let dir = tempfile::tempdir().unwrap();
        let there = dir.path().join("there").display().to_string();
        std::fs::write(&there, "").unwrap();
        let pick = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(|word| (*word).to_owned()).collect();
            pick(&words, &|name| ["eth0", "a.toml"].contains(&name))
                .map_err(|error| error.to_string())
        };
        let file = |path: &str| Ok(Some(PathBuf::from(path)));
        for path in [there.as_str(), "x.toml", "./eth0", "rules.v4", "a_name_of_16_byt"] {
            assert_eq!(pick(&[path]), file(path));
        }
        for device in ["eth0", "eth9", "eth0.10", "a.toml"] {
            assert_eq!(pick(&[device]), Ok(None), "{device}");
            assert_eq!(pick(&[device, "eth0"]), Ok(None), "{device}");
        }
        assert_eq!(
            pick(&["eth0", "x.toml"]).unwrap_err(),
            "x.toml is a file, and is named with others. Check one file at a time, or network \
             devices alone."
        );
    }
}
