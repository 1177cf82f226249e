//! NGINX killed, reloaded by others, upgraded and started anew while we restart and reload.
//!
//! What a killed NGINX loses is its own loss. Ours are the masters, the jobs' ends, the include, and every request after it is back.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{SOON, generations, nginx_is, split, through_upstream};
use crate::support::{Clients, Load, Sandbox, Site, alive, children, eventually};

/// Long enough for every client to meet every worker many times.
const STEADY: Duration = Duration::from_millis(250);

fn include(host: &Sandbox) -> String {
    host.ground().read("nginx/conf.d/polyfpm.conf")
}

/// Gives how many sockets the upstream has.
fn servers(host: &Sandbox) -> usize {
    include(host).lines().filter(|line| line.trim_start().starts_with("server ")).count()
}

fn load(host: &Sandbox) -> Load {
    Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[])
}

/// Changes the number of shards, and with it the include.
#[track_caller]
fn reload_with(host: &mut Sandbox, shards: u16) {
    host.set("shards", "count", i64::from(shards));
    host.does(&["reload"]);
    nginx_is(host, "current");
    assert_eq!(servers(host), usize::from(shards), "{}", include(host));
}

/// Nothing is lost through a restart and two changes of the include.
#[track_caller]
fn all_is_well(host: &mut Sandbox) {
    let load = load(host);
    load.run_for(STEADY);
    host.does(&["restart"]);
    reload_with(host, 3);
    load.run_for(STEADY);
    reload_with(host, 2);
    load.run_for(STEADY);
    load.finish(host.ground()).assert_nothing_lost(100);
}

#[test]
fn killed_workers_of_nginx_cost_nothing_of_ours() {
    let mut host = split(|_| {});
    let load = load(&host);
    let (before, text) = (generations(&host), include(&host));
    let mut restart = host.begin(&["restart"], "log/restart");
    let mut killed = 0;
    let ended = eventually(SOON, "the restart has ended", || {
        for worker in host.nginx().workers() {
            killed += u32::from(kill(Pid::from_raw(worker), Signal::SIGKILL).is_ok());
        }
        restart.ended()
    });
    assert!(ended.success() && killed > 2, "{killed} killed: {}", restart.output());
    assert_eq!(generations(&host), before.iter().map(|generation| generation + 1).collect::<Vec<_>>());
    assert_eq!(include(&host), text);
    // Each request that such a worker had is lost to its client, and to nobody twice.
    let lost = load.finish(host.ground());
    assert!(lost.miscounted.iter().all(|line| line.ends_with("ran 0 times")), "{:#?}", lost.miscounted);
    all_is_well(&mut host);
}

#[test]
fn a_killed_nginx_ends_no_job_and_is_served_again_when_it_is_back() {
    let mut host = split(|_| {});
    let before = generations(&host);
    let mut restart = host.begin(&["restart"], "log/restart");
    eventually(SOON, "the restart is under way", || host.status()["job"].is_object().then_some(()));
    host.nginx().signal(Signal::SIGKILL);
    assert_eq!(restart.exit_code(SOON), 0, "{}", restart.output());
    assert_eq!(generations(&host), before.iter().map(|generation| generation + 1).collect::<Vec<_>>());

    // Its workers outlive it and know the former include only: whatever that names stays.
    let load = load(&host);
    load.run_for(STEADY);
    host.set("shards", "count", 1);
    host.does(&["reload"]);
    load.run_for(STEADY);
    load.finish(host.ground()).assert_nothing_lost(50);
    nginx_is(&host, "written");
    assert_eq!(servers(&host), 1, "{}", include(&host));

    host.front_again(&through_upstream());
    all_is_well(&mut host);
}

#[test]
fn a_nginx_killed_while_it_reads_the_include_reads_it_later() {
    let mut host = split(|_| {});
    for (round, shards) in [3_u16, 4, 5].into_iter().enumerate() {
        let reloads = host.ground().read("log/nginx.error").matches("reconfiguring").count();
        host.set("shards", "count", i64::from(shards));
        let mut reload = host.begin(&["reload"], &format!("log/reload-{round}"));
        eventually(SOON, "NGINX is told", || {
            (host.ground().read("log/nginx.error").matches("reconfiguring").count() > reloads).then_some(())
        });
        host.nginx().signal(Signal::SIGKILL);
        let code = reload.exit_code(SOON);
        assert!(matches!(code, 0 | 1), "{code}: {}", reload.output());
        host.front_again(&through_upstream());
        assert!(host.nginx().body("/www/hello.php?id=1").contains("hello 1"));
    }
    all_is_well(&mut host);
}

#[test]
fn a_nginx_that_others_reload_all_the_time_loses_nothing() {
    let mut host = split(|_| {});
    let load = load(&host);
    for (round, (words, shards)) in [("restart", 2_u16), ("reload", 3), ("restart", 3), ("reload", 2)].into_iter().enumerate() {
        host.set("shards", "count", i64::from(shards));
        let mut command = host.begin(&[words], &format!("log/command-{round}"));
        let ended = eventually(SOON, "the command has ended", || {
            host.nginx().reload();
            command.ended()
        });
        assert!(ended.success(), "{}", command.output());
        assert_eq!(servers(&host), usize::from(shards), "{}", include(&host));
    }
    load.finish(host.ground()).assert_nothing_lost(100);
    all_is_well(&mut host);
}

#[test]
fn a_nginx_upgraded_in_place_loses_nothing() {
    let mut host = split(|_| {});
    host.daemonize_front();
    reload_with(&mut host, 3);
    let load = load(&host);
    let old = host.nginx().pid();
    let mut restart = host.begin(&["restart"], "log/restart");
    let new = host.nginx().upgrade();
    assert_eq!(restart.exit_code(SOON), 0, "{}", restart.output());
    // Both accept, and only the new one hears of the change.
    reload_with(&mut host, 2);
    load.run_for(STEADY);
    assert!(children(old).len() >= 2, "the old workers serve on");
    kill(Pid::from_raw(old), Signal::SIGQUIT).expect("the old master");
    let mut restart = host.begin(&["restart"], "log/restart-2");
    assert_eq!(restart.exit_code(SOON), 0, "{}", restart.output());
    eventually(SOON, "the old NGINX is gone", || (!alive(old)).then_some(()));
    assert_eq!(host.nginx().named_master(), Some(new));
    load.run_for(STEADY);
    load.finish(host.ground()).assert_nothing_lost(100);
    all_is_well(&mut host);
    // What the workers of the old one named goes once they are gone.
    eventually(SOON, "the socket of the third shard is gone", || {
        let left = host.ground().socket_files();
        (!left.iter().any(|path| path.to_string_lossy().contains(".3"))).then_some(())
    });
}

#[test]
fn an_upgrade_of_nginx_that_is_taken_back_loses_nothing() {
    let mut host = split(|_| {});
    host.daemonize_front();
    let old = host.nginx().pid();
    let load = load(&host);
    let new = host.nginx().upgrade();
    host.does(&["restart"]);
    reload_with(&mut host, 3);
    kill(Pid::from_raw(old), Signal::SIGHUP).expect("the old master");
    kill(Pid::from_raw(new), Signal::SIGQUIT).expect("the new master");
    eventually(SOON, "the new NGINX is gone", || (!alive(new)).then_some(()));
    eventually(SOON, "the old NGINX is the one again", || (host.nginx().named_master() == Some(old)).then_some(()));
    load.run_for(STEADY);
    load.finish(host.ground()).assert_nothing_lost(100);
    all_is_well(&mut host);
}

#[test]
fn a_nginx_started_anew_with_other_workers_gets_an_include_for_them() {
    let mut host = split(|host| host.set("nginx", "keepalive", 16));
    let kept = |host: &Sandbox| include(host).lines().find(|line| line.contains("keepalive ")).map(str::trim).map(str::to_owned);
    let two = kept(&host);
    let mut restart = host.begin(&["restart"], "log/restart");
    host.front_again(&Site { workers: Some(4), ..through_upstream() });
    assert_eq!(restart.exit_code(SOON), 0, "{}", restart.output());
    host.does(&["reload"]);
    nginx_is(&host, "current");
    assert_eq!(host.nginx().workers().len(), 4);
    assert_ne!(kept(&host), two, "what is kept is a total, over more workers now: {}", include(&host));
    all_is_well(&mut host);
}

/// Sends a request up to the middle of its body, and gives what ends it.
fn half_sent(host: &Sandbox, id: u32) -> impl FnOnce() -> String + use<> {
    let mut stream = TcpStream::connect(("127.0.0.1", host.nginx().port())).expect("NGINX");
    stream.set_read_timeout(Some(SOON)).expect("our own socket");
    let head = format!("POST /www/hello.php?id={id} HTTP/1.1\r\nHost: test\r\nConnection: close\r\nContent-Length: 2\r\n\r\na");
    stream.write_all(head.as_bytes()).expect("half a request");
    move || {
        stream.write_all(b"b").expect("the other half");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).expect("an answer");
        answer
    }
}

#[test]
fn what_a_former_worker_of_nginx_names_outlives_a_second_reload() {
    let mut host = split(|_| {});
    reload_with(&mut host, 3);
    let uploads: Vec<_> = (0..6).map(|id| half_sent(&host, id)).collect();
    let old = host.nginx().workers();
    reload_with(&mut host, 2);
    assert!(old.iter().any(|worker| alive(*worker)), "an old worker reads the uploads");
    // Nothing differs, and nobody leaves NGINX for it.
    host.does(&["reload"]);
    for (id, upload) in uploads.into_iter().enumerate() {
        let answer = upload();
        assert!(answer.starts_with("HTTP/1.1 200") && answer.contains(&format!("hello {id}")), "{answer}");
    }
    let errors = host.ground().read("log/nginx.error");
    assert!(!errors.contains("[crit]") && !errors.contains("[error]"), "{errors}");
}
