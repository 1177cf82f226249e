//! php-fpm's binary and files: what it can do, what its files say, whether it accepts a configuration.
//!
//! Every run of the binary has a time-out, an environment like that of the masters, and the masters' own `-c`, `-p` and
//! `-d`, so that what is learned here holds for them. Nothing here starts a master.

mod build;
mod environment;
mod files;
mod fingerprint;
mod glob;
mod messages;
mod scratch;
mod startup;
mod trial;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::model::host::FpmBuild;
use crate::model::settings::Php;
use crate::sys::children::{Children, Finished, RunError};
use crate::sys::spawn::Command;

pub use build::{Learned, ProbeError, learn, probe};
pub use environment::environment;
pub use files::{FilesError, FoundFiles, probe_and_read, read_files};
pub use fingerprint::{FingerprintError, IniTexts, Installation, digest_of, installation};
pub use trial::{Trial, TrialError, find_bad_pools, try_shard};

/// How long one run of the binary may take. A check of 4,000 pools takes under 2 s; a host under load is given ten times that.
const RUN_LIMIT: Duration = Duration::from_secs(20);

/// The most that is kept of what the binary prints; a dump of 4,000 pools is about 8 MB.
const OUTPUT_LIMIT_BYTES: usize = 32 * 1024 * 1024;

/// The way to one php-fpm binary, with the arguments and the environment of its masters.
#[derive(Debug, Clone)]
pub struct Tool {
    children: Children,
    php: Php,
    environment: Vec<(OsString, OsString)>,
}

impl Tool {
    /// Takes the binary of `php`; `environment` is the masters' own, as [`environment()`] makes it.
    pub fn new(children: Children, php: Php, environment: Vec<(OsString, OsString)>) -> Self {
        Self { children, php, environment }
    }

    /// Gives the settings of the binary.
    pub fn php(&self) -> &Php {
        &self.php
    }

    async fn run(&self, extra: impl IntoIterator<Item = OsString>) -> Result<Finished, RunError> {
        let command = Command::new(&self.php.binary).args(arguments(&self.php)).args(extra).environment(self.environment.clone());
        self.children.run(command, RUN_LIMIT, OUTPUT_LIMIT_BYTES).await
    }

    /// Runs a configuration test on `file`, or a dump.
    async fn test(&self, mode: Mode, file: &Path) -> Result<Finished, RunError> {
        let flag = match mode {
            Mode::Test => "-t",
            Mode::Dump => "-tt",
        };
        self.run([flag.into(), "-y".into(), file.into()]).await
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Test,
    Dump,
}

/// Gives the arguments every run of this php-fpm has, masters included: `-c`, `-p`, `-d`.
pub fn arguments(php: &Php) -> Vec<OsString> {
    let mut arguments: Vec<OsString> = Vec::new();
    for (flag, path) in [("-c", &php.ini), ("-p", &php.prefix)] {
        if let Some(path) = path {
            arguments.extend([flag.into(), path.into()]);
        }
    }
    for (key, value) in &php.define {
        arguments.extend(["-d".into(), format!("{key}={value}").into()]);
    }
    arguments
}

/// Gives the prefix of relative paths: `-p`, or the one compiled into the binary.
pub fn prefix(php: &Php, build: &FpmBuild) -> PathBuf {
    let compiled = || build.constants.get("PHP_PREFIX").map_or_else(|| PathBuf::from("/usr"), PathBuf::from);
    php.prefix.clone().unwrap_or_else(compiled)
}
