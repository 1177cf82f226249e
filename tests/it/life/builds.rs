//! Builds of php-fpm that can do less.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{all_ready, behind_upstream, plain, round_robin};
use crate::support::{Clients, FakeFpm, Load, Request, Sandbox, Shard, until_shards};

fn fake(host: &mut Sandbox, mode: &str) -> FakeFpm {
    let fake = FakeFpm::on(host.ground());
    fake.does(mode);
    host.set("php", "binary", fake.path().display().to_string());
    // What these builds do not know, their operators do not write.
    let known: String =
        host.ground().read("php-fpm.conf").lines().filter(|line| !line.starts_with("systemd")).map(|line| format!("{line}\n")).collect();
    host.ground().write("php-fpm.conf", &known);
    host.set("health", "interval", "200ms");
    host.set("health", "hung_after", "1s");
    fake
}

/// Start, status, restart and a crash, under load.
fn lives_on(host: &Sandbox) {
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(3), &[]);
    load.run_for(Duration::from_millis(500));
    host.does(&["restart"]);
    let shards = all_ready(host);
    assert!(shards.iter().all(|shard| shard.generation == 2), "{shards:?}");
    kill(Pid::from_raw(shards[0].pid.expect("a master")), Signal::SIGKILL).unwrap();
    until_shards(host, "the killed master has a successor", |now| now[0].generation == 3 && now[0].verdict == "ready");
    load.run_for(Duration::from_millis(500));
    load.finish(host.ground()).assert_nothing_lost(50);
}

#[test]
fn without_systemd_support_the_status_socket_tells_readiness() {
    let host = round_robin(|host| {
        fake(host, "no-notify");
    });
    lives_on(&host);
}

#[test]
fn without_systemd_support_a_master_that_never_answers_is_not_ready() {
    let host = plain(|host| {
        host.set("restart", "ready_timeout", "1s");
        fake(host, "no-notify");
    });
    let name = host.ground().path("fake-php-fpm.mode");
    std::fs::write(name, "no-notify\nnever-ready").unwrap();
    let restart = host.polyfpm(&["restart"]);
    assert_eq!(restart.code, 1, "{}{}", restart.out, restart.err);
    assert!(restart.err.contains("was not ready within"), "{}", restart.err);
    assert!(all_ready(&host).iter().all(|shard| shard.generation == 1));
}

#[test]
fn before_8_0_the_queue_and_the_processes_are_enough() {
    let host = round_robin(|host| {
        fake(host, "php-7.4");
    });
    lives_on(&host);
}

#[test]
fn before_8_0_with_systemd_the_heartbeat_tells_how_busy_it_is() {
    let mut host = Sandbox::new();
    fake(&mut host, "php-7.4-systemd");
    host.set("shards", "count", 1);
    host.pool("www", 2);
    host.front_at_old_paths(&["www"]);
    host.run();
    let peer = crate::support::Peer::Unix(host.ground().path("run/www.sock"));
    let calls: Vec<_> = (0..4)
        .map(|id| {
            let request = Request::get(&host.ground().path(""), &format!("/slow.php?ms=3000&id={id}")).timeout(Duration::from_secs(30));
            request.open(&peer).expect("a connection").beside()
        })
        .collect();
    let saturated = |shard: &Shard| shard.verdict == "saturated" && shard.workers_busy == Some(2);
    let seen = until_shards(&host, "it is saturated, and the heartbeat tells how many are at work", |shards| saturated(&shards[0]));
    assert_eq!(seen[0].generation, 1, "{seen:?}");
    for call in calls {
        assert!(call.join().expect("an answer").is_ok());
    }
    until_shards(&host, "it is ready again", |shards| shards[0].verdict == "ready" && shards[0].generation == 1);
    behind_upstream(&host);
}
