//! `polyfpm check`: everything in one answer, and nothing changed on the host.

use std::collections::BTreeMap;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::path::Path;

use super::support::{Ground, Route, Sandbox, Site, php_fpm};

/// Gives what a command printed with the test's own directory taken out of it.
fn plain(ground: &Ground, text: &str) -> String {
    let text = text.replace(ground.text("").trim_end_matches('/'), "GROUND");
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let cpus = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:")).unwrap().trim();
    let text = text.replace(&format!("may use, {cpus}"), "may use, CPUS").replace(&format!("out of {cpus}"), "out of CPUS");
    let somaxconn = std::fs::read_to_string("/proc/sys/net/core/somaxconn").unwrap();
    let text = text.replace(&format!("somaxconn = {}\n", somaxconn.trim()), "somaxconn = MOST\n");
    // This process holds a foreign listener.
    let name = std::fs::read_to_string("/proc/self/comm").unwrap();
    text.replace(&format!("{} (pid {})", name.trim(), std::process::id()), "NAME (pid N)")
}

/// Gives every file below a directory with what would show that it was touched.
fn tree(directory: &Path) -> BTreeMap<String, (u64, u32, u32, i64, i64)> {
    let mut found = BTreeMap::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(&directory).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.path().symlink_metadata() else { continue };
            if metadata.is_dir() {
                left.push(entry.path());
            }
            // The output of the commands themselves comes and goes in a directory.
            let modified = if metadata.is_dir() { (0, 0) } else { (metadata.mtime(), metadata.mtime_nsec()) };
            let told = (metadata.ino(), metadata.uid(), metadata.mode(), modified.0, modified.1);
            found.insert(entry.path().display().to_string(), told);
        }
    }
    found
}

/// Writes one good pool, whose path a living process has, and others with a fault each. Gives the listener of that process.
fn broken_pools(sandbox: &Sandbox) -> UnixListener {
    let ground = |name: &str| sandbox.ground().text(name);
    let (own, other) = (ground("run/own.sock"), ground("run/other.sock"));
    // One good pool, whose path a living process has; and others with a fault each.
    sandbox.pool_at("good", &own, 4, "");
    sandbox.pool_at("shared", &other, 4, "env[DB_PASSWORD] = hunter2");
    sandbox.pool_at("nodir", &ground("run/php/nodir.sock"), 4, "");
    sandbox.pool_at("deep", &ground("run/deep.sock"), 4, "listen.backlog = 100000000");
    sandbox.pool_at("nouser", &ground("run/nouser.sock"), 4, "user = nobody-of-this-name");
    sandbox.pool_at("env", &ground("run/env.sock"), 4, "env[SECRET] = hunter2\npm.max_childs = 3");
    sandbox.pool_at("file", &ground("run/file.sock"), 4, "");
    sandbox.pool_at("copy", &own, 4, "");
    std::fs::write(ground("run/file.sock"), "").unwrap();
    UnixListener::bind(&own).unwrap()
}

/// Has NGINX keep connections to a pool, have an upstream of our name, and not read the include.
fn broken_nginx(sandbox: &Sandbox) {
    let ground = |name: &str| sandbox.ground().text(name);
    let other = ground("run/other.sock");
    let upstreams = format!(
        "upstream kept {{ server unix:{other}; keepalive 8; }}\nupstream PHP_web_shared {{ server 127.0.0.1:1; }}\n\
         server {{ listen 127.0.0.1:{}; location / {{ fastcgi_keep_conn on; fastcgi_pass kept; }} }}\n",
        sandbox.ground().port()
    );
    let nginx =
        format!("events {{}}\npid {};\nerror_log {};\nhttp {{\naccess_log off;\n{upstreams}}}\n", ground("run/n.pid"), ground("log/n.err"));
    sandbox.ground().write("nginx/nginx.conf", &nginx);
}

/// Makes a second instance that wants a socket, the include and the control socket, and a third that cannot be read.
fn rivals(sandbox: &Sandbox) {
    let ground = |name: &str| sandbox.ground().text(name);
    let other = ground("run/other.sock");
    let second = format!(
        "[global]\nerror_log = {}\n[store]\nlisten = {other}\nuser = www-data\npm = static\npm.max_children = 1\n",
        ground("log/s")
    );
    sandbox.ground().write("second.conf", &second);
    let settings = format!(
        "[php]\nbinary = \"{}\"\nconfig = \"{}\"\n[run]\ndirectory = \"{}\"\n[control]\nsocket = \"{}\"\n[nginx]\ninclude = \"{}\"\n",
        php_fpm().display(),
        ground("second.conf"),
        ground("run/second"),
        ground("run/polyfpm/control.sock"),
        ground("nginx/conf.d/polyfpm.conf")
    );
    sandbox.ground().write("second.toml", &settings);
    sandbox.ground().write("third.toml", "[php\n");
}

fn broken_settings(sandbox: &mut Sandbox) {
    let ini = sandbox.ground().text("no-php.ini");
    for (table, key, value) in [
        ("php", "ini", toml::Value::from(ini)),
        ("php", "enviroment", "x".into()),
        ("shards", "cpus", vec!["0".to_owned(), "9000".to_owned()].into()),
        ("control", "group", "group-of-nobody".into()),
        ("limits", "nofile", 256.into()),
    ] {
        sandbox.set(table, key, value);
    }
    let more = "[group.store]\npools = [\"store_*\"]\n[[restart.warmup]]\npool = \"nobody\"\nscript = \"/x.php\"\n\
                [[restart.warmup]]\npool = \"shared\"\nscript = \"/no/such.php\"\n";
    let written = sandbox.ground().read("web.toml");
    sandbox.ground().write("web.toml", &format!("{written}{more}"));
}

#[test]
fn everything_that_is_wrong_is_told_in_one_answer() {
    let mut sandbox = Sandbox::new();
    let _foreign = broken_pools(&sandbox);
    broken_nginx(&sandbox);
    rivals(&sandbox);
    broken_settings(&mut sandbox);
    // NGINX's own test opens its log and pid file, as its master would.
    for name in ["log/n.err", "run/n.pid"] {
        std::fs::write(sandbox.ground().path(name), "").unwrap();
    }
    let before = tree(&sandbox.ground().path(""));
    let ended = sandbox.polyfpm(&["check"]);
    assert_eq!(ended.code, 78, "{}{}", ended.out, ended.err);
    assert_eq!(ended.err, "");
    assert_eq!(before, tree(&sandbox.ground().path("")), "check changed something");
    insta::assert_snapshot!("everything_wrong", plain(sandbox.ground(), &ended.out));

    let listed = sandbox.polyfpm(&["check", "--json"]);
    assert_eq!((listed.code, listed.err.as_str()), (78, ""));
    let listed: serde_json::Value = serde_json::from_str(&listed.out).unwrap();
    let problems = listed["problems"].as_array().unwrap();
    let told = format!("{} errors, {} warnings, {} notes", listed["errors"], listed["warnings"], listed["notes"]);
    assert!(ended.out.trim_end().ends_with(&told), "{told}");
    assert!(problems.iter().all(|problem| problem["severity"] == "note" || problem["remedy"].is_string()), "{problems:#?}");
    assert!(problems.iter().all(|problem| problem["place"]["file"].is_string()), "{problems:#?}");
    assert!(!format!("{}{listed}", ended.out).contains("hunter2"), "a secret was shown");
}

#[test]
fn what_is_not_there_is_named_and_hides_nothing_else() {
    let mut sandbox = Sandbox::new();
    sandbox.set("php", "binary", "/no/such/php-fpm");
    sandbox.set("php", "config", sandbox.ground().text("pool.d"));
    sandbox.set("nginx", "binary", "/no/such/nginx");
    sandbox.set("nginx", "keepalive", "many");
    sandbox.set("limits", "nofile", 256);
    sandbox.set("run", "directory", sandbox.ground().text("php-fpm.conf/x"));
    let ended = sandbox.polyfpm(&["check"]);
    assert_eq!(ended.code, 78);
    insta::assert_snapshot!(plain(sandbox.ground(), &ended.out), @r#"
    error: nginx.keepalive is 'many'
      --> GROUND/web.toml:14:13
       |
    14 | keepalive = "many"
       |             ^^^^^^
       |
       = help: write "auto" or a whole number from 0 to 10000, without quotes

    error: php.binary /no/such/php-fpm does not exist
      --> GROUND/web.toml:18:10
       |
    18 | binary = "/no/such/php-fpm"
       |          ^^^^^^^^^^^^^^^^^^
       |
       = help: name the php-fpm binary; on Debian: ls /usr/sbin/php-fpm*

    error: php.config GROUND/pool.d is no regular file
      --> GROUND/web.toml:19:10
       |
    19 | config = "GROUND/pool.d"
       |          ^^^^^^^^^^^^^^^^^^^^^^
       |
       = help: name the php-fpm.conf of this installation

    error: run.directory GROUND/php-fpm.conf/x: GROUND/php-fpm.conf is no directory
      --> GROUND/web.toml:27:13
       |
    27 | directory = "GROUND/php-fpm.conf/x"
       |             ^^^^^^^^^^^^^^^^^^^^^^^^^^^^^^
       |
       = help: remove the file, or name another directory

    note: there is no NGINX at /no/such/nginx
      --> GROUND/web.toml:11:10
       |
    11 | binary = "/no/such/nginx"
       |          ^^^^^^^^^^^^^^^^
       |
       = help: install NGINX, name its binary, or set nginx.enabled = false

    4 errors, 1 note
    "#);
    // A file that may not be executed is no binary.
    sandbox.set("php", "binary", sandbox.ground().text("php-fpm.conf"));
    let ended = sandbox.polyfpm(&["check"]);
    let message = "error: php.binary GROUND/php-fpm.conf may not be executed";
    assert!(plain(sandbox.ground(), &ended.out).contains(message), "{}", ended.out);
}

#[test]
fn a_running_instance_is_no_problem_to_itself() {
    let mut sandbox = Sandbox::new();
    sandbox.set("limits", "nofile", 256);
    sandbox.pool("www", 4);
    let address = format!("127.0.0.1:{}", sandbox.ground().port());
    sandbox.pool_at("tcp", &address, 4, "");
    sandbox.front_at_old_paths(&["www"]);
    sandbox.run();
    let masters = || sandbox.shards().iter().map(|shard| (shard.shard.clone(), shard.generation, shard.pid)).collect::<Vec<_>>();
    let before = (masters(), tree(&sandbox.ground().path("pool.d")));
    let ended = sandbox.polyfpm(&["check"]);
    assert_eq!((ended.code, ended.out.as_str(), ended.err.as_str()), (0, "no problems\n", ""));
    assert_eq!(before, (masters(), tree(&sandbox.ground().path("pool.d"))));

    // A second one with the same pools would take its sockets away.
    let text = sandbox.ground().read("web.toml").replace("/run/polyfpm", "/run/again").replace("conf.d/polyfpm", "conf.d/again");
    sandbox.ground().write("again.toml", &text);
    let second = sandbox.second(&["check"], "again.toml");
    assert_eq!(second.code, 78);
    let out = plain(sandbox.ground(), &second.out);
    assert!(out.contains("instance 'web' (GROUND/web.toml) runs the pools of GROUND/php-fpm.conf, too"), "{out}");
    assert!(out.contains("polyfpm (pid "), "{out}");
    assert!(out.contains(&format!("listens on {address} already")), "{out}");
    std::fs::remove_file(sandbox.ground().path("again.toml")).unwrap();
    sandbox.stop();
}

#[test]
fn a_runtime_directory_of_somebody_else_is_refused() {
    let sandbox = Sandbox::new();
    sandbox.pool("www", 2);
    let directory = sandbox.ground().path("run/polyfpm");
    std::fs::create_dir(&directory).unwrap();
    std::os::unix::fs::chown(&directory, Some(65_534), None).unwrap();
    let ended = sandbox.polyfpm(&["run"]);
    assert_eq!(ended.code, 73, "{}", ended.err);
    assert!(ended.err.contains("belongs to uid 65534 with mode 755: others could change what is in it"), "{}", ended.err);
    assert_eq!(std::fs::read_dir(&directory).unwrap().count(), 0, "something was put there");
    let ended = sandbox.polyfpm(&["check"]);
    assert_eq!(ended.code, 78);
    assert!(ended.out.contains("error: run.directory: "), "{}", ended.out);
}

#[test]
fn the_include_is_printed_or_written_and_nothing_else() {
    let mut sandbox = Sandbox::new();
    sandbox.pool("www", 16);
    sandbox.front(&Site::one(Route::new("www", &sandbox.pass("www"))));
    let include = sandbox.ground().path("nginx/conf.d/polyfpm.conf");
    let printed = sandbox.does(&["upstream"]);
    assert!(printed.contains("upstream php_web_www {") && printed.contains("max_fails=0"), "{printed}");
    assert!(!include.exists(), "printing wrote the include");

    let told = sandbox.does(&["upstream", "--write"]);
    assert_eq!(plain(sandbox.ground(), &told), "GROUND/nginx/conf.d/polyfpm.conf: current\n");
    assert_eq!(std::fs::read_to_string(&include).unwrap(), printed);
    assert_eq!(plain(sandbox.ground(), &sandbox.does(&["upstream", "--write"])), "GROUND/nginx/conf.d/polyfpm.conf: current\n");

    // A configuration that somebody else broke is named, and the include stays as it is.
    let broken = sandbox.ground().read("nginx/nginx.conf").replace("events {", "evnts {");
    sandbox.ground().write("nginx/nginx.conf", &broken);
    sandbox.pool("blog", 4);
    let ended = sandbox.polyfpm(&["upstream", "--write"]);
    assert_eq!(ended.code, 1, "{}{}", ended.out, ended.err);
    assert!(ended.out.contains("evnts") && ended.out.contains("broken"), "{}{}", ended.out, ended.err);
    assert_eq!(std::fs::read_to_string(&include).unwrap(), printed);
}
