//! Start and end of the supervisor.

use std::os::unix::fs::MetadataExt;
use std::time::Duration;

use nix::sys::signal::Signal;

use super::unchanged;
use crate::support::eventually;

#[test]
fn it_starts_serves_and_leaves_nothing() {
    let mut host = unchanged(8);
    let shards = host.shards();
    assert_eq!(
        shards.iter().map(|s| (s.group.as_str(), s.shard.as_str())).collect::<Vec<_>>(),
        [("default", "default/1"), ("default", "default/2")]
    );
    assert_eq!(host.pool_workers("www").len(), 8, "max_children is divided, not multiplied");
    assert!(host.nginx().body("/www/hello.php?id=7").contains("hello 7"));
    host.stop();
}

#[test]
fn a_second_supervisor_of_the_same_instance_is_refused() {
    let host = unchanged(4);
    let second = host.polyfpm(&["run"]);
    assert_ne!(second.code, 0);
    assert!(second.err.contains("run"), "{}", second.err);
    host.does(&["status"]);
}

#[test]
fn without_a_supervisor_commands_say_so() {
    let host = crate::support::Sandbox::new();
    for words in [&["status"][..], &["restart"], &["reload"], &["stop"]] {
        assert_eq!(host.polyfpm(words).code, 69, "{words:?}");
    }
}

#[test]
fn usr1_has_every_master_open_its_logs_again() {
    let host = unchanged(4);
    let log = host.ground().path("log/php-fpm.error");
    let inode = || std::fs::metadata(&log).map(|seen| seen.ino()).ok();
    eventually(Duration::from_secs(5), "the operator's error_log is in use", inode);
    std::fs::rename(&log, host.ground().path("log/php-fpm.error.1")).unwrap();
    host.signal(Signal::SIGUSR1);
    eventually(Duration::from_secs(5), "the log is there again", inode);
}

#[test]
fn stop_lets_requests_finish() {
    let mut host = unchanged(4);
    let answer = std::thread::scope(|scope| {
        let nginx = host.nginx();
        let slow = scope.spawn(move || nginx.body("/www/slow.php?ms=1500&id=s"));
        eventually(Duration::from_secs(5), "the request is under way", || (host.pool_workers("www").len() == 4).then_some(()));
        crate::support::within(Duration::from_millis(200), || None::<()>);
        host.signal(Signal::SIGTERM);
        slow.join().expect("an answer")
    });
    assert!(answer.starts_with("slept 1500"), "{answer}");
    host.gone();
}

#[test]
fn a_killed_supervisor_leaves_masters_serving() {
    let mut host = unchanged(4);
    host.signal(Signal::SIGKILL);
    host.supervisor().wait(Duration::from_secs(5));
    assert!(host.nginx().body("/www/hello.php?id=1").contains("hello 1"));
}
