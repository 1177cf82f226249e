//! Shards stand where NGINX's workers do, and follow them.

use std::time::Duration;

use nix::sched::{CpuSet, sched_setaffinity};
use nix::unistd::Pid;

use crate::support::{Clients, Load, Route, Sandbox, Shard, Site, children, eventually};

/// 25 s: the layout is looked at every ten seconds, and a change is believed at the second look.
const NOTICED_WITHIN: Duration = Duration::from_secs(25);

fn site(host: &Sandbox, workers: u32, affinity: &str) -> Site {
    let mut site = Site::one(Route::new("www", &host.pass("www")));
    (site.workers, site.affinity) = (Some(workers), affinity.to_owned());
    site
}

/// Gives the CPUs a process may run on, as the kernel says.
fn allowed(pid: i32) -> String {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
    status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).map(str::trim).unwrap_or_default().to_owned()
}

/// Gives the CPUs of every shard's master, if all its workers are there, too.
fn real(host: &Sandbox) -> Option<Vec<String>> {
    let of = |shard: &Shard| {
        let master = shard.pid?;
        let cpus = allowed(master);
        children(master).into_iter().map(allowed).all(|worker| worker == cpus).then_some(cpus)
    };
    host.shards().iter().map(of).collect()
}

fn shown(host: &Sandbox) -> Vec<Option<String>> {
    host.shards().into_iter().map(|shard| shard.cpus).collect()
}

#[test]
fn masters_follow_the_workers_of_nginx_and_nobody_notices() {
    let mut host = Sandbox::new();
    host.pool("www", 8);
    host.front(&site(&host, 2, "01 10"));
    host.run();
    assert_eq!(real(&host), Some(vec!["0".to_owned(), "1".to_owned()]));
    let plan: serde_json::Value = serde_json::from_str(&host.does(&["plan", "--json"])).expect("JSON");
    assert_eq!(plan["cpus"]["cpus"][1]["nginx_workers"], serde_json::json!([1]), "{plan:#}");
    assert_eq!(plan["cpus"]["cpus"][1]["shards"], serde_json::json!(["default/2"]));
    assert!(host.does(&["plan"]).contains("NGINX's 2 workers are pinned to 2 sets on CPUs 0-1"), "{}", host.does(&["plan"]));
    let before: Vec<_> = host.shards();
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(4), &[]);

    // Somebody moves a master: it is put back.
    let mut zero = CpuSet::new();
    zero.set(0).expect("CPU 0");
    sched_setaffinity(Pid::from_raw(before[1].pid.expect("a master")), &zero).expect("our own child");
    assert_eq!(allowed(before[1].pid.expect("a master")), "0");
    eventually(NOTICED_WITHIN, "the second master is back on its CPU", || (real(&host)?[1] == "1").then_some(()));

    // NGINX is given another layout.
    host.edit(&site(&host, 1, "10"));
    eventually(NOTICED_WITHIN, "both masters stand where NGINX's only worker is", || (real(&host)? == ["1", "1"]).then_some(()));
    assert_eq!(shown(&host), vec![Some("1".to_owned()); 2]);
    let after = host.shards();
    assert!(before.iter().zip(&after).all(|(old, new)| old.master() == new.master()), "no master was replaced: {after:#?}");
    assert!(host.does(&["reload"]).contains("nothing differs"));
    load.finish(host.ground()).assert_nothing_lost(100);
    host.stop();
}

#[test]
fn what_nginx_runs_and_what_its_file_says_are_told_apart() {
    let mut host = Sandbox::new();
    host.pool("www", 8);
    host.front(&site(&host, 2, "01 10"));
    // Edited, and not reloaded.
    let config = host.ground().read("nginx/nginx.conf").replace("worker_cpu_affinity 01 10;", "worker_cpu_affinity 10 10;");
    host.ground().write("nginx/nginx.conf", &config);
    let checked = host.polyfpm(&["check"]);
    let said = format!("{}{}", checked.out, checked.err);
    assert!(said.contains("NGINX's workers run on CPUs 0 1, its configuration says 1 1"), "{said}");
    host.run();
    assert_eq!(real(&host), Some(vec!["0".to_owned(), "1".to_owned()]), "life wins");
    host.stop();
}
