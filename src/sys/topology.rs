//! What the kernel tells of the CPUs: which are online, what they share, which we may use, and how much of them.
//!
//! Everything is read below [`Roots`], so that trees of other machines can be read in tests. What a kernel does not tell (an
//! old one, a container without `/sys`) is taken as absent: one cache, one node, no limit.
//!
//! Source: Linux `Documentation/ABI/stable/sysfs-devices-system-cpu`, `Documentation/admin-guide/cputopology.rst`,
//! `Documentation/admin-guide/cgroup-v2.rst` (`cpu.max`, `cpuset.cpus.effective`), `Documentation/scheduler/sched-bwc.rst`.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read as _;
use std::path::{Path, PathBuf};

use crate::model::cpus::{CpuSet, MAX_CPU};
use crate::model::topology::{Cpu, FULL_CAPACITY, Topology};

/// The longest file read: a list of 65,536 CPUs, every second of them.
const LIMIT_BYTES: u64 = 256 * 1024;

/// What an efficient core of a hybrid processor does of a fast one's work, where the kernel gives no capacity: PHP is bound by
/// single-thread speed, of which such cores have some three fifths.
const EFFICIENT_CAPACITY: u32 = 614;

/// Where the file systems of the kernel are.
#[derive(Debug, Clone)]
pub struct Roots {
    /// `/sys`.
    pub sys: PathBuf,
    /// `/proc`.
    pub proc: PathBuf,
    /// `/sys/fs/cgroup`.
    pub cgroup: PathBuf,
}

impl Default for Roots {
    fn default() -> Self {
        Self { sys: "/sys".into(), proc: "/proc".into(), cgroup: "/sys/fs/cgroup".into() }
    }
}

/// Reads what is known of the CPUs. `affinity` is what we may run on by our own mask.
pub fn read(roots: &Roots, affinity: &CpuSet) -> Topology {
    let cpus = roots.sys.join("devices/system/cpu");
    let online = list(&cpus.join("online")).filter(|online| !online.is_empty()).unwrap_or_else(|| affinity.clone());
    let isolated = list(&cpus.join("isolated")).unwrap_or_default();
    let efficient = list(&roots.sys.join("devices/cpu_atom/cpus")).unwrap_or_default();
    let nodes = nodes(&roots.sys.join("devices/system/node"));
    let cpu = |number: u32| {
        let path = cpus.join(format!("cpu{number}"));
        let usual = if efficient.contains(number) { EFFICIENT_CAPACITY } else { FULL_CAPACITY };
        Cpu {
            core: lowest(&path.join("topology/thread_siblings_list")).unwrap_or(number),
            cache: cache(&path).or_else(|| package(&path)).unwrap_or(0),
            node: nodes.get(&number).copied().unwrap_or(0),
            capacity: text(&path.join("cpu_capacity")).and_then(|text| text.trim().parse().ok()).filter(|of| *of > 0).unwrap_or(usual),
            isolated: isolated.contains(number),
        }
    };
    let group = Groups::read(roots);
    let allowed = group.cpuset().filter(|set| !set.is_empty());
    let usable = affinity.iter().filter(|cpu| online.contains(*cpu) && allowed.as_ref().is_none_or(|set| set.contains(*cpu)));
    let usable: CpuSet = usable.collect();
    Topology {
        online: online.iter().map(|number| (number, cpu(number))).collect(),
        // A tree that contradicts the mask tells of another machine: the mask is what counts.
        usable: if usable.is_empty() { affinity.clone() } else { usable },
        quota_milli: group.quota_milli(),
    }
}

/// Gives the node of each CPU.
fn nodes(directory: &Path) -> BTreeMap<u32, u32> {
    let mut of = BTreeMap::new();
    for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let Some(node) = name.to_str().and_then(|name| name.strip_prefix("node")?.parse::<u32>().ok()) else { continue };
        let cpus = list(&entry.path().join("cpulist")).unwrap_or_default();
        of.extend(cpus.iter().map(|cpu| (cpu, node)));
    }
    of
}

/// Gives the lowest CPU of those that share the last level of cache.
fn cache(cpu: &Path) -> Option<u32> {
    let mut last: Option<(u32, u32)> = None;
    for entry in std::fs::read_dir(cpu.join("cache")).ok()?.flatten() {
        let path = entry.path();
        let level = text(&path.join("level")).and_then(|text| text.trim().parse::<u32>().ok());
        let shared = lowest(&path.join("shared_cpu_list"));
        if let Some((level, shared)) = level.zip(shared)
            && text(&path.join("type")).is_none_or(|kind| kind.trim() != "Instruction")
            && last.is_none_or(|(highest, _)| level > highest)
        {
            last = Some((level, shared));
        }
    }
    // A second level is a core's own: it says nothing of what cores share.
    last.filter(|(level, _)| *level >= 3).map(|(_, shared)| shared)
}

fn package(cpu: &Path) -> Option<u32> {
    ["die_cpus_list", "package_cpus_list", "core_siblings_list"].iter().find_map(|name| lowest(&cpu.join("topology").join(name)))
}

fn lowest(path: &Path) -> Option<u32> {
    list(path)?.iter().next()
}

fn list(path: &Path) -> Option<CpuSet> {
    text(path)?.trim().parse().ok()
}

fn text(path: &Path) -> Option<String> {
    let mut text = String::new();
    File::open(path).ok()?.take(LIMIT_BYTES).read_to_string(&mut text).ok()?;
    Some(text)
}

/// The control groups we are in.
struct Groups {
    /// The unified hierarchy: our group and where the hierarchy is mounted.
    unified: Option<(PathBuf, PathBuf)>,
    /// The same for the controllers of version 1, by name.
    old: BTreeMap<String, (PathBuf, PathBuf)>,
}

impl Groups {
    fn read(roots: &Roots) -> Self {
        let (mut unified, mut old) = (None, BTreeMap::new());
        for line in text(&roots.proc.join("self/cgroup")).unwrap_or_default().lines() {
            let mut fields = line.splitn(3, ':');
            let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else { continue };
            if controllers.is_empty() {
                let mounted =
                    [roots.cgroup.join("unified"), roots.cgroup.clone()].into_iter().find(|root| root.join("cgroup.controllers").is_file());
                unified = mounted.map(|root| (below(&root, path), root));
            }
            for controller in controllers.split(',').filter(|controller| !controller.is_empty()) {
                let mounted = [roots.cgroup.join(controllers), roots.cgroup.join(controller)].into_iter().find(|root| root.is_dir());
                old.extend(mounted.map(|root| (controller.to_owned(), (below(&root, path), root))));
            }
        }
        Self { unified, old }
    }

    fn cpuset(&self) -> Option<CpuSet> {
        let unified = self.unified.as_ref().and_then(|(group, root)| up(group, root, |at| list(&at.join("cpuset.cpus.effective"))).next());
        unified.or_else(|| {
            let (group, _) = self.old.get("cpuset")?;
            list(&group.join("cpuset.effective_cpus")).or_else(|| list(&group.join("cpuset.cpus")))
        })
    }

    /// Gives the tightest limit of our group and those above it.
    fn quota_milli(&self) -> Option<u32> {
        let unified = self.unified.iter().flat_map(|(group, root)| up(group, root, |at| quota(&text(&at.join("cpu.max"))?)));
        let old = self.old.get("cpu").into_iter().flat_map(|(group, root)| {
            up(group, root, |at| {
                let quota_us = text(&at.join("cpu.cfs_quota_us"))?;
                quota(&format!("{} {}", quota_us.trim(), text(&at.join("cpu.cfs_period_us"))?))
            })
        });
        unified.chain(old).min()
    }
}

/// Gives the group's directory; in a container that sees its own group as the root, the path from outside leads nowhere.
fn below(root: &Path, path: &str) -> PathBuf {
    let group = root.join(path.trim_start_matches('/'));
    if group.is_dir() { group } else { root.to_owned() }
}

/// Asks a group and those above it, up to the root of the hierarchy.
fn up<'a, T>(group: &'a Path, root: &'a Path, ask: impl Fn(&Path) -> Option<T> + 'a) -> impl Iterator<Item = T> + 'a {
    group.ancestors().take_while(move |at| at.starts_with(root)).filter_map(ask)
}

/// Reads "QUOTA PERIOD" in microseconds; "max" and -1 are no limit.
fn quota(text: &str) -> Option<u32> {
    let mut words = text.split_ascii_whitespace();
    let quota: u64 = words.next()?.parse().ok()?;
    let period: u64 = words.next()?.parse().ok().filter(|period| *period > 0)?;
    let milli = (quota.checked_mul(1000)? / period).max(1);
    u32::try_from(milli.min(u64::from(MAX_CPU) * 1000)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn quotas_are_read_in_thousandths_of_a_cpu() {
        for (text, wanted) in [
            ("150000 100000", Some(1500)),
            ("max 100000", None),
            ("-1 100000", None),
            ("1 100000", Some(1)),
            ("100000 0", None),
            ("", None),
        ] {
            assert_eq!(quota(text), wanted, "{text}");
        }
    }

    #[test]
    fn this_machine_is_read() {
        let affinity = crate::sys::proc::available_cpus().unwrap();
        let topology = read(&Roots::default(), &affinity);
        assert_eq!(topology.usable, affinity);
        assert!(affinity.iter().all(|cpu| topology.online.contains_key(&cpu)), "{topology:?}");
    }

    #[test]
    fn an_empty_tree_tells_of_one_cache_and_no_limit() {
        let empty = tempfile::tempdir().unwrap();
        let roots = Roots { sys: empty.path().into(), proc: empty.path().into(), cgroup: empty.path().into() };
        let affinity: CpuSet = "0-3".parse().unwrap();
        assert_eq!(read(&roots, &affinity), Topology::flat(affinity));
    }
}
