//! Who holds a socket that we want.

use std::fmt;
use std::fs;
use std::net::SocketAddr;
use std::os::fd::AsFd;

use rustix::net::sockopt;

/// A process that holds a listening socket.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its pid.
    pub pid: i32,
    /// Its command name, empty if it could not be read.
    pub name: String,
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.is_empty() { write!(f, "pid {}", self.pid) } else { write!(f, "{} (pid {})", self.name, self.pid) }
    }
}

impl Holder {
    /// Names the process with this pid.
    pub fn of_pid(pid: i32) -> Self {
        let name = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        Self { pid, name: name.trim_end().to_owned() }
    }

    /// Gives the process that called listen(2) on the other end of a connected unix socket. Source: unix(7), `SO_PEERCRED`.
    pub(super) fn of_peer(client: impl AsFd) -> Option<Self> {
        let credentials = sockopt::socket_peercred(client).ok()?;
        Some(Self::of_pid(credentials.pid.as_raw_nonzero().get()))
    }

    /// Gives a process that listens on `address`'s port, if one is to be seen from here.
    pub(super) fn of_tcp(address: SocketAddr) -> Option<Self> {
        let inodes: Vec<String> = inodes_of_port(address.port()).iter().map(|inode| format!("socket:[{inode}]")).collect();
        if inodes.is_empty() {
            return None;
        }
        let processes = fs::read_dir("/proc").ok()?;
        let mut pids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
        pids.find(|pid| holds(*pid, &inodes)).map(Self::of_pid)
    }
}

/// Gives the process that called listen(2) on the socket at `path`, which sees one empty connection.
pub fn holder_at(path: &std::path::Path) -> Option<Holder> {
    let located = crate::sys::directory::locate(path).ok()?;
    let client = super::file::look(&located.directory, &located.name).ok()??.connect().ok()?;
    Holder::of_peer(client)
}

fn inodes_of_port(port: u16) -> Vec<u64> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"];
    tables.iter().flat_map(|table| listening_inodes(&fs::read_to_string(table).unwrap_or_default(), port)).collect()
}

/// Gives the inodes of the sockets in whose way a listener on `address` would be; none where the address is free.
///
/// Nothing listens for the question: the address is bound for a moment without listening.
pub fn tcp_listeners(address: SocketAddr) -> Vec<u64> {
    match super::tcp::is_taken(address) {
        true => inodes_of_port(address.port()),
        false => Vec::new(),
    }
}

fn holds(pid: i32, links: &[String]) -> bool {
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    entries.flatten().any(|entry| {
        let link = fs::read_link(entry.path()).unwrap_or_default();
        links.iter().any(|wanted| link.as_os_str() == wanted.as_str())
    })
}

/// Gives the inodes of the listening sockets on `port` from a table in the form of `/proc/net/tcp` (state `0A`, inode in column 10).
fn listening_inodes(table: &str, port: u16) -> Vec<u64> {
    let wanted = format!(":{port:04X}");
    let row = |line: &str| {
        let mut columns = line.split_ascii_whitespace().skip(1);
        let local = columns.next()?;
        let state = columns.nth(1)?;
        (local.ends_with(&wanted) && state == "0A").then(|| columns.nth(5)?.parse().ok())?
    };
    table.lines().skip(1).filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tcp_listener_is_found_with_its_process() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let holder = Holder::of_tcp(listener.local_addr().unwrap()).unwrap();
        assert_eq!(holder.pid, i32::try_from(std::process::id()).unwrap());
        assert!(holder.to_string().contains("polyfpm"), "{holder}");
    }
}
