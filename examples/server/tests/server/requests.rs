//! Requests: results, batches, and input that is refused.

use std::thread;

use gridguard::DeviceLimits;
use gridguard_kernels::temporal_attention::{Shape, TemporalAttention, reference, tolerance};
use gridguard_kernels::{Deviation, ElementType};
use safetensors::tensor::Dtype;

use crate::support::{Reply, Server, attention, body};

/// Whether `reply` is attention of q, k and v.
fn assert_attention(
    [items, heads, frames, head_dim]: [usize; 4],
    qkv: &[Vec<f32>; 3],
    reply: &Reply,
) {
    let (dims, out) = reply.out();
    assert_eq!(dims, [items, heads, frames, head_dim]);
    let [frames, head_dim] = [frames, head_dim].map(|size| u64::try_from(size).expect("64 bits"));
    let shape = Shape::new(1, 1, frames, head_dim).expect("legal");
    let operation = TemporalAttention::new(shape, ElementType::F32, &DeviceLimits::any_device());
    let (operation, mut deviation) = (operation.expect("served"), Deviation::new());
    let size = out.len() / items / heads;
    for problem in 0..items * heads {
        let part = problem * size..(problem + 1) * size;
        let qkv = qkv.each_ref().map(|tensor| &tensor[part.clone()]);
        deviation.add(&out[part], &reference(&operation, shape.scale(), qkv, None));
    }
    assert!(deviation.within(tolerance(ElementType::F32)), "{:e}", deviation.relative());
}

#[test]
fn requests_of_one_shape_are_a_batch_and_each_gets_its_own_result() {
    const DIMS: [usize; 4] = [1, 2, 3, 4];
    // Three tensors of 96 bytes fill a batch, and nothing else lets it run.
    let server = &Server::start(&["--batch-wait", "1h", "--batch-bytes", "288"]);
    thread::scope(|scope| {
        for seed in 0..6 {
            scope.spawn(move || {
                let (qkv, body) = attention(DIMS, seed);
                let reply = server.post("", &body);
                assert_attention(DIMS, &qkv, &reply);
                assert_eq!(reply.headers["gridguard-batch"], "3");
            });
        }
        // Another shape does not join them, and fills a batch by itself.
        let (qkv, body) = attention([9, 1, 2, 4], 7);
        let reply = server.post("", &body);
        assert_attention([9, 1, 2, 4], &qkv, &reply);
        assert_eq!(reply.headers["gridguard-batch"], "1");
    });
    assert_eq!(server.metric("gridguard_server_batches_total", ""), 3.0);
}

#[test]
fn a_launch_that_is_too_large_is_served_or_explained() {
    let server = Server::start(&[]);
    let dims = [15_360, 5, 1, 2];
    let (qkv, large) = attention(dims, 1);
    assert_attention(dims, &qkv, &server.post("", &large));
    let (status, code, error) = server.post("?split=never", &large).error();
    assert_eq!((status, code.as_str()), (422, "launch_refused"));
    let violation = &error["violations"][0];
    assert_eq!(violation["rule"], "grid-dim-y", "{error}");
    assert_eq!((&violation["requested"], &violation["limit"]), (&76_800.into(), &65_535.into()));
    let message = error["message"].as_str().expect("text");
    assert!(message.starts_with("grid.y is 76800 blocks"), "{message}");
    // A launch that is legal as a whole is one.
    let reply = server.post("?split=never", &attention([2, 1, 3, 4], 1).1);
    assert_eq!((reply.status, reply.headers["gridguard-launches"].as_str()), (200, "1"));
}

#[test]
fn nan_stays_in_its_item_and_zero_items_are_served() {
    let server = Server::start(&[]);
    let ([mut q, k, v], _) = attention([2, 1, 2, 4], 1);
    q[3] = f32::NAN;
    let [q, k, v] = [&q, &k, &v].map(|tensor| bytemuck::cast_slice(tensor));
    let dims: &[usize] = &[2, 1, 2, 4];
    let named =
        [("q", Dtype::F32, dims, q), ("k", Dtype::F32, dims, k), ("v", Dtype::F32, dims, v)];
    let (_, out) = server.post("", &body(&named)).out();
    assert!(out[..4].iter().all(|x| x.is_nan()) && out[4..].iter().all(|x| x.is_finite()));
    let none = server.post("", &attention([0, 5, 2, 4], 1).1);
    assert_eq!(none.out(), (vec![0, 5, 2, 4], vec![]));
}

#[test]
fn malformed_requests_get_a_status_a_code_and_a_reason() {
    let server = Server::start(&["--max-body", "4096", "--max-frames", "64"]);
    let (_, whole) = attention([1, 1, 2, 4], 1);
    // q, k and v of one type and shape.
    let alike = |dtype, dims: &[usize], bytes: usize| {
        let bytes = vec![0; bytes];
        body(&["q", "k", "v"].map(|name| (name, dtype, dims, &bytes[..])))
    };
    let tensor = [0; 32];
    let (q, k) = (
        ("q", Dtype::F32, &[1, 1, 2, 4][..], &tensor[..]),
        ("k", Dtype::F32, &[2, 4][..], &tensor[..]),
    );
    let v = ("v", Dtype::F32, &[1, 1, 2, 4][..], &tensor[..]);
    // A header that claims 100 GB.
    let claim =
        br#"{"q":{"dtype":"F32","shape":[25000000000,1,1,1],"data_offsets":[0,100000000000]}}"#;
    let lie = [&u64::try_from(claim.len()).expect("short").to_le_bytes()[..], claim].concat();
    let long_header = [&(65_537_u64).to_le_bytes()[..], &[b' '; 100]].concat();
    for (body, status, code, reason) in [
        (vec![], 400, "not_safetensors", ""),
        (whole[..7].to_vec(), 400, "not_safetensors", ""),
        (whole[..whole.len() - 1].to_vec(), 400, "not_safetensors", ""),
        (lie, 400, "not_safetensors", ""),
        (long_header, 400, "not_safetensors", "65537 bytes"),
        (body(&[q, v]), 422, "wrong_tensor", "tensor k is missing"),
        (
            body(&[q, ("k", v.1, v.2, v.3), v, ("mask", v.1, v.2, v.3)]),
            422,
            "wrong_tensor",
            "alone",
        ),
        (body(&[q, k, v]), 422, "wrong_tensor", "tensor k is F32 [2, 4]"),
        (alike(Dtype::F64, &[1, 1, 2, 2], 32), 422, "wrong_tensor", "F16, BF16 or F32"),
        (alike(Dtype::F32, &[8], 32), 422, "wrong_tensor", "[items, heads, frames, head_dim]"),
        (alike(Dtype::F32, &[1, 1, 65, 1], 260), 422, "too_many_frames", "65"),
        (alike(Dtype::F16, &[0, 1, 1, 513], 0), 422, "unsupported", "head_dim is 513"),
        (alike(Dtype::F16, &[1, 0, 1, 8], 0), 422, "unsupported", "heads is 0"),
        (vec![0; 4097], 413, "body_too_large", "4096"),
    ] {
        let reply = server.post("", &body);
        let (given, given_code, error) = reply.error();
        assert_eq!((given, given_code.as_str()), (status, code), "{error}");
        assert!(error["message"].as_str().expect("text").contains(reason), "{error}");
    }
    assert_eq!(server.post("?split=sometimes", &whole).error().1, "wrong_option");

    let error = |bytes: &[u8]| server.send(bytes).error();
    let rest = "HTTP/1.1\r\nHost: a\r\nConnection: close\r\n";
    let (status, code, _) = error(format!("GET /v2 {rest}\r\n").as_bytes());
    assert_eq!((status, code.as_str()), (404, "not_found"));
    let (status, code, _) = error(format!("GET /v1/attention {rest}\r\n").as_bytes());
    assert_eq!((status, code.as_str()), (405, "method_not_allowed"));
    // 100 GB by the header of the request: nothing is read.
    let huge = format!("POST /v1/attention {rest}Content-Length: 100000000000\r\n\r\n");
    assert_eq!(error(huge.as_bytes()).1, "body_too_large");
    // Without a length, cut at the limit.
    let chunked = format!("POST /v1/attention {rest}Transfer-Encoding: chunked\r\n\r\n");
    let chunk = [&b"400\r\n"[..], &[0; 1024], b"\r\n"].concat();
    assert_eq!(error(&[chunked.as_bytes(), &chunk.repeat(5)].concat()).1, "body_too_large");
    let broken = [chunked.as_bytes(), b"no length\r\n"].concat();
    assert_eq!(error(&broken).1, "body_broken");
    // It still serves, has counted what it refused, and names each request.
    let reply = server.post("", &whole);
    assert_eq!((reply.status, reply.headers["x-request-id"].len()), (200, 36));
    assert!(server.log().contains(&reply.headers["x-request-id"]), "{}", server.log());
    let counted = |labels| server.metric("gridguard_server_requests_total", labels);
    assert_eq!(counted("{path=\"other\",status=\"404\"}"), 1.0);
    assert_eq!(counted("{path=\"/v1/attention\",status=\"405\"}"), 1.0);
    server.stop();
}
