//! Makes `entry_points.rs`, the intercepted functions and known attributes, of `entry_points.ron`.

use std::error::Error;
use std::fmt::Write;
use std::{env, fs};

use serde::Deserialize;

const TABLE: &str = "entry_points.ron";

#[derive(Deserialize)]
struct EntryPoints {
    compared: u32,
    launches: Vec<String>,
    intercepted: Vec<(String, u32, Variant, Replacement)>,
    forwarded: Vec<(String, Vec<String>)>,
    launch_attributes: Vec<(u32, String, Parts)>,
    function_attributes: Vec<(i32, String, u32)>,
}

/// The variant of a function for the default stream of the thread, and its first version.
#[derive(Clone, Copy, Deserialize)]
enum Variant {
    Alone,
    Ptsz(u32),
    Ptds(u32),
}

#[derive(Deserialize)]
enum Replacement {
    Hook(String),
    ByCaller(String),
}

#[derive(PartialEq, Deserialize)]
enum Parts {
    EachPart,
    OneLaunch,
    Never,
}

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed={TABLE}");
    let text = fs::read_to_string(TABLE)?;
    let table: EntryPoints = ron::from_str(&text).map_err(|error| format!("{TABLE}:{error}"))?;
    let path = format!("{}/entry_points.rs", env::var("OUT_DIR")?);
    Ok(fs::write(path, generated(&table, &text)?)?)
}

fn generated(table: &EntryPoints, text: &str) -> Result<String, Box<dyn Error>> {
    let (mut functions, mut rows, mut known) = (String::new(), String::new(), Vec::new());
    let mut place = 0;
    let mut learn = |name: &str| {
        let is_name = name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_');
        if is_name && !known.iter().any(|known| known == name) {
            known.push(name.to_owned());
            return Ok(());
        }
        let quoted = format!("\"{name}\"");
        let line = text.lines().count()
            - text.lines().rev().take_while(|line| !line.contains(&quoted)).count();
        Err(format!("{TABLE}:{line}: {name} is no name, or has two rows"))
    };
    for (name, since, variant, replacement) in &table.intercepted {
        learn(name)?;
        let (path, way) = match replacement {
            Replacement::Hook(path) => (path, ""),
            Replacement::ByCaller(path) => (path, ", by_caller"),
        };
        let variant = match variant {
            Variant::Alone => None,
            Variant::Ptsz(since) => Some(("_ptsz", since)),
            Variant::Ptds(since) => Some(("_ptds", since)),
        };
        let unversioned = name.strip_suffix("_v2").or(name.strip_suffix("_v3")).unwrap_or(name);
        for (suffix, since) in [("", since)].into_iter().chain(variant) {
            let per_thread = !suffix.is_empty();
            writeln!(
                functions,
                "Function {{ symbol: c\"{name}{suffix}\", name: b\"{unversioned}\", since: {since}, per_thread: {per_thread} }},"
            )?;
            writeln!(rows, "{place} {name}{suffix} => {path}{way};")?;
            place += 1;
        }
    }
    table.forwarded.iter().flat_map(|(_, names)| names).try_for_each(|name| learn(name))?;
    let is_launch = |name: &&String| table.launches.iter().any(|start| name.starts_with(start));
    let launches: Vec<_> = known.iter().filter(is_launch).collect();
    let of = |wanted| {
        let all = table.launch_attributes.iter().filter(|(.., parts)| *parts == wanted);
        all.map(|(number, ..)| *number).collect::<Vec<_>>()
    };
    let settable = table.function_attributes.iter().filter(|(.., since)| *since > 0);
    let settable: Vec<_> = settable.map(|(number, _, since)| (number, since)).collect();
    Ok(format!(
        "const COMPARED: c_int = {};\n\
         const LAUNCHES: &[&str] = &{:?};\n\
         const KNOWN_LAUNCHES: &[&str] = &{launches:?};\n\
         pub(crate) const OF_EACH_PART: &[c_uint] = &{:?};\n\
         pub(crate) const OF_ONE_LAUNCH: &[c_uint] = &{:?};\n\
         pub(crate) const SETTABLE: &[(c_int, c_int)] = &{settable:?};\n\
         pub(crate) static FUNCTIONS: [Function; {place}] = [\n{functions}];\n\
         macro_rules! intercepted {{ ($then:ident) => {{ $then! {{\n{rows}}} }} }}\n",
        table.compared,
        table.launches,
        of(Parts::EachPart),
        of(Parts::OneLaunch),
    ))
}
