//! Processes held by a descriptor: signals that cannot reach another process by a reused pid, and copies of descriptors.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use nix::unistd::Pid;
use rustix::process::{PidfdFlags, PidfdGetfdFlags, Signal, pidfd_getfd, pidfd_open, pidfd_send_signal};

/// A process that is not our child.
#[derive(Debug)]
pub struct Held(OwnedFd);

impl Held {
    /// Takes hold of process `pid`. The caller compares its start time *afterwards*.
    ///
    /// # Errors
    /// There is no such process, or the kernel is older than 5.3.
    pub fn open(pid: Pid) -> io::Result<Self> {
        let pid = rustix::process::Pid::from_raw(pid.as_raw()).ok_or(io::ErrorKind::NotFound)?;
        Ok(Self(pidfd_open(pid, PidfdFlags::empty())?))
    }

    /// Sends it a signal.
    ///
    /// # Errors
    /// ESRCH when it has ended, EPERM when we may not.
    pub fn signal(&self, signal: nix::sys::signal::Signal) -> io::Result<()> {
        let signal = Signal::from_named_raw(signal as i32).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(pidfd_send_signal(self.0.as_fd(), signal)?)
    }

    /// Gives a copy of its descriptor `number` (P24).
    ///
    /// # Errors
    /// It has no such descriptor, we may not (`CAP_SYS_PTRACE`), or the kernel is older than 5.6.
    pub fn fetch(&self, number: i32) -> io::Result<OwnedFd> {
        Ok(pidfd_getfd(&self.0, number, PidfdGetfdFlags::empty())?)
    }
}
