//! The inference server's device back end against its back end on the host.

use std::num::NonZeroU64;
use std::sync::Arc;
use std::thread;

use gridguard::{Guard, catalog};
use gridguard_examples::uniform;
use gridguard_kernels::{Deviation, Element, ElementType, temporal_attention, temporal_block};
use gridguard_server::backend::{Backend, Batch, Failure, Wanted};
use gridguard_server::block::{Block, BlockOptions};
use gridguard_server::device::{Cuda, Shared};
use gridguard_server::error::ServeError;
use gridguard_server::host::Host;
use gridguard_server::tensors::{Request, body_of};
use gridguard_server::tuning::Profiles;
use half::{bf16, f16};
use safetensors::SafeTensors;

use super::support::Tensorial;

/// Clients that wait for every batch.
const WANTED: Wanted<'static> = &|| true;

/// The server's back ends, with a block of 64 channels.
fn backends(dtype: ElementType, memory: u64) -> (Cuda, Host) {
    let block = Arc::new(block(dtype));
    let profiles = Profiles::new(None);
    let device = on_device(&shared(&block, memory, &profiles));
    let guard = Guard::host(catalog::gpu("h200").expect("in the catalogue").limits.clone());
    let tuning = profiles.open(&guard);
    (device, Host::new(guard, tuning, block, memory).expect("it computes"))
}

fn shared(block: &Block, memory: u64, profiles: &Profiles) -> Arc<Shared> {
    let memory = (Some(block.bytes + memory), NonZeroU64::MIN);
    Arc::new(Shared::open(0, memory, profiles, block).expect("a device"))
}

fn on_device(shared: &Arc<Shared>) -> Cuda {
    Cuda::new(Arc::clone(shared)).expect("a stream")
}

fn block(dtype: ElementType) -> Block {
    let (weights, prefix, heads) = (None, None, Some(2));
    let options = BlockOptions { weights, prefix, channels: 64, seed: 3, heads, dtype };
    options.load().expect("random weights")
}

/// A body of random tensors.
fn body<T: Tensorial>(names: &[&str], dims: &[usize], seed: u64) -> Vec<u8> {
    let tensors = names
        .iter()
        .zip(seed..)
        .map(|(name, seed)| (*name, uniform::<T>(dims.iter().product(), seed)));
    let tensors: Vec<_> = tensors.collect();
    let named = tensors.iter().map(|(name, tensor)| (*name, bytemuck::cast_slice(tensor)));
    body_of(T::TYPE, dims, &named.collect::<Vec<_>>()).expect("a body")
}

fn elements<T: Tensorial>(reply: &[u8]) -> Vec<T> {
    let file = SafeTensors::deserialize(reply).expect("safetensors");
    bytemuck::pod_collect_to_vec(file.tensor("out").expect("out").data())
}

/// Both outputs of a batch are as close as two correct ones are.
fn agree<T: Tensorial>(device: &mut Cuda, host: &mut Host, batch: &Batch, tolerance: f64) {
    let replies = device.run(batch, WANTED).expect("it runs");
    let expected = host.run(batch, WANTED).expect("it runs");
    assert_eq!(replies.len(), expected.len());
    for (reply, expected) in replies.iter().zip(&expected) {
        let expected: Vec<f64> =
            elements::<T>(expected).into_iter().map(|x| f64::from(x.widen())).collect();
        let mut deviation = Deviation::new();
        deviation.add(&elements::<T>(reply), &expected);
        assert!(deviation.within(2.0 * tolerance), "{}: {:e}", T::TYPE, deviation.relative());
    }
}

fn batches_agree<T: Tensorial>(dtype: ElementType) {
    let (mut device, mut host) = backends(dtype, 64 << 20);
    let attention = |items: usize, seed| {
        let body = body::<T>(&["q", "k", "v"], &[items, 2, 16, 64], seed);
        Request::attention(&body.into(), 1024).expect("legal")
    };
    let block = block(dtype);
    let transformed = |items: usize, seed| {
        let body = body::<T>(&["x"], &[items, 16, 64], seed);
        Request::block(&body.into(), &block, 1024).expect("legal")
    };
    let (for_attention, for_block) =
        (temporal_attention::tolerance(T::TYPE), temporal_block::tolerance(T::TYPE));
    // Batches of several numbers of items, over weights that are copied once.
    for items in [vec![70], vec![3, 1, 40]] {
        let batch = Batch::of(items.iter().map(|items| attention(*items, 5)).collect());
        agree::<T>(&mut device, &mut host, &batch.expect("requests"), for_attention);
        let batch = Batch::of(items.iter().map(|items| transformed(*items, 6)).collect());
        agree::<T>(&mut device, &mut host, &batch.expect("requests"), for_block);
    }
}

#[test]
#[ignore = "needs a CUDA GPU and cuBLASLt"]
fn batches_on_the_device_equal_those_on_the_host() {
    batches_agree::<f16>(ElementType::F16);
    batches_agree::<bf16>(ElementType::Bf16);
    batches_agree::<f32>(ElementType::F32);
}

#[test]
#[ignore = "needs a CUDA GPU and cuBLASLt"]
fn what_does_not_fit_the_device_is_refused_and_the_next_batch_runs() {
    let (mut device, mut host) = backends(ElementType::F16, 6 << 20);
    let block = block(ElementType::F16);
    let batch = |items: usize| {
        let body = body::<f16>(&["x"], &[items, 16, 64], 1);
        let request = Request::block(&body.into(), &block, 1024).expect("legal");
        Batch::of(vec![request]).expect("a request")
    };
    let refused = device.run(&batch(4000), WANTED).expect_err("16 MB of tensors");
    assert!(matches!(refused, Failure::Batch(ServeError::OutOfMemory { .. })), "{refused:?}");
    let tolerance = temporal_block::tolerance(f16::TYPE);
    agree::<f16>(&mut device, &mut host, &batch(20), tolerance);
}

#[test]
#[ignore = "needs a CUDA GPU and cuBLASLt"]
fn backends_of_one_device_run_at_the_same_time() {
    let block = block(ElementType::F16);
    let shared = shared(&block, 64 << 20, &Profiles::new(None));
    let batch = |items: usize, seed| {
        let body = body::<f16>(&["x"], &[items, 16, 64], seed);
        let request = Request::block(&body.into(), &block, 1024).expect("legal");
        Batch::of(vec![request]).expect("a request")
    };
    // Sizes grow and shrink, so that pinned memory is kept and made anew.
    let batches: Vec<Batch> =
        [300, 7, 1200, 40].into_iter().zip(1..).map(|(items, seed)| batch(items, seed)).collect();
    let mut alone = on_device(&shared);
    let expected: Vec<_> =
        batches.iter().map(|batch| alone.run(batch, WANTED).expect("it runs")).collect();
    thread::scope(|scope| {
        for first in 0..3 {
            let (shared, batches, expected) = (&shared, &batches, &expected);
            scope.spawn(move || {
                let mut device = on_device(shared);
                for number in (first..first + 40).map(|number| number % batches.len()) {
                    let replies = device.run(&batches[number], WANTED).expect("it runs");
                    assert!(replies == expected[number], "batch {number}");
                }
            });
        }
    });
}

#[test]
#[ignore = "needs a CUDA GPU and cuBLASLt"]
fn a_batch_that_nobody_waits_for_is_not_launched_and_the_next_one_runs() {
    let (mut device, mut host) = backends(ElementType::F16, 64 << 20);
    let block = block(ElementType::F16);
    let body = body::<f16>(&["x"], &[20, 16, 64], 1);
    let request = || Request::block(&body.clone().into(), &block, 1024).expect("legal");
    let batch = Batch::of(vec![request()]).expect("a request");
    assert_eq!(device.run(&batch, &|| false).expect_err("cancelled"), Failure::Abandoned);
    agree::<f16>(&mut device, &mut host, &batch, temporal_block::tolerance(f16::TYPE));
}
