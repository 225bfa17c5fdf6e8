//! `--index`: launches whose 32-bit indices wrap, and those that come next.

use gridguard_report::{IndexCoverage, WatchReport};

use crate::fixes::{FIX, Loaded, QUIET, load};
use crate::machine_code::{ZSTD, entries};

pub(crate) const INDEX: (&str, &str) = ("GRIDGUARD_RUN_INDEX", "1");

/// A row of blocks adds 65,536 to an index, or the upper half of the first argument: 0x11223344.
fn rows(with_pitch: bool) -> String {
    let index = match with_pitch {
        true => "ld.param.u32 %r3, [out+4];\n\tmul.lo.s32 %r2, %r1, %r3;",
        false => "shl.b32 %r2, %r1, 16;",
    };
    format!(
        ".version 8.0\n.target sm_90\n.address_size 64\n\n.visible .entry rows(\n\t.param .u64 out,\n\
         \t.param .u32 n\n)\n{{\n\t.reg .b32 %r<4>;\n\t.reg .b64 %rd<4>;\n\tld.param.u64 %rd1, [out];\n\
         \tmov.u32 %r1, %ctaid.y;\n\t{index}\n\tmul.wide.s32 %rd2, %r2, 4;\n\tadd.s64 %rd3, %rd1, %rd2;\n\
         \tst.global.u32 [%rd3], %r1;\n\tret;\n}}\n"
    )
}

/// Runs launches with a report.
fn run(image: impl AsRef<[u8]>, actions: &str, options: &[(&str, &str)]) -> (Loaded, WatchReport) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("report.json");
    let mut options = options.to_vec();
    options.push(("GRIDGUARD_RUN_REPORT", path.to_str().unwrap()));
    let loaded = load(image, "dlsym", actions, &options);
    let report = std::fs::read_to_string(&path).unwrap();
    (loaded, serde_json::from_str(&report).unwrap())
}

#[test]
fn a_launch_that_wraps_is_told_once_and_reported() {
    for how in ["data", "ex", "library"] {
        let get = if how == "library" { "kernel-function" } else { "function" };
        let actions = format!("load={how} get={get} launch=1,40000,1 launch=1,40000,1");
        let (loaded, report) = run(rows(false), &actions, &[INDEX]);
        assert!(loaded.ran.status.success(), "{}", loaded.ran.out);
        assert_eq!(loaded.launches().len(), 2);
        let wrap =
            "blockIdx.y * 65536 reaches 2621374464, computed by shl.b32 %r2, %r1, 16 in line 14";
        let told = format!("gridguard: a 32-bit index of rows wraps: {wrap}");
        assert_eq!(loaded.ran.err.matches(&told).count(), 1, "{}", loaded.ran.err);
        let summary =
            "\n  wraps: a 32-bit index of rows with a grid of 1 x 40000 x 1: blockIdx.y * 65536";
        assert!(loaded.ran.err.contains(summary), "{}", loaded.ran.err);
        let [found] = &*report.indices else { panic!("{:?}", report.indices) };
        assert!(found.wraps[0].starts_with(wrap) && found.next.is_none(), "{found:?}");
        assert_eq!((&*found.kernel, found.request.grid.y), ("rows", 40_000));
        let all = IndexCoverage { kernels: 1, launches: 2, ..IndexCoverage::default() };
        assert_eq!(report.index_coverage, Some(all), "{how}");
    }
}

#[test]
fn the_size_that_wraps_next_is_told_at_the_end() {
    let actions = "load=data get=function launch=1,10000,1 launch=1,20000,1 launch=1,16000,1";
    let options = [INDEX, ("GRIDGUARD_RUN_BATCH", "5")];
    let (loaded, report) = run(rows(false), actions, &options);
    let next = "\n  near: a 32-bit index of rows wraps from 32769 blocks on y, of which it had 20000: wraps at \
                batch 9\n";
    assert!(loaded.ran.err.contains(next), "{}", loaded.ran.err);
    assert_eq!(
        report.indices[0].next.map(|next| (next.blocks, next.limit)),
        Some((20_000, 32_768))
    );
    let far = run(rows(false), "load=data get=function launch=1,3000,1", &options);
    assert_eq!((far.1.indices, far.0.ran.err.contains("32-bit")), (Vec::new(), false));
}

#[test]
fn an_index_is_computed_with_the_parameters_of_the_launch() {
    let launch = |rows_of_blocks: u32, how: &str| {
        let actions = format!("load=data get=function {how}=1,{rows_of_blocks},1");
        run(rows(true), &actions, &[INDEX, QUIET])
    };
    for how in ["launch", "buffer"] {
        let (loaded, report) = launch(9, how);
        assert!(loaded.succeeded(), "{}{}", loaded.ran.out, loaded.ran.err);
        // 8 * 0x11223344
        assert!(report.indices[0].wraps[0].contains("reaches 2299632160"), "{:?}", report.indices);
        let (loaded, report) = launch(8, how);
        assert!(loaded.ran.err.is_empty(), "{}", loaded.ran.err);
        assert_eq!(report.indices[0].next.map(|next| next.limit), Some(8));
    }
}

#[test]
fn machine_code_is_compared_by_its_ptx_and_fixes_go_on() {
    for options in [&[INDEX, QUIET][..], &[INDEX, FIX, QUIET]] {
        let (loaded, _) = run(ZSTD, "load=data get=function launch=1,6000,1", options);
        assert!(loaded.succeeded() && loaded.ran.err.is_empty(), "{}", loaded.ran.err);
        let (loaded, report) = run(rows(false), "load=data get=function launch=1,40000,1", options);
        assert!(loaded.succeeded(), "{}", loaded.ran.out);
        assert_eq!(report.indices.len(), 1, "{options:?}");
    }
    let (loaded, report) = run(rows(false), "load=data get=function launch=1,40000,1", &[QUIET]);
    assert!(loaded.ran.err.is_empty() && report.indices.is_empty(), "{}", loaded.ran.err);
    assert_eq!(report.index_coverage, None);
}

#[test]
fn images_that_cannot_be_analysed_change_nothing() {
    let odd = [
        rows(false).replace("%ctaid.y", "%nonsense"),
        rows(false).replace("shl.b32 %r2, %r1, 16;", "bra $nowhere; shl.b32;"),
        rows(false).replace(".param .u32 n", ".param .u64 n"),
    ];
    for image in odd {
        let (loaded, _) = run(image, "load=data get=function launch=1,40000,1", &[INDEX, QUIET]);
        assert!(loaded.succeeded(), "{}{}", loaded.ran.out, loaded.ran.err);
    }
    // Machine code whose PTX is nowhere.
    let code = &entries(ZSTD)[0][64..];
    let (loaded, report) = run(code, "load=data get=function launch=1,40000,1", &[INDEX]);
    assert!(loaded.ran.status.success(), "{}{}", loaded.ran.out, loaded.ran.err);
    let told = "\n  indices: 0 launches of 0 kernels compared, no usable PTX for 1 other\n";
    assert!(loaded.ran.err.contains(told), "{}", loaded.ran.err);
    let coverage = report.index_coverage.map(|of| (of.kernels, of.kernels_without_ptx));
    assert_eq!(coverage, Some((0, 1)));
}
