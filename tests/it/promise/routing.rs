//! Taking in a pool whose clients know nothing of polyfpm, and leading them to its upstream.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{STEADY, through_upstream, unchanged};
use crate::support::{Clients, Load};

#[test]
fn unchanged_vhosts_reach_every_worker() {
    let host = unchanged(32);
    assert_eq!(host.shards().len(), 2);
    let began = Instant::now();
    let answers: Vec<_> = std::thread::scope(|scope| {
        let ask = |n: u32| host.nginx().body(&format!("/www/slow.php?ms=2000&id=r{n}"));
        let calls: Vec<_> = (0..32).map(|n| scope.spawn(move || ask(n))).collect();
        calls.into_iter().map(|call| call.join().expect("an answer")).collect()
    });
    let took = began.elapsed();
    let workers: BTreeSet<&str> = answers.iter().filter_map(|answer| answer.trim().rsplit(' ').next()).collect();
    assert_eq!(workers.len(), 32, "32 requests at once are served by 32 workers");
    assert!(took < Duration::from_millis(3900), "some waited for others: {took:?}");
}

#[test]
fn from_shared_to_split_loses_nothing() {
    let host = unchanged(16);
    let status = host.status();
    assert_eq!(status["pools"][0]["routing"], "shared", "{status:#}");
    // The client's own connections end with an NGINX reload (P22), so each request has one of its own here.
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    load.run_for(STEADY);
    host.edit(&through_upstream("www"));
    host.does(&["reload"]);
    load.run_for(STEADY);
    load.finish(host.ground()).assert_nothing_lost(500);
    let status = host.status();
    assert_eq!(status["pools"][0]["routing"], "split", "{status:#}");
    let masters: BTreeSet<String> = (0..40).map(|_| field(&host.nginx().body("/www/who.php"), "master")).collect();
    assert_eq!(masters.len(), 2, "both shards serve: {masters:?}");
}

#[test]
fn masters_run_where_the_plan_pins_them() {
    let mut host = crate::support::Sandbox::new();
    host.pool("www", 8);
    host.set("shards", "cpus", toml::Value::Array(vec!["0".into(), "1".into()]));
    host.run();
    for (shard, cpu) in host.shards().iter().zip(["0", "1"]) {
        assert_eq!(shard.cpus.as_deref(), Some(cpu));
        let pid = shard.pid.expect("a serving shard");
        for process in crate::support::children(pid).into_iter().chain([pid]) {
            let status = std::fs::read_to_string(format!("/proc/{process}/status")).unwrap();
            assert!(status.contains(&format!("Cpus_allowed_list:\t{cpu}\n")), "{status}");
        }
    }
}

fn field(json: &str, key: &str) -> String {
    let value: serde_json::Value = serde_json::from_str(json).unwrap_or_else(|e| panic!("{e}: {json}"));
    value[key].to_string()
}

#[test]
fn a_tcp_pool_on_shards_that_are_not_pinned_is_served_by_each_of_them() {
    let mut host = crate::support::Sandbox::new();
    let address = format!("127.0.0.1:{}", host.ground().port());
    host.pool_at("www", &address, 8, "");
    host.set("shards", "cpus", "off");
    host.front(&crate::support::Site::one(crate::support::Route::new("www", &address)));
    host.run();
    let masters: BTreeSet<String> = (0..40).map(|_| field(&host.nginx().body("/www/who.php"), "master")).collect();
    assert_eq!(masters.len(), 2, "both shards serve: {masters:?}");
}
