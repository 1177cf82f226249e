//! Changes in directories, debounced.
//!
//! Owns one inotify descriptor. Editors, package managers and configuration tools write beside a file and rename over it,
//! and some exchange whole directories or the link to one. So directories are watched and never files, and beside each
//! directory the one above it, or the nearest that exists, from where its coming, going and exchange are seen. A path that
//! is a file works too: it is watched from above.
//!
//! What is given is a hint to look, not a statement: whoever gets a path compares what is there with what it knew.
//! One save is many events, so they are collected until none has come for a while.
//!
//! Source: inotify(7).

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::time::{Instant, sleep_until};

use super::readable::Readable;

#[cfg(test)]
mod tests;

/// 100 ms: an editor's save and a package's files follow each other within a few.
const QUIET: Duration = Duration::from_millis(100);

/// 1 s: something that writes all the time must not keep us from ever looking.
const LONGEST: Duration = Duration::from_secs(1);

/// Room for some 200 events with short names; what does not fit is read next.
const BUFFER_BYTES: usize = 8192;

/// Everything by which the files of a directory, or the directory, become others.
const MASK: WatchFlags = WatchFlags::CLOSE_WRITE
    .union(WatchFlags::CREATE)
    .union(WatchFlags::DELETE)
    .union(WatchFlags::MOVED_FROM)
    .union(WatchFlags::MOVED_TO)
    .union(WatchFlags::DELETE_SELF)
    .union(WatchFlags::MOVE_SELF)
    .union(WatchFlags::ONLYDIR);

/// What says that a watch no longer stands for its path.
const LOST: ReadFlags = ReadFlags::DELETE_SELF.union(ReadFlags::MOVE_SELF).union(ReadFlags::IGNORED).union(ReadFlags::UNMOUNT);

/// Which paths each watch stands for: several where links lead to one directory.
type Watches = BTreeMap<i32, BTreeSet<PathBuf>>;

/// One event as the kernel tells it.
#[derive(Debug)]
struct Event {
    watch: i32,
    flags: ReadFlags,
    name: Option<OsString>,
}

/// Changes collected and not yet given.
#[derive(Debug)]
struct Pending {
    paths: BTreeSet<PathBuf>,
    first: Instant,
    last: Instant,
}

/// Directories and files that are watched.
#[derive(Debug)]
pub struct Watcher {
    inotify: OwnedFd,
    readable: Readable,
    wanted: BTreeSet<PathBuf>,
    watches: Watches,
    pending: Option<Pending>,
}

impl Watcher {
    /// Watches `paths` (absolute), also those that do not exist yet. Must be called on a runtime.
    ///
    /// # Errors
    /// When the host's limits of inotify are reached, or a directory may not be read.
    pub fn new(paths: impl IntoIterator<Item = PathBuf>) -> io::Result<Self> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let readable = Readable::new(inotify.try_clone()?)?;
        let mut watcher = Self { inotify, readable, wanted: BTreeSet::new(), watches: Watches::new(), pending: None };
        watcher.set_paths(paths)?;
        Ok(watcher)
    }

    /// Watches `paths` from now on and nothing else. Changes not yet given are kept for those that stay.
    ///
    /// # Errors
    /// As [`Watcher::new`]; the paths are then watched as far as possible.
    pub fn set_paths(&mut self, paths: impl IntoIterator<Item = PathBuf>) -> io::Result<()> {
        self.wanted = paths.into_iter().collect();
        let wanted = &self.wanted;
        if let Some(pending) = &mut self.pending {
            pending.paths.retain(|path| wanted.iter().any(|wanted| path.starts_with(wanted)));
        }
        self.pending.take_if(|pending| pending.paths.is_empty());
        self.refresh().map(drop)
    }

    /// Waits for changes and then until none has come for 100 ms, at most 1 s, and gives the files that were changed, or the
    /// path as it was asked for where it came, went or was exchanged. After an overflow all paths are given.
    ///
    /// # Errors
    /// As [`Watcher::new`], when a directory that came anew cannot be watched. What was collected is kept.
    ///
    /// # Cancel safety
    /// Safe: changes stay until a call returns them.
    pub async fn changed(&mut self) -> io::Result<Vec<PathBuf>> {
        loop {
            let longest = self.pending.as_ref().map(|pending| pending.first + LONGEST);
            if longest.is_some_and(|longest| longest <= Instant::now()) {
                return Ok(self.give());
            }
            let quiet = self.pending.as_ref().map(|pending| pending.last + QUIET).min(longest);
            // First what is there to read: after a pause of our own it says that it is not quiet.
            let events = tokio::select! {
                biased;
                events = self.readable.read(read_events) => events?,
                () = sleep_or_for_ever(quiet) => return Ok(self.give()),
            };
            self.take(&events)?;
        }
    }

    fn give(&mut self) -> Vec<PathBuf> {
        self.pending.take().map(|pending| pending.paths.into_iter().collect()).unwrap_or_default()
    }

    fn take(&mut self, events: &[Event]) -> io::Result<()> {
        let mut changed = BTreeSet::new();
        let mut moved = false;
        for event in events {
            if event.flags.contains(ReadFlags::QUEUE_OVERFLOW) {
                changed.extend(self.wanted.iter().cloned());
                moved = true;
                continue;
            }
            // Those of a watch that has been given up mean nothing any more.
            for directory in self.watches.get(&event.watch).into_iter().flatten() {
                moved |= event.flags.intersects(LOST);
                let Some(name) = &event.name else { continue };
                let path = directory.join(name);
                let beneath: Vec<_> = self.wanted.iter().filter(|wanted| wanted.starts_with(&path)).cloned().collect();
                moved |= !beneath.is_empty();
                changed.extend(beneath);
                if self.wanted.contains(directory) {
                    changed.insert(path);
                }
            }
        }
        self.add_pending(changed);
        if moved {
            let exchanged = self.refresh()?;
            self.add_pending(exchanged);
        }
        Ok(())
    }

    fn add_pending(&mut self, paths: BTreeSet<PathBuf>) {
        if paths.is_empty() {
            return;
        }
        let now = Instant::now();
        let pending = self.pending.get_or_insert_with(|| Pending { paths: BTreeSet::new(), first: now, last: now });
        pending.paths.extend(paths);
        pending.last = now;
    }

    /// Watches what is at the paths now. Gives those where it is something else than before.
    fn refresh(&mut self) -> io::Result<BTreeSet<PathBuf>> {
        let mut watches = Watches::new();
        let mut outcome = Ok(());
        for path in &self.wanted {
            if let Err(error) = watch(self.inotify.as_fd(), path, &mut watches) {
                outcome = Err(error);
            }
        }
        for (watch, _) in self.watches.iter().filter(|(watch, _)| !watches.contains_key(watch)) {
            // One whose directory was removed is gone by itself.
            let _gone = inotify::remove_watch(&self.inotify, *watch);
        }
        let exchanged = self.standing(&self.watches).symmetric_difference(&self.standing(&watches)).map(|(_, path)| path.clone()).collect();
        self.watches = watches;
        outcome.map(|()| exchanged)
    }

    /// Gives the paths asked for with the watches that stand for them.
    fn standing(&self, watches: &Watches) -> BTreeSet<(i32, PathBuf)> {
        let all = watches.iter().flat_map(|(watch, paths)| paths.iter().map(|path| (*watch, path.clone())));
        all.filter(|(_, path)| self.wanted.contains(path)).collect()
    }
}

async fn sleep_or_for_ever(until: Option<Instant>) {
    match until {
        Some(until) => sleep_until(until).await,
        None => std::future::pending().await,
    }
}

/// Watches `path`, where it is a directory, and the nearest directory above it.
fn watch(inotify: BorrowedFd<'_>, path: &Path, watches: &mut Watches) -> io::Result<()> {
    let mut above = None;
    loop {
        let mut found = None;
        for directory in path.ancestors().skip(1) {
            if add(inotify, directory, watches)? {
                found = Some(directory);
                break;
            }
        }
        // Again until nothing new is found: what is made between finding it missing and watching above it is not seen.
        if found == above {
            break;
        }
        above = found;
    }
    add(inotify, path, watches).map(drop)
}

/// Watches one directory; false when there is none.
fn add(inotify: BorrowedFd<'_>, directory: &Path, watches: &mut Watches) -> io::Result<bool> {
    match inotify::add_watch(inotify, directory, MASK) {
        Ok(watch) => {
            watches.entry(watch).or_default().insert(directory.to_owned());
            Ok(true)
        }
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP) => Ok(false),
        Err(errno) => Err(errno.into()),
    }
}

/// Reads all events there are; `WouldBlock` when there are none.
fn read_events(inotify: BorrowedFd<'_>) -> io::Result<Vec<Event>> {
    let mut buffer = [MaybeUninit::uninit(); BUFFER_BYTES];
    let mut reader = Reader::new(inotify, &mut buffer);
    let mut events = Vec::new();
    loop {
        match reader.next() {
            Ok(event) => {
                let name = event.file_name().map(|name| OsStr::from_bytes(name.to_bytes()).to_owned());
                events.push(Event { watch: event.wd(), flags: event.events(), name });
            }
            Err(Errno::WOULDBLOCK) if !events.is_empty() => return Ok(events),
            Err(errno) => return Err(errno.into()),
        }
    }
}
