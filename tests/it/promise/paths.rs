//! Public paths that somebody removes while everything behind them works.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use super::{STEADY, split, unchanged};
use crate::support::{Clients, Load, Peer, Request, Sandbox, eventually, until_shards};

/// A path is looked at every second; the rest is for a busy machine.
const BACK_WITHIN: Duration = Duration::from_secs(5);

fn answers(host: &Sandbox, path: &Path) -> bool {
    let peer = Peer::Unix(path.to_owned());
    path.exists() && Request::get(&host.ground().path(""), "/hello.php?id=p").to(&peer).body() == "hello p\n"
}

/// Waits until a path leads to a worker again, and says how long that took.
#[track_caller]
fn comes_back(host: &Sandbox, path: &Path) -> Duration {
    let began = Instant::now();
    eventually(BACK_WITHIN, &format!("{} is back", path.display()), || path.exists().then_some(()));
    let took = began.elapsed();
    assert!(answers(host, path), "{} leads nowhere", path.display());
    took
}

/// Gives the listener of a path as `status --json` shows it.
fn listener(host: &Sandbox, path: &Path) -> serde_json::Value {
    let status = host.status();
    let pools = status["pools"].as_array().expect("pools").clone();
    let mut all = pools.iter().flat_map(|pool| pool["listeners"].as_array().expect("listeners").clone());
    all.find(|listener| listener["endpoint"] == path.display().to_string()).expect("the listener")
}

/// Waits until so many sockets have their second names.
#[track_caller]
fn until_kept(host: &Sandbox, count: usize) {
    let kept = host.ground().path("run/polyfpm/kept");
    eventually(BACK_WITHIN, "second names are kept", || {
        (std::fs::read_dir(&kept).map(Iterator::count).unwrap_or_default() == count).then_some(())
    });
}

fn masters(host: &Sandbox) -> Vec<(String, u64, Option<i32>)> {
    host.shards().iter().map(|shard| (shard.shard.clone(), shard.generation, shard.pid)).collect()
}

#[test]
fn a_socket_file_that_is_removed_comes_back_without_a_restart() {
    let host = split(8);
    let (first, second) = (host.ground().path("run/www.sock"), host.ground().path("run/polyfpm/sockets/www.2.sock"));
    until_kept(&host, 2);
    let before = masters(&host);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    load.run_for(STEADY);
    for path in [&first, &second] {
        std::fs::remove_file(path).expect("a socket file");
        let took = comes_back(&host, path);
        eprintln!("{} was back after {took:?}", path.display());
        load.run_for(STEADY);
    }
    let report = load.finish(host.ground());
    // NGINX tries the sibling, and no visitor sees anything.
    assert!(report.failed.is_empty() && report.miscounted.is_empty(), "{:?} {:?}", report.failed, report.miscounted);
    eprintln!("tried twice by NGINX: {} of {}", report.hidden.len(), report.samples.len());
    assert_eq!(masters(&host), before, "no master was touched");
    for path in [&first, &second] {
        assert_eq!(listener(&host, path)["made_again"], 1);
    }
    let text = host.does(&["status"]);
    assert!(text.contains("was gone and was made again"), "{text}");
    assert!(host.ground().read("log/polyfpm.out").contains("path was gone and was made again"));
    host.does(&["restart"]);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    load.run_for(STEADY);
    load.finish(host.ground()).assert_nothing_lost(50);
}

#[test]
fn a_public_directory_that_is_removed_comes_back_as_it_was() {
    let mut host = Sandbox::new();
    let public = host.ground().path("run/php");
    std::fs::create_dir(&public).expect("a directory");
    std::fs::set_permissions(&public, std::fs::Permissions::from_mode(0o751)).expect("its mode");
    let paths: Vec<PathBuf> = ["a", "b"].iter().map(|pool| public.join(format!("{pool}.sock"))).collect();
    for (pool, path) in ["a", "b"].iter().zip(&paths) {
        host.pool_at(pool, &path.display().to_string(), 2, "");
    }
    host.set("nginx", "enabled", false);
    host.run();
    let (before, inode) = (masters(&host), std::fs::metadata(&public).expect("it").ino());
    until_kept(&host, 2);
    std::fs::remove_dir_all(&public).expect("removed");
    for path in &paths {
        comes_back(&host, path);
    }
    let now = std::fs::metadata(&public).expect("it is there again");
    assert_ne!(now.ino(), inode, "it is another directory");
    assert_eq!(now.permissions().mode() & 0o7777, 0o751);
    assert_eq!(masters(&host), before, "no master was touched");
}

#[test]
fn what_somebody_else_put_at_a_path_stays_and_is_named() {
    let host = unchanged(4);
    let path = host.ground().path("run/www.sock");
    until_kept(&host, 1);
    std::fs::remove_file(&path).expect("a socket file");
    let theirs = std::os::unix::net::UnixListener::bind(&path).expect("the path is free");
    let fault = eventually(BACK_WITHIN, "the fault is named", || listener(&host, &path)["fault"].as_str().map(str::to_owned));
    assert!(fault.contains("in use"), "{fault}");
    assert_eq!(host.status()["healthy"], false);
    let text = host.does(&["status"]);
    assert!(text.contains("no way to its listener") && text.contains("www.sock"), "{text}");
    drop(theirs);
    std::fs::remove_file(&path).expect("their file");
    comes_back(&host, &path);
    eventually(BACK_WITHIN, "healthy again", || (host.status()["healthy"] == true).then_some(()));
    assert!(listener(&host, &path)["fault"].is_null());
}

#[test]
fn a_path_that_cannot_be_linked_again_is_given_a_new_listener() {
    let host = split(8);
    let path = host.ground().path("run/www.sock");
    let kept = host.ground().path("run/polyfpm/kept");
    until_kept(&host, 2);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    load.run_for(STEADY);
    std::fs::remove_dir_all(&kept).expect("the second names");
    std::fs::remove_file(&path).expect("a socket file");
    comes_back(&host, &path);
    until_shards(&host, "only the shard that lost its listener has a new master", |shards| {
        let generations: Vec<u64> = shards.iter().map(|shard| shard.generation).collect();
        generations == [2, 1]
    });
    eventually(BACK_WITHIN, "healthy again", || (host.status()["healthy"] == true).then_some(()));
    load.run_for(STEADY);
    let report = load.finish(host.ground());
    assert!(report.failed.is_empty() && report.miscounted.is_empty(), "{:?} {:?}", report.failed, report.miscounted);
}

#[test]
fn everything_in_run_is_wiped_and_comes_back() {
    let mut host = split(8);
    let own = host.ground().path("run/polyfpm");
    let public = host.ground().path("run/www.sock");
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    load.run_for(STEADY);
    std::fs::remove_dir_all(&own).expect("the runtime directory");
    // The first shard's path is left: it goes on as it is until its turn comes.
    eventually(Duration::from_secs(20), "the control socket answers and every shard has a new master", || {
        let status = host.polyfpm(&["status", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status.out).ok()?;
        let new = |shard: &serde_json::Value| {
            shard["generation"] == 2 && shard["verdict"] == "ready" && shard["leaving"] == serde_json::json!([])
        };
        (status["healthy"] == true && status["job"].is_null() && status["shards"].as_array()?.iter().all(new)).then_some(())
    });
    load.run_for(STEADY);
    let report = load.finish(host.ground());
    assert!(report.failed.is_empty() && report.miscounted.is_empty(), "{:?} {:?}", report.failed, report.miscounted);
    for file in ["lock", "state.json", "plan.json", "m", "kept", "sockets/www.2.sock"] {
        assert!(own.join(file).exists(), "{file} was not made again");
    }
    assert!(answers(&host, &public) && answers(&host, &own.join("sockets/www.2.sock")));
    assert_eq!(std::fs::metadata(&own).expect("it").permissions().mode() & 0o777, 0o755);
    // A second supervisor is refused, and a change goes its usual way.
    let second = host.polyfpm(&["run"]);
    assert_ne!(second.code, 0, "{}", second.err);
    host.does(&["restart"]);
    host.stop();
}
