//! Whether a pool is whole, shared or split (`docs/design.md`, routing).
//!
//! Split needs proof that every client goes through the pool's upstream, because a client that stays on the old path
//! reaches only the workers of one shard. Everything unknown therefore means shared.

use std::fmt;
use std::path::Path;

use crate::model::clients::Pass;
use crate::model::endpoint::{Endpoint, UNIX_PATH_LIMIT_BYTES};
use crate::model::ids::PoolName;
use crate::model::plan::Routing;
use crate::model::problem::{Place, Problem};
use crate::model::settings::RoutingChoice;

use super::PlanInput;
use super::admit::{Candidate, at_listen};
use super::names::socket_path;
use super::reach::{PoolClients, Reach};

/// What is left of a socket's path for the suffix it has before it is renamed into place.
const SUFFIX_BYTES: usize = 16;

/// One pool for which routing is to be decided.
pub(super) struct Question<'q, 'a> {
    pub(super) input: &'q PlanInput<'a>,
    pub(super) candidate: &'q Candidate<'a>,
    pub(super) reach: &'q Reach<'a>,
    pub(super) clients: &'q PoolClients<'a>,
    /// The shards of its group.
    pub(super) count: u16,
    /// A pool is spread only while each shard keeps this many workers.
    pub(super) min_workers: u32,
    /// How the pool was reached before.
    pub(super) before: Option<Routing>,
    /// Pools that listen in the directory of the shards' sockets.
    pub(super) intruders: &'q [(&'a PoolName, &'a Path)],
}

/// The answer.
pub(super) struct Decision {
    pub(super) routing: Routing,
    pub(super) reason: String,
    /// On how many shards the pool lives.
    pub(super) parts: u16,
    pub(super) problems: Vec<Problem>,
}

/// Why a pool cannot be split.
enum Obstacle<'q> {
    Mounted(&'q str),
    NginxOff,
    Unreadable,
    OldPath(String, &'q Place),
    Variable(&'q Pass),
    NoClient,
    OtherHosts,
}

pub(super) fn decide(question: &Question<'_, '_>) -> Decision {
    let workers = question.candidate.pool.workers.max_children;
    let least = question.min_workers.max(1);
    let parts = u16::try_from(workers / least).unwrap_or(u16::MAX).min(question.count);
    let mut decision = if question.input.settings.routing == RoutingChoice::Whole {
        whole("routing = \"whole\"".to_owned())
    } else if question.count < 2 {
        whole("the group has one shard".to_owned())
    } else if parts < 2 {
        whole(format!("{workers} {} fewer than 2 × {least}", if workers == 1 { "worker is" } else { "workers are" }))
    } else {
        spread(question, parts)
    };
    if question.before == Some(Routing::Split) && decision.routing != Routing::Split {
        let (name, to, why) = (&question.candidate.pool.name, decision.routing, &decision.reason);
        decision.problems.push(Problem::note(format!("pool '{name}' goes back from split to {to}: {why}")));
    }
    decision
}

fn whole(reason: String) -> Decision {
    Decision { routing: Routing::Whole, reason, parts: 1, problems: Vec::new() }
}

fn spread(question: &Question<'_, '_>, parts: u16) -> Decision {
    let shared = |reason, problems| Decision { routing: Routing::Shared, reason, parts, problems };
    let choice = question.input.settings.routing;
    if choice == RoutingChoice::Shared {
        return shared("routing = \"shared\"".to_owned(), Vec::new());
    }
    let obstacle = obstacle(question);
    let forced = choice == RoutingChoice::Split;
    // The running NGINX still has the configuration it last read, with the shards' sockets in it.
    let stays = question.before == Some(Routing::Split) && matches!(obstacle, Some(Obstacle::Unreadable));
    if let Some(obstacle) = obstacle.as_ref().filter(|_| !forced && !stays) {
        return shared(obstacle.to_string(), Vec::new());
    }
    if let Some(problem) = unusable_path(question) {
        return shared(problem.message.clone(), vec![problem]);
    }
    let reason = if forced {
        "routing = \"split\"".to_owned()
    } else if stays {
        "NGINX's configuration cannot be read whole; stays as it was".to_owned()
    } else {
        format!("every fastcgi_pass goes through {}", question.clients.upstream)
    };
    let problems = obstacle.and_then(|obstacle| warn_of_split(question, &obstacle)).into_iter().collect();
    Decision { routing: Routing::Split, reason, parts, problems }
}

fn obstacle<'q>(question: &Question<'q, '_>) -> Option<Obstacle<'q>> {
    let (input, listen) = (question.input, question.candidate.listen);
    if let Some(mount) = &listen.mounted_as {
        return Some(Obstacle::Mounted(mount));
    }
    if !input.settings.nginx.enabled {
        return Some(Obstacle::NginxOff);
    }
    if !input.clients.known {
        return Some(Obstacle::Unreadable);
    }
    if let Some(first) = question.clients.foreign.first() {
        let way = first.via.map(|name| format!("{name}, which leads to ")).unwrap_or_default();
        let more = match question.clients.foreign.len() - 1 {
            0 => String::new(),
            more => format!(", and so do {more} more"),
        };
        let text = format!("{} passes to {way}{}{more}", first.place, listen.endpoint);
        return Some(Obstacle::OldPath(text, first.place));
    }
    if let Some(pass) = question.reach.variable {
        return Some(Obstacle::Variable(pass));
    }
    if question.clients.own == 0 {
        return Some(Obstacle::NoClient);
    }
    // NGINX here says nothing of clients elsewhere.
    matches!(&listen.endpoint, Endpoint::Tcp(address) if !address.ip().to_canonical().is_loopback()).then_some(Obstacle::OtherHosts)
}

impl fmt::Display for Obstacle<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Mounted(mount) => write!(f, "the socket file is mounted at {mount}, so clients may be unknown"),
            Self::NginxOff => f.write_str("[nginx] enabled = false, so clients are unknown"),
            Self::Unreadable => f.write_str("NGINX's configuration cannot be read whole, so clients may be unknown"),
            Self::OldPath(text, _) => f.write_str(text),
            Self::Variable(pass) => write!(f, "{} passes to a variable, which may name any pool", pass.place),
            Self::NoClient => f.write_str("no fastcgi_pass is known that reaches it"),
            Self::OtherHosts => f.write_str("clients on other hosts may be unknown"),
        }
    }
}

/// Says that clients past the upstream reach one shard only, where the operator asked for split all the same.
fn warn_of_split(question: &Question<'_, '_>, obstacle: &Obstacle<'_>) -> Option<Problem> {
    let (place, remedy) = match obstacle {
        Obstacle::OldPath(_, place) => (Some(*place), format!("write fastcgi_pass {}; there", question.clients.upstream)),
        Obstacle::Variable(pass) => (Some(&pass.place), format!("write fastcgi_pass {}; there", question.clients.upstream)),
        Obstacle::Mounted(_) => (None, "mount the socket's directory instead, or set routing = \"shared\"".to_owned()),
        Obstacle::NoClient => (None, format!("write fastcgi_pass {}; in the vhosts of the pool", question.clients.upstream)),
        // The operator knows the clients, or the reading of NGINX has been reported.
        Obstacle::NginxOff | Obstacle::Unreadable | Obstacle::OtherHosts => return None,
    };
    let message = format!(
        "pool '{}' is split by routing = \"split\", but {obstacle}; clients of {} reach the workers of one shard only",
        question.candidate.pool.name, question.candidate.listen.endpoint
    );
    let problem = Problem::warning(message).remedy(remedy);
    Some(match place {
        Some(place) => problem.at(&place.file, place.line),
        None => at_listen(question.candidate.pool, problem),
    })
}

/// Reports a shard's socket path that is too long or is a pool's own `listen`.
fn unusable_path(question: &Question<'_, '_>) -> Option<Problem> {
    let (settings, name) = (question.input.settings, &question.candidate.pool.name);
    let longest = socket_path(settings, name, question.count);
    let limit = UNIX_PATH_LIMIT_BYTES - SUFFIX_BYTES;
    let length = longest.as_os_str().len();
    if length > limit {
        let message = format!("{} has {length} bytes, the socket of a shard may have {limit}", longest.display());
        return Some(settings.point("listen.directory", Problem::error(message).remedy("set [listen] directory to a shorter path")));
    }
    let intruder = |path: &Path| (1..=question.count).any(|shard| socket_path(settings, name, shard) == path);
    let (owner, path) = question.intruders.iter().find(|(_, path)| intruder(path))?;
    let message = format!("{}, the socket of a shard of pool '{name}', is the listen of pool '{owner}'", path.display());
    Some(settings.point("listen.directory", Problem::error(message).remedy("keep listen sockets of pools out of [listen] directory")))
}
