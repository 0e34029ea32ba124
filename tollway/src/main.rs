//! The program.

fn main() -> std::process::ExitCode {
    tollway::cli::main()
}
