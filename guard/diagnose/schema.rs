// The rows of `bench-data/failures/*.ron` as they are written, for the build script and the tests.

use std::collections::BTreeMap;

use ron::extensions::Extensions;
use serde::Deserialize;
use serde::de::{self, Deserializer, Visitor};

/// A bare word, such as `Constraint`.
#[derive(Clone, Debug, Default)]
pub(crate) struct Word(pub(crate) String);

impl<'de> Deserialize<'de> for Word {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct OfWord;
        impl Visitor<'_> for OfWord {
            type Value = Word;

            fn expecting(&self, f: &mut core::fmt::Formatter<'_>) -> core::fmt::Result {
                f.write_str("a bare word")
            }

            fn visit_str<E: de::Error>(self, text: &str) -> Result<Word, E> {
                Ok(Word(text.to_owned()))
            }
        }
        deserializer.deserialize_identifier(OfWord)
    }
}

/// The entries of a file.
pub(crate) fn parse(text: &str) -> Result<Vec<Entry>, ron::error::SpannedError> {
    let extensions = Extensions::UNWRAP_VARIANT_NEWTYPES | Extensions::IMPLICIT_SOME;
    ron::Options::default().with_default_extension(extensions).from_str(text)
}

/// An entry of a file.
#[derive(Clone, Debug, Deserialize)]
pub(crate) enum Entry {
    Row(Box<Row>),
    Codes(Box<Codes>),
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Row {
    pub(crate) id: String,
    pub(crate) platform: Word,
    pub(crate) owner: String,
    /// The name under which a failure is known, if it has one.
    #[serde(default)]
    pub(crate) title: String,
    pub(crate) evidence: Word,
    #[serde(default)]
    pub(crate) lines: Vec<String>,
    /// Lines that count only beside one of `here`.
    #[serde(default)]
    pub(crate) words: Vec<String>,
    #[serde(default)]
    pub(crate) here: Vec<String>,
    #[serde(default)]
    pub(crate) near: Vec<String>,
    /// Lines between the row's line and each of `near`.
    #[serde(default)]
    pub(crate) within: u64,
    #[serde(default)]
    pub(crate) without: Vec<String>,
    #[serde(default)]
    pub(crate) when: Vec<String>,
    #[serde(default)]
    pub(crate) cause: String,
    #[serde(default)]
    pub(crate) remedy: String,
    #[serde(default)]
    pub(crate) command: String,
    #[serde(default)]
    pub(crate) fault: Word,
    #[serde(default)]
    pub(crate) memory: Word,
    #[serde(default)]
    pub(crate) facts: BTreeMap<String, String>,
    #[serde(default)]
    pub(crate) explains: Vec<String>,
    #[serde(default)]
    pub(crate) may: Vec<String>,
    /// The launch was refused: its sizes are checked.
    #[serde(default)]
    pub(crate) launch: bool,
    /// The context is lost.
    #[serde(default)]
    pub(crate) sticky: bool,
    /// A later call may report it.
    #[serde(default)]
    pub(crate) late: bool,
    /// The program goes on: failures at most `within` lines before it are harmless; within 1, beside other failures only.
    #[serde(default)]
    pub(crate) recovers: bool,
    #[serde(default)]
    pub(crate) source: String,
    pub(crate) examples: Vec<Example>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Example {
    pub(crate) log: String,
    #[serde(default)]
    pub(crate) captures: BTreeMap<String, String>,
}

/// The codes of a library, each a row without relations.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Codes {
    pub(crate) prefix: String,
    pub(crate) platform: Word,
    pub(crate) owner: String,
    #[serde(default)]
    pub(crate) source: String,
    /// Patterns with `{code:int}`, which choose the row `prefix-code`, also where that is written as a `Row`.
    #[serde(default)]
    pub(crate) numbers: Vec<String>,
    /// Numbers that older versions used, each with today's. A number that has a row is not read as former.
    #[serde(default)]
    pub(crate) former: Vec<(i64, i64)>,
    /// Names of one to three plain words count only beside one of these patterns.
    #[serde(default)]
    pub(crate) here: Vec<String>,
    /// The memory of codes that mean too little of it.
    #[serde(default)]
    pub(crate) memory: BTreeMap<i64, Word>,
    /// Number, names, cause, evidence, command.
    pub(crate) codes: Vec<(i64, Vec<String>, String, Word, String)>,
}

impl Codes {
    /// The id of a code's row.
    pub(crate) fn id(&self, code: i64) -> String {
        let prefix = &self.prefix;
        match code {
            ..0 => format!("{prefix}-minus-{}", code.unsigned_abs()),
            0x4000_0000.. => format!("{prefix}-0x{code:08x}"),
            _ => format!("{prefix}-{code}"),
        }
    }

    /// The same as rows.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> {
        self.codes.iter().map(|(code, names, cause, evidence, command)| {
            let (words, lines) = names.iter().cloned().partition(|name| self.is_short(name));
            Row {
                id: self.id(*code),
                platform: self.platform.clone(),
                owner: self.owner.clone(),
                title: names.first().cloned().unwrap_or_default(),
                evidence: evidence.clone(),
                lines,
                words,
                here: self.here.clone(),
                cause: cause.clone(),
                command: command.clone(),
                memory: self.memory.get(code).cloned().unwrap_or_default(),
                source: self.source.clone(),
                ..Row::default()
            }
        })
    }

    /// Whether other programs print the name, too.
    fn is_short(&self, name: &str) -> bool {
        let is_plain =
            name.chars().skip(1).all(|c| c.is_ascii_lowercase() || matches!(c, ' ' | '-'));
        !self.here.is_empty() && is_plain && name.split(' ').count() <= 3
    }
}
