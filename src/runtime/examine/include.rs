//! The NGINX include: whether it can be written, whether NGINX reads it, whether its names are free.

use std::path::Path;

use crate::edge::nginx::{self, FileError, NginxState, Standing};
use crate::model::plan::Plan;
use crate::model::problem::Problem;
use crate::model::settings::Settings;

/// Gives what is wrong with NGINX and the include's place.
pub(super) fn of_state(settings: &Settings, state: &NginxState) -> Vec<Problem> {
    let nginx = &settings.nginx;
    let key = if state.build.is_some() { "nginx.config" } else { "nginx.binary" };
    let placed = |problem: &Problem| {
        let mut problem = if problem.place.is_some() { problem.clone() } else { settings.point(key, problem.clone()) };
        problem.remedy.get_or_insert_with(|| "install NGINX, name its binary, or set nginx.enabled = false".to_owned());
        problem
    };
    let mut problems: Vec<Problem> = state.problems.iter().map(placed).collect();
    if state.build.is_none() {
        return problems;
    }
    let include = nginx.include.display();
    problems.extend(of_file(settings));
    let was_read = state.clients.known || !state.layout.http_includes.is_empty();
    if was_read && !state.reads_include {
        let message = format!("nginx.include {include} is read by no include directive in the http block of {}", nginx.config.display());
        let problem = Problem::warning(message).remedy(format!("add 'include {include};' to the http block, or name a file it reads"));
        problems.push(settings.point("nginx.include", problem));
    }
    problems
}

fn of_file(settings: &Settings) -> Option<Problem> {
    let include = &settings.nginx.include;
    let (message, remedy) = match nginx::standing(include) {
        Ok(Standing::Nothing) => return None,
        Ok(Standing::Generated(instance)) if instance == settings.instance.as_str() => return None,
        Ok(Standing::Generated(instance)) => {
            (format!("belongs to instance '{instance}'"), "name a file of its own for each instance".to_owned())
        }
        Ok(Standing::Foreign) => {
            ("was not written by polyfpm and is left alone".to_owned(), "name a file that does not exist yet".to_owned())
        }
        Err(FileError::Directory(error)) if error.is_missing() => {
            let directory = include.parent().unwrap_or(Path::new("/")).display();
            (format!("cannot be written: the directory {directory} does not exist"), format!("make it: install -d -m 755 {directory}"))
        }
        Err(error) => (format!("cannot be used: {}", super::super::chain(&error)), "name a file that root can write".to_owned()),
    };
    Some(settings.point("nginx.include", Problem::error(format!("nginx.include {} {message}", include.display())).remedy(remedy)))
}

/// Gives the upstreams of the plan whose names NGINX's configuration has already.
pub(super) fn of_names(settings: &Settings, state: &NginxState, plan: &Plan) -> Vec<Problem> {
    let own = std::fs::canonicalize(&settings.nginx.include).unwrap_or_else(|_| settings.nginx.include.clone());
    let is_own = |file: &Path| file == settings.nginx.include || std::fs::canonicalize(file).is_ok_and(|file| file == own);
    let others = state.clients.upstreams.iter().filter(|upstream| !is_own(&upstream.place.file));
    others
        .filter_map(|upstream| {
            let pool = plan.pools.iter().find(|pool| pool.upstream.eq_ignore_ascii_case(&upstream.name))?;
            let message = format!(
                "upstream '{}' has the name that polyfpm generates for pool '{}': NGINX refuses two upstreams of one name",
                upstream.name, pool.pool
            );
            let remedy = "rename one of the two: this one here, or polyfpm's with nginx.upstream";
            Some(Problem::error(message).at(&upstream.place.file, upstream.place.line).remedy(remedy))
        })
        .collect()
}
