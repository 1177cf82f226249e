//! The sockets on which a process listens, as the kernel's tables tell them.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::PathBuf;

use nix::unistd::Pid;

use super::{Proc, ProcError, names, text};
use crate::model::endpoint::Endpoint;

/// A socket on which a process listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListeningSocket {
    /// The number of its descriptor in the process.
    pub fd: i32,
    /// The socket's inode.
    pub inode: u64,
    /// Where it was bound, by the name that was used then: the file may have another one by now.
    pub bound: Endpoint,
}

impl Proc {
    /// Gives the sockets on which a process listens, in the order of their descriptors.
    ///
    /// # Errors
    /// When the process is gone or is not ours to see.
    pub fn listening_of(&self, pid: Pid) -> Result<Vec<ListeningSocket>, ProcError> {
        let directory = self.file(pid, "fd");
        let mut descriptors: BTreeMap<i32, u64> = BTreeMap::new();
        for name in names(&directory)? {
            let path = directory.join(&name);
            let target = match fs::read_link(&path) {
                Ok(target) => target,
                Err(source) if source.kind() == io::ErrorKind::PermissionDenied => return Err(ProcError { path, source }),
                // One that was closed in the meantime is none.
                Err(_) => continue,
            };
            let inode = target.to_str().and_then(|target| target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            if let (Ok(fd), Some(inode)) = (name.parse(), inode) {
                descriptors.insert(fd, inode);
            }
        }
        // Its own tables: it may live in another network namespace.
        let mut bound: BTreeMap<u64, Endpoint> = BTreeMap::new();
        bound.extend(text(&self.file(pid, "net/unix"))?.lines().filter_map(unix_listener));
        for table in ["net/tcp", "net/tcp6"] {
            // A kernel without IPv6 has no second table.
            let rows = text(&self.file(pid, table)).unwrap_or_default();
            bound.extend(rows.lines().filter_map(tcp_listener));
        }
        let found =
            descriptors.into_iter().filter_map(|(fd, inode)| Some(ListeningSocket { fd, inode, bound: bound.get(&inode)?.clone() }));
        Ok(found.collect())
    }

    /// Gives the systemd service a process belongs to. Source: cgroups(7), `/proc/PID/cgroup`.
    pub fn service_of(&self, pid: Pid) -> Option<String> {
        let text = text(&self.file(pid, "cgroup")).ok()?;
        let mut parts = text.lines().flat_map(|line| line.split('/'));
        parts.rfind(|part| part.ends_with(".service")).map(str::to_owned)
    }

    /// Gives a path as a process sees it from its own root and mounts.
    pub fn seen_by(&self, pid: Pid, path: &str) -> PathBuf {
        self.file(pid, "root").join(path.trim_start_matches('/'))
    }
}

/// Reads a row of `/proc/net/unix`: number, references, protocol, flags (`00010000`: listens), type, state, inode, path.
fn unix_listener(row: &str) -> Option<(u64, Endpoint)> {
    // The path may hold blanks, the columns before it are padded with them.
    let mut rest = row;
    let mut column = || {
        rest = rest.trim_start_matches(' ');
        let (first, after) = rest.split_once(' ').unwrap_or((rest, ""));
        rest = after;
        first
    };
    let (_number, _references, _protocol, flags) = (column(), column(), column(), column());
    let (_kind, _state, inode) = (column(), column(), column());
    let listens = u32::from_str_radix(flags, 16).ok()? & 0x1_0000 != 0;
    let path = rest.trim_start_matches(' ');
    (listens && path.starts_with('/')).then(|| Some((inode.parse().ok()?, Endpoint::Unix(path.into()))))?
}

/// Reads a row of `/proc/net/tcp` or `tcp6`: number, local address, remote address, state (`0A`: listens), …, the inode in column 10.
fn tcp_listener(row: &str) -> Option<(u64, Endpoint)> {
    let mut columns = row.split_ascii_whitespace().skip(1);
    let local = columns.next()?;
    if columns.nth(1)? != "0A" {
        return None;
    }
    let inode = columns.nth(5)?.parse().ok()?;
    let (ip, port) = local.split_once(':')?;
    let port = u16::from_str_radix(port, 16).ok()?;
    Some((inode, Endpoint::Tcp(SocketAddr::new(address(ip)?, port))))
}

/// Reads an address as the kernel prints it: words of 32 bits in the host's own order of bytes.
fn address(text: &str) -> Option<IpAddr> {
    let word = |at: usize| u32::from_str_radix(text.get(at * 8..at * 8 + 8)?, 16).ok().map(u32::to_ne_bytes);
    match text.len() {
        8 => Some(IpAddr::V4(Ipv4Addr::from(word(0)?))),
        32 => {
            let mut bytes = [0; 16];
            for (at, four) in bytes.chunks_exact_mut(4).enumerate() {
                four.copy_from_slice(&word(at)?);
            }
            Some(IpAddr::V6(Ipv6Addr::from(bytes)))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;
    use std::os::fd::AsRawFd;
    use std::os::unix::net::UnixListener;

    use super::*;

    #[test]
    fn the_sockets_we_listen_on_are_found_with_their_descriptors() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a b.sock");
        let unix = UnixListener::bind(&path).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").unwrap();
        let six = TcpListener::bind("[::1]:0").unwrap();
        // A socket that is connected, and one that is bound alone, are no listeners.
        let _connected = std::net::TcpStream::connect(tcp.local_addr().unwrap()).unwrap();
        let found = Proc::default().listening_of(nix::unistd::getpid()).unwrap();
        let at = |fd: i32| found.iter().find(|socket| socket.fd == fd).map(|socket| socket.bound.clone());
        assert_eq!(at(unix.as_raw_fd()), Some(Endpoint::Unix(path)));
        assert_eq!(at(tcp.as_raw_fd()), Some(Endpoint::Tcp(tcp.local_addr().unwrap())));
        assert_eq!(at(six.as_raw_fd()), Some(Endpoint::Tcp(six.local_addr().unwrap())));
    }

    #[test]
    fn rows_of_the_tables_are_read_as_the_kernel_writes_them() {
        let listening = "ffff8c: 00000002 00000000 00010000 0001 01 1234567 /run/php/my site.sock";
        assert_eq!(unix_listener(listening), Some((1_234_567, Endpoint::Unix("/run/php/my site.sock".into()))));
        for other in [
            "Num       RefCount Protocol Flags    Type St Inode Path",
            "ffff8c: 00000003 00000000 00000000 0001 03 1234568 /run/php/my site.sock",
            "ffff8c: 00000002 00000000 00010000 0001 01 1234567 @abstract",
            "",
        ] {
            assert_eq!(unix_listener(other), None, "{other}");
        }
    }

    #[test]
    fn the_service_is_the_last_part_that_is_one() {
        let directory = tempfile::tempdir().unwrap();
        fs::create_dir(directory.path().join("7")).unwrap();
        let proc = Proc::at(directory.path());
        for (text, service) in [
            ("0::/system.slice/php8.2-fpm.service\n", Some("php8.2-fpm.service")),
            ("12:pids:/system.slice/php-fpm.service\n1:name=systemd:/system.slice/php-fpm.service\n", Some("php-fpm.service")),
            ("0::/user.slice/user-0.slice/session-3.scope\n", None),
        ] {
            fs::write(directory.path().join("7/cgroup"), text).unwrap();
            assert_eq!(proc.service_of(Pid::from_raw(7)).as_deref(), service);
        }
    }
}
