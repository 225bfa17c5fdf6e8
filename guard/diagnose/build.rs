//! Reads the rows of `bench-data/failures`, checks them, and writes them as static tables.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "the modules of the library have more than the script uses"
)]

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::path::Path;
use std::{env, fs, process};

#[path = "src/kinds.rs"]
mod kinds;
#[path = "src/pattern.rs"]
mod pattern;
#[path = "src/relation.rs"]
mod relation;
mod schema;
#[path = "src/template.rs"]
mod template;
#[path = "src/value.rs"]
mod value;
#[path = "src/words.rs"]
mod words;

use kinds::{Confidence, Fault, Memory, Platform};
use pattern::{Part, Pattern};
use relation::Relation;
use schema::{Entry, Row};
use value::Kind;

fn main() {
    let folder = gridguard_data::FAILURES;
    println!("cargo::rerun-if-changed={folder}");
    let mut errors = Vec::new();
    let tables = read(Path::new(folder), &mut errors).map_err(|error| errors.push(error));
    let text = tables.and_then(|tables| tables.write().map_err(|error| errors.push(error)));
    if let (Ok(text), Ok(out)) = (text, env::var("OUT_DIR"))
        && let Err(error) = fs::write(Path::new(&out).join("tables.rs"), text)
    {
        errors.push(error.to_string());
    }
    for error in &errors {
        println!("cargo::error={error}");
    }
    process::exit(i32::from(!errors.is_empty()));
}

#[derive(Default)]
struct Tables {
    rows: Vec<Row>,
    families: Vec<schema::Codes>,
}

fn read(folder: &Path, errors: &mut Vec<String>) -> Result<Tables, String> {
    let mut files: Vec<_> = fs::read_dir(folder)
        .and_then(|entries| entries.map(|entry| Ok(entry?.path())).collect())
        .map_err(|error| format!("{}: {error}", folder.display()))?;
    files.retain(|file| file.extension().is_some_and(|it| it == "ron"));
    files.sort();
    let mut tables = Tables::default();
    for file in files {
        let name = file.display();
        let text = fs::read_to_string(&file).map_err(|error| format!("{name}: {error}"))?;
        let entries = match schema::parse(&text) {
            Ok(entries) => entries,
            Err(error) => {
                errors.push(format!("{name}:{error}"));
                continue;
            }
        };
        for entry in entries {
            let rows = match entry {
                Entry::Row(row) => vec![*row],
                Entry::Codes(codes) => {
                    let rows = codes.rows().collect();
                    tables.families.push(*codes);
                    rows
                }
            };
            for row in rows {
                match check(&row) {
                    Ok(()) => tables.rows.push(row),
                    Err(error) => errors.push(format!("{name}: row {}: {error}", row.id)),
                }
            }
        }
    }
    tables.rows.sort_by(|a, b| a.id.cmp(&b.id));
    for pair in tables.rows.windows(2) {
        if let [a, b] = pair
            && a.id == b.id
        {
            errors.push(format!("two rows have the id {}", a.id));
        }
    }
    let ids: BTreeSet<&str> = tables.rows.iter().map(|row| row.id.as_str()).collect();
    for row in &tables.rows {
        for id in row.explains.iter().chain(&row.may) {
            if !ids.contains(id.as_str()) {
                errors.push(format!("row {}: no row has the id {id}", row.id));
            }
        }
    }
    Ok(tables)
}

fn check(row: &Row) -> Result<(), String> {
    let known = |it: bool, what: &str| if it { Ok(()) } else { Err(what.to_owned()) };
    let is_id = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    known(row.id.chars().all(is_id), "the id is not in kebab-case")?;
    known(Platform::from_row(&row.platform.0).is_some(), "no such platform")?;
    let confidence = Confidence::from_row(&row.evidence.0).ok_or("no such evidence")?;
    let is_failure = confidence <= Confidence::Unknown;
    known(row.fault.0.is_empty() || Fault::from_row(&row.fault.0).is_some(), "no such fault")?;
    let is_memory =
        matches!(row.memory.0.as_str(), "" | "None") || Memory::from_row(&row.memory.0).is_some();
    known(is_memory, "no such memory")?;
    known(!is_failure || !row.cause.is_empty(), "it has no cause")?;
    known(!row.recovers || confidence == Confidence::Harmless, "only a harmless line recovers")?;
    known(row.may.len() <= 3, "more than three causes in `may`")?;
    known(row.words.is_empty() || !row.here.is_empty(), "`words` without `here`")?;
    let mut names = BTreeSet::new();
    for text in row.lines.iter().chain(&row.words).chain(&row.near).chain(&row.without) {
        for text in alternatives(text)? {
            let pattern = Pattern::parse(&text)?;
            known(!pattern.whole_words().is_empty(), &format!("no whole word in {text:?}"))?;
            names.extend(pattern.holes().map(str::to_owned));
        }
    }
    for text in &row.when {
        Relation::parse(text)?;
    }
    for hole in
        [&row.cause, &row.remedy, &row.command].into_iter().flat_map(|text| template::holes(text))
    {
        Relation::parse(&format!("{hole} == 0"))
            .map_err(|error| format!("hole {hole:?}: {error}"))?;
    }
    Ok(())
}

/// The patterns that `{a|b|c}` stands for.
fn alternatives(text: &str) -> Result<Vec<String>, String> {
    let mut all = vec![String::new()];
    let mut rest = text;
    while let Some(place) = rest.find('{') {
        let (before, found) = rest.split_at(place);
        let end =
            if found.starts_with("{{") { 2 } else { found.find('}').ok_or("a brace is open")? + 1 };
        let (hole, after) = found.split_at(end);
        let choices: Vec<&str> = match hole.strip_prefix('{').and_then(|it| it.strip_suffix('}')) {
            Some(inner) if inner.contains('|') => inner.split('|').collect(),
            _ => vec![hole],
        };
        all = all
            .iter()
            .flat_map(|it| choices.iter().map(move |choice| format!("{it}{before}{choice}")))
            .collect();
        if all.len() > 64 {
            return Err("more than 64 alternatives".into());
        }
        rest = after;
    }
    Ok(all.into_iter().map(|it| it + rest).collect())
}

/// What a pattern that is found means.
enum Use {
    /// A line of a row.
    Line(usize),
    /// A line of a row that counts beside its `here`.
    Words(usize),
    /// Context of rows.
    Context,
    /// A number of a family.
    Number(usize),
}

impl Tables {
    fn write(&self) -> Result<String, String> {
        let mut patterns: Vec<(String, Use)> = Vec::new();
        let mut contexts: BTreeMap<String, usize> = BTreeMap::new();
        let mut rows = String::new();
        let place_of = |id: &String| self.rows.iter().position(|row| row.id == *id);
        for (place, row) in self.rows.iter().enumerate() {
            for text in &row.lines {
                patterns.extend(alternatives(text)?.into_iter().map(|it| (it, Use::Line(place))));
            }
            for text in &row.words {
                patterns.extend(alternatives(text)?.into_iter().map(|it| (it, Use::Words(place))));
            }
            let mut context = |texts: &[String]| -> Result<Vec<Vec<usize>>, String> {
                texts
                    .iter()
                    .map(|text| {
                        let all = alternatives(text)?;
                        Ok(all
                            .into_iter()
                            .map(|it| {
                                *contexts.entry(it.clone()).or_insert_with(|| {
                                    patterns.push((it, Use::Context));
                                    patterns.len() - 1
                                })
                            })
                            .collect())
                    })
                    .collect()
            };
            let (near, without) = (context(&row.near)?, context(&row.without)?);
            let here: Vec<String> = row.here.iter().map(|it| it.to_ascii_lowercase()).collect();
            let places =
                |ids: &[String]| -> Vec<usize> { ids.iter().filter_map(place_of).collect() };
            let fault = if row.fault.0.is_empty() { "Unknown" } else { &row.fault.0 };
            let memory = match row.memory.0.as_str() {
                "" | "None" => "None".to_owned(),
                memory => format!("Some(Memory::{memory})"),
            };
            let facts: Vec<_> = row.facts.iter().collect();
            writeln!(
                rows,
                "Row {{ id: {:?}, platform: Platform::{}, owner: {:?}, title: {:?}, confidence: Confidence::{}, \
                 near: &{}, within: {}, without: &{:?}, here: &{:?}, when: &{:?}, cause: {:?}, remedy: {:?}, command: {:?}, \
                 fault: Fault::{fault}, memory: {memory}, facts: &{:?}, explains: &{:?}, may: &{:?}, \
                 is_launch: {}, is_sticky: {}, is_late: {}, recovers: {}, source: {:?} }},",
                row.id, row.platform.0, row.owner, row.title, row.evidence.0,
                slices(&near),
                if row.within == 0 { u64::MAX } else { row.within }, without.concat(), here, row.when, row.cause, row.remedy, row.command,
                facts, places(&row.explains), places(&row.may), row.launch,
                row.sticky, row.late, row.recovers, row.source,
            )
            .map_err(|error| error.to_string())?;
        }
        for (family, codes) in self.families.iter().enumerate() {
            for text in &codes.numbers {
                for text in alternatives(text)? {
                    let pattern =
                        Pattern::parse(&text).map_err(|error| format!("{text}: {error}"))?;
                    if !pattern.holes().any(|it| it == "code") || pattern.whole_words().is_empty() {
                        return Err(format!(
                            "numbers: {text:?} has no whole word or no hole `code`"
                        ));
                    }
                    patterns.push((text, Use::Number(family)));
                }
            }
        }
        let mut text =
            format!("pub(crate) static ROWS: [Row; {}] = [\n{rows}];\n", self.rows.len());
        let is_derived =
            |row: &Row| row.lines.is_empty() && !(row.when.is_empty() && row.near.is_empty());
        let derived = (0..self.rows.len()).filter(|place| is_derived(&self.rows[*place]));
        let derived: Vec<usize> = derived.collect();
        let families: Vec<_> = self.families.iter().map(|it| (&it.prefix, &it.former)).collect();
        let families = format!("{families:?}").replace(", [", ", &[");
        writeln!(
            text,
            "pub(crate) static DERIVED: &[usize] = &{derived:?};\n\
             pub(crate) static FAMILIES: &[(&str, &[(i64, i64)])] = &{families};"
        )
        .map_err(|error| error.to_string())?;
        write_patterns(&mut text, &patterns)?;
        Ok(text)
    }
}

impl Pattern {
    /// The names of its holes.
    fn holes(&self) -> impl Iterator<Item = &str> {
        self.parts.iter().filter_map(|part| match part {
            Part::Hole { name, .. } => Some(name.as_str()),
            _ => None,
        })
    }

    fn literals(&self) -> impl Iterator<Item = (usize, &str)> {
        self.parts.iter().enumerate().filter_map(|(place, part)| match part {
            Part::Literal(text) => Some((place, text.as_str())),
            _ => None,
        })
    }

    /// The number of words in its literals.
    fn words(&self) -> usize {
        self.literals()
            .map(|(_, text)| text.split(|c| !is_letter(c)).filter(|it| !it.is_empty()).count())
            .sum()
    }

    /// The words that are whole in every line that it matches.
    fn whole_words(&self) -> Vec<&str> {
        let mut words = Vec::new();
        for (place, text) in self.literals() {
            words.extend(text.contains(words::CHEVRONS).then_some(words::CHEVRONS));
            // A typed hole may continue a word.
            let is_hole = |place: Option<usize>| {
                let part = place.and_then(|place| self.parts.get(place));
                matches!(part, Some(Part::Hole { kind, .. }) if !matches!(kind, Kind::Text | Kind::Sign))
            };
            let mut at = 0;
            for word in text.split(|c| !is_letter(c)) {
                let end = at + word.len();
                let is_cut = at == 0 && is_hole(place.checked_sub(1))
                    || end == text.len() && is_hole(Some(place + 1));
                if !word.is_empty() && !is_cut {
                    words.push(word);
                }
                at = end + text[end..].chars().next().map_or(0, char::len_utf8);
            }
        }
        words
    }
}

fn is_letter(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_' || !c.is_ascii()
}

fn slices(of: &[Vec<usize>]) -> String {
    let each: Vec<String> = of.iter().map(|it| format!("&{it:?}")).collect();
    format!("[{}]", each.join(", "))
}

/// Writes the patterns, and the table of the word by which each is found.
fn write_patterns(text: &mut String, patterns: &[(String, Use)]) -> Result<(), String> {
    let parsed: Vec<Pattern> =
        patterns.iter().map(|(it, _)| Pattern::parse(it)).collect::<Result<_, _>>()?;
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for pattern in &parsed {
        for word in pattern.whole_words() {
            *counts.entry(word).or_default() += 1;
        }
    }
    let mut found_by: BTreeMap<u32, Vec<usize>> = BTreeMap::new();
    for (place, pattern) in parsed.iter().enumerate() {
        let rarity = |word: &&str| {
            let is_number = word.bytes().all(|it| it.is_ascii_digit());
            (is_number || word.len() < 3, counts.get(word).copied(), usize::MAX - word.len())
        };
        let word = pattern.whole_words().into_iter().min_by_key(rarity).ok_or("no word")?;
        found_by.entry(words::hash(word)).or_default().push(place);
    }
    writeln!(text, "pub(crate) static PATTERNS: [Entry; {}] = [", patterns.len())
        .map_err(|error| error.to_string())?;
    for ((it, used), pattern) in patterns.iter().zip(&parsed) {
        let used = match used {
            Use::Line(row) => format!("Use::Line({row})"),
            Use::Words(row) => format!("Use::Words({row})"),
            Use::Context => "Use::Context".to_owned(),
            Use::Number(family) => format!("Use::Number({family})"),
        };
        let words = pattern.whole_words().into_iter().map(words::hash);
        let bits = words.fold(0, |bits, hash| bits | words::bit(hash));
        writeln!(
            text,
            "Entry {{ text: {it:?}, words: {}, bits: {bits}, of: {used} }},",
            pattern.words()
        )
        .map_err(|error| error.to_string())?;
    }
    let slots = (found_by.len() * 4).next_power_of_two();
    let mut table = vec![(0, 0, 0); slots];
    let mut places: Vec<usize> = Vec::new();
    for (hash, of_word) in &found_by {
        let mut slot = words::slot(*hash, slots);
        while table.get(slot).is_some_and(|it| *it != (0, 0, 0)) {
            slot = (slot + 1) & (slots - 1);
        }
        if let Some(entry) = table.get_mut(slot) {
            *entry = (*hash, places.len(), of_word.len());
        }
        places.extend(of_word);
    }
    writeln!(
        text,
        "];\npub(crate) static WORDS: [(u32, u16, u16); {slots}] = {table:?};\n\
         pub(crate) static PLACES: [u16; {}] = {places:?};",
        places.len()
    )
    .map_err(|error| error.to_string())
}
