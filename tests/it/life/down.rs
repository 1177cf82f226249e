//! Shards that are down by somebody's wish, or for good: no request waits for them.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{AT_ONCE, SOON, all_ready, pause, round_robin, served_by};
use crate::support::{Clients, Load, Route, Sandbox, Shard, Site, alive, eventually, until_shards};

/// How long each state is watched under load.
const WATCHED: Duration = Duration::from_millis(1500);

const GOOD_INI: &str = "memory_limit = 128M\n";

/// A preload script that is missing ends every new master with code 78.
const NO_START: &str = "opcache.preload = /nowhere/preload.php\nopcache.preload_user = www-data\n";

/// Starts two shards with a php.ini of their own, which a test may spoil.
fn given_up_after(failures: u32) -> Sandbox {
    round_robin(|host| {
        let ini = host.ground().write("php.ini", GOOD_INI).display().to_string();
        host.set("php", "ini", ini);
        host.set("restart", "give_up_after", failures);
    })
}

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
    report.assert_nothing_lost(150);
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
fn a_lent_path_follows_its_sibling_through_restart_and_crash() {
    let host = round_robin(|_| {});
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    host.does(&["park", "default/2"]);
    for generation in [2, 3] {
        host.does(&["restart"]);
        load.run_for(Duration::from_millis(500));
        assert_eq!(host.shards()[0].generation, generation);
    }
    let victim = pid(&host.shards(), "default/1").expect("a master");
    kill(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
    until_shards(&host, "the sibling has a new master", |shards| shards[0].generation == 4 && shards[0].pid.is_some());
    load.run_for(Duration::from_millis(500));
    let serving = pid(&host.shards(), "default/1").expect("a master");
    assert!(served_by(&host, 20).iter().all(|master| *master == serving));
    host.does(&["unpark", "default/2"]);
    all_ready(&host);
    load.run_for(Duration::from_millis(500));
    load.finish(host.ground()).assert_nothing_lost(150);
}

#[test]
fn when_all_were_down_the_first_that_is_back_serves_for_all() {
    let host = round_robin(|_| {});
    host.does(&["park", "default/1"]);
    host.does(&["park", "default/2"]);
    let waiting = std::thread::scope(|scope| {
        let nginx = host.nginx();
        let waiting: Vec<_> = (0..4).map(|id| scope.spawn(move || nginx.body(&format!("/www/hello.php?id={id}")))).collect();
        pause(Duration::from_millis(300));
        host.does(&["unpark", "default/1"]);
        let serving = pid(&host.shards(), "default/1").expect("a master");
        assert!(served_by(&host, 20).iter().all(|master| *master == serving), "the other's path leads here");
        host.does(&["unpark", "default/2"]);
        waiting.into_iter().map(|answer| answer.join().expect("an answer")).collect::<Vec<_>>()
    });
    for (id, answer) in waiting.iter().enumerate() {
        assert!(answer.contains(&format!("hello {id}")), "{answer}");
    }
    let masters: std::collections::BTreeSet<i32> = served_by(&host, 20).into_iter().collect();
    assert_eq!(masters.len(), 2, "both serve again");
}

#[test]
fn requests_of_a_parked_whole_pool_wait_for_its_return() {
    let host = super::plain(|host| host.set("shards", "routing", "whole"));
    let Shard { shard: on, pid, .. } = host.shards().into_iter().find(|shard| shard.pools == ["www"]).expect("the pool's shard");
    host.does(&["park", &on]);
    eventually(SOON, "its master is gone", || pid.filter(|pid| !alive(*pid)));
    let answer = std::thread::scope(|scope| {
        let nginx = host.nginx();
        let waiting = scope.spawn(move || nginx.body("/www/hello.php?id=7"));
        pause(Duration::from_millis(300));
        assert!(!waiting.is_finished());
        host.does(&["unpark", &on]);
        waiting.join().expect("an answer")
    });
    assert!(answer.contains("hello 7"), "{answer}");
}

/// Parks a shard of a pool that is reached otherwise, under load.
fn parked_under_load(host: &Sandbox) {
    let stays = pid(&host.shards(), "default/1").expect("a master");
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    load.run_for(Duration::from_millis(500));
    host.does(&["park", "default/2"]);
    assert!(served_by(host, 20).iter().all(|master| *master == stays));
    host.does(&["restart"]);
    load.run_for(Duration::from_millis(500));
    host.does(&["unpark", "default/2"]);
    all_ready(host);
    load.run_for(Duration::from_millis(500));
    load.finish(host.ground()).assert_nothing_lost(200);
}

#[test]
fn a_shared_pool_loses_nothing_when_a_shard_is_parked() {
    parked_under_load(&super::plain(|host| host.set("shards", "routing", "shared")));
}

#[test]
fn a_tcp_pool_loses_nothing_when_a_shard_is_parked() {
    let mut host = Sandbox::new();
    let address = format!("127.0.0.1:{}", host.ground().port());
    host.pool_at("www", &address, 8, "");
    host.front(&Site::one(Route::new("www", &address)));
    host.run();
    parked_under_load(&host);
}

#[test]
fn what_waits_for_a_shard_with_nobody_left_is_let_go_when_it_is_halted() {
    let host = given_up_after(3);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    load.run_for(Duration::from_millis(500));
    host.ground().write("php.ini", NO_START);
    let victim = pid(&host.shards(), "default/2").expect("a master");
    nix::sys::signal::killpg(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
    until_shards(&host, "the shard is halted", |shards| shards[1].verdict == "halted");
    let halted = load.now();
    load.run_for(WATCHED);
    let report = load.finish(host.ground());
    // The workers were killed too: what they had begun is lost, and nothing after that.
    let late: Vec<_> = report.failed.iter().filter(|sample| sample.at > halted).collect();
    assert!(late.is_empty(), "failed after the shard was halted: {late:#?}");
    let waited = report.samples.iter().map(|sample| (sample.at + sample.took).saturating_sub(halted)).zip(&report.samples);
    let slow: Vec<_> = waited.filter(|(past, sample)| sample.at < halted && *past > AT_ONCE).collect();
    assert!(slow.is_empty(), "waited on for a shard that is halted: {slow:#?}");
    assert!(report.quantile_within(1.0, &(halted..Duration::MAX)) < AT_ONCE);
}

#[test]
fn stopping_leaves_nothing_whatever_the_shards_do() {
    let mut host = given_up_after(2);
    host.does(&["park", "default/2"]);
    host.does(&["restart"]);
    host.signal(Signal::SIGTERM);
    host.ends();

    host.run();
    host.does(&["park", "default/1"]);
    host.does(&["park", "default/2"]);
    host.signal(Signal::SIGTERM);
    host.ends();

    for (give_up, verdict) in [(2, "halted"), (9, "flapping")] {
        host.set("restart", "give_up_after", give_up);
        host.set("restart", "backoff", "30s");
        host.run();
        host.ground().write("php.ini", NO_START);
        let victim = pid(&host.shards(), "default/2").expect("a master");
        kill(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
        until_shards(&host, "the shard is down", |shards| shards[1].verdict == verdict);
        host.signal(Signal::SIGTERM);
        host.ends();
        host.ground().write("php.ini", GOOD_INI);
    }
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
    load.finish(host.ground()).assert_nothing_lost(150);
}

#[test]
fn a_shard_whose_master_cannot_start_is_halted_and_nobody_waits_for_it() {
    let host = given_up_after(3);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    load.run_for(WATCHED);
    host.ground().write("php.ini", NO_START);
    let (victim, stays) = (pid(&host.shards(), "default/2").expect("a master"), pid(&host.shards(), "default/1").expect("a master"));
    kill(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
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
    host.ground().write("php.ini", GOOD_INI);
    host.does(&["unpark", "default/2"]);
    let back = pid(&all_ready(&host), "default/2").expect("a master");
    assert!(served_by(&host, 20).contains(&back), "it serves again");
    let report = load.finish(host.ground());
    report.assert_nothing_lost(150);
    let slowest = report.quantile_within(1.0, &(began..ended));
    assert!(slowest < AT_ONCE, "a request waited {slowest:?} for the halted shard");
}
