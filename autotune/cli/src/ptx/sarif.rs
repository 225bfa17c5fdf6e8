//! Indices that wrap as a SARIF 2.1.0 log, which code hosts and editors show beside the source.

use std::fmt::Write;
use std::path::Path;

use gridguard_index::{EntryIndex, First, Position, Verdict, Wrap};
use serde_json::{Value, json};

use crate::links::PAGE;

/// The log of the verdicts on the entries of `file`. Entries whose indices are safe have no result.
pub(super) fn log(file: &Path, found: &[(EntryIndex, Verdict)]) -> Value {
    let ptx = uri(&file.to_string_lossy());
    let mut results = Vec::new();
    for (entry, verdict) in found {
        match verdict {
            Verdict::Safe => {}
            Verdict::Unknown(reason) => {
                let message = format!("it is unknown whether 32-bit indices wrap: {reason}");
                results.push(result(entry, "open", &message, &[at(&ptx, entry.at)]));
            }
            Verdict::Wraps(wraps) => {
                results.extend(wraps.iter().map(|wrap| of_wrap(&ptx, entry, wrap)));
            }
        }
    }
    json!({
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{
            "tool": { "driver": {
                "name": "gridguard",
                "version": env!("GRIDGUARD_VERSION"),
                "informationUri": env!("CARGO_PKG_REPOSITORY"),
                "rules": [{
                    "id": RULE,
                    "shortDescription": { "text": "32-bit index arithmetic wraps" },
                    "helpUri": format!("{PAGE}#{RULE}"),
                }],
            } },
            "results": results,
        }],
    })
}

fn of_wrap(ptx: &str, entry: &EntryIndex, wrap: &Wrap) -> Value {
    let kind = if wrap.is_address { "address" } else { "branch" };
    let mut message = format!("{} wraps if {} ({kind})", wrap.expression, wrap.formula);
    for first in &wrap.first {
        // Writing to a string does not fail.
        let _ = write!(message, "; it {}", from(entry, first));
    }
    let in_ptx = at(ptx, wrap.at);
    // The line of the source comes first, because that is where the fault is mended.
    match &wrap.source {
        Some(source) => {
            let in_source = location(&uri(&source.file), source.line, None);
            result(entry, "fail", &message, &[in_source, in_ptx])
        }
        None => result(entry, "fail", &message, &[in_ptx]),
    }
}

/// The first size that wraps, in words.
pub(super) fn from(entry: &EntryIndex, first: &First) -> String {
    format!("wraps from {} = {} on", first.size.name(&entry.parameters), first.value)
}

/// A result at the first location. The others are related.
fn result(entry: &EntryIndex, kind: &str, message: &str, locations: &[Value]) -> Value {
    let mut places = locations.iter().cloned();
    let mut first = places.next().unwrap_or_default();
    first["logicalLocations"] = json!([{ "name": entry.name, "kind": "function" }]);
    let mut result = json!({
        "ruleId": RULE,
        "ruleIndex": 0,
        "kind": kind,
        "level": if kind == "fail" { "error" } else { "none" },
        "message": { "text": message },
        "locations": [first],
    });
    let related: Vec<Value> = places.collect();
    if !related.is_empty() {
        result["relatedLocations"] = related.into();
    }
    result
}

fn at(file: &str, Position { line, column }: Position) -> Value {
    location(file, line, Some(column))
}

/// A line of a file. Compilers write line 0 for code without a line.
fn location(file: &str, line: u64, column: Option<u64>) -> Value {
    let mut place = json!({ "artifactLocation": { "uri": file } });
    if line > 0 {
        place["region"] = json!({ "startLine": line });
        if let Some(column) = column.filter(|column| *column > 0) {
            place["region"]["startColumn"] = column.into();
        }
    }
    json!({ "physicalLocation": place })
}

/// A path as a URI: a relative reference, or with the scheme `file`.
fn uri(path: &str) -> String {
    let mut uri = String::from(if path.starts_with('/') { "file://" } else { "" });
    for byte in path.bytes() {
        match byte {
            b'/' | b'-' | b'.' | b'_' | b'~' => uri.push(char::from(byte)),
            _ if byte.is_ascii_alphanumeric() => uri.push(char::from(byte)),
            _ => {
                let _ = write!(uri, "%{byte:02X}");
            }
        }
    }
    uri
}

/// The rule that all results are about.
const RULE: &str = "index-wrap";
