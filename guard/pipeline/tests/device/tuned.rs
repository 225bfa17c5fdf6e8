//! The keys of pipelines whose kernels are tuned.

use gridguard::Axis;
use gridguard::cuda::Kernel;
use gridguard::profile::{Key, Objective, Policy};
use gridguard_pipeline::Pipeline;

use crate::kernels::{items_along, kernel, with_guard};

#[test]
fn the_key_of_a_pipeline_has_the_sources_of_its_tuned_kernels() {
    with_guard(&[], |guard| {
        let of = |kernel: &Kernel| {
            let mut builder = Pipeline::builder(1000);
            let out = builder.output::<u64>("out", 1);
            let (request, batch) = items_along(Axis::Y, 1000);
            builder.kernel("iota", kernel, request, batch).write(out).offset().length();
            let pipeline = builder.build().expect("one stage");
            pipeline.key("counting", Policy::default(), Objective::default())
        };
        let untuned = of(&kernel(&guard, "fake_iota_y"));
        let [one, same, edited] = ["ab", "ab", "cd"].map(|source| {
            let key = Key { source: source.to_owned(), ..Key::default() };
            of(&kernel(&guard, "fake_iota_y").with_tuning(key, "items", &[]))
        });
        assert_eq!((untuned.source.as_str(), one.source.len()), ("", 16));
        assert!(one == same && one.source != edited.source);
        assert_eq!(Key { source: one.source.clone(), ..untuned }, one);
    });
}
