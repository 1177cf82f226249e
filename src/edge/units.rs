//! systemd's units: what `systemctl` says of them and does to them.
//!
//! Only for a php-fpm that belongs to a unit and is taken over or given back. Everything here works on a running system without a
//! stop: a drop-in below `/run`, which a boot forgets, and `daemon-reload`.
//!
//! Sources: systemctl(1), systemd.unit(5), systemd.service(5).

use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::unistd::Pid;

use crate::sys::children::{Children, Exit, RunError};
use crate::sys::spawn::Command;

/// `daemon-reload` on a host with a thousand units takes seconds.
const RUN_LIMIT: Duration = Duration::from_secs(60);

/// `show` of one property is one line.
const OUTPUT_LIMIT_BYTES: usize = 64 * 1024;

/// Where `systemctl` is, on a system with `/usr` merged and without.
const PROGRAMS: [&str; 2] = ["/usr/bin/systemctl", "/bin/systemctl"];

/// Where drop-ins lie that last until the next boot.
const RUNTIME_UNITS: &str = "/run/systemd/system";

/// The drop-in of a take-over: whoever is killed does not come back, and its runtime directory stays, as our sockets are in it (S2).
const DISARMED: &str = "# Written by polyfpm takeover, which removes it again.\n[Service]\nRestart=no\nRuntimeDirectoryPreserve=yes\n";

/// Says what systemd did not do.
#[derive(Debug, thiserror::Error)]
pub enum UnitError {
    /// `systemctl` did not run.
    #[error("run systemctl {what}")]
    Run {
        /// Its arguments.
        what: String,
        /// Why.
        source: RunError,
    },
    /// `systemctl` refused.
    #[error("systemctl {what}: {said}")]
    Refused {
        /// Its arguments.
        what: String,
        /// How it ended and what it said.
        said: String,
    },
    /// The drop-in cannot be written or removed.
    #[error("{step} {}", path.display())]
    File {
        /// What was tried.
        step: &'static str,
        /// On which file.
        path: PathBuf,
        /// Why it failed.
        source: io::Error,
    },
    /// It is no unit's name.
    #[error("'{name}' is no name of a service")]
    Name {
        /// What was given.
        name: String,
    },
}

/// A service of the running systemd.
#[derive(Debug, Clone)]
pub struct Unit {
    children: Children,
    name: String,
}

impl Unit {
    /// Names a service; `.service` may be left out.
    ///
    /// # Errors
    /// The name has characters that no unit's name has.
    pub fn new(children: &Children, name: &str) -> Result<Self, UnitError> {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b":-_.\\@".contains(&byte);
        if name.is_empty() || name.starts_with(['-', '.']) || !name.bytes().all(allowed) {
            return Err(UnitError::Name { name: name.to_owned() });
        }
        let name = if name.ends_with(".service") { name.to_owned() } else { format!("{name}.service") };
        Ok(Self { children: children.clone(), name })
    }

    /// Gives its name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Gives its main process, where it has one.
    ///
    /// # Errors
    /// systemd does not answer.
    pub async fn main_pid(&self) -> Result<Option<Pid>, UnitError> {
        let text = self.systemctl(&["show", "--property=MainPID", "--value"]).await?;
        Ok(text.trim().parse().ok().filter(|pid| *pid > 0).map(Pid::from_raw))
    }

    /// Tells whether it is started at boot.
    pub async fn is_enabled(&self) -> bool {
        self.systemctl(&["is-enabled"]).await.is_ok_and(|text| text.trim() == "enabled")
    }

    /// Gives the command the service starts, its program first. Arguments with blanks in them are not told apart.
    ///
    /// # Errors
    /// systemd does not answer, or knows no command.
    pub async fn command(&self) -> Result<Vec<String>, UnitError> {
        let text = self.systemctl(&["show", "--property=ExecStart", "--value"]).await?;
        let words = text.split_once("argv[]=").and_then(|(_, rest)| rest.split_once(" ;")).map(|(words, _)| words);
        let command: Vec<String> = words.unwrap_or_default().split_ascii_whitespace().map(str::to_owned).collect();
        if command.is_empty() {
            return Err(UnitError::Refused { what: format!("show {}", self.name), said: "it has no command".to_owned() });
        }
        Ok(command)
    }

    /// Starts the service once by another command, and waits until it says that it is ready. Its next start is by its own.
    ///
    /// # Errors
    /// systemd refuses, or the service does not start; [`Unit::rearm`] takes the drop-in back then.
    pub async fn start_by(&self, command: &[&str]) -> Result<(), UnitError> {
        let quoted: Vec<String> = command.iter().map(|word| quoted(word)).collect();
        let text = format!(
            "# Written by polyfpm handback, which removes it again.\n[Service]\nRestart=no\nExecStart=\nExecStart={}\n",
            quoted.join(" ")
        );
        self.drop_in(&text).await?;
        self.systemctl(&["reset-failed"]).await.ok();
        self.systemctl(&["start"]).await?;
        self.rearm().await
    }

    /// Has systemd stop the service, so that it is not started again when its process ends, and not start it at boot. Does not
    /// wait: the service may be ourselves.
    ///
    /// # Errors
    /// systemd refuses.
    pub async fn give_up(&self) -> Result<(), UnitError> {
        let stopped = self.systemctl(&["stop", "--no-block"]).await;
        self.systemctl(&["disable"]).await.and(stopped).map(drop)
    }

    /// Has the service started at boot.
    ///
    /// # Errors
    /// systemd refuses.
    pub async fn enable(&self) -> Result<(), UnitError> {
        self.systemctl(&["enable"]).await.map(drop)
    }

    /// Sees to it that the service does not come back when its main process ends.
    ///
    /// # Errors
    /// The drop-in cannot be written, or systemd does not read it.
    pub async fn disarm(&self) -> Result<(), UnitError> {
        self.drop_in(DISARMED).await
    }

    /// Takes [`Unit::disarm`] back.
    ///
    /// # Errors
    /// The drop-in cannot be removed, or systemd does not read its units again.
    pub async fn rearm(&self) -> Result<(), UnitError> {
        let path = self.drop_in_path();
        match std::fs::remove_file(&path) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(source) => return Err(UnitError::File { step: "remove", path, source }),
        }
        if let Some(directory) = path.parent() {
            // Others may have drop-ins there.
            std::fs::remove_dir(directory).ok();
        }
        self.reload().await
    }

    /// Has systemd forget that the service ended by a signal, and not start it at boot.
    ///
    /// # Errors
    /// systemd refuses.
    pub async fn retire(&self) -> Result<(), UnitError> {
        // It may have been collected as stopped already.
        self.systemctl(&["reset-failed"]).await.ok();
        self.systemctl(&["disable"]).await.map(drop)
    }

    /// Waits until nothing of the service runs any more, for at most `time`; tells whether it came to that.
    pub async fn ended(&self, time: Duration) -> bool {
        let end = tokio::time::Instant::now() + time;
        loop {
            let state = self.systemctl(&["show", "--property=ActiveState", "--value"]).await.unwrap_or_default();
            if matches!(state.trim(), "inactive" | "failed") {
                return true;
            }
            if tokio::time::Instant::now() >= end {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
    }

    async fn drop_in(&self, text: &str) -> Result<(), UnitError> {
        let path = self.drop_in_path();
        let error = |step| {
            let path = path.clone();
            move |source| UnitError::File { step, path, source }
        };
        let directory = path.parent().unwrap_or(Path::new(RUNTIME_UNITS));
        std::fs::create_dir_all(directory).map_err(error("make the directory of"))?;
        std::fs::write(&path, text).map_err(error("write"))?;
        self.reload().await
    }

    fn drop_in_path(&self) -> PathBuf {
        Path::new(RUNTIME_UNITS).join(format!("{}.d", self.name)).join("50-polyfpm.conf")
    }

    async fn reload(&self) -> Result<(), UnitError> {
        self.run(&["daemon-reload"]).await.map(drop)
    }

    async fn systemctl(&self, arguments: &[&str]) -> Result<String, UnitError> {
        let words: Vec<&str> = arguments.iter().copied().chain(["--", self.name.as_str()]).collect();
        self.run(&words).await
    }

    async fn run(&self, words: &[&str]) -> Result<String, UnitError> {
        let program = PROGRAMS.iter().find(|path| Path::new(path).exists()).unwrap_or(&PROGRAMS[0]);
        let command = Command::new(*program).args(words.iter().copied());
        let what = words.join(" ");
        match self.children.run(command, RUN_LIMIT, OUTPUT_LIMIT_BYTES).await {
            Ok(finished) if finished.exit.success() => Ok(String::from_utf8_lossy(&finished.stdout).into_owned()),
            Ok(finished) => Err(UnitError::Refused { what, said: said(finished.exit, &finished.stdout, &finished.stderr) }),
            Err(source) => Err(UnitError::Run { what, source }),
        }
    }
}

/// Writes a word so that systemd takes it as it is. Source: systemd.service(5), "Command lines".
fn quoted(word: &str) -> String {
    let mut text = String::from("\"");
    for character in word.chars() {
        match character {
            '"' | '\\' => text.extend(['\\', character]),
            '%' | '$' => text.extend([character, character]),
            other => text.push(other),
        }
    }
    text.push('"');
    text
}

fn said(exit: Exit, stdout: &[u8], stderr: &[u8]) -> String {
    let words = [stderr, stdout].map(|bytes| String::from_utf8_lossy(bytes).trim().replace('\n', "; "));
    words.into_iter().find(|text| !text.is_empty()).unwrap_or_else(|| exit.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sys::children::Subreaper;

    #[test]
    fn words_reach_the_program_as_they_are() {
        assert_eq!(quoted("/run/a b$c%d"), "\"/run/a b$$c%%d\"");
        assert_eq!(quoted("a\"\\"), "\"a\\\"\\\\\"");
    }

    #[tokio::test]
    async fn only_names_of_units_reach_systemctl() {
        let children = Children::start(Subreaper::No).unwrap();
        for name in ["", "-x", "a/b", "a b", "../x", "x\n"] {
            assert!(Unit::new(&children, name).is_err(), "{name:?}");
        }
        assert_eq!(Unit::new(&children, "php8.2-fpm").unwrap().name(), "php8.2-fpm.service");
        assert_eq!(Unit::new(&children, "php-fpm@a.service").unwrap().name(), "php-fpm@a.service");
    }
}
