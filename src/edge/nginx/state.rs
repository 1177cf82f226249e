//! Looking at NGINX: binary, configuration, running master.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::processes::{Doing, Process, master, workers};
use super::{command, file};
use crate::model::clients::{Clients, PassTarget};
use crate::model::endpoint::Endpoint;
use crate::model::problem::Problem;
use crate::model::settings::Nginx;
use crate::sys::children::Children;
use crate::text::nginx::{Build, Config, Layout, Reading};

/// Pages of 4 KiB, where the system does not say.
const USUAL_PAGE_BYTES: usize = 4096;

/// The running NGINX.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Running {
    /// The master.
    pub master: Process,
    /// Its workers that take new connections, in the order they started.
    pub workers: Vec<Process>,
}

/// NGINX as found.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct NginxState {
    /// The binary; `None` where there is none or it does not answer.
    pub build: Option<Build>,
    /// The clients of php-fpm; links in socket paths are resolved. Not `known` where the configuration could not be read whole.
    pub clients: Clients,
    /// Processes and includes as configured.
    pub layout: Layout,
    /// Whether the configuration reads files at the path of the include.
    pub reads_include: bool,
    /// Where the master writes its pid.
    pub pid_file: PathBuf,
    /// The running NGINX.
    pub running: Option<Running>,
    /// Why something above is missing.
    pub problems: Vec<Problem>,
}

/// Looks at NGINX. With `enabled = false` nothing is looked at.
///
/// # Cancel safety
/// Dropping the future ends the NGINX it runs.
pub async fn probe(children: &Children, settings: &Nginx) -> NginxState {
    let mut state = NginxState::default();
    if !settings.enabled {
        return state;
    }
    if !command::is_installed(&settings.binary) {
        state.problems.push(Problem::note(format!("there is no NGINX at {}", settings.binary.display())));
        return state;
    }
    match command::build(children, settings).await {
        Ok(build) => state.build = Some(build),
        Err(message) => {
            state.problems.push(Problem::warning(message));
            return state;
        }
    }
    match command::dump(children, settings).await {
        Ok(dump) => {
            let settings = settings.clone();
            // A large dump takes a while, and so do the links of a thousand sockets.
            let read = tokio::task::spawn_blocking(move || read(&dump, &settings)).await;
            (state.reads_include, Reading { clients: state.clients, layout: state.layout, problems: state.problems }) =
                read.unwrap_or_else(|error| (false, unread(&error.to_string())));
            if let Some(build) = &state.build {
                build.fill_in(&mut state.clients);
            }
        }
        Err(message) => state.problems = unread(&message).problems,
    }
    state.pid_file = pid_file(state.build.as_ref(), &state.layout);
    state.running = running(&state.pid_file, &settings.binary);
    state
}

/// Gives the host's page size, by which NGINX measures the zones of upstreams.
pub fn page_bytes() -> usize {
    let size = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok().flatten();
    size.and_then(|size| usize::try_from(size).ok()).unwrap_or(USUAL_PAGE_BYTES)
}

/// Gives the running NGINX.
pub(super) fn running(pid_file: &Path, binary: &Path) -> Option<Running> {
    let master = master(pid_file, binary)?;
    let serving = workers(master).into_iter().filter(|worker| worker.doing == Doing::Serving);
    Some(Running { master, workers: serving.map(|worker| worker.process).collect() })
}

fn unread(message: &str) -> Reading {
    let message = format!("NGINX's configuration cannot be read: {message}");
    let problem = Problem::warning(message).remedy("run nginx -t and mend what it names; until then every pool may have unknown clients");
    Reading { problems: vec![problem], ..Reading::default() }
}

fn read(dump: &[u8], settings: &Nginx) -> (bool, Reading) {
    let mut reading = Config::from_dump(dump).reading();
    let reads_include = reading.layout.includes(&settings.include) || reading.layout.includes(&file::real_path(&settings.include));
    resolve_links(&mut reading.clients);
    (reads_include, reading)
}

/// Replaces socket paths by what they lead to: `/var/run` is a link on most hosts, and so is Debian's `php-fpm.sock`.
fn resolve_links(clients: &mut Clients) {
    let mut known = BTreeMap::new();
    let mut resolve = |endpoint: &mut Endpoint| {
        if let Endpoint::Unix(path) = endpoint
            && path.is_absolute()
        {
            *path = known.entry(path.clone()).or_insert_with(|| file::real_path(path)).clone();
        }
    };
    for pass in &mut clients.passes {
        if let PassTarget::Endpoint(endpoint) = &mut pass.target {
            resolve(endpoint);
        }
    }
    clients.upstreams.iter_mut().flat_map(|upstream| &mut upstream.servers).for_each(resolve);
}

fn pid_file(build: Option<&Build>, layout: &Layout) -> PathBuf {
    let prefix = build.map_or(Path::new("/"), |build| &build.prefix);
    let compiled = build.and_then(|build| build.pid.as_deref());
    prefix.join(layout.pid.as_deref().or(compiled).unwrap_or(Path::new("logs/nginx.pid")))
}

/// Gives the path of a file with the links of its directory resolved too where the file itself is missing.
pub(super) fn canonical(path: &Path) -> Option<PathBuf> {
    if let Ok(real) = fs::canonicalize(path) {
        return Some(real);
    }
    Some(fs::canonicalize(path.parent()?).ok()?.join(path.file_name()?))
}
