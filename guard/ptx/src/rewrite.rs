//! Rewrites a text.

use crate::error::PtxError;
use crate::header::Problem;
use crate::lexer::lossy;
use crate::module::{Item, Module};
use crate::names::Names;
use crate::refusal::{Reason, Refusal};
use crate::report::{ALIGNMENT, EntryReport, Form, Forms, Report, Rewritten};
use crate::usage::Usage;
use crate::write::write;

/// Adds a shifted and a folded form to every entry of `ptx`, if possible.
///
/// The text must be the whole program, because functions of other modules are not known. Zero bytes at the end,
/// as in a C string, are kept.
///
/// # Errors
///
/// [`PtxError`] if the text is not PTX. An entry that cannot be rewritten is not an error: the report has the
/// reason.
///
/// # Examples
///
/// ```
/// let ptx = ".version 8.0\n.target sm_80\n.visible .entry k() {\n\
///     .reg .b32 %r<2>;\nmov.u32 %r1, %ctaid.y;\nret;\n}\n";
/// let rewritten = gridguard_ptx::rewrite(ptx.as_bytes())?;
/// let entry = rewritten.report.entry("k").expect("it is there");
/// assert_eq!(entry.reads_block_index, [false, true, false]);
/// assert!(!entry.uses_grid_size());
///
/// let forms = entry.forms.as_ref().expect("nothing speaks against it");
/// assert_eq!(forms.shifted, "k__gridguard_shifted");
/// assert!(rewritten.text.starts_with(ptx.as_bytes().trim_ascii_end()));
/// # Ok::<(), gridguard_ptx::PtxError>(())
/// ```
pub fn rewrite(ptx: &[u8]) -> Result<Rewritten, PtxError> {
    rewrite_entries(ptx, |_| true)
}

/// As [`rewrite`], for the entries whose names `is_wanted` accepts. Other entries get no forms, and are not in the
/// report.
///
/// # Errors
///
/// As [`rewrite`].
pub fn rewrite_entries(
    ptx: &[u8],
    is_wanted: impl Fn(&str) -> bool,
) -> Result<Rewritten, PtxError> {
    let end = ptx.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
    let (text, zeros) = ptx.split_at(end);
    let module = Module::read(text)?;
    let usage = Usage::of(&module);
    let names = Names::new(text);
    let limit = parameter_limit(&module);
    let mut entries = Vec::new();
    let mut accepted = Vec::new();
    for item in module.items.iter().filter(|item| item.is_entry && item.header.open.is_some()) {
        let name = lossy(item.header.name.text);
        if !is_wanted(&name) {
            continue;
        }
        let refusal = usage.refusal(&module, item.function);
        let forms = match refusal.or_else(|| exceeds(item, limit)) {
            Some(refusal) => Err(refusal),
            None => {
                accepted.push(item.function);
                Ok(forms(&names, item))
            }
        };
        let reads = usage.reads[item.function];
        entries.push(EntryReport {
            at: item.header.name.at,
            parameters: item.header.parameters.count,
            parameter_bytes: item.header.parameters.bytes,
            reads_block_index: [0, 1, 2].map(|value| reads.has(value)),
            reads_grid_size: [3, 4, 5].map(|value| reads.has(value)),
            forms,
            name,
        });
    }
    let mut has_forms = usage.needed(accepted.iter().copied());
    let functions = (module.functions.iter().zip(&has_forms))
        .filter(|(_, needed)| **needed)
        .map(|(function, _)| lossy(function.name))
        .collect();
    accepted.into_iter().for_each(|id| has_forms[id] = true);
    let mut text = write(&module, &usage, &names, &has_forms)?;
    text.extend_from_slice(zeros);
    let (version, target) = (module.version, lossy(module.target));
    Ok(Rewritten { text, report: Report { version, target, entries, functions } })
}

fn forms(names: &Names, item: &Item<'_>) -> Forms {
    let name = |form: Form| names.variant(item.header.name.text, form.name());
    Forms {
        shifted: name(Form::Shifted),
        folded: name(Form::Folded),
        parameter_index: item.header.parameters.count,
        parameter_offset: item.header.parameters.bytes.next_multiple_of(ALIGNMENT),
    }
}

/// The refusal of an entry if the added parameter would exceed the parameter limit.
fn exceeds(item: &Item<'_>, limit: u64) -> Option<Refusal> {
    let own = item.header.parameters.bytes;
    let most = Form::Shifted.parameter_bytes().max(Form::Folded.parameter_bytes());
    let fits = own.checked_next_multiple_of(ALIGNMENT).and_then(|own| own.checked_add(most));
    if fits.is_some_and(|bytes| bytes <= limit) {
        return None;
    }
    let problem = Problem::new(Reason::ParameterLimit, &item.header.name);
    Some(problem.in_function(item.header.name.text))
}

/// The most bytes of an entry's parameters.
fn parameter_limit(module: &Module<'_>) -> u64 {
    let digits: Vec<u8> = module.target.iter().copied().filter(u8::is_ascii_digit).collect();
    let architecture = lossy(&digits).parse::<u32>().unwrap_or(0);
    if module.version >= (8, 1) && architecture >= 70 { MOST_BYTES } else { MOST_BYTES_BEFORE }
}

/// From PTX 8.1 on, for targets from `sm_70` on.
const MOST_BYTES: u64 = 32_764;
/// The limit before.
const MOST_BYTES_BEFORE: u64 = 4_352;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lexer::work;

    /// The bytes of `text` that are read as tokens, in all passes.
    fn work_for(text: &str) -> usize {
        work::take();
        let _ = rewrite(text.as_bytes());
        work::take()
    }

    /// What a text is full of, and such a text of a given size.
    type Shape = (&'static str, fn(usize) -> String);

    const HEADER: &str = ".version 8.0\n.target sm_90\n";

    #[test]
    fn the_work_grows_with_the_size_of_the_text() {
        let shapes: [Shape; 10] = [
            ("comments", |n| "/* %ctaid.x */ // .entry\n".repeat(n)),
            ("one comment", |n| format!("/*{}*/", "* / \n".repeat(n))),
            ("braces", |n| format!(".entry k() {}ret;{}", "{".repeat(n), "}".repeat(n))),
            ("braces outside", |n| format!(".global .u32 a = {}{};", "{".repeat(n), "}".repeat(n))),
            ("statements", |n| format!(".entry k() {{{}}}", "mov.u32 %r, %ctaid.x; ".repeat(n))),
            ("labels", |n| {
                let labels: String =
                    (0..n).map(|label| format!("$L{label}: bra $L{label}; ")).collect();
                let used: String = (0..n).map(|label| format!(".b64 $L{label} ")).collect();
                format!(".entry k() {{{labels}}} .section .debug_info {{{used}}}")
            }),
            ("entries", |n| {
                (0..n).map(|it| format!(".entry k{it}() {{ call no; ret; }}\n")).collect()
            }),
            ("a chain of calls", |n| {
                let call = |it: usize| format!(".func f{}() {{ call f{it}; }}\n", it + 1);
                let calls: String = (0..n).map(call).collect();
                format!(
                    ".func f0() {{ mov.u32 %r, %ctaid.x; mov.u32 %r, %clusterid.x; }}\n{calls}.entry k() {{ call f{n}; }}"
                )
            }),
            ("every entry calls every function", |n| {
                let functions: String = (0..10)
                    .map(|it| format!(".func f{it}() {{ mov.u32 %r, %ctaid.x; }}\n"))
                    .collect();
                let calls: String = (0..10).map(|it| format!("call f{it}; ")).collect();
                let entries: String =
                    (0..n).map(|it| format!(".entry k{it}() {{ {calls} }}\n")).collect();
                functions + &entries
            }),
            ("lists of functions", |n| {
                format!(
                    ".func f() {{ ret; }} .entry k() {{ T: .calltargets {}f; {} }}",
                    "f, ".repeat(n),
                    "call %d, T; ".repeat(n)
                )
            }),
        ];
        for (name, shape) in shapes {
            let [once, twice] = [500, 1000].map(|n| format!("{HEADER}{}", shape(n)));
            let (small, large) = (work_for(&once), work_for(&twice));
            assert!(small >= once.len() / 2, "{name}: {small} bytes of {}", once.len());
            // One pass to read it, and for each of two forms one pass for labels and one to write it.
            assert!(large <= 5 * twice.len(), "{name}: {large} bytes of {}", twice.len());
        }
    }

    #[test]
    fn a_text_cut_anywhere_is_an_error_or_keeps_its_start() {
        let text = format!(
            "{HEADER}.func (.param .b32 r) f(.param .b32 a)\n{{\n.loc 1 2 3, function_name $L, inlined_at 1 2 3\n\
             $A: mov.u32 %r, %ctaid.x; @%p bra $A;\nret;\n}}\n.visible .entry k(.param .align 8 .b8 p[16])\n\
             .maxntid 1, 1, 1 .pragma \"a;b\";\n{{\n.reg .b32 %r<3>;\ncall (%r1), f, (%r2);\nmov.b64 %d, {{%ctaid.x, %r1}};\n\
             T: .calltargets f;\n/* x */ ret;\n}}\n.alias g, f;\n.section .debug_x {{ .b64 $A }}\n"
        );
        for end in 0..=text.len() {
            if let Ok(rewritten) = rewrite(&text.as_bytes()[..end]) {
                assert!(rewritten.text.len() >= end);
                let whole = rewritten.report.entries.iter().all(|entry| entry.at.line > 0);
                assert!(whole);
            }
        }
    }
}
