//! How a run goes wrong: each seed has its own weather, so that rare faults come together in some runs and are absent in others.

use std::time::Duration;

use polyfpm::core::shard::Timing;

use crate::random::Random;

/// Chances are per mille.
#[derive(Debug, Clone)]
pub(crate) struct Knobs {
    pub(crate) timing: Timing,
    pub(crate) settle: Duration,
    pub(crate) shards: u16,
    /// Launches and switches are answered at once, as the real loop does.
    pub(crate) synchronous: bool,
    /// The end of a group is reported after the death of its master, never before.
    pub(crate) ordered: bool,
    pub(crate) command: u64,
    pub(crate) crash: u64,
    pub(crate) blueprint: u64,
    pub(crate) bad_blueprint: u64,
    pub(crate) again: u64,
    pub(crate) jump: u64,
    pub(crate) slow: u64,
    pub(crate) launch_failure: u64,
    pub(crate) proof_failure: u64,
    pub(crate) switch_failure: u64,
    pub(crate) deaf: u64,
    pub(crate) detained: u64,
    pub(crate) never_quiet: u64,
    pub(crate) stranded: u64,
}

impl Knobs {
    /// Throws the knobs of a run.
    pub(crate) fn throw(dice: &mut Random) -> Self {
        let ms = |dice: &mut Random, choices: &[u64]| Duration::from_millis(dice.pick(choices).unwrap_or(1_000));
        let timing = Timing {
            ready_timeout: ms(dice, &[2_000, 10_000, 30_000]),
            prove_timeout: ms(dice, &[2_000, 10_000, 30_000]),
            drain_timeout: ms(dice, &[0, 1_000, 30_000, 300_000]),
            stable_after: ms(dice, &[1_500, 10_000, 60_000]),
            backoff: ms(dice, &[0, 50, 1_000, 20_000, 90_000]),
            give_up_after: u32::try_from(1 + dice.below(6)).unwrap_or(5),
        };
        let mut rate = |choices: &[u64]| dice.pick(choices).unwrap_or_default();
        Self {
            timing,
            command: rate(&[5, 30, 120]),
            crash: rate(&[0, 5, 30, 100]),
            blueprint: rate(&[0, 5, 30]),
            bad_blueprint: rate(&[0, 300, 700]),
            again: rate(&[0, 20, 150]),
            jump: rate(&[0, 2, 20]),
            slow: rate(&[0, 20, 200]),
            launch_failure: rate(&[0, 0, 50, 250]),
            proof_failure: rate(&[0, 0, 50, 250]),
            switch_failure: rate(&[0, 0, 100, 300]),
            deaf: rate(&[0, 50, 400]),
            detained: rate(&[0, 100, 500]),
            never_quiet: rate(&[0, 50, 300]),
            stranded: rate(&[0, 100, 700]),
            settle: Duration::from_millis(rate(&[0, 1_000, 1_000, 15_000])),
            shards: u16::try_from(1 + dice.below(4)).unwrap_or(1),
            synchronous: dice.chance(500),
            ordered: dice.chance(700),
        }
    }
}
