//! Looking at serving shards: heartbeat, queues, status sockets; what hung shards lead to.

use std::collections::{BTreeMap, HashMap};
use std::path::PathBuf;
use std::time::Duration;

use super::events::Event;
use super::sockets::Held;
use super::supervisor::{Phase, Supervisor};
use crate::core::fleet::{JobKind, JobOrder, NginxStep};
use crate::core::health::probe::PROBES_PER_INTERVAL;
use crate::core::health::{Beat, Counts, PoolSample, Probe, Sample, ShardHealth};
use crate::edge::fastcgi::{self, StatusDetail};
use crate::model::endpoint::Endpoint;
use crate::model::ids::{MasterId, PoolName, ShardId};
use crate::model::listen::Handover;
use crate::model::plan::{Placement, PoolPlan, Routing};
use crate::model::snapshot::{QueueDepth, Verdict};
use crate::model::time::Moment;
use crate::sys::sock_diag;
use crate::text::heartbeat;

/// What is known of each shard's health.
#[derive(Debug, Default)]
pub(super) struct HealthBook {
    records: BTreeMap<ShardId, ShardHealth>,
    beats: BTreeMap<ShardId, (MasterId, Beat)>,
    queues: HashMap<Endpoint, QueueDepth>,
    healed_at: BTreeMap<ShardId, Moment>,
    next: Moment,
}

impl HealthBook {
    /// Forgets what was known of a shard: another master serves it.
    pub(super) fn began_serving(&mut self, id: &ShardId) {
        self.records.remove(id);
    }

    /// Gives the record of a shard.
    pub(super) fn record(&self, id: &ShardId) -> Option<&ShardHealth> {
        self.records.get(id)
    }

    /// Gives the queue of an endpoint as last seen.
    pub(super) fn queue(&self, endpoint: &Endpoint) -> Option<QueueDepth> {
        self.queues.get(endpoint).copied()
    }

    /// Gives when the next look is due.
    pub(super) fn next_look(&self) -> Moment {
        self.next
    }
}

/// One pool to be asked.
struct Question {
    path: PathBuf,
    status_path: String,
}

impl Supervisor {
    /// Takes a heartbeat (P30).
    pub(super) fn heartbeat(&mut self, id: &MasterId, text: &str) {
        let Some(read) = heartbeat::read_status(text) else { return };
        let beat = Beat { at: self.now(), active: read.active, idle: read.idle, requests: read.requests };
        self.health.beats.insert(id.shard.clone(), (id.clone(), beat));
    }

    /// Looks at every serving shard: the kernel's queues now, the status sockets in a task.
    pub(super) fn look_at_health(&mut self) {
        let now = self.now();
        self.health.next = now.after(self.settings.health.interval);
        self.read_queues();
        let serving: Vec<MasterId> = self.fleet.shards().filter_map(|shard| Some(MasterId::new(shard.id(), shard.serving()?.0))).collect();
        for id in serving {
            self.look_at_shard(&id);
        }
        self.snapshot_dirty = true;
        for master in self.masters.values() {
            master.bound_errors();
        }
        self.look_at_barred();
    }

    fn read_queues(&mut self) {
        let all: Vec<&Held> = self.held.values().flatten().collect();
        let inodes: Vec<u64> =
            all.iter().filter(|held| matches!(held.plan.endpoint, Endpoint::Unix(_))).map(|held| held.listener.inode).collect();
        let depths = sock_diag::unix_queues(&inodes).unwrap_or_else(|error| {
            tracing::debug!(error = %error, "queues were not read");
            HashMap::new()
        });
        let mut before = std::mem::take(&mut self.health.queues);
        let mut queues: HashMap<Endpoint, QueueDepth> = HashMap::with_capacity(all.len());
        for held in all {
            let depth = match held.plan.endpoint {
                Endpoint::Unix(_) => depths.get(&held.listener.inode).copied(),
                Endpoint::Tcp(_) => sock_diag::tcp_queue(&held.listener.fd).ok(),
            };
            let Some(depth) = depth else { continue };
            // Every endpoint has its entry from the last look: a thousand paths are not written again each time.
            let endpoint = before.remove_entry(&held.plan.endpoint).map_or_else(|| held.plan.endpoint.clone(), |(endpoint, _)| endpoint);
            match held.plan.endpoint {
                Endpoint::Unix(_) => drop(queues.insert(endpoint, depth)),
                // One socket that several shards share is one queue.
                Endpoint::Tcp(_) if held.plan.handover == Handover::Share => drop(queues.insert(endpoint, depth)),
                Endpoint::Tcp(_) => drop(queues.entry(endpoint).and_modify(|sum| sum.now += depth.now).or_insert(depth)),
            }
        }
        self.health.queues = queues;
    }

    fn look_at_shard(&mut self, id: &MasterId) {
        let Some(master) = self.masters.get(id) else { return };
        let beat = self.health.beats.get(&id.shard).filter(|(whose, _)| whose == id).map(|(_, beat)| *beat);
        let plans: HashMap<&PoolName, &PoolPlan> = self.draft.plan.pools.iter().map(|pool| (&pool.pool, pool)).collect();
        let placements = master.blueprint.plan.placements.iter();
        let pools: Vec<PoolSample> = placements.map(|placement| self.pool_sample(placement, plans.get(&placement.pool).copied())).collect();
        let asked = self.health.records.entry(id.shard.clone()).or_default().probe_plan(PROBES_PER_INTERVAL);
        let questions: Vec<(PoolName, Question)> = asked
            .into_iter()
            .filter_map(|pool| {
                let point = master.blueprint.status.iter().find(|point| point.pool == pool)?;
                let path = master.status_of(&pool)?.to_owned();
                Some((pool, Question { path, status_path: point.status_path.clone() }))
            })
            .collect();
        let sample = Sample { generation: id.generation, beat, pools };
        if questions.is_empty() {
            self.sampled(id, sample);
            return;
        }
        let (timeout, events, id) = (self.settings.health.timeout, self.events.clone(), id.clone());
        drop(tokio::task::spawn_local(async move {
            let sample = ask_all(sample, questions, timeout).await;
            super::tell(&events, Event::Sampled { master: id, sample: Box::new(sample) }).await;
        }));
    }

    fn pool_sample(&self, placement: &Placement, pool: Option<&PoolPlan>) -> PoolSample {
        PoolSample {
            pool: placement.pool.clone(),
            pm: pool.map_or(crate::model::pool::ProcessManager::Dynamic, |pool| pool.pm),
            workers: placement.workers.max_children,
            shared: pool.is_some_and(|pool| pool.routing == Routing::Shared),
            queue: self.health.queue(&placement.listener.endpoint),
            connections: None,
            probe: Probe::NotAsked,
        }
    }

    /// Takes what was seen of a shard.
    pub(super) fn sampled(&mut self, id: &MasterId, sample: Sample) {
        let serving = self.fleet.shard(&id.shard).and_then(crate::core::shard::Shard::serving).map(|(generation, _)| generation);
        if serving != Some(id.generation) {
            return;
        }
        let now = self.now();
        let health = self.settings.health.clone();
        let record = self.health.records.entry(id.shard.clone()).or_default();
        record.observe(sample, now);
        if record.verdict(now, &health) == Verdict::Hung {
            self.heal(&id.shard, now);
        }
    }

    /// Replaces a hung master by handover: one at a time, and not again before another `hung_after` has passed (design, rule 4).
    fn heal(&mut self, id: &ShardId, now: Moment) {
        let health = &self.settings.health;
        let recently = self.health.healed_at.get(id).is_some_and(|at| now - *at < health.hung_after);
        if !health.restart_hung || recently || self.phase != Phase::Running || self.job_view().is_some() {
            return;
        }
        tracing::error!(shard = %id, "shard hung");
        let order =
            JobOrder { kind: JobKind::Heal, shards: vec![id.clone()], together: Vec::new(), retire: Vec::new(), nginx: NginxStep::None };
        self.health.healed_at.insert(id.clone(), now);
        if let Ok((number, actions)) = self.fleet.begin(order, now) {
            self.ask_for_kept(number);
            self.carry_out(actions);
        }
    }
}

async fn ask_all(mut sample: Sample, questions: Vec<(PoolName, Question)>, timeout: Duration) -> Sample {
    let mut answers = tokio::task::JoinSet::new();
    for (pool, question) in questions {
        answers.spawn_local(async move {
            let target = Endpoint::Unix(question.path);
            (pool, fastcgi::pool_status(&target, &question.status_path, StatusDetail::Brief, timeout).await)
        });
    }
    while let Some(Ok((pool, answer))) = answers.join_next().await {
        let probe = match answer {
            Ok(status) => Probe::Answered(Counts { accepted: status.accepted, active: status.active, idle: status.idle }),
            Err(error) => {
                tracing::debug!(pool = %pool, error = %error, "status was not read");
                Probe::Failed
            }
        };
        if let Some(seen) = sample.pools.iter_mut().find(|seen| seen.pool == pool) {
            seen.probe = probe;
        }
    }
    sample
}
