use proptest::prelude::*;

use super::*;

const SETTINGS: Health =
    Health { interval: Duration::from_secs(2), timeout: Duration::from_secs(1), hung_after: Duration::from_secs(30), restart_hung: true };

fn at(seconds: u64) -> Moment {
    Moment::at(Duration::from_secs(seconds))
}

fn beat(seconds: u64, active: u32, idle: u32, requests: u64) -> Option<Beat> {
    Some(Beat { at: at(seconds), active, idle, requests })
}

fn pool(name: &str) -> PoolSample {
    PoolSample {
        pool: PoolName::new(name),
        pm: ProcessManager::Static,
        workers: 4,
        shared: false,
        queue: Some(QueueDepth { now: 0, max: 511 }),
        connections: None,
        probe: Probe::NotAsked,
    }
}

impl PoolSample {
    fn queue(mut self, now: u32) -> Self {
        self.queue = Some(QueueDepth { now, max: 511 });
        self
    }

    fn connections(mut self, connections: u32) -> Self {
        self.connections = Some(connections);
        self
    }

    fn answered(mut self, accepted: u64, active: u32, idle: u32) -> Self {
        self.probe = Probe::Answered(Counts { accepted: Some(accepted), active: Some(active), idle: Some(idle) });
        self
    }

    fn failed(mut self) -> Self {
        self.probe = Probe::Failed;
        self
    }
}

fn sample(beat: Option<Beat>, pools: impl IntoIterator<Item = PoolSample>) -> Sample {
    Sample { generation: Generation(1), beat, pools: pools.into_iter().collect() }
}

/// Shows `of(second)` every two seconds up to `until` and gives the last verdict.
fn after(until: u64, of: impl Fn(u64) -> Sample) -> Verdict {
    let mut health = ShardHealth::default();
    for second in (0..=until).step_by(2) {
        health.observe(of(second), at(second));
    }
    health.verdict(at(until), &SETTINGS)
}

#[test]
fn nothing_seen_yet_is_ready() {
    assert_eq!(ShardHealth::default().verdict(at(100), &SETTINGS), Verdict::Ready);
}

#[test]
fn an_empty_queue_is_ready_whatever_the_probe_says() {
    assert_eq!(after(200, |_| sample(None, [pool("a").failed()])), Verdict::Ready);
    assert_eq!(after(200, |_| sample(beat(0, 0, 2, 0), [pool("a").failed().connections(0)])), Verdict::Ready);
}

#[test]
fn every_worker_at_work_and_nothing_waiting_is_busy() {
    assert_eq!(after(10, |s| sample(None, [pool("a").answered(s, 4, 0)])), Verdict::Busy);
    assert_eq!(after(10, |_| sample(None, [pool("a").connections(4)])), Verdict::Busy);
    assert_eq!(after(10, |s| sample(beat(s, 4, 0, s), [pool("a")])), Verdict::Busy);
    assert_eq!(after(10, |s| sample(None, [pool("a").answered(s, 3, 1)])), Verdict::Ready);
    assert_eq!(after(10, |s| sample(None, [pool("a").answered(s, 4, 0), pool("b")])), Verdict::Ready, "b has free workers");
}

#[test]
fn long_requests_in_every_worker_are_saturation_for_ever() {
    let hour = 3600;
    assert_eq!(after(hour, |_| sample(None, [pool("a").queue(9).answered(4, 4, 0)])), Verdict::Saturated);
    assert_eq!(after(hour, |_| sample(None, [pool("a").queue(9).connections(4)])), Verdict::Saturated);
    assert_eq!(after(hour, |s| sample(beat(s, 4, 0, 4), [pool("a").queue(9)])), Verdict::Saturated);
    // Idle connections kept alive hold workers (P40), whatever the counters say.
    assert_eq!(after(hour, |_| sample(None, [pool("a").queue(9).connections(4).answered(4, 0, 4)])), Verdict::Saturated);
}

#[test]
fn a_queue_with_free_workers_that_nobody_accepts_is_hung() {
    let stuck = |_| sample(None, [pool("a").queue(2).answered(7, 0, 4)]);
    assert_eq!(after(28, stuck), Verdict::Ready);
    assert_eq!(after(30, stuck), Verdict::Hung);
    assert_eq!(after(30, |_| sample(None, [pool("a").queue(2).connections(1)])), Verdict::Hung);
    assert_eq!(after(30, |s| sample(beat(s, 0, 4, 7), [pool("a").queue(2)])), Verdict::Hung);
    assert_eq!(after(30, |_| sample(None, [pool("a").queue(2).answered(7, 0, 0)])), Verdict::Hung, "on demand, and no worker comes");
}

#[test]
fn silence_from_everything_is_hung_and_one_voice_is_enough_against_it() {
    assert_eq!(after(30, |_| sample(None, [pool("a").queue(2).failed()])), Verdict::Hung);
    assert_eq!(after(60, |_| sample(beat(0, 4, 0, 7), [pool("a").queue(2).failed()])), Verdict::Hung, "the last heartbeat is old");
    assert_eq!(after(60, |s| sample(beat(s, 4, 0, 7), [pool("a").queue(2).failed()])), Verdict::Saturated);
    assert_eq!(after(60, |_| sample(None, [pool("a").queue(2)])), Verdict::Saturated, "it was not asked, as before PHP 8.0");
}

#[test]
fn movement_starts_the_time_anew() {
    let with = |pool_at: fn(u64) -> PoolSample| after(120, |s| sample(None, [pool_at(s)]));
    assert_eq!(with(|s| pool("a").queue(2).answered(s / 20, 1, 3)), Verdict::Ready);
    assert_eq!(with(|s| pool("a").queue(2).connections(if s / 20 % 2 == 0 { 1 } else { 2 })), Verdict::Ready);
    assert_eq!(with(|s| pool("a").queue(if s % 20 == 0 { 2 } else { 3 }).answered(7, 1, 3)), Verdict::Ready);
    assert_eq!(with(|s| pool("a").queue(if s % 20 == 0 { 0 } else { 3 }).answered(7, 1, 3)), Verdict::Ready);
    assert_eq!(with(|s| pool("a").queue(s.try_into().unwrap()).answered(7, 1, 3)), Verdict::Hung, "growing is no movement");
}

#[test]
fn a_shared_queue_that_moves_says_nothing_of_this_shard() {
    let of = |second: u64| {
        let mut seen = pool("a").queue(if second.is_multiple_of(4) { 2 } else { 3 }).failed();
        seen.shared = true;
        sample(None, [seen])
    };
    assert_eq!(after(40, of), Verdict::Hung);
}

#[test]
fn own_probes_in_the_heartbeat_are_no_movement() {
    // One probe an interval, counted by the master together with the pool's requests, of which there are none.
    let probed = |s: u64| sample(beat(s, 0, 6, s / 2 + 1), [pool("a").queue(2).answered(7, 0, 4)]);
    assert_eq!(after(40, probed), Verdict::Hung);
    let served = |s: u64| sample(beat(s, 0, 6, s + 1), [pool("a").queue(2).answered(7, 0, 4)]);
    assert_eq!(after(40, served), Verdict::Ready);
}

#[test]
fn waiting_status_workers_are_not_taken_for_the_pools_own() {
    // The pool was asked once; up to two idle workers can be those of its status socket.
    let of = |idle| move |s: u64| sample(beat(s, 4, idle, 7), [if s == 0 { pool("a").queue(2).failed() } else { pool("a").queue(2) }]);
    assert_eq!(after(60, of(2)), Verdict::Saturated);
    assert_eq!(after(60, of(3)), Verdict::Hung);
}

#[test]
fn one_stuck_pool_among_busy_ones_is_found() {
    let of = |s: u64| sample(beat(s, 3, 9, s * 100), [pool("a").answered(s * 50, 2, 2), pool("b").queue(1).answered(7, 0, 4)]);
    let mut health = ShardHealth::default();
    for second in (0..=40).step_by(2) {
        health.observe(of(second), at(second));
    }
    assert_eq!(health.verdict(at(40), &SETTINGS), Verdict::Hung);
    assert_eq!(health.cause(at(40), &SETTINGS), Some((&PoolName::new("b"), Duration::from_secs(40))));
    // The same pool not asked: the heartbeat may be its own.
    assert_ne!(after(40, |s| sample(beat(s, 3, 9, s * 100), [pool("a"), pool("b").queue(1)])), Verdict::Hung);
}

#[test]
fn a_new_generation_starts_with_a_clean_record() {
    let of = |s: u64| Sample { generation: Generation(1 + s / 20), ..sample(None, [pool("a").queue(2).answered(7, 0, 4)]) };
    assert_eq!(after(48, of), Verdict::Ready);
}

#[test]
fn two_looks_far_apart_prove_nothing() {
    let mut health = ShardHealth::default();
    for second in [0, 3000] {
        health.observe(sample(None, [pool("a").queue(2).answered(7, 0, 4)]), at(second));
        assert_eq!(health.verdict(at(second), &SETTINGS), Verdict::Ready);
    }
}

#[test]
fn an_unknown_queue_is_no_queue() {
    let of = |_| {
        let mut seen = pool("a").answered(7, 0, 4);
        seen.queue = None;
        sample(None, [seen])
    };
    assert_eq!(after(60, of), Verdict::Ready);
}

#[test]
fn numbers_come_from_the_best_source() {
    let numbers = |samples: &[(u64, Sample)]| {
        let mut health = ShardHealth::default();
        for (second, seen) in samples {
            health.observe(seen.clone(), at(*second));
        }
        health.numbers(at(samples.last().unwrap().0), &SETTINGS)
    };
    let own = numbers(&[
        (0, sample(beat(0, 9, 9, 0), [pool("a").queue(1).answered(10, 1, 3), pool("b").queue(2).answered(0, 0, 4)])),
        (2, sample(beat(2, 9, 9, 99), [pool("a").queue(1).answered(14, 2, 2), pool("b").queue(2).answered(2, 1, 3)])),
    ]);
    let queue = Some(QueueDepth { now: 3, max: 1022 });
    assert_eq!(own, Numbers { workers_busy: Some(3), queue, requests_per_second: Some(3.0) });
    let by_beat = numbers(&[(0, sample(beat(0, 1, 3, 5), [pool("a")])), (4, sample(beat(4, 2, 2, 25), [pool("a")]))]);
    assert_eq!((by_beat.workers_busy, by_beat.requests_per_second), (Some(2), Some(5.0)));
    let old =
        numbers(&[(0, sample(beat(0, 1, 3, 5), [pool("a").connections(2)])), (60, sample(beat(0, 1, 3, 5), [pool("a").connections(2)]))]);
    assert_eq!(old.workers_busy, Some(2), "an old heartbeat tells nothing of now");
    let mut shared = pool("a").queue(5);
    shared.shared = true;
    assert_eq!(numbers(&[(0, sample(None, [shared]))]), Numbers::default());
}

#[test]
fn only_pools_where_something_happens_are_asked() {
    let ondemand = |name: &str| PoolSample { pm: ProcessManager::Ondemand, ..pool(name) };
    let mut health = ShardHealth::default();
    let names = |plan: Vec<PoolName>| plan.iter().map(|pool| pool.as_str().to_owned()).collect::<Vec<_>>();
    health.observe(sample(beat(0, 1, 0, 5), (0..1000).map(|n| ondemand(&format!("p{n:04}")))), at(0));
    assert!(health.probe_plan(8).is_empty(), "idle on-demand pools are never woken");
    health.observe(
        sample(
            beat(2, 1, 0, 9),
            (0..1000).map(|n| ondemand(&format!("p{n:04}")).queue(u32::from(n == 700)).connections(u32::from(n == 3))),
        ),
        at(2),
    );
    assert_eq!(names(health.probe_plan(8)), ["p0700", "p0003"]);
    health.observe(sample(beat(4, 1, 0, 12), [ondemand("a"), pool("b"), pool("c")]), at(4));
    assert_eq!(names(health.probe_plan(8)), ["b", "c"], "the heartbeat moved");
    health.observe(sample(beat(6, 1, 0, 12), [ondemand("a"), pool("b"), pool("c")]), at(6));
    assert!(health.probe_plan(8).is_empty(), "the heartbeat stands still");
}

#[test]
fn pools_are_asked_in_turn_and_urgent_ones_first() {
    let mut health = ShardHealth::default();
    let pools = || ["a", "b", "c", "d", "e"].map(|name| pool(name).queue(u32::from(name == "d")));
    let mut asked = Vec::new();
    for second in 0..4 {
        health.observe(sample(None, pools()), at(second));
        asked.push(health.probe_plan(3).iter().map(|pool| pool.as_str().to_owned()).collect::<String>());
    }
    assert_eq!(asked, ["dab", "dce", "dab", "dce"]);
}

fn any_pool() -> impl Strategy<Value = PoolSample> {
    let probe = prop_oneof![
        Just(Probe::NotAsked),
        Just(Probe::Failed),
        (0_u64..3, 0_u32..6, 0_u32..6).prop_map(|(accepted, active, idle)| Probe::Answered(Counts {
            accepted: Some(accepted),
            active: Some(active),
            idle: Some(idle)
        })),
    ];
    (prop::option::weighted(0.9, 0_u32..3), prop::option::of(0_u32..6), any::<bool>(), probe).prop_map(
        |(queue, connections, shared, probe)| PoolSample {
            queue: queue.map(|now| QueueDepth { now, max: 9 }),
            connections,
            shared,
            probe,
            ..pool("a")
        },
    )
}

proptest! {
    #[test]
    fn a_shard_is_never_hung_when_its_queue_was_empty_within_the_time_out(
        looks in prop::collection::vec((1_u64..20, any_pool(), any::<bool>()), 1..60)
    ) {
        let (mut health, mut second, mut empty_at) = (ShardHealth::default(), 0, 0);
        for (pause, seen, heartbeat) in looks {
            second += pause;
            if seen.queue.is_none_or(|queue| queue.now == 0) {
                empty_at = second;
            }
            health.observe(sample(if heartbeat { beat(second, 1, 9, 0) } else { None }, [seen]), at(second));
            let hung = health.verdict(at(second), &SETTINGS) == Verdict::Hung;
            prop_assert!(!hung || second - empty_at >= 30, "empty at {empty_at}, hung at {second}");
        }
    }

    #[test]
    fn a_shard_is_never_hung_while_a_counter_moves(
        looks in prop::collection::vec((1_u64..9, any_pool()), 1..60), by_heartbeat in any::<bool>()
    ) {
        let (mut health, mut second, mut requests) = (ShardHealth::default(), 0, 0);
        for (pause, mut seen) in looks {
            second += pause;
            // More than the one probe that may be among them.
            requests += 2;
            if !by_heartbeat {
                seen.probe = Probe::Answered(Counts { accepted: Some(requests), active: Some(0), idle: Some(4) });
            }
            health.observe(sample(if by_heartbeat { beat(second, 0, 9, requests) } else { None }, [seen.queue(3)]), at(second));
            prop_assert_ne!(health.verdict(at(second), &SETTINGS), Verdict::Hung);
        }
    }

    #[test]
    fn a_calm_look_changes_what_a_close_one_would(
        looks in prop::collection::vec(
            (prop::option::of(0_u64..3), prop::collection::vec(any_pool(), 2), 0_u8..4, any::<bool>(), 1_u64..3), 1..40
        )
    ) {
        let (mut close, mut cheap, mut before) = (ShardHealth::default(), ShardHealth::default(), None);
        for (second, (requests, pools, queued, asked, generation)) in looks.into_iter().enumerate() {
            let second = second as u64 * 2;
            let pools: Vec<PoolSample> = pools.into_iter().zip(["a", "b"]).map(|(seen, name)| {
                let queue = if queued == 0 { seen.queue } else { Some(QueueDepth { now: 0, max: 511 }) };
                let probe = if asked { seen.probe } else { Probe::NotAsked };
                PoolSample { pool: PoolName::new(name), connections: None, shared: false, queue, probe, ..seen }
            }).collect();
            let queues: Vec<_> = pools.iter().map(|seen| seen.queue).collect();
            let calm = queued > 0 && !asked && before.as_ref() == Some(&queues);
            before = Some(queues);
            let look = Sample { generation: Generation(generation), ..sample(requests.and_then(|sum| beat(second, 1, 2, sum)), pools) };
            if !(calm && cheap.observe_calm(look.generation, look.beat, at(second))) {
                cheap.observe(look.clone(), at(second));
            }
            close.observe(look, at(second));
            prop_assert_eq!(format!("{close:?}"), format!("{cheap:?}"));
        }
    }
}
