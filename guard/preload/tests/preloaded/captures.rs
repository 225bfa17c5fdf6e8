//! Captures of one launch with its memory.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use gridguard_report::{Capture, CapturedMemory};

use crate::programs::{Ran, captured, run, without_room};

/// The words of the memory at a place, before or after the launch.
fn words(capture: &Capture, place: usize, is_after: bool) -> Vec<u64> {
    let parts = capture.parts(place).map(|part| capture.read(place, is_after, &part).unwrap());
    let bytes = parts.flatten().collect::<Vec<_>>();
    bytes.as_chunks().0.iter().map(|word| u64::from_le_bytes(*word)).collect()
}

/// Runs the program, whose output must be as without a capture.
fn capture(actions: &str, of: (&str, u64), file: &Path) -> Ran {
    let ran = run(&mut captured(actions, of, file));
    let plain: String = actions.split(' ').map(|action| format!("{action} 0\n")).collect();
    assert_eq!(ran.out, format!("set up 0\n{plain}"), "{}", ran.err);
    assert!(ran.status.success());
    ran
}

fn opened(file: &Path, ran: &Ran) -> Capture {
    Capture::open(file).unwrap_or_else(|error| panic!("{error}\n{}", ran.err))
}

#[test]
fn the_wanted_launch_is_kept_with_its_arguments_image_and_memory() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("invert.tar");
    let ran = capture("counter invert iota invert invert", ("gridguard_invert", 2), &file);
    let name = file.display();
    assert_eq!(
        ran.err,
        format!(
            "gridguard: capturing launch 2 of gridguard_invert with 4.01 KiB of memory (allocations: 1, variables: 2) in \
             {name}, which takes at most 8.36 KiB. Device memory may hold secrets, for example weights, prompts and \
             keys: only you can read the file, share it with care\n\
             gridguard: captured launch 2 of gridguard_invert: `gridguard tune --replay {name}` measures it\n"
        )
    );
    let capture = opened(&file, &ran);
    let launch = capture.launch();
    assert_eq!((&*launch.kernel, launch.number), ("gridguard_invert", 2));
    assert_eq!((launch.request.grid.x, launch.request.block.x), (8, 64));
    assert_eq!((&*launch.device.name, launch.carveout), ("NVIDIA H200", None));
    assert!(launch.program.ends_with("/captured"), "{}", launch.program);
    let image = String::from_utf8(capture.image().unwrap()).unwrap();
    assert!(image.starts_with(".version 8.0\n") && image.contains(".entry iota_x("), "{image}");
    let [values, counter, scale] = &*launch.memory else { panic!("{:?}", launch.memory) };
    assert_eq!((values.bytes, &values.variable), (4096, &None));
    assert_eq!((counter.bytes, counter.variable.as_deref()), (8, Some("counter")));
    assert_eq!((scale.bytes, scale.variable.as_deref()), (8, Some("scale")));
    let items = 512_u64.to_le_bytes().to_vec();
    assert_eq!(launch.arguments, [values.address.to_le_bytes().to_vec(), items]);
    // The first inversion and `iota_x`, which wrote 5, 6, ... after the first 8 words, came before.
    let mut before: Vec<u64> = (0..512).map(|value: u64| !value).collect();
    (0..16).for_each(|place| before[8 + place] = 5 + u64::try_from(place).unwrap());
    let after: Vec<u64> = before.iter().map(|value| !value).collect();
    assert_eq!(words(&capture, 0, false), before);
    assert_eq!(words(&capture, 0, true), after);
    assert_eq!([0, 1, 2].map(|place| capture.is_changed(place)), [true, false, false]);
    assert_eq!(words(&capture, 1, true), [7]);
    assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1, "nothing else was written");
}

#[test]
fn pointers_within_allocations_and_in_memory_are_followed_to_whole_allocations() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("lookup.tar");
    // By the name in the source.
    let ran = capture("lookup", ("lookup", 1), &file);
    let found = opened(&file, &ran);
    let launch = found.launch();
    assert_eq!((&*launch.kernel, launch.pointers), ("_Z6lookupPPyi", 1));
    let mut allocations: Vec<_> =
        launch.memory.iter().filter(|one| one.variable.is_none()).collect();
    allocations.sort_by_key(|one| one.bytes);
    let [CapturedMemory { bytes: 64, .. }, values] = allocations[..] else {
        panic!("{allocations:?}")
    };
    assert_eq!(values.bytes, 4096);
    assert!((0..launch.memory.len()).all(|place| !found.is_changed(place)));
    let within = folder.path().join("iota.tar");
    let ran = capture("iota", ("iota_x", 1), &within);
    let launch = opened(&within, &ran).launch().clone();
    let address = launch.memory[0].address + 64;
    assert_eq!(launch.arguments[0], address.to_le_bytes());
}

#[test]
fn memory_beyond_the_limit_is_refused_before_anything_is_written() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("large.tar");
    let ran = capture("large", ("lookup", 1), &file);
    assert_eq!(
        ran.err,
        "gridguard: launch 1 of lookup is not captured: it reaches at least 64.00 MiB of memory, the limit is 1.00 \
         MiB: set --capture-limit\n"
    );
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_launch_that_does_not_come_is_said_at_the_end() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("none.tar");
    for (actions, of, why) in [
        ("invert", ("gridguard_invert", 3), "there was 1 launch of it"),
        ("invert invert", ("gridguard_invert", 3), "there were 2 launches of it"),
        ("invert iota", ("other", 1), "the program launched gridguard_invert, iota_x"),
        (
            "graph",
            ("gridguard_invert", 1),
            "0 launches ran outside of graphs, and those in graphs are not captured",
        ),
    ] {
        let ran = capture(actions, of, &file);
        let (kernel, number) = of;
        let expected = format!("gridguard: launch {number} of {kernel} is not captured: {why}\n");
        assert_eq!(ran.err, expected);
    }
    let mut idle = captured("counter", ("other", 1), &file);
    assert_eq!(run(&mut idle).err, "", "a helper process says nothing");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn a_launch_in_a_graph_does_not_count() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("invert.tar");
    let ran = capture("graph invert", ("gridguard_invert", 1), &file);
    assert_eq!(words(&opened(&file, &ran), 0, false)[1], 1);
}

#[test]
fn a_launch_that_fails_leaves_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("invert.tar");
    for (setting, why) in [
        ("GRIDGUARD_FAKE_FAIL_LAUNCH", "it was refused: CUDA_ERROR_LAUNCH_FAILED (719)"),
        (
            "GRIDGUARD_FAKE_FAULT_LAUNCH",
            "cuCtxSynchronize returned CUDA_ERROR_ILLEGAL_ADDRESS (700)",
        ),
    ] {
        let ran = run(captured("invert", ("gridguard_invert", 1), &file).env(setting, "0"));
        assert!(ran.err.contains(&format!("is not captured: {why}")), "{}", ran.err);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "{setting}");
    }
    // It takes its time, and the process ends meanwhile.
    let mut slow = captured("invert", ("gridguard_invert", 1), &file);
    let mut child = slow.env("GRIDGUARD_FAKE_LAUNCH_MS", "60000").spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(500));
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0, "killed");
    let killed = run(&mut captured("invert die", ("gridguard_invert", 1), &file));
    assert!(!killed.status.success());
    opened(&file, &killed);
}

#[test]
fn a_full_disk_leaves_nothing_and_the_program_goes_on() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("invert.tar");
    let command = captured("invert invert", ("gridguard_invert", 1), &file);
    let ran = run(&mut without_room(&command));
    assert!(ran.status.success() && ran.out.ends_with("invert 0\ninvert 0\n"), "{ran:?}");
    assert!(ran.err.contains("launch 1 of gridguard_invert is not captured: "), "{}", ran.err);
    assert!(ran.err.contains("File too large"), "{}", ran.err);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn an_existing_file_is_kept() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("invert.tar");
    fs::write(&file, "mine").unwrap();
    let ran = capture("invert", ("gridguard_invert", 1), &file);
    assert!(
        ran.err.ends_with(&format!("is not captured: {} exists\n", file.display())),
        "{}",
        ran.err
    );
    assert_eq!(fs::read(&file).unwrap(), b"mine");
    let nowhere = folder.path().join("no folder").join("invert.tar");
    let ran = capture("invert", ("gridguard_invert", 1), &nowhere);
    assert!(ran.err.contains("creating a temporary file: No such file"), "{}", ran.err);
}
