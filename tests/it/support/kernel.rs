//! What the kernel knows of sockets, read with other people's tools.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::{Peer, run};

/// How many connections wait at a listening socket, and how many may.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Queue {
    pub(crate) now: u32,
    pub(crate) max: u32,
}

/// Gives the queue of the listener that was bound to this path or address; nothing when there is none.
pub(crate) fn queue(bound: &Peer) -> Option<Queue> {
    let (family, name) = match bound {
        Peer::Unix(path) => ("-x", path.display().to_string()),
        Peer::Tcp(address) => ("-t", address.to_string()),
    };
    let listed = run(&ss(), &[family, "-lnH"], Path::new("/tmp"), Duration::from_secs(10)).out;
    let lines = listed.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    let line = lines
        .filter(|f| f.contains(&name.as_str()))
        .find_map(|f| f.iter().position(|w| *w == "LISTEN").map(|at| (f[at + 1].to_owned(), f[at + 2].to_owned())))?;
    Some(Queue { now: line.0.parse().ok()?, max: line.1.parse().ok()? })
}

fn ss() -> PathBuf {
    let places = ["/usr/bin/ss", "/bin/ss", "/usr/sbin/ss", "/sbin/ss"];
    places.iter().map(PathBuf::from).find(|path| path.exists()).expect("no ss: run tests/setup.sh (package iproute2)")
}

/// Counts connections that were accepted on the unix listener bound to `path`, whatever it is called now (P26).
pub(crate) fn accepted(path: &Path) -> usize {
    let table = std::fs::read_to_string("/proc/net/unix").expect("/proc/net/unix");
    let path = path.display().to_string();
    let lines = table.lines().map(|line| line.split_whitespace().collect::<Vec<_>>());
    // State 03 is connected; a connection that still waits in the queue has no inode.
    lines.filter(|f| f.get(7) == Some(&path.as_str()) && f[5] == "03" && f[6] != "0").count()
}

/// Tells whether a process has this socket open.
pub(crate) fn holds(pid: i32, socket: &OwnedFd) -> bool {
    let ours = std::fs::read_link(format!("/proc/self/fd/{}", socket.as_raw_fd())).expect("our own socket");
    let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).expect("a living process");
    fds.flatten().any(|fd| std::fs::read_link(fd.path()).is_ok_and(|target| target == ours))
}
