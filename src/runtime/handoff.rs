//! What one supervisor hands to the next.
//!
//! A supervisor that executes itself again (`polyfpm upgrade`) keeps its pid, its children, and the descriptors named in a
//! sealed message whose number is in the environment. Its successor takes them by their inodes when it adopts the masters:
//! then nothing has to be fetched from anybody, and the end of a master that died in between is still to be collected.
//!
//! A message that cannot be used costs nothing: everything that came with it is closed, and the masters are adopted as after
//! a crash, from their own files.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::{OwnedFd, RawFd};
use std::path::PathBuf;

use nix::unistd::{Pid, getpid};
use serde::{Deserialize, Serialize};

use super::fault;
use crate::sys::children::Child;
use crate::sys::handoff::{claim, close_all_but, unseal};
use crate::sys::listener::{FileId, inode_of};

/// The version of the message. A supervisor reads older ones it knows and no newer ones.
pub(super) const VERSION: u32 = 1;

/// The variable with the message's number. Neither masters nor other programs inherit it.
pub(super) const VARIABLE: &str = "POLYFPM_HANDOFF";

/// The message.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Handoff {
    /// [`VERSION`].
    pub v: u32,
    /// The process that it is for: the one that wrote it.
    pub pid: i32,
    /// The version that wrote it.
    pub from: String,
    /// The lock of the instance.
    pub lock: RawFd,
    /// The control socket.
    pub control: ControlState,
    /// The connection of whoever asked for the upgrade.
    pub caller: Option<RawFd>,
    /// When the upgrade began, in milliseconds of the kernel's monotonic clock.
    pub began_ms: u64,
    /// Every living master.
    pub masters: Vec<i32>,
    /// Every listener with its inode.
    pub listeners: Vec<(RawFd, u64)>,
}

/// The control socket: its queue goes on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ControlState {
    /// Its descriptor.
    pub fd: RawFd,
    /// Its path.
    pub path: PathBuf,
    /// The device of its file's filesystem.
    pub device: u64,
    /// Its file's inode.
    pub inode: u64,
}

/// The upgrade that ends with this supervisor.
#[derive(Debug)]
pub(super) struct Arrival {
    /// The version before.
    pub(super) from: String,
    /// The connection of whoever asked for it.
    pub(super) caller: Option<OwnedFd>,
    /// When it began, in milliseconds of the kernel's monotonic clock.
    pub(super) began_ms: u64,
    /// How many masters lived.
    pub(super) masters: usize,
}

/// The control socket as it came.
#[derive(Debug)]
pub(super) struct ControlSocket {
    pub(super) fd: OwnedFd,
    pub(super) path: PathBuf,
    pub(super) file: FileId,
}

/// What came to this supervisor.
#[derive(Debug, Default)]
pub(super) struct Inheritance {
    /// The lock of the instance.
    pub(super) lock: Option<OwnedFd>,
    /// The control socket.
    pub(super) control: Option<ControlSocket>,
    /// The upgrade.
    pub(super) arrival: Option<Arrival>,
    /// The masters' pids.
    pub(super) masters: Vec<Pid>,
    /// What is used while masters are adopted.
    pub(super) kept: Kept,
    /// Why what was handed over could not be used.
    pub(super) unusable: Option<String>,
}

/// Listeners and children that came, until their masters are adopted.
#[derive(Debug, Default)]
pub(super) struct Kept {
    /// Listeners by their inodes.
    pub(super) listeners: BTreeMap<u64, OwnedFd>,
    /// Masters that are our children, living or ended.
    pub(super) children: BTreeMap<Pid, Child>,
}

impl Inheritance {
    /// Takes what came with the program's start. Only before anything else opens descriptors.
    pub(super) fn receive() -> Self {
        let Some(number) = std::env::var(VARIABLE).ok().and_then(|text| text.parse::<RawFd>().ok()) else { return Self::default() };
        match read(number) {
            Ok(handoff) if handoff.pid == getpid().as_raw() => {
                let came = Self::of(&handoff);
                fault::point("descriptors taken");
                came
            }
            // The variable was copied into the environment of another program that then started us.
            Ok(_) => Self::default(),
            Err(why) => {
                // Among what came is the lock, which we could not take otherwise.
                close_all_but(&BTreeSet::new());
                Self { unusable: Some(why), ..Self::default() }
            }
        }
    }

    fn of(handoff: &Handoff) -> Self {
        let control = &handoff.control;
        let single = [Some(handoff.lock), Some(control.fd), handoff.caller].into_iter().flatten();
        close_all_but(&single.chain(handoff.listeners.iter().map(|(fd, _)| *fd)).collect());
        let file = FileId { device: control.device, inode: control.inode };
        let listener = |(number, inode): &(RawFd, u64)| {
            let fd = claim(*number)?;
            inode_of(&fd).is_ok_and(|found| found == *inode).then_some((*inode, fd))
        };
        let arrival = Arrival {
            from: handoff.from.clone(),
            caller: handoff.caller.and_then(claim),
            began_ms: handoff.began_ms,
            masters: handoff.masters.len(),
        };
        Self {
            lock: claim(handoff.lock),
            control: claim(control.fd).map(|fd| ControlSocket { fd, path: control.path.clone(), file }),
            arrival: Some(arrival),
            masters: handoff.masters.iter().map(|pid| Pid::from_raw(*pid)).collect(),
            kept: Kept { listeners: handoff.listeners.iter().filter_map(listener).collect(), children: BTreeMap::new() },
            unusable: None,
        }
    }
}

/// Reads the message; what is wrong with it is told in words.
fn read(number: RawFd) -> Result<Handoff, String> {
    #[derive(Deserialize)]
    struct Version {
        v: u32,
    }
    let fd = claim(number).ok_or("descriptor is not open")?;
    let bytes = unseal(fd).map_err(|error| error.to_string())?;
    let Version { v } = serde_json::from_slice(&bytes).map_err(|error| error.to_string())?;
    if v > VERSION {
        return Err(format!("it has version {v}, this polyfpm reads up to {VERSION}"));
    }
    serde_json::from_slice(&bytes).map_err(|error| error.to_string())
}

#[cfg(test)]
mod tests {
    use std::os::fd::IntoRawFd as _;

    use super::*;
    use crate::sys::handoff::seal;

    #[test]
    fn a_message_of_a_newer_version_or_of_nobody_is_not_used() {
        let sent = |text: &str| read(seal(text.as_bytes()).unwrap().into_raw_fd());
        assert_eq!(sent(r#"{"v":2,"more":true}"#).unwrap_err(), "it has version 2, this polyfpm reads up to 1");
        assert!(sent("{").is_err());
        assert_eq!(read(1_000_000).unwrap_err(), "descriptor is not open");
        let whole = r#"{"v":1,"pid":7,"from":"0.1.0","lock":3,"control":{"fd":4,"path":"/c","device":1,"inode":2},
            "caller":null,"began_ms":5,"masters":[8],"listeners":[[5,77]]}"#;
        assert_eq!(sent(whole).unwrap().listeners, [(5, 77)]);
    }
}
