//! From pools, settings and host to shards and placements.
//!
//! [`plan`] answers what should run: which pools share masters, how many shards each group has and on which CPUs, on which
//! shards each pool lives with how many workers, how its clients reach it, and under which names its sockets are made.
//! It decides and does nothing: the runtime compares the answer with what runs. The same input gives the same plan, and a
//! plan made with the previous one at hand moves as little as it can, because whatever moves costs a restart of a shard.
//!
//! The steps, one module each: `admit` keeps out pools that php-fpm would refuse or that want another's socket, `groups`
//! sorts the rest, `cpus` counts shards, `reach` finds each pool's clients, `routing` decides by them, `seats` places,
//! `division` divides, `listeners` names sockets, `hazards` tells what voids the promise.

mod admit;
mod assemble;
mod cpus;
mod difference;
mod division;
mod fingerprint;
mod groups;
mod hazards;
mod listeners;
mod map;
mod names;
mod reach;
mod routing;
mod seats;

#[cfg(test)]
mod tests;

pub use cpus::{Laid, lay_out};
pub use difference::{Make, pool_differences, shard_difference};
pub use fingerprint::placement_fingerprint_text;
pub use names::upstream_name;

use crate::model::clients::Clients;
use crate::model::host::Host;
use crate::model::plan::Plan;
use crate::model::pool::{PoolFiles, Quarantined};
use crate::model::problem::Problem;
use crate::model::settings::{GroupSettings, Settings};

/// Everything a plan is made from.
#[derive(Debug, Clone, Copy)]
pub struct PlanInput<'a> {
    /// The settings.
    pub settings: &'a Settings,
    /// The operator's pool files.
    pub files: &'a PoolFiles,
    /// Pools already known to be bad; they stay out even where `files` has them.
    pub quarantined: &'a [Quarantined],
    /// What NGINX's configuration says of the pools.
    pub clients: &'a Clients,
    /// The host.
    pub host: &'a Host,
    /// The plan that runs now, if one does: pools stay where it has them.
    pub previous: Option<&'a Plan>,
}

/// A plan and what is to be said about it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// What should run. Complete and consistent whatever the problems are.
    pub plan: Plan,
    /// What the operator should know. The problems of quarantined pools are in [`Plan::quarantined`] and not repeated here.
    pub problems: Vec<Problem>,
}

/// Gives the plan for `input`.
pub fn plan(input: &PlanInput<'_>) -> Planned {
    let admit::Admitted { candidates, quarantined } = admit::admit(input);
    let mut problems = Vec::new();
    let groups = groups::sort(input, &candidates, &mut problems);
    let reach = reach::Reach::new(input, &candidates);
    let mut assembly = assemble::Assembly::new(input, &candidates, &reach);
    for group in &groups {
        assembly.add_group(group);
    }
    let (mut plan, found) = assembly.finish();
    problems.extend(found);
    plan.quarantined = quarantined;
    plan.watched = watched(input);
    Planned { plan, problems }
}

/// Draws the map of a plan again whose shards were given other CPUs.
pub fn redraw(plan: &mut Plan, groups: &[GroupSettings], host: &Host) {
    let reasons = groups.iter().map(|group| (group.name.clone(), cpus::lay_out(group, host).reason)).collect();
    plan.map = map::draw(host, &plan.shards, reasons);
}

/// Gives the settings file, every pool file and the directories in which new pool files may appear.
fn watched(input: &PlanInput<'_>) -> Vec<std::path::PathBuf> {
    let mut paths = vec![input.settings.file.clone()];
    paths.extend(input.files.files.iter().cloned());
    paths.extend(input.files.patterns.iter().filter_map(|pattern| {
        pattern.ancestors().skip(1).find(|parent| !parent.to_string_lossy().contains(['*', '?', '['])).map(std::path::Path::to_path_buf)
    }));
    paths.sort();
    paths.dedup();
    paths
}
