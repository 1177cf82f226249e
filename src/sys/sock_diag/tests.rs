use super::*;
use crate::model::listen::Access;
use crate::sys::listener::{Expected, Joining, Listener, Place, bind_tcp, bind_unix, publish, set_backlog};
use rustix::net::SocketAddrUnix;
use std::net::TcpStream;
use std::os::unix::net::{UnixListener, UnixStream};

fn sandbox() -> tempfile::TempDir {
    tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap()
}

fn bind(path: &Path, suffix: &str, backlog: u32) -> Listener {
    bind_unix(path, suffix, &Access { mode: 0o600, ..Access::default() }, backlog).unwrap()
}

fn queue(listener: &Listener) -> (u32, u32) {
    let depth = unix_queues(&[listener.inode]).unwrap()[&listener.inode];
    (depth.now, depth.max)
}

fn accept(listener: &Listener) -> OwnedFd {
    rustix::net::accept_with(&*listener.fd, SocketFlags::CLOEXEC).unwrap()
}

/// Waits for a value: a child that another test is just starting holds our sockets until exec.
fn eventually<T: PartialEq + std::fmt::Debug>(expected: &T, mut value: impl FnMut() -> T) {
    let deadline = std::time::Instant::now() + Duration::from_secs(10);
    loop {
        let found = value();
        if found == *expected {
            return;
        }
        assert!(std::time::Instant::now() < deadline, "{found:?} instead of {expected:?}");
        std::thread::yield_now();
    }
}

fn connect_without_waiting(path: &Path) -> Result<OwnedFd, Errno> {
    let client =
        rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::NONBLOCK | SocketFlags::CLOEXEC, None).unwrap();
    rustix::net::connect(&client, &SocketAddrUnix::new(path).unwrap())?;
    Ok(client)
}

#[test]
fn a_unix_queue_holds_one_more_than_its_backlog_and_dead_clients_stay_in_it() {
    let sandbox = sandbox();
    let path = sandbox.path().join("u.sock");
    let listener = bind(&path, "", 5);
    assert_eq!(queue(&listener), (0, 5));
    let mut clients = Vec::new();
    for waiting in 1..=6 {
        clients.push(connect_without_waiting(&path).unwrap());
        assert_eq!(queue(&listener), (waiting, 5));
    }
    assert_eq!(connect_without_waiting(&path).unwrap_err(), Errno::AGAIN);
    clients.clear();
    assert_eq!(queue(&listener), (6, 5), "dead clients wait too");
    set_backlog(&listener, 511).unwrap();
    assert_eq!(queue(&listener), (6, 511), "the limit can be raised on a living socket (P3)");
    accept(&listener);
    assert_eq!(queue(&listener), (5, 511));
    set_backlog(&listener, u32::MAX).unwrap();
    assert_eq!(queue(&listener).1, crate::sys::listener::somaxconn(), "P41: capped silently");
}

#[test]
fn a_socket_that_is_gone_is_left_out() {
    assert!(unix_queues(&[1, u64::MAX]).unwrap().is_empty());
    assert!(unix_queues(&[]).unwrap().is_empty());
}

#[test]
fn many_queues_come_in_one_dump() {
    let sandbox = sandbox();
    let listeners: Vec<Listener> = (0..200).map(|n| bind(&sandbox.path().join(format!("{n}.sock")), "", n)).collect();
    let _client = UnixStream::connect(sandbox.path().join("150.sock")).unwrap();
    let mut inodes: Vec<u64> = listeners.iter().map(|listener| listener.inode).collect();
    inodes.push(1);
    let queues = unix_queues(&inodes).unwrap();
    assert_eq!(queues.len(), 200);
    assert_eq!(queues[&listeners[150].inode], QueueDepth { now: 1, max: 150 });
    assert_eq!(queues[&listeners[7].inode], QueueDepth { now: 0, max: 7 });
}

#[test]
fn a_foreign_socket_is_found_by_its_file() {
    let sandbox = sandbox();
    let path = sandbox.path().join("u.sock");
    let foreign = UnixListener::bind(&path).unwrap();
    rustix::net::listen(&foreign, 64).unwrap();
    let _client = UnixStream::connect(&path).unwrap();
    let moved = sandbox.path().join("moved.sock");
    std::fs::rename(&path, &moved).unwrap();
    std::os::unix::fs::symlink(&moved, sandbox.path().join("link")).unwrap();
    let inode = rustix::fs::fstat(&foreign).unwrap().st_ino;
    let expected = Some(Listening { inode, queue: QueueDepth { now: 1, max: 64 } });
    assert_eq!(unix_queue_by_path(&moved).unwrap(), expected);
    assert_eq!(unix_queue_by_path(&sandbox.path().join("link")).unwrap(), expected);
    // Its old name is another's now.
    let other = UnixListener::bind(&path).unwrap();
    assert_eq!(unix_queue_by_path(&path).unwrap().unwrap().inode, rustix::fs::fstat(&other).unwrap().st_ino);
    assert_eq!(unix_queue_by_path(&sandbox.path().join("absent")).unwrap(), None);
    std::fs::write(sandbox.path().join("file"), "").unwrap();
    assert_eq!(unix_queue_by_path(&sandbox.path().join("file")).unwrap(), None);
}

#[test]
fn accepted_connections_are_told_apart_by_the_name_their_listener_was_bound_under() {
    let sandbox = sandbox();
    let public = sandbox.path().join("www.sock");
    let (old, new) = (bind(&public, ".g1", 511), bind(&public, ".g2", 511));
    publish(&old, &public, Expected::Free).unwrap();
    let connect = |listener: &Listener| {
        let client = UnixStream::connect(&public).unwrap();
        (client, accept(listener))
    };
    let first = connect(&old);
    let (client, second) = connect(&old);
    let _waiting = UnixStream::connect(&public).unwrap();
    publish(&new, &public, Expected::Ours(old.file_id().unwrap())).unwrap();
    let third = connect(&new);
    let count = || {
        let counts = accepted_unix(&[&old.bound, &new.bound, "/absent"]).unwrap();
        assert_eq!(counts["/absent"], 0);
        (counts[&old.bound], counts[&new.bound])
    };
    assert_eq!(count(), (2, 1), "P26; what waits is not accepted");
    drop(client);
    assert_eq!(count(), (2, 1), "held by the server's side until it closes");
    drop(second);
    eventually(&(1, 1), count);
    drop((first, third));
    eventually(&(0, 0), count);
}

#[test]
fn a_tcp_queue_is_that_of_the_listener() {
    let listener = bind_tcp("127.0.0.1:0".parse().unwrap(), 128, Joining::First).unwrap();
    let Place::Tcp { address } = listener.place else { panic!("not TCP") };
    assert_eq!(tcp_queue(&listener.fd).unwrap(), QueueDepth { now: 0, max: 128 });
    let clients: Vec<TcpStream> = (0..3).map(|_| TcpStream::connect(address).unwrap()).collect();
    assert_eq!(tcp_queue(&listener.fd).unwrap(), QueueDepth { now: 3, max: 128 });
    set_backlog(&listener, 7).unwrap();
    assert_eq!(tcp_queue(&listener.fd).unwrap(), QueueDepth { now: 3, max: 7 });
    assert!(matches!(tcp_queue(&clients[0]), Err(DiagError::NotListening)));
    let (unix, _) = UnixStream::pair().unwrap();
    assert!(matches!(tcp_queue(&unix), Err(DiagError::NotListening)));
}

#[test]
fn accepted_tcp_connections_are_those_a_process_holds() {
    for (bound, reach) in [("127.0.0.1:0", "127.0.0.1"), ("0.0.0.0:0", "127.0.0.1"), ("[::]:0", "127.0.0.1"), ("[::1]:0", "::1")] {
        let listener = match bind_tcp(bound.parse().unwrap(), 128, Joining::First) {
            Ok(listener) => listener,
            Err(error) => {
                assert!(bound.starts_with('[') && !Path::new("/proc/net/if_inet6").exists(), "{error}");
                continue;
            }
        };
        let Place::Tcp { address } = listener.place else { panic!("not TCP") };
        let client = TcpStream::connect((reach, address.port())).unwrap();
        assert_eq!(accepted_tcp(address).unwrap(), Vec::<u64>::new(), "{bound}: it still waits");
        let server = accept(&listener);
        let inode = rustix::fs::fstat(&server).unwrap().st_ino;
        assert_eq!(accepted_tcp(address).unwrap(), [inode], "{bound}");
        drop(client);
        assert_eq!(accepted_tcp(address).unwrap(), [inode], "{bound}: the client is gone, the server's side is held");
        if bound == "127.0.0.1:0" {
            assert!(accepted_tcp(SocketAddr::new("127.0.0.2".parse().unwrap(), address.port())).unwrap().is_empty());
        }
        drop(server);
        eventually(&true, || accepted_tcp(address).unwrap().is_empty());
    }
}
