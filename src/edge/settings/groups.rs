//! `[shards]` and `[group.NAME]`.

use super::keys;
use super::reader::{Reader, Section, Value};
use crate::model::cpus::CpuSet;
use crate::model::ids::GroupName;
use crate::model::settings::{CpuChoice, GroupSettings, RoutingChoice, ShardCount};

/// The most shards of one group: twice the CPUs of the biggest machines php-fpm is seen on.
const MAX_SHARDS: u16 = 1024;

/// The most workers `min_workers` may ask for; php-fpm pools with more are not known.
const MAX_MIN_WORKERS: u32 = 100_000;

/// The longest name of a group or an instance, in bytes: it becomes part of socket paths of 107 bytes.
pub(super) const NAME_LIMIT_BYTES: usize = 64;

/// What a name may be, for remedies.
pub(super) const NAME_RULE: &str = "use letters, digits, '_', '.' and '-', a letter, digit or '_' first, at most 64";

/// Reads `[shards]` and every `[group.NAME]`; the group `default` comes first.
pub(super) fn read(reader: &Reader<'_>) -> (Vec<GroupSettings>, RoutingChoice) {
    let shards = reader.section("shards");
    shards.refuse_unknown_keys();
    let default = GroupSettings {
        name: GroupName::new(GroupName::DEFAULT),
        pools: Vec::new(),
        count: count(&shards, "count").unwrap_or(ShardCount::Auto),
        cpus: cpus(&shards).unwrap_or(CpuChoice::Nginx),
        min_workers: min_workers(&shards).unwrap_or(8),
    };
    warn_of_unused_sets(&shards, &default);
    let routing = shards.choice("routing", &ROUTINGS).unwrap_or(RoutingChoice::Auto);
    let mut groups = vec![default];
    for (header, name, section) in reader.section("group").tables(keys::GROUP) {
        check_name(&header, &name, &groups);
        let group = group(&name, &section, groups.first());
        refuse_shared_patterns(&section, &groups);
        groups.push(group);
    }
    (groups, routing)
}

const ROUTINGS: [(&str, RoutingChoice); 4] =
    [("auto", RoutingChoice::Auto), ("whole", RoutingChoice::Whole), ("shared", RoutingChoice::Shared), ("split", RoutingChoice::Split)];

/// Tells whether a text can name a group or an instance: it becomes part of paths, so `..` and the like are out.
pub(super) fn is_name(text: &str) -> bool {
    let starts_well = text.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '_');
    starts_well && text.len() <= NAME_LIMIT_BYTES && text.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c))
}

fn check_name(header: &Value<'_>, name: &str, earlier: &[GroupSettings]) {
    if name == GroupName::DEFAULT {
        header.fail("the group 'default' is [shards]", "move its keys to [shards]");
    } else if !is_name(name) {
        header.fail(format!("'{name}' cannot name a group"), NAME_RULE);
    } else if earlier.iter().any(|group| group.name.as_str().eq_ignore_ascii_case(name)) {
        header.fail(format!("two groups are named '{name}', in upper or lower case"), "rename one of the two");
    }
}

fn group(name: &str, section: &Section<'_>, default: Option<&GroupSettings>) -> GroupSettings {
    section.refuse_unknown_keys();
    let group = GroupSettings {
        name: GroupName::new(name),
        pools: pools(section),
        count: count(section, "shards").or(default.map(|group| group.count)).unwrap_or(ShardCount::Auto),
        cpus: cpus(section).or_else(|| default.map(|group| group.cpus.clone())).unwrap_or(CpuChoice::Nginx),
        min_workers: min_workers(section).or(default.map(|group| group.min_workers)).unwrap_or(8),
    };
    warn_of_unused_sets(section, &group);
    group
}

fn count(section: &Section<'_>, key: &str) -> Option<ShardCount> {
    let value = section.get(key)?;
    if value.as_text() == Some("auto") {
        return Some(ShardCount::Auto);
    }
    value.number_or(1..=MAX_SHARDS, "\"auto\" or ").map(ShardCount::Fixed)
}

fn min_workers(section: &Section<'_>) -> Option<u32> {
    section.number("min_workers", 1..=MAX_MIN_WORKERS)
}

fn cpus(section: &Section<'_>) -> Option<CpuChoice> {
    let value = section.get("cpus")?;
    if value.is_array() {
        return cpu_sets(&value);
    }
    match value.as_text() {
        Some("nginx") => Some(CpuChoice::Nginx),
        Some("auto") => Some(CpuChoice::Auto),
        Some("off") => Some(CpuChoice::Off),
        Some(text) => {
            value.fail(format!("{} is '{text}', which it does not know", value.name()), CPUS_REMEDY);
            None
        }
        None => {
            value.wrong_kind("text", CPUS_REMEDY);
            None
        }
    }
}

const CPUS_REMEDY: &str = "write \"nginx\", \"auto\", \"off\" or a list with one set a shard, such as [\"0-3\", \"4-7\"]";

fn cpu_sets(value: &Value<'_>) -> Option<CpuChoice> {
    let elements = value.array()?;
    if elements.is_empty() {
        value.fail(format!("{} is an empty list", value.name()), CPUS_REMEDY);
    }
    let mut seen: Vec<CpuSet> = Vec::new();
    for element in &elements {
        let Some(set) = cpu_set(element) else { continue };
        let both = set.iter().find(|cpu| seen.iter().any(|other| other.contains(*cpu)));
        if let Some(cpu) = both {
            element.warn(
                format!("CPU {cpu} is in two sets of {}", value.name()),
                "give each CPU to one shard; two that share one slow each other down",
            );
        }
        seen.push(set);
    }
    Some(CpuChoice::Sets(seen))
}

fn cpu_set(element: &Value<'_>) -> Option<CpuSet> {
    let remedy = "write CPUs and ranges of CPUs, such as \"0-3,8\"";
    let Some(text) = element.as_text() else {
        element.wrong_kind("text", remedy);
        return None;
    };
    match text.parse::<CpuSet>() {
        Ok(set) if set.is_empty() => {
            element.fail(format!("a set of {} is empty", element.name()), remedy);
            None
        }
        Ok(set) => Some(set),
        Err(error) => {
            element.fail(format!("'{}' in {} is no CPU or range of CPUs", error.part, element.name()), remedy);
            None
        }
    }
}

fn warn_of_unused_sets(section: &Section<'_>, group: &GroupSettings) {
    let (CpuChoice::Sets(sets), ShardCount::Fixed(count), Some(value)) = (&group.cpus, group.count, section.get("cpus")) else { return };
    if sets.len() > usize::from(count) {
        value.warn(
            format!("{} has {} sets for {count} shards", value.name(), sets.len()),
            "remove the sets that no shard uses, or raise the number of shards",
        );
    }
}

fn pools(section: &Section<'_>) -> Vec<String> {
    let Some(value) = section.required("pools", "[\"NAME\"]") else { return Vec::new() };
    let Some(elements) = value.array() else { return Vec::new() };
    if elements.is_empty() {
        value.fail(format!("{} names no pool", value.name()), "name at least one pool or pattern, or remove the group");
    }
    elements.iter().filter_map(pool_pattern).collect()
}

fn pool_pattern(element: &Value<'_>) -> Option<String> {
    let pattern = element.text()?;
    if pattern.trim().is_empty() || pattern.chars().any(char::is_control) {
        element.fail(
            format!("{} has an empty name or one with a control character", element.name()),
            "write a pool's name, or a pattern such as \"store_*\"",
        );
        return None;
    }
    Some(pattern.to_owned())
}

fn refuse_shared_patterns(section: &Section<'_>, earlier: &[GroupSettings]) {
    let elements = section.get("pools").filter(Value::is_array).and_then(|value| value.array()).unwrap_or_default();
    for element in elements {
        let Some(pattern) = element.as_text() else { continue };
        if let Some(other) = earlier.iter().find(|group| group.pools.iter().any(|pool| pool == pattern)) {
            element.fail(format!("'{pattern}' is already in [group.{}]", other.name), "leave it in one of the two groups");
        }
    }
}
