//! The state machine of one shard.
//!
//! # Intent apart from fact
//!
//! What the operator wants ([`Wanted`]) and what the slot is ([`Slot`]) are two values, and the generations on their way
//! out ([`Leaving`]) are a third. A plain list of states ("up, restarting, stopping, parked …") mixes the three, and then a
//! crash while an old generation leaves, or a park in the middle of a handover, has no right place to go.
//!
//! ```text
//!            Start                 Ready, Proven
//!   Empty ─────────▶ Starting ──────────────────▶ Serving ──Roll──▶ HandingOver
//!     ▲                │  ▲                        ▲  │ Died            │
//!     │ halted, parked │  └──── Pausing ◀──────────┼──┘                 │ Switched: the old one leaves
//!     └────────────────┘        (failed start)     └────────────────────┘ any failure before: the new one leaves
//! ```
//!
//! # Rules that hold in every state
//!
//! - The serving master is told to leave only after its successor took the path, or because the operator parks, drains
//!   or stops the shard.
//! - Nothing that is dead is signalled: a master whose death was reported is addressed by its process group only, and a
//!   generation that is gone is forgotten.
//! - A generation number is never used twice; an answer that carries another number than expected is stale and ignored.
//! - A master that dies leaves workers that go on serving (P15). They are told to leave when a successor serves, not before.
//! - A birth that is given up before its launch was answered is signalled by nobody; if it runs after all, it is killed.
//!
//! # What the world owes the machine
//!
//! Every launch is answered once it is over, however late; the answer comes before anything else is told of that master.
//! A switch is answered in the same breath in which it is done: a master given up meanwhile is not switched any more. So is a loan.
//! Apart from that, reports may come late, twice, or in any order.
//!
//! # Failure
//!
//! A failed handover costs nothing: the old master stays. A failed start with nobody serving is tried again: with the last
//! configuration that served, where the present one never did; then after pauses that double; after
//! `give_up_after` failures in a row the shard is halted and waits for the operator. An operator's start means the present
//! configuration, whatever became of it before; a park gives the whole budget back. What waits meanwhile is the matter of
//! `rescue`.
//!
//! Pure: time comes in, actions go out. `core::fleet` drives it, the runtime carries the actions out.

mod adopt;
mod birth;
mod ending;
mod leaving;
mod machine;
mod rescue;
#[cfg(test)]
mod tests;
mod words;

pub use adopt::Adopted;
pub use leaving::{Leaving, LeavingStage};
pub use machine::{Birth, Shard, Slot, Stage, Timing, Wanted};
pub use words::{Action, Blueprint, Input, Left, Note, Quieting, Signal, Sockets, Target};
