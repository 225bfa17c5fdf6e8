//! What a rewritten text looks like.

use gridguard_ptx::{Reason, Rewritten, rewrite, rewrite_entries};

/// A module of PTX 8.0 with `rest`.
fn module(rest: &str) -> String {
    format!(".version 8.0\n.target sm_80\n.address_size 64\n{rest}")
}

fn rewritten(rest: &str) -> (String, Rewritten) {
    let text = module(rest);
    let rewritten = rewrite(text.as_bytes()).unwrap_or_else(|error| panic!("{error}\n{text}"));
    (String::from_utf8(rewritten.text.clone()).expect("ASCII"), rewritten)
}

/// The text of the definition of `name`, from its keyword on.
fn definition<'t>(text: &'t str, name: &str) -> &'t str {
    let at = text.match_indices(name).map(|(at, _)| at).find(|at| {
        let line = text[..*at].rsplit('\n').next().expect("a line");
        let after = &text[at + name.len()..];
        (line.contains(".entry") || line.contains(".func"))
            && !after.starts_with(|c: char| c.is_alphanumeric() || c == '_')
    });
    let rest = &text[at.unwrap_or_else(|| panic!("no {name} in\n{text}"))..];
    &rest[..rest.find("\n}").map_or(rest.len(), |end| end + 2)]
}

fn body<'t>(text: &'t str, name: &str) -> Vec<&'t str> {
    definition(text, name).lines().map(str::trim).filter(|line| !line.is_empty()).collect()
}

#[test]
fn the_original_is_unchanged_and_forms_follow_it() {
    let entry = ".visible .entry k(\n\t.param .u64 k_param_0\n)\n.maxntid 128, 1, 1\n{\n\t.reg .b32 %r<3>;\n\n\tmov.u32 %r1, %ctaid.y;\n\tmov.u32 %r2, %nctaid.y;\n\tret;\n}\n";
    let (text, rewritten) = rewritten(entry);
    assert!(text.starts_with(module(entry).trim_end()));
    assert_eq!(
        body(&text, "k__gridguard_shifted"),
        [
            "k__gridguard_shifted(",
            ".param .u64 k_param_0",
            ",",
            ".param .align 8 .b8 __gridguard_grid[24]",
            ")",
            ".maxntid 128, 1, 1",
            "{",
            ".reg .b32 %__gridguard_ctaid_y;",
            ".reg .b32 %__gridguard_nctaid_y;",
            ".reg .b32 %__gridguard_flat;",
            ".reg .b32 %__gridguard_rest;",
            ".reg .b32 %__gridguard_word;",
            ".reg .b32 %__gridguard_other;",
            ".reg .b64 %__gridguard_wide;",
            "mov.u32 %__gridguard_ctaid_y, %ctaid.y;",
            "ld.param.u32 %__gridguard_word, [__gridguard_grid+4];",
            "add.u32 %__gridguard_ctaid_y, %__gridguard_ctaid_y, %__gridguard_word;",
            ".reg .b32 %r<3>;",
            "mov.u32 %r1, %__gridguard_ctaid_y;",
            "ld.param.u32 %__gridguard_nctaid_y, [__gridguard_grid+16];",
            "mov.u32 %r2, %__gridguard_nctaid_y;",
            "ret;",
            "}",
        ]
    );
    assert!(definition(&text, "k__gridguard_folded").contains("__gridguard_grid[40]"));
    let entry = &rewritten.report.entries[0];
    assert_eq!((entry.name.as_str(), entry.at.line, entry.at.column), ("k", 4, 17));
    assert_eq!([entry.reads_block_index, entry.reads_grid_size], [[false, true, false]; 2]);
    assert!(entry.uses_grid_size());
    let forms = entry.forms.as_ref().expect("forms");
    assert_eq!((forms.parameter_index, forms.parameter_offset), (1, 8));
}

#[test]
fn linkage_directives_locations_and_pragmas_are_those_of_the_original() {
    let entry = ".file 1 \"a.cu\"\n.weak\n.entry k .reqntid 32 .minnctapersm 2 .pragma \"nounroll\"; .maxnreg 32\n{\n.loc 1 2 3\n$L: .pragma \"nounroll\";\n.loc 1 4 5, function_name $L1+4, inlined_at 1 6 7\nbra $L;\n}\n.section .debug_str { $L1: .b8 0 }\n";
    let (text, _) = rewritten(entry);
    for form in ["shifted", "folded"] {
        let name = format!("k__gridguard_{form}");
        let copy = definition(&text, &name);
        for part in [
            ") .reqntid 32 .minnctapersm 2 .pragma \"nounroll\"; .maxnreg 32\n{",
            ".loc 1 2 3\n$L: .pragma \"nounroll\";\n",
            ".loc 1 4 5, function_name $L1+4, inlined_at 1 6 7\nbra $L;",
        ] {
            assert!(copy.contains(part), "{part}\nin\n{copy}");
        }
        assert!(text.contains(&format!(".weak\n.entry {name}(")));
    }
}

#[test]
fn reads_are_replaced_in_every_spelling() {
    let (block, size) = ("%__gridguard_ctaid_", "%__gridguard_nctaid_");
    for (read, expected) in [
        ("mov.u32 %r1, %ctaid.x;", format!("mov.u32 %r1, {block}x;")),
        ("mov.b32 %r1,%nctaid.z;", format!("mov.b32 %r1,{size}z;")),
        ("mov.s32 %r1, %ctaid /* a */ .y ;", format!("mov.s32 %r1, {block}y ;")),
        ("mov/**/.u32 %r1,%ctaid\n.x;", format!("mov/**/.u32 %r1,{block}x;")),
        ("cvt.u64.u32 %d1, %ctaid.g;", format!("cvt.u64.u32 %d1, {block}y;")),
        ("cvt.u16.u32 %h1, %nctaid.r;", format!("cvt.u16.u32 %h1, {size}x;")),
        ("cvt.s64.s32 %d1, %ctaid.b;", format!("cvt.s64.s32 %d1, {block}z;")),
        ("@!%p1 mov.u32 %r1, %ctaid.x;", format!("@!%p1 mov.u32 %r1, {block}x;")),
        ("@ ! %p1 mov.u32 %r1, %ctaid.x;", format!("@ ! %p1 mov.u32 %r1, {block}x;")),
        ("A: B:@%p1 mov.u32 %r1,%ctaid.x;", format!("@%p1 mov.u32 %r1,{block}x;")),
        ("{mov.u32 %r1,%ctaid.x;}", format!("mov.u32 %r1,{block}x;}}")),
        (".loc 1 2 3 mov.u32 %r1,%ctaid.x;", format!("mov.u32 %r1,{block}x;")),
        ("mov.u32 %r1, %ctaid.w;", "mov.u32 %r1, 0;".into()),
        ("mov.u32 %r1, %nctaid.a;", "mov.u32 %r1, 0;".into()),
        (
            "mov.v4.u32 {%r1,_,_,%r2}, %ctaid;",
            format!("mov.v4.u32 {{%r1,_,_,%r2}}, {{{block}x, {block}y, {block}z, 0}};"),
        ),
        ("mov.v4.b32 %v, %nctaid;", format!("mov.v4.b32 %v, {{{size}x, {size}y, {size}z, 0}};")),
        ("mov.b64 %d1, {%ctaid.x, %nctaid.x};", format!("mov.b64 %d1, {{{block}x, {size}x}};")),
        ("mov.u32 %v.x, %ctaid.y;", format!("mov.u32 %v.x, {block}y;")),
        (
            "// begin inline asm\n\tmov.u32 %r1, %ctaid.x;\n\t// %ctaid.x",
            format!("mov.u32 %r1, {block}x;\n\t// %ctaid.x"),
        ),
    ] {
        let entry = format!(".entry k(.param .u32 a){{\n{read}\nret;\n}}\n");
        let (text, _) = rewritten(&entry);
        for form in ["shifted", "folded"] {
            let copy = definition(&text, &format!("k__gridguard_{form}"));
            assert!(copy.contains(&expected), "{read}\n{copy}");
        }
    }
}

#[test]
fn block_indices_are_computed_once_at_the_start_and_again_behind_a_branch() {
    for (before, computed) in [
        ("", [true, false]),
        ("add.u32 %r2, %r3, 1;\n{ .loc 1 2 3\n}\n", [true, false]),
        ("L:\n", [false, true]),
        ("@%p bra L;\nL:\n", [false, true]),
        ("mov.u32 %r2, %ctaid.x;\n@%p bra L;\nL:\n", [true, true]),
        ("call f;\n", [false, true]),
        ("@%p ret;\n", [false, true]),
    ] {
        let text = format!(
            ".func f()\n{{\nret;\n}}\n.entry k()\n{{\n.reg .b32 %r<4>;\n{before}mov.u32 %r1, %ctaid.x;\nret;\n}}\n"
        );
        let (text, _) = rewritten(&text);
        for (form, last) in [("shifted", "add.u32"), ("folded", "mad.lo.u32")] {
            let copy = definition(&text, &format!("k__gridguard_{form}"));
            let (start, rest) = copy.split_once(".reg .b32 %r<4>;").expect("the declaration");
            let last = format!("{last} %__gridguard_ctaid_x");
            assert_eq!([start, rest].map(|part| part.contains(&last)), computed, "{copy}");
            assert_eq!(copy.matches(&last).count(), computed.iter().filter(|one| **one).count());
        }
    }
}

#[test]
fn words_that_only_look_like_reads_are_left_alone() {
    let body = ".reg .b32 %ctaid_x, ctaid, %r<2>;\n// %ctaid.x\n.pragma \"%ctaid.x\";\nmov.u32 %r1, %ctaid_x;\nmov.u32 %r1, ctaid;\nmov.u32 %r1, %tid.x;\nret;";
    let (text, rewritten) = rewritten(&format!(".entry k(){{\n{body}\n}}\n"));
    let entry = &rewritten.report.entries[0];
    assert_eq!((entry.reads_block_index, entry.reads_grid_size), ([false; 3], [false; 3]));
    assert!(definition(&text, "k__gridguard_shifted").contains(body));
}

#[test]
fn parameters_are_appended_behind_the_own_ones() {
    for (list, index, offset) in [
        ("", 0, 0),
        ("()", 0, 0),
        ("(\n)", 0, 0),
        ("(.param .u8 a)", 1, 8),
        ("(.param .u64 .ptr .global .align 16 a, .param .align 8 .b8 b[13] )", 2, 24),
    ] {
        let (text, rewritten) = rewritten(&format!(".entry k{list} {{\nret;\n}}\n"));
        let forms = rewritten.report.entries[0].forms.as_ref().expect("forms");
        assert_eq!((forms.parameter_index, forms.parameter_offset), (index, offset), "{list}");
        let header = definition(&text, "k__gridguard_shifted").split('{').next().expect("a header");
        let header: String = header.split_whitespace().collect();
        let own: String = list.trim_matches(['(', ')']).split_whitespace().collect();
        let comma = if own.is_empty() { "" } else { "," };
        assert_eq!(
            header,
            format!("k__gridguard_shifted({own}{comma}.param.align8.b8__gridguard_grid[24])")
        );
    }
}

#[test]
fn functions_that_read_get_the_values_through_every_call() {
    let functions = "\
.func leaf(.param .b32 a);
.visible .func (.param .b32 r) middle(.param .b32 a)\n{\n.reg .b32 %x;\n@%p1 call.uni leaf, (%x);\nst.param.b32 [r], %x;\nret;\n}
.func none()\n{\nret;\n}
.weak .func leaf(.param .b32 a)\n{\n.reg .b32 %x;\nmov.u32 %x, %ctaid.z;\nret;\n}
.func bare\n{\n.reg .b32 %x;\nmov.u32 %x, %nctaid.x;\nret;\n}
.entry k(.param .u64 p)\n{\n.reg .b32 %r<3>;\ncall (%r1), middle, (%r2);\ncall none;\ncall bare;\ncall bare, ();\nret;\n}
.entry plain()\n{\ncall none;\nret;\n}
";
    let (text, rewritten) = rewritten(functions);
    assert_eq!(rewritten.report.functions, ["leaf", "middle", "bare"]);
    let entry = rewritten.report.entry("k").expect("k");
    assert_eq!(
        (entry.reads_block_index, entry.reads_grid_size),
        ([false, false, true], [true, false, false])
    );
    assert!(!rewritten.report.entry("plain").expect("plain").uses_grid_size());
    // The declaration comes first in the variant, too.
    assert!(text.contains(
        ".func leaf__gridguard_called(.param .b32 a,\n\t.param .b32 __gridguard_ctaid_z\n);"
    ));
    assert_eq!(
        body(&text, "middle__gridguard_called"),
        [
            "middle__gridguard_called(.param .b32 a,",
            ".param .b32 __gridguard_ctaid_z",
            ")",
            "{",
            ".reg .b32 %__gridguard_ctaid_z;",
            "ld.param.b32 %__gridguard_ctaid_z, [__gridguard_ctaid_z];",
            ".reg .b32 %x;",
            "@%p1 call.uni leaf__gridguard_called, (%x, %__gridguard_ctaid_z);",
            "st.param.b32 [r], %x;",
            "ret;",
            "}",
        ]
    );
    assert!(text.contains("\n.func (.param .b32 r) middle__gridguard_called"), "not visible");
    for form in ["shifted", "folded"] {
        let copy = definition(&text, &format!("k__gridguard_{form}"));
        for call in [
            "call (%r1), middle__gridguard_called, (%r2, %__gridguard_ctaid_z);",
            "call none;",
            "call bare__gridguard_called, (%__gridguard_nctaid_x);",
        ] {
            assert!(copy.contains(call), "{call}\nin\n{copy}");
        }
    }
    // One of each function, and two forms of each entry, beside the originals.
    assert_eq!(text.matches(".func ").count(), 5 + 4);
    assert_eq!(text.matches(".entry ").count(), 2 * 3);
}

#[test]
fn functions_that_call_each_other_in_a_circle_get_the_values() {
    let (text, rewritten) = rewritten(
        ".func b();\n.func a()\n{\ncall b;\nret;\n}\n.func b()\n{\n.reg .b32 %x;\nmov.u32 %x, %ctaid.x;\ncall a;\ncall b;\nret;\n}\n.entry k()\n{\ncall a;\nret;\n}\n",
    );
    assert_eq!(rewritten.report.functions, ["b", "a"]);
    assert!(
        definition(&text, "a__gridguard_called")
            .contains("call b__gridguard_called, (%__gridguard_ctaid_x);")
    );
}

#[test]
fn a_call_of_an_alias_is_a_call_of_its_function() {
    let (text, rewritten) = rewritten(
        ".visible .func real()\n{\n.reg .b32 %x;\nmov.u32 %x, %ctaid.x;\nret;\n}\n.visible .func other();\n.entry k()\n{\ncall other;\nret;\n}\n.alias other, real;\n",
    );
    assert_eq!(rewritten.report.functions, ["real"]);
    assert!(
        definition(&text, "k__gridguard_folded")
            .contains("call real__gridguard_called, (%__gridguard_ctaid_x);")
    );
}

#[test]
fn lists_of_functions_that_read_nothing_may_be_called_by_address() {
    let (text, rewritten) = rewritten(
        ".func a()\n{\nret;\n}\n.entry k()\n{\n.reg .b64 %f;\nmov.u64 %f, a;\nT: .calltargets a;\ncall %f, T;\ncall %f, (), T;\nS: .branchtargets X, Y;\nbrx.idx %r, S;\nX: Y: ret;\n}\n",
    );
    assert!(rewritten.report.entries[0].forms.is_ok());
    assert!(
        definition(&text, "k__gridguard_shifted")
            .contains("S: .branchtargets X, Y;\nbrx.idx %r, S;\nX: Y: ret;")
    );
}

#[test]
fn labels_that_debug_sections_name_have_other_names_in_forms() {
    let (text, _) = rewritten(
        ".func f()\n{\n$L__begin: mov.u32 %x, %ctaid.x;\n$B:\nbra $B;\n}\n.entry k()\n{\n$L__tmp0:\n@%p bra $L__tmp0;\nS: .branchtargets $L__tmp0, $A;\n$A: call f;\nret;\n}\n.section .debug_info\n{\n.b64 $L__tmp0\n.b64 $L__begin\n.b8 1,2\n.b32 .debug_abbrev\n}\n",
    );
    let original = definition(&text, "k(");
    assert!(original.contains("$L__tmp0:\n@%p bra $L__tmp0;"));
    for form in ["shifted", "folded"] {
        let label = format!("$L__tmp0__gridguard_{form}");
        let expected =
            format!("{label}:\n@%p bra {label};\nS: .branchtargets {label}, $A;\n$A: \n");
        assert!(definition(&text, &format!("k__gridguard_{form}")).contains(&expected), "{text}");
    }
    assert!(
        definition(&text, "f__gridguard_called").contains(
            "$L__begin__gridguard_called: mov.u32 %x, %__gridguard_ctaid_x;\n$B:\nbra $B;"
        )
    );
    assert_eq!(text.matches("$L__tmp0:").count(), 1);
}

#[test]
fn a_label_may_have_the_name_of_an_opcode() {
    let (text, _) = rewritten(
        ".entry k()\n{\nmov: mov.u32 %r, 1;\n@%p mov.u32 %r, 2;\nbra mov;\n}\n.section .debug_info { .b64 mov }\n",
    );
    let label = "mov__gridguard_shifted";
    let expected = format!("{label}: mov.u32 %r, 1;\n@%p mov.u32 %r, 2;\nbra {label};");
    assert!(definition(&text, "k__gridguard_shifted").contains(&expected), "{text}");
}

#[test]
fn names_that_collide_with_added_ones_lead_to_others() {
    let (_, rewritten) = rewritten(".global .u32 k__gridguard_shifted;\n.entry k()\n{\nret;\n}\n");
    let forms = rewritten.report.entries[0].forms.as_ref().expect("forms");
    assert_eq!(
        (forms.shifted.as_str(), forms.folded.as_str()),
        ("k__gridguard1_shifted", "k__gridguard1_folded")
    );
}

#[test]
fn a_rewritten_text_can_be_rewritten_again() {
    let (text, _) = rewritten(".entry k()\n{\nmov.u32 %r, %ctaid.x;\nret;\n}\n");
    let again = rewrite(text.as_bytes()).expect("PTX");
    let names: Vec<_> = again
        .report
        .entries
        .iter()
        .map(|entry| entry.forms.as_ref().expect("forms").shifted.as_str())
        .collect();
    assert_eq!(
        names,
        [
            "k__gridguard1_shifted",
            "k__gridguard_shifted__gridguard1_shifted",
            "k__gridguard_folded__gridguard1_shifted"
        ]
    );
}

#[test]
fn only_wanted_entries_and_what_they_call_are_rewritten() {
    let text = module(
        ".func f()\n{\nmov.u32 %x, %ctaid.x;\nret;\n}\n.func g()\n{\nmov.u32 %x, %ctaid.x;\nret;\n}\n.entry a()\n{\ncall f;\nret;\n}\n.entry b()\n{\ncall g;\nret;\n}\n",
    );
    let rewritten = rewrite_entries(text.as_bytes(), |name| name == "b").expect("PTX");
    let names: Vec<_> = rewritten.report.entries.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!((names, rewritten.report.functions), (vec!["b"], vec!["g".to_owned()]));
    let text = String::from_utf8(rewritten.text).expect("ASCII");
    assert!(!text.contains("a__gridguard") && !text.contains("f__gridguard"));
}

#[test]
fn carriage_returns_bytes_in_comments_and_zeros_at_the_end_are_kept() {
    let mut text = module("// \u{fc}\n.entry k()\n{\nmov.u32 %r, %ctaid.x;\nret;\n}")
        .replace('\n', "\r\n")
        .into_bytes();
    text.extend(b"// \xff\xfe\0\0");
    let rewritten = rewrite(&text).expect("PTX");
    assert!(rewritten.text.ends_with(b"// \xff\xfe\0\0"));
    let original = text.len() - b"// \xff\xfe\0\0".len();
    assert!(rewritten.text.starts_with(&text[..original]));
    assert_eq!(rewritten.report.entries[0].at.line, 5);
}

#[test]
fn a_text_without_entries_stays_as_it_is() {
    let (text, rewritten) = rewritten(
        ".extern .func f();\n.visible .func g()\n{\nmov.u32 %r, %ctaid.x;\nret;\n}\n.extern .entry k();\n",
    );
    assert!(rewritten.report.entries.is_empty());
    assert_eq!(
        text,
        module(
            ".extern .func f();\n.visible .func g()\n{\nmov.u32 %r, %ctaid.x;\nret;\n}\n.extern .entry k();\n"
        )
    );
}

#[test]
fn the_parameter_limit_is_that_of_version_and_target() {
    for (version, target, bytes, fits) in [
        ("8.0", "sm_80", 4_090, true),
        ("8.0", "sm_80", 4_312, true),
        ("8.0", "sm_80", 4_313, false),
        ("8.1", "sm_60", 4_313, false),
        ("8.1", "sm_70", 4_313, true),
        ("9.0", "sm_90a", 32_720, true),
        ("9.0", "sm_90a", 32_721, false),
        ("7.0", "sm_50", 4_352, false),
    ] {
        let text = format!(
            ".version {version}\n.target {target}\n.entry k(.param .b8 p[{bytes}])\n{{\nret;\n}}\n"
        );
        let rewritten = rewrite(text.as_bytes()).expect("PTX");
        let reason = rewritten.report.entries[0].forms.as_ref().err().map(|refusal| refusal.reason);
        assert_eq!(reason, (!fits).then_some(Reason::ParameterLimit), "{version} {target} {bytes}");
    }
}
