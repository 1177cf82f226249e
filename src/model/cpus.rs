//! Sets of CPUs in the kernel's list notation.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The highest CPU number accepted: well above Linux's `NR_CPUS` limit of 8192.
pub const MAX_CPU: u32 = 65_535;

/// A set of CPU numbers, written as `0-3,8`.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct CpuSet(BTreeSet<u32>);

impl CpuSet {
    /// Tells whether no CPU is in the set.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Gives how many CPUs are in the set.
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// Tells whether `cpu` is in the set.
    pub fn contains(&self, cpu: u32) -> bool {
        self.0.contains(&cpu)
    }

    /// Gives the CPUs in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        self.0.iter().copied()
    }

    /// Gives the CPUs that are in this set and not in `other`.
    #[must_use]
    pub fn without(&self, other: &Self) -> Self {
        Self(self.0.difference(&other.0).copied().collect())
    }
}

impl FromIterator<u32> for CpuSet {
    fn from_iter<I: IntoIterator<Item = u32>>(cpus: I) -> Self {
        Self(cpus.into_iter().collect())
    }
}

impl fmt::Display for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut cpus = self.0.iter().copied().peekable();
        let mut separator = "";
        while let Some(first) = cpus.next() {
            let mut last = first;
            while cpus.next_if_eq(&last.saturating_add(1)).is_some() {
                last += 1;
            }
            if first == last {
                write!(f, "{separator}{first}")?;
            } else {
                write!(f, "{separator}{first}-{last}")?;
            }
            separator = ",";
        }
        Ok(())
    }
}

/// Says which part of a CPU list cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("'{part}' is no CPU or range of CPUs up to {MAX_CPU}: write 0-3,8 or 0-31:1/2")]
pub struct CpuSetError {
    /// The part between two commas that is wrong.
    pub part: String,
}

impl FromStr for CpuSet {
    type Err = CpuSetError;

    /// Reads the kernel's list format: `0-3,8`, and groups such as `0-31:1/2` (first 1 of every 2). Empty text is the empty set.
    ///
    /// Source: Linux `Documentation/admin-guide/kernel-parameters.rst`, "cpu lists".
    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let mut cpus = BTreeSet::new();
        let text = text.trim();
        if text.is_empty() {
            return Ok(Self(cpus));
        }
        for part in text.split(',') {
            let read = read_part(part.trim()).ok_or_else(|| CpuSetError { part: part.to_owned() })?;
            cpus.extend(read);
        }
        Ok(Self(cpus))
    }
}

fn read_part(part: &str) -> Option<Vec<u32>> {
    let (range, group) = match part.split_once(':') {
        Some((range, group)) => (range, Some(group.split_once('/')?)),
        None => (part, None),
    };
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last) = (number(first)?, number(last)?);
    if first > last {
        return None;
    }
    let Some((used, size)) = group else { return Some((first..=last).collect()) };
    let (used, size) = (number(used)?, number(size)?);
    if used == 0 || used > size {
        return None;
    }
    Some((first..=last).filter(|cpu| (cpu - first) % size < used).collect())
}

fn number(text: &str) -> Option<u32> {
    let value: u32 = text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())??;
    (value <= MAX_CPU).then_some(value)
}

impl Serialize for CpuSet {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for CpuSet {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_read_and_written_in_the_kernels_form() {
        for (text, shown) in
            [("", ""), ("0", "0"), ("0-3", "0-3"), ("3,1,2", "1-3"), ("0-7:1/2", "0,2,4,6"), (" 0-1 , 4\n", "0-1,4"), ("8-9,0", "0,8-9")]
        {
            assert_eq!(text.parse::<CpuSet>().unwrap().to_string(), shown, "{text}");
        }
    }

    #[test]
    fn what_is_no_list_is_refused() {
        for text in ["a", "3-1", "1,,2", "-1", "+1", "0-7:0/2", "0-7:3/2", "70000", "0-99999999999"] {
            assert!(text.parse::<CpuSet>().is_err(), "{text}");
        }
    }
}
