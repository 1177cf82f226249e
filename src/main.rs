//! The `polyfpm` binary.

use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(polyfpm::cli::run(std::env::args_os()).code())
}
