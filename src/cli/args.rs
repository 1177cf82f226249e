//! The command line as typed: the one definition that help, usage errors and completion come from.
//!
//! What is typed is checked here only as far as its form goes; whether a shard exists is for the supervisor to say.

use std::ffi::OsString;
use std::path::PathBuf;

use clap::{CommandFactory, Parser, Subcommand, ValueHint};

use crate::model::ids::{PoolName, ShardId};
use crate::model::wire::Selection;

/// Runs one PHP installation as several pinned php-fpm masters and restarts them without losing a request.
#[derive(Debug, Clone, PartialEq, Eq, Parser)]
#[command(name = "polyfpm", version, max_term_width = 100, propagate_version = false)]
#[command(disable_help_subcommand = true)]
#[command(
    after_help = "Example:\n  polyfpm check -c /etc/polyfpm/php8.2.toml\n  polyfpm status\n\nExit codes: 0 done, 1 not achieved, 64 usage, 69 no supervisor, 75 busy, 77 not allowed, 78 settings wrong"
)]
pub struct Args {
    /// Which instance is meant.
    #[command(flatten)]
    pub which: Which,
    /// What to do.
    #[command(subcommand)]
    pub command: Command,
}

/// Which instance is meant; with neither, the only one there is.
#[derive(Debug, Clone, PartialEq, Eq, clap::Args)]
pub struct Which {
    /// The settings file
    #[arg(short, long, global = true, value_name = "FILE", value_hint = ValueHint::FilePath)]
    pub config: Option<PathBuf>,
    /// The instance whose settings are /etc/polyfpm/NAME.toml; without it, the only one there is
    #[arg(long, global = true, value_name = "NAME")]
    pub instance: Option<String>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq, Subcommand)]
pub enum Command {
    /// Tell every problem of settings, pool files and NGINX at once, each with its place and remedy
    #[command(
        after_help = "Example:\n  polyfpm check -c /etc/polyfpm/php8.2.toml\n\nEnds with 78 when there is an error; warnings and notes alone end with 0."
    )]
    Check {
        /// Print the problems as JSON
        #[arg(long)]
        json: bool,
    },
    /// Show what would run where: shards, CPUs, workers per pool, and how each pool is reached
    #[command(
        after_help = "Example:\n  polyfpm plan --instance php8.2\n  polyfpm plan --diff\n\nReads only; nothing is started or written. With --diff the supervisor is asked: without one it ends with 69."
    )]
    Plan {
        /// Show what a reload would change against what runs, and why
        #[arg(long)]
        diff: bool,
        /// Print the plan as JSON
        #[arg(long)]
        json: bool,
    },
    /// Be the supervisor, in the foreground
    #[command(
        after_help = "Example:\n  polyfpm run -c /etc/polyfpm/php8.2.toml\n\nSIGHUP reloads, SIGUSR1 reopens logs, SIGUSR2 restarts rolling, SIGTERM drains and stops."
    )]
    Run,
    /// Show shards, generations, CPUs, verdicts, workers and queues
    #[command(after_help = "Example:\n  polyfpm status --watch\n  polyfpm status --json")]
    Status {
        /// Print the picture as JSON
        #[arg(long)]
        json: bool,
        /// Print it again at each change, until interrupted
        #[arg(long)]
        watch: bool,
    },
    /// Replace masters one shard at a time, with no request lost
    #[command(
        after_help = "Example:\n  polyfpm restart\n  polyfpm restart store/2\n  polyfpm restart --pool www\n\nStops at the first new master that is not good; the old one serves on, and the command ends with 1."
    )]
    Restart {
        /// Groups or shards, GROUP or GROUP/N; without any, all
        #[arg(value_name = "GROUP[/N]", value_parser = target)]
        targets: Vec<String>,
        /// Only shards that carry this pool
        #[arg(long, value_name = "POOL", value_parser = pool)]
        pool: Option<PoolName>,
        /// Print the steps as JSON, one object a line
        #[arg(long)]
        json: bool,
    },
    /// Read settings and pool files again and change only what differs
    #[command(after_help = "Example:\n  polyfpm reload")]
    Reload {
        /// Print the steps as JSON, one object a line
        #[arg(long)]
        json: bool,
    },
    /// Take a shard down; its listeners stay held
    #[command(after_help = "Example:\n  polyfpm park default/2")]
    Park {
        /// The shard
        #[arg(value_name = "GROUP/N")]
        shard: ShardId,
    },
    /// Bring a parked or halted shard up
    #[command(after_help = "Example:\n  polyfpm unpark default/2")]
    Unpark {
        /// The shard
        #[arg(value_name = "GROUP/N")]
        shard: ShardId,
    },
    /// Take a shard out of the upstream, let its requests finish, then take it down
    #[command(after_help = "Example:\n  polyfpm drain default/2")]
    Drain {
        /// The shard
        #[arg(value_name = "GROUP/N")]
        shard: ShardId,
    },
    /// Let running requests finish, then stop the supervisor and every master
    #[command(after_help = "Example:\n  polyfpm stop")]
    Stop,
    /// Have every master open its logs again, after they were rotated
    #[command(after_help = "Example:\n  polyfpm reopen")]
    Reopen,
    /// Move a running php-fpm under polyfpm, with no request lost and no change in NGINX
    #[command(
        after_help = "Example:\n  polyfpm takeover --dry-run\n  polyfpm takeover --from php8.2-fpm\n\nThe supervisor runs already; pools whose sockets the other php-fpm has are kept out until then.\nA failure on the way puts everything back, and the command ends with 1."
    )]
    Takeover {
        /// The unit or the pid of the master; without it, the one that has sockets of this instance's pools
        #[arg(long, value_name = "UNIT|PID")]
        from: Option<String>,
        /// Tell the steps and take none
        #[arg(long)]
        dry_run: bool,
        /// Print the steps as JSON, one object a line
        #[arg(long)]
        json: bool,
    },
    /// Give the sockets back to a plain php-fpm, with no request lost, and end the supervisor
    #[command(
        after_help = "Example:\n  polyfpm handback --dry-run\n  polyfpm handback\n  polyfpm handback -- /usr/sbin/php-fpm8.2 --daemonize --fpm-config /etc/php/8.2/fpm/php-fpm.conf\n\nA failure on the way puts everything back, and the command ends with 1."
    )]
    Handback {
        /// The unit to start; without it, the one that was taken over, if it was a unit
        #[arg(long, value_name = "UNIT", conflicts_with = "command")]
        to: Option<String>,
        /// Tell the steps and take none
        #[arg(long)]
        dry_run: bool,
        /// Print the steps as JSON, one object a line
        #[arg(long)]
        json: bool,
        /// What to start instead of a unit; without either, php.binary with php.config as a daemon
        #[arg(value_name = "COMMAND", last = true)]
        command: Vec<String>,
    },
    /// Replace the running supervisor by the installed binary; masters, listeners and pid stay
    #[command(
        after_help = "Example:\n  polyfpm upgrade\n\nThe binary is run first; one that cannot take over leaves the supervisor as it is, and the command ends with 1."
    )]
    Upgrade {
        /// Print the steps as JSON, one object a line
        #[arg(long)]
        json: bool,
    },
    /// Say whether this binary could take over from the running supervisor
    #[command(hide = true)]
    #[command(after_help = "Example:\n  polyfpm self-check -c /etc/polyfpm/php8.2.toml")]
    SelfCheck,
    /// Print the NGINX include with an upstream for each pool
    #[command(
        after_help = "Example:\n  polyfpm upstream\n  polyfpm upstream --write\n\nWith --write the include is tested within NGINX's whole configuration first and put back when NGINX refuses it."
    )]
    Upstream {
        /// Write it, test it and reload NGINX
        #[arg(long)]
        write: bool,
    },
    /// Be a php-fpm with the listening sockets of a supervisor: how `handback` starts a unit
    #[command(hide = true)]
    #[command(after_help = "Example:\n  polyfpm inherit /run/polyfpm/php8.2/inherit.json")]
    Inherit {
        /// Whose sockets, and what to be
        file: PathBuf,
    },
    /// Print the completion script of a shell
    #[command(hide = true)]
    #[command(after_help = "Example:\n  polyfpm completion bash > /usr/share/bash-completion/completions/polyfpm")]
    Completion {
        /// The shell
        shell: clap_complete::Shell,
    },
}

impl Command {
    /// Gives the shards a restart means.
    pub fn selection(targets: &[String], pool: Option<&PoolName>) -> Selection {
        Selection { targets: targets.to_vec(), pool: pool.cloned() }
    }
}

/// Reads the command line, the program's name first.
///
/// # Errors
/// What clap says: wrong usage, or the help or version text that was asked for. `cli::report::usage` prints it.
pub fn parse<I, T>(line: I) -> Result<Args, clap::Error>
where
    I: IntoIterator<Item = T>,
    T: Into<OsString> + Clone,
{
    let args = Args::try_parse_from(line)?;
    // Not left to clap: it does not see a conflict when one stands before the command and the other after it.
    if args.which.config.is_some() && args.which.instance.is_some() {
        let message = "'--config' and '--instance' both name the settings; give one of them";
        return Err(Args::command().error(clap::error::ErrorKind::ArgumentConflict, message));
    }
    Ok(args)
}

/// Gives the completion script of a shell.
pub fn completion(shell: clap_complete::Shell) -> Vec<u8> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Args::command(), "polyfpm", &mut script);
    script
}

fn target(text: &str) -> Result<String, String> {
    let group = if text.contains('/') { text.parse::<ShardId>().map(|shard| shard.group.as_str().len()) } else { Ok(text.len()) };
    match group {
        Ok(length) if length > 0 => Ok(text.to_owned()),
        Ok(_) | Err(_) => Err("write GROUP or GROUP/N, such as default or default/1".to_owned()),
    }
}

fn pool(text: &str) -> Result<PoolName, String> {
    if text.is_empty() { Err("name a pool".to_owned()) } else { Ok(PoolName::new(text)) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(line: &str) -> Args {
        parse(std::iter::once("polyfpm").chain(line.split(' '))).unwrap()
    }

    fn refused(line: &str) -> String {
        parse(std::iter::once("polyfpm").chain(line.split(' '))).unwrap_err().to_string()
    }

    #[test]
    fn the_definition_holds_together() {
        Args::command().debug_assert();
    }

    #[test]
    fn the_help_of_each_command_has_an_example() {
        let mut command = Args::command();
        command.build();
        assert!(command.render_long_help().to_string().contains("Example:"));
        for sub in command.get_subcommands_mut() {
            let help = sub.render_long_help().to_string();
            assert!(help.contains("Example:\n  polyfpm "), "{help}");
            assert!(help.contains("--config"), "{help}");
        }
    }

    #[test]
    fn the_settings_may_be_named_before_and_after_the_command() {
        for line in ["-c /x.toml status --json", "status -c /x.toml --json", "status --json --config=/x.toml"] {
            let args = parsed(line);
            assert_eq!(args.which.config, Some(PathBuf::from("/x.toml")), "{line}");
            assert_eq!(args.command, Command::Status { json: true, watch: false }, "{line}");
        }
        assert_eq!(parsed("check --instance php8.2").which.instance.as_deref(), Some("php8.2"));
        assert!(refused("-c /x.toml status --instance a").contains("both name the settings"));
    }

    #[test]
    fn a_restart_takes_groups_shards_and_a_pool() {
        let Command::Restart { targets, pool, json: false } = parsed("restart store default/2 --pool www").command else { panic!() };
        assert_eq!(targets, ["store", "default/2"]);
        assert_eq!(pool, Some(PoolName::new("www")));
        assert_eq!(Command::selection(&targets, pool.as_ref()).targets, targets);
        for line in ["restart default/0", "restart default/", "restart /1", "park default", "park default/x"] {
            assert!(!refused(line).is_empty(), "{line}");
        }
    }

    #[test]
    fn a_usage_error_says_what_to_write() {
        insta::assert_snapshot!(refused("park default"), @r#"
        error: invalid value 'default' for '<GROUP/N>': 'default' names no shard: write GROUP/N, such as default/1

        For more information, try '--help'.
        "#);
        insta::assert_snapshot!(refused("restrat"), @r#"
        error: unrecognized subcommand 'restrat'

          tip: a similar subcommand exists: 'restart'

        Usage: polyfpm [OPTIONS] <COMMAND>

        For more information, try '--help'.
        "#);
        insta::assert_snapshot!(refused("restart x/0"), @r#"
        error: invalid value 'x/0' for '[GROUP[/N]]...': write GROUP or GROUP/N, such as default or default/1

        For more information, try '--help'.
        "#);
        insta::assert_snapshot!(refused("status --jsno"), @r#"
        error: unexpected argument '--jsno' found

          tip: a similar argument exists: '--json'

        Usage: polyfpm status --json

        For more information, try '--help'.
        "#);
    }

    #[test]
    fn completion_knows_the_commands() {
        let script = String::from_utf8(completion(clap_complete::Shell::Bash)).unwrap();
        assert!(script.contains("unpark"));
    }
}
