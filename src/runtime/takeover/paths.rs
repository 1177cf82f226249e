//! What a take-over does with sockets and their files.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use super::foreign::{Foreign, Taken, Way, backlog_for};
use crate::model::endpoint::Endpoint;
use crate::runtime::chain;
use crate::runtime::supervisor::Supervisor;
use crate::sys::listener::{self, Expected, FileId, Listener};
use crate::sys::users;

/// The temporary name of a new listener of ours, and the second name of a socket of theirs, beside the public path. Generations
/// are numbered without leading zeros, so neither is ever one's; both are swept like one.
const OURS: &str = ".00";
const THEIRS: &str = ".01";

impl Supervisor {
    /// Takes copies of the master's sockets, or binds new ones beside them, for our masters to accept on.
    pub(super) fn fetch(&mut self, foreign: &Foreign) -> Result<(), String> {
        for taken in &foreign.sockets {
            let (listener, file) = self.fetch_one(foreign, taken).map_err(|why| format!("socket {}: {why}", taken.endpoint))?;
            let listener = Arc::new(listener);
            self.sockets.share_theirs(&taken.endpoint, &listener);
            let Some(course) = self.takeover.as_mut().and_then(|takeover| takeover.course.as_mut()) else { return Ok(()) };
            course.listeners.insert(taken.endpoint.clone(), listener);
            if let (Endpoint::Unix(path), Some(file)) = (&taken.endpoint, file) {
                course.files.insert(path.clone(), file);
                course.links.extend(links_to(path));
            }
        }
        Ok(())
    }

    fn fetch_one(&self, foreign: &Foreign, taken: &Taken) -> Result<(Listener, Option<FileId>), String> {
        let backlog = backlog_for(&self.settings, taken);
        let file = match &taken.endpoint {
            Endpoint::Unix(path) => Some(listener::file_id(path).map_err(|error| error.to_string())?.ok_or("its file is gone")?),
            Endpoint::Tcp(_) => None,
        };
        let (Way::Same, Some(fd)) = (foreign.way, taken.fd) else {
            let path = taken.endpoint.path().ok_or("an address cannot be renamed")?;
            let pool = self.draft.files.pools.iter().find(|pool| pool.name == taken.pool).ok_or("its pool is gone")?;
            let access = users::access(&pool.listen_names).map_err(|errors| errors.iter().map(|error| chain(error)).collect::<String>())?;
            let ours = listener::bind_unix(path, OURS, &access, backlog).map_err(|error| chain(&error))?;
            return Ok((ours, file));
        };
        let socket = foreign.process.fetch(fd).map_err(|error| error.to_string())?;
        let aside = taken.endpoint.path().map(|path| beside(path, THEIRS));
        let listener = Listener::adopt(socket, aside.as_deref().zip(file)).map_err(|error| error.to_string())?;
        if listener.inode != taken.inode {
            return Err("it was replaced while it was being fetched".to_owned());
        }
        listener::set_backlog(&listener, backlog).map_err(|error| error.to_string())?;
        if let Some(path) = taken.endpoint.path() {
            // The master removes the path when somebody tells it to stop: with a second name it can be given back.
            listener::keep_aside(&listener, path).map_err(|error| chain(&error))?;
        }
        Ok((listener, file))
    }

    /// Lets our new sockets take the paths of theirs.
    pub(super) fn rename(&self) -> Result<(), String> {
        let Some(course) = self.takeover.as_ref().and_then(|takeover| takeover.course.as_ref()) else { return Ok(()) };
        for (path, file) in &course.files {
            let Some(listener) = course.listeners.get(&Endpoint::Unix(path.clone())) else { continue };
            if listener::still_ours(path, *file) {
                listener::lend(path, *file, &beside(path, THEIRS), Expected::Ours(*file)).map_err(|error| chain(&error))?;
            }
            listener::publish(listener, path, Expected::Ours(*file)).map_err(|error| chain(&error))?;
        }
        Ok(())
    }

    /// Gives the paths back that our new sockets took.
    pub(super) fn rename_back(&self) -> Result<(), String> {
        let Some(course) = self.takeover.as_ref().and_then(|takeover| takeover.course.as_ref()) else { return Ok(()) };
        let mut result = Ok(());
        for (path, file) in course.files.iter().filter(|_| course.foreign.way == Way::Rename) {
            let ours = course.listeners.get(&Endpoint::Unix(path.clone())).and_then(|listener| listener.file_id());
            if ours.is_some_and(|ours| listener::still_ours(path, ours)) {
                let expected = ours.map_or(Expected::Free, Expected::Ours);
                let back = listener::lend(&beside(path, THEIRS), *file, path, expected);
                result = result.and(back.map_err(|error| chain(&error)));
            }
        }
        result
    }

    /// Gives a path back that the master, told to stop by somebody else, has removed.
    pub(super) fn restore_vanished(&self) -> Result<(), String> {
        let Some(course) = self.takeover.as_ref().and_then(|takeover| takeover.course.as_ref()) else { return Ok(()) };
        let mut result = Ok(());
        for (path, file) in course.files.iter().filter(|_| course.foreign.way == Way::Same) {
            if listener::file_id(path).is_ok_and(|standing| standing.is_none()) {
                let back = listener::lend(&beside(path, THEIRS), *file, path, Expected::Free);
                result = result.and(back.map_err(|error| chain(&error)));
            }
        }
        self.put_away();
        result
    }

    /// Removes the second names of sockets.
    pub(super) fn put_away(&self) {
        let Some(course) = self.takeover.as_ref().and_then(|takeover| takeover.course.as_ref()) else { return };
        for (path, file) in &course.files {
            let mut names = vec![(beside(path, THEIRS), *file)];
            let ours = course.listeners.get(&Endpoint::Unix(path.clone())).and_then(|listener| listener.file_id());
            names.extend(ours.map(|ours| (beside(path, OURS), ours)));
            for (name, file) in names {
                if let Err(error) = listener::unpublish(&name, file) {
                    tracing::warn!(path = %name.display(), error = %error, "second name of a socket was not removed");
                }
            }
        }
    }
}

fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

/// How many links one may lead through. Debian's leads through one more, below `/etc/alternatives`, which its unit removes.
const LINKS: usize = 8;

/// Finds links in a socket's directory that lead to it, and those they lead through, with what each says.
fn links_to(path: &Path) -> Vec<(PathBuf, PathBuf)> {
    let entries = path.parent().and_then(|directory| std::fs::read_dir(directory).ok()).into_iter().flatten().flatten();
    let links = entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_symlink())).map(|entry| entry.path());
    let leads = links.filter(|link| std::fs::canonicalize(link).is_ok_and(|end| end == path));
    leads.flat_map(chain_of).collect()
}

/// Gives a link and those it leads through, with what each says.
fn chain_of(link: PathBuf) -> Vec<(PathBuf, PathBuf)> {
    let mut chain = Vec::new();
    let mut at = link;
    while let Some(target) = std::fs::read_link(&at).ok().filter(|_| chain.len() < LINKS) {
        let next = at.parent().unwrap_or(Path::new("/")).join(&target);
        chain.push((std::mem::replace(&mut at, next), target));
    }
    chain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn links_are_found_with_those_they_lead_through() {
        let directory = tempfile::tempdir().unwrap();
        let root = std::fs::canonicalize(directory.path()).unwrap();
        let at = |name: &str| root.join(name);
        std::fs::create_dir_all(at("run")).unwrap();
        std::fs::create_dir_all(at("etc")).unwrap();
        std::fs::write(at("run/php8.sock"), "").unwrap();
        let link = |target: &Path, name: &str| std::os::unix::fs::symlink(target, at(name)).unwrap();
        link(&at("run/php8.sock"), "etc/php.sock");
        link(&at("etc/php.sock"), "run/php.sock");
        link(&at("etc"), "run/other");
        link(Path::new("run.sock"), "run/run.sock");
        let found = links_to(&at("run/php8.sock"));
        assert_eq!(found, [(at("run/php.sock"), at("etc/php.sock")), (at("etc/php.sock"), at("run/php8.sock"))]);
    }
}
