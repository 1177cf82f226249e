//! The end: requests finish, or are cut when their time is over, and nothing is left.

use std::time::{Duration, Instant};

use nix::sys::signal::Signal;

use super::{SOON, pause, plain};
use crate::support::{Answer, Call, Peer, Request, Sandbox, eventually};

/// Begins a request that takes so long, and waits until a worker has it.
fn slow(host: &Sandbox, ms: u32) -> Call {
    let peer = Peer::Unix(host.ground().path("run/www.sock"));
    let uri = format!("/slow.php?ms={ms}&id=s");
    let call = Request::get(&host.ground().path(""), &uri).timeout(SOON).open(&peer).expect("a connection");
    pause(Duration::from_millis(300));
    call
}

#[test]
fn requests_under_way_finish() {
    let mut host = plain(|_| {});
    let call = slow(&host, 2500);
    host.signal(Signal::SIGTERM);
    eventually(SOON, "new requests are refused", || host.nginx().get("/www/hello.php?id=1").filter(|answer| answer.contains(" 502 ")));
    assert!(call.answer().body().starts_with("slept 2500"));
    host.ends();
}

#[test]
fn requests_that_take_too_long_are_cut_and_nothing_is_left() {
    let mut host = plain(|host| host.set("restart", "drain_timeout", "1s"));
    let call = slow(&host, 60_000);
    let began = Instant::now();
    host.signal(Signal::SIGTERM);
    assert_eq!(call.answer(), Answer::Cut);
    host.ends();
    let took = began.elapsed();
    assert!(took > Duration::from_millis(900) && took < Duration::from_secs(10), "stopped after {took:?}");
}

#[test]
fn workers_that_stand_still_are_ended_too() {
    let mut host = plain(|host| host.set("restart", "drain_timeout", "1s"));
    for worker in host.workers() {
        nix::sys::signal::kill(nix::unistd::Pid::from_raw(worker), Signal::SIGSTOP).unwrap();
    }
    host.signal(Signal::SIGTERM);
    host.ends();
}

#[test]
fn stop_by_command_waits_for_the_end_and_so_does_a_second_one() {
    let mut host = plain(|_| {});
    let call = slow(&host, 1500);
    let mut restart = host.begin(&["restart"], "log/restart");
    eventually(SOON, "the restart is under way", || host.status()["job"].is_object().then_some(()));
    let mut first = host.begin(&["stop"], "log/stop-1");
    let mut second = host.begin(&["stop"], "log/stop-2");
    assert!(call.answer().body().starts_with("slept 1500"));
    assert_eq!(restart.exit_code(SOON), 1, "{}", restart.output());
    assert!(restart.output().contains("the supervisor is stopping"), "{}", restart.output());
    assert_eq!(first.exit_code(SOON), 0, "{}", first.output());
    assert_eq!(second.exit_code(SOON), 0, "{}", second.output());
    host.ends();
}

#[test]
fn a_stop_before_anything_serves_leaves_nothing_either() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    for after in [0, 20, 60, 120] {
        host.launch();
        let signals_are_heard = || host.ground().path("run/polyfpm/lock").exists().then_some(());
        eventually(SOON, "it has begun", signals_are_heard);
        pause(Duration::from_millis(after));
        host.signal(Signal::SIGTERM);
        host.ends();
    }
}
