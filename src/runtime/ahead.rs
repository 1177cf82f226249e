//! Listeners that are bound, and put at their free public paths, before their masters ask for them, on several CPUs at once: a
//! start waits for nothing else then.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};
use std::thread;

use crate::model::listen::ListenerPlan;
use crate::sys::directory::Batch;
use crate::sys::listener::{self, Expected, Listener};

/// Below so many a thread costs more than it saves.
const WORTH_A_THREAD: usize = 64;

/// Binding is the kernel's work on one directory, in which more threads would wait for each other.
const THREADS: usize = 4;

/// Listeners by path and suffix: at their public paths where those were free, else under their temporary names.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    bound: HashMap<(PathBuf, String), Listener>,
}

impl Ahead {
    /// Binds a unix listener for each plan with `suffix`, one a path, and publishes it. What cannot be bound or published is
    /// left to whoever asks for it, who then sees why.
    pub(super) fn bind<'p>(plans: impl Iterator<Item = &'p ListenerPlan>, suffix: &str) -> Self {
        let mut seen = HashSet::new();
        let orders: Vec<(&Path, &ListenerPlan)> =
            plans.filter_map(|plan| Some((plan.endpoint.path()?, plan))).filter(|(path, _)| seen.insert(*path)).collect();
        let cpus = thread::available_parallelism().map_or(1, usize::from).min(THREADS);
        let share = orders.len().div_ceil(cpus).max(WORTH_A_THREAD);
        let mut ahead = Self::default();
        thread::scope(|scope| {
            let mut chunks = orders.chunks(share);
            let mine = chunks.next();
            let others: Vec<_> = chunks.map(|chunk| scope.spawn(move || bind_all(chunk, suffix))).collect();
            ahead.bound.extend(mine.into_iter().flat_map(|chunk| bind_all(chunk, suffix)));
            for other in others {
                ahead.bound.extend(other.join().unwrap_or_default());
            }
        });
        ahead
    }

    /// Gives the listener for a path, if it was bound under this suffix.
    pub(super) fn take(&mut self, path: &Path, suffix: &str) -> Option<Listener> {
        if self.bound.is_empty() {
            return None;
        }
        self.bound.remove(&(path.to_owned(), suffix.to_owned()))
    }

    /// Removes what nobody asked for.
    pub(super) fn discard_rest(self) {
        for ((path, _), listener) in self.bound {
            super::sockets::discard_listener(&listener);
            if let Some(file) = listener.file_id()
                && let Err(error) = listener::unpublish(&path, file)
            {
                tracing::warn!(path = %path.display(), error = %error, "socket file was not removed");
            }
        }
    }
}

fn bind_all(orders: &[(&Path, &ListenerPlan)], suffix: &str) -> Vec<((PathBuf, String), Listener)> {
    let _batch = Batch::begin();
    let bind = |path: &Path, plan: &ListenerPlan| {
        let bound = listener::bind_unix(path, suffix, &plan.access, plan.backlog_connections).ok()?;
        listener::publish(&bound, path, Expected::Free).ok();
        Some(bound)
    };
    orders.iter().filter_map(|(path, plan)| Some((((*path).to_owned(), suffix.to_owned()), bind(path, plan)?))).collect()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::model::endpoint::Endpoint;
    use crate::model::ids::PoolName;
    use crate::model::listen::{Access, Handover};

    #[test]
    fn each_path_is_bound_once_and_what_cannot_be_is_left_out() {
        let sandbox = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
        let plan = |name: &str| ListenerPlan {
            pool: PoolName::new("p"),
            endpoint: Endpoint::Unix(sandbox.path().join(name)),
            handover: Handover::Rename,
            access: Access { mode: 0o600, ..Access::default() },
            backlog_connections: 5,
            alias: "/p".to_owned(),
        };
        let mut plans: Vec<ListenerPlan> = (0..300).map(|number| plan(&format!("{number}.sock"))).collect();
        plans.extend([plan("7.sock"), plan("missing/x.sock"), plan("foreign.sock")]);
        let _foreign = std::os::unix::net::UnixListener::bind(sandbox.path().join("foreign.sock")).unwrap();
        plans.push(ListenerPlan { endpoint: Endpoint::Tcp(([127, 0, 0, 1], 9).into()), ..plan("tcp") });
        let mut ahead = Ahead::bind(plans.iter(), ".1");
        let names = || std::fs::read_dir(sandbox.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let temporary: Vec<String> = names().filter(|name| name.ends_with(".1")).collect();
        assert_eq!((names().count(), temporary), (302, vec!["foreign.sock.1".to_owned()]), "a taken path is left to its owner");
        let path = sandbox.path().join("299.sock");
        assert!(ahead.take(&path, ".2").is_none());
        let listener = ahead.take(&path, ".1").unwrap();
        assert_eq!(listener.bound, sandbox.path().join("299.sock.1").display().to_string());
        assert!(ahead.take(&path, ".1").is_none());
        assert!(ahead.take(&sandbox.path().join("missing/x.sock"), ".1").is_none());
        ahead.discard_rest();
        assert_eq!(
            names().collect::<BTreeSet<_>>(),
            ["299.sock".to_owned(), "foreign.sock".to_owned()].into(),
            "what was taken, and theirs"
        );
    }
}
