//! Hostile texts: the analysis ends, never panics, and is right or unknown.

use std::fmt::Write;

use crate::reason;
use gridguard_index::{Reason, Size, Sizes, Verdict, index};
use proptest::prelude::{ProptestConfig, any, prop, proptest};

/// The PTX of a source of `guard/index/corpus`.
fn ptx(source: &str) -> String {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/corpus/sm_90");
    std::fs::read_to_string(format!("{folder}/{source}.ptx")).expect("PTX")
}

/// The verdict of an entry with this body, whose address is `%rd9`.
fn verdict(body: &str) -> Verdict {
    index(text(body).as_bytes()).expect("PTX").remove(0).verdict(&Sizes::default())
}

fn text(body: &str) -> String {
    format!(
        ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 out, .param .u32 n)\n{{\n\
         ld.param.u64 %rd1, [out];\nld.param.u32 %n, [n];\nmov.u32 %x, %ctaid.x;\n{body}\n\
         add.s64 %rd9, %rd1, %rd2;\nst.global.u32 [%rd9], %x;\nret;\n}}\n"
    )
}

#[test]
fn ten_thousand_nested_selects_are_known_or_too_complex() {
    let mut body = "mov.u32 %r0, %x;\n".to_owned();
    for at in 0..10_000 {
        writeln!(
            body,
            "setp.lt.u32 %p{at}, %x, {at};\nselp.b32 %r{}, %r{at}, {at}, %p{at};",
            at + 1
        )
        .expect("a string");
    }
    body += "shl.b32 %y, %r10000, 16;\nmul.wide.s32 %rd2, %y, 4;";
    assert_ne!(verdict(&body), Verdict::Safe);
}

#[test]
fn a_number_of_any_width_has_any_number_of_parts() {
    for kind in ["b8", "s16", "b32", "s64", "u128"] {
        for count in [2, 17, 200] {
            let parts = vec!["%i"; count].join(",");
            let body = format!(
                "sub.s32 %i, %x, %n;\nmov.{kind} %q, {{{parts}}};\nxor.{kind} %v, %i, %q;\n\
                 st.{kind} [%rd1], %i;\ndiv.{kind} %w, %i, 3;\nadd.{kind} %o, %v, %w;\n\
                 cvt.u64.{kind} %rd2, %o;"
            );
            // ptxas rejects arithmetic of 128 bits.
            let is_safe = verdict(&body) == Verdict::Safe && kind != "u128";
            assert!(!is_safe, "{kind} {count}");
        }
    }
}

#[test]
fn a_verdict_and_limits_end_when_no_work_is_left() {
    let sizes = Sizes::default();
    for source in ["checks", "flat", "loops", "strides"] {
        for mut entry in index(ptx(source).as_bytes()).expect("PTX") {
            let mut left = 1_000_000;
            let verdict = entry.verdict_within(&sizes, &mut left);
            let done = 1_000_000 - left;
            assert_eq!(verdict, entry.verdict(&sizes), "{}", entry.name);
            // Each part of the work ends within some thousand products.
            for most in [0, 1, done / 2, done] {
                let mut left = most;
                let less = entry.verdict_within(&sizes, &mut left);
                assert!(left == 0 || less == verdict, "{} {most}", entry.name);
                if most == 0 && done > 0 {
                    assert_eq!(reason(&less), Some(Reason::TooComplex));
                    assert_eq!(entry.limits_within(&sizes, &mut left), []);
                }
            }
        }
    }
}

#[test]
fn a_kernel_of_many_indices_takes_no_more_work_than_it_has() {
    let mut body = "mov.u64 %rd2, 0;\n".to_owned();
    for at in 0..3_000 {
        writeln!(body, "mad.lo.s32 %a{at}, %x, %n, {at};\nmul.wide.s32 %rd3, %a{at}, 4;")
            .expect("a string");
        writeln!(body, "add.s64 %rd4, %rd1, %rd3;\nst.global.u32 [%rd4], %x;").expect("a string");
    }
    let text = format!(
        ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 out, .param .u32 n)\n{{\n\
         ld.param.u64 %rd1, [out];\nld.param.u32 %n, [n];\nmov.u32 %x, %ctaid.x;\n{body}\nret;\n}}\n"
    );
    let mut entry = index(text.as_bytes()).expect("PTX").remove(0);
    let mut sizes = Sizes::default();
    let mut left = 100_000;
    for launch in 1..100 {
        sizes.set(Size::Grid(0), launch);
        sizes.set(Size::Parameter { index: 1, offset: 0 }, launch);
        let verdict = entry.verdict_within(&sizes, &mut left);
        if left == 0 {
            assert_eq!(reason(&verdict), Some(Reason::TooComplex));
            return;
        }
        assert_eq!(verdict, Verdict::Safe);
    }
    panic!("{left} are left");
}

#[test]
fn a_loop_with_two_entrances_is_unknown() {
    let body = "setp.lt.u32 %p1, %x, 7;\n@%p1 bra B;\nA: add.s32 %i, %x, 1;\nB: add.s32 %i, %x, 2;\n\
                setp.lt.u32 %p2, %i, %n;\n@%p2 bra A;\nmul.wide.s32 %rd2, %i, 4;";
    assert_eq!(reason(&verdict(body)), Some(Reason::ControlFlow));
    let body = "brx.idx %x, nowhere;\nmul.wide.s32 %rd2, %x, 4;";
    assert_eq!(reason(&verdict(body)), Some(Reason::ControlFlow));
}

#[test]
fn a_loop_without_a_known_end_is_not_safe() {
    let body = "mov.u32 %i, %x;\nA: add.s32 %i, %i, 4096;\nld.global.u32 %v, [%rd1];\n\
                setp.ne.s32 %p, %v, 0;\n@%p bra A;\nmul.wide.s32 %rd2, %i, 4;";
    assert_ne!(verdict(body), Verdict::Safe);
}

#[test]
fn a_hash_that_is_reduced_is_no_index_that_wraps() {
    for reduced in [
        "and.b32 %h, %m, 1023;",
        "shl.b32 %g, %m, 2; and.b32 %h, %g, 4092;",
        "rem.u32 %h, %m, 1000;",
        "shr.u32 %h, %m, 22;",
    ] {
        let body = format!("mul.lo.s32 %m, %x, -1640531535;\n{reduced}\nmul.wide.u32 %rd2, %h, 4;");
        assert_eq!(verdict(&body), Verdict::Safe, "{reduced}");
    }
}

#[test]
fn a_stride_along_y_wraps_beyond_the_grids_that_a_driver_takes() {
    let text =
        text("shl.b32 %y, %x, 15;\nmul.wide.s32 %rd2, %y, 4;").replace("%ctaid.x", "%ctaid.y");
    let mut entry = index(text.as_bytes()).expect("PTX").remove(0);
    let mut at = |blocks| {
        let mut sizes = Sizes::default();
        sizes.set(Size::Grid(1), blocks);
        entry.verdict(&sizes)
    };
    assert_eq!(at(65_536), Verdict::Safe);
    assert!(matches!(at(65_537), Verdict::Wraps(_)) && matches!(at(70_000), Verdict::Wraps(_)));
    assert_eq!(entry.limits(&Sizes::default()).len(), 1);
}

#[test]
fn an_inner_register_hides_an_outer_one() {
    let body =
        "shl.b32 %r1, %x, 1;\n{ .reg .b32 %r1; shl.b32 %r1, %x, 20; }\nmul.wide.u32 %rd2, %r1, 4;";
    assert_eq!(verdict(body), Verdict::Safe);
}

#[test]
fn a_call_whose_accesses_are_not_followed_is_unknown() {
    let body = "call (r), f, (a);\nmul.wide.u32 %rd2, %x, 4;";
    assert_eq!(reason(&verdict(body)), Some(Reason::Call));
}

#[test]
fn a_sum_over_values_from_memory_is_unknown() {
    let body = "mov.u32 %i, 0;\nmov.u32 %s, %x;\nA: ld.global.u32 %v, [%rd1];\nld.global.u32 %w, [%rd1];\n\
                mad.lo.s32 %s, %v, %w, %s;\nadd.s32 %i, %i, 1;\nsetp.lt.u32 %p, %i, %n;\n@%p bra A;\n\
                mul.wide.u32 %rd2, %s, 4;";
    assert!(matches!(verdict(body), Verdict::Unknown(_)));
}

#[test]
fn a_remainder_by_a_reciprocal_is_below_the_divisor() {
    let text = ".version 8.0\n.target sm_80\n.visible .entry k(.param .u64 out, .param .align 4 .b8 d[12])\n{\n\
        ld.param.u64 %rd1, [out];\nld.param.u32 %m, [d];\nld.param.u32 %l, [d+4];\nld.param.u32 %d, [d+8];\n\
        mov.u32 %x, %ctaid.x;\nmul.hi.u32 %h, %x, %m;\nadd.s32 %h, %h, %x;\nshr.u32 %q, %h, %l;\n\
        mul.lo.s32 %y, %q, %d;\nsub.s32 %r, %x, %y;\nFACTOR\nmul.wide.s32 %rd2, %r, 4;\n\
        add.s64 %rd9, %rd1, %rd2;\nst.global.u32 [%rd9], %x;\nret;\n}\n";
    let verdict = |factor: &str, divisor: i64| {
        let mut sizes = Sizes::default();
        sizes.set(Size::Parameter { index: 1, offset: 8 }, divisor);
        let text = text.replace("FACTOR", factor);
        index(text.as_bytes()).expect("PTX").remove(0).verdict(&sizes)
    };
    assert_eq!(verdict("", 1 << 30), Verdict::Safe);
    assert_eq!(verdict("shl.b32 %r, %r, 16;", 1 << 15), Verdict::Safe);
    assert!(matches!(verdict("shl.b32 %r, %r, 16;", (1 << 15) + 1), Verdict::Wraps(_)));
}

#[test]
fn bits_that_add_up_to_a_wrap_are_not_safe() {
    let body = "shl.b32 %a, %x, 6;\nmov.u32 %t, %tid.x;\nbfe.u32 %b, %t, 6, 1;\nor.b32 %c, %a, %b;\n\
                or.b32 %d, %c, 62;\nmul.lo.s32 %e, %d, %n;\nmul.wide.s32 %rd2, %e, 4;";
    let at = |n: i64| {
        let mut sizes = Sizes::default();
        sizes.set(Size::Grid(0), 16);
        sizes.set(Size::Block(0), 128);
        sizes.set(Size::Parameter { index: 1, offset: 0 }, n);
        index(text(body).as_bytes()).expect("PTX").remove(0).verdict(&sizes)
    };
    // 1023 * 2,099,202 is the largest multiple below 2^31.
    assert_eq!(at(2_099_202), Verdict::Safe);
    assert_ne!(at(2_099_203), Verdict::Safe);
}

#[test]
fn a_text_cut_anywhere_is_an_error_or_has_verdicts() {
    let text = ptx("flat").into_bytes();
    for end in (0..text.len()).step_by(997) {
        for mut entry in index(&text[..end]).unwrap_or_default() {
            let _ = entry.verdict(&Sizes::default());
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn changed_texts_never_panic(
        source in prop::sample::select(vec!["checks", "flat", "loops", "strides"]),
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>()), 1..12),
        grid in 1_i64..70_000,
    ) {
        let text = ptx(source);
        let mut lines: Vec<&str> = text.lines().collect();
        for (from, to) in changes {
            let (from, to) = (from.index(lines.len()), to.index(lines.len()));
            lines[to] = lines[from];
        }
        let mut sizes = Sizes::default();
        sizes.set(Size::Grid(0), grid);
        for mut entry in index(lines.join("\n").as_bytes()).unwrap_or_default() {
            let _ = entry.verdict(&sizes);
        }
    }
}
