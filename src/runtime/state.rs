//! What a later supervisor must know to adopt the masters of this one (design, section 5).
//!
//! Three kinds of file, all 0600, each replaced atomically:
//!
//! - `m/GROUP.N.GENERATION/master.json`, written right before and right after the process is started: what it accepts on, with
//!   the number each descriptor has in it, and who it is (pid and start time, so that a reused pid is never taken for it).
//! - `state.json`, at each transition: which generation serves each shard, which are leaving, what is parked or drained.
//! - `plan.json`, at each new plan, so that pools stay where they are.
//!
//! None holds a value of the environment: those may be secrets.

use std::collections::BTreeMap;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use nix::unistd::Pid;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::blueprint::{Blueprint, StatusPoint};
use super::sockets::Held;
use crate::model::endpoint::Endpoint;
use crate::model::ids::{Generation, MasterId, ShardId};
use crate::model::listen::ListenerPlan;
use crate::model::plan::{Fingerprint, ShardPlan};
use crate::sys::listener::Place;
use crate::sys::proc::Proc;

/// The version of these files. A supervisor reads older ones it knows and no newer ones.
///
/// | version | change |
/// |---|---|
/// | 1 | first |
/// | 2 | `state.json` names the listeners that no master has |
pub(super) const VERSION: u32 = 2;

/// The largest file that is read: a plan of 4,000 pools takes about 4 MB.
const LIMIT_BYTES: u64 = 64 * 1024 * 1024;

/// What is kept of one master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct MasterState {
    /// [`VERSION`].
    pub v: u32,
    /// Its shard.
    pub shard: ShardId,
    /// Its generation.
    pub generation: Generation,
    /// The kernel's boot id: nothing outlives a boot.
    pub boot: String,
    /// Its process; absent while it is being started.
    pub pid: Option<ProcessState>,
    /// Whether it serves only what waits for a shard that is down.
    #[serde(default)]
    pub rescue: bool,
    /// What it was made from.
    pub fingerprint: Fingerprint,
    /// Digests of what else it was made from (`Blueprint::parts`).
    #[serde(default)]
    pub parts: BTreeMap<String, String>,
    /// What it carries.
    pub plan: ShardPlan,
    /// Its private status listeners.
    pub status: Vec<StatusPoint>,
    /// Its listeners.
    pub sockets: Vec<SocketState>,
    /// The inodes of its private status sockets.
    #[serde(default)]
    pub private: Vec<u64>,
}

/// A process, so that another one with its pid is never taken for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProcessState {
    /// Its pid, which is its process group and session too.
    pub pid: i32,
    /// When it was started, in the kernel's ticks since boot.
    pub start_ticks: u64,
}

impl MasterState {
    /// Gives what is to be kept of a master with these sockets; `pid` once it runs.
    pub(super) fn of(id: &MasterId, pid: Option<Pid>, sockets: &[Held], blueprint: &Blueprint) -> Self {
        let process = |pid: Pid| {
            let start_ticks = Proc::default().stat(pid).map_or(0, |stat| stat.start_ticks);
            ProcessState { pid: pid.as_raw(), start_ticks }
        };
        Self {
            v: VERSION,
            shard: id.shard.clone(),
            generation: id.generation,
            boot: boot_id(),
            pid: pid.map(process),
            rescue: false,
            fingerprint: blueprint.fingerprint.clone(),
            parts: blueprint.parts.clone(),
            plan: blueprint.plan.clone(),
            status: blueprint.status.clone(),
            sockets: sockets.iter().map(socket_state).collect(),
            private: Vec::new(),
        }
    }
}

/// Gives what is to be kept of a listener.
pub(super) fn socket_state(held: &Held) -> SocketState {
    let file = match &held.listener.place {
        Place::Unix { directory, name, file } => Some(FileState { path: directory.join(name), device: file.device, inode: file.inode }),
        Place::Tcp { .. } => None,
    };
    let bound_for = (held.bound_for.shard.clone(), held.bound_for.generation);
    let fd = held.listener.fd.as_raw_fd();
    SocketState { endpoint: held.plan.endpoint.clone(), fd, inode: held.listener.inode, file, bound_for }
}

/// One listener of a master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct SocketState {
    /// Where it is public.
    pub endpoint: Endpoint,
    /// The descriptor's number in the master.
    pub fd: i32,
    /// The socket's own inode, by which it is recognised.
    pub inode: u64,
    /// For unix sockets the path it was bound at, and its file.
    pub file: Option<FileState>,
    /// The generation it was bound for, by which its reuseport group knows it.
    pub bound_for: (ShardId, Generation),
}

/// The file of a unix listener.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct FileState {
    /// The path at which it was bound.
    pub path: PathBuf,
    /// The device of its filesystem.
    pub device: u64,
    /// Its inode.
    pub inode: u64,
}

/// Which part a generation plays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Role {
    /// It serves.
    Serving,
    /// It is to take over.
    Next,
    /// It is on its way out.
    Leaving,
}

/// One living generation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct RoleState {
    /// Its shard.
    pub shard: ShardId,
    /// Its number.
    pub generation: Generation,
    /// Its part.
    pub role: Role,
}

/// One shard.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ShardState {
    /// Which one.
    pub shard: ShardId,
    /// The newest generation number used.
    pub last: Generation,
    /// Whether the operator parked it.
    pub parked: bool,
    /// Whether it was drained.
    pub drained: bool,
}

/// One reuseport group: its members in the kernel's order.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct GroupState {
    /// The address.
    pub address: std::net::SocketAddr,
    /// The generations its members were bound for.
    pub members: Vec<(ShardId, Generation)>,
}

/// The instance.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct InstanceState {
    /// [`VERSION`].
    pub v: u32,
    /// The kernel's boot id: nothing outlives a boot.
    pub boot: String,
    /// Every living generation.
    pub roles: Vec<RoleState>,
    /// Every shard.
    pub shards: Vec<ShardState>,
    /// Every reuseport group.
    pub groups: Vec<GroupState>,
    /// The endpoints NGINX's include names.
    pub names: Arc<Vec<Endpoint>>,
    /// Listeners that are held for a shard and that no master has.
    #[serde(default)]
    pub held: Vec<HeldState>,
}

/// One listener that is held while no master has it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct HeldState {
    /// The shard it is held for.
    pub shard: ShardId,
    /// What it is for.
    pub plan: ListenerPlan,
    /// The socket.
    pub socket: SocketState,
}

/// Says why a file of the state was not written or read.
#[derive(Debug, thiserror::Error)]
#[error("{step} {}", path.display())]
pub(super) struct StateError {
    /// What was tried.
    pub step: &'static str,
    /// On which file.
    pub path: PathBuf,
    /// Why it failed.
    pub source: std::io::Error,
}

/// Gives the kernel's boot id.
pub(super) fn boot_id() -> String {
    static ID: OnceLock<String> = OnceLock::new();
    let read = || std::fs::read_to_string("/proc/sys/kernel/random/boot_id").map(|text| text.trim().to_owned()).unwrap_or_default();
    ID.get_or_init(read).clone()
}

/// Replaces a file atomically.
///
/// # Errors
/// The directory is full, read-only or gone; the former file stands then.
pub(super) fn write<T: Serialize>(path: &Path, value: &T) -> Result<(), StateError> {
    let error = |step| move |source| StateError { step, path: path.to_owned(), source };
    let bytes = serde_json::to_vec(value).map_err(std::io::Error::other).map_err(error("write"))?;
    let part = path.with_extension("part");
    // Whatever an earlier attempt left, or somebody put there: it is not written into.
    if let Err(source) = std::fs::remove_file(&part)
        && source.kind() != std::io::ErrorKind::NotFound
    {
        return Err(error("write")(source));
    }
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(&part).map_err(error("write"))?;
    file.write_all(&bytes).map_err(error("write"))?;
    std::fs::rename(&part, path).map_err(error("replace"))
}

/// Reads a file's version; `None` when there is no file. All versions have it in the same place.
///
/// # Errors
/// It cannot be read.
pub(super) fn version_of(path: &Path) -> Result<Option<u32>, StateError> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    Ok(read::<Version>(path)?.map(|version| version.v))
}

/// Reads bytes as each kind of file; what is accepted means what it would be written as.
#[cfg(fuzzing)]
pub(super) fn fuzz(bytes: &[u8]) {
    fn as_kind<T: DeserializeOwned + Serialize + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
        let Ok(value) = serde_json::from_slice::<T>(bytes) else { return };
        let Ok(written) = serde_json::to_vec(&value) else { return };
        assert_eq!(serde_json::from_slice::<T>(&written).ok().as_ref(), Some(&value), "{}", String::from_utf8_lossy(&written));
    }
    as_kind::<MasterState>(bytes);
    as_kind::<InstanceState>(bytes);
    as_kind::<crate::model::plan::Plan>(bytes);
}

/// Reads a file; `None` when there is none.
///
/// # Errors
/// It cannot be read, or is not what this version writes.
pub(super) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, StateError> {
    let error = |source| StateError { step: "read", path: path.to_owned(), source };
    // Opening a FIFO would wait for a writer.
    let flags = nix::libc::O_NOFOLLOW | nix::libc::O_NONBLOCK;
    let file = match std::fs::OpenOptions::new().read(true).custom_flags(flags).open(path) {
        Ok(file) => file,
        Err(source) if source.kind() == std::io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(error(source)),
    };
    let metadata = file.metadata().map_err(error)?;
    if !metadata.is_file() {
        return Err(error(std::io::Error::other("it is no regular file")));
    }
    if metadata.len() > LIMIT_BYTES {
        return Err(error(std::io::Error::other("it is larger than any state can be")));
    }
    let value = serde_json::from_reader(std::io::BufReader::new(file)).map_err(std::io::Error::other).map_err(error)?;
    Ok(Some(value))
}
