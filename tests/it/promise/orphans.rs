//! Masters that die while no supervisor runs: their workers serve on, and the next supervisor starts successors on their sockets.

use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::split;
use crate::support::{Clients, Extra, Load, Route, Sandbox, Site, alive, children, eventually};

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
