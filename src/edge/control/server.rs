//! The server's side of the control socket.
//!
//! Each client is a task of its own with every wait bounded: for its request line, for each line it must take. Status is
//! answered here from the published snapshot, so that it works while the loop has a job; everything else goes to the loop
//! as a [`Call`]. A client that goes away in the middle of a job leaves the job as it is.
//!
//! Who may ask what is decided by the kernel's word on the peer (`SO_PEERCRED`) and, for the control group, by the socket
//! file's mode: without a group nobody but root can connect at all.

use std::io;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, mpsc, watch};
use tokio::task::JoinSet;

use super::replies::{Replies, ReplySink, error};
use super::{Line, read_line};
use crate::model::listen::Access;
use crate::model::settings::Control;
use crate::model::snapshot::Snapshot;
use crate::model::wire::{Command, ErrorCode, LINE_LIMIT_BYTES, Reply, Request, VERSION};
use crate::sys::directory::{DirectoryError, own};
use crate::sys::listener::{BindError, Expected, FileId, PublishError, bind_unix, publish, unpublish};
use crate::sys::users::{UserError, group};

/// Sixteen: an operator, a few watchers and a monitoring agent; more is a loop gone wrong.
const CLIENTS_LIMIT: usize = 16;
/// A request is one line and comes at once.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
/// A client that takes no line for so long is gone or stuck.
const WRITE_TIMEOUT: Duration = Duration::from_secs(10);
/// Connections that may wait for accept.
const BACKLOG_CONNECTIONS: u32 = 128;
/// After an accept that failed, most likely for want of file descriptors: trying at once would spin.
const ACCEPT_PAUSE: Duration = Duration::from_millis(200);
/// How long clients may still take their last line once the loop has ended.
const FAREWELL: Duration = Duration::from_secs(1);

/// Why there is no control socket.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// The group of `control.group` is not known.
    #[error("resolve control.group")]
    Group(#[source] UserError),
    /// The directory cannot be made or looked at.
    #[error("make directory {}", path.display())]
    Directory {
        /// The directory.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// Others could put a socket of theirs in the place of ours.
    #[error("directory {} belongs to uid {uid} with mode {mode:o}", path.display())]
    Unsafe {
        /// The directory.
        path: PathBuf,
        /// Its owner.
        uid: u32,
        /// Its permission bits.
        mode: u32,
    },
    /// It cannot be bound.
    #[error("bind control socket {}", path.display())]
    Bind {
        /// The socket's path.
        path: PathBuf,
        /// Why.
        source: BindError,
    },
    /// The path is taken, most likely by another supervisor of the same instance.
    #[error("take the path of control socket {}", path.display())]
    Publish {
        /// The socket's path.
        path: PathBuf,
        /// Why.
        source: PublishError,
    },
    /// The async runtime does not take it.
    #[error("listen on control socket {}", path.display())]
    Listen {
        /// The socket's path.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
}

impl ControlError {
    /// Gives what to do about it, where that can be said.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::Group(_) => Some("name an existing group in control.group, or leave the key out"),
            Self::Unsafe { .. } => Some("the directory must belong to root and be writable by root alone"),
            Self::Publish { source: PublishError::Live { .. }, .. } => {
                Some("another supervisor of this instance runs; stop it first, or use another instance name")
            }
            Self::Directory { .. } | Self::Bind { .. } | Self::Publish { .. } | Self::Listen { .. } => None,
        }
    }
}

/// Who is at the other end, by the kernel's word.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The user.
    pub uid: u32,
    /// The primary group.
    pub gid: u32,
    /// The process, where the kernel knows it.
    pub pid: Option<i32>,
}

/// One command for the loop.
#[derive(Debug)]
pub struct Call {
    /// What is wanted.
    pub command: Command,
    /// Who wants it.
    pub peer: Peer,
    /// Where the answer goes.
    pub replies: ReplySink,
    /// The connection itself, where its answer comes from the program image that follows this one.
    pub connection: Option<OwnedFd>,
}

/// Tells whether `uid` may give `command`: root and the supervisor's own user any, others (whom only the control group lets
/// in) those that change nothing.
pub const fn permits(uid: u32, own_uid: u32, command: &Command) -> bool {
    uid == 0 || uid == own_uid || command.only_reads()
}

/// Holds new clients back while the program image is exchanged: they wait in the socket's queue.
#[derive(Debug)]
pub struct Gate {
    closed: watch::Sender<bool>,
    answering: Arc<AtomicUsize>,
}

impl Gate {
    /// Lets nobody in.
    pub fn close(&self) {
        self.closed.send_replace(true);
    }

    /// Lets clients in again.
    pub fn open(&self) {
        self.closed.send_replace(false);
    }

    /// Tells whether some client is in the middle of its request or answer. Those that watch, and the one that asked for the
    /// exchange, are not counted.
    pub fn is_answering(&self) -> bool {
        self.answering.load(Ordering::Relaxed) > 0
    }
}

/// Counts a client in the middle of its request or answer.
struct Answering(Arc<AtomicUsize>);

impl Answering {
    fn one(count: &Arc<AtomicUsize>) -> Self {
        count.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(count))
    }
}

impl Drop for Answering {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The bound control socket. Its path is given up when it is dropped.
#[derive(Debug)]
pub struct Server {
    listener: UnixListener,
    path: PathBuf,
    file: Option<FileId>,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    closed: watch::Receiver<bool>,
    gate: Option<Gate>,
    answering: Arc<AtomicUsize>,
}

impl Drop for Server {
    fn drop(&mut self) {
        if let Some(file) = self.file {
            // What is left behind is a stale socket, which the next supervisor replaces.
            unpublish(&self.path, file).ok();
        }
    }
}

impl Server {
    /// Binds the socket; answers come only once it is served. Its directory is made where it is missing.
    ///
    /// Must be called within the async runtime.
    ///
    /// # Errors
    /// When the directory is not safe, the path is taken by a living listener, or the system refuses.
    pub fn bind(settings: &Control, snapshot: watch::Receiver<Arc<Snapshot>>) -> Result<Self, ControlError> {
        let path = settings.socket.clone();
        let gid = settings.group.as_deref().map(group).transpose().map_err(ControlError::Group)?;
        prepare_directory(&path)?;
        let access = Access { gid, mode: if gid.is_some() { 0o660 } else { 0o600 }, ..Access::default() };
        let bound =
            bind_unix(&path, ".new", &access, BACKLOG_CONNECTIONS).map_err(|source| ControlError::Bind { path: path.clone(), source })?;
        if let Err(source) = publish(&bound, &path, Expected::Free) {
            // The temporary file is of no use to anybody; the error to tell is the first one.
            bound.discard().ok();
            return Err(ControlError::Publish { path, source });
        }
        let listen = |source| ControlError::Listen { path: path.clone(), source };
        let listener = std::os::unix::net::UnixListener::from(bound.fd.try_clone().map_err(listen)?);
        listener.set_nonblocking(true).map_err(listen)?;
        let listener = UnixListener::from_std(listener).map_err(listen)?;
        Ok(Self::on(listener, path, bound.file_id(), snapshot))
    }

    /// Goes on with a socket that came from the program image before this one: who waits in its queue is answered.
    ///
    /// Must be called within the async runtime.
    ///
    /// # Errors
    /// When the async runtime does not take it.
    pub fn resume(fd: OwnedFd, path: PathBuf, file: FileId, snapshot: watch::Receiver<Arc<Snapshot>>) -> Result<Self, ControlError> {
        let listen = |source| ControlError::Listen { path: path.clone(), source };
        let listener = std::os::unix::net::UnixListener::from(fd);
        listener.set_nonblocking(true).map_err(listen)?;
        let listener = UnixListener::from_std(listener).map_err(listen)?;
        Ok(Self::on(listener, path, Some(file), snapshot))
    }

    fn on(listener: UnixListener, path: PathBuf, file: Option<FileId>, snapshot: watch::Receiver<Arc<Snapshot>>) -> Self {
        let (sender, closed) = watch::channel(false);
        let answering = Arc::new(AtomicUsize::new(0));
        let gate = Some(Gate { closed: sender, answering: Arc::clone(&answering) });
        Self { listener, path, file, snapshot, closed, gate, answering }
    }

    /// Gives the gate, once.
    pub fn take_gate(&mut self) -> Option<Gate> {
        self.gate.take()
    }

    /// Gives another descriptor of the socket, for the program image that follows this one.
    ///
    /// # Errors
    /// There are no descriptors left.
    pub fn descriptor(&self) -> io::Result<OwnedFd> {
        self.listener.as_fd().try_clone_to_owned()
    }

    /// Gives the file that stands at the socket's path while nobody removes it.
    pub fn file(&self) -> Option<FileId> {
        self.file
    }

    /// Serves clients until the receiver of `requests` is dropped; then lets them take their last lines for a moment.
    ///
    /// # Cancel safety
    /// Dropping the future closes all connections; jobs go on.
    pub async fn serve(mut self, requests: mpsc::Sender<Call>) {
        let places = Arc::new(Semaphore::new(CLIENTS_LIMIT));
        let mut clients = JoinSet::new();
        loop {
            tokio::select! {
                accepted = self.listener.accept(), if !*self.closed.borrow() => match accepted {
                    Ok((stream, _)) => match Arc::clone(&places).try_acquire_owned() {
                        Ok(place) => {
                            let client = Client {
                                stream: BufReader::new(stream),
                                snapshot: self.snapshot.clone(),
                                requests: requests.clone(),
                                answering: Some(Answering::one(&self.answering)),
                            };
                            clients.spawn(client.serve(place));
                        }
                        Err(_) => turn_away(stream),
                    },
                    Err(_) => tokio::time::sleep(ACCEPT_PAUSE).await,
                },
                Some(_) = clients.join_next() => {}
                // An error means that the gate is gone, open as it was.
                Ok(()) = self.closed.changed() => {}
                () = requests.closed() => break,
            }
        }
        let all_gone = async { while clients.join_next().await.is_some() {} };
        // Whoever has not taken its last line by then is cut off with the set.
        tokio::time::timeout(FAREWELL, all_gone).await.ok();
    }
}

/// Makes the directory where it is missing and refuses one in which others could replace the socket.
fn prepare_directory(socket: &Path) -> Result<(), ControlError> {
    let path = socket.parent().unwrap_or(Path::new("/")).to_owned();
    match own(&path, 0o755) {
        Ok(_) => Ok(()),
        Err(DirectoryError::Shared { path, owner: uid, mode }) => Err(ControlError::Unsafe { path, uid, mode }),
        Err(error) => Err(ControlError::Directory { path, source: io::Error::other(error) }),
    }
}

/// Tells one client too many so and closes. The socket's buffer is empty, so the line fits without waiting.
fn turn_away(stream: UnixStream) {
    let Ok(stream) = stream.into_std() else { return };
    let line = encode(&error(ErrorCode::Busy, format!("{CLIENTS_LIMIT} clients are connected already")));
    // A client that is gone misses nothing.
    io::Write::write_all(&mut &stream, &line).ok();
}

/// A path that is no UTF-8 has no form in JSON; the client is told so rather than nothing.
fn encode(reply: &Reply) -> Vec<u8> {
    let told = serde_json::to_vec(reply);
    let untold = |source| serde_json::to_vec(&error(ErrorCode::Failed, format!("answer cannot be written as JSON: {source}")));
    let mut line = told.or_else(untold).unwrap_or_default();
    line.push(b'\n');
    line
}

/// Ends a client: it is gone, or does not take what it asked for.
struct Gone;

struct Client {
    stream: BufReader<UnixStream>,
    snapshot: watch::Receiver<Arc<Snapshot>>,
    requests: mpsc::Sender<Call>,
    answering: Option<Answering>,
}

impl Client {
    async fn serve(mut self, _place: OwnedSemaphorePermit) {
        // A client that is gone has been served.
        self.answer().await.ok();
    }

    async fn answer(&mut self) -> Result<(), Gone> {
        let peer = self.peer()?;
        let command = match self.command(peer).await? {
            Ok(command) => command,
            Err(refusal) => return self.write(&refusal).await,
        };
        let Command::Status { watch } = command else { return self.pass_on(command, peer).await };
        if watch {
            self.answering = None;
            return self.watch().await;
        }
        let snapshot = Arc::clone(&self.snapshot.borrow());
        self.write_snapshot(&snapshot).await?;
        self.write(&Reply::Done { message: "status told".to_owned(), shards: Vec::new() }).await
    }

    fn peer(&self) -> Result<Peer, Gone> {
        let credentials = self.stream.get_ref().peer_cred().map_err(|_| Gone)?;
        Ok(Peer { uid: credentials.uid(), gid: credentials.gid(), pid: credentials.pid() })
    }

    /// Reads the request; the inner error is the refusal to be told.
    async fn command(&mut self, peer: Peer) -> Result<Result<Command, Box<Reply>>, Gone> {
        let usage = |message: String| Ok(Err(Box::new(error(ErrorCode::Usage, message))));
        let line = match tokio::time::timeout(REQUEST_TIMEOUT, read_line(&mut self.stream, LINE_LIMIT_BYTES)).await {
            Err(_) => return usage(format!("no request within {} s", REQUEST_TIMEOUT.as_secs())),
            Ok(Err(_)) => return Err(Gone),
            Ok(Ok(Line::Unfinished)) => return usage("request has no end: it must be one line".to_owned()),
            Ok(Ok(Line::TooLong)) => return usage(format!("request is longer than {LINE_LIMIT_BYTES} bytes")),
            Ok(Ok(Line::Whole(line))) => line,
        };
        let command = match read_request(&line) {
            Ok(command) => command,
            Err(refusal) => return Ok(Err(refusal)),
        };
        if !permits(peer.uid, nix::unistd::geteuid().as_raw(), &command) {
            let message = format!("uid {} may not ask for {}", peer.uid, command.word());
            return Ok(Err(Box::new(error(ErrorCode::Denied, message))));
        }
        Ok(Ok(command))
    }

    /// Tells the snapshot now and at each change. A slow client is told the newest one, not each.
    async fn watch(&mut self) -> Result<(), Gone> {
        self.snapshot.mark_changed();
        loop {
            tokio::select! {
                changed = self.snapshot.changed() => if changed.is_err() { break },
                () = self.requests.closed() => break,
            }
            let snapshot = Arc::clone(&self.snapshot.borrow_and_update());
            self.write_snapshot(&snapshot).await?;
        }
        self.write(&error(ErrorCode::Stopping, "the supervisor is on its way out")).await
    }

    async fn pass_on(&mut self, command: Command, peer: Peer) -> Result<(), Gone> {
        let (sink, mut replies) = ReplySink::pair();
        let connection = if command == Command::Upgrade {
            self.answering = None;
            self.stream.get_ref().as_fd().try_clone_to_owned().ok()
        } else {
            None
        };
        let refusal = match self.requests.try_send(Call { command, peer, replies: sink, connection }) {
            Ok(()) => None,
            Err(mpsc::error::TrySendError::Full(_)) => Some(error(ErrorCode::Busy, "too many requests wait for the supervisor")),
            Err(mpsc::error::TrySendError::Closed(_)) => Some(error(ErrorCode::Stopping, "the supervisor is on its way out")),
        };
        if let Some(refusal) = refusal {
            return self.write(&refusal).await;
        }
        while let Some(reply) = replies.next().await {
            self.write(&reply).await?;
        }
        Ok(())
    }

    async fn write_snapshot(&mut self, snapshot: &Snapshot) -> Result<(), Gone> {
        self.write(&Reply::Status(Box::new(snapshot.clone()))).await
    }

    async fn write(&mut self, reply: &Reply) -> Result<(), Gone> {
        match tokio::time::timeout(WRITE_TIMEOUT, self.stream.get_mut().write_all(&encode(reply))).await {
            Ok(Ok(())) => Ok(()),
            Ok(Err(_)) | Err(_) => Err(Gone),
        }
    }
}

/// Answers a client whose request was read by the program image before this one.
///
/// Must be called within the async runtime.
///
/// # Errors
/// When the async runtime does not take the connection.
///
/// # Cancel safety
/// Dropping the future closes the connection.
pub async fn answer_on(connection: OwnedFd, mut replies: Replies) -> io::Result<()> {
    let stream = std::os::unix::net::UnixStream::from(connection);
    stream.set_nonblocking(true)?;
    let mut stream = UnixStream::from_std(stream)?;
    while let Some(reply) = replies.next().await {
        tokio::time::timeout(WRITE_TIMEOUT, stream.write_all(&encode(&reply))).await??;
    }
    Ok(())
}

/// Reads a request line. The version comes first: a request of another version need not even parse.
fn read_request(line: &[u8]) -> Result<Command, Box<Reply>> {
    #[derive(serde::Deserialize)]
    struct Version {
        v: u32,
    }
    let unreadable = |source: serde_json::Error| Box::new(error(ErrorCode::Usage, format!("request cannot be read: {source}")));
    let Version { v } = serde_json::from_slice(line).map_err(unreadable)?;
    if v != VERSION {
        let mut refusal = error(ErrorCode::Usage, format!("request has protocol version {v}, the supervisor speaks {VERSION}"));
        if let Reply::Error { hint, .. } = &mut refusal {
            *hint = Some("use the polyfpm binary the supervisor was started from, or restart it with this one".to_owned());
        }
        return Err(Box::new(refusal));
    }
    serde_json::from_slice::<Request>(line).map(|request| request.command).map_err(unreadable)
}

/// Ways in for `fuzz/`.
#[cfg(fuzzing)]
pub mod fuzzing {
    use super::{Command, Reply};

    /// Reads a request line.
    ///
    /// # Errors
    /// The refusal to be told.
    pub fn request(line: &[u8]) -> Result<Command, Box<Reply>> {
        super::read_request(line)
    }

    /// Reads an answer line.
    ///
    /// # Errors
    /// It is none.
    pub fn reply(line: &[u8]) -> serde_json::Result<Reply> {
        serde_json::from_slice(line)
    }
}

#[cfg(test)]
mod tests;
