# The commands people type; `just` lists them (https://just.systems).

_default:
    @just --list

# Build and run the tests; needs gcc, no GPU
test *args:
    cargo test --workspace {{args}}

# Test the guard alone, with all features
guard *args:
    cargo test -p gridguard --all-features {{args}}

# Format and lint
lint:
    cargo fmt --all
    cargo clippy --workspace --all-targets -- --deny warnings

# Everything that CI checks
ci:
    .ci/run

# The main job: explain, split, run and verify temporal attention
demo *args:
    cargo run --release --example temporal_attention -- {{args}}

# Open the documentation
doc:
    cargo doc --workspace --no-deps --all-features --open

# Install the command `gridguard`
install:
    cargo install --path autotune/cli

# Everything that needs a GPU, on this machine
gpu results="target/gpu-results":
    tests/gpu-suite.sh all {{results}}

# Fuzz every target, or the named ones; needs nightly and cargo-fuzz
fuzz seconds="60" *targets:
    tests/fuzz.sh {{seconds}} {{targets}}

# Run under Miri what needs no driver; needs nightly with miri and rust-src
miri seeds="8":
    tests/miri.sh {{seeds}}
