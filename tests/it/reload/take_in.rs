//! Vhosts as they were reach all workers; vhosts that name the upstream make the pool split; and back.

use std::collections::BTreeSet;
use std::time::{Duration, Instant};

use super::{AROUND, mixed_load, routing};
use crate::support::{Route, Sandbox, Site};

const WORKERS: u32 = 32;

/// Asks for so many slow answers at once; gives how long all took and which workers gave them.
fn all_at_once(sandbox: &Sandbox, count: u32, ms: u32) -> (Duration, BTreeSet<String>) {
    let began = Instant::now();
    let answers: Vec<String> = std::thread::scope(|scope| {
        let asked: Vec<_> =
            (0..count).map(|id| scope.spawn(move || sandbox.nginx().body(&format!("/www/slow.php?ms={ms}&id=all-{id}")))).collect();
        asked.into_iter().map(|thread| thread.join().expect("an answer")).collect()
    });
    let pids = answers.iter().filter_map(|answer| answer.trim_end().rsplit(' ').next().map(str::to_owned)).collect();
    (began.elapsed(), pids)
}

#[track_caller]
fn assert_all_serve(sandbox: &Sandbox) {
    // Three seconds each: had two waited for one worker, six had passed.
    let (took, pids) = all_at_once(sandbox, WORKERS, 3000);
    assert_eq!(pids.len(), WORKERS as usize, "each was served by a worker of its own");
    assert!(took < Duration::from_millis(5500), "took {took:?}");
}

#[test]
fn unchanged_vhosts_reach_all_workers_and_the_way_to_split_and_back_loses_nothing() {
    let mut sandbox = Sandbox::new();
    sandbox.pool("www", WORKERS);
    sandbox.front_at_old_paths(&["www"]);
    sandbox.run();
    assert_eq!(routing(&sandbox, "www"), "shared");
    assert_all_serve(&sandbox);

    let load = mixed_load(&sandbox, "www");
    load.run_for(AROUND);
    sandbox.edit(&Site::one(Route::new("www", &Sandbox::upstream("www"))));
    sandbox.does(&["reload"]);
    assert_eq!(routing(&sandbox, "www"), "split");
    load.run_for(AROUND);
    load.finish(sandbox.ground()).assert_nothing_lost(100);
    assert_all_serve(&sandbox);

    let load = mixed_load(&sandbox, "www");
    load.run_for(AROUND);
    sandbox.edit(&Site::one(Route::new("www", &sandbox.pass("www"))));
    sandbox.does(&["reload"]);
    assert_eq!(routing(&sandbox, "www"), "shared");
    load.run_for(AROUND);
    load.finish(sandbox.ground()).assert_nothing_lost(100);
    assert_all_serve(&sandbox);
}
