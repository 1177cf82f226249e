//! Which settings file is meant.

use std::io;
use std::path::{Path, PathBuf};

use super::groups::{NAME_RULE, is_name};

/// Where settings files are kept.
pub const ETC_DIRECTORY: &str = "/etc/polyfpm";

/// The ending of a settings file's name.
const SUFFIX: &str = ".toml";

/// Says why no settings file could be chosen.
#[derive(Debug, thiserror::Error)]
pub enum LocateError {
    /// The name cannot be an instance's.
    #[error("'{name}' cannot name an instance")]
    BadName {
        /// The name as given.
        name: String,
    },
    /// There is no such instance.
    #[error("there is no instance '{name}': {} does not exist", file.display())]
    Unknown {
        /// The name as given.
        name: String,
        /// The file looked for.
        file: PathBuf,
        /// The instances there are.
        known: Vec<String>,
    },
    /// There is no instance at all.
    #[error("there is no settings file in {}", directory.display())]
    Nothing {
        /// The directory looked at.
        directory: PathBuf,
    },
    /// There are several, and none was chosen.
    #[error("there are several instances: {}", known.join(", "))]
    Several {
        /// The instances there are.
        known: Vec<String>,
    },
    /// The directory cannot be read.
    #[error("read {}", directory.display())]
    Unreadable {
        /// The directory looked at.
        directory: PathBuf,
        /// Why.
        source: io::Error,
    },
}

impl LocateError {
    /// Gives what to do.
    pub fn hint(&self) -> String {
        match self {
            Self::BadName { .. } => NAME_RULE.to_owned(),
            Self::Unknown { known, .. } if known.is_empty() => "name a settings file with -c FILE".to_owned(),
            Self::Unknown { known, .. } => format!("choose one with --instance: {}", known.join(", ")),
            Self::Nothing { directory } => format!("name one with -c FILE, or write {}/NAME.toml", directory.display()),
            Self::Several { .. } => "choose one with --instance NAME".to_owned(),
            Self::Unreadable { .. } => "name a settings file with -c FILE, or ask as root".to_owned(),
        }
    }
}

/// Gives the settings file: `config` itself, else that of `instance` in `etc`, else the only one there is in `etc`.
///
/// # Errors
/// When the instance does not exist, or none was named and there is not exactly one.
pub fn locate(config: Option<&Path>, instance: Option<&str>, etc: &Path) -> Result<PathBuf, LocateError> {
    if let Some(file) = config {
        return Ok(file.to_owned());
    }
    let Some(name) = instance else { return only_one(etc) };
    if !is_name(name) {
        return Err(LocateError::BadName { name: name.to_owned() });
    }
    let file = etc.join(format!("{name}{SUFFIX}"));
    if file.exists() {
        return Ok(file);
    }
    Err(LocateError::Unknown { name: name.to_owned(), file, known: instances(etc).unwrap_or_default() })
}

fn only_one(etc: &Path) -> Result<PathBuf, LocateError> {
    let known = instances(etc)?;
    match known.as_slice() {
        [] => Err(LocateError::Nothing { directory: etc.to_owned() }),
        [only] => Ok(etc.join(format!("{only}{SUFFIX}"))),
        [..] => Err(LocateError::Several { known }),
    }
}

fn instances(etc: &Path) -> Result<Vec<String>, LocateError> {
    let unreadable = |source| LocateError::Unreadable { directory: etc.to_owned(), source };
    let entries = match std::fs::read_dir(etc) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(unreadable(error)),
    };
    let mut known = Vec::new();
    for entry in entries {
        let name = entry.map_err(unreadable)?.file_name();
        // Editors leave .php8.2.toml.swp and the like; a name that is none is nobody's settings.
        known.extend(name.to_str().and_then(|name| name.strip_suffix(SUFFIX)).filter(|name| is_name(name)).map(str::to_owned));
    }
    known.sort();
    Ok(known)
}
