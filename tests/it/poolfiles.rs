//! Our reading of pool files against php-fpm's own, case by case; `tests/corpus/README.md` describes the cases.

mod case;
mod dump;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::Duration;

use polyfpm::edge::fpm::{FoundFiles, Tool, Trial, find_bad_pools, installation, probe, read_files, try_shard};
use polyfpm::model::endpoint::Endpoint;
use polyfpm::model::host::FpmBuild;
use polyfpm::model::ids::{GroupName, PoolName, ShardId};
use polyfpm::model::listen::{Access, Handover, ListenerPlan};
use polyfpm::model::plan::{Placement, ShardPlan};
use polyfpm::model::pool::{Pool, PoolFiles, ProcessManager, WorkerNumbers};
use polyfpm::model::settings::Php;
use polyfpm::sys::children::{Children, Exit, Finished, Subreaper};
use polyfpm::sys::spawn::Command;
use polyfpm::text::fpm::{IncludeRequest, Reading, ShardChoices, SourceFile, StatusListener, read, render_shard};

use case::{Case, Expect, cases};

/// php-fpm hangs on some files; a busy machine gets 20 s for what takes 0.03 s.
const LIMIT: Duration = Duration::from_secs(20);

/// The environment of every run.
const ENVIRONMENT: [(&str, &str); 4] = [("FIXED", "fixed value"), ("EMPTY", ""), ("WORD", "on"), ("ODD", "a\"b;c$d\\e")];

fn binary() -> PathBuf {
    std::env::var_os("PHP_FPM").map_or_else(|| PathBuf::from("/usr/sbin/php-fpm8.2"), PathBuf::from)
}

fn environment() -> Vec<(OsString, OsString)> {
    let fixed = ENVIRONMENT.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    fixed.chain([("PATH".into(), "/usr/sbin:/usr/bin:/sbin:/bin".into())]).collect()
}

struct Bench {
    children: Children,
    build: FpmBuild,
}

impl Bench {
    async fn new() -> Self {
        let children = Children::start(Subreaper::No).unwrap();
        let build = probe(&tool(&children, Path::new("/dev/null"))).await.expect("php-fpm is needed for this test; name it in PHP_FPM");
        Self { children, build }
    }

    async fn run(&self, arguments: &[&str], file: &Path) -> Finished {
        let command = Command::new(binary()).args(arguments).arg("-y").arg(file).environment(environment());
        self.children.run(command, LIMIT, 8 << 20).await.unwrap()
    }

    async fn read(&self, main: &Path) -> (Tool, FoundFiles) {
        let tool = tool(&self.children, main);
        let found = read_files(&tool, &mut self.build.clone()).await.unwrap();
        (tool, found)
    }
}

fn tool(children: &Children, main: &Path) -> Tool {
    let php = Php {
        binary: binary(),
        config: main.to_owned(),
        ini: None,
        prefix: None,
        define: Vec::new(),
        environment: Vec::new(),
        inherit_environment: Vec::new(),
    };
    Tool::new(children.clone(), php, environment())
}

/// Every file below `directory`.
fn listing(directory: &Path) -> BTreeSet<PathBuf> {
    let mut found = BTreeSet::new();
    let mut left = vec![directory.to_owned()];
    while let Some(directory) = left.pop() {
        for entry in std::fs::read_dir(directory).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                found.insert(path);
            }
        }
    }
    found
}

/// A share of a pool's workers that is valid for its `pm`.
fn share(pool: &Pool, shards: u32) -> WorkerNumbers {
    let whole = pool.workers;
    let max_children = (whole.max_children / shards).max(1);
    if pool.pm != ProcessManager::Dynamic {
        return WorkerNumbers { max_children, ..WorkerNumbers::default() };
    }
    let low = whole.min_spare_servers.map(|number| (number / shards).clamp(1, max_children));
    let high = whole.max_spare_servers.map(|number| (number / shards).clamp(low.unwrap_or(1), max_children));
    WorkerNumbers {
        max_children,
        start_servers: low.filter(|_| whole.start_servers.is_some()),
        min_spare_servers: low,
        max_spare_servers: high,
    }
}

fn shard(files: &PoolFiles, index: u16, shards: u32) -> ShardPlan {
    let placement = |(number, pool): (usize, &Pool)| Placement {
        pool: pool.name.clone(),
        workers: share(pool, shards),
        listener: ListenerPlan {
            pool: pool.name.clone(),
            endpoint: Endpoint::Unix("/run/polyfpm-test.sock".into()),
            handover: Handover::Rename,
            access: Access::default(),
            backlog_connections: 511,
            alias: format!("/polyfpm/{index}/{number}"),
        },
    };
    let id = ShardId::new(&GroupName::new("default"), index);
    let process_max = files.global.process_max.map(|max| max.div_ceil(shards));
    ShardPlan { id, cpus: None, placements: files.pools.iter().enumerate().map(placement).collect(), process_max }
}

fn status_listeners(files: &PoolFiles) -> BTreeMap<PoolName, StatusListener> {
    let listener = |number: usize| StatusListener {
        alias: format!("/polyfpm/status/{number}"),
        status_path: "/status-0f3a".into(),
        ping_path: "/ping-77b1".into(),
    };
    files.pools.iter().enumerate().map(|(number, pool)| (pool.name.clone(), listener(number))).collect()
}

/// Key, element, value.
type Carried<'a> = (&'a str, Option<&'a str>, &'a str);

/// What a reading says of its pools apart from what a shard changes.
fn carried(files: &PoolFiles) -> BTreeMap<&str, Vec<Carried<'_>>> {
    const CHANGED: [&str; 15] = [
        "ping.response",
        "listen",
        "listen.acl_groups",
        "listen.acl_users",
        "listen.backlog",
        "listen.group",
        "listen.mode",
        "listen.owner",
        "pm.max_children",
        "pm.start_servers",
        "pm.min_spare_servers",
        "pm.max_spare_servers",
        "pm.status_listen",
        "pm.status_path",
        "ping.path",
    ];
    files
        .pools
        .iter()
        .map(|pool| {
            let kept = pool.lines.iter().filter(|line| line.element.is_some() || !CHANGED.contains(&line.key.as_str()));
            (pool.name.as_str(), kept.map(|line| (line.key.as_str(), line.element.as_deref(), line.value.as_str())).collect())
        })
        .collect()
}

/// Reads a generated configuration back: it must say the same of every pool, in the same order.
fn assert_read_back(found: &FoundFiles, plan: &ShardPlan, choices: ShardChoices<'_>, name: &str) {
    let reading = &found.reading;
    let rendered = render_shard(&reading.files, plan, choices).unwrap();
    let again = read(Path::new("/generated"), &found.context, &mut |request| match request {
        IncludeRequest::Main(path) => Ok(vec![SourceFile { path, content: Ok(rendered.text.clone()) }]),
        IncludeRequest::Pattern(pattern) => panic!("{name}: a generated file includes {}", pattern.display()),
    });
    assert_eq!(again.quarantined, [], "{name}\n{}", String::from_utf8_lossy(&rendered.text));
    assert_eq!(carried(&again.files), carried(&reading.files), "{name}");
    assert!(rendered.text.split(|byte| *byte == b'\n').count() == rendered.origins.len() + 1, "{name}: a line map that is too short");
}

/// Every generated configuration of these pools passes php-fpm's own test, and the test leaves no file behind.
async fn assert_shards_pass(tool: &Tool, found: &FoundFiles, directory: &Path, name: &str) {
    let reading = &found.reading;
    if reading.files.pools.is_empty() {
        return;
    }
    let before = listing(directory);
    let status = status_listeners(&reading.files);
    let none = BTreeMap::new();
    for (shards, index, status) in [(1, 1, &none), (3, 1, &status), (3, 3, &status)] {
        let plan = shard(&reading.files, index, shards);
        let choices = ShardChoices { drain_timeout: Duration::from_secs(300), status, heartbeat: Some(Duration::from_millis(1500)) };
        let trial = try_shard(tool, &reading.files, &plan, choices).await.unwrap();
        assert_eq!(trial, Trial::Accepted, "{name}: {shards} shards, shard {index}");
        assert_read_back(found, &plan, choices, name);
    }
    assert_eq!(listing(directory), before, "{name}: a test made files");
}

fn names(reading: &Reading) -> Vec<&str> {
    reading.files.pools.iter().map(|pool| pool.name.as_str()).collect()
}

fn faults(reading: &Reading) -> String {
    let quarantined = reading.quarantined.iter().map(|one| format!("{}: {}\n", one.pool, one.problem));
    reading.problems.iter().map(|problem| format!("{problem}\n")).chain(quarantined).collect()
}

async fn check(bench: &Bench, case: &Case) {
    let name = &case.name;
    let directory = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
    let main = case.write(directory.path());
    let written = listing(directory.path());
    let (tool, found) = bench.read(&main).await;
    let reading = &found.reading;
    let clean = reading.usable() && reading.quarantined.is_empty();
    assert!(found.watched.contains(&main), "{name}: the main file is not watched");

    if case.expect == Expect::Never {
        assert!(!clean, "{name}: polyfpm must refuse it");
    } else {
        let dumped = bench.run(&["-tt"], &main).await;
        let text = String::from_utf8_lossy(&dumped.stderr).into_owned();
        let accepted = dumped.exit == Exit::Code(0);
        let expected = match case.expect {
            Expect::Accept => (true, true),
            Expect::Refuse => (false, false),
            Expect::Trial => (true, false),
            Expect::Strict | Expect::Never => (false, true),
        };
        assert_eq!((clean, accepted), expected, "{name}: (polyfpm, php-fpm)\n{}\n{text}", faults(reading));
        if case.expect == Expect::Accept {
            dump::assert_same(&bench.build, &reading.files, &text, name);
        }
    }
    // The logs of that run go, so that a test which opens them is seen.
    for made in listing(directory.path()).difference(&written) {
        std::fs::remove_file(made).unwrap();
    }
    if let Some(good) = &case.good {
        assert!(reading.usable(), "{name}\n{}", faults(reading));
        assert_eq!(names(reading), *good, "{name}: the pools that run");
    }
    if case.expect == Expect::Trial {
        let bad = bad_pools(&tool, reading).await;
        assert_eq!(bad, *case.bad.as_ref().unwrap(), "{name}: the pools php-fpm refuses");
    } else if reading.usable() {
        assert_shards_pass(&tool, &found, directory.path(), name).await;
    }
}

/// The names of the pools that php-fpm refuses, each checked to be told with its place.
async fn bad_pools(tool: &Tool, reading: &Reading) -> Vec<String> {
    let plan = shard(&reading.files, 1, 1);
    let none = BTreeMap::new();
    let choices = ShardChoices { drain_timeout: Duration::from_secs(1), status: &none, heartbeat: None };
    let bad = find_bad_pools(tool, &reading.files, &plan, choices).await.unwrap();
    for one in &bad {
        let place = one.problem.place.as_ref().unwrap();
        let line = std::fs::read_to_string(&place.file).unwrap().lines().nth(place.line as usize - 1).unwrap().to_owned();
        assert!(one.problem.message.starts_with(&format!("[pool {}] ", one.pool)), "{}", one.problem);
        assert!(!line.starts_with('['), "{} points at {line}", one.problem);
        assert_eq!(one.problem.excerpt.as_deref(), Some(&*line));
    }
    bad.into_iter().map(|one| one.pool.to_string()).collect()
}

async fn check_file(file: &str) {
    let bench = Bench::new().await;
    for case in cases(file) {
        let (version, early, late) = (bench.build.version, case.needs, case.before);
        if early.is_none_or(|first| version >= first) && late.is_none_or(|end| version < end) {
            check(&bench, &case).await;
        }
    }
}

macro_rules! corpus {
    ($($test:ident: $file:literal,)*) => {
        $(
            #[tokio::test]
            async fn $test() {
                check_file($file).await;
            }
        )*
    };
}

corpus! {
    structure: "structure.cases",
    sections: "sections.cases",
    values: "values.cases",
    shapes_of_values: "shapes.cases",
    rules_of_pools: "pools.cases",
    includes: "include.cases",
    addresses: "listen.cases",
}

#[test]
fn the_corpus_is_large_enough() {
    let files = ["structure", "sections", "values", "shapes", "pools", "include", "listen"];
    let names: Vec<String> = files.iter().flat_map(|file| cases(&format!("{file}.cases"))).map(|case| case.name).collect();
    assert!(names.len() >= 60, "{}", names.len());
    assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), names.len(), "two cases have one name");
}

/// xorshift64: the same values on every run.
struct Seed(u64);

impl Seed {
    fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 >> 33).unwrap() % limit
    }
}

/// Values put together at random from the pieces that mean something to the scanner: those we accept are dumped in one
/// run and compared, each we refuse is run by itself.
#[tokio::test]
async fn values_made_at_random_mean_the_same() {
    const PIECES: [&str; 30] = [
        "a", "b c", " ", "  ", "\t", "\"", "\"", "'", "$", "${FIXED}", "${", "}", "\\", "\\\"", "|", "&", "^", "~", "!", "(", ")", "=",
        ";", "yes", "E_ALL", "null", "5", "-", "[", "]",
    ];
    let seed = std::env::var("POOLFILES_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_130);
    let rounds = std::env::var("POOLFILES_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let bench = Bench::new().await;
    let directory = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
    let mut random = Seed(seed);
    for _ in 0..rounds {
        let head = format!(
            "error_log = {0}/log\n[www]\nuser = www-data\nlisten = {0}/s\npm = static\npm.max_children = 1\n",
            directory.path().display()
        );
        let mut accepted = head.clone();
        let mut refused = 0;
        for number in 0..150 {
            let value: String = (0..=random.below(6)).map(|_| PIECES[random.below(PIECES.len())]).collect();
            let line = format!("php_value[v{number}] = {value}\n");
            let main = directory.path().join("one.conf");
            std::fs::write(&main, format!("{head}{line}")).unwrap();
            if bench.read(&main).await.1.reading.quarantined.is_empty() {
                accepted.push_str(&line);
                continue;
            }
            // An open single quote reads what php-fpm's buffer held before: refused here, whatever it makes of it.
            let odd = value.matches('\'').count() > 0;
            refused += 1;
            let exit = bench.run(&["-t"], &main).await.exit;
            assert!(odd || exit == Exit::Code(78), "seed {seed}: php-fpm accepts {line:?}");
        }
        assert!(refused > 20 && accepted.lines().count() > 20, "seed {seed}: {refused} refused");
        let main = directory.path().join("all.conf");
        std::fs::write(&main, &accepted).unwrap();
        let dumped = bench.run(&["-tt"], &main).await;
        let text = String::from_utf8_lossy(&dumped.stderr).into_owned();
        assert_eq!(dumped.exit, Exit::Code(0), "seed {seed}\n{text}");
        dump::assert_same(&bench.build, &bench.read(&main).await.1.reading.files, &text, &format!("seed {seed}"));
    }
}

/// Whole lines put together at random, one at a time between a pool and the lines of another: both accept it and read the
/// same, or both refuse it.
#[tokio::test]
async fn lines_made_at_random_are_judged_the_same() {
    const PIECES: [&str; 26] = [
        "[",
        "[",
        "]",
        "]",
        "x",
        "a b",
        "global",
        " ",
        "\t",
        "=",
        "=",
        ";",
        "php_value",
        "env",
        "pm",
        "pm.max_requests",
        "\"",
        "'",
        "${FIXED}",
        "$",
        "\\",
        "5",
        "yes",
        "\r",
        "\u{feff}",
        "#",
    ];
    let seed = std::env::var("POOLFILES_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or(20_261_130);
    let rounds = std::env::var("POOLFILES_ROUNDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let bench = Bench::new().await;
    let directory = tempfile::Builder::new().prefix("pf").tempdir_in("/tmp").unwrap();
    let path = directory.path().display();
    let main = directory.path().join("one.conf");
    let mut random = Seed(seed);
    let mut both = [0, 0];
    for number in 0..rounds * 90 {
        let mut some = |most: usize| -> String { (0..random.below(most + 1)).map(|_| PIECES[random.below(PIECES.len())]).collect() };
        let line = match number % 3 {
            0 => some(8),
            1 => format!("{}[{}]{}", some(1), some(3), some(1)),
            _ => format!("php_value[x{}]={}", some(2), some(2)),
        };
        let pool = |name: &str| format!("user = www-data\nlisten = {path}/{name}\npm = static\npm.max_children = 1\n");
        std::fs::write(&main, format!("error_log = {path}/log\n[base]\n{}{line}\n{}", pool("base"), pool("next"))).unwrap();
        let (_, found) = bench.read(&main).await;
        let clean = found.reading.usable() && found.reading.quarantined.is_empty();
        let dumped = bench.run(&["-tt"], &main).await;
        let text = String::from_utf8_lossy(&dumped.stderr).into_owned();
        let accepted = dumped.exit == Exit::Code(0);
        // An open single quote reads what php-fpm's buffer held before: refused here, whatever it makes of it.
        if !line.contains('\'') {
            assert_eq!(clean, accepted, "seed {seed}: {line:?}\n{}\n{text}", faults(&found.reading));
        }
        both[usize::from(accepted)] += 1;
        if clean && accepted {
            dump::assert_same(&bench.build, &found.reading.files, &text, &format!("seed {seed}: {line:?}"));
        }
    }
    assert!(both[0] > 10 && both[1] > 10, "seed {seed}: {both:?}");
}

#[tokio::test]
async fn a_fingerprint_changes_with_php_ini_and_the_binary_tells_what_it_can_do() {
    let bench = Bench::new().await;
    assert!(bench.build.version >= polyfpm::model::host::Version(8, 0, 0));
    assert!(bench.build.status_listen);
    assert!(bench.build.constants["PHP_PREFIX"].starts_with('/'));
    assert!(bench.build.constants["E_ALL"].parse::<u32>().unwrap() > 30_000);

    let directory = tempfile::tempdir().unwrap();
    let ini = directory.path().join("php.ini");
    let mut php = tool(&bench.children, Path::new("/dev/null")).php().clone();
    php.ini = Some(ini.clone());
    let own = Tool::new(bench.children.clone(), php, environment());
    let mut prints = Vec::new();
    for text in ["memory_limit = 128M\n", "memory_limit = 129M\n", "memory_limit = 128M\n"] {
        std::fs::write(&ini, text).unwrap();
        let seen = installation(&own).await.unwrap();
        assert!(seen.watched.contains(&ini) && seen.watched.contains(&binary()), "{:?}", seen.watched);
        prints.push(seen.fingerprint(b"configuration", "0-3"));
    }
    assert_ne!(prints[0], prints[1]);
    assert_eq!(prints[0], prints[2]);
}
