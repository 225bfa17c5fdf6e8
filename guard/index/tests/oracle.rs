//! Verdicts beside an interpreter: the first bad size is the first whose launch accesses other memory with wraps than
//! without.

use std::fmt::Write;

use crate::cases::{Case, cases, texts};
use crate::interpreter::{Kernel, Thread, kernels};
use crate::launches::launch;
use gridguard_index::{Size, Sizes, Verdict, index};
use proptest::prelude::{Just, ProptestConfig, Strategy, any, prop, prop_oneof, proptest};
use proptest::{prop_assert, prop_assert_eq};

/// A thread whose accesses differ if 32-bit values do not wrap.
fn differing(kernel: &Kernel, launch: &Thread) -> Option<Thread> {
    crate::launches::differing(kernel, launch, STEPS, false)
}

fn with(case: &Case, value: i64) -> Vec<(Size, i64)> {
    case.sizes.iter().copied().chain([(case.varied, value)]).collect()
}

/// Whether a value of more than 32 bits fits.
fn is_wide(kernel: &Kernel, size: Size) -> bool {
    matches!(size, Size::Parameter { index, .. } if kernel.parameters[index] == 8)
}

#[test]
fn the_first_bad_size_of_the_corpus_is_the_first_that_accesses_other_memory() {
    let mut failures = Vec::new();
    let mut ran = 0;
    for (architecture, text) in texts() {
        for (name, kernel) in kernels(&text) {
            let (name, is_faulty) = match name.strip_suffix("_faulty") {
                Some(name) => (name, true),
                None => (name.strip_suffix("_mended").expect("a pair"), false),
            };
            let case = cases().into_iter().find(|case| case.name == name).expect("a case");
            let bad = case.first_for(&architecture);
            let differs = |value: i64| differing(&kernel, &launch(&kernel, &with(&case, value)));
            ran += 1;
            match bad.filter(|_| is_faulty) {
                Some(bad) => {
                    if let Some(thread) = differs(bad - 1) {
                        failures.push(format!("{architecture} {name}: below {bad}: {thread:?}"));
                    }
                    if differs(bad).is_none() {
                        failures.push(format!("{architecture} {name}: nothing differs at {bad}"));
                    }
                }
                None => {
                    let fits = |value: &i64| {
                        is_wide(&kernel, case.varied) || *value <= i64::from(u32::MAX)
                    };
                    for value in [case.first, case.first / 2 * 3].into_iter().filter(fits) {
                        if let Some(thread) = differs(value) {
                            failures.push(format!("{architecture} {name} mended: {thread:?}"));
                        }
                    }
                }
            }
        }
    }
    assert!(ran >= 240, "{ran} kernels ran");
    assert!(failures.is_empty(), "{} failures:\n{}", failures.len(), failures.join("\n"));
}

/// An instruction that takes two of the values before it, or one and a constant.
#[derive(Clone, Debug)]
enum Step {
    Two(&'static str, usize, usize),
    Constant(&'static str, usize, u32),
}

/// A kernel of instructions over block index, thread index, block size and a parameter.
fn text(steps: &[Step], is_signed: bool) -> String {
    let mut text = ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 out, .param .u32 n)\n{\n\
        ld.param.u64 %rd1, [out];\nmov.u32 %r0, %ctaid.x;\nmov.u32 %r1, %tid.x;\nmov.u32 %r2, %ntid.x;\n\
        ld.param.s32 %r3, [n];\n"
        .to_owned();
    for (at, step) in steps.iter().enumerate() {
        let new = at + 4;
        let known = |of: usize| format!("%r{}", of % new);
        let line = match step {
            Step::Two(name, a, b) => format!("{name} %r{new}, {}, {};", known(*a), known(*b)),
            Step::Constant(name, a, value) => format!("{name} %r{new}, {}, {value};", known(*a)),
        };
        writeln!(text, "{line}").expect("a string");
    }
    let sign = if is_signed { 's' } else { 'u' };
    writeln!(
        text,
        "mul.wide.{sign}32 %rd2, %r{}, 4;\nadd.s64 %rd3, %rd1, %rd2;\nst.global.u32 [%rd3], %r1;\nret;\n}}",
        steps.len() + 3
    )
    .expect("a string");
    text
}

/// Instructions whose result is largest where their operands are.
fn growing() -> impl Strategy<Value = Step> {
    let name = prop_oneof![Just("add.s32"), Just("mul.lo.s32")];
    prop_oneof![
        (name, any::<usize>(), any::<usize>()).prop_map(|(name, a, b)| Step::Two(name, a, b)),
        (any::<usize>(), 1_u32..14).prop_map(|(a, by)| Step::Constant("shl.b32", a, by)),
        (any::<usize>(), 1_u32..9000).prop_map(|(a, by)| Step::Constant("add.s32", a, by)),
        (any::<usize>(), 1_u32..500).prop_map(|(a, by)| Step::Constant("mul.lo.s32", a, 2 * by)),
    ]
}

/// Grid, block and parameter of any magnitude.
fn sizes() -> impl Strategy<Value = [(Size, i64); 3]> {
    let of = |bits: u32| (0..bits).prop_flat_map(|bits| (1_i64 << bits)..(2_i64 << bits));
    let n = Size::Parameter { index: 1, offset: 0 };
    (of(30), of(9), of(30)).prop_map(move |(grid, block, value)| {
        [(Size::Grid(0), grid), (Size::Block(0), block), (n, value)]
    })
}

fn verdict(text: &str, sizes: &[(Size, i64)]) -> Verdict {
    let mut known = Sizes::default();
    sizes.iter().for_each(|(size, value)| known.set(*size, *value));
    index(text.as_bytes()).expect("PTX").remove(0).verdict(&known)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_growing_index_wraps_from_its_first_bad_size_on(
        steps in prop::collection::vec(growing(), 1..8),
        is_signed in any::<bool>(),
        sizes in sizes(),
    ) {
        let text = text(&steps, is_signed);
        let kernel = &kernels(&text)["k"];
        let differs = |sizes: &[(Size, i64)]| differing(kernel, &launch(kernel, sizes)).is_some();
        let verdict = verdict(&text, &sizes);
        prop_assert_eq!(verdict != Verdict::Safe, differs(&sizes), "{}\n{:?}", text, verdict);
        let Verdict::Wraps(wraps) = verdict else { return Ok(()) };
        let first = wraps.iter().flat_map(|wrap| &wrap.first);
        if let Some(first) = first.filter(|first| first.size == Size::Grid(0)).map(|it| it.value).min() {
            let at = |value: u64| [(Size::Grid(0), i64::try_from(value).expect("small")), sizes[1], sizes[2]];
            prop_assert!(differs(&at(first)) && !differs(&at(first - 1)), "{text}\nfirst {first}");
        }
    }
}

const CASES: u32 = 300;
/// Enough for the loops of the corpus.
const STEPS: usize = 40_000;
