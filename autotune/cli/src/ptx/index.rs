//! `gridguard ptx --index`: which 32-bit indices wrap, and the first size that wraps.

use std::fmt;
use std::path::Path;

use clap::Args;
use gridguard::{Dim3, count};
use gridguard_index::{EntryIndex, Size, Sizes, Verdict, Wrap, index};
use serde_json::{Value, json};

use crate::error::{CommandError, Exit};
use crate::output::{OutputArgs, Table, text};
use crate::words::size;

#[derive(Args)]
pub(super) struct IndexArgs {
    /// Show which 32-bit indices wrap, instead of the forms. Sizes that are not given may have any legal value
    #[arg(long, conflicts_with = "output")]
    pub(super) index: bool,
    /// Size of the grid in blocks, for --index
    #[arg(long, value_name = "X,Y,Z", requires = "index", value_parser = size)]
    grid: Option<Dim3>,
    /// Size of a block in threads, for --index
    #[arg(long, value_name = "X,Y,Z", requires = "index", value_parser = size)]
    block: Option<Dim3>,
    /// Value of a parameter by its name in the PTX or its number, for --index; NAME+8 is the value 8 bytes into it
    #[arg(long, value_name = "NAME=VALUE", requires = "index")]
    param: Vec<String>,
}

impl IndexArgs {
    /// Analyses `ptx`, which is from `file`: the entries called `wanted`, or all if there are none.
    pub(super) fn run(
        &self,
        file: &Path,
        ptx: &[u8],
        wanted: &[String],
        output: OutputArgs,
    ) -> Result<Exit, CommandError> {
        let entries = index(ptx).map_err(CommandError::in_file(file))?;
        let is_wanted = |entry: &EntryIndex| wanted.is_empty() || wanted.contains(&entry.name);
        let mut found = Vec::new();
        for mut entry in entries.into_iter().filter(is_wanted) {
            let sizes = self.sizes(&entry)?;
            let verdict = entry.verdict(&sizes);
            found.push((entry, verdict));
        }
        let is_missing = |name: &&String| !found.iter().any(|(entry, _)| entry.name == **name);
        if let Some(missing) = wanted.iter().find(is_missing) {
            let error = format!("there is no entry {missing}");
            return Err(CommandError::invalid_file(file, error));
        }
        let entries: Vec<Value> = found.iter().map(entry_json).collect();
        output.print(&json!({ "entries": entries }), text(|f| write_table(f, &found)))?;
        let has = |is: fn(&Verdict) -> bool| found.iter().any(|(_, verdict)| is(verdict));
        Ok(match () {
            () if has(|verdict| matches!(verdict, Verdict::Wraps(_))) => Exit::No,
            () if has(|verdict| matches!(verdict, Verdict::Unknown(_))) => Exit::Unknown,
            () => Exit::Yes,
        })
    }

    fn sizes(&self, entry: &EntryIndex) -> Result<Sizes, CommandError> {
        let mut sizes = Sizes::default();
        let launch = [self.grid, self.block];
        if launch.iter().flatten().any(|size| [size.x, size.y, size.z].contains(&0)) {
            return Err(CommandError::invalid("the sizes of a launch are above zero"));
        }
        set_launch(&mut sizes, launch);
        set_parameters(&mut sizes, entry, &self.param)?;
        Ok(sizes)
    }
}

/// Sets the sizes of grid and block that are known.
pub(crate) fn set_launch(sizes: &mut Sizes, [grid, block]: [Option<Dim3>; 2]) {
    let mut set = |dim: Option<Dim3>, size: fn(usize) -> Size| {
        for (axis, value) in dim.iter().flat_map(|dim| [dim.x, dim.y, dim.z]).enumerate() {
            sizes.set(size(axis), i64::try_from(value).unwrap_or(i64::MAX));
        }
    };
    set(grid, Size::Grid);
    set(block, Size::Block);
}

/// Sets the parameters that `--param` gives, as `NAME=VALUE` or `NAME+OFFSET=VALUE`.
pub(crate) fn set_parameters(
    sizes: &mut Sizes,
    entry: &EntryIndex,
    given: &[String],
) -> Result<(), CommandError> {
    for given in given {
        let invalid = |what: String| CommandError::invalid(format_args!("--param {given}: {what}"));
        let parts =
            given.split_once('=').and_then(|(name, value)| Some((name, value.parse().ok()?)));
        let Some((name, value)) = parts else {
            return Err(invalid("not a name, `=` and an integer".to_owned()));
        };
        let (name, offset) = name.split_once('+').unwrap_or((name, "0"));
        let known = entry.parameters.iter().position(|known| known == name);
        let number = name.parse().ok().filter(|number| *number < entry.parameters.len());
        let (Some(index), Ok(offset)) = (known.or(number), offset.parse()) else {
            let parameters = entry.parameters.join(", ");
            let known = format!("no such parameter: {} has {parameters}", entry.name);
            return Err(invalid(known));
        };
        sizes.set(Size::Parameter { index, offset }, value);
    }
    Ok(())
}

fn write_table(f: &mut fmt::Formatter<'_>, found: &[(EntryIndex, Verdict)]) -> fmt::Result {
    let mut table = Table::new(["entry", ">line", "32-bit indices"]);
    for (entry, verdict) in found {
        let words = match verdict {
            Verdict::Safe => "safe".to_owned(),
            Verdict::Wraps(wraps) => {
                format!("wrap in {}", count(wraps.len(), "place"))
            }
            Verdict::Unknown(doubt) => format!("unknown: {doubt}"),
        };
        table.push([entry.name.clone(), entry.at.line.to_string(), words]);
    }
    write!(f, "{table}")?;
    for (entry, verdict) in found {
        let Verdict::Wraps(wraps) = verdict else { continue };
        writeln!(f, "\n{}", entry.name)?;
        for wrap in wraps {
            writeln!(f, "  {}: {}", place(wrap), wrap.instruction)?;
            writeln!(
                f,
                "    {}: {}",
                if wrap.is_address { "address" } else { "branch" },
                wrap.expression
            )?;
            writeln!(f, "    wraps if {}", wrap.formula)?;
            for first in &wrap.first {
                let name = first.size.name(&entry.parameters);
                writeln!(f, "    wraps from {name} = {} on", first.value)?;
            }
        }
    }
    Ok(())
}

fn place(wrap: &Wrap) -> String {
    match &wrap.source {
        Some(source) => format!("{}:{}, {}", source.file, source.line, wrap.at),
        None => wrap.at.to_string(),
    }
}

fn entry_json((entry, verdict): &(EntryIndex, Verdict)) -> Value {
    let mut document = json!({
        "name": entry.name,
        "line": entry.at.line,
        "uses_grid": entry.uses_grid,
        "verdict": match verdict {
            Verdict::Safe => "safe",
            Verdict::Wraps(_) => "wraps",
            Verdict::Unknown(_) => "unknown",
        },
    });
    match verdict {
        Verdict::Safe => {}
        Verdict::Unknown(doubt) => {
            document["reason"] = doubt.reason.id().into();
            document["instruction"] = doubt.instruction.clone().into();
            document["at"] = json!({ "line": doubt.at.line, "column": doubt.at.column });
        }
        Verdict::Wraps(wraps) => {
            let wraps = wraps.iter().map(|wrap| wrap_json(wrap, &entry.parameters));
            document["wraps"] = wraps.collect();
        }
    }
    document
}

fn wrap_json(wrap: &Wrap, parameters: &[String]) -> Value {
    let first = wrap.first.iter();
    json!({
        "line": wrap.at.line,
        "column": wrap.at.column,
        "source": wrap.source.as_ref().map(|source| json!({ "file": source.file, "line": source.line })),
        "instruction": wrap.instruction,
        "reaches": if wrap.is_address { "address" } else { "branch" },
        "expression": wrap.expression,
        "formula": wrap.formula,
        "first": first.map(|first| (first.size.name(parameters), first.value.into())).collect::<serde_json::Map<_, _>>(),
    })
}
