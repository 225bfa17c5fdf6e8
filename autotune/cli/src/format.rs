//! The one document that a subcommand answers: text for people or JSON for programs.

use std::io::{self, Write};

use clap::ValueEnum;
use serde::Serialize;

use crate::failure::Failure;

/// How an answer is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    Text,
    Json,
}

impl Format {
    /// Writes the answer on standard output: `document` as one line of JSON, or what `text` makes of
    /// it.
    pub(crate) fn write<T: Serialize>(
        self,
        document: &T,
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let mut out = io::stdout().lock();
        let written = match self {
            Self::Text => text(&mut out),
            Self::Json => writeln!(out, "{}", json(document)?),
        };
        Failure::written(written.and_then(|()| out.flush()), "writing the answer")
    }
}

/// A value as one line of JSON.
pub(crate) fn json<T: Serialize>(value: &T) -> Result<String, Failure> {
    serde_json::to_string(value)
        .map_err(|error| Failure::Format { format: "JSON", error: error.to_string() })
}
