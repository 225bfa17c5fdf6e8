//! Memory that moves between threads.

use std::thread;

use super::{ITEMS, assert_ordered, write};
use crate::kernels::{context, iota, poisoned, read, with_kernel};

#[test]
fn memory_that_another_thread_frees_outlives_the_launches() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let stream = context(&guard).new_stream().expect("a stream");
        for owner in [stream.clone(), context(&guard).default_stream()] {
            let mut out = poisoned(&owner, ITEMS);
            assert_eq!(write(&guard, &kernel, &stream, &mut out), Ok(1));
            thread::scope(|scope| scope.spawn(|| drop(out)).join()).expect("it frees");
        }
        assert_ordered();
    });
}

#[test]
fn memory_of_one_thread_s_stream_is_used_and_freed_in_order_on_another_s() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let own = context(&guard).per_thread_stream();
        // The only other streams are the default streams, which cudarc does not track.
        let out = poisoned(&own, ITEMS);
        let launch = || {
            let mut out = out;
            assert_eq!(write(&guard, &kernel, &own, &mut out), Ok(1));
            out
        };
        let out = thread::scope(|scope| scope.spawn(launch).join()).expect("it launches");
        assert_eq!(read(&own, &out), iota(ITEMS));
        drop(out);
        assert_ordered();
    });
}

#[test]
fn threads_that_launch_on_streams_of_their_own_share_memory_in_turn() {
    with_kernel(&[], "fake_iota_y", |guard, kernel, _| {
        let mut out = poisoned(&context(&guard).default_stream(), ITEMS);
        for _ in 0..3 {
            let launch = || {
                let stream = context(&guard).new_stream().expect("a stream");
                write(&guard, &kernel, &stream, &mut out)
            };
            let launched = thread::scope(|scope| scope.spawn(launch).join());
            assert_eq!(launched.expect("it launches"), Ok(1));
        }
        drop(out);
        assert_ordered();
    });
}
