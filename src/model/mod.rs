//! Floor 0: the words of the product as plain values.
//!
//! Everything here is data with its invariants: no files, no clock, no system calls, no decisions. Every other
//! floor may use this one; this one uses none. `docs/words.md` says what each word means.

pub mod clients;
pub mod cpus;
pub mod endpoint;
pub mod host;
pub mod ids;
pub mod listen;
pub mod plan;
pub mod pool;
pub mod preview;
pub mod problem;
pub mod settings;
pub mod snapshot;
pub mod time;
pub mod topology;
pub mod wire;
