//! Verdicts on a serving shard.
