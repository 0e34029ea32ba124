//! The program.

fn main() -> std::process::ExitCode {
    tollway_commands::cli::main()
}
