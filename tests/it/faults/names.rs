//! Pools with any names, through real php-fpm and NGINX: each runs, or is kept out by name, and nothing else comes of it.

use std::collections::BTreeSet;

use super::{nginx_is, split};

const NAMES: [&str; 22] = [
    "a/b",
    "..",
    ".",
    "../../etc/x",
    "a b",
    "quote\"d",
    "it's",
    "semi;colon",
    "{block}",
    "$pool",
    "${HOME}",
    "per%cent%s%n",
    "back\\slash",
    "hash#tag",
    "naïve-ü-日本",
    "UPPER",
    "upper",
    "-dash",
    "a=b",
    "comma,a=3",
    "http { }",
    "\u{202e}evil",
];

#[test]
fn any_name_runs_or_is_kept_out_by_name() {
    let mut host = split(|host| {
        let long = "n".repeat(255);
        for (number, name) in NAMES.iter().copied().chain([long.as_str()]).enumerate() {
            let listen = host.ground().text(&format!("run/hostile-{number}.sock"));
            let owner = "listen.owner = www-data\nlisten.group = www-data";
            let text = format!("[{name}]\nlisten = {listen}\n{owner}\n{}", crate::support::pool_lines(2));
            host.pool_file(&format!("hostile-{number:02}"), &text);
        }
    });
    nginx_is(&host, "current");
    let status = host.status();
    let names = |list: &str, key: &str| -> BTreeSet<String> {
        let list = status[list].as_array().expect("a list").iter();
        list.filter_map(|entry| entry[key].as_str()).map(str::to_owned).collect()
    };
    let (runs, out) = (names("pools", "pool"), names("quarantined", "pool"));
    let long = "n".repeat(255);
    for name in NAMES.into_iter().chain([long.as_str(), "www"]) {
        let known = runs.contains(name) || out.contains(name);
        assert!(known || status["quarantined"].to_string().contains("hostile-"), "{name:?} is neither run nor kept out: {out:?}");
    }
    assert!(runs.len() >= 15, "{} of {} run; kept out: {out:?}", runs.len(), NAMES.len());
    // The include has upstreams and nothing else.
    let include = host.ground().read("nginx/conf.d/polyfpm.conf");
    for directive in polyfpm::text::nginx::parse(include.as_bytes()).expect("a configuration") {
        assert_eq!(directive.name, "upstream", "{include}");
        for line in directive.block.expect("a block") {
            let ours = ["zone", "least_conn", "random", "server", "keepalive", "keepalive_time", "keepalive_timeout"];
            assert!(ours.contains(&line.name.as_str()) && line.block.is_none(), "{include}");
        }
    }
    // Nothing was made outside the directories it belongs into.
    let escaped = host.ground().socket_files().into_iter().find(|path| !path.starts_with(host.ground().path("run")));
    assert_eq!(escaped, None);
    host.does(&["restart"]);
    assert!(host.nginx().body("/www/hello.php?id=1").contains("hello 1"));
    host.stop();
}
