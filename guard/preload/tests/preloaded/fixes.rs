//! `--fix`: oversized launches in parts, and the reasons for not fixing one.

use std::ffi::OsStr;
use std::process::Command;

use gridguard::check::CheckRequest;
use gridguard::ptx::{Fold, shifted_words};
use gridguard_report::WatchReport;

use crate::machine_code;
use crate::programs::{Driver, Ran, graphs, loads, preloaded, run};

pub(crate) const ROWS: &str = "\
.version 8.0
.target sm_90
.address_size 64

.visible .entry rows(
	.param .u64 out,
	.param .u32 n
)
{
	.reg .b32 %r<4>;
	mov.u32 %r1, %ctaid.y;
	mov.u32 %r2, %nctaid.y;
	ret;
}
";
pub(crate) const FIX: (&str, &str) = ("GRIDGUARD_RUN_FIX", "1");
pub(crate) const QUIET: (&str, &str) = ("GRIDGUARD_RUN_QUIET", "1");
/// The arguments of the program, as the driver's log has them.
const OWN: &str = "1122334455667788,a1b2c3d4";

/// What a program did, and the driver's log of it.
pub(crate) struct Loaded {
    pub(crate) ran: Ran,
    pub(crate) log: String,
}

/// Runs `loads LOOKUP IMAGE ACTION...`, with the image in a file.
pub(crate) fn load(
    image: impl AsRef<[u8]>,
    lookup: &str,
    actions: &str,
    options: &[(&str, impl AsRef<OsStr>)],
) -> Loaded {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("image");
    std::fs::write(&path, image).unwrap();
    logged(&mut loads(&format!("{lookup} {} {actions}", path.to_str().unwrap())), options)
}

/// Runs a command, with the driver's log.
pub(crate) fn logged(command: &mut Command, options: &[(&str, impl AsRef<OsStr>)]) -> Loaded {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    command.env("GRIDGUARD_FAKE_LOG", &log);
    for (name, value) in options {
        command.env(name, value);
    }
    let ran = run(command);
    let log = std::fs::read_to_string(&log).unwrap_or_default();
    Loaded { ran, log }
}

/// A launch of the driver's log.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Launch {
    pub(crate) kernel: String,
    grid: [u32; 3],
    /// `eager`, `capturing` or `graph`.
    pub(crate) stream: String,
    /// Those of the program.
    own: String,
    /// The words that a form takes.
    words: Vec<u32>,
    /// Attributes.
    pub(crate) rest: String,
}

impl Loaded {
    pub(crate) fn launches(&self) -> Vec<Launch> {
        self.log.lines().filter_map(|line| line.strip_prefix("launch ")).map(parse).collect()
    }

    /// Whether each action returned 0.
    pub(crate) fn succeeded(&self) -> bool {
        self.ran.status.success() && self.ran.out.lines().all(|line| line.ends_with(" 0"))
    }
}

fn parse(line: &str) -> Launch {
    let mut parts = line.splitn(7, ' ');
    let mut next =
        |prefix: &str| parts.next().unwrap_or("").strip_prefix(prefix).unwrap().to_owned();
    let (kernel, grid) = (next(""), next("grid="));
    assert_eq!((next("block="), next("shared=")), ("32,1,1".to_owned(), "0".to_owned()));
    let (stream, arguments, rest) = (next("stream="), next("args="), next(""));
    let own: Vec<&str> = arguments.splitn(3, ',').collect();
    let words = own.get(2).map_or(Vec::new(), |digits| words_of(digits));
    let own = own[..2].join(",");
    let grid: Vec<u32> = grid.split(',').map(|blocks| blocks.parse().unwrap()).collect();
    Launch { kernel, grid: grid.try_into().unwrap(), stream, own, words, rest }
}

/// The words of a little-endian number, which is written without leading zeros.
fn words_of(digits: &str) -> Vec<u32> {
    let bytes = digits.as_bytes().rchunks(8);
    bytes.map(|word| u32::from_str_radix(str::from_utf8(word).unwrap(), 16).unwrap()).collect()
}

/// Checks that the launches are forms of a kernel that together run each block of `grid` once, and that each
/// block sees its own index and this grid.
#[track_caller]
pub(crate) fn assert_blocks_of(launches: &[Launch], grid: [u32; 3]) {
    let volume = |size: [u32; 3]| size.map(u64::from).iter().product::<u64>();
    let mut boxes: Vec<([u32; 3], [u32; 3])> = Vec::new();
    for Launch { kernel, grid: part, own, words, .. } in launches {
        assert_eq!(own, OWN);
        let mut words = words.clone();
        match kernel.rsplit('_').next() {
            Some("shifted") => {
                words.resize(6, 0);
                let first = [words[0], words[1], words[2]];
                assert_eq!(words, shifted_words(grid, first));
                assert!((0..3).all(|axis| first[axis] + part[axis] <= grid[axis]));
                for (other, size) in &boxes {
                    let apart = |axis: usize| {
                        first[axis] >= other[axis] + size[axis]
                            || other[axis] >= first[axis] + part[axis]
                    };
                    assert!((0..3).any(apart), "{launches:?}");
                }
                boxes.push((first, *part));
            }
            Some("folded") => {
                let fold = Fold::new(grid).unwrap();
                let expected = fold.words(words[0]);
                words.resize(expected.len(), 0);
                assert_eq!(words, expected);
                assert_eq!((launches.len(), words[0], *part), (1, 0, [fold.blocks(), 1, 1]));
                // In order, x first: each block of the grid is one of the flat one.
                for flat in (0..fold.blocks()).step_by(997) {
                    let [x, y, z] = fold.block_index(flat);
                    assert_eq!(x + grid[0] * (y + grid[1] * z), flat);
                }
                boxes.push(([0; 3], grid));
            }
            _ => panic!("{kernel} is launched"),
        }
    }
    assert_eq!(boxes.iter().map(|(_, size)| volume(*size)).sum::<u64>(), volume(grid));
}

/// A fat binary of PTX for sm_90, with the compiler's options.
fn fatbin(text: &str, options: &str) -> Vec<u8> {
    let header = 72 + options.len().next_multiple_of(8);
    let mut entry = vec![0; header];
    entry[..8].copy_from_slice(&[1, 0, 1, 1, u8::try_from(header).unwrap(), 0, 0, 0]);
    entry[8..16].copy_from_slice(&u64::try_from(text.len() + 1).unwrap().to_le_bytes());
    (entry[28], entry[64], entry[68]) = (90, 72, u8::try_from(options.len()).unwrap());
    entry[72..72 + options.len()].copy_from_slice(options.as_bytes());
    machine_code::fatbin(&[&entry, text.as_bytes(), b"\0"])
}

#[test]
fn an_oversized_launch_runs_folded_and_a_legal_one_as_it_is() {
    let actions = "load=data get=function launch=1,6000,1 launch=3,70000,1 launch=3,70000,1";
    let loaded = load(ROWS, "dlsym", actions, &[FIX]);
    assert!(loaded.succeeded(), "{}", loaded.ran.out);
    let launches = loaded.launches();
    let legal = format!("rows grid=1,6000,1 block=32,1,1 shared=0 stream=eager args={OWN}");
    assert_eq!(launches[0], parse(&legal));
    for fixed in &launches[1..] {
        assert_blocks_of(core::slice::from_ref(fixed), [3, 70_000, 1]);
    }
    assert_eq!(launches.len(), 3);
    assert_eq!(
        loaded.ran.err,
        "\
gridguard: 1 launch of 1 kernel accepted, 0 refused, 2 fixed
  fixed: rows, 2 launches made in parts
"
    );
    let without = load(ROWS, "dlsym", actions, &[QUIET]);
    assert_eq!(without.launches().len(), 1);
    assert!(without.ran.out.ends_with("launch=3,70000,1 1\nlaunch=3,70000,1 1\n"));
    assert!(!without.ran.err.contains("  fix  "), "{}", without.ran.err);
}

#[test]
fn a_grid_of_too_many_blocks_for_one_launch_runs_shifted_in_parts() {
    for grid in [[3, 70_000, 140_000], [1 << 31, 1, 1], [1, 65_536, 65_536], [u32::MAX, 2, 1]] {
        let [x, y, z] = grid;
        let actions = format!("load=data get=function launch={x},{y},{z}");
        let loaded = load(ROWS, "dlsym", &actions, &[FIX]);
        assert!(loaded.succeeded(), "{}", loaded.ran.out);
        let launches = loaded.launches();
        assert!(launches.len() > 1 && launches.len() < 8, "{launches:?}");
        assert_blocks_of(&launches, grid);
    }
}

#[test]
fn arguments_in_a_buffer_get_the_words_at_their_offset() {
    let loaded = load(ROWS, "thread", "load=data get=function buffer=2,1,65536", &[FIX]);
    assert!(loaded.succeeded(), "{}", loaded.ran.out);
    assert_blocks_of(&loaded.launches(), [2, 1, 65_536]);
    assert!(loaded.log.contains("entry cuLaunchKernel_ptsz"), "{}", loaded.log);
}

#[test]
fn however_ptx_is_loaded_and_looked_up_its_launches_are_fixed() {
    let only_ptx = fatbin(ROWS, "");
    let is_fixed = |image: &[u8], actions: &str| {
        let loaded = load(image, "dlsym", &format!("{actions} launch=1,70000,1"), &[FIX, QUIET]);
        assert!(loaded.ran.err.is_empty(), "{actions}: {}", loaded.ran.err);
        assert_blocks_of(&loaded.launches(), [1, 70_000, 1]);
    };
    for how in ["data", "ex", "file"] {
        is_fixed(ROWS.as_bytes(), &format!("load={how} get=function"));
        is_fixed(&only_ptx, &format!("load={how} get=function"));
    }
    is_fixed(&only_ptx, "load=fatbin get=function");
    is_fixed(&only_ptx, "load=wrapped get=function");
    for how in ["library", "library-file", "library-preserved"] {
        for lookup in ["kernel", "kernel-function", "library-module"] {
            is_fixed(ROWS.as_bytes(), &format!("load={how} get={lookup}"));
        }
    }
    is_fixed(ROWS.as_bytes(), "load=data get=function unload load=ex get=function get=function");
}

#[test]
fn captured_launches_are_captured_in_parts() {
    let actions = "load=data stream get=function capture launch=1,70000,70000 end replay wait";
    let loaded = load(ROWS, "dlsym", actions, &[FIX]);
    assert!(loaded.succeeded(), "{}", loaded.ran.out);
    let launches = loaded.launches();
    for stream in ["capturing", "graph"] {
        let of: Vec<Launch> = loaded.launches();
        let of: Vec<Launch> = of.into_iter().filter(|one| one.stream == stream).collect();
        assert_eq!(of.len(), launches.len() / 2);
        assert_blocks_of(&of, [1, 70_000, 70_000]);
    }
}

#[test]
fn attributes_stay_on_each_part_and_dependence_on_the_first() {
    let actions = "load=data get=function ex=1,70000,70000,6 ex=1,70000,1,12";
    let loaded = load(ROWS, "dlsym", actions, &[FIX]);
    assert!(loaded.succeeded(), "{}", loaded.ran.out);
    let mut launches = loaded.launches();
    let one = launches.pop().unwrap();
    assert_eq!(one.rest, "priority=2");
    assert_blocks_of(&[one], [1, 70_000, 1]);
    assert_blocks_of(&launches, [1, 70_000, 70_000]);
    let rest: Vec<&str> = launches.iter().map(|one| one.rest.as_str()).collect();
    assert_eq!(rest[0], "overlap=1 priority=2");
    assert!(rest.len() > 1 && rest[1..].iter().all(|one| *one == "priority=2"), "{rest:?}");
}

#[test]
fn parts_of_a_launch_in_clusters_keep_them_whole() {
    let actions = "load=data get=function ex=2,70000,1,4 ex=2,65535,1,4";
    let loaded = load(ROWS, "dlsym", actions, &[FIX, QUIET]);
    assert!(loaded.succeeded() && loaded.ran.err.is_empty(), "{}", loaded.ran.err);
    let mut launches = loaded.launches();
    let legal = launches.pop().unwrap();
    assert!(launches.iter().all(|one| one.rest == legal.rest), "{launches:?}");
    assert_eq!((launches.len(), legal.kernel.as_str()), (2, "rows"));
    assert!(legal.rest.contains("cluster=2,1,1"), "{}", legal.rest);
    assert_blocks_of(&launches, [2, 70_000, 1]);
    // The cluster of a kernel may be compiled in.
    let compiled = format!("{ROWS}// fake rows cluster=1,4\n")
        .replace(")\n{", ")\n.reqnctapercluster 1, 4\n{");
    let actions = "load=data get=function launch=1,70000,1";
    let loaded = load(compiled, "dlsym", actions, &[FIX, QUIET]);
    assert!(loaded.succeeded() && loaded.ran.err.is_empty(), "{}", loaded.ran.err);
    let launches = loaded.launches();
    assert_blocks_of(&launches, [1, 70_000, 1]);
    assert!(
        launches.len() == 2 && launches.iter().all(|one| one.kernel == "rows__gridguard_shifted")
    );
}

#[test]
fn forms_get_the_attributes_that_the_program_set() {
    let with = |actions: &str| {
        let actions = format!("load=data get=function {actions} shared=1,70000,1");
        load(ROWS, "dlsym", &actions, &[FIX, QUIET])
    };
    // The library makes up for an opt-in that the program forgot.
    for actions in ["opt-in", "launch=1,1,1"] {
        let loaded = with(actions);
        assert!(loaded.succeeded(), "{}", loaded.ran.err);
        let Loaded { log, .. } = loaded;
        assert!(log.contains("attribute rows__gridguard_folded 8=100000\n"), "{log}");
        assert!(log.contains("launch rows__gridguard_folded grid=70000,1,1"), "{log}");
    }
}

#[test]
fn a_launch_that_cannot_be_fixed_is_refused_with_the_reason() {
    let grid_id = ROWS.replace("%nctaid.y", "%gridid");
    let cluster = ROWS.replace(")\n{", ")\n.blocksareclusters\n{");
    let no_ptx = ".version 8.0\n.target sm_90\n.entry rows(.param .u64 out, .param .u32 n) { ret;";
    let options = fatbin(ROWS, "-maxrregcount 32");
    let plain = ROWS.as_bytes();
    for (image, launch, reason) in [
        (plain, "cooperative=1,70000,1", "the blocks of a cooperative launch wait for each other"),
        (
            plain,
            "ex=3,70000,1,4",
            "also in parts, grid.x (3) is not a multiple of the cluster size (2)",
        ),
        (plain, "ex=1,70000,1,13", "its attribute 13 is for one launch of the kernel itself"),
        (plain, "ex=1,70000,70000,12", "its attribute 12 is for one launch of the kernel itself"),
        (plain, "none=1,70000,1", "the launch passes no arguments"),
        (plain, "wide=1,70000,1", "also in parts, block.x is 2048 threads, the limit is 1024"),
        (
            grid_id.as_bytes(),
            "launch=1,70000,1",
            "its PTX, line 12, column 15, in rows: %gridid identifies",
        ),
        (
            cluster.as_bytes(),
            "launch=2,70000,1",
            "its PTX, line 9, column 1, in rows: .blocksareclusters",
        ),
        (
            &options,
            "launch=1,70000,1",
            "the PTX of its fat binary is compiled with options that a rewritten one would lose: \
             -maxrregcount 32",
        ),
    ] {
        let actions = format!("load=data get=function {launch}");
        let loaded = load(image, "dlsym", &actions, &[FIX, QUIET]);
        let err = &loaded.ran.err;
        assert!(err.contains(&format!("  fix       not possible: {reason}")), "{launch}: {err}");
        assert_eq!((loaded.launches().len(), err.matches("launch refused").count()), (0, 1));
        assert!(loaded.ran.out.ends_with(&format!("{launch} 1\n")), "{}", loaded.ran.out);
    }
    let forced = [FIX, QUIET, ("CUDA_FORCE_PTX_JIT", "1")];
    let actions = "load=data get=function launch=1,70000,1";
    let loaded = load(machine_code::ZSTD, "dlsym", actions, &forced);
    assert_blocks_of(&loaded.launches(), [1, 70_000, 1]);
    let broken = load(no_ptx, "dlsym", "load=data", &[FIX, QUIET]);
    assert_eq!((&*broken.ran.out, &*broken.ran.err), ("load=data 218\n", ""));
}

#[test]
fn what_the_driver_does_not_load_rewritten_is_loaded_as_it_is() {
    let refused = ("GRIDGUARD_FAKE_FAIL_TEXT", "__gridguard_folded");
    for how in ["data", "ex", "file", "library", "library-file"] {
        let lookup = if how.starts_with("library") { "kernel" } else { "function" };
        let actions = format!("load={how} get={lookup} launch=1,6000,1 launch=1,70000,1");
        let loaded = load(ROWS, "dlsym", &actions, &[FIX, QUIET, refused]);
        let err = &loaded.ran.err;
        let note = "gridguard: a module is loaded unmodified, and its launches are not fixed: the driver \
                    refused its rewritten PTX: CUDA_ERROR_INVALID_PTX (218), a PTX JIT compilation \
                    failed\n";
        assert!(err.starts_with(note) && err.matches(note).count() == 1, "{how}: {err}");
        assert!(
            err.contains("  fix       not possible: the driver refused its rewritten PTX"),
            "{err}"
        );
        assert!(loaded.ran.out.contains("launch=1,6000,1 0\nlaunch=1,70000,1 1"), "{err}");
        // The size of the log comes from the second load.
        assert!(
            how != "ex" || loaded.ran.out.starts_with("log of 0 bytes: \n"),
            "{}",
            loaded.ran.out
        );
    }
}

#[test]
fn a_launch_that_lacks_an_opt_in_is_made_with_it_and_the_call_is_named() {
    let shared = "cudaFuncAttributeMaxDynamicSharedMemorySize, 100000";
    let cluster = "cudaFuncAttributeNonPortableClusterSizeAllowed, 1";
    for (mut command, attribute, accepted, out) in [
        // The device has 232,448 bytes and clusters of up to 16 blocks.
        (
            preloaded(Driver::Whole, "dlsym shared=100000 good good shared=300000 good"),
            shared,
            "2 launches",
            "good 0\ngood 0\nshared 300000\ngood 1\n",
        ),
        (
            preloaded(Driver::Whole, "dlsym cluster=16 cluster=32"),
            cluster,
            "1 launch",
            "cluster 0\ncluster 912\n",
        ),
        (
            preloaded(Driver::Whole, "query-12 shared=100000 refused good shared=300000 good"),
            shared,
            "1 launch",
            "refused 0\ngood 0\nshared 300000\ngood 1\n",
        ),
        (
            graphs(Driver::Whole, "13000 shared=100000 add=5 add-any=6 shared=300000 add=7"),
            shared,
            "2 launches",
            "add=5 0\nadd-any=6 0\nshared=300000 0\nadd=7 1\n",
        ),
    ] {
        let ran = run(command.env(FIX.0, FIX.1));
        assert!(ran.out.ends_with(out), "{}", ran.out);
        assert!(
            ran.err.contains(&format!("gridguard: {accepted} of 1 kernel accepted, 1 refused")),
            "{}",
            ran.err
        );
        let call = format!(
            "  fixed: the program lacks cudaFuncSetAttribute(touch(float*, int), {attribute})\n"
        );
        assert_eq!(ran.err.matches("the program lacks").count(), 1, "{}", ran.err);
        assert!(ran.err.contains(&call), "{}", ran.err);
    }
}

#[test]
fn a_part_that_the_driver_refuses_is_named() {
    let actions = "load=data get=function launch=1,70000,70000";
    let failing = |launch| {
        load(ROWS, "dlsym", actions, &[FIX, QUIET, ("GRIDGUARD_FAKE_FAIL_LAUNCH", launch)])
    };
    let error = "CUDA_ERROR_LAUNCH_FAILED (719), unspecified launch failure";
    let second = failing("1");
    assert_eq!(
        second.ran.err.lines().next().unwrap(),
        format!(
            "gridguard: part 2 of 4 of a fixed launch of rows was refused: {error}; the parts before it were \
             launched"
        )
    );
    assert!(second.ran.out.ends_with("launch=1,70000,70000 719\n"), "{}", second.ran.out);
    let first = failing("0");
    let reason = format!("  fix       not possible: the driver refused its form: {error}\n");
    assert!(first.ran.err.contains(&reason), "{}", first.ran.err);
    assert!(first.ran.out.ends_with("launch=1,70000,70000 1\n"), "{}", first.ran.out);
}

#[test]
fn fixed_launches_are_reported_recorded_and_suspected_of_late_errors() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name).into_os_string();
    let value = OsStr::new;
    let options = [
        (FIX.0, value(FIX.1).to_owned()),
        ("GRIDGUARD_RUN_REPORT", path("report.json")),
        ("GRIDGUARD_RUN_RECORD", path("launches")),
        ("GRIDGUARD_FAKE_FAULT_LAUNCH", value("1").to_owned()),
    ];
    let actions = "load=data get=function launch=1,60000,1 launch=1,70000,1 wait";
    let loaded = load(ROWS, "dlsym", actions, &options);
    let suspects = "  suspects  2 launches since the last synchronisation, newest first:\n            rows, grid 1 \
                    x 70000 x 1\n            rows, grid 1 x 60000 x 1\n";
    assert!(loaded.ran.err.contains(suspects), "{}", loaded.ran.err);
    let report = std::fs::read_to_string(path("report.json")).unwrap();
    let report: WatchReport = serde_json::from_str(&report).unwrap();
    assert_eq!((report.launches, report.refused, report.fixed), (1, 0, 1));
    assert_eq!(report.devices.len(), 1);
    assert_eq!((report.kernels[0].fixed, report.kernels[0].max_grid.y), (1, 60_000));
    let recorded = std::fs::read_to_string(path("launches")).unwrap();
    let recorded: Vec<CheckRequest> =
        recorded.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let rows: Vec<u64> = recorded.iter().map(|one| one.request.grid.y).collect();
    assert_eq!(rows, [60_000, 70_000]);
    let synced = [FIX, QUIET, ("GRIDGUARD_RUN_SYNC", "1"), ("GRIDGUARD_FAKE_FAULT_LAUNCH", "1")];
    let loaded = load(ROWS, "dlsym", actions, &synced);
    assert!(loaded.ran.err.contains("  launch    the only one"), "{}", loaded.ran.err);
}
