//! Mixed faults at random under load, for as long as asked: `make soak MINUTES=30 SEED=7`. Two minutes of it belong to every run of the tests.
//!
//! A round is a load with some faults, each let settle or overtaken by the next. Then everybody's books are compared. The one loss that
//! is nobody's fault is the request a killed worker had: whether it had one is seen while the worker is stopped, before it is killed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::{SOON, has_a_request, split, through_upstream};
use crate::support::{Clients, Extra, Load, Report, Route, Running, Sandbox, Shard, eventually, stat, within};

/// What runs where nothing is said.
const USUAL: (u64, u64) = (120, 1);

/// Everything that was begun has ended and every shard serves within this.
const SETTLED_WITHIN: Duration = Duration::from_secs(60);

/// Descriptors a supervisor may have more of than when it first had so many shards: those of a look at the shards that is under way.
const MORE_FDS: usize = 12;

/// 16 MiB: what allocators keep. A leak passes it within half an hour.
const MORE_KIB: u64 = 16 * 1024;

/// Rounds, some five minutes.
const STRETCH: u32 = 30;

/// A xorshift generator: the same seed gives the same faults.
struct Dice(u64);

impl Dice {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % limit
    }

    fn one_of<T: Copy>(&mut self, from: &[T]) -> Option<T> {
        let place = usize::try_from(self.below(u64::try_from(from.len().max(1)).ok()?)).ok()?;
        from.get(place).copied()
    }
}

type Step = fn(&mut Soak);

const STEPS: [(&str, Step); 12] = [
    ("restart", |soak| soak.begin("restart")),
    ("reload with other pools", Soak::other_pools),
    ("reload with another number of shards", Soak::other_shards),
    ("kill a master", Soak::kill_a_master),
    ("kill a master and the supervisor", Soak::kill_both),
    ("kill a worker", Soak::kill_a_worker),
    ("kill the supervisor", Soak::kill_the_supervisor),
    ("reload NGINX", |soak| soak.host.nginx().reload()),
    ("park or unpark", Soak::park_or_unpark),
    ("reopen logs", |soak| soak.host.signal(Signal::SIGUSR1)),
    ("reload by signal", |soak| soak.host.signal(Signal::SIGHUP)),
    ("restart by signal", |soak| soak.host.signal(Signal::SIGUSR2)),
];

/// What came of it so far.
#[derive(Default)]
struct Tally {
    steps: BTreeMap<&'static str, u32>,
    requests: usize,
    lost: usize,
    /// How many may be lost: workers that were killed with a request.
    excused: usize,
    settled: u32,
    more_fds: usize,
    more_kib: u64,
}

struct Soak {
    host: Sandbox,
    dice: Dice,
    tally: Tally,
    shards: u16,
    edits: u32,
    parked: bool,
    rounds: u32,
    under_way: Vec<(&'static str, Running)>,
    /// Steps since everything was last settled: with more than one of them a command may be refused or cut off.
    overlapping: u32,
    /// What supervisors had when they first had so many shards: descriptors, memory in KiB.
    first: BTreeMap<(i32, u16), (usize, u64)>,
}

#[test]
fn mixed_faults_lose_nothing() {
    let number = |name: &str, usual: u64| std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(usual);
    let (seconds, seed) = (number("SOAK_SECONDS", USUAL.0), number("SOAK_SEED", USUAL.1));
    let host = split(|host| {
        host.pool("shop", 4);
        // Masters are killed on purpose, so nothing is given up.
        host.set("restart", "give_up_after", 1000);
        host.set("restart", "backoff", "50ms");
        host.set("restart", "stable_after", "500ms");
    });
    let (dice, tally) = (Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1), Tally::default());
    let mut soak = Soak {
        host,
        dice,
        tally,
        shards: 2,
        edits: 0,
        parked: false,
        rounds: 0,
        under_way: Vec::new(),
        overlapping: 0,
        first: BTreeMap::new(),
    };
    let shop = Route::new("shop", &soak.host.pass("shop"));
    soak.host.edit(&through_upstream().route(shop));
    soak.settle();
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(seconds) {
        soak.round(began);
        eprintln!("{}", soak.line(seed, began.elapsed()));
    }
    soak.host.stop();
}

impl Soak {
    fn round(&mut self, began: Instant) {
        self.rounds += 1;
        for log in ["log/access", "log/nginx.error", "log/count"] {
            std::fs::File::options().write(true).open(self.host.ground().path(log)).and_then(|file| file.set_len(0)).expect("our own log");
        }
        let excused = self.tally.excused;
        let resting = |count| Clients::one_each(count).resting(Duration::from_millis(5));
        let (ground, nginx) = (self.host.ground(), self.host.nginx());
        let long = [Extra::Long(Duration::from_millis(700)), Extra::Streams];
        let loads = [Load::start(ground, nginx, "www", resting(3), &long), Load::start(ground, nginx, "shop", resting(2), &[])];
        for _ in 0..4 + self.dice.below(5) {
            let (name, step) = self.dice.one_of(&STEPS).expect("a step");
            eprintln!("{:7.1} s  {name}", began.elapsed().as_secs_f64());
            *self.tally.steps.entry(name).or_default() += 1;
            self.overlapping += 1;
            step(self);
            if self.dice.below(3) == 0 {
                within(Duration::from_millis(self.dice.below(300)), || None::<()>);
            } else {
                self.settle();
            }
        }
        self.settle();
        let reports = loads.map(|load| load.finish(self.host.ground()));
        self.compare(&reports, self.tally.excused - excused);
    }

    /// Every loss must be that of a killed worker, and each worker had at most one request.
    fn compare(&mut self, reports: &[Report], excused: usize) {
        let lost: BTreeSet<String> = reports.iter().flat_map(lost).collect();
        let requests: usize = reports.iter().map(|report| report.samples.len()).sum();
        self.tally.requests += requests;
        self.tally.lost += lost.len();
        let twice = reports.iter().flat_map(|report| &report.miscounted).find(|line| !line.ends_with("ran 0 times"));
        assert!(twice.is_none(), "{twice:?}");
        if excused == 0 {
            reports.iter().for_each(|report| report.assert_nothing_lost(10));
        }
        let faults = || reports.iter().map(Report::faults).collect::<String>();
        assert!(lost.len() <= excused, "{} lost, {excused} workers were killed with a request: {lost:#?}\n{}", lost.len(), faults());
    }

    fn begin(&mut self, word: &'static str) {
        let command = self.host.begin(&[word], "log/commands");
        self.under_way.push((word, command));
    }

    /// A pool comes or goes, and another one gets a new line.
    fn other_pools(&mut self) {
        self.edits += 1;
        let own = |name: &str| self.host.ground().text(&format!("run/{name}.sock"));
        self.host.pool_at("shop", &own("shop"), 4, &format!("env[EDIT] = {}", self.edits));
        if self.edits.is_multiple_of(2) {
            self.host.no_pool("guest");
        } else {
            self.host.pool("guest", 2);
        }
        self.begin("reload");
    }

    fn other_shards(&mut self) {
        self.unpark();
        self.shards = 5 - self.shards;
        self.host.set("shards", "count", i64::from(self.shards));
        self.begin("reload");
    }

    /// Gives the shards, where somebody answers.
    fn seen(&self) -> Vec<Shard> {
        if self.host.polyfpm(&["status"]).code == 0 { self.host.shards() } else { Vec::new() }
    }

    fn kill_a_master(&mut self) {
        let masters: Vec<i32> = self.seen().iter().filter_map(|shard| shard.pid).collect();
        if let Some(master) = self.dice.one_of(&masters) {
            kill(Pid::from_raw(master), Signal::SIGKILL).ok();
        }
    }

    fn kill_both(&mut self) {
        self.kill_a_master();
        self.kill_the_supervisor();
    }

    /// In every second stretch of rounds it lives, so that it can be seen to grow.
    fn kill_the_supervisor(&mut self) {
        if self.rounds / STRETCH % 2 == 1 {
            return;
        }
        *self.tally.steps.entry("(supervisors started)").or_default() += 1;
        self.host.signal(Signal::SIGKILL);
        self.host.supervisor().wait(SOON);
        self.host.launch();
        eventually(SOON, "the next supervisor answers", || (self.host.polyfpm(&["status"]).code == 0).then_some(()));
    }

    fn kill_a_worker(&mut self) {
        if self.seen().is_empty() {
            return;
        }
        let workers = self.host.pool_workers("www");
        let Some(worker) = self.dice.one_of(&workers) else { return };
        let pid = Pid::from_raw(worker);
        if kill(pid, Signal::SIGSTOP).is_err() {
            return;
        }
        let stopped = within(SOON, || stat(worker).is_none_or(|stat| !matches!(stat.state, 'R' | 'S' | 'D')).then_some(()));
        assert!(stopped.is_some(), "a worker that does not stop");
        self.tally.excused += usize::from(has_a_request(worker));
        kill(pid, Signal::SIGKILL).ok();
    }

    fn park_or_unpark(&mut self) {
        if self.parked {
            self.unpark();
        } else {
            self.settle();
            self.does(&["park", "default/2"]);
            self.parked = true;
        }
    }

    fn unpark(&mut self) {
        if self.parked {
            self.settle();
            self.does(&["unpark", "default/2"]);
            self.parked = false;
        }
    }

    /// Waits for the end of everything, brings what runs in line with what is written, and looks at the supervisor.
    fn settle(&mut self) {
        for (word, mut command) in std::mem::take(&mut self.under_way) {
            let code = command.exit_code(SETTLED_WITHIN);
            // What a signal asked for may begin late, and be in the way of the next command.
            let right = if self.overlapping > 1 { matches!(code, 0 | 1 | 69 | 75) } else { matches!(code, 0 | 75) };
            assert!(right, "{word} ended with {code}:\n{}\n{}", command.output(), self.host.log_tail());
        }
        self.until_all_serve();
        if self.overlapping > 0 {
            self.does(&["reload"]);
            self.until_all_serve();
        }
        self.overlapping = 0;
        self.tally.settled += 1;
        self.measure();
    }

    /// Gives a command that must succeed. What a signal asked for may begin at any time, and is waited for.
    fn does(&self, words: &[&str]) {
        let ended =
            eventually(SETTLED_WITHIN, "the supervisor is free", || Some(self.host.polyfpm(words)).filter(|ended| ended.code != 75));
        assert_eq!(ended.code, 0, "{words:?}: {}{}\n{}", ended.out, ended.err, self.host.log_tail());
    }

    fn until_all_serve(&self) {
        let good = |shard: &serde_json::Value| {
            let verdict = shard["verdict"].as_str().unwrap_or_default();
            let gone = shard["leaving"].as_array().is_some_and(Vec::is_empty);
            gone && matches!(verdict, "ready" | "busy" | "saturated" | "empty") || self.parked && verdict == "parked"
        };
        let look = || {
            let status = self.host.status();
            (status["job"].is_null() && status["shards"].as_array()?.iter().all(good)).then_some(())
        };
        if within(SETTLED_WITHIN, look).is_none() {
            panic!("not settled within {SETTLED_WITHIN:?}: {:#}\n{}", self.host.status(), self.host.log_tail());
        }
    }

    fn measure(&mut self) {
        let pid = self.host.supervisor().pid();
        let fds = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
        let text = std::fs::read_to_string(format!("/proc/{pid}/status")).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:")).unwrap_or_default();
        let kib: u64 = line.split_whitespace().next().and_then(|text| text.parse().ok()).unwrap_or_default();
        let (first_fds, first_kib) = *self.first.entry((pid, self.shards)).or_insert((fds, kib));
        self.tally.more_fds = self.tally.more_fds.max(fds.saturating_sub(first_fds));
        self.tally.more_kib = self.tally.more_kib.max(kib.saturating_sub(first_kib));
        assert!(fds <= first_fds + MORE_FDS, "{first_fds} descriptors became {fds}");
        assert!(kib <= first_kib + MORE_KIB, "{first_kib} KiB became {kib}");
    }

    fn line(&self, seed: u64, lasted: Duration) -> String {
        let Tally { steps, requests, lost, excused, settled, more_fds, more_kib } = &self.tally;
        let mut line = format!("soak: seed {seed}, {} s, {requests} requests, {} failed", lasted.as_secs(), lost.saturating_sub(*excused));
        let _written = write!(line, " ({lost} lost with {excused} workers that were killed with one)");
        let _written =
            write!(line, ", settled {settled} times, supervisor at most {more_fds} descriptors and {more_kib} KiB above its first");
        for (name, times) in steps {
            let _written = write!(line, "; {name} {times}");
        }
        line
    }
}

/// Names every request that its client saw fail, that NGINX needed a second try for, or that did not run once.
fn lost(report: &Report) -> BTreeSet<String> {
    let failed = report.failed.iter().map(|sample| sample.id.clone());
    let id_of =
        |line: &String| line.split("id=").nth(1).unwrap_or(line).split(['&', ' ', '\\', '\t']).next().unwrap_or_default().to_owned();
    let hidden = report.hidden.iter().map(id_of);
    let uncounted = report.miscounted.iter().filter_map(|line| line.split(' ').next()).map(str::to_owned);
    failed.chain(hidden).chain(uncounted).collect()
}
