//! Control groups of masters: one for each generation below one for its shard, where the service manager lets us.
//!
//! Groups are found by name: a supervisor that adopts masters, or goes on as another binary, needs no record of them. Where
//! there are none, masters run all the same; what that means for the settings is told in the log and by `status`.

use std::path::PathBuf;

use super::supervisor::Supervisor;
use crate::model::ids::{InstanceName, MasterId};
use crate::model::settings::Limits;
use crate::model::snapshot::CgroupView;
use crate::sys::cgroup::{CgroupError, Delegated, GroupLimits};
use crate::sys::topology::Roots;

/// What became of the group of the last master that was started.
#[derive(Debug, Default)]
pub(super) struct GroupBook {
    group: Option<PathBuf>,
    /// Why there is no group, or a limit is not held.
    lacks: Vec<String>,
}

impl GroupBook {
    /// Gives what `status` shows.
    pub(super) fn view(&self, limits: &Limits) -> CgroupView {
        let base = self.group.as_deref().and_then(|group| group.parent()?.parent()).map(|base| base.display().to_string());
        CgroupView { base, limits: wanted(limits) != GroupLimits::default(), lacks: self.lacks.clone() }
    }
}

/// Gives the name of a shard's group. No instance's, group's or shard's name has an '@' in it.
fn name(instance: &InstanceName, id: &MasterId) -> String {
    format!("{instance}@{}.{}", id.shard.group, id.shard.index)
}

fn wanted(limits: &Limits) -> GroupLimits {
    GroupLimits { memory_max: limits.memory_max, cpu_weight: limits.cpu_weight }
}

impl Supervisor {
    /// Makes the group of a master that is about to start; none where that cannot be.
    pub(super) fn make_group(&mut self, id: &MasterId) -> Option<PathBuf> {
        let made = Delegated::find(&Roots::default())
            .and_then(|delegated| delegated.make(&name(&self.settings.instance, id), id.generation.0, wanted(&self.settings.limits)));
        let (group, lacks) = match made {
            Ok((group, missed)) => (Some(group), missed),
            Err(error) => (None, vec![error]),
        };
        self.note_groups(group.clone(), &lacks);
        group
    }

    /// Notes that a master is not in its group after all.
    pub(super) fn note_outside(&mut self, why: &dyn std::error::Error) {
        tracing::warn!(error = %super::chain(why), "master started outside its control group");
        self.groups = GroupBook { group: None, lacks: vec![super::chain(why)] };
    }

    fn note_groups(&mut self, group: Option<PathBuf>, lacks: &[CgroupError]) {
        let lacks: Vec<String> = lacks.iter().map(|error| super::chain(error)).collect();
        if lacks != self.groups.lacks {
            let asked = wanted(&self.settings.limits) != GroupLimits::default();
            for why in &lacks {
                if asked {
                    tracing::warn!(why, "control groups do not limit masters as the settings want");
                } else {
                    tracing::debug!(why, "masters have no control groups");
                }
            }
        }
        self.groups = GroupBook { group, lacks };
    }

    /// Kills every process of a generation, also those that scripts started and that left its process group.
    pub(super) fn kill_group(&self, id: &MasterId) {
        let killed =
            Delegated::find(&Roots::default()).and_then(|delegated| delegated.kill(&name(&self.settings.instance, id), id.generation.0));
        if let Err(error) = killed {
            tracing::debug!(shard = %id.shard, gen = id.generation.0, error = %super::chain(&error), "control group was not killed");
        }
    }

    /// Removes the groups in which nobody is any more.
    pub(super) fn sweep_groups(&self) {
        if let Ok(delegated) = Delegated::find(&Roots::default()) {
            delegated.sweep(&format!("{}@", self.settings.instance));
        }
    }
}
