//! Reads the sizes of launches and of their work.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use super::facts::{bytes_after, number, number_after};
use super::input::truncated;
use super::phrases::automaton;
use super::shapes::{MAKERS, notable, product};
use super::work;
use crate::evidence::LaunchSizes;
use crate::shape::Shape;
use crate::stated::{Dimension, NAMES, WorkSizes};

/// Words of launches.
const WORDS: &str = "grid|<<<|block dim|block_dim|blockdim|number of blocks in|number of threads|\
                     threads per block|threads a block|shared mem|shared_mem|sharedmem|smem|blocks=|\
                     shape|size(|size=|check_less";
/// Words that begin a verdict on a size.
const VERDICTS: &str = "works|work with|fails|fail with|passes|succeeds| ok|crashes|breaks";
const WORKS: &str = "works work ok okay fine passes passed succeeds";
const FAILS: &str = "fails fail failed crashes crashed breaks error";
/// Words after a verdict on the size that follows.
const OF_NEXT: &str = "with when if for at until";

/// Finds the words of [`NAMES`], whose dimensions are in the same order, and [`WORDS`] and [`VERDICTS`] after them.
static SIZES: LazyLock<(AhoCorasick, Vec<Dimension>)> = LazyLock::new(|| {
    let names =
        NAMES.into_iter().flat_map(|(it, names)| names.split('|').map(move |name| (name, it)));
    let (names, dimensions): (Vec<&str>, Vec<Dimension>) = names.unzip();
    let others = [WORDS, VERDICTS, MAKERS].iter().flat_map(|words| words.split('|'));
    (automaton(names.into_iter().chain(others)), dimensions)
});

/// Whether `text` may state sizes.
pub(super) fn has_sizes(text: &str) -> bool {
    work::scanned(text);
    SIZES.0.is_match(text)
}

/// Adds the sizes of the work in `lower` to `sizes`.
fn read_work(lower: &str, sizes: &mut WorkSizes) {
    work::scanned(lower);
    let (words, dimensions) = &*SIZES;
    let mut has_verdict = false;
    for found in words.find_overlapping_iter(lower) {
        let around = lower.get(..found.start()).zip(lower.get(found.end()..));
        let Some((before, after)) = around else { continue };
        let Some(dimension) = dimensions.get(found.pattern().as_usize()) else {
            let word = lower.get(found.range()).unwrap_or_default();
            if ["shape", "size("].contains(&word) {
                read_shape(after, sizes);
            }
            if ["shape", "size(", "size="].contains(&word) || MAKERS.split('|').any(|it| it == word)
            {
                sizes.shape = sizes.shape.or_else(|| notable(before, word, after));
            }
            has_verdict |= VERDICTS.split('|').any(|it| it == word);
            continue;
        };
        let in_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
        if before.ends_with(in_word) || after.starts_with(in_word) {
            continue;
        }
        let after = after.trim_start_matches([' ', '=', ':', '(', '\'', '"']);
        let size = leading(after.strip_prefix("of ").unwrap_or(after)).or_else(|| trailing(before));
        if let Some(size) = size {
            sizes.set(*dimension, size);
            // A batch may also be a number in order.
            if *dimension == Dimension::Batch && found.len() > "batch".len() {
                sizes.shape = sizes.shape.or_else(|| Shape::of_batch(size));
            }
        }
    }
    // `CHECK_LESS size bound`.
    let bound = lower.split_once("check_less ").and_then(|(_, rest)| rest.split(' ').nth(1));
    sizes.bound = bound.and_then(leading).or(sizes.bound);
    if has_verdict {
        read_verdicts(lower, sizes);
    }
}

/// Digits of a size that is read.
const DIGITS: usize = 26;

/// A digit, or a separator between groups of digits.
const fn is_digit(byte: &u8) -> bool {
    byte.is_ascii_digit() || *byte == b',' || *byte == b'_'
}

/// The size that `text` begins with. A fraction, and a number that continues as a word, is none.
fn leading(text: &str) -> Option<u64> {
    let end = text.bytes().take(DIGITS).take_while(is_digit).count();
    let (digits, rest) = text.split_at(end);
    let is_fraction = rest.starts_with('.') && rest.get(1..).is_some_and(starts_with_digit);
    let is_word = rest.starts_with(|c: char| c.is_ascii_alphanumeric() || c == '/');
    (!is_fraction && !is_word).then(|| whole(digits)).flatten()
}

/// The size that `text` ends with, before spaces.
fn trailing(text: &str) -> Option<u64> {
    let text = text.strip_suffix(' ')?;
    let count = text.bytes().rev().take(DIGITS).take_while(is_digit).count();
    let (rest, digits) = text.split_at(text.len().saturating_sub(count));
    let is_part_of_word = |c: char| c.is_ascii_alphanumeric() || ".-/".contains(c);
    (!rest.ends_with(is_part_of_word)).then(|| whole(digits)).flatten()
}

fn starts_with_digit(text: &str) -> bool {
    text.starts_with(|c: char| c.is_ascii_digit())
}

/// `1048560`, `1,048,560` or `1_048_560`.
fn whole(digits: &str) -> Option<u64> {
    let digits = digits.trim_end_matches([',', '_']);
    let is_grouped = digits.split([',', '_']).skip(1).all(|group| group.len() == 3);
    is_grouped.then(|| digits.replace([',', '_'], "").parse().ok()).flatten()
}

/// A shape of three or four sizes: of queries as `(batch, heads, length, head)`, `(batch, length, heads, head)` or
/// `(batch x heads, length, head)`, and of images as `(batch, channels, height, width)`.
fn read_shape(after: &str, sizes: &mut WorkSizes) {
    let mut rest = after.trim_start_matches([' ', '=', ':']);
    rest = rest.strip_prefix("torch.size(").unwrap_or(rest).trim_start_matches(['(', '[']);
    let mut shape = Vec::new();
    while shape.len() < 5
        && let Some(size) = number::<u64>(&mut rest)
    {
        shape.push(size);
        rest = rest.trim_start_matches([',', ' ']);
    }
    match *shape {
        [batch, heads, length, _] => {
            sizes.set(Dimension::Batch, batch);
            sizes.set(Dimension::Channels, heads);
            sizes.set(Dimension::Heads, heads.min(length));
        }
        [batch, _, _] => {
            sizes.set(Dimension::Batch, batch);
            sizes.set(Dimension::Heads, 1);
        }
        _ => {}
    }
}

/// Sizes beside a verdict: `1,048,560 works`, `fails with 1,048,561`. In `8388481, works when it is 8388480`, the size
/// without a verdict has the opposite one.
fn read_verdicts(lower: &str, sizes: &mut WorkSizes) {
    let (mut size, mut verdict, mut open) = (None, None, None);
    let (mut works, mut fails) = (None, None);
    let mut judge = |size: &mut Option<u64>, verdict: &mut Option<bool>| {
        if let (Some(found), Some(is_good)) = (*size, *verdict) {
            *(if is_good { &mut works } else { &mut fails }) = Some(found);
            (*size, *verdict) = (None, None);
        }
    };
    for token in lower.split_whitespace() {
        let token = token.trim_matches(|c: char| !c.is_ascii_alphanumeric());
        let last = token.rsplit(['=', ':']).next().unwrap_or_default();
        let is_one_of = |words: &str| words.split(' ').any(|word| word == last);
        if verdict.is_some() && is_one_of(OF_NEXT) {
            open = size.take().or(open);
        }
        judge(&mut size, &mut verdict);
        if starts_with_digit(last) {
            size = leading(last).filter(|size| *size > MAX_SMALL).or(size);
        } else if is_one_of(WORKS) || is_one_of(FAILS) {
            verdict = Some(is_one_of(WORKS));
        }
    }
    judge(&mut size, &mut verdict);
    sizes.works = works.or_else(|| open.filter(|_| fails.is_some())).or(sizes.works);
    sizes.fails = fails.or_else(|| open.filter(|_| works.is_some())).or(sizes.fails);
}

/// Counts of threads are beside sizes, too.
const MAX_SMALL: u64 = 1024;

/// The sizes in the messages of CUDA.jl, which names the axis, the size and the limit.
fn read_julia(lower: &str, sizes: &mut LaunchSizes) {
    let stated = |before: &str| {
        let (_, rest) = lower.split_once(before)?;
        let axis = "xyz".find(rest.chars().next()?)?;
        let (_, rest) = rest.split_once('(')?;
        let mut all = [1; 3];
        *all.get_mut(axis)? = number(&mut { rest })?;
        Some(all)
    };
    sizes.grid = stated("number of blocks in ").or(sizes.grid);
    sizes.block = stated("number of threads in ").or(sizes.block);
    if let Some((_, mut rest)) = lower.split_once("threads per block exceeds kernel limit (") {
        sizes.block = number(&mut rest).map(|threads| [threads, 1, 1]).or(sizes.block);
        sizes.kernel_threads = number_after(rest, " > ").or(sizes.kernel_threads);
    }
    let shared = bytes_after(lower, "dynamic shared memory exceeds device limit (");
    sizes.shared_bytes = shared.or(sizes.shared_bytes);
}

/// Adds the sizes of a launch in `lower` to `sizes`. Later sizes replace earlier sizes.
pub(super) fn read_launch(lower: &str, sizes: &mut LaunchSizes) {
    work::scanned(lower);
    // As in `kernel<<<(1,65536,1),(128,1,1),0>>>`.
    if let Some((_, rest)) = lower.split_once("<<<") {
        sizes.shared_bytes = third_argument(lower).or(sizes.shared_bytes);
        let arguments = rest.trim_start_matches("dim3");
        let mut rest = arguments;
        sizes.grid = dims(&mut rest, true).or(sizes.grid);
        rest = rest.trim_start_matches([',', ' ']).trim_start_matches("dim3");
        sizes.block = dims(&mut rest, true).or(sizes.block);
    }
    let grid = dims_after(lower, "grid").or_else(|| dims_after(lower, "block_nums"));
    sizes.grid = grid.or(sizes.grid);
    // CUDA.jl calls the sizes `blocks` and `threads`.
    let threads = lower.contains("blocks").then(|| dims_after(lower, "threads")).flatten();
    if threads.is_some() {
        sizes.block = threads;
        sizes.grid = grid.or_else(|| dims_after(lower, "blocks")).or(sizes.grid);
    } else if !lower.contains("thread (") && !lower.contains("thread: [") {
        // A block next to a thread is the position of an error, not a size.
        sizes.block = dims_after(lower, "block").or(sizes.block);
    }
    let a_block = [" threads a block", " threads per block", " threads/block"];
    let a_block = a_block.iter().find_map(|words| trailing_at(lower, words));
    sizes.block = sizes.block.or(a_block.map(|threads| [threads, 1, 1]));
    read_julia(lower, sizes);
    read_work(lower, &mut sizes.work);
    let shared = SHARED.split('|').find_map(|before| shared_after(lower, before));
    sizes.shared_bytes = shared.or(sizes.shared_bytes);
}

/// What programs call the dynamic shared memory of a launch.
const SHARED: &str =
    "shared memory size|shared memory|shared_mem_bytes|sharedmembytes|shared_mem|smem_bytes|smem";

/// Bytes around an amount that name it.
const NEAR: usize = 24;

/// The bytes after `words`, as in `shared_mem=98304` and `dynamic shared memory of 96 KiB`.
fn shared_after(lower: &str, words: &str) -> Option<u64> {
    lower.match_indices(words).find_map(|(start, found)| {
        let begin = start.saturating_sub(NEAR);
        let before = lower.get(begin..start).unwrap_or_default();
        if ["max", "limit"].iter().any(|word| before.contains(word)) {
            return None;
        }
        let rest = truncated(lower.get(start.saturating_add(found.len())..)?, NEAR);
        let rest = rest.strip_prefix(" of").unwrap_or(rest);
        let mut rest = rest.strip_prefix([' ', '=', ':'])?.trim_start_matches([' ', '=', ':']);
        let amount = bytes_after(rest, "");
        amount.or_else(|| product(&mut rest).filter(|_| !rest.starts_with(['.', '/'])))
    })
}

/// The dynamic shared memory in `<<<grid, block, bytes, stream>>>`.
fn third_argument(text: &str) -> Option<u64> {
    let mut rest = arguments(text, ["([{", ")]}"])?.nth(2)?;
    product(&mut rest).filter(|_| rest.is_empty())
}

/// What commas separate in `<<<grid, block>>>`, outside of brackets: these open, and those close.
pub(super) fn arguments<'t>(
    text: &'t str,
    brackets: [&'static str; 2],
) -> Option<impl Iterator<Item = &'t str>> {
    let (_, text) = text.split_once("<<<")?;
    let (text, _) = text.split_once(">>>")?;
    let mut depth = 0_usize;
    let is_between = move |c: char| {
        let [opens, closes] = brackets.map(|all| usize::from(all.contains(c)));
        depth = depth.saturating_add(opens).saturating_sub(closes);
        c == ',' && depth == 0
    };
    Some(text.split(is_between).map(str::trim))
}

/// The numbers after `word` and words such as `dimensions:`, as in `grid=(1, 65536, 1)`, `grid
/// dimensions: 4x1x102400`, `gridDim.y = 65536` and `Grid Dimension Y of 65536`.
fn dims_after(text: &str, word: &str) -> Option<[u64; 3]> {
    const BETWEEN: &str = "s dim dims dim3 dimension dimensions cudim size sizes shape of is";
    const LONGEST: usize = "dimensionsx".len() + 1;
    // An axis on its own, as in `grid.x=1 grid.y=65536`.
    let mut axes: Option<[u64; 3]> = None;
    let all = text.match_indices(word).find_map(|(start, found)| {
        let mut rest = text.get(start + found.len()..)?;
        let mut axis = None;
        for _ in 0..BETWEEN.split(' ').count() {
            rest = rest.trim_start_matches([' ', '=', ':', '_', '.', '\'', '"']);
            // A longer word is not one of these, and scanning it at each match would be quadratic.
            let end = rest.bytes().take(LONGEST).take_while(u8::is_ascii_lowercase).count();
            let (between, after) = rest.split_at(end);
            work::scanned(between);
            if between.is_empty() {
                break;
            }
            let is_between =
                |name: &str| name.is_empty() || BETWEEN.split(' ').any(|it| it == name);
            match between.strip_suffix(['x', 'y', 'z']) {
                Some(name) if is_between(name) => {
                    axis = axis.or(between.chars().next_back().and_then(|it| "xyz".find(it)));
                }
                _ if is_between(between) => {}
                _ => return None,
            }
            rest = after.trim_start_matches('3');
        }
        match axis {
            Some(axis) => {
                let size = number(&mut rest)?;
                *axes.get_or_insert([1; 3]).get_mut(axis)? = size;
                None
            }
            None => dims(&mut rest, false),
        }
    });
    all.or(axes)
}

/// One to three numbers in brackets, or two or three between `x`; `or_one` without either.
fn dims(rest: &mut &str, or_one: bool) -> Option<[u64; 3]> {
    let inside = rest.trim_start_matches(['(', '[', '{']);
    let has_brackets = inside.len() < rest.len();
    *rest = if has_brackets { inside.trim_start() } else { inside };
    let mut sizes = [1; 3];
    let mut count = 0;
    for size in &mut sizes {
        if has_brackets {
            // As in `(x=1, y= 88320, z=1)` and `{ x: 1, y: 88320 }`.
            let name = rest.strip_prefix(['x', 'y', 'z']).map(str::trim_start);
            let value = name.and_then(|it| it.strip_prefix(['=', ':']));
            *rest = value.map_or(*rest, str::trim_start);
        }
        let number = if has_brackets { axis_size(rest) } else { number(rest) };
        let Some(number) = number else { break };
        *size = number;
        count += 1;
        let separators: &[char] = if has_brackets { &[',', ' ', 'x'] } else { &['x'] };
        let after = rest.trim_start_matches(separators);
        if after.len() == rest.len() {
            break;
        }
        *rest = after;
    }
    *rest = rest.trim_start_matches([')', ']', '}']);
    let is_enough = count > 1 || count == 1 && (has_brackets || or_one);
    is_enough.then_some(sizes)
}

/// A size in decimal, or as `0x00015900`, which is how Julia prints unsigned numbers.
fn axis_size(rest: &mut &str) -> Option<u64> {
    const DIGITS: usize = 8;
    let hex = rest.strip_prefix("0x").unwrap_or_default();
    let end = hex.bytes().take(2 * DIGITS).take_while(u8::is_ascii_hexdigit).count();
    if end < DIGITS {
        return number(rest);
    }
    let (digits, after) = hex.split_at(end);
    let size = u64::from_str_radix(digits, 16).ok()?;
    *rest = after;
    Some(size)
}

/// The number before `words`.
fn trailing_at(lower: &str, words: &str) -> Option<u64> {
    let (before, _) = lower.split_once(words)?;
    let digits = before.bytes().rev().take(DIGITS).take_while(u8::is_ascii_digit).count();
    before.get(before.len().saturating_sub(digits)..)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_are_read_in_many_spellings() {
        let read = |line: &str| {
            let mut sizes = LaunchSizes::default();
            read_launch(&line.to_ascii_lowercase(), &mut sizes);
            (sizes.grid, sizes.block, sizes.shared_bytes)
        };
        let (grid, block) = (Some([1, 65_536, 1]), Some([128, 1, 1]));
        for line in [
            "grid (1,65536,1) block (128,1,1)",
            "grid=(1, 65536), block=(128,)",
            "with block dimensions: 128x1x1 and grid dimensions: 1x65536x1: CUDA_ERROR_X",
            "LaunchConfig { grid_dim: (1, 65536, 1), block_dim: (128, 1, 1) }",
            "copy<<<(1,65536,1),(128,1,1)>>>",
            "copy<<<dim3(1, 65536), 128>>>(p)",
            "block_nums = [1, 65536, 1], block_dims = [128, 1, 1]",
            "gridDim = {1, 65536, 1}; blockDim = {128, 1, 1}",
            "grid=(x=1, y= 65536, z=1) block=(x=128, y=1, z=1)",
            "grid: Dim3 { x: 1, y: 65536, z: 1 }, block: Dim3 { x: 128, y: 1, z: 1 }",
            "grid [1 x 65536 x 1] block [128 x 1 x 1]",
            "gridDim.x=1 gridDim.y=65536 gridDim.z=1 blockDim.x=128 blockDim.y=1",
            "blocks=(1, 65536), threads=(128,)",
            "grid=CuDim3(0x00000001, 0x00010000, 0x00000001) block=CuDim3(0x00000080, 0x00000001)",
        ] {
            assert_eq!(read(line), (grid, block, None), "{line}");
        }
        for line in [
            "Grid Dimension Y of 65536 exceeds maximum value of 65535",
            "gridDimY is 65536",
            "Number of blocks in y-dimension exceeds device limit (65536 > 65535).",
            "gridDim.y = 65536",
        ] {
            assert_eq!(read(line), (grid, None, None), "{line}");
        }
        let bytes = "grid dimensions: 4x1x1 and shared memory size: 65536: x";
        assert_eq!(read(bytes), (Some([4, 1, 1]), None, Some(65_536)));
        for line in [
            "block: [31,0,0], thread: [116,0,0] Assertion `i < n` failed",
            "by thread (0,0,0) in block (12,0,0)",
            "grid search over 12 values",
            "the grid is empty",
            "block 3",
            "grid=99999999999999999999",
        ] {
            assert_eq!(read(line), (None, None, None), "{line}");
        }
    }

    #[test]
    fn sizes_of_the_work_are_read_by_name_and_from_shapes() {
        use Dimension::{Batch, Channels, Heads, Rows, Tokens};
        let read = |line: &str| {
            let mut sizes = LaunchSizes::default();
            read_launch(&line.to_ascii_lowercase(), &mut sizes);
            sizes.work
        };
        let sizes = |all: &[(Dimension, u64)]| {
            let mut work = WorkSizes::default();
            all.iter().for_each(|(dimension, size)| work.set(*dimension, *size));
            work
        };
        for (line, expected) in [
            ("batch_size=60000, num_heads: 8", &[(Batch, 60_000), (Heads, 8)][..]),
            ("a batch of 6 with 5 heads", &[(Batch, 6), (Heads, 5)]),
            ("1,048,560 rows", &[(Rows, 1_048_560)]),
            ("n_tokens = 512", &[(Tokens, 512)]),
            ("q.shape = torch.Size([2, 8, 4096, 64])", &[(Batch, 2), (Heads, 8), (Channels, 8)]),
            ("shape=(2, 4096, 8, 40)", &[(Batch, 2), (Heads, 8), (Channels, 4096)]),
            ("batch 3/100, 12.5 tokens, head_dim 64, top_kernels 5", &[]),
            ("tokens/s 12345.6", &[]),
        ] {
            assert_eq!(read(line), sizes(expected), "{line}");
        }
        for line in [
            "1,048,560 elements works, but 1,048,561 fails",
            "works with 1048560 and crashes with 1048561",
            "n=1048560 ok, n=1048561 error",
            "n = 1048561 # Works when n = 1048560",
            "n = 1_048_560, but crashes for 1_048_561",
        ] {
            let found = read(line);
            assert_eq!((found.works, found.fails), (Some(1_048_560), Some(1_048_561)), "{line}");
        }
    }
}
