//! `cachalot group`: the limit of a group, changed while its members run.

use super::bytes::{parse, show};
use super::{BAD_INPUT, DIFFERENT, end, print};
use cachalot_run::group::GroupError;
use cachalot_run::group::set::set_limits;
use cachalot_run::shared::folder::of_user;
use std::process::ExitCode;

const SET_ABOUT: &str = "\
Set the limit of a group while its members run

The limit holds at once. Where the members hold more, they keep what is in use,
get nothing more, and give the free memory of their caches back within a second.
Programs that name the earlier limit can still join. The limit lasts for as long
as a process is in the group.

Exits with 1 if the members' --low does not fit into the limit, and with 2 if
no process is in the group.";

const SET_EXAMPLES: &str = "\
Examples:
  cachalot group set team --limit 30GiB
  cachalot group set team --limit none";

/// Change a group of processes that share a limit
#[derive(clap::Args)]
pub(crate) struct GroupArgs {
    #[command(subcommand)]
    command: GroupCommand,
}

#[derive(clap::Subcommand)]
enum GroupCommand {
    Set(GroupSetArgs),
}

/// Set the limit of a group while its members run
#[derive(clap::Args)]
#[command(long_about = SET_ABOUT, after_long_help = SET_EXAMPLES)]
struct GroupSetArgs {
    /// The most memory of all members together on each GPU: bytes, or a number with KiB, MiB, GiB,
    /// TiB, or kB, MB, GB, TB; or `none`
    #[arg(long, value_name = "BYTES|none", value_parser = parse_limit)]
    limit: GroupLimit,
    /// Only the group on this GPU, as `nvidia-smi -L` and `cachalot top` print it
    #[arg(long, value_name = "UUID")]
    device: Option<String>,
    #[arg(value_name = "NAME", help = "The group")]
    name: String,
}

/// A limit, or none.
#[derive(Clone, Copy)]
struct GroupLimit(Option<u64>);

fn parse_limit(text: &str) -> Result<GroupLimit, String> {
    if text == "none" { Ok(GroupLimit(None)) } else { parse(text).map(|bytes| GroupLimit(Some(bytes))) }
}

/// Runs the command.
pub(crate) fn run(args: &GroupArgs) -> ExitCode {
    let GroupCommand::Set(GroupSetArgs { limit, device, name }) = &args.command;
    let is_meant = |found: &str| device.as_deref().is_none_or(|device| device == found);
    let folder = of_user().map_err(GroupError::Folder);
    match folder.and_then(|folder| set_limits(&folder, name, is_meant, limit.0)) {
        Ok(groups) => {
            let written = groups.iter().try_for_each(|group| {
                let limit = group.limit.map_or("no limit".to_owned(), |limit| format!("a limit of {}", show(limit)));
                let held = group.members.iter().fold(0_u64, |sum, member| sum.saturating_add(member.held));
                print(format_args!("Group {} on {}: {limit}, {} held.", group.name, group.device, show(held)))
            });
            end(0, &written)
        }
        Err(error) => {
            complain!("{error}");
            let is_low = matches!(error, GroupError::LimitBelowLow { .. });
            ExitCode::from(if is_low { DIFFERENT } else { BAD_INPUT })
        }
    }
}
