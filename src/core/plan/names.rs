//! Names made from pool names: upstreams, aliases, socket files.
//!
//! A pool's name may hold anything; each of these places takes less. A name that has to be changed gets a digest of the
//! original at its end, so that two pools never share a name and a pool's name never depends on which other pools there
//! are: if it did, a new pool could take over the upstream to which another pool's vhosts pass.

use std::fmt::Write as _;
use std::path::PathBuf;

use sha2::{Digest, Sha256};

use crate::model::ids::PoolName;
use crate::model::settings::Settings;

/// Hex digits of a digest in an upstream's name: short, as people write it into vhosts.
const UPSTREAM_DIGEST: usize = 8;

/// Hex digits of a digest in a file's name.
const FILE_DIGEST: usize = 16;

/// The longest name of a pool in a path, in bytes: with the directory, a shard's number and a temporary suffix it stays
/// within a socket address (P9).
const FILE_NAME_BYTES: usize = 40;

/// The directory of the aliases. It never exists: php-fpm unlinks the alias when it stops (P2).
const ALIAS_DIRECTORY: &str = "/.polyfpm";

/// Gives the name of `pool`'s generated upstream: the pattern of the settings with everything outside `[A-Za-z0-9_-]` in the
/// instance's and the pool's name turned to `_`. NGINX compares upstream names without case.
///
/// A pool whose name had to be changed (`example.com`) gets a short digest at the end.
pub fn upstream_name(settings: &Settings, pool: &PoolName) -> String {
    let instance = replaced(settings.instance.as_str(), "_-");
    let mut name = replaced(pool.as_str(), "_-");
    if name != pool.as_str() || ends_in_digest(&name, '_', UPSTREAM_DIGEST) {
        name = format!("{name}_{}", digest(pool.as_str(), UPSTREAM_DIGEST));
    }
    let mut pattern = settings.nginx.upstream.clone();
    if !pattern.contains("{pool}") {
        pattern.push_str("_{pool}");
    }
    // The instance first: a pool's name has no braces left, and what it brings in is not looked at again.
    let text = pattern.replace("{instance}", &instance).replace("{pool}", &name);
    replaced(&text, "_.-")
}

/// Gives the alias of the listener at the pool's own path, or of the one of `shard` alone.
pub(super) fn alias(pool: &PoolName, shard: Option<u16>) -> String {
    let name = file_name(pool);
    shard.map_or_else(|| format!("{ALIAS_DIRECTORY}/{name}"), |shard| format!("{ALIAS_DIRECTORY}/{name}/{shard}"))
}

/// Gives the path of the socket of `shard` of a split pool.
pub(super) fn socket_path(settings: &Settings, pool: &PoolName, shard: u16) -> PathBuf {
    settings.listen.directory.join(format!("{}.{shard}.sock", file_name(pool)))
}

/// Gives a name for `pool` that is safe as a file's name, in `FPM_SOCKETS` (P7) and in NGINX's `server unix:`.
fn file_name(pool: &PoolName) -> String {
    let name = replaced(pool.as_str(), "_.-");
    let kept = name == pool.as_str() && !name.is_empty() && name.len() <= FILE_NAME_BYTES;
    if kept && !name.starts_with('.') && !ends_in_digest(&name, '-', FILE_DIGEST) {
        return name;
    }
    let head: String = name.chars().take(FILE_NAME_BYTES - FILE_DIGEST - 1).collect();
    format!("{}-{}", head.trim_start_matches('.'), digest(pool.as_str(), FILE_DIGEST))
}

/// Turns every character to `_` that is neither an ASCII letter or digit nor in `besides`.
fn replaced(text: &str, besides: &str) -> String {
    text.chars().map(|letter| if letter.is_ascii_alphanumeric() || besides.contains(letter) { letter } else { '_' }).collect()
}

/// Tells whether a name looks like one that got a digest; it must get one itself, or it could equal such a name.
fn ends_in_digest(name: &str, separator: char, digits: usize) -> bool {
    name.rsplit_once(separator).is_some_and(|(_, end)| end.len() == digits && end.bytes().all(|byte| byte.is_ascii_hexdigit()))
}

fn digest(text: &str, digits: usize) -> String {
    let mut hex = String::new();
    for byte in Sha256::digest(text.as_bytes()).iter().take(digits.div_ceil(2)) {
        let _written = write!(hex, "{byte:02x}");
    }
    hex
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::core::plan::tests::settings;
    use proptest::prelude::*;

    fn upstream(pattern: &str, pool: &str) -> String {
        let mut settings = settings();
        settings.nginx.upstream = pattern.to_owned();
        upstream_name(&settings, &PoolName::new(pool))
    }

    #[test]
    fn upstreams_are_named_after_instance_and_pool() {
        assert_eq!(upstream("polyfpm_{instance}_{pool}", "www"), "polyfpm_php8_2_www");
        assert_eq!(upstream("polyfpm_{instance}_{pool}", "example.com"), "polyfpm_php8_2_example_com_a379a6f6");
        assert_eq!(upstream("php-{pool}", "my-site"), "php-my-site");
        assert_eq!(upstream("php", "www"), "php_www");
        assert_eq!(upstream("a b;{pool}", "{instance}"), "a_b__instance__9d211070");
    }

    #[test]
    fn a_name_that_looks_like_a_changed_one_is_changed_too() {
        let dotted = upstream("{pool}", "example.com");
        assert_ne!(upstream("{pool}", &dotted), dotted);
        let slashed = file_name(&PoolName::new("a/b"));
        assert_ne!(file_name(&PoolName::new(slashed.clone())), slashed);
    }

    #[test]
    fn aliases_and_sockets_read_well_for_plain_names() {
        let pool = PoolName::new("www");
        assert_eq!(alias(&pool, None), "/.polyfpm/www");
        assert_eq!(alias(&pool, Some(2)), "/.polyfpm/www/2");
        assert_eq!(socket_path(&settings(), &pool, 2), PathBuf::from("/run/polyfpm/php8.2/sockets/www.2.sock"));
    }

    proptest! {
        #[test]
        fn any_pool_gets_safe_and_short_names(pool in ".{0,80}", shard in 1_u16..) {
            let pool = PoolName::new(pool);
            for text in [alias(&pool, Some(shard)), alias(&pool, None)] {
                prop_assert!(text.len() <= 60 && !text.contains([',', '=', ':', ' ']), "{}", text);
                prop_assert!(text.split('/').all(|part| part != ".."));
            }
            let file = file_name(&pool);
            prop_assert!(!file.is_empty() && file.len() <= FILE_NAME_BYTES && !file.starts_with('.'));
            prop_assert!(file.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte)));
        }

        #[test]
        fn different_pools_get_different_names(one in "[a-c./:_ -]{0,4}", other in "[a-c./:_ -]{0,4}") {
            prop_assume!(one != other);
            let (one, other) = (PoolName::new(one), PoolName::new(other));
            prop_assert_ne!(file_name(&one), file_name(&other));
            prop_assert_ne!(upstream_name(&settings(), &one).to_lowercase(), upstream_name(&settings(), &other).to_lowercase());
        }
    }
}
