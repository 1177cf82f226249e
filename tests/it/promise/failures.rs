//! New generations that are no good: the job stops, the old one serves, nothing is lost.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{STEADY, split};
use crate::support::{Clients, FakeFpm, Load, Sandbox, alive, eventually};

/// Restarts under load when nothing new can come up, and checks that nothing changed.
fn refused(host: &Sandbox, named: &str) {
    let before = host.shards();
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    load.run_for(STEADY);
    let ended = host.polyfpm(&["restart"]);
    load.run_for(STEADY);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(500);
    report.assert_nothing_reset();
    assert_eq!(ended.code, 1, "{}{}", ended.out, ended.err);
    let said = format!("{}{}", ended.out, ended.err);
    assert!(said.contains("default/1"), "the failed shard is not named: {said}");
    assert!(said.contains(named), "the reason ({named}) is not told: {said}");
    let pids = |shards: &[crate::support::Shard]| shards.iter().map(|shard| shard.pid).collect::<Vec<_>>();
    assert_eq!(pids(&host.shards()), pids(&before), "the old masters serve on");
}

#[test]
fn a_preload_script_that_is_not_there() {
    let mut host = Sandbox::new();
    host.pool("www", 8);
    let ini = host.ground().write("php.ini", "memory_limit = 128M\n").display().to_string();
    host.set("php", "ini", ini);
    host.front_at_old_paths(&["www"]);
    host.run();
    host.ground().write("php.ini", "opcache.preload = /nowhere/preload.php\nopcache.preload_user = www-data\n");
    refused(&host, "preload");
}

#[test]
fn a_warm_up_that_fails() {
    let mut host = Sandbox::new();
    host.pool("www", 8);
    let script = host.ground().write("www/warm.php", "<?php echo 'warm';");
    let mut warmup = toml::Table::new();
    warmup.insert("pool".to_owned(), "www".into());
    warmup.insert("script".to_owned(), script.display().to_string().into());
    warmup.insert("uri".to_owned(), "/warm.php".into());
    warmup.insert("expect".to_owned(), 200.into());
    host.set("restart", "warmup", toml::Value::Array(vec![warmup.into()]));
    host.front_at_old_paths(&["www"]);
    host.run();
    host.does(&["restart"]);
    host.ground().write("www/warm.php", "<?php http_response_code(500); a_function_of_a_missing_extension();");
    refused(&host, "warm");
}

fn with_fake() -> (Sandbox, FakeFpm) {
    let mut host = Sandbox::new();
    let fake = FakeFpm::on(host.ground());
    host.set("php", "binary", fake.path().display().to_string());
    host.set("restart", "ready_timeout", "2s");
    host.set("restart", "drain_timeout", "2s");
    host.pool("www", 8);
    host.front_at_old_paths(&["www"]);
    host.run();
    (host, fake)
}

#[test]
fn a_master_that_is_never_ready() {
    let (host, fake) = with_fake();
    fake.does("never-ready");
    refused(&host, "ready");
}

#[test]
fn a_master_that_refuses_to_start() {
    let (host, fake) = with_fake();
    fake.does("exits 78 20");
    refused(&host, "78");
}

#[test]
fn a_master_that_dies_before_it_is_ready() {
    let (host, fake) = with_fake();
    fake.does("exits 1 300");
    refused(&host, "1");
}

#[test]
fn an_old_master_that_ignores_quit_is_ended_all_the_same() {
    let mut host = Sandbox::new();
    let fake = FakeFpm::on(host.ground());
    fake.does("ignores-quit\nignores-term");
    host.set("php", "binary", fake.path().display().to_string());
    host.set("restart", "drain_timeout", "1s");
    host.pool("www", 8);
    host.run();
    let old = host.masters();
    fake.does("serves");
    host.does(&["restart"]);
    eventually(Duration::from_secs(30), "the old masters are gone", || old.iter().all(|pid| !alive(*pid)).then_some(()));
    host.stop();
}

#[test]
fn a_php_fpm_built_without_systemd_is_ready_by_its_status_socket() {
    let mut host = Sandbox::new();
    let fake = FakeFpm::on(host.ground());
    fake.does("no-notify");
    host.set("php", "binary", fake.path().display().to_string());
    host.pool("www", 8);
    host.front_at_old_paths(&["www"]);
    host.run();
    host.does(&["restart"]);
    assert!(host.nginx().body("/www/hello.php?id=1").contains("hello 1"));
}

#[test]
fn a_php_before_8_0_is_served_by_heartbeat_and_queue_alone() {
    let mut host = Sandbox::new();
    let fake = FakeFpm::on(host.ground());
    fake.does("php-7.4");
    host.set("php", "binary", fake.path().display().to_string());
    host.pool("www", 8);
    host.front_at_old_paths(&["www"]);
    host.run();
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    load.run_for(STEADY);
    host.does(&["restart"]);
    load.run_for(STEADY);
    load.finish(host.ground()).assert_nothing_lost(200);
}

#[test]
fn a_killed_master_is_replaced_while_its_workers_serve() {
    let host = split(8);
    let victim = host.masters()[0];
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    load.run_for(STEADY);
    kill(Pid::from_raw(victim), Signal::SIGKILL).unwrap();
    eventually(Duration::from_secs(20), "another master serves the shard", || {
        let shards = host.shards();
        (shards[0].verdict == "ready" && shards[0].pid.is_some_and(|pid| pid != victim)).then_some(())
    });
    load.run_for(STEADY);
    load.finish(host.ground()).assert_nothing_lost(500);
}

#[test]
fn no_request_waits_for_a_parked_shard() {
    let host = split(8);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    load.run_for(STEADY);
    host.does(&["park", "default/2"]);
    let parked = load.now();
    load.run_for(Duration::from_secs(2));
    let unparked = load.now();
    host.does(&["unpark", "default/2"]);
    load.run_for(STEADY);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(500);
    let slowest = report.quantile_within(1.0, &(parked..unparked));
    assert!(slowest < Duration::from_secs(1), "a request waited {slowest:?} for the parked shard");
}
