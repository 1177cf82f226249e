//! The control socket under people and programs that mean no good.

use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use nix::sys::resource::{Resource, getrlimit, setrlimit};

use super::{SOON, split};
use crate::support::{Sandbox, eventually, stat, within};

/// Opened one after the other and kept.
const CONNECTIONS: usize = 10_000;

fn connect(host: &Sandbox) -> UnixStream {
    let client = UnixStream::connect(host.ground().path("run/polyfpm/control.sock")).expect("the control socket");
    client.set_read_timeout(Some(SOON)).expect("our own socket");
    client
}

fn line(client: UnixStream) -> String {
    let mut line = String::new();
    BufReader::new(client).read_line(&mut line).ok();
    line
}

#[test]
fn ten_thousand_connections_stop_nothing_and_pass() {
    let mut host = split(|_| {});
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("our own limit");
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).expect("our own limit");
    let pid = host.supervisor().pid();
    let descriptors = || std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors").count();
    let before = descriptors();
    let clients: Vec<UnixStream> = (0..CONNECTIONS).map(|_| connect(&host)).collect();
    assert!(descriptors() < before + 40, "{before} descriptors became {}", descriptors());
    assert!(host.nginx().body("/www/hello.php?id=1").contains("hello 1"));
    let turned_away = clients.last().expect("a client").try_clone().expect("a second handle");
    assert!(line(turned_away).contains("16 clients are connected already"));
    // Those who say nothing are sent away, and their places are given again.
    eventually(SOON, "status is answered", || (host.polyfpm(&["status"]).code == 0).then_some(()));
    drop(clients);
    host.does(&["restart"]);
    host.stop();
}

#[test]
fn giant_lines_slow_writers_and_those_who_never_read_cost_little() {
    let mut host = split(|_| {});
    let mut giant = connect(&host);
    // It may be cut off before all of it was written.
    giant.write_all(&vec![b'x'; 50_000_000]).ok();
    let told = line(giant);
    assert!(told.is_empty() || told.contains("longer than 65536 bytes"), "{told}");

    let mut slow = connect(&host);
    let told = within(SOON, || {
        let sent = slow.write_all(b" ");
        within(Duration::from_millis(500), || None::<()>);
        sent.is_err().then_some(())
    });
    assert!(told.is_some(), "a writer of one byte at a time keeps its place for ever");

    let mut deaf: Vec<UnixStream> = (0..10).map(|_| connect(&host)).collect();
    for client in &mut deaf {
        client.write_all(b"{\"v\":1,\"command\":\"status\",\"watch\":true}\n").expect("a request");
    }
    let pid = host.supervisor().pid();
    let before = stat(pid).expect("the supervisor").ticks;
    host.does(&["restart"]);
    within(Duration::from_secs(1), || None::<()>);
    let used = stat(pid).expect("the supervisor").ticks - before;
    assert!(used < 300, "{used} ticks");
    drop(deaf);
    host.stop();
}
