//! Shared pools with a warm-up: all shards come in together, or none.

use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::time::Duration;

use nix::sys::signal::Signal;

use super::STEADY;
use crate::support::{Clients, Extra, Load, Sandbox, Shard, eventually};

/// A pool at its old path, so that both shards accept on one listener, with this warm-up script.
fn shared(script: &str) -> Sandbox {
    let mut host = Sandbox::new();
    host.pool("www", 16);
    let script = host.ground().write("www/warm.php", script);
    // For a script that counts.
    let count = host.ground().write("www/warmed", "0");
    std::fs::set_permissions(count, std::fs::Permissions::from_mode(0o666)).expect("our own file");
    let mut warmup = toml::Table::new();
    warmup.insert("pool".to_owned(), "www".into());
    warmup.insert("script".to_owned(), script.display().to_string().into());
    host.set("restart", "warmup", toml::Value::Array(vec![warmup.into()]));
    host.front_at_old_paths(&["www"]);
    host.run();
    host
}

fn masters(host: &Sandbox) -> Vec<(String, u64, Option<i32>)> {
    host.shards().iter().map(Shard::master).map(|(shard, generation, pid)| (shard.to_owned(), generation, pid)).collect()
}

fn inode(host: &Sandbox) -> u64 {
    std::fs::symlink_metadata(host.ground().path("run/www.sock")).expect("the public path").ino()
}

/// Counts the socket files, without the second names that are kept of public ones.
fn sockets(host: &Sandbox) -> usize {
    let files = host.ground().socket_files();
    files.iter().filter(|file| !file.components().any(|part| part.as_os_str() == "kept")).count()
}

#[test]
fn restarts_of_shards_that_come_in_together_lose_nothing() {
    let mut host = shared("<?php echo 'warm';");
    let (before, mut path) = (host.shards(), inode(&host));
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[Extra::Uploads, Extra::Long(Duration::from_secs(2))]);
    load.run_for(STEADY);
    for _ in 0..5 {
        host.does(&["restart"]);
        let now = inode(&host);
        assert_ne!(now, path, "both came in on a new listener");
        path = now;
    }
    load.run_for(STEADY);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(500);
    report.assert_nothing_reset();
    for (old, new) in before.iter().zip(host.shards()) {
        assert_eq!((&new.shard, new.generation), (&old.shard, old.generation + 5));
    }
    host.stop();
}

#[test]
fn a_warm_up_that_fails_in_one_of_them_leaves_all_old_masters_and_no_visitor_meets_a_new_one() {
    // Each new master is asked once; every second of them fails.
    let counting = "<?php $f = fopen(__DIR__ . '/warmed', 'c+'); flock($f, LOCK_EX); $n = (int) fgets($f); rewind($f); fwrite($f, $n + 1);
        if ($n % 2 && file_exists(__DIR__ . '/bad')) http_response_code(500);";
    let mut host = shared(counting);
    host.ground().write("www/bad", "");
    let (before, path, files) = (masters(&host), inode(&host), sockets(&host));
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    load.run_for(STEADY);
    let ended = host.polyfpm(&["restart"]);
    load.run_for(STEADY);
    assert_eq!(ended.code, 1, "{}{}", ended.out, ended.err);
    assert!(format!("{}{}", ended.out, ended.err).contains("warm-up of pool www failed"), "{}{}", ended.out, ended.err);
    assert_eq!((masters(&host), inode(&host)), (before.clone(), path), "the old masters serve at the old path");
    eventually(Duration::from_secs(10), "nothing is left of the new ones", || (sockets(&host) == files).then_some(()));
    std::fs::remove_file(host.ground().path("www/bad")).expect("the flag");
    host.does(&["restart"]);
    assert!(masters(&host).iter().zip(&before).all(|(new, old)| new.1 > old.1), "{:?}", masters(&host));
    let report = load.finish(host.ground());
    report.assert_nothing_lost(100);
    report.assert_nothing_reset();
    host.stop();
}

#[test]
fn a_supervisor_killed_while_they_come_in_together_leaves_all_or_none() {
    // The warm-up takes long enough to be killed in; later rounds are killed around the switch.
    let mut host = shared("<?php usleep(150000);");
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    for delay_ms in [60, 180, 230, 260, 300] {
        let before = masters(&host);
        let restart = host.begin(&["restart"], "log/restart.out");
        load.run_for(Duration::from_millis(delay_ms));
        host.signal(Signal::SIGKILL);
        host.supervisor().wait(Duration::from_secs(5));
        drop(restart);
        host.launch();
        host.ready();
        let after = masters(&host);
        let came: Vec<bool> = before.iter().zip(&after).map(|(old, new)| old.2 != new.2).collect();
        assert!(came.iter().all(|new| *new == came[0]), "killed after {delay_ms} ms: {before:?} {after:?}");
    }
    host.does(&["restart"]);
    load.finish(host.ground()).assert_nothing_lost(50);
    host.stop();
}
