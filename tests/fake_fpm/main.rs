//! A php-fpm that misbehaves on request, for what a real one does once in a year.
//!
//! A test copies this program to a path of its own and writes what it should do, one behaviour a line, into the file
//! beside it whose name ends in `.mode`. The file is read at each start, so a later generation can do something else.
//!
//! | line | what it does |
//! |---|---|
//! | (none) | runs the real php-fpm in its place |
//! | `no-notify` | is built without systemd: refuses `systemd_interval`, runs the real php-fpm without its `NOTIFY_SOCKET` |
//! | `php-7.4` | is 7.4, built without systemd: refuses `pm.status_listen`, too |
//! | `php-7.4-systemd` | is 7.4, built with systemd |
//! | `hangs-on-test` | never ends when asked to test a configuration |
//! | `serves` | answers FastCGI itself, tells READY |
//! | `never-ready` | lives and tells nothing |
//! | `no-heartbeat` | like `serves`; no build with systemd would fall silent after READY |
//! | `exits CODE MS` | ends with this code after so many milliseconds, not ready before |
//! | `dies-after-ready CODE MS` | the same, READY before |
//! | `slow-exit MS` | like `serves`; takes so long to leave |
//! | `ignores-quit`, `ignores-term` | like `serves`; does not leave when told so |

#![expect(clippy::expect_used, clippy::print_stdout, clippy::print_stderr, reason = "a stand-in of the tests")]
#![expect(clippy::disallowed_methods, reason = "exits as php-fpm would")]

mod answer;

use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::Signals;

/// A year: as good as for ever in a test.
const FOR_EVER: Duration = Duration::from_secs(365 * 24 * 3600);

struct Mode(Vec<Vec<String>>);

impl Mode {
    fn read(program: &Path) -> Self {
        let mut name = program.as_os_str().to_owned();
        name.push(".mode");
        let text = std::fs::read_to_string(name).unwrap_or_default();
        let words = text.lines().map(|line| line.split_whitespace().map(str::to_owned).collect::<Vec<_>>());
        Self(words.filter(|words| !words.is_empty()).collect())
    }

    fn has(&self, behaviour: &str) -> bool {
        self.0.iter().any(|words| words.first().is_some_and(|word| word == behaviour))
    }

    fn number(&self, behaviour: &str, at: usize) -> Option<u64> {
        self.0.iter().find(|words| words.first().is_some_and(|word| word == behaviour))?.get(at)?.parse().ok()
    }
}

fn main() -> ExitCode {
    let program = std::env::current_exe().expect("the program's own path");
    let mode = Mode::read(&program);
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let asks = |flags: &[&str]| arguments.iter().any(|argument| flags.contains(&argument.as_str()));
    let tests = asks(&["-t", "-tt", "--test"]);
    if tests && mode.has("hangs-on-test") {
        wait_for_signal(&signals(), FOR_EVER);
        return ExitCode::SUCCESS;
    }
    let old = mode.has("php-7.4") || mode.has("php-7.4-systemd");
    let silent = mode.has("no-notify") || mode.has("php-7.4");
    if old && asks(&["-v", "--version", "-i", "--info"]) {
        return say_that_it_is_old(&arguments);
    }
    if (old && refuses(&arguments, "pm.status_listen")) || (silent && refuses(&arguments, "systemd_interval")) {
        return ExitCode::from(78);
    }
    let acts = ["serves", "never-ready", "no-heartbeat", "exits", "dies-after-ready", "slow-exit", "ignores-quit", "ignores-term"];
    if !tests && !asks(&["-v", "--version", "-i", "--info", "-m", "--modules", "-h"]) && acts.iter().any(|act| mode.has(act)) {
        return act(&mode, &arguments);
    }
    let mut real = Command::new(real_php_fpm());
    if silent {
        real.env_remove("NOTIFY_SOCKET");
    }
    let failed = real.args(&arguments).exec();
    eprintln!("fake-fpm: run the real php-fpm: {failed}");
    ExitCode::from(71)
}

fn real_php_fpm() -> PathBuf {
    if let Some(named) = std::env::var_os("PHP_FPM") {
        return PathBuf::from(named);
    }
    let mut found: Vec<PathBuf> = std::fs::read_dir("/usr/sbin").into_iter().flatten().flatten().map(|e| e.path()).collect();
    found.retain(|path| path.file_name().is_some_and(|name| name.to_string_lossy().starts_with("php-fpm")));
    found.sort();
    found.pop().expect("a php-fpm in /usr/sbin, or in PHP_FPM")
}

fn say_that_it_is_old(arguments: &[String]) -> ExitCode {
    let asked = Command::new(real_php_fpm()).args(arguments).output().expect("the real php-fpm");
    for line in String::from_utf8_lossy(&asked.stdout).lines() {
        if line.starts_with("PHP 8") || line.starts_with("PHP 9") {
            println!("PHP 7.4.33 (fpm-fcgi) (built: Nov  8 2022 11:40:37)");
        } else if line.starts_with("PHP Version => ") {
            println!("PHP Version => 7.4.33");
        } else {
            println!("{}", line.replace("--with-fpm-systemd", "").replace("systemd => yes", "systemd => no"));
        }
    }
    ExitCode::SUCCESS
}

/// Tells whether the configuration has a key that this version does not know, and says so as php-fpm does.
fn refuses(arguments: &[String], key: &str) -> bool {
    let Some(config) = configuration(arguments) else { return false };
    let text = std::fs::read_to_string(&config).unwrap_or_default();
    let line = text.lines().position(|line| line.trim_start().starts_with(key));
    if let Some(line) = line {
        eprintln!("[30-Nov-2026 12:00:00] ERROR: [{}:{}] unknown entry '{key}'", config.display(), line + 1);
        eprintln!("[30-Nov-2026 12:00:00] ERROR: failed to load configuration file '{}'", config.display());
        eprintln!("[30-Nov-2026 12:00:00] ERROR: FPM initialization failed");
    }
    line.is_some()
}

fn configuration(arguments: &[String]) -> Option<PathBuf> {
    let mut words = arguments.iter();
    while let Some(word) = words.next() {
        if let Some(path) = word.strip_prefix("--fpm-config=") {
            return Some(PathBuf::from(path));
        }
        if word == "-y" || word == "--fpm-config" {
            return words.next().map(PathBuf::from);
        }
    }
    None
}

fn signals() -> Receiver<i32> {
    let (tell, hear) = channel();
    let mut signals = Signals::new([SIGQUIT, SIGTERM, SIGINT, SIGUSR1, SIGUSR2]).expect("signals");
    std::thread::spawn(move || signals.forever().try_for_each(|signal| tell.send(signal)));
    hear
}

/// Waits for the next signal, or until the time is over.
fn wait_for_signal(signals: &Receiver<i32>, span: Duration) -> Option<i32> {
    signals.recv_timeout(span).ok()
}

fn act(mode: &Mode, arguments: &[String]) -> ExitCode {
    let signals = signals();
    eprintln!("[30-Nov-2026 12:00:00] NOTICE: fpm is running, pid {}", std::process::id());
    let dies = ["exits", "dies-after-ready"].into_iter().find(|behaviour| mode.has(behaviour));
    let silent = mode.has("never-ready") || mode.has("exits");
    if !silent {
        answer::serve(&configuration(arguments).map(|path| std::fs::read_to_string(path).unwrap_or_default()).unwrap_or_default());
        answer::tell("READY=1\nSTATUS=Processes active: 0, idle: 1, Requests: 0, slow: 0, Traffic: 0.00req/sec\n");
    }
    let ends = dies.map(|behaviour| Instant::now() + Duration::from_millis(mode.number(behaviour, 2).unwrap_or(0)));
    loop {
        let left = ends.map_or(FOR_EVER, |end| end.saturating_duration_since(Instant::now()));
        match wait_for_signal(&signals, left) {
            None => {
                eprintln!("[30-Nov-2026 12:00:00] ERROR: FPM initialization failed");
                let code = dies.and_then(|behaviour| mode.number(behaviour, 1)).unwrap_or(1);
                return ExitCode::from(u8::try_from(code).unwrap_or(1));
            }
            Some(SIGQUIT) if mode.has("ignores-quit") => {}
            Some(SIGTERM | SIGINT) if mode.has("ignores-term") => {}
            Some(SIGQUIT | SIGTERM | SIGINT) => {
                wait_for_signal(&signals, Duration::from_millis(mode.number("slow-exit", 1).unwrap_or(0)));
                return ExitCode::SUCCESS;
            }
            Some(_) => {}
        }
    }
}
