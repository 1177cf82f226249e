//! Floor 1: decisions, pure. No files, clock, tokio or system calls here.

pub mod fleet;
pub mod health;
pub mod passage;
pub mod plan;
pub mod shard;
