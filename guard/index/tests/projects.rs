//! Verdicts about PTX of other projects, and the launches that they call safe beside an interpreter. `tests/ptx.sh index`
//! runs it.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;
use std::time::Instant;
use std::{env, fs};

use crate::interpreter::{Kernel, kernels};
use crate::launches::{differing, launch};
use gridguard_index::{EntryIndex, Size, Sizes, Verdict, index};

#[test]
#[ignore = "needs folders with the PTX of projects"]
fn safe_launches_of_projects_run_right() {
    let folders = env::var("INDEX_PTX").expect("INDEX_PTX names folders");
    let (mut table, mut missed) = (String::new(), Vec::new());
    for folder in folders.split(':').map(Path::new) {
        let (mut counts, mut reasons) = ([0; 4], BTreeMap::<String, usize>::new());
        let (mut seconds, mut bytes) = (0.0, 0);
        for path in fs::read_dir(folder).expect("a folder").map(|one| one.expect("a file").path()) {
            let text = fs::read_to_string(&path).expect("PTX");
            let begun = Instant::now();
            let entries = index(text.as_bytes()).expect("PTX");
            let mut judged: Vec<(EntryIndex, Verdict)> = Vec::new();
            for mut entry in entries.into_iter().filter(|entry| entry.uses_grid) {
                let verdict = entry.verdict(&Sizes::default());
                judged.push((entry, verdict));
            }
            seconds += begun.elapsed().as_secs_f64();
            bytes += text.len();
            let kernels = kernels(&text);
            for (mut entry, verdict) in judged {
                let place = match &verdict {
                    Verdict::Safe => 0,
                    Verdict::Wraps(_) => 1,
                    Verdict::Unknown(doubt) => {
                        let opcode =
                            doubt.instruction.split_whitespace().next().unwrap_or_default();
                        *reasons.entry(format!("{} {opcode}", doubt.reason.id())).or_default() += 1;
                        2
                    }
                };
                counts[place] += 1;
                let kernel = &kernels[&entry.name];
                let (ran, wrong) = safe_launches(&mut entry, kernel);
                counts[3] += ran;
                missed.extend(
                    wrong.map(|wrong| format!("{} {}: {wrong}", path.display(), entry.name)),
                );
            }
        }
        let [safe, wraps, unknown, ran] = counts;
        let name = folder.file_name().expect("a folder").to_string_lossy();
        writeln!(table, "{name}: {safe} safe, {wraps} wrap, {unknown} unknown; {ran} launches; {bytes} bytes in {seconds:.2} s")
            .expect("a string");
        writeln!(table, "  {reasons:?}").expect("a string");
    }
    fs::write(env::var("INDEX_TABLE").expect("INDEX_TABLE names a file"), &table).expect("written");
    assert!(missed.is_empty(), "{table}\n{}", missed.join("\n"));
}

/// Runs launches of several magnitudes that are called safe. Returns their number, and one that runs wrong.
fn safe_launches(entry: &mut EntryIndex, kernel: &Kernel) -> (usize, Option<String>) {
    let (known, mut ran) = (entry.sizes(), 0);
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
        if entry.verdict(&given) == Verdict::Safe {
            ran += 1;
            if let Some(thread) = differing(kernel, &launch(kernel, &sizes), 3000, false) {
                return (ran, Some(format!("{thread:?}")));
            }
        }
    }
    (ran, None)
}
