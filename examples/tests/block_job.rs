//! Runs the example `temporal_block` on the host, with files that are valid and invalid.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic, reason = "tests")]

use std::path::Path;
use std::process::Command;

use gridguard_examples::uniform;
use half::{bf16, f16};
use safetensors::tensor::{Dtype, SafeTensors, TensorView};

/// Runs the example, which cargo builds beside the tests, and returns its exit code and output.
fn run(args: &[&str]) -> (i32, String) {
    let test = std::env::current_exe().expect("this program");
    let folder = test.parent().and_then(Path::parent).expect("the build folder");
    let program = folder.join("examples").join("temporal_block");
    let output = Command::new(program).arg("--host").args(args).output().expect("it is built");
    let text = [output.stdout, output.stderr].concat();
    (output.status.code().expect("an exit code"), String::from_utf8(text).expect("UTF-8"))
}

/// Writes a block's weights of 16 channels in bfloat16, but the tensor with this name.
fn write_weights(path: &Path, without: &str) {
    const SHAPES: [(&str, &[usize]); 9] = [
        ("norm1.weight", &[16]),
        ("norm1.bias", &[16]),
        ("attn1.to_q.weight", &[16, 16]),
        ("attn1.to_k.weight", &[16, 16]),
        ("attn1.to_v.weight", &[16, 16]),
        ("attn1.to_out.0.weight", &[16, 16]),
        ("attn1.to_out.0.bias", &[16]),
        ("norm2.weight", &[16]),
        ("norm2.bias", &[16]),
    ];
    const FEED_FORWARD: [(&str, &[usize]); 8] = [
        ("norm3.weight", &[16]),
        ("norm3.bias", &[16]),
        ("ff.net.0.proj.weight", &[128, 16]),
        ("ff.net.0.proj.bias", &[128]),
        ("ff.net.2.weight", &[16, 64]),
        ("ff.net.2.bias", &[16]),
        ("ff.net.2.scale", &[16]),
        ("pos_embed.pe", &[1, 6, 16]),
    ];
    let attention2 = SHAPES.iter().filter(|(name, _)| name.starts_with("attn1"));
    let attention2 = attention2.map(|(name, shape)| (name.replace("attn1", "attn2"), *shape));
    let named =
        SHAPES.iter().chain(&FEED_FORWARD).map(|(name, shape)| ((*name).to_owned(), *shape));
    let tensors: Vec<(String, &[usize], Vec<bf16>)> = named
        .chain(attention2)
        .filter(|(name, _)| name != without)
        .zip(1..)
        .map(|((name, shape), seed)| (name, shape, uniform(shape.iter().product(), seed)))
        .collect();
    let views = tensors.iter().map(|(name, shape, elements)| {
        let bytes = bytemuck::cast_slice(elements);
        let view = TensorView::new(Dtype::BF16, shape.to_vec(), bytes).expect("a tensor");
        (format!("motion.transformer_blocks.0.{name}"), view)
    });
    safetensors::serialize_to_file(views, None, path).expect("written");
}

fn write_input(path: &Path, dims: &[usize]) {
    let x = uniform::<f16>(dims.iter().product(), 9);
    let view = TensorView::new(Dtype::F16, dims.to_vec(), bytemuck::cast_slice(&x));
    safetensors::serialize_to_file([("x", view.expect("a tensor"))], None, path).expect("written");
}

#[test]
fn a_block_of_weights_and_input_from_files_is_computed_correctly_in_chunks() {
    let folder = tempfile::tempdir().expect("a folder");
    let [weights, input, output] = ["w", "x", "y"].map(|name| folder.path().join(name));
    write_weights(&weights, "");
    write_input(&input, &[7, 4, 16]);
    let [weights, input, output_name] =
        [&weights, &input, &output].map(|path| path.to_str().expect("a name"));
    let files = ["--weights", weights, "--input", input, "--output", output_name];
    let (code, text) = run(&[&files[..], &["--heads", "2", "--chunk", "2"]].concat());
    assert_eq!(code, 0, "{text}");
    assert!(text.contains("7 items in 4 chunks of 2, the last of 1"), "{text}");
    assert!(text.contains("motion.transformer_blocks.0.ff.net.2.scale is not used"), "{text}");
    assert!(text.contains("result   correct"), "{text}");
    let bytes = std::fs::read(&output).expect("the output");
    let file = SafeTensors::deserialize(&bytes).expect("whole");
    let out = file.tensor("out").expect("out");
    assert_eq!((out.dtype(), out.shape()), (Dtype::F16, &[7, 4, 16][..]));
}

#[test]
fn files_that_do_not_fit_and_budgets_that_are_too_small_are_errors() {
    let folder = tempfile::tempdir().expect("a folder");
    let [weights, input] = ["w", "x"].map(|name| folder.path().join(name));
    write_weights(&weights, "ff.net.2.bias");
    write_input(&input, &[7, 4, 24]);
    let [name, input_name] = [&weights, &input].map(|path| path.to_str().expect("a name"));
    let refused = |args: &[&str]| {
        let (code, text) = run(args);
        assert_eq!(code, 2, "{text}");
        text
    };
    let text = refused(&["--weights", name]);
    assert!(text.contains("no tensor motion.transformer_blocks.0.ff.net.2.bias"), "{text}");
    write_weights(&weights, "");
    let text = refused(&["--weights", name, "--input", input_name]);
    assert!(text.contains("channels is 24, the kernel takes 16"), "{text}");
    let text = refused(&["--weights", name, "--prefix", "other"]);
    assert!(text.contains("no tensor other.attn1.to_q.weight"), "{text}");
    write_input(&input, &[28, 24]);
    let text = refused(&["--input", input_name]);
    assert!(text.contains("expected [items, frames, channels]"), "{text}");
    let whole = std::fs::read(&weights).expect("bytes");
    std::fs::write(&weights, &whole[..whole.len() / 2]).expect("written");
    let text = refused(&["--weights", name]);
    assert!(text.contains("not a valid safetensors file"), "{text}");
    let text = refused(&["--memory", "1KiB"]);
    assert!(text.contains("raise the budget"), "{text}");
}

#[test]
fn tuning_and_profiles_need_a_device() {
    let folder = tempfile::tempdir().expect("a folder");
    let profile = folder.path().join("nvidia-h200.ron");
    for option in ["--tune", "--profile"] {
        let (code, text) = run(&[option, profile.to_str().expect("a name")]);
        assert_eq!(code, 2, "{text}");
        assert!(text.contains("device: the block runs on the host"), "{text}");
    }
    assert!(!profile.exists());
    let (code, text) = run(&["--chart", "curve.svg"]);
    assert_eq!(code, 2, "{text}");
    assert!(text.contains("--tune <FILE>"), "{text}");
}

#[test]
fn zero_items_and_one_are_done() {
    for items in ["0", "1"] {
        let (code, text) = run(&["--items", items]);
        assert_eq!(code, 0, "{text}");
        assert!(text.contains("result   correct"), "{text}");
    }
}
