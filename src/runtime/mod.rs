//! Floor 3: one loop in which decisions meet effects.
//!
//! [`run`] is the supervisor. Events of tasks, commands, signals and deadlines come in one at a time; `core::fleet` decides;
//! `supervisor` carries the actions out. What takes time is a task that reports back.

mod adopt;
mod ahead;
mod apply;
mod barred;
mod blueprint;
mod boot;
mod calls;
pub mod draft;
mod events;
mod examine;
mod fault;
mod groups;
mod handback;
mod handoff;
mod health;
mod home;
mod host;
mod instance;
mod journal;
mod launch;
mod leftovers;
mod lending;
mod limits;
mod listens;
mod master;
mod nginx;
mod orphans;
mod paths;
mod picture;
mod pinning;
mod preview;
mod prove;
mod quiet;
mod record;
mod rescue;
mod sockets;
mod state;
mod successor;
mod supervisor;
mod takeover;
mod telling;
mod together;
mod upgrade;

use tokio::sync::mpsc;

pub use boot::{RunError, run};
pub use examine::examine;
pub use handback::inherit;
pub use nginx::{include_of, write_include};
pub use successor::{Fitness, self_check};

/// The way from tasks to the loop.
type Events = mpsc::Sender<events::Event>;

/// Tells the loop; does nothing when the loop has ended.
async fn tell(events: &Events, event: events::Event) {
    if events.send(event).await.is_err() {
        tracing::debug!("event came after the end");
    }
}

/// Gives an error with its causes in one line.
fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        text.push_str(": ");
        text.push_str(&cause.to_string());
        source = cause.source();
    }
    text
}

/// A way in for `fuzz/`.
#[cfg(fuzzing)]
pub mod fuzzing {
    /// Reads bytes as each kind of state file.
    pub fn state_files(bytes: &[u8]) {
        super::state::fuzz(bytes);
    }
}
