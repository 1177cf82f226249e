//! A digest of everything a master is made from, so that a reload hands over only the shards for which something changed.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::fs::{self, Metadata};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::rc::Rc;
use std::time::{Duration, SystemTime};

use sha2::{Digest, Sha256};

use crate::model::plan::Fingerprint;
use crate::sys::children::{Exit, RunError};

use super::Tool;
use super::startup::{self, COMPLAIN_ON_STDERR};

/// Says why an installation could not be looked at.
#[derive(Debug, thiserror::Error)]
pub enum FingerprintError {
    /// The binary did not run.
    #[error("ask php-fpm for its php.ini")]
    Run(#[from] RunError),
    /// It ran and did not tell.
    #[error("php-fpm -i ended with {exit}")]
    Refused {
        /// How it ended.
        exit: Exit,
    },
}

/// What every master of an installation has in common: binary, php.ini and its scan directory, extensions.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Installation {
    digest: [u8; 32],
    /// A digest of each part by what it is: by these a change is told.
    pub parts: BTreeMap<String, String>,
    /// When the newest of the files it was made from was changed, be it only moved or made more readable.
    changed: SystemTime,
    /// What PHP complains of at its start: an extension that cannot be loaded, a php.ini that cannot be read.
    pub complaints: BTreeSet<String>,
    /// The binary, php.ini, every scanned file and directory, every extension: what to watch for changes.
    pub watched: Vec<PathBuf>,
    /// What php.ini and the scanned files say.
    pub ini: Rc<IniTexts>,
}

/// The php.ini files, so that a master can be started with them after they have changed.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IniTexts {
    /// php.ini; empty where there is none.
    pub main: Vec<u8>,
    /// The scanned files in their order.
    pub scanned: Vec<Vec<u8>>,
}

impl Installation {
    /// Gives the digest of one master: the installation, its `configuration`, and `extra`, such as its CPUs and limits.
    pub fn fingerprint(&self, configuration: &[u8], extra: &str) -> Fingerprint {
        let mut hasher = Sha256::new();
        for part in [configuration, extra.as_bytes()] {
            field(&mut hasher, part);
        }
        Fingerprint(format!("{}{SEPARATOR}{}", hex(&self.digest), hex(&hasher.finalize())))
    }

    /// Gives the digest of a master that is like that of `before` and was started at `launched` with this installation; `None`
    /// where a file was changed so late that it may have been started without the change.
    pub fn renew(&self, before: &Fingerprint, launched: SystemTime) -> Option<Fingerprint> {
        let was_seen = self.changed + CLOCK_TICK < launched;
        let (_, own) = before.0.split_once(SEPARATOR).filter(|_| was_seen)?;
        Some(Fingerprint(format!("{}{SEPARATOR}{own}", hex(&self.digest))))
    }
}

/// Stands between the digest of the installation and that of what is the master's own.
const SEPARATOR: char = '-';

/// How far the time of a change may lie behind the clock: files are stamped with that of the last timer interrupt, of which
/// there are at least 100 a second.
const CLOCK_TICK: Duration = Duration::from_millis(12);

fn hex(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len() * 2);
    for byte in bytes {
        // Writing to a string cannot fail.
        let _written = write!(text, "{byte:02x}");
    }
    text
}

/// Gives a short digest of one part, by which a change of it is recognised. Contents may hold secrets, digests do not.
pub fn digest_of(part: &[u8]) -> String {
    let digest = hex(&Sha256::digest(part));
    digest.get(..16).unwrap_or_default().to_owned()
}

/// Adds a part with its length, so that no two lists of parts look alike.
fn field(hasher: &mut Sha256, part: &[u8]) {
    hasher.update(part.len().to_le_bytes());
    hasher.update(part);
}

/// Looks at the binary, php.ini, the scan directory and the extensions as the masters would load them, and asks what PHP
/// complains of then: to PHP what is missing is a warning, and every page that needs it fails.
///
/// # Errors
/// When the binary cannot be asked where they are.
///
/// # Cancel safety
/// Dropping the future ends the run.
pub async fn installation(tool: &Tool) -> Result<Installation, FingerprintError> {
    let told = tool.run(COMPLAIN_ON_STDERR.into_iter().chain(["-i"]).map(Into::into)).await?;
    if told.exit != Exit::Code(0) {
        return Err(FingerprintError::Refused { exit: told.exit });
    }
    let layout = Layout::read(&String::from_utf8_lossy(&told.stdout));
    let mut hasher = Sha256::new();
    let mut watched = vec![tool.php.binary.clone()];
    let mut parts = BTreeMap::new();
    let binary = stamp(&tool.php.binary);
    field(&mut hasher, binary.as_bytes());
    parts.insert(format!("binary {}", tool.php.binary.display()), digest_of(binary.as_bytes()));
    let arguments = super::arguments(&tool.php);
    for argument in &arguments {
        field(&mut hasher, argument.as_encoded_bytes());
    }
    parts.insert("arguments of php-fpm".to_owned(), digest_of(format!("{arguments:?}").as_bytes()));
    for directory in &layout.directories {
        watched.push(directory.clone());
    }
    let mut ini = IniTexts::default();
    for (number, file) in layout.ini_files.iter().enumerate() {
        let content = fs::read(file).unwrap_or_default();
        field(&mut hasher, file.as_os_str().as_encoded_bytes());
        field(&mut hasher, &content);
        parts.insert(format!("ini file {}", file.display()), digest_of(&content));
        for extension in extensions(&content, layout.extension_directory.as_deref()) {
            let written = stamp(&extension);
            field(&mut hasher, written.as_bytes());
            parts.insert(format!("extension {}", extension.display()), digest_of(written.as_bytes()));
            watched.push(extension);
        }
        watched.push(file.clone());
        match layout.has_main && number == 0 {
            true => ini.main = content,
            false => ini.scanned.push(content),
        }
    }
    let changed = watched.iter().filter_map(|path| changed(path)).max().unwrap_or(SystemTime::UNIX_EPOCH);
    Ok(Installation {
        digest: hasher.finalize().into(),
        parts,
        changed,
        complaints: startup::complaints(&told.stderr),
        watched,
        ini: Rc::new(ini),
    })
}

/// When a file was changed last: also by being moved to its path, which keeps the time it was written.
fn changed(path: &Path) -> Option<SystemTime> {
    let metadata = fs::metadata(path).ok()?;
    let (seconds, nanoseconds) = (u64::try_from(metadata.ctime()).ok()?, u64::try_from(metadata.ctime_nsec()).ok()?);
    SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(seconds) + Duration::from_nanos(nanoseconds))
}

/// Which file it is and whether it was written: path, inode, size, time.
fn stamp(path: &Path) -> String {
    let told = |metadata: Metadata| {
        let (seconds, nanoseconds) = (metadata.mtime(), metadata.mtime_nsec());
        format!("{}:{}:{}:{seconds}.{nanoseconds}", metadata.dev(), metadata.ino(), metadata.size())
    };
    format!("{} {}", path.display(), fs::metadata(path).map_or_else(|error| error.kind().to_string(), told))
}

/// Where `php-fpm -i` says things are.
#[derive(Debug, Default, PartialEq, Eq)]
struct Layout {
    /// Whether the first of the files is php.ini itself.
    has_main: bool,
    ini_files: Vec<PathBuf>,
    directories: Vec<PathBuf>,
    extension_directory: Option<PathBuf>,
}

impl Layout {
    fn read(printed: &str) -> Self {
        let mut layout = Self::default();
        let mut lines = printed.lines();
        while let Some(line) = lines.next() {
            let Some((key, value)) = line.split_once(" => ") else { continue };
            match key {
                "Configuration File (php.ini) Path" if value.starts_with('/') => layout.directories.push(value.into()),
                "Loaded Configuration File" if value.starts_with('/') => {
                    layout.has_main = true;
                    layout.ini_files.push(value.into());
                }
                "Scan this dir for additional .ini files" => {
                    let directories = value.split(':').filter(|directory| directory.starts_with('/'));
                    layout.directories.extend(directories.map(PathBuf::from));
                }
                "Additional .ini files parsed" => {
                    let mut entry = value;
                    loop {
                        let path = entry.trim().trim_end_matches(',');
                        if path.starts_with('/') {
                            layout.ini_files.push(path.into());
                        }
                        if !entry.ends_with(',') {
                            break;
                        }
                        let Some(next) = lines.next() else { break };
                        entry = next;
                    }
                }
                "extension_dir" => layout.extension_directory = value.split(" => ").next().map(PathBuf::from),
                _ => {}
            }
        }
        layout
    }
}

/// Gives the files of the extensions that a php.ini loads.
fn extensions(ini: &[u8], directory: Option<&Path>) -> Vec<PathBuf> {
    let text = String::from_utf8_lossy(ini);
    let mut found = Vec::new();
    for line in text.lines() {
        let Some((key, value)) = line.split_once('=') else { continue };
        if !matches!(key.trim(), "extension" | "zend_extension") {
            continue;
        }
        let value = value.split(';').next().unwrap_or_default().trim().trim_matches(['"', '\'']);
        if value.is_empty() {
            continue;
        }
        let named = directory.unwrap_or(Path::new("/")).join(value);
        found.push(if value.ends_with(".so") { named } else { named.with_file_name(format!("{}.so", file_name(&named))) });
    }
    found
}

fn file_name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_layout_is_read_from_what_php_fpm_tells() {
        let printed = "Configuration File (php.ini) Path => /etc/php\nLoaded Configuration File => /etc/php/php.ini\n\
                       Scan this dir for additional .ini files => /etc/a:/etc/b\nAdditional .ini files parsed => /etc/a/1.ini,\n\
                       /etc/b/2.ini\n\nextension_dir => /usr/lib/php => /usr/lib/php\n";
        let layout = Layout::read(printed);
        assert_eq!(layout.ini_files, ["/etc/php/php.ini", "/etc/a/1.ini", "/etc/b/2.ini"].map(PathBuf::from));
        assert_eq!(layout.directories, ["/etc/php", "/etc/a", "/etc/b"].map(PathBuf::from));
        assert_eq!(layout.extension_directory, Some("/usr/lib/php".into()));
        let bare = Layout::read("Loaded Configuration File => (none)\nAdditional .ini files parsed => (none)\n");
        assert_eq!(bare, Layout::default());
    }

    #[test]
    fn extensions_are_found_as_php_finds_them() {
        let ini = b"; extension=no\nextension=pdo\nzend_extension = \"opcache.so\" ; yes\nextension=/opt/x.so\nextension_dir=/y\n";
        let found = extensions(ini, Some(Path::new("/lib")));
        assert_eq!(found, ["/lib/pdo.so", "/lib/opcache.so", "/opt/x.so"].map(PathBuf::from));
    }

    fn with_digest(byte: u8) -> Installation {
        let changed = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000);
        Installation {
            digest: [byte; 32],
            parts: BTreeMap::new(),
            changed,
            complaints: BTreeSet::new(),
            watched: Vec::new(),
            ini: Rc::default(),
        }
    }

    #[test]
    fn a_master_has_the_installation_that_was_there_well_before_its_launch() {
        let (old, new) = (with_digest(1), with_digest(2));
        let before = old.fingerprint(b"a", "b");
        assert_eq!(new.renew(&before, new.changed + Duration::from_secs(1)), Some(new.fingerprint(b"a", "b")));
        assert_eq!(old.renew(&before, old.changed + Duration::from_secs(1)), Some(before.clone()));
        assert_eq!(new.renew(&before, new.changed + Duration::from_millis(5)), None);
        assert_eq!(new.renew(&before, new.changed - Duration::from_secs(1)), None);
    }

    #[test]
    fn every_part_counts() {
        let (one, two) = (with_digest(1), with_digest(2));
        let all = [one.fingerprint(b"a", "b"), one.fingerprint(b"ab", ""), one.fingerprint(b"a", "c"), two.fingerprint(b"a", "b")];
        assert_eq!(one.fingerprint(b"a", "b"), all[0]);
        for (at, print) in all.iter().enumerate() {
            assert_eq!(all.iter().position(|other| other == print), Some(at));
        }
    }
}
