use std::time::Duration;

use super::*;

/// Makes a dump of files given as path and text.
fn dump(files: &[(&str, &str)]) -> Vec<u8> {
    files.iter().map(|(path, text)| format!("# configuration file {path}:\n{text}\n")).collect::<String>().into_bytes()
}

fn reading(files: &[(&str, &str)]) -> Reading {
    Config::from_dump(&dump(files)).reading()
}

fn shown(reading: &Reading) -> Vec<String> {
    let passes = reading.clients.passes.iter().map(|pass| {
        let target = match &pass.target {
            PassTarget::Endpoint(endpoint) => endpoint.to_string(),
            PassTarget::Upstream(name) => format!("upstream {name}"),
            PassTarget::Variable(text) => format!("unknown {text}"),
        };
        format!("{} {target}{}", pass.place, if pass.keep_conn { " keep" } else { "" })
    });
    let upstreams = reading.clients.upstreams.iter().map(|block| {
        let servers: Vec<String> = block.servers.iter().map(ToString::to_string).collect();
        let ms = |time: Option<Duration>| time.map_or_else(|| "-".to_owned(), |time| time.as_millis().to_string());
        let keepalive = block.keepalive.map_or_else(|| "-".to_owned(), |count| count.to_string());
        format!(
            "{} {}: {} / {keepalive} {} {}",
            block.place,
            block.name,
            servers.join(" "),
            ms(block.keepalive_time),
            ms(block.keepalive_timeout)
        )
    });
    passes.chain(upstreams).collect()
}

#[test]
fn passes_are_found_through_includes_with_what_they_inherit() {
    let files = [
        (
            "/e/nginx.conf",
            "user www-data;\nworker_processes auto;\nworker_cpu_affinity 01 '10 1';\npid run/nginx.pid;\nevents {}\nhttp {\n\
             include mime.types;\ninclude conf.d/*.conf;\ninclude /e/sites/*;\nfastcgi_keep_conn on;\n}\n\
             stream { upstream s { server 1.2.3.4:5; } server { listen 1; } }",
        ),
        ("/e/mime.types", "types { text/html html; }"),
        (
            "/e/conf.d/up.conf",
            "upstream php {\n server unix:/run/a.sock weight=2;\n include up/more;\n keepalive 8 local;\n keepalive_time 2s; keepalive_timeout 1;\n}",
        ),
        ("/e/up/more", "server 127.0.0.1:9000; server localhost:9001; server [::1]:9002;"),
        (
            "/e/sites/a",
            "server {\n location ~ \\.php$ { include snip/php; }\n location /b { fastcgi_keep_conn off; if ($x) { fastcgi_pass 10.0.0.1:9000; } }\n\
             location /c { fastcgi_pass $backend; }\n}",
        ),
        ("/e/snip/php", "fastcgi_pass unix:/run/a.sock;\n"),
        ("/e/sites/b", "server { location / { include snip/php; } location /l { fastcgi_pass localhost:9000; } }"),
        ("/e/sites/c", "server { fastcgi_keep_conn off; location / { include /e/snip/php; } location /p { fastcgi_pass PHP; } }"),
    ];
    let reading = reading(&files);
    assert_eq!(reading.problems, []);
    assert!(reading.clients.known);
    assert_eq!(
        shown(&reading),
        [
            "/e/snip/php:1 /run/a.sock keep",
            "/e/sites/a:3 10.0.0.1:9000",
            "/e/sites/a:4 unknown $backend keep",
            "/e/sites/b:1 127.0.0.1:9000 keep",
            "/e/sites/b:1 [::1]:9000 keep",
            "/e/snip/php:1 /run/a.sock",
            "/e/sites/c:1 upstream PHP",
            "/e/conf.d/up.conf:1 php: /run/a.sock 127.0.0.1:9000 127.0.0.1:9001 [::1]:9001 [::1]:9002 / 8 2000 1000",
        ]
    );
    let layout = &reading.layout;
    assert_eq!((layout.user.as_deref(), layout.group.as_deref()), (Some("www-data"), None));
    assert_eq!(layout.pid.as_deref(), Some(Path::new("run/nginx.pid")));
    assert_eq!(layout.worker_processes.as_deref(), Some("auto"));
    assert_eq!(layout.worker_cpu_affinity, ["01", "10 1"]);
    assert_eq!(layout.http_includes, ["/e/mime.types", "/e/conf.d/*.conf", "/e/sites/*"].map(PathBuf::from));
    assert!(layout.includes(Path::new("/e/conf.d/polyfpm.conf")));
    assert!(!layout.includes(Path::new("/e/conf.d/polyfpm")));
}

#[test]
fn a_configuration_without_keep_conn_keeps_none() {
    let reading = reading(&[("/e/n", "http { server { location / { fastcgi_pass a; } } upstream a { server unix:/a; } }")]);
    assert_eq!(shown(&reading), ["/e/n:1 upstream a", "/e/n:1 a: /a / - - -"]);
}

#[test]
fn an_upstream_behind_host_names_has_unknown_servers_only_where_fastcgi_uses_it() {
    let reading = reading(&[(
        "/e/n",
        "http {\nupstream a { server php:9000; }\nupstream b { server app:80; }\nserver {\n location / { fastcgi_pass A; }\n \
         location /h { fastcgi_pass fpm.internal:9000; }\n}\n}",
    )]);
    assert_eq!(shown(&reading)[..3], ["/e/n:5 upstream A", "/e/n:6 unknown fpm.internal:9000", "/e/n:2 unknown php:9000"]);
}

#[test]
fn what_cannot_be_read_whole_is_not_known() {
    for (files, message) in [
        (vec![], "the dump names no configuration file"),
        (vec![("/e/n", "http { include a; }")], "/e/n:1: the included file /e/a is not in the dump"),
        (vec![("/e/n", "http {}"), ("/e/a", "b;")], "/e/a: no include of the dump leads to this file"),
        (vec![("/e/n", "http {\n")], "/e/n:2: the file ends inside a block: a '}' is missing"),
        (vec![("/e/n", "http { include *; }")], "/e/n: the file includes itself"),
    ] {
        let reading = reading(&files);
        assert!(!reading.clients.known, "{message}");
        assert_eq!(reading.problems.iter().map(ToString::to_string).next().as_deref(), Some(message));
    }
}

#[test]
fn files_that_include_each_other_end_and_are_told() {
    let both = "server { include c/*.conf; include c/*.conf; location / { include c/*.conf; fastcgi_pass unix:/x; } }";
    let reading = reading(&[("/e/n", "http { include c/*.conf; }"), ("/e/c/a.conf", both), ("/e/c/a.conf", both), ("/e/c/b.conf", both)]);
    assert!(!reading.clients.known);
    assert!(reading.problems.iter().any(|problem| problem.message.contains("includes itself")), "{:?}", reading.problems);
}

#[test]
fn includes_of_foreign_blocks_are_followed_and_not_read() {
    let reading = reading(&[
        ("/e/n", "http { map $a $b { include maps/a; fastcgi_pass c; } geo $g { include base.bin; } }"),
        ("/e/maps/a", "fastcgi_pass unix:/x;"),
    ]);
    assert_eq!(shown(&reading), [""; 0]);
    assert!(reading.clients.known, "{:?}", reading.problems);
}
