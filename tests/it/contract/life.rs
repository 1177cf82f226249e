//! P10–P18: how masters and workers start, leave and die.

use std::path::Path;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;

use super::SOON;
use crate::support::{
    Answer, Ground, Listener, Master, MasterPlan, Request, alive, eventually, never, php_fpm, pool_lines, queue, run, stat, within,
};

/// Waits until a worker has taken a request that it will be busy with.
fn taken(listener: &Listener) {
    eventually(SOON, "the queue is empty", || (queue(listener.peer())?.now == 0).then_some(()));
    // Accepted is not yet begun: the script runs a moment later.
    within(Duration::from_millis(100), || None::<()>);
}

fn slow(ground: &Ground, ms: u32) -> Request {
    Request::get(&ground.path(""), &format!("/slow.php?ms={ms}&id=s"))
}

#[test]
fn p10_quit_cuts_requests_unless_process_control_timeout_is_set() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    for (name, global, lives) in [("default", "", false), ("set", "process_control_timeout = 20s", true)] {
        for signal in [Signal::SIGQUIT, Signal::SIGUSR2] {
            let master = Master::start(&ground, &MasterPlan::one_pool(&ground, name, &listener, 1).global(global));
            let call = slow(&ground, 700).open(listener.peer()).unwrap();
            taken(&listener);
            master.running.signal(signal);
            let answer = call.answer();
            assert_eq!(answer.is_ok(), lives, "{name} {signal}: {answer:?}");
        }
    }
}

#[test]
fn p11_usr2_makes_new_requests_wait_for_the_slowest_old_one() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let master = Master::start(&ground, &MasterPlan::one_pool(&ground, "a", &listener, 4));
    let call = slow(&ground, 1500).open(listener.peer()).unwrap().beside();
    taken(&listener);
    master.running.signal(Signal::SIGUSR2);
    eventually(SOON, "the idle workers are gone", || (master.workers().len() == 1).then_some(()));
    let began = Instant::now();
    assert!(Request::get(&ground.path(""), "/hello.php").to(listener.peer()).is_ok());
    assert!(began.elapsed() > Duration::from_millis(700), "a new request was served after {:?}, before the old one ended", began.elapsed());
    assert!(call.join().unwrap().is_ok());
}

#[test]
fn p12_usr2_with_a_bad_pool_file_ends_the_master() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let mut master = Master::start(&ground, &MasterPlan::one_pool(&ground, "a", &listener, 1));
    ground.write("run/a.conf", "[www]\nno_such_key = 1\n");
    master.running.signal(Signal::SIGUSR2);
    assert_eq!(master.running.exit_code(SOON), 78);
}

#[test]
fn p13_queued_connections_are_reset_when_the_last_holder_closes() {
    let ground = Ground::new();
    let hello = Request::get(&ground.path(""), "/hello.php");
    let open = |listener: &Listener| {
        let busy = slow(&ground, 500).open(listener.peer()).unwrap().beside();
        taken(listener);
        (busy, hello.open(listener.peer()).unwrap())
    };
    let held = Listener::unix(&ground.path("run/held.sock"));
    let master = Master::start(&ground, &MasterPlan::one_pool(&ground, "held", &held, 1));
    let (busy, queued) = open(&held);
    master.quit(SOON);
    assert!(busy.join().unwrap().is_ok());
    let _next = Master::start(&ground, &MasterPlan::one_pool(&ground, "next", &held, 1));
    assert!(queued.answer().is_ok(), "a held socket keeps its queue");

    let let_go = Listener::unix(&ground.path("run/gone.sock"));
    let master = Master::start(&ground, &MasterPlan::one_pool(&ground, "gone", &let_go, 1));
    let (busy, queued) = open(&let_go);
    drop(let_go);
    master.quit(SOON);
    assert!(busy.join().unwrap().is_ok());
    assert_eq!(queued.answer(), Answer::Cut, "nobody holds the socket");
}

#[test]
fn p14_term_cuts_requests() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let mut master = Master::start(&ground, &MasterPlan::one_pool(&ground, "a", &listener, 1));
    let call = slow(&ground, 2000).open(listener.peer()).unwrap();
    taken(&listener);
    master.running.signal(Signal::SIGTERM);
    assert_eq!(call.answer(), Answer::Cut);
    master.running.wait(SOON);
}

#[test]
fn p14_a_stopped_worker_stalls_the_masters_own_stop() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let mut master = Master::start(&ground, &MasterPlan::one_pool(&ground, "a", &listener, 2));
    let worker = Pid::from_raw(master.workers()[0]);
    kill(worker, Signal::SIGSTOP).unwrap();
    master.running.signal(Signal::SIGQUIT);
    never(Duration::from_secs(1), "the master left", || master.running.ended());
    killpg(Pid::from_raw(master.pid()), Signal::SIGKILL).unwrap();
    master.running.wait(SOON);
    eventually(SOON, "the worker is gone", || (!alive(worker.as_raw())).then_some(()));
}

#[test]
fn p15_workers_outlive_a_killed_master_and_leave_when_told() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let mut master = Master::start(&ground, &MasterPlan::one_pool(&ground, "a", &listener, 2));
    let orphans = master.workers();
    master.running.signal(Signal::SIGKILL);
    master.running.wait(SOON);
    let served_by = Request::get(&ground.path(""), "/who.php").to(listener.peer()).number("pid");
    assert!(orphans.contains(&served_by), "an orphan serves");
    let call = slow(&ground, 700).open(listener.peer()).unwrap();
    taken(&listener);
    let _next = Master::start(&ground, &MasterPlan::one_pool(&ground, "b", &listener, 2));
    for orphan in &orphans {
        kill(Pid::from_raw(*orphan), Signal::SIGQUIT).unwrap();
    }
    assert!(call.answer().is_ok(), "an orphan finishes what it does");
    eventually(SOON, "the orphans are gone", || orphans.iter().all(|pid| !alive(*pid)).then_some(()));
}

#[test]
fn p16_a_master_that_refuses_to_start_exits_with_78() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let taken = ground.path("run/taken");
    std::fs::create_dir(&taken).unwrap();
    let cases = [
        ("key", "no_such_key = 1".to_owned()),
        ("user", "user = no-such-user".to_owned()),
        ("bind", format!("listen = {}", taken.display())),
        ("numbers", "pm = dynamic".to_owned()),
    ];
    for (name, line) in cases {
        let mut master = Master::launch(&ground, &MasterPlan::one_pool(&ground, name, &listener, 1).and(&line));
        assert_eq!(master.running.exit_code(SOON), 78, "{name}");
    }
    let none = MasterPlan { pools: String::new(), ..MasterPlan::one_pool(&ground, "none", &listener, 1) };
    assert_eq!(Master::launch(&ground, &none).running.exit_code(SOON), 78, "no pool at all");
}

#[test]
fn p17_workers_inherit_session_affinity_limits_and_niceness() {
    let ground = Ground::new();
    let listener = Listener::unix(&ground.path("run/www.sock"));
    let through = ["/usr/bin/nice", "-n", "3", "taskset", "-c", "0", "prlimit", "--nofile=777:777"];
    let master = Master::start(&ground, &MasterPlan::one_pool(&ground, "a", &listener, 2).through(&through));
    for worker in master.workers() {
        let seen = stat(worker).unwrap();
        assert_eq!((seen.group, seen.session), (master.pid(), master.pid()));
        let proc = |name: &str| std::fs::read_to_string(format!("/proc/{worker}/{name}")).unwrap();
        assert!(proc("status").contains("Cpus_allowed_list:\t0\n"));
        let limit = proc("limits").lines().find(|line| line.starts_with("Max open files")).map(str::to_owned).unwrap();
        assert_eq!(limit.split_whitespace().nth(3), Some("777"), "{limit}");
        let nice = proc("stat").rsplit_once(')').unwrap().1.split_whitespace().nth(16).map(str::to_owned);
        assert_eq!(nice.as_deref(), Some("3"));
    }
}

#[test]
fn p18_pools_of_one_master_have_users_of_their_own_and_one_opcache() {
    let ground = Ground::new();
    let (first, second) = (Listener::unix(&ground.path("run/a.sock")), Listener::unix(&ground.path("run/b.sock")));
    let mut plan = MasterPlan::one_pool(&ground, "m", &first, 1);
    let other = pool_lines(1).replace("user = www-data", "user = nobody");
    plan.pools.push_str(&format!("[other]\nlisten = {}\n{other}", ground.text("run/other.alias")));
    plan.sockets.push((ground.text("run/other.alias"), &second));
    let _master = Master::start(&ground, &plan);
    let root = ground.path("");
    let ask = |listener: &Listener, uri: &str| Request::get(&root, uri).to(listener.peer());
    assert_ne!(ask(&first, "/who.php").number("user"), ask(&second, "/who.php").number("user"));
    assert!(!ask(&second, "/opcache.php").body().contains("hello.php"));
    ask(&first, "/hello.php").body();
    assert!(ask(&second, "/opcache.php").body().contains("hello.php"), "what one pool compiled is found by the other");
}

#[test]
fn p43_each_master_has_an_opcache_of_its_own() {
    let ground = Ground::new();
    let (first, second) = (Listener::unix(&ground.path("run/a.sock")), Listener::unix(&ground.path("run/b.sock")));
    let _one = Master::start(&ground, &MasterPlan::one_pool(&ground, "one", &first, 1));
    let _two = Master::start(&ground, &MasterPlan::one_pool(&ground, "two", &second, 1));
    let root = ground.path("");
    Request::get(&root, "/hello.php").to(first.peer()).body();
    assert!(Request::get(&root, "/opcache.php").to(first.peer()).body().contains("hello.php"));
    assert!(!Request::get(&root, "/opcache.php").to(second.peer()).body().contains("hello.php"));
}

#[test]
fn testing_a_configuration_without_pools_is_refused_too() {
    let ground = Ground::new();
    let config = ground.write("run/none.conf", &format!("[global]\nerror_log = {}\n", ground.text("log/none.error")));
    let ended = run(&php_fpm(), &["-t", "-y", &config.display().to_string()], Path::new("/tmp"), SOON);
    assert_eq!(ended.code, 78, "{}", ended.err);
}
