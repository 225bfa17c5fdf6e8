//! Programs that must not compile, with the compiler's messages: `programs`.
