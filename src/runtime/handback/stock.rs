//! The plain php-fpm that goes on: what is started, how it is seen to serve, how it is ended when it is not good.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fs::File;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::rc::Rc;
use std::sync::Arc;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::Named;
use super::inherit::{self, INHERIT};
use crate::edge::fpm;
use crate::edge::units::{Unit, UnitError};
use crate::model::settings::Settings;
use crate::runtime::takeover::Process;
use crate::sys::children::{Children, Exit};
use crate::sys::proc::Proc;
use crate::sys::spawn::{Command, Output, Session};

/// How often it is looked for: it is up in 20–50 ms (P30).
const LOOK: Duration = Duration::from_millis(20);

/// How long a master without a worker must live to count as one that serves: on-demand pools start none, and one that refuses
/// its configuration is gone within 50 ms.
const STANDS: Duration = Duration::from_millis(500);

/// How much of what it said is told.
const LAST_LINES: usize = 3;

/// What is started.
#[derive(Debug)]
pub(super) enum Stock {
    /// A command.
    Command { program: PathBuf, arguments: Vec<OsString>, environment: Vec<(OsString, OsString)> },
    /// A unit of systemd.
    Unit(Unit),
}

impl Stock {
    /// Takes the command or the unit that was asked for, else the unit that was taken over, else this instance's php-fpm as a
    /// daemon.
    pub(super) fn of(
        (command, to): (&[String], Option<&str>),
        former: Option<String>,
        (settings, children): (&Settings, &Children),
    ) -> Result<Self, String> {
        let environment = fpm::environment(&settings.php, std::env::vars_os());
        if let Some((program, arguments)) = command.split_first() {
            if !program.starts_with('/') {
                return Err(format!("'{program}' is no absolute path of a php-fpm"));
            }
            return Ok(Self::Command { program: program.into(), arguments: arguments.iter().map(Into::into).collect(), environment });
        }
        if let Some(name) = to.map(str::to_owned).or(former) {
            return Unit::new(children, &name).map(Self::Unit).map_err(|error| error.to_string());
        }
        let mut arguments = vec!["--daemonize".into(), "--fpm-config".into(), settings.php.config.clone().into()];
        arguments.extend(fpm::arguments(&settings.php));
        Ok(Self::Command { program: settings.php.binary.clone(), arguments, environment })
    }

    /// Gives it in a line.
    pub(super) fn words(&self) -> String {
        match self {
            Self::Command { program, arguments, .. } => {
                let words = std::iter::once(program.as_os_str()).chain(arguments.iter().map(OsString::as_os_str));
                words.map(|word| word.to_string_lossy().into_owned()).collect::<Vec<_>>().join(" ")
            }
            Self::Unit(unit) => unit.name().to_owned(),
        }
    }
}

/// The master that was started.
#[derive(Debug)]
pub(in crate::runtime) struct Started(Process);

impl Started {
    /// Gives its pid.
    pub(in crate::runtime) fn pid(&self) -> i32 {
        self.0.pid.as_raw()
    }

    /// Kills it before it removes a path; its workers finish what they have.
    pub(super) fn kill(&self) {
        let workers = Proc::default().children_of(self.0.pid).unwrap_or_default();
        if let Err(error) = self.0.signal(Signal::SIGKILL) {
            tracing::debug!(pid = self.pid(), error = %error, "signal reached nobody");
        }
        for worker in workers {
            // It may have ended with its last request.
            kill(worker, Signal::SIGQUIT).ok();
        }
    }
}

/// One start.
pub(super) struct Launch {
    pub(super) children: Children,
    pub(super) stock: Rc<Stock>,
    pub(super) names: Vec<Named>,
    pub(super) inodes: BTreeSet<u64>,
    /// Where its messages and what it inherits are written.
    pub(super) directory: PathBuf,
    pub(super) patience: Duration,
}

impl Launch {
    /// Starts it and waits until it serves.
    pub(super) async fn run(self) -> Result<Started, String> {
        let stock = Rc::clone(&self.stock);
        match &*stock {
            Stock::Command { program, arguments, environment } => {
                let mut environment = environment.clone();
                let numbered: Vec<(String, i32)> = self.names.iter().map(|(key, fd)| (key.clone(), fd.as_raw_fd())).collect();
                environment.extend(crate::runtime::launch::socket_variables(&numbered));
                self.run_command(Command::new(program).args(arguments.iter().cloned()).environment(environment)).await
            }
            Stock::Unit(unit) => self.run_unit(unit).await,
        }
    }

    /// systemd starts a unit's program and hands it nothing of ours: for this one start it is polyfpm, which fetches the sockets
    /// and becomes the unit's own command.
    async fn run_unit(&self, unit: &Unit) -> Result<Started, String> {
        let told = |error: UnitError| crate::runtime::chain(&error);
        if let Some(pid) = unit.main_pid().await.map_err(told)? {
            return Err(format!("{} runs already, as process {pid}", unit.name()));
        }
        let before = masters_with(&self.inodes);
        let file = self.directory.join(INHERIT);
        let command = unit.command().await.map_err(told)?;
        inherit::write(&file, command, &self.names).map_err(|error| crate::runtime::chain(&error))?;
        let ours = std::env::current_exe().map_err(|error| error.to_string())?;
        let words = [ours.to_string_lossy().into_owned(), "inherit".to_owned(), file.to_string_lossy().into_owned()];
        unit.start_by(&words.each_ref().map(String::as_str)).await.map_err(told)?;
        // systemd has heard its READY.
        let started = masters_with(&self.inodes).difference(&before).next().copied();
        let pid = started.ok_or_else(|| format!("{} runs, but not on these sockets", unit.name()))?;
        unit.enable().await.map_err(told)?;
        Process::of(pid).map(Started).map_err(|error| error.to_string())
    }

    async fn run_command(&self, command: Command) -> Result<Started, String> {
        let path = self.log();
        let log = File::create(&path).map_err(|error| format!("write {}: {error}", path.display()))?;
        let log = Arc::new(OwnedFd::from(log));
        let mut command = command.session(Session::New).stdout(Output::File(Arc::clone(&log))).stderr(Output::File(log));
        for (_, fd) in &self.names {
            command = command.keep(Arc::clone(fd));
        }
        let before = masters_with(&self.inodes);
        let mut child = self.children.spawn(&command).map_err(|error| crate::runtime::chain(&error))?;
        let (end, mut exit) = (Instant::now() + self.patience, None);
        let mut seen: Option<(Pid, Instant)> = None;
        while Instant::now() < end {
            tokio::select! {
                ended = child.exit(), if exit.is_none() => exit = Some(ended),
                () = tokio::time::sleep(LOOK) => {}
            }
            if exit.is_some_and(|exit| exit != Exit::Code(0)) {
                break;
            }
            let Some(pid) = masters_with(&self.inodes).difference(&before).next().copied() else { continue };
            let since = seen.filter(|(known, _)| *known == pid).map_or_else(Instant::now, |(_, since)| since);
            seen = Some((pid, since));
            let works = !Proc::default().children_of(pid).unwrap_or_default().is_empty();
            if works || since.elapsed() >= STANDS {
                return Process::of(pid).map(Started).map_err(|error| error.to_string());
            }
        }
        Err(self.failure(exit))
    }

    fn log(&self) -> PathBuf {
        self.directory.join("handback.log")
    }

    fn failure(&self, exit: Option<Exit>) -> String {
        let said = std::fs::read(self.log()).unwrap_or_default();
        let said = String::from_utf8_lossy(&said).into_owned();
        let lines: Vec<&str> = said.lines().map(str::trim).filter(|line| !line.is_empty()).collect();
        let last = lines.get(lines.len().saturating_sub(LAST_LINES)..).unwrap_or_default().join("; ");
        let how = exit.map_or_else(|| format!("did not serve within {:?}", self.patience), crate::runtime::launch::exit_words);
        if last.is_empty() { format!("it {how}") } else { format!("it {how}; it said: {last}") }
    }
}

/// Ends whatever was started and is not to go on.
pub(super) async fn dismiss(started: Option<Rc<Started>>, stock: &Stock, inodes: BTreeSet<u64>) -> Result<(), String> {
    if let Some(started) = started {
        started.kill();
    }
    // One that never came to serve may be on its way still.
    for pid in masters_with(&inodes) {
        if let Ok(process) = Process::of(pid) {
            tracing::warn!(pid = pid.as_raw(), command = stock.words(), "php-fpm that did not serve is ended");
            Started(process).kill();
        }
    }
    let end = Instant::now() + Duration::from_secs(5);
    while !masters_with(&inodes).is_empty() {
        if Instant::now() >= end {
            return Err("the php-fpm that was started does not end".to_owned());
        }
        tokio::time::sleep(LOOK).await;
    }
    match stock {
        Stock::Unit(unit) => unit.rearm().await.map_err(|error| crate::runtime::chain(&error)),
        Stock::Command { .. } => Ok(()),
    }
}

/// Tells systemd, where it started this supervisor, that it is not to start it again.
pub(super) async fn end_own_unit(children: Children) {
    let pid = nix::unistd::getpid();
    let Some(unit) = Proc::default().service_of(pid).and_then(|name| Unit::new(&children, &name).ok()) else { return };
    if !matches!(unit.main_pid().await, Ok(Some(main)) if main == pid) {
        return;
    }
    if let Err(error) = unit.give_up().await {
        tracing::warn!(unit = unit.name(), error = %crate::runtime::chain(&error), "own unit was not stopped");
    }
}

/// Gives the masters, not ours, that have all of these sockets.
fn masters_with(inodes: &BTreeSet<u64>) -> BTreeSet<Pid> {
    let proc = Proc::default();
    let is_master = |pid: &Pid| proc.title(*pid).is_ok_and(|title| crate::runtime::takeover::config_of(&title).is_some());
    let lives = |pid: &Pid| proc.stat(*pid).is_ok_and(|stat| !stat.is_zombie());
    let has = |pid: &Pid| proc.socket_inodes_of(*pid).is_ok_and(|open| inodes.is_subset(&open));
    proc.pids().unwrap_or_default().into_iter().filter(|pid| is_master(pid) && lives(pid) && has(pid)).collect()
}
