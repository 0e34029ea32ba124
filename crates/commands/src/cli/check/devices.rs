//! Network devices: reports what the fast path would carry between them.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use super::super::text::width;
use super::super::{CliError, offload, print, print_json};
use super::reach::Reach;
use crate::control::Offload;
use tollway_controller::devices;
use tollway_controller::offload::KernelSnapshot;
use tollway_model::Engines;
use tollway_worker::ports;

/// `IFNAMSIZ`, including the final zero.
const LONGEST_NAME: usize = 16;

/// The file to check, or none if the arguments name devices. A file exists without being the name
/// of a device, or has a name that no device can have.
///
/// # Errors
/// The arguments name files and devices together, or several files.
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

/// Whether only a file can have this name: it is a path, too long, or has letters after the last
/// dot. A VLAN device ends in a number there.
fn is_path(name: &str) -> bool {
    let end = Path::new(name).extension().and_then(|end| end.to_str()).unwrap_or_default();
    name.len() >= LONGEST_NAME || name.contains('/') || end.chars().any(|c| c.is_ascii_alphabetic())
}

/// The names of the devices in this namespace (`/proc/net/dev`); empty if they cannot be read.
fn known() -> Vec<String> {
    let table = std::fs::read_to_string("/proc/thread-self/net/dev").unwrap_or_default();
    let names = table.lines().filter_map(|line| line.split_once(':'));
    names.map(|(name, _)| name.trim().to_owned()).collect()
}

/// Reports what the fast path would carry between devices, and why not the rest.
///
/// The exit status says how much: 0 all, 3 part, 4 nothing.
pub(super) fn check(names: &[String], engines: &Engines, json: bool) -> Result<ExitCode, CliError> {
    let snapshot = KernelSnapshot::take()
        .map_err(|error| CliError::failed(error, "Try again, or look at what the kernel logs"))?;
    let found = devices::find(&snapshot.kernel, names, engines)
        .map_err(|error| CliError::usage(error, "See `ip link` for what there is"))?;
    let found: Vec<_> = found.into_iter().map(|(index, choice)| (index, choice.engine)).collect();
    let evaluated = snapshot.offload(&found, ports::MOST_MTU);
    let traffic = snapshot.traffic(&evaluated).map(Into::into);
    let offload = Offload { traffic, ..Offload::from(&evaluated) };
    let reach = Reach::of(&offload);
    if json {
        print_json(&offload)?;
    } else {
        print(format_args!("{}{}\n", offload::text(&offload, width()), reach.sentence()))?;
    }
    Ok(reach.status())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_are_distinguished_from_devices() {
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
