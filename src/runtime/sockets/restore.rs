//! What an earlier supervisor left at public endpoints.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;

use super::{Held, Published, Sockets};
use crate::model::ids::MasterId;
use crate::sys::listener::FileId;
use crate::sys::reuseport::ReuseportGroup;

impl Sockets {
    /// Notes that a listener stands at its public endpoint, as an earlier supervisor left it.
    pub(in crate::runtime) fn restore(&mut self, held: &Held) {
        self.changes += 1;
        let published = Published { listener: Some(Arc::clone(&held.listener)), handover: held.plan.handover, lent: None };
        self.published.entry(held.plan.endpoint.clone()).or_insert(published);
    }

    /// Notes that a sibling's file stands at the path of a listener that is held, as an earlier supervisor left it.
    pub(in crate::runtime) fn restore_lent_by(&mut self, held: &Held, file: FileId) {
        self.changes += 1;
        let published = Published { listener: Some(Arc::clone(&held.listener)), handover: held.plan.handover, lent: Some(file) };
        self.published.entry(held.plan.endpoint.clone()).or_insert(published);
    }

    /// Restores a reuseport group from its members in the kernel's order.
    pub(in crate::runtime) fn restore_group(&mut self, address: SocketAddr, members: Vec<(MasterId, Arc<OwnedFd>)>) {
        self.groups.insert(address, ReuseportGroup::restore(members));
    }
}
