//! Reads one value of a committed result and writes it in the form that a document asks for.
//!
//! `FILE PATH : FORM`: the path has steps between slashes, each a key, the index of an element, or
//! `key=value`, which finds the element of a list with that field; `&` joins several fields. Several paths between
//! ` + ` are summed, and ` / ` divides what stands before it by what follows. A profile (`.ron`)
//! has the fields `problems`, `gaining`, `confirmed`, `kernels` (with a gain), and `gain_median` and `gain_best`.
//!
//! | form | of 1234.5678 |
//! |---|---|
//! | `.2` | 1234.57 |
//! | `,` | 1,235 |
//! | `%`, `%1` | 123457 %, 123456.8 % |
//! | `text` | the text or number as the file has it |
//! | `*1000 .1` | 1234567.8: multiplied first, for another unit |

use std::fs;
use std::path::Path;

use gridguard::profile::{Document, Entry};
use gridguard_autotune::{Samples, real};
use serde_json::{Value, json};

/// The text of the value that `source` names, in its form.
pub(crate) fn read(source: &str, results: &Path) -> Result<String, String> {
    let (place, form) = source.rsplit_once(" : ").ok_or("no form")?;
    let (file, paths) = place.split_once(' ').ok_or("no path in the file")?;
    let text = fs::read_to_string(results.join(file)).map_err(|error| error.to_string())?;
    let json = match file.ends_with(".ron") {
        true => of_profile(&text)?,
        false => serde_json::from_str(&text).map_err(|error| error.to_string())?,
    };
    if form == "text" {
        return match find(&json, paths)? {
            Value::String(text) => Ok(text.clone()),
            other => Ok(other.to_string()),
        };
    }
    let mut value = None;
    for part in paths.split(" / ") {
        let sum =
            part.split(" + ").map(|path| number(find(&json, path)?)).sum::<Result<f64, _>>()?;
        value = Some(value.map_or(sum, |before: f64| before / sum));
    }
    write(value.ok_or("no path")?, form)
}

/// What the entries of a profile gain over their defaults.
fn of_profile(text: &str) -> Result<Value, String> {
    let parsed = Document::parse(text).map_err(|error| error.to_string())?;
    let (confirmed, gaining): (Vec<_>, Vec<_>) =
        parsed.document.entries().iter().partition(|entry| entry.is_confirmed());
    let gain = |entry: &&Entry| real(entry.default.median_ns) / real(entry.chosen.median_ns);
    let gains: Vec<f64> = gaining.iter().map(gain).collect();
    let mut kernels: Vec<_> = gaining.iter().map(|entry| entry.key.kernel.as_str()).collect();
    kernels.dedup();
    Ok(json!({
        "problems": parsed.document.entries().len(),
        "gaining": gaining.len(),
        "confirmed": confirmed.len(),
        "kernels": kernels.join(", "),
        "gain_median": Samples::new(gains.iter().copied()).map(|gains| gains.median()),
        "gain_best": gains.iter().copied().reduce(f64::max),
    }))
}

/// A number, or the first one in a text such as "accepted up to 264 blocks".
fn number(value: &Value) -> Result<f64, String> {
    let in_text = || value.as_str()?.split_whitespace().find_map(|word| word.parse().ok());
    value.as_f64().or_else(in_text).ok_or_else(|| format!("{value} is no number"))
}

fn find<'a>(json: &'a Value, path: &str) -> Result<&'a Value, String> {
    path.split('/').try_fold(json, |value, step| {
        let found = match (value, step.split_once('=')) {
            (Value::Array(rows), Some(_)) => {
                let has = |row: &Value, field: &str| {
                    let (key, wanted) = field.split_once('=')?;
                    Some(is(row.get(key)?, wanted))
                };
                rows.iter().find(|row| step.split('&').all(|field| has(row, field) == Some(true)))
            }
            (Value::Array(rows), None) => {
                step.parse::<usize>().ok().and_then(|index| rows.get(index))
            }
            _ => value.get(step),
        };
        found.ok_or_else(|| format!("no {step}"))
    })
}

fn is(field: &Value, wanted: &str) -> bool {
    let is_number = || wanted.parse::<Value>().is_ok_and(|wanted| wanted == *field);
    field.as_str().map_or_else(is_number, |text| text == wanted)
}

fn write(value: f64, form: &str) -> Result<String, String> {
    if let Some((factor, form)) = form.strip_prefix('*').and_then(|rest| rest.split_once(' ')) {
        return write(value * factor.parse::<f64>().map_err(|error| error.to_string())?, form);
    }
    let decimals = |digits: &str| if digits.is_empty() { Ok(0) } else { digits.parse::<usize>() };
    if form == "," {
        return Ok(grouped(&format!("{value:.0}")));
    }
    if let Some(digits) = form.strip_prefix('.') {
        let digits = decimals(digits).map_err(|error| error.to_string())?;
        return Ok(format!("{value:.digits$}"));
    }
    if let Some(digits) = form.strip_prefix('%') {
        let digits = decimals(digits).map_err(|error| error.to_string())?;
        return Ok(format!("{:.digits$} %", value * 100.0));
    }
    Err(format!("no form {form}"))
}

/// With commas between groups of three digits.
fn grouped(digits: &str) -> String {
    let mut text = String::new();
    for (place, digit) in digits.chars().enumerate() {
        if place > 0 && (digits.len() - place).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

#[test]
fn a_value_is_found_by_key_index_and_field_and_written_in_each_form() {
    let folder = tempfile::tempdir().unwrap();
    fs::write(
        folder.path().join("a.json"),
        r#"{"name": "x", "up to": "accepted up to 264 of 5", "rows": [{"way": "raw", "ns": 1234.5678}, {"way": "b", "ns": 0.5}, {"way": "b", "n": 2, "ns": 7}]}"#,
    )
    .unwrap();
    let read = |source: &str| read(source, folder.path());
    assert_eq!(read("a.json name : text").unwrap(), "x");
    assert_eq!(read("a.json up to : ,").unwrap(), "264");
    assert_eq!(read("a.json rows/way=raw/ns : .2").unwrap(), "1234.57");
    assert_eq!(read("a.json rows/0/ns : ,").unwrap(), "1,235");
    assert_eq!(read("a.json rows/way=b/ns : %").unwrap(), "50 %");
    assert_eq!(read("a.json rows/way=b&n=2/ns : ,").unwrap(), "7");
    assert_eq!(read("a.json rows/way=b/ns : *1000 ,").unwrap(), "500");
    assert_eq!(read("a.json rows/0/ns + rows/1/ns : .1").unwrap(), "1235.1");
    assert_eq!(read("a.json rows/1/ns / rows/1/ns + rows/1/ns : %1").unwrap(), "50.0 %");
    let profile = include_str!("../../../bench-data/profiles/nvidia-h200.ron");
    fs::write(folder.path().join("p.ron"), profile).unwrap();
    let of_profile = |path| read(&format!("p.ron {path} : text")).unwrap().parse::<f64>().unwrap();
    assert_eq!(of_profile("problems"), of_profile("gaining") + of_profile("confirmed"));
    assert!(of_profile("gain_best") >= of_profile("gain_median"));
    assert!(of_profile("gain_median") >= 1.02);
    for wrong in [
        "a.json name",
        "a.json name : .1",
        "a.json rows/way=c/ns : .1",
        "a.json rows/way=raw&n=2/ns : .1",
        "a.json name : #",
        "b.json x : ,",
    ] {
        assert!(read(wrong).is_err(), "{wrong}");
    }
}
