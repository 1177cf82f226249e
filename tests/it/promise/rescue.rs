//! A shard whose master cannot start any more: what waits in its queue is served by a rescue master, or let go at once.
//!
//! To have requests wait there that no worker has begun, the pools are on demand, and the master of a shard that rests is
//! stopped before the load begins, then killed: nobody is left who could serve them, and nothing is in flight.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{include_is_written, through_upstream};
use crate::support::{
    Clients, FakeFpm, Kind, Load, Report, Route, Sample, Sandbox, Shard, Site, children, eventually, until_shards, within,
};

/// Far above what anything here takes.
const SOON: Duration = Duration::from_secs(20);

/// What a request may take at most that waited for a dead shard, counted from the kill: a start that fails, a pause that
/// begins, and a rescue master; on a machine that does other things, too.
const AT_MOST: Duration = Duration::from_secs(3);

const GOOD_INI: &str = "memory_limit = 128M\n";

/// A preload script that is missing ends every new master with code 78.
const NO_START: &str = "opcache.preload = /nowhere/preload.php\nopcache.preload_user = www-data\n";

const ON_DEMAND: &str = "user = www-data\ngroup = www-data\nlisten.owner = www-data\nlisten.group = www-data\npm = ondemand\n\
                         pm.max_children = 8\npm.process_idle_timeout = 1s\ncatch_workers_output = yes\n";

/// How clients reach the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Over {
    Unix,
    Tcp,
}

/// Two shards at rest, with a php.ini of their own that a test may spoil.
fn at_rest(over: Over, prepare: impl FnOnce(&mut Sandbox)) -> Sandbox {
    let mut host = Sandbox::new();
    let ini = host.ground().write("php.ini", GOOD_INI).display().to_string();
    host.set("php", "ini", ini);
    host.set("nginx", "balance", "round_robin");
    host.set("restart", "give_up_after", 3);
    host.set("restart", "backoff", "300ms");
    prepare(&mut host);
    let address = format!("127.0.0.1:{}", host.ground().port());
    let listen = if over == Over::Tcp { address.clone() } else { host.ground().text("run/www.sock") };
    host.pool_file("www", &format!("[www]\nlisten = {listen}\n{ON_DEMAND}"));
    if over == Over::Tcp {
        host.front(&Site::one(Route::new("www", &address)));
        host.run();
    } else {
        host.set("shards", "routing", "split");
        host.front_at_old_paths(&["www"]);
        host.run();
        include_is_written(&host);
        host.edit(&through_upstream("www"));
    }
    host
}

fn of(host: &Sandbox, name: &str) -> Shard {
    host.shards().into_iter().find(|shard| shard.shard == name).expect("the shard")
}

/// Stops the master of the second shard, lets requests gather at its socket, and kills it.
fn strand(host: &Sandbox, load: impl FnOnce() -> Load) -> (Load, Duration) {
    let victim = of(host, "default/2").pid.expect("a master");
    let rests = || {
        let titles = children(victim).into_iter().map(|pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default());
        titles.into_iter().all(|title| title.trim_end_matches(['\0', ' ']) != "php-fpm: pool www").then_some(())
    };
    eventually(SOON, "it has no workers", rests);
    let victim = Pid::from_raw(victim);
    kill(victim, Signal::SIGSTOP).expect("a living master");
    let load = load();
    load.run_for(Duration::from_millis(500));
    let killed = load.now();
    kill(victim, Signal::SIGKILL).expect("a stopped master");
    (load, killed)
}

/// Fails where a request that began before the kill had to wait longer than [`AT_MOST`] after it.
#[track_caller]
fn nobody_waited_on(report: &Report, killed: Duration) {
    let late = |sample: &&Sample| sample.at < killed && sample.at + sample.took > killed + AT_MOST;
    let late: Vec<_> = report.samples.iter().filter(late).collect();
    assert!(late.is_empty(), "killed at {killed:?}: {late:#?}");
    let waited = report.samples.iter().filter(|sample| sample.at < killed && sample.at + sample.took > killed).count();
    assert!(waited > 0, "nothing waited there");
}

fn told(host: &Sandbox, what: &str) -> bool {
    host.ground().read("log/polyfpm.out").contains(what)
}

#[test]
fn what_waits_for_a_shard_that_cannot_start_is_served_by_a_rescue_master() {
    let mut host = at_rest(Over::Unix, |_| {});
    host.ground().write("php.ini", NO_START);
    let (load, killed) = strand(&host, || Load::start(host.ground(), host.nginx(), "www", Clients::one_each(8), &[]));
    until_shards(&host, "the shard is halted", |shards| shards[1].verdict == "halted");
    assert!(told(&host, "rescue master starting"), "{}", host.log_tail());
    assert!(!told(&host, "rescue master was not started"), "{}", host.log_tail());
    load.run_for(Duration::from_millis(500));
    host.ground().write("php.ini", GOOD_INI);
    host.does(&["unpark", "default/2"]);
    until_shards(&host, "both serve", |shards| shards.iter().all(|shard| shard.verdict == "ready"));
    load.run_for(Duration::from_millis(500));
    let report = load.finish(host.ground());
    report.assert_nothing_lost(100);
    nobody_waited_on(&report, killed);
    host.stop();
}

#[test]
fn where_no_rescue_master_starts_either_who_waits_is_let_go_at_the_halt() {
    let mut fake = None;
    let mut host = at_rest(Over::Unix, |host| {
        let made = FakeFpm::on(host.ground());
        host.set("php", "binary", made.path().display().to_string());
        fake = Some(made);
    });
    fake.expect("it was made").does("exits 78 10");
    let (load, killed) = strand(&host, || Load::start(host.ground(), host.nginx(), "www", Clients::one_each(8), &[]));
    until_shards(&host, "the shard is halted", |shards| shards[1].verdict == "halted");
    let halted = load.now();
    load.run_for(Duration::from_secs(1));
    let report = load.finish(host.ground());
    // NGINX asks the other shard for what it may ask twice; nobody may run a POST twice.
    let waited = |sample: &&Sample| sample.at < killed && sample.at + sample.took > killed + Duration::from_millis(300);
    let waited: Vec<&Sample> = report.samples.iter().filter(waited).collect();
    let posts = waited.iter().filter(|sample| sample.kind == Kind::Post).count();
    assert!(!waited.is_empty() && report.failed.len() == posts, "{posts} POSTs of {} waited, {:#?} failed", waited.len(), report.failed);
    let let_go = halted + Duration::from_secs(1);
    assert!(waited.iter().all(|sample| sample.at + sample.took < let_go), "somebody waited on: {waited:#?}");
    host.stop();
}

#[test]
fn a_rescue_master_outlives_the_supervisor_and_is_not_taken_for_the_one_that_serves() {
    let mut host = at_rest(Over::Unix, |_| {});
    host.ground().write("php.ini", NO_START);
    let slow = [crate::support::Extra::Long(Duration::from_secs(3)); 4];
    let (load, killed) = strand(&host, || Load::start(host.ground(), host.nginx(), "www", Clients::one_each(0), &slow));
    eventually(SOON, "a rescue master runs", || told(&host, "rescue master starting").then_some(()));
    within(Duration::from_millis(200), || None::<()>);
    host.signal(Signal::SIGKILL);
    host.supervisor().wait(SOON);
    host.ground().write("php.ini", GOOD_INI);
    host.launch();
    host.ready();
    load.run_for(Duration::from_millis(500));
    host.does(&["restart"]);
    let report = load.finish(host.ground());
    report.assert_nothing_lost(4);
    assert!(report.samples.iter().any(|sample| sample.at < killed));
    host.stop();
}

#[test]
fn what_waits_at_a_tcp_listener_is_served_too() {
    let mut host = at_rest(Over::Tcp, |_| {});
    host.ground().write("php.ini", NO_START);
    let (load, killed) = strand(&host, || Load::start(host.ground(), host.nginx(), "www", Clients::one_each(8), &[]));
    until_shards(&host, "the shard is halted", |shards| shards[1].verdict == "halted");
    load.run_for(Duration::from_millis(500));
    host.ground().write("php.ini", GOOD_INI);
    host.does(&["unpark", "default/2"]);
    until_shards(&host, "both serve", |shards| shards.iter().all(|shard| shard.verdict == "ready"));
    load.run_for(Duration::from_millis(500));
    let report = load.finish(host.ground());
    report.assert_nothing_lost(100);
    nobody_waited_on(&report, killed);
    host.stop();
}
