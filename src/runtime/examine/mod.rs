//! Everything that can be said of an instance without starting it: what `check` tells.
//!
//! Unlike a reading for the supervisor, an examination does not end at the first stage with an error: what one stage leaves
//! open is left out by those that build on it, and everything else is told at once. It starts nothing, connects to nothing
//! and leaves nothing behind.

pub(super) mod excerpts;
mod groups;
mod holders;
mod host;
mod include;
mod rivals;

use std::path::Path;
use std::rc::Rc;

use super::draft::{self, Made, ReadingInput, Trials, Workshop};
use crate::edge::fpm::{self, Tool};
use crate::edge::nginx::NginxState;
use crate::edge::settings as settings_file;
use crate::model::pool::{PoolFiles, Quarantined};
use crate::model::problem::{Problem, Severity};
use crate::model::settings::Settings;
use crate::sys::children::Children;

/// Gives everything that is wrong or doubtful, or good to know, of the instance of a settings file.
///
/// # Cancel safety
/// Dropping the future ends the programs it runs.
pub async fn examine(children: &Children, file: &Path) -> Vec<Problem> {
    let (settings, mut problems) = settings_file::survey(file);
    if let Some(settings) = settings {
        let examination = Examination { children, settings: Rc::new(settings) };
        problems.extend(examination.all().await);
    }
    excerpts::complete(&mut problems, file);
    let mut told: Vec<Problem> = Vec::with_capacity(problems.len());
    for problem in problems {
        if !told.contains(&problem) {
            told.push(problem);
        }
    }
    told
}

struct Examination<'a> {
    children: &'a Children,
    settings: Rc<Settings>,
}

impl Examination<'_> {
    async fn all(&self) -> Vec<Problem> {
        let settings = &self.settings;
        let mut problems = host::of_settings(settings);
        let nginx = draft::probe_nginx(self.children, settings).await;
        problems.extend(nginx.iter().flat_map(|state| include::of_state(settings, state)));
        let (pools, mut workshop) = self.pools(nginx.clone()).await;
        problems.extend(pools);
        let made = match &mut workshop {
            Some(workshop) => self.plan(workshop, &mut problems).await,
            None => None,
        };
        if let (Some(workshop), Some(made)) = (&workshop, &made) {
            problems.extend(host::of_warmups(settings, workshop, &made.plan));
            problems.extend(nginx.iter().flat_map(|state| include::of_names(settings, state, &made.plan)));
            problems.extend(groups::of_limits(settings, made));
            problems.extend(holders::of_listeners(settings, &workshop.files, &made.plan));
        }
        let ours = made.as_ref().zip(workshop.as_ref()).map(|(made, workshop)| (&made.plan, &workshop.files));
        problems.extend(rivals::of_instance(self.children, settings, ours).await);
        problems
    }

    /// Reads php-fpm and the pool files.
    async fn pools(&self, nginx: Option<NginxState>) -> (Vec<Problem>, Option<Workshop>) {
        let settings = &self.settings;
        if !host::has_php(settings) {
            return (Vec::new(), None);
        }
        let tool = Tool::new(self.children.clone(), settings.php.clone(), fpm::environment(&settings.php, std::env::vars_os()));
        let failed = |key: &str, error: &dyn std::error::Error| {
            let problem = Problem::error(super::chain(error)).remedy("set php.binary and php.config to those of this installation");
            vec![settings.point(key, problem)]
        };
        let (build, found) = match fpm::probe_and_read(&tool).await {
            Ok(found) => found,
            Err(error @ fpm::FilesError::Probe(_)) => return (failed("php.binary", &error), None),
            Err(error) => return (failed("php.config", &error), None),
        };
        let problems = [found.reading.problems, found.reading.further].concat();
        let installation = match fpm::installation(&tool).await {
            Ok(installation) => installation,
            Err(error) => return ([problems, failed("php.binary", &error)].concat(), None),
        };
        let problems = problems.into_iter().chain(installation.complaints.iter().map(|complaint| draft::of_complaint(complaint))).collect();
        let workshop = Workshop {
            settings: Rc::clone(settings),
            build,
            files: found.reading.files,
            nginx,
            tool,
            installation,
            quarantined: found.reading.quarantined,
            kept: Vec::new(),
            previous: None,
            former_plan: None,
            barred: Vec::new(),
            proven: std::collections::BTreeSet::new(),
            taken: std::collections::BTreeSet::new(),
        };
        (problems, Some(workshop))
    }

    /// Plans, has php-fpm try every pool, and plans again without the bad ones.
    async fn plan(&self, workshop: &mut Workshop, problems: &mut Vec<Problem>) -> Option<Made> {
        let sound = problems.iter().all(|problem| problem.severity != Severity::Error);
        let mut made = workshop.make_anyway();
        let input = ReadingInput {
            file: self.settings.file.clone(),
            previous: None,
            former_plan: None,
            barred: Vec::new(),
            serving: std::collections::BTreeMap::new(),
            proven: std::collections::BTreeSet::new(),
            taken: std::collections::BTreeSet::new(),
            trials: Trials::All,
        };
        match workshop.try_out(&made, &input).await {
            Ok(bad) if bad.is_empty() => {}
            Ok(bad) => {
                workshop.quarantine(bad);
                made = workshop.make_anyway();
            }
            // With an error in what all pools share, every pool is refused for it once more.
            Err(_) if !sound => {}
            Err(error) => {
                let problem = Problem::error(super::chain(&error));
                problems.push(self.settings.point("php.config", problem.remedy("correct [global] or php.ini; no single pool is at fault")));
            }
        }
        problems.append(&mut made.problems);
        problems.extend(made.plan.quarantined.iter().map(kept_out));
        Some(made)
    }
}

/// Gives the problem of a pool that is kept out, with the pool's name in it.
fn kept_out(bad: &Quarantined) -> Problem {
    let mut problem = bad.problem.clone();
    problem.severity = Severity::Error;
    let (ours, fpms) = (format!("pool '{}': ", bad.pool), format!("[pool {}] ", bad.pool));
    if !problem.message.starts_with(&ours) {
        problem.message = format!("{ours}{}", problem.message.strip_prefix(&fpms).unwrap_or(&problem.message));
    }
    problem.remedy.get_or_insert_with(|| "correct the pool; until then it is kept out and the others run without it".to_owned());
    problem
}

/// Adds the place of a pool's `listen`, or of its header.
fn at_listen(files: &PoolFiles, pool: &crate::model::ids::PoolName, problem: Problem) -> Problem {
    let Some(pool) = files.pools.iter().find(|known| known.name == *pool) else { return problem };
    let origin = pool.listen_origin.as_ref().unwrap_or(&pool.origin);
    problem.at(origin.file.as_path(), origin.line)
}
