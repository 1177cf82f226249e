use super::*;
use crate::model::ids::GroupName;
use crate::model::topology::{Cpu, FULL_CAPACITY, LayoutSource};

fn group(count: ShardCount, cpus: CpuChoice) -> GroupSettings {
    GroupSettings { name: GroupName::new("default"), pools: Vec::new(), count, cpus, min_workers: 8 }
}

fn host(available: &str) -> Host {
    Host { topology: Topology::flat(available.parse().unwrap()), ..Host::default() }
}

/// A machine of `nodes` nodes with `caches` caches each, `cores` cores a cache and `threads` threads a core, whose second
/// threads come after all first ones, as servers number them.
fn machine(nodes: u32, caches: u32, cores: u32, threads: u32) -> Host {
    let total = nodes * caches * cores;
    let cpu = |number: u32| {
        let core = number % total;
        let cache = core / cores * cores;
        Cpu { core, cache, node: core / (caches * cores), capacity: FULL_CAPACITY, isolated: false }
    };
    let online: std::collections::BTreeMap<u32, Cpu> = (0..total * threads).map(|number| (number, cpu(number))).collect();
    let usable = online.keys().copied().collect();
    Host { topology: Topology { online, usable, quota_milli: None }, ..Host::default() }
}

fn nginx(mut host: Host, workers: &[&str]) -> Host {
    let set = |text: &&str| (*text != "-").then(|| text.parse().unwrap());
    host.nginx = Some(NginxLayout { workers: workers.iter().map(set).collect(), source: LayoutSource::Life });
    host
}

fn shown(count: ShardCount, cpus: CpuChoice, host: &Host) -> Vec<String> {
    let laid = lay_out(&group(count, cpus), host);
    laid.sets.iter().map(|set| set.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string)).collect()
}

fn fixed(cpus: CpuChoice, count: u16, available: &str) -> Vec<String> {
    shown(ShardCount::Fixed(count), cpus, &host(available))
}

fn auto(host: &Host) -> Vec<String> {
    shown(ShardCount::Auto, CpuChoice::Nginx, host)
}

#[test]
fn auto_counts_cpus_up_to_four_and_then_grows_slowly() {
    for (available, wanted) in [("", 1), ("0", 1), ("0-1", 2), ("0-3", 4), ("0-4", 4), ("0-15", 4), ("0-23", 6), ("0-127", 8)] {
        assert_eq!(shown(ShardCount::Auto, CpuChoice::Off, &host(available)).len(), wanted, "{available}");
    }
}

#[test]
fn cpus_are_cut_into_contiguous_nearly_equal_sets() {
    assert_eq!(fixed(CpuChoice::Auto, 2, "0-3"), ["0-1", "2-3"]);
    assert_eq!(fixed(CpuChoice::Nginx, 3, "0-7"), ["0-2", "3-4", "5-7"]);
    assert_eq!(fixed(CpuChoice::Auto, 2, "0,2,8-9"), ["0,2", "8-9"]);
    assert_eq!(fixed(CpuChoice::Auto, 4, "0,2"), ["0", "2", "0", "2"]);
    assert_eq!(fixed(CpuChoice::Auto, 2, ""), ["-", "-"]);
    assert_eq!(fixed(CpuChoice::Off, 2, "0-3"), ["-", "-"]);
}

#[test]
fn given_sets_are_used_in_turn_without_absent_cpus() {
    let sets = ["0-1", "2,9", "9"].map(|set| set.parse().unwrap());
    assert_eq!(fixed(CpuChoice::Sets(sets.to_vec()), 4, "0-3"), ["0-1", "2", "-", "0-1"]);
}

#[test]
fn shards_stand_where_nginx_pins_its_workers() {
    assert_eq!(auto(&nginx(host("0-3"), &["0", "1", "2", "3"])), ["0", "1", "2", "3"]);
    assert_eq!(auto(&nginx(host("0-3"), &["0-1", "2-3"])), ["0-1", "2-3"]);
    assert_eq!(auto(&nginx(host("0-7"), &["0,4", "1,5", "2,6", "3,7"])), ["0,4", "1,5", "2,6", "3,7"]);
    // Eight workers of one CPU each on one cache: four shards of two workers.
    assert_eq!(auto(&nginx(host("0-7"), &["0", "1", "2", "3", "4", "5", "6", "7"])), ["0-1", "2-3", "4-5", "6-7"]);
    // Workers that share CPUs share a shard.
    assert_eq!(auto(&nginx(host("0-3"), &["0-1", "1-2", "3"])), ["0-2", "3"]);
    assert_eq!(auto(&nginx(host("0-3"), &["1"])), ["1"]);
}

#[test]
fn where_nginx_pins_nothing_the_machine_decides() {
    for workers in [&["-"][..], &["-", "-"], &["0", "-"]] {
        assert_eq!(auto(&nginx(host("0-1"), workers)), ["0", "1"], "{workers:?}");
    }
    assert_eq!(auto(&nginx(host("0-1"), &["4", "5"])), ["0", "1"], "its CPUs are not ours");
    let reason = |host: &Host| lay_out(&group(ShardCount::Auto, CpuChoice::Nginx), host).reason;
    assert_eq!(reason(&nginx(host("0-1"), &["-"])), "2 shards for 2 CPUs; NGINX has one worker, which is not pinned: CPUs 0-1 by topology");
    assert_eq!(reason(&nginx(host("0-1"), &["0", "1"])), "2 shards for 2 CPUs; NGINX's 2 workers are pinned to 2 sets on CPUs 0-1");
}

#[test]
fn no_shard_straddles_a_cache_or_a_node_where_a_near_number_avoids_it() {
    // 64 cores in 8 caches: a shard a cache.
    let big = machine(1, 8, 8, 1);
    assert_eq!(auto(&big), ["0-7", "8-15", "16-23", "24-31", "32-39", "40-47", "48-55", "56-63"]);
    // Two nodes of 12 caches: four shards a node, three caches each.
    let two = machine(2, 12, 8, 1);
    assert_eq!(auto(&two), ["0-23", "24-47", "48-71", "72-95", "96-119", "120-143", "144-167", "168-191"]);
    // Three caches of eight: six would be cut well, and so it is.
    assert_eq!(auto(&machine(1, 3, 8, 1)), ["0-3", "4-7", "8-11", "12-15", "16-19", "20-23"]);
    // A number that was asked for: each cache is cut for itself.
    let asked = shown(ShardCount::Fixed(4), CpuChoice::Auto, &machine(1, 3, 8, 1));
    assert_eq!(asked, ["0-3", "4-7", "8-15", "16-23"]);
}

#[test]
fn siblings_stay_together_while_there_are_cores_enough() {
    assert_eq!(auto(&machine(1, 1, 8, 2)), ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]);
    assert_eq!(auto(&machine(1, 1, 1, 2)), ["0", "1"], "two threads of the only core");
}

#[test]
fn a_quota_and_little_memory_take_shards_away() {
    let mut quota = host("0-7");
    quota.topology.quota_milli = Some(1500);
    assert_eq!(auto(&quota), ["0-3", "4-7"]);
    assert!(lay_out(&group(ShardCount::Auto, CpuChoice::Auto), &quota).reason.contains("a quota of 1.5 CPUs"));
    let small = Host { memory_bytes: Some(2 << 30), opcache_bytes: Some(128 << 20), ..host("0-3") };
    assert_eq!(auto(&small), ["0-1", "2-3"]);
}

#[test]
fn fast_and_efficient_cores_are_weighed() {
    let mut hybrid = host("0-11");
    for (number, cpu) in &mut hybrid.topology.online {
        cpu.capacity = if *number < 4 { FULL_CAPACITY } else { FULL_CAPACITY / 2 };
    }
    assert_eq!(shown(ShardCount::Fixed(2), CpuChoice::Auto, &hybrid), ["0-3", "4-11"]);
}

#[test]
fn isolated_cpus_are_left_alone_unless_nginx_runs_there() {
    let mut isolated = host("0-3");
    for number in [2, 3] {
        isolated.topology.online.get_mut(&number).unwrap().isolated = true;
    }
    assert_eq!(auto(&isolated), ["0", "1"]);
    assert_eq!(auto(&nginx(isolated, &["2", "3"])), ["2", "3"]);
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn every_cpu_is_used_once_and_no_shard_is_empty(nodes in 1_u32..3, caches in 1_u32..9, cores in 1_u32..9, threads in 1_u32..3, count in 0_u16..20) {
            let host = machine(nodes, caches, cores, threads);
            let choice = if count == 0 { ShardCount::Auto } else { ShardCount::Fixed(count) };
            let sets: Vec<CpuSet> = lay_out(&group(choice, CpuChoice::Auto), &host).sets.into_iter().flatten().collect();
            let distinct: std::collections::BTreeSet<&CpuSet> = sets.iter().collect();
            let mut seen: Vec<u32> = distinct.iter().flat_map(|set| set.iter()).collect();
            seen.sort_unstable();
            let all: Vec<u32> = host.topology.usable.iter().collect();
            prop_assert_eq!(seen, all);
            prop_assert!(sets.iter().all(|set| !set.is_empty()));
            if count > 0 {
                prop_assert_eq!(sets.len(), usize::from(count));
            }
        }

        #[test]
        fn no_cache_is_straddled_by_a_shard_that_could_fit_into_one(caches in 1_u32..9, cores in 1_u32..9, count in 1_u16..20) {
            let host = machine(1, caches, cores, 1);
            let sets = lay_out(&group(ShardCount::Fixed(count), CpuChoice::Auto), &host).sets;
            if u32::from(count) >= caches {
                for set in sets.into_iter().flatten() {
                    prop_assert_eq!(host.topology.count_of(&set, |cpu| cpu.cache), 1, "{}", set);
                }
            }
        }
    }
}
