//! Private notify sockets: readiness and heartbeat of one master.
//!
//! Owns a datagram socket on a path. A master built with systemd support sends there when it is ready and at every
//! interval (P30). The kernel says who sent each message; whoever reads one compares the pid with the master's. Messages
//! from users other than root and our own are dropped: workers run as such users, and only the master sends.
//!
//! Descriptors attached to a message never reach us: the buffer for what goes beside the text has room for the sender's
//! identity and nothing else, and the kernel closes what does not fit. Such a message is dropped, as php-fpm sends none.
//!
//! Sources: unix(7), `SO_PASSCRED`; cmsg(3); sd_notify(3).

use std::fs::{Permissions, remove_file, set_permissions, symlink_metadata};
use std::io::{self, IoSliceMut};
use std::os::fd::{AsRawFd as _, BorrowedFd};
use std::os::unix::fs::{FileTypeExt as _, PermissionsExt as _};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};

use nix::sys::socket::{ControlMessageOwned, MsgFlags, UnixAddr, UnixCredentials, recvmsg, setsockopt, sockopt};
use nix::unistd::{Pid, geteuid};

use super::readable::Readable;

/// 4 KiB: php-fpm's longest message is one status line; systemd accepts as much.
const LIMIT_BYTES: usize = 4096;

/// A message of a master.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    /// Who sent it, as the kernel says.
    pub pid: Pid,
    /// Its assignments, one a line: `READY=1`.
    pub text: String,
}

/// Says why there is no notify socket.
#[derive(Debug, thiserror::Error)]
#[error("make the notify socket {}", .path.display())]
pub struct NotifyError {
    /// Its path.
    pub path: PathBuf,
    /// What the system said.
    #[source]
    pub source: io::Error,
}

/// A socket for one master's messages. Its path goes when it is dropped.
#[derive(Debug)]
pub struct NotifySocket {
    path: PathBuf,
    socket: Readable,
}

impl NotifySocket {
    /// Binds the socket, readable for our user only. A socket left there by a supervisor that died is replaced. Must be
    /// called on a runtime.
    ///
    /// # Errors
    /// When `path` is too long, is taken by something that is no socket, or its directory cannot be written.
    pub fn bind(path: impl Into<PathBuf>) -> Result<Self, NotifyError> {
        let path = path.into();
        match open(&path) {
            Ok(socket) => Ok(Self { path, socket }),
            Err(source) => Err(NotifyError { path, source }),
        }
    }

    /// Gives the path, which the master is told in `NOTIFY_SOCKET`.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Waits for the next message that is whole and comes from root or our own user.
    ///
    /// # Errors
    /// What the system says; the socket is of no use then.
    ///
    /// # Cancel safety
    /// Safe: a message is taken only in the call that returns it.
    pub async fn receive(&self) -> io::Result<Message> {
        loop {
            if let Some(message) = self.socket.read(receive).await? {
                return Ok(message);
            }
        }
    }
}

impl Drop for NotifySocket {
    fn drop(&mut self) {
        // Gone already is as good.
        let _gone = remove_file(&self.path);
    }
}

fn open(path: &Path) -> io::Result<Readable> {
    if symlink_metadata(path).is_ok_and(|found| found.file_type().is_socket()) {
        remove_file(path)?;
    }
    let socket = UnixDatagram::bind(path)?;
    set_permissions(path, Permissions::from_mode(0o600))?;
    setsockopt(&socket, sockopt::PassCred, &true)?;
    socket.set_nonblocking(true)?;
    Readable::new(socket.into())
}

/// Takes one message; `None` when it is one to be dropped.
fn receive(socket: BorrowedFd<'_>) -> io::Result<Option<Message>> {
    let mut text = [0; LIMIT_BYTES];
    let mut parts = [IoSliceMut::new(&mut text)];
    let mut beside = nix::cmsg_space!(UnixCredentials);
    let flags = MsgFlags::MSG_CMSG_CLOEXEC | MsgFlags::MSG_DONTWAIT;
    let received = recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut parts, Some(&mut beside), flags)?;
    if received.flags.intersects(MsgFlags::MSG_TRUNC | MsgFlags::MSG_CTRUNC) {
        tracing::debug!("notify message dropped: too long or with descriptors");
        return Ok(None);
    }
    let length = received.bytes;
    let sender =
        received.cmsgs()?.find_map(|message| if let ControlMessageOwned::ScmCredentials(sender) = message { Some(sender) } else { None });
    let Some(sender) = sender.filter(|sender| sender.uid() == 0 || sender.uid() == geteuid().as_raw()) else {
        tracing::debug!("notify message dropped: from another user");
        return Ok(None);
    };
    let text = String::from_utf8_lossy(text.get(..length).unwrap_or_default()).into_owned();
    Ok(Some(Message { pid: Pid::from_raw(sender.pid()), text }))
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;
    use std::time::Duration;

    use nix::sys::socket::{ControlMessage, sendmsg};
    use nix::unistd::getpid;
    use tokio::time::timeout;

    use super::*;
    use crate::sys::children::{Children, Subreaper};
    use crate::sys::spawn::Command;

    fn socket() -> (tempfile::TempDir, NotifySocket) {
        let directory = tempfile::tempdir().unwrap();
        let socket = NotifySocket::bind(directory.path().join("n")).unwrap();
        (directory, socket)
    }

    async fn next(socket: &NotifySocket) -> Message {
        timeout(Duration::from_secs(10), socket.receive()).await.unwrap().unwrap()
    }

    fn client(socket: &NotifySocket) -> UnixDatagram {
        let client = UnixDatagram::unbound().unwrap();
        client.connect(socket.path()).unwrap();
        client
    }

    #[tokio::test]
    async fn a_message_says_who_sent_it() {
        let (_directory, socket) = socket();
        client(&socket).send(b"READY=1\nSTATUS=Ready").unwrap();
        assert_eq!(next(&socket).await, Message { pid: getpid(), text: "READY=1\nSTATUS=Ready".to_owned() });
        assert!(timeout(Duration::from_millis(10), socket.receive()).await.is_err());
        assert_eq!(symlink_metadata(socket.path()).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[tokio::test]
    async fn a_real_php_fpm_says_that_it_is_ready() {
        let (directory, socket) = socket();
        let config = directory.path().join("fpm.conf");
        let listen = directory.path().join("s");
        let text = format!(
            "[global]\ndaemonize = no\nerror_log = /dev/null\n[a]\nuser = nobody\nlisten = {}\npm = static\npm.max_children = 1\n",
            listen.display()
        );
        std::fs::write(&config, text).unwrap();
        let children = Children::start(Subreaper::Yes).unwrap();
        let command = Command::new("/usr/sbin/php-fpm8.2").args(["--nodaemonize", "--fpm-config"]).arg(&config);
        let mut master = children.spawn(&command.env("NOTIFY_SOCKET", socket.path())).unwrap();
        let message = next(&socket).await;
        assert_eq!(message.pid, master.pid());
        assert!(message.text.lines().any(|line| line == "READY=1"), "{}", message.text);
        master.signal(nix::sys::signal::Signal::SIGQUIT).unwrap();
        assert!(timeout(Duration::from_secs(10), master.exit()).await.unwrap().success());
    }

    #[tokio::test]
    async fn descriptors_beside_a_message_do_not_stay_open() {
        let (_directory, socket) = socket();
        let client = client(&socket);
        let (ours, theirs) = std::os::unix::net::UnixStream::pair().unwrap();
        let fds = [theirs.as_raw_fd()];
        sendmsg::<UnixAddr>(client.as_raw_fd(), &[IoSlice::new(b"FDSTORE=1")], &[ControlMessage::ScmRights(&fds)], MsgFlags::empty(), None)
            .unwrap();
        drop(theirs);
        client.send(b"READY=1").unwrap();
        assert_eq!(next(&socket).await.text, "READY=1");
        // The other end is closed: nobody holds the descriptor that was sent.
        ours.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        assert_eq!(io::Read::read(&mut &ours, &mut [0; 1]).unwrap(), 0);
    }

    #[tokio::test]
    async fn a_message_that_is_too_long_is_dropped() {
        let (_directory, socket) = socket();
        let client = client(&socket);
        client.send(&[b'x'; LIMIT_BYTES + 1]).unwrap();
        client.send(&[b'y'; LIMIT_BYTES]).unwrap();
        assert_eq!(next(&socket).await.text, "y".repeat(LIMIT_BYTES));
    }

    #[tokio::test]
    async fn the_path_is_taken_over_from_a_dead_one_and_goes_with_the_socket() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("n");
        drop(UnixDatagram::bind(&path).unwrap());
        let socket = NotifySocket::bind(&path).unwrap();
        client(&socket).send(b"READY=1").unwrap();
        assert_eq!(next(&socket).await.text, "READY=1");
        drop(socket);
        assert!(!path.exists());
        std::fs::write(&path, "a file").unwrap();
        let error = NotifySocket::bind(&path).unwrap_err();
        assert_eq!(error.to_string(), format!("make the notify socket {}", path.display()));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "a file");
    }
}
