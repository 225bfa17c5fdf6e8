//! `gridguard check` and `gridguard limits`: output, exit codes, malformed input.

use expect_test::expect_file;
use serde_json::{Value, json};

use crate::command::{Ran, Words, run_with_input};

fn lines(ran: &Ran) -> Vec<Value> {
    ran.out.lines().map(|line| serde_json::from_str(line).expect("JSON lines")).collect()
}

fn gridguard(args: &(impl Words + ?Sized)) -> Ran {
    with_input(args, "")
}

fn with_input(args: &(impl Words + ?Sized), input: &str) -> Ran {
    run_with_input(args, input.as_bytes())
}

const MOTIVATING: &str = "check --gpu h200 --grid 1,76800,1 --block 128 --batch-axis y --items 15360 --blocks-per-item 5";

#[test]
fn the_motivating_case_is_legal_in_two_chunks() {
    let ran = gridguard(MOTIVATING);
    assert_eq!(ran.code, Some(0));
    expect_file!["screens/check.txt"].assert_eq(&ran.out);
}

#[test]
fn a_verdict_as_json_has_name_verdict_violations_and_plan() {
    let ran = gridguard(&format!("{MOTIVATING} --format json"));
    expect_file!["screens/check-json.txt"].assert_eq(&format!("{:#}\n", ran.json()));
}

#[test]
fn every_option_of_check_reaches_its_rule() {
    let cases: [(&str, &str); 12] = [
        ("--block 1,1,65", "block-dim-z"),
        ("--block 1025", "threads-per-block"),
        ("--block 129 --kernel-max-threads 128", "kernel-threads-per-block"),
        ("--block 257 --registers 210", "registers-per-block"),
        ("--block 1 --local-mem 524288", "local-memory"),
        ("--block 1 --shared-mem 232449", "shared-memory-total"),
        (
            "--block=1 --shared-mem=1153 --static-shared-mem=48000 --no-opt-in",
            "dynamic-shared-memory-opt-in",
        ),
        ("--block 1 --cluster 16", "cluster-size"),
        ("--block 1 --cluster 3", "cluster-divides-grid"),
        ("--block 1 --param-bytes 32765", "parameter-bytes"),
        (
            "--block 1 --batch-axis x --items 16 --elements-per-item 2147483648 --index-bits 32",
            "index-wrap",
        ),
        (
            "--block 1 --batch-axis x --items 16 --workspace-per-item 11 --memory 10",
            "workspace-memory",
        ),
    ];
    for (options, rule) in cases {
        let base = "check --gpu h200 --format json --grid 16";
        let ran = gridguard(&format!("{base} {options}"));
        assert_eq!(ran.code, Some(1), "{options:?}: {}", ran.out);
        let violations = ran.json()["violations"].clone();
        let rules: Vec<&str> = violations
            .as_array()
            .expect("a list")
            .iter()
            .filter_map(|v| v["rule"].as_str())
            .collect();
        assert!(rules.contains(&rule), "{options:?}: {rules:?}");
    }
    gridguard("check --gpu t4 --grid 8 --block 1 --cluster 2").prints("cluster-unsupported");
    let cooperative = "--grid 1,76800 --block 1 --cooperative --batch-axis y";
    gridguard(&format!("check --gpu h200 --items 76800 {cooperative}"))
        .prints("cooperative-residency");
}

#[test]
fn shared_memory_opt_in_and_alignment_are_respected() {
    let ran = gridguard(
        "check --gpu h200 --grid 1 --block 1 --shared-mem 100000 --kernel-max-shared-mem 100000",
    );
    assert_eq!(ran.code, Some(0));
    let ran = gridguard(&format!("{MOTIVATING} --align 1000 --format json"));
    let launches = ran.json()["plan"]["launches"].clone();
    let starts: Vec<u64> =
        launches.as_array().expect("a list").iter().filter_map(|l| l["start"].as_u64()).collect();
    assert_eq!(starts, [0, 8000]);
}

#[test]
fn usage_is_exit_2_and_says_what_is_wrong() {
    let base = "check --gpu h200 --grid 1 --block 1";
    let cases: [(&str, &str); 10] = [
        ("check --grid 1 --block 1", "--gpu"),
        ("check --gpu h200 --block 1", "--grid"),
        ("check --gpu h200 --grid 1", "--block"),
        ("check --gpu h200 --grid 1,2,3,4 --block 1", "one to three numbers"),
        ("check --gpu h200 --grid -1 --block 1", "-1"),
        ("check --gpu h200 --device 0 --grid 1 --block 1", "--device"),
        ("check --gpu gtx-9000 --grid 1 --block 1", "such as 8.6"),
        (
            "check --gpu h200 --grid 1 --block 1 --batch-axis x --items x",
            "a whole number, such as 6",
        ),
        ("limits --gpu gtx-9000", "no GPU \"gtx-9000\""),
        ("frobnicate", "frobnicate"),
    ];
    for (args, said) in cases {
        let ran = gridguard(args);
        assert_eq!(ran.code, Some(2), "{args:?}");
        ran.notes(said);
        assert!(ran.out.is_empty(), "{args:?}: {}", ran.out);
    }
    let batch = "--batch-axis x --items 1";
    for options in ["--index-bits 16", "--blocks-per-item 0", "--align 0"] {
        let ran = gridguard(&format!("{base} {batch} {options}"));
        assert_eq!(ran.code, Some(2), "{options:?}");
        ran.notes(options.words()[0]);
    }
}

#[test]
fn each_line_gets_a_reply_in_order_even_if_others_are_malformed() {
    let input = [
        r#"{"name":"ok","grid":[1,76800,1],"block":[128,1,1],"batch":{"axis":"y","items":76800}}"#,
        r#"{"name":"cut","grid":[1,"#,
        "",
        r#"{"name":"typo","grid":[1,1,1],"block":[1,1,1],"coopperative":true}"#,
        r#"{"name":"negative","grid":[-1,1,1],"block":[1,1,1]}"#,
        r#"{"name":"huge","grid":[18446744073709551616,1,1],"block":[1,1,1]}"#,
        r#"{"name":"zero","grid":[1,0,1],"block":[1,1,1]}"#,
        r#"{"name":"empty batch","grid":[1,0,1],"block":[1,1,1],"batch":{"axis":"y","items":0}}"#,
    ]
    .join("\n");
    let ran = with_input("check --gpu h200 --requests -", &input);
    assert_eq!(ran.code, Some(2));
    let answers = lines(&ran);
    let verdicts: Vec<&str> = answers.iter().filter_map(|a| a["verdict"].as_str()).collect();
    assert_eq!(verdicts, ["chunked", "error", "error", "error", "error", "rejected", "legal"]);
    assert_eq!(answers[1]["line"], 2);
    assert_eq!(answers[2]["line"], 4);
    assert!(answers[2]["error"].as_str().expect("text").contains("unknown field `coopperative`"));
    assert_eq!(answers[6]["plan"]["launches"], json!([]));
    ran.notes("line 2: ");
}

#[test]
fn the_request_in_the_help_has_every_field() {
    let help = gridguard("check --requests --help").exits(0).out;
    let (_, request) = help.split_once("may be omitted:\n").expect("a request");
    let check = |request: &str| with_input("check --gpu h200 --requests -", request);
    check(&request.replace('\n', " ")).exits(0);
    for unknown in [r#"{"x":1}"#, r#"{"kernel":{"x":1}}"#, r#"{"batch":{"x":1}}"#] {
        let error = check(unknown).exits(2).err;
        let known: Vec<&str> = error.split('`').skip(3).step_by(2).collect();
        assert!(known.len() > 8, "{error}");
        for field in known {
            assert!(request.contains(&format!("\"{field}\"")), "{field}");
        }
    }
    let error = check(r#"{"grid":[1,-1,1],"block":[1,1,1]}"#).exits(2).err;
    assert!(error.ends_with("expected a whole number, such as 6\n"), "{error}");
}

#[test]
fn a_rejected_line_is_exit_1_and_all_legal_ones_are_0() {
    let legal = r#"{"grid":[1,1,1],"block":[1,1,1]}"#;
    let rejected = r#"{"grid":[1,65536,1],"block":[1,1,1]}"#;
    let check = "check --gpu h200 --requests -";
    assert_eq!(with_input(check, &format!("{legal}\n{legal}")).code, Some(0));
    assert_eq!(with_input(check, &format!("{legal}\n{rejected}\n{legal}\n")).code, Some(1));
    let none = with_input(check, "\n").exits(0);
    assert_eq!((&*none.out, &*none.err), ("", "- has no request: nothing was checked\n"));
}

#[test]
fn oversized_lines_are_rejected_in_bounded_memory_and_the_next_gets_a_reply() {
    let long = format!("{{\"name\":\"{}\"}}", "x".repeat(3 << 20));
    let deep = "[".repeat(100_000);
    let many = r#"{"name":"many","grid":[18446744073709551615,1,1],"block":[1,1,1],
        "batch":{"axis":"x","items":18446744073709551615,"align":1}}"#
        .replace('\n', " ");
    let last = r#"{"name":"last","grid":[1,1,1],"block":[1,1,1]}"#;
    let input = [&long, &deep, &many, last].join("\n");
    let ran = with_input("check --gpu h200 --requests -", &input);
    let answers = lines(&ran);
    assert!(answers[0]["error"].as_str().expect("text").contains("longer than 1048576 bytes"));
    assert_eq!(answers[1]["verdict"], "error");
    assert_eq!(answers[2]["verdict"], "chunked");
    assert_eq!(answers[2]["plan"]["launches"].as_array().expect("a list").len(), 4096);
    assert_eq!(answers[2]["plan"]["omitted_launches"], 8_589_934_597_u64 - 4096);
    assert_eq!(answers[3]["name"], "last");
}

#[test]
fn sizes_are_read_as_programs_and_reports_print_them() {
    let check =
        |grid: &str| gridguard(&["check", "--gpu", "h200", "--grid", grid, "--block", "32"]);
    for grid in ["1,76800,1", "1,76800", "(1, 76800, 1)", "1 x 76800 x 1", "1x76800"] {
        check(grid).exits(1).prints("grid.y is 76800 blocks");
    }
    for grid in ["", "x", "1,,1", "1,2,3,4", "(1", "1e5", "1.5", "99999999999999999999"] {
        let ran = check(grid).exits(2);
        assert!(ran.err.contains(" as X,Y,Z") || grid.is_empty(), "{grid}: {}", ran.err);
    }
}

#[test]
fn a_batch_that_covers_a_part_of_the_grid_gets_its_blocks_per_item() {
    let check = |items: &str| {
        let launch = "check --gpu h200 --grid 1,76800 --block 32 --batch-axis y";
        gridguard(&format!("{launch} --items {items}")).exits(1).out
    };
    let hint = "\nif each item has 5 blocks, add --blocks-per-item 5\n";
    assert!(check("15360").ends_with(hint), "{}", check("15360"));
    for items in ["0", "7", "76801"] {
        assert!(!check(items).contains("--blocks-per-item"), "{}", check(items));
    }
}

#[test]
fn a_grid_that_frameworks_skip_is_legal_and_named() {
    let check =
        |grid: &str| gridguard(&["check", "--gpu", "h200", "--grid", grid, "--block", "32"]);
    for (grid, product) in
        [("65536,32768", "-2147483648"), ("16384,16384,16", "0"), ("65535,65535", "-131071")]
    {
        check(grid).exits(0).prints(&format!("\ngrid-product: Triton and torch.compile multiply this grid in 32 bits, which gives {product}, and skip"));
    }
    for grid in ["65536,32767", "2147483647", "65535,32769,2"] {
        assert!(!check(grid).out.contains("grid-product"), "{grid}");
    }
    gridguard("explain grid-product").exits(0).prints("\n| Triton up to 3.9 | drops a grid ");
}

#[test]
fn a_requests_file_that_is_missing_or_not_text_is_reported() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("requests");
    let name = path.to_str().expect("a name");
    let ran = gridguard(&["check", "--gpu", "h200", "--requests", name]);
    assert_eq!(ran.code, Some(2));
    assert_eq!(ran.err, format!("error: {name}: no such file\n"));
    let of_folder = folder.path().to_str().expect("a name");
    let ran = gridguard(&["check", "--gpu", "h200", "--requests", of_folder]).exits(2);
    assert_eq!(ran.err, format!("error: {of_folder}: is a folder, not a file\n"));
    std::fs::write(&path, b"\xff\xfe\n{\"grid\":[1,1,1],\"block\":[1,1,1]}\n").expect("written");
    let ran = gridguard(&["check", "--gpu", "h200", "--requests", name]);
    assert_eq!(ran.code, Some(2));
    let answers = lines(&ran);
    assert!(answers[0]["error"].as_str().expect("text").contains("UTF-8"));
    assert_eq!(answers[1]["verdict"], "legal");
}

#[test]
fn limits_are_text_and_json_with_their_sources() {
    assert_eq!(gridguard("limits h200").out, gridguard("limits --gpu h200").out);
    let json = gridguard("limits --gpu RTX-4090 --format json").json();
    assert_eq!(json["max_grid"], json!([2_147_483_647, 65_535, 65_535]));
    let sources = json["sources"].as_array().expect("a list");
    assert!(sources.iter().all(|s| s["title"].as_str().is_some_and(|title| !title.is_empty())));
    assert_eq!(json["compute_capability"], json!([8, 9]));
    let all = gridguard("limits --format json").json();
    assert!(all.as_array().expect("a list").len() >= 15);
}

#[test]
fn gpus_are_compared_side_by_side_with_their_sources_below() {
    let compared = gridguard("limits --compare a30 h200");
    assert_eq!(compared.code, Some(0));
    let footnotes = compared.out.lines().filter(|line| line.starts_with('[')).count();
    let most = (1..).take_while(|number| compared.out.contains(&format!(" [{number}]"))).count();
    assert_eq!(footnotes, most, "each source once, each number explained");
    let json = gridguard("limits --compare a30 h200 --format json").json();
    assert_eq!(json[1]["multiprocessors"], 132);
    for wrong in ["--compare h200", "h200 --compare t4 a10"] {
        assert_eq!(gridguard(&format!("limits {wrong}")).code, Some(2), "{wrong:?}");
    }
    gridguard("limits gtx-9000").notes("no GPU \"gtx-9000\" in the catalogue");
}

#[test]
fn a_device_that_cannot_be_queried_is_exit_3() {
    let ran = gridguard("limits --device 4711");
    assert_eq!(ran.code, Some(3));
    assert!(ran.err.starts_with("error: cannot query the device: "), "{}", ran.err);
    let ran = gridguard("check --device 4711 --grid 1 --block 1");
    assert_eq!(ran.code, Some(3));
}

/// `check` of a launch on `gpus`, with more arguments.
fn launch(gpus: &str, more: &str) -> Ran {
    gridguard(&format!("check --gpu {gpus} --grid 1,76800 --block 128 {more}"))
}

#[test]
fn several_gpus_are_a_table_and_the_worst_decides() {
    let batch = "--batch-axis y --items 76800";
    launch("any,sm_86,h200", &format!("{batch} --shared-mem 100KiB")).exits(1);
    let json = launch("h200,a100", &format!("{batch} --format json")).exits(0).json();
    let of = |row: usize, field: &str| json[row][field].as_str().unwrap_or_default().to_owned();
    assert_eq!((of(0, "gpu"), of(0, "verdict")), ("NVIDIA H200".into(), "chunked".into()));
    assert_eq!(of(1, "gpu"), "NVIDIA A100-SXM4-80GB");
    gridguard("check --gpu h200,a100 --requests -").exits(2).notes("one --gpu");
}

#[test]
fn a_rejection_that_a_batch_resolves_names_the_option() {
    launch("h200", "").exits(1).prints("add --batch-axis y --items 76800\n");
    let two_rules = launch("h200", "--shared-mem 1Gi").exits(1);
    assert!(!two_rules.out.contains("--batch-axis"), "{}", two_rules.out);
}

#[test]
fn large_shared_memory_is_legal_with_a_note_unless_the_kernel_does_not_opt_in() {
    let shared = |more: &str| {
        let launch = "check --gpu sm_86 --grid 1 --block 128";
        gridguard(&format!("{launch} --shared-mem 80KiB {more}"))
    };
    shared("").exits(0).prints("opts in to large shared memory");
    assert_eq!(shared("--format json").exits(0).json()["opts_in"], true);
    shared("--no-opt-in").exits(1).prints("dynamic-shared-memory-opt-in");
    shared("--kernel-max-shared-mem 64Ki").exits(1);
    let line = br#"{"grid": [1, 1, 1], "block": [1, 1, 1], "dynamic_shared_bytes": 81920}"#;
    for (more, code) in [("", 0), ("--no-opt-in", 1)] {
        let args = &format!("check --gpu sm_86 --requests - {more}");
        run_with_input(args, line).exits(code);
    }
}

#[test]
fn the_largest_batch_is_found_whole_and_in_chunks() {
    let largest = |more: &str| {
        let batch = "--batch-axis y --items 15360 --blocks-per-item 5 --max-items";
        launch("h200", &format!("{batch} {more}"))
    };
    let json = largest("--format json").exits(0).json();
    assert_eq!(json["largest_batch"], json!({"whole": 13_107, "in_chunks": null}));
    let cooperative = largest("--cooperative --format json").exits(1).json();
    // 132 multiprocessors of 16 blocks of 128 threads each.
    assert_eq!(cooperative["largest_batch"], json!({"whole": 422, "in_chunks": 422}));
    let cluster = largest("--cluster 1,4 --format json").exits(0).json();
    assert_eq!(cluster["largest_batch"]["whole"], 13_104);
    let never = largest("--shared-mem 1Gi --format json").exits(1).json();
    assert_eq!(never["largest_batch"], json!({"whole": 0, "in_chunks": 0}));
}

#[test]
fn sizes_in_bytes_have_units() {
    let shared = |text| {
        let mut words = "check --gpu h200 --grid 1,76800 --block 128 --format json".words();
        words.extend(["--kernel-max-shared-mem", "0", "--shared-mem", text]);
        gridguard(&words)
    };
    for (text, bytes) in [("100", 100), ("100KiB", 102_400), ("1Ki", 1024), ("2 MB", 2_000_000)] {
        let json = shared(text).exits(1).json();
        let requested =
            json["violations"].as_array().expect("a list").iter().find_map(|violation| {
                (violation["rule"] != "grid-dim-y").then(|| violation["requested"].as_u64())
            });
        assert_eq!(requested.flatten(), Some(bytes), "{text}");
    }
    for text in ["2x", "-1", "99999999999999999999", "1e40Ki", ""] {
        shared(text).exits(2);
    }
}
