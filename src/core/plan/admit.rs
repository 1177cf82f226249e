//! Which pools may run.
//!
//! A pool that php-fpm would refuse is kept out by name, so that the others run. The rules here are the ones the division
//! leans on; php-fpm itself tests the rest.

use std::collections::{HashMap, HashSet};

use crate::model::endpoint::{Endpoint, UNIX_PATH_LIMIT_BYTES};
use crate::model::host::ResolvedListen;
use crate::model::ids::PoolName;
use crate::model::pool::{Pool, Quarantined};
use crate::model::problem::Problem;

use super::{PlanInput, division};

/// A pool that may run, with its resolved listen.
#[derive(Debug, Clone, Copy)]
pub(super) struct Candidate<'a> {
    pub(super) pool: &'a Pool,
    pub(super) listen: &'a ResolvedListen,
}

/// The pools that may run, in the order of the files, and those that may not.
pub(super) struct Admitted<'a> {
    pub(super) candidates: Vec<Candidate<'a>>,
    pub(super) quarantined: Vec<Quarantined>,
}

pub(super) fn admit<'a>(input: &PlanInput<'a>) -> Admitted<'a> {
    let known: HashSet<&PoolName> = input.quarantined.iter().map(|quarantined| &quarantined.pool).collect();
    let mut quarantined = input.quarantined.to_vec();
    let mut candidates = Vec::new();
    for pool in input.files.pools.iter().filter(|pool| !known.contains(&pool.name)) {
        match admit_one(input, pool) {
            Ok(candidate) => candidates.push(candidate),
            Err(problem) => quarantined.push(Quarantined { pool: pool.name.clone(), problem: *problem }),
        }
    }
    let owners = owners(input, &candidates);
    candidates.retain(|candidate| {
        let Some(owner) = owners.get(&candidate.listen.endpoint).filter(|owner| **owner != &candidate.pool.name) else { return true };
        quarantined.push(Quarantined { pool: candidate.pool.name.clone(), problem: taken(candidate, owner) });
        false
    });
    Admitted { candidates, quarantined }
}

fn admit_one<'a>(input: &PlanInput<'a>, pool: &'a Pool) -> Result<Candidate<'a>, Box<Problem>> {
    let Some(listen) = input.host.listens.get(&pool.name) else {
        let problem = Problem::error(format!("pool '{}': listen '{}' is not resolved", pool.name, pool.listen));
        return Err(Box::new(at_listen(pool, problem)));
    };
    if let Some(why) = division::refusal(pool.pm, &pool.workers) {
        let problem = Problem::error(format!("pool '{}': {why}", pool.name)).at(pool.origin.file.as_path(), pool.origin.line);
        return Err(Box::new(problem.remedy("correct the numbers; php-fpm refuses the pool with them")));
    }
    if let Some(path) = listen.endpoint.path().filter(|path| path.as_os_str().len() > UNIX_PATH_LIMIT_BYTES) {
        let (length, path) = (path.as_os_str().len(), path.display());
        let message = format!("pool '{}': {path} has {length} bytes, a socket path at most {UNIX_PATH_LIMIT_BYTES}", pool.name);
        return Err(Box::new(at_listen(pool, Problem::error(message).remedy("give the pool a shorter listen"))));
    }
    Ok(Candidate { pool, listen })
}

/// Gives the pool that holds each endpoint: the one that runs there now, or the first in the files. A copied pool file that
/// sorts before the original must not take the original's socket away.
fn owners<'a>(input: &PlanInput<'a>, candidates: &[Candidate<'a>]) -> HashMap<&'a Endpoint, &'a PoolName> {
    let mut running = HashSet::new();
    for pool in input.previous.iter().flat_map(|plan| &plan.pools) {
        running.extend(pool.servers.iter().map(|server| (&pool.pool, &server.endpoint)));
    }
    let mut owners = HashMap::new();
    for candidate in candidates {
        let (name, endpoint) = (&candidate.pool.name, &candidate.listen.endpoint);
        if running.contains(&(name, endpoint)) {
            owners.insert(endpoint, name);
        } else {
            owners.entry(endpoint).or_insert(name);
        }
    }
    owners
}

fn taken(candidate: &Candidate<'_>, owner: &PoolName) -> Problem {
    let Candidate { pool, listen } = candidate;
    let message = format!("pool '{}': {} belongs to pool '{owner}'", pool.name, listen.endpoint);
    at_listen(pool, Problem::error(message)).remedy("give the pool a listen of its own")
}

/// Adds the line of the pool's `listen`, or of its header where it has none.
pub(super) fn at_listen(pool: &Pool, problem: Problem) -> Problem {
    let origin = pool.listen_origin.as_ref().unwrap_or(&pool.origin);
    problem.at(origin.file.as_path(), origin.line)
}
