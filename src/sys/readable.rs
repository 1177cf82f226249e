//! Waiting on the runtime until a descriptor can be read.
//!
//! The one place that registers a bare descriptor with tokio. Never for a listening socket that php-fpm inherits: what
//! tokio needs, O_NONBLOCK, would be seen by every worker (P6). A pidfd or an inotify descriptor needs no such mode here,
//! as it is only read once it is ready; those that are read until empty are made non-blocking by their owners.
#![expect(unsafe_code, reason = "tokio's registration of a descriptor trusts its owner to keep it open")]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// A descriptor that nothing else can close or exchange while it is registered.
#[derive(Debug)]
struct Owned(OwnedFd);

impl AsRawFd for Owned {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_raw_fd()
    }
}

/// A descriptor registered with the current runtime for reading.
#[derive(Debug)]
pub(super) struct Readable(AsyncFd<Owned>);

impl Readable {
    /// Registers `fd`. Must be called on a runtime.
    pub(super) fn new(fd: OwnedFd) -> io::Result<Self> {
        // SAFETY: `Owned` keeps its descriptor private, never exchanges it and closes it only when dropped, which is after
        // the registration's end, since `AsyncFd` owns it.
        let registered = unsafe { AsyncFd::register_with_interest(Owned(fd), Interest::READABLE) };
        registered.map(Self).map_err(io::Error::from)
    }

    /// Waits until there is something to read. Cancel safe.
    pub(super) async fn wait(&self) -> io::Result<()> {
        self.read(|_| Ok(())).await
    }

    /// Waits until `read` gives something else than `WouldBlock`. Cancel safe: `read` runs without a pause.
    pub(super) async fn read<T>(&self, mut read: impl FnMut(BorrowedFd<'_>) -> io::Result<T>) -> io::Result<T> {
        loop {
            let mut ready = self.0.readable().await?;
            if let Ok(done) = ready.try_io(|fd| read(fd.get_ref().0.as_fd())) {
                return done;
            }
        }
    }
}
