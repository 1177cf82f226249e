//! Steps of a start that fail are told by name.

use std::time::Duration;

use crate::support::{FakeFpm, Sandbox, eventually};

#[test]
fn a_program_that_is_gone_is_named() {
    let mut host = Sandbox::new();
    let fake = FakeFpm::on(host.ground());
    host.set("php", "binary", fake.path().display().to_string());
    host.pool("www", 4);
    host.run();
    std::fs::rename(fake.path(), host.ground().path("moved")).unwrap();
    let restart = host.polyfpm(&["restart"]);
    assert_eq!(restart.code, 1, "{}{}", restart.out, restart.err);
    let path = fake.path().display().to_string();
    assert!(restart.err.contains("default/1#2") && restart.err.contains(&path), "{}", restart.err);
    assert!(host.shards().iter().all(|shard| shard.generation == 1 && shard.verdict == "ready"), "the old ones serve on");
}

#[test]
fn cpus_that_are_not_there_are_refused_before_anything_starts() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    host.set("shards", "cpus", toml::Value::Array(vec!["0".into(), "4000".into()]));
    let check = host.polyfpm(&["check"]);
    assert_eq!(check.code, 78, "{}{}", check.out, check.err);
    assert!(format!("{}{}", check.out, check.err).contains("CPU 4000 is not among the CPUs"), "{}{}", check.out, check.err);
    assert_eq!(host.polyfpm(&["run"]).code, 78);
}

#[test]
fn limits_above_the_hard_limit_are_refused_naming_both() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    // More than `fs.nr_open` allows anybody.
    host.set("limits", "nofile", 2_000_000_000);
    let check = host.polyfpm(&["check"]);
    let said = format!("{}{}", check.out, check.err);
    assert_eq!(check.code, 78, "{said}");
    assert!(said.contains("limits.nofile is 2000000000, above the hard limit of "), "{said}");
    let run = host.polyfpm(&["run"]);
    assert_eq!(run.code, 78, "{}", run.err);
}

#[test]
fn a_limit_that_php_fpm_changes_itself_is_told() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    host.set("limits", "nofile", 1234);
    let config = host.ground().read("php-fpm.conf");
    host.ground().write("php-fpm.conf", &config.replace("[global]\n", "[global]\nrlimit_files = 1000\n"));
    host.run();
    let said = eventually(Duration::from_secs(5), "the difference in the log", || {
        let log = host.ground().logs();
        log.contains("limits are not as the settings want them").then_some(log)
    });
    assert!(said.contains("Max open files is 1000 and not 1234"), "{said}");
}

#[test]
fn limits_and_priorities_reach_masters_and_workers() {
    let mut host = Sandbox::new();
    host.pool("www", 4);
    host.set("limits", "nofile", 1234);
    host.set("limits", "nice", 5);
    host.set("limits", "oom_score_adjust", 321);
    host.set("shards", "cpus", toml::Value::Array(vec!["0".into()]));
    host.run();
    for pid in host.masters().into_iter().chain(host.workers()) {
        let read = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap_or_default();
        let files = read("limits").lines().find(|line| line.starts_with("Max open files")).map(str::to_owned).unwrap_or_default();
        let limits: Vec<&str> = files.split_whitespace().collect();
        assert_eq!((limits[3], limits[4]), ("1234", "1234"), "{files}");
        assert_eq!(read("oom_score_adj").trim(), "321");
        let status = read("status");
        assert!(status.lines().any(|line| line.split_whitespace().eq(["Cpus_allowed_list:", "0"])), "{status}");
        let stat = read("stat");
        let nice = stat.rsplit(')').next().and_then(|rest| rest.split_whitespace().nth(16).map(str::to_owned));
        assert_eq!(nice.as_deref(), Some("5"));
    }
}
