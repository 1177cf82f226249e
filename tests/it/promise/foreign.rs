//! Somebody else listens where a pool wants to.

use std::os::unix::net::UnixListener;
use std::time::Duration;

use crate::support::{Sandbox, within};

#[test]
fn a_pool_whose_path_is_taken_is_kept_out_alone_and_comes_when_it_is_free() {
    let mut host = Sandbox::new();
    host.pool("one", 2);
    host.pool("two", 2);
    host.set("shards", "count", 1);
    let stranger = UnixListener::bind(host.ground().path("run/two.sock")).expect("a stranger at two's path");
    host.launch();
    let kept_out = |host: &Sandbox| host.status()["quarantined"].as_array().map_or(0, Vec::len);
    let serves =
        |host: &Sandbox, pool: &str| host.shards().iter().any(|shard| shard.verdict == "ready" && shard.pools.contains(&pool.to_owned()));
    let alone = within(Duration::from_secs(20), || {
        let answers = host.polyfpm(&["status", "--json"]).code == 0;
        (answers && kept_out(&host) == 1 && serves(&host, "one")).then_some(())
    });
    assert!(alone.is_some(), "{:#}", host.status());
    let status = host.status();
    let problem = &status["quarantined"][0]["problem"];
    assert!(problem["message"].as_str().is_some_and(|text| text.contains("two.sock")), "{problem:#}");
    assert!(problem["place"]["line"].as_u64().is_some_and(|line| line > 0), "{problem:#}");
    // The path is the stranger's for as long as it lives.
    let master = host.masters();
    drop(stranger);
    let both = within(Duration::from_secs(20), || (kept_out(&host) == 0 && serves(&host, "two")).then_some(()));
    assert!(both.is_some(), "{:#}", host.status());
    assert_ne!(host.masters(), master, "the shard was handed over to carry both");
    host.stop();
}
