//! Looking at serving shards: heartbeat, queues, status sockets; what hung shards lead to.

use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::path::PathBuf;
use std::rc::Rc;
use std::time::Duration;

use super::events::Event;
use super::master::Master;
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
    /// What the listeners of each shard showed at the last look: each one's inode and queue, in the order they are held.
    readings: BTreeMap<ShardId, Vec<(u64, Option<QueueDepth>)>>,
    /// Shards whose queues were all empty at the last look and at the one before.
    calm: BTreeSet<ShardId>,
    queue_changes: u64,
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

    /// Counts the looks that found another queue than the look before.
    pub(super) fn queue_changes(&self) -> u64 {
        self.queue_changes
    }

    /// Gives when the next look is due.
    pub(super) fn next_look(&self) -> Moment {
        self.next
    }
}

/// The pools of the plan by name: drawn up only where a shard is looked at closely.
type Pools<'a> = OnceCell<HashMap<&'a PoolName, &'a PoolPlan>>;

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
        let draft = Rc::clone(&self.draft);
        let plans = Pools::new();
        for id in serving {
            let plans = || plans.get_or_init(|| draft.plan.pools.iter().map(|pool| (&pool.pool, pool)).collect());
            self.look_at_shard(&id, plans);
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
        let mut queues: HashMap<Endpoint, QueueDepth> = HashMap::new();
        let readings: BTreeMap<ShardId, Vec<(u64, Option<QueueDepth>)>> = self
            .held
            .iter()
            .map(|(id, set)| (id.clone(), set.iter().map(|held| (held.listener.inode, depth_of(held, &depths))).collect()))
            .collect();
        let before = std::mem::replace(&mut self.health.readings, readings);
        let is_calm = |(id, now): &(&ShardId, &Vec<_>)| {
            before.get(*id) == Some(*now) && now.iter().all(|(_, depth): &(u64, _)| depth.is_some_and(|depth: QueueDepth| depth.now == 0))
        };
        self.health.calm = self.health.readings.iter().filter(is_calm).map(|(id, _)| id.clone()).collect();
        if before == self.health.readings {
            return;
        }
        for (held, (_, depth)) in all.into_iter().zip(self.health.readings.values().flatten()) {
            let Some(depth) = *depth else { continue };
            // Every shard has a listener of its own at a TCP address.
            let sum = queues.entry(held.plan.endpoint.clone()).or_insert(QueueDepth { now: 0, max: depth.max });
            match held.plan.endpoint {
                Endpoint::Unix(_) => *sum = depth,
                // One socket that several shards share is one queue.
                Endpoint::Tcp(_) if held.plan.handover == Handover::Share => *sum = depth,
                Endpoint::Tcp(_) => sum.now += depth.now,
            }
        }
        self.health.queues = queues;
        self.health.queue_changes += 1;
    }

    /// Looks at one shard: closely only where something waits, or one of its pools is to be asked.
    fn look_at_shard<'a>(&mut self, id: &MasterId, plans: impl FnOnce() -> &'a HashMap<&'a PoolName, &'a PoolPlan>) {
        let Some(master) = self.masters.get(id) else { return };
        let beat = self.health.beats.get(&id.shard).filter(|(whose, _)| whose == id).map(|(_, beat)| *beat);
        let now = self.now();
        let record = self.health.records.entry(id.shard.clone()).or_default();
        let asked = record.probe_plan(PROBES_PER_INTERVAL);
        if asked.is_empty() && self.health.calm.contains(&id.shard) && record.observe_calm(id.generation, beat, now) {
            return;
        }
        let questions = questions_for(master, asked);
        let plans = plans();
        let placements = master.blueprint.plan.placements.iter();
        let pools: Vec<PoolSample> = placements.map(|placement| self.pool_sample(placement, plans.get(&placement.pool).copied())).collect();
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

/// Gives the queue of one listener.
fn depth_of(held: &Held, unix: &HashMap<u64, QueueDepth>) -> Option<QueueDepth> {
    match held.plan.endpoint {
        Endpoint::Unix(_) => unix.get(&held.listener.inode).copied(),
        Endpoint::Tcp(_) => sock_diag::tcp_queue(&held.listener.fd).ok(),
    }
}

/// Gives where to ask each of some pools of a master.
fn questions_for(master: &Master, asked: Vec<PoolName>) -> Vec<(PoolName, Question)> {
    let question = |pool: PoolName| {
        let point = master.blueprint.status.iter().find(|point| point.pool == pool)?;
        let path = master.status_of(&pool)?.to_owned();
        Some((pool, Question { path, status_path: point.status_path.clone() }))
    };
    asked.into_iter().filter_map(question).collect()
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
