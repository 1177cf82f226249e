//! Tests of the plan as a whole: a small world to plan for; what it should look like stands in the modules below.

mod cases;
mod properties;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::model::clients::{Clients, Pass, PassTarget, UpstreamBlock};
use crate::model::endpoint::Endpoint;
use crate::model::host::{Host, ResolvedListen};
use crate::model::ids::{GroupName, InstanceName, PoolName};
use crate::model::listen::Access;
use crate::model::plan::{Placement, Plan, Routing, ShardPlan};
use crate::model::pool::{ListenNames, Origin, Pool, PoolFiles, ProcessManager, Quarantined, WorkerNumbers};
use crate::model::problem::Place;
use crate::model::settings::{
    Balance, Control, CpuChoice, GroupSettings, Health, Keepalive, Limits, Listen, Log, LogFormat, LogLevel, Nginx, Php, Restart,
    RoutingChoice, Settings, ShardCount, Written,
};
use crate::model::topology::Topology;

use super::{PlanInput, Planned, plan};

/// Gives settings with two shards of at least 8 workers.
pub(super) fn settings() -> Settings {
    let seconds = Duration::from_secs;
    Settings {
        instance: InstanceName::new("php8.2"),
        file: PathBuf::from("/etc/polyfpm/php8.2.toml"),
        runtime_directory: PathBuf::from("/run/polyfpm/php8.2"),
        php: Php {
            binary: PathBuf::from("/usr/sbin/php-fpm8.2"),
            config: PathBuf::from("/etc/php/8.2/fpm/php-fpm.conf"),
            ini: None,
            prefix: None,
            define: Vec::new(),
            environment: Vec::new(),
            inherit_environment: Vec::new(),
        },
        groups: vec![group("default", &[], 2)],
        routing: RoutingChoice::Auto,
        listen: Listen { backlog_connections: None, directory: PathBuf::from("/run/polyfpm/php8.2/sockets") },
        limits: Limits {
            nofile: None,
            core: None,
            nproc: None,
            memlock: None,
            nice: None,
            oom_score_adjust: None,
            memory_max: None,
            cpu_weight: None,
        },
        health: Health { interval: seconds(2), timeout: seconds(1), hung_after: seconds(30), restart_hung: true },
        restart: Restart {
            ready_timeout: seconds(30),
            drain_timeout: seconds(300),
            settle: seconds(1),
            stable_after: seconds(60),
            backoff: seconds(1),
            give_up_after: 5,
            warmup: Vec::new(),
        },
        nginx: Nginx {
            enabled: true,
            binary: PathBuf::from("/usr/sbin/nginx"),
            config: PathBuf::from("/etc/nginx/nginx.conf"),
            include: PathBuf::from("/etc/nginx/conf.d/polyfpm-php8.2.conf"),
            upstream: "polyfpm_{instance}_{pool}".to_owned(),
            balance: Balance::LeastConn,
            keepalive: Keepalive::Fixed(0),
            reload: true,
        },
        control: Control { socket: PathBuf::from("/run/polyfpm/php8.2/control.sock"), group: None },
        metrics_listen: None,
        log: Log { level: LogLevel::Info, format: LogFormat::Text },
        written: Written::default(),
    }
}

fn group(name: &str, pools: &[&str], count: u16) -> GroupSettings {
    GroupSettings {
        name: GroupName::new(name),
        pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
        count: ShardCount::Fixed(count),
        cpus: CpuChoice::Auto,
        min_workers: 8,
    }
}

/// Everything a plan is made from, owned.
#[derive(Debug, Clone)]
struct World {
    settings: Settings,
    files: PoolFiles,
    quarantined: Vec<Quarantined>,
    clients: Clients,
    host: Host,
}

impl World {
    /// Gives a host with 4 CPUs, an NGINX without vhosts, and no pools.
    fn new() -> Self {
        Self {
            settings: settings(),
            files: PoolFiles::default(),
            quarantined: Vec::new(),
            clients: Clients { known: true, passes: Vec::new(), upstreams: Vec::new() },
            host: Host { topology: Topology::flat((0..4).collect()), somaxconn: 4096, ..Host::default() },
        }
    }

    fn pool(self, name: &str, workers: u32) -> Self {
        let endpoint = Endpoint::Unix(PathBuf::from(format!("/run/php/{name}.sock")));
        self.pool_at(name, workers, endpoint)
    }

    fn tcp_pool(self, name: &str, workers: u32, address: &str) -> Self {
        self.pool_at(name, workers, Endpoint::Tcp(address.parse().unwrap()))
    }

    fn pool_at(mut self, name: &str, workers: u32, endpoint: Endpoint) -> Self {
        let file = Arc::new(PathBuf::from(format!("/etc/php/8.2/fpm/pool.d/{name}.conf")));
        let name = PoolName::new(name);
        self.files.pools.push(Pool {
            name: name.clone(),
            header: format!("[{name}]").into_bytes(),
            origin: Origin { file: file.clone(), line: 1 },
            lines: Vec::new(),
            listen: endpoint.to_string(),
            listen_origin: Some(Origin { file, line: 3 }),
            listen_names: ListenNames::default(),
            listen_backlog: None,
            prefix: None,
            user: None,
            pm: ProcessManager::Static,
            workers: WorkerNumbers { max_children: workers, ..WorkerNumbers::default() },
            ping_path: None,
            ping_response: None,
            status_path: None,
            request_terminate_timeout: None,
        });
        let access = Access { uid: Some(33), gid: Some(33), mode: 0o660, acl_uids: Vec::new(), acl_gids: Vec::new() };
        let access = if endpoint.path().is_some() { access } else { Access::default() };
        self.host.listens.insert(name, ResolvedListen { endpoint, access, mounted_as: None, only_one: false });
        self
    }

    fn last_pool(mut self, change: impl FnOnce(&mut Pool)) -> Self {
        change(self.files.pools.last_mut().unwrap());
        self
    }

    fn group(mut self, name: &str, pools: &[&str], count: u16) -> Self {
        self.settings.groups.push(group(name, pools, count));
        self
    }

    fn pass(mut self, target: PassTarget, keep_conn: bool) -> Self {
        let line = u32::try_from(self.clients.passes.len() + 1).unwrap();
        let place = Place { file: PathBuf::from("/etc/nginx/sites/a.conf"), line };
        self.clients.passes.push(Pass { place, target, keep_conn });
        self
    }

    fn pass_to(self, target: &str) -> Self {
        let target =
            serde_json::from_value(serde_json::json!(target)).map_or(PassTarget::Upstream(target.to_owned()), PassTarget::Endpoint);
        self.pass(target, false)
    }

    fn upstream(mut self, name: &str, servers: &[&str], keepalive: Option<(u32, u64)>) -> Self {
        self.clients.upstreams.push(UpstreamBlock {
            place: Place { file: PathBuf::from("/etc/nginx/conf.d/up.conf"), line: 1 },
            name: name.to_owned(),
            servers: servers.iter().map(|server| serde_json::from_value(serde_json::json!(server)).unwrap()).collect(),
            keepalive: keepalive.map(|(count, _)| count),
            keepalive_time: keepalive.map(|(_, seconds)| Duration::from_secs(seconds)),
            keepalive_timeout: keepalive.map(|(_, seconds)| Duration::from_secs(seconds)),
        });
        self
    }

    fn plan_after(&self, previous: Option<&Plan>) -> Planned {
        let Self { settings, files, quarantined, clients, host } = self;
        plan(&PlanInput { settings, files, quarantined, clients, host, previous })
    }

    fn plan(&self) -> Planned {
        self.plan_after(None)
    }
}

/// Gives each shard as a line: its name, CPUs, and the pools with their workers, endpoint and handover.
fn shown(plan: &Plan) -> Vec<String> {
    let shard = |shard: &ShardPlan| {
        let cpus = shard.cpus.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        let pools = shard.placements.iter().map(|Placement { pool, workers, listener }| {
            format!(" {pool}×{} {} {:?}", workers.max_children, listener.endpoint, listener.handover)
        });
        format!("{} {cpus}:{}", shard.id, pools.collect::<Vec<_>>().join(","))
    };
    plan.shards.iter().map(shard).collect()
}

fn routing(planned: &Planned, pool: &str) -> (Routing, String) {
    let pool = planned.plan.pool(&PoolName::new(pool)).unwrap();
    (pool.routing, pool.reason.clone())
}

fn messages(planned: &Planned) -> Vec<String> {
    planned.problems.iter().map(|problem| format!("{:?} {problem}", problem.severity)).collect()
}
