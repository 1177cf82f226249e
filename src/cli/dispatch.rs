//! From the command line to the command.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use super::args::{self, Args, Command};
use super::exit::Exit;
use super::report::{self, Format};
use super::{check, plan, remote, upstream};
use crate::edge::settings;
use crate::model::wire;
use crate::runtime::draft::{self, Draft, Fault, ReadingInput, Trials};
use crate::runtime::{self, RunError};
use crate::sys::children::{Children, Subreaper};
use crate::sys::lock::LockError;

/// Runs one command line, the program's name first, and gives how it ended.
pub fn run(line: impl IntoIterator<Item = OsString>) -> Exit {
    let Args { which, command } = match args::parse(line) {
        Ok(args) => args,
        Err(error) => return report::usage(&error),
    };
    if let Command::Completion { shell } = &command {
        return printed(&String::from_utf8_lossy(&args::completion(*shell)));
    }
    if let Command::Inherit { file } = &command {
        report::error(&runtime::inherit(file), None);
        return Exit::NotAchieved;
    }
    let file = match settings::locate(which.config.as_deref(), which.instance.as_deref(), Path::new(settings::ETC_DIRECTORY)) {
        Ok(file) => absolute(file),
        Err(error) => {
            report::error(&error, Some(&error.hint()));
            return Exit::Config;
        }
    };
    match remote_of(&command) {
        Some((command, format)) => remote_command(&file, command, format),
        None => local_command(&file, &command),
    }
}

/// Commands this process carries out itself.
fn local_command(file: &Path, command: &Command) -> Exit {
    match command {
        Command::Check { json } => check_command(file, Format::json_if(*json)),
        Command::Plan { json, diff: _ } => plan_command(file, Format::json_if(*json)),
        Command::Run => run_command(file),
        Command::Upstream { write } => upstream_command(file, *write),
        Command::SelfCheck => self_check_command(file),
        Command::Status { .. }
        | Command::Restart { .. }
        | Command::Reload { .. }
        | Command::Park { .. }
        | Command::Unpark { .. }
        | Command::Drain { .. }
        | Command::Stop
        | Command::Reopen
        | Command::Takeover { .. }
        | Command::Handback { .. }
        | Command::Upgrade { .. }
        | Command::Inherit { .. }
        | Command::Completion { .. } => Exit::Bug,
    }
}

fn absolute(file: PathBuf) -> PathBuf {
    std::path::absolute(&file).unwrap_or(file)
}

fn printed(text: &str) -> Exit {
    match report::print(text) {
        Ok(()) => Exit::Done,
        Err(_) => Exit::NotAchieved,
    }
}

/// Gives what the running supervisor is asked, for commands that it carries out.
fn remote_of(command: &Command) -> Option<(wire::Command, Format)> {
    let asked = match command {
        Command::Status { json, watch } => (wire::Command::Status { watch: *watch }, Format::json_if(*json)),
        Command::Restart { targets, pool, json } => {
            (wire::Command::Restart { selection: Command::selection(targets, pool.as_ref()) }, Format::json_if(*json))
        }
        Command::Plan { json, diff: true } => (wire::Command::Preview, Format::json_if(*json)),
        Command::Reload { json } => (wire::Command::Reload, Format::json_if(*json)),
        Command::Park { shard } => (wire::Command::Park { shard: shard.clone() }, Format::Text),
        Command::Unpark { shard } => (wire::Command::Unpark { shard: shard.clone() }, Format::Text),
        Command::Drain { shard } => (wire::Command::Drain { shard: shard.clone() }, Format::Text),
        Command::Stop => (wire::Command::Stop, Format::Text),
        Command::Reopen => (wire::Command::Reopen, Format::Text),
        Command::Handback { to, dry_run, json, command } => {
            (wire::Command::Handback { argv: command.clone(), to: to.clone(), dry_run: *dry_run }, Format::json_if(*json))
        }
        Command::Takeover { from, dry_run, json } => {
            (wire::Command::Takeover { from: from.clone(), dry_run: *dry_run }, Format::json_if(*json))
        }
        Command::Upgrade { json } => (wire::Command::Upgrade, Format::json_if(*json)),
        Command::Check { .. }
        | Command::Plan { .. }
        | Command::Run
        | Command::SelfCheck
        | Command::Upstream { .. }
        | Command::Inherit { .. }
        | Command::Completion { .. } => {
            return None;
        }
    };
    Some(asked)
}

fn remote_command(file: &Path, command: wire::Command, format: Format) -> Exit {
    match settings::load(file) {
        Ok(loaded) => remote::run(&loaded.settings.control.socket, command, format),
        // The supervisor goes on by the settings it has read: it can be asked, and stopped, while the file is wrong.
        Err(problems) => match settings::control_socket(file).filter(|socket| socket.exists()) {
            Some(socket) => remote::run(&socket, command, format),
            None => {
                report::problems(&problems);
                Exit::Config
            }
        },
    }
}

fn run_command(file: &Path) -> Exit {
    runtime::run(file).map_or_else(|error| not_started(&error), |()| Exit::Done)
}

/// Reads everything a start would read, and says that it could.
fn self_check_command(file: &Path) -> Exit {
    let bench = match Bench::new() {
        Ok(bench) => bench,
        Err(exit) => return exit,
    };
    match bench.runtime.block_on(runtime::self_check(&bench.children, file)) {
        Ok(fitness) => serde_json::to_string(&fitness).map_or(Exit::Bug, |line| printed(&(line + "\n"))),
        Err(error) => not_started(&error),
    }
}

fn not_started(error: &RunError) -> Exit {
    if let RunError::Problems(problems) = error {
        report::problems(problems);
        return Exit::Config;
    }
    let (exit, hint) = refusal(error);
    report::error(error, hint);
    exit
}

/// Gives how `run` ends when it could not start, and what to do.
fn refusal(error: &RunError) -> (Exit, Option<&'static str>) {
    if matches!(error, RunError::Lock(LockError::Held { .. })) {
        return (Exit::Busy, Some("another supervisor of this instance runs; polyfpm status shows it"));
    }
    if matches!(error, RunError::Newer { .. }) {
        return (Exit::Config, Some("start the version that wrote it; its masters go on serving meanwhile"));
    }
    let causes = std::iter::successors(Some(error as &dyn std::error::Error), |error| error.source());
    let denied = causes.filter_map(|cause| cause.downcast_ref::<std::io::Error>()).any(|cause| cause.kind() == ErrorKind::PermissionDenied);
    if denied { (Exit::Denied, Some("run as root")) } else { (Exit::CannotCreate, None) }
}

/// What a command needs that runs programs: an event loop and the owner of child processes.
struct Bench {
    runtime: tokio::runtime::Runtime,
    children: Children,
}

impl Bench {
    fn new() -> Result<Self, Exit> {
        let failed = |error: std::io::Error| {
            report::error(&error, None);
            Exit::Bug
        };
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().map_err(failed)?;
        let children = Children::start(Subreaper::No).map_err(failed)?;
        Ok(Self { runtime, children })
    }
}

/// Reads everything as the supervisor would, starts nothing, and acts on it.
fn with_draft(file: &Path, act: impl FnOnce(&Draft, &Bench) -> Exit) -> Exit {
    let bench = match Bench::new() {
        Ok(bench) => bench,
        Err(exit) => return exit,
    };
    let input = ReadingInput {
        file: file.to_owned(),
        previous: None,
        former_plan: None,
        barred: Vec::new(),
        serving: BTreeMap::new(),
        proven: BTreeSet::new(),
        taken: BTreeSet::new(),
        trials: Trials::None,
    };
    match bench.runtime.block_on(draft::read(&bench.children, &input)) {
        Ok(draft) => act(&draft, &bench),
        Err(unread) => {
            report::problems(&unread.problems);
            if unread.fault == Fault::Host { Exit::NotAchieved } else { Exit::Config }
        }
    }
}

fn upstream_command(file: &Path, write: bool) -> Exit {
    with_draft(file, |draft, bench| {
        let written = write.then(|| bench.runtime.block_on(runtime::write_include(&bench.children, draft)));
        upstream::run(draft, written)
    })
}

fn check_command(file: &Path, format: Format) -> Exit {
    let problems = match Bench::new() {
        Ok(bench) => bench.runtime.block_on(runtime::examine(&bench.children, file)),
        Err(exit) => return exit,
    };
    check::print(&problems, format).unwrap_or(Exit::NotAchieved)
}

fn plan_command(file: &Path, format: Format) -> Exit {
    with_draft(file, |draft, _| match format {
        Format::Json => printed(&format!("{:#}\n", plan::render_json(&draft.plan))),
        Format::Text => printed(&plan::render_table(&draft.plan, terminal_width())),
    })
}

/// Gives the width of the terminal; `None` for a pipe.
fn terminal_width() -> Option<u16> {
    rustix::termios::tcgetwinsize(std::io::stdout()).ok().map(|size| size.ws_col.max(60))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_that_is_refused_says_by_its_code_why() {
        let io = |kind: ErrorKind| std::io::Error::from(kind);
        let system = |kind| RunError::System { what: "make the runtime directory /run/x".to_owned(), source: io(kind) };
        let lock = |kind| RunError::Lock(LockError::Io { path: "/run/x/lock".into(), source: io(kind) });
        let held = RunError::Lock(LockError::Held { path: "/run/x/lock".into(), pid: None });
        for (error, exit) in [
            (held, Exit::Busy),
            (lock(ErrorKind::PermissionDenied), Exit::Denied),
            (system(ErrorKind::PermissionDenied), Exit::Denied),
            (lock(ErrorKind::ReadOnlyFilesystem), Exit::CannotCreate),
            (system(ErrorKind::StorageFull), Exit::CannotCreate),
        ] {
            assert_eq!(refusal(&error).0, exit, "{error:?}");
        }
    }
}
