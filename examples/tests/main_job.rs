//! Runs the example `temporal_attention` on tensor files, valid and invalid.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::{Path, PathBuf};
use std::process::Command;

use bytemuck::Pod;
use gridguard_examples::uniform;
use gridguard_kernels::Deviation;
use gridguard_kernels::temporal_attention::{Shape, TemporalAttention, reference, tolerance};
use gridguard_kernels::{Element, ElementType};
use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

struct Ran {
    code: i32,
    out: String,
    err: String,
}

/// Runs the example, which cargo builds beside the tests.
fn run(args: &[&str]) -> Ran {
    let test = std::env::current_exe().expect("this program");
    let folder = test.parent().and_then(Path::parent).expect("the build folder");
    let program = folder.join("examples").join("temporal_attention");
    // Independent of profiles on this machine.
    let mut command = Command::new(program);
    let output = command.args(args).env("GRIDGUARD_PROFILES", "off").output();
    let output = output.expect("the example is built");
    Ran {
        code: output.status.code().expect("an exit code"),
        out: String::from_utf8(output.stdout).expect("UTF-8"),
        err: String::from_utf8(output.stderr).expect("UTF-8"),
    }
}

fn dtype_of(element: ElementType) -> Dtype {
    match element {
        ElementType::F16 => Dtype::F16,
        ElementType::Bf16 => Dtype::BF16,
        ElementType::F32 => Dtype::F32,
    }
}

/// q, k and v of `dims`, written to a file.
fn tensors<T: Element + Pod>(folder: &Path, dims: &[usize]) -> (PathBuf, [Vec<T>; 3]) {
    let path = folder.join("input.safetensors");
    let tensors = [1, 2, 3].map(|seed| uniform::<T>(dims.iter().product(), seed));
    let views = ["q", "k", "v"].into_iter().zip(&tensors).map(|(name, tensor)| {
        let bytes = bytemuck::cast_slice(tensor);
        (name, TensorView::new(dtype_of(T::TYPE), dims.to_vec(), bytes).expect("a tensor"))
    });
    safetensors::serialize_to_file(views, None, &path).expect("written");
    (path, tensors)
}

fn attends_to_a_file<T: Element + Pod>(dims: &[usize], shape: &Shape) {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, [q, k, v]) = tensors::<T>(folder.path(), dims);
    let output = folder.path().join("output.safetensors");
    let [input, output_name] = [&input, &output].map(|path| path.to_str().expect("a name"));
    let ran = run(&["--host-as", "h200", "--input", input, "--output", output_name]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("result   correct"), "{}", ran.out);

    let bytes = std::fs::read(&output).expect("the output");
    let file = SafeTensors::deserialize(&bytes).expect("whole");
    let view = file.tensor("out").expect("out");
    assert_eq!((view.dtype(), view.shape()), (dtype_of(T::TYPE), dims));
    let out: Vec<T> = bytemuck::pod_collect_to_vec(view.data());
    let size = usize::try_from(shape.elements_per_problem()).expect("elements");
    let h200 = &gridguard::catalog::gpu("h200").expect("in the catalogue").limits;
    let attention = TemporalAttention::new(*shape, T::TYPE, h200).expect("served");
    let mut deviation = Deviation::new();
    for (place, out) in out.chunks(size).enumerate() {
        let part = place * size..(place + 1) * size;
        let qkv = [&q, &k, &v].map(|tensor| &tensor[part.clone()]);
        deviation.add(out, &reference(&attention, shape.scale(), qkv, None));
    }
    assert!(deviation.within(tolerance(T::TYPE)), "{:e}", deviation.relative());
}

#[test]
fn tensors_of_every_type_and_rank_are_computed_correctly() {
    attends_to_a_file::<f16>(&[3, 2, 16, 64], &Shape::new(3, 2, 16, 64).expect("legal"));
    attends_to_a_file::<bf16>(&[4, 25, 40], &Shape::new(4, 1, 25, 40).expect("legal"));
    attends_to_a_file::<f32>(&[2, 3, 9, 7], &Shape::new(2, 3, 9, 7).expect("legal"));
}

#[test]
fn a_batch_beyond_the_limit_is_explained_and_split() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, _) = tensors::<f16>(folder.path(), &[65_537, 9, 8]);
    let ran = run(&["--host-as", "h200", "--input", input.to_str().expect("a name")]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    let rejected = "unsplit  launch rejected: grid.y is 65537 blocks, the limit is 65535 (NVIDIA \
                    H200): split axis y into 2 launches of 32769, or fold it into x [grid-dim-y]";
    assert!(ran.out.contains(rejected), "{}", ran.out);
    assert!(ran.out.contains("items 0..32768, grid 1 x 32768 x 1"), "{}", ran.out);
    assert!(ran.out.contains("items 32768..65537, grid 1 x 32769 x 1"), "{}", ran.out);
}

#[test]
fn max_items_bounds_the_chunks() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, _) = tensors::<f16>(folder.path(), &[100, 9, 8]);
    let input = input.to_str().expect("a name");
    let ran = run(&["--host-as", "t4", "--input", input, "--max-items", "7"]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("chunked, 15 launches"), "{}", ran.out);
    assert!(ran.out.contains("and 7 more"), "{}", ran.out);
}

#[test]
fn an_empty_batch_launches_nothing() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, _) = tensors::<f16>(folder.path(), &[0, 4, 8]);
    let ran = run(&["--host-as", "h200", "--input", input.to_str().expect("a name")]);
    assert_eq!(ran.code, 0, "{}{}", ran.out, ran.err);
    assert!(ran.out.contains("nothing to launch"), "{}", ran.out);
}

#[test]
fn invalid_files_and_options_exit_2_with_the_reason() {
    let folder = tempfile::tempdir().expect("a folder");
    let missing = folder.path().join("missing.safetensors");
    let garbage = folder.path().join("garbage.safetensors");
    std::fs::write(&garbage, [0xff; 64]).expect("written");
    let (rank, _) = tensors::<f32>(folder.path(), &[4, 8]);
    let cases = [
        (&missing, "No such file"),
        (&garbage, "is not a valid safetensors file"),
        (&rank, "tensor q has shape [4, 8]"),
    ];
    for (path, message) in cases {
        let ran = run(&["--host-as", "h200", "--input", path.to_str().expect("a name")]);
        assert_eq!(ran.code, 2, "{}", ran.out);
        assert!(ran.err.contains(message), "{}", ran.err);
    }
    let ran = run(&["--host-as", "gtx-9000", "--input", rank.to_str().expect("a name")]);
    assert_eq!(ran.code, 2);
}

#[test]
fn an_output_that_cannot_be_written_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let (input, _) = tensors::<f16>(folder.path(), &[2, 4, 8]);
    // A file is no folder.
    let output = input.join("out.safetensors");
    let [input, output] = [&input, &output].map(|path| path.to_str().expect("a name"));
    let ran = run(&["--host-as", "h200", "--input", input, "--output", output]);
    assert_eq!(ran.code, 2, "{}", ran.out);
    assert_eq!(std::fs::read_dir(folder.path()).expect("folder").count(), 1);
}
