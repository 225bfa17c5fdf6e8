//! The kernels of `guard/index/corpus`: each faulty one is found with its first bad size, no mended one is reported.

use std::collections::HashMap;

use crate::cases::{Case, cases, texts};
use crate::reason;
use gridguard_index::{
    EntryIndex, EntryPlaces, First, MOST_LIMITS, Reason, Size, SizeLimit, SizeTerm, Sizes, Verdict,
    index,
};

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
fn an_entry_that_is_read_alone_has_the_same_indices() {
    let sizes = Sizes::default();
    for (architecture, text) in texts() {
        let text = text.as_bytes();
        let places = EntryPlaces::read(text).expect("PTX");
        for mut whole in index(text).expect("PTX") {
            let name = whole.name.clone();
            let mut alone = places.index(text, &name).expect("PTX").expect("the entry");
            assert_eq!(alone.parameters, whole.parameters, "{architecture} {name}");
            assert_eq!(alone.limits(&sizes), whole.limits(&sizes), "{architecture} {name}");
            assert_eq!(alone.verdict(&sizes), whole.verdict(&sizes), "{architecture} {name}");
            assert_eq!(alone.at.line, whole.at.line, "{architecture} {name}");
            // In another text there may be anything.
            let _ = places.index(&text[1..], &name);
            assert!(places.index(&text[..99], &name).expect("no text").is_none());
        }
        assert!(places.index(text, "none").expect("PTX").is_none());
    }
    assert!(EntryPlaces::read(b"garbage").is_err());
}

#[test]
fn an_index_from_memory_is_unknown_with_that_reason() {
    let text = ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 out, .param .u64 rows, .param .u32 d)\n{\n\
        ld.param.u64 %rd1, [out]; ld.param.u64 %rd2, [rows]; ld.param.u32 %r1, [d];\nmov.u32 %r2, %ctaid.x;\n\
        mul.wide.u32 %rd3, %r2, 4; add.s64 %rd4, %rd2, %rd3; ld.global.u32 %r3, [%rd4];\n\
        mul.lo.s32 %r4, %r3, %r1; mul.wide.s32 %rd5, %r4, 4; add.s64 %rd6, %rd1, %rd5; st.global.u32 [%rd6], %r2;\nret;\n}\n";
    let mut entries = index(text.as_bytes()).expect("PTX");
    assert_eq!(reason(&entries[0].verdict(&Sizes::default())), Some(Reason::Loaded));
}

/// The sum of a limit.
fn value(limit: &SizeLimit, grid: [i128; 3], block: [i128; 3]) -> i128 {
    let of_term = |term: &SizeTerm| {
        let sizes = grid.iter().zip(term.grid).chain(block.iter().zip(term.block));
        sizes.fold(i128::from(term.factor), |product, (size, exponent)| {
            product * size.pow(exponent.into())
        })
    };
    limit.terms.iter().map(of_term).sum()
}

#[test]
fn a_launch_beyond_a_limit_wraps_whatever_the_parameters_are() {
    let (mut limited, mut tried) = (0, 0);
    for (architecture, mut entries) in entries() {
        for (name, entry) in &mut entries {
            let limits = entry.limits(&Sizes::default());
            assert!(limits.len() <= MOST_LIMITS);
            if name.ends_with("_mended") {
                // Only an extended launch has more blocks along y or z.
                let largest = |limit| value(limit, [3, 65_535, 65_535], [1024, 1, 1]);
                assert!(
                    limits.iter().all(|one| largest(one) <= one.most.into()),
                    "{architecture} {name} {limits:?}"
                );
            }
            limited += usize::from(!limits.is_empty());
            for limit in limits {
                for threads in [32, 1000] {
                    for axis in 0..3 {
                        let block = [threads, 1, 1];
                        let grid = |blocks| {
                            core::array::from_fn(|one| if one == axis { blocks } else { 3 })
                        };
                        let most = if axis == 0 { (1 << 31) - 1 } else { 65_535 };
                        let exceeds =
                            |blocks: i128| value(&limit, grid(blocks), block) > limit.most.into();
                        if !exceeds(most) {
                            continue;
                        }
                        let (mut fits, mut wraps) = (0, most);
                        while fits + 1 < wraps {
                            let middle = fits + (wraps - fits) / 2;
                            if exceeds(middle) { wraps = middle } else { fits = middle }
                        }
                        for parameter in [0, 77, i64::from(i32::MAX)] {
                            let mut sizes = Sizes::default();
                            for (one, (blocks, threads)) in
                                grid(wraps).iter().zip(block).enumerate()
                            {
                                let narrow = |size: i128| i64::try_from(size).expect("small");
                                sizes.set(Size::Grid(one), narrow(*blocks));
                                sizes.set(Size::Block(one), narrow(threads));
                            }
                            for index in 0..entry.parameters.len() {
                                sizes.set(Size::Parameter { index, offset: 0 }, parameter);
                            }
                            let verdict = entry.verdict(&sizes);
                            let is_wrap = matches!(verdict, Verdict::Wraps(_));
                            assert!(
                                is_wrap,
                                "{architecture} {name} {limit:?} {sizes:?}: {verdict:?}"
                            );
                            tried += 1;
                        }
                    }
                }
            }
        }
    }
    assert!(limited >= 30 && tried >= 300, "{limited} entries, {tried} launches");
}

#[test]
fn with_its_parameters_a_limit_begins_at_the_first_size_that_was_worked_out_by_hand() {
    let (mut exact, mut tried, cases) = (0, 0, cases());
    for (architecture, mut entries) in entries() {
        for case in &cases {
            let entry = entries.get_mut(&format!("{}_faulty", case.name)).expect("the kernel");
            let (Size::Grid(axis), Some(first)) = (case.varied, case.first_for(&architecture))
            else {
                continue;
            };
            let limits = entry.limits(&with(case, first));
            tried += 1;
            let exceeds = |blocks: i64| {
                let known = |size| case.sizes.iter().find(|(one, _)| *one == size);
                let of = |size| i128::from(known(size).map_or(1, |(_, value)| *value));
                let mut grid = core::array::from_fn(|axis| of(Size::Grid(axis)));
                grid[axis] = blocks.into();
                let block = core::array::from_fn(|axis| of(Size::Block(axis)));
                limits.iter().any(|limit| value(limit, grid, block) > limit.most.into())
            };
            assert!(!exceeds(first - 1), "{architecture} {}: {limits:?}", case.name);
            exact += usize::from(exceeds(first));
        }
    }
    // The others depend on a loop, a quotient of the block size, or an index that is limited by a parameter.
    assert!(exact >= 60, "{exact} of {tried}");
}

#[test]
fn an_entry_tells_the_sizes_on_which_its_indices_depend() {
    let text = ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 out, .param .u64 unused, .param .u32 n, .param .u32 pitch)\n{\n\
        ld.param.u64 %rd1, [out]; ld.param.u64 %rd9, [unused]; ld.param.u32 %r1, [n]; ld.param.u32 %r9, [pitch];\n\
        mov.u32 %r2, %ctaid.y; mov.u32 %r3, %tid.x;\nsetp.ge.s32 %p1, %r2, %r1; @%p1 bra $end;\n\
        mad.lo.s32 %r4, %r2, %r9, %r3; mul.wide.s32 %rd5, %r4, 4; add.s64 %rd6, %rd1, %rd5; st.global.u64 [%rd6], %rd9;\n$end: ret;\n}\n";
    let entries = index(text.as_bytes()).expect("PTX");
    let parameter = |index| Size::Parameter { index, offset: 0 };
    let sizes: Vec<Size> = entries[0].sizes().into_iter().map(|(size, _)| size).collect();
    assert_eq!(sizes, [Size::Grid(1), Size::Block(0), parameter(2), parameter(3)]);
    assert!(entries[0].sizes().iter().all(|(_, bytes)| *bytes == 4));
}
