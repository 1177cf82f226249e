//! What a supervisor that is killed in a take-over leaves for the next one: whom it was taking over, and how.
//!
//! The next one shares the same sockets before it adopts and starts anything, and then goes through the steps again from the
//! second on: each may be done twice. Where the other master has gone in the meantime, only what it left is put in order.

use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;

use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use super::foreign::{Foreign, Process, Taken, Way};
use super::steps::Step;
use super::{Course, Stage, Takeover};
use crate::edge::units::Unit;
use crate::runtime::state::{self, boot_id};
use crate::runtime::supervisor::Supervisor;
use crate::sys::listener::FileId;

/// The version of the note.
const VERSION: u32 = 1;

/// One take-over.
#[derive(Debug, Serialize, Deserialize)]
struct Note {
    v: u32,
    boot: String,
    pid: i32,
    start_ticks: u64,
    config: PathBuf,
    unit: Option<String>,
    way: Way,
    sockets: Vec<Taken>,
    files: Vec<(PathBuf, FileId)>,
    links: Vec<(PathBuf, PathBuf)>,
}

impl Supervisor {
    fn note_path(&self) -> PathBuf {
        self.settings.runtime_directory.join("takeover.json")
    }

    /// Writes the note of the take-over under way. Without it a killed supervisor could leave a stopped master behind.
    pub(super) fn write_note(&self) -> Result<(), String> {
        let Some(course) = self.takeover.as_ref().and_then(|takeover| takeover.course.as_ref()) else { return Ok(()) };
        let foreign = &course.foreign;
        let note = Note {
            v: VERSION,
            boot: boot_id(),
            pid: foreign.process.pid.as_raw(),
            start_ticks: foreign.process.start_ticks,
            config: foreign.config.clone(),
            unit: foreign.unit.as_ref().map(|unit| unit.name().to_owned()),
            way: foreign.way,
            sockets: foreign.sockets.clone(),
            files: course.files.iter().map(|(path, file)| (path.clone(), *file)).collect(),
            links: course.links.clone(),
        };
        state::write(&self.note_path(), &note).map_err(|error| crate::runtime::chain(&error))
    }

    /// Removes the note.
    pub(super) fn drop_note(&self) {
        if let Err(error) = std::fs::remove_file(self.note_path())
            && error.kind() != std::io::ErrorKind::NotFound
        {
            tracing::warn!(error = %error, "note of the take-over was not removed");
        }
    }

    /// Takes up the take-over in which an earlier supervisor was killed. Called before anything is adopted or started.
    pub(in crate::runtime) fn recall_takeover(&mut self) {
        let note = state::read::<Note>(&self.note_path()).unwrap_or_else(|error| {
            tracing::warn!(error = %crate::runtime::chain(&error), "note of a take-over was not usable");
            None
        });
        let Some(note) = note.filter(|note| note.v == VERSION && note.boot == boot_id()) else {
            self.drop_note();
            return;
        };
        let process = Process::of(Pid::from_raw(note.pid)).ok().filter(|process| process.start_ticks == note.start_ticks);
        let unit = note.unit.as_deref().and_then(|name| Unit::new(&self.children, name).ok());
        let gone = process.is_none();
        let process = process.unwrap_or_else(|| Process::gone(Pid::from_raw(note.pid), note.start_ticks));
        let (config, sockets, way) = (note.config, note.sockets, note.way);
        let foreign = Rc::new(Foreign { process, config, sockets, unit, way, warnings: Vec::new() });
        let mut course = Course::new(Rc::clone(&foreign));
        course.files = note.files.into_iter().collect();
        course.links = note.links;
        tracing::warn!(pid = note.pid, gone, "take-over of an earlier supervisor goes on");
        while gone && !matches!(course.passage.order(), crate::core::passage::Order::Do(Step::Settle)) {
            course.passage.ended(Ok(()));
        }
        self.takeover = Some(Takeover { replies: None, began: self.now(), stage: Stage::Next, course: Some(course) });
        if !gone && foreign.way == Way::Same {
            let fetched = self.fetch(&foreign);
            if let Err(why) = &fetched {
                tracing::error!(why, "sockets of the other master were not fetched again");
            }
            self.first_ended(fetched);
        }
    }

    /// Shares again what was bound to take paths by rename: only our masters have it.
    pub(in crate::runtime) fn share_recalled(&mut self) {
        let Some(course) = self.takeover.as_ref().and_then(|takeover| takeover.course.as_ref()) else { return };
        let foreign = Rc::clone(&course.foreign);
        if foreign.way != Way::Rename || !foreign.process.lives() {
            return;
        }
        let mut missing = None;
        for taken in &foreign.sockets {
            let all = self.masters.values().flat_map(|master| &master.sockets);
            let found = all.filter(|held| held.plan.endpoint == taken.endpoint).map(|held| Arc::clone(&held.listener)).next();
            match found {
                Some(listener) => {
                    self.sockets.share_theirs(&taken.endpoint, &listener);
                    if let Some(course) = self.takeover.as_mut().and_then(|takeover| takeover.course.as_mut()) {
                        course.listeners.insert(taken.endpoint.clone(), listener);
                    }
                }
                None => missing = Some(taken.endpoint.clone()),
            }
        }
        self.first_ended(missing.map_or(Ok(()), |endpoint| Err(format!("the new socket for {endpoint} is lost"))));
    }

    fn first_ended(&mut self, result: Result<(), String>) {
        if let Some(course) = self.takeover.as_mut().and_then(|takeover| takeover.course.as_mut()) {
            course.passage.ended(result);
        }
    }

    /// Tells whether a step may begin: a take-over that was recalled waits until what was adopted is in order.
    pub(super) fn may_step(&self) -> bool {
        self.phase != crate::runtime::supervisor::Phase::Booting && self.fleet.job().is_none() && !self.tasks.is_reading()
    }
}
