//! Reads the operator's files from disk.

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::Read;
use std::path::{Path, PathBuf};

use crate::model::host::{FpmBuild, Version};
use crate::text::fpm::{IncludeError, IncludeRequest, ReadContext, Reading, RunsAs, SourceFile, read};

use super::build::{ProbeError, learn, probe_with};
use super::glob::{fixed_part, glob};
use super::{Tool, prefix};

/// No pool file comes near this; what is bigger is something else.
const FILE_LIMIT_BYTES: u64 = 16 * 1024 * 1024;

/// Rounds of asking for the meaning of words. Each may bring new files by an include that is written with one.
const ROUNDS: usize = 4;

/// Says why the files could not be read at all. Faults in them are in the reading.
#[derive(Debug, thiserror::Error)]
pub enum FilesError {
    /// The binary could not be asked what it can do, and what words mean.
    #[error(transparent)]
    Probe(#[from] ProbeError),
    /// The reading itself was given up.
    #[error("read the pool files")]
    Stopped,
}

/// What the files say, and what to watch for changes.
#[derive(Debug, Clone)]
pub struct FoundFiles {
    /// What they say.
    pub reading: Reading,
    /// What it depended on besides the files: constants, the values of `${…}`, the prefix.
    pub context: ReadContext,
    /// Every file that was read and every directory a pattern looks into.
    pub watched: Vec<PathBuf>,
}

/// Asks the binary what it can do and reads `php.config` and everything it includes.
///
/// A run of the binary takes longer than the reading, so the files are read first, as a php-fpm of today would read them; then
/// one run tells what can be done and what all their words mean. Only where that differs are they read again.
///
/// # Errors
/// As [`read_files`], and when the binary is no php-fpm.
///
/// # Cancel safety
/// Dropping the future ends the run under way.
pub async fn probe_and_read(tool: &Tool) -> Result<(FpmBuild, FoundFiles), FilesError> {
    let context = context(tool, &guess(&tool.php.binary));
    let found = read_once(tool.php.config.clone(), context.clone()).await?;
    let mut build = probe_with(tool, &found.reading.words).await?;
    let real = self::context(tool, &build);
    let same = context.reads_like(&real) && found.reading.variables.is_empty();
    if same && !found.reading.words.iter().any(|word| build.constants.contains_key(word)) {
        return Ok((build, FoundFiles { context: real, ..found }));
    }
    let asked = Reading { words: found.reading.words, ..Reading::default() };
    let found = read_on(tool, &mut build, asked).await?;
    Ok((build, found))
}

/// Guesses what a binary can do from its name, such as `php-fpm8.2`.
fn guess(binary: &Path) -> FpmBuild {
    let name = binary.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let mut numbers = name.trim_start_matches(|c: char| !c.is_ascii_digit()).split('.').map(str::parse);
    let version = match (numbers.next(), numbers.next()) {
        // Of each branch the last release, which most hosts have.
        (Some(Ok(major)), Some(Ok(minor))) => Version(major, minor, u32::MAX),
        _ => Version(8, 4, u32::MAX),
    };
    FpmBuild { version, systemd: true, status_listen: true, constants: Default::default() }
}

fn context(tool: &Tool, build: &FpmBuild) -> ReadContext {
    let runs_as = if nix::unistd::geteuid().is_root() { RunsAs::Root } else { RunsAs::Other };
    ReadContext { prefix: prefix(&tool.php, build), build: build.clone(), variables: Default::default(), runs_as }
}

/// Reads `php.config` and everything it includes. Constants that turn up are added to `build`.
///
/// # Errors
/// When the binary cannot be asked what words mean. Faults in the files are in the answer.
///
/// # Cancel safety
/// Dropping the future ends the run under way and changes nothing but `build`.
pub async fn read_files(tool: &Tool, build: &mut FpmBuild) -> Result<FoundFiles, FilesError> {
    read_on(tool, build, Reading::default()).await
}

/// Reads until nothing new is to be asked; the words of `asked` have been.
async fn read_on(tool: &Tool, build: &mut FpmBuild, mut asked: Reading) -> Result<FoundFiles, FilesError> {
    let mut context = context(tool, build);
    for _ in 0..ROUNDS {
        let found = read_once(tool.php.config.clone(), context.clone()).await?;
        let words = found.reading.words.difference(&asked.words).cloned().collect();
        let variables = found.reading.variables.difference(&asked.variables).cloned().collect();
        let learned = learn(tool, build, &words, &variables).await?;
        asked.words.extend(words);
        asked.variables.extend(variables);
        let news = learned.constants.iter().any(|(word, meaning)| context.build.constants.get(word) != Some(meaning));
        if !news && learned.variables.is_empty() {
            build.constants = context.build.constants;
            return Ok(found);
        }
        context.build.constants.extend(learned.constants);
        context.variables.extend(learned.variables);
    }
    build.constants.clone_from(&context.build.constants);
    read_once(tool.php.config.clone(), context).await
}

async fn read_once(main: PathBuf, context: ReadContext) -> Result<FoundFiles, FilesError> {
    tokio::task::spawn_blocking(move || read_now(&main, context)).await.map_err(|_| FilesError::Stopped)
}

fn read_now(main: &Path, context: ReadContext) -> FoundFiles {
    let mut watched = BTreeSet::new();
    let mut watch = |path: PathBuf| watched.extend([path]);
    watch(main.to_owned());
    let mut source = |request: IncludeRequest| match request {
        IncludeRequest::Main(path) => Ok(vec![load(path)]),
        IncludeRequest::Pattern(pattern) => {
            watch(fixed_part(&pattern));
            let found = glob(&pattern)?;
            found.directories.into_iter().for_each(&mut watch);
            Ok::<_, IncludeError>(found.paths.into_iter().map(load).collect())
        }
    };
    let reading = read(main, &context, &mut source);
    reading.files.files.iter().cloned().for_each(&mut watch);
    FoundFiles { reading, context, watched: watched.into_iter().collect() }
}

fn load(path: PathBuf) -> SourceFile {
    let content = content(&path);
    SourceFile { path, content }
}

fn content(path: &Path) -> Result<Vec<u8>, String> {
    let told = |error: std::io::Error| error.to_string();
    // Opening a FIFO would wait for a writer for ever.
    let kind = fs::metadata(path).map_err(told)?.file_type();
    if !kind.is_file() {
        return Err("not a regular file".into());
    }
    let mut bytes = Vec::new();
    File::open(path).map_err(told)?.take(FILE_LIMIT_BYTES + 1).read_to_end(&mut bytes).map_err(told)?;
    if bytes.len() as u64 > FILE_LIMIT_BYTES {
        return Err(format!("larger than {FILE_LIMIT_BYTES} bytes"));
    }
    Ok(bytes)
}
