//! The invariants of the fuzz targets, on each of their seeds and on seeds that were mangled.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use core::fmt;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

use gridguard_tests::invariants::{TARGETS, Target};
use proptest::prelude::*;
use proptest::sample::{Index, select};
use proptest::test_runner::TestRunner;

/// `path` in the folder of the fuzz targets.
fn fuzz(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz").join(path)
}

/// The names of the files in a folder, without what follows a dot.
fn stems(folder: &Path) -> BTreeSet<String> {
    let files = fs::read_dir(folder).expect("a folder");
    let name = |file: std::io::Result<fs::DirEntry>| file.expect("a file").path();
    let stem = |path: PathBuf| path.file_stem().expect("a name").to_str().expect("text").to_owned();
    files.map(name).map(stem).collect()
}

fn seeds(target: &str) -> Vec<Vec<u8>> {
    let files = fs::read_dir(fuzz("seeds").join(target)).expect("a folder of seeds");
    let mut paths: Vec<PathBuf> = files.map(|file| file.expect("a seed").path()).collect();
    paths.sort();
    paths.iter().map(|path| fs::read(path).expect("a seed")).collect()
}

/// The words of a dictionary in libFuzzer's format; none where there is no dictionary.
fn words(target: &str) -> Vec<Vec<u8>> {
    let path = fuzz("dictionaries").join(format!("{target}.dict"));
    let text = fs::read_to_string(path).unwrap_or_default();
    let quoted = |line: &str| Some(line.strip_prefix('"')?.strip_suffix('"')?.as_bytes().to_vec());
    text.lines().filter_map(quoted).map(|word| unescaped(&word)).collect()
}

fn unescaped(word: &[u8]) -> Vec<u8> {
    let (mut bytes, mut rest) = (Vec::new(), word);
    while let [first, after @ ..] = rest {
        let (byte, taken) = match (first, after) {
            (b'\\', [b'x', digits @ ..]) => {
                let digits = core::str::from_utf8(&digits[..2]).expect("two digits");
                (u8::from_str_radix(digits, 16).expect("two digits"), 4)
            }
            (b'\\', [byte, ..]) => (*byte, 2),
            _ => (*first, 1),
        };
        bytes.push(byte);
        rest = &rest[taken..];
    }
    bytes
}

/// Bytes that are shown as text where they can be.
#[derive(Clone)]
struct Mangled(Vec<u8>);

impl fmt::Debug for Mangled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "b\"{}\"", self.0.escape_ascii())
    }
}

/// Seeds of `target` with parts of them replaced: by nothing, words, parts of other seeds, anything.
fn mangled(target: &str) -> impl Strategy<Value = Mangled> + use<> {
    let (seeds, mut words) = (seeds(target), words(target));
    words.push(Vec::new());
    let part =
        (select(seeds.clone()), any::<Index>(), 0..200_usize).prop_map(|(seed, at, length)| {
            let at = at.index(seed.len());
            seed[at..(at + length).min(seed.len())].to_vec()
        });
    let new = prop_oneof![
        4 => select(words),
        1 => part,
        2 => prop::collection::vec(any::<u8>(), 0..5),
    ];
    let removed = prop_oneof![4 => 0..3_usize, 1 => 0..300_usize];
    let changes = prop::collection::vec((any::<Index>(), removed, new), 0..6);
    (select(seeds), changes).prop_map(|(mut bytes, changes)| {
        for (at, removed, new) in changes {
            let at = at.index(bytes.len() + 1);
            let end = (at + removed).min(bytes.len());
            bytes.splice(at..end, new);
        }
        Mangled(bytes)
    })
}

#[test]
fn every_target_has_its_program_and_seeds_and_nothing_else_has() {
    let targets: BTreeSet<String> = TARGETS.iter().map(|target| target.name.to_owned()).collect();
    assert_eq!(targets.len(), TARGETS.len());
    assert_eq!(stems(&fuzz("targets")), targets);
    assert_eq!(stems(&fuzz("seeds")), targets);
    assert!(stems(&fuzz("dictionaries")).is_subset(&targets));
    let manifest = fs::read_to_string(fuzz("Cargo.toml")).expect("a manifest");
    for name in targets {
        assert!(manifest.contains(&format!("path = \"targets/{name}.rs\"")), "{name}");
        let program = fs::read_to_string(fuzz("targets").join(format!("{name}.rs")));
        assert!(program.expect("a program").contains(&format!("check(\"{name}\", bytes)")));
        assert!(!seeds(&name).is_empty(), "{name} has no seed");
    }
}

#[test]
fn every_target_holds_on_its_seeds_and_on_mangled_ones() {
    std::thread::scope(|scope| {
        for Target { name, check } in TARGETS {
            scope.spawn(move || {
                seeds(name).iter().for_each(|seed| check(seed));
                let cases = ProptestConfig::with_cases(500);
                let config = ProptestConfig { failure_persistence: None, ..cases };
                let held = TestRunner::new(config).run(&mangled(name), |bytes| {
                    check(&bytes.0);
                    Ok(())
                });
                held.unwrap_or_else(|error| panic!("{name}: {error}"));
            });
        }
    });
}

proptest! {
    #![proptest_config(ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(500)
    })]

    #[test]
    fn a_whole_image_is_taken_and_one_that_is_cut_refused(
        image in gridguard_tests::invariants::image::whole_images(),
        cut in any::<Index>(),
    ) {
        let cut = cut.index(image.len());
        gridguard_tests::invariants::image::a_whole_image_is_taken_and_a_cut_one_refused(&image, cut);
    }
}

#[test]
fn a_dictionary_s_words_are_read_as_libfuzzer_reads_them() {
    assert_eq!(unescaped(br#"a\x0a\\\"b"#), b"a\n\\\"b");
    assert!(words("log").contains(&b"cudaError".to_vec()));
    assert!(words("image").contains(&b"\x7fELF".to_vec()));
}
