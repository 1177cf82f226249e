//! What a shard is told and what it asks for.

use crate::model::ids::{Generation, MasterId, ShardId};

/// Which sockets a new master accepts on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Sockets {
    /// Those at the public paths, bound and published first where they are not: nobody serves, and connections shall wait
    /// rather than be refused (P4).
    Held,
    /// New ones beside the public paths; they take the paths when the master has been proven (P20).
    New,
    /// The same, and new ones for what several shards accept on, too: one for all who come in together. They take the paths
    /// when the last of them has been proven.
    Together,
}

/// Which configuration a new master gets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Blueprint {
    /// The present plan's.
    Current,
    /// The last one that served.
    LastGood,
}

/// A signal of the ladder.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Signal {
    /// SIGQUIT: finish what you do, then leave.
    Quit,
    /// SIGTERM: leave.
    Term,
    /// SIGKILL.
    Kill,
}

/// Whom a signal is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Target {
    /// The master, which passes it on.
    Master,
    /// The whole process group: the master is dead or does not listen.
    Group,
}

/// Why a generation is leaving, which decides what has to be quiet first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Quieting {
    /// A successor took its paths.
    Replaced,
    /// The operator parks the shard: the listeners stay held.
    Parked,
    /// The shard goes for good: its paths are taken away first.
    Retired,
}

/// What was found at the sockets of a shard whose paths are lent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Left {
    /// Requests wait there, and nobody serves them.
    Stranded,
    /// Somebody still accepts there.
    Served,
    /// Nobody waits there, or the paths are not lent and new requests still come.
    Nothing,
}

/// What a shard is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Input {
    /// Be up: start when nothing serves.
    Start,
    /// Replace the serving master by a new one.
    Roll,
    /// Replace the serving master together with those of other shards: the new one waits until it is told to go on.
    RollTogether,
    /// All that come in together have been proven: the paths are taken in the same breath.
    GoOn,
    /// One of those that come in together failed: the new master of this shard leaves, the old one stays.
    CallOff {
        /// Why.
        why: String,
    },
    /// Replace the serving master, which accepts nothing any more, on the sockets it has: what waits there is served then.
    Heal,
    /// Be down, listeners held.
    Park,
    /// Be down for good.
    Retire,
    /// The master of this generation runs.
    Launched {
        /// Which one.
        generation: Generation,
        /// Its pid.
        pid: u32,
    },
    /// It could not be started: nothing of it is alive.
    LaunchFailed {
        /// Which one.
        generation: Generation,
        /// Why.
        why: String,
    },
    /// It told that it is ready.
    Ready {
        /// Which one.
        generation: Generation,
    },
    /// It answered on its private socket and passed its warm-up.
    Proven {
        /// Which one.
        generation: Generation,
    },
    /// It did not.
    NotProven {
        /// Which one.
        generation: Generation,
        /// Why.
        why: String,
    },
    /// Its sockets took the public paths; told in the same breath in which they did.
    Switched {
        /// Which one.
        generation: Generation,
    },
    /// They could not; the paths are as they were.
    SwitchFailed {
        /// Which one.
        generation: Generation,
        /// Why.
        why: String,
    },
    /// The master process of this generation ended.
    Died {
        /// Which one.
        generation: Generation,
        /// How, with the last it said.
        why: String,
    },
    /// No request waits at a socket only this generation serves, and no client holds a connection it may use again.
    Quiet {
        /// Which one.
        generation: Generation,
    },
    /// It is quiet but for something outside this shard: NGINX still names its sockets, or another shard will take its path.
    Detained {
        /// Which one.
        generation: Generation,
    },
    /// Its paths were lent where they could be; told in the same breath.
    Lent {
        /// What was found at its sockets.
        left: Left,
    },
    /// No process of this generation is left.
    Gone {
        /// Which one.
        generation: Generation,
    },
    /// Time passed.
    Time,
}

/// What a shard asks for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Start a master.
    Launch {
        /// Which one.
        master: MasterId,
        /// On which sockets.
        sockets: Sockets,
        /// With which configuration.
        blueprint: Blueprint,
    },
    /// Start a master that serves what waits at the sockets whose paths are lent, and nothing else.
    Rescue {
        /// Which one.
        master: MasterId,
    },
    /// Ask it on its private socket, warm it up.
    Prove {
        /// Which one.
        master: MasterId,
    },
    /// Let its sockets take the public paths.
    Switch {
        /// Which one.
        master: MasterId,
    },
    /// Report when it is quiet.
    WatchQuiet {
        /// Which one.
        master: MasterId,
        /// Why it leaves.
        why: Quieting,
    },
    /// Send a signal.
    Signal {
        /// To whom.
        master: MasterId,
        /// Which signal.
        signal: Signal,
        /// To the master or to all of its group.
        to: Target,
    },
    /// Nothing of it is left: close what was kept for it, remove its files.
    Discard {
        /// Which one.
        master: MasterId,
    },
    /// Give the shard's public paths to living siblings where there are any (design, rule 9).
    Lend {
        /// Which shard.
        shard: ShardId,
    },
    /// Take lent paths back: a master serves again.
    TakeBack {
        /// Which shard.
        shard: ShardId,
    },
    /// Close the listeners that wait for a master that will not come, where their paths are lent.
    CloseHeld {
        /// Which shard.
        shard: ShardId,
    },
    /// Tell what happened.
    Note {
        /// Whose.
        master: MasterId,
        /// What.
        note: Note,
    },
}

/// A transition, for the journal and for the job's progress.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Note {
    /// A master is being started.
    Starting,
    /// It runs; readiness is awaited.
    Launched,
    /// It is ready and being proven.
    Proving,
    /// It has been proven and waits for those that come in together with it.
    Gathered,
    /// Its sockets take the paths.
    Switching,
    /// It serves.
    Serving,
    /// It is started to serve what waits for a shard that is down.
    Rescuing,
    /// It takes over from another generation, which leaves.
    Leaving,
    /// It was told to finish.
    Quitting,
    /// It did not leave in time; a harder signal follows.
    Hardened(Signal),
    /// It failed before it served.
    Failed(String),
    /// It is given up because another that was to come in together with it failed.
    CalledOff(String),
    /// It served and died.
    Crashed(String),
    /// Nothing of it is left.
    Gone,
    /// The shard waits before the next start.
    Pausing,
    /// The shard is halted.
    Halted(String),
    /// The shard is parked.
    Parked,
}
