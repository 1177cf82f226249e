use std::fs;
use std::os::unix::fs::symlink;

use tokio::time::timeout;

use super::*;

struct Place {
    _directory: tempfile::TempDir,
    root: PathBuf,
}

impl Place {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let root = directory.path().to_owned();
        Self { _directory: directory, root }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path)
    }

    fn make(&self, path: &str) -> PathBuf {
        fs::create_dir_all(self.at(path)).unwrap();
        self.at(path)
    }

    fn write(&self, path: &str) {
        fs::write(self.at(path), path).unwrap();
    }

    fn rename(&self, from: &str, to: &str) {
        fs::rename(self.at(from), self.at(to)).unwrap();
    }
}

async fn changed(watcher: &mut Watcher) -> Vec<PathBuf> {
    timeout(Duration::from_secs(10), watcher.changed()).await.unwrap().unwrap()
}

async fn nothing(watcher: &mut Watcher) {
    let changed = timeout(2 * QUIET, watcher.changed()).await;
    assert!(changed.is_err(), "{changed:?}");
}

#[tokio::test]
async fn a_rename_over_and_several_saves_are_one_change() {
    let place = Place::new();
    let pools = place.make("pool.d");
    place.write("pool.d/a.conf");
    let mut watcher = Watcher::new([pools]).unwrap();
    nothing(&mut watcher).await;
    place.write("new");
    place.rename("new", "pool.d/a.conf");
    for _ in 0..5 {
        place.write("pool.d/b.conf");
    }
    assert_eq!(changed(&mut watcher).await, [place.at("pool.d/a.conf"), place.at("pool.d/b.conf")]);
    nothing(&mut watcher).await;
    fs::remove_file(place.at("pool.d/b.conf")).unwrap();
    assert_eq!(changed(&mut watcher).await, [place.at("pool.d/b.conf")]);
    // Beside the directory, not in it.
    place.write("other");
    nothing(&mut watcher).await;
}

#[tokio::test]
async fn a_directory_that_is_replaced_is_watched_again() {
    let place = Place::new();
    let pools = place.make("pool.d");
    let mut watcher = Watcher::new([pools.clone()]).unwrap();
    place.make("new");
    place.write("new/a.conf");
    place.rename("pool.d", "old");
    place.rename("new", "pool.d");
    assert_eq!(changed(&mut watcher).await, std::slice::from_ref(&pools));
    place.write("pool.d/a.conf");
    assert_eq!(changed(&mut watcher).await, [place.at("pool.d/a.conf")]);
    // The one that was moved away is no longer watched.
    place.write("old/a.conf");
    nothing(&mut watcher).await;
    fs::remove_dir_all(&pools).unwrap();
    assert!(changed(&mut watcher).await.contains(&pools));
    place.make("pool.d");
    assert_eq!(changed(&mut watcher).await, [pools]);
    place.write("pool.d/b.conf");
    assert_eq!(changed(&mut watcher).await, [place.at("pool.d/b.conf")]);
}

#[tokio::test]
async fn a_directory_that_does_not_exist_is_seen_when_it_comes() {
    let place = Place::new();
    let wanted = place.at("php/8.2/pool.d");
    let mut watcher = Watcher::new([wanted.clone()]).unwrap();
    place.make("php/8.2/pool.d");
    assert_eq!(changed(&mut watcher).await, std::slice::from_ref(&wanted));
    place.write("php/8.2/pool.d/a.conf");
    assert_eq!(changed(&mut watcher).await, [place.at("php/8.2/pool.d/a.conf")]);
    // Moved away with what is above it.
    place.rename("php/8.2", "php/8.1");
    assert_eq!(changed(&mut watcher).await, std::slice::from_ref(&wanted));
    place.rename("php/8.1", "php/8.2");
    assert_eq!(changed(&mut watcher).await, [wanted]);
}

#[tokio::test]
async fn an_exchanged_link_counts_as_a_change_of_what_it_leads_to() {
    let place = Place::new();
    place.make("one");
    place.make("two");
    symlink("one", place.at("current")).unwrap();
    let mut watcher = Watcher::new([place.at("current")]).unwrap();
    symlink("two", place.at("next")).unwrap();
    place.rename("next", "current");
    assert_eq!(changed(&mut watcher).await, [place.at("current")]);
    place.write("two/a.conf");
    assert_eq!(changed(&mut watcher).await, [place.at("current/a.conf")]);
    place.write("one/a.conf");
    nothing(&mut watcher).await;
}

#[tokio::test]
async fn a_file_is_watched_from_above() {
    let place = Place::new();
    place.write("php.ini");
    let mut watcher = Watcher::new([place.at("php.ini")]).unwrap();
    place.write("php.ini.bak");
    nothing(&mut watcher).await;
    place.rename("php.ini.bak", "php.ini");
    assert_eq!(changed(&mut watcher).await, [place.at("php.ini")]);
    place.write("php.ini");
    assert_eq!(changed(&mut watcher).await, [place.at("php.ini")]);
}

#[tokio::test]
async fn what_is_written_all_the_time_is_given_after_a_second() {
    let place = Place::new();
    let pools = place.make("pool.d");
    let mut watcher = Watcher::new([pools]).unwrap();
    // As if events had come for a second and went on coming.
    let now = Instant::now();
    let paths = BTreeSet::from([place.at("pool.d/a.conf")]);
    watcher.pending = Some(Pending { paths, first: now.checked_sub(LONGEST).unwrap(), last: now + 100 * LONGEST });
    assert_eq!(changed(&mut watcher).await, [place.at("pool.d/a.conf")]);
    place.write("pool.d/b.conf");
    assert_eq!(changed(&mut watcher).await, [place.at("pool.d/b.conf")]);
}

#[tokio::test]
async fn a_wait_that_was_given_up_loses_nothing() {
    let place = Place::new();
    let mut watcher = Watcher::new([place.make("a")]).unwrap();
    place.write("a/1");
    assert!(timeout(QUIET / 2, watcher.changed()).await.is_err());
    place.write("a/2");
    assert_eq!(changed(&mut watcher).await, [place.at("a/1"), place.at("a/2")]);
}

#[tokio::test]
async fn other_paths_can_be_watched() {
    let place = Place::new();
    let (a, b) = (place.make("a"), place.make("b"));
    let mut watcher = Watcher::new([a.clone()]).unwrap();
    place.write("a/1");
    watcher.set_paths([b.clone()]).unwrap();
    place.write("a/2");
    nothing(&mut watcher).await;
    place.write("b/1");
    assert_eq!(changed(&mut watcher).await, [place.at("b/1")]);
    watcher.set_paths([a, b]).unwrap();
    place.write("a/3");
    place.write("b/3");
    assert_eq!(changed(&mut watcher).await, [place.at("a/3"), place.at("b/3")]);
}

#[tokio::test]
async fn after_an_overflow_everything_is_given() {
    let place = Place::new();
    let (a, b) = (place.make("a"), place.make("b"));
    let mut watcher = Watcher::new([a.clone(), b.clone()]).unwrap();
    watcher.take(&[Event { watch: -1, flags: ReadFlags::QUEUE_OVERFLOW, name: None }]).unwrap();
    assert_eq!(changed(&mut watcher).await, [a, b]);
    place.write("a/1");
    assert_eq!(changed(&mut watcher).await, [place.at("a/1")]);
}
