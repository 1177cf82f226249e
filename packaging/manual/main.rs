//! Writes what a package holds besides the binary and is made from the program's own definitions: a manual page for each command,
//! `polyfpm.toml(5)`, and completion for bash, zsh and fish.
//!
//! `cargo run --example manual -- DIRECTORY` writes `man/*.1`, `man/*.5` and `completion/*` there. The same source gives the same bytes.

#![expect(clippy::format_push_string, reason = "pages of a few kilobytes, made once in a build")]

mod settings;
mod troff;

use std::error::Error;
use std::fs;
use std::path::{Path, PathBuf};

use clap::CommandFactory;
use clap_complete::Shell;
use polyfpm::cli::args::{self, Args};

type Outcome<T> = Result<T, Box<dyn Error>>;

fn main() -> Outcome<()> {
    let directory = PathBuf::from(std::env::args_os().nth(1).ok_or("usage: manual DIRECTORY")?);
    write_pages(&directory.join("man"))?;
    write_completion(&directory.join("completion"))
}

fn write_pages(directory: &Path) -> Outcome<()> {
    fs::create_dir_all(directory)?;
    let mut program = Args::command();
    program.build();
    let commands: Vec<clap::Command> = program.get_subcommands().filter(|command| !command.is_hide_set()).cloned().collect();
    let names: Vec<String> = commands.iter().map(|command| format!("polyfpm-{}", command.get_name())).collect();
    fs::write(directory.join("polyfpm.1"), page(program, "polyfpm", &names)?)?;
    for (command, name) in commands.into_iter().zip(&names) {
        fs::write(directory.join(format!("{name}.1")), page(command, name, &["polyfpm".to_owned()])?)?;
    }
    let manifest = Path::new(env!("CARGO_MANIFEST_DIR"));
    let text = fs::read_to_string(manifest.join("docs/settings.md"))?;
    Ok(fs::write(directory.join("polyfpm.toml.5"), settings::page(&text)?)?)
}

/// Gives the page of one command: clap's parts, then the text after the help as sections of its own.
fn page(command: clap::Command, name: &str, related: &[String]) -> Outcome<Vec<u8>> {
    let after = command.get_after_help().map(ToString::to_string).unwrap_or_default();
    let more = command.get_subcommands().next().is_some();
    let man = clap_mangen::Man::new(command)
        .title(name)
        .section("1")
        .date("")
        .source(format!("polyfpm {}", env!("CARGO_PKG_VERSION")))
        .manual("polyfpm");
    let mut out = Vec::new();
    man.render_title(&mut out)?;
    man.render_name_section(&mut out)?;
    man.render_synopsis_section(&mut out)?;
    man.render_description_section(&mut out)?;
    man.render_options_section(&mut out)?;
    if more {
        man.render_subcommands_section(&mut out)?;
    }
    out.extend(troff::after_help(&after).into_bytes());
    out.extend(b".SH FILES\n.TP\n\\fI/etc/polyfpm/\\fRNAME\\fI.toml\\fR\nThe settings of the instance NAME.\n");
    out.extend(b".TP\n\\fI/run/polyfpm/\\fRNAME\nIts state and sockets while it runs.\n");
    let others: Vec<String> = related.iter().map(|other| format!("\\fB{}\\fR(1)", troff::escaped(other))).collect();
    out.extend(format!(".SH \"SEE ALSO\"\n{}, \\fBpolyfpm.toml\\fR(5)\n", others.join(", ")).into_bytes());
    Ok(out)
}

fn write_completion(directory: &Path) -> Outcome<()> {
    fs::create_dir_all(directory)?;
    for (shell, file) in [(Shell::Bash, "polyfpm.bash"), (Shell::Zsh, "_polyfpm"), (Shell::Fish, "polyfpm.fish")] {
        fs::write(directory.join(file), args::completion(shell))?;
    }
    Ok(())
}
