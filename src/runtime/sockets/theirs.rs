//! Listeners that another php-fpm accepts on too, for as long as it is being taken over.
//!
//! Whoever needs a listener for such an endpoint gets just this one, and the file at its path is never removed or given
//! away: until the other has left, it is the other's.

use std::sync::Arc;

use super::{Published, Sockets};
use crate::model::endpoint::Endpoint;
use crate::model::listen::Handover;
use crate::sys::listener::Listener;

impl Sockets {
    /// Shares an endpoint with the php-fpm that has it.
    pub(in crate::runtime) fn share_theirs(&mut self, endpoint: &Endpoint, listener: &Arc<Listener>) {
        self.changes += 1;
        self.theirs.insert(endpoint.clone(), Arc::clone(listener));
        let published = Published { listener: Some(Arc::clone(listener)), handover: Handover::Share, lent: None };
        self.published.insert(endpoint.clone(), published);
    }

    /// Keeps what was shared: the other has left. `handover` says how each passes on from here.
    pub(in crate::runtime) fn keep_theirs(&mut self, handover: impl Fn(&Endpoint) -> Option<Handover>) {
        self.changes += 1;
        for endpoint in std::mem::take(&mut self.theirs).into_keys() {
            if let (Some(published), Some(handover)) = (self.published.get_mut(&endpoint), handover(&endpoint)) {
                published.handover = handover;
            }
        }
    }

    /// Gives back what was shared: the other goes on alone.
    pub(in crate::runtime) fn leave_theirs(&mut self) {
        self.changes += 1;
        for (endpoint, listener) in std::mem::take(&mut self.theirs) {
            if self.published.get(&endpoint).is_some_and(|published| published.has(&listener)) {
                self.published.remove(&endpoint);
            }
            self.retiring.remove(&endpoint);
        }
    }

    /// Finds a shared listener by its socket's inode.
    pub(in crate::runtime) fn theirs_by_inode(&self, inode: u64) -> Option<&Arc<Listener>> {
        self.theirs.values().find(|listener| listener.inode == inode)
    }

    /// Tells whether a listener is shared.
    pub(in crate::runtime) fn is_theirs(&self, listener: &Arc<Listener>) -> bool {
        self.theirs.values().any(|theirs| Arc::ptr_eq(theirs, listener))
    }
}
