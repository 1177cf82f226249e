//! Shards that are down by somebody's wish, or for good: no request waits for them.

use std::time::Duration;

use super::{AT_ONCE, SOON, all_ready, pause, round_robin, served_by};
use crate::support::{Clients, Load, Sandbox, Shard, alive, eventually, until_shards};

/// How long each state is watched under load.
const WATCHED: Duration = Duration::from_millis(1500);

fn pid(shards: &[Shard], shard: &str) -> Option<i32> {
    shards.iter().find(|seen| seen.shard == shard).expect("the shard").pid
}

fn verdict(host: &Sandbox, shard: &str) -> String {
    host.shards().into_iter().find(|seen| seen.shard == shard).expect("the shard").verdict
}

/// Takes a shard down under load, watches, brings it up again: nothing waits, nothing fails, the sibling serves all, then both do.
fn down_and_up(shard: &str, sibling: &str, down: &str) {
    let host = round_robin(|_| {});
    let before = host.shards();
    let (gone, stays) = (pid(&before, shard).expect("a master"), pid(&before, sibling).expect("a master"));
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    load.run_for(WATCHED);
    let began = load.now();
    host.does(&[down, shard]);
    assert_eq!(verdict(&host, shard), "parked");
    eventually(SOON, "its master is gone", || (!alive(gone)).then_some(()));
    assert!(served_by(&host, 20).iter().all(|master| *master == stays), "the sibling serves everything");
    load.run_for(WATCHED);
    let ended = load.now();
    host.does(&["unpark", shard]);
    let after = all_ready(&host);
    let back = pid(&after, shard).expect("a new master");
    super::eventually(SOON, "both shards serve again", || {
        let seen = served_by(&host, 20);
        (seen.contains(&back) && seen.contains(&stays)).then_some(())
    });
    load.run_for(WATCHED);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(300);
    let slowest = report.quantile_within(1.0, &(began..ended));
    assert!(slowest < AT_ONCE, "a request waited {slowest:?} for the shard that is down");
}

#[test]
fn a_parked_shard_lends_its_path_and_takes_it_back() {
    down_and_up("default/2", "default/1", "park");
}

#[test]
fn the_first_shard_can_be_parked_as_well() {
    down_and_up("default/1", "default/2", "park");
}

#[test]
fn a_drained_shard_leaves_the_upstream_first() {
    let host = round_robin(|_| {});
    let include = || host.ground().read("nginx/conf.d/polyfpm.conf");
    let servers = |text: &str| text.lines().filter(|line| line.trim_start().starts_with("server ")).count();
    assert_eq!(servers(&include()), 2, "{}", include());
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    load.run_for(WATCHED);
    let said = host.does(&["drain", "default/2"]);
    assert_eq!(servers(&include()), 1, "{}", include());
    let step = |word: &str| said.lines().position(|line| line.contains(word)).unwrap_or_else(|| panic!("no step {word}: {said}"));
    assert!(step("nginx") < step("draining"), "NGINX comes first: {said}");
    assert_eq!(verdict(&host, "default/2"), "parked");
    load.run_for(WATCHED);
    host.does(&["unpark", "default/2"]);
    assert_eq!(servers(&include()), 2, "{}", include());
    let back = pid(&all_ready(&host), "default/2").expect("a master");
    assert!(served_by(&host, 20).contains(&back), "it serves again");
    load.finish(host.ground()).assert_nothing_lost(300);
}

#[test]
fn a_shard_whose_master_cannot_start_is_halted_and_nobody_waits_for_it() {
    let host = round_robin(|host| {
        let ini = host.ground().write("php.ini", "memory_limit = 128M\n").display().to_string();
        host.set("php", "ini", ini);
        host.set("restart", "give_up_after", 3);
    });
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    load.run_for(WATCHED);
    // A preload script that is missing ends every new master with code 78.
    host.ground().write("php.ini", "opcache.preload = /nowhere/preload.php\nopcache.preload_user = www-data\n");
    let (victim, stays) = (pid(&host.shards(), "default/2").expect("a master"), pid(&host.shards(), "default/1").expect("a master"));
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(victim), nix::sys::signal::Signal::SIGKILL).unwrap();
    let halted = until_shards(&host, "the shard is halted", |shards| shards.iter().any(|shard| shard.verdict == "halted"));
    let began = load.now();
    let shard = halted.iter().find(|shard| shard.shard == "default/2").expect("the shard");
    assert_eq!((shard.verdict.as_str(), shard.failures), ("halted", 3));
    let reason = shard.reason.as_deref().expect("a reason");
    assert!(reason.contains("preload"), "php-fpm's own words: {reason}");
    assert!(host.does(&["status"]).contains("preload"), "the table tells it, too");
    assert!(served_by(&host, 20).iter().all(|master| *master == stays), "the sibling serves everything");
    load.run_for(WATCHED);
    let ended = load.now();
    let generation = shard.generation;
    pause(Duration::from_secs(1));
    assert_eq!(host.shards()[1].generation, generation, "a halted shard is not started again");
    host.ground().write("php.ini", "memory_limit = 128M\n");
    host.does(&["unpark", "default/2"]);
    let back = pid(&all_ready(&host), "default/2").expect("a master");
    assert!(served_by(&host, 20).contains(&back), "it serves again");
    let report = load.finish(host.ground());
    report.assert_nothing_lost(300);
    let slowest = report.quantile_within(1.0, &(began..ended));
    assert!(slowest < AT_ONCE, "a request waited {slowest:?} for the halted shard");
}
