//! The include as a transaction: written, tested with everything else, reloaded, verified, or put back.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use super::command::{self, Verdict};
use super::file::{Content, FileError, IncludeFile};
use super::processes::{Process, age_seconds, workers_beside};
use super::reload::{Reload, reload};
use super::state::{NginxState, Running, canonical, running};
use crate::model::endpoint::Endpoint;
use crate::model::problem::Place;
use crate::model::settings::Nginx;
use crate::sys::children::Children;
use crate::text::nginx::{Config, KeptUpstream, TestFailure, generated_for, kept_upstream, upstreams_of, with_kept};

/// What the include shall hold.
#[derive(Debug, Clone, Copy)]
pub struct Wanted<'a> {
    /// The include's text.
    pub text: &'a str,
    /// Where upstreams lead that no pool has any more but something still refers to (S11), by name. One that is not here stays
    /// as it stands in the file.
    pub fallbacks: &'a BTreeMap<String, Endpoint>,
    /// How long a reload may take: [`RELOAD_TIME`](super::RELOAD_TIME).
    pub reload_time: Duration,
}

/// Why NGINX was not reloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NotReloaded {
    /// The settings say so.
    Off,
    /// It does not run; it reads the include when it starts.
    NotRunning,
}

/// What came of it.
#[derive(Debug)]
pub enum IncludeOutcome {
    /// The file held the text already, and the running NGINX has read it.
    Unchanged,
    /// There is no NGINX; nothing was written.
    Absent,
    /// The file was written and is good; NGINX was not reloaded.
    Written(NotReloaded),
    /// NGINX uses the text.
    Reloaded,
    /// The configuration is bad without the new text too. The file is as it was before.
    BrokenByOthers(TestFailure),
    /// NGINX refuses the new text. The file is as it was before.
    Refused(TestFailure),
    /// The test passed, and yet no new workers came. The file is as it was before.
    NotTaken(String),
    /// The test could not be made. The file is as it was before.
    Untested(String),
    /// The file cannot be read or written, or the former one could not be put back.
    File(FileError),
    /// The file is not this instance's: somebody else wrote it. It was left alone.
    Foreign {
        /// The file.
        path: PathBuf,
        /// The instance it was generated for; `None` for a file that polyfpm did not write.
        instance: Option<String>,
    },
}

/// An upstream that stays for what refers to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptName {
    /// Its name.
    pub name: String,
    /// Where it is used; empty where the configuration could not be read, so that it stays to be safe.
    pub used_at: Vec<Place>,
}

/// What was done.
#[derive(Debug)]
pub struct Applied {
    /// What came of it.
    pub outcome: IncludeOutcome,
    /// The upstreams that are in the file beside the wanted ones.
    pub kept: Vec<KeptName>,
    /// The workers that still may use a former text: [`wait_old_workers`](super::wait_old_workers).
    pub old_workers: Vec<Process>,
}

/// Makes the include hold the wanted text and NGINX use it.
///
/// # Cancel safety
/// Not safe: dropped between writing and testing it leaves the new text untested. Run it to its end.
pub async fn apply_include(children: &Children, settings: &Nginx, state: &NginxState, wanted: Wanted<'_>) -> Applied {
    let mut applied = Applied { outcome: IncludeOutcome::Absent, kept: Vec::new(), old_workers: Vec::new() };
    if command::is_installed(&settings.binary) {
        let transaction = Transaction { children, settings, state, reload_time: wanted.reload_time };
        applied.outcome = transaction.run(wanted, &mut applied).await.unwrap_or_else(IncludeOutcome::File);
    }
    applied
}

struct Transaction<'a> {
    children: &'a Children,
    settings: &'a Nginx,
    state: &'a NginxState,
    reload_time: Duration,
}

impl Transaction<'_> {
    async fn run(&self, wanted: Wanted<'_>, applied: &mut Applied) -> Result<IncludeOutcome, FileError> {
        let file = IncludeFile::find(&self.settings.include)?;
        let before = file.read()?;
        let before_text = before.as_ref().map(|content| String::from_utf8_lossy(&content.bytes)).unwrap_or_default();
        let instance = generated_for(&before_text);
        // A mistyped path must not cost the operator a file.
        if before.is_some() && !before_text.trim().is_empty() && instance != generated_for(wanted.text) {
            return Ok(IncludeOutcome::Foreign { path: file.path(), instance: instance.map(str::to_owned) });
        }
        let stay = self.still_used(&before_text, wanted, &file.path()).await;
        let text = with_kept(wanted.text, &stay.iter().map(|(upstream, _)| upstream.clone()).collect::<Vec<_>>());
        applied.kept.extend(stay.into_iter().map(|(upstream, used_at)| KeptName { name: upstream.name, used_at }));

        let running = self.running().filter(|_| self.settings.reload);
        let unchanged = before.as_ref().filter(|content| content.bytes == text.as_bytes());
        if let Some(content) = unchanged {
            match &running {
                Some(running) if is_unread(content, running) => {}
                _ => return Ok(IncludeOutcome::Unchanged),
            }
        } else {
            write(&file, &text).await?;
        }
        let (outcome, old) = self.test_and_reload(&file, before.as_ref(), running).await?;
        applied.old_workers = old;
        applied.old_workers.extend(self.unaware().await);
        Ok(outcome)
    }

    /// Gives the workers that know a former text and were told of no other.
    async fn unaware(&self) -> Vec<Process> {
        let (pid_file, binary) = (self.state.pid_file.clone(), self.settings.binary.clone());
        let told = self.settings.reload;
        let look = move || {
            let running = running(&pid_file, &binary);
            let mut found = workers_beside(running.as_ref().map(|running| running.master), &pid_file, &binary);
            found.extend(running.filter(|_| !told).map(|running| running.workers).unwrap_or_default());
            found
        };
        tokio::task::spawn_blocking(look).await.unwrap_or_default()
    }

    fn running(&self) -> Option<Running> {
        running(&self.state.pid_file, &self.settings.binary)
    }

    async fn test_and_reload(
        &self,
        file: &IncludeFile,
        before: Option<&Content>,
        running: Option<Running>,
    ) -> Result<(IncludeOutcome, Vec<Process>), FileError> {
        let outcome = match command::test(self.children, self.settings).await {
            Ok(Verdict::Good) => match running {
                None if self.settings.reload => IncludeOutcome::Written(NotReloaded::NotRunning),
                None => IncludeOutcome::Written(NotReloaded::Off),
                Some(running) => match reload(running.master, self.reload_time).await {
                    Reload::Taken { old } => return Ok((IncludeOutcome::Reloaded, old)),
                    Reload::NotTaken(message) => {
                        file.restore(before)?;
                        IncludeOutcome::NotTaken(message)
                    }
                },
            },
            Ok(Verdict::Bad(failure)) => {
                file.restore(before)?;
                self.whose_fault(file, failure).await
            }
            Err(message) => {
                file.restore(before)?;
                IncludeOutcome::Untested(message)
            }
        };
        Ok((outcome, Vec::new()))
    }

    /// Tells a bad text of ours from a configuration that is bad anyway: with the former file back, it is tested again.
    async fn whose_fault(&self, file: &IncludeFile, failure: TestFailure) -> IncludeOutcome {
        let ours = |failure: &TestFailure| {
            failure.place.as_ref().is_some_and(|place| place.file == self.settings.include || canonical(&place.file) == Some(file.path()))
        };
        match command::test(self.children, self.settings).await {
            Ok(Verdict::Bad(_)) if ours(&failure) => IncludeOutcome::Refused(failure),
            Ok(Verdict::Bad(without)) => IncludeOutcome::BrokenByOthers(without),
            Ok(Verdict::Good) | Err(_) => IncludeOutcome::Refused(failure),
        }
    }

    /// Finds the upstreams of the file that are not wanted any more, and yet must stay (S11).
    async fn still_used(&self, before: &str, wanted: Wanted<'_>, include: &Path) -> Vec<(KeptUpstream, Vec<Place>)> {
        let new: Vec<String> = upstreams_of(wanted.text).into_iter().map(|upstream| upstream.name.to_ascii_lowercase()).collect();
        let mut gone = upstreams_of(before);
        gone.retain(|upstream| !new.contains(&upstream.name.to_ascii_lowercase()));
        if gone.is_empty() {
            return Vec::new();
        }
        let uses = self.uses(&gone, include.to_owned()).await;
        let stay = gone.into_iter().zip(uses).filter_map(|(upstream, used)| match used {
            Use::Nowhere => None,
            Use::At(places) => Some((upstream, places)),
            Use::Unknown => Some((upstream, Vec::new())),
        });
        stay.map(|(upstream, places)| {
            let fallback = wanted.fallbacks.get(&upstream.name).and_then(|endpoint| kept_upstream(&upstream.name, endpoint).ok());
            (fallback.unwrap_or(upstream), places)
        })
        .collect()
    }

    async fn uses(&self, gone: &[KeptUpstream], include: PathBuf) -> Vec<Use> {
        let unknown = || gone.iter().map(|_| Use::Unknown).collect();
        let Ok(dump) = command::dump(self.children, self.settings).await else { return unknown() };
        let names: Vec<String> = gone.iter().map(|upstream| upstream.name.clone()).collect();
        let found = tokio::task::spawn_blocking(move || uses_in(&dump, &names, &include)).await;
        found.unwrap_or_else(|_| unknown())
    }
}

/// Whether something uses a name.
enum Use {
    Nowhere,
    At(Vec<Place>),
    /// The configuration cannot be read.
    Unknown,
}

fn uses_in(dump: &[u8], names: &[String], include: &Path) -> Vec<Use> {
    let config = Config::from_dump(dump);
    let clients = config.reading().clients;
    // NGINX names the file as its configuration spells it, which may go through a link.
    let dumped = config.files().iter().find(|file| canonical(&file.path).as_deref() == Some(include));
    let include = dumped.map_or(include, |file| &file.path);
    let of_name = |name: &String| {
        let mut others = clients.upstreams.iter().filter(|upstream| upstream.place.file != include);
        if others.any(|upstream| upstream.name.eq_ignore_ascii_case(name)) {
            // The operator has an upstream of this name now, and NGINX takes no second one.
            return Use::Nowhere;
        }
        match config.references(name, include) {
            places if !places.is_empty() => Use::At(places),
            _ if clients.known => Use::Nowhere,
            _ => Use::Unknown,
        }
    };
    names.iter().map(of_name).collect()
}

/// Writes on another thread: until the disk has it, some tens of milliseconds may pass.
async fn write(file: &IncludeFile, text: &str) -> Result<(), FileError> {
    let (file, text) = (file.try_clone()?, text.to_owned());
    let path = file.path();
    let written = tokio::task::spawn_blocking(move || file.write(text.as_bytes())).await;
    written.unwrap_or_else(|error| Err(FileError::Write { path, source: std::io::Error::other(error) }))
}

/// Tells whether the file is younger than every worker: it was written, and the reload that should have followed never came.
fn is_unread(content: &Content, running: &Running) -> bool {
    let Some(modified) = content.modified else { return false };
    // A time in the future says nothing: somebody set the clock.
    let Ok(age) = SystemTime::now().duration_since(modified) else { return false };
    let mut ages = running.workers.iter().filter_map(|worker| age_seconds(*worker)).peekable();
    ages.peek().is_some() && ages.all(|worker_age| worker_age > age.as_secs_f64() + CLOCK_TICK_SECONDS)
}

/// Start times of processes are told in steps of 10 ms, and the uptime too.
const CLOCK_TICK_SECONDS: f64 = 0.02;
