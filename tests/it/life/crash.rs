//! Masters that are killed: orphans serve until the successor does, loops end, the last good configuration is tried.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{SOON, all_ready, plain, round_robin};
use crate::support::{Clients, Extra, FakeFpm, Load, Sandbox, Shard, eventually, until_shards};

fn shard(host: &Sandbox, name: &str) -> Shard {
    host.shards().into_iter().find(|seen| seen.shard == name).expect("the shard")
}

fn serves(shard: &Shard) -> bool {
    matches!(shard.verdict.as_str(), "ready" | "busy" | "saturated")
}

fn kill_master(of: &Shard) -> i32 {
    let pid = of.pid.expect("a master");
    kill(Pid::from_raw(pid), Signal::SIGKILL).expect("a living master");
    pid
}

#[test]
fn a_killed_master_is_replaced_on_the_same_socket_and_nothing_in_flight_is_lost() {
    let host = round_robin(|_| {});
    let extras = [Extra::Long(Duration::from_secs(2)), Extra::Uploads, Extra::Streams];
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &extras);
    load.run_for(Duration::from_secs(1));
    for name in ["default/1", "default/2"] {
        let before = shard(&host, name);
        let orphans = crate::support::children(before.pid.expect("a master"));
        assert!(!orphans.is_empty());
        kill_master(&before);
        until_shards(&host, "another master serves", |shards| {
            shards.iter().any(|now| now.shard == name && serves(now) && now.generation == before.generation + 1)
        });
        let gone = || orphans.iter().all(|pid| !crate::support::alive(*pid)).then_some(());
        eventually(SOON, "the orphans have left", gone);
    }
    load.run_for(Duration::from_secs(1));
    load.finish(host.ground()).assert_nothing_lost(150);
}

#[test]
fn a_master_that_is_killed_again_and_again_is_halted_and_unpark_brings_it_back() {
    let host = round_robin(|host| {
        host.set("restart", "give_up_after", 3);
        host.set("restart", "backoff", "50ms");
    });
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    let mut kills = 0;
    eventually(Duration::from_secs(60), "the shard is halted", || {
        let now = shard(&host, "default/1");
        if now.verdict == "ready" {
            kill(Pid::from_raw(now.pid?), Signal::SIGKILL).ok()?;
            kills += 1;
        }
        (now.verdict == "halted").then_some(())
    });
    assert!(kills <= 12, "{kills} masters were started before it was given up");
    let halted = shard(&host, "default/1");
    assert!(halted.reason.as_deref().unwrap_or_default().contains("signal 9"), "{halted:?}");
    assert!(serves(&shard(&host, "default/2")));
    host.does(&["unpark", "default/1"]);
    all_ready(&host);
    load.finish(host.ground()).assert_nothing_lost(100);
}

#[test]
fn restart_brings_a_halted_shard_back_too() {
    let host = plain(|host| host.set("restart", "give_up_after", 2));
    kill_master(&shard(&host, "default/1"));
    let again = until_shards(&host, "it has been replaced once", |shards| shards[0].generation == 2 && shards[0].verdict == "ready");
    kill_master(&again[0]);
    until_shards(&host, "it is halted", |shards| shards[0].verdict == "halted");
    host.does(&["restart", "default/1"]);
    all_ready(&host);
}

#[test]
fn a_configuration_that_never_served_gives_way_to_the_last_good_one() {
    let mut host = plain(|host| {
        host.ground().write("www/warm.php", "<?php http_response_code(500);");
    });
    let script = host.ground().text("www/warm.php");
    let mut warmup = toml::Table::new();
    warmup.insert("pool".to_owned(), "www".into());
    warmup.insert("script".to_owned(), script.into());
    warmup.insert("uri".to_owned(), "/warm.php".into());
    host.set("restart", "warmup", toml::Value::Array(vec![warmup.into()]));
    host.pool_at("www", &host.ground().text("run/www.sock"), 4, "env[NEW] = yes");
    let reload = host.polyfpm(&["reload"]);
    assert_eq!(reload.code, 1, "{}{}", reload.out, reload.err);
    let failed = if reload.err.contains("default/2") { "default/2" } else { "default/1" };
    let before = shard(&host, failed);
    kill_master(&before);
    let after = until_shards(&host, "it serves again, as it last did", |shards| {
        shards.iter().any(|now| now.shard == failed && now.verdict == "ready" && now.pid != before.pid)
    });
    assert_eq!(after.len(), 2);
    assert!(host.nginx().body("/www/hello.php?id=1").contains("hello 1"));
}

#[test]
fn exit_78_does_not_storm() {
    let mut host = Sandbox::new();
    let fake = FakeFpm::on(host.ground());
    host.set("php", "binary", fake.path().display().to_string());
    host.set("shards", "count", 1);
    host.set("restart", "give_up_after", 4);
    host.set("restart", "backoff", "200ms");
    host.pool("www", 4);
    host.front_at_old_paths(&["www"]);
    host.run();
    fake.does("exits 78 10");
    let before = shard(&host, "default/1");
    let began = std::time::Instant::now();
    kill_master(&before);
    let halted = until_shards(&host, "it is halted", |shards| shards[0].verdict == "halted");
    // The kill itself is the first failure; pauses of 200, 400 and 800 ms lie between the three starts and the end.
    assert!(began.elapsed() > Duration::from_millis(550), "halted after {:?}", began.elapsed());
    assert_eq!(halted[0].generation - before.generation, 3);
    let reason = halted[0].reason.as_deref().unwrap_or_default();
    assert!(reason.contains("78") && reason.contains("FPM initialization failed"), "{reason}");
    let log = host.ground().read("log/polyfpm.out");
    let failed: Vec<&str> = log.lines().filter(|line| line.contains("master failed to start")).collect();
    assert_eq!(failed.len(), 3, "{failed:#?}");
    assert!(failed.iter().all(|line| line.contains("default/1") && line.contains("gen=")), "{failed:#?}");
}

#[test]
fn a_killed_supervisor_leaves_its_masters_serving() {
    let mut host = plain(|_| {});
    host.signal(Signal::SIGKILL);
    host.supervisor().wait(SOON);
    for id in 0..8 {
        assert!(host.nginx().body(&format!("/www/hello.php?id={id}")).contains(&format!("hello {id}")));
    }
}
