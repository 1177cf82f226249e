//! Proving a new master before it takes traffic: it answers on its private sockets and passes its warm-up (P28).

use std::path::PathBuf;
use std::rc::Rc;

use super::blueprint::{Blueprint, StatusPoint};
use super::draft::{ENVIRONMENT_PART, LIMITS_PART};
use super::events::Event;
use super::fault;
use super::state::MasterState;
use super::supervisor::Supervisor;
use crate::edge::fastcgi;
use crate::edge::fpm::{self, Installation, Tool};
use crate::model::endpoint::Endpoint;
use crate::model::ids::MasterId;
use crate::model::pool::ProcessManager;
use crate::model::settings::Warmup;

/// How many pools of a master are asked: each question wakes a worker of that pool's user (P31), and a master that answers
/// for this many serves the others by the same loop. On-demand pools are left asleep (P32) where there are others.
const POOLS_ASKED: usize = 16;

impl Supervisor {
    /// Starts the proof of a master; its end is reported as an event.
    pub(super) fn prove(&mut self, id: &MasterId) {
        let timeout = self.settings.health.timeout;
        let events = self.events.clone();
        let id = id.clone();
        let Some(master) = self.masters.get_mut(&id) else { return };
        let mut questions: Vec<(StatusPoint, PathBuf)> =
            master.blueprint.status.iter().filter_map(|point| Some((point.clone(), master.status_of(&point.pool)?.to_owned()))).collect();
        let warmups: Vec<(Warmup, PathBuf)> = master
            .blueprint
            .warmups
            .iter()
            .filter_map(|warmup| {
                let point = questions.iter().find(|(point, _)| point.pool.as_str() == warmup.pool)?;
                Some((warmup.clone(), point.1.clone()))
            })
            .collect();
        let on_demand = |point: &StatusPoint| self.draft.plan.pool(&point.pool).is_some_and(|pool| pool.pm == ProcessManager::Ondemand);
        let awake = questions.iter().take_while(|(point, _)| !on_demand(point)).count();
        questions.truncate(awake.clamp(1, POOLS_ASKED));
        let replaces = self.fleet.shard(&id.shard).is_some_and(|shard| shard.serving().is_some());
        let php = self.settings.php.clone();
        let tool = replaces.then(|| Tool::new(self.children.clone(), php.clone(), fpm::environment(&php, std::env::vars_os())));
        let tolerated = self.tolerated.clone();
        let task = tokio::task::spawn_local(async move {
            fault::point("proof begun");
            let installation = match tool {
                Some(tool) => fpm::installation(&tool).await.ok(),
                None => None,
            };
            let fresh =
                installation.iter().flat_map(|installation| &installation.complaints).find(|complaint| !tolerated.contains(*complaint));
            let result = match fresh {
                // A master that starts without what the old one has is no successor.
                Some(complaint) => Err(format!("PHP says at its start: {complaint}")),
                None => prove(&questions, &warmups, timeout).await.map(|()| installation.map(Box::new)),
            };
            super::tell(&events, Event::Proven { master: id, result }).await;
        });
        master.tasks.push(task);
    }
}

impl Supervisor {
    /// Notes what a master that replaces another was loaded with: php.ini may have changed since the last reading, and the next
    /// one must not find the master changed for that.
    pub(super) fn loaded(&mut self, id: &MasterId, installation: Installation) {
        if let Some(master) = self.masters.get_mut(id)
            && let Some(fingerprint) = installation.renew(&master.blueprint.fingerprint, master.launched)
            && fingerprint != master.blueprint.fingerprint
        {
            let mut parts = installation.parts;
            let own = [ENVIRONMENT_PART, LIMITS_PART].into_iter().filter_map(|name| master.blueprint.parts.get_key_value(name));
            parts.extend(own.map(|(name, digest)| (name.clone(), digest.clone())));
            master.blueprint = Rc::new(Blueprint { fingerprint, parts, ..(*master.blueprint).clone() });
            let state = MasterState::of(id, master.pid, &master.sockets, &master.blueprint);
            let directory = master.directory.clone();
            let result = self.write_master(&directory, &state);
            self.note_written(directory.join("master.json"), result);
        }
        self.tolerated = installation.complaints;
    }
}

async fn prove(questions: &[(StatusPoint, PathBuf)], warmups: &[(Warmup, PathBuf)], timeout: std::time::Duration) -> Result<(), String> {
    for (point, path) in questions {
        let target = Endpoint::Unix(path.clone());
        if let Err(error) = fastcgi::ping(&target, &point.ping_path, &point.ping_response, timeout).await {
            return Err(format!("pool {} did not answer its ping: {}", point.pool, super::chain(&error)));
        }
    }
    for (warmup, path) in warmups {
        let target = Endpoint::Unix(path.clone());
        if let Err(error) = fastcgi::warm_up(&target, warmup).await {
            return Err(format!("warm-up of pool {} failed: {}", warmup.pool, super::chain(&error)));
        }
    }
    Ok(())
}
