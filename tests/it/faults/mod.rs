//! What goes wrong around us: NGINX, disks, descriptors, processes, people at the control socket.
//!
//! What is ours goes on, the next change says what it could not do, and once the fault is gone the same command succeeds.

mod control;
mod disk;
mod lacks;
mod names;
mod nginx;
mod paths;
mod processes;
mod soak;

use std::collections::BTreeSet;
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

/// Tells whether a worker has an accepted connection: a socket that is connected, and not the one it accepts on.
fn has_a_request(worker: i32) -> bool {
    let table = std::fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let connected: BTreeSet<&str> = table
        .lines()
        .map(|line| line.split_whitespace().collect::<Vec<_>>())
        .filter(|fields| fields.get(5) == Some(&"03") && fields.len() > 7)
        .filter_map(|fields| fields.get(6).copied())
        .collect();
    let links = std::fs::read_dir(format!("/proc/{worker}/fd")).into_iter().flatten().flatten();
    let inodes = links.filter_map(|link| {
        let target = std::fs::read_link(link.path()).ok()?;
        Some(target.to_str()?.strip_prefix("socket:[")?.strip_suffix(']')?.to_owned())
    });
    inodes.into_iter().any(|inode| connected.contains(inode.as_str()))
}
