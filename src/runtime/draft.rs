//! Reading everything: settings, php-fpm, pool files, NGINX, host; and making the plan and each shard's blueprint of it.
//!
//! A reading changes nothing. It runs as a task beside the loop, which compares its result with what runs and hands over
//! what differs.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::Duration;

use sha2::{Digest, Sha256};

use super::blueprint::{Blueprint, Notifies, StatusPoint, StderrChoice};
use super::examine::excerpts::hide_secret;
use super::host;
use super::listens;
use crate::core::plan::{self, PlanInput, Planned};
use crate::edge::fpm::{self, Installation, Tool, TrialError};
use crate::edge::nginx::{self, NginxState};
use crate::edge::settings as settings_file;
use crate::model::clients::{Clients, PassTarget};
use crate::model::endpoint::Endpoint;
use crate::model::host::{FpmBuild, Host};
use crate::model::ids::{PoolName, ShardId};
use crate::model::listen::Handover;
use crate::model::plan::{Fingerprint, Plan, ShardPlan};
use crate::model::pool::{Pool, PoolFiles, ProcessManager, Quarantined};
use crate::model::problem::{Problem, Severity};
use crate::model::settings::Settings;
use crate::sys::children::Children;
use crate::text::fpm::{Reading, RenderError, ShardChoices, StatusListener, render_shard};

/// How many pools of a shard get a private status socket. Each costs php-fpm a hidden pool (P42: 1,000 of them made a master
/// ready in 0.51 s instead of 0.29 s) and a worker while it is asked; the pools with the most workers matter most.
pub const STATUS_POOLS: usize = 64;

/// The parts of a blueprint that are no part of the installation.
pub(super) const ENVIRONMENT_PART: &str = "environment of php-fpm";
pub(super) const LIMITS_PART: &str = "limits";

/// How many on-demand pools get one where there are more pools than that: 48 fewer made a master of 500 pools ready with 47 ms
/// of CPU time instead of 58 ms, and their queues are seen all the same.
const STATUS_ON_DEMAND: usize = 16;

/// Whether configurations are tried with `php-fpm -t` before anything is started.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trials {
    /// Those of shards that differ from what runs: a bad pool is found before a handover fails on it.
    Changed,
    /// Every shard's: for `check`.
    All,
    /// None: at boot the start itself is the trial, and a shard that fails it is read again with trials.
    None,
}

/// Everything that was read, and what follows from it.
#[derive(Debug, Clone)]
pub struct Draft {
    /// The settings.
    pub settings: Rc<Settings>,
    /// The php-fpm.
    pub build: FpmBuild,
    /// The pool files, without pools that are kept out, and with the last good form of those that still run.
    pub files: PoolFiles,
    /// NGINX as it was found; `None` where the settings switch it off.
    pub nginx: Option<NginxState>,
    /// What should run.
    pub plan: Plan,
    /// What each shard that is not empty is made from.
    pub blueprints: BTreeMap<ShardId, Rc<Blueprint>>,
    /// The host for which it was planned.
    pub host: Host,
    /// How long connections of each pool's clients may be used again after a handover (P25).
    pub keepalive: BTreeMap<PoolName, Duration>,
    /// What PHP complains of at its start.
    pub complaints: BTreeSet<String>,
    /// What the operator should know: no errors.
    pub problems: Vec<Problem>,
    /// Files and directories whose change matters.
    pub watched: Vec<PathBuf>,
}

/// A reading's end: a draft, or every error that stands in its way.
pub type DraftResult = Result<Draft, Unread>;

/// Why nothing came of a reading.
#[derive(Debug)]
pub struct Unread {
    /// What stands in its way, and what else was found.
    pub problems: Vec<Problem>,
    /// Where the fault lies.
    pub fault: Fault,
}

/// Where the fault of a failed reading lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// In what is written, or in what that names.
    Files,
    /// In the host: no room, no descriptors, no processes.
    Host,
}

impl From<Vec<Problem>> for Unread {
    fn from(problems: Vec<Problem>) -> Self {
        Self { problems, fault: Fault::Files }
    }
}

/// What a reading starts from.
#[derive(Debug, Clone)]
pub struct ReadingInput {
    /// The settings file.
    pub file: PathBuf,
    /// What runs now.
    pub previous: Option<Rc<Draft>>,
    /// The plan that an earlier supervisor ran by, where nothing runs yet.
    pub former_plan: Option<Plan>,
    /// Pools that stay out because their listeners cannot be had.
    pub barred: Vec<Quarantined>,
    /// The fingerprints that serve now.
    pub serving: BTreeMap<ShardId, Fingerprint>,
    /// Pools that a master has served with: what the previous draft says of them is known to be good. At boot nothing is tried,
    /// so the first draft alone proves nothing.
    pub proven: BTreeSet<PoolName>,
    /// Addresses whose sockets are being taken over from another php-fpm.
    pub taken: BTreeSet<Endpoint>,
    /// Which configurations are tried.
    pub trials: Trials,
}

/// Reads everything.
///
/// # Errors
/// Every error that was found, in every file.
pub async fn read(children: &Children, input: &ReadingInput) -> DraftResult {
    let loaded = settings_file::load_for_masters(&input.file)?;
    let (settings, mut problems) = (Rc::new(loaded.settings), loaded.problems);
    let tool = Tool::new(children.clone(), settings.php.clone(), fpm::environment(&settings.php, std::env::vars_os()));
    let refused = |problems: &[Problem], error: &(dyn std::error::Error + 'static)| refused(&input.file, problems, error);
    let (installation, files, nginx) = tokio::join!(fpm::installation(&tool), fpm::probe_and_read(&tool), probe_nginx(children, &settings));
    let (build, found) = files.map_err(|error| refused(&problems, &error))?;
    problems.extend(found.reading.problems.iter().chain(&found.reading.further).cloned());
    if found.reading.problems.iter().any(|problem| problem.severity == Severity::Error) {
        return Err(problems.into());
    }
    let installation = installation.map_err(|error| refused(&problems, &error))?;
    problems.extend(nginx.iter().flat_map(|state| state.problems.iter().cloned()));
    let complaints = installation.complaints.clone();
    problems.extend(complaints.iter().map(|complaint| of_complaint(complaint)));
    let watched = [found.watched, installation.watched.clone(), vec![input.file.clone()]].concat();
    let Reading { files, quarantined, .. } = found.reading;
    let previous = input.previous.clone();
    let former_plan = input.former_plan.clone();
    let mut workshop = Workshop {
        settings,
        build,
        tool,
        files,
        nginx,
        installation,
        quarantined,
        kept: Vec::new(),
        barred: input.barred.clone(),
        previous,
        former_plan,
        proven: input.proven.clone(),
        taken: input.taken.clone(),
    };
    workshop.keep_last_good();
    let mut made = workshop.make()?;
    if input.trials != Trials::None {
        let bad = workshop.try_out(&made, input).await.map_err(|error| refused(&problems, &error))?;
        if !bad.is_empty() {
            workshop.quarantine(bad);
            made = workshop.make()?;
        }
    }
    problems.append(&mut made.problems);
    Ok(workshop.finish(made, complaints, problems, watched))
}

fn refused(file: &Path, problems: &[Problem], error: &(dyn std::error::Error + 'static)) -> Unread {
    let problem = Problem::error(super::chain(error));
    let (fault, problem) = if is_hosts(error) {
        (Fault::Host, problem.remedy("give the host what it lacks"))
    } else {
        (Fault::Files, problem.at(file, 0).remedy("set php.binary and php.config to those of this installation"))
    };
    Unread { problems: [problems, &[problem]].concat(), fault }
}

/// Tells whether an error is the host's: it has no room, descriptors, memory or processes left, or lets nobody write.
fn is_hosts(error: &(dyn std::error::Error + 'static)) -> bool {
    use nix::errno::Errno;
    const WANTS: [Errno; 8] =
        [Errno::ENOSPC, Errno::EROFS, Errno::EDQUOT, Errno::EMFILE, Errno::ENFILE, Errno::EAGAIN, Errno::ENOMEM, Errno::EIO];
    let mut next = Some(error);
    while let Some(error) = next {
        let system = error.downcast_ref::<std::io::Error>().and_then(std::io::Error::raw_os_error).map(Errno::from_raw);
        if system.or_else(|| error.downcast_ref::<Errno>().copied()).is_some_and(|errno| WANTS.contains(&errno)) {
            return true;
        }
        next = error.source();
    }
    false
}

/// Reports what PHP starts without.
pub(super) fn of_complaint(complaint: &str) -> Problem {
    Problem::warning(format!("PHP says at its start: {complaint}")).remedy("install what is missing, or take its line out of php.ini")
}

pub(super) async fn probe_nginx(children: &Children, settings: &Settings) -> Option<NginxState> {
    if settings.nginx.enabled { Some(nginx::probe(children, &settings.nginx).await) } else { None }
}

/// Everything that was read, from which plans and blueprints are made.
pub(super) struct Workshop {
    pub(super) settings: Rc<Settings>,
    pub(super) build: FpmBuild,
    pub(super) files: PoolFiles,
    pub(super) nginx: Option<NginxState>,
    pub(super) tool: Tool,
    pub(super) installation: Installation,
    pub(super) quarantined: Vec<Quarantined>,
    /// Bad pools that go on as they last were good.
    pub(super) kept: Vec<Quarantined>,
    pub(super) barred: Vec<Quarantined>,
    pub(super) previous: Option<Rc<Draft>>,
    pub(super) former_plan: Option<Plan>,
    pub(super) proven: BTreeSet<PoolName>,
    pub(super) taken: BTreeSet<Endpoint>,
}

/// A plan with its blueprints.
pub(super) struct Made {
    pub(super) plan: Plan,
    pub(super) blueprints: BTreeMap<ShardId, Rc<Blueprint>>,
    pub(super) host: Host,
    pub(super) problems: Vec<Problem>,
}

impl Workshop {
    /// A pool whose files went bad while it runs goes on as it last was good: bad input changes nothing that runs.
    fn keep_last_good(&mut self) {
        let Some(previous) = &self.previous else { return };
        let (mut kept, mut out) = (Vec::new(), Vec::new());
        for mut bad in std::mem::take(&mut self.quarantined) {
            match previous.files.pools.iter().find(|pool| pool.name == bad.pool && self.proven.contains(&pool.name)) {
                Some(good) => {
                    bad.problem.message.push_str("; the pool goes on as it last was good");
                    self.files.pools.push(good.clone());
                    kept.push(bad);
                }
                None => out.push(bad),
            }
        }
        if !kept.is_empty() {
            // The order of the pools is part of a shard's configuration: one that is back in its place changes nothing.
            let place = |pool: &Pool| previous.files.pools.iter().position(|before| before.name == pool.name).unwrap_or(usize::MAX);
            self.files.pools.sort_by_key(place);
        }
        self.quarantined = out;
        self.kept.append(&mut kept);
    }

    pub(super) fn quarantine(&mut self, mut bad: Vec<Quarantined>) {
        // Each shard of a spread pool finds it.
        let mut seen = BTreeSet::new();
        bad.retain(|bad| seen.insert(bad.pool.clone()));
        self.files.pools.retain(|pool| !bad.iter().any(|bad| bad.pool == pool.name));
        self.quarantined.extend(bad);
        self.keep_last_good();
    }

    fn finish(self, made: Made, complaints: BTreeSet<String>, problems: Vec<Problem>, watched: Vec<PathBuf>) -> Draft {
        let keepalive = keepalive_waits(&made.plan, self.nginx.as_ref(), &self.settings);
        let Self { settings, build, files, nginx, .. } = self;
        let Made { plan, blueprints, host, .. } = made;
        Draft { settings, build, files, nginx, plan, blueprints, host, keepalive, complaints, problems, watched }
    }

    fn make(&self) -> Result<Made, Vec<Problem>> {
        let made = self.make_anyway();
        if made.problems.iter().any(|problem| problem.severity == Severity::Error) { Err(made.problems) } else { Ok(made) }
    }

    /// Makes the plan and what blueprints can be made of it; errors are among its problems.
    pub(super) fn make_anyway(&self) -> Made {
        let (mut listens, mut quarantined) = listens::resolve_all(&self.files, &fpm::prefix(&self.settings.php, &self.build));
        quarantined.extend(self.quarantined.iter().chain(&self.barred).cloned());
        let previous = self.previous.as_ref().map(|draft| &draft.plan).or(self.former_plan.as_ref());
        let only: BTreeSet<&Endpoint> = self.taken.iter().chain(previous.into_iter().flat_map(only_ones)).collect();
        listens.values_mut().for_each(|listen| listen.only_one = only.contains(&listen.endpoint));
        let (host, of_host) = host::look(listens, self.nginx.as_ref());
        let unknown = Clients::default();
        let clients = self.nginx.as_ref().map_or(&unknown, |state| &state.clients);
        let input = PlanInput { settings: &self.settings, files: &self.files, quarantined: &quarantined, clients, host: &host, previous };
        let Planned { mut plan, mut problems } = plan::plan(&input);
        problems.extend(of_host);
        plan.quarantined.extend(self.kept.iter().cloned());
        plan.quarantined.iter_mut().for_each(|bad| hide_secret(&mut bad.problem));
        let mut made = Made { plan, blueprints: BTreeMap::new(), host, problems };
        let shards: Vec<ShardPlan> = made.plan.shards.iter().filter(|shard| !shard.placements.is_empty()).cloned().collect();
        for shard in shards {
            match self.blueprint(&shard) {
                Ok(blueprint) => drop(made.blueprints.insert(shard.id.clone(), Rc::new(blueprint))),
                Err(error) => made.problems.push(Problem::error(error.to_string())),
            }
        }
        made
    }

    fn blueprint(&self, shard: &ShardPlan) -> Result<Blueprint, RenderError> {
        let status = self.status_points(shard);
        let rendered = render_shard(&self.files, shard, ShardChoices { status: &status_listeners(&status), ..self.choices() })?;
        let asked = |pool: &str| status.iter().any(|point| point.pool.as_str() == pool);
        let warmups = self.settings.restart.warmup.iter().filter(|warmup| asked(&warmup.pool)).cloned().collect();
        let environment = fpm::environment(&self.settings.php, std::env::vars_os());
        let extra = format!("{}{environment:?}{:?}", plan::placement_fingerprint_text(shard), self.settings.limits);
        let mut parts = self.installation.parts.clone();
        parts.insert(ENVIRONMENT_PART.to_owned(), fpm::digest_of(format!("{environment:?}").as_bytes()));
        parts.insert(LIMITS_PART.to_owned(), fpm::digest_of(format!("{:?}", self.settings.limits).as_bytes()));
        Ok(Blueprint {
            parts,
            fingerprint: self.installation.fingerprint(&rendered.text, &extra),
            plan: shard.clone(),
            config: rendered.text,
            ini: Rc::clone(&self.installation.ini),
            status,
            warmups,
            binary: self.settings.php.binary.clone(),
            arguments: fpm::arguments(&self.settings.php),
            environment,
            notifies: if self.build.systemd { Notifies::Yes } else { Notifies::No },
            stderr: stderr_choice(&self.files),
        })
    }

    fn choices(&self) -> ShardChoices<'_> {
        static NONE: BTreeMap<PoolName, StatusListener> = BTreeMap::new();
        ShardChoices {
            drain_timeout: self.settings.restart.drain_timeout,
            status: &NONE,
            heartbeat: self.build.systemd.then_some(self.settings.health.interval),
        }
    }

    /// Gives the private status listeners of a shard: pools with a warm-up first, then those with the most workers.
    fn status_points(&self, shard: &ShardPlan) -> Vec<StatusPoint> {
        if !self.build.status_listen {
            return Vec::new();
        }
        let pools: BTreeMap<&PoolName, &Pool> = self.files.pools.iter().map(|pool| (&pool.name, pool)).collect();
        let warms = |pool: &PoolName| self.settings.restart.warmup.iter().any(|warmup| warmup.pool == pool.as_str());
        let mut order: Vec<_> = shard.placements.iter().filter_map(|placement| Some((placement, *pools.get(&placement.pool)?))).collect();
        order.sort_by_key(|(placement, pool)| {
            (!warms(&placement.pool), pool.pm == ProcessManager::Ondemand, std::cmp::Reverse(placement.workers.max_children))
        });
        let all = order.len() <= STATUS_POOLS;
        let awake = order.iter().filter(|(placement, pool)| warms(&placement.pool) || pool.pm != ProcessManager::Ondemand).count();
        let most = if all { STATUS_POOLS } else { STATUS_POOLS.min(awake.max(STATUS_ON_DEMAND)) };
        order.iter().take(most).map(|(placement, pool)| status_point(&self.settings, &placement.listener.alias, pool)).collect()
    }

    pub(super) async fn try_out(&self, made: &Made, input: &ReadingInput) -> Result<Vec<Quarantined>, TrialError> {
        let mut bad = Vec::new();
        for (id, blueprint) in &made.blueprints {
            let differs = input.serving.get(id) != Some(&blueprint.fingerprint);
            if differs || input.trials == Trials::All {
                let listeners = status_listeners(&blueprint.status);
                let choices = ShardChoices { status: &listeners, ..self.choices() };
                bad.extend(fpm::find_bad_pools(&self.tool, &self.files, &blueprint.plan, choices).await?);
            }
        }
        Ok(bad)
    }
}

/// Gives the addresses of a plan whose one socket was taken over: they stay so for as long as the plans that follow have them.
fn only_ones(plan: &Plan) -> impl Iterator<Item = &Endpoint> {
    let listeners = plan.shards.iter().flat_map(|shard| &shard.placements).map(|placement| &placement.listener);
    listeners
        .filter(|listener| listener.handover == Handover::Share && listener.endpoint.path().is_none())
        .map(|listener| &listener.endpoint)
}

fn status_listeners(points: &[StatusPoint]) -> BTreeMap<PoolName, StatusListener> {
    points
        .iter()
        .map(|point| {
            let (alias, status_path, ping_path) = (point.alias.clone(), point.status_path.clone(), point.ping_path.clone());
            (point.pool.clone(), StatusListener { alias, status_path, ping_path })
        })
        .collect()
}

fn status_point(settings: &Settings, alias: &str, pool: &Pool) -> StatusPoint {
    let secret = path_secret(settings, &pool.name);
    StatusPoint {
        pool: pool.name.clone(),
        alias: status_alias(alias, &secret),
        ping_path: pool.ping_path.clone().unwrap_or_else(|| format!("/{secret}-ping")),
        ping_response: pool.ping_response.clone().unwrap_or_else(|| "pong".to_owned()),
        status_path: pool.status_path.clone().unwrap_or_else(|| format!("/{secret}-status")),
    }
}

fn status_alias(alias: &str, secret: &str) -> String {
    if alias.starts_with('/') { format!("{alias}.s") } else { format!("/.polyfpm/{}.s", secret.get(..12).unwrap_or(secret)) }
}

/// Gives a text nobody outside can guess, the same for as long as the host is up: status and ping answer on the public
/// socket, too (S13), and a new text at each reading would look like a change.
fn path_secret(settings: &Settings, pool: &PoolName) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let machine = std::fs::read_to_string("/etc/machine-id").unwrap_or_default();
    let mut digest = Sha256::new();
    for part in [boot.trim(), machine.trim(), settings.instance.as_str(), pool.as_str()] {
        digest.update(part.as_bytes());
        digest.update([0]);
    }
    digest.finalize().iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}

fn stderr_choice(files: &PoolFiles) -> StderrChoice {
    match files.global.error_log.as_deref() {
        Some("/proc/self/fd/2" | "/dev/stderr" | "/dev/fd/2") => StderrChoice::Inherit,
        _ => StderrChoice::File,
    }
}

/// Gives, for each pool, how long a client may use a connection again after the pool's listener lost its path: nothing where
/// NGINX keeps no connections, what P25 asks for where it keeps them for a short time, the whole drain time-out where it
/// keeps them as long as it likes. Pools of unknown clients get no entry.
pub(super) fn keepalive_waits(plan: &Plan, nginx: Option<&NginxState>, settings: &Settings) -> BTreeMap<PoolName, Duration> {
    let Some(clients) = nginx.map(|state| &state.clients).filter(|clients| clients.known) else { return BTreeMap::new() };
    let unknown = clients.passes.iter().any(|pass| matches!(pass.target, PassTarget::Variable(_)) && pass.keep_conn);
    let wait = |pool: &crate::model::plan::PoolPlan| {
        let own = pool.upstream.clone();
        let reaching = clients.passes.iter().filter(|pass| pass.keep_conn).filter_map(|pass| match &pass.target {
            PassTarget::Upstream(name) => Some(name),
            PassTarget::Endpoint(_) | PassTarget::Variable(_) => None,
        });
        let mut longest = Duration::ZERO;
        for name in reaching {
            let block = clients.upstreams.iter().find(|block| block.name.eq_ignore_ascii_case(name));
            let leads_here = name.eq_ignore_ascii_case(&own)
                || block.is_some_and(|block| pool.servers.iter().any(|server| block.servers.contains(&server.endpoint)));
            let keeps = block.is_some_and(|block| block.keepalive.unwrap_or_default() > 0);
            if !leads_here || !keeps {
                continue;
            }
            let bounds = block.and_then(|block| Some(block.keepalive_time? + block.keepalive_timeout?));
            let margin = Duration::from_millis(300);
            longest = longest.max(bounds.map_or(settings.restart.drain_timeout, |bounds| bounds + margin));
        }
        longest
    };
    plan.pools.iter().filter(|_| !unknown).map(|pool| (pool.pool.clone(), wait(pool))).collect()
}
