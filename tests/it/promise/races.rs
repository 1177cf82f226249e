//! Commands and signals that come at the wrong moment.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{split, unchanged};
use crate::support::{Clients, Load, within};

fn pause(ms: u64) {
    within(Duration::from_millis(ms), || None::<()>);
}

#[test]
fn two_restarts_0_to_25_ms_apart() {
    let host = split(8);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(2), &[]);
    for gap in [0, 1, 2, 5, 10, 15, 20, 25] {
        let before = host.shards();
        let mut first = host.begin(&["restart"], &format!("log/first-{gap}"));
        pause(gap);
        let mut second = host.begin(&["restart"], &format!("log/second-{gap}"));
        let codes = [first.exit_code(Duration::from_secs(30)), second.exit_code(Duration::from_secs(30))];
        let done = codes.iter().filter(|code| **code == 0).count() as u64;
        assert!(
            done >= 1 && codes.iter().all(|code| matches!(code, 0 | 75)),
            "{gap} ms apart: {codes:?}\n{}{}",
            first.output(),
            second.output()
        );
        for (old, new) in before.iter().zip(host.shards()) {
            assert_eq!(new.generation, old.generation + done, "{gap} ms apart");
        }
    }
    let report = load.finish(host.ground());
    report.assert_nothing_lost(500);
    report.assert_nothing_reset();
}

const SIGNALS: [Signal; 4] = [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGINT];

#[test]
fn every_pair_of_signals_during_a_restart() {
    for first in SIGNALS {
        for second in SIGNALS {
            pair(first, second);
        }
    }
}

fn pair(first: Signal, second: Signal) {
    let mut host = unchanged(8);
    let ends = [first, second].iter().any(|signal| matches!(signal, Signal::SIGTERM | Signal::SIGINT));
    let slow = std::thread::scope(|scope| {
        let nginx = host.nginx();
        let slow = scope.spawn(move || nginx.body("/www/slow.php?ms=800&id=s"));
        pause(100);
        let mut restart = host.begin(&["restart"], "log/restart");
        pause(30);
        host.signal(first);
        pause(5);
        host.signal(second);
        restart.wait(Duration::from_secs(30));
        slow.join().expect("the slow request")
    });
    assert!(slow.starts_with("slept 800"), "{first} {second}: {slow}");
    if ends {
        host.gone();
    } else {
        within(Duration::from_secs(20), || host.status()["job"].is_null().then_some(()));
        host.does(&["restart"]);
        assert!(host.nginx().body("/www/hello.php?id=1").contains("hello 1"), "{first} {second}");
        host.stop();
    }
}
