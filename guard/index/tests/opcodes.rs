//! A kernel for each integer instruction of PTX and each way to an address, and random ones of them all: no launch that
//! runs wrong is called safe, and none that runs right is reported.

use std::collections::hash_map::RandomState;
use std::env;
use std::fmt::Write;
use std::hash::{BuildHasher, Hasher};
use std::sync::LazyLock;

use crate::interpreter::kernels;
use crate::launches::{any, differing, launch};
use gridguard_index::{Size, Sizes, Verdict, index};
use proptest::prelude::{ProptestConfig, prop, proptest};
use proptest::prop_assert;
use proptest::test_runner::RngSeed;

/// Instructions that compute `%r` from `%a`, which wraps in large launches, `%b`, which is up to 1023, and `%n`.
#[rustfmt::skip]
const OPCODES: &[&str] = &[
    "add.s32 %r, %a, %b", "sub.s32 %r, %a, %b", "mul.lo.s32 %r, %x, %b", "mul.hi.u32 %r, %a, %n",
    "mad.lo.s32 %r, %a, 3, %b", "mad.hi.s32 %r, %a, %n, %b", "mul24.lo.u32 %r, %x, 5000", "mul24.hi.u32 %r, %a, %b",
    "mad24.lo.s32 %r, %x, 5000, %b", "sad.u32 %r, %a, %b, %n", "sad.s32 %r, %b, %x, %a", "div.u32 %r, %a, 3",
    "or.b32 %c, %a, 1; div.s32 %r, %n, %c", "rem.u32 %r, %a, 1000", "rem.s32 %r, %a, %n", "abs.s32 %r, %a",
    "neg.s32 %r, %a", "min.s32 %r, %a, %n", "max.u32 %r, %a, %b", "max.s32 %r, %a, %b", "popc.b32 %r, %a", "clz.b32 %r, %a",
    "bfind.u32 %r, %a", "bfind.shiftamt.s32 %r, %a", "fns.b32 %r, %a, 0, 1", "brev.b32 %r, %a",
    "bfe.u32 %r, %a, 3, 20", "bfe.s32 %r, %a, 3, 20", "bfi.b32 %r, %x, %b, 16, 16", "bfi.b32 %r, %b, %a, 0, 10",
    "bmsk.clamp.b32 %r, %b, %a", "szext.wrap.s32 %r, %a, 20", "dp4a.u32.u32 %r, %a, %b, %n",
    "dp2a.lo.s32.u32 %r, %b, %n, %a", "add.cc.u32 %r, %a, %b", "add.cc.u32 %c, %b, %n; addc.u32 %r, %a, 0",
    "sub.cc.u32 %r, %a, %b", "sub.cc.u32 %c, %b, %n; subc.u32 %r, %a, 0", "mad.lo.cc.u32 %r, %a, 3, %b",
    "mad.lo.cc.u32 %c, %b, 3, %n; madc.hi.u32 %r, %a, 3, %b", "and.b32 %r, %a, %n", "or.b32 %r, %a, %b",
    "xor.b32 %r, %a, %b", "not.b32 %c, %a; not.b32 %r, %c", "cnot.b32 %c, %a; add.s32 %r, %c, %b",
    "lop3.b32 %r, %a, %b, %n, 0x96", "lop3.or.b32 %r|%q, %a, %b, %n, 0xfe, 0", "shf.l.wrap.b32 %r, %b, %x, 20",
    "shf.r.clamp.b32 %r, %a, %b, 4", "shf.l.clamp.b32 %r, 0, %a, %b", "shl.b32 %r, %b, %x", "shl.b32 %r, %x, %b",
    "shr.u32 %r, %a, %b", "shr.s32 %r, %a, 2", "prmt.b32 %r, %x, %b, 0x1044", "prmt.b32.f4e %r, %a, %b, %n",
    "set.lt.u32.u32 %c, %a, %n; and.b32 %r, %c, 64", "slct.s32.s32 %r, %a, %b, %n", "slct.u32.s32 %r, %b, %n, %a",
    "setp.lt.s32 %q, %a, %n; selp.b32 %r, %a, %b, %q", "setp.eq.s32 %q, %a, 0; selp.b32 %r, 7, %b, %q",
    "setp.gt.u32 %q|%w, %a, %n; selp.b32 %r, 7, %b, %w", "setp.lt.and.s32 %q, %a, %n, %t; selp.b32 %r, 9, %b, %q",
    "cvt.u16.u32 %h, %a; cvt.u32.u16 %r, %h", "cvt.u16.u32 %h, %x; mul.wide.u16 %r, %h, 60000",
    "cvt.u16.u32 %h, %b; mul.lo.u16 %h, %h, 300; cvt.u32.u16 %r, %h",
    "cvt.s16.s32 %h, %b; mad.wide.s16 %r, %h, 30000, %a",
    "cvt.u16.u32 %h, %b; add.u16 %g, %h, 65000; cvt.u32.u16 %r, %g", "cvt.u8.u32 %h, %x; cvt.u32.u8 %r, %h",
    "cvt.rn.f32.s32 %f, %a; add.f32 %f, %f, %f; cvt.rzi.s32.f32 %r, %f", "cvt.sat.s32.u32 %r, %a",
    "cvt.s64.s32 %d, %a; shr.s64 %d, %d, 2; cvt.u32.u64 %r, %d",
    "mul.wide.u32 %d, %a, 5; shr.u64 %d, %d, 4; cvt.u32.u64 %r, %d", "mov.b64 %d, {%a, %b}; mov.b64 {%r, %c}, %d",
    "mov.b64 %d, {%b, %a}; shr.u64 %d, %d, 32; cvt.u32.u64 %r, %d", "mov.b32 {%h, %g}, %a; cvt.u32.u16 %r, %h",
    "mov.b32 %r, {%h, %g}", "shfl.sync.idx.b32 %r, %a, 0, 31, -1", "shfl.sync.bfly.b32 %r|%q, %a, 1, 31, -1",
    "redux.sync.add.u32 %r, %a, -1", "redux.sync.max.u32 %r, %a, -1", "match.any.sync.b32 %r, %a, -1",
    "vote.sync.ballot.b32 %r, %t, -1", "popc.b32 %c, %n; mad.lo.s32 %r, %c, %x, %b",
    "st.local.u32 [%l], %a; ld.local.u32 %r, [%l]", "st.shared.u32 [buf], %a; ld.shared.u32 %r, [buf]",
    "st.global.u32 [%p], %a; ld.global.u32 %r, [%p]", "st.u32 [%p], %a; ld.u32 %r, [%p]",
    "st.shared.v2.u32 [buf], {%b, %a}; ld.shared.v2.u32 {%c, %r}, [buf]",
    "atom.global.exch.b32 %c, [%p], %a; ld.global.u32 %r, [%p]",
    "red.global.add.u32 [%p], %a; ld.global.u32 %r, [%p]", "st.shared.u16 [buf], %a; ld.shared.u16 %r, [buf]",
    "vadd2.u32.u32.u32 %r, %a, %b, %n", "vshl.u32.u32.u32.clamp %r, %x, %b", "vmad.u32.u32.u32 %r, %x, %x, %b",
    "vabsdiff4.u32.u32.u32 %r, %a, %b, %n", "mulwide2.next.u32 %r, %a, %b", "newop %r, %a",
    "newop.x2.u32 {%c, %r}, %a, %b", "mov.u32 %r, %next_index", "add.sat.s32 %r, %a, %b",
    "@%t mov.u32 %b, %a; add.s32 %r, %b, 1",
    "mov.u32 %c, 0; mov.u32 %e, %a; L1: add.s32 %m, %c, %e; shr.u32 %m, %m, 1; setp.lt.u32 %q, %m, %n; selp.b32 %e, %m, %e, %q; add.s32 %c, %c, 1; setp.lt.u32 %w, %c, 4; @%w bra L1; mov.u32 %r, %m",
    "call.uni (%r), f, (%a)", "cvt.u64.u32 %d, %a; shl.b64 %d, %d, 2; and.b64 %d, %d, 4294967292; cvt.u32.u64 %r, %d",
    "sub.s32 %c, %b, %n; cvt.s64.s32 %d, %c; shr.u64 %d, %d, 4; cvt.u32.u64 %r, %d",
    "sub.s32 %c, %b, %n; cvt.s64.s32 %d, %c; div.u64 %d, %d, 3; cvt.u32.u64 %r, %d",
    "sub.s32 %c, %b, %n; cvt.s64.s32 %d, %c; div.s64 %d, %d, 3; cvt.u32.u64 %r, %d",
    "sub.s32 %c, %b, %n; cvt.s64.s32 %d, %c; rem.s64 %d, %d, 70; cvt.u32.u64 %r, %d",
    "sub.s32 %c, %b, %n; cvt.s64.s32 %d, %c; rem.u64 %d, %d, 70; cvt.u32.u64 %r, %d",
    "sub.s32 %c, %b, %n; cvt.s64.s32 %d, %c; max.u64 %d, %d, 3; shr.u64 %d, %d, 40; cvt.u32.u64 %r, %d",
    "mul.lo.s32 %c, %b, 1000; sub.s32 %c, %c, 700000; and.b32 %e, %x, 65535; mul.lo.s32 %r, %c, %e",
    "and.b32 %c, %a, 1023; mov.u32 %e, 0; mov.u32 %m, %b; L1: add.s32 %m, %m, %c; add.s32 %e, %e, 1; setp.lt.u32 %q, %e, 6; @%q bra L1; mov.u32 %r, %m",
    "mov.u32 %e, 0; mov.u32 %m, %a; L1: shr.u32 %m, %m, 1; add.s32 %e, %e, 1; setp.lt.u32 %q, %e, 4; @%q bra L1; mov.u32 %r, %m",
];

/// Ways from `%r` to the address.
#[rustfmt::skip]
const PATHS: &[&str] = &[
    "mul.wide.s32 %o, %r, 4", "mul.wide.u32 %o, %r, 4", "mad.wide.s32 %o, %r, 8, 16",
    "cvt.u64.u32 %o, %r; shl.b64 %o, %o, 2", "cvt.s64.s32 %o, %r; mad.lo.s64 %o, %o, 12, 4",
    "shl.b32 %r, %r, 2; cvt.s64.s32 %o, %r", "mov.b64 %o, {%r, 0}",
    "setp.ge.s32 %v, %r, %n; @%v bra END; mul.wide.u32 %o, %b, 4",
    "setp.eq.u32 %v, %r, 5; @%v bra END; mul.wide.u32 %o, %b, 4",
    "setp.ge.u32 %v, %r, %n; mul.wide.u32 %o, %b, 4; @%v st.global.u32 [%p+8], %b",
    "mov.u32 %i, 0; LOOP: setp.ge.s32 %v, %i, %r; @%v bra END; mul.wide.u32 %o, %i, 4; add.s64 %y, %p, %o; ld.global.u32 %j, [%y]; add.s32 %i, %i, 1; setp.lt.s32 %v, %i, 3; @%v bra LOOP",
    "and.b32 %r, %r, 4092; cvt.u64.u32 %o, %r",
    "setp.ge.s32 %v, %r, %n; @%v bra END; shl.b32 %s, %x, 20; mul.wide.s32 %o, %s, 4",
    "shr.u32 %s, %r, 3; mul.wide.u32 %o, %s, 4", "rem.u32 %s, %r, 77; mul.wide.u32 %o, %s, 4",
    "mul.lo.s32 %s, %r, %n; mul.wide.s32 %o, %s, 4",
    "st.shared.u32 [buf], %r; ld.shared.u32 %s, [buf]; mul.wide.s32 %o, %s, 4",
    "not.b32 %s, %r; cvt.u64.u32 %o, %s; add.s64 %o, %o, 4097; shl.b64 %o, %o, 3; and.b64 %o, %o, 34359738360",
    "mov.pred %v, 0; setp.lt.or.s32 %v, %r, %n, %v; @!%v bra END; mul.wide.s32 %o, %r, 4",
];

/// Values of `%a`.
const INPUTS: &[&str] = &[
    "shl.b32 %a, %x, 20",
    "shl.b32 %a, %y0, 15",
    "mad.lo.s32 %a, %x, 77, %b",
    "add.s32 %a, %x, %b",
    "mul.lo.s32 %a, %x, %n",
];

fn text(input: &str, opcodes: &[&str], path: &str) -> String {
    let mut text = ".version 8.0\n.target sm_90\n.visible .entry k(.param .u64 p, .param .u32 n)\n{\n\
        ld.param.u64 %p, [p];\nld.param.u32 %n, [n];\nmov.u32 %x, %ctaid.x;\nmov.u32 %y0, %ctaid.y;\nmov.u32 %b, %tid.x;\n\
        mov.u64 %l, 0;\nsetp.ne.s32 %t, %b, 0;\n"
        .to_owned();
    writeln!(text, "{input};").expect("a string");
    for (at, opcode) in opcodes.iter().enumerate() {
        let opcode = opcode.replace("L1", &format!("L1_{at}"));
        writeln!(text, "{}{opcode};", if at > 0 { "mov.u32 %a, %r;\n" } else { "" })
            .expect("a string");
    }
    writeln!(text, "{path};\nadd.s64 %z, %p, %o;\nst.global.u32 [%z], %b;\nEND: ret;\n}}")
        .expect("a string");
    text.replace("; ", ";\n")
}

/// What a launch does beside the verdict on it, if it contradicts the verdict. Counts safe, wrapping and unknown ones.
fn contradiction(text: &str, [x, y, n]: [i64; 3], counts: &mut [usize; 3]) -> Option<String> {
    let mut entry = index(text.as_bytes()).expect("PTX").remove(0);
    let sizes = [
        (Size::Grid(0), x),
        (Size::Grid(1), y),
        (Size::Grid(2), 1),
        (Size::Block(0), 1024),
        (Size::Block(1), 1),
        (Size::Block(2), 1),
        (Size::Parameter { index: 1, offset: 0 }, n),
    ];
    let mut known = Sizes::default();
    sizes.iter().for_each(|(size, value)| known.set(*size, *value));
    let kernel = &kernels(text)["k"];
    let thread = || differing(kernel, &launch(kernel, &sizes), 4000, true);
    let (place, found) = match entry.verdict(&known) {
        Verdict::Safe => (0, thread().map(|thread| format!("safe, but {thread:?} runs wrong"))),
        Verdict::Wraps(wraps) => (
            1,
            thread()
                .or_else(|| any(kernel, &launch(kernel, &sizes)))
                .is_none()
                .then(|| format!("{wraps:?}, but {x},{y} n={n} runs right")),
        ),
        Verdict::Unknown(_) => (2, None),
    };
    counts[place] += 1;
    found.map(|found| format!("{text}\n{found}"))
}

#[test]
fn every_opcode_on_every_path_is_right_or_unknown() {
    let (mut failures, mut counts, mut turn) = (Vec::new(), [0; 3], 0);
    for opcode in OPCODES {
        for path in PATHS {
            for _ in 0..3 {
                turn += 1;
                let [x, y] = LAUNCHES[turn % LAUNCHES.len()];
                let text = text(INPUTS[turn % INPUTS.len()], &[opcode], path);
                failures.extend(contradiction(
                    &text,
                    [x, y, [100, 100_000][turn / 7 % 2]],
                    &mut counts,
                ));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {counts:?}:\n{}", failures.len(), failures.join("\n"));
    // Otherwise the verdicts would say nothing.
    assert!(counts[0] > 1_000 && counts[1] > 100, "{counts:?}");
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 2000,
        failure_persistence: None,
        rng_seed: RngSeed::Fixed(*SEED),
        ..ProptestConfig::default()
    })]

    #[test]
    fn random_kernels_are_judged_right_or_unknown(
        input in prop::sample::select(INPUTS),
        opcodes in prop::collection::vec(prop::sample::select(OPCODES), 1..6),
        path in prop::sample::select(PATHS),
        [x, y] in prop::sample::select(LAUNCHES),
        n in prop::sample::select(&[100, 100_000][..]),
    ) {
        let text = text(input, &opcodes, path);
        let found = contradiction(&text, [x, y, n], &mut [0; 3]);
        prop_assert!(found.is_none(), "GRIDGUARD_SEED={}\n{}", *SEED, found.unwrap_or_default());
    }
}

/// Other kernels each time, unless `GRIDGUARD_SEED` is set to what a failure printed.
static SEED: LazyLock<u64> = LazyLock::new(|| {
    let given = env::var("GRIDGUARD_SEED").ok();
    given.map_or_else(
        || RandomState::new().build_hasher().finish(),
        |seed| seed.parse().expect("GRIDGUARD_SEED is a number"),
    )
});

/// Blocks along x and y.
const LAUNCHES: &[[i64; 2]] =
    &[[1, 1], [100, 100], [2048, 1], [2049, 1], [5000, 65_537], [70_000, 70_000], [3_000_000, 9]];
