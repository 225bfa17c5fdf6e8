//! The cache against torn, damaged and foreign entries, and against other processes.

use std::process::{Child, Command, Stdio};
use std::sync::Barrier;
use std::thread;
use std::time::Instant;

use gridguard::ComputeCapability;
use tempfile::TempDir;

use super::*;

/// A minimal CUDA ELF: header, one section with `content`, its table.
fn cubin(content: &[u8]) -> Image {
    let table = 64 + content.len();
    let mut bytes = vec![0; 64];
    bytes[..4].copy_from_slice(&ELF_MAGIC);
    bytes[4] = 2;
    bytes[18] = 190;
    bytes[40..48].copy_from_slice(&count(table).to_le_bytes());
    bytes[58] = 64; // bytes a section header
    bytes[60] = 1; // sections
    bytes.extend_from_slice(content);
    bytes.resize(table + 64, 0);
    bytes[table + 4] = 1; // a section with bytes
    bytes[table + 24] = 64; // its offset
    bytes[table + 32..][..8].copy_from_slice(&count(content.len()).to_le_bytes());
    Image::new(bytes).expect("a whole ELF")
}

fn key(source: &str) -> CubinKey {
    CubinKey::new(source, &CompileOptions::new("a.cu", ComputeCapability::new(9, 0)), (12, 8))
}

fn cache() -> (TempDir, CubinCache) {
    let folder = tempfile::tempdir().expect("a folder");
    let cache = CubinCache::at(folder.path());
    (folder, cache)
}

/// A cache with one entry, its path and its bytes.
fn stored() -> (TempDir, CubinCache, PathBuf, Vec<u8>) {
    let (folder, cache) = cache();
    cache.put(&key("a"), &cubin(b"machine code")).expect("stored");
    let path = cache.entry(&key("a"));
    let bytes = fs::read(&path).expect("an entry");
    (folder, cache, path, bytes)
}

#[track_caller]
fn corrupt(cache: &CubinCache, key: &CubinKey) -> CubinFault {
    match cache.get(key).expect_err("a corrupt entry") {
        CubinCacheError::Corrupt { path, what } => {
            assert_eq!(path, cache.entry(key));
            what
        }
        error => panic!("not corrupt: {error}"),
    }
}

#[track_caller]
fn refused_to_read(cache: &CubinCache) -> String {
    match cache.get(&key("a")).expect_err("no entry to read") {
        CubinCacheError::Read { path, reason } => {
            assert_eq!(path, cache.entry(&key("a")));
            reason
        }
        error => panic!("not unreadable: {error}"),
    }
}

#[track_caller]
fn refused_to_write(cache: &CubinCache) {
    let error = cache.put(&key("a"), &cubin(b"new")).expect_err("no place to write");
    let place = cache.entry(&key("a"));
    assert!(matches!(&error, CubinCacheError::Write { path, .. } if *path == place), "{error}");
}

fn names_in(folder: &Path) -> Vec<String> {
    let files = fs::read_dir(folder).expect("a folder");
    files.map(|file| file.expect("a file").file_name().into_string().expect("text")).collect()
}

#[test]
fn what_is_put_is_got() {
    let (folder, cache) = cache();
    let cache = CubinCache::at(cache.folder().join("made").join("at need"));
    assert_eq!(cache.get(&key("a")), Ok(None), "the folder is missing");
    let images = [cubin(b""), cubin(b"a"), cubin(&vec![7; 1 << 20])];
    for (source, image) in ["a", "b", "c"].iter().zip(&images) {
        cache.put(&key(source), image).expect("stored");
    }
    for (source, image) in ["a", "b", "c"].iter().zip(&images) {
        assert_eq!(cache.get(&key(source)).expect("whole").as_ref(), Some(image));
    }
    assert_eq!(cache.get(&key("d")), Ok(None));
    cache.put(&key("a"), &images[1]).expect("stored anew");
    assert_eq!(cache.get(&key("a")).expect("whole").as_ref(), Some(&images[1]));
    let mut names = names_in(cache.folder());
    names.sort();
    let mut expected = ["a", "b", "c"].map(|source| format!("{}.cubin", key(source)));
    expected.sort();
    assert_eq!(names, expected, "entries and nothing else");
    drop(folder);
}

#[test]
fn any_byte_that_changed_is_told_by_its_part() {
    let (_folder, cache, path, whole) = stored();
    for at in 0..whole.len() {
        for flip in [0x01, 0x80, 0xff] {
            let mut bytes = whole.clone();
            bytes[at] ^= flip;
            fs::write(&path, bytes).expect("written");
            let fault = corrupt(&cache, &key("a"));
            let as_expected = match at {
                0..8 => fault == CubinFault::Magic,
                8..12 => matches!(fault, CubinFault::Version(found) if found != FORMAT),
                12..44 => matches!(fault, CubinFault::Key(found) if found != key("a")),
                44..52 => matches!(fault, CubinFault::Length { .. }),
                _ => fault == CubinFault::Digest,
            };
            assert!(as_expected, "byte {at}: {fault}");
        }
    }
    fs::write(&path, whole).expect("written");
    assert_eq!(cache.get(&key("a")), Ok(Some(cubin(b"machine code"))));
}

#[test]
fn an_entry_cut_anywhere_is_refused() {
    let (_folder, cache, path, whole) = stored();
    let header = usize::try_from(HEADER_BYTES).expect("small");
    let announced = count(whole.len()) - HEADER_BYTES;
    for len in 0..whole.len() {
        fs::write(&path, &whole[..len]).expect("written");
        let expected = if len < header {
            CubinFault::Header(count(len))
        } else {
            CubinFault::Length { announced, found: count(len - header) }
        };
        assert_eq!(corrupt(&cache, &key("a")), expected, "{len} bytes");
    }
}

#[test]
fn what_follows_an_image_is_refused() {
    let (_folder, cache, path, whole) = stored();
    let announced = count(whole.len()) - HEADER_BYTES;
    for surplus in [1, 84, 4096] {
        let bytes = [whole.clone(), vec![0; surplus]].concat();
        fs::write(&path, bytes).expect("written");
        let found = announced + count(surplus);
        assert_eq!(corrupt(&cache, &key("a")), CubinFault::Length { announced, found });
    }
}

#[test]
fn an_absurd_length_is_refused() {
    let (_folder, cache, path, whole) = stored();
    let found = count(whole.len()) - HEADER_BYTES;
    for announced in [0, 1, found - 1, found + 1, MOST_IMAGE_BYTES + 1, 1 << 63, u64::MAX] {
        let mut bytes = whole.clone();
        bytes[44..52].copy_from_slice(&announced.to_le_bytes());
        fs::write(&path, bytes).expect("written");
        assert_eq!(corrupt(&cache, &key("a")), CubinFault::Length { announced, found });
    }
    // A gibibyte, of which the disk stores a page: one byte too many is read.
    let file = File::options().write(true).open(&path).expect("the entry");
    file.set_len(1 << 30).expect("a sparse file");
    for announced in [MOST_IMAGE_BYTES, MOST_IMAGE_BYTES + 1, (1 << 30) - HEADER_BYTES] {
        let mut start = whole[..84].to_vec();
        start[44..52].copy_from_slice(&announced.to_le_bytes());
        (&file).write_all(&start).expect("written");
        io::Seek::rewind(&mut (&file)).expect("at the start");
        let found = MOST_IMAGE_BYTES + 1;
        assert_eq!(corrupt(&cache, &key("a")), CubinFault::Length { announced, found });
    }
}

#[test]
fn an_entry_under_another_name_is_refused() {
    let (_folder, cache, path, _) = stored();
    fs::rename(path, cache.entry(&key("b"))).expect("renamed");
    assert_eq!(corrupt(&cache, &key("b")), CubinFault::Key(key("a")));
    assert_eq!(cache.get(&key("a")), Ok(None));
}

#[test]
fn an_image_that_is_not_whole_is_refused_in_spite_of_its_checksum() {
    let (_folder, cache, path, _) = stored();
    let image = cubin(b"machine code");
    let cut = &image.bytes()[..100];
    fs::write(&path, [&header(&key("a"), cut), cut].concat()).expect("written");
    let fault = corrupt(&cache, &key("a"));
    assert!(matches!(fault, CubinFault::Image(ImageError::Truncated { .. })), "{fault}");
    fs::write(&path, header(&key("a"), b"")).expect("written");
    assert_eq!(corrupt(&cache, &key("a")), CubinFault::Image(ImageError::Empty));
}

#[test]
fn a_corrupt_entry_is_replaced() {
    let (_folder, cache, path, _) = stored();
    fs::write(&path, "").expect("written");
    assert_eq!(corrupt(&cache, &key("a")), CubinFault::Header(0));
    cache.put(&key("a"), &cubin(b"new")).expect("stored anew");
    assert_eq!(cache.get(&key("a")), Ok(Some(cubin(b"new"))));
}

#[test]
fn only_machine_code_of_a_sane_size_is_stored() {
    let (folder, cache) = cache();
    let ptx = Image::new(".version 8.0\n.target sm_90\n").expect("PTX");
    assert_eq!(cache.put(&key("a"), &ptx), Err(CubinCacheError::NotCubin));
    let most = usize::try_from(MOST_IMAGE_BYTES).expect("small");
    let large = cubin(&vec![0; most - 127]);
    assert_eq!(cache.put(&key("a"), &large), Err(CubinCacheError::TooLarge(MOST_IMAGE_BYTES + 1)));
    assert_eq!(names_in(folder.path()), [""; 0]);
}

#[test]
fn a_folder_that_is_a_file_is_neither_read_nor_written() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    for folder in [file.path().to_owned(), file.path().join("below").join("it")] {
        let cache = CubinCache::at(folder);
        refused_to_read(&cache);
        refused_to_write(&cache);
    }
    assert_eq!(fs::read(file.path()).expect("still a file"), b"");
}

#[test]
fn a_folder_in_the_place_of_an_entry_is_neither_read_nor_replaced() {
    let (folder, cache) = cache();
    fs::create_dir_all(cache.entry(&key("a")).join("within")).expect("a folder");
    assert_eq!(refused_to_read(&cache), "it is not a regular file");
    refused_to_write(&cache);
    assert_eq!(names_in(folder.path()).len(), 1, "the file being written is gone");
}

#[cfg(unix)]
#[test]
fn a_pipe_in_the_place_of_an_entry_is_not_waited_for() {
    let (folder, cache) = cache();
    let (pipe, entry) = (folder.path().join("pipe"), cache.entry(&key("a")));
    let made = Command::new("mkfifo").args([&pipe, &entry]).status().expect("mkfifo runs");
    assert!(made.success());
    assert_eq!(refused_to_read(&cache), "it is not a regular file");
    fs::remove_file(&entry).expect("removed");
    std::os::unix::fs::symlink(&pipe, &entry).expect("a link to the pipe");
    assert_eq!(refused_to_read(&cache), "it is not a regular file");
    cache.put(&key("a"), &cubin(b"new")).expect("the link is replaced");
    assert_eq!(cache.get(&key("a")), Ok(Some(cubin(b"new"))));
    assert!(pipe.exists(), "what the link led to stays");
}

#[cfg(unix)]
#[test]
fn a_link_is_followed() {
    let (folder, cache, path, _) = stored();
    let elsewhere = folder.path().join("elsewhere");
    fs::rename(&path, &elsewhere).expect("renamed");
    std::os::unix::fs::symlink(&elsewhere, &path).expect("a link");
    assert_eq!(cache.get(&key("a")), Ok(Some(cubin(b"machine code"))));
    fs::remove_file(&elsewhere).expect("removed");
    assert_eq!(cache.get(&key("a")), Ok(None), "it leads nowhere");
    std::os::unix::fs::symlink(&path, &elsewhere).expect("a circle");
    refused_to_read(&cache);
}

#[test]
fn what_killed_writers_left_is_deleted_after_an_hour() {
    let (folder, cache) = cache();
    let at = |name: &str, age: Duration| {
        let file = File::create(folder.path().join(name)).expect("a file");
        file.set_modified(SystemTime::now() - age).expect("its time");
    };
    let (old, young) = (LEFTOVER_AGE + Duration::from_secs(9), LEFTOVER_AGE / 2);
    at("writing-old.tmp", old);
    at("writing-young.tmp", young);
    at("writing-without-an-ending", old);
    at("foreign.tmp", old);
    at("00.cubin", old);
    let to_come = File::create(folder.path().join("writing-to-come.tmp")).expect("a file");
    to_come.set_modified(SystemTime::now() + old).expect("its time");
    cache.put(&key("a"), &cubin(b"new")).expect("stored");
    let mut names = names_in(folder.path());
    names.sort();
    let mut expected = [
        "00.cubin",
        &format!("{}.cubin", key("a")),
        "foreign.tmp",
        "writing-to-come.tmp",
        "writing-without-an-ending",
        "writing-young.tmp",
    ];
    expected.sort_unstable();
    assert_eq!(names, expected);
}

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
/// Keys that it writes in turn.
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
        assert!(start.elapsed() < Duration::from_secs(60), "nobody killed the writer");
        cache.put(key, image).expect("stored");
    }
}

#[test]
fn a_writer_killed_halfway_leaves_no_torn_entry() {
    if let Some(folder) = std::env::var_os(WRITER) {
        return write_on(&CubinCache::at(folder));
    }
    let (folder, cache) = cache();
    let is_leftover = |name: &String| name.starts_with(TEMP_PREFIX);
    let (mut read, mut halfway) = (0, 0);
    for round in 0..20_u64 {
        let before = names_in(folder.path()).into_iter().filter(is_leftover).count();
        let mut writer = Writer::start(folder.path());
        let deadline = Instant::now() + Duration::from_secs(30);
        while names_in(folder.path()).into_iter().filter(is_leftover).count() == before {
            assert!(Instant::now() < deadline, "the writer does not write");
        }
        // Every other one at the start of its first entry, the others up to some entries on.
        thread::sleep(Duration::from_millis(round % 2 * round * round / 4));
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

#[test]
fn every_field_decides_over_the_key() {
    let options = |name: &str, defines: &[(&str, &str)], further: &[&str]| {
        let mut options = CompileOptions::new(name, ComputeCapability::new(9, 0));
        for (name, value) in defines {
            options = options.define(*name, value);
        }
        options.options = further.iter().map(ToString::to_string).collect();
        options
    };
    let plain = |options: &CompileOptions| CubinKey::new("source", options, (12, 8));
    let newer = CompileOptions::new("a.cu", ComputeCapability::new(10, 0));
    let base = options("a.cu", &[("N", "12"), ("M", "3")], &["-G", "-w"]);
    let keys = [
        plain(&base),
        CubinKey::new("source ", &base, (12, 8)),
        CubinKey::new("", &base, (12, 8)),
        CubinKey::new("source", &base, (12, 9)),
        CubinKey::new("source", &base, (13, 8)),
        CubinKey::new("source", &base, (8, 12)),
        plain(&newer),
        plain(&options("a.cu", &[], &[])),
        plain(&options("b.cu", &[("N", "12"), ("M", "3")], &["-G", "-w"])),
        // Another value, another order, one fewer.
        plain(&options("a.cu", &[("N", "13"), ("M", "3")], &["-G", "-w"])),
        plain(&options("a.cu", &[("M", "3"), ("N", "12")], &["-G", "-w"])),
        plain(&options("a.cu", &[("N", "12")], &["-G", "-w"])),
        plain(&options("a.cu", &[("N", "12"), ("M", "3")], &["-w", "-G"])),
        plain(&options("a.cu", &[("N", "12"), ("M", "3")], &["-G"])),
        // The same bytes in other fields.
        plain(&options("a.cuN", &[("", "12"), ("M", "3")], &["-G", "-w"])),
        plain(&options("a.cu", &[("N1", "2"), ("M", "3")], &["-G", "-w"])),
        plain(&options("a.cu", &[("N", "12M"), ("", "3")], &["-G", "-w"])),
        plain(&options("a.cu", &[("N", "12"), ("M", "3-G")], &["", "-w"])),
        plain(&options("a.cu", &[("N", "12")], &["M", "3", "-G", "-w"])),
        plain(&options("a.cu", &[("N", "12"), ("M", "3"), ("-G", "-w")], &[])),
        plain(&options("a.cu", &[("N", "12"), ("M", "3")], &["-G-w"])),
        plain(&options("a.cu", &[("N", "12"), ("M", "3")], &["-G", "-w", "source"])),
        CubinKey::new(
            "-wsource",
            &options("a.cu", &[("N", "12"), ("M", "3")], &["-G", ""]),
            (12, 8),
        ),
        // Fields that look like the count of a list.
        plain(&options("a.cu", &[], &["x", "\0\0\0\0\0\0\0\0"])),
        plain(&options("a.cu", &[("\u{2}\0\0\0\0\0\0\0", "x")], &[])),
    ];
    let distinct: std::collections::HashSet<_> = keys.iter().collect();
    assert_eq!(distinct.len(), keys.len());
    let again = options("a.cu", &[("N", "12"), ("M", "3")], &["-G", "-w"]);
    assert_eq!(plain(&base), plain(&again));
}

#[test]
fn a_key_is_shown_in_hexadecimal() {
    let mut digest = [0; 32];
    digest[0] = 0x0f;
    digest[31] = 0xa0;
    assert_eq!(CubinKey { digest }.to_string(), format!("0f{}a0", "0".repeat(60)));
}

#[test]
fn the_users_folder_is_where_the_environment_says() {
    let folder = |variables: &[(&str, &str)]| {
        let value = |name| variables.iter().find(|(known, _)| *known == name);
        let cache = CubinCache::of_environment(|name| value(name).map(|(_, to)| to.into()));
        cache.map(|cache| cache.folder().to_str().expect("text").to_owned())
    };
    let (own, caches, home) = ("GRIDGUARD_CUBIN_CACHE", "XDG_CACHE_HOME", "HOME");
    let of = |path: &str| Some(path.to_owned());
    assert_eq!(folder(&[]), None);
    assert_eq!(folder(&[(home, "/h")]), of("/h/.cache/gridguard/cubins"));
    assert_eq!(folder(&[(home, "")]), None);
    assert_eq!(folder(&[(home, "h")]), None);
    assert_eq!(folder(&[(caches, "/c")]), of("/c/gridguard/cubins"));
    assert_eq!(folder(&[(caches, "/c"), (home, "/h")]), of("/c/gridguard/cubins"));
    for passed_over in ["", "c", "./c"] {
        let found = folder(&[(caches, passed_over), (home, "/h")]);
        assert_eq!(found, of("/h/.cache/gridguard/cubins"));
        assert_eq!(folder(&[(caches, passed_over)]), None);
    }
    let others = [(caches, "/c"), (home, "/h")];
    let with = |value| folder(&[&[(own, value)], others.as_slice()].concat());
    assert_eq!(with("/own"), of("/own"));
    assert_eq!(with("beside"), of("beside"));
    assert_eq!(with("off"), None);
    assert_eq!(with("OFF"), of("OFF"));
    assert_eq!(with(""), of("/c/gridguard/cubins"));
    assert_eq!(folder(&[(own, "/own")]), of("/own"));
}

#[test]
fn errors_say_where_and_why() {
    let (path, reason) = (PathBuf::from("/c/0f.cubin"), "No space left".to_owned());
    let corrupt = |what| CubinCacheError::Corrupt { path: path.clone(), what }.to_string();
    let anew = "the cached image /c/0f.cubin must be stored anew: ";
    let shown = [
        (
            CubinCacheError::Read { path: path.clone(), reason: reason.clone() }.to_string(),
            "the cached image /c/0f.cubin cannot be read: No space left".to_owned(),
        ),
        (
            CubinCacheError::Write { path: path.clone(), reason }.to_string(),
            "the cached image /c/0f.cubin cannot be written: No space left".to_owned(),
        ),
        (
            CubinCacheError::NotCubin.to_string(),
            "the cache takes machine code alone, the image is PTX or a fatbin".to_owned(),
        ),
        (
            CubinCacheError::TooLarge(70_000_000).to_string(),
            "the image has 70000000 bytes, the cache takes 67108864".to_owned(),
        ),
        (corrupt(CubinFault::Header(3)), format!("{anew}it ends within its header, after 3 bytes")),
        (
            corrupt(CubinFault::Magic),
            format!("{anew}it does not begin as an entry of the cache does"),
        ),
        (corrupt(CubinFault::Version(2)), format!("{anew}its format is 2, this program reads 1")),
        (
            corrupt(CubinFault::Key(CubinKey { digest: [0xab; 32] })),
            format!("{anew}it is the entry of key {}", "ab".repeat(32)),
        ),
        (
            corrupt(CubinFault::Length { announced: 9, found: 8 }),
            format!("{anew}its header announces 9 bytes, 8 follow"),
        ),
        (corrupt(CubinFault::Digest), format!("{anew}the checksum of its image is wrong")),
        (corrupt(ImageError::Empty.into()), format!("{anew}the image is empty")),
    ];
    for (shown, expected) in shown {
        assert_eq!(shown, expected);
    }
}
