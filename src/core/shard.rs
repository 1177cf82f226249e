//! The state machine of one shard.
