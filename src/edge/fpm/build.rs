//! Learns what a php-fpm binary can do, and what words and `${…}` mean to it.
//!
//! Constants depend on the version and on loaded extensions, and `${NAME}` on php.ini before the environment. Rather than
//! model that, the binary is asked: a dump (`-tt`) of a small configuration shows how it reads each of them.

use std::collections::{BTreeMap, BTreeSet};
use std::io;

use crate::model::host::{FpmBuild, Version};
use crate::sys::children::{Exit, RunError};

use super::messages::complaints;
use super::scratch::{Scratch, ScratchError};
use super::{Mode, Tool};

/// Says why nothing could be learned from a binary.
#[derive(Debug, thiserror::Error)]
pub enum ProbeError {
    /// It did not run.
    #[error("ask php-fpm what it can do")]
    Run(#[from] RunError),
    /// A file for it could not be written.
    #[error("write a configuration for php-fpm to test")]
    Write(#[from] ScratchError),
    /// It is something else.
    #[error("'{program}' is no php-fpm: it answers '{answer}'")]
    NotFpm {
        /// The binary.
        program: String,
        /// The first line it printed.
        answer: String,
    },
    /// It refuses even the smallest configuration.
    #[error("php-fpm refuses a minimal configuration: {message}")]
    Refused {
        /// What it said.
        message: String,
    },
}

/// Constants that are always asked for: what php.ini lines are written with, and where the build puts things.
const FIRST_CONSTANTS: [&str; 12] = [
    "E_ALL",
    "E_DEPRECATED",
    "E_ERROR",
    "E_NOTICE",
    "E_PARSE",
    "E_STRICT",
    "E_USER_DEPRECATED",
    "E_WARNING",
    "PHP_LOCALSTATEDIR",
    "PHP_PREFIX",
    "PHP_SYSCONFDIR",
    "PHP_VERSION",
];

/// Asks a binary for its version and what it can do.
///
/// # Errors
/// When it does not run, is no php-fpm, or refuses a minimal configuration.
///
/// # Cancel safety
/// Dropping the future ends the run under way.
pub async fn probe(tool: &Tool) -> Result<FpmBuild, ProbeError> {
    probe_with(tool, &BTreeSet::new()).await
}

/// Asks as [`probe`] does, and at the same time what `words` mean.
///
/// # Errors
/// As [`probe`].
///
/// # Cancel safety
/// Dropping the future ends the run under way.
pub(super) async fn probe_with(tool: &Tool, words: &BTreeSet<String>) -> Result<FpmBuild, ProbeError> {
    let words: BTreeSet<String> = words.iter().cloned().chain(FIRST_CONSTANTS.map(str::to_owned)).collect();
    let lines = question(&words, &BTreeSet::new(), Version(0, 0, 0));
    // A start waits for this run, so all that a php-fpm of today can do is asked in one.
    let new = dump(tool, &format!("{LONG_LINES}\n{SYSTEMD}"), &format!("{STATUS_LISTEN}\n{lines}")).await;
    let mut build = FpmBuild { version: Version(0, 0, 0), systemd: true, status_listen: true, constants: BTreeMap::new() };
    match new {
        Ok(told) => {
            build.constants = constants_in(&told, &words);
            let version = build.constants.get("PHP_VERSION").and_then(|text| numbers(text));
            build.version = if let Some(version) = version { version } else { told_version(tool).await? };
        }
        Err(ProbeError::Refused { .. }) => {
            build.version = told_version(tool).await?;
            build.systemd = accepts(tool, SYSTEMD, "").await?;
            build.status_listen = accepts(tool, "", STATUS_LISTEN).await?;
            build.constants = constants_in(&dump(tool, long_lines(build.version), &lines).await?, &words);
        }
        Err(error) => return Err(error),
    }
    Ok(build)
}

/// Asks for the version alone.
async fn told_version(tool: &Tool) -> Result<Version, ProbeError> {
    let answer = tool.run(["-v".into()]).await?;
    version(&answer.stdout).ok_or_else(|| ProbeError::NotFpm {
        program: tool.php.binary.display().to_string(),
        answer: first_line(&[&answer.stdout[..], &answer.stderr].concat()),
    })
}

/// Keeps a dump from being cut; known from 7.3 on.
const LONG_LINES: &str = "log_limit = 100000";

fn long_lines(version: Version) -> &'static str {
    if version >= Version(7, 3, 0) { LONG_LINES } else { "" }
}

/// A line that only a php-fpm with systemd support knows.
const SYSTEMD: &str = "systemd_interval = 10";

/// A line that php-fpm knows from 8.0 on.
const STATUS_LISTEN: &str = "pm.status_listen = /polyfpm-status";

fn first_line(printed: &[u8]) -> String {
    String::from_utf8_lossy(printed).lines().next().unwrap_or_default().chars().take(200).collect()
}

fn version(printed: &[u8]) -> Option<Version> {
    let text = String::from_utf8_lossy(printed);
    // A php-cli binary is no php-fpm, whatever it is called. Extensions may print warnings before the version.
    let line = text.lines().find(|line| line.starts_with("PHP ") && line.contains("(fpm-fcgi)"))?;
    numbers(line.split_whitespace().nth(1)?)
}

/// Takes the numbers out of a version such as `8.4.0RC1`.
fn numbers(text: &str) -> Option<Version> {
    let mut numbers = text.split(|c: char| !c.is_ascii_digit()).map(|number| number.parse().ok());
    Some(Version(numbers.next()??, numbers.next()??, numbers.next().flatten().unwrap_or_default()))
}

/// A pool every php-fpm accepts. The user is a number, so that no name need exist.
const POOL: &str = "[polyfpm]\nlisten = /polyfpm-probe\nuser = 65534\ngroup = 65534\npm = static\npm.max_children = 1\n";

fn minimal(scratch: &Scratch, global: &str, pool: &str) -> Result<std::path::PathBuf, ScratchError> {
    let log = crate::text::fpm::quote(&scratch.path().join("log").to_string_lossy());
    let log = log.ok_or_else(|| ScratchError {
        step: "name a file in",
        path: scratch.path().to_owned(),
        source: io::Error::other("the directory for temporary files has a name php-fpm cannot read"),
    })?;
    scratch.write("php-fpm.conf", format!("[global]\nerror_log = {log}\n{global}\n{POOL}{pool}\n").as_bytes())
}

/// Tests a minimal configuration with a line added; `false` only when it is the line that is refused.
async fn accepts(tool: &Tool, global: &str, pool: &str) -> Result<bool, ProbeError> {
    let scratch = Scratch::new()?;
    let tested = tool.test(Mode::Test, &minimal(&scratch, global, pool)?).await?;
    if tested.exit == Exit::Code(0) {
        return Ok(true);
    }
    let messages = complaints(&tested.stderr);
    if messages.iter().any(|message| message.contains("unknown entry")) {
        return Ok(false);
    }
    let message = messages.into_iter().next().unwrap_or_else(|| tested.exit.to_string());
    Err(ProbeError::Refused { message })
}

/// What a binary makes of words and of `${…}`.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Learned {
    /// The words that are constants, and what they mean.
    pub constants: BTreeMap<String, String>,
    /// The names that `${NAME}` finds, and what it gives.
    pub variables: BTreeMap<String, String>,
}

/// What `${NAME:-…}` gives where nothing is found.
const UNSET: &str = "polyfpm-unset";

/// Asks a binary what `words` and `variables` mean to it.
///
/// # Errors
/// As [`probe`].
///
/// # Cancel safety
/// Dropping the future ends the run under way.
pub async fn learn(tool: &Tool, build: &FpmBuild, words: &BTreeSet<String>, variables: &BTreeSet<String>) -> Result<Learned, ProbeError> {
    let lines = question(words, variables, build.version);
    if lines.is_empty() {
        return Ok(Learned::default());
    }
    let told = dump(tool, long_lines(build.version), &lines).await?;
    let variables = variables.iter().enumerate().filter_map(|(number, name)| {
        let value = told.get(&format!("v{number}")).and_then(|text| text.strip_prefix('<')?.strip_suffix('>'));
        let value = value.map(str::to_owned).or_else(|| tool.variable(name))?;
        (value != UNSET).then(|| (name.clone(), value))
    });
    Ok(Learned { constants: constants_in(&told, words), variables: variables.collect() })
}

/// Writes the lines whose dump tells what words and variables mean.
fn question(words: &BTreeSet<String>, variables: &BTreeSet<String>, version: Version) -> String {
    let mut lines = String::new();
    for (number, word) in words.iter().enumerate() {
        // Asked as a key: as a value, `on` would be a word of truth, which between brackets it is not.
        lines.push_str(&format_line(&format!("\"c{number} \"{word}"), "1"));
    }
    let fallback = if version >= Version(8, 3, 0) { format!(":-{UNSET}") } else { String::new() };
    for (number, name) in variables.iter().enumerate() {
        lines.push_str(&format_line(&format!("v{number}"), &format!("\"<${{{name}{fallback}}}>\"")));
    }
    lines
}

/// Has the binary dump a minimal configuration with lines added, and gives the `php_value` lines of the dump.
async fn dump(tool: &Tool, global: &str, pool: &str) -> Result<BTreeMap<String, String>, ProbeError> {
    let scratch = Scratch::new()?;
    let dumped = tool.test(Mode::Dump, &minimal(&scratch, global, pool)?).await?;
    if dumped.exit != Exit::Code(0) {
        let message = complaints(&dumped.stderr).into_iter().next().unwrap_or_else(|| dumped.exit.to_string());
        return Err(ProbeError::Refused { message });
    }
    Ok(values(&dumped.stderr))
}

/// Gives the words that are constants, and what they mean.
fn constants_in(told: &BTreeMap<String, String>, words: &BTreeSet<String>) -> BTreeMap<String, String> {
    let meant = words.iter().enumerate().filter_map(|(number, word)| Some((word, told.get(&format!("c{number}"))?)));
    meant.filter(|(word, meaning)| meaning != word).map(|(word, meaning)| (word.clone(), meaning.clone())).collect()
}

fn format_line(key: &str, value: &str) -> String {
    format!("php_value[{key}] = {value}\n")
}

/// Takes the `php_value` lines out of a dump: what each constant and each variable gives, by its number.
fn values(dump: &[u8]) -> BTreeMap<String, String> {
    let text = String::from_utf8_lossy(dump);
    let line = |line: &str| -> Option<(String, String)> {
        let (_, entry) = line.split_once("NOTICE: \tphp_value[")?;
        if let Some((number, meaning)) = entry.strip_suffix("] = 1").and_then(|key| key.split_once(' ')) {
            return Some((number.to_owned(), meaning.to_owned()));
        }
        let (key, value) = entry.split_once("] = ")?;
        Some((key.to_owned(), value.to_owned()))
    };
    text.lines().filter_map(line).collect()
}

impl Tool {
    /// Gives a variable of the masters' environment, for values a dump cannot show in one line.
    fn variable(&self, name: &str) -> Option<String> {
        let (_, value) = self.environment.iter().find(|(known, _)| known == name)?;
        Some(value.to_string_lossy().into_owned())
    }
}
