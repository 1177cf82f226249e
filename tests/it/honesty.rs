//! The count itself: it must see what is lost, or nothing it says of the product is worth anything.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{Clients, Extra, Ground, Listener, Load, Master, MasterPlan, Nginx, Route, Site, Upstream, unix_pass};

#[test]
fn a_master_that_is_cut_off_is_seen_by_clients_and_in_nginxs_log() {
    let ground = Ground::new();
    let path = ground.path("run/www.sock");
    let listener = Listener::unix(&path);
    let mut master = Master::start(&ground, &MasterPlan::one_pool(&ground, "a", &listener, 4));
    let nginx = Nginx::start(&ground, &Site::one(Route::new("www", &unix_pass(&path))));
    let load = Load::start(&ground, &nginx, "www", Clients::keeping(8), &[Extra::Long(Duration::from_secs(2))]);
    load.run_for(Duration::from_millis(500));
    master.running.signal(Signal::SIGTERM);
    master.running.wait(Duration::from_secs(5));
    let _next = Master::start(&ground, &MasterPlan::one_pool(&ground, "b", &listener, 4));
    load.run_for(Duration::from_millis(300));
    let report = load.finish(&ground);
    assert!(!report.failed.is_empty() && !report.hidden.is_empty() && !report.errors.is_empty(), "{report:?}");
}

#[test]
fn a_request_that_nginx_tried_twice_is_no_success() {
    let ground = Ground::new();
    let path = ground.path("run/www.sock");
    let listener = Listener::unix(&path);
    let _master = Master::start(&ground, &MasterPlan::one_pool(&ground, "a", &listener, 4));
    let servers = format!("server unix:{}; server {} max_fails=0;", ground.text("run/nobody.sock"), unix_pass(&path));
    let site = Site::one(Route::new("www", "two")).upstream(Upstream { name: "two".to_owned(), lines: servers });
    let nginx = Nginx::start(&ground, &site);
    let load = Load::start(&ground, &nginx, "www", Clients::keeping(2), &[]);
    load.run_for(Duration::from_millis(300));
    let report = load.finish(&ground);
    assert!(report.failed.is_empty(), "NGINX hides the fault from clients");
    assert!(!report.hidden.is_empty(), "and the count finds it");
}

#[test]
fn a_post_that_ran_twice_is_counted() {
    let ground = Ground::new();
    let path = ground.path("run/www.sock");
    let listener = Listener::unix(&path);
    let _master = Master::start(&ground, &MasterPlan::one_pool(&ground, "a", &listener, 4));
    let nginx = Nginx::start(&ground, &Site::one(Route::new("www", &unix_pass(&path))));
    let load = Load::start(&ground, &nginx, "www", Clients::keeping(1), &[]);
    load.run_for(Duration::from_millis(200));
    let first = ground.runs().into_keys().next().expect("a POST ran");
    std::fs::write(ground.path("log/count"), format!("{}{first}\n", ground.read("log/count"))).unwrap();
    let report = load.finish(&ground);
    assert!(report.miscounted.iter().any(|line| line.contains("ran 2 times")), "{report:?}");
}
