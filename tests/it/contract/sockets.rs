//! P1–P9: listening sockets that a master inherits.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::SOON;
use crate::support::{Ground, Listener, Master, MasterPlan, Queue, Request, eventually, holds, pool_lines, queue};

#[test]
fn p1_inherited_sockets_are_taken_by_key_and_hidden_from_scripts() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let unasked = Listener::unix(&ground.path("run/unasked.sock"));
    let mut plan = MasterPlan::one_pool(&ground, "a", &listener, 1);
    plan.sockets.push((ground.text("run/unasked.alias"), &unasked));
    let master = Master::start(&ground, &plan);
    let who = Request::get(&ground.path(""), "/who.php").with("POOL", "www").to(listener.peer());
    assert_eq!(who.number("master"), master.pid());
    assert!(who.body().contains("\"fpm_sockets\":false"), "FPM_SOCKETS is seen by scripts: {}", who.body());
    assert!(holds(master.pid(), listener.fd()) && !holds(master.pid(), unasked.fd()), "a socket that no pool asks for is closed");
}

#[test]
fn p2_a_master_that_leaves_unlinks_the_path_of_its_key() {
    let ground = Ground::new();
    let public = ground.path("run/www.sock");
    let listener = Listener::unix(&public);
    let staying = Master::start(&ground, &MasterPlan::one_pool(&ground, "staying", &listener, 1));
    Master::start(&ground, &MasterPlan::one_pool(&ground, "leaving", &listener, 1)).quit(SOON);
    assert!(public.exists(), "a key that is an alias leaves the public path alone");

    let mut plan = MasterPlan::one_pool(&ground, "named", &listener, 1);
    plan.pools = format!("[www]\nlisten = {}\n{}", public.display(), pool_lines(1));
    plan.sockets = vec![(public.display().to_string(), &listener)];
    Master::start(&ground, &plan).quit(SOON);
    assert!(!public.exists(), "a key that is the public path costs the path");
    assert_eq!(staying.workers().len(), 1);
}

#[test]
fn p3_php_fpm_leaves_mode_owner_and_backlog_of_an_inherited_socket_alone() {
    let ground = Ground::new();
    let public = ground.path("run/www.sock");
    let listener = Listener::unix(&public);
    std::fs::set_permissions(&public, std::fs::Permissions::from_mode(0o600)).unwrap();
    listener.set_backlog(77);
    let plan = MasterPlan::one_pool(&ground, "a", &listener, 1).and("listen.mode = 0666\nlisten.owner = www-data\nlisten.backlog = 33");
    let _master = Master::start(&ground, &plan);
    let seen = std::fs::metadata(&public).unwrap();
    assert_eq!((seen.mode() & 0o777, seen.uid()), (0o600, 0));
    assert_eq!(queue(listener.peer()), Some(Queue { now: 0, max: 77 }));
    listener.set_backlog(99);
    assert_eq!(queue(listener.peer()), Some(Queue { now: 0, max: 99 }), "the backlog of a live socket can be set again");
}

#[test]
fn p4_with_no_master_alive_connections_wait_for_the_next() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    Master::start(&ground, &MasterPlan::one_pool(&ground, "first", &listener, 1)).quit(SOON);
    let waiting = Request::get(&ground.path(""), "/hello.php?id=1").open(listener.peer()).expect("the socket is held");
    assert_eq!(queue(listener.peer()).map(|queue| queue.now), Some(1));
    let _next = Master::start(&ground, &MasterPlan::one_pool(&ground, "next", &listener, 1));
    assert!(waiting.answer().is_ok());
}

#[test]
fn p5_two_masters_on_one_socket_both_accept() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let one = Master::start(&ground, &MasterPlan::one_pool(&ground, "one", &listener, 1));
    let two = Master::start(&ground, &MasterPlan::one_pool(&ground, "two", &listener, 1));
    let (root, mut seen) = (ground.path(""), BTreeSet::new());
    eventually(Duration::from_secs(10), "both masters answer", || {
        seen.insert(Request::get(&root, "/who.php").to(listener.peer()).number("master"));
        (seen == BTreeSet::from([one.pid(), two.pid()])).then_some(())
    });
}

#[test]
fn p6_workers_of_a_non_blocking_listener_exit_in_a_loop() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    fcntl(listener.fd(), FcntlArg::F_SETFL(OFlag::O_NONBLOCK)).unwrap();
    let _master = Master::start(&ground, &MasterPlan::one_pool(&ground, "a", &listener, 1));
    eventually(Duration::from_secs(10), "five workers exit", || {
        (ground.read("log/a.error").matches("exited with code").count() >= 5).then_some(())
    });
}

#[test]
fn p7_further_variables_carry_further_sockets() {
    let ground = Ground::new();
    let (first, second) = (Listener::unix(&ground.path("run/a.sock")), Listener::unix(&ground.path("run/b.sock")));
    let keys = [ground.text("run/a.alias"), ground.text("run/b.alias")];
    let mut plan = MasterPlan::one_pool(&ground, "m", &first, 1);
    plan.pools = keys.iter().enumerate().map(|(n, key)| format!("[p{n}]\nlisten = {key}\n{}", pool_lines(1))).collect();
    plan.sockets = vec![(keys[0].clone(), &first), (keys[1].clone(), &second)];
    plan.environment.push(("FPM_SOCKETS".to_owned(), format!("{}={}", keys[0], first.fd().as_raw_fd())));
    plan.environment.push(("FPM_SOCKETS_1".to_owned(), format!("{}={}", keys[1], second.fd().as_raw_fd())));
    let master = Master::start(&ground, &plan);
    for listener in [&first, &second] {
        assert_eq!(Request::get(&ground.path(""), "/who.php").to(listener.peer()).number("master"), master.pid());
    }
}

#[test]
fn p7_one_master_serves_4000_inherited_sockets() {
    let ground = Ground::new();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    let listeners: Vec<Listener> = (0..4000).map(|n| Listener::unix(&ground.path(&format!("run/{n}.s")))).collect();
    let keys: Vec<String> = (0..4000).map(|n| format!("{}/{n}", ground.text("k"))).collect();
    let mut plan = MasterPlan::one_pool(&ground, "m", &listeners[0], 1);
    let pool = |n: usize| {
        let users = "user = www-data\ngroup = www-data\npm = ondemand\npm.max_children = 2";
        format!("[p{n}]\nlisten = {}\n{users}\n", keys[n])
    };
    plan.pools = (0..4000).map(pool).collect();
    plan.sockets = keys.iter().cloned().zip(&listeners).collect();
    let master = Master::start(&ground, &plan);
    for n in [0, 1999, 3999] {
        assert_eq!(Request::get(&ground.path(""), "/who.php").to(listeners[n].peer()).number("master"), master.pid());
    }
}

#[test]
fn p8_a_tcp_key_must_be_a_numeric_address() {
    let ground = Ground::new();
    let port = ground.port();
    let listener = Listener::tcp(SocketAddrV4::new(Ipv4Addr::LOCALHOST, port));
    let master = Master::start(&ground, &MasterPlan::one_pool(&ground, "numeric", &listener, 1));
    assert_eq!(Request::get(&ground.path(""), "/who.php").to(listener.peer()).number("master"), master.pid());
    let mut plan = MasterPlan::one_pool(&ground, "named", &listener, 1);
    let key = format!("localhost:{port}");
    plan.pools = format!("[www]\nlisten = {key}\n{}", pool_lines(1));
    plan.sockets = vec![(key, &listener)];
    assert_eq!(Master::launch(&ground, &plan).running.exit_code(SOON), 78);
}

#[test]
fn p9_a_unix_path_is_cut_to_107_bytes() {
    let ground = Ground::new();
    let directory = ground.text("run/");
    let full = format!("{directory}{}", "x".repeat(120 - directory.len()));
    let pools = format!("[www]\nlisten = {full}\n{}", pool_lines(1));
    let listener = Listener::unix(&ground.path("run/unused.sock"));
    let plan = MasterPlan { pools, sockets: vec![], ..MasterPlan::one_pool(&ground, "long", &listener, 1) };
    let _master = Master::start(&ground, &plan);
    assert!(!Path::new(&full).exists(), "the path as written");
    assert!(Path::new(full.split_at(107).0).exists(), "the path cut short, without a word");
}
