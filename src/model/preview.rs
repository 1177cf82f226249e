//! What a reload would change against what runs.

use serde::{Deserialize, Serialize};

use super::ids::{PoolName, ShardId};

/// What would become of one shard.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum ShardFate {
    /// It serves, and would be handed over.
    Handover,
    /// No master serves it, and one would be started.
    Start,
    /// It is parked, and would take the change in when it is unparked.
    Parked,
    /// The plan has it no longer: it would leave.
    Retire,
}

impl ShardFate {
    /// Gives the word as shown.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Handover => "handover",
            Self::Start => "start",
            Self::Parked => "parked",
            Self::Retire => "retire",
        }
    }
}

/// One shard that would not stay as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShardChange {
    /// Which one.
    pub shard: ShardId,
    /// What would become of it.
    pub change: ShardFate,
    /// Why: every part that differs, a fragment each.
    pub reasons: Vec<String>,
}

/// What would become of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum PoolFate {
    /// It would run and does not.
    Added,
    /// It runs and would not.
    Removed,
    /// It would be on other shards, or reached otherwise.
    Moved,
    /// It would stay where it is, with something else.
    Changed,
    /// A fault of its own would keep it out, or as it last was good.
    KeptOut,
}

impl PoolFate {
    /// Gives the word as shown.
    pub const fn word(self) -> &'static str {
        match self {
            Self::Added => "added",
            Self::Removed => "removed",
            Self::Moved => "moved",
            Self::Changed => "changed",
            Self::KeptOut => "kept out",
        }
    }
}

/// One pool that would not stay as it is.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct PoolChange {
    /// Which one.
    pub pool: PoolName,
    /// What would become of it.
    pub change: PoolFate,
    /// What of it differs, a fragment each.
    pub details: Vec<String>,
}

/// What a reload would do.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Preview {
    /// Shards that would change, in the order of their turns.
    pub shards: Vec<ShardChange>,
    /// Pools that would change.
    pub pools: Vec<PoolChange>,
}

impl Preview {
    /// Tells whether nothing would change.
    pub fn is_empty(&self) -> bool {
        self.shards.is_empty() && self.pools.is_empty()
    }
}
