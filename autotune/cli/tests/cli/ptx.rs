//! `gridguard ptx`: the report, the rewritten file, and other files.

use std::fs;

use expect_test::expect_file;
use serde_json::json;

use crate::command::run;

pub(crate) const PTX: &str = "\
.version 8.0
.target sm_80
.visible .entry scale(.param .u64 data)
{
	.reg .b32 %r<3>;
	mov.u32 %r1, %ctaid.y;
	mov.u32 %r2, %nctaid.x;
	ret;
}
.visible .entry waits()
{
	mov.u32 %r9, %clusterid.x;
	ret;
}
";

#[test]
fn the_report_is_a_table_and_the_rewritten_file_is_written() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.ptx"), PTX).expect("a file");
    run(folder.path(), "ptx a.ptx --output b.ptx").exits(1);
    let written = fs::read_to_string(folder.path().join("b.ptx")).expect("a file");
    assert!(written.contains(".visible .entry scale__gridguard_shifted("));
    // It can be rewritten again, and only one entry of it.
    let again = "ptx b.ptx --entry scale --format json";
    let document = run(folder.path(), again).exits(0).json();
    assert_eq!(document["entries"][0]["forms"]["shifted"], "scale__gridguard1_shifted");
}

#[test]
fn the_document_describes_how_to_launch_a_form() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.ptx"), PTX).expect("a file");
    let document = run(folder.path(), "ptx a.ptx --format json").exits(1).json();
    assert_eq!(
        document,
        json!({
            "version": "8.0",
            "target": "sm_80",
            "entries": [
                {
                    "name": "scale",
                    "line": 3,
                    "column": 17,
                    "parameters": 1,
                    "parameter_bytes": 8,
                    "reads_block_index": ["y"],
                    "reads_grid_size": ["x"],
                    "forms": {
                        "shifted": "scale__gridguard_shifted",
                        "folded": "scale__gridguard_folded",
                        "parameter_index": 1,
                        "parameter_offset": 8,
                        "shifted_words": 6,
                        "folded_words": 10,
                    },
                },
                {
                    "name": "waits",
                    "line": 10,
                    "column": 17,
                    "parameters": 0,
                    "parameter_bytes": 0,
                    "reads_block_index": [],
                    "reads_grid_size": [],
                    "refusal": {
                        "reason": "cluster",
                        "subject": "%clusterid",
                        "function": "waits",
                        "line": 12,
                        "column": 15,
                        "message": "line 12, column 15, in waits: %clusterid is about the clusters of one launch, and each chunk is a launch of its own",
                    },
                },
            ],
            "functions": [],
        })
    );
}

#[test]
fn what_is_no_ptx_or_has_none_is_invalid_input() {
    let folder = tempfile::tempdir().expect("a folder");
    let fatbin = |entries: &[(u8, &[u8])]| {
        let mut content = Vec::new();
        for (kind, bytes) in entries {
            content.extend([*kind, 0, 1, 1, 16, 0, 0, 0]);
            content.extend(u64::try_from(bytes.len()).expect("small").to_le_bytes());
            content.extend(*bytes);
        }
        let mut image = b"\x50\xed\x55\xba\x01\0\x10\0".to_vec();
        image.extend(u64::try_from(content.len()).expect("small").to_le_bytes());
        image.extend(content);
        image
    };
    let extract = "extract it with `cuobjdump --extract-ptx all`, and rewrite that";
    for (bytes, message) in [
        (b"garbage".to_vec(), "not PTX: the text does not begin with .version and .target".into()),
        (
            format!("{PTX}.entry k() {{ ret }}").into_bytes(),
            "line 15, column 18: expected `;`, found `}`".into(),
        ),
        (
            b"\x7fELF".to_vec(),
            "the image is truncated: its ELF header ends at byte 64, but it has 4 bytes".into(),
        ),
        (fatbin(&[]), "the file contains neither a cubin nor PTX".into()),
        (
            fatbin(&[(2, b"compressed")]),
            "it holds no PTX, only code for certain GPUs, which cannot be rewritten".into(),
        ),
        (fatbin(&[(1, b"\x12\x34\x56")]), "line 1, column 1: unexpected byte 0x12".into()),
        (
            fatbin(&[(1, PTX.as_bytes()), (1, PTX.as_bytes())]),
            format!("it holds 2 PTX texts; {extract}"),
        ),
    ] {
        fs::write(folder.path().join("a"), &bytes).expect("a file");
        let error = run(folder.path(), "ptx a").exits(2).err;
        assert_eq!(error, format!("error: a: {message}\n"));
    }
    fs::write(folder.path().join("a"), fatbin(&[(1, PTX.as_bytes())])).expect("a file");
    assert!(run(folder.path(), "ptx a").exits(1).out.starts_with("entry"));
    let compressed = include_bytes!("../../../../guard/tests/kernel_images/zstd.fatbin");
    fs::write(folder.path().join("compressed"), compressed).expect("a file");
    run(folder.path(), "ptx compressed").prints("without_parameters");
    let error = run(folder.path(), "ptx missing").exits(2).err;
    assert_eq!(error, "error: missing: no such file\n");
    let error = run(folder.path(), "ptx a --entry scal").exits(2).err;
    assert_eq!(error, "error: a: there is no entry scal\n");
}

/// Its index is `blockIdx.y * pitch`.
pub(crate) const ROWS: &str = "\
.version 8.0
.target sm_80
.visible .entry rows(.param .u64 out, .param .u32 pitch)
{
	ld.param.u64 %rd1, [out];
	ld.param.u32 %r1, [pitch];
	mov.u32 %r2, %ctaid.y;
	mul.lo.s32 %r3, %r2, %r1;
	mul.wide.s32 %rd2, %r3, 4;
	add.s64 %rd3, %rd1, %rd2;
	st.global.u32 [%rd3], %r1;
	ret;
}
";

#[test]
fn indices_that_wrap_are_shown_with_the_first_size() {
    let folder = tempfile::tempdir().expect("a folder");
    fs::write(folder.path().join("a.ptx"), ROWS).expect("a file");
    let command = |rows: &'static str| {
        ["ptx", "a.ptx", "--index", "--param", "pitch=65536", "--grid", rows, "--block", "32"]
    };
    let shown = run(folder.path(), &command("1,32768")).exits(0);
    assert_eq!(shown.out, "entry  line  32-bit indices\nrows      3  safe\n");
    let shown = run(folder.path(), &command("1,32769")).exits(1);
    expect_file!["screens/ptx-index.txt"].assert_eq(&shown.out);
    let json = "ptx a.ptx --index --format json";
    let document = run(folder.path(), json).exits(1).json();
    assert_eq!(document["entries"][0]["wraps"][0]["reaches"], "address");
    let wrong = "ptx a.ptx --index --param stride=1";
    run(folder.path(), wrong).exits(2).notes("no such parameter: rows has out, pitch");
}
