//! Names and numbers by which instances, groups, pools, shards and masters are told apart.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

macro_rules! name_type {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $name(String);

        impl $name {
            /// Wraps a text that its reader has already checked.
            pub fn new(text: impl Into<String>) -> Self {
                Self(text.into())
            }

            /// Gives the name as text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    };
}

name_type! {
    /// One supervisor with one settings file: `php8.2`, `ea-php82`. The file's stem.
    InstanceName
}
name_type! {
    /// Pools that share masters. `default` holds every pool no other group names.
    GroupName
}
name_type! {
    /// A php-fpm pool, exactly as its section header spells it the first time.
    PoolName
}

impl GroupName {
    /// The group of every pool that no `[group.NAME]` claims.
    pub const DEFAULT: &'static str = "default";
}

/// A slot of a group, counted from 1. Outlives any master. Written `store/2`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ShardId {
    /// The group the shard belongs to.
    pub group: GroupName,
    /// Its number in the group, from 1.
    pub index: u16,
}

impl ShardId {
    /// Names shard `index` (from 1) of `group`.
    pub fn new(group: &GroupName, index: u16) -> Self {
        Self { group: group.clone(), index }
    }
}

impl fmt::Display for ShardId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.group, self.index)
    }
}

/// Says why a text is no shard name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' names no shard: write GROUP/N, such as default/1")]
pub struct ShardIdError {
    /// The text as given.
    pub text: String,
}

impl FromStr for ShardId {
    type Err = ShardIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let error = || ShardIdError { text: text.to_owned() };
        let (group, index) = text.rsplit_once('/').ok_or_else(error)?;
        let index: u16 = index.parse().map_err(|_| error())?;
        if group.is_empty() || index == 0 {
            return Err(error());
        }
        Ok(Self { group: GroupName::new(group), index })
    }
}

/// Counts the masters a shard has had, from 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Generation(pub u64);

impl Generation {
    /// Gives the number after this one.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

impl fmt::Display for Generation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// One master: a generation of a shard. Written `store/2#7`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MasterId {
    /// The slot it serves.
    pub shard: ShardId,
    /// Which of the slot's masters it is.
    pub generation: Generation,
}

impl MasterId {
    /// Names generation `generation` of `shard`.
    pub fn new(shard: &ShardId, generation: Generation) -> Self {
        Self { shard: shard.clone(), generation }
    }
}

impl fmt::Display for MasterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}#{}", self.shard, self.generation)
    }
}

macro_rules! text_serde {
    ($name:ident) => {
        impl Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.collect_str(self)
            }
        }
    };
}
text_serde!(ShardId);
text_serde!(MasterId);

impl<'de> Deserialize<'de> for ShardId {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_shard_reads_back_as_it_is_written() {
        let shard: ShardId = "store/2".parse().unwrap();
        assert_eq!(shard.to_string(), "store/2");
        assert_eq!(MasterId::new(&shard, Generation(7)).to_string(), "store/2#7");
    }

    #[test]
    fn what_names_no_shard_is_refused() {
        for text in ["", "store", "store/", "/1", "store/0", "store/x", "store/70000"] {
            assert!(text.parse::<ShardId>().is_err(), "{text}");
        }
    }
}
