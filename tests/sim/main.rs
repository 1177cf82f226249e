//! The seeded simulation of shards and fleet (design, structure).
//!
//! The pure machines run in a world that a seed makes: masters that fail, die and do not listen, answers that come late,
//! twice or in another order, an operator who wants something all the time, and a clock that jumps. Beside them stands
//! what is really so, and after every step the promises of `core::shard` and `core::fleet` are held against it. Again and
//! again the world turns fair, and then everything that should serve must come to serve.
//!
//! `SIM_SEED=n` runs one seed and shows every step; `SIM_SEEDS=n` and `SIM_STEPS=n` widen the search.

mod job;
mod knobs;
mod operator;
mod random;
mod rare;
mod shadow;
mod site;
mod world;

use std::collections::BTreeSet;

use rare::Rare;
use world::{Fault, World};

/// Seeds of an ordinary run: hundreds, within seconds in an unoptimised build.
const SEEDS: u64 = 300;

/// Steps a seed.
const STEPS: usize = 3_000;

/// Steps between two fair times.
const ROUND: usize = 300;

/// How many lines before the fault are shown when nobody asked for the whole trace.
const SHOWN: usize = 80;

fn setting(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

fn run(seed: u64, steps: usize, world: &mut World) -> Result<(), Fault> {
    for id in world.ids.clone() {
        world.start(&id)?;
    }
    for step in 1..=steps {
        world.step().map_err(|fault| format!("seed {seed}, step {step}: {fault}"))?;
        if step % ROUND == 0 {
            world.come_to_rest().map_err(|fault| format!("seed {seed}, at rest after step {step}: {fault}"))?;
        }
    }
    // The stop comes at any time, in the middle of a job as well.
    for step in 1..=world.dice.below(ROUND as u64) {
        world.step().map_err(|fault| format!("seed {seed}, step {steps} + {step}: {fault}"))?;
    }
    world.end(ROUND).map_err(|fault| format!("seed {seed}, at the end: {fault}"))
}

#[test]
fn every_promise_holds_in_every_world() {
    let steps = usize::try_from(setting("SIM_STEPS", STEPS as u64)).expect("SIM_STEPS fits");
    let one = std::env::var("SIM_SEED").ok().and_then(|text| text.parse::<u64>().ok());
    let seeds = one.map_or(0..setting("SIM_SEEDS", SEEDS), |seed| seed..seed + 1);
    let mut seen: BTreeSet<Rare> = BTreeSet::new();
    let enough = seeds.end - seeds.start >= SEEDS && steps >= STEPS;
    for seed in seeds {
        let mut world = World::new(seed, one.is_some());
        let Err(fault) = run(seed, steps, &mut world) else {
            seen.append(&mut world.seen);
            continue;
        };
        // Once more with a trace: the same seed does the same again.
        let mut traced = World::new(seed, true);
        let again = run(seed, steps, &mut traced);
        assert_eq!(again, Err(fault.clone()), "seed {seed} does not replay");
        let (alive, pending) = (format!("{:?}", traced.alive()), format!("{:?}", traced.pending()));
        let knobs = format!("{:?}", traced.knobs);
        let trace = traced.into_trace();
        let from = if one.is_some() { 0 } else { trace.len().saturating_sub(SHOWN) };
        println!("{knobs}\n{}\nalive: {alive}\npending: {pending}", trace[from..].join("\n"));
        panic!("{fault}\nreplay: SIM_SEED={seed} SIM_STEPS={steps} cargo test --test sim");
    }
    let missed: Vec<Rare> = rare::ALL.into_iter().filter(|rare| !seen.contains(rare)).collect();
    assert!(!enough || missed.is_empty(), "no world met {missed:?}: the dice are too kind");
}
