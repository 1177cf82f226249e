//! Pools that come, change and go: what is not concerned stays as it is, and what goes is served to its end.

use std::collections::BTreeMap;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::{AROUND, mixed_load, runs, short_load, until_idle};
use crate::support::{Route, Sandbox, Shard, Site, eventually};

const POOLS: [&str; 4] = ["stays", "other", "changes", "goes"];

/// Four whole pools on four shards.
fn four_pools() -> Sandbox {
    let mut host = Sandbox::new();
    host.set("shards", "count", 4);
    host.set("shards", "min_workers", 16);
    for pool in POOLS {
        host.pool(pool, 8);
    }
    host.pool("goes", 1);
    host.front_at_old_paths(&POOLS);
    host.run();
    host
}

fn of_pool(shards: &[Shard], pool: &str) -> Shard {
    shards.iter().find(|shard| shard.pools.iter().any(|name| name == pool)).unwrap_or_else(|| panic!("no shard has {pool}")).clone()
}

/// Makes a pool's one worker busy and lets more requests wait behind; the answers come when the threads are joined.
fn queue_up(port: u16, pool: &'static str) -> Vec<std::thread::JoinHandle<String>> {
    let ask = move |id: u32| std::thread::spawn(move || plain_get(port, &format!("/{pool}/slow.php?ms=1200&id=queued-{id}")));
    (0..4).map(ask).collect()
}

fn plain_get(port: u16, uri: &str) -> String {
    use std::io::{Read, Write};
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).expect("NGINX listens");
    stream.write_all(format!("GET {uri} HTTP/1.0\r\nHost: test\r\n\r\n").as_bytes()).expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    answer
}

#[test]
fn pools_come_change_and_go_and_nobody_else_notices() {
    let host = four_pools();
    let before = host.shards();
    let loads = ["stays", "changes"].map(|pool| mixed_load(&host, pool));
    loads[0].run_for(AROUND);
    let queued = queue_up(host.nginx().port(), "goes");
    let path = host.ground().path("run/goes.sock");
    eventually(Duration::from_secs(5), "requests wait for the pool that goes", || {
        let pools = host.status()["pools"].as_array()?.clone();
        let waiting = pools.iter().find(|view| view["pool"] == "goes")?["listeners"][0]["queue"]["now"].as_u64()?;
        (waiting >= 2).then_some(())
    });
    host.pool_at("changes", &host.ground().text("run/changes.sock"), 8, "php_admin_value[user_agent] = changed");
    host.pool("comes", 4);
    host.no_pool("goes");
    host.does(&["reload"]);
    let after = host.shards();
    for answer in queued {
        let answer = answer.join().expect("a client");
        assert!(answer.starts_with("HTTP/1.1 200"), "a request that waited for the removed pool was lost: {answer}");
    }
    eventually(Duration::from_secs(10), "the removed pool's path is gone", || (!path.exists()).then_some(()));
    assert_eq!(plain_get(host.nginx().port(), "/goes/hello.php?id=1").split(' ').nth(1), Some("502"));
    loads[0].run_for(AROUND);
    for load in loads {
        let report = load.finish(host.ground());
        assert!(report.failed.is_empty() && report.hidden.is_empty() && report.miscounted.is_empty(), "{}", report.line());
    }
    for pool in ["stays", "other"] {
        let (old, new) = (of_pool(&before, pool), of_pool(&after, pool));
        if old.pools == new.pools {
            assert_eq!((old.generation, old.pid), (new.generation, new.pid), "the shard of {pool} was handed over for nothing");
        }
    }
    assert_eq!(of_pool(&after, "changes").generation, of_pool(&before, "changes").generation + 1);
    let kept = ["stays", "other"].iter().filter(|pool| of_pool(&before, pool).pid == of_pool(&after, pool).pid).count();
    assert_eq!(kept, 2, "the new pool has the place of the one that went");

    let include = host.ground().read("nginx/conf.d/polyfpm.conf");
    assert!(include.contains(&format!("upstream {} ", Sandbox::upstream("comes"))), "{include}");
    assert!(!include.contains(&Sandbox::upstream("goes")), "{include}");
    host.edit(&Site::one(Route::new("comes", &Sandbox::upstream("comes"))));
    assert_eq!(host.nginx().body("/comes/hello.php?id=1"), "hello 1\n");
}

#[test]
fn an_upstream_that_a_vhost_still_names_stays() {
    let host = four_pools();
    let routes = POOLS.iter().map(|pool| Route::new(pool, &Sandbox::upstream(pool))).collect();
    host.edit(&Site { routes, ..Site::default() });
    host.does(&["reload"]);
    let load = mixed_load(&host, "stays");
    host.no_pool("goes");
    host.does(&["reload"]);
    load.run_for(AROUND);
    load.finish(host.ground()).assert_nothing_lost(50);
    let include = host.ground().read("nginx/conf.d/polyfpm.conf");
    assert!(include.contains(&format!("upstream {} ", Sandbox::upstream("goes"))), "NGINX would not start again:\n{include}");
    host.nginx().test().expect("NGINX's configuration is good");
    eventually(Duration::from_secs(10), "the removed pool's path is gone", || {
        (!host.ground().path("run/goes.sock").exists()).then_some(())
    });

    // When the vhost has gone, too, the next reload cleans up.
    let routes = POOLS[..3].iter().map(|pool| Route::new(pool, &Sandbox::upstream(pool))).collect();
    host.edit(&Site { routes, ..Site::default() });
    host.does(&["reload"]);
    let include = host.ground().read("nginx/conf.d/polyfpm.conf");
    assert!(!include.contains(&Sandbox::upstream("goes")), "{include}");
}

#[test]
fn a_reload_without_a_difference_touches_nothing() {
    let host = four_pools();
    let (before, nginx) = (runs(&host), host.nginx().workers());
    let said = host.does(&["reload"]);
    assert!(said.contains("nothing differs"), "{said}");
    host.signal(Signal::SIGHUP);
    host.does(&["status"]);
    until_idle(&host);
    assert_eq!(runs(&host), before);
    assert_eq!(host.nginx().workers(), nginx);
}

#[test]
fn one_changed_pool_among_500_restarts_one_shard() {
    let mut host = Sandbox::new();
    host.set("shards", "count", 4);
    host.set("nginx", "enabled", false);
    let pool = |number: u32, lines: &str| {
        let listen = host.ground().text(&format!("run/p{number}.sock"));
        format!("[p{number}]\nlisten = {listen}\nuser = www-data\npm = ondemand\npm.max_children = 1\n{lines}\n")
    };
    let pools: BTreeMap<u32, String> = (0..500).map(|number| (number, pool(number, ""))).collect();
    for (number, text) in &pools {
        host.pool_file(&format!("p{number}"), text);
    }
    let changed = pool(77, "php_admin_value[user_agent] = changed");
    host.run();
    let before = host.shards();
    host.pool_file("p77", &changed);
    host.does(&["reload"]);
    let after = host.shards();
    let mine = of_pool(&before, "p77").shard;
    for (old, new) in before.iter().zip(&after) {
        assert_eq!(old.pools, new.pools, "pools stay where they are");
        assert_eq!(old.pid == new.pid, old.shard != mine, "{} of {mine}", old.shard);
    }
    // Two that come and one that goes: no other pool moves.
    host.pool_file("p500", &pools[&1].replace("p1", "p500"));
    host.pool_file("p501", &pools[&1].replace("p1", "p501"));
    host.no_pool("p3");
    host.does(&["reload"]);
    let last = host.shards();
    for number in (0..500).filter(|number| *number != 3) {
        let name = format!("p{number}");
        assert_eq!(of_pool(&after, &name).shard, of_pool(&last, &name).shard);
    }
    assert!(!host.ground().path("run/p3.sock").exists());
}

#[test]
fn reloads_one_after_the_other_lose_nothing() {
    let host = four_pools();
    let load = short_load(&host, "changes");
    for turn in 0..4 {
        let lines = format!("php_admin_value[user_agent] = turn-{turn}");
        host.pool_at("changes", &host.ground().text("run/changes.sock"), 8 + turn, &lines);
        host.does(&["reload"]);
    }
    load.run_for(AROUND);
    load.finish(host.ground()).assert_nothing_lost(200);
    assert_eq!(of_pool(&host.shards(), "changes").generation, 5);
}
