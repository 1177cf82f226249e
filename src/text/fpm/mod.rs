//! php-fpm's own configuration language: reading what the operator wrote, writing what a shard's master gets.
//!
//! [`read()`] follows php-fpm rule by rule (sections that resume, includes the section runs through, quotes, constants,
//! `${…}`, `$pool`, last and first wins), so that a file means the same to polyfpm as to the php-fpm it replaces.
//! [`render_shard`] carries the operator's lines over as they stand and writes anew only what must differ per shard.
//! Nothing here touches a file: the caller hands in the text of files and takes away bytes.

mod access;
mod check;
mod keys;
mod read;
mod render;
mod scan;
mod statement;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use crate::model::host::{FpmBuild, Version};
use crate::model::pool::{PoolFiles, Quarantined};
use crate::model::problem::{Problem, Severity};

pub use read::read;
pub use render::{RenderError, Rendered, ShardChoices, StatusListener, quote, render_shard, render_trial};

/// Who the masters run as; php-fpm asks more of a pool when it is root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunsAs {
    /// Root: each pool must name its `user`.
    Root,
    /// Somebody else.
    Other,
}

/// What the meaning of a file depends on besides its text.
#[derive(Debug, Clone)]
pub struct ReadContext {
    /// The php-fpm that is to run the pools.
    pub build: FpmBuild,
    /// The prefix of relative paths: `-p`, or the one compiled in.
    pub prefix: PathBuf,
    /// What `${NAME}` gives, where it gives something: a php.ini setting, else a variable of the masters' environment.
    pub variables: BTreeMap<String, String>,
    /// Who the masters run as.
    pub runs_as: RunsAs,
}

impl ReadContext {
    /// Tells whether the same files mean the same here and there, but for words and variables.
    pub fn reads_like(&self, other: &Self) -> bool {
        let (one, two) = (Dialect::of(&self.build), Dialect::of(&other.build));
        // Of the version itself the patch level counts only where a message names it, which are those of unknown versions.
        let branch = |dialect: Dialect| (dialect.version.0, dialect.version.1);
        let flags = |dialect: Dialect| (dialect.fallbacks, dialect.quoted_booleans, dialect.systemd, dialect.beyond_tables());
        branch(one) == branch(two)
            && flags(one) == flags(two)
            && !one.beyond_tables()
            && (&self.prefix, self.runs_as) == (&other.prefix, other.runs_as)
    }
}

/// A request for text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IncludeRequest {
    /// The main file itself.
    Main(PathBuf),
    /// Every file an `include` pattern names; the pattern is absolute.
    Pattern(PathBuf),
}

/// A file as the caller found it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceFile {
    /// The path under which it was found.
    pub path: PathBuf,
    /// Its bytes, or why they cannot be had.
    pub content: Result<Vec<u8>, String>,
}

/// Says why the files of a pattern cannot be listed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("list {}: {reason}", .path.display())]
pub struct IncludeError {
    /// The directory that cannot be read.
    pub path: PathBuf,
    /// Why, in the system's words.
    pub reason: String,
}

/// What a main file and everything it includes say, and every fault in them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Reading {
    /// What they say; `pools` holds only those without a fault.
    pub files: PoolFiles,
    /// Faults of the whole: `[global]`, includes, structure. With an error among them nothing may be run from this reading.
    pub problems: Vec<Problem>,
    /// Every pool that is kept out, once, with its first fault.
    pub quarantined: Vec<Quarantined>,
    /// The further faults of pools that are kept out.
    pub further: Vec<Problem>,
    /// Bare words of values, which are constants where `build.constants` has them.
    pub words: BTreeSet<String>,
    /// Names asked for with `${NAME}`.
    pub variables: BTreeSet<String>,
}

impl Reading {
    /// Says whether the pools of this reading may be run.
    pub fn usable(&self) -> bool {
        !self.problems.iter().any(|problem| problem.severity == Severity::Error)
    }
}

/// What differs between versions and builds in how text is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Dialect {
    version: Version,
    fallbacks: bool,
    quoted_booleans: bool,
    systemd: bool,
}

impl Dialect {
    fn of(build: &FpmBuild) -> Self {
        let version = build.version;
        Self {
            version,
            fallbacks: version >= Version(8, 3, 0),
            // The fix of php-src issue 13563 is in 8.2.19 and in 8.3.7.
            quoted_booleans: version >= Version(8, 3, 7) || (Version(8, 2, 19)..Version(8, 3, 0)).contains(&version),
            systemd: build.systemd,
        }
    }

    fn knows(self, since: (u32, u32)) -> bool {
        (self.version.0, self.version.1) >= since
    }

    /// Whether this php-fpm is newer than the tables of keys.
    fn beyond_tables(self) -> bool {
        (self.version.0, self.version.1) > keys::NEWEST
    }
}

/// Answers what words and `${…}` mean, and remembers which were asked for.
#[derive(Debug)]
struct Lookups<'a> {
    context: &'a ReadContext,
    words: BTreeSet<String>,
    variables: BTreeSet<String>,
}

impl Lookups<'_> {
    fn constant(&mut self, word: Vec<u8>) -> Vec<u8> {
        let Ok(name) = std::str::from_utf8(&word) else { return word };
        let meaning = self.context.build.constants.get(name).map(|meaning| meaning.clone().into_bytes());
        if !self.words.contains(name) {
            self.words.insert(name.to_owned());
        }
        meaning.unwrap_or(word)
    }

    fn variable(&mut self, name: &[u8], fallback: Option<Vec<u8>>) -> Vec<u8> {
        let name = String::from_utf8_lossy(name).into_owned();
        let value = self.context.variables.get(&name).map(|value| value.clone().into_bytes());
        self.variables.insert(name);
        value.or(fallback).unwrap_or_default()
    }
}

/// Replaces `$pool` by the pool's name.
fn with_pool(value: &str, pool: &str) -> String {
    value.replace("$pool", pool)
}
