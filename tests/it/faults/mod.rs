//! What goes wrong around us: NGINX, disks, descriptors, processes, people at the control socket.
//!
//! What is ours goes on, the next change says what it could not do, and once the fault is gone the same command succeeds.

mod disk;
mod nginx;
mod soak;

use std::time::Duration;

use crate::life::round_robin as split;
use crate::support::{Route, Sandbox, Site, eventually};

/// Far above what anything here takes, for machines that do other things too.
const SOON: Duration = Duration::from_secs(20);

/// The site whose place `/www/` goes through the upstream that polyfpm writes.
fn through_upstream() -> Site {
    Site::one(Route::new("www", &Sandbox::upstream("www")))
}

/// Waits until NGINX stands so.
#[track_caller]
fn nginx_is(host: &Sandbox, state: &str) {
    eventually(SOON, &format!("the include is {state}"), || (host.status()["nginx"]["state"] == state).then_some(()));
}

/// Gives each shard's generation.
fn generations(host: &Sandbox) -> Vec<u64> {
    host.shards().iter().map(|shard| shard.generation).collect()
}
