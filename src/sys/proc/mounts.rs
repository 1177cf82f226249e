//! Mounts of single files, as containers are given sockets.
//!
//! A container that mounts a socket file holds its inode: after a rename over the path on the host it goes on connecting
//! to the old socket for ever. Such a mount shows in `mountinfo` of the container's processes as one whose root, a path
//! within its file system, is the file.
//!
//! Source: proc_pid_mountinfo(5).

use std::collections::{BTreeSet, HashMap};
use std::fs;
use std::path::{Path, PathBuf};

use super::{Proc, ProcError, text};

/// One line of `mountinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Mount {
    /// `major:minor` of the file system.
    device: String,
    /// What of the file system is mounted.
    root: PathBuf,
    /// Where.
    point: PathBuf,
}

/// What is mounted where, on the host and in every container that runs, as of one reading.
///
/// A reading looks at every process once, which takes some milliseconds on a busy host; each question after that, none.
#[derive(Debug)]
pub struct Mounts {
    own: Vec<Mount>,
    /// For each mounted part of a file system, its device and its root, the first mount point that was found, in words.
    points: HashMap<(String, PathBuf), String>,
}

impl Mounts {
    pub(super) fn read(proc: &Proc) -> Result<Self, ProcError> {
        let own = parse(&text(&proc.root.join("self/mountinfo"))?);
        let mut points = HashMap::new();
        for mount in &own {
            points.entry((mount.device.clone(), mount.root.clone())).or_insert_with(|| mount.point.display().to_string());
        }
        let mut seen: BTreeSet<PathBuf> = fs::read_link(proc.root.join("self/ns/mnt")).into_iter().collect();
        for pid in proc.pids()? {
            // Those that end meanwhile, or that we may not see, tell nothing.
            let Ok(namespace) = fs::read_link(proc.file(pid, "ns/mnt")) else { continue };
            if !seen.insert(namespace) {
                continue;
            }
            let Ok(text) = text(&proc.file(pid, "mountinfo")) else { continue };
            for mount in parse(&text) {
                let place = || format!("{} in the mount namespace of pid {pid}", mount.point.display());
                points.entry((mount.device.clone(), mount.root.clone())).or_insert_with(place);
            }
        }
        Ok(Self { own, points })
    }

    /// Gives a mount of the file `path` itself: its mount point, with the process that sees it where we do not. A rename
    /// over the path would not reach whoever uses that mount, as inside a container. Nothing for a path that is not absolute.
    pub fn of_file(&self, path: &Path) -> Option<&str> {
        // Of those stacked on one point, the last is seen.
        let holding =
            self.own.iter().filter(|mount| path.starts_with(&mount.point)).max_by_key(|mount| mount.point.components().count())?;
        let root = join(&holding.root, path.strip_prefix(&holding.point).ok()?);
        self.points.get(&(holding.device.clone(), root)).map(String::as_str)
    }
}

/// Joining nothing would add a slash to the name of a file.
fn join(root: &Path, rest: &Path) -> PathBuf {
    if rest.as_os_str().is_empty() { root.to_owned() } else { root.join(rest) }
}

fn parse(text: &str) -> Vec<Mount> {
    text.lines().filter_map(parse_line).collect()
}

fn parse_line(line: &str) -> Option<Mount> {
    let mut fields = line.split(' ').skip(2);
    let device = fields.next()?.to_owned();
    Some(Mount { device, root: unescape(fields.next()?).into(), point: unescape(fields.next()?).into() })
}

/// Spaces, tabs, newlines and backslashes are written as a backslash with three octal digits.
fn unescape(text: &str) -> String {
    let mut parts = text.split('\\');
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let escaped = part.split_at_checked(3).and_then(|(code, rest)| Some((u8::from_str_radix(code, 8).ok()?, rest)));
        match escaped {
            Some((byte, rest)) => {
                plain.push(char::from(byte));
                plain.push_str(rest);
            }
            None => {
                plain.push('\\');
                plain.push_str(part);
            }
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;

    use super::*;

    const HOST: &str = "\
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/vda1 rw
23 22 0:5 / /proc rw shared:2 - proc proc rw
24 22 0:20 / /run rw,nosuid shared:3 - tmpfs tmpfs rw
";

    /// A process file system of `processes`: pid, namespace, mounts. The first is ours.
    fn proc_with(processes: &[(&str, &str, &str)]) -> (tempfile::TempDir, Proc) {
        let directory = tempfile::tempdir().unwrap();
        for (pid, namespace, mounts) in processes {
            let process = directory.path().join(pid);
            fs::create_dir_all(process.join("ns")).unwrap();
            fs::write(process.join("mountinfo"), mounts).unwrap();
            symlink(format!("mnt:[{namespace}]"), process.join("ns/mnt")).unwrap();
        }
        symlink(processes[0].0, directory.path().join("self")).unwrap();
        let proc = Proc::at(directory.path());
        (directory, proc)
    }

    fn found(processes: &[(&str, &str, &str)], path: &str) -> Option<String> {
        let (_directory, proc) = proc_with(processes);
        proc.mounts().unwrap().of_file(Path::new(path)).map(str::to_owned)
    }

    #[test]
    fn a_socket_mounted_into_a_container_is_found() {
        let container = "\
900 800 0:40 / / rw - overlay overlay rw
901 900 0:20 /php/shop.sock /app/php\\040fpm.sock rw - tmpfs tmpfs rw
";
        let host = [("10", "1", HOST), ("11", "1", HOST), ("77", "2", container)];
        assert_eq!(found(&host, "/run/php/shop.sock").as_deref(), Some("/app/php fpm.sock in the mount namespace of pid 77"));
        assert_eq!(found(&host, "/run/php/other.sock"), None);
        // The same path within another file system.
        assert_eq!(found(&host, "/php/shop.sock"), None);
    }

    #[test]
    fn a_mounted_directory_does_no_harm() {
        let container = "901 900 0:20 /php /app/php rw - tmpfs tmpfs rw\n";
        assert_eq!(found(&[("10", "1", HOST), ("77", "2", container)], "/run/php/shop.sock"), None);
    }

    #[test]
    fn a_mount_on_the_host_itself_counts_at_either_end() {
        let host = format!("{HOST}30 22 0:20 /php/shop.sock /srv/jail/php.sock rw - tmpfs tmpfs rw\n");
        let processes = [("10", "1", host.as_str())];
        assert_eq!(found(&processes, "/run/php/shop.sock").as_deref(), Some("/srv/jail/php.sock"));
        assert_eq!(found(&processes, "/srv/jail/php.sock").as_deref(), Some("/srv/jail/php.sock"));
    }

    #[test]
    fn of_stacked_mounts_the_last_is_seen() {
        let host = format!("{HOST}31 22 0:50 / /run rw - tmpfs tmpfs rw\n");
        let container = "901 900 0:20 /shop.sock /a rw - tmpfs tmpfs rw\n902 900 0:50 /shop.sock /b rw - tmpfs tmpfs rw\n";
        let seen = found(&[("10", "1", host.as_str()), ("77", "2", container)], "/run/shop.sock");
        assert_eq!(seen.as_deref(), Some("/b in the mount namespace of pid 77"));
    }

    #[test]
    fn escapes_are_read() {
        assert_eq!(unescape("/a\\040b\\134c\\011d"), "/a b\\c\td");
        assert_eq!(unescape("/a\\9x\\"), "/a\\9x\\");
    }

    #[test]
    fn our_own_host_is_read() {
        let mounts = Proc::default().mounts().unwrap();
        assert_eq!(mounts.of_file(Path::new("/run/none.sock")), None);
        assert_eq!(mounts.of_file(Path::new("relative.sock")), None);
    }
}
