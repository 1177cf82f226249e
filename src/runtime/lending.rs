//! Paths of shards without a master, given to living siblings and taken back (design, rule 9).
//!
//! A lent path is a second name of the sibling's socket file. The sibling's own handover makes that file an old one, so
//! whenever a master begins to serve, every lent path is looked at again.

use std::sync::Arc;

use super::sockets::{Held, SocketError, SocketSet};
use super::supervisor::Supervisor;
use crate::core::shard::{Shard, Slot, Wanted};
use crate::model::endpoint::Endpoint;
use crate::model::ids::ShardId;
use crate::model::listen::ListenerPlan;
use crate::model::plan::Routing;

impl Supervisor {
    /// Gives the paths of a shard without a master to living siblings.
    pub(super) fn lend(&mut self, id: &ShardId) {
        for dead in self.plans_of(id) {
            let split = self.draft.plan.pool(&dead.pool).is_some_and(|pool| pool.routing == Routing::Split);
            let siblings = if split { self.siblings_of(id, &dead) } else { Vec::new() };
            if siblings.iter().any(|living| self.sockets.is_lent_to(&dead.endpoint, living)) {
                continue;
            }
            let Some(living) = siblings.first() else { continue };
            match self.sockets.lend(&dead, living) {
                Ok(()) => tracing::info!(shard = %id, endpoint = %dead.endpoint, to = %living.plan.endpoint, "path lent to a sibling"),
                Err(error) => tracing::warn!(shard = %id, error = %super::chain(&error), "path was not lent"),
            }
        }
        let held = self.held.get(id).cloned().unwrap_or_default();
        let steered: SocketSet = held.into_iter().filter(|held| matches!(held.plan.endpoint, Endpoint::Tcp(_))).collect();
        if self.is_down(id)
            && let Err(error) = self.point_to_others(id, &steered)
        {
            tracing::warn!(shard = %id, error = %super::chain(&error), "connections were not steered away");
        }
    }

    /// Lends every path of a shard that is down again: a master that begins to serve may be the first that can take it, or
    /// the successor of the one that had it.
    pub(super) fn lend_anew(&mut self) {
        let is_lender = |shard: &&Shard| match shard.slot() {
            Slot::Pausing { .. } => true,
            Slot::Empty => shard.wanted() == Wanted::Parked || shard.is_halted(),
            Slot::Starting(_) | Slot::Serving { .. } | Slot::HandingOver { .. } => false,
        };
        let down: Vec<ShardId> = self.fleet.shards().filter(is_lender).map(|shard| shard.id().clone()).collect();
        for id in down {
            self.lend(&id);
        }
    }

    /// Gives the listeners a shard has, held or closed.
    fn plans_of(&self, id: &ShardId) -> Vec<ListenerPlan> {
        let mut plans: Vec<ListenerPlan> = self.held.get(id).into_iter().flatten().map(|held| held.plan.clone()).collect();
        let planned = self.draft.plan.shard(id).into_iter().flat_map(|shard| &shard.placements).map(|placement| &placement.listener);
        for plan in planned {
            if !plans.iter().any(|known| known.endpoint == plan.endpoint) {
                plans.push(plan.clone());
            }
        }
        plans
    }

    fn point_to_others(&mut self, id: &ShardId, set: &SocketSet) -> Result<(), SocketError> {
        for held in set {
            let other = self.held.iter().filter(|(other, _)| *other != id && !self.is_down(other));
            let theirs = other.flat_map(|(_, set)| set).find(|theirs| theirs.plan.endpoint == held.plan.endpoint).cloned();
            if let Some(theirs) = theirs {
                self.point_addresses(&vec![theirs])?;
            }
        }
        Ok(())
    }

    fn siblings_of(&self, id: &ShardId, dead: &ListenerPlan) -> Vec<Held> {
        self.held
            .iter()
            .filter(|(other, _)| *other != id && self.fleet.shard(other).is_some_and(|shard| shard.serving().is_some()))
            .flat_map(|(_, set)| set)
            .filter(|held| held.plan.pool == dead.pool && matches!(held.plan.endpoint, Endpoint::Unix(_)) && self.sockets.is_public(held))
            .cloned()
            .collect()
    }

    pub(super) fn take_back(&mut self, id: &ShardId) {
        let Some(set) = self.held.get(id).cloned() else { return };
        let result = self.sockets.take_back(&set).and_then(|()| self.point_addresses(&set));
        if let Err(error) = result {
            tracing::error!(shard = %id, error = %super::chain(&error), "lent path was not taken back");
        }
    }

    /// Closes the listeners of a halted shard at which nobody arrives any more: what waits there would wait for ever.
    pub(super) fn close_held(&mut self, id: &ShardId) {
        let lent = self.given_away(id);
        let Some(set) = self.held.get_mut(id) else { return };
        let stays = |held: &Held| !lent.iter().any(|lent| Arc::ptr_eq(&lent.listener, &held.listener));
        set.retain(stays);
        // What is left of earlier generations does not accept there, or it would not be closed.
        for master in self.masters.values_mut().filter(|master| master.id.shard == *id) {
            master.sockets.retain(stays);
        }
        self.sockets.forget_lent(&lent);
        self.sockets.release(lent);
    }
}
