//! What one shard is made from: its share of the plan, rendered and digested.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::PathBuf;
use std::rc::Rc;

use crate::edge::fpm::IniTexts;
use crate::model::ids::PoolName;
use crate::model::plan::{Fingerprint, ShardPlan};
use crate::model::settings::Warmup;

/// A pool's private status listener: where verification, warm-up and status go (P28, P31).
#[derive(Debug, Clone, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct StatusPoint {
    /// The pool.
    pub pool: PoolName,
    /// The name php-fpm is told.
    pub alias: String,
    /// The path that answers pings there.
    pub ping_path: String,
    /// What a ping answers.
    pub ping_response: String,
    /// The path that answers status.
    pub status_path: String,
}

/// Everything a master of one shard is started from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Blueprint {
    /// The shard as planned.
    pub plan: ShardPlan,
    /// The generated configuration.
    pub config: Vec<u8>,
    /// The private status listeners, one for each pool that has one.
    pub status: Vec<StatusPoint>,
    /// The warm-up requests of its pools.
    pub warmups: Vec<Warmup>,
    /// The digest of all that matters.
    pub fingerprint: Fingerprint,
    /// A digest of each part that is not its configuration, by which a change is told; empty where it is not known.
    pub parts: BTreeMap<String, String>,
    /// The php-fpm binary.
    pub binary: PathBuf,
    /// The php.ini files it is read with.
    pub ini: Rc<IniTexts>,
    /// Its arguments besides the configuration file.
    pub arguments: Vec<OsString>,
    /// The environment of the master, without what polyfpm adds.
    pub environment: Vec<(OsString, OsString)>,
    /// Whether the master tells readiness to a notify socket (P30).
    pub notifies: Notifies,
    /// Whether fd 2 of the master stays the supervisor's own, because the operator logs there.
    pub stderr: StderrChoice,
}

impl Blueprint {
    /// Gives the same with these pools alone, and nothing to warm up; `None` when it has none of them.
    pub(super) fn only(&self, pools: &BTreeSet<&PoolName>) -> Option<Self> {
        let kept: Vec<bool> = self.plan.placements.iter().map(|placement| pools.contains(&placement.pool)).collect();
        if !kept.contains(&true) {
            return None;
        }
        let config = with_sections(&self.config, &kept)?;
        let mut plan = self.plan.clone();
        plan.placements.retain(|placement| pools.contains(&placement.pool));
        let status = self.status.iter().filter(|point| pools.contains(&point.pool)).cloned().collect();
        Some(Self { plan, config, status, warmups: Vec::new(), ..self.clone() })
    }
}

/// Leaves pools out of a generated configuration: `[global]` comes first, then a section for each placement, in their order.
/// php-fpm reads each line by itself, so a line that begins with `[` is a header wherever it stands.
fn with_sections(config: &[u8], kept: &[bool]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(config.len());
    let mut header = 0_usize;
    for line in config.split_inclusive(|byte| *byte == b'\n') {
        header += usize::from(line.trim_ascii_start().starts_with(b"["));
        // The first one is `[global]`.
        let wanted = header.checked_sub(2).is_none_or(|at| kept.get(at).copied().unwrap_or(false));
        if wanted {
            out.extend_from_slice(line);
        }
    }
    (header == kept.len() + 1).then_some(out)
}

/// How readiness is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Notifies {
    /// By READY on its private notify socket.
    Yes,
    /// Not at all: the status socket answering is readiness.
    No,
}

/// Where a master's standard error goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StderrChoice {
    /// To a file of its generation, so that start-up errors can be shown.
    File,
    /// To the supervisor's own: `error_log = /proc/self/fd/2`, as in containers.
    Inherit,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sections_are_left_out_by_their_place() {
        let config = b"; x\n[global]\na = 1\n[one]\nlisten = /a\n [two]\nenv[X] = '['\n[three]\nlisten = /c\n";
        let kept = with_sections(config, &[false, true, false]).unwrap();
        assert_eq!(kept, b"; x\n[global]\na = 1\n [two]\nenv[X] = '['\n");
        assert_eq!(with_sections(config, &[true, true, true]).unwrap(), config);
        assert_eq!(with_sections(config, &[true]), None, "it is not what the plan says");
    }
}
