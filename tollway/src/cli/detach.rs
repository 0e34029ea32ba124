//! `tollway detach`: detaches the programs that killed routers left on their devices.

use std::io::ErrorKind;

use super::CliError;
use tollway_xdp::XdpError;

/// Arguments of `tollway detach`.
#[derive(clap::Args)]
#[command(
    after_help = "A router that was killed leaves its XDP program on the devices, where it gives every \
                  frame to the kernel; the next `tollway run` takes it over, so this is only for those \
                  who want to run none. A router that runs is not touched."
)]
pub(super) struct Args {}

pub(super) fn run(_: &Args) -> Result<(), CliError> {
    match tollway_xdp::clean() {
        Ok(0) => super::print("no device carries the program of a router that is gone\n"),
        Ok(1) => super::print("one device is the kernel's alone again\n"),
        Ok(count) => super::print(format_args!("{count} devices are the kernel's alone again\n")),
        Err(XdpError::NoBpffs(why)) if why.kind() == ErrorKind::PermissionDenied => {
            let what = "only root may look for programs on devices, which are kept in /sys/fs/bpf";
            Err(CliError::failed(what, "Run it as root"))
        }
        Err(error) => Err(CliError::failed(&error, error.remedy())),
    }
}
