//! What holds for any input.

use std::collections::{BTreeMap, HashSet};

use proptest::prelude::*;

use super::*;
use crate::core::plan::division::refusal;

prop_compose! {
    fn any_numbers()(
        pm in prop_oneof![Just(ProcessManager::Static), Just(ProcessManager::Dynamic), Just(ProcessManager::Ondemand)],
        max in 1_u32..120, most in 1_u32..=100, least in 1_u32..=100, start in 0_u32..=100,
    ) -> (ProcessManager, WorkerNumbers) {
        let most = (max * most / 100).max(1);
        let least = (most * least / 100).max(1);
        let start = (start > 0).then(|| least + (most - least) * start / 100);
        (pm, WorkerNumbers { max_children: max, start_servers: start, min_spare_servers: Some(least), max_spare_servers: Some(most) })
    }
}

prop_compose! {
    fn any_world()(
        pools in prop::collection::btree_map("[a-cA.:/ _-]{1,5}", (any_numbers(), 0_u8..5), 0..24),
        counts in (1_u16..7, 1_u16..4), min_workers in 0_u32..12, known in any::<bool>(), process_max in prop::option::of(1_u32..400),
        choice in prop_oneof![
            4 => Just(RoutingChoice::Auto), 1 => Just(RoutingChoice::Split), 1 => Just(RoutingChoice::Shared), 1 => Just(RoutingChoice::Whole)
        ],
    ) -> World {
        let mut world = World::new().group("g", &["a*"], counts.1);
        world.settings.groups[0].count = ShardCount::Fixed(counts.0);
        world.settings.groups[0].min_workers = min_workers;
        world.settings.routing = choice;
        world.clients.known = known;
        world.files.global.process_max = process_max;
        let mut seen = HashSet::new();
        for (at, (name, ((pm, workers), way))) in pools.into_iter().enumerate() {
            // php-fpm knows no two pools whose names differ in case alone.
            if !seen.insert(name.to_lowercase()) {
                continue;
            }
            let path = format!("/run/php/{at}.sock");
            world = match way {
                0 => world.tcp_pool(&name, 1, &format!("127.0.0.1:{}", 9000 + at)),
                _ => world.pool_at(&name, 1, Endpoint::Unix(PathBuf::from(&path))),
            };
            world = world.last_pool(|pool| (pool.pm, pool.workers) = (pm, workers));
            world = match way {
                1 | 2 => world.pass_to(&path),
                3 => world,
                _ => {
                    let upstream = crate::core::plan::upstream_name(&world.settings, &PoolName::new(name));
                    world.pass_to(&upstream)
                }
            };
        }
        world
    }
}

/// Checks everything a plan must keep, whatever it was made from.
fn check(world: &World, plan: &Plan) -> Result<(), TestCaseError> {
    let mut workers: BTreeMap<&PoolName, u32> = BTreeMap::new();
    let mut endpoints: BTreeMap<String, (&PoolName, usize)> = BTreeMap::new();
    let mut aliases: BTreeMap<&str, &PoolName> = BTreeMap::new();
    for shard in &plan.shards {
        let mut in_master = HashSet::new();
        for Placement { pool, workers: share, listener } in &shard.placements {
            let planned = plan.pool(pool).unwrap();
            *workers.entry(pool).or_default() += share.max_children;
            prop_assert_eq!(refusal(planned.pm, share), None);
            prop_assert!(in_master.insert(&listener.alias), "{} twice in {}", listener.alias, shard.id);
            prop_assert_eq!(*aliases.entry(&listener.alias).or_insert(pool), pool);
            let used = endpoints.entry(listener.endpoint.to_string()).or_insert((pool, 0));
            used.1 += 1;
            prop_assert_eq!(used.0, pool);
            prop_assert!(used.1 == 1 || planned.routing == Routing::Shared, "{} twice", listener.endpoint);
            if planned.routing != Routing::Whole && planned.pm == ProcessManager::Static {
                let group = world.settings.groups.iter().find(|group| group.name == planned.group).unwrap();
                prop_assert!(share.max_children >= group.min_workers);
            }
        }
    }
    for pool in &world.files.pools {
        let planned = plan.pool(&pool.name).unwrap();
        prop_assert_eq!(workers.get(&pool.name), Some(&pool.workers.max_children));
        prop_assert_eq!(planned.servers.iter().map(|server| server.workers).sum::<u32>(), pool.workers.max_children);
        // The operator's own path always works.
        prop_assert!(endpoints.contains_key(&world.host.listens[&pool.name].endpoint.to_string()));
    }
    let shares: Vec<u32> = plan.shards.iter().filter_map(|shard| shard.process_max).collect();
    if let Some(total) = world.files.global.process_max.filter(|_| !shares.is_empty()) {
        prop_assert_eq!(shares.iter().sum::<u32>(), total.max(u32::try_from(shares.len()).unwrap()));
    }
    Ok(())
}

proptest! {
    #[test]
    fn any_plan_keeps_the_rules(world in any_world()) {
        let planned = world.plan();
        check(&world, &planned.plan)?;
        prop_assert!(planned.plan.quarantined.is_empty());
    }

    #[test]
    fn the_same_input_gives_the_same_plan(world in any_world()) {
        let first = world.plan();
        prop_assert_eq!(&world.plan(), &first);
        // Planned again while it runs.
        prop_assert_eq!(world.plan_after(Some(&first.plan)).plan, first.plan);
    }

    #[test]
    fn whole_pools_stay_when_others_come_and_go(world in any_world(), gone in any::<prop::sample::Selector>(), more in any_numbers()) {
        let first = world.plan().plan;
        let mut later = world.pool("new", 1).last_pool(|pool| (pool.pm, pool.workers) = more);
        if later.files.pools.len() > 1 {
            let name = gone.select(&later.files.pools).name.clone();
            later.files.pools.retain(|pool| pool.name != name);
        }
        let second = later.plan_after(Some(&first)).plan;
        check(&later, &second)?;
        for pool in second.pools.iter().filter(|pool| pool.routing == Routing::Whole) {
            if let Some(before) = first.pool(&pool.pool).filter(|before| before.routing == Routing::Whole) {
                prop_assert_eq!(&before.servers, &pool.servers);
            }
        }
    }

    #[test]
    fn any_plan_can_follow_any_other(before in any_world(), after in any_world()) {
        let second = after.plan_after(Some(&before.plan().plan)).plan;
        check(&after, &second)?;
        prop_assert_eq!(after.plan_after(Some(&second)).plan, second);
    }
}

#[test]
fn a_thousand_pools_are_spread_evenly() {
    let mut world = (0..1000).fold(World::new(), |world, at| {
        let path = format!("/run/php/p{at}.sock");
        world.pool(&format!("p{at}"), 1 + at % 40).pass_to(&path)
    });
    world.settings.groups[0].count = ShardCount::Fixed(8);
    let plan = world.plan().plan;
    let again = world.plan_after(Some(&plan)).plan;
    assert_eq!(plan, again);
    let workers: Vec<u32> = plan.shards.iter().map(ShardPlan::workers).collect();
    let (least, most) = (workers.iter().min().unwrap(), workers.iter().max().unwrap());
    assert!(most - least <= most / 20, "{workers:?}");
}
