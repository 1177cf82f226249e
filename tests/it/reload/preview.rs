//! `plan --diff` against a real supervisor: it tells exactly what the reload that follows does.

use std::collections::BTreeMap;

use crate::support::Sandbox;

/// Gives what a reload would change, by its own word.
#[track_caller]
fn diff(host: &Sandbox) -> serde_json::Value {
    let out = host.does(&["plan", "--diff", "--json"]);
    serde_json::from_str(&out).unwrap_or_else(|e| panic!("plan --diff --json is no JSON: {e}\n{out}"))
}

fn words(of: &serde_json::Value, list: &str, key: &str) -> BTreeMap<String, String> {
    let word = |value: &serde_json::Value| value.as_str().expect("a word").to_owned();
    of[list].as_array().expect("a list").iter().map(|change| (word(&change[key]), word(&change["change"]))).collect()
}

fn reasons(of: &serde_json::Value, shard: &str) -> String {
    let all = of["shards"].as_array().expect("shards");
    let change = all.iter().find(|change| change["shard"] == shard).expect("the shard");
    change["reasons"].as_array().expect("reasons").iter().map(|reason| reason.as_str().expect("text")).collect::<Vec<_>>().join("; ")
}

/// Gives every shard's master.
fn masters(host: &Sandbox) -> BTreeMap<String, Option<i32>> {
    host.shards().into_iter().map(|shard| (shard.shard, shard.pid)).collect()
}

/// Checks that a reload replaces the masters of these shards and no others, and that nothing is left to change then.
#[track_caller]
fn reload_does(host: &Sandbox, told: &serde_json::Value) {
    let before = masters(host);
    host.does(&["reload"]);
    let after = masters(host);
    let changed: Vec<&String> = after.iter().filter(|(shard, pid)| before.get(*shard) != Some(*pid)).map(|(shard, _)| shard).collect();
    let gone: Vec<&String> = before.keys().filter(|shard| !after.contains_key(*shard)).collect();
    let promised = words(told, "shards", "shard");
    let with =
        |fates: &[&str]| promised.iter().filter(|(_, fate)| fates.contains(&fate.as_str())).map(|(shard, _)| shard).collect::<Vec<_>>();
    assert_eq!(changed, with(&["handover", "start"]), "{told:#}");
    assert_eq!(gone, with(&["retire"]), "{told:#}");
    assert_eq!(host.does(&["plan", "--diff"]), "nothing would change\n");
}

#[test]
fn it_tells_what_the_next_reload_does() {
    let mut host = Sandbox::new();
    let ini = host.ground().write("php.ini", "memory_limit = 128M\n").display().to_string();
    host.set("php", "ini", ini);
    host.set("shards", "min_workers", 8);
    host.set("nginx", "enabled", false);
    for pool in ["a", "b", "c"] {
        host.pool(pool, 2);
    }
    host.run();
    let before = masters(&host);
    assert_eq!(host.does(&["plan", "--diff"]), "nothing would change\n");

    // One pool's lines, and another pool's workers.
    let shard_of = |host: &Sandbox, pool: &str| {
        host.shards().into_iter().find(|shard| shard.pools.iter().any(|carried| carried == pool)).expect("a shard with it").shard
    };
    host.pool_at("a", &host.ground().text("run/a.sock"), 2, "php_admin_value[user_agent] = changed");
    let told = diff(&host);
    assert_eq!(words(&told, "pools", "pool"), BTreeMap::from([("a".to_owned(), "changed".to_owned())]));
    assert_eq!(reasons(&told, &shard_of(&host, "a")), "lines of pool a");
    assert_eq!(masters(&host), before, "asking changes nothing");
    reload_does(&host, &told);
    host.pool("b", 3);
    let told = diff(&host);
    assert!(reasons(&told, &shard_of(&host, "b")).contains("workers of pool b: 2 → 3"), "{told:#}");
    reload_does(&host, &told);

    // Pools that come and go, and one that is bad.
    host.pool("d", 2);
    host.no_pool("c");
    host.pool_at("bad", &host.ground().text("run/bad.sock"), 2, "no_such_key = 1");
    let told = diff(&host);
    let fates = words(&told, "pools", "pool");
    for (pool, fate) in [("d", "added"), ("c", "removed"), ("bad", "kept_out")] {
        assert_eq!(fates.get(pool).map(String::as_str), Some(fate), "{told:#}");
    }
    reload_does(&host, &told);

    // What all masters have in common.
    host.ground().write("php.ini", "memory_limit = 129M\n");
    let told = diff(&host);
    assert_eq!(told["pools"], serde_json::json!([]));
    assert!(words(&told, "shards", "shard").len() == host.shards().len(), "{told:#}");
    assert!(reasons(&told, "default/1").contains("php.ini"), "{told:#}");
    reload_does(&host, &told);

    // What a reload would refuse.
    host.ground().write("web.toml", "[shards]\ncuont = 2\n");
    let refused = host.polyfpm(&["plan", "--diff"]);
    assert_eq!(refused.code, 78, "{}{}", refused.out, refused.err);
}

#[test]
fn without_a_supervisor_it_says_so() {
    let host = Sandbox::new();
    host.pool("a", 2);
    let ended = host.polyfpm(&["plan", "--diff"]);
    assert_eq!(ended.code, 69, "{}{}", ended.out, ended.err);
    assert!(ended.err.contains("supervisor"), "{}", ended.err);
}
