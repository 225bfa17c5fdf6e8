//! Reads remarks of a log about an access, the machine or the launch, other than sizes.

use std::sync::LazyLock;

use aho_corasick::AhoCorasick;

use super::facts::{number, number_after};
use super::input::{shortened, truncated};
use super::phrases::automaton;
use super::sizes::arguments;
use super::work;
use crate::capability::Capability;
use crate::remarks::{Access, Need, Remarks, SHARED_BYTES};

/// What lines with remarks contain.
const WORDS: &str = "/mnt/|wsl|microsoft-standard|@desktop-|tesla |geforce |quadro |titan |<<<|.cu|#|shared|\
                     out of resource|0|empty";

/// How programs print that something is empty.
const EMPTY: &str =
    "0x0|0 x 0|(0,0)|(0, 0)|size 0|size = 0|size=0|size: 0|loaded 0|n = 0|n=0|count: 0|count = 0";

static SIGNS: LazyLock<AhoCorasick> =
    LazyLock::new(|| automaton([WORDS, EMPTY].into_iter().flat_map(|words| words.split('|'))));

/// Bytes of a text that are kept.
const SHOWN_BYTES: usize = 80;

/// Adds the remarks in `text` to `remarks`, without replacing any.
pub(super) fn read(text: &str, remarks: &mut Remarks) {
    work::scanned(text);
    if !SIGNS.is_match(text) {
        return;
    }
    let lower = text.to_ascii_lowercase();
    fill(&mut remarks.wsl, || wsl(text, &lower));
    fill(&mut remarks.gpu, || gpu(text, &lower));
    fill(&mut remarks.need, || need(&lower));
    fill(&mut remarks.empty, || empty(text, &lower));
    fill(&mut remarks.launch, || launch(text));
    fill(&mut remarks.place, || place(text));
    fill(&mut remarks.function, || function(text));
}

fn fill<T>(place: &mut Option<T>, found: impl FnOnce() -> Option<T>) {
    if place.is_none() {
        *place = found();
    }
}

/// The word of WSL in a line: a drive of Windows, its kernel, or its name.
fn wsl(text: &str, lower: &str) -> Option<String> {
    work::scanned(lower);
    let shown = |start: usize, length: usize| {
        text.get(start..start.saturating_add(length)).map(str::to_owned)
    };
    let drive = lower.match_indices("/mnt/").find_map(|(start, _)| {
        let mut after = lower.get(start.saturating_add("/mnt/".len())..)?.chars();
        let is_drive = matches!(after.next()?, 'c'..='z') && after.next() == Some('/');
        is_drive.then(|| shown(start, "/mnt/c/".len())).flatten()
    });
    drive
        .or_else(|| {
            ["microsoft-standard", "@desktop-"]
                .iter()
                .find_map(|word| shown(lower.find(word)?, word.len()))
        })
        .or_else(|| {
            lower.match_indices("wsl").find_map(|(start, word)| {
                let end = start.saturating_add(word.len());
                let is_letter = |c: char| c.is_ascii_alphabetic();
                let before = lower.get(..start)?;
                let after = lower.get(end..)?;
                (!before.ends_with(is_letter) && !after.starts_with(is_letter))
                    .then(|| shown(start, word.len()))
                    .flatten()
            })
        })
}

/// Names of models before Ampere by their compute capability, from developer.nvidia.com/cuda-gpus and
/// developer.nvidia.com/cuda-legacy-gpus. The first name found counts.
const GPUS: [(Capability, &str); 9] = [
    (Capability(3, 0), "tesla k10|geforce gtx 6|geforce gtx 77|geforce gtx 76"),
    (Capability(3, 5), "tesla k20|tesla k40|geforce gtx 78"),
    (Capability(3, 7), "tesla k80"),
    (Capability(5, 0), "geforce gtx 75|geforce gtx 950m|geforce gtx 960m"),
    (Capability(5, 2), "tesla m40|tesla m60|geforce gtx 9"),
    (Capability(6, 0), "tesla p100"),
    (Capability(6, 1), "tesla p4|geforce gtx 10|titan x (pascal)|titan xp"),
    (Capability(7, 0), "tesla v100|titan v"),
    (Capability(7, 5), "tesla t4|geforce gtx 16|geforce rtx 20|quadro rtx"),
];

fn gpu(text: &str, lower: &str) -> Option<(String, Capability)> {
    work::scanned(lower);
    let names =
        |(it, names): (Capability, &'static str)| names.split('|').map(move |name| (it, name));
    GPUS.into_iter().flat_map(names).find_map(|(capability, name)| {
        let start = lower.find(name)?;
        let rest = text.get(start..)?;
        let end = rest.get(name.len()..)?.find(|c: char| !c.is_ascii_alphanumeric());
        let end = end.map_or(rest.len(), |end| end.saturating_add(name.len()));
        Some((truncated(rest.get(..end)?, SHOWN_BYTES).to_owned(), capability))
    })
}

/// `Required: 98304, Hardware limit: 65536`, and `(0x18000 bytes, 0x10000 max)`.
fn need(lower: &str) -> Option<Need> {
    const NEEDED: &str =
        "required: |requires |required |requested: |requested |needs |need |needed: |data (";
    const LIMIT: &str = "limit: |limit of |limit is |limit |maximum: |maximum of |at most |available: |\
                         only |bytes, ";
    let unit = if lower.contains("out of resource: threads") {
        "threads"
    } else if lower.contains("tensor memory") {
        "columns of tensor memory"
    } else if lower.contains("shared") {
        SHARED_BYTES
    } else {
        return None;
    };
    work::scanned(lower);
    let value = |words: &str| {
        words.split('|').find_map(|word| {
            let rest = lower.get(lower.find(word)?.saturating_add(word.len())..)?;
            match rest.strip_prefix("0x") {
                Some(hex) => {
                    let end = hex.find(|c: char| !c.is_ascii_hexdigit()).unwrap_or(hex.len());
                    u64::from_str_radix(hex.get(..end)?, 16).ok()
                }
                None => number(&mut { rest }),
            }
        })
    };
    let need = Need { needed: value(NEEDED)?, limit: value(LIMIT)?, unit };
    (need.needed > need.limit && need.limit > 0).then_some(need)
}

/// An input that the log says is empty: `Image size = 0x0`, `loaded 0 points`.
fn empty(text: &str, lower: &str) -> Option<String> {
    const INPUTS: &str = "image tensor list frame width matrix array input point sample item element batch particle \
                          row vertices triangle face feature atom node edge";
    const OTHERS: &str = "device gpu rank error thread address memory stack cache heap";
    work::scanned(lower);
    let is_part = |c: char| c.is_ascii_alphanumeric() || c == '.' || c == '_';
    let found = EMPTY.split('|').find_map(|size| {
        lower.match_indices(size).find_map(|(start, _)| {
            let end = start.saturating_add(size.len());
            let (before, after) = (lower.get(..start)?, lower.get(end..)?);
            let fraction = after.strip_prefix('.').unwrap_or_default();
            let is_longer = after.starts_with(|c: char| c.is_ascii_alphanumeric())
                || fraction.starts_with(|c: char| c.is_ascii_digit());
            let is_whole = !before.ends_with(is_part) && !is_longer;
            is_whole.then_some(size)
        })
    });
    let of_number = matches!(found?, "n = 0" | "n=0");
    let is_input = of_number || INPUTS.split(' ').any(|word| lower.contains(word));
    (is_input && !OTHERS.split(' ').any(|word| lower.contains(word)))
        .then(|| shortened(text.trim(), SHOWN_BYTES))
}

/// Grid and block of `kernel<<<grid, block>>>`, unless they are numbers.
fn launch(text: &str) -> Option<[String; 2]> {
    let mut arguments = arguments(text, ["([{<", ")]}>"])?;
    let [grid, block] = [arguments.next()?, arguments.next()?];
    let is_name = |it: &str| it.contains(|c: char| c.is_ascii_alphabetic());
    let is_short = grid.len() <= SHOWN_BYTES && block.len() <= SHOWN_BYTES;
    (is_short && (is_name(grid) || is_name(block))).then(|| [grid, block].map(str::to_owned))
}

/// `cuda_core.cu:322` from `<cuda_core.cu>:322`, `cuda_core.cu(322)` or `<cuda_core.cu>, line 322`.
fn place(text: &str) -> Option<String> {
    const LONGEST: usize = 16;
    work::scanned(text);
    text.match_indices(".cu").find_map(|(start, _)| {
        let before = text.get(..start)?;
        let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-' || c == '.';
        let length =
            before.bytes().rev().take(SHOWN_BYTES).take_while(|it| is_name(char::from(*it)));
        let begin = before.len().saturating_sub(length.count());
        let name = before.get(begin..)?;
        let after = text.get(start..)?.strip_prefix(".cu")?;
        let (header, after) = after.strip_prefix('h').map_or(("", after), |it| ("h", it));
        let after = truncated(after, LONGEST).trim_start_matches(['>', '"', '\'', ')']);
        let starts = [":", "(", ", line ", " line ", ":line ", ", line: "];
        let mut rest = starts.iter().find_map(|it| after.strip_prefix(it))?;
        let line: u64 = number(&mut rest)?;
        (!name.is_empty()).then(|| format!("{name}.cu{header}:{line}"))
    })
}

/// The function of a numbered frame, unless a framework has it: `# 9  fbgemm_gpu::reorder(at::Tensor const&)`.
fn function(text: &str) -> Option<String> {
    const FRAMEWORKS: [&str; 9] =
        ["c10", "at", "torch", "std", "thrust", "cub", "boost", "pybind11", "cuda"];
    let mut rest = text.strip_prefix('#')?.trim_start();
    let _: u64 = number(&mut rest)?;
    let rest = rest.trim_start_matches([':', ' ']);
    let name = truncated(rest, SHOWN_BYTES).split(['(', ' ', '<']).next()?;
    let (namespace, _) = name.split_once("::")?;
    let is_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == ':';
    let is_own = !FRAMEWORKS.contains(&namespace) && name.chars().all(is_name);
    is_own.then(|| name.to_owned())
}

/// Whether `text` is a line of a report of compute-sanitizer or cuda-memcheck.
pub(super) fn is_report(text: &str) -> bool {
    text.starts_with("=========")
}

/// The access that begins a report: `========= Invalid __global__ read of size 4 bytes`.
pub(super) fn access(text: &str) -> Option<Access> {
    let (_, rest) = text.split_once("Invalid __").filter(|_| is_report(text))?;
    let (space, rest) = rest.split_once("__ ")?;
    let (kind, mut rest) = rest.split_once(" of size ")?;
    let bytes = number(&mut rest)?;
    let [kind, space] = [kind, space].map(|it| truncated(it, SHOWN_BYTES).to_owned());
    Some(Access { kind, space, bytes, ..Access::default() })
}

/// Adds a further line of the report. `false` where the stack of the host begins.
pub(super) fn read_access(text: &str, access: &mut Access) -> bool {
    work::scanned(text);
    let text = text.trim_start_matches(['=', ' ']);
    if text.starts_with("Saved host backtrace") || text.is_empty() {
        return false;
    }
    fill(&mut access.kernel, || kernel(text));
    if let Some(thread) = text.strip_prefix("by thread ") {
        let thread = truncated(thread, SHOWN_BYTES).trim_end();
        let place = thread.replace(" in block ", " of block ");
        fill(&mut access.thread, || Some(format!("thread {place}")));
    }
    if text.starts_with("Access at 0x") || text.starts_with("Address 0x") {
        let address = text.split(' ').find(|word| word.starts_with("0x"));
        fill(&mut access.address, || address.map(|it| truncated(it, SHOWN_BYTES).to_owned()));
        access.is_misaligned |= text.contains("is misaligned");
    }
    if text.contains("the nearest allocation") {
        let sides = [("after", " bytes after "), ("before", " bytes before ")];
        fill(&mut access.nearest, || {
            let (side, _) = sides.into_iter().find(|(_, words)| text.contains(words))?;
            Some((number_after(text, "is ")?, side, number_after(text, "of size ")?))
        });
    }
    true
}

/// The kernel in `at add(float *)+0xb0`, `at 0xb0 in add(float *)` and `at 0xb0 in a.cu:12:add(float *)`.
pub(super) fn kernel(text: &str) -> Option<String> {
    let rest = text.strip_prefix("at ")?;
    let rest = match rest.starts_with("0x") {
        true => rest.split_once(" in ")?.1,
        false => rest,
    };
    let name = rest.split(['(', '+']).next()?;
    let name = match name.rsplit_once(".cu:") {
        Some((_, after)) => after.split_once(':')?.1,
        None => name,
    };
    let name = truncated(name.rsplit(' ').next()?, SHOWN_BYTES);
    let begins_well = name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
    begins_well.then(|| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn remarks(line: &str) -> Remarks {
        let mut found = Remarks::default();
        read(line, &mut found);
        found
    }

    #[test]
    fn wsl_is_known_by_its_drives_kernel_and_name() {
        for (line, word) in [
            ("root@pc:/mnt/e/llama# ./main", "/mnt/e/"),
            ("./main -m /mnt/wsl/model.bin", "wsl"),
            ("Linux 5.15.90.1-microsoft-standard-WSL2", "microsoft-standard"),
            ("I use Ubuntu on WSL2", "WSL"),
            ("me@DESKTOP-61FF5OF:~$", "@DESKTOP-"),
        ] {
            assert_eq!(remarks(line).wsl.as_deref(), Some(word), "{line}");
        }
        for line in ["/mnt/data/model", "/mnt/a", "a newsletter", "awslambda 0"] {
            assert_eq!(remarks(line).wsl, None, "{line}");
        }
    }

    #[test]
    fn empty_inputs_are_told_from_other_zeros() {
        for line in [
            "Image size = (0,0)",
            "image 0x0",
            "frame of 0 x 0",
            "loaded 0 points",
            "list of size 0",
            "n = 0",
            "element count: 0",
        ] {
            assert!(remarks(line).empty.is_some(), "{line}");
        }
        for line in [
            "image 640x0480",
            "device count: 0",
            "at address 0x0",
            "size 0.5",
            "loaded 012",
            "len = 0",
            "batch size 01",
            "image 0x0f",
        ] {
            assert_eq!(remarks(line).empty, None, "{line}");
        }
    }

    #[test]
    fn what_a_block_needs_is_read_with_its_limit() {
        for line in [
            "out of resource: shared memory, Required: 98304, Hardware limit: 65536. Reduce",
            "the kernel requires 98304 bytes of shared memory, the limit is 65536",
            "shared memory: requested 98304, available: 65536",
            "ptxas error: Entry function 'f' uses too much shared data (0x18000 bytes, 0x10000 max)",
        ] {
            let expected = Need { needed: 98_304, limit: 65_536, unit: SHARED_BYTES };
            assert_eq!(remarks(line).need, Some(expected), "{line}");
        }
        for line in
            ["shared memory: requested 1, limit 2", "shared 0 required 5", "limit 7 needs 9"]
        {
            assert_eq!(remarks(line).need, None, "{line}");
        }
    }

    #[test]
    fn launches_places_and_functions_are_named() {
        let found = remarks("core<THREADS><<< grid, block8 >>>(x)");
        assert_eq!(found.launch, Some(["grid", "block8"].map(str::to_owned)));
        assert_eq!(remarks("f<<<4, 128>>>(x)").launch, None);
        for (line, place) in [
            ("error 9 in </home/x/cuda_core.cu>:322", "cuda_core.cu:322"),
            (" in file <cudaSiftH.cu>, line 416 : invalid", "cudaSiftH.cu:416"),
            ("ggml-cuda.cu(7) x", "ggml-cuda.cu:7"),
            ("a.cuh:12", "a.cuh:12"),
        ] {
            assert_eq!(remarks(line).place.as_deref(), Some(place), "{line}");
        }
        assert_eq!(remarks("x.cu has 5 lines").place, None);
        let function = |line: &str| remarks(line).function;
        assert_eq!(function("# 9  own::f(at::Tensor const&)").as_deref(), Some("own::f"));
        assert_eq!(function("#7  c10::detail::torchCheckFail(char)"), None);
        assert_eq!(function("#0  raise ()"), None);
    }

    #[test]
    fn reports_of_an_access_are_read() {
        for kernel in [
            "at compress(const unsigned int *, int)+0xb0",
            "at 0x000000b0 in compress(const unsigned int *, int)",
            "at 0x000000b0 in /src/main.cu:12:compress(int)",
            "at void compress<float>(int)+0x10",
        ] {
            let mut report = access("========= Invalid __global__ read of size 4").expect("one");
            for line in [
                kernel,
                "by thread (1,0,0) in block (5,0,0)",
                "Access at 0x7f698ba00144 is out of bounds",
                "and is 1 bytes after the nearest allocation at 0x7f698ba00000 of size 324 bytes",
            ] {
                assert!(read_access(&format!("=========     {line}"), &mut report));
            }
            assert!(!read_access("=========     Saved host backtrace up to driver", &mut report));
            let name = report.kernel.as_deref().expect("named");
            assert!(name.starts_with("compress"), "{name}");
            assert_eq!(report.nearest, Some((1, "after", 324)));
            assert_eq!(report.thread.as_deref(), Some("thread (1,0,0) of block (5,0,0)"));
        }
    }

    #[test]
    fn old_gpus_are_known_by_name() {
        let found = remarks("[Device Tesla K80").gpu;
        assert_eq!(found, Some(("Tesla K80".into(), Capability(3, 7))));
        let found = remarks("NVIDIA GeForce GTX 1080 Ti").gpu;
        assert_eq!(found, Some(("GeForce GTX 1080".into(), Capability(6, 1))));
        assert_eq!(remarks("NVIDIA GeForce RTX 4090").gpu, None);
    }
}
