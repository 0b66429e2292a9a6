//! `cachalot completions` and `cachalot man`: shell completions and manual pages of the command.

use super::{BAD_INPUT, in_file};
use clap::Command;
use clap_complete::Shell;
use std::fs;
use std::io::{self, Write};
use std::iter::once;
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
    /// Write every page into the folder FOLDER, and make the folder if needed
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
pub(crate) fn man(args: &ManArgs, command: Command) -> ExitCode {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    if let Some(folder) = &args.into {
        if let Err(error) = fs::create_dir_all(folder) {
            return super::end(0, &Err(in_file(folder, &error)));
        }
        let written = once(&command).chain(command.get_subcommands()).try_for_each(|one| {
            let file = folder.join(format!("{}.1", one.get_display_name().unwrap_or(one.get_name())));
            fs::write(&file, page(one)?).map_err(|error| in_file(&file, &error))
        });
        return super::end(0, &written);
    }
    let chosen = match &args.command {
        None => Some(&command),
        Some(name) => command.get_subcommands().find(|one| one.get_name() == name),
    };
    let Some(chosen) = chosen else {
        let names: Vec<_> = command.get_subcommands().map(Command::get_name).collect();
        let name = args.command.as_deref().unwrap_or_default();
        complain!("there is no command `{name}`: expected one of {}", names.join(", "));
        return ExitCode::from(BAD_INPUT);
    };
    super::end(0, &page(chosen).and_then(|page| io::stdout().lock().write_all(page.as_bytes())))
}

/// Returns the manual page of a command, in roff.
fn page(command: &Command) -> io::Result<String> {
    let mut roff = Vec::new();
    let source = concat!("cachalot ", env!("CARGO_PKG_VERSION"));
    clap_mangen::Man::new(command.clone()).source(source).manual("cachalot").render(&mut roff)?;
    let roff = String::from_utf8(roff).map_err(io::Error::other)?;
    Ok(keep_tables(&roff.replace(".SH EXTRA\nExamples:\n", ".SH EXAMPLES\n")))
}

/// Keeps the lines of paragraphs with columns or indented lines, which `man` would fill otherwise.
fn keep_tables(roff: &str) -> String {
    let lines: Vec<_> = roff.lines().collect();
    let mut kept = String::with_capacity(roff.len());
    for paragraph in lines.chunk_by(|above, below| !above.starts_with('.') && !below.starts_with('.')) {
        let table = paragraph.iter().any(|line| !line.starts_with('.') && line.trim_end().contains("  "));
        for line in table.then_some(".nf").iter().chain(paragraph).chain(table.then_some(".fi").iter()) {
            kept.push_str(line);
            kept.push('\n');
        }
    }
    kept
}
