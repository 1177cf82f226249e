//! The client's side of the control socket.

use std::io;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::io::{AsyncWriteExt, BufReader};
use tokio::net::UnixStream;

use super::{Line, read_line};
use crate::model::wire::{Command, Reply, Request, VERSION};

/// A snapshot of 10,000 pools is about 3 MB.
const REPLY_LIMIT_BYTES: usize = 64 * 1024 * 1024;

/// The server answers status by itself, whatever the loop does; so long without a word means that the process hangs.
const STATUS_TIMEOUT: Duration = Duration::from_secs(10);

/// A supervisor that goes on as another binary closes the connections of those who watch, and takes some tenths of a second
/// until it answers again.
const ASK_AGAIN: Duration = Duration::from_millis(50);

/// How often in a row a picture is asked for that does not come.
const ASKED_AT_MOST: u32 = 20;

/// Why a command has no answer.
#[derive(Debug, thiserror::Error)]
pub enum ClientError {
    /// Nobody listens.
    #[error("no supervisor answers at {}", socket.display())]
    NoSupervisor {
        /// The control socket.
        socket: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The socket's mode does not let this user in.
    #[error("control socket {} does not admit this user", socket.display())]
    Denied {
        /// The control socket.
        socket: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The supervisor takes no more connections.
    #[error("control socket {} takes no more clients now", socket.display())]
    Full {
        /// The control socket.
        socket: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The connection broke.
    #[error("talk to the supervisor at {}", socket.display())]
    Broken {
        /// The control socket.
        socket: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The connection ended without a final answer: the supervisor died or was killed.
    #[error("the supervisor at {} closed the connection without an answer", socket.display())]
    Closed {
        /// The control socket.
        socket: PathBuf,
    },
    /// No word from it.
    #[error("no answer from the supervisor at {} within {} s", socket.display(), STATUS_TIMEOUT.as_secs())]
    Silent {
        /// The control socket.
        socket: PathBuf,
    },
    /// An answer that this version does not understand.
    #[error("answer of the supervisor at {} cannot be read", socket.display())]
    Unreadable {
        /// The control socket.
        socket: PathBuf,
        /// What is wrong with it; absent when it is too long.
        source: Option<serde_json::Error>,
    },
}

impl ClientError {
    /// Gives what to do about it, where that can be said.
    pub const fn hint(&self) -> Option<&'static str> {
        match self {
            Self::NoSupervisor { .. } => Some("start it: systemctl start polyfpm@INSTANCE, or polyfpm run -c FILE"),
            Self::Denied { .. } => Some("run as root, or for status as a member of the group in control.group"),
            Self::Full { .. } => Some("try again in a moment"),
            Self::Closed { .. } | Self::Silent { .. } => Some("see the supervisor's log"),
            Self::Unreadable { .. } => Some("use the polyfpm binary the supervisor was started from"),
            Self::Broken { .. } => None,
        }
    }
}

/// Sends a command and gives the final reply. Every reply, the final one included, is shown to `on_reply` as it comes; where
/// that breaks off, the call ends with the reply it was shown, which is how a watched status ends before the supervisor does.
///
/// A connection that ends before a snapshot has come is no end for `status`: it is asked again.
///
/// # Errors
/// When there is no supervisor, it does not let this user in, or the connection ends before the final reply. A final
/// [`Reply::Error`] is no error here.
///
/// # Cancel safety
/// Dropping the future closes the connection; a job that was begun goes on.
pub async fn call(socket: &Path, command: Command, mut on_reply: impl FnMut(&Reply) -> ControlFlow<()>) -> Result<Reply, ClientError> {
    let mut left = if matches!(command, Command::Status { .. }) { ASKED_AT_MOST } else { 1 };
    loop {
        let mut heard = false;
        let hear = |reply: &Reply| {
            heard = true;
            on_reply(reply)
        };
        let answer = ask(socket, command.clone(), hear).await;
        left = if heard && left > 1 { ASKED_AT_MOST } else { left - 1 };
        match answer {
            Err(ClientError::Closed { .. } | ClientError::Broken { .. }) if left > 0 => tokio::time::sleep(ASK_AGAIN).await,
            answer => return answer,
        }
    }
}

async fn ask(socket: &Path, command: Command, mut on_reply: impl FnMut(&Reply) -> ControlFlow<()>) -> Result<Reply, ClientError> {
    let mut stream = BufReader::new(connect(socket).await?);
    let is_status = matches!(command, Command::Status { .. });
    let mut line = serde_json::to_vec(&Request { v: VERSION, command }).unwrap_or_default();
    line.push(b'\n');
    let sent = stream.get_mut().write_all(&line).await;
    let mut first = true;
    loop {
        let next = next_reply(socket, &mut stream);
        let reply = if is_status && first {
            let silent = |_| ClientError::Silent { socket: socket.to_owned() };
            tokio::time::timeout(STATUS_TIMEOUT, next).await.map_err(silent)?
        } else {
            next.await
        };
        // A server that turns a client away closes without reading: what it said counts, not that the request did not reach it.
        let reply = match (reply, &sent) {
            (Err(_), Err(error)) if first => Err(ClientError::Broken { socket: socket.to_owned(), source: error.kind().into() }),
            (reply, _) => reply,
        }?;
        first = false;
        if on_reply(&reply).is_break() || matches!(reply, Reply::Done { .. } | Reply::Preview(_) | Reply::Error { .. }) {
            return Ok(reply);
        }
    }
}

async fn connect(socket: &Path) -> Result<UnixStream, ClientError> {
    UnixStream::connect(socket).await.map_err(|source| {
        let socket = socket.to_owned();
        let kind = source.kind();
        if matches!(kind, io::ErrorKind::NotFound | io::ErrorKind::ConnectionRefused) {
            ClientError::NoSupervisor { socket, source }
        } else if kind == io::ErrorKind::PermissionDenied {
            ClientError::Denied { socket, source }
        } else if kind == io::ErrorKind::WouldBlock {
            ClientError::Full { socket, source }
        } else {
            ClientError::Broken { socket, source }
        }
    })
}

async fn next_reply(socket: &Path, stream: &mut BufReader<UnixStream>) -> Result<Reply, ClientError> {
    let socket = socket.to_owned();
    match read_line(stream, REPLY_LIMIT_BYTES).await {
        Ok(Line::Whole(line)) => serde_json::from_slice(&line).map_err(|source| ClientError::Unreadable { socket, source: Some(source) }),
        Ok(Line::TooLong) => Err(ClientError::Unreadable { socket, source: None }),
        Ok(Line::Unfinished) => Err(ClientError::Closed { socket }),
        Err(source) if source.kind() == io::ErrorKind::ConnectionReset => Err(ClientError::Closed { socket }),
        Err(source) => Err(ClientError::Broken { socket, source }),
    }
}
