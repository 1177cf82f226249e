//! php-fpm missing, replaced, killed before it is ready; masters and workers that are stopped.

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{SOON, generations, split};
use crate::support::{Clients, FakeFpm, Load, Sandbox, alive, children, eventually};

fn load(host: &Sandbox) -> Load {
    Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[])
}

fn with_fake() -> (Sandbox, FakeFpm) {
    let mut fake = None;
    let host = split(|host| {
        let copy = FakeFpm::on(host.ground());
        host.set("php", "binary", copy.path().display().to_string());
        fake = Some(copy);
    });
    (host, fake.expect("a fake"))
}

#[track_caller]
fn refused(host: &Sandbox, says: &[&str]) {
    let before = generations(host);
    let ended = host.polyfpm(&["restart"]);
    assert_eq!(ended.code, 1, "{}{}", ended.out, ended.err);
    for part in says {
        assert!(ended.err.contains(part), "it does not say {part}: {}", ended.err);
    }
    assert_eq!(generations(host), before);
}

#[test]
fn a_php_fpm_that_is_missing_or_replaced_fails_a_restart_by_name() {
    let (mut host, fake) = with_fake();
    let load = load(&host);
    let aside = host.ground().path("aside");
    std::fs::rename(fake.path(), &aside).expect("our own program");
    refused(&host, &["fake-php-fpm", "No such file or directory", "the old master still serves"]);
    for (script, says) in [("#!/bin/sh\nexit 3\n", "exited with 3"), ("\x7fELF", "fake-php-fpm"), ("#!/nowhere/sh\n", "fake-php-fpm")] {
        std::fs::write(fake.path(), script).expect("a file in its place");
        std::fs::set_permissions(fake.path(), std::fs::Permissions::from_mode(0o755)).expect("our own file");
        refused(&host, &[says]);
        std::fs::remove_file(fake.path()).expect("our own file");
    }
    std::fs::rename(&aside, fake.path()).expect("our own program");
    host.does(&["restart"]);
    load.finish(host.ground()).assert_nothing_lost(50);
    host.stop();
}

#[test]
fn a_php_fpm_killed_before_it_is_ready_fails_the_restart() {
    let (mut host, fake) = with_fake();
    let load = load(&host);
    fake.does("never-ready");
    let known: BTreeSet<i32> = children(host.supervisor().pid()).into_iter().collect();
    let mut restart = host.begin(&["restart"], "log/restart");
    let supervisor = host.supervisor().pid();
    let starting = eventually(SOON, "a master starts", || {
        let new = children(supervisor).into_iter().find(|pid| !known.contains(pid))?;
        let shown = std::fs::read_to_string(format!("/proc/{new}/cmdline")).ok()?;
        shown.contains("php-fpm.conf").then_some(new)
    });
    kill(Pid::from_raw(starting), Signal::SIGKILL).expect("a starting master");
    assert_eq!(restart.exit_code(SOON), 1, "{}", restart.output());
    assert!(restart.output().contains("signal 9"), "{}", restart.output());
    fake.does("");
    host.does(&["restart"]);
    load.finish(host.ground()).assert_nothing_lost(50);
    host.stop();
}

#[test]
fn a_stopped_master_is_ended_by_the_ladder_and_costs_nothing() {
    let mut host = split(|host| host.set("restart", "drain_timeout", "1s"));
    let old = host.masters()[0];
    let load = load(&host);
    kill(Pid::from_raw(old), Signal::SIGSTOP).expect("a living master");
    host.does(&["restart"]);
    eventually(SOON, "the stopped master is gone", || (!alive(old)).then_some(()));
    load.finish(host.ground()).assert_nothing_lost(50);
    host.stop();
}
