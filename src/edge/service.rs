//! The service manager's side: readiness, reload, stop, status text, watchdog (sd_notify(3)).
//!
//! Everything here does nothing where no `NOTIFY_SOCKET` is set. The address is taken from the environment once, so that
//! nothing a master does to its own environment matters. Messages are sent here and not by the sd-notify crate, whose texts
//! are used, because that crate cannot reach abstract sockets (`@…`), which some container managers use.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::linux::net::SocketAddrExt as _;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::time::Duration;

use sd_notify::NotifyState;

/// A manager that takes nothing for so long has troubles of its own; the loop must go on.
const SEND_TIMEOUT: Duration = Duration::from_millis(500);

/// Why the service manager was not told.
#[derive(Debug, thiserror::Error)]
pub enum ServiceError {
    /// The address cannot be used; `vsock:` is one such.
    #[error("use NOTIFY_SOCKET '{}'", address.display())]
    Address {
        /// The address as given.
        address: OsString,
        /// The system's reason.
        source: io::Error,
    },
    /// The message was not taken.
    #[error("tell the service manager {what}")]
    Send {
        /// What it was about: "READY=1", "STOPPING=1".
        what: String,
        /// The system's reason.
        source: io::Error,
    },
}

/// The way to the service manager, or to nowhere.
#[derive(Debug)]
pub struct Service {
    socket: Option<UnixDatagram>,
    watchdog: Option<Duration>,
}

impl Service {
    /// Takes `NOTIFY_SOCKET`, `WATCHDOG_USEC` and `WATCHDOG_PID` from the environment. Masters must not inherit them (P30).
    ///
    /// # Errors
    /// When the address cannot be used. The caller may go on with [`Service::absent`].
    pub fn from_environment() -> Result<Self, ServiceError> {
        Self::new(std::env::var_os("NOTIFY_SOCKET"), sd_notify::watchdog_enabled())
    }

    /// Takes an address (a path, or `@name` for an abstract one) and the watchdog's time-out.
    ///
    /// # Errors
    /// When the address cannot be used.
    pub fn new(address: Option<OsString>, watchdog: Option<Duration>) -> Result<Self, ServiceError> {
        let socket = match address {
            Some(address) if !address.is_empty() => Some(connect(&address).map_err(|source| ServiceError::Address { address, source })?),
            Some(_) | None => None,
        };
        Ok(Self { socket, watchdog: watchdog.filter(|timeout| !timeout.is_zero()) })
    }

    /// Gives a service without a manager: everything does nothing.
    pub const fn absent() -> Self {
        Self { socket: None, watchdog: None }
    }

    /// Tells whether there is a manager.
    pub const fn is_present(&self) -> bool {
        self.socket.is_some()
    }

    /// Says that start-up, or a reload, is finished.
    ///
    /// # Errors
    /// When the message was not taken.
    pub fn ready(&self, status: &str) -> Result<(), ServiceError> {
        self.send(&[NotifyState::Ready, NotifyState::Status(&one_line(status))])
    }

    /// Says that a reload has begun. [`Service::ready`] must follow, else the manager waits for ever.
    ///
    /// # Errors
    /// When the message was not taken.
    pub fn reloading(&self) -> Result<(), ServiceError> {
        let failed = |source| ServiceError::Send { what: NotifyState::Reloading.to_string(), source };
        self.send(&[NotifyState::Reloading, NotifyState::monotonic_usec_now().map_err(failed)?])
    }

    /// Says that the service is on its way out.
    ///
    /// # Errors
    /// When the message was not taken.
    pub fn stopping(&self) -> Result<(), ServiceError> {
        self.send(&[NotifyState::Stopping])
    }

    /// Shows a text in `systemctl status`.
    ///
    /// # Errors
    /// When the message was not taken.
    pub fn status(&self, text: &str) -> Result<(), ServiceError> {
        self.send(&[NotifyState::Status(&one_line(text))])
    }

    /// Says that the loop is alive. Must come from the loop itself, or a loop that hangs goes unnoticed.
    ///
    /// # Errors
    /// When the message was not taken.
    pub fn alive(&self) -> Result<(), ServiceError> {
        if self.watchdog.is_some() { self.send(&[NotifyState::Watchdog]) } else { Ok(()) }
    }

    /// Asks for more time before a start or stop counts as failed.
    ///
    /// # Errors
    /// When the message was not taken.
    pub fn extend(&self, by: Duration) -> Result<(), ServiceError> {
        self.send(&[NotifyState::ExtendTimeoutUsec(u32::try_from(by.as_micros()).unwrap_or(u32::MAX))])
    }

    /// Gives how often to call [`Service::alive`]: half the watchdog's time-out, as sd_watchdog_enabled(3) advises.
    pub fn watchdog_interval(&self) -> Option<Duration> {
        self.socket.as_ref().and(self.watchdog).map(|timeout| timeout / 2)
    }

    fn send(&self, states: &[NotifyState<'_>]) -> Result<(), ServiceError> {
        let Some(socket) = &self.socket else { return Ok(()) };
        let message = states.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n");
        let what = states.first().map(ToString::to_string).unwrap_or_default();
        socket.send(message.as_bytes()).map(drop).map_err(|source| ServiceError::Send { what, source })
    }
}

fn connect(address: &OsStr) -> io::Result<UnixDatagram> {
    let to = match address.as_bytes().strip_prefix(b"@") {
        Some(name) => SocketAddr::from_abstract_name(name)?,
        None => SocketAddr::from_pathname(address)?,
    };
    let socket = UnixDatagram::unbound()?;
    socket.connect_addr(&to)?;
    socket.set_write_timeout(Some(SEND_TIMEOUT))?;
    Ok(socket)
}

/// A line break would begin an assignment of its own, and names in a status come from settings and pool files.
fn one_line(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Listening {
        _directory: tempfile::TempDir,
        socket: UnixDatagram,
        service: Service,
    }

    fn manager(watchdog: Option<Duration>) -> Listening {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("notify");
        let socket = UnixDatagram::bind(&path).unwrap();
        socket.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        let service = Service::new(Some(path.into()), watchdog).unwrap();
        Listening { _directory: directory, socket, service }
    }

    fn received(socket: &UnixDatagram) -> String {
        let mut buffer = [0; 1000];
        let count = socket.recv(&mut buffer).unwrap();
        String::from_utf8(buffer[..count].to_vec()).unwrap()
    }

    #[test]
    fn each_message_is_one_datagram() {
        let manager = manager(Some(Duration::from_secs(10)));
        let service = &manager.service;
        service.ready("2 shards\nMAINPID=1\u{7}").unwrap();
        assert_eq!(received(&manager.socket), "READY=1\nSTATUS=2 shards MAINPID=1 ");
        service.reloading().unwrap();
        let text = received(&manager.socket);
        let (first, second) = text.split_once('\n').unwrap();
        assert_eq!(first, "RELOADING=1");
        assert!(second.strip_prefix("MONOTONIC_USEC=").unwrap().parse::<u64>().unwrap() > 0);
        service.stopping().unwrap();
        assert_eq!(received(&manager.socket), "STOPPING=1");
        service.alive().unwrap();
        assert_eq!(received(&manager.socket), "WATCHDOG=1");
        service.extend(Duration::from_secs(3)).unwrap();
        assert_eq!(received(&manager.socket), "EXTEND_TIMEOUT_USEC=3000000");
        assert_eq!(service.watchdog_interval(), Some(Duration::from_secs(5)));
    }

    #[test]
    fn abstract_addresses_work() {
        let name = format!("polyfpm-test-{}", std::process::id());
        let socket = UnixDatagram::bind_addr(&SocketAddr::from_abstract_name(&name).unwrap()).unwrap();
        let service = Service::new(Some(format!("@{name}").into()), None).unwrap();
        service.status("text").unwrap();
        assert_eq!(received(&socket), "STATUS=text");
    }

    #[test]
    fn without_a_manager_nothing_happens() {
        for address in [None, Some(OsString::new())] {
            let service = Service::new(address, Some(Duration::from_secs(10))).unwrap();
            assert!(!service.is_present());
            assert_eq!(service.watchdog_interval(), None);
            service.ready("").and_then(|()| service.reloading()).and_then(|()| service.alive()).unwrap();
        }
    }

    #[test]
    fn without_a_watchdog_nothing_is_fed() {
        let manager = manager(None);
        manager.service.alive().unwrap();
        manager.service.stopping().unwrap();
        assert_eq!(received(&manager.socket), "STOPPING=1");
    }

    #[test]
    fn an_address_that_cannot_be_used_is_an_error() {
        let error = Service::new(Some("/absent/notify".into()), None).unwrap_err();
        assert_eq!(error.to_string(), "use NOTIFY_SOCKET '/absent/notify'");
        let mut gone = manager(None);
        gone.socket = UnixDatagram::unbound().unwrap();
        assert!(matches!(gone.service.stopping().unwrap_err(), ServiceError::Send { what, .. } if what == "STOPPING=1"));
    }
}
