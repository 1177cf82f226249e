//! Floor 4: a person's side.

pub mod args;
pub mod check;
mod dispatch;
pub mod exit;
mod map;
pub mod plan;
mod preview;
pub mod progress;
pub mod remote;
pub mod report;
pub mod status;
mod table;
mod upstream;

pub use dispatch::run;
