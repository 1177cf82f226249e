//! Other machines, as trees of files: what is read of them and which shards come of it.

use std::path::PathBuf;

use polyfpm::core::plan::lay_out;
use polyfpm::model::cpus::CpuSet;
use polyfpm::model::host::Host;
use polyfpm::model::ids::GroupName;
use polyfpm::model::settings::{CpuChoice, GroupSettings, ShardCount};
use polyfpm::model::topology::{FULL_CAPACITY, Topology};
use polyfpm::sys::topology::{Roots, read};

/// A machine in a folder.
struct Machine {
    root: tempfile::TempDir,
    online: CpuSet,
}

/// How the CPUs of a machine hang together, outermost first.
struct Shape {
    nodes: u32,
    caches: u32,
    cores: u32,
    threads: u32,
}

impl Machine {
    /// Writes the tree of a machine whose second threads are numbered after all first ones.
    fn new(shape: &Shape) -> Self {
        let total = shape.nodes * shape.caches * shape.cores;
        let online: CpuSet = (0..total * shape.threads).collect();
        let machine = Self { root: tempfile::tempdir().expect("a folder"), online: online.clone() };
        machine.write("sys/devices/system/cpu/online", &online.to_string());
        let siblings = |core: u32| (0..shape.threads).map(|thread| core + thread * total).collect::<CpuSet>();
        let of_cores =
            |first: u32, count: u32| (first..first + count).flat_map(|core| siblings(core).iter().collect::<Vec<_>>()).collect::<CpuSet>();
        for cpu in online.iter() {
            let core = cpu % total;
            let cache = core / shape.cores * shape.cores;
            let at = format!("sys/devices/system/cpu/cpu{cpu}");
            machine.write(&format!("{at}/topology/thread_siblings_list"), &siblings(core).to_string());
            machine.write(&format!("{at}/cache/index0/level"), "1");
            machine.write(&format!("{at}/cache/index0/type"), "Data");
            machine.write(&format!("{at}/cache/index0/shared_cpu_list"), &siblings(core).to_string());
            machine.write(&format!("{at}/cache/index3/level"), "3");
            machine.write(&format!("{at}/cache/index3/type"), "Unified");
            machine.write(&format!("{at}/cache/index3/shared_cpu_list"), &of_cores(cache, shape.cores).to_string());
        }
        for node in 0..shape.nodes {
            let cores = shape.caches * shape.cores;
            machine.write(&format!("sys/devices/system/node/node{node}/cpulist"), &of_cores(node * cores, cores).to_string());
        }
        machine
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().expect("a file in a folder")).expect("a folder");
        std::fs::write(path, format!("{text}\n")).expect("a file");
    }

    fn read_as(&self, affinity: &CpuSet) -> Topology {
        let at = |name: &str| -> PathBuf { self.root.path().join(name) };
        read(&Roots { sys: at("sys"), proc: at("proc"), cgroup: at("cgroup") }, affinity)
    }

    fn topology(&self) -> Topology {
        self.read_as(&self.online)
    }
}

/// Gives the CPUs of each shard that the machine is given unasked.
fn shards(topology: Topology) -> Vec<String> {
    let group = GroupSettings {
        name: GroupName::new("default"),
        pools: Vec::new(),
        count: ShardCount::Auto,
        cpus: CpuChoice::Nginx,
        min_workers: 8,
    };
    let laid = lay_out(&group, &Host { topology, ..Host::default() });
    laid.sets.iter().map(|set| set.as_ref().map_or_else(|| "any".to_owned(), ToString::to_string)).collect()
}

#[test]
fn a_small_virtual_machine() {
    let topology = Machine::new(&Shape { nodes: 1, caches: 1, cores: 2, threads: 1 }).topology();
    assert_eq!(shards(topology), ["0", "1"]);
}

#[test]
fn a_desktop_of_eight_cores_with_two_threads_each() {
    let topology = Machine::new(&Shape { nodes: 1, caches: 1, cores: 8, threads: 2 }).topology();
    assert_eq!(topology.cpu(9).core, 1);
    assert_eq!(shards(topology), ["0-1,8-9", "2-3,10-11", "4-5,12-13", "6-7,14-15"]);
}

#[test]
fn a_processor_with_fast_and_efficient_cores() {
    let machine = Machine::new(&Shape { nodes: 1, caches: 1, cores: 16, threads: 1 });
    machine.write("sys/devices/cpu_core/cpus", "0-7");
    machine.write("sys/devices/cpu_atom/cpus", "8-15");
    let topology = machine.topology();
    assert_eq!(topology.cpu(0).capacity, FULL_CAPACITY);
    assert!(topology.cpu(8).capacity < FULL_CAPACITY);
    // Fewer fast cores make a shard than efficient ones.
    assert_eq!(shards(topology), ["0-2", "3-5", "6-10", "11-15"]);
}

#[test]
fn capacities_that_the_kernel_tells() {
    let machine = Machine::new(&Shape { nodes: 1, caches: 1, cores: 2, threads: 1 });
    machine.write("sys/devices/system/cpu/cpu1/cpu_capacity", "446");
    assert_eq!(machine.topology().cpu(1).capacity, 446);
}

#[test]
fn a_socket_of_64_cores_with_eight_caches() {
    let topology = Machine::new(&Shape { nodes: 1, caches: 8, cores: 8, threads: 1 }).topology();
    assert_eq!(shards(topology), ["0-7", "8-15", "16-23", "24-31", "32-39", "40-47", "48-55", "56-63"]);
}

#[test]
fn two_sockets_of_96_cores() {
    let topology = Machine::new(&Shape { nodes: 2, caches: 12, cores: 8, threads: 1 }).topology();
    assert_eq!(topology.cpu(100).node, 1);
    assert_eq!(shards(topology), ["0-23", "24-47", "48-71", "72-95", "96-119", "120-143", "144-167", "168-191"]);
}

#[test]
fn a_machine_of_256_threads() {
    let topology = Machine::new(&Shape { nodes: 1, caches: 16, cores: 8, threads: 2 }).topology();
    let found = shards(topology);
    assert_eq!((found.len(), found[0].as_str(), found[7].as_str()), (8, "0-15,128-143", "112-127,240-255"));
}

#[test]
fn more_than_1024_cpus() {
    let topology = Machine::new(&Shape { nodes: 4, caches: 10, cores: 16, threads: 2 }).topology();
    let found = shards(topology);
    assert_eq!((found.len(), found[7].as_str()), (8, "560-639,1200-1279"));
}

#[test]
fn a_cpuset_of_three_odd_cpus() {
    for (line, file) in [("0::/web", "cgroup/web/cpuset.cpus.effective"), ("3:cpuset:/web", "cgroup/cpuset/web/cpuset.effective_cpus")] {
        let machine = Machine::new(&Shape { nodes: 1, caches: 1, cores: 8, threads: 1 });
        machine.write("proc/self/cgroup", line);
        machine.write("cgroup/cgroup.controllers", "cpuset cpu");
        machine.write(file, "1,3,5");
        let topology = machine.topology();
        assert_eq!(topology.usable.to_string(), "1,3,5", "{line}");
        assert_eq!(shards(topology), ["1", "3", "5"]);
    }
}

#[test]
fn a_quota_of_one_and_a_half_cpus_set_above_us() {
    for (line, file, text) in [
        ("0::/web/php", "cgroup/web/cpu.max", "150000 100000"),
        ("2:cpu,cpuacct:/web/php", "cgroup/cpu,cpuacct/web/cpu.cfs_quota_us", "150000"),
    ] {
        let machine = Machine::new(&Shape { nodes: 1, caches: 1, cores: 8, threads: 1 });
        machine.write("proc/self/cgroup", line);
        machine.write("cgroup/cgroup.controllers", "cpuset cpu");
        machine.write("cgroup/web/php/cgroup.procs", "1");
        machine.write("cgroup/web/php/cpu.max", "max 100000");
        machine.write("cgroup/cpu,cpuacct/web/php/cpu.cfs_quota_us", "-1");
        machine.write("cgroup/cpu,cpuacct/web/php/cpu.cfs_period_us", "100000");
        machine.write("cgroup/cpu,cpuacct/web/cpu.cfs_period_us", "100000");
        machine.write(file, text);
        let topology = machine.topology();
        assert_eq!(topology.quota_milli, Some(1500), "{line}");
        assert_eq!(shards(topology), ["0-3", "4-7"]);
    }
}

#[test]
fn offline_and_isolated_cpus_and_a_mask_of_our_own() {
    let machine = Machine::new(&Shape { nodes: 1, caches: 1, cores: 8, threads: 1 });
    machine.write("sys/devices/system/cpu/online", "0-2,4-7");
    machine.write("sys/devices/system/cpu/isolated", "7");
    assert_eq!(machine.topology().usable.to_string(), "0-2,4-7", "CPU 3 is offline");
    let topology = machine.read_as(&"2-7".parse().expect("CPUs"));
    assert_eq!(topology.usable.to_string(), "2,4-7");
    assert_eq!(shards(topology), ["2", "4", "5", "6"], "CPU 7 is isolated");
}
