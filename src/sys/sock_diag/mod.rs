//! Queue depths and accepted connections as the kernel counts them.
//!
//! Owns the questions to sock_diag, the kernel's own statistics of sockets: php-fpm's status page says 0 for every unix
//! socket (P33), and which generation still holds connections is told by the names they carry (P26). No privileges are
//! needed; the answers are about our own network namespace.
//!
//! Every call opens a socket of its own, waits a bounded time and keeps only what was asked for. A call for one socket
//! takes some 25 µs, a dump of a busy host some hundreds, so they may be made from the loop.
//!
//! A dump is taken in pieces while sockets come and go, so it may miss one that lives: before something is given up
//! because nothing is left, two dumps must say so.
//!
//! Source: sock_diag(7); checked with 6.18 by this module's tests.
#![expect(unsafe_code, reason = "TCP_INFO: neither nix nor rustix offers the option")]

mod codec;
#[cfg(test)]
mod tests;

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsFd, AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::time::Duration;

use rustix::io::Errno;
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

use crate::model::snapshot::QueueDepth;

use codec::{CONNECTED, ESTABLISHED, LISTENING, Malformed, Message, SHOW_NAME, SHOW_QUEUE, SHOW_VFS};

/// From here on one dump is cheaper than single questions: 32 × 25 µs against some 125 µs and a margin for busy hosts.
const SINGLE_QUESTIONS: usize = 32;
/// The kernel answers at once; this only keeps a fault from stopping the loop.
const PATIENCE: Duration = Duration::from_secs(1);
/// The kernel fills buffers up to 32 KiB in a dump.
const BUFFER_BYTES: usize = 64 * 1024;
/// About 1.5 million sockets: more is a fault.
const REPLY_LIMIT_BYTES: usize = 128 * 1024 * 1024;
const SEQUENCE: u32 = 1;
/// Source: `TCP_LISTEN` of the kernel's `tcp_states.h`.
const TCP_LISTEN: u8 = 10;

/// Says why the kernel's statistics could not be read.
#[derive(Debug, thiserror::Error)]
pub enum DiagError {
    /// A step of the conversation failed.
    #[error("{step} the kernel's socket statistics")]
    Step {
        /// "open", "ask", "read".
        step: &'static str,
        /// What the system said.
        source: io::Error,
    },
    /// The kernel does not answer this question.
    #[error("the kernel refused the question about sockets")]
    Refused {
        /// What it said.
        source: io::Error,
    },
    /// The answer makes no sense.
    #[error("the kernel's socket statistics are malformed: {what}")]
    Malformed {
        /// What of it.
        what: String,
    },
    /// The socket is not what the question is about.
    #[error("the socket does not listen on TCP")]
    NotListening,
}

impl From<Malformed> for DiagError {
    fn from(error: Malformed) -> Self {
        Self::Malformed { what: error.to_string() }
    }
}

fn step(step: &'static str) -> impl Fn(Errno) -> DiagError {
    move |source| DiagError::Step { step, source: source.into() }
}

/// Gives the queues of the listening unix sockets with these inodes; a socket that is gone is left out.
///
/// # Errors
/// When the kernel's statistics cannot be read.
pub fn unix_queues(inodes: &[u64]) -> Result<HashMap<u64, QueueDepth>, DiagError> {
    let mut wanted = inodes.to_vec();
    wanted.sort_unstable();
    let mut queues = HashMap::with_capacity(wanted.len());
    let mut take = |body: &[u8]| {
        let socket = codec::unix_socket(body)?;
        let inode = u64::from(socket.inode);
        if let Some((now, max)) = socket.queue
            && wanted.binary_search(&inode).is_ok()
        {
            queues.insert(inode, QueueDepth { now, max });
        }
        Ok(())
    };
    if inodes.len() <= SINGLE_QUESTIONS {
        let channel = Channel::open()?;
        for inode in inodes.iter().filter_map(|inode| u32::try_from(*inode).ok()) {
            channel.ask(&codec::unix_one(inode, SHOW_QUEUE, SEQUENCE), Answer::One, &mut take)?;
        }
        return Ok(queues);
    }
    Channel::open()?.ask(&codec::unix_all(LISTENING, SHOW_QUEUE, SEQUENCE), Answer::Dump, &mut take)?;
    Ok(queues)
}

/// A listening socket found by its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listening {
    /// The socket's inode.
    pub inode: u64,
    /// Its queue.
    pub queue: QueueDepth,
}

/// Finds the socket, anybody's, that listens on the file at `path`, if there is one.
///
/// It is known by its file, not its name, which may be relative, a link, or that of a file that is gone. Only where a
/// filesystem tells the kernel other numbers than us, a socket bound under just this name is taken.
///
/// # Errors
/// When the kernel's statistics cannot be read or the path not be examined.
pub fn unix_queue_by_path(path: &Path) -> Result<Option<Listening>, DiagError> {
    Ok(unix_queues_by_path(&[path])?.pop().flatten())
}

/// Finds for each of `paths` what [`unix_queue_by_path`] finds, with one question for all.
///
/// # Errors
/// When the kernel's statistics cannot be read or a path not be examined.
pub fn unix_queues_by_path(paths: &[&Path]) -> Result<Vec<Option<Listening>>, DiagError> {
    let (mut files, mut names) = (HashMap::new(), HashMap::new());
    for (at, path) in paths.iter().enumerate() {
        let file = match rustix::fs::stat(*path) {
            Ok(file) => file,
            Err(Errno::NOENT) => continue,
            Err(error) => return Err(step("find the file for")(error)),
        };
        // The kernel's own form of a device number: 12 bits major, 20 bits minor; and the lower half of the inode.
        let device = rustix::fs::major(file.st_dev) << 20 | rustix::fs::minor(file.st_dev);
        let inode = u32::try_from(file.st_ino & u64::from(u32::MAX)).unwrap_or_default();
        files.entry((inode, device)).or_insert_with(Vec::new).push(at);
        names.insert(path.as_os_str().as_bytes(), at);
    }
    let (mut by_file, mut by_name) = (vec![None; paths.len()], vec![None; paths.len()]);
    if files.is_empty() {
        return Ok(by_file);
    }
    let request = codec::unix_all(LISTENING, SHOW_NAME | SHOW_VFS | SHOW_QUEUE, SEQUENCE);
    Channel::open()?.ask(&request, Answer::Dump, &mut |body| {
        let socket = codec::unix_socket(body)?;
        let Some((now, max)) = socket.queue else { return Ok(()) };
        let found = Listening { inode: u64::from(socket.inode), queue: QueueDepth { now, max } };
        let of_file = socket.file.and_then(|file| files.get(&file)).into_iter().flatten();
        of_file.for_each(|at| by_file.get_mut(*at).into_iter().for_each(|place| *place = Some(found)));
        if let Some(place) = socket.name.and_then(|name| names.get(name)).and_then(|at| by_name.get_mut(*at)) {
            *place = Some(found);
        }
        Ok(())
    })?;
    Ok(by_file.into_iter().zip(by_name).map(|(by_file, by_name)| by_file.or(by_name)).collect())
}

/// Counts, for each of `names`, the accepted unix connections whose listener was bound under it (P26). Each name gets a
/// count; connections that still wait in a queue are not in it.
///
/// # Errors
/// When the kernel's statistics cannot be read.
pub fn accepted_unix(names: &[&str]) -> Result<HashMap<String, u32>, DiagError> {
    let mut counts: HashMap<&[u8], u32> = names.iter().map(|name| (name.as_bytes(), 0)).collect();
    let request = codec::unix_all(ESTABLISHED, SHOW_NAME, SEQUENCE);
    Channel::open()?.ask(&request, Answer::Dump, &mut |body| {
        let socket = codec::unix_socket(body)?;
        if let Some(count) = socket.name.and_then(|name| counts.get_mut(name)) {
            *count = count.saturating_add(1);
        }
        Ok(())
    })?;
    let count = |name: &&str| ((*name).to_owned(), counts.get(name.as_bytes()).copied().unwrap_or_default());
    Ok(names.iter().map(count).collect())
}

/// Gives the inodes of the accepted TCP connections to a listener's address, in every state in which a process still holds
/// them. Whose they are is told by the processes that hold the inodes.
///
/// # Errors
/// When the kernel's statistics cannot be read.
pub fn accepted_tcp(listener: SocketAddr) -> Result<Vec<u64>, DiagError> {
    let mut inodes = Vec::new();
    let request = codec::tcp_all(listener, CONNECTED, SEQUENCE);
    Channel::open()?.ask(&request, Answer::Dump, &mut |body| {
        let socket = codec::tcp_socket(body)?;
        // Without an inode it still waits to be accepted, or its process has closed it.
        if socket.inode != 0 && socket.local.port() == listener.port() && is_for(socket.local.ip(), listener.ip()) {
            inodes.push(u64::from(socket.inode));
        }
        Ok(())
    })?;
    Ok(inodes)
}

fn is_for(local: IpAddr, listener: IpAddr) -> bool {
    listener.is_unspecified() || local == listener
}

/// Gives the queue of a listening TCP socket.
///
/// # Errors
/// When `listener` is no listening TCP socket.
pub fn tcp_queue(listener: impl AsFd) -> Result<QueueDepth, DiagError> {
    // The start of struct tcp_info: eight bytes, the first of them the state, and six words, of which a listener uses
    // tcpi_unacked for what waits and tcpi_sacked for its limit. Source: tcp(7), Linux `tcp_get_info`.
    let mut start = [0u8; 32];
    let mut length: libc::socklen_t = 32;
    // SAFETY: the kernel writes at most `length` bytes, and `start` has that many.
    let answer = unsafe {
        libc::getsockopt(
            listener.as_fd().as_raw_fd(),
            libc::IPPROTO_TCP,
            libc::TCP_INFO,
            start.as_mut_ptr().cast::<libc::c_void>(),
            &raw mut length,
        )
    };
    let word = |at: usize| start.get(at..at + 4).and_then(|bytes| bytes.try_into().ok()).map_or(0, u32::from_ne_bytes);
    if answer != 0 || length < 32 || start.first() != Some(&TCP_LISTEN) {
        return Err(DiagError::NotListening);
    }
    Ok(QueueDepth { now: word(24), max: word(28) })
}

#[derive(Clone, Copy)]
enum Answer {
    /// One socket, or that there is none.
    One,
    /// Any number of sockets, and an end.
    Dump,
}

/// A conversation with the kernel.
struct Channel(OwnedFd);

impl Channel {
    fn open() -> Result<Self, DiagError> {
        let protocol = Some(rustix::net::netlink::SOCK_DIAG);
        let socket =
            rustix::net::socket_with(AddressFamily::NETLINK, SocketType::RAW, SocketFlags::CLOEXEC, protocol).map_err(step("open"))?;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Recv, Some(PATIENCE)).map_err(step("open"))?;
        Ok(Self(socket))
    }

    /// Sends a request and gives every socket of the answer to `take`.
    fn ask(&self, request: &[u8], answer: Answer, take: &mut dyn FnMut(&[u8]) -> Result<(), Malformed>) -> Result<(), DiagError> {
        rustix::io::retry_on_intr(|| rustix::net::send(&self.0, request, SendFlags::empty())).map_err(step("ask"))?;
        let mut buffer = vec![0; BUFFER_BYTES];
        let mut received = 0;
        while received < REPLY_LIMIT_BYTES {
            let (kept, length) =
                rustix::io::retry_on_intr(|| rustix::net::recv(&self.0, buffer.as_mut_slice(), RecvFlags::TRUNC)).map_err(step("read"))?;
            received += length;
            let mut rest = buffer.get(..kept).filter(|_| kept == length).ok_or_else(|| too_much("a message"))?;
            while let Some(message) = codec::next_message(&mut rest, SEQUENCE)? {
                match (message, answer) {
                    (Message::Socket(body), Answer::Dump) => take(body)?,
                    (Message::Socket(body), Answer::One) => return Ok(take(body)?),
                    (Message::Done, _) => return Ok(()),
                    (Message::Refused(errno), Answer::One) if errno == libc::ENOENT => return Ok(()),
                    (Message::Refused(errno), _) => return Err(DiagError::Refused { source: io::Error::from_raw_os_error(errno) }),
                    (Message::Stray, _) => {}
                }
            }
        }
        Err(too_much("the answer"))
    }
}

/// A way in for `fuzz/`.
#[cfg(fuzzing)]
pub mod fuzzing {
    use super::codec::{Message, next_message, tcp_socket, unix_socket};

    /// Reads everything that can be read of a reply, and each of its sockets as both kinds.
    pub fn replies(bytes: &[u8]) {
        let mut rest = bytes;
        let mut left = rest.len();
        while let Ok(Some(message)) = next_message(&mut rest, super::SEQUENCE) {
            assert!(rest.len() < left, "each message takes some of the reply");
            left = rest.len();
            if let Message::Socket(body) = message {
                drop((unix_socket(body), tcp_socket(body)));
            }
        }
        drop((unix_socket(bytes), tcp_socket(bytes)));
    }
}

fn too_much(what: &str) -> DiagError {
    DiagError::Malformed { what: format!("{what} is larger than expected") }
}
