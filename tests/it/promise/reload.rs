//! Reload: only what differs changes, and nothing is lost on what stays.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::STEADY;
use crate::support::{Clients, Load, Sandbox, Shard, eventually};

fn three_pools() -> Sandbox {
    let mut host = Sandbox::new();
    for pool in ["stays", "changes", "goes"] {
        host.pool(pool, 4);
    }
    host.front_at_old_paths(&["stays", "changes", "goes"]);
    host.run();
    host
}

#[test]
fn pools_come_change_and_go_under_load() {
    let mut host = three_pools();
    let loads = ["stays", "changes"].map(|pool| Load::start(host.ground(), host.nginx(), pool, Clients::one_each(2), &[]));
    loads[0].run_for(STEADY);
    host.pool_at("changes", &host.ground().text("run/changes.sock"), 6, "php_admin_value[user_agent] = changed");
    host.pool("comes", 4);
    host.no_pool("goes");
    host.does(&["reload"]);
    loads[0].run_for(STEADY);
    for load in loads {
        load.finish(host.ground()).assert_nothing_lost(200);
    }
    host.edit(&crate::support::Site {
        routes: ["stays", "changes", "comes"].map(|pool| crate::support::Route::new(pool, &host.pass(pool))).to_vec(),
        ..crate::support::Site::default()
    });
    assert!(host.nginx().body("/comes/hello.php?id=1").contains("hello 1"));
    eventually(Duration::from_secs(10), "the socket of the removed pool is gone", || {
        (!host.ground().path("run/goes.sock").exists()).then_some(())
    });
    host.stop();
}

#[test]
fn nothing_differs_and_nothing_is_restarted() {
    let host = three_pools();
    let (before, nginx) = (host.shards(), host.nginx().workers());
    host.does(&["reload"]);
    host.signal(Signal::SIGHUP);
    host.does(&["status"]);
    let masters = |shards: &[Shard]| shards.iter().map(|shard| shard.pid.map(|pid| (shard.generation, pid))).collect::<Vec<_>>();
    assert_eq!(masters(&host.shards()), masters(&before));
    assert_eq!(host.nginx().workers(), nginx);
}

#[test]
fn a_bad_pool_is_named_and_stops_no_other() {
    let host = three_pools();
    let load = Load::start(host.ground(), host.nginx(), "stays", Clients::one_each(2), &[]);
    host.pool_file("bad", "[bad]\nlisten = /tmp/bad.sock\nno_such_key = 1\n");
    host.polyfpm(&["reload"]);
    load.run_for(STEADY);
    load.finish(host.ground()).assert_nothing_lost(100);
    let check = host.polyfpm(&["check"]);
    assert_eq!(check.code, 78);
    assert!(format!("{}{}", check.out, check.err).contains("bad.conf:3"), "{}{}", check.out, check.err);
    let status = host.status();
    assert_eq!(status["quarantined"][0]["pool"], "bad", "{status:#}");
    host.pool("bad", 4);
    host.does(&["reload"]);
    assert_eq!(host.status()["quarantined"].as_array().map(Vec::len), Some(0));
}
