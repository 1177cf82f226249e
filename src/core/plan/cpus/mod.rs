//! How many shards a group has and on which CPUs.
//!
//! # The rule
//!
//! With `cpus = "nginx"` the shards follow NGINX's workers: what one worker is pinned to stays in one shard, so that a request
//! needs not leave the caches it came through. Where NGINX pins nothing, the machine alone decides, as with `"auto"`.
//!
//! With `count = "auto"` there is a shard for each CPU up to four, then one for four CPUs, at most eight. More cost memory, as
//! each has an opcache of its own (P43), and gain little. From that number the machine takes away: no more than NGINX has sets
//! of CPUs, than the quota of CPU time can keep busy, than an eighth of the memory can hold opcaches of; and so many that no
//! shard has to straddle a cache or a NUMA node, if such a number is near.
//!
//! How CPUs are then cut is told in `partition`.

mod partition;
#[cfg(test)]
mod tests;

use partition::{Unit, partition};

use crate::model::cpus::CpuSet;
use crate::model::host::Host;
use crate::model::problem::Problem;
use crate::model::settings::{CpuChoice, GroupSettings, Settings, ShardCount};
use crate::model::topology::{NginxLayout, Topology};

/// Up to so many CPUs each gets a shard of its own.
const SHARD_PER_CPU_UP_TO: usize = 4;

/// Beyond that, so many CPUs share one.
const CPUS_PER_SHARD: usize = 4;

/// At most so many shards are chosen unasked: each has an opcache of its own (P43).
const SHARDS_AT_MOST: usize = 8;

/// The part of the memory that the opcaches of all shards may reserve, unasked.
const OPCACHE_PART: u64 = 8;

/// The shards of a group before pools are placed on them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Laid {
    /// The CPUs of each; `None`: any.
    pub sets: Vec<Option<CpuSet>>,
    /// Why so many and there, for people.
    pub reason: String,
}

/// What CPUs are cut into at first.
struct Units {
    units: Vec<Unit>,
    /// Whether somebody wants each of them kept together; cores may be taken apart.
    kept: bool,
    /// Where they are from, for people.
    source: String,
}

/// Gives the shards of `group` on this host.
pub fn lay_out(group: &GroupSettings, host: &Host) -> Laid {
    let units = units(group, host);
    let (count, counted) = match (group.count, &group.cpus) {
        (ShardCount::Fixed(count), _) => (usize::from(count.max(1)), format!("count = {count}")),
        (ShardCount::Auto, CpuChoice::Sets(sets)) => {
            (sets.len().max(1), format!("{} for as many sets", plural(sets.len().max(1), "shard")))
        }
        (ShardCount::Auto, CpuChoice::Off | CpuChoice::Auto | CpuChoice::Nginx) => auto(&units, host),
    };
    let Units { units, source, .. } = units;
    let sets = match &group.cpus {
        CpuChoice::Off => vec![None; count],
        // A CPU that is not there is reported; the shard runs on the others.
        CpuChoice::Sets(sets) => {
            let usable = &host.topology.usable;
            let present: Vec<CpuSet> = sets.iter().map(|set| set.iter().filter(|cpu| usable.contains(*cpu)).collect()).collect();
            in_turn(&present, count)
        }
        CpuChoice::Auto | CpuChoice::Nginx if units.is_empty() => vec![None; count],
        CpuChoice::Auto | CpuChoice::Nginx => in_turn(&partition(split_up(units, count, &host.topology), count, &host.topology), count),
    };
    Laid { sets, reason: format!("{counted}; {source}") }
}

/// Reports CPUs that the settings name and the supervisor may not use.
pub(super) fn absent(settings: &Settings, group: &GroupSettings, available: &CpuSet) -> Option<Problem> {
    let CpuChoice::Sets(sets) = &group.cpus else { return None };
    let absent = sets.iter().flat_map(CpuSet::iter).collect::<CpuSet>().without(available);
    if absent.is_empty() {
        return None;
    }
    let message = format!("cpus of group '{}': CPU {absent} is not among the CPUs that polyfpm may use, {available}", group.name);
    let problem = Problem::error(message).remedy(format!("name CPUs out of {available}, or set cpus = \"auto\""));
    Some(settings.point(&settings.group_key(&group.name, "cpus"), problem))
}

/// Gives what stays together when CPUs are cut.
fn units(group: &GroupSettings, host: &Host) -> Units {
    let topology = &host.topology;
    let by_core = |source: String| Units { units: cores(topology), kept: false, source };
    let by_topology = |why: &str| by_core(format!("{why}CPUs {} by topology", topology.ordinary()));
    match &group.cpus {
        CpuChoice::Off => by_core("not pinned (cpus = \"off\")".to_owned()),
        CpuChoice::Sets(_) => Units { units: Vec::new(), kept: true, source: "CPUs as cpus names them".to_owned() },
        CpuChoice::Auto => by_topology(""),
        CpuChoice::Nginx => match &host.nginx {
            None => by_topology("NGINX's layout is not known: "),
            Some(layout) => of_nginx(layout, topology).unwrap_or_else(|why| by_topology(&format!("{why}: "))),
        },
    }
}

/// Gives what NGINX's workers keep together, where they are pinned and their CPUs are ours, too.
fn of_nginx(layout: &NginxLayout, topology: &Topology) -> Result<Units, String> {
    let count = layout.workers.len();
    if !layout.is_pinned() {
        let some = layout.workers.iter().any(Option::is_some);
        let why = match count {
            0 | 1 => "NGINX has one worker, which is not pinned".to_owned(),
            _ if some => "NGINX pins only some of its workers".to_owned(),
            _ => format!("NGINX does not pin its {count} workers"),
        };
        return Err(why);
    }
    let pinned = layout.workers.iter().flatten();
    let ours = pinned.map(|set| set.iter().filter(|cpu| topology.usable.contains(*cpu)).collect::<CpuSet>());
    let sets = joined(ours.filter(|set| !set.is_empty()));
    if sets.is_empty() {
        return Err("NGINX's workers are pinned to CPUs that polyfpm may not use".to_owned());
    }
    let on: CpuSet = sets.iter().flat_map(CpuSet::iter).collect();
    let workers = if count == 1 { "NGINX's one worker is".to_owned() } else { format!("NGINX's {count} workers are") };
    let said = format!("{workers} pinned to {} on CPUs {on}", plural(sets.len(), "set"));
    Ok(Units { units: sets.into_iter().map(|set| Unit::new(set, topology)).collect(), kept: true, source: said })
}

/// Joins sets that have CPUs in common: what one worker uses is not cut.
fn joined(sets: impl Iterator<Item = CpuSet>) -> Vec<CpuSet> {
    let mut apart: Vec<CpuSet> = Vec::new();
    for set in sets {
        let (common, mut rest): (Vec<CpuSet>, Vec<CpuSet>) = apart.into_iter().partition(|other| other.iter().any(|cpu| set.contains(cpu)));
        rest.push(common.iter().flat_map(CpuSet::iter).chain(set.iter()).collect());
        apart = rest;
    }
    apart.sort();
    apart
}

/// Gives the cores, each with its usable CPUs.
fn cores(topology: &Topology) -> Vec<Unit> {
    let mut cores: std::collections::BTreeMap<u32, Vec<u32>> = std::collections::BTreeMap::new();
    for cpu in topology.ordinary().iter() {
        cores.entry(topology.cpu(cpu).core).or_default().push(cpu);
    }
    cores.into_values().map(|cpus| Unit::new(cpus.into_iter().collect(), topology)).collect()
}

/// Takes units apart into single CPUs where there are fewer than shards: a shard on half a core is better than two on all of it.
fn split_up(units: Vec<Unit>, count: usize, topology: &Topology) -> Vec<Unit> {
    if units.len() >= count {
        return units;
    }
    units.iter().flat_map(|unit| unit.cpus.iter()).map(|cpu| Unit::new([cpu].into_iter().collect(), topology)).collect()
}

/// Gives the number of shards that suits the machine, and why.
fn auto(of: &Units, host: &Host) -> (usize, String) {
    let (units, topology) = (&of.units, &host.topology);
    let cpus: CpuSet = units.iter().flat_map(|unit| unit.cpus.iter()).collect();
    let busy = topology.quota_milli.map_or(cpus.len(), |quota| cpus.len().min(usize::try_from(quota.div_ceil(1000)).unwrap_or(usize::MAX)));
    let mut reasons = Vec::new();
    if busy < cpus.len() {
        reasons.push(format!("a quota of {} CPUs", shown_milli(topology.quota_milli.unwrap_or_default())));
    } else {
        reasons.push(plural(cpus.len(), "CPU"));
    }
    let wanted = if busy <= SHARD_PER_CPU_UP_TO { busy.max(1) } else { (busy / CPUS_PER_SHARD).clamp(SHARD_PER_CPU_UP_TO, SHARDS_AT_MOST) };
    let mut count = if of.kept { wanted.min(units.len().max(1)) } else { wanted };
    if count > SHARD_PER_CPU_UP_TO {
        let aligned = aligned(count, topology.count_of(&cpus, |cpu| cpu.cache), topology.count_of(&cpus, |cpu| cpu.node));
        if aligned != count {
            reasons.push("whole caches".to_owned());
        }
        count = aligned;
    }
    if let Some(affordable) = affordable(host).filter(|affordable| *affordable < count) {
        reasons.push(format!("memory for {}", plural(affordable, "opcache")));
        count = affordable;
    }
    (count, format!("{} for {}", plural(count, "shard"), reasons.join(", ")))
}

/// Gives a number near `count` and not above [`SHARDS_AT_MOST`] with which no shard straddles a cache or a node.
fn aligned(count: usize, caches: usize, nodes: usize) -> usize {
    let (caches, nodes) = (caches.max(1), nodes.max(1));
    let fits = |number: usize| {
        if number >= caches {
            number.is_multiple_of(caches)
        } else {
            caches.is_multiple_of(number) && (number.is_multiple_of(nodes) || nodes.is_multiple_of(number))
        }
    };
    // Down to half of it: fewer would give up more than a cache is worth.
    (count / 2..=count).rev().chain(count + 1..=SHARDS_AT_MOST).find(|number| *number > 0 && fits(*number)).unwrap_or(count)
}

/// Gives how many opcaches an eighth of the memory holds.
fn affordable(host: &Host) -> Option<usize> {
    let part = host.memory_bytes? / OPCACHE_PART;
    let number = part.checked_div(host.opcache_bytes?)?;
    Some(usize::try_from(number).unwrap_or(usize::MAX).max(1))
}

/// Deals `sets` to `count` shards, from the start again when there are more shards than sets.
fn in_turn(sets: &[CpuSet], count: usize) -> Vec<Option<CpuSet>> {
    if sets.is_empty() {
        return vec![None; count];
    }
    sets.iter().cycle().take(count).map(|set| (!set.is_empty()).then(|| set.clone())).collect()
}

fn plural(count: usize, word: &str) -> String {
    if count == 1 { format!("1 {word}") } else { format!("{count} {word}s") }
}

fn shown_milli(milli: u32) -> String {
    let text = format!("{}.{:03}", milli / 1000, milli % 1000);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}
