//! Cases with their expected plans.

use super::*;
use crate::core::plan::placement_fingerprint_text;
use crate::model::listen::Handover;
use crate::model::problem::{Problem, Severity};

const OWN: &str = "polyfpm_php8_2_www";

#[test]
fn a_small_pool_is_whole_and_the_other_shard_stays_empty() {
    let planned = World::new().pool("www", 15).plan();
    assert_eq!(shown(&planned.plan), ["default/1 0-1: www×15 /run/php/www.sock Rename", "default/2 2-3:"]);
    assert_eq!(routing(&planned, "www"), (Routing::Whole, "15 workers are fewer than 2 × 8".to_owned()));
    assert_eq!(messages(&planned), [""; 0]);
}

#[test]
fn a_big_pool_at_the_old_path_is_shared() {
    let planned = World::new().pool("www", 17).pass_to("/run/php/www.sock").pass_to(OWN).plan();
    assert_eq!(shown(&planned.plan), ["default/1 0-1: www×9 /run/php/www.sock Share", "default/2 2-3: www×8 /run/php/www.sock Share"]);
    let reason = "/etc/nginx/sites/a.conf:1 passes to /run/php/www.sock";
    assert_eq!(routing(&planned, "www"), (Routing::Shared, reason.to_owned()));
    let [one, two] = planned.plan.shards.as_slice() else { panic!() };
    assert_eq!(one.placements[0].listener, two.placements[0].listener);
    let servers = &planned.plan.pools[0].servers;
    assert_eq!((servers.len(), servers[0].workers, servers[0].shards.len()), (1, 17, 2));
}

#[test]
fn a_big_pool_whose_clients_all_use_its_upstream_is_split() {
    let own = ["/run/php/www.sock", "/run/polyfpm/php8.2/sockets/www.2.sock"];
    let planned = World::new().pool("www", 16).pass_to(OWN).pass_to("POLYFPM_PHP8_2_WWW").upstream(OWN, &own, None).plan();
    assert_eq!(
        shown(&planned.plan),
        ["default/1 0-1: www×8 /run/php/www.sock Rename", "default/2 2-3: www×8 /run/polyfpm/php8.2/sockets/www.2.sock Rename"]
    );
    assert_eq!(routing(&planned, "www"), (Routing::Split, format!("every fastcgi_pass goes through {OWN}")));
    let [one, two] = planned.plan.shards.as_slice() else { panic!() };
    let (one, two) = (&one.placements[0].listener, &two.placements[0].listener);
    assert_eq!((one.access.clone(), one.backlog_connections), (two.access.clone(), two.backlog_connections));
    assert_eq!((one.alias.as_str(), two.alias.as_str()), ("/.polyfpm/www", "/.polyfpm/www/2"));
    assert_eq!(planned.plan.pools[0].servers.iter().map(|server| server.workers).collect::<Vec<_>>(), [8, 8]);
}

#[test]
fn what_is_not_known_means_shared() {
    let base = || World::new().pool("www", 16).pass_to(OWN);
    let variable = base().pass(PassTarget::Variable("$backend".to_owned()), false);
    let theirs = base().upstream("php", &["/run/php/www.sock"], None).pass_to("PHP").pass_to("/run/php/www.sock");
    let mut off = base();
    off.settings.nginx.enabled = false;
    let mut unread = base();
    unread.clients.known = false;
    let mut mounted = base();
    mounted.host.listens.get_mut(&PoolName::new("www")).unwrap().mounted_as = Some("/sock/www.sock".to_owned());
    for (world, wanted) in [
        (World::new().pool("www", 16), "no fastcgi_pass is known that reaches it"),
        (variable, "/etc/nginx/sites/a.conf:2 passes to a variable, which may name any pool"),
        (theirs, "/etc/nginx/sites/a.conf:2 passes to PHP, which leads to /run/php/www.sock, and so do 1 more"),
        (off, "[nginx] enabled = false, so clients are unknown"),
        (unread, "NGINX's configuration cannot be read whole, so clients may be unknown"),
        (mounted, "the socket file is mounted at /sock/www.sock, so clients may be unknown"),
    ] {
        assert_eq!(routing(&world.plan(), "www"), (Routing::Shared, wanted.to_owned()));
    }
}

#[test]
fn an_upstream_that_nothing_passes_to_is_no_client() {
    let world = World::new().pool("www", 16).pass_to(OWN).upstream("php", &["/run/php/www.sock"], None);
    assert_eq!(routing(&world.plan(), "www").0, Routing::Split);
}

#[test]
fn tcp_pools_are_steered_and_share_one_address() {
    let planned = World::new().tcp_pool("www", 16, "127.0.0.1:9000").pass_to("127.0.0.1:9000").plan();
    assert_eq!(shown(&planned.plan), ["default/1 0-1: www×8 127.0.0.1:9000 Steer", "default/2 2-3: www×8 127.0.0.1:9000 Steer"]);
    assert_eq!(planned.plan.pools[0].servers.len(), 1);
    assert_eq!(planned.plan.shards[0].placements[0].listener.alias, "127.0.0.1:9000");
    let planned = World::new().tcp_pool("www", 16, "127.0.0.1:9000").pass_to(OWN).plan();
    let second = &planned.plan.shards[1].placements[0].listener;
    assert_eq!(second.endpoint.to_string(), "/run/polyfpm/php8.2/sockets/www.2.sock");
    assert_eq!((second.handover, second.access.mode), (Handover::Rename, 0o666));
}

#[test]
fn tcp_clients_are_found_by_wildcard_and_by_host_name() {
    for (address, target, wanted) in [
        ("0.0.0.0:9000", "127.0.0.1:9000", "/etc/nginx/sites/a.conf:2 passes to 0.0.0.0:9000"),
        ("127.0.0.1:9000", "[::ffff:127.0.0.1]:9000", "/etc/nginx/sites/a.conf:2 passes to 127.0.0.1:9000"),
        ("127.0.0.1:9000", "localhost:9000", "/etc/nginx/sites/a.conf:2 passes to localhost:9000, which leads to 127.0.0.1:9000"),
        ("10.0.0.1:9000", OWN, "clients on other hosts may be unknown"),
    ] {
        let planned = World::new().tcp_pool("www", 16, address).pass_to(OWN).pass_to(target).plan();
        assert_eq!(routing(&planned, "www"), (Routing::Shared, wanted.to_owned()));
    }
    let elsewhere = World::new().tcp_pool("www", 16, "127.0.0.1:9000").pass_to(OWN).pass_to("127.0.0.2:9000").plan();
    assert_eq!(routing(&elsewhere, "www").0, Routing::Split);
}

#[test]
fn a_chosen_routing_is_followed_as_far_as_the_workers_go() {
    for (choice, workers, wanted, reason) in [
        (RoutingChoice::Whole, 64, Routing::Whole, "routing = \"whole\""),
        (RoutingChoice::Shared, 64, Routing::Shared, "routing = \"shared\""),
        (RoutingChoice::Split, 64, Routing::Split, "routing = \"split\""),
        (RoutingChoice::Split, 1, Routing::Whole, "1 worker is fewer than 2 × 8"),
    ] {
        let mut world = World::new().pool("www", workers).pass_to(OWN);
        world.settings.routing = choice;
        assert_eq!(routing(&world.plan(), "www"), (wanted, reason.to_owned()));
    }
}

#[test]
fn split_asked_for_against_the_clients_is_warned_of() {
    let mut world = World::new().pool("www", 16).pass_to("/run/php/www.sock");
    world.settings.routing = RoutingChoice::Split;
    let planned = world.plan();
    assert_eq!(routing(&planned, "www").0, Routing::Split);
    insta::assert_snapshot!(messages(&planned).join("\n"), @r#"Warning /etc/nginx/sites/a.conf:1: pool 'www' is split by routing = "split", but /etc/nginx/sites/a.conf:1 passes to /run/php/www.sock; clients of /run/php/www.sock reach the workers of one shard only"#);
    assert_eq!(planned.problems[0].remedy.as_deref(), Some("write fastcgi_pass polyfpm_php8_2_www; there"));
}

#[test]
fn a_split_pool_goes_back_when_a_client_returns_to_the_old_path() {
    let world = World::new().pool("www", 16).pass_to(OWN);
    let before = world.plan().plan;
    let planned = world.clone().pass_to("/run/php/www.sock").plan_after(Some(&before));
    assert_eq!(routing(&planned, "www").0, Routing::Shared);
    insta::assert_snapshot!(messages(&planned).join("\n"), @"Note pool 'www' goes back from split to shared: /etc/nginx/sites/a.conf:2 passes to /run/php/www.sock");
    // A configuration that somebody broke is not in use: NGINX still has the one that names the shards' sockets.
    let mut broken = world;
    broken.clients = Clients::default();
    assert_eq!(routing(&broken.plan_after(Some(&before)), "www").0, Routing::Split);
}

#[test]
fn a_pool_is_on_no_more_shards_than_its_workers_allow() {
    let mut world = World::new().pool("www", 25).pool("shop", 100);
    world.settings.groups[0].count = ShardCount::Fixed(8);
    let planned = world.plan();
    let on = |pool: &str| -> Vec<u32> {
        let placements = planned.plan.shards.iter().flat_map(|shard| &shard.placements);
        placements.filter(|placement| placement.pool.as_str() == pool).map(|placement| placement.workers.max_children).collect()
    };
    assert_eq!(on("www"), [9, 8, 8]);
    assert_eq!(on("shop"), [13, 13, 13, 13, 12, 12, 12, 12]);
    let without_least = {
        world.settings.groups[0].min_workers = 0;
        world.files.pools.truncate(1);
        world.files.pools[0].workers.max_children = 3;
        world.plan()
    };
    assert_eq!(without_least.plan.shards.iter().filter(|shard| !shard.placements.is_empty()).count(), 3);
}

#[test]
fn pools_go_to_the_first_group_that_names_them() {
    let world =
        World::new().pool("www", 5).pool("Store_a", 5).pool("b", 5).group("store", &["store_*", "gone"], 1).group("rest", &["*_a", "?"], 1);
    let planned = world.plan();
    assert_eq!(
        shown(&planned.plan),
        [
            "default/1 0-1: www×5 /run/php/www.sock Rename",
            "default/2 2-3:",
            "store/1 0-3: Store_a×5 /run/php/Store_a.sock Rename",
            "rest/1 0-3: b×5 /run/php/b.sock Rename",
        ]
    );
    assert_eq!(planned.plan.pools.iter().map(|pool| pool.pool.as_str()).collect::<Vec<_>>(), ["www", "Store_a", "b"]);
    insta::assert_snapshot!(messages(&planned).join("\n"), @r"
    Warning /etc/polyfpm/php8.2.toml: pool 'Store_a' is claimed by [group.store] and [group.rest]: the first has it
    Note /etc/polyfpm/php8.2.toml: [group.store] pools: 'gone' matches no pool
    ");
}

#[test]
fn a_quarantined_pool_stays_out_and_its_pattern_counts() {
    let mut world = World::new().pool("www", 5).pool("bad", 5).group("store", &["bad"], 1);
    world.quarantined.push(Quarantined { pool: PoolName::new("bad"), problem: Problem::error("no such user") });
    let planned = world.plan();
    assert_eq!(planned.plan.pools.len(), 1);
    assert_eq!(planned.plan.quarantined, world.quarantined);
    assert_eq!(messages(&planned), [""; 0]);
}

#[test]
fn what_php_fpm_would_refuse_is_quarantined_by_name() {
    let long = Endpoint::Unix(PathBuf::from(format!("/run/{}.sock", "x".repeat(100))));
    let mut world = World::new().pool("none", 0).pool_at("long", 5, long).pool("www", 5).pool("lost", 5);
    world.host.listens.remove(&PoolName::new("lost"));
    let planned = world.plan();
    assert_eq!(planned.plan.pools.len(), 1);
    let problems: Vec<String> = planned.plan.quarantined.iter().map(|quarantined| quarantined.problem.to_string()).collect();
    insta::assert_snapshot!(problems.join("\n"), @r"
    /etc/php/8.2/fpm/pool.d/none.conf:1: pool 'none': pm.max_children must be at least 1
    /etc/php/8.2/fpm/pool.d/long.conf:3: pool 'long': /run/xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx.sock has 110 bytes, a socket path at most 107
    /etc/php/8.2/fpm/pool.d/lost.conf:3: pool 'lost': listen '/run/php/lost.sock' is not resolved
    ");
}

#[test]
fn a_copied_pool_file_does_not_take_the_running_pools_socket() {
    let same = || Endpoint::Unix(PathBuf::from("/run/php/www.sock"));
    let before = World::new().pool_at("www", 5, same()).plan().plan;
    let copied = World::new().pool_at("copy", 5, same()).pool_at("www", 5, same());
    let planned = copied.plan_after(Some(&before));
    assert_eq!(planned.plan.pools[0].pool.as_str(), "www");
    assert_eq!(
        planned.plan.quarantined[0].problem.to_string(),
        "/etc/php/8.2/fpm/pool.d/copy.conf:3: pool 'copy': /run/php/www.sock belongs to pool 'www'"
    );
    assert_eq!(copied.plan().plan.pools[0].pool.as_str(), "copy");
}

#[test]
fn whole_pools_spread_evenly_and_stay_when_others_come_and_go() {
    let world = World::new().pool("a", 5).pool("b", 3).pool("c", 2).pool("d", 4);
    let first = world.plan().plan;
    assert_eq!(first.shards.iter().map(ShardPlan::workers).collect::<Vec<_>>(), [7, 7]);
    let mut later = world.pool("e", 7);
    later.files.pools.remove(0);
    let second = later.plan_after(Some(&first)).plan;
    for pool in ["b", "c", "d"] {
        let on = |plan: &Plan| plan.pool(&PoolName::new(pool)).unwrap().servers[0].shards.clone();
        assert_eq!(on(&first), on(&second), "{pool}");
    }
    assert_eq!(second.pool(&PoolName::new("e")).unwrap().servers[0].shards[0].index, 1);
}

#[test]
fn new_shards_are_filled_and_lost_shards_are_emptied() {
    let mut world = (0..40).fold(World::new(), |world, at| world.pool(&format!("p{at:02}"), 5));
    let two = world.plan().plan;
    world.settings.groups[0].count = ShardCount::Fixed(4);
    let four = world.plan_after(Some(&two)).plan;
    assert_eq!(four.shards.iter().map(ShardPlan::workers).collect::<Vec<_>>(), [50; 4]);
    let stayed = four.pools.iter().filter(|pool| two.pool(&pool.pool).unwrap().servers == pool.servers).count();
    assert_eq!(stayed, 20);
    world.settings.groups[0].count = ShardCount::Fixed(3);
    let three = world.plan_after(Some(&four)).plan;
    let stayed = three.pools.iter().filter(|pool| four.pool(&pool.pool).unwrap().servers == pool.servers).count();
    assert_eq!(stayed, 30);
}

#[test]
fn the_old_path_stays_with_the_shard_that_has_it() {
    let mut world = World::new().pool("a", 6).pool("www", 5).pass_to(OWN);
    let whole = world.plan().plan;
    assert_eq!(shown(&whole)[1], "default/2 2-3: www×5 /run/php/www.sock Rename");
    world.files.pools[1].workers.max_children = 16;
    let split = world.plan_after(Some(&whole)).plan;
    assert_eq!(
        shown(&split),
        [
            "default/1 0-1: a×6 /run/php/a.sock Rename, www×8 /run/polyfpm/php8.2/sockets/www.1.sock Rename",
            "default/2 2-3: www×8 /run/php/www.sock Rename",
        ]
    );
    assert_eq!(world.plan_after(Some(&split)).plan, split);
}

#[test]
fn keep_alive_of_the_operators_upstreams_is_judged() {
    let named = |keepalive, workers, keep| {
        let world = World::new().pool("www", workers).upstream("php", &["/run/php/www.sock"], keepalive);
        messages(&world.pass(PassTarget::Upstream("php".to_owned()), keep).plan())
    };
    assert_eq!(named(None, 5, true), [""; 0]);
    assert_eq!(named(Some((8, 5)), 5, true), [""; 0]);
    assert_eq!(named(Some((8, 60)), 5, false), [""; 0]);
    insta::assert_snapshot!(named(Some((8, 60)), 5, true).join("\n"), @"Warning /etc/nginx/conf.d/up.conf:1: upstream 'php' keeps connections to pool 'www' open without keepalive_time and keepalive_timeout of at most 5s; a restart can lose requests");
    insta::assert_snapshot!(named(Some((8, 2)), 16, true).join("\n"), @"Warning /etc/nginx/conf.d/up.conf:1: upstream 'php' keeps connections to pool 'www' open; all generations share its socket, and a restart loses requests on kept connections");
    let direct = World::new().pool("www", 5).pass(PassTarget::Endpoint(Endpoint::Unix(PathBuf::from("/run/php/www.sock"))), true);
    assert_eq!(messages(&direct.plan()), [""; 0]);
    let variable = World::new().pool("www", 5).upstream("php", &["/run/php/www.sock"], Some((8, 60)));
    let variable = variable.pass(PassTarget::Variable("$php".to_owned()), true);
    assert_eq!(messages(&variable.plan()).len(), 1);
}

#[test]
fn a_mounted_socket_is_never_renamed() {
    let mut world = World::new().pool("www", 5);
    world.host.listens.get_mut(&PoolName::new("www")).unwrap().mounted_as = Some("/sock/www.sock".to_owned());
    let planned = world.plan();
    assert_eq!(shown(&planned.plan)[0], "default/1 0-1: www×5 /run/php/www.sock Share");
    insta::assert_snapshot!(messages(&planned).join("\n"), @"Warning /etc/php/8.2/fpm/pool.d/www.conf:3: pool 'www': /run/php/www.sock is mounted into a container as /sock/www.sock, where a new socket would not be seen");
}

#[test]
fn the_backlog_is_the_settings_or_the_pools_or_the_hosts() {
    let mut world = World::new().pool("www", 5);
    let backlog = |world: &World| {
        let planned = world.plan();
        (planned.plan.shards[0].placements[0].listener.backlog_connections, messages(&planned))
    };
    assert_eq!(backlog(&world), (4096, Vec::new()));
    world = world.last_pool(|pool| pool.listen_backlog = Some(-1));
    assert_eq!(backlog(&world), (4096, Vec::new()));
    world = world.last_pool(|pool| pool.listen_backlog = Some(65535));
    let warning = "Warning /etc/php/8.2/fpm/pool.d/www.conf:3: listen.backlog 65535 of pool 'www' is cut to net.core.somaxconn = 4096";
    assert_eq!(backlog(&world), (65535, vec![warning.to_owned()]));
    world.settings.listen.backlog_connections = Some(100);
    assert_eq!(backlog(&world), (100, Vec::new()));
    world.settings.listen.backlog_connections = Some(5000);
    let warning = "Warning /etc/polyfpm/php8.2.toml: [listen] backlog = 5000 is cut to net.core.somaxconn = 4096";
    assert_eq!(backlog(&world), (5000, vec![warning.to_owned()]));
}

#[test]
fn process_max_is_divided_and_its_shares_stay_while_they_fit() {
    let shares = |plan: &Plan| plan.shards.iter().map(|shard| shard.process_max).collect::<Vec<_>>();
    let mut world = World::new().pool("a", 30).pool("b", 10);
    world.settings.routing = RoutingChoice::Whole;
    world.files.global.process_max = Some(100);
    let first = world.plan().plan;
    assert_eq!(shares(&first), [Some(74), Some(26)]);
    world = world.pool("c", 1);
    assert_eq!(shares(&world.plan_after(Some(&first)).plan), [Some(74), Some(26)]);
    world = world.pool("d", 60);
    assert_eq!(shares(&world.plan_after(Some(&first)).plan), [Some(31), Some(69)]);
    world.files.global.process_max = Some(1);
    let planned = world.plan();
    assert_eq!(shares(&planned.plan), [Some(1), Some(1)]);
    assert_eq!(messages(&planned), ["Warning process.max = 1 is less than one for each of 2 shards; each gets 1"]);
}

#[test]
fn a_directory_that_is_too_long_is_an_error_and_the_pool_is_shared() {
    let mut world = World::new().pool("www", 16).pass_to(OWN);
    world.settings.listen.directory = PathBuf::from(format!("/{}", "d".repeat(80)));
    let planned = world.plan();
    assert_eq!(routing(&planned, "www").0, Routing::Shared);
    assert_eq!(planned.problems[0].severity, Severity::Error);
    assert!(planned.problems[0].message.ends_with("/www.2.sock has 92 bytes, the socket of a shard may have 91"), "{:?}", planned.problems);
    world.settings.listen.directory = PathBuf::from(format!("/{}", "d".repeat(79)));
    assert_eq!(routing(&world.plan(), "www").0, Routing::Split);
}

#[test]
fn a_pool_that_listens_on_a_shards_socket_keeps_it() {
    let taken = Endpoint::Unix(settings().listen.directory.join("www.2.sock"));
    let planned = World::new().pool("www", 16).pool_at("odd", 5, taken).pass_to(OWN).plan();
    assert_eq!(routing(&planned, "www").0, Routing::Shared);
    assert_eq!(planned.problems[0].severity, Severity::Error);
}

#[test]
fn absent_cpus_are_an_error_with_a_remedy() {
    let mut world = World::new().pool("www", 5);
    world.settings.groups[0].cpus = CpuChoice::Sets(vec!["0-1".parse().unwrap(), "3-4,9".parse().unwrap()]);
    let planned = world.plan();
    insta::assert_snapshot!(messages(&planned).join("\n"), @"Error /etc/polyfpm/php8.2.toml: cpus of group 'default': CPU 4,9 is not among the CPUs that polyfpm may use, 0-3");
    assert_eq!(planned.problems[0].remedy.as_deref(), Some("name CPUs out of 0-3, or set cpus = \"auto\""));
    assert_eq!(planned.plan.shards[1].cpus, Some("3".parse().unwrap()));
}

#[test]
fn the_fingerprint_follows_what_a_master_is_made_from() {
    let planned = World::new().pool("www", 5).plan().plan;
    let shard = planned.shards[0].clone();
    insta::assert_snapshot!(placement_fingerprint_text(&shard), @r#"
    process.max None
    pool "www"
    workers 5 (None, None, None)
    listen "/run/php/www.sock" Rename "/.polyfpm/www" 4096
    access Some(33) Some(33) 660 ([], [])
    "#);
    let mut other = shard.clone();
    other.placements[0].listener.access.mode = 0o666;
    assert_ne!(placement_fingerprint_text(&shard), placement_fingerprint_text(&other));
}

#[test]
fn everything_a_plan_depends_on_is_watched() {
    let mut world = World::new();
    world.files.files = vec![PathBuf::from("/etc/php/8.2/fpm/php-fpm.conf")];
    world.files.patterns = vec![PathBuf::from("/etc/php/8.2/fpm/pool.d/*.conf"), PathBuf::from("/home/*/fpm/*.conf")];
    let watched: Vec<String> = world.plan().plan.watched.iter().map(|path| path.display().to_string()).collect();
    assert_eq!(watched, ["/etc/php/8.2/fpm/php-fpm.conf", "/etc/php/8.2/fpm/pool.d", "/etc/polyfpm/php8.2.toml", "/home"]);
}
