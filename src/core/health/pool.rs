//! What is remembered of one pool of a shard.

use std::time::Duration;

use super::{Counts, PoolSample, Probe, fresh_for};
use crate::model::pool::ProcessManager;
use crate::model::settings::Health;
use crate::model::snapshot::{QueueDepth, Verdict};
use crate::model::time::Moment;

/// Fewer looks than this prove nothing, however far apart they are: after a stall of the supervisor two looks can be a minute apart.
const LOOKS_TO_CONDEMN: u32 = 3;

/// From the second look on, a queue with nothing known of its workers counts as saturation.
const LOOKS_TO_ALARM: u32 = 2;

/// A condition that has held without a break.
#[derive(Debug, Clone, Copy)]
struct Streak {
    since: Moment,
    looks: u32,
}

impl Streak {
    fn go_on(streak: &mut Option<Self>, now: Moment) {
        match streak {
            Some(streak) => streak.looks = streak.looks.saturating_add(1),
            None => *streak = Some(Self { since: now, looks: 1 }),
        }
    }
}

/// What the shard as a whole adds to the judgement of one pool.
#[derive(Debug, Clone, Copy)]
pub(super) struct Context<'a> {
    pub(super) sampled_at: Moment,
    pub(super) now: Moment,
    pub(super) settings: &'a Health,
    /// A heartbeat came within the time-out.
    pub(super) heartbeat: bool,
    /// Every worker of the shard is at work.
    pub(super) shard_occupied: bool,
    /// The heartbeat shows waiting workers that can only be this pool's.
    pub(super) shard_has_free: bool,
}

/// The record of one pool.
#[derive(Debug, Clone)]
pub(super) struct PoolTrack {
    pm: ProcessManager,
    workers: u32,
    shared: bool,
    queue: Option<QueueDepth>,
    connections: Option<u32>,
    /// The last answer that told how workers are.
    counts: Option<(Moment, Counts)>,
    /// Requests wait.
    waiting: Option<Streak>,
    /// Requests wait and nothing moves.
    stuck: Option<Streak>,
    /// Probes fail.
    unanswered: Option<Streak>,
    asked: bool,
}

impl PoolTrack {
    pub(super) fn new(seen: &PoolSample) -> Self {
        Self {
            pm: seen.pm,
            workers: seen.workers,
            shared: seen.shared,
            queue: None,
            connections: None,
            counts: None,
            waiting: None,
            stuck: None,
            unanswered: None,
            asked: false,
        }
    }

    pub(super) fn observe(&mut self, seen: &PoolSample, now: Moment) {
        let moved = self.has_moved(seen);
        match seen.probe {
            Probe::NotAsked => {}
            Probe::Answered(counts) => {
                self.counts = Some((now, counts));
                self.unanswered = None;
                self.asked = true;
            }
            Probe::Failed => {
                Streak::go_on(&mut self.unanswered, now);
                self.asked = true;
            }
        }
        (self.pm, self.workers, self.shared) = (seen.pm, seen.workers, seen.shared);
        (self.queue, self.connections) = (seen.queue, seen.connections);
        if seen.queue.is_some_and(|queue| queue.now > 0) {
            Streak::go_on(&mut self.waiting, now);
            if moved {
                self.stuck = None;
            }
            Streak::go_on(&mut self.stuck, now);
        } else {
            (self.waiting, self.stuck) = (None, None);
        }
    }

    /// Tells whether anything of this pool was accepted or finished since the last look. A first look at a number counts as
    /// movement: what was before it is not known.
    fn has_moved(&self, seen: &PoolSample) -> bool {
        let shorter = match (self.queue, seen.queue) {
            // Connections whose clients have gone stay in the queue, so only accept makes it shorter.
            (Some(before), Some(after)) => !seen.shared && after.now < before.now,
            _ => true,
        };
        let answered = match seen.probe {
            Probe::Answered(counts) => self.counts.is_none_or(|(_, before)| before != counts),
            Probe::NotAsked | Probe::Failed => false,
        };
        shorter || answered || self.connections != seen.connections
    }

    /// Takes note that something moved at `at`, seen elsewhere.
    pub(super) fn moved(&mut self, at: Moment) {
        if let Some(stuck) = &mut self.stuck
            && at > stuck.since
        {
            *stuck = Streak { since: at, looks: 1 };
        }
    }

    /// Tells whether the pool has just told its own count of requests, so that the count of all pools together adds nothing.
    pub(super) fn answers(&self, now: Moment) -> bool {
        self.accepted_at(now).is_some()
    }

    /// Gives the count of accepted connections told at `now`.
    pub(super) fn accepted_at(&self, now: Moment) -> Option<u64> {
        self.counts.filter(|(at, _)| *at == now).and_then(|(_, counts)| counts.accepted)
    }

    fn fresh_counts(&self, now: Moment, settings: &Health) -> Option<(u32, u32)> {
        let (at, counts) = self.counts?;
        (now - at <= fresh_for(settings)).then_some((counts.active?, counts.idle?))
    }

    /// Tells whether every worker is at work. An accepted connection holds a worker, in a request or kept alive (P40), so the
    /// kernel's count is believed first where it says yes; under keep-alive php-fpm's counters err to the busy side (P35).
    pub(super) fn occupied(&self, now: Moment, settings: &Health) -> Option<bool> {
        let held = self.connections.map(|connections| self.workers > 0 && connections >= self.workers);
        if held == Some(true) {
            return held;
        }
        match self.fresh_counts(now, settings) {
            // Fewer workers than allowed can be all there will be: process.max, memory.
            Some((active, idle)) => Some(active > 0 && (idle == 0 || active >= self.workers)),
            None => held,
        }
    }

    pub(super) fn verdict(&self, context: &Context<'_>) -> Verdict {
        let Some(waiting) = self.waiting else { return Verdict::Ready };
        let occupied = self.occupied(context.now, context.settings);
        if self.is_hung(occupied, context) {
            return Verdict::Hung;
        }
        match occupied {
            Some(true) => Verdict::Saturated,
            Some(false) => Verdict::Ready,
            None if context.shard_occupied => Verdict::Saturated,
            None if context.shard_has_free => Verdict::Ready,
            None if waiting.looks >= LOOKS_TO_ALARM => Verdict::Saturated,
            None => Verdict::Ready,
        }
    }

    fn is_hung(&self, occupied: Option<bool>, context: &Context<'_>) -> bool {
        let lasts = |streak: Option<Streak>| {
            streak
                .is_some_and(|streak| streak.looks >= LOOKS_TO_CONDEMN && context.sampled_at - streak.since >= context.settings.hung_after)
        };
        if !lasts(self.stuck) {
            return false;
        }
        let silent = lasts(self.unanswered) && !context.heartbeat;
        let free = occupied == Some(false) || (occupied.is_none() && context.shard_has_free);
        free || silent
    }

    pub(super) fn waiting_for(&self, sampled_at: Moment) -> Duration {
        self.waiting.map(|waiting| sampled_at - waiting.since).unwrap_or_default()
    }

    pub(super) fn active(&self, now: Moment, settings: &Health) -> Option<u32> {
        self.fresh_counts(now, settings).map(|(active, _)| active)
    }

    pub(super) const fn connections(&self) -> Option<u32> {
        self.connections
    }

    pub(super) const fn queue(&self) -> Option<QueueDepth> {
        self.queue
    }

    pub(super) const fn workers(&self) -> u32 {
        self.workers
    }

    pub(super) const fn is_shared(&self) -> bool {
        self.shared
    }

    pub(super) const fn was_asked(&self) -> bool {
        self.asked
    }

    pub(super) const fn pm(&self) -> ProcessManager {
        self.pm
    }

    pub(super) fn waits(&self) -> bool {
        self.waiting.is_some()
    }

    /// Tells whether the pool was seen at work at the last look at it.
    pub(super) fn works(&self) -> bool {
        self.connections.is_some_and(|connections| connections > 0)
            || self.counts.and_then(|(_, counts)| counts.active).is_some_and(|active| active > 0)
    }
}
