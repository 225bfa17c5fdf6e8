//! Reads the kernels of `guard/index/corpus` and the facts known about them.

use std::fs;
use std::path::PathBuf;

use gridguard_index::Size;

/// A pair of kernels.
pub(crate) struct Case {
    pub(crate) name: String,
    /// The sizes that do not vary.
    pub(crate) sizes: Vec<(Size, i64)>,
    pub(crate) varied: Size,
    /// The first value of the varied size that wraps.
    pub(crate) first: i64,
    /// The same for `sm_120`, if it differs: `None` if nothing wraps.
    pub(crate) other: Option<Option<i64>>,
}

impl Case {
    /// The first value of the varied size that wraps in the PTX for `architecture`.
    pub(crate) fn first_for(&self, architecture: &str) -> Option<i64> {
        self.other.filter(|_| architecture == "sm_120").unwrap_or(Some(self.first))
    }
}

fn folder() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("corpus")
}

/// The cases that the sources state.
pub(crate) fn cases() -> Vec<Case> {
    let mut cases = Vec::new();
    for path in files(&folder(), "cu") {
        let text = fs::read_to_string(path).expect("a source");
        for (at, _) in text.match_indices("// case ") {
            let rest = &text[at + "// case ".len()..];
            let line = rest.lines().next().expect("a line");
            let (name, sizes) = line.split_once(": ").expect("a name");
            let (sizes, first) = match sizes.split_once("; first ") {
                Some(parts) => parts,
                None => ("", sizes.strip_prefix("first ").expect("the first size")),
            };
            let (first, other) = match first.split_once("; sm_120 ") {
                Some((first, "never")) => (first, Some(None)),
                Some((first, other)) => (first, Some(Some(other))),
                None => (first, None),
            };
            let signature = rest.split_once(&format!("{name}_faulty(")).expect("the kernel").1;
            let signature = signature.split_once(')').expect("parameters").0;
            let parameters: Vec<&str> = signature
                .split(", ")
                .map(|one| one.rsplit([' ', '*']).next().expect("a name"))
                .collect();
            let size = |text: &str| {
                let (name, value) = text.split_once('=').expect("a value");
                (size_of(name, &parameters), value.parse().expect("a number"))
            };
            let (varied, first) = size(first);
            cases.push(Case {
                name: name.to_owned(),
                sizes: sizes.split_whitespace().map(size).collect(),
                varied,
                first,
                other: other.map(|other| other.map(|other| size(other).1)),
            });
        }
    }
    cases
}

/// `grid.y`, `block.x`, `n`, or `p+8` for a part of a structure.
fn size_of(name: &str, parameters: &[&str]) -> Size {
    let axis = |axis: &str| "xyz".find(axis).expect("an axis");
    if let Some(of) = name.strip_prefix("grid.") {
        return Size::Grid(axis(of));
    }
    if let Some(of) = name.strip_prefix("block.") {
        return Size::Block(axis(of));
    }
    let (name, offset) = name.split_once('+').unwrap_or((name, "0"));
    let index = parameters.iter().position(|one| *one == name).expect("a parameter");
    Size::Parameter { index, offset: offset.parse().expect("an offset") }
}

/// The PTX of each architecture.
pub(crate) fn texts() -> Vec<(String, String)> {
    let read = |path: &PathBuf| fs::read_to_string(path).expect("PTX");
    let of =
        |architecture: &str| files(&folder().join(architecture), "ptx").iter().map(read).collect();
    ["sm_75", "sm_90", "sm_120"]
        .map(|architecture| (architecture.to_owned(), of(architecture)))
        .into()
}

fn files(folder: &std::path::Path, extension: &str) -> Vec<PathBuf> {
    let paths =
        fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("an entry").path());
    let mut paths: Vec<_> =
        paths.filter(|path| path.extension().is_some_and(|it| it == extension)).collect();
    paths.sort();
    paths
}
