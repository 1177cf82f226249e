//! P20–P29: giving a pool's clients another master.

use std::collections::BTreeSet;
use std::net::{Ipv4Addr, SocketAddrV4};
use std::path::Path;
use std::time::Duration;

use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::sys::socket::{setsockopt, sockopt};
use nix::unistd::Pid;

use super::SOON;
use crate::support::{
    Clients, Extra, Ground, Listener, Load, Master, MasterPlan, Nginx, Request, Route, Site, Upstream, accepted, eventually, queue,
    unix_pass,
};

/// 20 s: more than any short request, a stream of three seconds, or a kept connection of two (P25) takes.
const DRAINED_WITHIN: Duration = Duration::from_secs(20);

/// 300 ms: some hundred requests between two handovers.
const BETWEEN: Duration = Duration::from_millis(300);

/// A pool at a public unix path, and the generation that serves it.
struct Public<'a> {
    ground: &'a Ground,
    generation: u32,
    listener: Listener,
    bound: std::path::PathBuf,
    master: Master,
}

impl<'a> Public<'a> {
    fn start(ground: &'a Ground) -> Self {
        let bound = ground.path("run/www.sock");
        let listener = Listener::unix(&bound);
        let master = Master::start(ground, &MasterPlan::one_pool(ground, "g0", &listener, 8));
        Self { ground, generation: 0, listener, bound, master }
    }

    /// Hands the public path over to a new master (P20) and gives the old one up when its clients are gone.
    fn hand_over(&mut self) {
        self.generation += 1;
        let name = format!("g{}", self.generation);
        let bound = self.ground.path(&format!("run/www.{name}"));
        let mut listener = Listener::unix(&bound);
        let master = Master::start(self.ground, &MasterPlan::one_pool(self.ground, &name, &listener, 8));
        let public = self.ground.path("run/www.sock");
        std::fs::rename(&bound, &public).unwrap();
        listener.moved(&public);
        let old_bound = std::mem::replace(&mut self.bound, bound);
        let old_listener = std::mem::replace(&mut self.listener, listener);
        let old_master = std::mem::replace(&mut self.master, master);
        drained(&old_bound);
        old_master.quit(DRAINED_WITHIN);
        drop(old_listener);
    }
}

/// Waits until nobody waits at, or is connected through, the listener that was bound to `path`; twice in a row, as a connection
/// may be on its way from the queue to a worker.
fn drained(path: &Path) {
    let mut quiet = 0;
    eventually(DRAINED_WITHIN, "the old generation has no connection left", || {
        let waiting = queue(&crate::support::Peer::Unix(path.to_owned())).map_or(0, |queue| queue.now);
        quiet = if waiting == 0 && accepted(path) == 0 { quiet + 1 } else { 0 };
        (quiet >= 2).then_some(())
    });
}

#[test]
fn p20_rename_handover_loses_nothing() {
    let ground = Ground::new();
    let mut public = Public::start(&ground);
    let nginx = Nginx::start(&ground, &Site::one(Route::new("www", &unix_pass(&ground.path("run/www.sock")))));
    let load = Load::start(&ground, &nginx, "www", Clients::keeping(4), &[Extra::Uploads, Extra::Streams]);
    for _ in 0..3 {
        load.run_for(BETWEEN);
        public.hand_over();
    }
    let report = load.finish(&ground);
    report.assert_nothing_lost(500);
    report.assert_nothing_reset();
}

#[test]
fn p21_shared_handover_loses_nothing_without_keep_alive() {
    for tcp in [false, true] {
        let ground = Ground::new();
        let (listener, pass) = if tcp {
            let address = loopback(&ground);
            (Listener::tcp(address), address.to_string())
        } else {
            (Listener::unix(&ground.path("run/www.sock")), unix_pass(&ground.path("run/www.sock")))
        };
        let mut master = Master::start(&ground, &MasterPlan::one_pool(&ground, "g0", &listener, 8));
        let nginx = Nginx::start(&ground, &Site::one(Route::new("www", &pass)));
        let load = Load::start(&ground, &nginx, "www", Clients::keeping(4), &[Extra::Uploads, Extra::Streams]);
        for name in ["g1", "g2"] {
            load.run_for(BETWEEN);
            let next = Master::start(&ground, &MasterPlan::one_pool(&ground, name, &listener, 8));
            std::mem::replace(&mut master, next).quit(DRAINED_WITHIN);
        }
        let report = load.finish(&ground);
        report.assert_nothing_lost(500);
        report.assert_nothing_reset();
    }
}

#[test]
fn p25_kept_connections_are_safe_when_nginx_ends_them() {
    for clients in [1, 4, 32] {
        let ground = Ground::new();
        let mut public = Public::start(&ground);
        let server = unix_pass(&ground.path("run/www.sock"));
        let site = Site::one(Route::new("www", "kept").keep_conn()).upstream(Upstream::keeping("kept", &server, 3));
        let nginx = Nginx::start(&ground, &site);
        let load = Load::start(&ground, &nginx, "www", Clients::keeping(clients), &[]);
        for _ in 0..3 {
            load.run_for(BETWEEN);
            public.hand_over();
        }
        let report = load.finish(&ground);
        report.assert_nothing_lost(200);
        report.assert_nothing_reset();
    }
}

#[test]
fn p26_an_accepted_connection_keeps_the_name_its_listener_was_bound_under() {
    let ground = Ground::new();
    let (bound, public) = (ground.path("run/www.g1"), ground.path("run/www.sock"));
    let mut listener = Listener::unix(&bound);
    let _master = Master::start(&ground, &MasterPlan::one_pool(&ground, "a", &listener, 3));
    std::fs::rename(&bound, &public).unwrap();
    listener.moved(&public);
    let hello = Request::get(&ground.path(""), "/hello.php").keep();
    let mut kept = hello.open(listener.peer()).unwrap();
    assert!(kept.next().is_ok());
    assert_eq!((accepted(&bound), accepted(&public)), (1, 0));
    drop(kept);
    eventually(SOON, "the connection is gone", || (accepted(&bound) == 0).then_some(()));
}

/// Sends every new connection of the group of sockets at one address to the one with this index (P27).
fn steer_to(group: &Listener, index: u32) {
    attach(group, &mut [instruction(BPF_RETURN, index)]);
}

/// Sends each new connection to the socket whose index is the CPU its packet is handled on (P29).
fn steer_by_cpu(group: &Listener) {
    attach(group, &mut [instruction(BPF_LOAD_WORD, SKF_AD_CPU), instruction(BPF_RETURN_LOADED, 0)]);
}

/// `BPF_RET | BPF_K`: return the constant.
const BPF_RETURN: u16 = 0x06;
/// `BPF_RET | BPF_A`: return what was loaded.
const BPF_RETURN_LOADED: u16 = 0x16;
/// `BPF_LD | BPF_W | BPF_ABS`: load a word.
const BPF_LOAD_WORD: u16 = 0x20;
/// `SKF_AD_OFF + SKF_AD_CPU`: where the word is the CPU's number. Source: Linux `include/uapi/linux/filter.h`.
const SKF_AD_CPU: u32 = 0xffff_f000 + 36;

fn instruction(code: u16, k: u32) -> libc::sock_filter {
    libc::sock_filter { code, jt: 0, jf: 0, k }
}

fn attach(group: &Listener, program: &mut [libc::sock_filter]) {
    let length = u16::try_from(program.len()).unwrap();
    let program = libc::sock_fprog { len: length, filter: program.as_mut_ptr() };
    setsockopt(group.fd(), sockopt::AttachReusePortCbpf, &program).unwrap();
}

fn loopback(ground: &Ground) -> SocketAddrV4 {
    SocketAddrV4::new(Ipv4Addr::LOCALHOST, ground.port())
}

#[test]
fn p27_steered_handover_on_tcp_loses_nothing() {
    for keep in [false, true] {
        let ground = Ground::new();
        let address = loopback(&ground);
        let mut listener = Listener::tcp(address);
        steer_to(&listener, 0);
        let mut master = Master::start(&ground, &MasterPlan::one_pool(&ground, "g0", &listener, 8));
        let server = address.to_string();
        let site = if keep {
            Site::one(Route::new("www", "kept").keep_conn()).upstream(Upstream::keeping("kept", &server, 3))
        } else {
            Site::one(Route::new("www", &server))
        };
        let nginx = Nginx::start(&ground, &site);
        let load = Load::start(&ground, &nginx, "www", Clients::keeping(4), &[]);
        for name in ["g1", "g2", "g3"] {
            load.run_for(BETWEEN);
            let next_listener = Listener::tcp(address);
            let next = Master::start(&ground, &MasterPlan::one_pool(&ground, name, &next_listener, 8));
            steer_to(&listener, 1);
            let old = std::mem::replace(&mut master, next);
            unconnected(&old);
            old.quit(DRAINED_WITHIN);
            // Closing the first socket moves the last one to its place, so the steering follows in the same breath.
            listener = next_listener;
            steer_to(&listener, 0);
        }
        let report = load.finish(&ground);
        report.assert_nothing_lost(300);
        report.assert_nothing_reset();
    }
}

/// Waits until no worker of `master` has a connection; three times in a row, as a connection may be on its way from the queue to a worker.
fn unconnected(master: &Master) {
    let mut quiet = 0;
    eventually(DRAINED_WITHIN, "the old generation has no connection left", || {
        let open = established();
        quiet = if master.workers().iter().all(|pid| !has_any(*pid, &open)) { quiet + 1 } else { 0 };
        (quiet >= 3).then_some(())
    });
}

/// Gives the established TCP connections of this machine as they stand behind a process's descriptors.
fn established() -> BTreeSet<String> {
    let table = std::fs::read_to_string("/proc/net/tcp").unwrap();
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // State 01 is established, 08 is "the client has closed"; field 9 is the inode.
    lines.filter(|f| f.len() > 9 && matches!(f[3], "01" | "08")).map(|f| format!("socket:[{}]", f[9])).collect()
}

fn has_any(pid: i32, connections: &BTreeSet<String>) -> bool {
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
    fds.flat_map(|fd| std::fs::read_link(fd.path())).any(|target| connections.contains(&*target.to_string_lossy()))
}

#[test]
fn p29_a_connection_goes_to_the_socket_of_the_callers_cpu() {
    let ground = Ground::new();
    let address = loopback(&ground);
    let listeners = [Listener::tcp(address), Listener::tcp(address)];
    steer_by_cpu(&listeners[0]);
    let masters = [0, 1].map(|n| Master::start(&ground, &MasterPlan::one_pool(&ground, ["zero", "one"][n], &listeners[n], 2)));
    let cpus = sched_getaffinity(Pid::from_raw(0)).unwrap();
    assert!(cpus.is_set(0).unwrap() && cpus.is_set(1).unwrap(), "this test needs CPUs 0 and 1");
    for cpu in [0, 1, 0, 1] {
        let mut only = CpuSet::new();
        only.set(cpu).unwrap();
        sched_setaffinity(Pid::from_raw(0), &only).unwrap();
        let answered = Request::get(&ground.path(""), "/who.php").to(listeners[0].peer()).number("master");
        assert_eq!(answered, masters[cpu].pid(), "asked on CPU {cpu}");
    }
}
