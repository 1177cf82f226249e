//! `Type=notify`: what a service manager hears.

use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Instant;

use nix::sys::signal::Signal;

use super::{SOON, all_ready, at_rest};
use crate::support::{Sandbox, eventually};

/// What the manager heard so far.
struct Manager {
    socket: UnixDatagram,
    heard: Vec<(Instant, String)>,
}

impl Manager {
    /// Starts a supervisor under it.
    fn starts(host: &mut Sandbox) -> Self {
        let name = host.ground().text("notify");
        let address = SocketAddr::from_abstract_name(&name).expect("a name");
        let socket = UnixDatagram::bind_addr(&address).expect("a notify socket");
        socket.set_nonblocking(true).expect("a socket that does not wait");
        host.launch_with(&[("NOTIFY_SOCKET", &format!("@{name}")), ("WATCHDOG_USEC", "600000")]);
        Self { socket, heard: Vec::new() }
    }

    fn listen(&mut self) -> &[(Instant, String)] {
        let mut buffer = [0; 4096];
        while let Ok(count) = self.socket.recv(&mut buffer) {
            let text = String::from_utf8_lossy(buffer.get(..count).unwrap_or_default()).into_owned();
            self.heard.push((Instant::now(), text));
        }
        &self.heard
    }

    /// Waits for a message that has this line, from the `from`th on; gives its place.
    #[track_caller]
    fn hears(&mut self, line: &str, from: usize) -> usize {
        eventually(SOON, &format!("the manager hears {line}"), || {
            self.listen().iter().enumerate().skip(from).find(|(_, (_, text))| text.lines().any(|l| l.starts_with(line))).map(|(at, _)| at)
        })
    }
}

fn uptime_usec() -> u64 {
    let now = nix::time::clock_gettime(nix::time::ClockId::CLOCK_MONOTONIC).expect("a clock");
    u64::try_from(now.tv_sec()).expect("after boot") * 1_000_000 + u64::try_from(now.tv_nsec()).expect("within a second") / 1000
}

#[test]
fn it_is_told_ready_reloading_stopping_and_fed() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    host.front_at_old_paths(&["www"]);
    let mut manager = Manager::starts(&mut host);
    let ready = manager.hears("READY=1", 0);
    let (_, text) = &manager.heard[ready];
    assert!(text.contains("STATUS=2 of 2 shards serve"), "{text}");
    assert!(manager.heard[..ready].iter().all(|(_, text)| text.starts_with("WATCHDOG=1") || text.starts_with("STATUS=")), "READY first");
    // READY means that requests are answered.
    assert!(host.nginx().body("/www/hello.php?id=1").contains("hello 1"));
    all_ready(&host);

    host.pool_at("www", &host.ground().text("run/www.sock"), 4, "env[NEW] = yes");
    let asked = uptime_usec();
    host.signal(Signal::SIGHUP);
    let reloading = manager.hears("RELOADING=1", ready);
    let (_, text) = &manager.heard[reloading];
    let when: u64 = text.lines().find_map(|line| line.strip_prefix("MONOTONIC_USEC=")?.parse().ok()).expect("the time of the reload");
    assert!((asked..=uptime_usec()).contains(&when), "{when} is not after {asked}");
    let again = manager.hears("READY=1", reloading);
    // READY after a reload means that the new configuration serves.
    assert!(all_ready(&host).iter().all(|shard| shard.generation == 2), "READY came before the change was made");
    at_rest(&host);

    eventually(SOON, "the watchdog is fed again and again", || {
        let fed: Vec<Instant> = manager.listen().iter().filter(|(_, text)| text.contains("WATCHDOG=1")).map(|(at, _)| *at).collect();
        (fed.len() >= 6).then_some(())
    });
    host.signal(Signal::SIGTERM);
    let stopping = manager.hears("STOPPING=1", again);
    assert!(stopping > again);
    host.gone();
}

#[test]
fn a_reload_that_is_refused_is_over_too() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    let mut manager = Manager::starts(&mut host);
    let ready = manager.hears("READY=1", 0);
    host.ground().write("web.toml", "[php]\nbinary = 7\n");
    host.signal(Signal::SIGHUP);
    let reloading = manager.hears("RELOADING=1", ready);
    manager.hears("READY=1", reloading);
    host.set("log", "level", "debug");
    assert!(all_ready(&host).iter().all(|shard| shard.generation == 1));
}

#[test]
fn masters_hear_nothing_of_it() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    host.front_at_old_paths(&["www"]);
    let mut manager = Manager::starts(&mut host);
    manager.hears("READY=1", 0);
    let own = format!("@{}", host.ground().text("notify"));
    for pid in host.masters().into_iter().chain(host.workers()) {
        let environment = std::fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
        let text = String::from_utf8_lossy(&environment).into_owned();
        assert!(!text.contains(&format!("NOTIFY_SOCKET={own}\0")) && !text.contains("WATCHDOG"), "{pid} has {text}");
    }
}
