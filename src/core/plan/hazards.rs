//! What voids the promise that no request is lost, told with its place and remedy.

use std::time::Duration;

use crate::model::clients::UpstreamBlock;
use crate::model::endpoint::Endpoint;
use crate::model::plan::Routing;
use crate::model::problem::Problem;

use super::PlanInput;
use super::admit::{Candidate, at_listen};
use super::reach::PoolClients;

/// The longest `keepalive_time` and `keepalive_timeout` with which NGINX ends idle connections soon enough after a handover
/// (P25, measured with 2 s and 1 s).
const KEEPALIVE_AT_MOST: Duration = Duration::from_secs(5);

/// Reports what is risky about one pool.
///
/// `fastcgi_keep_conn` on a pass to the endpoint itself is not: without an upstream's `keepalive` NGINX closes the connection
/// after the response.
pub(super) fn of_pool(candidate: &Candidate<'_>, clients: &PoolClients<'_>, routing: Routing) -> Vec<Problem> {
    let (name, listen) = (&candidate.pool.name, candidate.listen);
    let mut problems = Vec::new();
    if let Some(mount) = &listen.mounted_as {
        let message =
            format!("pool '{name}': {} is mounted into a container as {mount}, where a new socket would not be seen", listen.endpoint);
        let remedy = "mount the socket's directory instead of the socket file";
        problems.push(at_listen(candidate.pool, Problem::warning(message).remedy(remedy)));
    }
    let is_unix = matches!(listen.endpoint, Endpoint::Unix(_));
    let shares = is_unix && (routing == Routing::Shared || listen.mounted_as.is_some());
    for block in &clients.kept {
        if shares {
            problems.push(kept_shared(candidate, block));
        } else if !is_short(block) {
            problems.push(kept_long(candidate, clients, block));
        }
    }
    problems
}

fn is_short(block: &UpstreamBlock) -> bool {
    [block.keepalive_time, block.keepalive_timeout].iter().all(|time| time.is_some_and(|time| time <= KEEPALIVE_AT_MOST))
}

/// P21: a worker that leaves a shared socket closes a connection that NGINX is about to use again.
fn kept_shared(candidate: &Candidate<'_>, block: &UpstreamBlock) -> Problem {
    let message = format!(
        "upstream '{}' keeps connections to pool '{}' open; all generations share its socket, and a restart loses requests on kept connections",
        block.name, candidate.pool.name
    );
    let remedy = "set keepalive 0 in the upstream, or fastcgi_keep_conn off where it is passed to";
    Problem::warning(message).at(&block.place.file, block.place.line).remedy(remedy)
}

/// P25.
fn kept_long(candidate: &Candidate<'_>, clients: &PoolClients<'_>, block: &UpstreamBlock) -> Problem {
    let message = format!(
        "upstream '{}' keeps connections to pool '{}' open without keepalive_time and keepalive_timeout of at most 5s; a restart can lose requests",
        block.name, candidate.pool.name
    );
    let remedy = format!("add keepalive_time 2s; and keepalive_timeout 1s; to the upstream, or pass to {}", clients.upstream);
    Problem::warning(message).at(&block.place.file, block.place.line).remedy(remedy)
}

/// Reports queue lengths that the kernel cuts (P41): the settings' one, or the pools' own in one problem.
pub(super) fn of_backlog(input: &PlanInput<'_>, candidates: &[Candidate<'_>]) -> Option<Problem> {
    let cap = input.host.somaxconn;
    if cap == 0 {
        return None;
    }
    if let Some(backlog) = input.settings.listen.backlog_connections {
        let message = format!("[listen] backlog = {backlog} is cut to net.core.somaxconn = {cap}");
        return (backlog > cap).then(|| input.settings.point("listen.backlog", Problem::warning(message).remedy(raise(backlog))));
    }
    let own = |candidate: &Candidate<'_>| candidate.pool.listen_backlog.and_then(|own| u32::try_from(own).ok()).unwrap_or(0);
    let cut: Vec<&Candidate<'_>> = candidates.iter().filter(|candidate| own(candidate) > cap).collect();
    let (first, most) = (cut.first()?, cut.iter().map(|candidate| own(candidate)).max()?);
    let name = &first.pool.name;
    let more = if cut.len() > 1 { format!(", and of {} more pools", cut.len() - 1) } else { String::new() };
    let message = format!("listen.backlog {} of pool '{name}'{more} is cut to net.core.somaxconn = {cap}", own(first));
    let problem = Problem::warning(message).remedy(raise(most));
    Some(match first.pool.lines.iter().rev().find(|line| line.key == "listen.backlog") {
        Some(line) => problem.at(line.origin.file.as_path(), line.origin.line),
        None => at_listen(first.pool, problem),
    })
}

fn raise(backlog: u32) -> String {
    format!("set net.core.somaxconn = {backlog} with sysctl, or a smaller backlog")
}

/// Reports a `process.max` that leaves less than one process to each of `count` masters.
pub(super) fn process_max_too_small(input: &PlanInput<'_>, total: u32, count: usize) -> Problem {
    let message = format!("process.max = {total} is less than one for each of {count} shards; each gets 1");
    let problem = Problem::warning(message).remedy(format!("set process.max to 0 or to {count} and more"));
    match input.files.global.lines.iter().rev().find(|line| line.key == "process.max") {
        Some(line) => problem.at(line.origin.file.as_path(), line.origin.line),
        None => problem,
    }
}
