//! Other threads and processes that write at the same time, and one that is killed.

use std::process::{Child, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use super::*;

#[test]
fn two_threads_write_and_read_one_entry() {
    let (folder, cache) = cache();
    let images = [cubin(b"short"), cubin(&vec![9; 100_000])];
    let start = Barrier::new(images.len());
    thread::scope(|scope| {
        for image in &images {
            scope.spawn(|| {
                start.wait();
                for _ in 0..200 {
                    cache.put(&key("a"), image).expect("stored");
                    let found = cache.get(&key("a")).expect("whole").expect("there");
                    assert!(images.contains(&found));
                }
            });
        }
    });
    assert_eq!(names_in(folder.path()), [format!("{}.cubin", key("a"))]);
}

/// Set for the process that writes until it is killed: the folder.
const WRITER: &str = "GRIDGUARD_TEST_CUBIN_WRITER";
/// The keys that the writer alternates.
const SOURCES: [&str; 3] = ["a", "b", "c"];

/// Kills the writer however the test ends.
struct Writer(Child);

impl Writer {
    fn start(folder: &Path) -> Self {
        let (_, module) = module_path!().split_once("::").expect("a module of a crate");
        let test = format!("{module}::a_writer_killed_halfway_leaves_no_torn_entry");
        let program = std::env::current_exe().expect("this program");
        let mut writer = Command::new(program);
        writer.args(["--exact", &test]).env(WRITER, folder).stdout(Stdio::null());
        Self(writer.spawn().expect("it starts"))
    }

    fn kill(&mut self) {
        assert!(self.0.try_wait().expect("its state").is_none(), "it ended by itself");
        self.0.kill().expect("killed");
        self.0.wait().expect("ended");
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // Fails where the writer has already ended.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn large(source: &str) -> Image {
    cubin(&source.repeat(1 << 20).into_bytes())
}

/// The other process: writes until it is killed, or for long enough that the test has failed.
fn write_on(cache: &CubinCache) {
    let start = Instant::now();
    let images = SOURCES.map(|source| (key(source), large(source)));
    for (key, image) in images.iter().cycle() {
        assert!(start.elapsed() < Duration::from_secs(600), "the writer was not killed");
        cache.put(key, image).expect("stored");
    }
}

#[test]
fn a_writer_killed_halfway_leaves_no_torn_entry() {
    if let Some(folder) = std::env::var_os(WRITER) {
        return write_on(&CubinCache::at(folder));
    }
    let (folder, cache) = cache();
    let is_leftover = |name: &String| name.ends_with(".tmp");
    let (mut read, mut halfway) = (0, 0);
    // More rounds if the machine is so busy that no kill hit the right moment.
    for round in 0..1000_u64 {
        if round >= 20 && halfway > 0 && read > 0 {
            break;
        }
        let before = names_in(folder.path()).into_iter().filter(is_leftover).count();
        let mut writer = Writer::start(folder.path());
        let deadline = Instant::now() + Duration::from_secs(600);
        while names_in(folder.path()).into_iter().filter(is_leftover).count() == before {
            assert!(Instant::now() < deadline, "the writer does not write");
        }
        // Every other one at the start of its first entry, the others up to some entries on.
        thread::sleep(Duration::from_millis(round % 2 * (round % 20).pow(2) / 4));
        writer.kill();
        let names = names_in(folder.path());
        halfway += usize::from(names.iter().filter(|name| is_leftover(name)).count() > before);
        for name in names.into_iter().filter(|name| !is_leftover(name)) {
            let of = |source: &&&str| name == format!("{}.cubin", key(source));
            let source = SOURCES.iter().find(of).expect("an entry of the writer");
            assert_eq!(cache.get(&key(source)), Ok(Some(large(source))));
            read += 1;
        }
    }
    assert!(halfway > 0, "no writer was killed while it wrote");
    assert!(read > 0, "no writer finished an entry");
}
