//! `polyfpm upgrade`: the supervisor goes on as the installed binary, in the same process.
//!
//! An upgrade is no job of the fleet, but excludes one: it is refused while a job runs, and jobs are refused while it is
//! under way. The exec happens between two steps: no master is on its way in, NGINX is not being changed, nobody on the
//! control socket is in the middle of a request. Up to the exec every failure leaves this supervisor as it was; after it the
//! masters are known by the files that would lead to them after a crash, too.

use std::ffi::OsString;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::time::{ClockId, clock_gettime};
use nix::unistd::{Pid, getpid};

use super::calls::{Pending, busy, error};
use super::events::Event;
use super::fault;
use super::handoff::{Arrival, ControlState, Handoff, VARIABLE, VERSION};
use super::home::Home;
use super::successor::{self, Fit, Identity, Unfit};
use super::supervisor::{Phase, Supervisor};
use crate::edge::control::replies::ReplySink;
use crate::edge::control::server::{Gate, answer_on};
use crate::model::snapshot::JobView;
use crate::model::wire::{ErrorCode, Progress, Reply};
use crate::sys::handoff::{Deaf, Image, number_of, seal};
use crate::sys::signals::Signals;

/// How long the exec waits for a moment between two steps: a master that is on its way in takes less, or fails.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long clients that are being answered hold the exec.
const ANSWERED: Duration = Duration::from_secs(1);

/// How often it is looked whether the moment has come.
pub(super) const LOOK: Duration = Duration::from_millis(10);

/// The steps that are told: checked, executed, masters kept.
const STEPS: u32 = 3;

/// What is told only to the program image it was meant for.
const NOT_HANDED_DOWN: [&str; 5] = [VARIABLE, "LISTEN_FDS", "LISTEN_PID", "LISTEN_FDNAMES", "LISTEN_PIDFDID"];

/// An upgrade under way.
#[derive(Debug)]
pub(super) struct Upgrade {
    replies: ReplySink,
    connection: Option<OwnedFd>,
    began: Instant,
    program: PathBuf,
    stage: Stage,
}

#[derive(Debug)]
enum Stage {
    /// The binary is being run.
    Checking,
    /// It is good; a moment between two steps is waited for.
    Waiting(Fit, Instant),
    /// Nobody is let in any more; those who are in are answered.
    Closing(Fit, Instant),
    /// The moment has come.
    Due(Fit),
}

impl Supervisor {
    /// Begins an upgrade.
    pub(super) fn begin_upgrade(&mut self, replies: ReplySink, connection: Option<OwnedFd>) {
        if let Some(job) = self.job_view() {
            replies.finish(busy(&job));
            return;
        }
        if self.phase == Phase::Booting {
            replies.finish(error(ErrorCode::Busy, "the supervisor is starting"));
            return;
        }
        let Some(program) = own_program() else {
            replies.finish(error(ErrorCode::Failed, "the program's own file is not known"));
            return;
        };
        tracing::info!(program = %program.display(), "upgrade began");
        self.upgrade = Some(Upgrade { replies, connection, began: Instant::now(), program: program.clone(), stage: Stage::Checking });
        self.snapshot_dirty = true;
        fault::point("upgrade begun");
        let (children, events, settings) = (self.children.clone(), self.events.clone(), self.settings.file.clone());
        drop(tokio::task::spawn_local(async move {
            let result = successor::examine(&children, &program, &settings, environment()).await;
            super::tell(&events, Event::Examined(Box::new(result))).await;
        }));
    }

    /// Gives the upgrade as what is under way.
    pub(super) fn upgrade_view(&self) -> Option<JobView> {
        self.upgrade.as_ref().map(|upgrade| {
            let (done, step) = match &upgrade.stage {
                Stage::Checking => (0, "checking the installed binary"),
                Stage::Waiting(..) => (1, "waiting for a moment between two steps"),
                Stage::Closing(..) | Stage::Due(_) => (1, "executing the installed binary"),
            };
            view(done, step)
        })
    }

    /// Hears what the binary said.
    pub(super) fn examined(&mut self, result: Result<Fit, Unfit>) {
        let fit = match result.and_then(|fit| self.draft_allows(&fit).map(|()| fit)) {
            Ok(fit) => fit,
            Err(unfit) => {
                self.refuse_upgrade(unfit);
                return;
            }
        };
        let Some(upgrade) = &mut self.upgrade else { return };
        let version = &fit.fitness.version;
        tracing::info!(program = %upgrade.program.display(), version, "installed binary was found good");
        let step = format!("checked {}: polyfpm {version}", upgrade.program.display());
        upgrade.replies.progress(progress(1, step, upgrade.began.elapsed()));
        upgrade.stage = Stage::Waiting(fit, Instant::now());
        fault::point("binary examined");
    }

    /// Refuses what would take something out of service, or look for the masters elsewhere.
    fn draft_allows(&self, fit: &Fit) -> Result<(), Unfit> {
        let fitness = &fit.fitness;
        let runs = |pool: &&crate::model::ids::PoolName| self.draft.plan.pool(pool).is_some();
        let lost: Vec<String> = fitness.quarantined.iter().filter(runs).map(ToString::to_string).collect();
        if !lost.is_empty() {
            return Err(Unfit::new(format!("pools that run would be kept out: {}; see polyfpm check", lost.join(", "))));
        }
        for (key, now, then) in [
            ("run.directory", &self.settings.runtime_directory, &fitness.directory),
            ("control.socket", &self.settings.control.socket, &fitness.control),
        ] {
            if now != then {
                let what =
                    format!("the settings file has another {key}, {}, than the supervisor runs with, {}", then.display(), now.display());
                return Err(Unfit::new(what));
            }
        }
        Ok(())
    }

    fn refuse_upgrade(&mut self, unfit: Unfit) {
        let Some(upgrade) = self.upgrade.take() else { return };
        self.open_gate();
        self.snapshot_dirty = true;
        tracing::error!(why = %unfit, causes = unfit.causes.join("; "), "upgrade was refused");
        let hint = Some("the supervisor runs on as it was; mend the cause and run the command again".to_owned());
        let (message, causes) = (format!("upgrade to {}", upgrade.program.display()), [vec![unfit.what], unfit.causes].concat());
        upgrade.replies.finish(Reply::Error { code: ErrorCode::Failed, message, causes, hint, job: None, shards: Vec::new() });
    }

    /// Gives an upgrade up because everything is about to stop.
    pub(super) fn abandon_upgrade(&mut self) {
        if let Some(upgrade) = self.upgrade.take() {
            self.open_gate();
            upgrade.replies.finish(error(ErrorCode::Stopping, "the supervisor is stopping"));
        }
    }

    fn open_gate(&self) {
        if let Some(gate) = &self.gate {
            gate.open();
        }
    }

    /// Looks whether the moment of the exec has come.
    pub(super) fn look_at_upgrade(&mut self) {
        let between = self.fleet.is_between_steps() && !self.nginx.is_under_way() && !self.tasks.is_reading();
        let Some(upgrade) = &mut self.upgrade else { return };
        let stage = std::mem::replace(&mut upgrade.stage, Stage::Checking);
        upgrade.stage = match stage {
            Stage::Waiting(fit, _) if between => {
                if let Some(gate) = &self.gate {
                    gate.close();
                }
                fault::point("clients held back");
                Stage::Closing(fit, Instant::now())
            }
            Stage::Waiting(_, since) if since.elapsed() > PATIENCE => {
                self.refuse_upgrade(Unfit::new(format!("masters or NGINX did not come to rest within {} s", PATIENCE.as_secs())));
                return;
            }
            Stage::Closing(fit, since) if !self.gate.as_ref().is_some_and(Gate::is_answering) || since.elapsed() > ANSWERED => {
                Stage::Due(fit)
            }
            // A master may have died since.
            Stage::Closing(fit, _) | Stage::Due(fit) if !between => Stage::Waiting(fit, Instant::now()),
            stage @ (Stage::Checking | Stage::Waiting(..) | Stage::Closing(..) | Stage::Due(_)) => stage,
        };
    }

    /// Tells whether there is an upgrade that waits for something nobody tells of.
    pub(super) fn watches_for_upgrade(&self) -> bool {
        self.upgrade.as_ref().is_some_and(|upgrade| !matches!(upgrade.stage, Stage::Checking))
    }

    /// Tells whether the exec is due.
    pub(super) fn is_exec_due(&self) -> bool {
        self.upgrade.as_ref().is_some_and(|upgrade| matches!(upgrade.stage, Stage::Due(_)))
    }

    /// Becomes the installed binary. Comes back only when that failed, or has to wait for a master's end to be heard.
    pub(super) fn exec(&mut self, home: &Home, signals: &Signals) {
        let Some(Upgrade { program, stage: Stage::Due(fit), .. }) = &self.upgrade else { return };
        let (program, file, version) = (program.clone(), fit.file, fit.fitness.version.clone());
        match Identity::of(&program) {
            Ok(found) if found == file => {}
            Ok(_) | Err(_) => {
                self.refuse_upgrade(Unfit::new(format!("{} was changed while it was examined", program.display())));
                return;
            }
        }
        self.write_state();
        if !self.state_is_written() {
            self.refuse_upgrade(Unfit::new("the state was not written: see the log"));
            return;
        }
        tracing::info!(program = %program.display(), version, "executing the installed binary");
        if let Err(error) = self.exec_now(&program, home, signals) {
            self.refuse_upgrade(Unfit { what: format!("execute {}", program.display()), causes: vec![error.to_string()] });
        }
    }

    /// `Ok`: a master has ended and the loop has not heard of it; it must first.
    fn exec_now(&self, program: &Path, home: &Home, signals: &Signals) -> std::io::Result<()> {
        let missing = || std::io::Error::other("the control socket is gone");
        let (lock, control, file) = home.belongings().ok_or_else(missing)?;
        let deaf = Deaf::now()?;
        signals.pass_on(&deaf);
        self.pass_pending_on();
        self.children.while_uncollected(|uncollected| {
            let own = self.masters.values().filter(|master| master.process.is_none());
            let known: Vec<Pid> = own.filter(|master| master.alive).filter_map(|master| master.pid).collect();
            if known.iter().any(|pid| !uncollected.contains(pid)) {
                return Ok(());
            }
            let listeners = self.listeners();
            let caller = self.upgrade.as_ref().and_then(|upgrade| upgrade.connection.as_ref());
            let handoff = Handoff {
                v: VERSION,
                pid: getpid().as_raw(),
                from: successor::version(),
                lock: number_of(lock),
                control: ControlState {
                    fd: number_of(control),
                    path: self.settings.control.socket.clone(),
                    device: file.device,
                    inode: file.inode,
                },
                caller: caller.map(number_of),
                began_ms: self.upgrade.as_ref().map_or(0, |upgrade| now_ms().saturating_sub(millis(upgrade.began.elapsed()))),
                masters: known.iter().map(|pid| pid.as_raw()).collect(),
                listeners: listeners.iter().map(|listener| (number_of(&listener.fd), listener.inode)).collect(),
            };
            let message = seal(&serde_json::to_vec(&handoff)?)?;
            let mut environment = environment();
            environment.push((VARIABLE.into(), number_of(&message).to_string().into()));
            let mut arguments: Vec<OsString> = std::env::args_os().collect();
            if let Some(name) = arguments.first_mut() {
                *name = program.as_os_str().to_owned();
            }
            let kept: Vec<BorrowedFd<'_>> = [lock.as_fd(), control.as_fd(), message.as_fd()]
                .into_iter()
                .chain(caller.map(AsFd::as_fd))
                .chain(listeners.iter().map(|listener| listener.fd.as_fd()))
                .collect();
            fault::point("descriptors handed over");
            Err(Image { program: program.to_owned(), arguments, environment }.become_it(&kept, &deaf))
        })
    }

    /// What signals asked for, and what waits for its turn, is asked for again: signals are blocked now, so that they are
    /// heard by whoever comes out of this.
    fn pass_pending_on(&self) {
        let signals: &[Signal] = match self.pending {
            Pending::Nothing => &[],
            Pending::Reload => &[Signal::SIGHUP],
            Pending::Restart => &[Signal::SIGUSR2],
            Pending::ReloadThenRestart => &[Signal::SIGHUP, Signal::SIGUSR2],
        };
        for signal in signals {
            if let Err(errno) = kill(getpid(), *signal) {
                tracing::warn!(signal = %signal, error = %errno, "wish was not passed on");
            }
        }
    }

    /// Tells whoever asked for the upgrade that led to this supervisor of its end.
    pub(super) fn arrived(&mut self) {
        let Some(Arrival { from, caller, began_ms, masters }) = self.arrival.take() else { return };
        let version = successor::version();
        let kept = self.adoption.adopted;
        tracing::info!(from, version, masters, kept, "upgrade done");
        fault::point("masters kept");
        let Some(caller) = caller else { return };
        let (sink, replies) = ReplySink::pair();
        let took = || Duration::from_millis(now_ms().saturating_sub(began_ms));
        sink.progress(progress(2, format!("executed again: polyfpm {version}, pid {}", getpid()), took()));
        sink.progress(progress(3, format!("{kept} masters kept"), took()));
        if kept < masters {
            let message = format!("polyfpm {version} runs, but {} of {masters} masters were not kept", masters - kept);
            let hint = Some("the log says why; their shards were started anew".to_owned());
            sink.finish(Reply::Error { code: ErrorCode::Failed, message, causes: Vec::new(), hint, job: None, shards: Vec::new() });
        } else {
            sink.done(format!("polyfpm {version} runs, pid {}; before: {from}", getpid()), Vec::new());
        }
        drop(tokio::task::spawn_local(async move {
            if let Err(error) = answer_on(caller, replies).await {
                tracing::debug!(error = %error, "whoever asked for the upgrade is gone");
            }
        }));
    }
}

fn view(done: u32, step: &str) -> JobView {
    JobView { job: 0, verb: "upgrade".to_owned(), done, total: STEPS, step: step.to_owned() }
}

fn progress(done: u32, step: String, at: Duration) -> Progress {
    Progress { job: view(done, &step), shard: None, generation: None, step, at_ms: millis(at) }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

fn now_ms() -> u64 {
    let now = clock_gettime(ClockId::CLOCK_MONOTONIC).map(Duration::from);
    now.map_or(0, millis)
}

/// Gives our environment without what was told to this program image alone.
fn environment() -> Vec<(OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| !NOT_HANDED_DOWN.iter().any(|private| name == private)).collect()
}

/// Gives the file we were started from, by the name we were called: where that is a link, it may lead elsewhere by now.
fn own_program() -> Option<PathBuf> {
    let called = std::env::args_os().next().map(PathBuf::from).filter(|path| path.components().count() > 1);
    let called = called.and_then(|path| std::path::absolute(path).ok());
    called.or_else(|| crate::sys::proc::Proc::default().exe(getpid()).ok().map(|exe| exe.path))
}
