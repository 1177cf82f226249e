//! What /proc says of processes.
//!
//! Reads, and decides nothing. The root is a parameter so that tests can show a host this one is not. Any process may end
//! between two reads: that is [`ProcError::is_gone`] and no fault. A pid with its start time names one process for ever;
//! the pid alone does not.
//!
//! Sources: proc_pid_stat(5), proc_pid_status(5), proc_pid_limits(5), proc_pid_smaps(5), sched_getaffinity(2).
#![expect(unsafe_code, reason = "nix reads an affinity mask of at most 1024 CPUs")]

mod listening;
mod memory;
mod mounts;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use nix::errno::Errno;
use nix::unistd::Pid;

use super::spawn::Limit;
use crate::model::cpus::{CpuSet, MAX_CPU};

pub use listening::ListeningSocket;
pub use mounts::Mounts;

/// What the kernel appends to the path of a file that was removed or replaced.
const DELETED: &str = " (deleted)";

/// Says what could not be read.
#[derive(Debug, thiserror::Error)]
#[error("read {}", .path.display())]
pub struct ProcError {
    /// The file or directory.
    pub path: PathBuf,
    /// What the system said; `InvalidData` when the text is not what the manual says.
    #[source]
    pub source: io::Error,
}

impl ProcError {
    /// Tells whether the process has ended.
    pub fn is_gone(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound || self.source.raw_os_error() == Some(libc::ESRCH)
    }
}

/// One process as `stat` shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Stat {
    /// The program's short name, at most 15 bytes.
    pub comm: String,
    /// `R`, `S`, `D`, `Z`, `T` and rarer ones.
    pub state: char,
    /// Its parent.
    pub parent: Pid,
    /// Its process group.
    pub group: Pid,
    /// Its session.
    pub session: Pid,
    /// When it was started, in clock ticks since the boot of the host.
    pub start_ticks: u64,
}

impl Stat {
    /// Tells whether it has ended and only waits to be collected.
    pub fn is_zombie(&self) -> bool {
        matches!(self.state, 'Z' | 'X')
    }
}

/// The program a process runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exe {
    /// Its path when it was started.
    pub path: PathBuf,
    /// Whether that file has since been removed or replaced, as by a package upgrade.
    pub deleted: bool,
}

/// A process file system.
#[derive(Debug, Clone)]
pub struct Proc {
    root: PathBuf,
}

impl Default for Proc {
    fn default() -> Self {
        Self::at("/proc")
    }
}

impl Proc {
    /// Reads below `root` instead of `/proc`.
    pub fn at(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Gives the pids of all processes, in ascending order.
    ///
    /// # Errors
    /// When the root cannot be read.
    pub fn pids(&self) -> Result<Vec<Pid>, ProcError> {
        let mut pids: Vec<Pid> = names(&self.root)?.iter().filter_map(|name| number(name)).map(Pid::from_raw).collect();
        pids.sort_unstable();
        Ok(pids)
    }

    /// Gives name, state, relations and start time.
    ///
    /// # Errors
    /// When the process is gone or the text is unknown.
    pub fn stat(&self, pid: Pid) -> Result<Stat, ProcError> {
        let path = self.file(pid, "stat");
        parse_stat(&text(&path)?).ok_or_else(|| unknown(path))
    }

    /// Gives the living children of all its threads, in ascending order; exact for those that live through the call.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn children_of(&self, pid: Pid) -> Result<Vec<Pid>, ProcError> {
        let tasks = self.file(pid, "task");
        let mut children = Vec::new();
        for task in names(&tasks)? {
            let path = tasks.join(task).join("children");
            match text(&path) {
                Ok(listed) => children.extend(listed.split_ascii_whitespace().filter_map(number).map(Pid::from_raw)),
                // The thread ended, or the kernel was built without this file.
                Err(error) if error.is_gone() && path.parent().is_some_and(Path::exists) => return self.children_by_parent(pid),
                Err(error) if error.is_gone() => {}
                Err(error) => return Err(error),
            }
        }
        children.sort_unstable();
        Ok(children)
    }

    fn children_by_parent(&self, parent: Pid) -> Result<Vec<Pid>, ProcError> {
        let is_child = |pid: &Pid| self.stat(*pid).is_ok_and(|stat| stat.parent == parent);
        Ok(self.pids()?.into_iter().filter(is_child).collect())
    }

    /// Gives the living processes of a group, in ascending order; none when the root cannot be read.
    pub fn group(&self, group: Pid) -> Vec<Pid> {
        let is_member = |pid: &Pid| self.stat(*pid).is_ok_and(|stat| stat.group == group && !stat.is_zombie());
        self.pids().unwrap_or_default().into_iter().filter(is_member).collect()
    }

    /// Gives its arguments, or what it has written over them; empty for a kernel thread and for a zombie.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn cmdline(&self, pid: Pid) -> Result<Vec<String>, ProcError> {
        let path = self.file(pid, "cmdline");
        let bytes = fs::read(&path).map_err(|source| ProcError { path, source })?;
        let text = String::from_utf8_lossy(&bytes);
        // A program that writes a title of its own leaves zeros behind it.
        let text = text.trim_end_matches('\0');
        Ok(if text.is_empty() { Vec::new() } else { text.split('\0').map(str::to_owned).collect() })
    }

    /// Gives its arguments as one text: `php-fpm: master process (/etc/php/8.2/fpm/php-fpm.conf)`.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn title(&self, pid: Pid) -> Result<String, ProcError> {
        Ok(self.cmdline(pid)?.join(" ").trim().to_owned())
    }

    /// Gives its threads.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn threads_of(&self, pid: Pid) -> Result<Vec<Pid>, ProcError> {
        Ok(names(&self.file(pid, "task"))?.iter().filter_map(|name| number(name)).map(Pid::from_raw).collect())
    }

    /// Gives the CPUs it may run on.
    ///
    /// # Errors
    /// When the process is gone or the text is unknown.
    pub fn cpus_allowed(&self, pid: Pid) -> Result<CpuSet, ProcError> {
        let path = self.file(pid, "status");
        let text = text(&path)?;
        let list = text.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        list.and_then(|list| list.trim().parse().ok()).ok_or_else(|| unknown(path))
    }

    /// Gives its limits by the kernel's names: `Max open files`.
    ///
    /// # Errors
    /// When the process is gone.
    pub fn limits(&self, pid: Pid) -> Result<BTreeMap<String, Limit>, ProcError> {
        let text = text(&self.file(pid, "limits"))?;
        Ok(text.lines().skip(1).filter_map(parse_limit).collect())
    }

    /// Gives the program it runs.
    ///
    /// # Errors
    /// When the process is gone, is a kernel thread, or is not ours to see.
    pub fn exe(&self, pid: Pid) -> Result<Exe, ProcError> {
        let path = self.file(pid, "exe");
        let target = fs::read_link(&path).map_err(|source| ProcError { path, source })?;
        Ok(match target.to_str().and_then(|target| target.strip_suffix(DELETED)) {
            Some(before) => Exe { path: before.into(), deleted: true },
            None => Exe { path: target, deleted: false },
        })
    }

    /// Gives the inodes of the sockets it has open.
    ///
    /// # Errors
    /// When the process is gone or is not ours to see.
    pub fn socket_inodes_of(&self, pid: Pid) -> Result<BTreeSet<u64>, ProcError> {
        Ok(self.sockets_of(pid)?.into_keys().collect())
    }

    /// Gives the sockets it has open: the inode of each and one of the numbers it has there.
    ///
    /// # Errors
    /// When the process is gone or is not ours to see.
    pub fn sockets_of(&self, pid: Pid) -> Result<BTreeMap<u64, i32>, ProcError> {
        let directory = self.file(pid, "fd");
        let mut sockets = BTreeMap::new();
        for name in names(&directory)? {
            // One that was closed in the meantime is none.
            let Ok(target) = fs::read_link(directory.join(&name)) else { continue };
            let inode: Option<u64> = target.to_str().and_then(|target| target.strip_prefix("socket:[")?.strip_suffix(']')?.parse().ok());
            sockets.extend(inode.zip(name.parse().ok()));
        }
        Ok(sockets)
    }

    /// Gives its share of the memory it uses, in bytes: pages used by several processes count in part. Costs the kernel a
    /// walk through all its pages, some 0.3 ms for a worker.
    ///
    /// # Errors
    /// When the process is gone, is a zombie, or is not ours to see.
    pub fn memory_pss(&self, pid: Pid) -> Result<u64, ProcError> {
        let path = self.file(pid, "smaps_rollup");
        let text = text(&path)?;
        let size = text.lines().find_map(|line| line.strip_prefix("Pss:")?.trim().strip_suffix(" kB")?.trim().parse::<u64>().ok());
        size.and_then(|kib| kib.checked_mul(1024)).ok_or_else(|| unknown(path))
    }

    /// Reads what is mounted where, for questions about files.
    ///
    /// # Errors
    /// When our own mounts or the list of processes cannot be read. Processes that cannot be examined are passed over.
    pub fn mounts(&self) -> Result<Mounts, ProcError> {
        Mounts::read(self)
    }

    fn file(&self, pid: Pid, name: &str) -> PathBuf {
        self.root.join(pid.to_string()).join(name)
    }
}

/// Gives the CPUs this process may use.
///
/// # Errors
/// When the kernel's mask is longer than 65,536 CPUs.
pub fn available_cpus() -> io::Result<CpuSet> {
    let bits = libc::c_ulong::BITS;
    // As much as `cpu_set_t` first, then doubled: the kernel refuses a buffer shorter than its own mask.
    let mut words = (1024 / bits) as usize;
    loop {
        let mut mask: Vec<libc::c_ulong> = vec![0; words];
        // SAFETY: the kernel writes at most the bytes of the vector, which lives through the call.
        let result = unsafe { libc::sched_getaffinity(0, size_of_val(mask.as_slice()), mask.as_mut_ptr().cast()) };
        match Errno::result(result) {
            Ok(_) => return Ok(cpus_of(&mask)),
            Err(Errno::EINVAL) if words <= (MAX_CPU / bits) as usize => words *= 2,
            Err(errno) => return Err(errno.into()),
        }
    }
}

fn cpus_of(mask: &[libc::c_ulong]) -> CpuSet {
    let bits = libc::c_ulong::BITS;
    let words = mask.iter().zip((0..).step_by(bits as usize));
    words.flat_map(|(word, first)| (0..bits).filter(move |bit| word >> bit & 1 == 1).map(move |bit| first + bit)).collect()
}

fn text(path: &Path) -> Result<String, ProcError> {
    // A name may hold any bytes.
    let bytes = fs::read(path).map_err(|source| ProcError { path: path.to_owned(), source })?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

fn names(directory: &Path) -> Result<Vec<String>, ProcError> {
    let failed = |source| ProcError { path: directory.to_owned(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(directory).map_err(failed)? {
        names.extend(entry.map_err(failed)?.file_name().into_string());
    }
    Ok(names)
}

fn number(text: &str) -> Option<i32> {
    text.parse().ok().filter(|pid| *pid > 0)
}

fn unknown(path: PathBuf) -> ProcError {
    ProcError { path, source: io::ErrorKind::InvalidData.into() }
}

/// The name is in parentheses and may hold spaces and parentheses: what follows is counted from the last one.
fn parse_stat(text: &str) -> Option<Stat> {
    let (before, after) = text.rsplit_once(')')?;
    let (_, comm) = before.split_once('(')?;
    let mut fields = after.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let mut pid = || fields.next()?.parse().ok().map(Pid::from_raw);
    let (parent, group, session) = (pid()?, pid()?, pid()?);
    // Field 22, of which six have been taken.
    let start_ticks = fields.nth(22 - 6 - 1)?.parse().ok()?;
    Some(Stat { comm: comm.to_owned(), state, parent, group, session, start_ticks })
}

/// The name takes 25 columns, with spaces in it; then soft, hard and, for some, a unit.
fn parse_limit(line: &str) -> Option<(String, Limit)> {
    let (name, values) = line.split_at_checked(25)?;
    let mut values = values.split_ascii_whitespace().map(|value| match value {
        "unlimited" => Some(Limit::UNLIMITED),
        other => other.parse().ok(),
    });
    Some((name.trim().to_owned(), Limit { soft: values.next()??, hard: values.next()?? }))
}
