use std::time::Duration;

use super::{Fleet, FleetAction, JobFailure, JobKind, JobOrder, NginxStep, QUIET_PATIENCE};
use crate::core::shard::{Action, Blueprint, Input, Shard, Slot, Sockets, Timing};
use crate::model::ids::{Generation, GroupName, MasterId, ShardId};
use crate::model::snapshot::Verdict;
use crate::model::time::Moment;

const TIMING: Timing = Timing {
    ready_timeout: Duration::from_secs(20),
    prove_timeout: Duration::from_secs(40),
    drain_timeout: Duration::from_secs(300),
    stable_after: Duration::from_secs(60),
    backoff: Duration::from_secs(1),
    give_up_after: 2,
};

const SETTLE: Duration = Duration::from_secs(1);

fn id(index: u16) -> ShardId {
    ShardId::new(&GroupName::new("store"), index)
}

fn order(kind: JobKind, shards: &[u16], nginx: NginxStep) -> JobOrder {
    JobOrder { kind, shards: shards.iter().map(|index| id(*index)).collect(), together: Vec::new(), retire: Vec::new(), nginx }
}

/// How a job ended: its failure; each shard with its generation and outcome.
type End<'a> = (Option<JobFailure>, Vec<(u16, Option<u64>, &'a str)>);

/// A fleet with its clock, and what it wanted last.
struct Bench {
    fleet: Fleet,
    now: Moment,
    actions: Vec<FleetAction>,
}

impl Bench {
    /// A fleet of shards 1 to `count`, whose first generations serve.
    fn serving(count: u16) -> Self {
        let mut bench = Self { fleet: Fleet::new(TIMING, SETTLE), now: Moment::START, actions: Vec::new() };
        for index in 1..=count {
            bench.actions = bench.fleet.start(&id(index), bench.now);
            bench.come(index, 1);
        }
        bench.pass(60);
        bench
    }

    fn begin(&mut self, order: JobOrder) -> u64 {
        let (number, actions) = self.fleet.begin(order, self.now).expect("no job is under way");
        self.actions = actions;
        number
    }

    fn tell(&mut self, index: u16, input: Input) {
        self.actions = self.fleet.handle(&id(index), input, self.now);
    }

    /// A master comes as far as serving.
    fn come(&mut self, index: u16, generation: u64) {
        let generation = Generation(generation);
        let inputs = [Input::Launched { generation, pid: 7 }, Input::Ready { generation }, Input::Proven { generation }];
        for input in inputs.into_iter().chain([Input::Switched { generation }]) {
            self.tell(index, input);
        }
        assert_eq!(self.generation(index), Some(generation.0));
    }

    /// A master comes as far as being proven, or as serving where it needs no switch.
    fn come_held(&mut self, index: u16, generation: u64) {
        let generation = Generation(generation);
        for input in [Input::Launched { generation, pid: 7 }, Input::Ready { generation }, Input::Proven { generation }] {
            self.tell(index, input);
        }
    }

    fn quiet(&mut self, index: u16, generation: u64) {
        self.tell(index, Input::Quiet { generation: Generation(generation) });
    }

    fn launch_fails(&mut self, index: u16, generation: u64) {
        self.tell(index, Input::LaunchFailed { generation: Generation(generation), why: "no process".to_owned() });
    }

    fn dies(&mut self, index: u16, generation: u64) {
        self.tell(index, Input::Died { generation: Generation(generation), why: "it died".to_owned() });
    }

    fn pass(&mut self, seconds: u64) {
        self.now = self.now.after(Duration::from_secs(seconds));
        self.actions = self.fleet.on_time(self.now);
    }

    fn nginx_done(&mut self) {
        self.actions = self.fleet.nginx_done(self.now);
    }

    fn generation(&self, index: u16) -> Option<u64> {
        self.fleet.shard(&id(index)).and_then(Shard::serving).map(|(generation, _)| generation.0)
    }

    fn launches(&self) -> Vec<(u16, u64, Sockets)> {
        let launch = |action: &FleetAction| {
            let FleetAction::Shard(Action::Launch { master, sockets, .. }) = action else { return None };
            Some((master.shard.index, master.generation.0, *sockets))
        };
        self.actions.iter().filter_map(launch).collect()
    }

    fn wants_nginx(&self) -> bool {
        self.actions.contains(&FleetAction::Nginx)
    }

    /// Gives how the job ended in the last call.
    fn finished(&self) -> Option<End<'_>> {
        let mut ends = self.actions.iter().filter_map(|action| {
            let FleetAction::Finished { failure, shards, .. } = action else { return None };
            let runs = shards.iter().map(|runs| (runs.shard.index, runs.generation.map(|g| g.0), runs.outcome.as_str()));
            Some((failure.clone(), runs.collect()))
        });
        let end = ends.next();
        assert!(ends.next().is_none(), "a job ends once");
        end
    }

    fn steps(&self) -> Vec<&'static str> {
        let step = |action: &FleetAction| {
            let FleetAction::Progress { step, .. } = action else { return None };
            Some(*step)
        };
        self.actions.iter().filter_map(step).collect()
    }
}

fn failure(index: u16, generation: u64, why: &str) -> Option<JobFailure> {
    Some(JobFailure { shard: Some(id(index)), generation: Some(Generation(generation)), why: why.to_owned() })
}

#[test]
fn a_restart_visits_one_shard_after_the_other() {
    let mut bench = Bench::serving(2);
    bench.begin(order(JobKind::Restart, &[1, 2], NginxStep::None));
    assert_eq!(bench.launches(), [(1, 2, Sockets::New)], "one at a time");
    bench.come(1, 2);
    bench.quiet(1, 1);
    assert_eq!(bench.launches(), [], "it has to settle");
    assert_eq!(bench.fleet.deadline(), Some(bench.now.after(SETTLE)));
    bench.pass(1);
    assert_eq!((bench.steps(), bench.launches()), (vec!["done", "binding"], vec![(2, 2, Sockets::New)]));
    bench.come(2, 2);
    bench.quiet(2, 1);
    bench.pass(1);
    assert_eq!(bench.finished(), Some((None, vec![(1, Some(2), "changed"), (2, Some(2), "changed")])));
    assert_eq!(bench.fleet.job(), None);
}

#[test]
fn another_job_is_refused_with_the_first_ones_progress() {
    let mut bench = Bench::serving(2);
    let number = bench.begin(order(JobKind::Restart, &[1, 2], NginxStep::None));
    for kind in [JobKind::Restart, JobKind::Apply, JobKind::Park, JobKind::Unpark, JobKind::Drain, JobKind::Heal] {
        let refusal = bench.fleet.begin(order(kind, &[1], NginxStep::None), bench.now).unwrap_err();
        assert_eq!((refusal.0.job, refusal.0.done, refusal.0.total), (number, 0, 2));
        assert_eq!(refusal.to_string(), "job 1 (restart) is under way: store/1#2: starting");
    }
    bench.launch_fails(1, 2);
    assert!(bench.fleet.begin(order(JobKind::Heal, &[1], NginxStep::None), bench.now).is_ok());
}

#[test]
fn the_first_failure_ends_a_restart_and_the_old_one_serves() {
    let mut bench = Bench::serving(3);
    bench.begin(order(JobKind::Restart, &[1, 2, 3], NginxStep::None));
    bench.come(1, 2);
    bench.quiet(1, 1);
    bench.pass(1);
    bench.launch_fails(2, 2);
    let shards = vec![(1, Some(2), "changed"), (2, Some(1), "failed"), (3, Some(1), "untouched")];
    assert_eq!(bench.finished(), Some((failure(2, 2, "no process"), shards)));
    bench.pass(600);
    assert_eq!(bench.launches(), []);
}

#[test]
fn a_turn_waits_for_quiet_with_patience() {
    let mut bench = Bench::serving(1);
    bench.begin(order(JobKind::Restart, &[1], NginxStep::None));
    bench.come(1, 2);
    bench.pass(QUIET_PATIENCE.as_secs() - 1);
    assert_eq!(bench.finished(), None, "the old one is not quiet");
    assert_eq!(bench.fleet.deadline(), Some(bench.now.after(Duration::from_secs(1))));
    bench.pass(1);
    assert_eq!(bench.finished(), Some((None, vec![(1, Some(2), "changed")])), "and it may take longer than the job");
    assert_eq!(bench.fleet.shard(&id(1)).unwrap().leaving().len(), 1);
}

#[test]
fn what_something_outside_detains_does_not_hold_the_turn() {
    let mut bench = Bench::serving(1);
    bench.begin(order(JobKind::Restart, &[1], NginxStep::None));
    bench.come(1, 2);
    bench.tell(1, Input::Detained { generation: Generation(1) });
    assert_eq!(bench.finished(), None, "settling still counts");
    bench.pass(1);
    assert!(bench.finished().is_some());
}

#[test]
fn a_master_that_dies_while_it_settles_has_to_settle_anew() {
    let mut bench = Bench::serving(1);
    bench.begin(order(JobKind::Restart, &[1], NginxStep::None));
    bench.come(1, 2);
    bench.quiet(1, 1);
    bench.dies(1, 2);
    assert_eq!(bench.launches(), [(1, 3, Sockets::Held)]);
    bench.pass(1);
    assert_eq!(bench.finished(), None);
    bench.come(1, 3);
    bench.quiet(1, 2);
    bench.pass(1);
    assert_eq!(bench.finished(), Some((None, vec![(1, Some(3), "changed")])));
}

#[test]
fn a_start_under_way_is_let_finish_and_then_rolled() {
    let mut bench = Bench::serving(1);
    bench.dies(1, 1);
    bench.begin(order(JobKind::Restart, &[1], NginxStep::None));
    assert_eq!(bench.launches(), []);
    bench.come_held(1, 2);
    assert_eq!(bench.launches(), [(1, 3, Sockets::New)]);
    bench.come(1, 3);
    for old in [1, 2] {
        bench.quiet(1, old);
    }
    bench.pass(1);
    assert_eq!(bench.finished(), Some((None, vec![(1, Some(3), "changed")])));
}

#[test]
fn a_restart_starts_what_is_halted_or_pausing() {
    let mut bench = Bench::serving(1);
    bench.dies(1, 1);
    bench.launch_fails(1, 2);
    assert!(bench.fleet.shard(&id(1)).unwrap().is_halted());
    assert_eq!(bench.fleet.verdict(&id(1)), Some(Verdict::Halted));
    bench.begin(order(JobKind::Restart, &[1], NginxStep::None));
    assert_eq!(bench.launches(), [(1, 3, Sockets::Held)]);
    bench.launch_fails(1, 3);
    assert_eq!(bench.finished(), Some((failure(1, 3, "no process"), vec![(1, None, "failed")])));
    bench.begin(order(JobKind::Heal, &[1], NginxStep::None));
    assert_eq!(bench.launches(), [(1, 4, Sockets::Held)], "the pause is cut short");
}

#[test]
fn what_is_down_on_purpose_is_skipped() {
    let mut bench = Bench::serving(3);
    bench.begin(order(JobKind::Park, &[1], NginxStep::None));
    bench.quiet(1, 1);
    assert_eq!(bench.finished(), Some((None, vec![(1, None, "changed")])));
    for kind in [JobKind::Restart, JobKind::Apply, JobKind::Heal] {
        bench.begin(order(kind.clone(), &[1], NginxStep::None));
        assert_eq!((bench.steps(), bench.launches()), (vec!["skipped"], vec![]), "{kind:?}");
        assert_eq!(bench.finished(), Some((None, vec![(1, None, "untouched")])), "{kind:?}");
    }
    bench.begin(JobOrder { retire: vec![id(2)], ..order(JobKind::Apply, &[], NginxStep::None) });
    bench.begin(order(JobKind::Restart, &[2], NginxStep::None));
    assert_eq!(bench.steps(), ["skipped"], "a restart brings nothing back");
    bench.begin(order(JobKind::Apply, &[2], NginxStep::None));
    assert_eq!(bench.launches(), [(2, 2, Sockets::Held)], "a plan that has it again does");
}

#[test]
fn an_unpark_ends_when_the_shard_serves_and_is_content_if_it_does() {
    let mut bench = Bench::serving(1);
    bench.begin(order(JobKind::Park, &[1], NginxStep::None));
    assert_eq!(bench.fleet.verdict(&id(1)), Some(Verdict::Parked));
    assert_eq!(bench.finished(), None, "the old one is not quiet");
    bench.quiet(1, 1);
    bench.begin(order(JobKind::Unpark, &[1], NginxStep::None));
    assert_eq!(bench.fleet.verdict(&id(1)), Some(Verdict::Starting));
    bench.come_held(1, 2);
    bench.pass(1);
    assert_eq!(bench.finished(), Some((None, vec![(1, Some(2), "changed")])));
    bench.begin(order(JobKind::Unpark, &[1], NginxStep::None));
    assert_eq!(bench.finished(), Some((None, vec![(1, Some(2), "changed")])), "it serves already");
}

#[test]
fn a_park_does_not_wait_for_what_was_told_to_finish() {
    let mut bench = Bench::serving(1);
    bench.begin(order(JobKind::Restart, &[1], NginxStep::None));
    bench.come(1, 2);
    bench.quiet(1, 1);
    bench.pass(301);
    bench.begin(order(JobKind::Park, &[1], NginxStep::None));
    bench.quiet(1, 2);
    assert!(bench.finished().is_some(), "generation 1 got SIGTERM long ago");
}

#[test]
fn a_park_fails_when_the_shard_is_started_meanwhile() {
    let mut bench = Bench::serving(1);
    bench.begin(order(JobKind::Park, &[1], NginxStep::None));
    bench.actions = bench.fleet.start(&id(1), bench.now);
    assert_eq!(bench.finished().unwrap().0, failure(1, 2, "it was started again"));
}

#[test]
fn nginx_comes_first_last_or_not_at_all() {
    let mut bench = Bench::serving(1);
    bench.begin(order(JobKind::Drain, &[1], NginxStep::First));
    assert!(bench.wants_nginx());
    assert_eq!(bench.generation(1), Some(1), "the upstream has to forget it first");
    bench.nginx_done();
    assert_eq!(bench.generation(1), None);
    bench.quiet(1, 1);
    assert!(bench.finished().is_some() && !bench.wants_nginx());

    bench.begin(order(JobKind::Unpark, &[1], NginxStep::Last));
    assert!(!bench.wants_nginx());
    bench.come_held(1, 2);
    bench.pass(1);
    assert!(bench.wants_nginx() && bench.finished().is_none());
    bench.nginx_done();
    assert_eq!(bench.finished(), Some((None, vec![(1, Some(2), "changed")])));
    bench.nginx_done();
    assert_eq!(bench.actions, [], "an end that no job waits for");
}

#[test]
fn an_apply_that_fails_brings_nginx_up_to_date_and_retires_nothing() {
    let mut bench = Bench::serving(3);
    bench.begin(JobOrder { retire: vec![id(3)], ..order(JobKind::Apply, &[1, 2], NginxStep::Last) });
    bench.launch_fails(1, 2);
    assert!(bench.wants_nginx() && bench.finished().is_none());
    bench.nginx_done();
    assert_eq!(bench.finished().unwrap().0, failure(1, 2, "no process"));
    assert_eq!((bench.generation(1), bench.generation(2), bench.generation(3)), (Some(1), Some(1), Some(1)));
}

#[test]
fn an_nginx_step_that_fails_holds_nobody_up_and_fails_the_job_at_its_end() {
    let mut bench = Bench::serving(2);
    bench.begin(JobOrder { retire: vec![id(2)], ..order(JobKind::Apply, &[], NginxStep::Last) });
    bench.actions = bench.fleet.nginx_failed("no room", bench.now);
    let why = |why: &str| Some(JobFailure { shard: None, generation: None, why: why.to_owned() });
    assert_eq!(bench.finished().unwrap().0, why("no room"));
    assert_eq!(bench.generation(2), Some(1), "NGINX may still name it");

    bench.begin(order(JobKind::Drain, &[1], NginxStep::First));
    bench.actions = bench.fleet.nginx_failed("no room", bench.now);
    assert_eq!(bench.generation(1), None, "its path is lent");
    bench.quiet(1, 1);
    assert_eq!(bench.finished().unwrap().0, why("no room"));
}

#[test]
fn an_apply_retires_after_nginx_has_forgotten() {
    let mut bench = Bench::serving(2);
    bench.begin(JobOrder { retire: vec![id(2)], ..order(JobKind::Apply, &[], NginxStep::Last) });
    assert!(bench.wants_nginx());
    assert_eq!(bench.generation(2), Some(1));
    bench.nginx_done();
    assert_eq!(bench.generation(2), None);
    bench.quiet(2, 1);
    bench.fleet.forget_gone();
    assert!(bench.fleet.shard(&id(2)).is_some(), "it is not gone yet");
    bench.tell(2, Input::Gone { generation: Generation(1) });
    bench.fleet.forget_gone();
    assert!(bench.fleet.shard(&id(2)).is_none());
    bench.actions = bench.fleet.start(&id(2), bench.now);
    assert_eq!(bench.launches(), [(2, 2, Sockets::Held)], "numbers are not used again");
}

#[test]
fn a_stop_ends_the_job_and_everything_after_it_is_refused() {
    let mut bench = Bench::serving(2);
    bench.begin(order(JobKind::Restart, &[1, 2], NginxStep::Last));
    bench.actions = bench.fleet.stop(bench.now);
    assert_eq!(bench.finished().unwrap().0.unwrap().why, "the supervisor is stopping");
    assert!(!bench.wants_nginx());
    let refusal = bench.fleet.begin(order(JobKind::Unpark, &[1], NginxStep::None), bench.now).unwrap_err();
    assert_eq!(refusal.to_string(), "job 1 (stop) is under way: masters are leaving");
    bench.actions = bench.fleet.start(&id(1), bench.now);
    assert_eq!(bench.actions, []);
    assert!(!bench.fleet.is_gone());
    bench.launch_fails(1, 2);
    for index in [1, 2] {
        bench.quiet(index, 1);
        bench.tell(index, Input::Gone { generation: Generation(1) });
    }
    assert!(bench.fleet.is_gone());
    assert_eq!(bench.fleet.deadline(), None);
}

#[test]
fn a_crash_outside_the_turn_does_not_touch_the_job() {
    let mut bench = Bench::serving(2);
    bench.begin(order(JobKind::Restart, &[1], NginxStep::None));
    bench.dies(2, 1);
    assert_eq!((bench.launches(), bench.steps()), (vec![(2, 2, Sockets::Held)], vec![]));
    bench.launch_fails(2, 2);
    assert!(bench.finished().is_none());
    bench.come(1, 2);
    bench.quiet(1, 1);
    bench.pass(1);
    assert_eq!(bench.finished(), Some((None, vec![(1, Some(2), "changed")])));
}

#[test]
fn verdicts_of_shards_that_do_not_serve() {
    let mut bench = Bench::serving(1);
    assert_eq!(bench.fleet.verdict(&id(1)), None, "health decides");
    assert_eq!(bench.fleet.verdict(&id(9)), Some(Verdict::Empty));
    bench.dies(1, 1);
    assert_eq!(bench.fleet.verdict(&id(1)), Some(Verdict::Flapping));
    bench.actions = bench.fleet.stop(bench.now);
    assert_eq!(bench.fleet.verdict(&id(1)), Some(Verdict::Empty));
}

#[test]
fn a_changed_configuration_that_fails_gives_way_to_the_last_good_one() {
    let mut bench = Bench::serving(1);
    bench.fleet.blueprint_changed(&id(1));
    bench.begin(order(JobKind::Apply, &[1], NginxStep::None));
    bench.dies(1, 2);
    assert_eq!(bench.finished().unwrap().0, failure(1, 2, "it died"));
    bench.dies(1, 1);
    let launch = Action::Launch { master: MasterId::new(&id(1), Generation(3)), sockets: Sockets::Held, blueprint: Blueprint::LastGood };
    assert!(bench.actions.contains(&FleetAction::Shard(launch)));
    assert!(matches!(bench.fleet.shard(&id(1)).unwrap().slot(), Slot::Starting(_)));
}

fn together(shards: &[u16]) -> JobOrder {
    JobOrder { together: vec![[id(1), id(2)].into()], ..order(JobKind::Restart, shards, NginxStep::None) }
}

impl Bench {
    fn opened(&self) -> Vec<(u16, u64)> {
        let opened = |action: &FleetAction| {
            let FleetAction::SwitchTogether { masters } = action else { return None };
            Some(masters.iter().map(|master| (master.shard.index, master.generation.0)).collect::<Vec<_>>())
        };
        self.actions.iter().find_map(opened).unwrap_or_default()
    }
}

#[test]
fn shards_that_share_a_listener_take_the_paths_when_the_last_of_them_is_proven() {
    let mut bench = Bench::serving(3);
    bench.begin(together(&[1, 2, 3]));
    assert_eq!(bench.launches(), [(1, 2, Sockets::Together), (2, 2, Sockets::Together)]);
    bench.come_held(1, 2);
    assert_eq!((bench.opened(), bench.generation(1)), (vec![], Some(1)), "the second is not proven yet");
    bench.come_held(2, 2);
    assert_eq!(bench.opened(), [(1, 2), (2, 2)]);
    for index in [1, 2] {
        bench.tell(index, Input::Switched { generation: Generation(2) });
        bench.quiet(index, 1);
    }
    bench.pass(1);
    assert_eq!(bench.launches(), [(3, 2, Sockets::New)], "the others follow one by one");
}

#[test]
fn one_that_fails_calls_the_others_off_and_every_old_master_stays() {
    let mut bench = Bench::serving(2);
    bench.begin(together(&[1, 2]));
    bench.come_held(1, 2);
    bench.tell(2, Input::Launched { generation: Generation(2), pid: 7 });
    bench.dies(2, 2);
    let (failed, runs) = bench.finished().expect("the job is over");
    assert_eq!(failed, failure(2, 2, "it died"));
    assert_eq!(runs, [(1, Some(1), "untouched"), (2, Some(1), "failed")]);
    let told = |action: &FleetAction| matches!(action, FleetAction::Shard(Action::Signal { master, .. }) if master.shard.index == 1);
    assert!(bench.actions.iter().any(told), "the proven one is told to go: {:?}", bench.actions);
}

#[test]
fn a_shard_is_rolled_alone_where_one_that_shares_with_it_would_stay_behind() {
    let mut bench = Bench::serving(2);
    bench.begin(together(&[2]));
    assert_eq!(bench.launches(), [(2, 2, Sockets::New)]);
}

#[test]
fn a_shard_that_is_down_does_not_keep_the_others_from_coming_together() {
    let mut bench = Bench::serving(2);
    bench.begin(order(JobKind::Park, &[2], NginxStep::None));
    bench.quiet(2, 1);
    bench.begin(together(&[1, 2]));
    assert_eq!(bench.launches(), [(1, 2, Sockets::Together)]);
}
