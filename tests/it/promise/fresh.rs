//! New code and new settings reach every shard with a restart, though opcache never looks at files again.

use std::collections::BTreeSet;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::STEADY;
use crate::support::{Clients, Load, Route, Sandbox, Shard, Site, eventually};

fn release(host: &Sandbox, version: &str) {
    let folder = host.ground().path(&format!("www/{version}"));
    std::fs::create_dir_all(&folder).unwrap();
    host.ground().write(&format!("www/{version}/version.php"), &format!("<?php const RELEASE_VERSION = '{version}';"));
    let (link, next) = (host.ground().path("www/current"), host.ground().path("www/next"));
    std::os::unix::fs::symlink(&folder, &next).unwrap();
    std::fs::rename(&next, &link).unwrap();
}

fn ini(host: &Sandbox, agent: &str) -> String {
    let text = format!("opcache.validate_timestamps = 0\nopcache.file_update_protection = 0\nuser_agent = {agent}\n");
    host.ground().write("php.ini", &text).display().to_string()
}

/// What clients see: the setting's value and the version of the code, from every worker that answers.
fn seen(host: &Sandbox) -> BTreeSet<String> {
    let answers = (0..60).map(|_| host.nginx().body("/www/value.php"));
    answers.map(|answer| answer.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect()
}

fn refreshed(renew: impl Fn(&Sandbox)) {
    let mut host = Sandbox::new();
    host.pool("www", 8);
    let path = ini(&host, "old");
    host.set("php", "ini", path);
    release(&host, "v1");
    let routes = vec![Route::new("www", &host.pass("www"))];
    host.front(&Site { routes, release: host.ground().text("www/current"), ..Site::default() });
    host.run();
    assert_eq!(seen(&host), BTreeSet::from(["old v1".to_owned()]));
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    load.run_for(STEADY);
    release(&host, "v2");
    ini(&host, "new");
    renew(&host);
    load.run_for(STEADY);
    load.finish(host.ground()).assert_nothing_lost(500);
    assert_eq!(seen(&host), BTreeSet::from(["new v2".to_owned()]));
}

#[test]
fn by_restart() {
    refreshed(|host| drop(host.does(&["restart"])));
}

#[test]
fn a_reload_after_a_restart_with_a_changed_php_ini_changes_nothing() {
    let mut host = Sandbox::new();
    host.pool("www", 2);
    let path = ini(&host, "old");
    host.set("php", "ini", path.clone());
    host.run();
    ini(&host, "new");
    // A change of the same instant as the start may or may not be in it, so it is handed over again.
    let age = || std::fs::metadata(&path).and_then(|file| file.modified()).ok().and_then(|time| time.elapsed().ok());
    eventually(Duration::from_secs(5), "the change is a moment old", || age().filter(|age| *age > Duration::from_millis(50)));
    host.does(&["restart"]);
    let restarted = host.shards();
    host.does(&["reload"]);
    assert_eq!(host.shards().iter().map(Shard::master).collect::<Vec<_>>(), restarted.iter().map(Shard::master).collect::<Vec<_>>());
    ini(&host, "newest");
    host.does(&["reload"]);
    assert!(host.shards().iter().zip(&restarted).all(|(new, old)| new.generation == old.generation + 1), "{:#?}", host.shards());
}

#[test]
fn by_sigusr2() {
    refreshed(|host| {
        let before = host.shards();
        host.signal(Signal::SIGUSR2);
        eventually(Duration::from_secs(30), "every shard has another generation", || {
            host.shards().iter().zip(&before).all(|(new, old)| new.generation == old.generation + 1 && new.verdict == "ready").then_some(())
        });
        // The job ends when the last shard has settled; a command that is not refused says so.
        eventually(Duration::from_secs(30), "the job is over", || host.status()["job"].is_null().then_some(()));
    });
}
