//! Rolling restarts under load: nothing lost, nothing reset, NGINX left alone.

use std::time::Duration;

use super::STEADY;
use crate::support::{Clients, Extra, Kind, Load, Route, Sandbox, Shard, Site};

/// How often all shards are restarted in each test.
const RESTARTS: usize = 10;

/// How clients reach the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// At the pool's own path or address, as before polyfpm came.
    Unchanged,
    /// Through the generated upstream, each request on a connection of its own.
    Upstream,
    /// Through the generated upstream, connections kept.
    Kept,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transport {
    Unix,
    Tcp,
}

fn laid_out(way: Way, transport: Transport) -> Sandbox {
    let mut host = Sandbox::new();
    let (listen, pass) = match transport {
        Transport::Unix => (host.ground().text("run/www.sock"), host.pass("www")),
        Transport::Tcp => {
            let address = format!("127.0.0.1:{}", host.ground().port());
            (address.clone(), address)
        }
    };
    host.pool_at("www", &listen, 24, "");
    if way != Way::Unchanged {
        host.set("shards", "routing", "split");
    }
    if way == Way::Kept {
        host.set("nginx", "keepalive", 2);
    }
    host.front(&Site::one(Route::new("www", &pass)));
    host.run();
    let through = Route::new("www", &Sandbox::upstream("www"));
    match way {
        Way::Unchanged => {}
        Way::Upstream => host.edit(&Site::one(through)),
        Way::Kept => host.edit(&Site::one(through.keep_conn())),
    }
    // No `polyfpm reload` after the edit: a restart asks NGINX itself who keeps connections.
    host
}

fn rolling(way: Way, transport: Transport, clients: u32, extras: &[Extra]) {
    let host = laid_out(way, transport);
    let (before, nginx) = (host.shards(), host.nginx().workers());
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(clients), extras);
    load.run_for(STEADY);
    for _ in 0..RESTARTS {
        host.does(&["restart"]);
    }
    load.run_for(STEADY);
    let report = load.finish(host.ground());
    eprintln!("{way:?} {transport:?} {clients} clients: {}", report.line());
    report.assert_nothing_lost(500);
    report.assert_nothing_reset();
    for extra in extras {
        let kind = match extra {
            Extra::Uploads => Kind::Upload,
            Extra::Streams => Kind::Stream,
            Extra::Long(_) => Kind::Long,
        };
        assert!(report.count(kind) > 0, "no {kind:?} in the load");
    }
    assert_eq!(host.nginx().workers(), nginx, "NGINX was reloaded");
    each_restarted(&before, &host.shards(), RESTARTS as u64);
}

/// Checks that every shard went through so many generations and has another master.
#[track_caller]
fn each_restarted(before: &[Shard], after: &[Shard], times: u64) {
    assert_eq!(before.len(), after.len());
    for (old, new) in before.iter().zip(after) {
        assert_eq!((&new.shard, new.generation), (&old.shard, old.generation + times));
        assert_ne!(new.pid, old.pid, "{} has its old master", new.shard);
    }
}

macro_rules! rolling_restarts {
    ($($name:ident: $way:ident over $transport:ident with $clients:literal;)*) => {
        $(
            #[test]
            fn $name() {
                rolling(Way::$way, Transport::$transport, $clients, &[]);
            }
        )*
    };
}

rolling_restarts! {
    unchanged_unix_1: Unchanged over Unix with 1;
    unchanged_unix_4: Unchanged over Unix with 4;
    unchanged_unix_32: Unchanged over Unix with 32;
    unchanged_tcp_1: Unchanged over Tcp with 1;
    unchanged_tcp_4: Unchanged over Tcp with 4;
    unchanged_tcp_32: Unchanged over Tcp with 32;
    upstream_unix_1: Upstream over Unix with 1;
    upstream_unix_4: Upstream over Unix with 4;
    upstream_unix_32: Upstream over Unix with 32;
    upstream_tcp_4: Upstream over Tcp with 4;
    kept_unix_1: Kept over Unix with 1;
    kept_unix_4: Kept over Unix with 4;
    kept_unix_32: Kept over Unix with 32;
    kept_tcp_1: Kept over Tcp with 1;
    kept_tcp_4: Kept over Tcp with 4;
    kept_tcp_32: Kept over Tcp with 32;
}

/// The longest request of the mix; `POLYFPM_TEST_LONG_MS` makes it shorter for a quick look.
fn long() -> Duration {
    let asked = std::env::var("POLYFPM_TEST_LONG_MS").ok().and_then(|ms| ms.parse().ok());
    Duration::from_millis(asked.unwrap_or(45_000))
}

#[test]
fn the_whole_mix_with_requests_of_45_seconds() {
    rolling(Way::Upstream, Transport::Unix, 8, &[Extra::Uploads, Extra::Streams, Extra::Long(long())]);
}

#[test]
fn the_whole_mix_at_the_old_path() {
    rolling(Way::Unchanged, Transport::Unix, 8, &[Extra::Uploads, Extra::Streams, Extra::Long(Duration::from_secs(5))]);
}

#[test]
fn idle_kept_connections_at_the_moment_of_the_handover() {
    let host = laid_out(Way::Kept, Transport::Unix);
    let clients = Clients::keeping(3).resting(Duration::from_millis(150));
    let load = Load::start(host.ground(), host.nginx(), "www", clients, &[]);
    for _ in 0..3 {
        host.does(&["restart"]);
    }
    load.finish(host.ground()).assert_nothing_lost(30);
}

#[test]
fn one_shard_of_two() {
    let host = laid_out(Way::Upstream, Transport::Unix);
    let before = host.shards();
    host.does(&["restart", "default/2"]);
    let after = host.shards();
    assert_eq!(after[0].master(), before[0].master());
    each_restarted(&before[1..], &after[1..], 1);
    assert_eq!(host.polyfpm(&["restart", "default/9"]).code, 64);
}

#[test]
fn a_running_request_does_not_hold_the_next_shard_up() {
    let host = super::split(8);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(2), &[Extra::Long(Duration::from_secs(8))]);
    load.run_for(Duration::from_millis(500));
    let began = load.now();
    host.does(&["restart"]);
    let took = load.now() - began;
    load.finish(host.ground()).assert_nothing_lost(100);
    assert!(took < Duration::from_secs(6), "the job waited for the long request: {took:?}");
}
