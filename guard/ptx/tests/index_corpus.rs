//! The kernels of `bench-data/index`: each faulty one is found with its first bad size, no mended one is reported.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

#[path = "support/corpus.rs"]
mod corpus;

use std::collections::HashMap;

use corpus::{Case, cases, texts};
use gridguard_ptx::{EntryIndex, First, IndexReason, Sizes, Verdict, index};

/// The sizes of `case` with `value` for the varied one.
fn with(case: &Case, value: i64) -> Sizes {
    let mut sizes = Sizes::default();
    case.sizes
        .iter()
        .chain([&(case.varied, value)])
        .for_each(|(size, value)| sizes.set(*size, *value));
    sizes
}

/// The entries of each architecture by name.
fn entries() -> Vec<(String, HashMap<String, EntryIndex>)> {
    let entries = |text: String| index(text.as_bytes()).expect("PTX");
    texts()
        .into_iter()
        .map(|(architecture, text)| {
            let named = entries(text).into_iter().map(|entry| (entry.name.clone(), entry));
            (architecture, named.collect())
        })
        .collect()
}

#[test]
fn every_faulty_kernel_wraps_from_its_first_bad_size_on() {
    let cases = cases();
    assert!(cases.len() >= 40, "{} cases", cases.len());
    let mut failures = Vec::new();
    for (architecture, mut entries) in entries() {
        for case in &cases {
            let entry = entries.get_mut(&format!("{}_faulty", case.name)).expect("the kernel");
            let mut fail =
                |what: String| failures.push(format!("{architecture} {}: {what}", case.name));
            let Some(bad) = case.first_for(&architecture) else {
                let verdict = entry.verdict(&with(case, case.first));
                if verdict != Verdict::Safe {
                    fail(format!("{verdict:?}"));
                }
                continue;
            };
            let before = entry.verdict(&with(case, bad - 1));
            if before != Verdict::Safe {
                fail(format!("before {bad}: {before:?}"));
            }
            match entry.verdict(&with(case, bad)) {
                Verdict::Wraps(wraps) => {
                    let first = wraps.iter().flat_map(|wrap| &wrap.first);
                    let first: Vec<_> = first
                        .filter(|first| first.size == case.varied)
                        .map(|First { value, .. }| *value)
                        .collect();
                    if first.iter().min().copied() != u64::try_from(bad).ok() {
                        fail(format!("first {first:?}, not {bad}"));
                    }
                    if !wraps.iter().all(|wrap| wrap.at.line > 0 && !wrap.formula.is_empty()) {
                        fail(format!("{wraps:?}"));
                    }
                }
                other => fail(format!("at {bad}: {other:?}")),
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn no_mended_kernel_is_reported_in_any_launch() {
    let mut failures = Vec::new();
    for (architecture, mut entries) in entries() {
        for case in cases() {
            let entry = entries.get_mut(&format!("{}_mended", case.name)).expect("the kernel");
            for sizes in
                [Sizes::default(), with(&case, case.first), with(&case, case.first * 3 / 2)]
            {
                let verdict = entry.verdict(&sizes);
                if verdict != Verdict::Safe {
                    failures.push(format!("{architecture} {}: {verdict:?}", case.name));
                }
            }
        }
    }
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

#[test]
fn an_index_from_memory_is_unknown_with_that_reason() {
    let text = ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 out, .param .u64 rows, .param .u32 d)\n{\n\
        ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [rows]; ld.param.u32 %r1, [d];\nmov.u32 %r2, %ctaid.x;\n\
        mul.wide.u32 %rd3, %r2, 4; add.s64 %rd4, %rd2, %rd3; ld.global.u32 %r3, [%rd4];\n\
        mul.lo.s32 %r4, %r3, %r1; mul.wide.s32 %rd5, %r4, 4; add.s64 %rd6, %rd1, %rd5; st.global.u32 [%rd6], %r2;\nret;\n}\n";
    let mut entries = index(text.as_bytes()).expect("PTX");
    assert_eq!(entries[0].verdict(&Sizes::default()), Verdict::Unknown(IndexReason::Loaded));
}
