//! The listening socket of each placement.

use crate::model::endpoint::Endpoint;
use crate::model::listen::{Access, Handover, ListenerPlan};
use crate::model::plan::Routing;

use super::PlanInput;
use super::admit::Candidate;
use super::names;

/// The queue's length where neither settings, pool nor host name one: Linux's default of `net.core.somaxconn` since 5.4.
const BACKLOG_CONNECTIONS: u32 = 4096;

/// Who may connect to the unix sockets of a TCP pool that names nobody: everybody on this host, as with its TCP address.
const OPEN_MODE: u32 = 0o666;

/// Gives the listener of a placement on `shard`; `first` tells the shard that holds the pool's own path.
pub(super) fn listener(input: &PlanInput<'_>, candidate: &Candidate<'_>, routing: Routing, of: (u16, u16)) -> ListenerPlan {
    let (shard, first) = of;
    let (pool, listen) = (candidate.pool, candidate.listen);
    let backlog_connections = backlog(input, candidate);
    if routing == Routing::Split && shard != first {
        return ListenerPlan {
            pool: pool.name.clone(),
            endpoint: Endpoint::Unix(names::socket_path(input.settings, &pool.name, shard)),
            handover: Handover::Rename,
            access: access_beside(candidate),
            backlog_connections,
            alias: names::alias(&pool.name, Some(shard)),
        };
    }
    let (handover, alias) = match &listen.endpoint {
        // The text php-fpm's `listen` takes. The key in FPM_SOCKETS differs from it for IPv6: no brackets (P8).
        Endpoint::Tcp(address) if listen.only_one => (Handover::Share, address.to_string()),
        Endpoint::Tcp(address) => (Handover::Steer, address.to_string()),
        // A renamed file would leave the mount at the old, dead one.
        Endpoint::Unix(_) if routing == Routing::Shared || listen.mounted_as.is_some() => (Handover::Share, names::alias(&pool.name, None)),
        Endpoint::Unix(_) => (Handover::Rename, names::alias(&pool.name, None)),
    };
    ListenerPlan {
        pool: pool.name.clone(),
        endpoint: listen.endpoint.clone(),
        handover,
        access: listen.access.clone(),
        backlog_connections,
        alias,
    }
}

/// Gives the queue's length: the settings' number, else the pool's own, else what the host allows.
pub(super) fn backlog(input: &PlanInput<'_>, candidate: &Candidate<'_>) -> u32 {
    let own = candidate.pool.listen_backlog.and_then(|own| u32::try_from(own).ok()).filter(|own| *own > 0);
    let host = if input.host.somaxconn == 0 { BACKLOG_CONNECTIONS } else { input.host.somaxconn };
    input.settings.listen.backlog_connections.or(own).unwrap_or(host)
}

fn access_beside(candidate: &Candidate<'_>) -> Access {
    let access = candidate.listen.access.clone();
    let names_nobody = access.uid.is_none() && access.gid.is_none() && access.acl_uids.is_empty() && access.acl_gids.is_empty();
    match candidate.listen.endpoint {
        Endpoint::Tcp(_) if names_nobody => Access { mode: OPEN_MODE, ..access },
        Endpoint::Tcp(_) | Endpoint::Unix(_) => access,
    }
}
