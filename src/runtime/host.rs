//! What a plan needs to know of this host, as it is now.

use std::collections::BTreeMap;

use super::draft::Draft;
use crate::edge::nginx::NginxState;
use crate::model::host::{Host, ResolvedListen};
use crate::model::ids::PoolName;
use crate::model::problem::Problem;
use crate::sys::proc::Proc;
use crate::sys::{listener, proc, topology};

/// What PHP reserves for an opcache unless told otherwise (`opcache.memory_consumption`).
const OPCACHE_BYTES: u64 = 128 * 1024 * 1024;

/// Looks at the host.
pub(super) fn look(listens: BTreeMap<PoolName, ResolvedListen>, nginx: Option<&NginxState>) -> (Host, Vec<Problem>) {
    let affinity = proc::available_cpus().unwrap_or_default();
    let topology = topology::read(&topology::Roots::default(), &affinity);
    let (nginx, problems) = nginx.map_or((None, Vec::new()), |state| state.workers(&topology.online_set()));
    let memory_bytes = Proc::default().memory_total().ok();
    (Host { topology, nginx, memory_bytes, opcache_bytes: Some(OPCACHE_BYTES), somaxconn: listener::somaxconn(), listens }, problems)
}

/// Looks at what may have changed since the draft was made: the CPUs, and NGINX's workers as they live.
pub(super) fn look_again(draft: &Draft) -> Host {
    let affinity = proc::available_cpus().unwrap_or_default();
    let topology = topology::read(&topology::Roots::default(), &affinity);
    let state = draft.nginx.as_ref().map(|state| state.with_workers_of_now(&draft.settings.nginx.binary));
    let nginx = state.and_then(|state| state.workers(&topology.online_set()).0);
    Host { topology, nginx, ..draft.host.clone() }
}

/// Tells whether shards would be laid out alike on both. Where NGINX's layout is known from, and in which order its workers stand,
/// does not matter: one that was started again comes last.
pub(super) fn same_layout(one: &Host, other: &Host) -> bool {
    let workers = |host: &Host| {
        let mut workers = host.nginx.as_ref().map(|layout| layout.workers.clone()).unwrap_or_default();
        workers.sort();
        workers
    };
    one.topology == other.topology && workers(one) == workers(other)
}
