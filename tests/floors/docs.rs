//! Pages and code say the same: what there is in code is described, and what is described is there.

use std::collections::BTreeSet;
use std::path::Path;

use clap::CommandFactory;
use polyfpm::cli::args::Args;
use polyfpm::model::snapshot::Verdict;
use polyfpm::model::wire::{Command, ErrorCode, LINE_LIMIT_BYTES, Selection, VERSION};

use super::source::files;
use super::{EMPTY_WORDS, links, relative, report, root, sources};

/// 40 lines: a decision that needs more is two, or a page of its own.
const DECISION_LINES: usize = 40;

fn page(path: &str) -> String {
    std::fs::read_to_string(root().join(path)).unwrap_or_else(|e| panic!("read {path}: {e}"))
}

#[test]
fn every_command_is_described() {
    let (operations, readme) = (page("docs/operations.md"), page("README.md"));
    let table: String = readme.lines().filter(|line| line.starts_with("| `polyfpm ")).collect();
    let mut broken = Vec::new();
    for command in Args::command().get_subcommands() {
        let name = command.get_name();
        if !operations.contains(&format!("`polyfpm {name}")) {
            broken.push(format!("docs/operations.md does not describe polyfpm {name}"));
        }
        let named = table.split(|c: char| !c.is_ascii_alphanumeric()).any(|word| word == name);
        if !command.is_hide_set() && !named {
            broken.push(format!("README.md does not list polyfpm {name}"));
        }
        for option in
            command.get_arguments().filter_map(clap::Arg::get_long).filter(|option| !matches!(*option, "help" | "config" | "instance"))
        {
            if !operations.contains(&format!("--{option}")) {
                broken.push(format!("docs/operations.md does not describe --{option} of polyfpm {name}"));
            }
        }
    }
    for name in operations.split("`polyfpm ").skip(1).filter_map(|rest| rest.split([' ', '`']).next()) {
        if Args::command().find_subcommand(name).is_none() {
            broken.push(format!("docs/operations.md describes polyfpm {name}, which is not there"));
        }
    }
    report("commands:", &broken);
}

#[test]
fn every_decision_is_listed_and_has_its_four_parts() {
    let directory = root().join("docs/decisions");
    let list = page("docs/decisions/README.md");
    let (mut broken, mut numbers) = (Vec::new(), Vec::new());
    for file in files(&directory, &[".md"]) {
        let name = file.file_name().expect("a name").to_string_lossy().into_owned();
        let Some(number) = name.split('-').next().and_then(|digits| digits.parse::<usize>().ok()) else { continue };
        numbers.push(number);
        let text = std::fs::read_to_string(&file).expect("a readable page");
        let title = text.lines().next().unwrap_or_default().trim_start_matches("# ").split_once(". ").unwrap_or_default();
        if !list.contains(&format!("| {number} | [{}]({name}) |", title.1)) || title.0 != number.to_string() {
            broken.push(format!("{name} is not listed with its number and title"));
        }
        for heading in ["## Context", "## Decision", "## Consequences", "## How we would notice it was wrong"] {
            if !text.lines().any(|line| line == heading) {
                broken.push(format!("{name}: no '{heading}'"));
            }
        }
        if text.lines().count() > DECISION_LINES {
            broken.push(format!("{name}: {} lines, {DECISION_LINES} are the limit", text.lines().count()));
        }
    }
    if numbers != (1..=numbers.len()).collect::<Vec<_>>() {
        broken.push(format!("numbers have a gap or stand twice: {numbers:?}"));
    }
    report("decisions (docs/decisions):", &broken);
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest: toml::Table = page("Cargo.toml").parse().expect("a manifest");
    let contributing = page("CONTRIBUTING.md");
    let rows: Vec<&str> = contributing.lines().filter(|line| line.starts_with("| ")).filter_map(|row| row.split('|').nth(1)).collect();
    let explained: BTreeSet<&str> = rows.iter().flat_map(|cell| cell.split([',', ' '])).collect();
    let mut broken = Vec::new();
    let mut known = BTreeSet::new();
    for table in ["dependencies", "dev-dependencies"] {
        for name in manifest[table].as_table().expect("a table").keys() {
            known.insert(name.clone());
            if !explained.contains(name.as_str()) {
                broken.push(format!("CONTRIBUTING.md does not say why {name} is there"));
            }
        }
    }
    let named = explained.iter().filter(|name| name.contains(|c: char| c.is_ascii_lowercase()) && !name.contains(['*', ':', '`']));
    broken.extend(
        named
            .filter(|name| **name != "crate" && !known.contains(**name))
            .map(|name| format!("CONTRIBUTING.md explains {name}, which is not there")),
    );
    report("dependencies:", &broken);
}

#[test]
fn words_of_the_code_are_explained() {
    let words = page("docs/words.md");
    let mut broken = Vec::new();
    for verdict in VERDICTS {
        if !words.contains(&format!("| {} | ", verdict.word())) {
            broken.push(format!("verdict {}", verdict.word()));
        }
    }
    let banned = words.rsplit("## Not used as names").next().expect("the last section");
    broken.extend(EMPTY_WORDS.iter().filter(|word| !banned.contains(word.trim_end_matches('s'))).map(|word| format!("banned word {word}")));
    report("docs/words.md lacks:", &broken);
}

const VERDICTS: [Verdict; 9] = [
    Verdict::Empty,
    Verdict::Starting,
    Verdict::Ready,
    Verdict::Busy,
    Verdict::Saturated,
    Verdict::Hung,
    Verdict::Flapping,
    Verdict::Halted,
    Verdict::Parked,
];

#[test]
fn the_control_protocol_is_described() {
    let control = page("docs/control.md");
    let shard = polyfpm::model::ids::ShardId::new(&polyfpm::model::ids::GroupName::new("default"), 2);
    let commands = [
        Command::Status { watch: false },
        Command::Restart { selection: Selection::default() },
        Command::Reload,
        Command::Park { shard: shard.clone() },
        Command::Unpark { shard: shard.clone() },
        Command::Drain { shard },
        Command::Stop,
        Command::Reopen,
        Command::Takeover { from: None, dry_run: true },
        Command::Handback { argv: Vec::new(), to: None, dry_run: true },
        Command::Upgrade,
    ];
    let codes = [ErrorCode::Usage, ErrorCode::Busy, ErrorCode::Denied, ErrorCode::Failed, ErrorCode::Config, ErrorCode::Stopping];
    let mut broken = Vec::new();
    broken.extend(commands.iter().map(Command::word).filter(|word| !control.contains(word)).map(|word| format!("command {word}")));
    for code in codes {
        let word = serde_json::to_string(&code).expect("a word");
        let row = format!("| `{}` | ", word.trim_matches('"'));
        if !control.contains(&row) {
            broken.push(format!("error code {word}"));
        }
    }
    for (what, text) in [("version", format!("| {VERSION} | ")), ("line limit", format!("{} KiB", LINE_LIMIT_BYTES / 1024))] {
        if !control.contains(&text) {
            broken.push(format!("{what} {text}"));
        }
    }
    report("docs/control.md lacks:", &broken);
}

#[test]
fn requests_in_the_description_of_the_protocol_are_understood() {
    let control = page("docs/control.md");
    let shown: Vec<&str> = control.split('`').filter(|text| text.starts_with("{\"v\":1")).collect();
    let understood = |text: &&str| serde_json::from_str::<polyfpm::model::wire::Request>(text).is_ok();
    let broken: Vec<String> = shown.iter().filter(|text| !understood(text)).map(|text| (*text).to_owned()).collect();
    report("requests in docs/control.md:", &broken);
    let answers: Vec<&str> = control.lines().filter(|line| line.starts_with("{\"reply\"")).collect();
    let broken: Vec<String> = answers
        .iter()
        .filter(|line| serde_json::from_str::<polyfpm::model::wire::Reply>(line).is_err())
        .map(|line| (*line).to_owned())
        .collect();
    report("answers in docs/control.md:", &broken);
    assert!(shown.len() >= 6 && answers.len() == 4, "{} requests, {} answers", shown.len(), answers.len());
}

#[test]
fn every_cited_fact_of_the_system_is_described() {
    let described = page("docs/system.md");
    let mut broken = Vec::new();
    for source in sources("src").iter().chain(&sources("tests")) {
        let cited = source.comments.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| {
            word.strip_prefix('S').is_some_and(|digits| (1..=2).contains(&digits.len()) && digits.bytes().all(|b| b.is_ascii_digit()))
        });
        broken.extend(cited.filter(|fact| !described.contains(&format!("| {fact} | "))).map(|fact| format!("{}: {fact}", source.path)));
    }
    report("facts that docs/system.md does not describe:", &broken);
}

#[test]
fn every_page_is_linked_from_another() {
    let pages = files(&root(), &[".md"]);
    let mut linked = BTreeSet::new();
    for file in &pages {
        let text = std::fs::read_to_string(file).expect("a readable page");
        let directory = file.parent().unwrap_or(Path::new("/"));
        linked.extend(
            links(&text).into_iter().filter_map(|target| directory.join(target).canonicalize().ok()).filter(|target| target != file),
        );
    }
    let lost = pages.iter().filter(|file| file.starts_with(root().join("docs")) && !linked.contains(*file));
    let broken: Vec<String> = lost.map(|file| relative(file)).collect();
    report("pages nobody finds:", &broken);
}
