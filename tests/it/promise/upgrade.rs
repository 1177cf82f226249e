//! The supervisor goes on as another binary: same pid, same masters, no request lost.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::steps::Faults;
use super::{STEADY, include_is_written, through_upstream, unchanged};
use crate::support::{Clients, Extra, Load, Peer, Sandbox, Shard, alive, binary, children, eventually, queue, until_shards, within};

/// Far above what anything here takes.
const SOON: Duration = Duration::from_secs(20);

/// A pool split over two shards behind NGINX, the supervisor started from a copy of the program, which is given too.
fn installed(workers: u32) -> (Sandbox, PathBuf) {
    let mut host = Sandbox::new();
    let program = host.install();
    host.pool("www", workers);
    host.set("shards", "routing", "split");
    host.front_at_old_paths(&["www"]);
    host.run();
    include_is_written(&host);
    host.edit(&through_upstream("www"));
    (host, program)
}

/// Replaces the installed program as a package does: another file takes its name.
fn replace(program: &Path, bytes: &[u8], mode: u32) {
    let beside = program.with_extension("new");
    std::fs::write(&beside, bytes).expect("a new program");
    std::fs::set_permissions(&beside, Permissions::from_mode(mode)).expect("its mode");
    std::fs::rename(&beside, program).expect("the program's place");
}

/// Gives our program as another build of it: the linker's mark is another one.
fn other_build(number: u8) -> Vec<u8> {
    let mut bytes = std::fs::read(binary()).expect("our program");
    let mark = b"\x04\0\0\0\x14\0\0\0\x03\0\0\0GNU\0";
    let at = bytes.windows(mark.len()).position(|window| window == mark).expect("a build id") + mark.len();
    bytes[at..at + 20].fill(number);
    bytes
}

/// Gives a program that does something of its own between the exec and our program's start.
fn wrapped(script: &str) -> String {
    format!("#!/bin/sh\nif [ \"$1\" = run ]; then {script}; fi\nexec {} \"$@\"\n", binary().display())
}

#[test]
fn five_upgrades_under_load_lose_nothing_and_keep_every_master() {
    let (mut host, program) = installed(8);
    let supervisor = host.supervisor().pid();
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[Extra::Long(Duration::from_secs(3)), Extra::Uploads]);
    load.run_for(STEADY);
    let before = host.shards();
    for number in 1..=5 {
        replace(&program, &other_build(number), 0o755);
        let told = host.does(&["upgrade"]);
        let build = format!("{number:02x}").repeat(4);
        assert!(told.contains(&format!("[1/3] checked {}", program.display())), "{told}");
        assert!(told.contains("2 masters kept"), "{told}");
        assert!(told.contains(&format!("(build {build}) runs, pid {supervisor}; before: ")), "{told}");
        assert_eq!(host.status()["pid"], supervisor);
        let now = host.shards();
        assert_eq!(now.iter().map(Shard::master).collect::<Vec<_>>(), before.iter().map(Shard::master).collect::<Vec<_>>());
    }
    // Masters are still children, and handed over as ever.
    let ours = children(supervisor);
    assert!(host.masters().iter().all(|master| ours.contains(master)));
    host.does(&["restart"]);
    host.does(&["upgrade"]);
    load.run_for(STEADY);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(400);
    report.assert_nothing_reset();
    host.stop();
}

#[test]
fn shared_listeners_are_kept_too() {
    let mut host = unchanged(32);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    let before = host.masters();
    host.does(&["upgrade"]);
    assert_eq!(host.masters(), before);
    host.does(&["restart"]);
    host.does(&["upgrade"]);
    load.run_for(STEADY);
    load.finish(host.ground()).assert_nothing_lost(100);
    host.stop();
}

#[test]
fn a_binary_that_cannot_take_over_leaves_the_old_one_in_charge() {
    let (mut host, program) = installed(4);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(2), &[]);
    let (before, supervisor) = (host.masters(), host.supervisor().pid());
    let whole = std::fs::read(binary()).expect("our program");
    let fitness = r#"{"version":"0.0.9","handoff":0,"directory":"/","control":"/","quarantined":[]}"#;
    let too_old = format!("#!/bin/sh\n[ $1 = --version ] && exec echo polyfpm 0.0.9\necho '{fitness}'\n");
    for (bytes, mode, told) in [
        (&whole[..], 0o644, "Permission denied"),
        (&whole[..4096], 0o755, "--version ended with"),
        (&b"#!/bin/sh\necho 'libmissing.so: cannot open' >&2\nexit 1\n"[..], 0o755, "libmissing.so: cannot open"),
        (&b"#!/bin/sh\necho busybox 1.36\n"[..], 0o755, "is not polyfpm: asked for its version it printed 'busybox 1.36'"),
        (
            &b"#!/bin/sh\n[ $1 = --version ] && echo polyfpm 0.0.1 && exit\necho 'error: unrecognized subcommand' >&2\nexit 64\n"[..],
            0o755,
            "self-check ended with exit 64",
        ),
        (too_old.as_bytes(), 0o755, "too old to go on from this one"),
        (&b"#!/bin/sh\nsleep 60\n"[..], 0o755, "did not end within 5 s"),
    ] {
        replace(&program, bytes, mode);
        let refused = host.polyfpm(&["upgrade"]);
        assert_eq!(refused.code, 1, "{}{}", refused.out, refused.err);
        assert!(refused.err.contains(told) && refused.err.contains("runs on as it was"), "{}", refused.err);
    }
    assert_eq!(host.masters(), before);
    replace(&program, &whole, 0o755);
    host.does(&["upgrade"]);
    assert_eq!((host.masters(), host.supervisor().pid()), (before, supervisor));
    load.finish(host.ground()).assert_nothing_lost(100);
    host.stop();
}

#[test]
fn a_master_that_dies_after_an_upgrade_is_known_and_replaced() {
    let (mut host, _) = installed(4);
    host.does(&["upgrade"]);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(2), &[]);
    load.run_for(STEADY);
    let before = host.shards().remove(0);
    let orphans = children(before.pid.expect("a master"));
    kill(Pid::from_raw(before.pid.expect("a master")), Signal::SIGKILL).expect("a living master");
    let after = until_shards(&host, "another master serves", |shards| shards[0].generation == 2 && shards[0].verdict == "ready");
    assert_eq!(after[1].generation, 1);
    assert!(host.log_tail().contains("was ended by signal 9"), "{}", host.log_tail());
    // They came to us, though their master was started by another program image.
    eventually(SOON, "the orphans have left", || orphans.iter().all(|pid| !alive(*pid)).then_some(()));
    load.finish(host.ground()).assert_nothing_lost(50);
    host.stop();
}

#[test]
fn who_watches_asks_and_signals_meanwhile_is_not_forgotten() {
    let (mut host, program) = installed(4);
    let watching = host.begin(&["status", "--watch", "--json"], "log/watch");
    eventually(SOON, "the first picture", || (!watching.output().is_empty()).then_some(()));
    // A signal that comes when the old handlers are gone and the new ones not yet there.
    replace(&program, wrapped("kill -USR2 $$").as_bytes(), 0o755);
    let mut upgrade = host.begin(&["upgrade"], "log/upgrade");
    let ended = within(SOON, || {
        assert_eq!(host.polyfpm(&["status"]).code, 0, "at whatever moment it is asked");
        upgrade.ended()
    });
    assert!(ended.is_some_and(|status| status.success()), "{}", upgrade.output());
    until_shards(&host, "the restart that was asked for is done", |shards| shards.iter().all(|shard| shard.generation == 2));
    eventually(SOON, "who watches sees it", || watching.output().lines().last()?.contains("\"generation\":2").then_some(()));
    drop(watching);
    host.stop();
}

#[test]
fn a_master_that_dies_during_the_exec_is_known_with_its_status() {
    let (mut host, program) = installed(4);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(2), &[]);
    load.run_for(STEADY);
    let victim = host.masters()[0];
    let orphans = children(victim);
    replace(
        &program,
        wrapped(&format!("kill -KILL {victim}; while read -r _ _ state _ < /proc/{victim}/stat; do [ $state = Z ] && break; done"))
            .as_bytes(),
        0o755,
    );
    host.does(&["upgrade"]);
    until_shards(&host, "another master serves", |shards| shards[0].generation == 2 && shards[0].verdict == "ready");
    assert!(host.ground().read("log/polyfpm.out").contains("was ended by signal 9"), "{}", host.log_tail());
    eventually(SOON, "the orphans have left", || orphans.iter().all(|pid| !alive(*pid)).then_some(()));
    load.finish(host.ground()).assert_nothing_lost(50);
    host.stop();
}

#[test]
fn a_binary_that_fails_after_the_exec_loses_nothing_either() {
    let (mut host, program) = installed(8);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    let before = host.masters();
    for fault in ["kill -KILL $$", "exit 1"] {
        replace(&program, wrapped(fault).as_bytes(), 0o755);
        let broken = host.polyfpm(&["upgrade"]);
        assert_eq!(broken.code, 69, "{}{}", broken.out, broken.err);
        host.supervisor().wait(SOON);
        replace(&program, &std::fs::read(binary()).expect("our program"), 0o755);
        host.launch();
        host.ready();
        assert_eq!(host.masters(), before, "after {fault}");
    }
    // What is handed over cannot be used: the masters are adopted as after a crash, by the same process.
    replace(&program, wrapped("POLYFPM_HANDOFF=1000000; export POLYFPM_HANDOFF").as_bytes(), 0o755);
    assert_eq!(host.polyfpm(&["upgrade"]).code, 69, "nobody is left who knows the caller");
    host.ready();
    assert_eq!(host.masters(), before);
    assert!(host.ground().read("log/polyfpm.out").contains("what was handed over was not usable"));
    host.does(&["restart"]);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(300);
    report.assert_nothing_reset();
    host.stop();
}

/// Every step of an upgrade, on both sides of the exec.
const STEPS: [&str; 9] = [
    "upgrade begun",
    "binary examined",
    "clients held back",
    "state written",
    "descriptors handed over",
    "descriptors taken",
    "children resumed",
    "masters adopted",
    "masters kept",
];

#[test]
fn a_supervisor_killed_after_any_step_of_an_upgrade_loses_nothing() {
    let (mut host, _) = installed(8);
    let faults = Faults::on(&host);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(4), &[]);
    let before = host.masters();
    host.signal(Signal::SIGKILL);
    host.supervisor().wait(SOON);
    faults.launch(&mut host);
    host.ready();
    for step in STEPS {
        faults.arm(&host, "kill", (step, 1));
        let mut upgrade = host.begin(&["upgrade"], "log/upgrade");
        assert_eq!(host.supervisor().exit_code(SOON), -9, "after: {step}\n{}", host.log_tail());
        assert!(!faults.disarm(), "it was not that step that ended it: {step}");
        assert_eq!(upgrade.exit_code(SOON), 69, "after: {step}");
        faults.launch(&mut host);
        host.ready();
        assert_eq!(host.masters(), before, "after: {step}");
    }
    host.does(&["upgrade"]);
    host.does(&["restart"]);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(500);
    report.assert_nothing_reset();
    host.stop();
}

#[test]
fn who_waits_at_a_parked_shard_is_served_after_the_upgrade() {
    let mut host = Sandbox::new();
    host.set("shards", "count", 1);
    host.pool("www", 4);
    host.front_at_old_paths(&["www"]);
    host.run();
    host.does(&["park", "default/1"]);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(2), &[]);
    let bound = Peer::Unix(host.ground().path("run/www.sock.1"));
    eventually(SOON, "requests wait", || (queue(&bound)?.now >= 2).then_some(()));
    host.does(&["upgrade"]);
    assert_eq!(host.shards()[0].verdict, "parked");
    eventually(SOON, "no job is under way", || host.status()["job"].is_null().then_some(()));
    host.does(&["unpark", "default/1"]);
    load.run_for(STEADY);
    load.finish(host.ground()).assert_nothing_lost(20);
    host.stop();
}

#[test]
fn a_pool_that_would_be_lost_stops_an_upgrade() {
    let (mut host, _) = installed(4);
    host.pool("blog", 2);
    host.does(&["reload"]);
    host.pool_at("blog", &host.ground().text("run/blog.sock"), 2, "pm.nonsense = 1");
    let refused = host.polyfpm(&["upgrade"]);
    assert_eq!(refused.code, 1, "{}{}", refused.out, refused.err);
    assert!(refused.err.contains("pools that run would be kept out: blog"), "{}", refused.err);
    host.pool("blog", 2);
    host.does(&["upgrade"]);
    host.stop();
}

#[test]
fn an_upgrade_waits_for_no_job_and_no_job_for_it() {
    let (mut host, program) = installed(4);
    host.set("restart", "settle", "3s");
    host.does(&["reload"]);
    let mut restart = host.begin(&["restart"], "log/restart");
    eventually(SOON, "the restart is under way", || host.status()["job"].is_object().then_some(()));
    let refused = host.polyfpm(&["upgrade"]);
    assert_eq!(refused.code, 75, "{}{}", refused.out, refused.err);
    assert!(refused.err.contains("a restart is under way"), "{}", refused.err);
    assert_eq!(restart.exit_code(SOON), 0);
    replace(&program, b"#!/bin/sh\nsleep 60\n", 0o755);
    let mut upgrade = host.begin(&["upgrade"], "log/upgrade");
    eventually(SOON, "the upgrade is under way", || (host.status()["job"]["verb"] == "upgrade").then_some(()));
    let refused = host.polyfpm(&["restart"]);
    assert_eq!(refused.code, 75, "{}{}", refused.out, refused.err);
    // A stop is never refused.
    host.signal(Signal::SIGTERM);
    assert_eq!(upgrade.exit_code(SOON), 75, "{}", upgrade.output());
    host.gone();
}
