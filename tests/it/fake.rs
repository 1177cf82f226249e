//! The fake php-fpm itself: a test that leans on it must be able to trust it.

use std::time::Duration;

use nix::sys::signal::Signal;

use crate::support::{FakeFpm, Ground, Listener, Master, MasterPlan, Request, never, run};

const SOON: Duration = Duration::from_secs(5);

fn plan<'a>(ground: &Ground, fake: &FakeFpm, listener: &'a Listener) -> MasterPlan<'a> {
    MasterPlan { binary: fake.path().to_owned(), ..MasterPlan::one_pool(ground, "fake", listener, 1) }
}

#[test]
fn it_serves_and_tells_ready_and_leaves_when_asked() {
    let ground = Ground::new();
    let (fake, listener) = (FakeFpm::on(&ground), Listener::unix(&ground.path("run/www.sock")));
    fake.does("serves");
    let master = Master::start(&ground, &plan(&ground, &fake, &listener));
    assert_eq!(Request::bare("/x.php").to(listener.peer()).body(), format!("fake {}\n", master.pid()));
    master.quit(SOON);
}

#[test]
fn it_ignores_what_it_is_told_to_ignore() {
    let ground = Ground::new();
    let (fake, listener) = (FakeFpm::on(&ground), Listener::unix(&ground.path("run/www.sock")));
    fake.does("ignores-quit\nslow-exit 300");
    let mut master = Master::start(&ground, &plan(&ground, &fake, &listener));
    master.running.signal(Signal::SIGQUIT);
    never(Duration::from_millis(300), "it left", || master.running.ended());
    master.running.signal(Signal::SIGTERM);
    never(Duration::from_millis(200), "it left at once", || master.running.ended());
    assert_eq!(master.running.exit_code(SOON), 0);
}

#[test]
fn it_ends_before_and_after_ready() {
    let ground = Ground::new();
    let (fake, listener) = (FakeFpm::on(&ground), Listener::unix(&ground.path("run/www.sock")));
    fake.does("exits 78 50");
    let mut master = Master::launch(&ground, &plan(&ground, &fake, &listener));
    assert_eq!(master.running.exit_code(SOON), 78);
    assert_eq!(master.told(), None);
    fake.does("dies-after-ready 3 50");
    let mut master = Master::start(&ground, &plan(&ground, &fake, &listener));
    assert_eq!(master.running.exit_code(SOON), 3);
}

#[test]
fn it_runs_the_real_one_and_hides_its_notify_socket() {
    let ground = Ground::new();
    let (fake, listener) = (FakeFpm::on(&ground), Listener::unix(&ground.path("run/www.sock")));
    Master::start(&ground, &plan(&ground, &fake, &listener)).quit(SOON);
    fake.does("no-notify");
    let master = Master::launch(&ground, &plan(&ground, &fake, &listener));
    assert!(Request::get(&ground.path(""), "/who.php").to(listener.peer()).is_ok());
    assert_eq!(master.told(), None);
}

#[test]
fn it_is_old_and_refuses_what_old_versions_do_not_know() {
    let ground = Ground::new();
    let fake = FakeFpm::on(&ground);
    fake.does("php-7.4");
    let ask = |arguments: &[&str]| run(fake.path(), arguments, &ground.path("log"), SOON);
    assert!(ask(&["-v"]).out.starts_with("PHP 7.4.33 (fpm-fcgi)"));
    let config = |lines: &str| {
        let log = ground.text("log/old.error");
        let text = format!(
            "[global]\nerror_log = {log}\n[www]\nlisten = {}\nuser = www-data\npm = static\npm.max_children = 1\n{lines}\n",
            ground.text("run/old.sock")
        );
        ground.write("run/old.conf", &text).display().to_string()
    };
    assert_eq!(ask(&["-t", "-y", &config("")]).code, 0);
    let refused = ask(&["-t", "-y", &config("pm.status_listen = /tmp/x")]);
    assert_eq!(refused.code, 78);
    assert!(refused.err.contains("unknown entry 'pm.status_listen'"), "{}", refused.err);
}
