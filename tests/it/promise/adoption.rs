//! The supervisor is killed; its masters go on, and the next supervisor takes them over.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{split, unchanged};
use crate::support::{Clients, Load, Sandbox, eventually, within};

/// Kills the supervisor and starts another one.
fn replace(host: &mut Sandbox) {
    host.signal(Signal::SIGKILL);
    host.supervisor().wait(Duration::from_secs(5));
    host.launch();
    host.ready();
}

#[test]
fn a_killed_supervisor_costs_nothing_and_its_masters_are_adopted() {
    let mut host = split(8);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    let before = host.masters();
    replace(&mut host);
    assert_eq!(host.masters(), before, "the same masters");
    // What was adopted is handed over, parked and told like any other.
    host.does(&["restart"]);
    assert!(host.masters().iter().all(|pid| !before.contains(pid)));
    replace(&mut host);
    host.does(&["park", "default/2"]);
    host.does(&["unpark", "default/2"]);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(200);
    report.assert_nothing_reset();
    host.stop();
}

#[test]
fn a_supervisor_killed_in_the_middle_of_a_handover_leaves_nothing_half_done() {
    let mut host = split(8);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    for moment in [0, 5, 10, 20, 40, 60, 70, 80, 90, 100, 120, 160, 300] {
        let mut restart = host.begin(&["restart"], &format!("log/restart-{moment}"));
        within(Duration::from_millis(moment), || None::<()>);
        replace(&mut host);
        restart.wait(Duration::from_secs(10));
    }
    host.does(&["restart"]);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(500);
    report.assert_nothing_reset();
    host.stop();
}

#[test]
fn a_path_that_was_removed_while_no_supervisor_ran_is_made_again() {
    let mut host = split(8);
    let (path, kept) = (host.ground().path("run/www.sock"), host.ground().path("run/polyfpm/kept"));
    let count = || std::fs::read_dir(&kept).map(Iterator::count).unwrap_or_default();
    eventually(Duration::from_secs(5), "second names are kept", || (count() == 2).then_some(()));
    let before = host.masters();
    host.signal(Signal::SIGKILL);
    host.supervisor().wait(Duration::from_secs(5));
    std::fs::remove_file(&path).expect("a socket file");
    host.launch();
    host.ready();
    eventually(Duration::from_secs(5), "the path is back", || path.exists().then_some(()));
    assert_eq!(host.masters(), before, "the same masters");
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    host.does(&["restart"]);
    load.finish(host.ground()).assert_nothing_lost(20);
    host.stop();
}

#[test]
fn shared_sockets_are_adopted_too() {
    let mut host = unchanged(32);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    let before = host.masters();
    replace(&mut host);
    assert_eq!(host.masters(), before);
    host.does(&["restart"]);
    replace(&mut host);
    host.does(&["restart"]);
    load.finish(host.ground()).assert_nothing_lost(100);
    host.stop();
}

#[test]
fn a_parked_shard_stays_parked_and_its_lent_path_comes_back() {
    let mut host = split(8);
    host.does(&["park", "default/2"]);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    host.signal(Signal::SIGKILL);
    host.supervisor().wait(Duration::from_secs(5));
    host.launch();
    let verdicts = |host: &Sandbox| host.shards().iter().map(|shard| (shard.verdict.clone(), shard.generation)).collect::<Vec<_>>();
    eventually(Duration::from_secs(10), "the new supervisor answers", || (host.polyfpm(&["status"]).code == 0).then_some(()));
    eventually(Duration::from_secs(10), "the first shard serves", || (verdicts(&host)[0].0 == "ready").then_some(()));
    assert_eq!(verdicts(&host), [("ready".to_owned(), 1), ("parked".to_owned(), 1)]);
    host.does(&["unpark", "default/2"]);
    assert_eq!(verdicts(&host), [("ready".to_owned(), 1), ("ready".to_owned(), 2)]);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(50);
    host.stop();
}

#[test]
fn damaged_state_leads_to_a_clean_start_and_never_to_strangers() {
    let mut host = split(8);
    let state = host.ground().path("run/polyfpm/state.json");
    let before = host.masters();
    host.signal(Signal::SIGKILL);
    host.supervisor().wait(Duration::from_secs(5));
    std::fs::write(&state, b"{\"v\":1,\"boot\":").expect("damage the state");
    host.launch();
    host.ready();
    // Each master's own file is enough to know it by.
    assert_eq!(host.masters(), before);
    host.stop();
}

/// Edits every state file of the masters that run.
fn edit_state(host: &Sandbox, edit: impl Fn(&mut serde_json::Map<String, serde_json::Value>)) {
    let root = host.ground().path("run/polyfpm");
    let masters = std::fs::read_dir(root.join("m")).expect("the masters").flatten().map(|entry| entry.path().join("master.json"));
    for path in masters.chain([root.join("state.json")]) {
        let text = std::fs::read_to_string(&path).expect("a state file");
        let mut value: serde_json::Value = serde_json::from_str(&text).expect("JSON");
        edit(value.as_object_mut().expect("an object"));
        std::fs::write(&path, value.to_string()).expect("the state file");
    }
}

#[test]
fn the_state_of_an_older_version_is_read_and_that_of_a_newer_one_left_alone() {
    let mut host = split(8);
    let before = host.masters();
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(2), &[]);
    host.signal(Signal::SIGKILL);
    host.supervisor().wait(Duration::from_secs(5));
    let version = std::cell::Cell::new(0);
    edit_state(&host, |state| {
        version.set(state["v"].as_u64().expect("a version"));
        state.insert("v".to_owned(), (version.get() + 1).into());
        state.insert("unheard_of".to_owned(), true.into());
    });
    host.launch();
    assert_eq!(host.supervisor().exit_code(Duration::from_secs(10)), 78, "{}", host.log_tail());
    assert!(host.supervisor().output().contains("this polyfpm reads up to"), "{}", host.log_tail());
    assert!(before.iter().all(|pid| crate::support::alive(*pid)), "its masters are not ours to end");
    // As version 1 wrote it.
    edit_state(&host, |state| {
        state.insert("v".to_owned(), 1.into());
        state.remove("held");
        state.remove("unheard_of");
    });
    host.launch();
    host.ready();
    assert_eq!(host.masters(), before);
    load.finish(host.ground()).assert_nothing_lost(50);
    host.stop();
}
