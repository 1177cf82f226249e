//! Disks that are full or read-only: what runs goes on, the next change says what it could not write, and succeeds once it can.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{SOON, generations, nginx_is, split};
use crate::support::{Clients, Disk, Load, Sandbox, eventually};

/// Long enough for every client to meet every worker many times.
const STEADY: Duration = Duration::from_millis(250);

const FULL: &str = "No space left on device";
const READ_ONLY: &str = "Read-only file system";

/// A host whose runtime directory is on a disk of its own.
fn on_a_disk() -> (Sandbox, Disk) {
    let mut disk = None;
    let host = split(|host| {
        disk = Some(Disk::mount(&host.ground().path("disk"), 1024));
        host.set("run", "directory", host.ground().text("disk/polyfpm"));
    });
    (host, disk.expect("a disk"))
}

/// A command fails with 1, names the file, says why and what to do, and changes nothing that runs.
#[track_caller]
fn fails(host: &Sandbox, words: &[&str], says: &[&str]) {
    let before = host.shards();
    let ended = host.polyfpm(words);
    assert_eq!(ended.code, 1, "{words:?}: {}{}\n{}", ended.out, ended.err, host.log_tail());
    for part in says {
        assert!(ended.err.contains(part), "{words:?} does not say {part}: {}", ended.err);
    }
    for (old, new) in before.iter().zip(host.shards()) {
        assert_eq!(new.master(), old.master(), "{words:?}");
    }
}

fn load(host: &Sandbox) -> Load {
    Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[])
}

#[test]
fn a_master_that_could_not_be_adopted_later_takes_nothing_over() {
    let (mut host, disk) = on_a_disk();
    let load = load(&host);
    disk.fill();
    fails(&host, &["restart"], &["default/1#2", "disk/polyfpm/m/default.1.2/master.json", FULL, "the old master still serves"]);
    load.run_for(STEADY);
    disk.empty();
    host.does(&["restart"]);
    assert!(generations(&host)[1] >= 2, "{:?}", generations(&host));
    load.finish(host.ground()).assert_nothing_lost(50);
    host.stop();
}

#[test]
fn a_restart_on_a_read_only_disk_names_the_directory_and_succeeds_afterwards() {
    let (mut host, mut disk) = on_a_disk();
    let load = load(&host);
    disk.forbid_writing();
    fails(&host, &["restart"], &["disk/polyfpm/m/default.1.2", READ_ONLY, "the old master still serves"]);
    load.run_for(STEADY);
    disk.allow_writing();
    host.does(&["restart"]);
    load.finish(host.ground()).assert_nothing_lost(50);
    host.stop();
}

#[test]
fn a_restart_on_an_almost_full_disk_names_the_configuration() {
    let (mut host, disk) = on_a_disk();
    // One page: for the file that says who it is and not for its configuration.
    disk.fill_but(1);
    fails(&host, &["restart"], &["default/1#2", "disk/polyfpm/m/default.1.2/php-fpm.conf", FULL, "the old master still serves"]);
    disk.empty();
    host.does(&["restart"]);
    host.stop();
}

#[test]
fn a_park_that_cannot_be_written_down_says_so_and_is_written_later() {
    let (mut host, disk) = on_a_disk();
    disk.fill();
    let ended = host.polyfpm(&["park", "default/2"]);
    assert_eq!(ended.code, 1, "{}{}", ended.out, ended.err);
    for part in ["disk/polyfpm/state.json", FULL, "make the directory writable"] {
        assert!(ended.err.contains(part), "{}", ended.err);
    }
    assert_eq!(host.shards()[1].verdict, "parked", "it was done all the same");
    let told = |host: &Sandbox| host.ground().read("log/polyfpm.out").matches("state file was not written").count();
    eventually(SOON, "several looks at the shards have passed", || (host.status()["uptime_seconds"].as_u64()? > 4).then_some(()));
    assert_eq!(told(&host), 1, "a full disk is told once");
    disk.empty();
    let parked = || host.ground().read("disk/polyfpm/state.json").contains(r#""parked":true"#);
    eventually(SOON, "the state is written once there is room", || parked().then_some(()));
    // And the next supervisor knows it.
    host.signal(Signal::SIGKILL);
    host.supervisor().wait(SOON);
    host.launch();
    eventually(SOON, "the next supervisor answers", || (host.polyfpm(&["status"]).code == 0).then_some(()));
    eventually(SOON, "the shard is still parked", || (host.shards()[1].verdict == "parked").then_some(()));
    host.does(&["unpark", "default/2"]);
    host.stop();
}

#[test]
fn a_crash_on_a_full_disk_is_served_by_orphans_and_mended_once_there_is_room() {
    let (mut host, disk) = on_a_disk();
    host.set("restart", "give_up_after", 50);
    host.does(&["reload"]);
    let load = load(&host);
    disk.fill();
    let victim = host.masters()[0];
    nix::sys::signal::kill(nix::unistd::Pid::from_raw(victim), Signal::SIGKILL).expect("a living master");
    eventually(SOON, "the shard says what it lacks", || {
        let reason = host.shards()[0].reason.clone()?;
        (reason.contains("php-fpm.conf") && reason.contains(FULL)).then_some(())
    });
    load.run_for(STEADY);
    disk.empty();
    crate::support::until_shards(&host, "the shard serves again", |shards| shards[0].verdict == "ready" && shards[0].pid.is_some());
    load.finish(host.ground()).assert_nothing_lost(50);
    host.stop();
}

#[test]
fn an_include_that_cannot_be_written_fails_the_reload_and_nothing_else() {
    for (fault, says) in [("full", FULL), ("read-only", READ_ONLY)] {
        let mut disk = None;
        let mut host = split(|host| disk = Some(Disk::mount(&host.ground().path("nginx/conf.d"), 16)));
        let mut disk = disk.expect("a disk");
        let before = host.ground().read("nginx/conf.d/polyfpm.conf");
        let load = load(&host);
        if fault == "full" {
            disk.fill();
        } else {
            disk.forbid_writing();
        }
        host.set("shards", "count", 3);
        let ended = host.polyfpm(&["reload"]);
        assert_eq!(ended.code, 1, "{fault}: {}{}", ended.out, ended.err);
        for part in ["nginx/conf.d/polyfpm.conf", says, "mend the cause and run polyfpm reload"] {
            assert!(ended.err.contains(part), "{fault}: {}", ended.err);
        }
        nginx_is(&host, "failed");
        assert_eq!(host.ground().read("nginx/conf.d/polyfpm.conf"), before);
        assert_eq!(generations(&host).len(), 3, "the shards run as read");
        load.run_for(STEADY);
        if fault == "full" {
            disk.empty();
        } else {
            disk.allow_writing();
        }
        host.does(&["reload"]);
        nginx_is(&host, "current");
        assert!(host.ground().read("nginx/conf.d/polyfpm.conf").contains("www.3.sock"));
        load.finish(host.ground()).assert_nothing_lost(50);
        host.stop();
    }
}

#[test]
fn a_reload_that_cannot_write_its_trial_changes_nothing_and_names_the_file() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    let temporary = host.ground().path("tmp");
    let disk = Disk::mount(&temporary, 64);
    host.launch_with(&[("TMPDIR", &temporary.display().to_string())]);
    host.ready();
    disk.fill();
    host.pool("shop", 4);
    fails(&host, &["reload"], &[&format!("write {}/polyfpm-", temporary.display()), FULL, "mend the cause"]);
    disk.empty();
    host.does(&["reload"]);
    assert!(host.shards()[0].pools.contains(&"shop".to_owned()));
    host.stop();
}

#[test]
fn a_full_disk_under_the_logs_stops_nothing() {
    let mut disk = None;
    let mut host = split(|host| {
        disk = Some(Disk::mount(&host.ground().path("logs"), 64));
        let log = host.ground().text("logs/php-fpm.error");
        let text = format!("[global]\nerror_log = {log}\ninclude = {}\n", host.ground().text("pool.d/*.conf"));
        host.ground().write("php-fpm.conf", &text);
    });
    let disk = disk.expect("a disk");
    let load = load(&host);
    disk.fill();
    host.does(&["restart"]);
    host.does(&["reload"]);
    load.run_for(STEADY);
    load.finish(host.ground()).assert_nothing_lost(50);
    host.stop();
    drop(disk);
}
