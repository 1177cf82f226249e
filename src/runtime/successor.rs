//! A binary that is to take over: it is run first, and says itself whether it can.
//!
//! It reads what it would read at its start: settings, pool files, the state of the running supervisor. Whatever would stop
//! it then is told now, while the supervisor that runs is unharmed. A binary that is broken, hangs, or is too old to know of
//! this is found the same way.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::draft::{self, ReadingInput, Trials};
use super::{RunError, adopt, handoff};
use crate::edge::settings as settings_file;
use crate::model::ids::PoolName;
use crate::sys::children::{Children, RunError as ProgramError};
use crate::sys::spawn::Command;

/// How long a binary may take to give its version: it does so within milliseconds, or it hangs.
const VERSION_TIME: Duration = Duration::from_secs(5);

/// How long a binary may take to read everything. Runs of php-fpm and NGINX are in it, which have 20 s each.
const CHECK_TIME: Duration = Duration::from_secs(60);

/// How much of what it prints is kept.
const PRINTED_BYTES: usize = 64 * 1024;

/// How many of its last lines are told: an error and its causes.
const LAST_LINES: usize = 6;

/// What a binary says of itself and of what it has read.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fitness {
    /// Its version and build.
    pub version: String,
    /// The newest version of the handover's message it reads.
    pub handoff: u32,
    /// The instance's runtime directory, by the settings as they are now.
    pub directory: PathBuf,
    /// The instance's control socket, by the settings as they are now.
    pub control: PathBuf,
    /// Pools that it would keep out.
    pub quarantined: BTreeSet<PoolName>,
}

/// Gives this program's version and build, for people: `0.1.0 (build 5e9500cf)`.
pub(super) fn version() -> String {
    let version = env!("CARGO_PKG_VERSION");
    crate::sys::build::build_id().map_or_else(|| version.to_owned(), |build| format!("{version} (build {build})"))
}

/// Reads everything a start would read, and starts nothing.
///
/// # Errors
/// What a start would fail on.
pub async fn self_check(children: &Children, file: &Path) -> Result<Fitness, RunError> {
    let settings = settings_file::load(file).map_err(RunError::Problems)?.settings;
    let directory = settings.runtime_directory.clone();
    adopt::read_everything(&directory).map_err(|error| {
        let source = std::io::Error::other(super::chain(&error));
        RunError::System { what: "use the state of the running supervisor".to_owned(), source }
    })?;
    let input = ReadingInput {
        file: file.to_owned(),
        previous: None,
        former_plan: adopt::former_plan(&directory),
        barred: Vec::new(),
        serving: BTreeMap::new(),
        proven: BTreeSet::new(),
        taken: BTreeSet::new(),
        trials: Trials::None,
    };
    let draft = draft::read(children, &input).await.map_err(|unread| RunError::Problems(unread.problems))?;
    let quarantined = draft.plan.quarantined.iter().map(|bad| bad.pool.clone()).collect();
    Ok(Fitness { version: version(), handoff: handoff::VERSION, directory, control: settings.control.socket, quarantined })
}

/// Says why a binary may not take over.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}")]
pub(super) struct Unfit {
    /// What was found.
    pub(super) what: String,
    /// What it said itself, or the system.
    pub(super) causes: Vec<String>,
}

impl Unfit {
    pub(super) fn new(what: impl Into<String>) -> Self {
        Self { what: what.into(), causes: Vec::new() }
    }
}

/// A binary that was found good.
#[derive(Debug, Clone)]
pub(super) struct Fit {
    pub(super) fitness: Fitness,
    /// The file as it was when it was run.
    pub(super) file: Identity,
}

/// By what a file is known again.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Identity {
    device: u64,
    inode: u64,
    length: u64,
    changed: (i64, i64),
}

impl Identity {
    /// Looks at a file.
    pub(super) fn of(path: &Path) -> std::io::Result<Self> {
        let meta = std::fs::metadata(path)?;
        Ok(Self { device: meta.dev(), inode: meta.ino(), length: meta.len(), changed: (meta.ctime(), meta.ctime_nsec()) })
    }
}

/// Runs a binary and asks it whether it can take over.
///
/// # Errors
/// It cannot, or does not say.
pub(super) async fn examine(
    children: &Children,
    program: &Path,
    settings: &Path,
    environment: Vec<(OsString, OsString)>,
) -> Result<Fit, Unfit> {
    let shown = program.display();
    let file = Identity::of(program).map_err(|error| Unfit { what: format!("look at {shown}"), causes: vec![error.to_string()] })?;
    let command = Command::new(program).environment(environment);
    let told = ask(children, command.clone().arg("--version"), VERSION_TIME, &format!("{shown} --version")).await?;
    if !told.starts_with("polyfpm ") {
        let what = format!("{shown} is not polyfpm: asked for its version it printed '{}'", told.lines().next().unwrap_or_default());
        return Err(Unfit::new(what));
    }
    let command = command.args(["self-check".into(), "-c".into(), settings.as_os_str().to_owned()]);
    let told = ask(children, command, CHECK_TIME, &format!("{shown} self-check")).await?;
    let fitness: Fitness = serde_json::from_str(&told)
        .map_err(|error| Unfit { what: format!("{shown} says nothing that is understood"), causes: vec![error.to_string()] })?;
    if fitness.handoff < handoff::VERSION {
        let what = format!("{shown}, polyfpm {}, is too old to go on from this one", fitness.version);
        return Err(Unfit::new(what));
    }
    Ok(Fit { fitness, file })
}

async fn ask(children: &Children, command: Command, time: Duration, what: &str) -> Result<String, Unfit> {
    match children.run(command, time, PRINTED_BYTES).await {
        Ok(finished) if finished.exit.success() => Ok(String::from_utf8_lossy(&finished.stdout).into_owned()),
        Ok(finished) => {
            let text = String::from_utf8_lossy(&finished.stderr).into_owned() + &String::from_utf8_lossy(&finished.stdout);
            let lines: Vec<String> = text.lines().map(str::trim).filter(|line| !line.is_empty()).map(str::to_owned).collect();
            let causes = lines.into_iter().take(LAST_LINES).collect();
            Err(Unfit { what: format!("{what} ended with {}", finished.exit), causes })
        }
        Err(ProgramError::TimedOut { after, .. }) => Err(Unfit::new(format!("{what} did not end within {} s", after.as_secs()))),
        Err(error) => Err(Unfit { what: format!("run {what}"), causes: vec![super::chain(&error)] }),
    }
}
