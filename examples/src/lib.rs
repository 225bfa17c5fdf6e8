//! What the examples share: tensors, made up or from the user's own files.

mod random;
mod tensor_file;

pub use random::uniform;
pub use tensor_file::{Qkv, TensorFileError, Tensors, read_qkv, write_out};
