//! Frames of Python.

use core::fmt;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// A frame of the Python stack: `train.py:42 in forward`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PythonFrame {
    /// The path of the source file, as the code object has it.
    pub file: String,
    /// The line that runs; 0 if it is unknown.
    pub line: u32,
    /// The function; its qualified name since Python 3.11.
    pub function: String,
}

impl PythonFrame {
    /// The frame that a reader most likely wants, of frames with the innermost first: the innermost one outside
    /// libraries, or else the innermost one.
    pub fn of_program(frames: &[Self]) -> Option<&Self> {
        frames.iter().find(|frame| !frame.is_of_library()).or(frames.first())
    }

    /// Whether the file belongs to Python, to an installed package or to a compiler, rather than to the program.
    fn is_of_library(&self) -> bool {
        let is_marked = LIBRARY_FOLDERS.iter().any(|folder| self.file.contains(folder));
        // `<frozen runpy>`, `<string>`.
        is_marked || self.file.starts_with('<')
    }

    /// The frame, with its path below `folder` if it is there.
    pub fn below(&self, folder: Option<&Path>) -> String {
        let below = folder.and_then(|folder| Path::new(&self.file).strip_prefix(folder).ok());
        let file = below.and_then(Path::to_str).unwrap_or(&self.file);
        format!("{file}:{} in {}", self.line, self.function)
    }
}

impl fmt::Display for PythonFrame {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.below(None))
    }
}

/// Folders of packages, of the standard library, and of the code that PyTorch's compiler writes.
const LIBRARY_FOLDERS: [&str; 5] =
    ["/site-packages/", "/dist-packages/", "/lib/python3", "/lib64/python3", "/torchinductor_"];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_frame_of_the_program_is_told_from_those_of_libraries() {
        let frame = |file: &str| PythonFrame { file: file.into(), line: 4, function: "f".into() };
        for library in [
            "/usr/lib/python3/dist-packages/torch/nn/modules/linear.py",
            "/home/a/.venv/lib/python3.12/site-packages/torch/_ops.py",
            "/usr/lib/python3.11/runpy.py",
            "/tmp/torchinductor_a/xy/cxy.py",
            "<frozen runpy>",
        ] {
            assert!(frame(library).is_of_library(), "{library}");
        }
        let own = frame("/home/a/model/layers.py");
        assert!(!own.is_of_library());
        assert_eq!(own.below(Some(Path::new("/home/a"))), "model/layers.py:4 in f");
        assert_eq!(own.below(Some(Path::new("/home/b"))), own.to_string());
        assert_eq!(own.to_string(), "/home/a/model/layers.py:4 in f");
    }
}
