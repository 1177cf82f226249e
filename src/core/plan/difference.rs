//! What differs between a plan that runs and one that would.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;

use crate::model::ids::{PoolName, ShardId};
use crate::model::listen::ListenerPlan;
use crate::model::plan::{Placement, Plan, PoolPlan, ShardPlan};
use crate::model::preview::{PoolChange, PoolFate};

/// What one master is, or would be, made from.
#[derive(Debug, Clone, Copy)]
pub struct Make<'a> {
    /// Its shard as planned.
    pub plan: &'a ShardPlan,
    /// The generated configuration.
    pub config: &'a [u8],
    /// Digests of everything else by what they are of; empty where it is not known.
    pub parts: &'a BTreeMap<String, String>,
}

/// Gives what differs between two masters of a shard, and the pools whose own lines do.
pub fn shard_difference(old: Make<'_>, new: Make<'_>) -> (Vec<String>, BTreeSet<PoolName>) {
    let mut reasons = Vec::new();
    differs(&mut reasons, "CPUs", &cpus(old.plan), &cpus(new.plan));
    differs(&mut reasons, "process.max", &or_none(old.plan.process_max), &or_none(new.plan.process_max));
    let (before, after) = (by_pool(old.plan), by_pool(new.plan));
    reasons.extend(before.keys().filter(|pool| !after.contains_key(*pool)).map(|pool| format!("pool {pool} leaves it")));
    reasons.extend(after.keys().filter(|pool| !before.contains_key(*pool)).map(|pool| format!("pool {pool} comes to it")));
    let (lines_before, lines_after) = (sections(old.config), sections(new.config));
    let mut rewritten = BTreeSet::new();
    for (pool, placement) in &after {
        let Some(former) = before.get(*pool) else { continue };
        let placed = reasons.len();
        placement_difference(&mut reasons, former, placement);
        // The numbers and names that polyfpm decides are among the lines too: they have been told.
        if reasons.len() == placed && lines_before.get(pool.as_str()) != lines_after.get(pool.as_str()) {
            reasons.push(format!("lines of pool {pool}"));
            rewritten.insert((*pool).clone());
        }
    }
    if lines_before.get(GLOBAL) != lines_after.get(GLOBAL) {
        reasons.push("lines of [global]".to_owned());
    }
    let order = |plan: &ShardPlan| plan.pools().cloned().collect::<Vec<_>>();
    if reasons.is_empty() && order(old.plan) != order(new.plan) {
        reasons.push("order of the pools".to_owned());
    }
    part_difference(&mut reasons, old.parts, new.parts);
    if reasons.is_empty() {
        reasons.push("something that was not recorded when its master was started".to_owned());
    }
    (reasons, rewritten)
}

/// Gives every pool that would not stay as it is; `rewritten` are those whose own lines differ.
pub fn pool_differences(old: &Plan, new: &Plan, rewritten: &BTreeSet<PoolName>) -> Vec<PoolChange> {
    let bad: BTreeMap<&PoolName, String> = new.quarantined.iter().map(|bad| (&bad.pool, bad.problem.to_string())).collect();
    let known = |pool: &PoolName| old.quarantined.iter().any(|bad| bad.pool == *pool);
    let (before, after) = (pools(old), pools(new));
    let mut changes = Vec::new();
    for (name, pool) in &after {
        let change = match before.get(name) {
            None => Some((
                PoolFate::Added,
                vec![format!("{} workers, {}, on {}", pool.workers.max_children, pool.routing, listed(shards(pool)))],
            )),
            Some(former) => pool_difference(former, pool, rewritten.contains(*name)),
        };
        let kept = bad.get(name).filter(|_| !known(name)).map(|why| (PoolFate::KeptOut, vec![why.clone()]));
        changes.extend(kept.or(change).map(|(change, details)| PoolChange { pool: (*name).clone(), change, details }));
    }
    for name in before.keys().filter(|name| !after.contains_key(*name)) {
        let (change, details) = bad.get(name).map_or((PoolFate::Removed, Vec::new()), |why| (PoolFate::KeptOut, vec![why.clone()]));
        changes.push(PoolChange { pool: (*name).clone(), change, details });
    }
    let new_and_bad = bad.iter().filter(|(name, _)| !before.contains_key(*name) && !after.contains_key(*name) && !known(name));
    changes.extend(new_and_bad.map(|(name, why)| PoolChange {
        pool: (*name).clone(),
        change: PoolFate::KeptOut,
        details: vec![why.clone()],
    }));
    changes
}

fn pool_difference(old: &PoolPlan, new: &PoolPlan, rewritten: bool) -> Option<(PoolFate, Vec<String>)> {
    let mut details = Vec::new();
    differs(&mut details, "group", &old.group, &new.group);
    differs(&mut details, "routing", &old.routing, &new.routing);
    differs(&mut details, "shards", &listed(shards(old)), &listed(shards(new)));
    let places = |pool: &PoolPlan| pool.servers.iter().map(|server| server.endpoint.to_string()).collect::<Vec<_>>().join(", ");
    differs(&mut details, "listens at", &places(old), &places(new));
    let moved = !details.is_empty();
    differs(&mut details, "workers", &old.workers.max_children, &new.workers.max_children);
    differs(&mut details, "upstream", &old.upstream, &new.upstream);
    if rewritten {
        details.push("its lines".to_owned());
    }
    (!details.is_empty()).then_some((if moved { PoolFate::Moved } else { PoolFate::Changed }, details))
}

fn placement_difference(reasons: &mut Vec<String>, old: &Placement, new: &Placement) {
    let pool = &new.pool;
    differs(reasons, &format!("workers of pool {pool}"), &old.workers.max_children, &new.workers.max_children);
    if old.workers.max_children == new.workers.max_children && old.workers != new.workers {
        reasons.push(format!("spare workers of pool {pool}"));
    }
    let ListenerPlan { endpoint, handover, access, backlog_connections, alias, .. } = &new.listener;
    differs(reasons, &format!("socket of pool {pool}"), &old.listener.endpoint, endpoint);
    if old.listener.handover != *handover {
        reasons.push(format!("how the socket of pool {pool} changes hands"));
    }
    if old.listener.access != *access {
        reasons.push(format!("who may connect to pool {pool}"));
    }
    differs(reasons, &format!("queue length of pool {pool}"), &old.listener.backlog_connections, backlog_connections);
    differs(reasons, &format!("inner name of the socket of pool {pool}"), &old.listener.alias, alias);
}

fn part_difference(reasons: &mut Vec<String>, old: &BTreeMap<String, String>, new: &BTreeMap<String, String>) {
    if old.is_empty() {
        return;
    }
    let names: BTreeSet<&String> = old.keys().chain(new.keys()).collect();
    for name in names {
        match (old.get(name), new.get(name)) {
            (Some(before), Some(after)) if before == after => {}
            (Some(_), Some(_)) => reasons.push(name.clone()),
            (None, _) => reasons.push(format!("{name} is new")),
            (Some(_), None) => reasons.push(format!("{name} is gone")),
        }
    }
}

fn differs<T: Display + PartialEq>(list: &mut Vec<String>, what: &str, old: &T, new: &T) {
    if old != new {
        list.push(format!("{what}: {old} → {new}"));
    }
}

fn cpus(plan: &ShardPlan) -> String {
    plan.cpus.as_ref().map_or_else(|| "any".to_owned(), ToString::to_string)
}

fn or_none(number: Option<u32>) -> String {
    number.map_or_else(|| "none".to_owned(), |number| number.to_string())
}

fn by_pool(plan: &ShardPlan) -> BTreeMap<&PoolName, &Placement> {
    plan.placements.iter().map(|placement| (&placement.pool, placement)).collect()
}

fn pools(plan: &Plan) -> BTreeMap<&PoolName, &PoolPlan> {
    plan.pools.iter().map(|pool| (&pool.pool, pool)).collect()
}

fn shards(pool: &PoolPlan) -> BTreeSet<&ShardId> {
    pool.servers.iter().flat_map(|server| &server.shards).collect()
}

fn listed(shards: BTreeSet<&ShardId>) -> String {
    shards.into_iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// No pool can have this name: php-fpm takes it for its own section.
const GLOBAL: &str = "global";

/// Gives the lines of each section of a generated configuration.
fn sections(config: &[u8]) -> BTreeMap<String, Vec<Vec<u8>>> {
    let mut found: BTreeMap<String, Vec<Vec<u8>>> = BTreeMap::new();
    let mut name = GLOBAL.to_owned();
    for line in config.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty()) {
        match line.strip_prefix(b"[").and_then(|rest| rest.strip_suffix(b"]")) {
            Some(header) => name = String::from_utf8_lossy(header).into_owned(),
            None => found.entry(name.clone()).or_default().push(line.to_vec()),
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::endpoint::Endpoint;
    use crate::model::ids::GroupName;
    use crate::model::listen::{Access, Handover};
    use crate::model::pool::{Quarantined, WorkerNumbers};
    use crate::model::problem::Problem;

    fn placement(pool: &str, workers: u32) -> Placement {
        let listener = ListenerPlan {
            pool: PoolName::new(pool),
            endpoint: Endpoint::Unix(format!("/run/{pool}.sock").into()),
            handover: Handover::Rename,
            access: Access::default(),
            backlog_connections: 511,
            alias: format!("/.polyfpm/{pool}"),
        };
        Placement { pool: PoolName::new(pool), workers: WorkerNumbers { max_children: workers, ..WorkerNumbers::default() }, listener }
    }

    fn shard(cpus: &str, placements: Vec<Placement>) -> ShardPlan {
        ShardPlan { id: ShardId::new(&GroupName::new("default"), 1), cpus: Some(cpus.parse().unwrap()), placements, process_max: None }
    }

    fn parts(of: &[(&str, &str)]) -> BTreeMap<String, String> {
        of.iter().map(|(name, digest)| ((*name).to_owned(), (*digest).to_owned())).collect()
    }

    #[test]
    fn every_part_that_differs_is_a_reason() {
        let old = shard("0", vec![placement("a", 4), placement("b", 4), placement("c", 4)]);
        let mut new = shard("1", vec![placement("a", 6), placement("b", 4), placement("d", 1)]);
        new.placements[1].listener.backlog_connections = 10;
        let (before, after) = (parts(&[("binary x", "1"), ("php.ini y", "1")]), parts(&[("binary x", "2"), ("extension z", "1")]));
        let of = |plan, config: &'static str, parts| Make { plan, config: config.as_bytes(), parts };
        let (reasons, rewritten) = shard_difference(
            of(&old, "[global]\nlog_level = notice\n[a]\npm = static", &before),
            of(&new, "[global]\nlog_level = debug\n[a]\npm = dynamic", &after),
        );
        assert_eq!(
            reasons,
            [
                "CPUs: 0 → 1",
                "pool c leaves it",
                "pool d comes to it",
                "workers of pool a: 4 → 6",
                "queue length of pool b: 511 → 10",
                "lines of [global]",
                "binary x",
                "extension z is new",
                "php.ini y is gone",
            ]
        );
        assert!(rewritten.is_empty(), "what polyfpm decides is told as what it is");
    }

    #[test]
    fn a_pools_own_lines_are_a_reason() {
        let plan = shard("0", vec![placement("a", 4), placement("b", 4)]);
        let none = BTreeMap::new();
        let of = |config: &'static str| Make { plan: &plan, config: config.as_bytes(), parts: &none };
        let (reasons, rewritten) = shard_difference(of("[a]\nx = 1\n[b]\ny = 1"), of("[a]\nx = 1\n\n[b]\ny = 2"));
        assert_eq!(reasons, ["lines of pool b"]);
        assert_eq!(rewritten, BTreeSet::from([PoolName::new("b")]));
        let (reasons, _) = shard_difference(of("[a]\nx = 1"), of("[a]\nx = 1"));
        assert_eq!(reasons.len(), 1, "a fingerprint that differs always has a reason: {reasons:?}");
    }

    #[test]
    fn bad_pools_are_told_once() {
        let bad = Quarantined { pool: PoolName::new("bad"), problem: Problem::error("user 'x' does not exist") };
        let (old, new) = (Plan::default(), Plan { quarantined: vec![bad.clone()], ..Plan::default() });
        let changes = pool_differences(&old, &new, &BTreeSet::new());
        assert_eq!(changes.len(), 1);
        assert_eq!(changes[0].change, PoolFate::KeptOut);
        assert_eq!(pool_differences(&new, &new, &BTreeSet::new()), []);
    }
}
