//! Pool files: whatever they say, what is generated from them for php-fpm and NGINX has the pools that were taken in and nothing else.

#![no_main]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::time::Duration;

use libfuzzer_sys::fuzz_target;
use polyfpm::core::plan::{PlanInput, plan};
use polyfpm::edge::settings::fuzzing::understood;
use polyfpm::model::clients::Clients;
use polyfpm::model::endpoint::Endpoint;
use polyfpm::model::host::{FpmBuild, Host, ResolvedListen, Version};
use polyfpm::model::ids::PoolName;
use polyfpm::model::listen::Access;
use polyfpm::model::plan::{Plan, ShardPlan};
use polyfpm::model::settings::Settings;
use polyfpm::text::fpm::{IncludeError, IncludeRequest, ReadContext, Reading, RunsAs, ShardChoices, SourceFile, StatusListener};
use polyfpm::text::fpm::{read, render_shard};
use polyfpm::text::nginx::{Build, IncludeInput, IncludeUpstream, parse, render_include, upstreams_of};

const DIRECTIVES: [&str; 7] = ["zone", "least_conn", "random", "server", "keepalive", "keepalive_time", "keepalive_timeout"];

fuzz_target!(|data: &[u8]| {
    let version = match data.first() {
        Some(b'7') => Version(7, 4, 33),
        Some(b'8') => Version(8, 4, 1),
        _ => Version(8, 2, 29),
    };
    let (main, included) = match data.windows(2).position(|pair| pair == b"\0\0") {
        Some(at) => (&data[..at], &data[at + 2..]),
        None => (data, &b""[..]),
    };
    let context = context(version);
    let reading = reading(&context, main, Some(included));
    if !reading.usable() || reading.files.pools.is_empty() {
        return;
    }
    let settings = understood("[php]\nbinary = \"/usr/sbin/php-fpm8.2\"\nconfig = \"/etc/php/8.2/fpm/php-fpm.conf\"\n[shards]\ncount = 2\nmin_workers = 2\nrouting = \"split\"\n").expect("good settings");
    let listens = reading.files.pools.iter().enumerate().map(|(number, pool)| {
        let endpoint = Endpoint::Unix(PathBuf::from(format!("/run/php/{number}.sock")));
        (pool.name.clone(), ResolvedListen { endpoint, access: Access::default(), mounted_as: None, only_one: false })
    });
    let host = Host { somaxconn: 4096, listens: listens.collect(), ..Host::default() };
    let clients = Clients::default();
    let input = PlanInput {
        settings: &settings,
        files: &reading.files,
        quarantined: &reading.quarantined,
        clients: &clients,
        host: &host,
        previous: None,
    };
    let plan = plan(&input).plan;
    for shard in &plan.shards {
        php_fpm_reads_it(&reading, shard, &context);
    }
    nginx_reads_it(&settings, &plan);
});

fn context(version: Version) -> ReadContext {
    let constants = BTreeMap::from([("E_ALL".to_owned(), "32767".to_owned()), ("PHP_EOL".to_owned(), "\n".to_owned())]);
    let modern = version >= Version(8, 0, 0);
    ReadContext {
        build: FpmBuild { version, systemd: true, status_listen: modern, constants },
        prefix: PathBuf::from("/usr"),
        variables: BTreeMap::from([("HOME".to_owned(), "/root".to_owned()), ("LINES".to_owned(), "a\n[b]\n".to_owned())]),
        runs_as: RunsAs::Root,
    }
}

/// Reads a text; with `None` for the included files, a text that must include nothing.
fn reading(context: &ReadContext, main: &[u8], included: Option<&[u8]>) -> Reading {
    let mut source = |request: IncludeRequest| -> Result<Vec<SourceFile>, IncludeError> {
        let (path, content) = match request {
            IncludeRequest::Main(path) => (path, main),
            IncludeRequest::Pattern(path) => (path, included.expect("generated text includes nothing")),
        };
        Ok(vec![SourceFile { path, content: Ok(content.to_vec()) }])
    };
    read(Path::new("/etc/php-fpm.conf"), context, &mut source)
}

fn php_fpm_reads_it(reading: &Reading, shard: &ShardPlan, context: &ReadContext) {
    let status = |pool: &PoolName| StatusListener {
        alias: format!("/.polyfpm/{}", shard.id),
        status_path: "/s".to_owned(),
        ping_path: format!("/ping-{}", pool.as_str().len()),
    };
    let with_status = context.build.status_listen;
    let status: BTreeMap<_, _> = shard
        .placements
        .iter()
        .filter(|_| with_status)
        .take(1)
        .map(|placement| (placement.pool.clone(), status(&placement.pool)))
        .collect();
    let choices = ShardChoices { drain_timeout: Duration::from_secs(60), status: &status, heartbeat: Some(Duration::from_secs(1)) };
    let Ok(rendered) = render_shard(&reading.files, shard, choices) else { return };
    let again = self::reading(context, &rendered.text, None);
    let text = String::from_utf8_lossy(&rendered.text);
    assert!(again.usable() || shard.placements.is_empty(), "{:#?}\n{text}", again.problems);
    assert!(again.quarantined.is_empty(), "{:#?}\n{text}", again.quarantined);
    let pools: Vec<(&PoolName, &str)> = again.files.pools.iter().map(|pool| (&pool.name, pool.listen.as_str())).collect();
    let planned: Vec<(&PoolName, &str)> =
        shard.placements.iter().map(|placement| (&placement.pool, placement.listener.alias.as_str())).collect();
    assert_eq!(pools, planned, "{text}");
    for (pool, placement) in again.files.pools.iter().zip(&shard.placements) {
        assert_eq!(pool.workers.max_children, placement.workers.max_children, "{text}");
    }
}

fn nginx_reads_it(settings: &Settings, plan: &Plan) {
    let upstreams = plan.pools.iter().map(|pool| IncludeUpstream {
        name: pool.upstream.clone(),
        pool: pool.pool.clone(),
        servers: pool.servers.clone(),
        keepalive: 1,
    });
    let input = IncludeInput {
        instance: settings.instance.clone(),
        build: Build::of_version(Version(1, 22, 1)),
        page_bytes: 4096,
        balance: settings.nginx.balance,
        upstreams: upstreams.collect(),
    };
    let rendered = render_include(&input);
    let directives = parse(rendered.text.as_bytes()).expect("a configuration");
    let names: BTreeSet<String> = plan.pools.iter().map(|pool| pool.upstream.clone()).collect();
    assert_eq!(upstreams_of(&rendered.text).len() + rendered.refused.len(), plan.pools.len(), "{}", rendered.text);
    for upstream in directives {
        let name = upstream.arg(0).unwrap_or_default();
        assert!(upstream.name == "upstream" && names.contains(&*name), "{}", rendered.text);
        for line in upstream.block.unwrap_or_default() {
            assert!(DIRECTIVES.contains(&line.name.as_str()) && line.block.is_none(), "{}", rendered.text);
        }
    }
}
