//! The sheet for answers, and the objects of the questions.

use cachalot_emulated_driver::api::{Api, Given};
use cachalot_emulated_driver::client::Client;
use std::fmt::Display;
use std::ops::Deref;

/// 2 MiB, the granularity of every device so far.
pub(crate) const PAGE: usize = 2 << 20;

/// The sheet for the answers of a group.
pub(crate) struct Sheet {
    api: Api,
    /// The path of the library, as given by the caller.
    pub(crate) library: String,
    /// The prefix of every line.
    pub(crate) group: String,
    /// The control functions of the library, if the library is the emulated driver.
    pub(crate) control: Option<Client>,
}

impl Deref for Sheet {
    type Target = Api;

    fn deref(&self) -> &Api {
        &self.api
    }
}

impl Sheet {
    /// Creates a sheet for a group of questions to a library.
    pub(crate) fn new(library: &str, group: &str) -> Result<Self, libloading::Error> {
        let api = Api::load(library)?;
        let control = Client::load(library).ok();
        Ok(Self { api, library: library.to_owned(), group: group.to_owned(), control })
    }

    /// Writes an answer.
    pub(crate) fn line(&self, question: &str, answer: impl Display) {
        println!("{} {question} = {answer}", self.group);
    }

    /// Writes something for the reader only.
    pub(crate) fn remark(&self, text: impl Display) {
        println!("# {} {text}", self.group);
    }

    /// Initializes the driver and makes the context of device 0 current, as every question
    /// requires.
    pub(crate) fn begin(&self) -> u64 {
        assert_eq!(self.cuInit(0), 0, "cuInit");
        self.enter(0).expect("a context on device 0")
    }
}

/// Returns the code of an outcome.
pub(crate) fn code<T>(outcome: Given<T>) -> u32 {
    outcome.err().unwrap_or(0)
}

/// Two words for a yes or no.
pub(crate) fn yes(is: bool) -> &'static str {
    if is { "yes" } else { "no" }
}
