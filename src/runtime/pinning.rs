//! Keeping masters on the CPUs of the plan, and the plan in line with the machine and with NGINX's workers.
//!
//! NGINX may be reloaded with another layout, a CPU may be unplugged, a cpuset changed. That is seen by a look every
//! [`LOOK_EVERY`], and believed when two looks agree, since NGINX's workers change one after the other. While each group keeps its
//! number of shards, living masters move as they are, workers included; a new number needs a new plan, as a reload makes it.

use std::collections::BTreeMap;
use std::rc::Rc;
use std::time::Duration;

use nix::unistd::Pid;

use super::blueprint::Blueprint;
use super::draft::Draft;
use super::state::MasterState;
use super::supervisor::{Phase, Supervisor};
use crate::core::plan;
use crate::model::cpus::CpuSet;
use crate::model::host::Host;
use crate::model::ids::{GroupName, MasterId, ShardId};
use crate::model::time::Moment;
use crate::sys::affinity;
use crate::sys::proc::Proc;

/// How often the layout is looked at: rarely, since nothing is wrong meanwhile but some cache misses.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How soon a change is looked at again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// What was last seen of the layout.
#[derive(Debug, Default)]
pub(super) struct LayoutBook {
    next: Moment,
    /// One that differs from the plan's and was seen once.
    changed: Option<Host>,
    /// Masters that could not be moved: told once.
    told: BTreeMap<MasterId, String>,
}

impl LayoutBook {
    /// Gives when the next look is due.
    pub(super) fn next_look(&self) -> Moment {
        self.next
    }
}

impl Supervisor {
    /// Looks whether machine and NGINX are as the plan was made for, and whether every master is where the plan has it.
    pub(super) fn look_at_layout(&mut self) {
        let now = self.now();
        self.layout.next = now.after(LOOK_EVERY);
        if self.phase != Phase::Running || self.job_view().is_some() {
            return;
        }
        let host = super::host::look_again(&self.draft);
        if super::host::same_layout(&host, &self.draft.host) {
            self.layout.changed = None;
            self.keep_pinned();
        } else if self.layout.changed.as_ref().is_some_and(|seen| super::host::same_layout(seen, &host)) {
            self.layout.changed = None;
            self.follow_layout(&host);
        } else {
            self.layout.changed = Some(host);
            self.layout.next = now.after(LOOK_AGAIN);
        }
    }

    fn follow_layout(&mut self, host: &Host) {
        let draft = Rc::clone(&self.draft);
        let laid: BTreeMap<&GroupName, Vec<Option<CpuSet>>> =
            draft.settings.groups.iter().map(|group| (&group.name, plan::lay_out(group, host).sets)).collect();
        let count = |group: &GroupName| draft.plan.shards.iter().filter(|shard| shard.id.group == *group).count();
        if laid.iter().any(|(group, sets)| sets.len() != count(group)) {
            tracing::info!("CPUs or NGINX's workers changed, and with them the number of shards: everything is read again");
            self.reload(None);
            return;
        }
        let set_of = |id: &ShardId| laid.get(&id.group)?.get(usize::from(id.index).checked_sub(1)?)?.clone();
        let mut draft = Draft { host: host.clone(), ..(*draft).clone() };
        for shard in &mut draft.plan.shards {
            shard.cpus = set_of(&shard.id);
        }
        for (id, blueprint) in &mut draft.blueprints {
            *blueprint = Rc::new(moved(blueprint, set_of(id)));
        }
        plan::redraw(&mut draft.plan, &draft.settings.groups, host);
        tracing::info!("CPUs or NGINX's workers changed: masters move");
        self.draft = Rc::new(draft);
        self.write_plan();
        self.snapshot_dirty = true;
        self.keep_pinned();
    }

    /// Moves every serving master that is not where the plan has it.
    pub(super) fn keep_pinned(&mut self) {
        let proc = Proc::default();
        let serving: Vec<MasterId> = self.fleet.shards().filter_map(|shard| Some(MasterId::new(shard.id(), shard.serving()?.0))).collect();
        for id in serving {
            let Some(planned) = self.draft.plan.shard(&id.shard).map(|shard| shard.cpus.clone()) else { continue };
            let Some((pid, known)) = self.masters.get(&id).and_then(|master| Some((master.pid?, master.blueprint.plan.cpus.clone())))
            else {
                continue;
            };
            let usable = &self.draft.host.topology.usable;
            let wanted = planned.clone().unwrap_or_else(|| usable.clone());
            let there = proc.cpus_allowed(pid).ok();
            // A master that shall run anywhere is only moved when it did not before.
            let moves = if planned.is_some() { there.as_ref() != Some(&wanted) } else { known.is_some() };
            if moves {
                self.move_master(&proc, &id, (pid, &wanted));
            }
            if known != planned {
                self.remember_cpus(&id, planned);
            }
        }
    }

    fn move_master(&mut self, proc: &Proc, id: &MasterId, (pid, wanted): (Pid, &CpuSet)) {
        // Twice: a worker that was being started at the first pass has the old mask.
        let result = (0..2).try_for_each(|_| {
            affinity::move_process(proc, pid, wanted)?;
            for worker in proc.children_of(pid).unwrap_or_default() {
                match affinity::move_process(proc, worker, wanted) {
                    Err(error) if error.raw_os_error() != Some(nix::libc::ESRCH) => return Err(error),
                    Ok(()) | Err(_) => {}
                }
            }
            Ok(())
        });
        let generation = id.generation.0;
        match result {
            Ok(()) => {
                self.layout.told.remove(id);
                tracing::info!(shard = %id.shard, gen = generation, cpus = %wanted, "master moved");
            }
            Err(error) => {
                let said = error.to_string();
                if self.layout.told.insert(id.clone(), said.clone()).as_ref() != Some(&said) {
                    tracing::warn!(shard = %id.shard, gen = generation, cpus = %wanted, error = %said, "master was not moved");
                }
            }
        }
        let masters = &self.masters;
        self.layout.told.retain(|id, _| masters.contains_key(id));
    }

    /// Notes where a master runs now; TCP connections are steered by it.
    fn remember_cpus(&mut self, id: &MasterId, cpus: Option<CpuSet>) {
        let Some(master) = self.masters.get_mut(id) else { return };
        master.blueprint = Rc::new(moved(&master.blueprint, cpus));
        let (blueprint, set, directory, pid) = (Rc::clone(&master.blueprint), master.sockets.clone(), master.directory.clone(), master.pid);
        if let Err(error) = self.write_master(&directory, &MasterState::of(id, pid, &set, &blueprint)) {
            tracing::warn!(shard = %id.shard, gen = id.generation.0, error = %super::chain(&error), "its CPUs are not known to a later supervisor");
        }
        self.good.insert(id.shard.clone(), blueprint);
        if let Err(error) = self.point_addresses(&set) {
            tracing::error!(shard = %id.shard, gen = id.generation.0, error = %super::chain(&error), "connections were not steered");
        }
    }
}

fn moved(blueprint: &Blueprint, cpus: Option<CpuSet>) -> Blueprint {
    let mut moved = blueprint.clone();
    moved.plan.cpus = cpus;
    moved
}
