//! Files, users and directories of this host that the settings name.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::model::plan::Plan;
use crate::model::problem::Problem;
use crate::model::settings::{Settings, Warmup};
use crate::runtime::draft::Workshop;
use crate::sys::users;

/// Tells whether php-fpm and its configuration are there to be asked.
pub(super) fn has_php(settings: &Settings) -> bool {
    let named = !settings.php.binary.as_os_str().is_empty();
    named && of_binary(settings).is_none() && missing(&settings.php.config).is_none()
}

/// Gives what is wrong with the files and names of the settings.
pub(super) fn of_settings(settings: &Settings) -> Vec<Problem> {
    let php = &settings.php;
    let mut problems: Vec<Problem> = of_binary(settings).into_iter().collect();
    let mut file = |key: &str, path: &Path, remedy: &str| {
        if let Some(why) = missing(path).filter(|_| !path.as_os_str().is_empty()) {
            problems.push(settings.point(key, Problem::error(format!("{key} {} {why}", path.display())).remedy(remedy)));
        }
    };
    file("php.config", &php.config, "name the php-fpm.conf of this installation");
    if let Some(ini) = php.ini.as_deref().filter(|ini| !ini.is_dir()) {
        file("php.ini", ini, "name a php.ini, or leave the key out for php-fpm's own");
    }
    if let Some(prefix) = php.prefix.as_deref().filter(|prefix| !prefix.is_dir()) {
        let problem = Problem::error(format!("php.prefix {} is no directory", prefix.display()));
        problems.push(settings.point("php.prefix", problem.remedy("name the directory from which relative paths of the pool files start")));
    }
    if let Some(Err(error)) = settings.control.group.as_deref().map(users::group) {
        let problem = Problem::error(format!("control.group: {}", super::super::chain(&error)));
        problems.push(settings.point("control.group", problem.remedy("name a group of this host, or leave the key out")));
    }
    problems.extend(of_runtime_directories(settings));
    problems
}

fn of_binary(settings: &Settings) -> Option<Problem> {
    let path = &settings.php.binary;
    // That the key is missing was told.
    if path.as_os_str().is_empty() {
        return None;
    }
    let executable = || fs::metadata(path).is_ok_and(|metadata| metadata.permissions().mode() & 0o111 != 0);
    let why = missing(path).or_else(|| (!executable()).then(|| "may not be executed".to_owned()))?;
    let problem = Problem::error(format!("php.binary {} {why}", path.display()));
    Some(settings.point("php.binary", problem.remedy("name the php-fpm binary; on Debian: ls /usr/sbin/php-fpm*")))
}

/// Says why a regular file cannot be read; `None` where it can.
fn missing(path: &Path) -> Option<String> {
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_file() => None,
        Ok(_) => Some("is no regular file".to_owned()),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Some("does not exist".to_owned()),
        Err(error) => Some(format!("cannot be looked at: {error}")),
    }
}

/// The supervisor makes its directories itself, but not through something else that stands there.
fn of_runtime_directories(settings: &Settings) -> Vec<Problem> {
    let directory = &settings.runtime_directory;
    if directory.is_dir()
        && let Err(error) = crate::sys::directory::vouch(directory)
    {
        let problem = Problem::error(format!("run.directory: {}", super::super::chain(&error)));
        let remedy = "name a directory that root alone can write, or remove it and polyfpm makes it";
        return vec![settings.point("run.directory", problem.remedy(remedy))];
    }
    let own = [("run.directory", &settings.runtime_directory), ("listen.directory", &settings.listen.directory)];
    own.into_iter()
        // Below the other one it shares its obstacle.
        .filter(|(key, path)| *key == "run.directory" || !path.starts_with(&settings.runtime_directory))
        .filter_map(|(key, path)| {
            let obstacle = path.ancestors().find(|above| fs::metadata(above).is_ok_and(|metadata| !metadata.is_dir()))?;
            let problem = Problem::error(format!("{key} {}: {} is no directory", path.display(), obstacle.display()));
            Some(settings.point(key, problem.remedy("remove the file, or name another directory")))
        })
        .collect()
}

/// Gives what is wrong with the warm-ups.
pub(super) fn of_warmups(settings: &Settings, workshop: &Workshop, plan: &Plan) -> Vec<Problem> {
    let warmups = settings.restart.warmup.iter().enumerate();
    warmups.flat_map(|(number, warmup)| of_warmup(settings, workshop, plan, (number, warmup))).collect()
}

fn of_warmup(settings: &Settings, workshop: &Workshop, plan: &Plan, (number, warmup): (usize, &Warmup)) -> Option<Problem> {
    let key = |name: &str| format!("restart.warmup.{number}.{name}");
    // Without a name its lack was told.
    if warmup.pool.is_empty() || warmup.script.as_os_str().is_empty() {
        return None;
    }
    if plan.quarantined.iter().any(|bad| bad.pool.as_str() == warmup.pool) {
        return None;
    }
    let Some(pool) = workshop.files.pools.iter().find(|pool| pool.name.as_str() == warmup.pool) else {
        let names: Vec<&str> = workshop.files.pools.iter().take(5).map(|pool| pool.name.as_str()).collect();
        let problem = Problem::error(format!("restart.warmup: there is no pool '{}'", warmup.pool));
        return Some(settings.point(&key("pool"), problem.remedy(format!("name a pool of the pool files: {}", names.join(", ")))));
    };
    if !workshop.build.status_listen {
        let problem = Problem::warning(format!("restart.warmup of pool '{}' is left out: this php-fpm has no pm.status_listen", pool.name));
        return Some(settings.point(&key("pool"), problem.remedy("use PHP 8.0 or later, or remove the warm-up")));
    }
    // php-fpm looks for the script from within the pool's own root.
    let chroot = pool.lines.iter().rev().find(|line| line.key == "chroot" && line.element.is_none());
    let root = chroot.map(|line| PathBuf::from(line.value.replace("$pool", pool.name.as_str())));
    let script = root.map_or_else(|| warmup.script.clone(), |root| root.join(warmup.script.strip_prefix("/").unwrap_or(&warmup.script)));
    let why = missing(&script)?;
    let problem = Problem::error(format!(
        "restart.warmup: the script {} {why}, so no new master of pool '{}' would be good",
        script.display(),
        pool.name
    ));
    Some(settings.point(&key("script"), problem.remedy("name a script that exists, as the pool's user sees it")))
}
