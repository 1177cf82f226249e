//! P28 and P30–P35, P42: readiness, status, health, size.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::SOON;
use crate::support::{Answer, Call, Ground, Listener, Master, MasterPlan, Peer, Request, eventually, never, queue};

/// Plans a master whose pool answers status and ping on a private socket too.
fn with_status<'a>(ground: &Ground, name: &'a str, listener: &'a Listener, workers: u32) -> (MasterPlan<'a>, Peer) {
    let private = ground.path(&format!("run/{name}.status"));
    let lines = format!("pm.status_path = /status\nping.path = /ping\npm.status_listen = {}", private.display());
    (MasterPlan::one_pool(ground, name, listener, workers).and(&lines), Peer::Unix(private))
}

fn status(peer: &Peer) -> serde_json::Value {
    let answer = Request::bare("/status").with("QUERY_STRING", "json").to(peer);
    serde_json::from_str(answer.body()).expect("a JSON status")
}

#[test]
fn p28_the_private_status_socket_answers_ping_and_runs_scripts_into_the_same_opcache() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let (plan, private) = with_status(&ground, "a", &listener, 1);
    let master = Master::start(&ground, &plan);
    assert_eq!(Request::bare("/ping").to(&private).body(), "pong");
    let root = ground.path("");
    let who = Request::get(&root, "/who.php").to(&private);
    assert_eq!(who.number("master"), master.pid());
    let user = nix::unistd::User::from_name("www-data").unwrap().unwrap().uid.as_raw();
    assert_eq!(who.number("user"), user.cast_signed(), "as the pool's user");
    assert!(Request::get(&root, "/opcache.php").to(listener.peer()).body().contains("who.php"), "found by the pool's own workers");
}

#[test]
fn p30_ready_then_a_heartbeat_and_nothing_at_the_end() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let plan = MasterPlan::one_pool(&ground, "a", &listener, 1).global("systemd_interval = 1s");
    let began = Instant::now();
    let mut master = Master::start(&ground, &plan);
    assert!(began.elapsed() < SOON, "READY after {:?}", began.elapsed());
    let who = Request::get(&ground.path(""), "/who.php").to(listener.peer());
    let heartbeat = eventually(SOON, "a heartbeat", || master.told().filter(|text| text.contains("Processes active:")));
    for part in ["STATUS=", "idle:", "Requests:", "slow:", "Traffic:"] {
        assert!(heartbeat.contains(part), "{heartbeat:?} has no {part:?}");
    }
    assert_eq!(who.number("master"), master.pid());
    while master.told().is_some() {}
    master.running.signal(nix::sys::signal::Signal::SIGQUIT);
    master.running.wait(SOON);
    let last = master.told();
    assert!(last.as_ref().is_none_or(|text| !text.contains("STOPPING")), "{last:?}");
}

#[test]
fn p31_the_private_status_socket_answers_while_every_worker_is_busy() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    listener.set_backlog(1);
    let (plan, private) = with_status(&ground, "a", &listener, 2);
    let _master = Master::start(&ground, &plan);
    let slow = Request::get(&ground.path(""), "/slow.php?ms=2000&id=s");
    let busy: Vec<Call> = (0..2).map(|_| slow.open(listener.peer()).unwrap()).collect();
    eventually(SOON, "two workers are active", || (status(&private)["active processes"] == 2).then_some(()));
    let began = Instant::now();
    let seen = status(&private);
    assert!(began.elapsed() < Duration::from_millis(500), "answered after {:?}", began.elapsed());
    assert_eq!((&seen["active processes"], &seen["total processes"]), (&2.into(), &2.into()), "{seen}");
    assert!(busy.into_iter().all(|call| call.answer().is_ok()));
}

#[test]
fn p32_probing_an_idle_on_demand_pool_wakes_a_worker() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let (plan, _) = with_status(&ground, "a", &listener, 3);
    let master = Master::start(&ground, &plan.and("pm = ondemand\npm.process_idle_timeout = 60s"));
    never(Duration::from_millis(300), "a worker without a request", || master.workers().first().copied());
    assert_eq!(Request::bare("/ping").to(listener.peer()).body(), "pong");
    assert_eq!(master.workers().len(), 1);
}

#[test]
fn p33_the_status_page_does_not_see_the_queue_of_a_unix_socket() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let (plan, private) = with_status(&ground, "a", &listener, 1);
    let _master = Master::start(&ground, &plan);
    let slow = Request::get(&ground.path(""), "/slow.php?ms=1500&id=s");
    let waiting: Vec<Call> = (0..4).map(|_| slow.open(listener.peer()).unwrap()).collect();
    eventually(SOON, "the kernel counts three that wait", || (queue(listener.peer())?.now == 3).then_some(()));
    assert_eq!(status(&private)["listen queue"], 0);
    drop(waiting);
}

#[test]
fn p34_a_worker_stays_with_its_connection_until_the_client_closes_it() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let _master = Master::start(&ground, &MasterPlan::one_pool(&ground, "a", &listener, 1));
    let hello = Request::get(&ground.path(""), "/hello.php");
    for request in [hello.clone(), hello.clone().keep()] {
        let mut open = request.open(listener.peer()).unwrap();
        assert!(open.next().is_ok());
        assert_eq!(hello.clone().timeout(Duration::from_millis(300)).to(listener.peer()), Answer::Late, "the only worker is not free");
        drop(open);
        assert!(hello.to(listener.peer()).is_ok());
    }
}

#[test]
fn p40_an_idle_kept_connection_occupies_a_worker() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let _master = Master::start(&ground, &MasterPlan::one_pool(&ground, "a", &listener, 2));
    let hello = Request::get(&ground.path(""), "/hello.php");
    let mut kept: Vec<Call> = (0..2).map(|_| hello.clone().keep().open(listener.peer()).unwrap()).collect();
    assert!(kept.iter_mut().all(|call| call.next().is_ok()));
    assert_eq!(hello.clone().timeout(Duration::from_millis(300)).to(listener.peer()), Answer::Late);
    assert!(kept[0].send(&hello).is_ok() && kept[0].next().is_ok(), "a kept connection serves on");
}

#[test]
fn p42_a_thousand_on_demand_pools_start_in_seconds_and_take_tens_of_megabytes() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/0.sock"));
    let mut plan = MasterPlan::one_pool(&ground, "m", &listener, 1);
    let users = "user = www-data\ngroup = www-data\npm = ondemand\npm.max_children = 4";
    plan.pools.extend((1..1000).map(|n| format!("[p{n}]\nlisten = {}\n{users}\n", ground.text(&format!("run/{n}.sock")))));
    let began = Instant::now();
    let master = Master::start(&ground, &plan);
    assert!(began.elapsed() < Duration::from_secs(5), "ready after {:?}", began.elapsed());
    let memory = std::fs::read_to_string(format!("/proc/{}/smaps_rollup", master.pid())).unwrap();
    let pss = memory.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.parse::<u32>().ok()).unwrap();
    assert!(pss < 100_000, "{pss} kB");
    let numbers: BTreeSet<i32> = (0..3).map(|_| Request::get(&ground.path(""), "/who.php").to(listener.peer()).number("master")).collect();
    assert_eq!(numbers, BTreeSet::from([master.pid()]));
}
