//! A part of the unified hierarchy of control groups (cgroup v2) that is ours to divide.
//!
//! A service manager delegates the group of a unit (`Delegate=yes`) and marks it with an extended attribute; the root of a
//! container's own hierarchy is the container's. Nothing is touched elsewhere. In what is ours each shard has a group, and each
//! of its generations one below it:
//!
//! ```text
//! polyfpm@php8.2.service/          delegated
//!   supervisor/                    where the manager starts us (DelegateSubgroup=)
//!   shard-php8.2@default.1/        cpu.weight
//!     generation-7/                memory.max; cgroup.kill
//!     generation-8/
//! ```
//!
//! Groups without controllers still tell which processes belong together and kill them in one stroke. A group whose children
//! have controllers may hold no process itself, so controllers need us to be in a group of our own: where the manager starts
//! us in the delegated group, it could not start us there again while masters of ours live below it (S9).
//!
//! Everything is read below [`Roots`], so that trees of other machines can be read in tests. Sources: cgroups(7), Linux
//! `Documentation/admin-guide/cgroup-v2.rst`, systemd `docs/CGROUP_DELEGATION.md`.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

use super::topology::Roots;

/// The group in which the service manager starts us (`DelegateSubgroup=`).
const SUPERVISOR: &str = "supervisor";

/// The marks of a delegated group: systemd sets the first as root, the second since version 251.
const MARKS: [&str; 2] = ["trusted.delegate", "user.delegate"];

/// Says why control groups are not used, or not for everything.
#[derive(Debug, thiserror::Error)]
pub enum CgroupError {
    /// There is no unified hierarchy.
    #[error("cgroup v2 is not mounted")]
    Absent,
    /// The group we are in is not ours to divide.
    #[error("the control group {} is not delegated (Delegate=yes of the unit)", .0.display())]
    NotDelegated(PathBuf),
    /// The supervisor is in the group that would have to be divided.
    #[error("the supervisor is in the control group {} itself (DelegateSubgroup=, systemd 254 or later, gives it one of its own)", .0.display())]
    NotApart(PathBuf),
    /// The kernel, or whoever delegated the group, gives no such controller.
    #[error("there is no {controller} controller in {}", group.display())]
    NoController {
        /// Which one.
        controller: &'static str,
        /// Where it was looked for.
        group: PathBuf,
    },
    /// A file or directory of a group was refused.
    #[error("{step} {}", path.display())]
    File {
        /// What was tried.
        step: &'static str,
        /// On what.
        path: PathBuf,
        /// Why not.
        source: io::Error,
    },
}

/// What a shard and its generations are held to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct GroupLimits {
    /// Memory of each generation in bytes: two of them may live during a handover, and neither is killed for the other.
    pub memory_max: Option<u64>,
    /// CPU weight of the shard, both generations together, 1…10000.
    pub cpu_weight: Option<u64>,
}

/// A delegated group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Delegated {
    base: PathBuf,
    /// Whether no process needs to be in the delegated group itself.
    apart: bool,
}

impl Delegated {
    /// Finds the delegated group we are in.
    ///
    /// # Errors
    /// There is none, and why.
    pub fn find(roots: &Roots) -> Result<Self, CgroupError> {
        let root = root(roots).ok_or(CgroupError::Absent)?;
        let told = fs::read_to_string(roots.proc.join("self/cgroup")).unwrap_or_default();
        let own = told.lines().find_map(|line| line.strip_prefix("0::/")).ok_or(CgroupError::Absent)?;
        let own = Some(root.join(own)).filter(|own| own.is_dir()).unwrap_or_else(|| root.clone());
        let above = own.parent().filter(|_| own.file_name() == Some(OsStr::new(SUPERVISOR)));
        if let Some(above) = above.filter(|above| is_delegated(above, &root)) {
            return Ok(Self { base: above.to_owned(), apart: true });
        }
        if is_delegated(&own, &root) { Ok(Self { base: own, apart: false }) } else { Err(CgroupError::NotDelegated(own)) }
    }

    /// Gives the directory of a generation's group.
    pub fn path(&self, shard: &str, generation: u64) -> PathBuf {
        self.base.join(format!("shard-{shard}")).join(format!("generation-{generation}"))
    }

    /// Makes the group of a generation and limits it. What it could not be limited to comes with it: a master without its limit
    /// is better than none.
    ///
    /// # Errors
    /// There is no group.
    pub fn make(&self, shard: &str, generation: u64, limits: GroupLimits) -> Result<(PathBuf, Vec<CgroupError>), CgroupError> {
        let path = self.path(shard, generation);
        let of_shard = path.parent().unwrap_or(&self.base).to_owned();
        for directory in [&of_shard, &path] {
            match fs::create_dir(directory) {
                Err(source) if source.kind() != io::ErrorKind::AlreadyExists => return Err(failed("make the group", directory, source)),
                Ok(()) | Err(_) => {}
            }
        }
        let mut missed = Vec::new();
        if let Some(bytes) = limits.memory_max {
            let controlled = self.control("memory", &self.base).and_then(|()| self.control("memory", &of_shard));
            missed.extend(controlled.and_then(|()| set(&path.join("memory.max"), &bytes.to_string())).err());
        }
        if let Some(weight) = limits.cpu_weight {
            let controlled = self.control("cpu", &self.base);
            missed.extend(controlled.and_then(|()| set(&of_shard.join("cpu.weight"), &weight.to_string())).err());
        }
        Ok((path, missed))
    }

    /// Gives a group's children a controller.
    fn control(&self, controller: &'static str, group: &Path) -> Result<(), CgroupError> {
        if !self.apart {
            return Err(CgroupError::NotApart(self.base.clone()));
        }
        if !has(group, controller) {
            return Err(CgroupError::NoController { controller, group: group.to_owned() });
        }
        set(&group.join("cgroup.subtree_control"), &format!("+{controller}"))
    }

    /// Kills every process of a generation, also those that left its process group.
    ///
    /// # Errors
    /// There is no such group, or the kernel (before 5.14) has no `cgroup.kill`.
    pub fn kill(&self, shard: &str, generation: u64) -> Result<(), CgroupError> {
        set(&self.path(shard, generation).join("cgroup.kill"), "1")
    }

    /// Removes the empty groups of all shards whose name begins so. Those with processes stay.
    pub fn sweep(&self, prefix: &str) {
        let prefix = format!("shard-{prefix}");
        for shard in directories(&self.base, &prefix) {
            for generation in directories(&shard, "generation-") {
                // Refused while somebody is in it.
                drop(fs::remove_dir(generation));
            }
            drop(fs::remove_dir(shard));
        }
    }
}

/// Tells whether the kernel has a controller for the unified hierarchy at all.
///
/// # Errors
/// It has not, or there is no such hierarchy.
pub fn offered(roots: &Roots, controller: &'static str) -> Result<(), CgroupError> {
    let group = root(roots).ok_or(CgroupError::Absent)?;
    if has(&group, controller) { Ok(()) } else { Err(CgroupError::NoController { controller, group }) }
}

fn root(roots: &Roots) -> Option<PathBuf> {
    [roots.cgroup.join("unified"), roots.cgroup.clone()].into_iter().find(|root| root.join("cgroup.controllers").is_file())
}

/// The hierarchy's own root has no type; where ours has one, we see a container's part of it.
fn is_delegated(group: &Path, root: &Path) -> bool {
    let is_marked = |mark: &str| {
        let mut value = [0_u8; 8];
        rustix::fs::getxattr(group, mark, &mut value).is_ok_and(|length| value.get(..length) == Some(b"1"))
    };
    MARKS.into_iter().any(is_marked) || (group == root && group.join("cgroup.type").exists())
}

fn has(group: &Path, controller: &str) -> bool {
    let listed = fs::read_to_string(group.join("cgroup.controllers")).unwrap_or_default();
    listed.split_ascii_whitespace().any(|one| one == controller)
}

fn set(path: &Path, value: &str) -> Result<(), CgroupError> {
    // Never made: a file that is not there is a controller that is not.
    let written = fs::OpenOptions::new().write(true).open(path).and_then(|mut file| file.write_all(value.as_bytes()));
    written.map_err(|source| failed("write", path, source))
}

fn failed(step: &'static str, path: &Path, source: io::Error) -> CgroupError {
    CgroupError::File { step, path: path.to_owned(), source }
}

fn directories(above: &Path, prefix: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(above).into_iter().flatten().flatten();
    let named = entries.filter(|entry| entry.file_name().to_str().is_some_and(|name| name.starts_with(prefix)));
    named.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())).map(|entry| entry.path()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A tree as a container sees its own: its root has a type.
    fn tree(own: &str) -> (tempfile::TempDir, Roots) {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let roots = Roots { sys: at("sys"), proc: at("proc"), cgroup: at("cgroup") };
        fs::create_dir_all(at("proc/self")).unwrap();
        fs::create_dir_all(at("cgroup/supervisor")).unwrap();
        fs::write(at("proc/self/cgroup"), format!("1:name=systemd:/x\n0::{own}\n")).unwrap();
        for (file, text) in [("cgroup.controllers", "cpu memory\n"), ("cgroup.type", "domain\n"), ("cgroup.subtree_control", "")] {
            fs::write(at("cgroup").join(file), text).unwrap();
        }
        (directory, roots)
    }

    fn shard(roots: &Roots, controllers: &str) -> PathBuf {
        let shard = roots.cgroup.join("shard-web@default.1");
        fs::create_dir_all(shard.join("generation-3")).unwrap();
        for (file, text) in
            [("cgroup.controllers", controllers), ("cgroup.subtree_control", ""), ("cpu.weight", ""), ("generation-3/memory.max", "")]
        {
            fs::write(shard.join(file), text).unwrap();
        }
        shard
    }

    const LIMITS: GroupLimits = GroupLimits { memory_max: Some(1 << 30), cpu_weight: Some(50) };

    #[test]
    fn a_generation_has_its_memory_and_a_shard_its_weight() {
        let (_directory, roots) = tree("/supervisor");
        let delegated = Delegated::find(&roots).unwrap();
        let shard = shard(&roots, "memory");
        let (path, missed) = delegated.make("web@default.1", 3, LIMITS).unwrap();
        assert!(missed.is_empty(), "{missed:?}");
        let read = |path: PathBuf| fs::read_to_string(path).unwrap();
        assert_eq!(read(path.join("memory.max")), "1073741824");
        assert_eq!(read(shard.join("cpu.weight")), "50");
        assert_eq!(read(shard.join("cgroup.subtree_control")), "+memory");
    }

    #[test]
    fn what_cannot_be_limited_is_told_and_the_group_is_there() {
        let (_directory, roots) = tree("/");
        let (path, missed) = Delegated::find(&roots).unwrap().make("web@default.1", 3, LIMITS).unwrap();
        assert!(path.is_dir());
        assert_eq!(missed.len(), 2);
        assert!(missed[0].to_string().starts_with("the supervisor is in the control group "), "{}", missed[0]);
        let (_directory, roots) = tree("/supervisor");
        fs::write(roots.cgroup.join("cgroup.controllers"), "hugetlb\n").unwrap();
        let (_, missed) = Delegated::find(&roots).unwrap().make("web@default.1", 3, LIMITS).unwrap();
        assert!(missed[1].to_string().starts_with("there is no cpu controller in "), "{}", missed[1]);
        assert!(offered(&roots, "hugetlb").is_ok() && offered(&roots, "memory").is_err());
    }

    #[test]
    fn nothing_is_divided_that_is_not_ours() {
        let (directory, roots) = tree("/");
        fs::remove_file(roots.cgroup.join("cgroup.type")).unwrap();
        let why = Delegated::find(&roots).unwrap_err().to_string();
        assert!(why.contains("is not delegated"), "{why}");
        let none = Roots { cgroup: directory.path().join("none"), ..roots };
        assert!(matches!(Delegated::find(&none), Err(CgroupError::Absent)));
    }

    #[test]
    fn empty_groups_are_removed_and_others_stay() {
        let (_directory, roots) = tree("/supervisor");
        let delegated = Delegated::find(&roots).unwrap();
        for (shard, generation) in [("web@default.1", 3), ("web@default.2", 1), ("blog@default.1", 1)] {
            delegated.make(shard, generation, GroupLimits::default()).unwrap();
        }
        fs::write(delegated.path("web@default.2", 1).join("occupied"), "").unwrap();
        delegated.sweep("web@");
        let there =
            [("web@default.1", 3), ("web@default.2", 1), ("blog@default.1", 1)].map(|(shard, at)| delegated.path(shard, at).exists());
        assert_eq!(there, [false, true, true]);
    }
}
