//! `cachalot ledger`: the book that a process wrote at its end.

use super::bytes::{plural, show};
use super::table::{Look, Table};
use super::{BAD_INPUT, SCHEMA, book, in_file, print};
use cachalot_run::ledger::file::read;
use cachalot_run::ledger::view::BookView;
use serde::Serialize;
use std::fmt::Write as _;
use std::io;
use std::path::PathBuf;
use std::process::ExitCode;

const LONG_ABOUT: &str = "\
Show who held the device's memory at the end of a program: the book that
cachalot run --ledger-file FILE wrote, by shared object and kind

segment            memory that the allocator took to serve requests
served             requests served from segments (run --ledger)
plain, pages,      memory that the program asked the driver for
pool, array
managed, host,     managed memory, pinned memory of the host, and pages of the
spilled            host under spill: in no sum of the device
context, module,   what contexts, code (modules, libraries, kernels), graphs and
graph, other       other calls took
unexplained        the driver's own figure, less the book at that moment

--json prints an object with schema, file, books; sizes in bytes.

Exits with 2 for invalid input.";

const EXAMPLES: &str = "\
Examples:
  cachalot run --ledger-file ledger.json -- python train.py
  cachalot ledger ledger.json";

/// Show who held the device's memory at the end of a program, by shared object and kind
#[derive(clap::Args)]
#[command(long_about = LONG_ABOUT, after_long_help = EXAMPLES)]
pub(crate) struct LedgerArgs {
    /// Print a JSON object instead of text
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    look: Look,
    /// Number of call stacks of each book; JSON has all
    #[arg(long, value_name = "N", default_value_t = 10)]
    most: usize,
    #[arg(value_name = "FILE", help = "The file of run --ledger-file")]
    file: PathBuf,
}

/// The output of `--json`.
#[derive(Serialize)]
struct LedgerLine<'a> {
    schema: u32,
    file: &'a str,
    books: &'a [BookView],
}

/// Runs the command.
pub(crate) fn run(args: &LedgerArgs) -> ExitCode {
    let books = match read(&args.file) {
        Ok(books) => books.books,
        Err(error) => {
            complain!("{}", in_file(&args.file, &error));
            return ExitCode::from(BAD_INPUT);
        }
    };
    let written = if args.json {
        let line = LedgerLine { schema: SCHEMA, file: &args.file.to_string_lossy(), books: &books };
        serde_json::to_string(&line).map_err(io::Error::from).and_then(print)
    } else {
        let texts: Vec<_> = books.iter().map(|book| text(book, args)).collect();
        print(if texts.is_empty() { "The process held no device's memory.".to_owned() } else { texts.join("\n\n") })
    };
    super::end(0, &written)
}

fn text(view: &BookView, args: &LedgerArgs) -> String {
    let mut text = args.look.fold(&answer(view), 0);
    let mut table = Table::new(&book::COLUMNS);
    book::rows(&mut table, view);
    if let Some(bytes) = view.unexplained {
        table.row(vec!["unexplained".to_owned(), book::signed(bytes)]);
    }
    if !table.is_empty() {
        let _ = write!(text, "\n\n{}", table.render(&args.look));
    }
    for (at, stack) in view.stacks.iter().take(args.most).enumerate() {
        let title = if at == 0 { "\n\nBy call stack, the most bytes first" } else { "" };
        let _ = write!(text, "{title}\n\n{:>12}  in {}", show(stack.bytes), entries(stack.count));
        for frame in &stack.frames {
            let _ = write!(text, "\n{:14}{frame}", "");
        }
    }
    if view.stacks.len() > args.most {
        let rest = plural((view.stacks.len() - args.most) as u64, "other stack");
        let _ = write!(text, "\n\n{rest}: see --most");
    }
    text
}

/// Returns the first sentences of a book.
fn answer(view: &BookView) -> String {
    let BookView { pid, program, device, booked, .. } = view;
    let mut answer = format!("{program} (process {pid}) held {} of {device} in its book", show(*booked));
    if let Some(driver) = view.driver {
        let (used, total) = (show(driver.used), show(driver.total));
        let _ = write!(answer, "; the driver reported {used} of {total} in use by all processes");
    }
    for line in book::left_out(view) {
        let _ = write!(answer, "; {line}");
    }
    answer + "."
}

fn entries(count: u64) -> String {
    format!("{count} {}", if count == 1 { "entry" } else { "entries" })
}
