//! `cachalot completions` and `cachalot man`: shell completions and manual pages of the command.

use super::{BAD_INPUT, in_file};
use clap::Command;
use clap_complete::Shell;
use std::io::{self, Write};
use std::path::PathBuf;
use std::process::ExitCode;

const COMPLETIONS: &str = "\
Examples:
  cachalot completions bash > ~/.local/share/bash-completion/completions/cachalot
  cachalot completions zsh > ~/.zfunc/_cachalot
  cachalot completions fish > ~/.config/fish/completions/cachalot.fish";

const MAN: &str = "\
Examples:
  cachalot man | man -l -
  cachalot man compare | man -l -
  cachalot man --into ~/.local/share/man/man1";

/// Print the completions of the command for a shell
#[derive(clap::Args)]
#[command(after_long_help = COMPLETIONS)]
pub(crate) struct CompletionsArgs {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

/// Print a manual page, or write all of them
#[derive(clap::Args)]
#[command(after_long_help = MAN)]
pub(crate) struct ManArgs {
    /// The command to explain; by default `cachalot` itself
    #[arg(value_name = "COMMAND", conflicts_with = "into")]
    command: Option<String>,
    /// Write every page into the existing folder FOLDER
    #[arg(long, value_name = "FOLDER")]
    into: Option<PathBuf>,
}

/// Runs `cachalot completions`.
pub(crate) fn completions(args: &CompletionsArgs, mut command: Command) -> ExitCode {
    let name = command.get_name().to_owned();
    // The generator panics if a stream fails, so the script is generated in memory.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut command, name, &mut script);
    super::end(0, &io::stdout().lock().write_all(&script))
}

/// Runs `cachalot man`.
pub(crate) fn man(args: &ManArgs, mut command: Command) -> ExitCode {
    command.build();
    if let Some(folder) = &args.into {
        let written = clap_mangen::generate_to(command, folder);
        return super::end(0, &written.map_err(|error| in_file(folder, &error)));
    }
    let page = match &args.command {
        None => Some(&command),
        Some(name) => command.get_subcommands().find(|one| one.get_name() == name),
    };
    let Some(page) = page else {
        let names: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
        let name = args.command.as_deref().unwrap_or_default();
        eprintln!("there is no command `{name}`: accepted are {}", names.join(", "));
        return ExitCode::from(BAD_INPUT);
    };
    super::end(0, &clap_mangen::Man::new(page.clone()).render(&mut io::stdout().lock()))
}
