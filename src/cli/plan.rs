//! Shows a plan: as tables for people, as JSON for scripts.
//!
//! Rendering only; what the plan says is decided in `core::plan`.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use serde_json::{Value, json};

use super::table::table;
use crate::model::cpus::CpuSet;
use crate::model::plan::{Placement, Plan, PoolPlan, Routing, ShardPlan};

/// More pools than this in a shard, or in a list, are told as a number: two screens full.
const POOLS_SHOWN: usize = 40;

/// Gives the plan as tables: the shards with what each carries, the pools with the reason for their routing, and the pools that
/// are kept out. `width` is the terminal's; without it no line is wrapped.
pub fn render_table(plan: &Plan, width: Option<u16>) -> String {
    let mut parts = vec![super::map::render(&plan.map, width), shards(plan, width), pools(plan, width)];
    if !plan.quarantined.is_empty() {
        parts.push(quarantined(plan, width));
    }
    parts.retain(|part| !part.is_empty());
    parts.join("\n\n") + "\n"
}

/// Gives the plan as JSON. Fields are added, never renamed.
pub fn render_json(plan: &Plan) -> Value {
    let shards: Vec<Value> = plan.shards.iter().map(shard_json).collect();
    let pools: Vec<Value> = plan.pools.iter().map(pool_json).collect();
    json!({ "cpus": plan.map, "shards": shards, "pools": pools, "quarantined": plan.quarantined })
}

fn shard_json(shard: &ShardPlan) -> Value {
    let placement = |placement: &Placement| {
        let listener = &placement.listener;
        json!({
            "pool": placement.pool,
            "workers": placement.workers,
            "listener": {
                "endpoint": listener.endpoint,
                "handover": listener.handover,
                "backlog_connections": listener.backlog_connections,
                "alias": listener.alias,
            },
        })
    };
    json!({
        "group": shard.id.group,
        "shard": shard.id,
        "cpus": shard.cpus,
        "workers": shard.workers(),
        "process_max": shard.process_max,
        "pools": shard.placements.iter().map(placement).collect::<Vec<_>>(),
    })
}

fn pool_json(pool: &PoolPlan) -> Value {
    json!({
        "pool": pool.pool,
        "group": pool.group,
        "pm": pool.pm,
        "workers": pool.workers,
        "routing": pool.routing,
        "reason": pool.reason,
        "upstream": pool.upstream,
        "servers": pool.servers,
    })
}

fn shards(plan: &Plan, width: Option<u16>) -> String {
    let routing: BTreeMap<_, _> = plan.pools.iter().map(|pool| (&pool.pool, pool.routing)).collect();
    let mut table = table(["SHARD", "CPUS", "POOL", "WORKERS", "LISTENER", "ROUTING"], width);
    for shard in &plan.shards {
        let name = shard.id.to_string();
        let cpus = shard.cpus.as_ref().map_or_else(|| "any".to_owned(), CpuSet::to_string);
        if shard.placements.is_empty() {
            table.add_row([name, cpus, "none".to_owned(), "0".to_owned(), "not started".to_owned(), String::new()]);
        } else if shard.placements.len() > POOLS_SHOWN {
            let kinds = counted(shard.placements.iter().filter_map(|placement| routing.get(&placement.pool).copied()));
            let count = shard.placements.len();
            table.add_row([name, cpus, format!("{count} pools"), shard.workers().to_string(), format!("{count} sockets"), kinds]);
        } else {
            // The shard is named once; what follows belongs to it.
            let mut left = [name, cpus];
            for Placement { pool, workers, listener } in &shard.placements {
                let routing = routing.get(pool).map(ToString::to_string).unwrap_or_default();
                let [name, cpus] = std::mem::take(&mut left);
                let (pool, listener) = (printable(pool.as_str()), printable(&listener.endpoint.to_string()));
                table.add_row([name, cpus, pool, workers.max_children.to_string(), listener, routing]);
            }
        }
    }
    table.trim_fmt()
}

fn pools(plan: &Plan, width: Option<u16>) -> String {
    if plan.pools.is_empty() {
        return "No pool runs.".to_owned();
    }
    // Whole pools are the ones that need no explanation when there are many.
    let listed: Vec<&PoolPlan> = if plan.pools.len() > POOLS_SHOWN {
        plan.pools.iter().filter(|pool| pool.routing != Routing::Whole).take(POOLS_SHOWN).collect()
    } else {
        plan.pools.iter().collect()
    };
    let mut table = table(["POOL", "WORKERS", "ROUTING", "WHY"], width);
    for pool in &listed {
        let why = printable(&pool.reason);
        table.add_row([printable(pool.pool.as_str()), pool.workers.max_children.to_string(), pool.routing.to_string(), why]);
    }
    let mut text = if listed.is_empty() { String::new() } else { table.trim_fmt() };
    let rest = plan.pools.len() - listed.len();
    if rest > 0 {
        let kinds = counted(plan.pools.iter().map(|pool| pool.routing));
        let separator = if text.is_empty() { "" } else { "\n" };
        let total = plan.pools.len();
        // Writing to a String cannot fail.
        let _written = write!(text, "{separator}{total} pools ({kinds}); {rest} not listed here: see --json");
    }
    text
}

fn quarantined(plan: &Plan, width: Option<u16>) -> String {
    let mut table = table(["QUARANTINED", "WHERE", "WHY"], width);
    for quarantined in &plan.quarantined {
        let place = quarantined.problem.place.as_ref().map(ToString::to_string).unwrap_or_default();
        table.add_row([quarantined.pool.as_str(), &place, &quarantined.problem.message].map(printable));
    }
    table.trim_fmt()
}

/// Counts kinds of routing: `3 whole, 1 split`.
fn counted(kinds: impl Iterator<Item = Routing>) -> String {
    let mut counts: BTreeMap<Routing, usize> = BTreeMap::new();
    for kind in kinds {
        *counts.entry(kind).or_default() += 1;
    }
    counts.iter().map(|(kind, count)| format!("{count} {kind}")).collect::<Vec<_>>().join(", ")
}

/// Gives a text of the operator's without anything that would steer the terminal.
fn printable(text: &str) -> String {
    text.chars().map(|letter| if letter.is_control() { char::REPLACEMENT_CHARACTER } else { letter }).collect()
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::model::endpoint::Endpoint;
    use crate::model::ids::{GroupName, PoolName, ShardId};
    use crate::model::listen::{Access, Handover, ListenerPlan};
    use crate::model::plan::{CpuMap, UpstreamServer};
    use crate::model::pool::{ProcessManager, Quarantined, WorkerNumbers};
    use crate::model::problem::Problem;

    fn workers(max_children: u32) -> WorkerNumbers {
        WorkerNumbers { max_children, ..WorkerNumbers::default() }
    }

    fn placement(pool: &str, count: u32, handover: Handover) -> Placement {
        let listener = ListenerPlan {
            pool: PoolName::new(pool),
            endpoint: Endpoint::Unix(PathBuf::from(format!("/run/php/{pool}.sock"))),
            handover,
            access: Access::default(),
            backlog_connections: 4096,
            alias: format!("/.polyfpm/{pool}"),
        };
        Placement { pool: PoolName::new(pool), workers: workers(count), listener }
    }

    fn shard(index: u16, cpus: &str, placements: Vec<Placement>) -> ShardPlan {
        let cpus = (!cpus.is_empty()).then(|| cpus.parse().unwrap());
        ShardPlan { id: ShardId::new(&GroupName::new("default"), index), cpus, placements, process_max: None }
    }

    fn pool(name: &str, count: u32, routing: Routing, reason: &str) -> PoolPlan {
        let endpoint = Endpoint::Unix(PathBuf::from(format!("/run/php/{name}.sock")));
        let shards = vec![ShardId::new(&GroupName::new("default"), 1)];
        PoolPlan {
            pool: PoolName::new(name),
            group: GroupName::new("default"),
            pm: ProcessManager::Static,
            workers: workers(count),
            mounted_as: None,
            routing,
            reason: reason.to_owned(),
            upstream: format!("polyfpm_php8_2_{name}"),
            servers: vec![UpstreamServer { endpoint, workers: count, shards }],
        }
    }

    fn small() -> Plan {
        Plan {
            shards: vec![
                shard(1, "0-1", vec![placement("www", 9, Handover::Share), placement("blog", 5, Handover::Rename)]),
                shard(2, "2-3", vec![placement("www", 8, Handover::Share)]),
                shard(3, "", Vec::new()),
            ],
            pools: vec![
                pool("www", 17, Routing::Shared, "/etc/nginx/sites/a.conf:12 passes to /run/php/www.sock"),
                pool("blog", 5, Routing::Whole, "5 workers are fewer than 2 × 8"),
            ],
            map: CpuMap::default(),
            quarantined: vec![Quarantined {
                pool: PoolName::new("bad\u{1b}"),
                problem: Problem::error("user 'nobdy' does not exist").at("/etc/php/pool.d/bad.conf", 2),
            }],
            watched: Vec::new(),
        }
    }

    #[test]
    fn a_plan_is_shown_with_the_reason_of_each_routing() {
        insta::assert_snapshot!(render_table(&small(), None), @r"
        SHARD      CPUS  POOL  WORKERS  LISTENER            ROUTING
        default/1  0-1   www   9        /run/php/www.sock   shared
                         blog  5        /run/php/blog.sock  whole
        default/2  2-3   www   8        /run/php/www.sock   shared
        default/3  any   none  0        not started

        POOL  WORKERS  ROUTING  WHY
        www   17       shared   /etc/nginx/sites/a.conf:12 passes to /run/php/www.sock
        blog  5        whole    5 workers are fewer than 2 × 8

        QUARANTINED  WHERE                       WHY
        bad�         /etc/php/pool.d/bad.conf:2  user 'nobdy' does not exist
        ");
    }

    #[test]
    fn a_narrow_terminal_wraps_lines() {
        let text = render_table(&small(), Some(60));
        assert!(text.lines().all(|line| line.chars().count() <= 60), "{text}");
    }

    #[test]
    fn many_pools_are_counted() {
        let names: Vec<String> = (0..50).map(|at| format!("p{at}")).collect();
        let mut plan = Plan::default();
        plan.shards.push(shard(1, "0", names.iter().map(|name| placement(name, 5, Handover::Rename)).collect()));
        plan.pools = names.iter().map(|name| pool(name, 5, Routing::Whole, "5 workers are fewer than 2 × 8")).collect();
        insta::assert_snapshot!(render_table(&plan, None), @r"
        SHARD      CPUS  POOL      WORKERS  LISTENER    ROUTING
        default/1  0     50 pools  250      50 sockets  50 whole

        50 pools (50 whole); 50 not listed here: see --json
        ");
        plan.pools[7].routing = Routing::Split;
        insta::assert_snapshot!(render_table(&plan, None), @r"
        SHARD      CPUS  POOL      WORKERS  LISTENER    ROUTING
        default/1  0     50 pools  250      50 sockets  49 whole, 1 split

        POOL  WORKERS  ROUTING  WHY
        p7    5        split    5 workers are fewer than 2 × 8
        50 pools (49 whole, 1 split); 49 not listed here: see --json
        ");
    }

    #[test]
    fn a_plan_without_pools_says_so() {
        insta::assert_snapshot!(render_table(&Plan { shards: vec![shard(1, "0", Vec::new())], ..Plan::default() }, None), @r"
        SHARD      CPUS  POOL  WORKERS  LISTENER     ROUTING
        default/1  0     none  0        not started

        No pool runs.
        ");
    }

    #[test]
    fn json_has_stable_names() {
        let plan = small();
        let json = render_json(&plan);
        insta::assert_snapshot!(serde_json::to_string(&json["shards"][2]).unwrap(), @r#"{"cpus":null,"group":"default","pools":[],"process_max":null,"shard":"default/3","workers":0}"#);
        insta::assert_snapshot!(serde_json::to_string(&json["shards"][1]["pools"]).unwrap(), @r#"[{"listener":{"alias":"/.polyfpm/www","backlog_connections":4096,"endpoint":"/run/php/www.sock","handover":"share"},"pool":"www","workers":{"max_children":8,"max_spare_servers":null,"min_spare_servers":null,"start_servers":null}}]"#);
        insta::assert_snapshot!(serde_json::to_string(&json["pools"][0]).unwrap(), @r#"{"group":"default","pm":"static","pool":"www","reason":"/etc/nginx/sites/a.conf:12 passes to /run/php/www.sock","routing":"shared","servers":[{"endpoint":"/run/php/www.sock","shards":["default/1"],"workers":17}],"upstream":"polyfpm_php8_2_www","workers":{"max_children":17,"max_spare_servers":null,"min_spare_servers":null,"start_servers":null}}"#);
        assert_eq!(json["quarantined"][0]["pool"], "bad\u{1b}");
    }
}
