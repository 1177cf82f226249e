//! On which CPUs NGINX's workers run: as they live, where they can be looked at, else as configured.
//!
//! A worker does not show its number; they are counted in the order in which they were started, which a worker that was
//! started again breaks. So sets are compared as a whole and not one by one.

use std::path::Path;

use super::state::{NginxState, running};
use crate::model::cpus::CpuSet;
use crate::model::problem::Problem;
use crate::model::topology::{LayoutSource, NginxLayout};
use crate::sys::proc::Proc;

impl NginxState {
    /// Gives the layout of NGINX's workers, on a machine where these CPUs are online, and where file and life differ. Nothing
    /// where neither a configuration nor a worker could be seen.
    pub fn workers(&self, online: &CpuSet) -> (Option<NginxLayout>, Vec<Problem>) {
        let configured = self.clients.known.then(|| self.layout.worker_cpus(online));
        let living = self.living_workers(online);
        let mut problems = Vec::new();
        if let Some((configured, living)) = configured.as_ref().zip(living.as_ref()) {
            problems.extend(difference(configured, living));
        }
        let layout = living.map(|workers| NginxLayout { workers, source: LayoutSource::Life });
        (layout.or(configured.map(|workers| NginxLayout { workers, source: LayoutSource::File })), problems)
    }

    /// Gives the same state with the master and the workers that run now.
    #[must_use]
    pub fn with_workers_of_now(&self, binary: &Path) -> Self {
        Self { running: running(&self.pid_file, binary), ..self.clone() }
    }

    /// Gives the CPUs of each living worker; `None` for one that may run wherever its master may.
    fn living_workers(&self, online: &CpuSet) -> Option<Vec<Option<CpuSet>>> {
        let running = self.running.as_ref()?;
        let proc = Proc::default();
        let on_line = |set: CpuSet| set.iter().filter(|cpu| online.contains(*cpu)).collect::<CpuSet>();
        let master = on_line(proc.cpus_allowed(running.master.pid).ok()?);
        let workers = running.workers.iter().filter_map(|worker| proc.cpus_allowed(worker.pid).ok().map(on_line));
        let workers: Vec<Option<CpuSet>> = workers.map(|set| (set != master).then_some(set)).collect();
        (!workers.is_empty()).then_some(workers)
    }
}

fn difference(configured: &[Option<CpuSet>], living: &[Option<CpuSet>]) -> Option<Problem> {
    let message = if configured.len() == living.len() {
        let sorted = |sets: &[Option<CpuSet>]| {
            let mut sets = sets.to_vec();
            sets.sort();
            sets
        };
        if sorted(configured) == sorted(living) {
            return None;
        }
        format!("NGINX's workers run on CPUs {}, its configuration says {}", shown(living), shown(configured))
    } else {
        format!("NGINX runs {} workers, its configuration says {}", living.len(), configured.len())
    };
    Some(Problem::warning(message).remedy("reload NGINX; until then shards follow the workers that run"))
}

fn shown(sets: &[Option<CpuSet>]) -> String {
    let texts: Vec<String> = sets.iter().map(|set| set.as_ref().map_or_else(|| "any".to_owned(), ToString::to_string)).collect();
    texts.join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sets(texts: &[&str]) -> Vec<Option<CpuSet>> {
        texts.iter().map(|text| (*text != "any").then(|| text.parse().unwrap())).collect()
    }

    #[test]
    fn a_difference_between_file_and_life_is_told() {
        let told = |configured: &[&str], living: &[&str]| difference(&sets(configured), &sets(living)).map(|problem| problem.message);
        assert_eq!(told(&["0", "1"], &["1", "0"]), None, "a worker that was started again comes last");
        assert_eq!(told(&["0", "1"], &["0", "any"]).as_deref(), Some("NGINX's workers run on CPUs 0 any, its configuration says 0 1"));
        assert_eq!(told(&["0", "1"], &["any"]).as_deref(), Some("NGINX runs 1 workers, its configuration says 2"));
    }
}
