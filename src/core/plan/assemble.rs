//! Puts the decisions together.

use std::collections::HashMap;
use std::path::Path;

use crate::model::ids::{GroupName, PoolName, ShardId};
use crate::model::plan::{Placement, Plan, PoolPlan, Routing, ShardPlan, UpstreamServer};
use crate::model::problem::Problem;

use super::admit::Candidate;
use super::groups::Group;
use super::reach::{PoolClients, Reach};
use super::routing::{Decision, Question, decide};
use super::seats::{Item, Seat, seat};
use super::{PlanInput, cpus, division, hazards, listeners, map, names};

/// A plan in the making.
pub(super) struct Assembly<'p, 'a> {
    input: &'p PlanInput<'a>,
    candidates: &'p [Candidate<'a>],
    reach: &'p Reach<'a>,
    before: Before<'a>,
    /// Pools that listen in the directory of the shards' sockets, which is polyfpm's own.
    intruders: Vec<(&'a PoolName, &'a Path)>,
    shards: Vec<ShardPlan>,
    /// With their positions in the files.
    pools: Vec<(usize, PoolPlan)>,
    /// Why each group has its shards.
    reasons: Vec<(GroupName, String)>,
    problems: Vec<Problem>,
}

/// A pool of the group at hand with everything known of it.
struct Decided<'p, 'a> {
    at: usize,
    candidate: &'p Candidate<'a>,
    clients: &'p PoolClients<'a>,
    decision: Decision,
}

impl<'p, 'a> Assembly<'p, 'a> {
    pub(super) fn new(input: &'p PlanInput<'a>, candidates: &'p [Candidate<'a>], reach: &'p Reach<'a>) -> Self {
        let before = Before::new(input.previous);
        let listens = input.host.listens.iter().filter_map(|(pool, listen)| listen.endpoint.path().map(|path| (pool, path)));
        let intruders = listens.filter(|(_, path)| path.parent() == Some(input.settings.listen.directory.as_path())).collect();
        Self {
            input,
            candidates,
            reach,
            before,
            intruders,
            shards: Vec::new(),
            pools: Vec::new(),
            reasons: Vec::new(),
            problems: Vec::new(),
        }
    }

    /// Adds a group's shards, its pools and what is to be said of them.
    pub(super) fn add_group(&mut self, group: &Group<'_>) {
        self.problems.extend(cpus::absent(self.input.settings, group.settings, &self.input.host.topology.usable));
        let laid = cpus::lay_out(group.settings, self.input.host);
        self.reasons.push((group.settings.name.clone(), laid.reason));
        let count = u16::try_from(laid.sets.len()).unwrap_or(u16::MAX);
        let mut shards: Vec<ShardPlan> = (1..=count)
            .zip(laid.sets)
            .map(|(index, cpus)| ShardPlan {
                id: ShardId::new(&group.settings.name, index),
                cpus,
                placements: Vec::new(),
                process_max: None,
            })
            .collect();
        let decided: Vec<Decided<'p, 'a>> = group.pools.iter().filter_map(|at| self.decide(*at, group, count)).collect();
        let seats = self.seat(&decided, group, count);
        for (decided, seat) in decided.into_iter().zip(&seats) {
            self.problems.extend(hazards::of_pool(decided.candidate, decided.clients, decided.decision.routing));
            self.place(decided, seat, (&group.settings.name, shards.as_mut_slice()));
        }
        self.shards.append(&mut shards);
    }

    /// Gives the shards and pools, and everything that is to be said.
    pub(super) fn finish(mut self) -> (Plan, Vec<Problem>) {
        self.problems.extend(hazards::of_backlog(self.input, self.candidates));
        self.problems.extend(share_process_max(self.input, &mut self.shards));
        self.pools.sort_by_key(|(at, _)| *at);
        let pools = self.pools.into_iter().map(|(_, pool)| pool).collect();
        let map = map::draw(self.input.host, &self.shards, self.reasons);
        (Plan { shards: self.shards, pools, quarantined: Vec::new(), map, watched: Vec::new() }, self.problems)
    }

    fn decide(&mut self, at: usize, group: &Group<'_>, count: u16) -> Option<Decided<'p, 'a>> {
        let (candidate, clients) = (self.candidates.get(at)?, self.reach.pool(at)?);
        let before = self.before.routing.get(&candidate.pool.name).copied();
        let min_workers = group.settings.min_workers;
        let intruders = self.intruders.as_slice();
        let question = Question { input: self.input, candidate, reach: self.reach, clients, count, min_workers, before, intruders };
        let mut decision = decide(&question);
        self.problems.append(&mut decision.problems);
        Some(Decided { at, candidate, clients, decision })
    }

    fn seat(&self, decided: &[Decided<'_, '_>], group: &Group<'_>, count: u16) -> Vec<Seat> {
        let name = &group.settings.name;
        let items: Vec<Item<'_>> = decided
            .iter()
            .map(|Decided { candidate, decision, .. }| Item {
                name: &candidate.pool.name,
                workers: candidate.pool.workers.max_children,
                parts: decision.parts,
                before: self.before.seats.get(&(name, &candidate.pool.name)),
            })
            .collect();
        seat(&items, count, self.before.counts.get(name).copied().unwrap_or(0))
    }

    fn place(&mut self, decided: Decided<'_, '_>, seat: &Seat, to: (&GroupName, &mut [ShardPlan])) {
        let Decided { at, candidate, clients, decision } = decided;
        let ((group, shards), pool) = (to, candidate.pool);
        let parts = u32::try_from(seat.shards.len()).unwrap_or(u32::MAX);
        let mut servers: Vec<UpstreamServer> = Vec::new();
        for (index, workers) in seat.shards.iter().copied().zip(division::divide(pool.pm, &pool.workers, parts)) {
            let listener = listeners::listener(self.input, candidate, decision.routing, (index, seat.first));
            let id = ShardId::new(group, index);
            let total = workers.max_children;
            if let Some(server) = servers.iter_mut().find(|server| server.endpoint == listener.endpoint) {
                server.workers = server.workers.saturating_add(total);
                server.shards.push(id);
            } else {
                servers.push(UpstreamServer { endpoint: listener.endpoint.clone(), workers: total, shards: vec![id] });
            }
            if let Some(shard) = shards.get_mut(usize::from(index.saturating_sub(1))) {
                shard.placements.push(Placement { pool: pool.name.clone(), workers, listener });
            }
        }
        let pool = PoolPlan {
            pool: pool.name.clone(),
            group: group.clone(),
            pm: pool.pm,
            workers: pool.workers,
            mounted_as: decided.candidate.listen.mounted_as.clone(),
            routing: decision.routing,
            reason: decision.reason,
            upstream: clients.upstream.clone(),
            servers,
        };
        self.pools.push((at, pool));
    }
}

/// What the previous plan has.
#[derive(Default)]
struct Before<'a> {
    routing: HashMap<&'a PoolName, Routing>,
    seats: HashMap<(&'a GroupName, &'a PoolName), Seat>,
    counts: HashMap<&'a GroupName, u16>,
}

impl<'a> Before<'a> {
    fn new(previous: Option<&'a Plan>) -> Self {
        let mut before = Self::default();
        let Some(plan) = previous else { return before };
        before.routing = plan.pools.iter().map(|pool| (&pool.pool, pool.routing)).collect();
        for shard in &plan.shards {
            let (group, index) = (&shard.id.group, shard.id.index);
            let count = before.counts.entry(group).or_default();
            *count = index.max(*count);
            for placement in &shard.placements {
                let seat = before.seats.entry((group, &placement.pool)).or_default();
                seat.shards.push(index);
                // The first shard that has no socket of its own has the pool's path.
                if seat.first == 0 && placement.listener.alias != names::alias(&placement.pool, Some(index)) {
                    seat.first = index;
                }
            }
        }
        before
    }
}

/// Divides `process.max`, which php-fpm counts per master, over the shards that run.
///
/// Shares of the previous plan stay while they are near enough, or each new pool would restart every shard.
fn share_process_max(input: &PlanInput<'_>, shards: &mut [ShardPlan]) -> Option<Problem> {
    let total = input.files.global.process_max.filter(|total| *total > 0)?;
    let weights: Vec<u64> = shards.iter().map(|shard| u64::from(shard.workers())).filter(|workers| *workers > 0).collect();
    let mut shares = division::in_proportion(total, &weights);
    let running = || shards.iter().filter(|shard| !shard.placements.is_empty());
    let before: Option<Vec<u32>> = input
        .previous
        .and_then(|plan| running().map(|shard| plan.shard(&shard.id).and_then(|before| before.process_max)).collect::<Option<Vec<u32>>>());
    if let Some(before) = before {
        let same_total = before.iter().map(|share| u64::from(*share)).sum::<u64>() == u64::from(total);
        // A tenth either way: what the operator asked for as a whole still holds exactly.
        let near = before.iter().zip(&shares).all(|(old, new)| old.abs_diff(*new) <= (new / 10).max(1));
        if same_total && near {
            shares = before;
        }
    }
    let count = weights.len();
    for (shard, share) in shards.iter_mut().filter(|shard| !shard.placements.is_empty()).zip(shares) {
        shard.process_max = Some(share);
    }
    let too_few = u64::from(total) < u64::try_from(count).unwrap_or(u64::MAX);
    too_few.then(|| hazards::process_max_too_small(input, total, count))
}
