//! Profiles are parsed as RON parses them, and written and merged without loss.

use gridguard::profile::{
    DeviceIdentity, Document, Entry, Environment, FileFault, Key, Match, Named, Objective, Policy,
    Profile, ProfileErrorKind, Provenance, StoredChoice, Summary,
};
use serde::Deserialize;

/// Any text is parsed or rejected with a position. What is parsed agrees with RON's own parser, is
/// parsed again as written, merges with the other half of the bytes in either order, and is found by
/// lookups.
pub(super) fn check(bytes: &[u8]) {
    // Two files, separated by a zero byte.
    let mut files =
        bytes.splitn(2, |byte| *byte == 0).filter_map(|it| core::str::from_utf8(it).ok());
    let one = files.next().and_then(read);
    let other = files.next().and_then(read);
    if let Some(one) = &one {
        serves(one);
        merges(one, one);
        if let Some(other) = &other {
            merges(one, other);
        }
    }
}

fn read(text: &str) -> Option<Document> {
    let parsed = match Document::parse(text) {
        Ok(parsed) => parsed,
        Err(error) => {
            match error.kind() {
                ProfileErrorKind::Header(fault) => is_in(fault, text),
                _ => assert!(!error.to_string().is_empty()),
            }
            return None;
        }
    };
    parsed.faults.iter().for_each(|fault| is_in(fault, text));
    assert!(parsed.faults.is_sorted_by_key(|fault| (fault.line, fault.column)));
    agrees_with_ron(&parsed.document, &parsed.faults, text);
    let document = parsed.document;
    assert!(document.entries().is_sorted_by(|one, other| subject(one) < subject(other)));
    assert!(document.entries().iter().all(|entry| entry.check().is_ok()));
    let written = document.to_string();
    let again = Document::parse(&written).expect("its own text");
    assert_eq!(again.faults, []);
    assert_eq!(again.document, document);
    assert_eq!(again.document.to_string(), written);
    Some(document)
}

/// A fault has a position within the text.
pub(super) fn is_in(fault: &FileFault, text: &str) {
    let lines = text.split('\n').count();
    assert!((1..=lines).contains(&fault.line), "{fault}, there are {lines} lines");
    let line = text.split('\n').nth(fault.line - 1).expect("counted");
    let characters = line.chars().count();
    assert!((1..=characters + 1).contains(&fault.column), "{fault} in {line:?}");
}

fn subject(entry: &Entry) -> (&Key, &Named) {
    (&entry.key, &entry.shape)
}

/// A profile's file, defined a second time for RON's own parser.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    schema: u64,
    device: DeviceIdentity,
    #[serde(default)]
    aliases: Vec<String>,
    environment: Environment,
    #[serde(default)]
    attainable: Vec<serde::de::IgnoredAny>,
    #[serde(default)]
    decisions: Vec<serde::de::IgnoredAny>,
    entries: Vec<Row>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Row {
    kernel: String,
    source: String,
    #[serde(default)]
    variant: String,
    dtypes: String,
    #[serde(default)]
    policy: Policy,
    #[serde(default)]
    objective: Objective,
    shape: Named,
    choice: StoredChoice,
    #[serde(default)]
    parameters: Named,
    launches: u64,
    chosen: Summary,
    default: Summary,
    found: Provenance,
}

impl From<Row> for Entry {
    fn from(row: Row) -> Self {
        let Row { kernel, source, variant, dtypes, policy, objective, .. } = row;
        let Row { shape, choice, parameters, launches, chosen, default, found, .. } = row;
        let key = Key { kernel, source, variant, dtypes, policy, objective };
        Self { key, shape, choice, parameters, launches, chosen, default, found }
    }
}

/// RON parses whatever was parsed without a fault, with the same result. If both parse the file, every
/// entry is in it, and each one left out has a fault of its own.
fn agrees_with_ron(document: &Document, faults: &[FileFault], text: &str) {
    let file = match ron::from_str::<File>(text) {
        Ok(file) => file,
        Err(error) => return assert!(!faults.is_empty(), "RON rejects it: {error}"),
    };
    assert!(
        file.schema == 1 && file.decisions.is_empty() && file.attainable.is_empty()
            || file.schema == 2
    );
    assert_eq!(&file.device, document.device());
    assert_eq!(&file.environment, document.environment());
    assert!(document.aliases().iter().all(|alias| file.aliases.contains(alias)));
    let mut rows: Vec<Entry> = file.entries.into_iter().map(Entry::from).collect();
    let count = rows.len();
    rows.sort_by(|one, other| subject(one).cmp(&subject(other)));
    for entry in document.entries() {
        assert!(rows.contains(entry), "RON reads no {entry:?}");
    }
    let lists = file.decisions.len();
    assert_eq!(document.entries().len() + document.decisions().len() + faults.len(), count + lists);
}

/// Every entry is found by its own shape on its own device.
fn serves(document: &Document) {
    let (device, running) = (document.device().clone(), document.environment().clone());
    let (profile, notices) = Profile::from_document(document.clone(), &device, &running);
    let mut served = 0;
    for entry in document.entries() {
        let sizes: Vec<u64> = entry.shape.iter().map(|(_, size)| *size).collect();
        let tuned = profile.lookup(&entry.key, &sizes);
        served += usize::from(tuned.matched == Match::Exact && tuned.entry == Some(entry));
        for more in [1, u64::MAX / 2] {
            let near: Vec<u64> = sizes.iter().map(|size| size.saturating_add(more)).collect();
            assert!(!profile.lookup(&entry.key, &near).matched.to_string().is_empty());
        }
    }
    // Shapes of one key with other size names are ignored with a notice.
    assert!(served == document.entries().len() || !notices.is_empty());
}

/// The order and repetition of merges do not matter, and no shape is lost.
fn merges(one: &Document, other: &Document) {
    let merged = |one: &Document, other: &Document| {
        let mut merged = one.clone();
        merged.merge(other).map(|conflicts| (merged, conflicts))
    };
    let (forth, back) = (merged(one, other), merged(other, one));
    assert_eq!(forth.is_ok(), back.is_ok());
    let (Ok((forth, conflicts)), Ok(back)) = (forth, back) else { return };
    assert_eq!((&forth, &conflicts), (&back.0, &back.1));
    assert_eq!(merged(&forth, other).as_ref().map(|again| &again.0), Ok(&forth));
    for entry in one.entries().iter().chain(other.entries()) {
        assert!(forth.get(&entry.key, &entry.shape).is_some(), "{entry:?} is lost");
    }
    for entry in forth.entries() {
        assert!(one.entries().contains(entry) || other.entries().contains(entry));
    }
    let read = Document::parse(&forth.to_string()).expect("its own text");
    assert_eq!(read.document, forth);
}
