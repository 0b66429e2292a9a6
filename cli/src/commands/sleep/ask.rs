//! `cachalot park` and `cachalot wake`, and what every request to processes has in common.

use super::answers::{SleepLine, sentences};
use crate::commands::table::Look;
use crate::commands::{BAD_INPUT, DIFFERENT, end, print};
use cachalot_run::control::client::{ask_all, find, find_all};
use cachalot_run::control::{Action, Request, Status};
use std::process::ExitCode;
use std::time::Duration;

const PARK_ABOUT: &str = "\
Park a process: move its memory from the GPU to the host, until the program uses
the GPU again, or cachalot wake

The process is named by its id, by the name of cachalot run --name, or by its
program; with --all, so are several processes, also by their group. The process
must run under cachalot run, and as the same user. Addresses, graphs, modules, streams and events stay as they are.

--json prints an object with schema, processes, failures; sizes in bytes.

Exits with 0 if every process is parked, with 1 if a process refuses or does not
answer, and with 2 if there is no such process.";

const PARK_EXAMPLES: &str = "\
Examples:
  cachalot park server
  cachalot park 4711 --timeout 2m
  cachalot park --all team
  cachalot park server --json";

const WAKE_ABOUT: &str = "\
Wake a process: move its memory back to the GPU

A parked process wakes by itself when the program uses the GPU. The command
wakes it earlier, for example before the first request arrives.

--json prints an object with schema, processes, failures; sizes in bytes.

Exits with 0 if every process is awake, with 1 if a process refuses or does not
answer, and with 2 if there is no such process.";

const WAKE_EXAMPLES: &str = "\
Examples:
  cachalot wake server
  cachalot wake 4711 --timeout 10s";

/// Move the memory of a process from the GPU to the host
#[derive(clap::Args)]
#[command(long_about = PARK_ABOUT, after_long_help = PARK_EXAMPLES)]
pub(crate) struct ParkArgs {
    #[command(flatten)]
    ask: AskArgs,
}

/// Move the memory of a parked process back to the GPU
#[derive(clap::Args)]
#[command(long_about = WAKE_ABOUT, after_long_help = WAKE_EXAMPLES)]
pub(crate) struct WakeArgs {
    #[command(flatten)]
    ask: AskArgs,
}

/// The arguments of both commands.
#[derive(clap::Args)]
struct AskArgs {
    /// How long to wait for the program's work to end, and for free memory of the GPU: a number
    /// with ms, s, m, h
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    timeout: Duration,
    #[command(flatten)]
    whom: WhomArgs,
}

/// The processes that are asked, and the form of their answers.
#[derive(clap::Args)]
pub(super) struct WhomArgs {
    /// Every process with the name, and every member of a group of this name, at the same time
    #[arg(long)]
    all: bool,
    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    look: Look,
    #[arg(value_name = "PID|NAME", help = "The process: its id, its name, or its program")]
    process: String,
}

/// Parses a time of at most a day.
fn parse_time(text: &str) -> Result<Duration, String> {
    let time = humantime::parse_duration(text)
        .map_err(|error| format!("{error}: expected a number with ms, s, m or h, such as 30s or 2m"))?;
    let most = Duration::from_secs(24 * 60 * 60);
    if time > most { Err("the most is a day, 24h".to_owned()) } else { Ok(time) }
}

/// Runs `cachalot park`.
pub(crate) fn park(args: &ParkArgs) -> ExitCode {
    ask(&args.ask, Action::Park)
}

/// Runs `cachalot wake`.
pub(crate) fn wake(args: &WakeArgs) -> ExitCode {
    ask(&args.ask, Action::Wake)
}

fn ask(args: &AskArgs, action: Action) -> ExitCode {
    ask_each(&args.whom, &Request::new(action, args.timeout), sentences)
}

/// Sends a request to the processes that are named. `say` puts an answer into words.
pub(super) fn ask_each(args: &WhomArgs, request: &Request, say: impl Fn(&Status) -> String) -> ExitCode {
    let found = if args.all { find_all(&args.process) } else { find(&args.process).map(|sleeper| vec![sleeper]) };
    let sleepers = match found {
        Ok(sleepers) => sleepers,
        Err(error) => {
            complain!("{error}");
            return ExitCode::from(BAD_INPUT);
        }
    };
    let answers = ask_all(&sleepers, request);
    let line = SleepLine::new(sleepers.iter().zip(answers));
    let status = if line.failures.is_empty() { 0 } else { DIFFERENT };
    line.failures.iter().for_each(|failure| complain!("{}", failure.text));
    if args.json {
        return end(status, &line.print());
    }
    let written = line.processes.iter().try_for_each(|told| print(args.look.fold(&say(told), 0)));
    end(status, &written)
}

#[cfg(test)]
mod tests {
    use super::parse_time;
    use std::time::Duration;

    #[test]
    fn a_time_has_a_unit_and_is_at_most_a_day() {
        assert_eq!(parse_time("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(parse_time("1m 30s"), Ok(Duration::from_secs(90)));
        assert_eq!(parse_time("1.5s"), Ok(Duration::from_millis(1500)));
        assert_eq!(parse_time("0s"), Ok(Duration::ZERO));
        assert_eq!(parse_time("24h"), Ok(Duration::from_secs(86_400)));
        for text in ["", "30", "-1s", "25h", "s", "30 apples"] {
            assert!(parse_time(text).is_err(), "{text}");
        }
    }
}
