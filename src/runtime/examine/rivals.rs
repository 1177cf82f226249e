//! Other instances on this host that want what this one wants.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use super::at_listen;
use crate::core::plan::upstream_name;
use crate::edge::fpm::{self, Tool};
use crate::edge::settings::{self as settings_file, ETC_DIRECTORY};
use crate::model::endpoint::Endpoint;
use crate::model::plan::Plan;
use crate::model::pool::PoolFiles;
use crate::model::problem::Problem;
use crate::model::settings::Settings;
use crate::runtime::listens;
use crate::sys::children::Children;

/// Gives every clash with the instances whose settings are beside ours or in the usual directory.
pub(super) async fn of_instance(children: &Children, settings: &Settings, ours: Option<(&Plan, &PoolFiles)>) -> Vec<Problem> {
    let mut problems = Vec::new();
    for file in others(&settings.file) {
        let (Some(other), _) = settings_file::survey(&file) else {
            let message = "the settings of another instance cannot be read, so clashes with it are not known".to_owned();
            problems.push(Problem::note(message).at(&file, 0).remedy(format!("run polyfpm check -c {}", file.display())));
            continue;
        };
        problems.extend(of_paths(settings, &other));
        if same_file(&settings.php.config, &other.php.config) && settings.php.prefix == other.php.prefix {
            let message = format!("{} runs the pools of {}, too: both want the same sockets", named(&other), settings.php.config.display());
            let remedy = "remove one of the two instances, or give each a php-fpm.conf of its own";
            problems.push(settings.point("php.config", Problem::error(message).remedy(remedy)));
            continue;
        }
        if let (Some((plan, files)), Some(theirs)) = (ours, pools_of(children, &other).await) {
            problems.extend(of_pools(settings, &other, (plan, files), &theirs));
        }
    }
    problems
}

fn named(other: &Settings) -> String {
    format!("instance '{}' ({})", other.instance, other.file.display())
}

/// Gives the settings files besides `file` in its directory and in the usual one.
fn others(file: &Path) -> Vec<PathBuf> {
    let directories: BTreeSet<&Path> = file.parent().into_iter().chain([Path::new(ETC_DIRECTORY)]).collect();
    let entries = directories.into_iter().flat_map(|directory| fs::read_dir(directory).into_iter().flatten().flatten());
    let mut found: Vec<PathBuf> = entries.map(|entry| entry.path()).filter(|path| is_settings(path) && !same_file(path, file)).collect();
    found.sort();
    found
}

/// Editors leave `.php8.2.toml.swp` and the like; those are nobody's settings.
fn is_settings(path: &Path) -> bool {
    let hidden = path.file_name().is_some_and(|name| name.to_string_lossy().starts_with('.'));
    !hidden && path.extension().is_some_and(|extension| extension == "toml") && path.is_file()
}

fn same_file(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    real(one) == real(other)
}

/// Compares what the two keep for themselves.
fn of_paths(settings: &Settings, other: &Settings) -> Vec<Problem> {
    let clash = |key: &str, path: &Path| {
        let message = format!("{key} {} belongs to {}, too", path.display(), named(other));
        settings.point(key, Problem::error(message).remedy(format!("give each instance a {key} of its own")))
    };
    let mut problems = Vec::new();
    let same_run = same_file(&settings.runtime_directory, &other.runtime_directory);
    let own = [
        ("run.directory", &settings.runtime_directory, &other.runtime_directory, true),
        // Below the same directory they are the same anyway, which was told.
        ("control.socket", &settings.control.socket, &other.control.socket, !same_run),
        ("listen.directory", &settings.listen.directory, &other.listen.directory, !same_run),
        ("nginx.include", &settings.nginx.include, &other.nginx.include, settings.nginx.enabled && other.nginx.enabled),
    ];
    problems.extend(own.into_iter().filter(|(_, one, two, told)| *told && same_file(one, two)).map(|(key, path, ..)| clash(key, path)));
    if let (Some(one), Some(two)) = (settings.metrics_listen, other.metrics_listen)
        && one == two
    {
        let problem = Problem::error(format!("metrics.listen {one} belongs to {}, too", named(other)));
        problems.push(settings.point("metrics.listen", problem.remedy("give each instance an address of its own")));
    }
    problems
}

/// Reads the pool files of another instance, with each pool's endpoint; nothing where they cannot be read.
async fn pools_of(children: &Children, other: &Settings) -> Option<(PoolFiles, Vec<(usize, Endpoint)>)> {
    if !super::host::has_php(other) {
        return None;
    }
    let tool = Tool::new(children.clone(), other.php.clone(), fpm::environment(&other.php, std::env::vars_os()));
    let (build, found) = fpm::probe_and_read(&tool).await.ok()?;
    let files = found.reading.files;
    let (mut listens, _) = listens::resolve_all(&files, &fpm::prefix(&other.php, &build));
    let endpoints = files.pools.iter().enumerate().filter_map(|(at, pool)| Some((at, listens.remove(&pool.name)?.endpoint))).collect();
    Some((files, endpoints))
}

fn of_pools(
    settings: &Settings,
    other: &Settings,
    (plan, files): (&Plan, &PoolFiles),
    (their_files, theirs): &(PoolFiles, Vec<(usize, Endpoint)>),
) -> Vec<Problem> {
    let mut problems = Vec::new();
    for pool in &plan.pools {
        let wanted =
            pool.servers.iter().find_map(|server| Some((server, theirs.iter().find(|(_, endpoint)| meet(&server.endpoint, endpoint))?)));
        let Some((server, rival)) = wanted.and_then(|(server, (at, _))| Some((server, their_files.pools.get(*at)?))) else { continue };
        let origin = rival.listen_origin.as_ref().unwrap_or(&rival.origin);
        let message = format!(
            "pool '{}': {} is the listen of pool '{}' of {}, too ({}:{})",
            pool.pool,
            server.endpoint,
            rival.name,
            named(other),
            origin.file.display(),
            origin.line
        );
        problems.push(at_listen(files, &pool.pool, Problem::error(message).remedy("give one of the two another listen")));
    }
    let one_nginx = settings.nginx.enabled && other.nginx.enabled && same_file(&settings.nginx.config, &other.nginx.config);
    let names: BTreeSet<String> = their_files.pools.iter().map(|pool| upstream_name(other, &pool.name).to_ascii_lowercase()).collect();
    let same = plan.pools.iter().find(|pool| names.contains(&pool.upstream.to_ascii_lowercase())).filter(|_| one_nginx);
    problems.extend(same.map(|pool| {
        let message = format!(
            "upstream '{}' of pool '{}' has the name of one of {}: NGINX refuses two of one name",
            pool.upstream,
            pool.pool,
            named(other)
        );
        settings.point("nginx.upstream", Problem::error(message).remedy("put {instance} in nginx.upstream of both"))
    }));
    problems
}

/// Tells whether two listeners cannot both be had.
fn meet(one: &Endpoint, other: &Endpoint) -> bool {
    match (one, other) {
        (Endpoint::Unix(one), Endpoint::Unix(other)) => one == other,
        (Endpoint::Tcp(one), Endpoint::Tcp(other)) => {
            one.port() == other.port() && (one.ip() == other.ip() || one.ip().is_unspecified() || other.ip().is_unspecified())
        }
        (Endpoint::Unix(_), Endpoint::Tcp(_)) | (Endpoint::Tcp(_), Endpoint::Unix(_)) => false,
    }
}
