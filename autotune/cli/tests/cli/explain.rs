//! `gridguard explain` as its users call it.

use std::fs;

use serde_json::{Value, json};

use crate::command::{Ran, run, run_with_input};

/// Runs the command with `input` on standard input.
fn explain(args: &[&str], input: &[u8]) -> Ran {
    run_with_input(&[&["explain"], args].concat(), input)
}

fn json_of(args: &[&str], input: &[u8]) -> Value {
    let ran = explain(&[args, &["--format", "json"]].concat(), input);
    serde_json::from_str(&ran.out).expect("one JSON document")
}

#[test]
fn a_message_a_name_and_a_number_have_the_same_explanation() {
    let by_words = explain(&["CUDA error: invalid configuration argument"], b"");
    assert_eq!(by_words.code, Some(0));
    assert!(
        by_words
            .out
            .starts_with("cudaErrorInvalidConfiguration (9): \"invalid configuration argument\"\n")
    );
    assert!(by_words.out.contains("\n  not out of memory: "), "{}", by_words.out);
    assert!(by_words.out.ends_with("\nnext step\n  gridguard run -- COMMAND\n"));
    let alone = "\n  this message alone does not name the refused size or argument; to find out, run: gridguard run -- COMMAND\n";
    assert!(by_words.out.contains(alone), "{}", by_words.out);
    for text in [&["9"][..], &["cudaErrorInvalidConfiguration"], &["cudaError", "9"]] {
        assert_eq!(explain(text, b"").out, by_words.out, "{text:?}");
    }
}

#[test]
fn a_log_is_explained_from_its_first_failure_with_the_consequences() {
    let log = "step 1\n\
               RuntimeError: CUDA error: an illegal memory access was encountered\n\
               CUDA error: CUBLAS_STATUS_EXECUTION_FAILED when calling cublasSgemm\n\
               RuntimeError: CUDA error: an illegal memory access was encountered\n";
    let piped = explain(&[], log.as_bytes());
    assert_eq!(piped.code, Some(0));
    assert!(piped.out.starts_with("line 2, reported 2 times: RuntimeError: "), "{}", piped.out);
    let second = "\nCUBLAS_STATUS_EXECUTION_FAILED (13)\n  probably a consequence of \
                  CUDA_ERROR_ILLEGAL_ADDRESS (700): fix that first\n";
    assert!(piped.out.ends_with(second), "{}", piped.out);
    assert_eq!(explain(&["-"], log.as_bytes()).out, piped.out);
    assert_eq!(explain(&[log], b"").out, piped.out);
}

#[test]
fn json_has_lines_findings_and_their_diagnoses() {
    let found = json_of(&["-"], b"hello\nCUDA error: invalid device ordinal\n");
    assert_eq!(found["lines"], 2);
    let finding = &found["findings"][0];
    assert_eq!((&finding["line"], &finding["times"]), (&json!(2), &json!(1)));
    assert_eq!(
        finding["diagnosis"]["failure"],
        json!({
            "origin": "driver", "name": "CUDA_ERROR_INVALID_DEVICE", "number": 101,
            "runtime_name": "cudaErrorInvalidDevice", "message": "invalid device ordinal",
        })
    );
    assert_eq!(finding["diagnosis"]["sticky"], false);
    assert!(finding["diagnosis"]["causes"][0]["remedy"].is_string());
}

#[test]
fn a_chosen_device_is_evidence() {
    let line = "The current PyTorch install supports CUDA capabilities sm_80 sm_86.\n\
                CUDA error: no kernel image is available for execution on the device\n";
    let ran = explain(&["--gpu", "h200", "-"], line.as_bytes());
    let why = "evidence: the device has compute capability 9.0, the program has code for sm_80, sm_86, \
               up to 8.6";
    assert!(ran.out.contains(why), "{}", ran.out);
}

/// The last line, which is a command to paste.
fn next_step(ran: &Ran) -> &str {
    let (_, last) = ran.out.trim_end().rsplit_once("\nnext step\n").expect("one at the end");
    last.trim()
}

#[test]
fn the_driver_s_log_gives_rule_value_limit_and_remedy() {
    let log = "[12:00:00.1][42][CUDA][E] Grid Dimension Y of 65536 exceeds maximum value of 65535\n\
               [12:00:00.1][42][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLaunchKernel\n";
    let ran = explain(&["--gpu", "h200", "-"], log.as_bytes());
    for line in [
        "\n  driver log: Grid Dimension Y of 65536 exceeds maximum value of 65535\n",
        "\n  1. grid.y is 65536 blocks, the limit is 65535 (NVIDIA H200)\n",
        "\n     evidence: the launch violates rule grid-dim-y\n",
        "\n     fix: split axis y into 2 launches of 32768, or fold it into x\n",
    ] {
        assert!(ran.out.contains(line), "{line}: {}", ran.out);
    }
    let check = "gridguard check --gpu 'NVIDIA H200' --grid 1,65536,1 --block 1,1,1";
    assert_eq!(next_step(&ran), check);
    let blocks = "[1][2][CUDA][E] One or more of block dimensions of (4096,1,1) exceeds corresponding \
                  maximum value of (1024,1024,64)\n";
    let found = json_of(&["-"], blocks.as_bytes());
    assert_eq!(found["findings"][0]["diagnosis"]["causes"][0]["id"], "block-dim-x");
}

#[test]
fn unknown_lines_of_the_driver_s_log_are_quoted_and_harmless_ones_are_not() {
    let log = "[1][2][CUDA][E] cudaVersion argument (13010) exceeds the driver version (13000)\n\
               [1][2][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuGetProcAddress_v2\n";
    assert_eq!(json_of(&["-"], log.as_bytes())["findings"], json!([]));
    let odd = "[1][2][CUDA][E] the moon is in the wrong house\n\
               [1][2][CUDA][E] Returning 1 (CUDA_ERROR_INVALID_VALUE) from cuLaunchKernelEx\n";
    let found = json_of(&["-"], [log, odd].concat().as_bytes());
    let quoted = &found["findings"][0]["diagnosis"]["driver_log"];
    assert_eq!(*quoted, json!(["the moon is in the wrong house"]));
}

#[test]
fn a_launch_in_the_text_is_checked_against_the_chosen_gpu_or_all_of_the_catalogue() {
    let text = "CUDA error: invalid argument, grid (1,65536,1) block (128,1,1)";
    let chosen = explain(&["--gpu", "t4", text], b"");
    assert!(chosen.out.contains("\n  1. grid.y is 65536 blocks, the limit is 65535 (Tesla T4)\n"));
    let all = explain(&[text], b"");
    let on_all = "\n  1. grid.y is 65536 blocks, the limit is 65535 (all ";
    assert!(all.out.contains(on_all), "{}", all.out);
    assert_eq!(next_step(&all), "gridguard check --gpu any --grid 1,65536,1 --block 128,1,1");

    let shared = "with block dimensions: 128x1x1 and grid dimensions: 4x1x1 and shared memory size: \
                  131072: CUDA_ERROR_INVALID_VALUE: invalid argument";
    let some = explain(&[shared], b"");
    assert!(some.out.contains(" such GPUs of "), "{}", some.out);
    // The next step can be pasted: here with a name that needs its quotes.
    let args = next_step(&some).strip_prefix("gridguard ").expect("a command of ours");
    let args: Vec<&str> = args
        .split('\'')
        .flat_map(|part| match part.contains("--") {
            true => part.split_whitespace().collect(),
            false => vec![part],
        })
        .collect();
    assert_eq!(run_with_input(&args, b"").code, Some(1), "{args:?}");
    let fits = explain(&["--gpu", "h200", &shared.replace("131072", "1024")], b"");
    let legal = "\n  not the launch configuration: it was checked and violates no rule\n";
    assert!(fits.out.contains(legal), "{}", fits.out);
    assert_eq!(next_step(&fits), "gridguard run -- COMMAND");
    // The text states a compute capability.
    let stated = format!(
        "A100 with CUDA capability sm_80 is not compatible with the current PyTorch installation\n\
         {text}\n"
    );
    let stated = explain(&["-"], stated.as_bytes());
    assert!(
        stated.out.contains("\n  1. grid.y is 65536 blocks, the limit is 65535 (any sm_80)"),
        "{}",
        stated.out
    );
    assert!(stated.out.contains("gridguard check --gpu 'sm_80' --grid 1,65536,1 "));
    // Without the block, a legal grid excludes nothing.
    assert!(!explain(&["CUDA error: invalid argument, grid (1,2,3)"], b"").out.contains(legal));
}

#[test]
fn a_traceback_that_ends_in_a_copy_ranks_launch_sizes_last() {
    let log = "Traceback (most recent call last):\n  File \"train.py\", line 3, in <module>\n    \
               main()\n  File \"net.py\", line 9, in load\n    x = x.to(device)\n\
               RuntimeError: CUDA error: invalid argument\n";
    let found = json_of(&["-"], log.as_bytes());
    let causes = found["findings"][0]["diagnosis"]["causes"].as_array().expect("causes");
    assert_eq!(causes[0]["id"], "copy");
    assert_eq!(causes[0]["why_likely"], "the log says `x = x.to(device)`");
    assert_eq!(causes.last().expect("several")["id"], "launch-size");
    assert_eq!(next_step(&explain(&["-"], log.as_bytes())), "gridguard run -- python train.py");
}

#[test]
fn functions_in_a_traceback_name_the_known_case() {
    for (function, id) in [
        ("motion_module.py\", line 3, in forward", "temporal-attention"),
        ("a.py\", line 3, in memory_efficient_attention", "attention-batch"),
        ("a.py\", line 3, in scaled_dot_product_attention", "attention-batch"),
        ("flash_attn/a.py\", line 3, in forward", "attention-batch"),
        ("a.py\", line 3, in sort", "sort-row"),
        ("a.py\", line 3, in moe_gemm", "moe-tokens"),
    ] {
        let log = format!("File \"{function}\nRuntimeError: CUDA error: invalid argument\n");
        let found = json_of(&["-"], log.as_bytes());
        assert_eq!(found["findings"][0]["diagnosis"]["causes"][0]["id"], id, "{function}");
    }
}

#[test]
fn unrecognized_text_is_exit_1_and_the_help_lists_what_is_accepted() {
    for (args, input) in [(&["good", "morning"][..], ""), (&[], ""), (&["-"], "all is well\n")] {
        let ran = explain(args, input.as_bytes());
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{args:?}");
        assert!(ran.err.contains("CUDA_ERROR_INVALID_VALUE"), "{}", ran.err);
    }
    assert_eq!(json_of(&["hello"], b"")["findings"], json!([]));
}

#[test]
fn half_remembered_messages_are_found_or_suggested() {
    let one = explain(&["illegal", "memory", "access"], b"");
    assert_eq!(one.code, Some(0));
    assert!(
        one.out.starts_with(
            "CUDA_ERROR_ILLEGAL_ADDRESS (700), cudaErrorIllegalAddress in the runtime"
        ),
        "{}",
        one.out
    );
    let taken = "assuming that \"illegal memory access\" means CUDA_ERROR_ILLEGAL_ADDRESS (700)\n";
    assert_eq!(one.err, taken);
    let several = explain(&["oom"], b"");
    assert_eq!((several.code, several.out.as_str()), (Some(1), ""));
    assert!(several.err.contains("\n  CUDA_ERROR_OUT_OF_MEMORY (2)\n  torch."), "{}", several.err);
    let success = explain(&["0"], b"");
    assert_eq!((success.code, success.err.as_str()), (Some(1), "0 is success: nothing failed\n"));
}

#[test]
fn a_file_is_read_as_a_log_even_if_its_name_is_a_message() {
    let folder = tempfile::tempdir().expect("a folder");
    let log = "ok\nCUDA error: misaligned address\n";
    for name in ["training.log", "700", "grid-dim-y"] {
        fs::write(folder.path().join(name), log).expect("a file");
        let ran = run(folder.path(), &["explain", name]);
        assert!(ran.out.starts_with("line 2: CUDA error: misaligned address\n"), "{}", ran.out);
        assert_eq!(ran.code, Some(0), "{name}");
    }
    let nothing = explain(&["Cargo.toml"], b"");
    assert_eq!((nothing.code, nothing.out.as_str()), (Some(1), ""));
    assert!(nothing.err.starts_with("no CUDA failure recognized in "), "{}", nothing.err);
    assert!(nothing.err.ends_with(" lines of Cargo.toml\n"), "{}", nothing.err);
}

#[test]
fn a_misspelt_path_is_no_log_without_a_failure() {
    for name in ["trainig.log", "logs/1", "/nowhere/log"] {
        let ran = explain(&[name, "--format", "json"], b"").exits(2);
        assert_eq!((&*ran.out, ran.err), ("", format!("error: {name}: no such file\n")));
    }
    let ran = explain(&["src"], b"").exits(2);
    assert_eq!(ran.err, "error: src: is a folder, not a file\n");
    // These are messages.
    for text in ["it failed. why?", "hello", "1 / 2"] {
        let ran = explain(&[text], b"").exits(1);
        assert!(ran.err.starts_with("no CUDA failure recognized; "), "{}", ran.err);
    }
}

#[test]
fn former_numbers_are_explained_and_invalid_ones_are_not() {
    let old = explain(&["77"], b"");
    let start = "77 is the number of this failure in the runtime before CUDA 10.1\nCUDA_ERROR_ILLEGAL_ADDRESS (700)";
    assert!(old.code == Some(0) && old.out.starts_with(start), "{}", old.out);
    for text in ["-1", "-700", "99999999999", "exit code 9"] {
        let ran = explain(&[text], b"");
        assert_eq!((ran.code, ran.out.as_str()), (Some(1), ""), "{text}");
    }
}

#[test]
fn a_log_in_color_in_utf_16_or_without_a_final_newline_is_read() {
    let coloured = explain(&[], b"\x1b[31mCUDA error\x1b[0m: \x1b[1mout of memory\x1b[0m\r\n\r\n");
    assert!(coloured.out.starts_with("line 1: CUDA error: out of memory\n"), "{}", coloured.out);
    let wide = "\u{feff}ok\r\nCUDA error: misaligned address\r\n".encode_utf16();
    let wide = explain(&[], &wide.flat_map(u16::to_le_bytes).collect::<Vec<u8>>());
    assert!(wide.out.starts_with("line 2: CUDA error: misaligned address\n"), "{}", wide.out);
    let unended = explain(&[], b"ok\nCUDA error: misaligned address");
    assert_eq!(unended.out, wide.out);
    let mut long = b"x ".repeat(1 << 20);
    long.extend_from_slice(b"CUDA error: misaligned address");
    assert_eq!(explain(&[], &long).code, Some(0));
}

#[test]
fn a_repeated_failure_is_explained_once() {
    let line = "[rank0]: RuntimeError: CUDA error: an illegal memory access was encountered\n";
    let ran = explain(&[], line.repeat(20_000).as_bytes());
    assert!(ran.out.starts_with("line 1, reported 20000 times: [rank0]: "), "{}", ran.out);
    assert_eq!(ran.out.matches("possible causes").count(), 1);
}

#[test]
fn invalid_usage_is_exit_2_and_an_unavailable_device_is_exit_3() {
    assert_eq!(explain(&["700", "--gpu", "gtx-9000"], b"").code, Some(2));
    assert_eq!(explain(&["  "], b"").code, Some(2));
    assert_eq!(explain(&["700", "--format", "yaml"], b"").code, Some(2));
    assert_eq!(explain(&["700", "--gpu", "h200", "--device", "0"], b"").code, Some(2));
    assert_eq!(explain(&["700", "--device", "4711"], b"").code, Some(3));
}

#[test]
fn binary_data_and_very_long_lines_are_read_to_the_end() {
    let mut input = vec![0xff_u8; 1 << 20];
    input.extend_from_slice(b"\nCUDA error: misaligned address\n\0\x80\n");
    let found = json_of(&["-"], &input);
    assert_eq!(found["lines"], 3);
    assert_eq!(found["findings"][0]["line"], 2);
    assert_eq!(found["findings"][0]["diagnosis"]["failure"]["number"], 716);
}

#[test]
fn words_such_as_grid_are_no_gpu() {
    for text in
        ["CUDA error: invalid argument, grid(1, 1, 1)", "CUDA error: invalid argument, grid_x = 7"]
    {
        let ran = explain(&[text], b"");
        assert!(!ran.out.contains("Tesla"), "{}", ran.out);
        assert_eq!(next_step(&ran), "gridguard run -- COMMAND");
    }
}

#[test]
fn sizes_in_a_log_decide_over_the_general_list() {
    let causes = |text: &str| {
        let found = json_of(&["-"], format!("{text}\n").as_bytes());
        found["findings"][0]["diagnosis"].clone()
    };
    let attention = |sizes: &str| {
        causes(&format!(
            "{sizes}\nFile \"a.py\", line 3, in memory_efficient_attention\nRuntimeError: CUDA error: invalid argument"
        ))
    };
    let fits = attention("batch_size=2, num_heads=8");
    assert_eq!(
        fits["not"][1],
        "attention-batch: batch 2 x heads 8 = 16, and an axis of the grid holds 65535"
    );
    assert_eq!(
        (&fits["causes"][0]["id"], &fits["is_undecided"]),
        (&json!("launch-size"), &json!(true))
    );
    let large = attention("batch_size=16384, num_heads=8");
    let cause = &large["causes"][0];
    assert_eq!(
        cause["why_likely"],
        "the log says batch 16384 x heads 8 = 131072, the limit is 65535"
    );
    assert!(cause["remedy"].as_str().expect("text").ends_with("; here 3 calls of at most 43691"));
    let pair = causes(
        "1,048,560 elements works, 1,048,561 fails, 16 threads a block\nCUDA error: invalid argument",
    );
    assert_eq!(pair["causes"][0]["id"], "grid-dim-y");
    assert_eq!(pair["commands"][0], "gridguard check --gpu any --grid 1,65536,1 --block 16,1,1");
}

#[test]
fn attention_in_pytorch_ends_in_the_installation() {
    let log = "File \"a.py\", line 3, in scaled_dot_product_attention\nRuntimeError: CUDA error: invalid argument\n";
    let end = "\nnext step\n  pip install gridguard\nand in the program, before the model runs\n  \
               import gridguard.torch\n  gridguard.torch.install()\n";
    let ran = explain(&["-"], log.as_bytes());
    assert!(ran.out.ends_with(end), "{}", ran.out);
    let unaligned = explain(&["-"], b"x\nRuntimeError: attn_bias is not correctly aligned\n");
    assert!(unaligned.out.ends_with(end), "{}", unaligned.out);
    let misaligned = log.replace("invalid argument", "misaligned address");
    let found = json_of(&["-"], misaligned.as_bytes());
    assert_eq!(found["findings"][0]["diagnosis"]["causes"][0]["id"], "attention-batch");
}

#[test]
fn an_out_of_memory_at_a_launch_is_about_stacks() {
    let log = "#0  cudaLaunchKernel (func=0x55)\nCUDA error: out of memory\n";
    let found = json_of(&["-"], log.as_bytes());
    assert_eq!(found["findings"][0]["diagnosis"]["causes"][0]["id"], "local-memory");
}

#[test]
fn an_out_of_memory_is_told_apart_by_what_was_to_be_made() {
    for (line, id) in [
        ("cuModuleLoadDataEx failed: CUDA_ERROR_OUT_OF_MEMORY", "module-memory"),
        ("cuModuleLoadData(&module, image) returned CUDA_ERROR_OUT_OF_MEMORY", "module-memory"),
        ("cuLibraryLoadData: CUDA_ERROR_OUT_OF_MEMORY: out of memory", "module-memory"),
        ("cuCtxCreate failed: out of memory", "context-memory"),
        ("failed call to cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY", "context-memory"),
        ("CUDA error: out of memory in cudaGraphInstantiate(&exec, graph, 0)", "graph-memory"),
        ("File \"graphs.py\", line 84, in capture_end\nCUDA error: out of memory", "graph-memory"),
        ("cudaMalloc failed: out of memory", "too-little-free"),
    ] {
        let found = json_of(&["-"], format!("{line}\n").as_bytes());
        assert_eq!(found["findings"][0]["diagnosis"]["causes"][0]["id"], id, "{line}");
    }
    // Memory is no cause of another failure of the same call.
    let invalid = json_of(&["-"], b"cuModuleLoadData: CUDA_ERROR_INVALID_IMAGE\n");
    let causes = invalid["findings"][0]["diagnosis"]["causes"].to_string();
    assert!(!causes.contains("module-memory"), "{causes}");
}

/// Id and text of the first cause.
fn first_cause(log: &str) -> (String, String) {
    let found = json_of(&["-"], format!("{log}\n").as_bytes());
    let diagnosis = &found["findings"][0]["diagnosis"];
    let cause = &diagnosis["causes"][0];
    (
        cause["id"].as_str().unwrap_or_default().to_owned(),
        format!("{cause} {}", diagnosis["commands"]),
    )
}

#[test]
fn shared_memory_of_a_pasted_launch_is_checked() {
    let invalid = "CUDADriverError: CUDA_ERROR_INVALID_VALUE: invalid argument";
    for launch in [
        "kernel((5,), (32,), (x, y), shared_mem=98304)",
        "kernel<<<grid, block, 96 * 1024, stream>>>(x)",
        "copy<<<dim3(4, 4), dim3(32, 8), 98304>>>(x)",
        "launched with dynamic shared memory 98304",
        "dynamic shared memory: 96.0 KiB",
        "smem_bytes = 98304",
    ] {
        let (id, text) = first_cause(&format!("{launch}\n{invalid}"));
        assert_eq!(id, "dynamic-shared-memory-opt-in", "{launch}");
        let says = ["MaxDynamicSharedMemorySize, 98304", "max_dynamic_shared_size_bytes"];
        assert!(says.iter().all(|it| text.contains(it)), "{text}");
    }
    let (id, text) = first_cause(&format!("kernel<<<grid, block, 300000>>>(x)\n{invalid}"));
    assert_eq!(id, "shared-memory-total");
    assert!(text.contains("232448") && text.contains("opting in does not allow more"), "{text}");
    for other in ["max dynamic shared memory 232448", "kernel<<<grid, block, 1024>>>(x)"] {
        assert_eq!(first_cause(&format!("{other}\n{invalid}")).0, "launch-size", "{other}");
    }
}

#[test]
fn a_shape_in_the_log_comes_before_the_list_of_limits() {
    for failure in ["CUDA error: invalid configuration argument", "CUDA error: invalid argument"] {
        for (line, id, says) in [
            ("x = torch.rand(70000, 16, 16)", "large-shape", "axis of 70000 may"),
            ("batch_size = 131072", "large-shape", "3 parts of at most 43691"),
            ("mx.zeros((1 << 14, 1 << 14))", "large-shape", "268435456 elements may"),
            ("x.shape = torch.Size([0, 64])", "empty-batch", "(0, 64)"),
            ("grid y = 65536", "grid-dim-y", "65536"),
            ("x = torch.rand(64, 16)", "launch-size", ""),
        ] {
            let (found, text) = first_cause(&format!("{line}\n{failure}"));
            assert_eq!(found, id, "{line}");
            assert!(text.contains(says), "{line}: {text}");
        }
    }
    // A known size precedes a size that only may be at fault.
    let both = "x = torch.rand(70000, 8)\ngrid=(1, 65536) block=(8,)\nCUDA error: invalid argument";
    assert_eq!(first_cause(both).0, "grid-dim-y");
}

#[test]
fn memory_of_the_host_and_of_pools_has_causes_of_its_own() {
    for (line, id, says) in [
        (
            "failed to alloc 1073741824 bytes on host: CUDA_ERROR_OUT_OF_MEMORY",
            "host-memory",
            "free -h",
        ),
        ("cudaMallocHost failed: out of memory", "host-memory", "ulimit -l"),
        ("CUDA error in cudaHostAlloc(&p, n, 0): out of memory", "host-memory", "locked memory"),
        (
            "AMReX_Arena.cpp line 169: CUDA error 2: out of memory",
            "pool-memory",
            "the_arena_init_size",
        ),
        (
            "failed to allocate 9.63G (10344017920 bytes) from device: CUDA_ERROR_OUT_OF_MEMORY",
            "pool-memory",
            "XLA_PYTHON_CLIENT_PREALLOCATE=false",
        ),
        ("rmm/mr/device/pool_memory_resource.hpp: CUDA error: out of memory", "pool-memory", "RMM"),
        ("CUDA error 2: out of memory", "other-process", "nvidia-smi"),
    ] {
        let (found, text) = first_cause(line);
        assert_eq!(found, id, "{line}: {text}");
        assert!(text.contains(says), "{line}: {text}");
        assert_eq!(id == "host-memory", !text.contains("nvidia-smi"), "{line}: {text}");
    }
}

#[test]
fn the_call_that_cannot_be_captured_is_named_with_advice_for_the_program() {
    let failure = "operation not permitted when stream is capturing";
    for (log, says, is_torch) in [
        (format!("cudaMalloc(&p, n): CUDA error: {failure}"), "call cudaMalloc before", false),
        (format!("cudaMemcpyAsync failed: {failure} (cuda)"), "pass it pinned memory", false),
        (format!("ggml_cuda_pool: CUDA error: {failure}"), "GGML_CUDA_DISABLE_GRAPHS=1", false),
        (
            format!(
                "  File \"a.py\", line 1, in step\n    loss.item()\nRuntimeError: CUDA error: {failure}"
            ),
            "call loss.item before",
            true,
        ),
    ] {
        let (_, text) = first_cause(&log);
        assert!(text.contains(says), "{log}: {text}");
        assert_eq!(text.contains("in PyTorch"), is_torch, "{log}: {text}");
    }
}
