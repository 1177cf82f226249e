use std::sync::Arc;

use super::*;
use crate::model::endpoint::Endpoint;
use crate::model::ids::{Generation, GroupName, InstanceName, PoolName, ShardId};
use crate::model::plan::Routing;
use crate::model::pool::Quarantined;
use crate::model::problem::Problem;
use crate::model::snapshot::{CgroupView, JobView, ListenerView, NginxView};

fn shard(index: u16, verdict: Verdict) -> ShardView {
    let group = GroupName::new("default");
    ShardView {
        shard: ShardId::new(&group, index),
        group,
        generation: Generation(7),
        pid: Some(4711),
        cpus: Some("0-3".parse().unwrap()),
        verdict,
        reason: None,
        workers_busy: Some(3),
        workers_total: 16,
        queue: Some(QueueDepth { now: 0, max: 4096 }),
        requests_per_second: Some(1520.34),
        uptime_seconds: Some(7385),
        failures: 0,
        leaving: Vec::new(),
        pools: Arc::new(vec![PoolName::new("www")]),
    }
}

fn snapshot() -> Snapshot {
    let listener = |path: &str, index, now| ListenerView {
        endpoint: Endpoint::Unix(path.into()),
        shards: vec![ShardId::new(&GroupName::new("default"), index)],
        queue: Some(QueueDepth { now, max: 4096 }),
        fault: None,
        made_again: 0,
    };
    let second = ShardView {
        reason: Some("12 requests wait in pool www".to_owned()),
        queue: Some(QueueDepth { now: 12, max: 4096 }),
        leaving: vec![LeavingView { generation: Generation(6), pid: Some(4000), step: "requests".to_owned(), seconds: 75 }],
        ..shard(2, Verdict::Saturated)
    };
    let third = ShardView {
        generation: Generation(0),
        pid: None,
        cpus: None,
        workers_busy: None,
        queue: None,
        requests_per_second: None,
        uptime_seconds: None,
        ..shard(3, Verdict::Parked)
    };
    Snapshot {
        v: Snapshot::VERSION,
        instance: InstanceName::new("php8.2"),
        version: "0.1.0".to_owned(),
        pid: 99,
        uptime_seconds: 200_000,
        healthy: false,
        shards: vec![shard(1, Verdict::Ready), second, third],
        pools: Arc::new(vec![PoolView {
            pool: PoolName::new("www"),
            group: GroupName::new("default"),
            routing: Routing::Split,
            listeners: vec![listener("/run/php/www.sock", 1, 0), listener("/run/polyfpm/php8.2/www.2.sock", 2, 12)],
            workers: 32,
        }]),
        quarantined: vec![Quarantined {
            pool: PoolName::new("bad\x1b[2J"),
            problem: Problem::error("unknown key 'pm.max_childen'").at("/etc/php/8.2/fpm/pool.d/bad.conf", 9),
        }],
        nginx: NginxView { state: "broken".to_owned(), detail: Some("/etc/nginx/sites/a.conf:3 is not ours".to_owned()), reloads: 0 },
        cgroups: None,
        job: Some(JobView { job: 3, verb: "restart".to_owned(), done: 1, total: 2, step: "default/2#8: waiting for readiness".to_owned() }),
    }
}

fn plain(text: &str) -> String {
    anstream::adapter::strip_str(text).to_string()
}

#[test]
fn everything_worth_knowing_is_in_the_table() {
    insta::assert_snapshot!(plain(&render(&snapshot(), None)), @r"
    php8.2 not healthy  polyfpm 0.1.0, pid 99, up 2d 7h

    SHARD      GEN  PID   CPUS  VERDICT    BUSY  QUEUE    REQ/S  UP      WHY
    default/1  7    4711  0-3   ready      3/16  0/4096   1520   2h 3m
    default/2  7    4711  0-3   saturated  3/16  12/4096  1520   2h 3m   12 requests wait in pool www
               6    4000        leaving                          1m 15s  waits for requests
    default/3  -    -     any   parked     -/16  -        -      -

    POOL  ROUTING  WORKERS  LISTENER                        SHARDS     QUEUE
    www   split    32       /run/php/www.sock               default/1  0/4096
                            /run/polyfpm/php8.2/www.2.sock  default/2  12/4096

    QUARANTINED  WHERE                               WHY
    bad�[2J      /etc/php/8.2/fpm/pool.d/bad.conf:9  unknown key 'pm.max_childen'

    nginx include broken: /etc/nginx/sites/a.conf:3 is not ours

    job 3, restart: 1 of 2 shards done; default/2#8: waiting for readiness
    ");
}

#[test]
fn verdicts_are_coloured_and_nothing_else_is_moved() {
    let text = render(&snapshot(), None);
    assert!(text.contains("\x1b[32mready\x1b[0m"), "{text:?}");
    assert!(text.contains("saturated\x1b[0m") && text.contains("leaving\x1b[0m"), "{text:?}");
    let place = |line: &str| line.find("ready").or(line.find("parked"));
    let columns: Vec<_> = plain(&text).lines().filter(|line| line.starts_with("default/")).filter_map(place).collect();
    assert_eq!(columns[0], columns[1]);
}

#[test]
fn a_narrow_terminal_wraps_and_many_pools_are_a_number() {
    let mut many = snapshot();
    many.pools = Arc::new(vec![many.pools[0].clone(); 21]);
    let text = plain(&render(&many, Some(80)));
    assert!(text.lines().all(|line| line.chars().count() <= 80), "{text}");
    assert!(text.contains("21 pools: see --json"), "{text}");
}

#[test]
fn nothing_from_outside_steers_the_terminal() {
    assert!(!render(&snapshot(), None).contains("\x1b[2J"));
}

#[test]
fn the_json_has_the_promised_keys() {
    let page: serde_json::Value = serde_json::from_str(&json_page(&snapshot()).unwrap()).unwrap();
    let shard = &page["shards"][0];
    assert_eq!((&shard["group"], &shard["shard"], &shard["generation"]), (&"default".into(), &"default/1".into(), &7.into()));
    assert_eq!((&shard["pid"], &shard["cpus"], &shard["verdict"]), (&4711.into(), &"0-3".into(), &"ready".into()));
    assert_eq!(json_line(&snapshot()).unwrap().lines().count(), 1);
}

#[test]
fn a_watcher_without_a_terminal_is_told_what_changed() {
    let first = snapshot();
    insta::assert_snapshot!(changes(None, &first), @r"
    default/1: generation 7, ready
    default/2: generation 7, saturated, leaving 6: 12 requests wait in pool www
    default/3: generation 0, parked
    job 3, restart: 1 of 2 shards done; default/2#8: waiting for readiness
    ");
    let mut second = first.clone();
    second.shards[0].requests_per_second = Some(3.0);
    second.shards[1].reason = Some("13 requests wait in pool www".to_owned());
    second.uptime_seconds += 1;
    assert_eq!(changes(Some(&first), &second), "");
    second.shards[0].generation = Generation(8);
    second.shards.pop();
    second.job = None;
    insta::assert_snapshot!(changes(Some(&first), &second), @r"
    default/1: generation 8, ready
    default/3: gone
    no job under way
    ");
}

#[test]
fn spans_have_two_units() {
    for (seconds, text) in [(0, "0s"), (59, "59s"), (60, "1m 0s"), (3599, "59m 59s"), (3600, "1h 0m"), (90_000, "1d 1h")] {
        assert_eq!(span(seconds), text);
    }
}

#[test]
fn paths_that_are_lost_or_were_made_again_are_named() {
    let before = snapshot();
    assert!(!render(&before, None).contains("WHAT HAPPENED"));
    let mut now = snapshot();
    let listeners = &mut Arc::make_mut(&mut now.pools)[0].listeners;
    listeners[0].made_again = 2;
    listeners[1].fault = Some("'/run/polyfpm/php8.2/www.2.sock' is in use by nc (pid 7)".to_owned());
    let text = plain(&render(&now, None));
    let rows: Vec<&str> = text.lines().skip_while(|line| !line.contains("WHAT HAPPENED")).collect();
    assert!(rows[1].starts_with("/run/polyfpm/php8.2/www.2.sock") && rows[1].contains("in use by nc (pid 7)"), "{text}");
    assert!(rows[2].starts_with("/run/php/www.sock") && rows[2].contains("made again, 2 times"), "{text}");
    let lines = changes(Some(&before), &now);
    assert_eq!(lines.lines().count(), 2, "{lines}");
    assert_eq!(changes(Some(&now), &now), "");
}

#[test]
fn limits_that_are_not_held_are_told_where_they_were_asked_for() {
    let mut now = snapshot();
    let lacks = vec!["the control group /sys/fs/cgroup is not delegated (Delegate=yes of the unit)".to_owned()];
    now.cgroups = Some(CgroupView { base: None, limits: false, lacks });
    assert!(!render(&now, None).contains("not held"));
    now.cgroups.as_mut().unwrap().limits = true;
    assert!(plain(&render(&now, None)).contains("\nlimit not held: the control group /sys/fs/cgroup is not delegated"));
}
