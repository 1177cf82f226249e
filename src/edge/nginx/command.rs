//! Running the NGINX binary: what it is, what its configuration says, whether it accepts it.

use std::path::Path;
use std::time::Duration;

use crate::model::settings::Nginx;
use crate::sys::children::{Children, Finished, RunError};
use crate::sys::spawn::Command;
use crate::text::nginx::{Build, TestFailure};

/// A minute: NGINX resolves the host names of its configuration while it reads it, each with a time-out of its own.
const READ_TIME: Duration = Duration::from_mins(1);

/// 64 MiB of configuration: 10,000 vhosts of 6 KiB.
const DUMP_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// Warnings may come for each vhost, and the fatal message is the last.
const MESSAGES_LIMIT_BYTES: usize = 1024 * 1024;

/// What `nginx -t` says.
#[derive(Debug)]
pub(super) enum Verdict {
    /// The configuration is good.
    Good,
    /// It is not.
    Bad(TestFailure),
}

/// Tells whether there is a binary.
pub(super) fn is_installed(binary: &Path) -> bool {
    std::fs::metadata(binary).is_ok_and(|file| file.is_file())
}

/// Asks the binary what it is.
pub(super) async fn build(children: &Children, settings: &Nginx) -> Result<Build, String> {
    let finished = run(children, Command::new(&settings.binary).arg("-V"), MESSAGES_LIMIT_BYTES).await?;
    if !finished.exit.success() {
        return Err(failed(&settings.binary, "-V", &finished));
    }
    Ok(Build::parse(&String::from_utf8_lossy(&finished.stderr)))
}

/// Gives the whole configuration as NGINX reads it.
pub(super) async fn dump(children: &Children, settings: &Nginx) -> Result<Vec<u8>, String> {
    let command = Command::new(&settings.binary).arg("-T").arg("-c").arg(&settings.config);
    let finished = run(children, command, DUMP_LIMIT_BYTES).await?;
    if !finished.exit.success() {
        return Err(TestFailure::parse(&finished.stderr).to_string());
    }
    if finished.stdout.len() >= DUMP_LIMIT_BYTES {
        return Err(format!("the configuration is larger than {DUMP_LIMIT_BYTES} bytes"));
    }
    Ok(finished.stdout)
}

/// Tests the whole configuration.
pub(super) async fn test(children: &Children, settings: &Nginx) -> Result<Verdict, String> {
    let command = Command::new(&settings.binary).args(["-t", "-q", "-c"]).arg(&settings.config);
    let finished = run(children, command, MESSAGES_LIMIT_BYTES).await?;
    Ok(if finished.exit.success() { Verdict::Good } else { Verdict::Bad(TestFailure::parse(&finished.stderr)) })
}

async fn run(children: &Children, command: Command, limit_bytes: usize) -> Result<Finished, String> {
    children.run(command, READ_TIME, limit_bytes).await.map_err(|error| chain(&error))
}

fn failed(binary: &Path, option: &str, finished: &Finished) -> String {
    format!("{} {option} ended with {}: {}", binary.display(), finished.exit, TestFailure::parse(&finished.stderr))
}

/// Gives an error with its causes in one line: here errors become texts in outcomes.
fn chain(error: &RunError) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}
