//! Publishing the snapshot.

use std::rc::Rc;
use std::sync::Arc;

use super::draft::Draft;
use super::supervisor::Supervisor;
use crate::core::shard::{Shard, Wanted};
use crate::model::ids::{MasterId, ShardId};
use crate::model::plan::{PoolPlan, ShardPlan};
use crate::model::snapshot::{LeavingView, ListenerView, PoolView, ShardView, Snapshot, Verdict, seconds};

/// The pools as last drawn: a thousand of them are drawn again only when something of them has changed.
#[derive(Debug, Default)]
pub(super) struct DrawnPools {
    of: Option<(Rc<Draft>, u64)>,
    views: Arc<Vec<PoolView>>,
}

impl Supervisor {
    /// Gives when the snapshot is drawn again though nothing happened: a picture of 1,000 pools costs a millisecond, so only
    /// while a client is connected; otherwise each look at the shards draws one.
    pub(super) fn snapshot_due(&self) -> Option<crate::model::time::Moment> {
        let receivers_of_clients = self.snapshot.receiver_count().saturating_sub(1);
        (receivers_of_clients > 0).then_some(self.snapshot_due)
    }

    /// Publishes the picture of now if it differs from the last one.
    pub(super) fn publish_snapshot(&mut self) {
        let snapshot = self.picture();
        self.snapshot.send_if_modified(|last| {
            let changed = **last != snapshot;
            if changed {
                *last = Arc::new(snapshot);
            }
            changed
        });
    }

    /// Draws the picture of now.
    pub(super) fn picture(&mut self) -> Snapshot {
        let pools = self.pool_views();
        let shards: Vec<ShardView> = self
            .fleet
            .shards()
            .filter(|shard| shard.wanted() != Wanted::Retired || !shard.is_gone())
            .map(|shard| self.shard_view(shard))
            .chain(self.empty_shards())
            .collect();
        let healthy = shards
            .iter()
            .all(|shard| matches!(shard.verdict, Verdict::Ready | Verdict::Busy | Verdict::Saturated | Verdict::Parked | Verdict::Empty))
            && self.draft.plan.quarantined.is_empty()
            && self.paths.is_sound();
        Snapshot {
            v: Snapshot::VERSION,
            instance: self.settings.instance.clone(),
            version: env!("CARGO_PKG_VERSION").to_owned(),
            pid: std::process::id(),
            uptime_seconds: seconds(self.started.elapsed()),
            healthy,
            shards,
            pools,
            quarantined: self.draft.plan.quarantined.clone(),
            nginx: self.nginx.view(),
            cgroups: Some(self.groups.view(&self.settings.limits)),
            job: self.job_view(),
        }
    }

    fn empty_shards(&self) -> impl Iterator<Item = ShardView> + '_ {
        self.draft.plan.shards.iter().filter(|shard| shard.placements.is_empty() && self.fleet.shard(&shard.id).is_none()).map(|shard| {
            ShardView {
                group: shard.id.group.clone(),
                shard: shard.id.clone(),
                generation: crate::model::ids::Generation(0),
                pid: None,
                cpus: shard.cpus.clone(),
                verdict: Verdict::Empty,
                reason: None,
                workers_busy: None,
                workers_total: 0,
                queue: None,
                requests_per_second: None,
                uptime_seconds: None,
                failures: 0,
                leaving: Vec::new(),
                pools: Arc::default(),
            }
        })
    }

    fn shard_view(&self, shard: &Shard) -> ShardView {
        let id = shard.id();
        let (now, health) = (self.now(), &self.settings.health);
        let (generation, pid) = match (shard.serving(), shard.birth()) {
            (Some((generation, pid)), _) => (generation, Some(pid)),
            (None, Some(birth)) => (birth.generation, birth.pid),
            (None, None) => (shard.last_generation(), None),
        };
        let record = self.health.record(id);
        let verdict = self.fleet.verdict(id).unwrap_or_else(|| record.map_or(Verdict::Ready, |record| record.verdict(now, health)));
        let serves = shard.serving().is_some();
        let numbers = record.filter(|_| serves).map(|record| record.numbers(now, health)).unwrap_or_default();
        let master = self.masters.get(&MasterId::new(id, generation));
        let plan = master.map(|master| &master.blueprint.plan).or_else(|| self.draft.plan.shard(id));
        let pools = master.map(|master| Arc::clone(&master.pools));
        ShardView {
            group: id.group.clone(),
            shard: id.clone(),
            generation,
            pid,
            cpus: plan.and_then(|plan| plan.cpus.clone()),
            verdict,
            reason: self.reason(shard, verdict),
            workers_busy: numbers.workers_busy,
            workers_total: plan.map_or(0, ShardPlan::workers),
            queue: numbers.queue.or_else(|| self.queue_of(id)),
            requests_per_second: numbers.requests_per_second,
            uptime_seconds: shard.serving_since().map(|since| seconds(now - since)),
            failures: shard.failures(),
            leaving: shard
                .leaving()
                .iter()
                .map(|leaving| LeavingView {
                    generation: leaving.generation(),
                    pid: leaving.pid(),
                    step: leaving.word().to_owned(),
                    seconds: seconds(now - leaving.since()),
                })
                .collect(),
            pools: pools.unwrap_or_else(|| Arc::new(plan.into_iter().flat_map(ShardPlan::pools).cloned().collect())),
        }
    }

    fn queue_of(&self, id: &ShardId) -> Option<crate::model::snapshot::QueueDepth> {
        let set = self.held.get(id)?;
        let depths = set.iter().filter_map(|held| self.health.queue(&held.plan.endpoint));
        depths.reduce(|sum, depth| crate::model::snapshot::QueueDepth {
            now: sum.now.saturating_add(depth.now),
            max: sum.max.saturating_add(depth.max),
        })
    }

    fn reason(&self, shard: &Shard, verdict: Verdict) -> Option<String> {
        if let Some(why) = shard.last_failure() {
            return Some(why.to_owned());
        }
        if !matches!(verdict, Verdict::Saturated | Verdict::Hung) {
            return None;
        }
        let (pool, span) = self.health.record(shard.id())?.cause(self.now(), &self.settings.health)?;
        Some(format!("requests of pool {pool} have been waiting for {} s", span.as_secs()))
    }

    fn pool_views(&mut self) -> Arc<Vec<PoolView>> {
        let changes = self.health.queue_changes() + self.paths.changes();
        let fresh = self.drawn.of.as_ref().is_some_and(|(draft, at)| Rc::ptr_eq(draft, &self.draft) && *at == changes);
        if !fresh {
            self.drawn.views = Arc::new(self.draft.plan.pools.iter().map(|pool| self.pool_view(pool)).collect());
            self.drawn.of = Some((Rc::clone(&self.draft), changes));
        }
        Arc::clone(&self.drawn.views)
    }

    fn pool_view(&self, pool: &PoolPlan) -> PoolView {
        PoolView {
            pool: pool.pool.clone(),
            group: pool.group.clone(),
            routing: pool.routing,
            listeners: pool
                .servers
                .iter()
                .map(|server| ListenerView {
                    endpoint: server.endpoint.clone(),
                    shards: server.shards.clone(),
                    queue: self.health.queue(&server.endpoint),
                    fault: self.paths.fault(&server.endpoint).map(str::to_owned),
                    made_again: self.paths.made_again(&server.endpoint),
                })
                .collect(),
            workers: pool.workers.max_children,
        }
    }
}

/// Gives the picture before there is anything to show.
pub(super) fn nothing_yet(settings: &crate::model::settings::Settings) -> Snapshot {
    Snapshot {
        v: Snapshot::VERSION,
        instance: settings.instance.clone(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        uptime_seconds: 0,
        healthy: false,
        shards: Vec::new(),
        pools: Arc::default(),
        quarantined: Vec::new(),
        nginx: crate::model::snapshot::NginxView { state: "off".to_owned(), detail: None, reloads: 0 },
        cgroups: None,
        job: None,
    }
}
