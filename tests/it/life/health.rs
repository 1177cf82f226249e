//! Busy is not sick; hung is; looking costs nothing.

use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{SOON, all_ready, nginx_is_current, plain, round_robin, served_by};
use crate::support::{Clients, Load, Peer, Request, Sandbox, children, eventually, never, queue, until_shards};

/// Looks often, and gives up soon.
fn impatient(host: &mut Sandbox) {
    host.set("health", "interval", "200ms");
    host.set("health", "timeout", "500ms");
    host.set("health", "hung_after", "1s");
}

fn own_path(host: &Sandbox) -> Peer {
    Peer::Unix(host.ground().path("run/www.sock"))
}

#[test]
fn a_pool_that_is_full_of_slow_requests_is_saturated_and_never_restarted() {
    let host = plain(|host| {
        impatient(host);
        host.set("shards", "count", 1);
        host.pool("www", 2);
    });
    let peer = own_path(&host);
    let slow = |ms: u32, id: u32| {
        let uri = format!("/slow.php?ms={ms}&id={id}");
        Request::get(&host.ground().path(""), &uri).timeout(Duration::from_secs(30)).open(&peer).expect("a connection").beside()
    };
    let calls: Vec<_> = (0..6).map(|id| slow(3000, id)).collect();
    let seen = until_shards(&host, "it is saturated", |shards| shards[0].verdict == "saturated");
    assert_eq!(seen[0].workers_busy, Some(2), "{seen:?}");
    let other = || host.shards().into_iter().find(|shard| shard.generation != 1 || shard.verdict == "hung");
    never(Duration::from_secs(4), "busy was taken for sick", other);
    for call in calls {
        assert!(call.join().expect("an answer").is_ok());
    }
    until_shards(&host, "it is ready again", |shards| shards[0].verdict == "ready" && shards[0].generation == 1);
}

#[test]
fn a_busy_pool_with_nothing_waiting_is_busy() {
    let host = plain(|host| {
        impatient(host);
        host.set("shards", "count", 1);
        host.pool("www", 1);
    });
    let request = Request::get(&host.ground().path(""), "/slow.php?ms=3000&id=b");
    let call = request.open(&own_path(&host)).expect("a connection").beside();
    until_shards(&host, "it is busy", |shards| shards[0].verdict == "busy");
    assert!(call.join().expect("an answer").is_ok());
    all_ready(&host);
}

#[test]
fn hung_shards_are_replaced_one_at_a_time_and_what_waited_is_served() {
    let host = round_robin(impatient);
    let before = host.shards();
    let (stopped, other) = (before[0].pid.expect("a master"), before[1].pid.expect("a master"));
    for worker in children(stopped) {
        kill(Pid::from_raw(worker), Signal::SIGSTOP).expect("a living worker");
    }
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    let healed = until_shards(&host, "the hung shard has a new master", |shards| shards[0].generation == 2);
    assert_eq!(healed[1].pid, Some(other), "the healthy sibling is left alone");
    all_ready(&host);
    let back = host.shards()[0].pid.expect("a master");
    assert!(served_by(&host, 20).contains(&back), "the new master serves");
    load.run_for(Duration::from_secs(1));
    // Workers that stand still cannot leave by themselves; a request they have begun goes on with them.
    for worker in children(stopped) {
        kill(Pid::from_raw(worker), Signal::SIGCONT).expect("a living worker");
    }
    load.finish(host.ground()).assert_nothing_lost(50);
    let log = host.ground().read("log/polyfpm.out");
    assert!(log.contains("shard hung"), "{log}");
}

#[test]
fn two_hung_shards_are_never_without_a_master_both() {
    let host = round_robin(impatient);
    for worker in host.workers() {
        kill(Pid::from_raw(worker), Signal::SIGSTOP).expect("a living worker");
    }
    let stopped = host.workers();
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);
    let mut jobs = std::collections::BTreeSet::new();
    eventually(Duration::from_secs(60), "both have new masters", || {
        let status = host.status();
        if let Some(step) = status["job"]["step"].as_str() {
            jobs.insert(step.to_owned());
        }
        let generation = |at: usize| status["shards"][at]["generation"].as_u64();
        let changing = status["shards"].as_array().expect("shards").iter().filter(|shard| shard["verdict"] == "starting").count();
        assert_eq!(changing, 0, "a shard was taken down: {status}");
        (generation(0) == Some(2) && generation(1) == Some(2)).then_some(())
    });
    for worker in stopped {
        kill(Pid::from_raw(worker), Signal::SIGCONT).ok();
    }
    load.run_for(Duration::from_secs(1));
    load.finish(host.ground()).assert_nothing_lost(50);
}

#[test]
fn looking_wakes_no_on_demand_pool() {
    let mut host = Sandbox::new();
    impatient(&mut host);
    host.set("shards", "count", 1);
    host.pool("www", 2);
    for number in 0..20 {
        let name = format!("idle{number}");
        let text = format!(
            "[{name}]\nlisten = {}\nuser = www-data\ngroup = www-data\npm = ondemand\npm.max_children = 2\npm.process_idle_timeout = 1s\n",
            host.ground().text(&format!("run/{name}.sock"))
        );
        host.pool_file(&name, &text);
    }
    host.front_at_old_paths(&["www"]);
    host.run();
    nginx_is_current(&host);
    let idle_workers = || {
        let master = host.masters()[0];
        let titles = children(master).into_iter().map(|pid| std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default());
        let woken: Vec<String> = titles.filter(|title| title.contains("pool idle")).collect();
        (!woken.is_empty()).then_some(woken)
    };
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(2), &[]);
    never(Duration::from_secs(3), "a pool nobody asks for was woken", idle_workers);
    load.finish(host.ground()).assert_nothing_lost(20);
}

#[test]
fn looking_never_goes_through_the_public_queue() {
    let host = plain(|host| {
        impatient(host);
        host.set("shards", "count", 1);
        host.pool("www", 1);
    });
    let request = Request::get(&host.ground().path(""), "/slow.php?ms=4000&id=q").timeout(SOON);
    let call = request.open(&own_path(&host)).expect("a connection").beside();
    until_shards(&host, "looks are answered while the only worker is at work", |shards| shards[0].workers_busy == Some(1));
    let bound = Peer::Unix(host.ground().path("run/www.sock.1"));
    assert!(queue(&bound).is_some(), "the listener's name at its binding");
    never(Duration::from_secs(2), "something waits in the public queue", || queue(&bound).filter(|queue| queue.now > 0));
    assert!(call.join().expect("an answer").is_ok());
}
