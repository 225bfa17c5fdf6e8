//! What a plan says before anything runs.

use gridguard::{Axis, BatchAxis, Dim3, LaunchRequest, validate};
use gridguard_pipeline::{Budget, ErrorKind, Pipeline, PipelineBuilder};

use crate::limits;

/// A chain of widths in bytes an item: each stage reads the one before.
fn chain(items: u64, widths: &[u64]) -> Pipeline<'static> {
    let mut builder = Pipeline::builder(items);
    let mut before = builder.input::<u8>("x", 8);
    for (stage, width) in widths.iter().enumerate() {
        let next = builder.scratch::<u8>(format!("t{stage}"), *width);
        builder.outline(format!("stage{stage}")).read(before).write(next);
        before = next;
    }
    let y = builder.output::<u8>("y", 8);
    builder.outline("last").read(before).write(y);
    builder.build().expect("a chain")
}

fn on_y(items: u64, blocks_per_item: u64) -> (LaunchRequest, BatchAxis) {
    let batch = BatchAxis::new(Axis::Y, items).blocks_per_item(blocks_per_item);
    (LaunchRequest::new(Dim3::new(1, items * blocks_per_item, 1), Dim3::new(128, 1, 1)), batch)
}

#[test]
fn stages_whose_lifetimes_do_not_overlap_share_scratch() {
    // The transformer block of 16 frames of 320 channels in 16 bits.
    let row = 16 * 320 * 2;
    let widths = [1, 3, 1, 1, 8, 4].map(|times| times * row);
    let pipeline = chain(15_360, &widths);
    let plan = pipeline.plan(&Budget::UNLIMITED).expect("fits");
    assert_eq!((plan.len(), plan.chunk_items(), plan.remainder()), (1, 15_360, None));
    // 12 rows an item, and one alignment for each of two places above the lowest.
    assert_eq!(plan.bytes(), 15_360 * 12 * row + 2 * 256);
    let bytes: Vec<u64> = plan.stages().map(|(_, bytes)| bytes / row / 15_360).collect();
    assert_eq!(bytes, [1, 4, 4, 2, 9, 12, 4]);
    let plan = pipeline.plan(&Budget::bytes(256 << 20).in_flight(2)).expect("fits");
    assert_eq!((plan.in_flight(), plan.chunk_items(), plan.len()), (2, 1024, 15));
    assert!(plan.bytes() <= 256 << 20);
}

#[test]
fn all_chunks_but_the_last_are_equal() {
    let pipeline = chain(100, &[256]);
    for at_most in 1..=110 {
        let plan = pipeline.plan(&Budget::UNLIMITED.at_most(at_most)).expect("fits");
        let chunks: Vec<_> = plan.chunks().collect();
        assert_eq!(chunks.len(), usize::try_from(plan.len()).expect("few"));
        let (last, others) = chunks.split_last().expect("some");
        assert!(others.iter().all(|chunk| chunk.items == plan.chunk_items()));
        assert!(plan.chunk_items() <= at_most);
        assert_eq!(plan.remainder().unwrap_or(plan.chunk_items()), last.items);
        assert_eq!(plan.len(), 100_u64.div_ceil(at_most).min(100_u64.div_ceil(plan.chunk_items())));
        let mut end = 0;
        for (chunk, index) in chunks.iter().zip(0..) {
            assert_eq!((chunk.index, chunk.start), (index, end));
            end = chunk.end();
        }
        assert_eq!(end, 100);
    }
}

#[test]
fn no_items_take_nothing() {
    let plan = chain(0, &[256]).plan(&Budget::bytes(0).in_flight(3)).expect("nothing to fit");
    assert!(plan.is_empty());
    assert_eq!((plan.chunk_items(), plan.bytes(), plan.remainder()), (0, 0, None));
    assert_eq!(plan.chunks().count(), 0);
}

#[test]
fn one_item_and_a_remainder_of_one_are_chunks() {
    let plan = chain(1, &[100]).plan(&Budget::UNLIMITED.in_flight(4)).expect("fits");
    assert_eq!((plan.len(), plan.in_flight(), plan.bytes()), (1, 1, 256));
    let pipeline = chain(7, &[256]);
    let plan = pipeline.plan(&Budget::bytes(2 * 256)).expect("two items");
    assert_eq!((plan.len(), plan.remainder()), (4, Some(1)));
}

#[test]
fn a_budget_for_less_than_one_chunk_is_refused_with_the_smallest_that_works() {
    for (items, align, widths) in [(1, 1, vec![1]), (1000, 7, vec![100, 3, 5000]), (3, 8, vec![9])]
    {
        let mut builder = Pipeline::builder(items);
        let fixed = builder.fixed_scratch::<u64>("fixed", 5);
        builder.outline("fixed").write(fixed).align(align);
        let mut before = fixed;
        for width in widths {
            let next = builder.scratch::<u64>(format!("of {width}"), width);
            builder.outline(format!("to {width}")).read(before).write(next);
            before = next;
        }
        let pipeline = builder.build().expect("a chain");
        let error = pipeline.plan(&Budget::bytes(1).in_flight(2)).expect_err("too small");
        let ErrorKind::Budget { smallest, chunk } = error.kind() else { panic!("{error}") };
        let text = format!(
            "the budget is 1 byte, the smallest possible chunk of {} needs {smallest} bytes of scratch: raise the \
             budget to that",
            gridguard::count(chunk, "item")
        );
        assert_eq!(error.to_string(), text);
        assert_eq!(chunk, align.min(items));
        let plan = pipeline.plan(&Budget::bytes(smallest).in_flight(2)).expect("it works");
        assert_eq!((plan.chunk_items(), plan.bytes(), plan.in_flight()), (chunk, smallest, 1));
        let below = pipeline.plan(&Budget::bytes(smallest - 1)).expect_err("one byte less");
        assert_eq!(below.kind(), error.kind());
    }
}

#[test]
fn the_largest_chunk_is_legal_for_every_stage() {
    let mut builder = Pipeline::builder(15_361);
    let x = builder.in_place::<f32>("x", 64);
    let (heads, by_heads) = on_y(15_361, 5);
    builder.outline("attention").launches(heads, by_heads, &limits("attention")).update(x);
    let batch = BatchAxis::new(Axis::X, 15_361).items_per_block(8);
    let rows = LaunchRequest::new(Dim3::new(1921, 1, 1), Dim3::new(32, 8, 1));
    let indices = batch.index_32_bits(300_000);
    builder.outline("norm").launches(rows, indices, &limits("norm")).update(x);
    builder.outline("library").update(x).align(12).at_most(7000);
    let pipeline = builder.build().expect("three stages");
    let plan = pipeline.plan(&Budget::UNLIMITED).expect("splits");
    // 13,107 items by the grid, 7,158 by the indices, 7,000 by the library; multiples of 24.
    assert_eq!((plan.len(), plan.chunk_items(), plan.remainder()), (3, 5136, Some(5089)));
    for chunk in plan.chunks() {
        let attention = plan.launch(0, chunk).expect("launches").launch;
        let grid = attention.grid();
        assert_eq!(u64::from(grid[1]), chunk.items * 5);
        let mut same = heads;
        same.grid.y = chunk.items * 5;
        assert!(validate(&same, &limits("attention")).is_ok());
        let norm = plan.launch(1, chunk).expect("launches").launch;
        assert_eq!(u64::from(norm.grid()[0]), chunk.items.div_ceil(8));
        assert!(plan.launch(2, chunk).is_none());
    }
    let foreign = gridguard::Chunk { index: 0, start: 0, items: 15_361 };
    assert_eq!(plan.launch(0, foreign), None);
}

#[test]
fn a_stage_that_no_chunk_makes_legal_is_named_with_its_rules() {
    let mut builder = Pipeline::builder(100);
    let (mut request, batch) = on_y(100, 1);
    request.block = Dim3::new(2048, 1, 1);
    builder.outline("fine");
    builder.outline("wide").launches(request, batch, &limits("wide"));
    let error =
        builder.build().expect("built").plan(&Budget::UNLIMITED).expect_err("2,048 threads");
    assert_eq!((error.kind(), error.stage()), (ErrorKind::Illegal, Some("wide")));
    let violations = error.violations().expect("they are typed");
    assert_eq!(violations.iter().count(), 2);
    assert_eq!(error.to_string(), format!("stage wide: {violations}"));
}

#[test]
fn alignments_that_no_chunk_keeps_are_refused() {
    let plan = |declare: fn(&mut PipelineBuilder<'_>), budget| {
        let mut builder = Pipeline::builder(1_000_000);
        declare(&mut builder);
        builder.build().expect("built").plan(&budget)
    };
    let two = |builder: &mut PipelineBuilder<'_>| {
        builder.outline("one").align(1 << 10);
        builder.outline("two").align(3).at_most(3000);
    };
    let error = plan(two, Budget::UNLIMITED).expect_err("3,072 items");
    assert_eq!(error.kind(), ErrorKind::Alignment);
    let text = "stage two allows chunks of at most 3000 items, the smallest that keeps the alignment of \
                every stage has 3072: raise the limit, or lower an alignment";
    assert_eq!(error.to_string(), text);
    let one = |builder: &mut PipelineBuilder<'_>| {
        builder.outline("one").align(10);
    };
    let error = plan(one, Budget::UNLIMITED.at_most(9)).expect_err("10 items").to_string();
    assert!(error.starts_with("the budget allows chunks of at most 9 items"), "{error}");
    let coprime = |builder: &mut PipelineBuilder<'_>| {
        builder.outline("one").align((1 << 40) - 1);
        builder.outline("two").align(1 << 40);
    };
    assert_eq!(plan(coprime, Budget::UNLIMITED).expect("one chunk").len(), 1);
    assert!(plan(coprime, Budget::UNLIMITED.at_most(1000)).is_err());
}

#[test]
fn two_to_the_32_elements_and_more_are_planned() {
    for items in [1_u64 << 32, (1 << 32) + 1, u64::MAX] {
        let pipeline = chain(items, &[4, 12]);
        let plan = pipeline.plan(&Budget::bytes(1 << 36)).expect("splits");
        assert!(plan.bytes() <= 1 << 36);
        let last = plan.remainder().unwrap_or(plan.chunk_items());
        let before = u128::from(plan.len() - 1) * u128::from(plan.chunk_items());
        assert_eq!(before + u128::from(last), u128::from(items));
    }
    let (request, batch) = (
        LaunchRequest::new(Dim3::new(1 << 30, 1, 1), Dim3::new(256, 1, 1)),
        BatchAxis::new(Axis::X, 1 << 30).index_32_bits(4),
    );
    let mut builder = Pipeline::builder(1 << 30);
    builder.outline("narrow").launches(request, batch, &limits("narrow"));
    let plan = builder.build().expect("built").plan(&Budget::UNLIMITED).expect("splits");
    assert_eq!((plan.len(), plan.chunk_items()), (3, 357_913_942));
}

#[test]
fn an_accumulator_makes_chunks_run_one_at_a_time() {
    let mut builder = Pipeline::builder(100);
    let sum = builder.accumulator::<f32>("sum", 1);
    builder.outline("add").update(sum);
    let pipeline = builder.build().expect("built");
    let plan = pipeline.plan(&Budget::UNLIMITED.in_flight(4).at_most(10)).expect("fits");
    assert_eq!((plan.len(), plan.in_flight()), (10, 1));
}

#[test]
fn a_plan_prints_what_it_takes() {
    let plan = chain(1000, &[256, 512]).plan(&Budget::bytes(500_000).in_flight(2)).expect("fits");
    assert_eq!(
        plan.to_string(),
        "1000 items in 4 chunks of 250, 2 in flight, 384512 bytes of scratch\n  \
         stage0: 64000 bytes a chunk\n  \
         stage1: 192000 bytes a chunk\n  \
         last: 128000 bytes a chunk"
    );
    let plan = chain(7, &[256]).plan(&Budget::UNLIMITED.at_most(3)).expect("fits");
    let first = plan.to_string().lines().next().map(str::to_owned);
    let expected = "7 items in 3 chunks of 3, the last of 1, 1 in flight, 768 bytes of scratch";
    assert_eq!(first.as_deref(), Some(expected));
}
