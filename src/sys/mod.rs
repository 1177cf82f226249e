//! Floor 1: system calls. All unsafe code of the crate lives here.

pub mod acl;
pub mod affinity;
pub mod build;
pub mod cgroup;
pub mod children;
pub mod directory;
pub mod handoff;
pub mod limits;
pub mod listener;
pub mod lock;
pub mod notify;
pub mod pidfd;
pub mod proc;
mod readable;
pub mod reuseport;
pub mod signals;
pub mod sock_diag;
pub mod spawn;
pub mod topology;
pub mod users;
pub mod watch;
