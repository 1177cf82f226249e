//! Paths to modules of the crate, as written in `use` and in expressions, made absolute.

/// Gives every path in `code` that starts at `crate`, `super`, or the crate's name, as segments from the crate's root; at most four of each.
pub(crate) fn mentioned(code: &str, module: &[String]) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut rest = code;
    // A `use` is taken as a whole: a `super` inside its braces continues the path before them.
    while let Some((before, from_use)) = rest.split_once("use ") {
        in_expressions(before, module, &mut found);
        let (tree, after) = from_use.split_once(';').unwrap_or((from_use, ""));
        starts(tree, module, &mut found);
        rest = after;
    }
    in_expressions(rest, module, &mut found);
    found
}

fn in_expressions(code: &str, module: &[String], found: &mut Vec<Vec<String>>) {
    for (at, _) in code.match_indices("crate::").chain(code.match_indices("super::")).chain(code.match_indices("polyfpm::")) {
        let inside = code[..at].chars().next_back().is_some_and(|c| c.is_alphanumeric() || matches!(c, '_' | ':' | '$'));
        if !inside {
            starts(&code[at..], module, found);
        }
    }
}

fn starts(path: &str, module: &[String], found: &mut Vec<Vec<String>>) {
    let Some((first, rest)) = path.split_once("::") else { return };
    let base = if first == "super" { parent(module) } else { Vec::new() };
    if matches!(first, "crate" | "super" | "polyfpm") {
        expand(rest, &base, module.len(), found);
    }
}

fn parent(module: &[String]) -> Vec<String> {
    module[..module.len().saturating_sub(1)].to_vec()
}

fn expand(rest: &str, base: &[String], depth: usize, found: &mut Vec<Vec<String>>) {
    if let Some(group) = rest.strip_prefix('{') {
        for branch in branches(group) {
            expand(branch.trim(), base, depth, found);
        }
        return;
    }
    let length = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(rest.len());
    let mut path = base.to_vec();
    match &rest[..length] {
        "super" => drop(path.pop()),
        "self" | "" => {}
        segment => path.push(segment.to_owned()),
    }
    match rest[length..].strip_prefix("::") {
        Some(more) if path.len() < depth.max(4) => expand(more, &path, depth, found),
        _ => found.push(path),
    }
}

fn branches(group: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0_u32, 0, Vec::new());
    for (at, c) in group.char_indices() {
        match c {
            '{' => depth += 1,
            '}' if depth == 0 => {
                parts.push(&group[start..at]);
                break;
            }
            '}' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&group[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    parts.retain(|part| !part.trim().is_empty());
    parts
}

#[test]
fn every_form_of_a_path_is_seen() {
    let module: Vec<String> = ["edge", "nginx", "render"].map(str::to_owned).to_vec();
    let code = "use crate::{model::{ids, plan::Plan}, text};\nuse super::{check, super::fpm::Build};\nlet x = crate::sys::proc::boot();";
    let mut paths: Vec<String> = mentioned(code, &module).into_iter().map(|p| p.join("::")).collect();
    paths.sort();
    assert_eq!(paths, ["edge::fpm::Build", "edge::nginx::check", "model::ids", "model::plan::Plan", "sys::proc::boot", "text"]);
}
