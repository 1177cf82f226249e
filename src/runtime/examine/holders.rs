//! Who else listens where the plan's listeners belong. Looked up in the kernel's tables: nobody is connected to.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use nix::unistd::Pid;

use super::at_listen;
use crate::model::endpoint::Endpoint;
use crate::model::ids::PoolName;
use crate::model::plan::Plan;
use crate::model::pool::PoolFiles;
use crate::model::problem::Problem;
use crate::model::settings::Settings;
use crate::sys::listener::{Holder, tcp_listeners};
use crate::sys::lock;
use crate::sys::proc::Proc;
use crate::sys::sock_diag;
use std::os::unix::fs::FileTypeExt;

/// What the master of a php-fpm calls itself.
const MASTER_TITLE: &str = "php-fpm: master process (";

/// Gives the endpoints of the plan that somebody else has, with the process.
pub(super) fn of_listeners(settings: &Settings, files: &PoolFiles, plan: &Plan) -> Vec<Problem> {
    let mut endpoints: BTreeMap<&Endpoint, &PoolName> = BTreeMap::new();
    for placement in plan.shards.iter().flat_map(|shard| &shard.placements) {
        endpoints.entry(&placement.listener.endpoint).or_insert(&placement.pool);
    }
    let supervisor = lock::held_by(&settings.runtime_directory.join("lock"));
    let masters = format!("{}/m/", settings.runtime_directory.display());
    let mut problems = Vec::new();
    let mut processes: Option<Processes> = None;
    for (endpoint, pool) in endpoints {
        if let Some(what) = endpoint.path().and_then(no_socket) {
            let message = format!("pool '{pool}': {endpoint} is a {what}, not a socket, and is left alone");
            problems.push(at_listen(files, pool, Problem::error(message).remedy("remove it, or give the pool another listen")));
            continue;
        }
        let inodes = listening(endpoint);
        if inodes.is_empty() {
            continue;
        }
        let processes = processes.get_or_insert_with(Processes::look);
        let holders = processes.holding(&inodes);
        let ours =
            |pid: &Pid| supervisor.is_some_and(|supervisor| processes.descends(*pid, supervisor)) || processes.is_master(*pid, &masters);
        if holders.iter().any(ours) {
            continue;
        }
        let holder = processes.first(&holders);
        let problem = match holder.filter(|pid| processes.proc.title(*pid).is_ok_and(|title| title.starts_with(MASTER_TITLE))) {
            Some(master) => to_take_over(endpoint, pool, master),
            None => taken(endpoint, pool, holder),
        };
        problems.push(at_listen(files, pool, problem));
    }
    problems
}

fn no_socket(path: &Path) -> Option<&'static str> {
    let kind = fs::symlink_metadata(path).ok()?.file_type();
    if kind.is_socket() {
        return None;
    }
    Some(if kind.is_dir() {
        "directory"
    } else if kind.is_file() {
        "regular file"
    } else if kind.is_symlink() {
        "symbolic link"
    } else if kind.is_fifo() {
        "FIFO"
    } else {
        "device"
    })
}

fn listening(endpoint: &Endpoint) -> Vec<u64> {
    match endpoint {
        Endpoint::Unix(path) => sock_diag::unix_queue_by_path(path).ok().flatten().map(|found| found.inode).into_iter().collect(),
        Endpoint::Tcp(address) => tcp_listeners(*address),
    }
}

/// A php-fpm that serves the pool now is where every take-over begins: no error.
fn to_take_over(endpoint: &Endpoint, pool: &PoolName, master: Pid) -> Problem {
    let process = Holder::of_pid(master.as_raw());
    let message = format!("pool '{pool}': {process} listens on {endpoint} already; the pool is kept out until it is taken over");
    Problem::warning(message).remedy("start polyfpm, then: polyfpm takeover; no request is lost".to_owned())
}

fn taken(endpoint: &Endpoint, pool: &PoolName, holder: Option<Pid>) -> Problem {
    let Some(pid) = holder else {
        let message = format!("pool '{pool}': somebody listens on {endpoint} already; polyfpm takes no address from a living listener");
        return Problem::error(message).remedy(format!("find it as root with ss -lp, and stop it; or give pool '{pool}' another listen"));
    };
    let process = Holder::of_pid(pid.as_raw());
    let message = format!("pool '{pool}': {process} listens on {endpoint} already; polyfpm takes no address from a living listener");
    let stop = match Proc::default().service_of(pid) {
        Some(unit) => format!("stop it before polyfpm starts: systemctl disable --now {unit}"),
        None => format!("stop {process} before polyfpm starts"),
    };
    Problem::error(message).remedy(format!("{stop}; or give one of the two another listen"))
}

/// Every process with the sockets it has open.
struct Processes {
    proc: Proc,
    sockets: Vec<(Pid, BTreeSet<u64>)>,
}

impl Processes {
    fn look() -> Self {
        let proc = Proc::default();
        let pids = proc.pids().unwrap_or_default();
        let sockets = pids.into_iter().filter_map(|pid| Some((pid, proc.socket_inodes_of(pid).ok()?))).collect();
        Self { proc, sockets }
    }

    fn holding(&self, inodes: &[u64]) -> Vec<Pid> {
        self.sockets.iter().filter(|(_, open)| inodes.iter().any(|inode| open.contains(inode))).map(|(pid, _)| *pid).collect()
    }

    /// Gives the one whose parent is not among them: php-fpm's master and not a worker.
    fn first(&self, pids: &[Pid]) -> Option<Pid> {
        let parent = |pid: Pid| self.proc.stat(pid).ok().map(|stat| stat.parent);
        pids.iter().copied().find(|pid| parent(*pid).is_none_or(|parent| !pids.contains(&parent)))
    }

    /// Tells whether it is a master of this instance that outlived its supervisor and waits for the next one.
    fn is_master(&self, pid: Pid, directory: &str) -> bool {
        self.proc.title(pid).is_ok_and(|title| title.starts_with(MASTER_TITLE) && title.contains(directory))
    }

    fn descends(&self, pid: Pid, ancestor: Pid) -> bool {
        let mut at = pid;
        // Deeper than any tree of processes: a bound against a loop in what is read while it changes.
        for _ in 0..64 {
            if at == ancestor {
                return true;
            }
            let Ok(stat) = self.proc.stat(at) else { return false };
            at = stat.parent;
        }
        false
    }
}
