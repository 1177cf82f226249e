//! The NGINX step: the include is brought up to date, NGINX reloads it, what it no longer names is retired.

use std::collections::{BTreeMap, BTreeSet};
use std::rc::Rc;
use std::sync::Arc;

use super::draft::Draft;
use super::events::Event;
use super::supervisor::Supervisor;
use crate::core::fleet::FleetAction;
use crate::edge::nginx::{self, IncludeOutcome, NginxState, NotReloaded, Process, RELOAD_TIME, Wanted};
use crate::model::endpoint::Endpoint;
use crate::model::ids::{PoolName, ShardId};
use crate::model::listen::Handover;
use crate::model::plan::UpstreamServer;
use crate::model::snapshot::NginxView;
use crate::sys::children::Children;
use crate::text::nginx::{IncludeInput, IncludeUpstream, Rendered, keepalive_for, render_include};

/// What a step came to.
#[derive(Debug)]
pub(super) struct NginxReport {
    /// How NGINX stands now.
    pub view: NginxView,
    /// The endpoints the include names now; `None` when the step failed and the old include stands.
    pub names: Option<BTreeSet<Endpoint>>,
    /// Whether NGINX was reloaded.
    pub reloaded: Reloaded,
    /// The workers that may still use the former include.
    pub(super) old_workers: Vec<Process>,
}

/// Whether NGINX was reloaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reloaded {
    /// It was.
    Yes,
    /// It was not.
    No,
}

/// What is known of NGINX.
#[derive(Debug)]
pub(super) struct NginxBook {
    view: NginxView,
    names: BTreeSet<Endpoint>,
    /// Endpoints that only old NGINX workers still name: an upload that they are reading connects when it has been read.
    lingering: BTreeSet<Endpoint>,
    /// Both, as the state file takes them.
    all: Arc<Vec<Endpoint>>,
    reloaded: u64,
    under_way: bool,
    again: bool,
}

impl NginxBook {
    /// Knows nothing yet.
    pub(super) fn new() -> Self {
        let view = NginxView { state: "off".to_owned(), detail: None, reloads: 0 };
        Self { view, names: BTreeSet::new(), lingering: BTreeSet::new(), all: Arc::default(), reloaded: 0, under_way: false, again: false }
    }

    /// Takes the endpoints that the include named when an earlier supervisor ended.
    pub(super) fn restore(&mut self, names: BTreeSet<Endpoint>) {
        self.names = names;
        self.gather();
    }

    /// Gives every endpoint that an NGINX worker may name.
    pub(super) fn all_names(&self) -> Arc<Vec<Endpoint>> {
        Arc::clone(&self.all)
    }

    /// Puts all names together, after each change of one of the sets.
    fn gather(&mut self) {
        self.all = Arc::new(self.names.union(&self.lingering).cloned().collect());
    }

    pub(super) fn view(&self) -> NginxView {
        self.view.clone()
    }

    /// Says why the include is not what it should be, where that is so. NGINX that is not there, does not run or is broken
    /// without the include is no failure of ours.
    pub(super) fn failure(&self) -> Option<String> {
        let NginxView { state, detail, .. } = &self.view;
        (state == "failed").then(|| detail.clone().unwrap_or_else(|| "the NGINX include was not taken".to_owned()))
    }

    /// Tells whether the include is being handled.
    pub(super) fn is_under_way(&self) -> bool {
        self.under_way
    }

    /// Tells whether the include names an endpoint, or NGINX workers from before the last reload may.
    pub(super) fn names(&self, endpoint: &Endpoint) -> bool {
        self.names.contains(endpoint) || self.lingering.contains(endpoint)
    }
}

impl Supervisor {
    /// Begins the NGINX step; a step that is under way is followed by another, so that changes are coalesced.
    pub(super) fn begin_nginx(&mut self) -> Vec<FleetAction> {
        if self.draft.nginx.is_none() {
            self.sockets.retire_marked();
            return self.fleet.nginx_done(self.now());
        }
        if self.nginx.under_way {
            self.nginx.again = true;
            return Vec::new();
        }
        self.nginx.under_way = true;
        let (children, events) = (self.children.clone(), self.events.clone());
        let (draft, drained, fallbacks) = (Rc::clone(&self.draft), self.drained.clone(), self.fallbacks());
        drop(tokio::task::spawn_local(async move {
            let report = step(&children, &draft, &drained, &fallbacks).await;
            super::tell(&events, Event::Nginx(Box::new(report))).await;
        }));
        Vec::new()
    }

    /// Gives where upstreams lead that no pool has any more but something refers to (S11): to the pool's own place where another
    /// php-fpm serves it. All others stay as they stand in the file.
    fn fallbacks(&self) -> BTreeMap<String, Endpoint> {
        let barred = self.barred.places().into_iter();
        barred.map(|(pool, endpoint)| (crate::core::plan::upstream_name(&self.settings, &pool), endpoint)).collect()
    }

    /// Takes a step's end.
    pub(super) fn nginx_reported(&mut self, report: NginxReport) {
        let reloads = self.nginx.view.reloads + u64::from(report.reloaded == Reloaded::Yes);
        if self.nginx.view.state != report.view.state {
            let detail = report.view.detail.as_deref().unwrap_or_default();
            tracing::info!(state = report.view.state, detail, "nginx include handled");
        }
        self.nginx.view = NginxView { reloads, ..report.view };
        self.nginx.under_way = false;
        self.snapshot_dirty = true;
        if let Some(names) = report.names {
            self.take_names(names, report.old_workers);
        }
        if std::mem::take(&mut self.nginx.again) {
            let actions = self.begin_nginx();
            self.carry_out(actions);
            return;
        }
        let actions = match self.nginx.failure() {
            Some(why) => self.fleet.nginx_failed(&why, self.now()),
            None => self.fleet.nginx_done(self.now()),
        };
        self.carry_out(actions);
    }
}

impl Supervisor {
    /// What the include no longer names is retired when the workers that read the former one are gone.
    fn take_names(&mut self, names: BTreeSet<Endpoint>, old_workers: Vec<Process>) {
        let former = std::mem::replace(&mut self.nginx.names, names);
        self.nginx.gather();
        if old_workers.is_empty() {
            // Workers of an earlier change may still be waited for.
            if self.nginx.lingering.is_empty() {
                self.nginx_settled(self.nginx.reloaded);
            }
            return;
        }
        self.nginx.reloaded += 1;
        self.nginx.lingering.extend(former.difference(&self.nginx.names).cloned());
        self.nginx.gather();
        let (events, reload, time) = (self.events.clone(), self.nginx.reloaded, self.settings.restart.drain_timeout);
        drop(tokio::task::spawn_local(async move {
            let still = nginx::wait_old_workers(&old_workers, time).await;
            if !still.is_empty() {
                tracing::warn!(workers = still.len(), "old nginx workers still run");
            }
            super::tell(&events, Event::NginxSettled { reload }).await;
        }));
    }

    /// The workers from before a reload are gone.
    pub(super) fn nginx_settled(&mut self, reload: u64) {
        if reload == self.nginx.reloaded {
            self.nginx.lingering.clear();
            self.nginx.gather();
            self.sockets.retire_marked();
        }
    }
}

/// Renders the include of a draft for the NGINX that was read with it.
pub fn include_of(draft: &Draft) -> Option<Rendered> {
    include_for(draft, draft.nginx.as_ref()?, &BTreeSet::new())
}

/// Writes the include of a draft as the supervisor would; gives how NGINX stands then.
pub async fn write_include(children: &Children, draft: &Draft) -> NginxView {
    step(children, draft, &BTreeSet::new(), &BTreeMap::new()).await.view
}

fn include_for(draft: &Draft, state: &NginxState, drained: &BTreeSet<ShardId>) -> Option<Rendered> {
    let settings = &draft.settings;
    let workers = state.running.as_ref().map_or(1, |running| running.workers.len().max(1));
    let workers = u32::try_from(workers).unwrap_or(u32::MAX);
    // A worker that leaves a socket that stays closes connections NGINX is about to use again (P21): none are kept there.
    let placements = draft.plan.shards.iter().flat_map(|shard| &shard.placements);
    let stays: BTreeSet<&PoolName> =
        placements.filter(|placement| placement.listener.handover == Handover::Share).map(|placement| &placement.pool).collect();
    let upstreams = draft
        .plan
        .pools
        .iter()
        .map(|pool| {
            let kept: Vec<UpstreamServer> =
                pool.servers.iter().filter(|server| !server.shards.iter().all(|shard| drained.contains(shard))).cloned().collect();
            // An upstream without servers is a fault to NGINX; the drained shard's path is lent to nobody then, but stays held.
            let servers = if kept.is_empty() { pool.servers.clone() } else { kept };
            let keepalive = if stays.contains(&pool.pool) { 0 } else { keepalive_for(settings.nginx.keepalive, &servers, workers) };
            IncludeUpstream { name: pool.upstream.clone(), pool: pool.pool.clone(), servers, keepalive }
        })
        .collect();
    let build = state.build.clone()?;
    let input = IncludeInput {
        instance: settings.instance.clone(),
        build,
        page_bytes: nginx::page_bytes(),
        balance: settings.nginx.balance,
        upstreams,
    };
    Some(render_include(&input))
}

/// Gives the endpoints that the include of a draft names.
fn names_of(draft: &Draft, drained: &BTreeSet<ShardId>) -> BTreeSet<Endpoint> {
    let servers = draft.plan.pools.iter().flat_map(|pool| &pool.servers);
    servers.filter(|server| !server.shards.iter().all(|shard| drained.contains(shard))).map(|server| server.endpoint.clone()).collect()
}

/// Makes the include lead where a draft says and waits until no NGINX worker leads elsewhere.
pub(super) async fn lead_where(children: Children, draft: Draft, drained: BTreeSet<ShardId>) -> Result<(), String> {
    if draft.nginx.is_none() {
        return Ok(());
    }
    let report = step(&children, &draft, &drained, &BTreeMap::new()).await;
    let why = || report.view.detail.clone().unwrap_or_default();
    if matches!(report.view.state.as_str(), "failed" | "broken") {
        return Err(format!("NGINX's include: {}", why()));
    }
    let still = nginx::wait_old_workers(&report.old_workers, draft.settings.restart.drain_timeout).await;
    if still.is_empty() { Ok(()) } else { Err(format!("{} NGINX workers go on with the former include", still.len())) }
}

async fn step(children: &Children, draft: &Draft, drained: &BTreeSet<ShardId>, fallbacks: &BTreeMap<String, Endpoint>) -> NginxReport {
    let settings = &draft.settings.nginx;
    // Its master and workers are those of now: NGINX may have been started or upgraded since the reading.
    let state = nginx::probe(children, settings).await;
    let Some(rendered) = include_for(draft, &state, drained) else {
        return report("absent", Some(format!("{} was not found", settings.binary.display())));
    };
    for refused in &rendered.refused {
        tracing::warn!(pool = %refused.pool, error = %super::chain(&refused.error), "upstream was not written");
    }
    let wanted = Wanted { text: &rendered.text, fallbacks, reload_time: RELOAD_TIME };
    let applied = nginx::apply_include(children, settings, &state, wanted).await;
    for kept in &applied.kept {
        tracing::warn!(upstream = kept.name, uses = kept.used_at.len(), "upstream of a removed pool stays: something refers to it");
    }
    let names = names_of(draft, drained);
    NginxReport { old_workers: applied.old_workers, ..finish(applied.outcome, names, &state) }
}

fn finish(outcome: IncludeOutcome, names: BTreeSet<Endpoint>, state: &NginxState) -> NginxReport {
    match outcome {
        IncludeOutcome::Unchanged => with_names(report("current", unread(state)), names),
        IncludeOutcome::Written(NotReloaded::Off) => with_names(report("written", Some("reload = false".to_owned())), names),
        IncludeOutcome::Written(NotReloaded::NotRunning) => with_names(report("written", Some("NGINX does not run".to_owned())), names),
        IncludeOutcome::Reloaded => NginxReport { reloaded: Reloaded::Yes, ..with_names(report("current", unread(state)), names) },
        IncludeOutcome::Absent => report("absent", None),
        IncludeOutcome::BrokenByOthers(failure) => report("broken", Some(failure.to_string())),
        IncludeOutcome::Refused(failure) => report("failed", Some(format!("NGINX refused the include: {failure}"))),
        IncludeOutcome::NotTaken(why) | IncludeOutcome::Untested(why) => report("failed", Some(why)),
        IncludeOutcome::File(error) => report("failed", Some(super::chain(&error))),
        IncludeOutcome::Foreign { path, instance } => {
            let whose = instance.map_or_else(|| "was not written by polyfpm".to_owned(), |name| format!("belongs to instance {name}"));
            report("failed", Some(format!("{} {whose}; it was left alone", path.display())))
        }
    }
}

fn unread(state: &NginxState) -> Option<String> {
    (!state.reads_include).then(|| "no include directive of NGINX's configuration reads the file".to_owned())
}

fn report(state: &str, detail: Option<String>) -> NginxReport {
    NginxReport {
        view: NginxView { state: state.to_owned(), detail, reloads: 0 },
        names: None,
        reloaded: Reloaded::No,
        old_workers: Vec::new(),
    }
}

fn with_names(report: NginxReport, names: BTreeSet<Endpoint>) -> NginxReport {
    NginxReport { names: Some(names), ..report }
}
