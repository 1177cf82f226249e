//! Plain php-fpm masters, started as polyfpm would start them and with nothing of polyfpm in between.

use std::net::SocketAddrV4;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::signal::Signal;
use nix::sys::socket::{AddressFamily, Backlog, SockFlag, SockType, SockaddrIn, UnixAddr, bind, listen, setsockopt, socket, sockopt};

use super::process::{Running, children};
use super::{Ground, Peer, eventually};

/// How long a queue may be; what the kernel allows caps it.
const BACKLOG: i32 = 4096;

/// Gives the php-fpm under test: `PHP_FPM`, or what the distribution installs.
pub(crate) fn php_fpm() -> PathBuf {
    if let Some(named) = std::env::var_os("PHP_FPM") {
        return PathBuf::from(named);
    }
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/sbin").into_iter().flatten().flatten().map(|e| e.path()).collect();
    found.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("php-fpm")));
    found.sort();
    found.pop().expect("no php-fpm in /usr/sbin: run tests/setup.sh, or name one in PHP_FPM")
}

/// A listening socket that the test owns, as polyfpm would.
pub(crate) struct Listener {
    fd: OwnedFd,
    peer: Peer,
}

impl Listener {
    /// Binds a unix socket that everybody may use.
    pub(crate) fn unix(path: &Path) -> Self {
        let fd = socket(AddressFamily::Unix, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        bind(fd.as_raw_fd(), &UnixAddr::new(path).expect("a short path")).unwrap_or_else(|e| panic!("bind {}: {e}", path.display()));
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o666)).expect("permissions of the socket");
        Self::listening(fd, Peer::Unix(path.to_owned()))
    }

    /// Binds an address, alone or beside others that share the port.
    pub(crate) fn tcp(address: SocketAddrV4) -> Self {
        let fd = socket(AddressFamily::Inet, SockType::Stream, SockFlag::SOCK_CLOEXEC, None).expect("a socket");
        setsockopt(&fd, sockopt::ReuseAddr, &true).expect("SO_REUSEADDR");
        setsockopt(&fd, sockopt::ReusePort, &true).expect("SO_REUSEPORT");
        bind(fd.as_raw_fd(), &SockaddrIn::from(address)).unwrap_or_else(|e| panic!("bind {address}: {e}"));
        Self::listening(fd, Peer::Tcp(address.into()))
    }

    fn listening(fd: OwnedFd, peer: Peer) -> Self {
        listen(&fd, Backlog::new(BACKLOG).expect("a backlog")).expect("listen");
        Self { fd, peer }
    }

    /// Gives where clients connect.
    pub(crate) fn peer(&self) -> &Peer {
        &self.peer
    }

    /// Gives the socket.
    pub(crate) fn fd(&self) -> &OwnedFd {
        &self.fd
    }

    /// Sets the queue's length again on the live socket (P3).
    pub(crate) fn set_backlog(&self, connections: i32) {
        listen(&self.fd, Backlog::new(connections).expect("a backlog")).expect("listen again");
    }

    /// Says that the path has been renamed.
    pub(crate) fn moved(&mut self, path: &Path) {
        self.peer = Peer::Unix(path.to_owned());
    }
}

/// What a master is started with.
pub(crate) struct MasterPlan<'a> {
    /// Tells it apart from the others of the test.
    pub(crate) name: &'a str,
    /// Lines of `[global]`.
    pub(crate) global: String,
    /// Pools, whole sections.
    pub(crate) pools: String,
    /// Sockets it inherits, each under its alias.
    pub(crate) sockets: Vec<(String, &'a Listener)>,
    /// Further variables.
    pub(crate) environment: Vec<(String, String)>,
    /// Further arguments.
    pub(crate) arguments: Vec<String>,
    /// The php-fpm to run.
    pub(crate) binary: PathBuf,
    /// What runs it, such as `taskset`; its arguments follow.
    pub(crate) through: Vec<String>,
}

impl<'a> MasterPlan<'a> {
    /// Plans a master with one pool `www` of `workers` on `listener`, under the alias `NAME.alias` (P2).
    pub(crate) fn one_pool(ground: &Ground, name: &'a str, listener: &'a Listener, workers: u32) -> Self {
        let alias = match listener.peer() {
            Peer::Unix(_) => ground.text(&format!("run/{name}.alias")),
            Peer::Tcp(address) => address.to_string(),
        };
        let pools = format!("[www]\nlisten = {alias}\n{}", pool_lines(workers));
        let sockets = vec![(alias, listener)];
        let global = "process_control_timeout = 60s\n".to_owned();
        Self { name, global, pools, sockets, environment: Vec::new(), arguments: Vec::new(), binary: php_fpm(), through: Vec::new() }
    }

    /// Adds lines to the end of the last pool.
    pub(crate) fn and(mut self, lines: &str) -> Self {
        self.pools.push_str(lines);
        self.pools.push('\n');
        self
    }

    /// Sets the lines of `[global]`.
    pub(crate) fn global(mut self, lines: &str) -> Self {
        self.global = format!("{lines}\n");
        self
    }

    /// Runs it through another program.
    pub(crate) fn through(mut self, program: &[&str]) -> Self {
        self.through = program.iter().map(|s| (*s).to_owned()).collect();
        self
    }
}

/// Gives the lines of a pool that every test's pool has.
pub(crate) fn pool_lines(workers: u32) -> String {
    // Uploads of 20 MB pass.
    let limits = "php_admin_value[post_max_size] = 64M";
    format!("user = www-data\ngroup = www-data\npm = static\npm.max_children = {workers}\n{limits}\n")
}

/// A php-fpm master.
pub(crate) struct Master {
    /// The process.
    pub(crate) running: Running,
    notify: UnixDatagram,
}

impl Master {
    /// Starts a master and waits for its READY (P30).
    #[track_caller]
    pub(crate) fn start(ground: &Ground, plan: &MasterPlan<'_>) -> Self {
        let mut master = Self::launch(ground, plan);
        master.ready();
        master
    }

    /// Waits for its READY.
    #[track_caller]
    pub(crate) fn ready(&mut self) {
        eventually(Duration::from_secs(20), "a master tells READY", || {
            if let Some(status) = self.running.ended() {
                panic!("a master ended with {status} before it was ready:\n{}", self.running.output());
            }
            self.told().filter(|text| text.contains("READY=1"))
        });
    }

    /// Starts a master and waits for nothing.
    pub(crate) fn launch(ground: &Ground, plan: &MasterPlan<'_>) -> Self {
        let (name, notify_path) = (plan.name, ground.path(&format!("run/{}.notify", plan.name)));
        std::fs::remove_file(&notify_path).ok();
        let notify = UnixDatagram::bind(&notify_path).expect("a notify socket");
        notify.set_nonblocking(true).expect("a socket that does not wait");
        let global = format!("[global]\nerror_log = {}\ndaemonize = no\n{}", ground.text(&format!("log/{name}.error")), plan.global);
        let config = ground.write(&format!("run/{name}.conf"), &format!("{global}{}", plan.pools)).display().to_string();
        let keys: Vec<String> = plan.sockets.iter().map(|(key, listener)| format!("{key}={}", listener.fd.as_raw_fd())).collect();
        let (keys, notify_text) = (keys.join(","), notify_path.display().to_string());
        let mut environment = vec![("NOTIFY_SOCKET", notify_text.as_str())];
        if !keys.is_empty() {
            environment.push(("FPM_SOCKETS", keys.as_str()));
        }
        environment.extend(plan.environment.iter().map(|(name, value)| (name.as_str(), value.as_str())));
        let fpm = plan.binary.display().to_string();
        let mut words: Vec<&str> = plan.through.iter().map(String::as_str).collect();
        words.extend([fpm.as_str(), "--nodaemonize", "--fpm-config", config.as_str()]);
        words.extend(plan.arguments.iter().map(String::as_str));
        let log = ground.path(&format!("log/{name}.out"));
        let running = inheriting(&plan.sockets, || Running::start(Path::new(words[0]), &words[1..], &environment, &log));
        Self { running, notify }
    }

    /// Gives its pid.
    pub(crate) fn pid(&self) -> i32 {
        self.running.pid()
    }

    /// Gives the next message of its notify socket.
    pub(crate) fn told(&self) -> Option<String> {
        let mut text = [0; 4096];
        let length = self.notify.recv(&mut text).ok()?;
        Some(String::from_utf8_lossy(&text[..length]).into_owned())
    }

    /// Gives its workers.
    pub(crate) fn workers(&self) -> Vec<i32> {
        children(self.pid())
    }

    /// Tells it to finish what it does and leave, and waits until it has.
    #[track_caller]
    pub(crate) fn quit(mut self, deadline: Duration) {
        self.running.signal(Signal::SIGQUIT);
        self.running.wait(deadline);
    }
}

/// Lets the next program inherit these sockets. Tests of one process start programs one after another, so nothing else gets them.
fn inheriting<T>(sockets: &[(String, &Listener)], start: impl FnOnce() -> T) -> T {
    let set = |flag: FdFlag| {
        for (_, listener) in sockets {
            fcntl(listener.fd.as_fd(), FcntlArg::F_SETFD(flag)).expect("our own socket");
        }
    };
    set(FdFlag::empty());
    let started = start();
    set(FdFlag::FD_CLOEXEC);
    started
}
