//! How a shard is doing, judged from what can be seen from outside.
//!
//! Pure: samples in, a [`Verdict`] out; time is passed in. What the verdict leads to is decided elsewhere.
//!
//! The rule behind everything here is that *busy is not sick*. A queue that grows because every worker is in a request is
//! saturation, an alarm and never a reason to restart. A shard is hung only when requests have been waiting for the whole
//! time-out, nothing was accepted or finished in that time, and its workers are known not to be all in requests, or php-fpm
//! has given no sign of life at all. A failing probe alone proves nothing, and a pool whose queue is empty is never hung.
//!
//! No source is believed alone. php-fpm's counters are wrong under keep-alive (P35) and so can keep a shard from being
//! called hung but never make it so without the kernel's queue, which is the only queue there is (P33). The heartbeat is
//! for all pools of a master together and counts our own probes: the small pool behind `pm.status_listen` sends its requests
//! and workers along (guarded by `edge::fastcgi` tests), so probes are subtracted.

use std::collections::BTreeMap;
use std::time::Duration;

use crate::model::ids::{Generation, PoolName};
use crate::model::pool::ProcessManager;
use crate::model::settings::Health;
use crate::model::snapshot::{QueueDepth, Verdict};
use crate::model::time::Moment;

mod pool;
pub mod probe;

use pool::PoolTrack;

/// A heartbeat's numbers are believed for so many intervals; php-fpm sends one every `systemd_interval`, which is generated
/// from the interval, and may be late under load.
const FRESH_INTERVALS: u32 = 3;

/// The pool behind `pm.status_listen` has at most so many workers. Source: php-src `fpm_conf.c`, status pool.
const STATUS_WORKERS: u32 = 2;

/// The counters of one heartbeat, all pools of the master together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Beat {
    /// When it came.
    pub at: Moment,
    /// Workers in a request.
    pub active: u32,
    /// Workers that wait for one.
    pub idle: u32,
    /// Requests since the master's start, our probes included.
    pub requests: u64,
}

/// A pool's counters from its status page; absent where they cannot be true.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Connections accepted since the master's start.
    pub accepted: Option<u64>,
    /// Workers in a request.
    pub active: Option<u32>,
    /// Workers that wait for one.
    pub idle: Option<u32>,
}

/// What came of asking a pool for its status.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Probe {
    /// It was not asked.
    NotAsked,
    /// It answered.
    Answered(Counts),
    /// It did not answer in time, or not with a status page.
    Failed,
}

/// What was seen of one pool of the shard.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PoolSample {
    /// The pool.
    pub pool: PoolName,
    /// How it starts workers.
    pub pm: ProcessManager,
    /// The most workers it may have in this shard.
    pub workers: u32,
    /// Whether other shards accept on its listener too: then its queue moving says nothing of this shard.
    pub shared: bool,
    /// The kernel's queue of its listener; absent when it could not be read.
    pub queue: Option<QueueDepth>,
    /// Accepted connections that are open now, of this generation; absent when not known.
    pub connections: Option<u32>,
    /// Its status.
    pub probe: Probe,
}

/// What was seen of a shard's serving generation in one interval.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Sample {
    /// The generation that serves. Another one starts with a clean record.
    pub generation: Generation,
    /// The latest heartbeat, whether it is new or not; absent while none has come.
    pub beat: Option<Beat>,
    /// Every pool of the shard.
    pub pools: Vec<PoolSample>,
}

/// Numbers for views.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct Numbers {
    /// Workers in a request; absent when not known.
    pub workers_busy: Option<u32>,
    /// The queues of listeners that only this shard serves, summed; absent when there are none or one is not known.
    pub queue: Option<QueueDepth>,
    /// Requests a second over the last interval; absent when not known.
    pub requests_per_second: Option<f64>,
}

/// The record of one shard.
#[derive(Debug, Clone, Default)]
pub struct ShardHealth {
    generation: Option<Generation>,
    sampled_at: Option<Moment>,
    pools: BTreeMap<PoolName, PoolTrack>,
    beats: Beats,
    accepted: Option<Accepted>,
    rate: Option<f64>,
    /// The pool that was asked last, so that the next ones have their turn.
    asked_last: Option<PoolName>,
}

/// What the heartbeats have told.
#[derive(Debug, Clone, Copy, Default)]
struct Beats {
    last: Option<Beat>,
    /// Probes that the last heartbeat may not have counted yet.
    probes_since: u64,
    /// When requests other than probes were last counted.
    moved_at: Option<Moment>,
    /// How many pools have been asked, each of which may have brought status workers into the counters.
    asked_pools: u32,
}

/// All pools' accepted connections at one moment.
#[derive(Debug, Clone, Copy)]
struct Accepted {
    at: Moment,
    total: u64,
}

impl ShardHealth {
    /// Takes what was seen.
    pub fn observe(&mut self, sample: Sample, now: Moment) {
        if self.generation != Some(sample.generation) {
            *self = Self { generation: Some(sample.generation), asked_last: self.asked_last.take(), ..Self::default() };
        }
        self.beats.note_probes(&sample.pools);
        let alone = sample.pools.len() == 1;
        if let Some(rate) = sample.beat.and_then(|beat| self.beats.take(beat)) {
            self.rate = Some(rate);
        }
        let mut pools = BTreeMap::new();
        for seen in sample.pools {
            let mut track = self.pools.remove(&seen.pool).unwrap_or_else(|| PoolTrack::new(&seen));
            track.observe(&seen, now);
            if let Some(moved_at) = self.beats.moved_at
                && (alone || !track.answers(now))
            {
                track.moved(moved_at);
            }
            pools.insert(seen.pool, track);
        }
        self.pools = pools;
        self.asked_count();
        self.sampled_at = Some(now);
        self.rate_from_pools(now);
    }

    /// Takes a look at which every queue was empty, as at the look before, and no pool was asked: all that [`observe`](Self::observe)
    /// would change then, at the cost of the heartbeat alone. `false`: the generation is another one and must be observed.
    pub fn observe_calm(&mut self, generation: Generation, beat: Option<Beat>, now: Moment) -> bool {
        if self.generation != Some(generation) {
            return false;
        }
        if let Some(rate) = beat.and_then(|beat| self.beats.take(beat)) {
            self.rate = Some(rate);
        }
        self.sampled_at = Some(now);
        self.accepted = None;
        true
    }

    fn asked_count(&mut self) {
        let asked = self.pools.values().filter(|track| track.was_asked()).count();
        self.beats.asked_pools = u32::try_from(asked).unwrap_or(u32::MAX);
    }

    /// The pools' own counters do not count probes, so they are the better rate where every pool has just answered.
    fn rate_from_pools(&mut self, now: Moment) {
        let total = self.pools.values().map(|track| track.accepted_at(now)).sum::<Option<u64>>().filter(|_| !self.pools.is_empty());
        let previous = std::mem::replace(&mut self.accepted, total.map(|total| Accepted { at: now, total }));
        if let (Some(total), Some(previous)) = (total, previous) {
            self.rate = rate(total.checked_sub(previous.total), now - previous.at).or(self.rate);
        }
    }

    /// Gives the verdict as of the last sample: [`Verdict::Ready`], `Busy`, `Saturated` or `Hung`.
    pub fn verdict(&self, now: Moment, settings: &Health) -> Verdict {
        self.judge(now, settings).0
    }

    /// Gives the pool that made the verdict what it is and for how long it has been so, where one pool did.
    pub fn cause(&self, now: Moment, settings: &Health) -> Option<(&PoolName, Duration)> {
        self.judge(now, settings).1
    }

    fn judge(&self, now: Moment, settings: &Health) -> (Verdict, Option<(&PoolName, Duration)>) {
        let Some(sampled_at) = self.sampled_at else { return (Verdict::Ready, None) };
        let alone = self.pools.len() == 1;
        let occupied = self.occupied(now, settings);
        let alive = self.beats.is_fresh(now, settings);
        let mut worst = (if occupied { Verdict::Busy } else { Verdict::Ready }, None);
        for (pool, track) in &self.pools {
            let mind = pool::Context {
                sampled_at,
                now,
                settings,
                heartbeat: alive,
                shard_occupied: occupied,
                shard_has_free: alone && self.has_free(now, settings),
            };
            let verdict = track.verdict(&mind);
            if verdict > worst.0 {
                worst = (verdict, Some((pool, track.waiting_for(sampled_at))));
            }
        }
        worst
    }

    /// Tells whether every worker of the shard is at work, by the heartbeat, or by all pools' own counters.
    fn occupied(&self, now: Moment, settings: &Health) -> bool {
        if !self.pools.is_empty() && self.pools.values().all(|track| track.occupied(now, settings) == Some(true)) {
            return true;
        }
        self.beats.fresh(now, settings).is_some_and(|beat| beat.idle == 0 && beat.active > 0)
    }

    /// Tells whether the heartbeat shows workers that wait, more than the status sockets can have brought in.
    fn has_free(&self, now: Moment, settings: &Health) -> bool {
        let status_workers = self.beats.asked_pools.saturating_mul(STATUS_WORKERS);
        self.beats.fresh(now, settings).is_some_and(|beat| beat.idle > status_workers)
    }

    /// Gives the numbers for views.
    pub fn numbers(&self, now: Moment, settings: &Health) -> Numbers {
        let all =
            |of: &dyn Fn(&PoolTrack) -> Option<u32>| self.pools.values().map(of).sum::<Option<u32>>().filter(|_| !self.pools.is_empty());
        let total: u32 = self.pools.values().map(PoolTrack::workers).sum();
        let workers_busy = all(&|track| track.active(now, settings))
            .or_else(|| self.beats.fresh(now, settings).map(|beat| beat.active))
            .or_else(|| all(&PoolTrack::connections))
            .map(|busy| busy.min(total));
        let own: Option<Vec<QueueDepth>> = self.pools.values().filter(|track| !track.is_shared()).map(PoolTrack::queue).collect();
        let sum = |of: fn(&QueueDepth) -> u32, queues: &[QueueDepth]| queues.iter().map(of).fold(0, u32::saturating_add);
        let queue =
            own.filter(|queues| !queues.is_empty()).map(|queues| QueueDepth { now: sum(|q| q.now, &queues), max: sum(|q| q.max, &queues) });
        Numbers { workers_busy, queue, requests_per_second: self.rate }
    }
}

impl Beats {
    fn note_probes(&mut self, pools: &[PoolSample]) {
        // A probe that failed may never be counted; taking it for counted would hide a real request.
        let answered = pools.iter().filter(|seen| matches!(seen.probe, Probe::Answered(_))).count();
        self.probes_since = self.probes_since.saturating_add(u64::try_from(answered).unwrap_or(u64::MAX));
    }

    /// Takes a heartbeat; gives the requests a second since the one before, where that can be told.
    fn take(&mut self, beat: Beat) -> Option<f64> {
        let Some(last) = self.last else {
            self.last = Some(beat);
            return None;
        };
        if beat.at <= last.at {
            return None;
        }
        self.last = Some(beat);
        let counted = beat.requests.checked_sub(last.requests)?;
        let probes = counted.min(self.probes_since);
        self.probes_since -= probes;
        if counted > probes {
            self.moved_at = Some(beat.at);
        }
        rate(Some(counted - probes), beat.at - last.at)
    }

    fn fresh(&self, now: Moment, settings: &Health) -> Option<Beat> {
        self.last.filter(|beat| now - beat.at <= fresh_for(settings))
    }

    /// Tells whether the master has given a sign of life lately.
    fn is_fresh(&self, now: Moment, settings: &Health) -> bool {
        self.last.is_some_and(|beat| now - beat.at < settings.hung_after.max(fresh_for(settings)))
    }
}

fn fresh_for(settings: &Health) -> Duration {
    settings.interval.saturating_mul(FRESH_INTERVALS) + settings.timeout
}

fn rate(count: Option<u64>, span: Duration) -> Option<f64> {
    let seconds = span.as_secs_f64();
    // Counters of requests stay far below 2^53; an f64 holds them exactly.
    let count = f64::from(u32::try_from(count?).unwrap_or(u32::MAX));
    (seconds > 0.0).then(|| count / seconds)
}

#[cfg(test)]
mod tests;
