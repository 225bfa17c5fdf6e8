//! Compares rows of a table with the reference, whole, split and folded; indices outside the table.

use cudarc::driver::DeviceRepr;
use gridguard::{Choice, Strategy};
use gridguard_examples::uniform;
use gridguard_kernels::get_rows::{GetRows, reference};
use gridguard_kernels::{
    Deviation, ElementType, Index, IndexReport, IndexType, KernelError, Tensor, TensorMut,
};
use half::{bf16, f16};
use proptest::collection::vec;
use proptest::prelude::{ProptestConfig, any, prop_oneof, proptest};
use proptest::strategy::Strategy as _;

use super::support::{Tensorial, is_the_same_split_and_folded, kernels, poisoned, stream};

/// The rows of a random table that `index` names, and the result of the report.
fn rows<T: Tensorial, I: Index + DeviceRepr>(
    table: [u64; 2],
    index: &[I],
    choice: Choice,
) -> (Vec<T>, Result<(), KernelError>) {
    let stream = stream();
    let [table_rows, columns] = table;
    let operation = operation::<T, I>(table, index);
    let prepared = kernels().prepare(operation, choice).expect("a plan");
    let memory = stream.clone_htod(&synthetic::<T>(table)).expect("table");
    let indices = stream.clone_htod(index).expect("indices");
    let mut out = poisoned::<T>(&stream, index.len() * usize::try_from(columns).expect("columns"));
    let mut report = IndexReport::new(&stream).expect("memory");
    let launched = prepared.launch(
        &stream,
        Tensor::new(&memory, [table_rows, columns]),
        Tensor::new(&indices, [operation.dims()[0]]),
        TensorMut::new(&mut out, operation.dims()),
        &mut report,
    );
    assert_eq!(launched.expect("launches"), prepared.plan().len());
    let reported = report.check(&stream, &indices);
    // The first check resets the report.
    assert_eq!(report.check(&stream, &indices), Ok(()));
    (stream.clone_dtoh(&out).expect("out"), reported)
}

fn operation<T: Tensorial, I: Index>([table_rows, columns]: [u64; 2], index: &[I]) -> GetRows {
    let rows = u64::try_from(index.len()).expect("rows");
    GetRows::new(rows, columns, table_rows, T::TYPE, I::TYPE).expect("legal")
}

fn synthetic<T: Tensorial>([rows, columns]: [u64; 2]) -> Vec<T> {
    uniform(usize::try_from(rows * columns).expect("elements"), 1)
}

fn matches_the_reference<T: Tensorial, I: Index + DeviceRepr>(
    table: [u64; 2],
    index: &[I],
    blocks: u64,
) {
    let name = format!("{} {} {table:?} {}", T::TYPE, I::TYPE, index.len());
    let columns = usize::try_from(table[1]).expect("columns");
    let (whole, reported) = rows::<T, I>(table, index, Choice::AUTOMATIC);
    let elements = synthetic::<T>(table);
    let expected = reference(&elements, columns, index);
    assert_eq!(reported, expected.clone().map(|_| ()), "{name}");
    if let Ok(expected) = &expected {
        let mut deviation = Deviation::new();
        deviation.add(&whole, expected);
        assert!(deviation.within(0.0), "{name}");
    }
    // Row by row, also for bad indices.
    for (place, (value, out)) in index.iter().zip(whole.chunks(columns)).enumerate() {
        let row = usize::try_from(Into::<i64>::into(*value))
            .ok()
            .and_then(|row| elements.chunks(columns).nth(row));
        let same = match row {
            Some(row) => out == row,
            None => out.iter().all(|x| x.widen() == 0.0),
        };
        assert!(same, "row {place} of {name}");
    }
    let operation = operation::<T, I>(table, index);
    is_the_same_split_and_folded(&operation, blocks, &(whole, reported), &name, |choice| {
        rows::<T, I>(table, index, choice)
    });
}

/// Indices into a table of `rows`. `bad` replaces some by indices outside it, near its ends and far
/// from them.
fn indices<I: Index + TryFrom<i64>>(rows: u64, places: &[u64], bad: &[(usize, i64)]) -> Vec<I> {
    let rows = i64::try_from(rows).expect("rows");
    let narrow = |value: i64| I::try_from(value).ok().expect("an index");
    let mut indices: Vec<I> =
        places.iter().map(|place| narrow(i64::try_from(*place).expect("a place") % rows)).collect();
    for (place, value) in bad {
        let len = indices.len();
        indices[place % len] = narrow(if *value < 0 { *value } else { rows + *value });
    }
    indices
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 40, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs a CUDA GPU"]
    fn get_rows_matches_the_reference_whole_split_and_folded(
        table_rows in prop_oneof![1_u64..4, 1_u64..1000],
        columns in prop_oneof![1_u64..40, (1_u64..60).prop_map(|n| 8 * n), 1_u64..5000],
        places in vec(0_u64..1_000_000, 1..400),
        bad in vec((any::<usize>(), prop_oneof![-3_i64..3, -2_000_000_000_i64..2_000_000_000]), 0..4),
        blocks in 1_u64..5,
    ) {
        let table = [table_rows.min(1_000_000 / columns), columns];
        // Many rows of few columns, so that these are several blocks as well.
        let times = (200 / usize::try_from(columns).expect("columns")).max(1);
        let places = places.repeat(times);
        let (narrow, wide) = (indices::<i32>(table[0], &places, &bad), indices::<i64>(table[0], &places, &bad));
        matches_the_reference::<f16, i32>(table, &narrow, blocks);
        matches_the_reference::<bf16, i64>(table, &wide, blocks);
        matches_the_reference::<f32, i64>(table, &wide, blocks);
        matches_the_reference::<f32, i32>(table, &narrow, blocks);
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn more_rows_than_y_has_blocks_are_split_or_folded() {
    // 513 elements of 2 bytes keep a block busy with one row.
    let (count, table) = (70_000, [11, 513]);
    let places: Vec<u64> = (0..count).collect();
    let index = indices::<i32>(11, &places, &[(69_998, -7), (66_000, 0), (69_999, 5)]);
    let run = |strategy| rows::<f16, i32>(table, &index, Choice::AUTOMATIC.strategy(strategy));
    let whole = kernels()
        .prepare(operation::<f16, i32>(table, &index), Choice::AUTOMATIC.strategy(Strategy::Whole));
    assert!(matches!(whole, Err(KernelError::Violations(_))));
    let (split, reported) = run(Strategy::Chunked);
    assert_eq!(reported, Err(KernelError::Index { position: 66_000, value: 11, rows: 11 }));
    let elements = synthetic::<f16>(table);
    for (place, out) in split.chunks(513).enumerate() {
        let row = &elements[place % 11 * 513..][..513];
        let good = !matches!(place, 66_000 | 69_998 | 69_999);
        assert!(if good { out == row } else { out.iter().all(|x| *x == f16::ZERO) }, "{place}");
    }
    assert!(run(Strategy::Folded) == (split, reported));
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn extreme_indices_are_reported() {
    for value in [i64::MIN, i64::MAX, -1, 1 << 32, 1 << 63 >> 31] {
        let (out, reported) = rows::<f32, i64>([5, 3], &[4, value, 0], Choice::AUTOMATIC);
        assert_eq!(reported, Err(KernelError::Index { position: 1, value, rows: 5 }));
        assert_eq!(out[3..6], [0.0; 3]);
    }
    for value in [i32::MIN, i32::MAX] {
        let (_, reported) = rows::<f32, i32>([5, 3], &[4, 0, value], Choice::AUTOMATIC);
        assert_eq!(reported, Err(KernelError::Index { position: 2, value: value.into(), rows: 5 }));
    }
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn launches_between_two_checks_share_a_report() {
    let stream = stream();
    let operation = GetRows::new(3, 1, 2, ElementType::F32, IndexType::I32).expect("legal");
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let table = stream.clone_htod(&[1.0_f32, 2.0]).expect("table");
    let bad = stream.clone_htod(&[0_i32, 1, 50_257]).expect("indices");
    let good = stream.clone_htod(&[0_i32, 1, 0]).expect("indices");
    let mut out = poisoned::<f32>(&stream, 3);
    let mut report = IndexReport::new(&stream).expect("memory");
    for index in [&bad, &good] {
        let (table, index) = (Tensor::new(&table, [2, 1]), Tensor::new(index, [3]));
        let out = TensorMut::new(&mut out, [3, 1]);
        prepared.launch(&stream, table, index, out, &mut report).expect("launches");
    }
    let reported = report.check(&stream, &bad).expect_err("of the first launch");
    assert_eq!(reported.to_string(), "index[2] is 50257, the table has 2 rows");
    assert_eq!(stream.clone_dtoh(&out).expect("out"), [1.0, 2.0, 1.0]);
}

#[test]
#[ignore = "needs a CUDA GPU"]
fn mismatched_get_rows_tensors_are_rejected_before_any_launch() {
    let stream = stream();
    let operation = GetRows::new(4, 8, 3, ElementType::F32, IndexType::I32).expect("legal");
    let prepared = kernels().prepare(operation, Choice::AUTOMATIC).expect("a plan");
    let table = stream.alloc_zeros::<f32>(24).expect("table");
    let index = stream.alloc_zeros::<i32>(4).expect("indices");
    let wide = stream.alloc_zeros::<i64>(4).expect("indices");
    let mut out = poisoned::<f32>(&stream, 32);
    let mut report = IndexReport::new(&stream).expect("memory");
    let mut refused = |table_dims, index_dims, dims| {
        let (table, index) = (Tensor::new(&table, table_dims), Tensor::new(&index, index_dims));
        let out = TensorMut::new(&mut out, dims);
        let error = prepared.launch(&stream, table, index, out, &mut report);
        error.expect_err("refused").to_string()
    };
    let other = refused([4, 6], [4], [4, 8]);
    assert_eq!(other, "table has shape [4, 6], the kernel was prepared for [3, 8]");
    let other = refused([3, 8], [5], [4, 8]);
    assert_eq!(other, "index has shape [5], the kernel was prepared for [4]");
    let other = refused([3, 8], [4], [8, 4]);
    assert_eq!(other, "out has shape [8, 4], the kernel was prepared for [4, 8]");
    let (table, wide) = (Tensor::new(&table, [3, 8]), Tensor::new(&wide, [4]));
    let to = TensorMut::new(&mut out, [4, 8]);
    let other = prepared.launch(&stream, table, wide, to, &mut report).expect_err("refused");
    assert_eq!(other.to_string(), "the indices are i64, the kernel was prepared for i32");
    assert!(stream.clone_dtoh(&out).expect("out").iter().all(|x| x.is_nan()));
}
