//! Verdicts about PTX of other projects, and the launches that they call safe beside an interpreter. `tests/ptx.sh index`
//! runs it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;
use std::{env, fs};

use crate::interpreter::{Kernel, kernels};
use crate::launches::{differing, launch};
use gridguard_index::{EntryIndex, Reason, Size, Sizes, Verdict, index};

#[test]
#[ignore = "needs folders with the PTX of projects"]
fn safe_launches_of_projects_run_right() {
    let folders = env::var("INDEX_PTX").expect("INDEX_PTX names folders");
    let (mut table, mut details, mut missed) = (String::new(), String::new(), Vec::new());
    let head = "project   grid |  safe  wraps memory  other |  safe  wraps memory  other | launches missed |   MB  ms/MB";
    writeln!(table, "{head}").expect("a string");
    for folder in folders.split(':').map(Path::new) {
        let (mut without, mut with) = (Counts::default(), Counts::default());
        let (mut seconds, mut bytes, mut ran, before) = (0.0, 0.0, 0, missed.len());
        for path in fs::read_dir(folder).expect("a folder").map(|one| one.expect("a file").path()) {
            if path.extension().is_none_or(|extension| extension != "ptx") {
                continue;
            }
            let text = fs::read_to_string(&path).expect("PTX");
            let begun = Instant::now();
            let entries = index(text.as_bytes()).expect("PTX");
            let mut entries: Vec<EntryIndex> =
                entries.into_iter().filter(|entry| entry.uses_grid).collect();
            for entry in &mut entries {
                without.add(&entry.verdict(&Sizes::default()));
            }
            seconds += begun.elapsed().as_secs_f64();
            bytes += f64::from(u32::try_from(text.len()).expect("short"));
            let kernels = kernels(&text);
            for mut entry in entries {
                let kernel = &kernels[&entry.name];
                let wrong = launches(&mut entry, kernel, &mut with, &mut ran);
                missed.extend(
                    wrong.map(|wrong| format!("{} {}: {wrong}", path.display(), entry.name)),
                );
            }
        }
        let name = folder.file_name().expect("a folder").to_string_lossy();
        let [one, two] = [&without, &with].map(|counts| {
            let [safe, wraps, memory, other] = counts.verdicts;
            format!("{safe:5} {wraps:6} {memory:6} {other:6}")
        });
        let (all, missed, mega) =
            (without.verdicts.iter().sum::<usize>(), missed.len() - before, bytes / 1e6);
        let speed = seconds * 1e3 / mega;
        writeln!(
            table,
            "{name:7} {all:6} | {one} | {two} | {ran:8} {missed:6} | {mega:4.1} {speed:6.0}"
        )
        .expect("a string");
        for (when, counts) in [("without", &without), ("with", &with)] {
            let reasons = counts.reasons.iter().map(|(why, count)| format!("{why} {count}"));
            let reasons = reasons.collect::<Vec<_>>().join(", ");
            writeln!(details, "{name:7} {when:7} sizes: {reasons}").expect("a string");
        }
    }
    let table = format!("{table}\n{details}");
    fs::write(env::var("INDEX_TABLE").expect("INDEX_TABLE names a file"), &table).expect("written");
    assert!(missed.is_empty(), "{table}\n{}", missed.join("\n"));
}

/// Verdicts: safe, wraps, unknown because of values in memory, and otherwise unknown.
#[derive(Default)]
struct Counts {
    verdicts: [usize; 4],
    /// Why others are unknown.
    reasons: BTreeMap<String, usize>,
}

impl Counts {
    fn add(&mut self, verdict: &Verdict) {
        let place = match verdict {
            Verdict::Safe => 0,
            Verdict::Wraps(_) => 1,
            Verdict::Unknown(doubt) if doubt.reason == Reason::Loaded => 2,
            Verdict::Unknown(doubt) => {
                let opcode = doubt.instruction.split_whitespace().next().unwrap_or_default();
                *self.reasons.entry(format!("{} {opcode}", doubt.reason.id())).or_default() += 1;
                3
            }
        };
        self.verdicts[place] += 1;
    }
}

/// Runs launches of several magnitudes that are called safe, and counts them and the verdicts of one magnitude. Returns a
/// launch that runs wrong.
fn launches(
    entry: &mut EntryIndex,
    kernel: &Kernel,
    with: &mut Counts,
    ran: &mut usize,
) -> Option<String> {
    let (known, mut wrong) = (entry.sizes(), None);
    for magnitude in [5, 12, 19, 26] {
        let of = |size: Size| match size {
            Size::Grid(0) => 1 << (magnitude - 3),
            Size::Grid(_) => (1_i64 << (magnitude - 4)).min(65_535),
            Size::Block(axis) => kernel.required.map_or([64, 2, 1].map(i128::from), |it| it)[axis]
                .try_into()
                .expect("small"),
            Size::Parameter { .. } => 1 << magnitude.min(16),
        };
        let axes = (0..3).flat_map(|axis| [Size::Grid(axis), Size::Block(axis)]);
        let parameters =
            known.iter().map(|one| one.0).filter(|size| matches!(size, Size::Parameter { .. }));
        let sizes: Vec<(Size, i64)> = axes.chain(parameters).map(|size| (size, of(size))).collect();
        let mut given = Sizes::default();
        sizes.iter().for_each(|(size, value)| given.set(*size, *value));
        let verdict = entry.verdict(&given);
        if magnitude == 12 {
            with.add(&verdict);
        }
        if verdict == Verdict::Safe && wrong.is_none() {
            *ran += 1;
            let thread = differing(kernel, &launch(kernel, &sizes), 3000, false);
            wrong = thread.map(|thread| format!("{thread:?}"));
        }
    }
    wrong
}
