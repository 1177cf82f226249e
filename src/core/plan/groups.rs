//! Which pools share masters.

use std::collections::HashMap;

use crate::model::ids::PoolName;
use crate::model::problem::Problem;
use crate::model::settings::GroupSettings;

use super::PlanInput;
use super::admit::Candidate;

/// A group with the positions of its pools among the candidates, in the order of the files.
pub(super) struct Group<'a> {
    pub(super) settings: &'a GroupSettings,
    pub(super) pools: Vec<usize>,
}

pub(super) fn sort<'a>(input: &PlanInput<'a>, candidates: &[Candidate<'_>], problems: &mut Vec<Problem>) -> Vec<Group<'a>> {
    let mut groups: Vec<Group<'a>> = input.settings.groups.iter().map(|settings| Group { settings, pools: Vec::new() }).collect();
    let positions: HashMap<&PoolName, usize> = candidates.iter().enumerate().map(|(at, candidate)| (&candidate.pool.name, at)).collect();
    let mut used: Vec<Vec<bool>> = groups.iter().map(|group| vec![false; group.settings.pools.len()]).collect();
    // Pools that are kept out count as matched: a pattern is not idle because its pool is broken.
    for name in names(input) {
        let mut claims = Vec::new();
        for ((at, group), used) in groups.iter().enumerate().zip(&mut used) {
            let mut claimed = false;
            for (pattern, used) in group.settings.pools.iter().zip(used) {
                if matches(pattern, name.as_str()) {
                    claimed = true;
                    *used = true;
                }
            }
            if claimed {
                claims.push(at);
            }
        }
        if let [first, second, ..] = claims.as_slice() {
            problems.extend(rivals(input, name, (*first, *second)));
        }
        if let Some(position) = positions.get(name)
            && let Some(group) = groups.get_mut(claims.first().copied().unwrap_or(0))
        {
            group.pools.push(*position);
        }
    }
    for (group, used) in groups.iter().zip(&used) {
        problems.extend(group.settings.pools.iter().zip(used).filter(|(_, used)| !**used).map(|(pattern, _)| {
            let name = &group.settings.name;
            let problem = Problem::note(format!("[group.{name}] pools: '{pattern}' matches no pool"));
            input.settings.point(&format!("group.{name}.pools"), problem.remedy("correct the pattern or remove it"))
        }));
    }
    groups
}

/// Gives every pool's name once, those of the files first and in their order.
fn names<'a>(input: &PlanInput<'a>) -> Vec<&'a PoolName> {
    let mut seen = std::collections::HashSet::new();
    let files = input.files.pools.iter().map(|pool| &pool.name);
    let kept_out = input.quarantined.iter().map(|quarantined| &quarantined.pool);
    files.chain(kept_out).filter(|name| seen.insert(*name)).collect()
}

fn rivals(input: &PlanInput<'_>, pool: &PoolName, claims: (usize, usize)) -> Option<Problem> {
    let (first, second) = (input.settings.groups.get(claims.0)?, input.settings.groups.get(claims.1)?);
    let message = format!("pool '{pool}' is claimed by [group.{}] and [group.{}]: the first has it", first.name, second.name);
    let remedy = format!("narrow the pools of [group.{}] or [group.{}]", first.name, second.name);
    Some(input.settings.point(&format!("group.{}.pools", second.name), Problem::warning(message).remedy(remedy)))
}

/// Tells whether `pattern` (`*` any text, `?` any one character) covers all of `name`. Case does not matter, as php-fpm
/// compares pool names without it.
fn matches(pattern: &str, name: &str) -> bool {
    let pattern: Vec<char> = pattern.chars().collect();
    let name: Vec<char> = name.chars().collect();
    let (mut at_pattern, mut at_name) = (0, 0);
    let mut star: Option<(usize, usize)> = None;
    while let Some(letter) = name.get(at_name) {
        match pattern.get(at_pattern) {
            Some('*') => {
                star = Some((at_pattern, at_name));
                at_pattern += 1;
            }
            Some(wanted) if *wanted == '?' || wanted.eq_ignore_ascii_case(letter) => {
                at_pattern += 1;
                at_name += 1;
            }
            Some(_) | None => {
                // The last star takes one character more; without one there is nothing left to try.
                let Some((star_pattern, star_name)) = star else { return false };
                star = Some((star_pattern, star_name + 1));
                at_pattern = star_pattern + 1;
                at_name = star_name + 1;
            }
        }
    }
    pattern.iter().skip(at_pattern).all(|letter| *letter == '*')
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn patterns_cover_whole_names() {
        for (pattern, name, wanted) in [
            ("store", "store", true),
            ("store", "Store", true),
            ("store", "store2", false),
            ("store_*", "store_", true),
            ("store_*", "store_a", true),
            ("store_*", "a_store_a", false),
            ("*", "", true),
            ("?", "", false),
            ("?", "ä", true),
            ("*a*b", "xaybzb", true),
            ("*a*b", "xayb_", false),
            ("", "", true),
            ("", "a", false),
            ("**", "abc", true),
        ] {
            assert_eq!(matches(pattern, name), wanted, "{pattern} {name}");
        }
    }
}
