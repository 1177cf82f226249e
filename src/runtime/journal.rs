//! The log of transitions: each once, with fixed words and fields.

use crate::core::shard::{Note, Signal};
use crate::model::ids::MasterId;

/// Writes one transition.
pub(super) fn transition(master: &MasterId, note: &Note, pid: Option<i32>) {
    let (shard, generation) = (master.shard.to_string(), master.generation.0);
    let pid = pid.unwrap_or_default();
    match note {
        Note::Starting => tracing::info!(shard, gen = generation, "master starting"),
        Note::Launched => tracing::debug!(shard, gen = generation, pid, "master launched"),
        Note::Proving => tracing::debug!(shard, gen = generation, pid, "master ready"),
        Note::Gathered => tracing::debug!(shard, gen = generation, pid, "master proven, others are not"),
        Note::CalledOff(why) => tracing::warn!(shard, gen = generation, pid, why, "master called off"),
        Note::Switching => tracing::debug!(shard, gen = generation, pid, "master proven"),
        Note::Serving => tracing::info!(shard, gen = generation, pid, "master serving"),
        Note::Rescuing => tracing::warn!(shard, gen = generation, "rescue master starting"),
        Note::Leaving => tracing::info!(shard, gen = generation, pid, "master leaving"),
        Note::Quitting => tracing::debug!(shard, gen = generation, pid, "master told to finish"),
        Note::Hardened(signal) => {
            tracing::warn!(shard, gen = generation, pid, signal = signal_name(*signal), "master did not leave in time");
        }
        Note::Failed(why) => tracing::error!(shard, gen = generation, pid, why, "master failed to start"),
        Note::Crashed(why) => tracing::error!(shard, gen = generation, pid, why, "master died"),
        Note::Gone => tracing::info!(shard, gen = generation, "master gone"),
        Note::Pausing => tracing::warn!(shard, "shard pausing before the next start"),
        Note::Halted(why) => tracing::error!(shard, why, "shard halted"),
        Note::Parked => tracing::info!(shard, "shard parked"),
    }
}

/// Gives the name of a signal of the ladder.
pub(super) const fn signal_name(signal: Signal) -> &'static str {
    match signal {
        Signal::Quit => "SIGQUIT",
        Signal::Term => "SIGTERM",
        Signal::Kill => "SIGKILL",
    }
}
