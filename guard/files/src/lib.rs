//! Replaces files atomically, locks them between processes, and reads only what others cannot have written.
//!
//! No function waits for the other end of a pipe or reads from a device.
//!
//! ```
//! use gridguard_files::{publish, read};
//!
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let path = folder.join("results").join("times.txt");
//! assert_eq!(read(&path, 1000)?, None);
//! publish(&path, b"1.5 us\n")?;
//! assert_eq!(read(&path, 1000)?.as_deref(), Some(&b"1.5 us\n"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod conditional;
mod error;
mod folder;
mod kind;
mod lock;
mod publish;
mod read;
#[cfg(unix)]
mod unix;

pub use conditional::{append, publish_if};
pub use error::{Distrust, ReadError};
pub use folder::{create_folder, folder_of, resolve_links, user_cache_folder, user_data_folder};
pub use kind::{FileKind, file_kind};
pub use lock::{FileLock, LockError};
pub use publish::{
    OwnerChange, PublishError, check_output, delete_leftovers, publish, publish_new,
    publish_private, write_output,
};
pub use read::{check_folder, open, read, read_trusted};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
