//! The file of shapes: what the log of misses writes, people add to, and a tuner reads.

use core::fmt;

use serde::Deserialize;

use super::bounds::{EntryFault, MAX_ENTRIES, MAX_FILE_BYTES, check_name, check_shape};
use super::entry::Named;
use super::error::{Fault, ProfileError};
use super::key::{Key, Objective, Policy};
use super::matching::MatchKind;
use super::misses::{MissedShape, combined};
use super::outline::{Layout, Outline, first_character, from_ron, locate};
use super::writer::{named, write_objective, write_policy};

/// A file of shapes that was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedShapes {
    /// The good ones, by key and sizes, each once.
    pub shapes: Vec<MissedShape>,
    /// What is wrong with others, in the file's order.
    pub faults: Vec<Fault>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct HeaderRow {
    #[serde(rename = "schema")]
    _schema: u64,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ShapeRow {
    kernel: String,
    #[serde(default)]
    variant: String,
    dtypes: String,
    #[serde(default)]
    policy: Policy,
    #[serde(default)]
    objective: Objective,
    shape: Named,
    #[serde(default = "once")]
    seen: u64,
    #[serde(default)]
    served: MatchKind,
}

/// How often a shape was seen that somebody wrote down.
const fn once() -> u64 {
    1
}

impl ParsedShapes {
    /// Reads a file's text, as [`MissLog::read`](super::MissLog::read) does.
    ///
    /// # Errors
    ///
    /// As [`Document::parse`](super::Document::parse).
    pub fn parse(text: &str) -> Result<Self, ProfileError> {
        let bytes = u64::try_from(text.len()).unwrap_or(u64::MAX);
        if bytes > MAX_FILE_BYTES {
            return Err(ProfileError::TooLarge { bytes });
        }
        let outline = Outline::open(text, LAYOUT, |schema| schema == SHAPES_SCHEMA)?;
        let closed = format!("{})", outline.header);
        ron::from_str::<HeaderRow>(&closed)
            .map_err(|error| ProfileError::Header(from_ron(&error)))?;
        let read = outline.elements(|_| None, shape)?;
        let shapes = read.good.into_iter().map(|(_, shape)| shape).collect();
        Ok(Self { shapes: combined(shapes), faults: locate(text, read.bad) })
    }

    /// The text of a file with the good ones.
    #[must_use]
    pub fn to_ron(&self) -> String {
        write_shapes(&self.shapes)
    }
}

/// The text of a file with these shapes.
pub(super) fn write_shapes(shapes: &[MissedShape]) -> String {
    let rows: String = shapes.iter().map(|missed| Row(missed).to_string()).collect();
    format!("(\n    schema: {SHAPES_SCHEMA},\n    shapes: [\n{rows}    ],\n)\n")
}

fn shape(text: &str) -> Result<MissedShape, Fault> {
    let row: ShapeRow = ron::from_str(text).map_err(|error| from_ron(&error))?;
    let ShapeRow { kernel, variant, dtypes, policy, objective, shape, seen, served } = row;
    let key = Key { kernel, source: String::new(), variant, dtypes, policy, objective };
    let missed = MissedShape { key, shape, seen, served };
    missed.check().map(|()| missed).map_err(|fault| first_character(fault.to_string()))
}

impl MissedShape {
    /// Checks names and sizes against the bounds of a file.
    ///
    /// # Errors
    ///
    /// The first bound that is not kept.
    pub fn check(&self) -> Result<(), EntryFault> {
        let Key { kernel, source: _, variant, dtypes, policy: _, objective: _ } = &self.key;
        if kernel.is_empty() {
            return Err(EntryFault::NoKernel);
        }
        for (field, text) in [("kernel", kernel), ("variant", variant), ("dtypes", dtypes)] {
            check_name(field, text)?;
        }
        check_shape(&self.shape)
    }
}

struct Row<'a>(&'a MissedShape);

impl fmt::Display for Row<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let MissedShape { key, shape, seen, served } = self.0;
        let Key { kernel, source: _, variant, dtypes, policy, objective } = key;
        write!(
            f,
            "        (kernel: {kernel:?}, variant: {variant:?}, dtypes: {dtypes:?}, policy: "
        )?;
        write_policy(f, *policy)?;
        f.write_str(", objective: ")?;
        write_objective(f, *objective)?;
        f.write_str(", shape: ")?;
        named(f, shape)?;
        writeln!(f, ", seen: {seen}, served: {served}),")
    }
}

/// The schema that is written, and the latest that is read.
const SHAPES_SCHEMA: u64 = 1;
/// The layout of a file of shapes.
const LAYOUT: Layout = Layout { list: "shapes", anchor: "(kernel:", max_elements: MAX_ENTRIES };
