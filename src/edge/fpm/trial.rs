//! Has php-fpm itself test a shard's configuration, and finds the pools it refuses.

use std::collections::VecDeque;

use crate::model::plan::{Placement, ShardPlan};
use crate::model::pool::{Origin, Pool, PoolFiles, Quarantined};
use crate::model::problem::Problem;
use crate::sys::children::{Exit, RunError};
use crate::text::fpm::{RenderError, Rendered, ShardChoices, render_trial};

use super::messages::{complaints, line_number};
use super::scratch::{Scratch, ScratchError};
use super::{Mode, Tool};

/// php-fpm's verdict on a configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Trial {
    /// It would start.
    Accepted,
    /// It would not.
    Refused {
        /// What it said, in order; never empty.
        messages: Vec<String>,
        /// The operator's line that the messages point at, where they point at one.
        origin: Option<Origin>,
    },
}

/// Says why a configuration could not be tested, or not be mended by leaving pools out.
#[derive(Debug, thiserror::Error)]
pub enum TrialError {
    /// The binary did not run.
    #[error("test a shard's configuration")]
    Run(#[from] RunError),
    /// The file could not be written.
    #[error("write a shard's configuration for a test")]
    Write(#[from] ScratchError),
    /// The configuration cannot be written.
    #[error("make a shard's configuration")]
    Render(#[from] RenderError),
    /// php-fpm refuses it for a reason that lies in no single pool.
    #[error("php-fpm refuses the configuration of shard {shard}: {message}")]
    Whole {
        /// The shard.
        shard: String,
        /// What it said.
        message: String,
    },
}

/// Tests the configuration of `shard`, every log rewritten to a throw-away place, and leaves nothing behind.
///
/// # Errors
/// When it cannot be made, written or tested in time. A refusal is no error.
///
/// # Cancel safety
/// Dropping the future ends the run.
pub async fn try_shard(tool: &Tool, files: &PoolFiles, shard: &ShardPlan, choices: ShardChoices<'_>) -> Result<Trial, TrialError> {
    let scratch = Scratch::new()?;
    let rendered = render_trial(files, shard, choices, &scratch.path().to_string_lossy())?;
    let path = scratch.write("php-fpm.conf", &rendered.text)?;
    let tested = tool.test(Mode::Test, &path).await?;
    if tested.exit == Exit::Code(0) {
        return Ok(Trial::Accepted);
    }
    let mut messages = complaints(&tested.stderr);
    if messages.is_empty() {
        messages.push(format!("it ended with {} and said nothing", tested.exit));
    }
    let origin = messages.iter().find_map(|message| place(message, files, &rendered));
    Ok(Trial::Refused { messages, origin })
}

/// Finds the operator's line a complaint is about.
fn place(message: &str, files: &PoolFiles, rendered: &Rendered) -> Option<Origin> {
    if let Some(line) = line_number(message) {
        return rendered.origin(line).cloned();
    }
    let (name, rest) = message.strip_prefix("[pool ")?.split_once("] ")?;
    let pool = files.pools.iter().find(|pool| pool.name.as_str() == name)?;
    Some(key_line(pool, rest).unwrap_or(&pool.origin).clone())
}

/// Phrases of php-fpm's complaints that name a key in other words.
const PHRASES: [(&str, &str); 9] = [
    ("status path", "pm.status_path"),
    ("ping path", "ping.path"),
    ("ping response", "ping.response"),
    ("uid for user", "user"),
    ("gid for group", "group"),
    ("other than root", "user"),
    ("access log", "access.log"),
    ("access.format", "access.format"),
    ("prefix", "prefix"),
];

fn key_line<'a>(pool: &'a Pool, message: &str) -> Option<&'a Origin> {
    let last = |key: &str| pool.lines.iter().rev().find(|line| line.element.is_none() && line.key == key).map(|line| &line.origin);
    let phrase = PHRASES.iter().filter(|(phrase, _)| message.contains(phrase)).find_map(|(_, key)| last(key));
    // Of all keys the message names, the longest is meant: "pm.max_children" and not "pm".
    let words = |key: &str| message.split(|c: char| c.is_whitespace() || "'\"(),".contains(c)).any(|word| word == key);
    let named = pool.lines.iter().filter(|line| line.element.is_none() && words(&line.key)).max_by_key(|line| line.key.len());
    phrase.or_else(|| named.and_then(|line| last(&line.key)))
}

/// Names the pools for which php-fpm refuses the configuration of `shard`, testing halves down to single pools. None when
/// it accepts it.
///
/// # Errors
/// As [`try_shard`], and when the refusal is no pool's fault.
///
/// # Cancel safety
/// Dropping the future ends the run under way.
pub async fn find_bad_pools(
    tool: &Tool,
    files: &PoolFiles,
    shard: &ShardPlan,
    choices: ShardChoices<'_>,
) -> Result<Vec<Quarantined>, TrialError> {
    let part = |placements: &[Placement]| ShardPlan { placements: placements.to_vec(), ..shard.clone() };
    let mut bad: Vec<Quarantined> = Vec::new();
    let mut groups: VecDeque<&[Placement]> = VecDeque::from([&shard.placements[..]]);
    while let Some(group) = groups.pop_front() {
        let Some(first) = group.first() else { continue };
        let Trial::Refused { messages, origin } = try_shard(tool, files, &part(group), choices).await? else { continue };
        if group.len() > 1 {
            let (left, right) = group.split_at(group.len() / 2);
            groups.extend([left, right]);
            continue;
        }
        bad.push(quarantined(first, messages.into_iter().next().unwrap_or_default(), origin, files));
    }
    whole_fault(&bad, shard)?;
    if bad.is_empty() {
        return Ok(bad);
    }
    // Pools that are good alone may still not go together.
    let good: Vec<Placement> =
        shard.placements.iter().filter(|placement| bad.iter().all(|one| one.pool != placement.pool)).cloned().collect();
    if good.is_empty() {
        return Ok(bad);
    }
    match try_shard(tool, files, &part(&good), choices).await? {
        Trial::Accepted => Ok(bad),
        Trial::Refused { messages, .. } => Err(whole(shard, messages.into_iter().next().unwrap_or_default())),
    }
}

fn whole(shard: &ShardPlan, message: String) -> TrialError {
    TrialError::Whole { shard: shard.id.to_string(), message }
}

/// When every pool is refused in the same words that name none of them, the fault lies elsewhere: php.ini, the binary.
fn whole_fault(bad: &[Quarantined], shard: &ShardPlan) -> Result<(), TrialError> {
    let Some(first) = bad.first() else { return Ok(()) };
    let message = &first.problem.message;
    let same = bad.len() == shard.placements.len() && bad.iter().all(|one| one.problem.message == *message);
    let names_none = !message.starts_with("[pool ") && line_number(message).is_none();
    if same && names_none { Err(whole(shard, message.clone())) } else { Ok(()) }
}

fn quarantined(placement: &Placement, message: String, origin: Option<Origin>, files: &PoolFiles) -> Quarantined {
    let pool = files.pools.iter().find(|pool| pool.name == placement.pool);
    let origin = origin.or_else(|| pool.map(|pool| pool.origin.clone()));
    let mut problem = Problem::error(message);
    if let Some(origin) = origin {
        let line = pool.and_then(|pool| pool.lines.iter().find(|line| line.origin == origin));
        let text = line.map(|line| line.text.as_slice()).or(pool.map(|pool| pool.header.as_slice()));
        problem = problem.at(origin.file.as_path(), origin.line).excerpt(String::from_utf8_lossy(text.unwrap_or_default()));
    }
    Quarantined { pool: placement.pool.clone(), problem }
}
