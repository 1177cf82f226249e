//! The ground on which the promise is proved: real php-fpm, real NGINX, our binary, and an honest count of what clients saw.
//!
//! Everything a test starts is its own: a directory, ports, process groups. When the test ends, nothing of it may be left.

mod disk;
mod fastcgi;
mod ground;
mod kernel;
mod load;
mod master;
mod nginx;
mod process;
mod sandbox;
mod verdict;

use std::fmt::Debug;
use std::time::{Duration, Instant};

pub(crate) use disk::Disk;
pub(crate) use fastcgi::{Answer, Call, Peer, Request};
pub(crate) use ground::Ground;
pub(crate) use kernel::{Queue, accepted, holds, queue};
pub(crate) use load::{Clients, Extra, Load};
pub(crate) use master::{Listener, Master, MasterPlan, php_fpm, pool_lines};
pub(crate) use nginx::{Nginx, Route, Site, Upstream, http_get, unix_pass};
pub(crate) use process::{Running, alive, children, processes, run, stat};
pub(crate) use sandbox::{FakeFpm, Sandbox, Shard, binary, until_shards};
pub(crate) use verdict::{Kind, Report, Sample};

/// 10 ms: short against every deadline, long against the cost of a look.
const LOOK_EVERY: Duration = Duration::from_millis(10);

/// Waits until `look` gives something; fails with `what` when `deadline` is over.
#[track_caller]
pub(crate) fn eventually<T>(deadline: Duration, what: &str, look: impl FnMut() -> Option<T>) -> T {
    within(deadline, look).unwrap_or_else(|| panic!("not within {deadline:?}: {what}"))
}

/// Waits until `look` gives something; gives nothing when `deadline` is over.
#[expect(clippy::disallowed_methods, reason = "the one place where a test waits between two looks")]
pub(crate) fn within<T>(deadline: Duration, mut look: impl FnMut() -> Option<T>) -> Option<T> {
    let end = Instant::now() + deadline;
    loop {
        if let Some(seen) = look() {
            return Some(seen);
        }
        if Instant::now() >= end {
            return None;
        }
        std::thread::sleep(LOOK_EVERY);
    }
}

/// Watches that `look` gives nothing for the whole of `span`: for what must not happen.
#[track_caller]
pub(crate) fn never<T: Debug>(span: Duration, what: &str, look: impl FnMut() -> Option<T>) {
    if let Some(seen) = within(span, look) {
        panic!("{what}: {seen:?}");
    }
}
