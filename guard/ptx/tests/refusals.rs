//! Which entries are refused, and which texts are errors.

use gridguard_ptx::{PtxError, Reason, Refusal, rewrite};

fn module(rest: &str) -> String {
    format!(".version 8.0\n.target sm_90\n.address_size 64\n{rest}")
}

/// The refusal of entry `k`, which must be the only one.
fn refusal(rest: &str) -> Refusal {
    let text = module(rest);
    let rewritten = rewrite(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    let entry = rewritten.report.entry("k").expect("k");
    let refusal = entry.forms.clone().expect_err(&text);
    assert_eq!(String::from_utf8(rewritten.text).expect("ASCII"), text, "nothing else changed");
    refusal
}

/// The refusal of an entry with this body, which begins on line 6.
fn refusal_of_body(body: &str) -> Refusal {
    refusal(&format!(".entry k(.param .u64 p)\n{{\n{body}\nret;\n}}\n"))
}

#[test]
fn what_ties_a_launch_together_is_refused_where_it_stands() {
    for (body, reason, subject) in [
        ("mov.u32 %r1, %envreg2;", Reason::GridSynchronization, "%envreg2"),
        ("mov.b64 %d1, {%envreg2, %envreg1};", Reason::GridSynchronization, "%envreg2"),
        ("mov.u64 %d1, %gridid;", Reason::GridId, "%gridid"),
        ("mov.u32 %r1, %clusterid.x;", Reason::Cluster, "%clusterid"),
        ("mov.v4.u32 %v1, %nclusterid;", Reason::Cluster, "%nclusterid"),
        (
            "clusterlaunchcontrol.try_cancel.async [%d1], [%d2];",
            Reason::Cluster,
            "clusterlaunchcontrol",
        ),
        ("mov.u16 %h1, %ctaid.x;", Reason::NarrowRead, "%ctaid"),
        ("mov.v4.u16 {%h1, %h2, %h3, %h4}, %nctaid;", Reason::NarrowRead, "%nctaid"),
        ("cvt.u32.u16 %r1, %ctaid.y;", Reason::NarrowRead, "%ctaid"),
        ("add.u32 %r1, %ctaid.x, 1;", Reason::UnknownRead, "%ctaid"),
        ("mov.u32 %r1, %ctaid;", Reason::UnknownRead, "%ctaid"),
        ("mov.v4.u32 %v, %ctaid.x;", Reason::UnknownRead, "%ctaid"),
        ("@%ctaid.x mov.u32 %r1, 0;", Reason::UnknownRead, "%ctaid"),
        (".reg .u32 %ctaid;", Reason::HiddenRegister, "%ctaid"),
        ("%nctaid: bra %nctaid;", Reason::HiddenRegister, "%nctaid"),
        (".global .u32 counter;", Reason::OwnVariable, "counter"),
        (
            "call (%r1), cudaCGGetIntrinsicHandle, (%r2);",
            Reason::GridSynchronization,
            "cudaCGGetIntrinsicHandle",
        ),
        ("call (%r1), cudaLaunchDeviceV2, (%d1, %d2);", Reason::DeviceLaunch, "cudaLaunchDeviceV2"),
        (
            "call (%d1), __cudaCDP2GetParameterBufferV2, (%d1);",
            Reason::DeviceLaunch,
            "__cudaCDP2GetParameterBufferV2",
        ),
        ("call elsewhere;", Reason::ExternalFunction, "elsewhere"),
        ("T: .callprototype _ (.param .b32 _);\ncall %d1, (%r1), T;", Reason::IndirectCall, "%d1"),
        ("call (%r1), %d1, (%r1), nowhere;", Reason::IndirectCall, "%d1"),
        ("call %d1, nowhere;", Reason::IndirectCall, "%d1"),
        ("call f, %r1, %r2;", Reason::UnknownCall, "call"),
        ("call [%d1];", Reason::UnknownCall, "call"),
    ] {
        let refusal = refusal_of_body(body);
        assert_eq!((refusal.reason, refusal.subject.as_str()), (reason, subject), "{body}");
        let line = if body.contains("\ncall") { 7 } else { 6 };
        assert_eq!((refusal.at.line, refusal.function.as_str()), (line, "k"), "{body}");
    }
}

#[test]
fn directives_and_parameters_of_the_entry_may_speak_against_it() {
    for (header, reason, subject, line) in [
        ("k()\n.blocksareclusters", Reason::Cluster, ".blocksareclusters", 5),
        ("k() .new_in_another_version 3", Reason::UnknownDirective, ".new_in_another_version", 4),
        ("k(.param .u32 a,\n.param .texref b)", Reason::UnknownParameter, "b", 5),
        ("k(.param .u32 %ctaid)", Reason::HiddenRegister, "%ctaid", 4),
        ("k(.param .b8 a[4340])", Reason::ParameterLimit, "k", 4),
    ] {
        let refusal = refusal(&format!(".entry {header}\n{{\nret;\n}}\n"));
        assert_eq!((refusal.reason, refusal.subject.as_str()), (reason, subject), "{header}");
        assert_eq!(refusal.at.line, line, "{header}");
    }
}

#[test]
fn work_within_a_cluster_is_no_reason() {
    for (header, body) in [
        ("k() .reqnctapercluster 2, 1, 1", "mov.u32 %r1, %cluster_ctarank;"),
        ("k() .explicitcluster .maxclusterrank 8", "mov.u32 %r1, %cluster_nctaid.y;"),
        ("k()", "mov.pred %p1, %is_explicit_cluster;"),
        ("k()", "barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;"),
        ("k()", "mapa.shared::cluster.u32 %r1, %r2, 0;\ngetctarank.u64 %r1, %d1;"),
        ("k()", "cp.async.bulk.shared::cluster.global.multicast::cluster [%r1], [%d1];"),
    ] {
        let text =
            module(&format!(".entry {header}\n{{\nmov.u32 %r1, %ctaid.x;\n{body}\nret;\n}}\n"));
        let rewritten = rewrite(text.as_bytes()).expect("PTX");
        assert!(rewritten.report.entries[0].forms.is_ok(), "{text}");
        let text = String::from_utf8(rewritten.text).expect("ASCII");
        assert_eq!(text.matches(body).count(), 3, "the original and both forms: {text}");
    }
    let hidden = refusal_of_body(".reg .u32 %cluster_ctarank;");
    assert_eq!(hidden.reason, Reason::HiddenRegister);
}

#[test]
fn functions_speak_against_the_entries_that_reach_them() {
    let text = module(
        ".func bad()\n{\nmov.u32 %r1, %clusterid.x;\nret;\n}\n.func between()\n{\ncall bad;\nret;\n}\n.entry k()\n{\ncall between;\nret;\n}\n.entry other()\n{\nret;\n}\n",
    );
    let report = rewrite(text.as_bytes()).expect("PTX").report;
    let refusal = report.entry("k").expect("k").forms.as_ref().expect_err("refused");
    assert_eq!(
        refusal.to_string(),
        "line 6, column 14, in bad: %clusterid is about the clusters of one launch, and each chunk is a launch of its own"
    );
    assert!(report.entry("other").expect("other").forms.is_ok());
}

#[test]
fn functions_that_read_are_not_called_by_address() {
    let function = |body: &str| {
        format!(
            ".func f()\n{{\n{body}\nret;\n}}\n.func g()\n{{\ncall f;\nret;\n}}\n.entry k()\n{{\nT: .calltargets g;\ncall %d, T;\nret;\n}}\n"
        )
    };
    let refusal = refusal(&function("mov.u32 %r, %nctaid.x;"));
    assert_eq!((refusal.reason, refusal.subject.as_str()), (Reason::IndirectCallReadsGrid, "g"));
    assert_eq!((refusal.at.line, refusal.function.as_str()), (17, "k"));
    let text = module(&function("mov.u32 %r, %tid.x;"));
    assert!(rewrite(text.as_bytes()).expect("PTX").report.entries[0].forms.is_ok());
}

#[test]
fn functions_that_cannot_have_a_variant_only_matter_if_they_read() {
    let function = |header: &str, body: &str| {
        format!(".func {header}\n{{\n{body}\nret;\n}}\n.entry k()\n{{\ncall f;\nret;\n}}\n")
    };
    for (header, own, reason) in [
        ("f()", ".global .u32 own;\n", Reason::OwnVariable),
        ("f(.param .b8 rest[])", "", Reason::UnknownParameter),
        (".attribute(.unified(1, 2)) f()", "", Reason::UnknownDirective),
    ] {
        let reads = function(header, &format!("{own}mov.u32 %r, %ctaid.x;"));
        assert_eq!(refusal(&reads).reason, reason, "{header}");
        let text = module(&function(header, own));
        let report = rewrite(text.as_bytes()).expect("PTX").report;
        assert!(report.entries[0].forms.is_ok(), "{header}: {:?}", report.entries[0].forms);
    }
}

#[test]
fn functions_of_the_driver_that_read_nothing_may_be_called() {
    for name in ["vprintf", "malloc", "free", "__assertfail"] {
        let text =
            module(&format!(".extern .func {name}();\n.entry k()\n{{\ncall {name};\nret;\n}}\n"));
        assert!(rewrite(text.as_bytes()).expect("PTX").report.entries[0].forms.is_ok(), "{name}");
    }
}

#[test]
fn every_reason_has_an_id_of_its_own_and_its_text() {
    let refusal = refusal_of_body("mov.u64 %d1, %gridid;");
    assert_eq!(refusal.reason.id(), "grid-id");
    assert_eq!(
        refusal.to_string(),
        "line 6, column 14, in k: %gridid identifies the grid, and each chunk is a grid of its own"
    );
}

#[test]
fn what_is_no_ptx_is_an_error_with_its_place() {
    for (text, expected) in [
        ("", "not PTX: the text does not begin with .version and .target"),
        ("\0\0", "not PTX: the text does not begin with .version and .target"),
        (".version 8.0", "not PTX: the text does not begin with .version and .target"),
        (".version 8 .target sm_80", "not PTX: the text does not begin with .version and .target"),
        (
            ".target sm_80 .version 8.0",
            "not PTX: the text does not begin with .version and .target",
        ),
        (
            ".version 10.0\n.target sm_200\n",
            "PTX version 10.0 is unknown: versions up to 9.x can be rewritten",
        ),
        (
            ".version 99999999999.0\n.target sm_200\n",
            "PTX version 99999999999.0 is unknown: versions up to 9.x can be rewritten",
        ),
        ("\u{7f}ELF", "line 1, column 1: unexpected byte 0x7f"),
        ("\u{feff}.version 8.0", "line 1, column 1: unexpected byte 0xef"),
    ] {
        assert_eq!(rewrite(text.as_bytes()).expect_err(text).to_string(), expected, "{text:?}");
    }
    for (rest, expected) in [
        (".entry", "line 4, column 1: the declaration does not end"),
        (".entry k() {", "line 4, column 12: the body does not end"),
        (".entry k() { ret", "line 4, column 12: the body does not end"),
        (".entry k() { ret }", "line 4, column 18: expected `;`, found `}`"),
        (".entry k() { mov.b64 {%a, %b}, %c }", "line 4, column 35: expected `;`, found `}`"),
        (".entry k() { 5; }", "line 4, column 14: expected a statement, found `5`"),
        (".entry k() { ; }", "line 4, column 14: expected a statement, found `;`"),
        (".entry k() { @%p; }", "line 4, column 17: expected an instruction, found `;`"),
        (".entry k() { @; }", "line 4, column 15: expected an instruction, found `;`"),
        (".entry k() { .loc 1 2; }", "line 4, column 22: expected a number, found `;`"),
        (
            ".entry k() { .loc 1 2 3, what }",
            "line 4, column 26: expected `function_name` or `inlined_at`, found `what`",
        ),
        (".global .u32 x = { 1 .entry k() {}", "line 4, column 22: expected `;`, found `.entry`"),
        (".global .u32 x = { 1 }; }", "line 4, column 25: expected a declaration, found `}`"),
        (".section .debug_x 5 {", "line 4, column 19: expected a name or `{`, found `5`"),
        (".section .debug_x { .b8 1", "line 4, column 1: the section does not end"),
        (".section .debug_x { { } }", "line 4, column 21: expected a value, found `{`"),
        (".alias a b;", "line 4, column 10: expected `,`, found `b`"),
        (".alias a, 5;", "line 4, column 11: expected a name, found `5`"),
        (".entry k() { ret; } .func k() { ret; }", "line 4, column 27: k is defined twice"),
        (".func k(.param .u8 a); .entry k() { ret; }", "line 4, column 31: k is defined twice"),
        (".entry k() { ret; } .alias k, f;", "line 4, column 28: k is defined twice"),
        (".alias k, f; .func k() { ret; }", "line 4, column 20: k is defined twice"),
        (".func .visible .entry k();", "line 4, column 7: expected a name, found `.visible`"),
        ("/* ", "line 4, column 1: a comment does not end"),
        (".entry k() { \0 ret; }", "line 4, column 14: unexpected byte 0x00"),
    ] {
        let text = module(rest);
        assert_eq!(rewrite(text.as_bytes()).expect_err(rest).to_string(), expected, "{rest:?}");
    }
}

#[test]
fn a_statement_of_too_many_tokens_is_an_error() {
    let text = module(&format!(".entry k() {{ mov {} ; }}", "a ".repeat(1 << 18)));
    let error = rewrite(text.as_bytes()).expect_err("too long");
    assert!(matches!(error, PtxError::StatementTooLong { limit: 262_144, at } if at.line == 4));
}
