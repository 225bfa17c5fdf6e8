//! Reads, replaces and locks files, and finds the folder of a user's caches.
//!
//! Reading and locking never wait for a pipe and never read from a device. Replacing is atomic.
//!
//! ```
//! use gridguard::files::{publish, read};
//!
//! # let folder = tempfile::tempdir()?;
//! # let folder = folder.path();
//! let path = folder.join("results").join("times.txt");
//! assert_eq!(read(&path, 1000)?, None);
//! publish(&path, b"1.5 us\n")?;
//! assert_eq!(read(&path, 1000)?.as_deref(), Some(&b"1.5 us\n"[..]));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

mod folder;
mod lock;
mod over;
mod place;
mod publish;
mod read;
mod trust;

#[cfg(feature = "profile")]
pub(crate) use folder::folder_of;
pub use folder::{create_folder, end_of_links, user_cache_folder};
pub use lock::{FileLock, LockError};
pub use over::{append, publish_over};
pub use place::{Place, place};
pub use publish::{
    OwnerChange, PublishError, check_output, delete_leftovers, publish, publish_new,
    publish_private, write_output,
};
pub use read::{ReadError, check_folder, open, read, read_trusted};
pub use trust::Distrust;
