//! Control and life: what a supervisor does when it is asked, signalled, crossed, and when its masters fall.

mod builds;
mod control;
mod crash;
mod down;
mod groups;
mod health;
mod logs;
mod pinning;
mod service;
mod signals;
mod spawn;
mod stop;

use std::time::Duration;

use crate::support::{Route, Sandbox, Shard, Site, eventually, until_shards};

/// Far above what anything here takes, for machines that do other things too.
const SOON: Duration = Duration::from_secs(20);

/// What a request may take at most where none may wait: the clients and both shards share two CPUs.
const AT_ONCE: Duration = Duration::from_millis(900);

/// A pool split over two shards, NGINX going round both through the generated upstream.
pub(crate) fn round_robin(prepare: impl FnOnce(&mut Sandbox)) -> Sandbox {
    let mut host = Sandbox::new();
    host.pool("www", 8);
    host.set("shards", "routing", "split");
    host.set("nginx", "balance", "round_robin");
    prepare(&mut host);
    host.front_at_old_paths(&["www"]);
    host.run();
    behind_upstream(&host);
    host
}

/// Sends NGINX through the generated upstream, once it is there.
fn behind_upstream(host: &Sandbox) {
    nginx_is_current(host);
    host.edit(&Site::one(Route::new("www", &Sandbox::upstream("www"))));
}

/// A pool at its own path, NGINX left as it was.
fn plain(prepare: impl FnOnce(&mut Sandbox)) -> Sandbox {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    prepare(&mut host);
    host.front_at_old_paths(&["www"]);
    host.run();
    nginx_is_current(&host);
    host
}

/// Waits until the include is written and NGINX has been reloaded.
#[track_caller]
fn nginx_is_current(host: &Sandbox) {
    eventually(SOON, "the include is current", || (host.status()["nginx"]["state"] == "current").then_some(()));
}

/// Lets time pass.
fn pause(span: Duration) {
    crate::support::within(span, || None::<()>);
}

/// Waits until no job is under way.
#[track_caller]
fn at_rest(host: &Sandbox) {
    eventually(SOON, "no job is under way", || host.status()["job"].is_null().then_some(()));
}

/// Waits until every shard is ready, and gives them.
#[track_caller]
fn all_ready(host: &Sandbox) -> Vec<Shard> {
    until_shards(host, "every shard is ready", |shards| shards.iter().all(|shard| shard.verdict == "ready"))
}

/// Gives which master served each of so many requests, one after the other, and fails where one took longer than [`AT_ONCE`].
#[track_caller]
fn served_by(host: &Sandbox, requests: usize) -> Vec<i32> {
    (0..requests)
        .map(|_| {
            let began = std::time::Instant::now();
            let body = host.nginx().body("/www/who.php");
            assert!(began.elapsed() < AT_ONCE, "a request took {:?}", began.elapsed());
            let who: serde_json::Value = serde_json::from_str(&body).unwrap_or_else(|e| panic!("{e}: {body}"));
            who["master"].as_i64().and_then(|pid| i32::try_from(pid).ok()).expect("the master's pid")
        })
        .collect()
}
