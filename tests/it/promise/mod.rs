//! The promise: whatever happens to the masters, no request is lost. Each file is one part of it.
//!
//! "Nothing lost" is what [`crate::support::Report::assert_nothing_lost`] says: every answer whole and right, no retry hidden by
//! NGINX, no line in its error log, every POST run exactly once.

mod adoption;
mod damaged;
mod failures;
mod foreign;
mod fresh;
mod life;
mod orphans;
mod paths;
mod races;
mod rescue;
mod rolling;
mod routing;
mod scale;
mod steps;
mod takeover;
mod together;
mod upgrade;

use std::time::Duration;

pub(crate) use scale::{Layout, Scale, measure};

use crate::support::{Route, Sandbox, Site, within};

/// 1 s of undisturbed load before and after whatever a test does.
const STEADY: Duration = Duration::from_secs(1);

/// The site whose place `/www/` goes through the upstream that polyfpm writes.
fn through_upstream(pool: &str) -> Site {
    Site::one(Route::new(pool, &Sandbox::upstream(pool)))
}

/// Lays out a pool that is split over two shards, NGINX using both through the generated upstream.
fn split(workers: u32) -> Sandbox {
    let mut host = Sandbox::new();
    host.pool("www", workers);
    host.set("shards", "routing", "split");
    host.front_at_old_paths(&["www"]);
    host.run();
    include_is_written(&host);
    host.edit(&through_upstream("www"));
    host
}

/// PHP does not wait for NGINX: the include is written when the shards serve.
fn include_is_written(host: &Sandbox) {
    let handled = within(Duration::from_secs(10), || {
        let state = host.status()["nginx"]["state"].as_str().map(str::to_owned);
        state.filter(|state| matches!(state.as_str(), "current" | "written"))
    });
    assert!(handled.is_some(), "the include was not written: {:#}", host.status()["nginx"]);
}

/// Lays out a pool whose clients know nothing of polyfpm: NGINX stays at the pool's own path.
fn unchanged(workers: u32) -> Sandbox {
    let mut host = Sandbox::new();
    host.pool("www", workers);
    host.front_at_old_paths(&["www"]);
    host.run();
    host
}
