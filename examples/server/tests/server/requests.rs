//! Requests to a server on the host: results, batches, and input that is refused.

use std::io::Write;
use std::thread;

use crate::support::{Reply, Server, attention, body, post, random, read_reply, wait_until};
use gridguard::DeviceLimits;
use gridguard_kernels::temporal_attention::{Shape, TemporalAttention, reference, tolerance};
use gridguard_kernels::temporal_block::{self, BlockReference, BlockShape, BlockWeights};
use gridguard_kernels::{Deviation, ElementType};
use safetensors::tensor::{Dtype, TensorView};

/// Whether `out` is attention of q, k and v with one head.
fn assert_attention(dims: [usize; 3], qkv: &[Vec<f32>; 3], mask: Option<&[f32]>, reply: &Reply) {
    let [items, frames, head_dim] = dims;
    let (shape, out) = reply.out::<f32>();
    assert_eq!(shape, dims);
    let wide = |size: usize| u64::try_from(size).unwrap();
    let shape = Shape::new(wide(items), 1, wide(frames), wide(head_dim)).expect("legal");
    let device = DeviceLimits::any_device();
    let operation = TemporalAttention::new(shape, ElementType::F32, &device).expect("served");
    let mut deviation = Deviation::new();
    let size = frames * head_dim;
    for item in 0..items {
        let part = item * size..(item + 1) * size;
        let qkv = [0, 1, 2].map(|tensor: usize| &qkv[tensor][part.clone()]);
        deviation.add(&out[part], &reference(&operation, shape.scale(), qkv, mask));
    }
    assert!(deviation.within(tolerance(ElementType::F32)), "{:e}", deviation.relative());
}

#[test]
fn replies_equal_the_reference_batched_together_or_not() {
    const DIMS: [usize; 3] = [2, 3, 4];
    // 4 tensors of 24 elements: three such requests are a batch, and nothing else lets them run.
    let together = Server::start(&["--batch-wait", "1h", "--batch-bytes", "1152"]);
    let alone = Server::start(&["--batch-wait", "0s"]);
    for server in [&together, &alone] {
        thread::scope(|scope| {
            for seed in 0..6 {
                scope.spawn(move || {
                    let (qkv, body) = attention(&DIMS, seed);
                    assert_attention(DIMS, &qkv, None, &server.post("/v1/attention", &body));
                });
            }
        });
        assert_eq!(server.metric("gridguard_server_answered_total", ""), 6.0);
    }
    assert_eq!(together.metric("gridguard_server_batches_total", "attention"), 2.0);
    together.stop();
    alone.stop();
}

#[test]
fn masks_are_added_or_hide_keys_and_only_equal_ones_share_a_batch() {
    const DIMS: [usize; 3] = [2, 2, 4];
    let server = Server::start(&["--batch-wait", "1h", "--batch-bytes", "256"]);
    let (qkv, _) = attention(&DIMS, 1);
    let [q, k, v] = &qkv;
    let tensors = [("q", &DIMS[..], &q[..]), ("k", &DIMS, k), ("v", &DIMS, v)];
    let added = [0.5, -1.0, f32::NEG_INFINITY, 2.0];
    let masked = body(&[&tensors[..], &[("mask", &[2, 2], &added)]].concat());
    assert_attention(DIMS, &qkv, Some(&added), &server.post("/v1/attention", &masked));

    let views = tensors.iter().map(|(name, dims, elements)| {
        (*name, TensorView::new(Dtype::F32, dims.to_vec(), bytemuck::cast_slice(elements)).unwrap())
    });
    let causal = TensorView::new(Dtype::BOOL, vec![2, 2], &[1, 0, 1, 1]).unwrap();
    let causal = safetensors::serialize(views.chain([("mask", causal)]), None).unwrap();
    let hidden = [0.0, f32::NEG_INFINITY, 0.0, 0.0];
    assert_attention(DIMS, &qkv, Some(&hidden), &server.post("/v1/attention", &causal));
    assert_eq!(server.metric("gridguard_server_batches_total", "attention"), 2.0);
    server.stop();
}

#[test]
fn the_block_equals_its_reference() {
    let server =
        Server::start(&["--channels", "16", "--heads", "2", "--dtype", "f32", "--seed", "9"]);
    let shape = BlockShape::new(5, 3, 16, 2).expect("legal");
    let weights = BlockWeights::<f32>::random(16, 9).expect("legal");
    let reference = BlockReference::new(&shape, &weights).expect("fits");
    let x = random(5 * 3 * 16, 1);
    let (dims, out) = server.post("/v1/block", &body(&[("x", &[5, 3, 16], &x)])).out::<f32>();
    assert_eq!(dims, [5, 3, 16]);
    let mut deviation = Deviation::new();
    for (x, out) in x.chunks(48).zip(out.chunks(48)) {
        deviation.add(out, &reference.item(x));
    }
    assert!(deviation.within(temporal_block::tolerance(ElementType::F32)), "{deviation:?}");
    server.stop();
}

#[test]
fn nan_passes_through_to_the_items_that_have_it_and_zero_items_are_served() {
    let server = Server::start(&["--channels", "16", "--dtype", "f32"]);
    let ([mut q, k, v], _) = attention(&[2, 2, 4], 1);
    q[3] = f32::NAN;
    let dims: &[usize] = &[2, 2, 4];
    let reply =
        server.post("/v1/attention", &body(&[("q", dims, &q), ("k", dims, &k), ("v", dims, &v)]));
    let (_, out) = reply.out::<f32>();
    assert!(
        out[..4].iter().all(|x| x.is_nan()) && out[4..].iter().all(|x| x.is_finite()),
        "{out:?}"
    );

    let (_, none) = attention(&[0, 5, 2, 4], 1);
    assert_eq!(server.post("/v1/attention", &none).out::<f32>(), (vec![0, 5, 2, 4], vec![]));
    let none = server.post("/v1/block", &body(&[("x", &[0, 2, 16], &[])]));
    assert_eq!(none.out::<f32>(), (vec![0, 2, 16], vec![]));
    server.stop();
}

#[test]
fn wrong_tensors_are_typed_errors() {
    let server = Server::start(&["--channels", "16", "--dtype", "f32"]);
    let refused = |path: &str, body: &[u8]| {
        let reply = server.post(path, body);
        let message = reply.json()["error"]["message"].as_str().expect("a message").to_owned();
        (reply.error(), message)
    };
    let dims: &[usize] = &[1, 2, 4];
    let (one, other) = (random(8, 1), random(16, 2));
    let check = |tensors: &[(&str, &[usize], &[f32])], code: &str, text: &str| {
        let (error, message) = refused("/v1/attention", &body(tensors));
        assert_eq!((error.1.as_str(), message.as_str()), (code, text));
        assert_eq!(error.0, 422);
    };
    let qk = [("q", dims, &one[..]), ("k", dims, &one)];
    check(&qk, "missing_tensor", "the body has no tensor v");
    check(
        &[&qk[..], &[("v", &[2, 2, 4], &other)]].concat(),
        "wrong_shape",
        "tensor v has shape [2, 2, 4], expected [1, 2, 4] as q",
    );
    check(
        &[&qk[..], &[("v", dims, &one), ("masks", &[1], &[0.0])]].concat(),
        "unexpected_tensor",
        "the body has a tensor \"masks\", expected q, k, v and mask",
    );
    check(
        &[&qk[..], &[("v", dims, &one), ("mask", &[2, 1], &[0.0; 2])]].concat(),
        "wrong_shape",
        "tensor mask has shape [2, 1], expected [2, 2]",
    );
    check(
        &[("q", &[2, 4], &one)],
        "wrong_shape",
        "tensor q has shape [2, 4], expected [items, frames, head_dim] or [items, heads, frames, \
         head_dim]",
    );
    check(
        &[("q", &[1, 1, 520], &random(520, 1))],
        "unsupported_shape",
        "head_dim is 520, the kernel takes 1 to 512",
    );
    check(
        &[("q", &[1, 1025, 1], &random(1025, 1))],
        "too_many_frames",
        "frames is 1025, the server accepts at most 1024",
    );
    let typed = |dtype, bytes: &[u8]| {
        let view = TensorView::new(dtype, vec![1, 2, 16], bytes).unwrap();
        refused("/v1/block", &safetensors::serialize([("x", view)], None).unwrap())
    };
    let ((status, code), message) = typed(Dtype::F16, &[0; 64]);
    assert_eq!((status, code.as_str()), (422, "wrong_dtype"));
    assert_eq!(message, "tensor x is F16, expected F32");
    let (_, message) = typed(Dtype::I64, &[0; 256]);
    assert_eq!(message, "tensor x is I64, expected F16, BF16 or F32");
    let (_, message) = refused("/v1/block", &body(&[("x", dims, &one)]));
    assert_eq!(message, "tensor x has shape [1, 2, 4], expected [items, frames, 16]");
    let get = |path: &str| {
        let head = format!("GET {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n");
        server.send(head.as_bytes()).error()
    };
    assert_eq!(get("/v2"), (404, "not_found".to_owned()));
    assert_eq!(get("/v1/block"), (405, "method_not_allowed".to_owned()));
    // What operators ask for is not for clients.
    assert_eq!(get("/metrics"), (404, "not_found".to_owned()));
    assert_eq!(server.get("/v1/block").error(), (404, "not_found".to_owned()));
    assert_eq!(server.metric("gridguard_server_accepted_total", ""), 0.0);
    server.stop();
}

#[test]
fn bodies_that_are_cut_or_lie_about_their_size_are_refused_before_they_cost_memory() {
    let server =
        Server::start(&["--max-body", "4KiB", "--max-bodies", "12KiB", "--batch-wait", "1h"]);
    let (_, whole) = attention(&[1, 2, 4], 1);
    for length in [0, 7, 8, 100, whole.len() - 1] {
        let reply = server.post("/v1/attention", &whole[..length]);
        assert_eq!(reply.error(), (400, "not_safetensors".to_owned()), "{length} bytes");
    }
    // A header of the file that claims 100 GB.
    let header =
        br#"{"q":{"dtype":"F32","shape":[25000000000,1,1],"data_offsets":[0,100000000000]}}"#;
    let length = u64::try_from(header.len()).unwrap().to_le_bytes();
    let reply = server.post("/v1/attention", &[&length[..], header].concat());
    assert_eq!(reply.error(), (400, "not_safetensors".to_owned()));

    // 100 GB by the header of the request: nothing is read.
    let huge = b"POST /v1/attention HTTP/1.1\r\nHost: a\r\nContent-Length: 100000000000\r\n\r\n";
    let reply = server.send(huge);
    assert_eq!(reply.error(), (413, "body_too_large".to_owned()));
    assert_eq!(reply.json()["error"]["body_bytes"], 100_000_000_000_u64);
    assert_eq!(reply.headers["connection"], "close");

    // Without a length, cut at the limit.
    let mut chunked =
        b"POST /v1/attention HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n".to_vec();
    for _ in 0..5 {
        chunked.extend(b"400\r\n");
        chunked.extend([0; 1024]);
        chunked.extend(b"\r\n");
    }
    assert_eq!(server.send(&chunked).error(), (413, "body_too_large".to_owned()));

    // A client that ends early.
    let mut stream = server.connect();
    stream.write_all(&post("/v1/attention", &whole)[..120]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    drop(stream);
    wait_until(|| server.metric("gridguard_server_in_flight", "") == 0.0);

    // Bodies that wait for their batch fill the memory of bodies; then there is none for others.
    let (_, large) = attention(&[20, 4, 4], 1);
    let first = {
        let mut stream = server.connect();
        stream.write_all(&post("/v1/attention", &large)).unwrap();
        stream
    };
    wait_until(|| server.metric("gridguard_server_queued", "") == 1.0);
    let reply = server.post("/v1/attention", &large);
    assert_eq!(reply.error(), (429, "bodies_full".to_owned()));
    assert_eq!(reply.headers["retry-after"], "1");
    server.stop();
    assert_eq!(read_reply(first).status, 200);
}

#[test]
fn what_does_not_fit_the_memory_is_413_with_the_numbers_and_less_of_it_is_served() {
    let options = ["--channels", "16", "--dtype", "f32", "--memory", "8MiB", "--max-work", "100d"];
    let server = Server::start(&[&options[..], &["--queue-work", "300d"]].concat());
    // x and y take 128 bytes a frame each; scratch for the smallest chunk some more.
    let frames = 64;
    let item = frames * 16;
    let send = |items: usize| {
        let x = random(items * item, 1);
        server.post("/v1/block", &body(&[("x", &[items, frames, 16], &x)]))
    };
    let reply = send(700);
    assert_eq!(reply.error(), (413, "not_enough_memory".to_owned()));
    let error = reply.json()["error"].clone();
    let number = |name: &str| error[name].as_u64().unwrap_or_else(|| panic!("{error}"));
    assert_eq!(number("available_bytes"), 8 << 20);
    assert!(number("needed_bytes") > number("smallest_bytes"), "{error}");
    assert!(number("smallest_bytes") > number("available_bytes"), "{error}");
    let most = usize::try_from(number("max_items")).unwrap();
    assert_eq!(send(most + 1).status, 413);
    let (dims, out) = send(most).out::<f32>();
    assert_eq!((dims, out.len()), (vec![most, frames, 16], most * item));
    server.stop();
}

#[test]
fn a_client_that_is_refused_while_it_sends_gets_its_reply() {
    let server = Server::start(&["--max-bodies", "1MiB"]);
    // More than sockets hold.
    let body = vec![0; 48 << 20];
    for _ in 0..5 {
        let mut stream = server.connect();
        stream.write_all(&post("/v1/attention", &body)).expect("all of it is taken");
        assert_eq!(read_reply(stream).error(), (429, "bodies_full".to_owned()));
    }
    assert_eq!(server.metric("gridguard_server_body_bytes", ""), 0.0);
    server.stop();
}
