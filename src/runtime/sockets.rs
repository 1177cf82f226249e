//! Every listening socket of the instance: which generation accepts on it, and what stands at each public path.
//!
//! A master's sockets are its [`SocketSet`]. The sets share listeners: a successor that starts on held sockets, and all
//! shards of a shared pool, have the same ones. A listener closes when the last set that has it is dropped, so a queue lives
//! as long as somebody may still serve it.
//!
//! `published` mirrors what polyfpm put at each public path. Before each change of a path the file there is compared with
//! it, so a path that somebody else took is left alone.

mod restore;
mod standing;
mod theirs;

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Weak};

use super::ahead::Ahead;
use super::fault;
use crate::model::cpus::CpuSet;
use crate::model::endpoint::Endpoint;
use crate::model::ids::{Generation, MasterId};
use crate::model::listen::{Handover, ListenerPlan};
use crate::sys::directory::Batch;
use crate::sys::listener::{self, BindError, Expected, FileId, Listener, PublishError};
use crate::sys::reuseport::{ReuseportGroup, SteerError, Waiting};

/// Says why a socket could not be had.
#[derive(Debug, thiserror::Error)]
pub(super) enum SocketError {
    /// It could not be bound.
    #[error("bind the listener of pool {pool} at {endpoint}")]
    Bind {
        /// The pool.
        pool: String,
        /// Where.
        endpoint: Endpoint,
        /// Why.
        source: BindError,
    },
    /// It could not take its public path.
    #[error("give {endpoint} to the new listener of pool {pool}")]
    Publish {
        /// The pool.
        pool: String,
        /// Where.
        endpoint: Endpoint,
        /// Why.
        source: PublishError,
    },
    /// Connections to its address could not be steered.
    #[error("steer connections of {endpoint}")]
    Steer {
        /// Where.
        endpoint: Endpoint,
        /// Why.
        source: SteerError,
    },
}

impl SocketError {
    /// Gives the pool whose listener cannot be had, where one is at fault.
    pub(super) fn pool(&self) -> Option<&str> {
        match self {
            Self::Bind { pool, .. } | Self::Publish { pool, .. } => Some(pool),
            Self::Steer { .. } => None,
        }
    }
}

/// One listener of one master.
#[derive(Debug, Clone)]
pub(super) struct Held {
    /// What it is for.
    pub plan: ListenerPlan,
    /// The socket.
    pub listener: Arc<Listener>,
    /// The master it was bound for, by which its reuseport group knows it.
    pub bound_for: MasterId,
}

/// The listeners of one master.
pub(super) type SocketSet = Vec<Held>;

#[derive(Debug)]
struct Published {
    /// Absent once it was closed while the path is lent.
    listener: Option<Arc<Listener>>,
    handover: Handover,
    /// The sibling's file that stands at the path while it is lent (design, rule 9).
    lent: Option<FileId>,
}

impl Published {
    /// Gives the file that stands at the path.
    fn file(&self) -> Option<FileId> {
        self.lent.or_else(|| self.listener.as_ref()?.file_id())
    }

    fn has(&self, listener: &Arc<Listener>) -> bool {
        self.listener.as_ref().is_some_and(|own| Arc::ptr_eq(own, listener))
    }

    /// Removes the temporary name of the listener.
    fn discard(&self) {
        if let Some(listener) = &self.listener {
            discard_listener(listener);
        }
    }
}

/// How a new listener comes to its endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Binding {
    /// Public at once: nobody serves, and what comes shall wait.
    AtOnce,
    /// Beside the public path until the master is proven; what several shards accept on is had as it stands.
    Beside,
    /// Beside the public path until all that come in together are proven; they have one listener in common where their
    /// predecessors had.
    Together,
}

/// Every listening socket.
#[derive(Debug, Default)]
pub(super) struct Sockets {
    published: BTreeMap<Endpoint, Published>,
    groups: BTreeMap<SocketAddr, ReuseportGroup<MasterId>>,
    retiring: BTreeSet<Endpoint>,
    /// The new listeners that those who come in together have in common.
    gathering: BTreeMap<Endpoint, Weak<Listener>>,
    /// Paths that an earlier supervisor lent, with the sibling's file that stands there.
    found_lent: BTreeMap<Endpoint, FileId>,
    /// Listeners that a php-fpm which is not ours accepts on too, while it is taken over.
    theirs: BTreeMap<Endpoint, Arc<Listener>>,
    /// Endpoints whose listeners nobody can reach any more: the next master brings new ones.
    lost: BTreeSet<Endpoint>,
    /// Counts changes of what stands where.
    changes: u64,
    /// Bound before anybody asked for them.
    ahead: Ahead,
}

impl Sockets {
    /// Gives a listener for `plan`: one that is held and fits, or a new one.
    ///
    /// # Errors
    /// It cannot be bound, published or steered; nothing is changed then but a listener that was published at once.
    pub(super) fn acquire(&mut self, master: &MasterId, plan: &ListenerPlan, held: &[Held], binding: Binding) -> Result<Held, SocketError> {
        if let Some(fitting) = self.fitting(master, plan, held, binding) {
            return Ok(fitting);
        }
        let acquired = match &plan.endpoint {
            Endpoint::Unix(path) => self.bind_unix(master, plan, path, binding),
            Endpoint::Tcp(address) => self.bind_tcp(master, plan, *address, binding),
        }?;
        if binding == Binding::Together && plan.handover == Handover::Share {
            self.gathering.insert(plan.endpoint.clone(), Arc::downgrade(&acquired.listener));
        }
        Ok(acquired)
    }

    /// Binds the unix listeners of the first masters of a start, all at once.
    pub(super) fn bind_ahead<'p>(&mut self, plans: impl Iterator<Item = &'p ListenerPlan>) {
        self.ahead = Ahead::bind(plans, &suffix_of(FIRST));
    }

    /// Removes what was bound ahead and not asked for.
    pub(super) fn end_ahead(&mut self) {
        std::mem::take(&mut self.ahead).discard_rest();
    }

    /// Forgets what those had in common who came in together, or were to: who does so next binds anew.
    pub(super) fn end_gathering(&mut self) {
        self.gathering.clear();
    }

    fn fitting(&self, master: &MasterId, plan: &ListenerPlan, held: &[Held], binding: Binding) -> Option<Held> {
        if let Some(listener) = self.theirs.get(&plan.endpoint) {
            return Some(Held { plan: plan.clone(), listener: Arc::clone(listener), bound_for: master.clone() });
        }
        let lost = self.lost.contains(&plan.endpoint);
        if plan.handover == Handover::Share {
            let listener = match binding {
                Binding::Together => self.gathering.get(&plan.endpoint)?.upgrade()?,
                Binding::AtOnce | Binding::Beside if lost => return None,
                Binding::AtOnce | Binding::Beside => {
                    let published = self.published.get(&plan.endpoint).filter(|published| published.handover == Handover::Share)?;
                    Arc::clone(published.listener.as_ref()?)
                }
            };
            return Some(Held { plan: plan.clone(), listener, bound_for: master.clone() });
        }
        let mine = held.iter().find(|held| held.plan.endpoint == plan.endpoint && held.plan.handover == plan.handover);
        mine.filter(|_| binding == Binding::AtOnce && !lost).map(|held| Held { plan: plan.clone(), ..held.clone() })
    }

    fn bind_unix(&mut self, master: &MasterId, plan: &ListenerPlan, path: &Path, binding: Binding) -> Result<Held, SocketError> {
        let suffix = match (binding, plan.handover) {
            // Shards count their generations each for itself, and the path is that of all of them.
            (Binding::Together, Handover::Share) => format!(".{}-{:x}", master.shard.index, master.generation.0),
            _ => suffix_of(master.generation),
        };
        let listener = match self.ahead.take(path, &suffix) {
            Some(listener) => listener,
            None => {
                listener::bind_unix(path, &suffix, &plan.access, plan.backlog_connections).map_err(|source| bind_error(plan, source))?
            }
        };
        let held = Held { plan: plan.clone(), listener: Arc::new(listener), bound_for: master.clone() };
        if binding == Binding::AtOnce
            && let Err(error) = self.publish(&held)
        {
            discard(&held);
            return Err(error);
        }
        Ok(held)
    }

    fn bind_tcp(&mut self, master: &MasterId, plan: &ListenerPlan, address: SocketAddr, binding: Binding) -> Result<Held, SocketError> {
        let group = self.groups.entry(address).or_default();
        let listener = listener::bind_tcp(address, plan.backlog_connections, group.joining()).map_err(|source| bind_error(plan, source))?;
        let listener = Arc::new(listener);
        let steer = |source| SocketError::Steer { endpoint: plan.endpoint.clone(), source };
        group.join(master.clone(), &listener).map_err(steer)?;
        let held = Held { plan: plan.clone(), listener, bound_for: master.clone() };
        if binding == Binding::AtOnce && !self.published.contains_key(&plan.endpoint) {
            self.publish(&held)?;
        }
        Ok(held)
    }

    /// Puts a listener at its public endpoint. For TCP the caller points the group afterwards with [`Sockets::point`].
    fn publish(&mut self, held: &Held) -> Result<(), SocketError> {
        if let Endpoint::Unix(path) = &held.plan.endpoint {
            let expected = self.expected(&held.plan.endpoint);
            listener::publish(&held.listener, path, expected).map_err(|source| publish_error(&held.plan, source))?;
        }
        self.changes += 1;
        self.lost.remove(&held.plan.endpoint);
        self.retiring.remove(&held.plan.endpoint);
        self.found_lent.remove(&held.plan.endpoint);
        let published = Published { listener: Some(Arc::clone(&held.listener)), handover: held.plan.handover, lent: None };
        self.published.insert(held.plan.endpoint.clone(), published);
        Ok(())
    }

    fn expected(&self, endpoint: &Endpoint) -> Expected {
        let standing = self.published.get(endpoint).and_then(Published::file);
        let standing = standing.or_else(|| self.found_lent.get(endpoint).copied());
        standing.map_or(Expected::Free, Expected::Ours)
    }

    /// Lets the listeners of a proven master take their public paths, all or none.
    ///
    /// # Errors
    /// One path cannot be taken; those taken before it are given back.
    pub(super) fn switch(&mut self, set: &[Held]) -> Result<(), SocketError> {
        let _batch = Batch::begin();
        let fresh: Vec<&Held> = set.iter().filter(|held| !self.is_public(held)).collect();
        let mut taken: Vec<(&Held, Option<Published>)> = Vec::new();
        for held in fresh {
            let before = self.keep_aside(held);
            fault::point("old path kept aside");
            match self.publish(held) {
                Ok(()) => {
                    fault::point("path taken");
                    taken.push((held, before));
                }
                Err(error) => {
                    if let Some(before) = before {
                        before.discard();
                        self.published.insert(held.plan.endpoint.clone(), before);
                    }
                    self.give_back(taken);
                    return Err(error);
                }
            }
        }
        for (_, before) in &taken {
            if let Some(before) = before {
                before.discard();
                fault::point("old name removed");
            }
        }
        Ok(())
    }

    /// Links the file that stands at a path to its temporary name, so that it can come back.
    fn keep_aside(&mut self, held: &Held) -> Option<Published> {
        let before = self.published.get(&held.plan.endpoint)?;
        let before = Published { listener: before.listener.clone(), handover: before.handover, lent: before.lent };
        if let Endpoint::Unix(path) = &held.plan.endpoint
            && before.lent.is_none()
            && let Some(listener) = &before.listener
            && let Err(error) = listener::keep_aside(listener, path)
        {
            tracing::debug!(endpoint = %held.plan.endpoint, error = %error, "old listener was not kept aside");
        }
        Some(before)
    }

    fn give_back(&mut self, taken: Vec<(&Held, Option<Published>)>) {
        self.changes += 1;
        for (held, before) in taken.into_iter().rev() {
            let Endpoint::Unix(path) = &held.plan.endpoint else { continue };
            match before {
                Some(before) => {
                    let expected = held.listener.file_id().map_or(Expected::Free, Expected::Ours);
                    if let Some(listener) = &before.listener
                        && let Err(error) = listener::publish(listener, path, expected)
                    {
                        tracing::error!(endpoint = %held.plan.endpoint, error = %error, "path was not given back");
                    }
                    self.published.insert(held.plan.endpoint.clone(), before);
                }
                None => self.unpublish(&held.plan.endpoint),
            }
        }
    }

    /// Tells whether clients that connect now reach this listener.
    pub(super) fn is_public(&self, held: &Held) -> bool {
        self.published.get(&held.plan.endpoint).is_some_and(|published| published.has(&held.listener) && published.lent.is_none())
            || self.is_steered_to(held)
    }

    fn is_steered_to(&self, held: &Held) -> bool {
        let Endpoint::Tcp(address) = &held.plan.endpoint else { return false };
        self.published.contains_key(&held.plan.endpoint)
            && self.groups.get(address).is_some_and(|group| group.is_pointed_at(&held.bound_for))
    }

    /// Steers a TCP address: connections of a CPU that one shard alone runs on to its listener, all others to any.
    ///
    /// # Errors
    /// The kernel refuses the program; connections go where they went.
    pub(super) fn point(&mut self, address: SocketAddr, targets: &[(Option<CpuSet>, Held)]) -> Result<(), SocketError> {
        let Some((_, first)) = targets.first() else { return Ok(()) };
        let Some(group) = self.groups.get_mut(&address) else { return Ok(()) };
        let all: Vec<MasterId> = targets.iter().map(|(_, held)| held.bound_for.clone()).collect();
        let steer = |source| SocketError::Steer { endpoint: Endpoint::Tcp(address), source };
        group.point(&steering_table(targets), &all).map_err(steer)?;
        fault::point("address steered");
        let published = Published { listener: Some(Arc::clone(&first.listener)), handover: Handover::Steer, lent: None };
        self.published.insert(Endpoint::Tcp(address), published);
        self.retiring.remove(&Endpoint::Tcp(address));
        Ok(())
    }

    /// Takes an endpoint out of use: who connects now is refused, who waits is served by whoever holds the listener.
    pub(super) fn unpublish(&mut self, endpoint: &Endpoint) {
        self.changes += 1;
        self.lost.remove(endpoint);
        self.retiring.remove(endpoint);
        let published = self.published.remove(endpoint);
        if let Some(published) = published.as_ref().filter(|published| published.lent.is_some()) {
            // Its own file was kept aside for the day it takes the path back.
            published.discard();
        }
        let found_lent = self.found_lent.remove(endpoint);
        if self.theirs.contains_key(endpoint) {
            return;
        }
        if let (Endpoint::Unix(path), Some(file)) = (endpoint, published.as_ref().and_then(Published::file).or(found_lent))
            && let Err(error) = listener::unpublish(path, file)
        {
            tracing::warn!(endpoint = %endpoint, error = %error, "socket file was not removed");
        }
    }

    /// Gives the listener at each public endpoint.
    pub(super) fn listeners(&self) -> impl Iterator<Item = &Arc<Listener>> {
        self.published.values().filter_map(|published| published.listener.as_ref())
    }

    /// Gives every reuseport group with its members in the kernel's order.
    pub(super) fn groups(&self) -> impl Iterator<Item = (SocketAddr, Vec<MasterId>)> + '_ {
        self.groups.iter().map(|(address, group)| (*address, group.members().cloned().collect()))
    }

    /// Gives the path of a shard without a master to a living sibling (design, rule 9).
    ///
    /// # Errors
    /// The link cannot be made; the path is as it was.
    pub(super) fn lend(&mut self, dead: &ListenerPlan, living: &Held) -> Result<(), SocketError> {
        let (Endpoint::Unix(dead_path), Endpoint::Unix(living_path)) = (&dead.endpoint, &living.plan.endpoint) else { return Ok(()) };
        let Some(file) = living.listener.file_id() else { return Ok(()) };
        let expected = self.expected(&dead.endpoint);
        let error = |source| publish_error(dead, source);
        if self.theirs.contains_key(&dead.endpoint) {
            return Ok(());
        }
        let published = self.published.get_mut(&dead.endpoint);
        match &published {
            None if !self.found_lent.contains_key(&dead.endpoint) => return Ok(()),
            Some(Published { lent: None, listener: Some(listener), .. }) => listener::keep_aside(listener, dead_path).map_err(error)?,
            None | Some(_) => {}
        }
        listener::lend(living_path, file, dead_path, expected).map_err(error)?;
        self.changes += 1;
        match published {
            Some(published) => published.lent = Some(file),
            None => drop(self.found_lent.insert(dead.endpoint.clone(), file)),
        }
        Ok(())
    }

    /// Takes lent paths back.
    ///
    /// # Errors
    /// A path cannot be taken back; the sibling goes on serving it.
    pub(super) fn take_back(&mut self, set: &[Held]) -> Result<(), SocketError> {
        for held in set {
            let lent = self.published.get(&held.plan.endpoint).is_some_and(|published| published.lent.is_some());
            if lent {
                self.publish(held)?;
            }
        }
        Ok(())
    }

    /// Leaves lent paths to the siblings: their own listeners are about to be closed.
    pub(super) fn forget_lent(&mut self, set: &[Held]) {
        for held in set {
            if let Some(published) = self.published.get_mut(&held.plan.endpoint).filter(|published| published.has(&held.listener)) {
                published.listener = None;
            }
            discard(held);
        }
    }

    /// Closes what is kept of a master's sockets that no other set shares.
    pub(super) fn release(&mut self, set: SocketSet) {
        let _batch = Batch::begin();
        for held in set {
            let public = self.is_public(&held);
            if public || self.is_theirs(&held.listener) || Arc::strong_count(&held.listener) > 1 {
                continue;
            }
            match &held.plan.endpoint {
                Endpoint::Unix(_) => discard(&held),
                Endpoint::Tcp(address) => self.leave_group(*address, &held),
            }
            fault::point("old listener released");
        }
        self.groups.retain(|_, group| group.members().next().is_some());
    }

    /// Takes a listener nobody serves any more out of its group; a connection that still waits there would wait for ever.
    fn leave_group(&mut self, address: SocketAddr, held: &Held) {
        let Some(group) = self.groups.get_mut(&address) else { return };
        if let Err(error) = group.retire(&held.bound_for, Waiting::Reset) {
            tracing::warn!(endpoint = %held.plan.endpoint, error = %error, "listener did not leave its group");
        }
    }
}

/// The generation of each shard's first master.
const FIRST: Generation = Generation(1);

fn suffix_of(generation: Generation) -> String {
    format!(".{:x}", generation.0)
}

/// Gives the CPUs that belong to one master alone. A CPU of two would starve one of them, and a shard that is not pinned has none.
fn steering_table(targets: &[(Option<CpuSet>, Held)]) -> BTreeMap<u32, MasterId> {
    let mut owners: BTreeMap<u32, Vec<&MasterId>> = BTreeMap::new();
    for (cpus, held) in targets {
        for cpu in cpus.iter().flat_map(CpuSet::iter) {
            owners.entry(cpu).or_default().push(&held.bound_for);
        }
    }
    owners.into_iter().filter_map(|(cpu, owners)| if let [owner] = owners[..] { Some((cpu, owner.clone())) } else { None }).collect()
}

/// Removes the temporary file of a listener that never became public.
fn discard(held: &Held) {
    discard_listener(&held.listener);
}

pub(super) fn discard_listener(listener: &Listener) {
    if let Err(error) = listener.discard() {
        tracing::debug!(listener = %listener.bound, error = %error, "temporary socket file was not removed");
    }
}

fn bind_error(plan: &ListenerPlan, source: BindError) -> SocketError {
    SocketError::Bind { pool: plan.pool.to_string(), endpoint: plan.endpoint.clone(), source }
}

fn publish_error(plan: &ListenerPlan, source: PublishError) -> SocketError {
    SocketError::Publish { pool: plan.pool.to_string(), endpoint: plan.endpoint.clone(), source }
}
