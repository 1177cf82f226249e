//! What the simulation knows of a shard and its masters, apart from what the machines believe.

use std::time::Duration;

use polyfpm::core::shard::{Sockets, Timing, Wanted};
use polyfpm::model::ids::Generation;
use polyfpm::model::time::Moment;

/// How a configuration turns out when a master is started with it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Quality {
    /// It works, where the surroundings do.
    Good,
    /// No process comes of it.
    NoLaunch,
    /// The master dies before it is ready.
    Dies,
    /// The master never tells that it is ready.
    Mute,
    /// The master does not pass its proof.
    Unproven,
    /// Nobody answers the proof.
    Hangs,
}

/// Every quality that is not good.
pub(crate) const BAD: [Quality; 5] = [Quality::NoLaunch, Quality::Dies, Quality::Mute, Quality::Unproven, Quality::Hangs];

/// What really is of a master.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Life {
    /// Being started.
    Launching,
    /// The start failed: there never was a process.
    Stillborn,
    /// The master runs.
    Alive,
    /// The master is dead, workers go on.
    Orphaned,
    /// No process is left.
    Gone,
}

/// One master that is not discarded yet.
#[derive(Debug, Clone)]
pub(crate) struct Master {
    pub(crate) life: Life,
    pub(crate) sockets: Sockets,
    pub(crate) version: u32,
    pub(crate) quality: Quality,
    /// What the machine was told of it.
    pub(crate) told: Told,
    /// Whether it was let go: a successor serves, it never served, or the operator wants the shard down.
    pub(crate) released: bool,
    pub(crate) served: bool,
    /// Whether it serves only what waits for a shard that is down.
    pub(crate) rescue: bool,
    /// Since when it is watched for quiet.
    pub(crate) watched: Option<Moment>,
    /// When it was first told to quit.
    pub(crate) quit: Option<Moment>,
    /// When the report of its death arrives, once it is on its way.
    pub(crate) death_report: Moment,
    pub(crate) proofs: u32,
}

impl Master {
    /// One that is being launched.
    pub(crate) fn new(sockets: Sockets, version: u32, quality: Quality) -> Self {
        Self {
            life: Life::Launching,
            sockets,
            version,
            quality,
            told: Told::default(),
            released: false,
            served: false,
            rescue: false,
            watched: None,
            quit: None,
            death_report: Moment::START,
            proofs: 0,
        }
    }

    /// Tells whether it holds the turn of its shard: it serves what waits and nobody outside keeps it from going.
    pub(crate) fn is_quieting(&self) -> bool {
        self.released && self.watched.is_some() && self.quit.is_none() && !self.told.detained
    }
}

/// What the machine was told of a master.
#[derive(Debug, Clone, Copy, Default)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each told once")]
pub(crate) struct Told {
    pub(crate) launched: bool,
    pub(crate) launch_failed: bool,
    pub(crate) ready: bool,
    pub(crate) proven: bool,
    pub(crate) switched: bool,
    pub(crate) quiet: bool,
    pub(crate) detained: bool,
    pub(crate) died: bool,
    pub(crate) gone: bool,
}

/// One shard as the simulation sees it.
#[derive(Debug, Clone)]
#[expect(clippy::struct_excessive_bools, reason = "independent facts, each learnt on its own")]
pub(crate) struct Site {
    /// The present configuration and how it turns out.
    pub(crate) version: u32,
    pub(crate) quality: Quality,
    /// The version that last served.
    pub(crate) good: Option<u32>,
    /// Whether the present version has failed since it became the present one, or since the operator last asked for a start.
    pub(crate) suspect: bool,
    /// What was last seen to be wanted of it.
    pub(crate) wanted: Wanted,
    pub(crate) may_park: bool,
    pub(crate) may_retire: bool,
    pub(crate) serving: Option<(Generation, Moment)>,
    pub(crate) coming: Option<Generation>,
    pub(crate) last: Generation,
    pub(crate) failures: u32,
    pub(crate) not_before: Moment,
    pub(crate) halted: bool,
    pub(crate) lent: bool,
    /// Whether requests were last seen to wait there with nobody to serve them.
    pub(crate) stranded: bool,
    /// Whether it was ever started: a shard that nobody started is empty for good reason.
    pub(crate) started: bool,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self {
            version: 1,
            quality: Quality::Good,
            good: None,
            suspect: false,
            wanted: Wanted::Up,
            may_park: false,
            may_retire: false,
            serving: None,
            coming: None,
            last: Generation(0),
            failures: 0,
            not_before: Moment::START,
            halted: false,
            lent: false,
            stranded: false,
            started: false,
        }
    }

    /// Forgets what the fleet forgets with a shard that left for good; numbers stay used.
    pub(crate) fn forget(&mut self) {
        let (may_park, may_retire) = (self.may_park, self.may_retire);
        *self = Self { version: self.version, quality: self.quality, last: self.last, may_park, may_retire, ..Self::new() };
    }

    /// Counts a failure with nobody serving, as the essay of `core::shard` tells it: a pause that doubles, then the halt.
    pub(crate) fn count_failure(&mut self, timing: &Timing, now: Moment) {
        self.failures += 1;
        let doublings = (self.failures - 1).min(16);
        let pause = timing.backoff.saturating_mul(1 << doublings).min(Duration::from_secs(60).max(timing.backoff));
        self.not_before = now.after(pause);
    }
}
