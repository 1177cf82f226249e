//! What changes while requests run: routing, pools, php.ini, code, and what goes wrong on the way.

mod masters;
mod pools;
mod preview;
mod quarantine;
mod refused;
mod take_in;

use std::time::Duration;

use crate::support::{Clients, Extra, Load, Sandbox, eventually};

/// Few enough that half of a pool's workers serve them, since the other half may be on its way in.
const CLIENTS: u32 = 4;

/// How long a load runs before and after what is tried.
const AROUND: Duration = Duration::from_millis(400);

/// Starts the mixed load on a pool. NGINX is reloaded under it, so each request has a connection of its own (P22).
fn mixed_load(sandbox: &Sandbox, pool: &str) -> Load {
    let extras = [Extra::Uploads, Extra::Streams, Extra::Long(Duration::from_secs(4))];
    Load::start(sandbox.ground(), sandbox.nginx(), pool, Clients::one_each(CLIENTS), &extras)
}

/// Starts a load of short requests alone.
fn short_load(sandbox: &Sandbox, pool: &str) -> Load {
    Load::start(sandbox.ground(), sandbox.nginx(), pool, Clients::one_each(CLIENTS), &[])
}

/// Gives how a pool is reached, as `status --json` tells.
#[track_caller]
fn routing(sandbox: &Sandbox, pool: &str) -> String {
    let status = sandbox.status();
    let pools = status["pools"].as_array().expect("pools").clone();
    let found = pools.iter().find(|view| view["pool"] == pool).unwrap_or_else(|| panic!("no pool {pool} in {status}"));
    found["routing"].as_str().expect("a word").to_owned()
}

/// Gives the names of the pools that are kept out, with their problems as text.
#[track_caller]
fn quarantined(sandbox: &Sandbox) -> Vec<(String, String)> {
    let status = sandbox.status();
    let bad = status["quarantined"].as_array().expect("quarantined").clone();
    bad.iter().map(|bad| (bad["pool"].as_str().expect("a name").to_owned(), bad["problem"].to_string())).collect()
}

/// Gives shard names with generation and pid.
#[track_caller]
fn runs(sandbox: &Sandbox) -> Vec<(String, u64, i32)> {
    sandbox.shards().into_iter().map(|shard| (shard.shard, shard.generation, shard.pid.unwrap_or_default())).collect()
}

/// Waits until no job is under way.
#[track_caller]
fn until_idle(sandbox: &Sandbox) {
    eventually(Duration::from_secs(60), "no job is under way", || sandbox.status()["job"].is_null().then_some(()));
}
