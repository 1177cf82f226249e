//! Names of upstreams.

use std::collections::{BTreeMap, BTreeSet};

use crate::model::ids::{InstanceName, PoolName};

/// Gives each pool its upstream's name from the pattern, with `{instance}` and `{pool}` filled in.
///
/// Whatever is no ASCII letter, digit, `_` or `-` becomes `_`, so that a name never needs quotes and is never read as a host or a
/// variable. Where two pools would get one name (NGINX compares without case), the one whose name had to change most stands back and
/// gets a suffix made from its own name, which stays the same whatever other pools come and go.
pub fn upstream_names<'a>(
    pattern: &str,
    instance: &InstanceName,
    pools: impl IntoIterator<Item = &'a PoolName>,
) -> BTreeMap<PoolName, String> {
    let mut pools: Vec<(usize, &PoolName)> = pools.into_iter().map(|pool| (changed(pool.as_str()), pool)).collect();
    pools.sort();
    pools.dedup();
    let mut taken = BTreeSet::new();
    let mut names = BTreeMap::new();
    for (_, pool) in pools {
        let filled = pattern.replace("{instance}", instance.as_str()).replace("{pool}", pool.as_str());
        let mut name: String = filled.chars().map(plain).collect();
        if !taken.insert(name.to_ascii_lowercase()) {
            name = format!("{name}_{:08x}", digest(pool.as_str()));
            taken.insert(name.to_ascii_lowercase());
        }
        names.insert(pool.clone(), name);
    }
    names
}

fn plain(character: char) -> char {
    if character.is_ascii_alphanumeric() || matches!(character, '_' | '-') { character } else { '_' }
}

fn changed(name: &str) -> usize {
    name.chars().filter(|character| plain(*character) != *character).count()
}

/// FNV-1a: short, and the same in every version of polyfpm.
fn digest(name: &str) -> u32 {
    name.bytes().fold(0x811c_9dc5, |hash, byte| (hash ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(pattern: &str, pools: &[&str]) -> Vec<(String, String)> {
        let pools: Vec<PoolName> = pools.iter().map(|pool| PoolName::new(*pool)).collect();
        let names = upstream_names(pattern, &InstanceName::new("php8.2"), &pools);
        names.into_iter().map(|(pool, name)| (pool.to_string(), name)).collect()
    }

    fn pair(pool: &str, name: &str) -> (String, String) {
        (pool.to_owned(), name.to_owned())
    }

    #[test]
    fn a_name_is_made_of_plain_characters() {
        assert_eq!(
            names("polyfpm_{instance}_{pool}", &["www", "a.b c$;é"]),
            [pair("a.b c$;é", "polyfpm_php8_2_a_b_c___"), pair("www", "polyfpm_php8_2_www")]
        );
    }

    #[test]
    fn pools_never_share_a_name() {
        let found = names("{pool}", &["a.b", "a_b", "A_b", "a-b"]);
        assert_eq!(found[1], pair("a-b", "a-b"));
        assert_eq!(found[0].1, "A_b");
        assert!(found[3].1.starts_with("a_b_"), "{found:?}");
        assert!(found[2].1.starts_with("a_b_") && found[2].1 != found[3].1, "{found:?}");
    }
}
