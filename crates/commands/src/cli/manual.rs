//! `tollway completions` and `tollway man`: generated from the command line's definition.

use std::path::PathBuf;

use clap::CommandFactory;
use clap_complete::Shell;

use super::{Cli, CliError};
use tollway_linux::sys::why;

/// Arguments of `tollway completions`.
#[derive(clap::Args)]
#[command(after_help = "\
Bash:  tollway completions bash > /usr/share/bash-completion/completions/tollway
Zsh:   tollway completions zsh > /usr/share/zsh/vendor-completions/_tollway
Fish:  tollway completions fish > /usr/share/fish/vendor_completions.d/tollway.fish")]
pub(super) struct CompletionsArgs {
    /// Choose the shell
    shell: Shell,
}

/// Arguments of `tollway man`.
#[derive(clap::Args)]
pub(super) struct ManArgs {
    /// Write one page per command to this directory
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

pub(super) fn completions(args: &CompletionsArgs) -> Result<(), CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "tollway", &mut script);
    super::print(String::from_utf8_lossy(&script))
}

pub(super) fn man(args: &ManArgs) -> Result<(), CliError> {
    let Some(dir) = &args.out else {
        let mut page = Vec::new();
        let rendered = clap_mangen::Man::new(Cli::command()).render(&mut page);
        rendered.map_err(|error| {
            CliError::failed(
                format!("the manual page cannot be made: {}", why(&error)),
                "Report this as a defect",
            )
        })?;
        return super::print(String::from_utf8_lossy(&page));
    };
    let written =
        std::fs::create_dir_all(dir).and_then(|()| clap_mangen::generate_to(Cli::command(), dir));
    written.map_err(|error| {
        CliError::failed(
            format!("the manual pages cannot be written to {}: {}", dir.display(), why(&error)),
            "Name a directory that this user can write to",
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_sound() {
        Cli::command().debug_assert();
    }
}
