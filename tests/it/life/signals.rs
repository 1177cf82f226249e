//! Every ordered pair of signals while a restart is under way and clients never let up.

use std::time::Duration;

use nix::sys::signal::Signal;

use super::{SOON, all_ready, at_rest, behind_upstream, pause, round_robin};
use crate::support::{Clients, Load, Sandbox};

const ALL: [Signal; 6] = [Signal::SIGTERM, Signal::SIGHUP, Signal::SIGUSR1, Signal::SIGINT, Signal::SIGUSR2, Signal::SIGQUIT];
const ENDING: [Signal; 3] = [Signal::SIGTERM, Signal::SIGINT, Signal::SIGQUIT];

/// How far into the restart the first signal comes, and how long after it the second: another moment for each pair.
fn moments(pair: usize) -> (Duration, Duration) {
    let step = u64::try_from(pair).expect("a small number");
    (Duration::from_millis(step * 37 % 240), Duration::from_millis(step * 7 % 26))
}

fn pairs(of: impl Fn(Signal, Signal) -> bool) -> Vec<(Signal, Signal)> {
    let all = ALL.into_iter().flat_map(|first| ALL.into_iter().map(move |second| (first, second)));
    all.filter(|(first, second)| of(*first, *second)).collect()
}

#[test]
fn signals_that_do_not_end_it_lose_nothing_and_leave_every_shard_ready() {
    let host = round_robin(|_| {});
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::keeping(3), &[]);
    let going_on = pairs(|first, second| !ENDING.contains(&first) && !ENDING.contains(&second));
    assert_eq!(going_on.len(), 9);
    for (number, (first, second)) in going_on.into_iter().enumerate() {
        let before = host.shards();
        let restarts = [first, second].contains(&Signal::SIGUSR2);
        let mut restart = host.begin(&["restart"], &format!("log/restart-{number}"));
        let (after, apart) = moments(number);
        super::eventually(SOON, "the restart is under way", || host.status()["job"].is_object().then_some(()));
        pause(after);
        host.signal(first);
        pause(apart);
        host.signal(second);
        assert_eq!(restart.exit_code(SOON), 0, "{first} {second}: {}", restart.output());
        // A restart that a signal asked for follows the one under way.
        let wanted = if restarts { 2 } else { 1 };
        let reached = |old: &crate::support::Shard, new: &crate::support::Shard| new.generation == old.generation + wanted;
        crate::support::until_shards(&host, "every shard has the generation it should", |now| {
            now.iter().zip(&before).all(|(new, old)| reached(old, new) && new.verdict == "ready")
        });
        at_rest(&host);
    }
    load.finish(host.ground()).assert_nothing_lost(250);
}

fn ending_pairs(chosen: impl Fn(Signal) -> bool) {
    let mut host = round_robin(|_| {});
    let mut first_round = true;
    for (number, (first, second)) in pairs(|first, second| ENDING.contains(&first) || ENDING.contains(&second)).into_iter().enumerate() {
        if !chosen(first) {
            continue;
        }
        if !std::mem::take(&mut first_round) {
            host.run();
            behind_upstream(&host);
        }
        end_by(&mut host, number, (first, second));
    }
}

/// Stops the supervisor by a pair of signals: what was answered before the ending one was answered rightly, and nothing is left.
fn end_by(host: &mut Sandbox, number: usize, (first, second): (Signal, Signal)) {
    all_ready(host);
    let load = Load::start(host.ground(), host.nginx(), "www", Clients::one_each(2), &[]);
    let mut restart = host.begin(&["restart"], &format!("log/restart-{number}"));
    super::eventually(SOON, "the restart is under way", || host.status()["job"].is_object().then_some(()));
    let (after, apart) = moments(number);
    pause(after);
    let told = load.now();
    host.signal(first);
    pause(apart);
    let ended = if ENDING.contains(&first) { told } else { load.now() };
    host.signal(second);
    let code = restart.exit_code(SOON);
    assert!(matches!(code, 0 | 1), "{first} {second}: the restart ended with {code}: {}", restart.output());
    host.ends();
    let report = load.finish(host.ground());
    let too_early: Vec<_> = report.failed.iter().filter(|sample| sample.at + sample.took < ended).collect();
    assert!(too_early.is_empty(), "{first} {second}: failed before the supervisor was told to end: {too_early:#?}");
    assert!(report.samples.iter().any(|sample| sample.fault.is_none()), "{first} {second}: nothing was answered");
}

#[test]
fn sigterm_and_any_other() {
    ending_pairs(|first| first == Signal::SIGTERM);
}

#[test]
fn sigint_and_any_other() {
    ending_pairs(|first| first == Signal::SIGINT);
}

#[test]
fn sigquit_and_any_other() {
    ending_pairs(|first| first == Signal::SIGQUIT);
}

#[test]
fn any_other_and_one_that_ends_it() {
    ending_pairs(|first| !ENDING.contains(&first));
}
