//! How long a text of 200,000 lines takes to rewrite; `PTX` names another one.
#![allow(
    missing_docs,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a benchmark"
)]

use core::hint::black_box;

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use gridguard_ptx::rewrite;

/// Entries of 1,400 lines each, most of them arithmetic and memory accesses.
fn synthetic() -> Vec<u8> {
    let mut text = ".version 8.0\n.target sm_80\n.address_size 64\n".to_owned();
    for entry in 0..142 {
        text += &format!(
            ".visible .entry kernel_{entry}(\n\t.param .u64 kernel_{entry}_param_0\n)\n{{\n\t.reg .b32 \t%r<999>;\n\n"
        );
        for line in 0..350 {
            text += &format!(
                "\tmov.u32 \t%r{line}, %ctaid.y;\n\tmad.lo.s32 \t%r{line}, %r{line}, %r1, %r2;\n\
                 \tld.global.nc.u32 \t%r{line}, [%rd{line}+128];\n$L__BB{entry}_{line}:\n"
            );
        }
        text += "\tret;\n}\n";
    }
    text.into_bytes()
}

fn bench(c: &mut Criterion) {
    let text = match std::env::var_os("PTX") {
        Some(path) => std::fs::read(path).expect("the file"),
        None => synthetic(),
    };
    let mut group = c.benchmark_group("rewrite");
    group.throughput(Throughput::Bytes(u64::try_from(text.len()).expect("64 bits")));
    group.sample_size(10);
    group.bench_function("200,000 lines", |b| b.iter(|| rewrite(black_box(&text)).expect("PTX")));
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
