//! How many idle connections an upstream may keep.

use crate::model::endpoint::Endpoint;
use crate::model::plan::UpstreamServer;
use crate::model::settings::Keepalive;

/// Gives the `keepalive` of a pool's upstream, per NGINX worker; 0 is off.
///
/// The rule: each idle connection occupies one php-fpm worker (P40), NGINX may hold all of them to the same shard, and each NGINX
/// worker holds its own. So `keepalive` × `nginx_workers` is at most half of the workers of the smallest shard. `Auto` takes that
/// most; a fixed number is used as far as the rule allows, since more of it stops the pool. A unix socket that several shards share
/// gets none: a leaving worker closes a connection that NGINX is about to use (P21); a TCP address that shards share is steered by
/// CPU, so each shard counts with its part of the workers (P29). With no known number of NGINX workers (0) nothing is safe.
pub fn keepalive_for(choice: Keepalive, servers: &[UpstreamServer], nginx_workers: u32) -> u32 {
    let smallest = servers.iter().map(workers_of_one_shard).min().unwrap_or(0);
    let most = (smallest / 2).checked_div(nginx_workers).unwrap_or(0);
    match choice {
        Keepalive::Auto => most,
        Keepalive::Fixed(wanted) => wanted.min(most),
    }
}

fn workers_of_one_shard(server: &UpstreamServer) -> u32 {
    let shards = u32::try_from(server.shards.len()).unwrap_or(u32::MAX).max(1);
    match &server.endpoint {
        Endpoint::Unix(_) if shards > 1 => 0,
        Endpoint::Unix(_) => server.workers,
        Endpoint::Tcp(_) => server.workers / shards,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::model::ids::{GroupName, ShardId};

    fn server(endpoint: &str, workers: u32, shards: u16) -> UpstreamServer {
        let endpoint = endpoint.parse().map_or_else(|_| Endpoint::Unix(endpoint.into()), Endpoint::Tcp);
        let shards = (1..=shards).map(|index| ShardId::new(&GroupName::new("default"), index)).collect();
        UpstreamServer { endpoint, workers, shards }
    }

    #[test]
    fn half_of_the_smallest_shard_stays_free() {
        for (choice, servers, nginx_workers, expected) in [
            (Keepalive::Auto, vec![server("/a", 16, 1), server("/b", 12, 1)], 2, 3),
            (Keepalive::Auto, vec![server("/a", 3, 1)], 2, 0),
            (Keepalive::Auto, vec![server("/a", 4, 1)], 2, 1),
            (Keepalive::Fixed(1), vec![server("/a", 16, 1)], 2, 1),
            (Keepalive::Fixed(64), vec![server("/a", 16, 1)], 2, 4),
            (Keepalive::Fixed(0), vec![server("/a", 16, 1)], 2, 0),
            (Keepalive::Auto, vec![server("/a", 64, 2)], 2, 0),
            (Keepalive::Auto, vec![server("127.0.0.1:9000", 64, 2)], 2, 8),
            (Keepalive::Auto, vec![server("/a", 64, 1)], 0, 0),
            (Keepalive::Auto, vec![], 2, 0),
        ] {
            assert_eq!(keepalive_for(choice, &servers, nginx_workers), expected, "{choice:?} {servers:?} {nginx_workers}");
        }
    }

    proptest! {
        #[test]
        fn every_shard_keeps_half_free(workers in proptest::collection::vec(1_u32..500, 1..8), nginx in 1_u32..200, fixed in any::<u32>()) {
            let servers: Vec<_> = workers.iter().map(|workers| server("/a", *workers, 1)).collect();
            for choice in [Keepalive::Auto, Keepalive::Fixed(fixed)] {
                let kept = keepalive_for(choice, &servers, nginx);
                prop_assert!(workers.iter().all(|workers| kept * nginx * 2 <= *workers));
            }
        }
    }
}
