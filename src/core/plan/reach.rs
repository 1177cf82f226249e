//! Who passes requests to each pool.

use std::collections::HashMap;
use std::net::IpAddr;
use std::path::Path;

use crate::model::clients::{Pass, PassTarget, UpstreamBlock};
use crate::model::endpoint::Endpoint;
use crate::model::problem::Place;

use super::PlanInput;
use super::admit::Candidate;
use super::names::upstream_name;

/// What is known of all clients.
pub(super) struct Reach<'a> {
    /// A pass that may go to any pool.
    pub(super) variable: Option<&'a Pass>,
    pools: Vec<PoolClients<'a>>,
}

/// What is known of one pool's clients.
#[derive(Default)]
pub(super) struct PoolClients<'a> {
    /// The name of the pool's generated upstream.
    pub(super) upstream: String,
    /// How many passes go through that upstream.
    pub(super) own: usize,
    /// The passes that reach the pool's own `listen` in another way.
    pub(super) foreign: Vec<Foreign<'a>>,
    /// The operator's upstreams that keep connections to the pool open.
    pub(super) kept: Vec<&'a UpstreamBlock>,
}

/// A pass that goes to a pool past its generated upstream.
#[derive(Debug, Clone, Copy)]
pub(super) struct Foreign<'a> {
    pub(super) place: &'a Place,
    /// The upstream or host name by which it goes; `None`: it names the endpoint itself.
    pub(super) via: Option<&'a str>,
}

impl<'a> Reach<'a> {
    pub(super) fn new(input: &PlanInput<'a>, candidates: &[Candidate<'a>]) -> Self {
        let index = Index::new(candidates);
        let mut pools: Vec<PoolClients<'a>> = Vec::with_capacity(candidates.len());
        let mut own: HashMap<String, usize> = HashMap::with_capacity(candidates.len());
        for (at, candidate) in candidates.iter().enumerate() {
            let upstream = upstream_name(input.settings, &candidate.pool.name);
            own.insert(upstream.to_lowercase(), at);
            pools.push(PoolClients { upstream, ..PoolClients::default() });
        }
        let upstreams: HashMap<String, &'a UpstreamBlock> =
            input.clients.upstreams.iter().map(|block| (block.name.to_lowercase(), block)).collect();
        let mut reach = Self { variable: None, pools };
        let mut keeping: HashMap<String, &'a UpstreamBlock> = HashMap::new();
        for pass in &input.clients.passes {
            match &pass.target {
                PassTarget::Variable(_) => reach.variable = reach.variable.or(Some(pass)),
                PassTarget::Endpoint(endpoint) => reach.add_foreign(&index.reached(endpoint), Foreign { place: &pass.place, via: None }),
                PassTarget::Upstream(name) => {
                    let key = name.to_lowercase();
                    let owner = own.get(&key).copied();
                    if let Some(pool) = owner.and_then(|owner| reach.pools.get_mut(owner)) {
                        pool.own += 1;
                    }
                    let block = upstreams.get(&key).copied();
                    let mut others = block.map_or_else(|| index.reached_by_name(name), |block| index.reached_by(block));
                    others.retain(|pool| Some(*pool) != owner);
                    reach.add_foreign(&others, Foreign { place: &pass.place, via: Some(name) });
                    if let Some(block) = block.filter(|_| pass.keep_conn && owner.is_none()) {
                        keeping.insert(key, block);
                    }
                }
            }
        }
        // A variable can name any upstream.
        if input.clients.passes.iter().any(|pass| pass.keep_conn && matches!(pass.target, PassTarget::Variable(_))) {
            keeping.extend(upstreams.into_iter().filter(|(key, _)| !own.contains_key(key)));
        }
        reach.add_kept(&index, keeping.into_values().filter(|block| block.keepalive.unwrap_or(0) > 0).collect());
        reach
    }

    /// Gives the clients of the pool at position `at`.
    pub(super) fn pool(&self, at: usize) -> Option<&PoolClients<'a>> {
        self.pools.get(at)
    }

    fn add_foreign(&mut self, pools: &[usize], foreign: Foreign<'a>) {
        for at in pools {
            if let Some(pool) = self.pools.get_mut(*at) {
                pool.foreign.push(foreign);
            }
        }
    }

    fn add_kept(&mut self, index: &Index<'a>, mut blocks: Vec<&'a UpstreamBlock>) {
        blocks.sort_by_key(|block| &block.place);
        for block in blocks {
            for at in index.reached_by(block) {
                if let Some(pool) = self.pools.get_mut(at) {
                    pool.kept.push(block);
                }
            }
        }
    }
}

/// Finds pools by endpoint.
struct Index<'a> {
    paths: HashMap<&'a Path, usize>,
    ports: HashMap<u16, Vec<(IpAddr, usize)>>,
}

impl<'a> Index<'a> {
    fn new(candidates: &[Candidate<'a>]) -> Self {
        let mut index = Self { paths: HashMap::new(), ports: HashMap::new() };
        for (at, candidate) in candidates.iter().enumerate() {
            match &candidate.listen.endpoint {
                Endpoint::Unix(path) => {
                    index.paths.insert(path, at);
                }
                Endpoint::Tcp(address) => index.ports.entry(address.port()).or_default().push((address.ip().to_canonical(), at)),
            }
        }
        index
    }

    /// Gives the pools that a connection to `endpoint` may reach. A wildcard address on either side counts as a match.
    fn reached(&self, endpoint: &Endpoint) -> Vec<usize> {
        match endpoint {
            Endpoint::Unix(path) => self.paths.get(path.as_path()).copied().into_iter().collect(),
            Endpoint::Tcp(address) => {
                let to = address.ip().to_canonical();
                let there = self.ports.get(&address.port()).into_iter().flatten();
                there.filter(|(ip, _)| *ip == to || ip.is_unspecified() || to.is_unspecified()).map(|(_, at)| *at).collect()
            }
        }
    }

    fn reached_by(&self, block: &UpstreamBlock) -> Vec<usize> {
        let mut pools: Vec<usize> = block.servers.iter().flat_map(|server| self.reached(server)).collect();
        pools.sort_unstable();
        pools.dedup();
        pools
    }

    /// Gives the pools that a host name with a port may mean: every pool on that port.
    fn reached_by_name(&self, name: &str) -> Vec<usize> {
        let port = name.rsplit_once(':').and_then(|(_, port)| port.parse::<u16>().ok());
        port.and_then(|port| self.ports.get(&port)).into_iter().flatten().map(|(_, at)| *at).collect()
    }
}
