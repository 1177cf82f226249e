//! What should stand at the public paths, and what can no longer be reached there.

use super::{Held, Sockets};
use crate::model::endpoint::Endpoint;
use crate::sys::listener::FileId;

impl Sockets {
    /// Gives every unix path of ours with the file that should stand there.
    pub(in crate::runtime) fn public_files(&self) -> Vec<(Endpoint, FileId)> {
        let published = self.published.iter().filter_map(|(endpoint, published)| Some((endpoint, published.file()?)));
        let lent = self.found_lent.iter().map(|(endpoint, file)| (endpoint, *file));
        // The files of another php-fpm's sockets are its own.
        let all = published.chain(lent).filter(|(endpoint, _)| !self.theirs.contains_key(*endpoint));
        all.filter(|(endpoint, _)| endpoint.path().is_some()).map(|(endpoint, file)| (endpoint.clone(), file)).collect()
    }

    /// Counts changes of what [`public_files`](Self::public_files) gives.
    pub(in crate::runtime) fn changes(&self) -> u64 {
        self.changes
    }

    /// Notes that nobody can reach the listener of an endpoint any more: a master that starts is given a new one.
    pub(in crate::runtime) fn lose(&mut self, endpoint: &Endpoint) {
        self.lost.insert(endpoint.clone());
    }

    /// Tells whether an endpoint waits for a new listener.
    pub(in crate::runtime) fn is_lost(&self, endpoint: &Endpoint) -> bool {
        self.lost.contains(endpoint)
    }

    /// Gives every public endpoint.
    pub(in crate::runtime) fn endpoints(&self) -> Vec<Endpoint> {
        self.published.keys().chain(self.found_lent.keys()).cloned().collect()
    }

    /// Notes that a sibling's file stands at the path of a shard without a master, as an earlier supervisor left it.
    pub(in crate::runtime) fn restore_lent(&mut self, endpoint: &Endpoint, file: FileId) {
        if !self.published.contains_key(endpoint) {
            self.changes += 1;
            self.found_lent.insert(endpoint.clone(), file);
        }
    }

    /// Marks an endpoint that the plan no longer has: it goes when NGINX no longer names it.
    pub(in crate::runtime) fn retire_later(&mut self, endpoint: &Endpoint) {
        if self.published.contains_key(endpoint) {
            self.retiring.insert(endpoint.clone());
        }
    }

    /// Takes every marked endpoint out of use.
    pub(in crate::runtime) fn retire_marked(&mut self) {
        for endpoint in std::mem::take(&mut self.retiring) {
            self.unpublish(&endpoint);
        }
    }

    /// Tells whether the path of a listener is lent to a sibling.
    pub(in crate::runtime) fn is_lent(&self, held: &Held) -> bool {
        self.published.get(&held.plan.endpoint).is_some_and(|published| published.lent.is_some())
    }

    /// Tells whether a path is lent to this listener of a sibling.
    pub(in crate::runtime) fn is_lent_to(&self, endpoint: &Endpoint, living: &Held) -> bool {
        let lent = self.published.get(endpoint).and_then(|published| published.lent).or_else(|| self.found_lent.get(endpoint).copied());
        lent.is_some() && lent == living.listener.file_id()
    }
}
