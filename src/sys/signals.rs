//! Signals as a stream.
//!
//! Owns the handlers of the six signals a person or a service manager sends to the supervisor. They are installed when a
//! [`Signals`] is made and not when it is first awaited, so that no signal kills us in between. A handler only sets its
//! signal's flag and then writes one byte to a socket: what counts is the flag, the byte only wakes. As everywhere in
//! POSIX, a signal sent twice before it is taken is seen once.
//!
//! Source: signal(7).

use std::io;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use nix::sys::signal::{SigSet, Signal, kill};
use nix::unistd::getpid;
use signal_hook::SigId;
use signal_hook::low_level::unregister;
use tokio::net::UnixStream;

/// A signal that was sent to us.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Received {
    /// SIGTERM.
    Term,
    /// SIGINT.
    Int,
    /// SIGQUIT.
    Quit,
    /// SIGHUP.
    Hup,
    /// SIGUSR1.
    Usr1,
    /// SIGUSR2.
    Usr2,
}

/// All of them, in the order in which they are given when several wait: who wants us to stop is heard first.
const ALL: [(Received, Signal); 6] = [
    (Received::Term, Signal::SIGTERM),
    (Received::Int, Signal::SIGINT),
    (Received::Quit, Signal::SIGQUIT),
    (Received::Hup, Signal::SIGHUP),
    (Received::Usr1, Signal::SIGUSR1),
    (Received::Usr2, Signal::SIGUSR2),
];

/// The signals sent to us since this was made.
#[derive(Debug)]
pub struct Signals {
    flags: Vec<(Received, Arc<AtomicBool>)>,
    handlers: Vec<SigId>,
    woken: UnixStream,
}

impl Signals {
    /// Installs the handlers. Must be called on a runtime.
    ///
    /// # Errors
    /// When the system has no descriptors left or refuses a handler.
    pub fn new() -> io::Result<Self> {
        let (woken, wake) = StdUnixStream::pair()?;
        woken.set_nonblocking(true)?;
        let mut signals = Self { flags: Vec::new(), handlers: Vec::new(), woken: UnixStream::from_std(woken)? };
        for (received, signal) in ALL {
            let flag = Arc::new(AtomicBool::new(false));
            // First the flag, then the byte: handlers run in the order in which they were registered.
            signals.handlers.push(signal_hook::flag::register(signal as i32, Arc::clone(&flag))?);
            signals.handlers.push(signal_hook::low_level::pipe::register(signal as i32, wake.try_clone()?)?);
            signals.flags.push((received, flag));
        }
        // Whoever started us may have blocked them.
        ALL.iter().map(|(_, signal)| *signal).collect::<SigSet>().thread_unblock()?;
        Ok(signals)
    }

    /// Waits for the next signal.
    ///
    /// # Cancel safety
    /// Safe: a signal is taken only in the call that returns it.
    pub async fn next(&mut self) -> Received {
        loop {
            if let Some((received, _)) = self.flags.iter().find(|(_, flag)| flag.swap(false, Ordering::SeqCst)) {
                return *received;
            }
            // The other end is held by the handlers, so this neither ends nor fails; if it did, there is nothing to give.
            if self.woken.readable().await.is_err() || !self.take_wakes() {
                std::future::pending::<()>().await;
            }
        }
    }

    /// Sends every signal that was heard and not yet given to ourselves again, for the program image that follows this one.
    /// Signals must be blocked: then they are pending when it installs its handlers.
    pub fn pass_on(&self, _deaf: &super::handoff::Deaf) {
        for (flag, signal) in self.flags.iter().zip(ALL).map(|((_, flag), (_, signal))| (flag, signal)) {
            if flag.swap(false, Ordering::SeqCst)
                && let Err(errno) = kill(getpid(), signal)
            {
                tracing::warn!(signal = %signal, error = %errno, "signal was not passed on");
            }
        }
    }

    /// Empties the socket; the flags are looked at afterwards, so no wake is lost. False when it is closed.
    fn take_wakes(&self) -> bool {
        let mut bytes = [0; 64];
        loop {
            match self.woken.try_read(&mut bytes) {
                Ok(0) => return false,
                Ok(_) => {}
                Err(error) => return error.kind() == io::ErrorKind::WouldBlock,
            }
        }
    }
}

impl Drop for Signals {
    fn drop(&mut self) {
        for handler in self.handlers.drain(..) {
            unregister(handler);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use tokio::time::timeout;

    use super::*;

    // One test: a signal reaches every stream of the process.
    #[tokio::test]
    async fn each_signal_is_given_once_whether_or_not_anyone_waited_when_it_came() {
        let mut signals = Signals::new().unwrap();
        let mut other = Signals::new().unwrap();
        for (received, signal) in ALL {
            kill(getpid(), signal).unwrap();
            assert_eq!(timeout(Duration::from_secs(10), signals.next()).await.unwrap(), received);
        }
        assert!(timeout(Duration::from_millis(20), signals.next()).await.is_err());

        let waiting = tokio::spawn(async move { (signals.next().await, signals) });
        tokio::task::yield_now().await;
        kill(getpid(), Signal::SIGUSR2).unwrap();
        let (received, mut signals) = timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
        assert_eq!(received, Received::Usr2);

        // A wait that was given up loses nothing.
        assert!(timeout(Duration::from_millis(1), signals.next()).await.is_err());
        kill(getpid(), Signal::SIGHUP).unwrap();
        kill(getpid(), Signal::SIGTERM).unwrap();
        // Both are delivered before kill returns to a thread that does not block them, or shortly after to another.
        let mut both = [signals.next().await, signals.next().await];
        both.sort_by_key(|received| *received as u8);
        assert_eq!(both, [Received::Term, Received::Hup]);

        // The other stream got them all too, each signal once; who stops us is heard first.
        for (received, _) in ALL {
            assert_eq!(timeout(Duration::from_secs(10), other.next()).await.unwrap(), received);
        }
        assert!(timeout(Duration::from_millis(20), other.next()).await.is_err());
    }
}
