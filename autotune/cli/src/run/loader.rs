//! What the dynamic loader takes in `LD_PRELOAD`.

use std::path::Path;

/// The name of the library, which also finds it in `LD_PRELOAD`.
pub(super) const LIBRARY: &str = "libgridguard_preload.so";

/// Refuses a path that the loader would cut.
pub(super) fn check_path(path: &Path) -> Result<(), String> {
    let is_cut = |byte: &u8| [b' ', b':', b'\t', b'\n'].contains(byte);
    match path.as_os_str().as_encoded_bytes().iter().any(is_cut) {
        true => Err("the loader takes no path with a space or a colon".to_owned()),
        false => Ok(()),
    }
}
