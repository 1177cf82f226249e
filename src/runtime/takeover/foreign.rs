//! A php-fpm master that is not ours, found by the sockets it has.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::edge::units::{Unit, UnitError};
use crate::model::endpoint::Endpoint;
use crate::model::ids::PoolName;
use crate::model::pool::Pool;
use crate::model::settings::Settings;
use crate::sys::children::Children;
use crate::sys::listener::{self, Holder, holder_at, tcp_listeners};
use crate::sys::pidfd;
use crate::sys::proc::{ListeningSocket, Proc};
use crate::sys::sock_diag;

/// What php-fpm writes over its arguments; its configuration and a closing parenthesis follow.
const MASTER_TITLE: &str = "php-fpm: master process (";

/// How our own masters' configuration file is called, below each master's directory.
const OWN_CONFIG: &str = "php-fpm.conf";

/// Says why no php-fpm can be taken over.
#[derive(Debug, thiserror::Error)]
pub(in crate::runtime) enum FindError {
    /// Nothing is in the way.
    #[error("no pool of this instance is kept out because another php-fpm has its socket")]
    Nothing,
    /// Somebody else is in the way.
    #[error("{endpoint}, the socket of pool {pool}, is held by {holder}, which is no php-fpm master that can be taken over")]
    Stranger { pool: PoolName, endpoint: Endpoint, holder: String },
    /// More than one is.
    #[error("several php-fpm masters have sockets of this instance's pools: {}", list(.0))]
    Several(Vec<i32>),
    /// What was named has none of the sockets.
    #[error("{0} has no socket of a pool of this instance")]
    Elsewhere(String),
    /// What was named does not run.
    #[error("{0} does not run")]
    NotRunning(String),
    /// Its pools are not all ours.
    #[error("php-fpm master {pid} listens on {} too, where no pool of this instance that can run does", list(.others))]
    Others { pid: i32, others: Vec<Endpoint> },
    /// There is no way to its TCP sockets.
    #[error("the socket {endpoint} of php-fpm master {pid} cannot be had: {why}")]
    Unreachable { pid: i32, endpoint: Endpoint, why: String },
    /// systemd was asked in vain.
    #[error(transparent)]
    Unit(#[from] UnitError),
    /// It cannot be held on to.
    #[error("look at php-fpm master {pid}")]
    Look {
        /// Its pid.
        pid: i32,
        /// Why not.
        source: io::Error,
    },
}

impl FindError {
    /// Gives what to do about it.
    pub(in crate::runtime) fn hint(&self) -> Option<String> {
        Some(match self {
            Self::Nothing => "polyfpm status shows what runs; a pool whose socket another php-fpm has is listed as quarantined".to_owned(),
            Self::Several(_) => "name one with --from PID or --from UNIT; take the others over afterwards".to_owned(),
            Self::Others { .. } => {
                "it would go with the master: mend that pool, add it to php.config of this instance, or take it out of the other's files and reload that php-fpm"
                    .to_owned()
            }
            Self::Unreachable { .. } => {
                "give the supervisor CAP_SYS_PTRACE on Linux 5.6 or later, or stop the other php-fpm first: its TCP address cannot be shared".to_owned()
            }
            Self::Stranger { .. } | Self::Elsewhere(_) | Self::NotRunning(_) | Self::Unit(_) | Self::Look { .. } => return None,
        })
    }
}

fn list<T: std::fmt::Display>(items: &[T]) -> String {
    items.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

/// How our masters come to its sockets.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(in crate::runtime) enum Way {
    /// They accept on the very same ones.
    Same,
    /// They accept on new ones, which take the paths when they have been proven.
    Rename,
}

/// One of its sockets, which is that of a pool of ours.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(in crate::runtime) struct Taken {
    pub(in crate::runtime) pool: PoolName,
    pub(in crate::runtime) endpoint: Endpoint,
    /// The number of the descriptor in the master, where that can be seen.
    pub(in crate::runtime) fd: Option<i32>,
    pub(in crate::runtime) inode: u64,
    /// How many connections may wait there now; absent for TCP.
    pub(in crate::runtime) queue: Option<u32>,
}

/// A process by pid and start time, which together name one for ever.
#[derive(Debug)]
pub(in crate::runtime) struct Process {
    pub(in crate::runtime) pid: Pid,
    pub(in crate::runtime) start_ticks: u64,
    held: Option<pidfd::Held>,
}

impl Process {
    /// Takes hold of a living process.
    pub(in crate::runtime) fn of(pid: Pid) -> io::Result<Self> {
        // Held first: the start time is then that of the one that is held. Kernels before 5.3 cannot.
        let held = pidfd::Held::open(pid).ok();
        let stat = Proc::default().stat(pid).map_err(|error| error.source)?;
        if stat.is_zombie() {
            return Err(io::ErrorKind::NotFound.into());
        }
        Ok(Self { pid, start_ticks: stat.start_ticks, held })
    }

    /// Stands for a process that has ended.
    pub(in crate::runtime) const fn gone(pid: Pid, start_ticks: u64) -> Self {
        Self { pid, start_ticks, held: None }
    }

    /// Tells whether it lives.
    pub(in crate::runtime) fn lives(&self) -> bool {
        Proc::default().stat(self.pid).is_ok_and(|stat| stat.start_ticks == self.start_ticks && !stat.is_zombie())
    }

    pub(in crate::runtime) fn signal(&self, signal: Signal) -> io::Result<()> {
        match &self.held {
            Some(held) => held.signal(signal),
            None if self.lives() => Ok(kill(self.pid, signal)?),
            None => Err(io::ErrorKind::NotFound.into()),
        }
    }

    /// Gives a copy of one of its descriptors.
    pub(in crate::runtime) fn fetch(&self, fd: i32) -> io::Result<std::os::fd::OwnedFd> {
        self.held.as_ref().ok_or(io::ErrorKind::Unsupported)?.fetch(fd)
    }
}

/// The master that is to be taken over.
#[derive(Debug)]
pub(in crate::runtime) struct Foreign {
    pub(in crate::runtime) process: Process,
    /// Its configuration, as its title tells.
    pub(in crate::runtime) config: PathBuf,
    pub(in crate::runtime) sockets: Vec<Taken>,
    pub(in crate::runtime) unit: Option<Unit>,
    pub(in crate::runtime) way: Way,
    /// What the operator should know before it goes.
    pub(in crate::runtime) warnings: Vec<String>,
}

impl Foreign {
    /// Gives it in words: `php-fpm master 123 of php8.2-fpm.service (/etc/php/8.2/fpm/php-fpm.conf)`.
    pub(in crate::runtime) fn words(&self) -> String {
        let unit = self.unit.as_ref().map(|unit| format!(" of {}", unit.name())).unwrap_or_default();
        format!("php-fpm master {}{unit} ({})", self.process.pid, self.config.display())
    }
}

/// What a search starts from.
#[derive(Debug)]
pub(in crate::runtime) struct Search {
    pub(in crate::runtime) children: Children,
    pub(in crate::runtime) settings: std::rc::Rc<Settings>,
    /// Pools that are kept out because somebody listens at their place.
    pub(in crate::runtime) wanted: Vec<(PoolName, Endpoint)>,
    /// Every pool of the files.
    pub(in crate::runtime) pools: Vec<Pool>,
    /// The unit or pid that was asked for.
    pub(in crate::runtime) from: Option<String>,
}

impl Search {
    /// Finds the master, its pools and their sockets.
    pub(in crate::runtime) async fn run(&self) -> Result<Foreign, FindError> {
        let inodes = self.inodes();
        let (pid, named_unit) = match &self.from {
            Some(from) => self.named(from).await?,
            None => (self.in_the_way(&inodes)?, None),
        };
        let look = |source| FindError::Look { pid: pid.as_raw(), source };
        let process = Process::of(pid).map_err(look)?;
        let title = Proc::default().title(pid).unwrap_or_default();
        let Some(config) = config_of(&title) else {
            return Err(FindError::Elsewhere(format!("process {pid} ({title})")));
        };
        let listening = Proc::default().listening_of(pid).ok();
        let sockets = self.taken(pid, &inodes, listening.as_deref());
        if sockets.is_empty() {
            return Err(FindError::Elsewhere(format!("php-fpm master {pid}")));
        }
        let mut warnings = self.differences(pid, &config);
        match listening {
            Some(listening) => warnings.extend(self.others(pid, &sockets, &listening)?),
            None => {
                warnings.push("its descriptors cannot be seen, so it may listen on sockets that no pool of this instance has".to_owned());
            }
        }
        let way = way_to(&process, &sockets)?;
        let unit = match named_unit {
            Some(unit) => Some(unit),
            None => self.unit_of(pid).await,
        };
        Ok(Foreign { process, config, sockets, unit, way, warnings })
    }

    /// Gives the inodes of the sockets at each wanted place.
    fn inodes(&self) -> BTreeMap<&Endpoint, (Vec<u64>, Option<u32>)> {
        let paths: Vec<(&Endpoint, &Path)> = self.wanted.iter().filter_map(|(_, endpoint)| Some((endpoint, endpoint.path()?))).collect();
        let queues = sock_diag::unix_queues_by_path(&paths.iter().map(|(_, path)| *path).collect::<Vec<_>>()).unwrap_or_default();
        let unix = paths.into_iter().zip(queues);
        let mut inodes: BTreeMap<&Endpoint, (Vec<u64>, Option<u32>)> =
            unix.filter_map(|((endpoint, _), found)| found.map(|found| (endpoint, (vec![found.inode], Some(found.queue.max))))).collect();
        for (_, endpoint) in &self.wanted {
            if let Endpoint::Tcp(address) = endpoint {
                inodes.insert(endpoint, (tcp_listeners(*address), None));
            }
        }
        inodes
    }

    async fn named(&self, from: &str) -> Result<(Pid, Option<Unit>), FindError> {
        if let Ok(pid) = from.parse::<i32>() {
            return if pid > 1 && Process::of(Pid::from_raw(pid)).is_ok() {
                Ok((Pid::from_raw(pid), None))
            } else {
                Err(FindError::NotRunning(format!("process {from}")))
            };
        }
        let unit = Unit::new(&self.children, from)?;
        let pid = unit.main_pid().await?.ok_or_else(|| FindError::NotRunning(unit.name().to_owned()))?;
        Ok((pid, Some(unit)))
    }

    /// Gives the one master that has sockets of wanted places.
    fn in_the_way(&self, inodes: &BTreeMap<&Endpoint, (Vec<u64>, Option<u32>)>) -> Result<Pid, FindError> {
        let proc = Proc::default();
        let all: BTreeSet<u64> = inodes.values().flat_map(|(inodes, _)| inodes).copied().collect();
        if all.is_empty() {
            return Err(FindError::Nothing);
        }
        let mut masters: BTreeSet<Pid> = BTreeSet::new();
        for pid in proc.pids().unwrap_or_default() {
            let is_master = || proc.title(pid).is_ok_and(|title| config_of(&title).is_some());
            if is_master() && proc.socket_inodes_of(pid).is_ok_and(|open| open.iter().any(|inode| all.contains(inode))) {
                masters.insert(pid);
            }
        }
        if masters.is_empty() {
            // Without the right to see its descriptors the kernel still tells who listens.
            let holders = self.wanted.iter().filter_map(|(_, endpoint)| holder_at(endpoint.path()?));
            let pids = holders.map(|holder| Pid::from_raw(holder.pid));
            masters.extend(pids.filter(|pid| proc.title(*pid).is_ok_and(|title| config_of(&title).is_some())));
        }
        let mut found = masters.iter().copied();
        match (found.next(), found.next()) {
            (Some(pid), None) => Ok(pid),
            (Some(_), Some(_)) => Err(FindError::Several(masters.iter().map(|pid| pid.as_raw()).collect())),
            (None, _) => Err(self.stranger(inodes)),
        }
    }

    fn stranger(&self, inodes: &BTreeMap<&Endpoint, (Vec<u64>, Option<u32>)>) -> FindError {
        let first = self.wanted.iter().find(|(_, endpoint)| inodes.get(endpoint).is_some_and(|(inodes, _)| !inodes.is_empty()));
        let Some((pool, endpoint)) = first else { return FindError::Nothing };
        let known = inodes.get(endpoint).map(|(inodes, _)| inodes.clone()).unwrap_or_default();
        let proc = Proc::default();
        let pids = proc.pids().unwrap_or_default();
        let holding =
            pids.into_iter().find(|pid| proc.socket_inodes_of(*pid).is_ok_and(|open| known.iter().any(|inode| open.contains(inode))));
        let holder = holding.map(|pid| Holder::of_pid(pid.as_raw())).or_else(|| holder_at(endpoint.path()?));
        let holder = holder.map_or_else(|| "a process that cannot be seen".to_owned(), |holder| holder.to_string());
        FindError::Stranger { pool: pool.clone(), endpoint: endpoint.clone(), holder }
    }

    /// Gives those of the wanted sockets that the master has.
    fn taken(&self, pid: Pid, inodes: &BTreeMap<&Endpoint, (Vec<u64>, Option<u32>)>, listening: Option<&[ListeningSocket]>) -> Vec<Taken> {
        let mut taken: Vec<Taken> = Vec::new();
        for (pool, endpoint) in &self.wanted {
            let Some((inodes, queue)) = inodes.get(endpoint) else { continue };
            let one = |fd, inode| Taken { pool: pool.clone(), endpoint: endpoint.clone(), fd, inode, queue: *queue };
            let socket = match listening {
                Some(listening) => listening
                    .iter()
                    .find(|socket| inodes.contains(&socket.inode) && (endpoint.path().is_some() || socket.bound == *endpoint))
                    .map(|socket| one(Some(socket.fd), socket.inode)),
                None => {
                    let its = endpoint.path().and_then(holder_at).is_some_and(|holder| holder.pid == pid.as_raw());
                    inodes.first().filter(|_| its).map(|inode| one(None, *inode))
                }
            };
            taken.extend(socket);
        }
        taken
    }

    /// Gives what is said of sockets that would go with the master.
    fn others(&self, pid: Pid, sockets: &[Taken], listening: &[ListeningSocket]) -> Result<Vec<String>, FindError> {
        let beyond = listening.iter().filter(|socket| !sockets.iter().any(|taken| taken.inode == socket.inode));
        let (status, others): (Vec<&ListeningSocket>, Vec<_>) = beyond.partition(|socket| self.is_status_socket(&socket.bound));
        if !others.is_empty() {
            return Err(FindError::Others { pid: pid.as_raw(), others: others.into_iter().map(|socket| socket.bound.clone()).collect() });
        }
        let gone = |socket: &ListeningSocket| {
            format!("{}, a pm.status_listen, goes with it: ask polyfpm for the status of its pools", socket.bound)
        };
        Ok(status.into_iter().map(gone).collect())
    }

    fn is_status_socket(&self, bound: &Endpoint) -> bool {
        let lines = self.pools.iter().flat_map(|pool| &pool.lines).filter(|line| line.key == "pm.status_listen");
        let mut values = lines.map(|line| line.value.as_str());
        values.any(|value| match bound {
            Endpoint::Unix(path) => path.as_os_str() == value,
            Endpoint::Tcp(address) => value.rsplit(':').next().and_then(|port| port.parse().ok()) == Some(address.port()),
        })
    }

    /// Gives how it differs from what our masters will be.
    fn differences(&self, pid: Pid, config: &Path) -> Vec<String> {
        let real = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        let php = &self.settings.php;
        let mut told = Vec::new();
        if real(config) != real(&php.config) {
            told.push(format!("it read {}, this instance reads {}", config.display(), php.config.display()));
        }
        let proc = Proc::default();
        if let Ok(exe) = proc.exe(pid) {
            if exe.deleted {
                told.push(format!("its binary {} was replaced since it was started", exe.path.display()));
            } else if real(&exe.path) != real(&php.binary) {
                told.push(format!("it runs {}, this instance runs {}", exe.path.display(), php.binary.display()));
            }
        }
        let place = |path: &Path| std::fs::metadata(path).ok().map(|meta| (meta.dev(), meta.ino()));
        if let (Some(its), Some(ours)) = (place(&proc.seen_by(pid, "/tmp")), place(Path::new("/tmp")))
            && its != ours
        {
            told.push(
                "its /tmp is private: what its scripts keep there, such as sessions, is not in the /tmp of this supervisor's masters \
                 (a unit with PrivateTmp=yes and JoinsNamespaceOf= of its unit, started while it runs, shares it)"
                    .to_owned(),
            );
        }
        told
    }

    /// Gives its unit: the service whose main process it is. One that was started by hand within another service has none.
    async fn unit_of(&self, pid: Pid) -> Option<Unit> {
        let unit = Unit::new(&self.children, &Proc::default().service_of(pid)?).ok()?;
        match tokio::time::timeout(Duration::from_secs(10), unit.main_pid()).await {
            Ok(Ok(Some(main))) if main == pid => Some(unit),
            _ => None,
        }
    }
}

/// Tells whether our masters can have its very sockets, by fetching one.
fn way_to(process: &Process, sockets: &[Taken]) -> Result<Way, FindError> {
    let refused = |taken: &Taken| match taken.fd {
        Some(fd) => process.fetch(fd).err(),
        None => Some(io::ErrorKind::PermissionDenied.into()),
    };
    let Some(error) = sockets.first().and_then(refused) else { return Ok(Way::Same) };
    match sockets.iter().find(|taken| taken.endpoint.path().is_none()) {
        Some(taken) => Err(FindError::Unreachable { pid: process.pid.as_raw(), endpoint: taken.endpoint.clone(), why: error.to_string() }),
        None => Ok(Way::Rename),
    }
}

/// Gives the configuration of a master by its title, if it is one and not of polyfpm.
pub(in crate::runtime) fn config_of(title: &str) -> Option<PathBuf> {
    let config = PathBuf::from(title.strip_prefix(MASTER_TITLE)?.strip_suffix(')')?);
    let own = config.file_name().is_some_and(|name| name == OWN_CONFIG) && config.with_file_name("master.json").exists();
    (!own).then_some(config)
}

/// Gives the queue length that a socket of a pool gets: never less than it has.
pub(in crate::runtime) fn backlog_for(settings: &Settings, taken: &Taken) -> u32 {
    let wanted = settings.listen.backlog_connections.unwrap_or_else(listener::somaxconn);
    wanted.max(taken.queue.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_master_is_known_by_its_title() {
        let known = |title: &str| config_of(title);
        assert_eq!(known("php-fpm: master process (/etc/php/8.2/fpm/php-fpm.conf)"), Some("/etc/php/8.2/fpm/php-fpm.conf".into()));
        for title in ["php-fpm: pool www", "php-fpm: master process", "/usr/sbin/php-fpm8.2 --nodaemonize", ""] {
            assert_eq!(known(title), None, "{title}");
        }
        let directory = tempfile::tempdir().unwrap();
        let config = directory.path().join("php-fpm.conf");
        let title = format!("{MASTER_TITLE}{})", config.display());
        assert_eq!(known(&title), Some(config));
        std::fs::write(directory.path().join("master.json"), "{}").unwrap();
        assert_eq!(known(&title), None, "one of ours");
    }
}
