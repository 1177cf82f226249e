use std::time::Duration;

use super::{Action, Blueprint, Input, LeavingStage, Left, Note, Quieting, Shard, Signal, Slot, Sockets, Stage, Target, Timing, Wanted};
use crate::model::ids::{Generation, GroupName, MasterId, ShardId};
use crate::model::time::Moment;

const TIMING: Timing = Timing {
    ready_timeout: Duration::from_secs(20),
    prove_timeout: Duration::from_secs(40),
    drain_timeout: Duration::from_secs(300),
    stable_after: Duration::from_secs(60),
    backoff: Duration::from_secs(1),
    give_up_after: 4,
};

fn id() -> ShardId {
    ShardId::new(&GroupName::new("store"), 2)
}

fn master(generation: u64) -> MasterId {
    MasterId::new(&id(), Generation(generation))
}

fn note(generation: u64, note: Note) -> Action {
    Action::Note { master: master(generation), note }
}

fn signal(generation: u64, signal: Signal, to: Target) -> Action {
    Action::Signal { master: master(generation), signal, to }
}

fn launched(generation: u64) -> Input {
    Input::Launched { generation: Generation(generation), pid: 100 + u32::try_from(generation).unwrap() }
}

fn launch_failed(generation: u64) -> Input {
    Input::LaunchFailed { generation: Generation(generation), why: "no process".to_owned() }
}

fn ready(generation: u64) -> Input {
    Input::Ready { generation: Generation(generation) }
}

fn proven(generation: u64) -> Input {
    Input::Proven { generation: Generation(generation) }
}

fn not_proven(generation: u64) -> Input {
    Input::NotProven { generation: Generation(generation), why: "no pong".to_owned() }
}

fn switched(generation: u64) -> Input {
    Input::Switched { generation: Generation(generation) }
}

fn switch_failed(generation: u64) -> Input {
    Input::SwitchFailed { generation: Generation(generation), why: "no rename".to_owned() }
}

fn died(generation: u64) -> Input {
    Input::Died { generation: Generation(generation), why: "it died".to_owned() }
}

fn quiet(generation: u64) -> Input {
    Input::Quiet { generation: Generation(generation) }
}

fn gone(generation: u64) -> Input {
    Input::Gone { generation: Generation(generation) }
}

/// A shard with its clock.
#[derive(Debug, Clone)]
struct Bench {
    shard: Shard,
    now: Moment,
}

impl Bench {
    fn new() -> Self {
        Self { shard: Shard::new(id(), TIMING), now: Moment::START }
    }

    /// A shard whose generation 1 has just begun to serve.
    fn serving() -> Self {
        let mut bench = Self::new();
        bench.all([Input::Start, launched(1), ready(1), proven(1)]);
        assert_eq!(bench.serving_generation(), Some(1));
        bench
    }

    /// A shard whose generation 1 serves while generation 2 is as far as `stage`.
    fn handing_over(stage: Stage) -> Self {
        let mut bench = Self::serving();
        let steps = [(Stage::Launching, Input::Roll), (Stage::AwaitingReady, launched(2)), (Stage::Proving, ready(2))];
        for (_, input) in steps.into_iter().chain([(Stage::Switching, proven(2))]).take_while(|(at, _)| *at as u8 <= stage as u8) {
            bench.tell(input);
        }
        assert_eq!(bench.shard.birth().map(|birth| birth.stage), Some(stage));
        bench
    }

    fn tell(&mut self, input: Input) -> Vec<Action> {
        self.shard.handle(input, self.now)
    }

    fn all<const N: usize>(&mut self, inputs: [Input; N]) -> Vec<Action> {
        inputs.into_iter().flat_map(|input| self.tell(input)).collect()
    }

    fn pass(&mut self, seconds: u64) -> Vec<Action> {
        self.now = self.now.after(Duration::from_secs(seconds));
        self.tell(Input::Time)
    }

    /// Lets time pass to the deadline; gives how long that was, and what followed.
    fn until_deadline(&mut self) -> (Duration, Vec<Action>) {
        let due = self.shard.deadline().expect("something is due");
        let waited = due - self.now;
        self.now = due;
        (waited, self.tell(Input::Time))
    }

    fn serving_generation(&self) -> Option<u64> {
        self.shard.serving().map(|(generation, _)| generation.0)
    }

    fn leaving_generations(&self) -> Vec<u64> {
        self.shard.leaving().iter().map(|leaving| leaving.generation().0).collect()
    }
}

fn launches(actions: &[Action]) -> Vec<(u64, Sockets, Blueprint)> {
    let launch = |action: &Action| {
        let Action::Launch { master, sockets, blueprint } = action else { return None };
        Some((master.generation.0, *sockets, *blueprint))
    };
    actions.iter().filter_map(launch).collect()
}

fn signals(actions: &[Action]) -> Vec<(u64, Signal, Target)> {
    let signal = |action: &Action| {
        let Action::Signal { master, signal, to } = action else { return None };
        Some((master.generation.0, *signal, *to))
    };
    actions.iter().filter_map(signal).collect()
}

#[test]
fn a_start_goes_through_every_stage() {
    let mut bench = Bench::new();
    let launch = Action::Launch { master: master(1), sockets: Sockets::Held, blueprint: Blueprint::Current };
    assert_eq!(bench.tell(Input::Start), [note(1, Note::Starting), launch]);
    assert_eq!(bench.tell(Input::Start), [], "a start on its way is not begun twice");
    assert_eq!(bench.tell(launched(1)), [note(1, Note::Launched)]);
    assert_eq!(bench.tell(ready(1)), [note(1, Note::Proving), Action::Prove { master: master(1) }]);
    assert_eq!(bench.tell(proven(1)), [note(1, Note::Serving)]);
    assert_eq!(bench.shard.slot(), &Slot::Serving { generation: Generation(1), pid: 101, since: bench.now });
    assert_eq!(bench.shard.deadline(), None);
}

#[test]
fn in_a_handover_the_old_one_leaves_after_the_switch_and_quits_when_quiet() {
    let mut bench = Bench::serving();
    assert_eq!(launches(&bench.tell(Input::Roll)), [(2, Sockets::New, Blueprint::Current)]);
    assert_eq!(signals(&bench.all([launched(2), ready(2)])), []);
    assert_eq!(bench.tell(proven(2)), [note(2, Note::Switching), Action::Switch { master: master(2) }]);
    assert_eq!(bench.serving_generation(), Some(1));
    let watch = Action::WatchQuiet { master: master(1), why: Quieting::Replaced };
    assert_eq!(bench.tell(switched(2)), [note(2, Note::Serving), note(1, Note::Leaving), watch]);
    assert_eq!(bench.serving_generation(), Some(2));
    assert_eq!(bench.tell(quiet(1)), [note(1, Note::Quitting), signal(1, Signal::Quit, Target::Master)]);
    assert_eq!(bench.tell(quiet(1)), []);
    assert_eq!(signals(&bench.tell(died(1))), [(1, Signal::Quit, Target::Group)], "what is left of its group is told, too");
    assert_eq!(bench.tell(gone(1)), [note(1, Note::Gone), Action::Discard { master: master(1) }]);
    assert!(bench.shard.leaving().is_empty());
}

#[test]
fn whatever_fails_in_a_handover_the_old_one_serves_on() {
    let cases: [(Stage, Option<Input>, &str); 9] = [
        (Stage::Launching, Some(launch_failed(2)), "no process"),
        (Stage::Launching, None, "was not started within 30s"),
        (Stage::AwaitingReady, Some(died(2)), "it died"),
        (Stage::AwaitingReady, None, "was not ready within 20s"),
        (Stage::Proving, Some(not_proven(2)), "no pong"),
        (Stage::Proving, Some(died(2)), "it died"),
        (Stage::Proving, None, "did not answer within 40s"),
        (Stage::Switching, Some(switch_failed(2)), "no rename"),
        (Stage::Switching, None, "did not take its paths within 30s"),
    ];
    for (stage, input, why) in cases {
        let mut bench = Bench::handing_over(stage);
        let since = bench.shard.serving_since();
        let actions = match input {
            Some(input) => bench.tell(input),
            None => bench.until_deadline().1,
        };
        assert!(actions.contains(&note(2, Note::Failed(why.to_owned()))), "{stage:?}, {why}: {actions:?}");
        assert!(signals(&actions).iter().all(|(generation, ..)| *generation == 2), "{stage:?}, {why}");
        assert!(launches(&actions).is_empty(), "{stage:?}, {why}: one failure, no second attempt");
        assert!(matches!(bench.shard.slot(), Slot::Serving { generation: Generation(1), .. }), "{stage:?}, {why}");
        assert_eq!((bench.shard.serving_since(), bench.shard.failures()), (since, 0), "{stage:?}, {why}");
        assert_eq!(bench.shard.last_failure(), Some(why));
    }
}

#[test]
fn a_crash_during_a_handover_leaves_the_same_birth_and_keeps_the_orphans() {
    for stage in [Stage::Launching, Stage::AwaitingReady, Stage::Proving, Stage::Switching] {
        let mut bench = Bench::handing_over(stage);
        assert_eq!(bench.tell(died(1)), [note(1, Note::Crashed("it died".to_owned()))], "{stage:?}");
        assert!(matches!(bench.shard.slot(), Slot::Starting(birth) if birth.generation == Generation(2) && birth.stage == stage));
        assert_eq!(bench.shard.leaving()[0].stage(), LeavingStage::Orphaned);
        let rest = [launched(2), ready(2), proven(2), switched(2)];
        let actions: Vec<Action> = rest.into_iter().flat_map(|input| bench.tell(input)).collect();
        let serving = actions.iter().position(|action| *action == note(2, Note::Serving)).expect("it serves");
        let watch = Action::WatchQuiet { master: master(1), why: Quieting::Replaced };
        assert!(actions[serving..].contains(&watch), "{stage:?}: orphans leave once a successor serves");
        assert_eq!(signals(&bench.tell(quiet(1))), [(1, Signal::Quit, Target::Group)], "a dead master is not signalled");
    }
}

#[test]
fn a_crash_is_answered_at_once_the_next_after_a_pause() {
    let mut bench = Bench::serving();
    assert_eq!(launches(&bench.tell(died(1))), [(2, Sockets::Held, Blueprint::Current)]);
    bench.all([launched(2), ready(2), proven(2)]);
    let actions = bench.tell(died(2));
    assert_eq!(launches(&actions), []);
    assert!(actions.contains(&Action::Lend { shard: id() }));
    let (waited, actions) = bench.until_deadline();
    assert_eq!(waited, Duration::from_secs(2), "the second failure in a row");
    assert_eq!(launches(&actions), [(3, Sockets::Held, Blueprint::Current)]);
    let actions = bench.all([launched(3), ready(3), proven(3)]);
    let take_back = actions.iter().position(|action| *action == Action::TakeBack { shard: id() });
    let serving = actions.iter().position(|action| *action == note(3, Note::Serving));
    assert!(take_back.is_some() && take_back < serving, "{actions:?}");
    bench.pass(60);
    assert_eq!((bench.shard.failures(), bench.shard.last_failure()), (0, None), "stable");
}

#[test]
fn a_stable_master_forgets_its_failures_even_if_nobody_looked_at_the_clock() {
    let crashed_once = || {
        let mut bench = Bench::serving();
        bench.all([died(1), launched(2), ready(2), proven(2)]);
        assert_eq!(bench.shard.failures(), 1);
        bench.now = bench.now.after(TIMING.stable_after);
        bench
    };
    let mut dies = crashed_once();
    assert_eq!(launches(&dies.tell(died(2))).len(), 1, "no pause");
    let mut replaced = crashed_once();
    replaced.all([Input::Roll, launched(3), ready(3), proven(3), switched(3)]);
    assert_eq!(replaced.shard.failures(), 0);
}

#[test]
fn pauses_double_and_end_in_the_halt() {
    let mut bench = Bench::new();
    bench.tell(Input::Start);
    let mut pauses = Vec::new();
    for generation in 1..TIMING.give_up_after.into() {
        bench.tell(launch_failed(generation));
        let (waited, actions) = bench.until_deadline();
        assert_eq!(launches(&actions), [(generation + 1, Sockets::Held, Blueprint::Current)]);
        pauses.push(waited.as_secs());
    }
    assert_eq!(pauses, [1, 2, 4]);
    let actions = bench.tell(launch_failed(4));
    let halted = note(4, Note::Halted("no process".to_owned()));
    assert_eq!(actions[2..], [halted, Action::Lend { shard: id() }]);
    assert_eq!(bench.tell(Input::Lent { left: Left::Nothing }), [Action::CloseHeld { shard: id() }]);
    assert!(bench.shard.is_halted());
    assert_eq!(bench.shard.deadline(), None, "it waits for the operator");
    assert_eq!(launches(&bench.tell(Input::Start)).len(), 1);
    assert_eq!((bench.shard.is_halted(), bench.shard.failures()), (false, 0));
}

#[test]
fn a_pause_is_at_most_a_minute() {
    let mut bench = Bench::new();
    bench.shard.set_timing(Timing { give_up_after: 40, ..TIMING });
    bench.tell(Input::Start);
    for generation in 1..30 {
        bench.tell(launch_failed(generation));
        let (waited, _) = bench.until_deadline();
        assert!(waited <= Duration::from_secs(60), "{waited:?}");
    }
}

#[test]
fn parking_gives_the_whole_budget_back() {
    let mut bench = Bench::new();
    bench.tell(Input::Start);
    for generation in 1..=4 {
        bench.tell(launch_failed(generation));
        bench.pass(120);
    }
    assert!(bench.shard.is_halted());
    bench.all([Input::Park, Input::Start, launch_failed(5)]);
    assert!(matches!(bench.shard.slot(), Slot::Pausing { .. }));
}

#[test]
fn the_last_good_configuration_is_tried_where_the_present_one_never_served() {
    let mut bench = Bench::serving();
    bench.shard.blueprint_changed();
    bench.all([Input::Roll, launched(2), died(2)]);
    assert_eq!(launches(&bench.tell(died(1))), [(3, Sockets::Held, Blueprint::LastGood)]);
    bench.all([launched(3), ready(3), proven(3)]);
    assert_eq!(launches(&bench.tell(Input::Roll)), [(4, Sockets::New, Blueprint::Current)], "a roll means the present one");
    bench.all([launched(4), ready(4), proven(4), switched(4)]);
    let actions = bench.tell(died(4));
    assert!(launches(&actions).is_empty());
    assert_eq!(launches(&bench.until_deadline().1), [(5, Sockets::Held, Blueprint::Current)], "it has served now");
}

#[test]
fn an_operators_start_tries_the_present_configuration_again() {
    let mut bench = Bench::serving();
    bench.shard.blueprint_changed();
    bench.all([Input::Roll, launched(2), died(2), died(1), launch_failed(3)]);
    assert!(matches!(bench.shard.slot(), Slot::Pausing { .. }));
    assert_eq!(launches(&bench.tell(Input::Start)), [(4, Sockets::Held, Blueprint::Current)]);
    bench.tell(launch_failed(4));
    assert_eq!(launches(&bench.until_deadline().1), [(5, Sockets::Held, Blueprint::LastGood)]);
}

#[test]
fn a_birth_made_before_a_change_does_not_vouch_for_it() {
    let mut bench = Bench::new();
    bench.all([Input::Start, launched(1)]);
    bench.shard.blueprint_changed();
    bench.all([ready(1), proven(1), Input::Roll, launched(2), died(2)]);
    assert_eq!(launches(&bench.tell(died(1))), [(3, Sockets::Held, Blueprint::LastGood)]);

    let mut bench = Bench::handing_over(Stage::Proving);
    bench.shard.blueprint_changed();
    bench.tell(not_proven(2));
    assert_eq!(launches(&bench.tell(died(1))), [(3, Sockets::Held, Blueprint::Current)], "nor against it");
}

#[test]
fn a_first_configuration_has_nothing_to_fall_back_to() {
    let mut bench = Bench::new();
    bench.all([Input::Start, launch_failed(1)]);
    bench.shard.blueprint_changed();
    assert_eq!(launches(&bench.until_deadline().1), [(2, Sockets::Held, Blueprint::Current)]);
}

#[test]
fn the_ladder_has_its_own_deadline_on_each_rung() {
    let mut bench = Bench::handing_over(Stage::Switching);
    bench.tell(switched(2));
    let rungs = [(300, Signal::Quit, Target::Master), (300, Signal::Term, Target::Master), (5, Signal::Kill, Target::Group)];
    for (seconds, signal, to) in rungs.into_iter().chain([(5, Signal::Kill, Target::Group)]) {
        let (waited, actions) = bench.until_deadline();
        assert_eq!((waited.as_secs(), signals(&actions)), (seconds, vec![(1, signal, to)]));
    }
    assert_eq!(signals(&bench.tell(died(1))), [(1, Signal::Kill, Target::Group)]);
    assert_eq!(bench.tell(died(1)), [], "said twice");
    bench.tell(gone(1));
    assert_eq!(bench.shard.deadline(), None);
}

#[test]
fn a_death_does_not_begin_the_time_to_finish_anew() {
    let mut bench = Bench::handing_over(Stage::Switching);
    bench.all([switched(2), quiet(1)]);
    bench.pass(299);
    bench.tell(died(1));
    assert_eq!(signals(&bench.pass(1)), [(1, Signal::Term, Target::Group)]);
}

#[test]
fn a_birth_that_took_requests_may_finish_them() {
    let cases = [(Stage::AwaitingReady, died(2), 10), (Stage::Proving, died(2), 300), (Stage::Proving, not_proven(2), 300)];
    for (stage, input, seconds) in cases {
        let mut bench = Bench::handing_over(stage);
        bench.tell(input.clone());
        assert_eq!(bench.until_deadline().0.as_secs(), seconds, "{stage:?}, {input:?}");
    }
}

#[test]
fn a_master_given_up_while_it_was_launched_is_killed_when_it_appears() {
    for give_up in [Input::Park, Input::Retire] {
        let mut bench = Bench::new();
        bench.tell(Input::Start);
        assert_eq!(signals(&bench.tell(give_up)), [], "nobody is there yet");
        assert_eq!(bench.shard.deadline(), None);
        assert_eq!(signals(&bench.tell(launched(1))), [(1, Signal::Kill, Target::Group)]);
        assert_eq!(bench.tell(launched(1)), [], "said twice");
        assert_eq!(bench.serving_generation(), None);
        bench.tell(died(1));
        assert_eq!(bench.tell(gone(1)).last(), Some(&Action::Discard { master: master(1) }));
        assert!(bench.shard.is_gone());
    }
    let mut bench = Bench::new();
    bench.all([Input::Start, Input::Park]);
    assert_eq!(bench.tell(launch_failed(1)), [Action::Discard { master: master(1) }]);
    assert_eq!(bench.tell(launch_failed(1)), [], "discarded once");
}

#[test]
fn a_park_in_the_middle_of_a_handover_sends_both_away() {
    let mut bench = Bench::handing_over(Stage::Proving);
    let actions = bench.tell(Input::Park);
    assert!(actions.contains(&Action::Lend { shard: id() }));
    assert_eq!(signals(&actions), [(2, Signal::Quit, Target::Master)], "the one that served falls quiet first");
    assert!(actions.contains(&Action::WatchQuiet { master: master(1), why: Quieting::Parked }));
    assert_eq!((bench.shard.slot(), bench.leaving_generations()), (&Slot::Empty, vec![2, 1]));
    assert_eq!(bench.tell(Input::Roll), [], "what is parked is not rolled");
    assert_eq!(launches(&bench.tell(Input::Start)), [(3, Sockets::Held, Blueprint::Current)]);
}

#[test]
fn what_is_retired_is_not_parked_but_may_come_back() {
    let mut bench = Bench::serving();
    assert!(bench.tell(Input::Retire).contains(&Action::WatchQuiet { master: master(1), why: Quieting::Retired }));
    assert_eq!(bench.tell(Input::Park), []);
    assert_eq!(bench.shard.wanted(), Wanted::Retired);
    assert_eq!(launches(&bench.tell(Input::Start)).len(), 1);
    assert_eq!(bench.shard.wanted(), Wanted::Up);
}

#[test]
fn orphans_of_a_shard_without_a_successor_serve_on_until_it_is_parked() {
    let mut bench = Bench::serving();
    bench.tell(died(1));
    for generation in 2..=4 {
        bench.tell(launch_failed(generation));
        bench.pass(60);
    }
    assert!(bench.shard.is_halted());
    assert_eq!(bench.shard.leaving()[0].stage(), LeavingStage::Orphaned);
    let watch = Action::WatchQuiet { master: master(1), why: Quieting::Parked };
    assert!(bench.tell(Input::Park).contains(&watch));
}

#[test]
fn the_end_of_a_group_tells_of_the_masters_death_too() {
    let mut serving = Bench::serving();
    let actions = serving.tell(gone(1));
    assert_eq!((launches(&actions).len(), signals(&actions)), (1, vec![]));
    assert!(actions.contains(&Action::Discard { master: master(1) }));
    assert_eq!(serving.tell(died(1)), []);

    let mut coming = Bench::handing_over(Stage::AwaitingReady);
    let actions = coming.tell(gone(2));
    assert_eq!(signals(&actions), []);
    assert!(actions.contains(&Action::Discard { master: master(2) }));
    assert_eq!(coming.serving_generation(), Some(1));
}

#[test]
fn answers_of_other_generations_and_repeated_ones_change_nothing() {
    let strays = |generation| {
        [
            launched(generation),
            launch_failed(generation),
            ready(generation),
            proven(generation),
            not_proven(generation),
            switched(generation),
            switch_failed(generation),
            died(generation),
            quiet(generation),
            Input::Detained { generation: Generation(generation) },
            gone(generation),
        ]
    };
    for stage in [Stage::Launching, Stage::AwaitingReady, Stage::Proving, Stage::Switching] {
        let bench = Bench::handing_over(stage);
        let before = format!("{bench:?}");
        let early = [launched(1), ready(1), proven(1), switched(1), quiet(1)];
        let (of_none, of_later) = (strays(0), strays(3));
        for stray in early.into_iter().chain(of_none).chain(of_later) {
            let mut bench = bench.clone();
            assert_eq!(bench.tell(stray.clone()), [], "{stage:?}, {stray:?}");
            assert_eq!(format!("{bench:?}"), before, "{stage:?}, {stray:?}");
        }
    }
}
