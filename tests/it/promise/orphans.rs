//! Masters that die while no supervisor runs: their workers serve on, and the next supervisor starts successors on their sockets.

use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::split;
use crate::support::{Clients, Extra, Load, Route, Sandbox, Site, alive, children, eventually, until_shards};

/// Far above what anything here takes.
const SOON: Duration = Duration::from_secs(20);

fn end_supervisor(host: &mut Sandbox) {
    host.signal(Signal::SIGKILL);
    host.supervisor().wait(SOON);
}

/// Ends the supervisor, then the master of the first shard; starts the next supervisor, and waits until everything is as it should be.
fn kill_both(host: &mut Sandbox, load: &Load) {
    let before = host.shards();
    let victim = before[0].pid.expect("a master");
    let workers = children(victim);
    end_supervisor(host);
    kill(Pid::from_raw(victim), Signal::SIGKILL).expect("a living master");
    load.run_for(Duration::from_millis(300));
    assert!(workers.iter().all(|pid| alive(*pid)), "workers serve on");
    host.launch();
    host.ready();
    let after = host.shards();
    assert_eq!(after[0].generation, before[0].generation + 1);
    assert_eq!(after[1].master(), before[1].master(), "the other one was adopted");
    eventually(SOON, "the old workers are gone", || workers.iter().all(|pid| !alive(*pid)).then_some(()));
    let log = host.ground().read("log/polyfpm.out");
    assert!(log.contains("workers of a dead master go on serving"), "it is not told");
}

#[test]
fn workers_of_a_master_that_died_unseen_keep_its_queue_until_the_successor_serves() {
    let mut host = split(8);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[Extra::Long(Duration::from_secs(1))]);
    kill_both(&mut host, &load);
    host.does(&["restart"]);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(100);
    report.assert_nothing_reset();
    host.stop();
}

#[test]
fn a_tcp_address_goes_from_such_workers_to_the_successor() {
    let mut host = Sandbox::new();
    let address = format!("127.0.0.1:{}", host.ground().port());
    host.pool_at("www", &address, 8, "");
    host.front(&Site::one(Route::new("www", &address)));
    host.run();
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    kill_both(&mut host, &load);
    host.does(&["restart"]);
    load.finish(host.ground()).assert_nothing_lost(100);
    host.stop();
}

#[test]
fn where_nothing_is_left_of_a_master_its_path_is_bound_anew() {
    let mut host = split(8);
    let before = host.shards();
    end_supervisor(&mut host);
    killpg(Pid::from_raw(before[0].pid.expect("a master")), Signal::SIGKILL).expect("a living group");
    host.launch();
    host.ready();
    let after = host.shards();
    assert_eq!(after[0].generation, before[0].generation + 1, "numbers are not used twice");
    assert_eq!(after[1].master(), before[1].master());
    for id in 0..8 {
        assert!(host.nginx().body(&format!("/www/hello.php?id={id}")).contains(&format!("hello {id}")));
    }
    let log = host.ground().read("log/polyfpm.out");
    assert!(log.contains("master ended while no supervisor ran, and nothing of it is left"), "it is not told");
    host.stop();
}

/// Replaces the supervisor by another one, which adopts the masters.
fn adopted(host: &mut Sandbox) {
    let before = host.masters();
    end_supervisor(host);
    host.launch();
    host.ready();
    assert_eq!(host.masters(), before, "the same masters");
}

#[test]
fn an_adopted_master_that_is_killed_is_replaced_while_its_workers_serve() {
    let mut host = split(8);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[Extra::Long(Duration::from_secs(1))]);
    adopted(&mut host);
    for (place, signal) in [(0, Signal::SIGKILL), (1, Signal::SIGSEGV)] {
        let before = host.shards()[place].clone();
        let victim = before.pid.expect("a master");
        let workers = children(victim);
        kill(Pid::from_raw(victim), signal).expect("a living master");
        let after = until_shards(&host, "another master serves", |shards| {
            shards[place].generation == before.generation + 1 && shards[place].verdict == "ready"
        });
        // Whose child it was not, of that one we do not know by what it ended (S8).
        assert_eq!(after[place].reason.as_deref(), Some("ended"));
        eventually(SOON, "its workers have left", || workers.iter().all(|pid| !alive(*pid)).then_some(()));
    }
    let report = load.finish(host.ground());
    report.assert_nothing_lost(100);
    report.assert_nothing_reset();
    host.stop();
}

#[test]
fn masters_that_die_again_and_again_after_an_adoption_are_given_up() {
    let mut host = Sandbox::new();
    host.set("restart", "give_up_after", 3);
    host.set("restart", "backoff", "50ms");
    host.set("shards", "routing", "split");
    host.pool("www", 8);
    host.front_at_old_paths(&["www"]);
    host.run();
    super::include_is_written(&host);
    host.edit(&super::through_upstream("www"));
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    adopted(&mut host);
    eventually(Duration::from_secs(60), "the shard is halted", || {
        let now = host.shards()[0].clone();
        if now.verdict == "ready" {
            kill(Pid::from_raw(now.pid?), Signal::SIGKILL).ok()?;
        }
        (now.verdict == "halted").then_some(())
    });
    load.run_for(Duration::from_millis(500));
    host.does(&["unpark", "default/1"]);
    until_shards(&host, "both serve", |shards| shards.iter().all(|shard| shard.verdict == "ready"));
    load.finish(host.ground()).assert_nothing_lost(100);
    host.stop();
}

#[test]
fn an_adopted_master_is_what_a_new_configuration_that_is_no_good_falls_back_to() {
    let mut host = split(8);
    let script = host.ground().write("www/warm.php", "<?php http_response_code(500);").display().to_string();
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    end_supervisor(&mut host);
    let mut warmup = toml::Table::new();
    warmup.insert("pool".to_owned(), "www".into());
    warmup.insert("script".to_owned(), script.into());
    warmup.insert("uri".to_owned(), "/warm.php".into());
    host.set("restart", "warmup", toml::Value::Array(vec![warmup.into()]));
    host.pool_at("www", &host.ground().text("run/www.sock"), 8, "env[NEW] = yes");
    host.launch();
    host.ready();
    let before = host.shards();
    let failed = until_shards(&host, "the new configuration has been tried and refused", |shards| {
        shards.iter().any(|shard| shard.reason.as_deref().unwrap_or_default().contains("warm-up"))
    });
    let place = failed.iter().position(|shard| shard.reason.is_some()).expect("a shard");
    kill(Pid::from_raw(before[place].pid.expect("a master")), Signal::SIGKILL).expect("a living master");
    until_shards(&host, "it serves again, as it last did", |shards| {
        shards[place].verdict == "ready" && shards[place].pid != before[place].pid
    });
    load.finish(host.ground()).assert_nothing_lost(100);
    host.stop();
}
