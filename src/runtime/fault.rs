//! Moments at which a test may end the supervisor.
//!
//! A handover is a row of steps, and after each of them the supervisor can be killed. Tests need to say after which, so each
//! step passes a [`point`]. Only a program built with debug assertions looks at them, so no release can be led here.
//!
//! `POLYFPM_FAULTS` names a directory. While a file `armed` is in it, every point that is passed adds its name to the file
//! `passed`. `armed` says `kill 3 path taken` or `panic 3 path taken`: the third time that point is passed ends the supervisor
//! so. `armed` is removed first: the next supervisor lives.

/// Passes a point.
#[cfg(not(debug_assertions))]
pub(super) fn point(_name: &str) {}

/// Passes a point.
#[cfg(debug_assertions)]
pub(super) fn point(name: &str) {
    if let Some(directory) = std::env::var_os("POLYFPM_FAULTS") {
        armed::pass(std::path::Path::new(&directory), name);
    }
}

#[cfg(debug_assertions)]
mod armed {
    use std::io::Write;
    use std::path::Path;

    use nix::sys::signal::{Signal, raise};

    pub(super) fn pass(directory: &Path, name: &str) {
        let Ok(order) = std::fs::read_to_string(directory.join("armed")) else { return };
        let passed = directory.join("passed");
        let before = std::fs::read_to_string(&passed).unwrap_or_default();
        let times = 1 + before.lines().filter(|line| *line == name).count();
        let file = std::fs::File::options().append(true).create(true).open(&passed);
        let noted = file.and_then(|mut file| writeln!(file, "{name}"));
        let mut words = order.trim().splitn(3, ' ');
        let (way, at, whose) = (words.next().unwrap_or_default(), words.next(), words.next());
        let reached = whose == Some(name) && at.and_then(|at| at.parse().ok()) == Some(times);
        if noted.is_ok() && reached && std::fs::remove_file(directory.join("armed")).is_ok() {
            end(way, name);
        }
    }

    #[expect(clippy::panic, reason = "a panic is what was asked for")]
    fn end(way: &str, name: &str) {
        match way {
            "panic" => panic!("at the point: {name}"),
            _ => drop(raise(Signal::SIGKILL)),
        }
    }
}
