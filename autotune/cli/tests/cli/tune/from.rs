//! `gridguard tune --from`: the choices of another GPU.

use std::fs;
use std::path::Path;

use gridguard::catalog;
use gridguard::profile::{DeviceIdentity, Entry, StoredChoice};

use super::{folder, norms, tune_norms};
use crate::command::{Ran, command};
use crate::profile::entries::{LATE, chunks_of, document, norm};

/// The profile of a GPU with choices for norms of these shapes, in a folder of profiles.
fn profile_of(folder: &Path, gpu: &str, shapes: &[(u64, StoredChoice)]) {
    let device = DeviceIdentity::new(&catalog::gpu(gpu).expect("in the catalogue").limits);
    let entry =
        |(rows, choice): &(u64, StoredChoice)| Entry { choice: *choice, ..norm(*rows, LATE) };
    let document = document(device.clone(), shapes.iter().map(entry));
    fs::write(folder.join(device.file_name()), document.to_ron()).expect("written");
}

#[test]
fn the_choices_of_another_gpu_are_the_only_candidates() {
    let folder = folder();
    profile_of(folder.path(), "h100-pcie", &[(3000, chunks_of(77)), (500, chunks_of(55))]);
    let all = |args: &str| {
        let words = norms(&["3000x8"], &format!("--again --all --format json {args}"));
        let mut command = command(folder.path(), &words);
        let ran = command.env("GRIDGUARD_PROFILES", folder.path()).output().expect("it runs");
        let json = Ran::from(ran).exits(0).json();
        let rows = json["tuned"][0]["report"]["rows"].as_array().expect("rows").clone();
        rows.iter().map(|row| row["candidate"]["strategy"].to_string()).collect::<Vec<_>>()
    };
    assert!(!all("").contains(&"\"chunked\"".to_owned()));
    // The choice for this shape, and not the one for 500 rows. Either may be the faster one.
    let mut tried = all("--from h100-pcie");
    tried.sort();
    assert_eq!(tried, ["\"chunked\"", "\"whole\""]);
    tune_norms(folder.path(), &["3000x8"], "--from rtx-4090")
        .exits(2)
        .notes("name a GPU of the same architecture");
}
