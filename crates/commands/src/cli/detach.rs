//! `tollway detach`: detaches the programs that killed routers left on their devices.

use std::io::ErrorKind;

use super::CliError;
use tollway_xdp::XdpError;

/// Arguments of `tollway detach`.
#[derive(clap::Args)]
#[command(
    after_help = "A router that was killed leaves its XDP program on the devices, where it passes every \
                  frame to the kernel. The next `tollway run` takes it over. To run none, detach it with \
                  this command. It does not touch a router that runs."
)]
pub(super) struct Args {}

pub(super) fn run(_: &Args) -> Result<(), CliError> {
    match tollway_xdp::clean() {
        Ok(0) => super::print("no device has the XDP program of a router that is gone\n"),
        Ok(1) => super::print("detached an XDP program from one device\n"),
        Ok(count) => super::print(format_args!("detached XDP programs from {count} devices\n")),
        Err(XdpError::NoBpffs(why)) if why.kind() == ErrorKind::PermissionDenied => {
            let what = "only root may look for XDP programs, which are pinned in /sys/fs/bpf";
            Err(CliError::failed(what, "Run it as root"))
        }
        Err(error) => Err(CliError::failed(&error, error.remedy())),
    }
}
