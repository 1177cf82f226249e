//! The operator's logs stay the operator's.

use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use nix::sys::signal::Signal;

use super::{SOON, plain};
use crate::support::{FakeFpm, Sandbox, alive, eventually, until_shards};

/// Counts the files in which a process has one of these files open.
fn has_open(pid: i32, path: &Path) -> bool {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.filter_map(|fd| std::fs::read_link(fd.path()).ok()).any(|target| target == path)
}

fn inode(path: &PathBuf) -> Option<u64> {
    std::fs::metadata(path).map(|seen| seen.ino()).ok()
}

#[test]
fn sigusr1_reaches_every_master_and_reopen_does_the_same() {
    let host = plain(|host| {
        let access = host.ground().text("log/www.access");
        host.pool_at("www", &host.ground().text("run/www.sock"), 4, &format!("access.log = {access}"));
    });
    let logs = [host.ground().path("log/php-fpm.error"), host.ground().path("log/www.access")];
    for round in ["1", "2"] {
        let masters = host.masters();
        assert_eq!(masters.len(), 2);
        let before = logs.clone().map(|log| eventually(SOON, "the log is in use", || inode(&log)));
        let rotated = logs.clone().map(|log| PathBuf::from(format!("{}.{round}", log.display())));
        for (log, rotated) in logs.iter().zip(&rotated) {
            std::fs::rename(log, rotated).unwrap();
        }
        if round == "1" {
            host.signal(Signal::SIGUSR1);
        } else {
            let said = host.does(&["reopen"]);
            assert!(said.contains("2 masters"), "{said}");
        }
        for master in masters {
            eventually(SOON, "the master has opened its new log", || {
                logs.iter().zip(&rotated).all(|(log, old)| has_open(master, log) && !has_open(master, old)).then_some(())
            });
        }
        for (log, before) in logs.iter().zip(before) {
            assert_ne!(inode(log), Some(before), "{}", log.display());
        }
    }
    assert!(host.nginx().body("/www/hello.php?id=1").contains("hello 1"));
}

#[test]
fn sigusr1_ends_no_master_that_is_starting_and_reaches_it_in_the_end() {
    let host = plain(|_| {});
    let mut restart = host.begin(&["restart"], "log/restart");
    let log = host.ground().path("log/php-fpm.error");
    let mut rotations = 0;
    eventually(SOON, "the restart has ended", || {
        std::fs::rename(&log, host.ground().path(&format!("log/php-fpm.error.{rotations}"))).ok();
        rotations += 1;
        host.signal(Signal::SIGUSR1);
        restart.ended()
    });
    assert_eq!(restart.exit_code(SOON), 0, "{}", restart.output());
    let masters = host.masters();
    eventually(SOON, "every master has the log that is there open", || masters.iter().all(|master| has_open(*master, &log)).then_some(()));
}

#[test]
fn the_operators_error_log_keeps_its_place_and_its_owner() {
    let host = plain(|host| {
        let log = host.ground().write("log/php-fpm.error", "the operator's line\n");
        let owner = nix::unistd::User::from_name("www-data").unwrap().unwrap();
        nix::unistd::chown(&log, Some(owner.uid), Some(owner.gid)).unwrap();
    });
    let log = host.ground().path("log/php-fpm.error");
    let seen = std::fs::metadata(&log).unwrap();
    host.does(&["restart"]);
    assert_eq!(host.polyfpm(&["check"]).code, 0);
    let after = std::fs::metadata(&log).unwrap();
    assert_eq!((after.ino(), after.uid(), after.gid(), after.mode()), (seen.ino(), seen.uid(), seen.gid(), seen.mode()));
    let text = host.ground().read("log/php-fpm.error");
    assert!(text.starts_with("the operator's line\n") && text.contains("ready to handle connections"), "{text}");
    assert!(host.masters().iter().all(|master| has_open(*master, &log)), "masters log where the operator said");
}

#[test]
fn what_a_master_says_at_its_start_is_told_with_its_shard_and_generation() {
    let mut host = Sandbox::new();
    let fake = FakeFpm::on(host.ground());
    host.set("php", "binary", fake.path().display().to_string());
    host.set("restart", "give_up_after", 2);
    host.pool("www", 4);
    host.run();
    fake.does("exits 70 10");
    let restart = host.polyfpm(&["restart", "default/2"]);
    assert_eq!(restart.code, 1, "{}{}", restart.out, restart.err);
    assert!(restart.err.contains("default/2#2") && restart.err.contains("FPM initialization failed"), "{}", restart.err);
    let seen = until_shards(&host, "status tells it", |shards| shards[1].reason.is_some());
    let reason = seen[1].reason.clone().unwrap_or_default();
    assert!(reason.contains("exited with 70") && reason.contains("FPM initialization failed"), "{reason}");
    assert_eq!(seen[1].generation, 1, "the old one serves");
    assert!(seen[1].pid.is_some_and(alive));
}
